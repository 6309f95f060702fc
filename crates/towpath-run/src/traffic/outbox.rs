//! Pending output of one end on one stream.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};

use super::frame::MessageFrame;

/// Most bytes offered to the stream at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Messages that wait to be taken by the stream.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pending: VecDeque<MessageFrame>,
    /// Bytes of the first message that the stream has taken.
    written_bytes: u32,
}

impl Outbox {
    pub(super) fn push(&mut self, frame: MessageFrame) {
        self.pending.push_back(frame);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// Returns the memory of the pending messages.
    pub(super) fn memory_bytes(&self) -> usize {
        self.pending.len() * size_of::<MessageFrame>()
    }

    /// Returns the next bytes. Short messages are combined, so that an acknowledgement and its
    /// reply, or a header and its content, share a packet.
    pub(super) fn chunk(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        let mut skip = self.written_bytes as usize;
        for frame in &self.pending {
            let room = CHUNK_BYTES - bytes.len();
            if room == 0 {
                break;
            }
            let (header, total) = (frame.header(), frame.bytes() as usize);
            let header_part: &[u8] = header.get(skip..).unwrap_or(&[]);
            let header_part = header_part.get(..room).unwrap_or(header_part);
            bytes.extend_from_slice(header_part);
            let zeros = total - skip.max(header.len());
            bytes.resize(bytes.len() + zeros.min(room - header_part.len()), 0);
            skip = 0;
        }
        bytes.freeze()
    }

    /// Records that the stream took `bytes`; returns the messages that are now fully written.
    pub(super) fn advance(&mut self, bytes: usize) -> Vec<MessageFrame> {
        let mut complete = Vec::new();
        let mut remaining = bytes;
        while let Some(first) = self.pending.front() {
            let frame_rest = (first.bytes() - self.written_bytes) as usize;
            if remaining < frame_rest {
                self.written_bytes += remaining as u32;
                break;
            }
            remaining -= frame_rest;
            self.written_bytes = 0;
            complete.extend(self.pending.pop_front());
        }
        complete
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
            write_sizes in proptest::collection::vec(1_usize..70_000, 1..8),
        ) {
            let (mut outbox, mut reader) = (Outbox::default(), FrameReader::default());
            for (number, bytes) in (0..).zip(&sizes) {
                outbox.push(MessageFrame::Reply { number, bytes: *bytes });
            }
            let (mut sent, mut received) = (Vec::new(), Vec::new());
            let mut write_sizes = write_sizes.into_iter().cycle();
            while !outbox.is_empty() {
                let chunk = outbox.chunk();
                let written = &chunk[..chunk.len().min(write_sizes.next().unwrap())];
                sent.extend(outbox.advance(written.len()));
                let mut rest = written;
                while let Some((frame, unread)) = reader.push(rest).unwrap() {
                    received.push(frame);
                    rest = unread;
                }
                prop_assert_eq!(&sent, &received);
            }
            prop_assert_eq!(sent.len(), sizes.len());
        }
    }
}
