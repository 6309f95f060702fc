//! Mutual authentication by a shared secret that is never sent.
//!
//! Both sides send a random challenge, and both prove knowledge of the secret, the client first. So
//! a client gets nothing from a server to guess offline. A proof is bound to one encrypted
//! connection ([`ChannelBinding`]), so that a man in the middle cannot relay it.

use std::fmt::{self, Write as _};

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use thiserror::Error;
use towpath_run::token::from_hex;

/// Minimum length of a secret; shorter ones can be guessed.
pub const MIN_SECRET_BYTES: usize = 16;
/// Minimum number of different bytes of a secret. A random one of 16 digits has fewer with a chance
/// below 1 in 10,000.
const MIN_DISTINCT_BYTES: usize = 5;
/// Maximum length of a secret.
pub const MAX_SECRET_BYTES: usize = 4_096;

/// A shared secret. Secrets are never compared directly, only their proofs.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// Reason why a text is not a valid secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SecretError {
    /// Nothing but white space.
    #[error("it is empty")]
    Empty,
    /// Short enough to be found by guessing.
    #[error("it has {0} bytes, expected at least {MIN_SECRET_BYTES}")]
    TooShort(usize),
    /// Made of too few characters, so that it can be found by guessing.
    #[error("it has {0} different characters, expected at least {MIN_DISTINCT_BYTES}")]
    Repetitive(usize),
    /// More than [`MAX_SECRET_BYTES`] bytes long.
    #[error("it has more than {MAX_SECRET_BYTES} bytes")]
    TooLong,
}

/// Random bytes for one proof, never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Challenge(pub [u8; 32]);

/// HMAC-SHA-256 that proves knowledge of the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AuthProof(pub [u8; 32]);

/// Channel binding, exported from the keys of one encrypted connection (RFC 8446 §7.5). Only the
/// two ends of that connection know it.
#[derive(Clone, Copy)]
pub struct ChannelBinding(pub [u8; 32]);

impl fmt::Debug for ChannelBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Binding(…)")
    }
}

/// Role of the side that proves the secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthRole {
    /// The end that opened the connection.
    Client,
    /// The end that accepted it.
    Server,
}

impl AuthRole {
    /// Returns the label of the proof. It separates both roles, and other protocols with the same
    /// secret.
    const fn label(self) -> &'static [u8] {
        match self {
            Self::Client => b"towpath live 2 client",
            Self::Server => b"towpath live 2 server",
        }
    }
}

/// Input of a proof, apart from the role.
#[derive(Debug, Clone, Copy)]
pub struct AuthTranscript {
    /// Channel binding of the connection.
    pub binding: ChannelBinding,
    /// Challenge from the server.
    pub server: Challenge,
    /// Challenge from the client.
    pub client: Challenge,
}

fn distinct_bytes(text: &[u8]) -> usize {
    (0..=u8::MAX).filter(|byte| text.contains(byte)).count()
}

impl Secret {
    /// Parses the content of a secret file; surrounding white space is ignored.
    pub fn from_text(text: &[u8]) -> Result<Self, SecretError> {
        let text = text.trim_ascii();
        match text.len() {
            0 => Err(SecretError::Empty),
            short @ 1..MIN_SECRET_BYTES => Err(SecretError::TooShort(short)),
            MIN_SECRET_BYTES..=MAX_SECRET_BYTES => match distinct_bytes(text) {
                repetitive @ ..MIN_DISTINCT_BYTES => Err(SecretError::Repetitive(repetitive)),
                _ => Ok(Self(text.to_vec())),
            },
            _ => Err(SecretError::TooLong),
        }
    }

    /// Computes the proof for one side.
    pub fn prove(&self, side: AuthRole, transcript: &AuthTranscript) -> Option<AuthProof> {
        Some(AuthProof(self.mac(side, transcript)?.finalize().into_bytes().into()))
    }

    /// Returns true if `proof` is valid for `side`, in constant time.
    pub fn accepts(&self, side: AuthRole, transcript: &AuthTranscript, proof: AuthProof) -> bool {
        self.mac(side, transcript).is_some_and(|mac| mac.verify_slice(&proof.0).is_ok())
    }

    fn mac(&self, side: AuthRole, transcript: &AuthTranscript) -> Option<Hmac<Sha256>> {
        let AuthTranscript { binding, server, client } = transcript;
        // HMAC accepts keys of any length, so this never fails.
        let mac = Hmac::<Sha256>::new_from_slice(&self.0).ok()?;
        // All parts have a fixed length, so the encoding is unambiguous.
        let parts = [side.label(), &binding.0, &server.0, &client.0];
        Some(parts.into_iter().fold(mac, Mac::chain_update))
    }
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
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
as_hex!(AuthProof);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn transcript(bytes: [u8; 96]) -> AuthTranscript {
        let (parts, _) = bytes.as_chunks();
        AuthTranscript {
            binding: ChannelBinding(parts[0]),
            server: Challenge(parts[1]),
            client: Challenge(parts[2]),
        }
    }

    proptest! {
        #[test]
        fn a_proof_needs_the_secret_and_holds_for_one_connection(
            secret_text in "[!-~]{16,80}", other_text in "[!-~]{16,80}",
            transcript_bytes in any::<[u8; 96]>(), flip in 0_usize..256, change in 0_usize..96,
        ) {
            let secret = Secret::from_text(secret_text.as_bytes()).unwrap();
            let other_secret = Secret::from_text(other_text.as_bytes()).unwrap();
            let mut changed = transcript_bytes;
            changed[change] ^= 1;
            let (original, changed) = (transcript(transcript_bytes), transcript(changed));
            for (role, other_role) in [(AuthRole::Client, AuthRole::Server), (AuthRole::Server, AuthRole::Client)] {
                let proof = secret.prove(role, &original).unwrap();
                prop_assert!(secret.accepts(role, &original, proof));
                prop_assert!(!secret.accepts(other_role, &original, proof), "sent back as it came");
                prop_assert!(!secret.accepts(role, &changed, proof), "passed on");
                let mut invalid = proof;
                invalid.0[flip / 8] ^= 1 << (flip % 8);
                prop_assert!(!secret.accepts(role, &original, invalid));
                prop_assert_eq!(other_secret.accepts(role, &original, proof), secret_text == other_text);
            }
        }

        #[test]
        fn hexadecimal_digits_round_trip(bytes in any::<[u8; 32]>(), garbage in ".{0,80}") {
            prop_assert_eq!(from_hex::<32>(&to_hex(&bytes)), Some(bytes));
            let _ = from_hex::<16>(&garbage);
        }
    }

    #[test]
    fn a_line_end_is_not_part_of_a_secret() {
        let prove = |text: &[u8]| {
            Secret::from_text(text).unwrap().prove(AuthRole::Client, &transcript([7; 96])).unwrap()
        };
        assert_eq!(prove(b" sixteen bytes it is\n"), prove(b"sixteen bytes it is"));
        assert_eq!(from_hex::<1>("+7"), None);
    }

    #[test]
    fn a_guessable_secret_is_refused() {
        let error = |text: &[u8]| Secret::from_text(text).unwrap_err();
        assert_eq!(error(b" \n"), SecretError::Empty);
        assert_eq!(error(b"x\n"), SecretError::TooShort(1));
        assert_eq!(error(b"fifteen bytes..\n"), SecretError::TooShort(15));
        assert_eq!(error(&[b'x'; MAX_SECRET_BYTES + 1]), SecretError::TooLong);
        assert!(Secret::from_text(b"sixteen bytes...").is_ok());
        assert_eq!(error(b"aaaaaaaaaaaaaaaa"), SecretError::Repetitive(1));
        assert_eq!(error(b"12341234123412341234\n"), SecretError::Repetitive(4));
        assert!(Secret::from_text(b"0123401234012340").is_ok());
        assert!(error(b"x").to_string().contains("at least 16"));
    }
}
