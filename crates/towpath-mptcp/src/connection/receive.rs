//! Receive side of a connection: reordering by data offset, and the window that all subflows share
//! (RFC 8684 §3.3.4).

use std::collections::VecDeque;

use bytes::Bytes;
use towpath_wire::Payload;

use super::out_of_order::OutOfOrderQueue;

/// Receive queue: data the application has not read, and out-of-order data.
#[derive(Debug)]
pub(super) struct ReceiveQueue {
    /// Data in order that is unread.
    ready: VecDeque<Bytes>,
    ready_bytes: u64,
    /// Data that arrived out of order.
    waiting: OutOfOrderQueue,
    /// Next offset in order, which is the DATA_ACK.
    next: u64,
    /// Offset of the peer's DATA_FIN, once announced.
    fin: Option<u64>,
    /// Set when DATA_FIN is in order: `next` is after it.
    finished: bool,
    /// Right edge of the offered window; it never moves back.
    edge: u64,
    read_bytes: u64,
    duplicate_bytes: u64,
}

/// Change in the queue that new data caused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ReceiveProgress {
    /// Bytes that became in order.
    pub(super) in_order: u64,
    /// Set when the DATA_FIN became in order.
    pub(super) finished: bool,
}

impl ReceiveQueue {
    pub(super) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            ready_bytes: 0,
            waiting: OutOfOrderQueue::default(),
            next: 1,
            fin: None,
            finished: false,
            edge: 1,
            read_bytes: 0,
            duplicate_bytes: 0,
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn finished(&self) -> bool {
        self.finished
    }

    /// Returns true if there is data to read.
    pub(super) fn has_unread(&self) -> bool {
        self.ready_bytes > 0
    }

    /// Returns the bytes that are in order and unread.
    pub(super) fn ready_bytes(&self) -> u64 {
        self.ready_bytes
    }

    pub(super) fn out_of_order_bytes(&self) -> u64 {
        self.waiting.bytes()
    }

    /// Returns the bytes that became in order, read or not.
    pub(super) fn received_bytes(&self) -> u64 {
        self.read_bytes + self.ready_bytes
    }

    pub(super) fn read_bytes(&self) -> u64 {
        self.read_bytes
    }

    pub(super) fn duplicate_bytes(&self) -> u64 {
        self.duplicate_bytes
    }

    /// Inserts data. Received data may never be discarded; data dropped for a failed checksum does
    /// not count as received.
    pub(super) fn insert(&mut self, start: u64, mut payload: Payload) -> ReceiveProgress {
        let next_before = self.next;
        let mut start = start;
        let duplicate = self.next.saturating_sub(start).min(payload.len() as u64);
        if duplicate > 0 {
            self.duplicate_bytes += duplicate;
            payload.advance(duplicate as usize);
            start += duplicate;
        }
        // No data may follow DATA_FIN; a peer that sends some violates the protocol.
        if let Some(fin) = self.fin {
            payload.truncate(fin.saturating_sub(start) as usize);
        }
        if payload.is_empty() || self.finished {
            return self.check_finished(next_before);
        }
        if start == self.next {
            self.append(payload);
            self.drain();
        } else {
            let bytes = payload.len() as u64;
            self.duplicate_bytes += bytes - self.waiting.insert_new(start, payload);
        }
        self.check_finished(next_before)
    }

    /// Records a DATA_FIN of the peer at `offset`. Only the first counts.
    pub(super) fn on_fin(&mut self, offset: u64) -> ReceiveProgress {
        if self.fin.is_none() && offset >= self.next {
            self.fin = Some(offset);
        }
        self.check_finished(self.next)
    }

    /// Drops a DATA_FIN announced at or after `offset`: the segment that carried it was damaged.
    pub(super) fn forget_fin(&mut self, offset: u64) {
        if !self.finished {
            self.fin = self.fin.filter(|fin| *fin < offset);
        }
    }

    /// Returns true if data is missing before `until`, before out-of-order data, or before
    /// DATA_FIN.
    pub(super) fn is_missing_data(&self, until: u64) -> bool {
        self.next < until
            || self.out_of_order_bytes() > 0
            || self.fin.is_some_and(|fin| fin > self.next)
    }

    /// Drops out-of-order data from `offset` on, and returns the number of bytes.
    pub(super) fn discard_from(&mut self, offset: u64) -> u64 {
        self.waiting.discard_from(offset)
    }

    /// Takes the DATA_FIN if all data before it has arrived. Returns the progress since the offset
    /// `next_before`.
    fn check_finished(&mut self, next_before: u64) -> ReceiveProgress {
        let in_order = self.next - next_before;
        let finished = !self.finished && self.fin == Some(self.next);
        if finished {
            self.finished = true;
            self.next += 1;
        }
        ReceiveProgress { in_order, finished }
    }

    fn append(&mut self, payload: Payload) {
        self.next += payload.len() as u64;
        self.ready_bytes += payload.len() as u64;
        self.ready.extend(payload.into_chunks());
    }

    fn drain(&mut self) {
        while let Some((start, mut payload)) = self.waiting.take_until(self.next) {
            let duplicate = (self.next - start).min(payload.len() as u64);
            self.duplicate_bytes += duplicate;
            payload.advance(duplicate as usize);
            if !payload.is_empty() {
                self.append(payload);
            }
        }
    }

    /// Returns the next slice for the application; `None` when nothing is in order yet.
    pub(super) fn read(&mut self) -> Option<Bytes> {
        let bytes = self.ready.pop_front()?;
        self.ready_bytes -= bytes.len() as u64;
        self.read_bytes += bytes.len() as u64;
        Some(bytes)
    }

    /// Returns the window to offer for `room` free bytes. Out-of-order data lies inside the window
    /// and does not reduce it. The right edge never moves back (RFC 8684 §3.3.4 and RFC 9293
    /// §3.8.6). Rounding to `unit`, the granularity of the window field, does not move it back
    /// either: an offered window is rounded up.
    pub(super) fn window(&mut self, room: u64, unit: u64) -> u64 {
        let remaining = self.edge.saturating_sub(self.next).next_multiple_of(unit.max(1));
        self.edge = self.next + remaining.max(room);
        remaining.max(room)
    }

    /// Returns true if data that ends at this offset is within the offered window.
    pub(super) fn admits(&self, end: u64) -> bool {
        end <= self.edge
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn payload(start: u64, len: u64) -> Payload {
        Bytes::from((start..start + len).map(|at| at as u8).collect::<Vec<_>>()).into()
    }

    #[test]
    fn the_data_fin_takes_one_sequence_number_and_is_reported_once() {
        let mut queue = ReceiveQueue::new();
        assert!(!queue.on_fin(4).finished);
        assert_eq!(queue.insert(1, payload(1, 3)), ReceiveProgress { in_order: 3, finished: true });
        assert_eq!((queue.next(), queue.finished()), (5, true));
        assert_eq!(queue.insert(4, payload(4, 3)), ReceiveProgress::default());
    }

    #[test]
    fn the_window_never_moves_back() {
        let mut queue = ReceiveQueue::new();
        assert_eq!(queue.window(100, 1), 100);
        let _ = queue.insert(1, payload(1, 60));
        assert_eq!(queue.window(0, 1), 40, "the window of 100 is not withdrawn");
        while queue.read().is_some() {}
        assert_eq!(queue.window(100, 1), 100);
        assert_eq!(queue.window(128, 32), 128);
        let _ = queue.insert(61, payload(61, 10));
        assert_eq!(queue.window(0, 32), 128, "118 were promised");
    }

    #[test]
    fn discarded_data_can_be_received_again() {
        let mut queue = ReceiveQueue::new();
        for start in [11, 31, 51] {
            let _ = queue.insert(start, payload(start, 10));
        }
        assert_eq!(queue.discard_from(35), 16);
        assert_eq!(queue.out_of_order_bytes(), 14);
        assert_eq!(queue.insert(1, payload(1, 60)).in_order, 60);
        assert_eq!(queue.out_of_order_bytes(), 0);
    }

    proptest! {
        #[test]
        fn every_byte_is_delivered_once_and_in_order(
            pieces in prop::collection::vec((1_u64..300, 1_u64..80), 0..60),
        ) {
            let mut queue = ReceiveQueue::new();
            for (start, len) in pieces.into_iter().chain([(200, 300), (1, 250)]) {
                let _ = queue.insert(start, payload(start, len));
            }
            let mut offset = 1_u64;
            while let Some(bytes) = queue.read() {
                for byte in &bytes {
                    prop_assert_eq!(*byte, offset as u8);
                    offset += 1;
                }
            }
            prop_assert_eq!(offset, queue.next());
            prop_assert!(offset >= 500);
        }
    }
}
