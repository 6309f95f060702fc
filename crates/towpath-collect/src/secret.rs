//! Random secrets of tokens, sessions, login links and invitations, of which only hashes are stored.

use std::fmt;
use std::io::{self, Read as _};

use sha2::{Digest as _, Sha256};
use towpath_result::upload::hex;

/// Beginning of every token, by which scanners for leaked secrets can recognise it.
pub(crate) const TOKEN_PREFIX: &str = "towpath_";
/// Maximum length of a secret that a client may send.
const MAX_SECRET_BYTES: usize = 200;
/// Symbols of Crockford's base32, which lacks I, L, O and U.
const SYMBOLS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";
/// Symbols of a join code, of 5 bits each.
const CODE_SYMBOLS: usize = 12;
/// Symbols between two hyphens of a join code.
const CODE_GROUP: usize = 4;

/// Returns 256 random bits as hexadecimal digits.
pub(crate) fn random() -> io::Result<String> {
    random_bytes::<32>().map(|bytes| hex(&bytes))
}

/// Returns a random identifier of 48 bits, which is not secret.
pub(crate) fn random_id() -> io::Result<String> {
    random_bytes::<6>().map(|bytes| hex(&bytes))
}

/// Code by which a device joins once: 60 random bits, such as `7K3M-9QPX-VB2D`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinCode(String);

impl JoinCode {
    /// Returns a random code.
    pub(crate) fn random() -> io::Result<Self> {
        let bits = u64::from_be_bytes(random_bytes()?);
        let symbol = |index: usize| {
            let value = (bits >> (5 * index)) & 31;
            SYMBOLS.get(value as usize).copied().map_or('0', char::from)
        };
        Ok(Self((0..CODE_SYMBOLS).map(symbol).collect()))
    }

    /// Reads a code as people type it; `None` if it cannot be one.
    ///
    /// Accepts lower case, any hyphens and spaces, and the letters O, I and L for digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_SECRET_BYTES {
            return None;
        }
        let typed = text.chars().filter(|c| *c != '-' && !c.is_whitespace());
        let symbols = typed.map(|c| match c.to_ascii_uppercase() {
            'O' => '0',
            'I' | 'L' => '1',
            symbol => symbol,
        });
        let code: String = symbols.collect();
        let is_code =
            code.len() == CODE_SYMBOLS && code.bytes().all(|byte| SYMBOLS.contains(&byte));
        is_code.then_some(Self(code))
    }

    /// Returns the stored form. A code expires before 2^60 attempts are possible.
    pub(crate) fn stored_hash(&self) -> String {
        hex(&Sha256::digest(self.0.as_bytes()))
    }
}

impl fmt::Display for JoinCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, symbol) in self.0.chars().enumerate() {
            if index > 0 && index % CODE_GROUP == 0 {
                f.write_str("-")?;
            }
            write!(f, "{symbol}")?;
        }
        Ok(())
    }
}

fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the stored form of a secret; `None` if no secret is that long.
///
/// A plain hash is enough, because a secret is 256 random bits.
pub(crate) fn stored_hash(secret: &str) -> Option<String> {
    (secret.len() <= MAX_SECRET_BYTES).then(|| hex(&Sha256::digest(secret.as_bytes())))
}

/// Compares two texts in a time that depends on their lengths only.
pub(crate) fn equal(a: &str, b: &str) -> bool {
    a.len() == b.len()
        && a.bytes().zip(b.bytes()).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_differ_and_are_stored_as_hashes() {
        let (a, b) = (random().unwrap(), random().unwrap());
        assert!(a != b && a.len() == 64);
        assert_ne!(stored_hash(&a).unwrap(), a);
        assert_eq!(stored_hash(&"x".repeat(1_000)), None);
        assert!(equal(&a, &a.clone()) && !equal(&a, &b) && !equal(&a, ""));
    }

    #[test]
    fn a_join_code_is_read_as_people_type_it() {
        let code = JoinCode::parse("7K3M-9QPX-V01D").unwrap();
        assert_eq!(code.to_string(), "7K3M-9QPX-V01D");
        for typed in [
            "7k3m-9qpx-v01d",
            "7K3M9QPXV01D",
            " 7k3m 9qpx vo1d\n",
            "7K3M-9QPX-VOID",
            "7k3m-9qpx-vold",
            "7-K-3M9QP-XV01D-",
        ] {
            assert_eq!(JoinCode::parse(typed).as_ref(), Some(&code), "{typed:?}");
            assert_eq!(JoinCode::parse(typed).unwrap().stored_hash(), code.stored_hash());
        }
        for other in ["", "7K3M-9QPX-V01", "7K3M-9QPX-V01DD", "7K3M-9QPX-V01U", "7K3M-9QPX-V01é"] {
            assert_eq!(JoinCode::parse(other), None, "{other:?}");
        }
        assert_eq!(JoinCode::parse(&"-".repeat(1_000)), None);
    }

    #[test]
    fn random_join_codes_differ_and_survive_a_round_trip() {
        let (a, b) = (JoinCode::random().unwrap(), JoinCode::random().unwrap());
        assert!(a != b && a.to_string().len() == 14, "{a}");
        assert_eq!(JoinCode::parse(&a.to_string()), Some(a));
    }
}
