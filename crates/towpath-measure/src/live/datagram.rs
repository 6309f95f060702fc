//! Datagrams that are sent back at once: the round trip of a path without any transport.
//!
//! They share their port with QUIC, whose packets all have the bit 0x40 of the first byte set (RFC
//! 9000 §17.2, §17.3); these have not. Whoever has no token of a test gets no answer where a secret
//! is needed, and an answer is exactly as long as its question: nobody is hit harder by it than the
//! asker could hit by himself.

use super::preamble::Token;

/// First bytes: no QUIC packet, `tp`, version.
const QUESTION: [u8; 4] = [0x01, b't', b'p', 1];
const ANSWER: [u8; 4] = [0x02, b't', b'p', 1];

/// A question, and the answer to it: a number and a time besides the token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// Of which test; [`Token::NONE`] of none.
    pub token: Token,
    /// Number of the question.
    pub number: u32,
    /// When it was asked, on the asker's clock.
    pub sent_ns: u64,
}

impl Datagram {
    /// Length of both.
    pub const BYTES: usize = 32;

    /// As it is asked.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let parts = QUESTION.into_iter().chain(self.token.0);
        let parts = parts.chain(self.number.to_be_bytes()).chain(self.sent_ns.to_be_bytes());
        for (slot, byte) in bytes.iter_mut().zip(parts) {
            *slot = byte;
        }
        bytes
    }

    /// Reads an answer.
    pub fn of_answer(bytes: &[u8]) -> Option<Self> {
        Self::parse(bytes, ANSWER)
    }

    fn parse(bytes: &[u8], first: [u8; 4]) -> Option<Self> {
        let (head, rest) = bytes.split_first_chunk()?;
        let (token, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let (sent_ns, rest) = rest.split_first_chunk()?;
        (*head == first && rest.is_empty()).then(|| Self {
            token: Token(*token),
            number: u32::from_be_bytes(*number),
            sent_ns: u64::from_be_bytes(*sent_ns),
        })
    }
}

/// The answer to a datagram of whoever; `None` is silence. `admits` says whose questions are
/// answered.
pub fn answer(bytes: &[u8], admits: impl Fn(Token) -> bool) -> Option<[u8; Datagram::BYTES]> {
    let question = Datagram::parse(bytes, QUESTION)?;
    if !admits(question.token) {
        return None;
    }
    let mut bytes = question.to_bytes();
    for (slot, byte) in bytes.iter_mut().zip(ANSWER) {
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
        fn a_question_comes_back_as_it_was_asked(
            token: [u8; 16], number: u32, sent_ns: u64,
        ) {
            let asked = Datagram { token: Token(token), number, sent_ns };
            let bytes = asked.to_bytes();
            prop_assert_eq!(bytes[0] & 0x40, 0, "no packet of QUIC");
            let back = answer(&bytes, |one| one == Token(token)).unwrap();
            prop_assert_eq!(Datagram::of_answer(&back), Some(asked));
            prop_assert_eq!(answer(&bytes, |one| one != Token(token)), None);
            prop_assert_eq!(answer(&back, |_| true), None, "answers are not answered");
        }

        #[test]
        fn what_is_no_question_gets_no_answer(
            bytes in prop::collection::vec(any::<u8>(), 0..64), head: bool,
        ) {
            let mut bytes = bytes;
            for (slot, byte) in bytes.iter_mut().zip(QUESTION).filter(|_| head) {
                *slot = byte;
            }
            let right = bytes.starts_with(&QUESTION) && bytes.len() == Datagram::BYTES;
            prop_assert_eq!(answer(&bytes, |_| true).is_some(), right);
        }
    }
}
