//! Echo datagrams: the round-trip time of a path without a transport.
//!
//! The port is shared with QUIC, whose packets all set the fixed bit 0x40 in the first byte (RFC
//! 9000 §17.2, §17.3). These datagrams clear it. If a secret is required, requests without a test's
//! token get no reply. A reply has exactly the length of its request, so that spoofed requests are
//! not amplified.

use super::token::TestToken;

/// First bytes of a request: not a QUIC packet, then `tp` and a version.
const REQUEST_MAGIC: [u8; 4] = [0x01, b't', b'p', 1];
const REPLY_MAGIC: [u8; 4] = [0x02, b't', b'p', 1];

/// Echo request or reply: token, number and time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoDatagram {
    /// Public ID of the test; [`TestToken::NONE`] for none.
    pub token: TestToken,
    /// Number of the request.
    pub number: u32,
    /// Time of the request on the sender's clock, in nanoseconds.
    pub sent_ns: u64,
}

impl EchoDatagram {
    /// Length of a request and of a reply, in bytes.
    pub const BYTES: usize = 32;

    /// Serializes the datagram as a request.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = REQUEST_MAGIC.into_iter().chain(self.token.0);
        let parts = parts.chain(self.number.to_be_bytes()).chain(self.sent_ns.to_be_bytes());
        for (slot, byte) in bytes.iter_mut().zip(parts) {
            *slot = byte;
        }
        bytes
    }

    /// Parses a reply; `None` for other datagrams.
    pub fn parse_reply(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, REPLY_MAGIC)
    }

    fn parse(bytes: &[u8], magic: [u8; 4]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (sent_ns, rest) = rest.split_first_chunk()?;
        (*head == magic && rest.is_empty()).then(|| Self {
            token: TestToken(*token),
            number: u32::from_be_bytes(*number),
            sent_ns: u64::from_be_bytes(*sent_ns),
        })
    }
}

/// Returns the reply to a datagram, or `None` if it gets none. `accepts_token` decides which tokens get
/// replies.
pub fn reply(
    bytes: &[u8],
    accepts_token: impl Fn(TestToken) -> bool,
) -> Option<[u8; EchoDatagram::BYTES]> {
    let request = EchoDatagram::parse(bytes, REQUEST_MAGIC)?;
    if !accepts_token(request.token) {
        return None;
    }
    let mut bytes = request.to_bytes();
    for (slot, byte) in bytes.iter_mut().zip(REPLY_MAGIC) {
        *slot = byte;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_request_is_echoed_unchanged(
            token: [u8; 16], number: u32, sent_ns: u64,
        ) {
            let request = EchoDatagram { token: TestToken(token), number, sent_ns };
            let bytes = request.to_bytes();
            prop_assert_eq!(bytes[0] & 0x40, 0, "no packet of QUIC");
            let echo = reply(&bytes, |received| received == TestToken(token)).unwrap();
            prop_assert_eq!(EchoDatagram::parse_reply(&echo), Some(request));
            prop_assert_eq!(reply(&bytes, |received| received != TestToken(token)), None);
            prop_assert_eq!(reply(&echo, |_| true), None, "answers are not answered");
        }

        #[test]
        fn invalid_requests_get_no_reply(
            bytes in prop::collection::vec(any::<u8>(), 0..64), with_magic: bool,
        ) {
            let mut bytes = bytes;
            for (slot, byte) in bytes.iter_mut().zip(REQUEST_MAGIC).filter(|_| with_magic) {
                *slot = byte;
            }
            let is_valid = bytes.starts_with(&REQUEST_MAGIC) && bytes.len() == EchoDatagram::BYTES;
            prop_assert_eq!(reply(&bytes, |_| true).is_some(), is_valid);
        }
    }
}
