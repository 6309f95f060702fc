//! What every connection begins with: 32 bytes that say what it is for.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use thiserror::Error;

const MAGIC: &[u8] = b"towpath";
const PREAMBLE_VERSION: u8 = 1;

/// Opens a test on its server: who knows it may end the test and fetch the result. It is said over a
/// control connection only; what can be read on the way has the [name](Token::name) of the test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TestToken(pub [u8; 16]);

impl TestToken {
    /// No test yet.
    pub const NONE: Self = Self([0; 16]);

    /// What names the test where others may read it, and opens nothing but a place for its data. The
    /// token cannot be found from it.
    #[must_use]
    pub fn public_id(self) -> Self {
        const LABEL: &[u8] = b"towpath live name";
        if self == Self::NONE {
            return self;
        }
        let digest = Sha256::new().chain_update(LABEL).chain_update(self.0).finalize();
        let mut name = [0; 16];
        name.iter_mut().zip(digest).for_each(|(slot, byte)| *slot = byte);
        Self(name)
    }
}

impl fmt::Display for TestToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TestToken {
    /// It opens doors, so it does not belong into logs.
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
        super::secret::from_hex(&text).map(Self).ok_or("expected 32 hexadecimal digits")
    }
}

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Messages of the control protocol.
    Control,
    /// A flow's data.
    Data,
    /// Whatever is sent comes back: for measuring round trips.
    Echo,
    /// TLS, and in it control, which begins with a preamble of its own.
    Tls,
}

/// The first 32 bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// What it is for.
    pub kind: ConnectionKind,
    /// Flow and stream, where it is for data.
    pub flow: u16,
    /// The stream of the flow.
    pub stream: u16,
    /// Of which test; [`TestToken::NONE`] for a new one. For data and echo it is the test's name.
    pub token: TestToken,
}

/// It is not for us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is not the protocol of a towpath of this version")]
pub struct InvalidPreamble;

impl Preamble {
    /// Its length.
    pub const BYTES: usize = 32;

    /// As it is sent: magic, version, kind, three zeros, flow, stream, token.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let kind = match self.kind {
            ConnectionKind::Control => 1,
            ConnectionKind::Data => 2,
            ConnectionKind::Echo => 3,
            ConnectionKind::Tls => 4,
        };
        let mut bytes = [0; Self::BYTES];
        let parts = MAGIC.iter().copied().chain([PREAMBLE_VERSION, kind, 0, 0, 0]);
        let parts = parts.chain(self.flow.to_be_bytes()).chain(self.stream.to_be_bytes());
        for (slot, byte) in bytes.iter_mut().zip(parts.chain(self.token.0)) {
            *slot = byte;
        }
        bytes
    }

    /// The name of the test that it belongs to.
    pub fn test(&self) -> TestToken {
        match self.kind {
            ConnectionKind::Control => self.token.public_id(),
            ConnectionKind::Data | ConnectionKind::Echo | ConnectionKind::Tls => self.token,
        }
    }

    /// Reads what has come so far; `None` when more is needed. Whatever cannot become a preamble is
    /// refused at its first wrong byte.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, InvalidPreamble> {
        let (magic, rest) = bytes.split_at(bytes.len().min(MAGIC.len()));
        if !MAGIC.starts_with(magic) {
            return Err(InvalidPreamble);
        }
        match rest {
            [] | [PREAMBLE_VERSION] => return Ok(None),
            [PREAMBLE_VERSION, 1..=4, zeros @ ..]
                if zeros.iter().take(3).all(|byte| *byte == 0) => {}
            _ => return Err(InvalidPreamble),
        }
        let &[_, kind, _, _, _, f0, f1, s0, s1, ref token @ ..] = rest else { return Ok(None) };
        let Some(token) = token.first_chunk() else { return Ok(None) };
        let kind = match kind {
            1 => ConnectionKind::Control,
            2 => ConnectionKind::Data,
            3 => ConnectionKind::Echo,
            _ => ConnectionKind::Tls,
        };
        let (flow, stream) = (u16::from_be_bytes([f0, f1]), u16::from_be_bytes([s0, s1]));
        Ok(Some(Self { kind, flow, stream, token: TestToken(*token) }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_preamble() -> impl Strategy<Value = Preamble> {
        let kinds = [
            ConnectionKind::Control,
            ConnectionKind::Data,
            ConnectionKind::Echo,
            ConnectionKind::Tls,
        ];
        let kinds = proptest::sample::select(kinds.to_vec());
        (kinds, any::<u16>(), any::<u16>(), any::<[u8; 16]>()).prop_map(
            |(kind, flow, stream, token)| Preamble { kind, flow, stream, token: TestToken(token) },
        )
    }

    proptest! {
        #[test]
        fn a_preamble_round_trips_and_every_prefix_needs_more(
            preamble in any_preamble(), cut in 0..Preamble::BYTES,
        ) {
            let bytes = preamble.to_bytes();
            prop_assert_eq!(Preamble::read(&bytes), Ok(Some(preamble)));
            prop_assert_eq!(Preamble::read(&bytes[..cut]), Ok(None));
        }

        #[test]
        fn a_wrong_first_byte_is_refused_immediately(
            preamble in any_preamble(), place in 0_usize..12, change in 1_u8..,
        ) {
            let mut bytes = preamble.to_bytes();
            bytes[place] ^= change;
            let another_kind = place == 8 && (1..=4).contains(&bytes[8]);
            prop_assume!(!another_kind);
            prop_assert_eq!(Preamble::read(&bytes[..=place]), Err(InvalidPreamble));
        }

        #[test]
        fn garbage_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Preamble::read(&bytes);
        }

        #[test]
        fn a_token_is_written_as_text_and_back(bytes in any::<[u8; 16]>()) {
            let text = serde_json::to_string(&TestToken(bytes)).unwrap();
            prop_assert_eq!(serde_json::from_str::<TestToken>(&text).unwrap(), TestToken(bytes));
        }
    }

    #[test]
    fn a_test_name_does_not_grant_access() {
        let token = TestToken([7; 16]);
        let preamble = |kind, token| Preamble { kind, flow: 0, stream: 0, token };
        assert_eq!(preamble(ConnectionKind::Control, token).test(), token.public_id());
        assert_eq!(preamble(ConnectionKind::Data, token.public_id()).test(), token.public_id());
        // Whoever has read the name cannot come back with it.
        assert_ne!(preamble(ConnectionKind::Control, token.public_id()).test(), token.public_id());
        assert_ne!(token.public_id(), token);
        assert_eq!(TestToken::NONE.public_id(), TestToken::NONE);
    }

    #[test]
    fn a_token_does_not_get_into_logs() {
        assert_eq!(format!("{:?}", TestToken([7; 16])), "Token(…)");
    }
}
