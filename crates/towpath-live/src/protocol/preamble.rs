//! Preamble of every connection: 32 bytes that identify its purpose.

use thiserror::Error;
use towpath_run::token::TestToken;

const MAGIC: &[u8] = b"towpath";
const PREAMBLE_VERSION: u8 = 2;

/// Purpose of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKind {
    /// Messages of the control protocol.
    Control,
    /// Data of one stream of a flow.
    Data,
    /// Echo of all data, for measuring round-trip times.
    Echo,
    /// TLS, with a control connection inside that begins with its own preamble.
    Tls,
}

/// The first 32 bytes of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preamble {
    /// Purpose of the connection.
    pub kind: ConnectionKind,
    /// Number of the flow, for data connections.
    pub flow: u16,
    /// Stream of the flow, for data connections.
    pub stream: u16,
    /// Test of the connection; [`TestToken::NONE`] for a new one. Data and echo carry the public
    /// ID.
    pub token: TestToken,
}

/// Bytes that are not a preamble of this version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("this is not the protocol of this version of towpath")]
pub struct InvalidPreamble;

impl Preamble {
    /// Length of the preamble in bytes.
    pub const BYTES: usize = 32;

    /// Serializes the preamble: magic, version, kind, three zeros, flow, stream, token.
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

    /// Returns the public ID of the connection's test.
    pub fn test(&self) -> TestToken {
        match self.kind {
            ConnectionKind::Control => self.token.public_id(),
            ConnectionKind::Data | ConnectionKind::Echo | ConnectionKind::Tls => self.token,
        }
    }

    /// Parses the bytes received so far; `None` if more are needed. Returns an error at the first
    /// byte that cannot be part of a preamble.
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
        fn an_invalid_byte_is_refused_immediately(
            preamble in any_preamble(), index in 0_usize..12, change in 1_u8..,
        ) {
            let mut bytes = preamble.to_bytes();
            bytes[index] ^= change;
            let is_other_kind = index == 8 && (1..=4).contains(&bytes[8]);
            prop_assume!(!is_other_kind);
            prop_assert_eq!(Preamble::read(&bytes[..=index]), Err(InvalidPreamble));
        }

        #[test]
        fn garbage_does_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Preamble::read(&bytes);
        }
    }

    #[test]
    fn a_public_id_does_not_grant_access() {
        let token = TestToken([7; 16]);
        let preamble = |kind, token| Preamble { kind, flow: 0, stream: 0, token };
        assert_eq!(preamble(ConnectionKind::Control, token).test(), token.public_id());
        assert_eq!(preamble(ConnectionKind::Data, token.public_id()).test(), token.public_id());
        // An eavesdropper cannot open a control connection with the public ID.
        assert_ne!(preamble(ConnectionKind::Control, token.public_id()).test(), token.public_id());
        assert_ne!(token.public_id(), token);
        assert_eq!(TestToken::NONE.public_id(), TestToken::NONE);
    }
}
