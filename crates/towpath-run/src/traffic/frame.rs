//! Messages on a byte stream. A length prefix makes them independent of segmentation.
//!
//! ```text
//! length u32 (of what follows) | kind u8 | number u32 | reply length u32 (requests only) | zeros
//! ```
//!
//! Integers are big endian. A request includes the size of its reply, so the responder needs no
//! plan of its own.

use arrayvec::ArrayVec;
use thiserror::Error;
use towpath_scenario::flow_plan::{MIN_REPLY_BYTES, MIN_REQUEST_BYTES};

/// Size of the length field.
const LENGTH_BYTES: u32 = 4;

// Any two types differ in more than one bit, so a single bit error is detected.
const TYPE_REQUEST: u8 = b'Q';
const TYPE_REQUEST_WITH_ACK: u8 = b'C';
const TYPE_ACK: u8 = b'D';
const TYPE_REPLY: u8 = b'R';
const TYPE_HELLO: u8 = b'H';

/// One message of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFrame {
    /// First bytes on a stream whose requests come from the other end. Without them, the peer would
    /// not learn of a QUIC stream.
    Hello,
    /// Request for a reply or an acknowledgement.
    Request {
        /// Number on its stream, from 0.
        number: u32,
        /// Size of the whole message.
        bytes: u32,
        /// Size of the reply; 0 if none is requested.
        reply_bytes: u32,
        /// True if the request is acknowledged on arrival, before the reply.
        ack: bool,
    },
    /// Acknowledgement that a whole request has arrived.
    Ack {
        /// Number of the acknowledged request.
        number: u32,
    },
    /// Reply to a request.
    Reply {
        /// Number of the request.
        number: u32,
        /// Size of the whole message.
        bytes: u32,
    },
}

/// Header of a message.
pub(super) type FrameHeader = ArrayVec<u8, { MIN_REQUEST_BYTES as usize }>;

impl MessageFrame {
    /// Returns the size of the whole message, at least that of its header.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Request { bytes, .. } => bytes.max(MIN_REQUEST_BYTES),
            Self::Hello | Self::Ack { number: _ } => MIN_REPLY_BYTES,
            Self::Reply { bytes, number: _ } => bytes.max(MIN_REPLY_BYTES),
        }
    }

    /// Returns the bytes before the zeros.
    pub(super) fn header(self) -> FrameHeader {
        let (kind, number, reply_bytes) = match self {
            Self::Request { number, reply_bytes, ack: false, bytes: _ } => {
                (TYPE_REQUEST, number, Some(reply_bytes))
            }
            Self::Request { number, reply_bytes, ack: true, bytes: _ } => {
                (TYPE_REQUEST_WITH_ACK, number, Some(reply_bytes))
            }
            Self::Hello => (TYPE_HELLO, 0, None),
            Self::Ack { number } => (TYPE_ACK, number, None),
            Self::Reply { number, bytes: _ } => (TYPE_REPLY, number, None),
        };
        let mut header = FrameHeader::new();
        header.extend((self.bytes() - LENGTH_BYTES).to_be_bytes());
        header.push(kind);
        header.extend(number.to_be_bytes());
        header.extend(reply_bytes.into_iter().flat_map(u32::to_be_bytes));
        header
    }

    /// Parses a header. Returns the message and the number of zeros after it, or `None` if the
    /// header is incomplete.
    fn parse(header: &[u8]) -> Result<Option<(Self, u32)>, FramingError> {
        let &[l0, l1, l2, l3, kind, n0, n1, n2, n3, ref rest @ ..] = header else {
            return Ok(None);
        };
        let length = u32::from_be_bytes([l0, l1, l2, l3]);
        let bytes = length.checked_add(LENGTH_BYTES).ok_or(FramingError::Length(length))?;
        let number = u32::from_be_bytes([n0, n1, n2, n3]);
        let (frame, min_bytes) = match (kind, rest) {
            (TYPE_REQUEST | TYPE_REQUEST_WITH_ACK, &[r0, r1, r2, r3, ..]) => {
                let reply_bytes = u32::from_be_bytes([r0, r1, r2, r3]);
                let ack = kind == TYPE_REQUEST_WITH_ACK;
                (Self::Request { number, bytes, reply_bytes, ack }, MIN_REQUEST_BYTES)
            }
            (TYPE_REQUEST | TYPE_REQUEST_WITH_ACK, _) => return Ok(None),
            (TYPE_ACK, _) if bytes == MIN_REPLY_BYTES => (Self::Ack { number }, MIN_REPLY_BYTES),
            (TYPE_HELLO, _) if bytes == MIN_REPLY_BYTES => (Self::Hello, MIN_REPLY_BYTES),
            (TYPE_ACK | TYPE_HELLO, _) => return Err(FramingError::Length(length)),
            (TYPE_REPLY, _) => (Self::Reply { number, bytes }, MIN_REPLY_BYTES),
            (kind, _) => return Err(FramingError::Kind(kind)),
        };
        let zeros = bytes.checked_sub(min_bytes).ok_or(FramingError::Length(length))?;
        Ok(Some((frame, zeros)))
    }
}

/// Error for bytes that no sender of this protocol writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FramingError {
    /// Unknown kind of message.
    #[error("a message of the unknown kind {0}")]
    Kind(u8),
    /// Length that is invalid for its kind.
    #[error("a message with an invalid length of {0} bytes")]
    Length(u32),
    /// Content other than zeros.
    #[error("a message whose content differs from the sent content")]
    Content,
}

/// Parser of messages in a byte stream.
#[derive(Debug, Clone, Default)]
pub struct FrameReader {
    header: FrameHeader,
    /// Message that is being read, and the number of its outstanding zeros.
    current: Option<(MessageFrame, u32)>,
}

impl FrameReader {
    /// Parses `data` and returns the first message that it completes, with the remaining bytes.
    pub fn push<'a>(
        &mut self,
        mut data: &'a [u8],
    ) -> Result<Option<(MessageFrame, &'a [u8])>, FramingError> {
        loop {
            if let Some((frame, remaining_zeros)) = &mut self.current {
                let zero_count = data.len().min(*remaining_zeros as usize);
                let (zeros, unread) = data.split_at_checked(zero_count).unwrap_or((data, &[]));
                if zeros.iter().any(|byte| *byte != 0) {
                    return Err(FramingError::Content);
                }
                *remaining_zeros -= zero_count as u32;
                data = unread;
                if *remaining_zeros > 0 {
                    return Ok(None);
                }
                let frame = *frame;
                self.current = None;
                return Ok(Some((frame, data)));
            }
            let Some((byte, unread)) = data.split_first() else { return Ok(None) };
            data = unread;
            // A longer header cannot occur: the longest one is recognised at its last byte.
            if self.header.try_push(*byte).is_err() {
                return Err(FramingError::Content);
            }
            self.current = MessageFrame::parse(&self.header)?;
            if self.current.is_some() {
                self.header.clear();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame() -> impl Strategy<Value = MessageFrame> {
        let size = 0_u32..5_000;
        prop_oneof![
            (any::<u32>(), size.clone(), any::<u32>(), any::<bool>()).prop_map(
                |(number, bytes, reply_bytes, ack)| {
                    let bytes = bytes.max(MIN_REQUEST_BYTES);
                    MessageFrame::Request { number, bytes, reply_bytes, ack }
                }
            ),
            any::<u32>().prop_map(|number| MessageFrame::Ack { number }),
            (any::<u32>(), size).prop_map(|(number, bytes)| MessageFrame::Reply {
                number,
                bytes: bytes.max(MIN_REPLY_BYTES)
            }),
        ]
    }

    fn bytes_of(frames: &[MessageFrame]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for frame in frames {
            let begin = bytes.len();
            bytes.extend(frame.header());
            bytes.resize(begin + frame.bytes() as usize, 0);
        }
        bytes
    }

    fn read_frames(parts: &[&[u8]]) -> Result<Vec<MessageFrame>, FramingError> {
        let (mut reader, mut frames) = (FrameReader::default(), Vec::new());
        for part in parts {
            let mut rest = *part;
            while let Some((frame, unread)) = reader.push(rest)? {
                frames.push(frame);
                rest = unread;
            }
        }
        Ok(frames)
    }

    proptest! {
        #[test]
        fn any_segmentation_gives_the_same_messages(
            frames in proptest::collection::vec(frame(), 0..12),
            part_sizes in proptest::collection::vec(1_usize..3_000, 1..20),
        ) {
            let bytes = bytes_of(&frames);
            let mut parts = Vec::new();
            let (mut rest, mut part_sizes) = (&bytes[..], part_sizes.into_iter().cycle());
            while !rest.is_empty() {
                let (part, unread) = rest.split_at(part_sizes.next().unwrap().min(rest.len()));
                parts.push(part);
                rest = unread;
            }
            prop_assert_eq!(read_frames(&parts), Ok(frames.clone()));
            let single: Vec<_> = bytes.chunks(1).collect();
            prop_assert_eq!(read_frames(&single), Ok(frames));
        }

        #[test]
        fn garbage_never_panics(
            garbage in proptest::collection::vec(any::<u8>(), 0..200)
        ) {
            let _ = read_frames(&[&garbage]); // must not panic
        }
    }

    #[test]
    fn a_changed_byte_is_detected() {
        let valid = bytes_of(&[MessageFrame::Reply { number: 7, bytes: 100 }]);
        for index in [4, 50, 99] {
            let mut changed = valid.clone();
            changed[index] ^= 1;
            assert!(read_frames(&[&changed]).is_err(), "byte {index}");
        }
    }
}
