//! A secret that both hosts know, and its proof without saying it.

use std::fmt::{self, Write as _};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// What is proved; another protocol with the same secret proves something else.
const LABEL: &[u8] = b"towpath live 1 client";

/// A shared secret.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Random bytes that are proved with, never twice the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Challenge(pub [u8; 32]);

/// The answer to a challenge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Proof(pub [u8; 32]);

impl Secret {
    /// The content of a file, without white space around it; `None` if nothing is left.
    pub fn from_text(text: &[u8]) -> Option<Self> {
        let text = text.trim_ascii();
        (!text.is_empty()).then(|| Self(text.to_vec()))
    }

    /// Proves to know the secret.
    pub fn prove(&self, challenge: Challenge) -> Option<Proof> {
        Some(Proof(self.mac(challenge)?.finalize().into_bytes().into()))
    }

    /// Whether somebody knows the secret. The time that it takes does not tell how nearly.
    pub fn accepts(&self, challenge: Challenge, proof: Proof) -> bool {
        self.mac(challenge).is_some_and(|mac| mac.verify_slice(&proof.0).is_ok())
    }

    fn mac(&self, challenge: Challenge) -> Option<Hmac<Sha256>> {
        // An HMAC takes keys of any length, so this is always there.
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        Some(mac.chain_update(LABEL).chain_update(challenge.0))
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _into_a_text = write!(text, "{byte:02x}");
        text
    })
}

/// Bytes out of hexadecimal digits, if there are exactly so many.
pub(super) fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    if text.len() != N * 2 {
        return None;
    }
    let mut bytes = [0; N];
    for (slot, pair) in bytes.iter_mut().zip(text.as_bytes().chunks(2)) {
        let pair = str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?;
        *slot = u8::from_str_radix(pair, 16).ok()?;
    }
    Some(bytes)
}

macro_rules! as_hex {
    ($name:ident) => {
        impl From<$name> for String {
            fn from(value: $name) -> Self {
                to_hex(&value.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = &'static str;

            fn try_from(text: String) -> Result<Self, Self::Error> {
                from_hex(&text).map(Self).ok_or("expected 64 hexadecimal digits")
            }
        }
    };
}

as_hex!(Challenge);
as_hex!(Proof);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn only_who_knows_the_secret_proves_it(
            own in "[!-~]{1,80}", other in "[!-~]{1,80}",
            challenge in any::<[u8; 32]>(), flip in 0_usize..256,
        ) {
            let challenge = Challenge(challenge);
            let secret = Secret::from_text(own.as_bytes()).unwrap();
            let proof = secret.prove(challenge).unwrap();
            prop_assert!(secret.accepts(challenge, proof));
            let mut wrong = proof;
            wrong.0[flip / 8] ^= 1 << (flip % 8);
            prop_assert!(!secret.accepts(challenge, wrong));
            let stranger = Secret::from_text(other.as_bytes()).unwrap();
            prop_assert_eq!(stranger.accepts(challenge, proof), own == other);
        }

        #[test]
        fn digits_and_bytes_are_the_same(bytes in any::<[u8; 32]>(), garbage in ".{0,80}") {
            prop_assert_eq!(from_hex::<32>(&to_hex(&bytes)), Some(bytes));
            let _ = from_hex::<16>(&garbage);
        }
    }

    #[test]
    fn the_end_of_a_line_is_no_part_of_a_secret() {
        assert_eq!(Secret::from_text(b" key\n"), Secret::from_text(b"key"));
        assert_eq!(Secret::from_text(b" \n"), None);
        assert_eq!(from_hex::<1>("+7"), None);
    }
}
