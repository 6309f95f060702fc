//! Random secrets of tokens, sessions and login links, of which only hashes are stored.

use std::io::{self, Read as _};

use sha2::{Digest as _, Sha256};
use towpath_result::upload::hex;

/// Beginning of every token, by which scanners for leaked secrets can recognise it.
pub(crate) const TOKEN_PREFIX: &str = "towpath_";
/// Maximum length of a secret that a client may send.
const MAX_SECRET_BYTES: usize = 200;

/// Returns 256 random bits as hexadecimal digits.
pub(crate) fn random() -> io::Result<String> {
    random_bytes::<32>().map(|bytes| hex(&bytes))
}

/// Returns a random identifier of 48 bits, which is not secret.
pub(crate) fn random_id() -> io::Result<String> {
    random_bytes::<6>().map(|bytes| hex(&bytes))
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
}
