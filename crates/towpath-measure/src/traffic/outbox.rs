//! Pending output of one end on one stream.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::frame::MessageFrame;

/// Most bytes offered to the stream at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Messages that wait to be taken by the stream.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: VecDeque<MessageFrame>,
    /// Bytes of the first message that the stream has taken.
    taken: u32,
}

impl Outbox {
    pub(super) fn push(&mut self, frame: MessageFrame) {
        self.waiting.push_back(frame);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns the memory of the pending messages.
    pub(super) fn memory_bytes(&self) -> usize {
        self.waiting.len() * size_of::<MessageFrame>()
    }

    /// Returns the next bytes. Short messages are combined, so that an acknowledgement and its
    /// reply, or a header and its content, share a packet.
    pub(super) fn chunk(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        let mut skip = self.taken as usize;
        for frame in &self.waiting {
            let room = CHUNK_BYTES - bytes.len();
            if room == 0 {
                break;
            }
            let (header, total) = (frame.header(), frame.bytes() as usize);
            let head: &[u8] = header.get(skip..).unwrap_or(&[]);
            let head = head.get(..room).unwrap_or(head);
            bytes.extend_from_slice(head);
            let zeros = total - skip.max(header.len());
            bytes.resize(bytes.len() + zeros.min(room - head.len()), 0);
            skip = 0;
        }
        bytes.freeze()
    }

    /// Records that the stream took `bytes`; returns the messages that are now fully written.
    pub(super) fn advance(&mut self, bytes: usize) -> Vec<MessageFrame> {
        let mut whole = Vec::new();
        let mut left = bytes;
        while let Some(first) = self.waiting.front() {
            let rest = (first.bytes() - self.taken) as usize;
            if left < rest {
                self.taken += left as u32;
                break;
            }
            left -= rest;
            self.taken = 0;
            whole.extend(self.waiting.pop_front());
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::traffic::frame::FrameReader;

    proptest! {
        #[test]
        fn messages_arrive_whole_and_in_order_with_partial_writes(
            sizes in proptest::collection::vec(9_u32..200_000, 1..8),
            takes in proptest::collection::vec(1_usize..70_000, 1..8),
        ) {
            let (mut outbox, mut reader) = (Outbox::default(), FrameReader::default());
            for (number, bytes) in (0..).zip(&sizes) {
                outbox.push(MessageFrame::Reply { number, bytes: *bytes });
            }
            let (mut sent, mut heard) = (Vec::new(), Vec::new());
            let mut takes = takes.into_iter().cycle();
            while !outbox.is_empty() {
                let chunk = outbox.chunk();
                let part = &chunk[..chunk.len().min(takes.next().unwrap())];
                sent.extend(outbox.advance(part.len()));
                let mut rest = part;
                while let Some((frame, behind)) = reader.push(rest).unwrap() {
                    heard.push(frame);
                    rest = behind;
                }
                prop_assert_eq!(&sent, &heard);
            }
            prop_assert_eq!(sent.len(), sizes.len());
        }
    }
}
