//! Access of a device to a test server: who may test, until when, and how many bytes.
//!
//! Collector and test server share a key. The collector derives a secret from the text of a grant,
//! and gives both to a device. The device sends the text to the server and proves the secret, which
//! never leaves its encrypted connection to the collector. The server derives the same secret, so
//! it stores nothing about devices, and an altered text has another secret.

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;
use towpath_result::upload::hex;

/// Beginning of the text of a grant.
const PREFIX: &str = "tpa1";
/// Label that separates secrets of grants from other uses of the key.
const LABEL: &[u8] = b"towpath access 1\n";
/// Maximum length of a grant's text in bytes.
const MAX_GRANT_BYTES: usize = 200;

/// Permission to use one test server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccessGrant {
    /// Name of the test server.
    pub server: String,
    /// Pseudonym of the device: letters and digits. The collector alone can resolve it.
    pub device: String,
    /// Time of expiry in seconds since 1970.
    pub expires_s: u64,
    /// Bytes that all tests with this grant may transfer.
    pub max_bytes: u64,
}

impl fmt::Display for AccessGrant {
    /// Writes the text that a device sends to the server.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { server, device, expires_s, max_bytes } = self;
        write!(f, "{PREFIX}/{expires_s}/{max_bytes}/{device}/{server}")
    }
}

impl AccessGrant {
    /// Reads the text of a grant; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_GRANT_BYTES {
            return None;
        }
        let mut parts = text.splitn(5, '/');
        if parts.next() != Some(PREFIX) {
            return None;
        }
        let mut number = || parts.next()?.parse().ok();
        let (expires_s, max_bytes) = (number()?, number()?);
        let device = parts.next()?.to_owned();
        let server = parts.next()?.to_owned();
        let is_pseudonym = !device.is_empty() && device.bytes().all(|b| b.is_ascii_alphanumeric());
        let grant = Self { server, device, expires_s, max_bytes };
        // One spelling only: `007` is another text with another budget account.
        (is_pseudonym && !grant.server.is_empty() && grant.to_string() == text).then_some(grant)
    }
}

/// Key that a collector shares with one test server.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessKey([u8; 32]);

impl fmt::Debug for AccessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessKey(…)")
    }
}

impl AccessKey {
    /// Creates a key from 32 random bytes.
    pub fn new(random: [u8; 32]) -> Self {
        Self(random)
    }

    /// Reads 64 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        crate::digits::bytes(text).map(Self)
    }

    /// Returns the key as 64 hexadecimal digits.
    pub fn expose(&self) -> String {
        hex(&self.0)
    }

    /// Returns the secret that belongs to the text of a grant, in 64 hexadecimal digits.
    pub fn secret(&self, grant: &str) -> String {
        // HMAC accepts keys of any length.
        let Ok(mac) = Hmac::<Sha256>::new_from_slice(&self.0) else { return String::new() };
        hex(&mac.chain_update(LABEL).chain_update(grant).finalize().into_bytes())
    }
}

/// Access of a device to a test server.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Access {
    /// Text of the [`AccessGrant`].
    pub grant: String,
    /// Secret of the grant, in 64 hexadecimal digits.
    pub secret: String,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access").field("grant", &self.grant).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn grant() -> AccessGrant {
        let (server, device) = ("eu-1".to_owned(), "a7f3".to_owned());
        AccessGrant { server, device, expires_s: 1_800_000_000, max_bytes: 5_000 }
    }

    #[test]
    fn a_grant_reads_back_and_its_secret_depends_on_every_part() {
        let text = grant().to_string();
        assert_eq!(text, "tpa1/1800000000/5000/a7f3/eu-1");
        assert_eq!(AccessGrant::parse(&text), Some(grant()));
        let key = AccessKey::new([7; 32]);
        let secret = key.secret(&text);
        assert_eq!(secret.len(), 64);
        for other in [
            AccessGrant { max_bytes: 5_001, ..grant() },
            AccessGrant { expires_s: 1_800_000_001, ..grant() },
            AccessGrant { device: "a7f4".to_owned(), ..grant() },
            AccessGrant { server: "eu-2".to_owned(), ..grant() },
        ] {
            assert_ne!(key.secret(&other.to_string()), secret);
        }
        assert_ne!(AccessKey::new([8; 32]).secret(&text), secret);
        assert_eq!(AccessKey::parse(&key.expose()), Some(key));
    }

    #[test]
    fn other_spellings_of_a_grant_are_refused() {
        for text in [
            "",
            "tpa1",
            "tpa1/1/2/a",
            "tpa1/01/2/a/s",
            "tpa1/+1/2/a/s",
            "tpa1/1/2//s",
            "tpa1/1/2/a/",
            "tpa2/1/2/a/s",
            "tpa1/1/2/a b/s",
            "tpa1/-1/2/a/s",
        ] {
            assert_eq!(AccessGrant::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_grant_with_one_spelling_or_none(text in "(tpa1/)?[0-9a-z/]{0,40}") {
            if let Some(grant) = AccessGrant::parse(&text) {
                prop_assert_eq!(grant.to_string(), text);
            }
        }
    }
}
