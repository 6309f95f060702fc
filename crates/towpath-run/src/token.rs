//! Tokens that identify tests between two hosts, and datagrams of a run.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// Bearer token of a test: its holder may stop the test and fetch the result. Sent over a control
/// connection only; cleartext carries the test's [public ID](TestToken::public_id).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TestToken(pub [u8; 16]);

impl TestToken {
    /// Placeholder for a test that does not exist yet.
    pub const NONE: Self = Self([0; 16]);

    /// Returns the public ID of the test, a one-way hash that may be sent in cleartext. The ID only
    /// lets a connection join the test's data.
    #[must_use]
    pub fn public_id(self) -> Self {
        const LABEL: &[u8] = b"towpath live name";
        if self == Self::NONE {
            return self;
        }
        let digest = Sha256::new().chain_update(LABEL).chain_update(self.0).finalize();
        let mut id = [0; 16];
        id.iter_mut().zip(digest).for_each(|(slot, byte)| *slot = byte);
        Self(id)
    }
}

impl fmt::Display for TestToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TestToken {
    /// Hides the token, since it grants access and must not appear in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

impl From<TestToken> for String {
    fn from(token: TestToken) -> Self {
        token.to_string()
    }
}

impl TryFrom<String> for TestToken {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        from_hex(&text).map(Self).ok_or("expected 32 hexadecimal digits")
    }
}

/// Decodes hexadecimal digits; `None` unless there are exactly `2 * N`.
pub fn from_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_token_round_trips_as_text(bytes in any::<[u8; 16]>()) {
            let text = serde_json::to_string(&TestToken(bytes)).unwrap();
            prop_assert_eq!(serde_json::from_str::<TestToken>(&text).unwrap(), TestToken(bytes));
        }
    }

    #[test]
    fn a_token_is_hidden_in_debug_output() {
        assert_eq!(format!("{:?}", TestToken([7; 16])), "Token(…)");
    }
}
