//! Datagrams that are sent back at once: the round trip of a path without any transport.
//!
//! They share their port with QUIC, whose packets all have the bit 0x40 of the first byte set (RFC
//! 9000 §17.2, §17.3); these have not. Whoever has no token of a test gets no answer where a secret
//! is needed, and an answer is exactly as long as its question: nobody is hit harder by it than the
//! asker could hit by himself.

use super::preamble::TestToken;

/// First bytes: no QUIC packet, `tp`, version.
const REQUEST_MAGIC: [u8; 4] = [0x01, b't', b'p', 1];
const REPLY_MAGIC: [u8; 4] = [0x02, b't', b'p', 1];

/// A question, and the answer to it: a number and a time besides the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EchoDatagram {
    /// Of which test; [`TestToken::NONE`] of none.
    pub token: TestToken,
    /// Number of the question.
    pub number: u32,
    /// When it was asked, on the asker's clock.
    pub sent_ns: u64,
}

impl EchoDatagram {
    /// Length of both.
    pub const BYTES: usize = 32;

    /// As it is asked.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = REQUEST_MAGIC.into_iter().chain(self.token.0);
        let parts = parts.chain(self.number.to_be_bytes()).chain(self.sent_ns.to_be_bytes());
        for (slot, byte) in bytes.iter_mut().zip(parts) {
            *slot = byte;
        }
        bytes
    }

    /// Reads an answer.
    pub fn parse_reply(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, REPLY_MAGIC)
    }

    fn parse(bytes: &[u8], first: [u8; 4]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (sent_ns, rest) = rest.split_first_chunk()?;
        (*head == first && rest.is_empty()).then(|| Self {
            token: TestToken(*token),
            number: u32::from_be_bytes(*number),
            sent_ns: u64::from_be_bytes(*sent_ns),
        })
    }
}

/// The answer to a datagram of whoever; `None` is silence. `admits` says whose questions are
/// answered.
pub fn reply(
    bytes: &[u8],
    admits: impl Fn(TestToken) -> bool,
) -> Option<[u8; EchoDatagram::BYTES]> {
    let question = EchoDatagram::parse(bytes, REQUEST_MAGIC)?;
    if !admits(question.token) {
        return None;
    }
    let mut bytes = question.to_bytes();
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
            let asked = EchoDatagram { token: TestToken(token), number, sent_ns };
            let bytes = asked.to_bytes();
            prop_assert_eq!(bytes[0] & 0x40, 0, "no packet of QUIC");
            let back = reply(&bytes, |one| one == TestToken(token)).unwrap();
            prop_assert_eq!(EchoDatagram::parse_reply(&back), Some(asked));
            prop_assert_eq!(reply(&bytes, |one| one != TestToken(token)), None);
            prop_assert_eq!(reply(&back, |_| true), None, "answers are not answered");
        }

        #[test]
        fn invalid_requests_get_no_reply(
            bytes in prop::collection::vec(any::<u8>(), 0..64), head: bool,
        ) {
            let mut bytes = bytes;
            for (slot, byte) in bytes.iter_mut().zip(REQUEST_MAGIC).filter(|_| head) {
                *slot = byte;
            }
            let right = bytes.starts_with(&REQUEST_MAGIC) && bytes.len() == EchoDatagram::BYTES;
            prop_assert_eq!(reply(&bytes, |_| true).is_some(), right);
        }
    }
}
