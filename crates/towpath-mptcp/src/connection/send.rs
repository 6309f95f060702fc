//! The send side of a connection: one store of bytes from which all subflows pull (Barré et al.
//! 2011).
//!
//! Numbers are *data offsets*: 0 is the initial data sequence number, 1 the first byte. They are
//! 64 bits wide and never wrap; only the wire knows the absolute numbers.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};
use towpath_multipath::path::Unsent;
use towpath_multipath::{DataRange, PathId, PathSet};
use towpath_net::Instant;
use towpath_wire::Payload;

/// Store of written bytes that are not yet acknowledged at connection level.
#[derive(Debug)]
pub(super) struct SendStore {
    /// Slices as the application passed them.
    chunks: VecDeque<SendChunk>,
    /// Sent data, in order and without gaps, from `acked` to `next`.
    sent: VecDeque<SentRange>,
    /// Data acknowledged at connection level, up to this offset.
    acked: u64,
    /// Offset of the first byte that was never sent.
    next: u64,
    /// Offset after the last byte that was written.
    end: u64,
    /// Right edge of the peer's window: the largest DATA_ACK + window on any subflow.
    edge: u64,
    /// Set when the application will write no more: DATA_FIN has the offset `end`.
    finished: bool,
    /// Set when DATA_FIN was acknowledged.
    fin_acked: bool,
}

/// Written data that is contiguous in memory.
#[derive(Debug)]
struct SendChunk {
    /// Offset of the first byte.
    start: u64,
    /// Memory of at least `len` bytes: more if the application offered more than was accepted.
    memory: Bytes,
    len: usize,
}

impl SendChunk {
    fn end(&self) -> u64 {
        self.start + self.len as u64
    }

    /// Returns true if `data` directly follows this chunk in the same memory. This happens when an
    /// application continues with the rest of a partly accepted buffer.
    fn is_followed_by(&self, data: &[u8]) -> bool {
        let memory_start = self.memory.as_ptr() as usize;
        let distance = (data.as_ptr() as usize).wrapping_sub(memory_start);
        distance == self.len && distance.saturating_add(data.len()) <= self.memory.len()
    }
}

/// Range of sent data, with the paths that carried it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SentRange {
    pub(super) start: u64,
    pub(super) bytes: u64,
    pub(super) sent_on: PathSet,
    /// Time when the data was last pushed to a subflow.
    pub(super) pushed_at: Instant,
}

/// Effect of a DATA_ACK: acknowledged bytes, DATA_FIN, and the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct DataAcked {
    pub(super) bytes: u64,
    pub(super) fin: bool,
    pub(super) window_opened: bool,
}

impl SendStore {
    pub(super) fn new() -> Self {
        Self {
            chunks: VecDeque::new(),
            sent: VecDeque::new(),
            acked: 1,
            next: 1,
            end: 1,
            edge: 1,
            finished: false,
            fin_acked: false,
        }
    }

    /// Takes as much from the front of `data` as `room` allows.
    pub(super) fn write(&mut self, data: &mut Bytes, room: u64) -> usize {
        if self.finished {
            return 0;
        }
        let taken = data.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        if taken == 0 {
            return 0;
        }
        match self.chunks.back_mut() {
            // Packets of one slice are cheaper than packets of several.
            Some(last) if last.is_followed_by(data) => last.len += taken,
            Some(_) | None => {
                self.chunks.push_back(SendChunk {
                    start: self.end,
                    memory: data.clone(),
                    len: taken,
                });
            }
        }
        data.advance(taken);
        self.end += taken as u64;
        taken
    }

    pub(super) fn finish(&mut self) {
        self.finished = true;
    }

    /// Returns the offset of DATA_FIN, when the application has finished.
    pub(super) fn fin(&self) -> Option<u64> {
        self.finished.then_some(self.end)
    }

    pub(super) fn fin_acked(&self) -> bool {
        self.fin_acked
    }

    /// Marks DATA_FIN as acknowledged; in plain TCP the subflow's own FIN replaces it.
    pub(super) fn set_fin_acked(&mut self) {
        self.fin_acked = true;
    }

    pub(super) fn acked(&self) -> u64 {
        self.acked
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn edge(&self) -> u64 {
        self.edge
    }

    /// Returns the bytes in the buffer: written and not acknowledged.
    pub(super) fn held_bytes(&self) -> u64 {
        self.end - self.acked
    }

    pub(super) fn unsent_bytes(&self) -> u64 {
        self.end - self.next
    }

    pub(super) fn unacked_bytes(&self) -> u64 {
        self.next - self.acked
    }

    /// Returns the bytes that the peer's window still allows to send.
    pub(super) fn window_bytes(&self) -> u64 {
        self.edge.saturating_sub(self.next)
    }

    /// Returns the bytes from `start` on; they must be in the store.
    pub(super) fn slice(&self, start: u64, bytes: u64) -> Payload {
        let mut out = Payload::EMPTY;
        let end = start + bytes;
        let first_chunk = self.chunks.partition_point(|chunk| chunk.end() <= start);
        for chunk in self.chunks.range(first_chunk..) {
            if chunk.start >= end {
                break;
            }
            let from = start.saturating_sub(chunk.start) as usize;
            let to = (end - chunk.start).min(chunk.len as u64) as usize;
            out.push(chunk.memory.slice(from..to));
        }
        out
    }

    /// Records that the first unsent bytes were pushed to `paths`.
    pub(super) fn on_sent_new(&mut self, bytes: u64, paths: PathSet, pushed_at: Instant) {
        let bytes = bytes.min(self.unsent_bytes());
        match self.sent.back_mut() {
            // One entry for a run on the same path keeps the list short. The time is that of the
            // newest part, so that a reinjection is never premature.
            Some(last) if last.sent_on == paths && last.bytes + bytes <= 65_535 => {
                last.bytes += bytes;
                last.pushed_at = pushed_at;
            }
            Some(_) | None => {
                self.sent.push_back(SentRange {
                    start: self.next,
                    bytes,
                    sent_on: paths,
                    pushed_at,
                });
            }
        }
        self.next += bytes;
    }

    /// Records that bytes sent before were also given to `path`.
    pub(super) fn on_reinjected(&mut self, range: DataRange, path: PathId, pushed_at: Instant) {
        self.split_at(range.start);
        self.split_at(range.end());
        let first_range = self.sent.partition_point(|sent| sent.start < range.start);
        for sent in self.sent.range_mut(first_range..) {
            if sent.start >= range.end() {
                break;
            }
            sent.sent_on = sent.sent_on.with(path);
            sent.pushed_at = pushed_at;
        }
    }

    /// Splits the range around `offset` in two.
    fn split_at(&mut self, offset: u64) {
        let index = self.sent.partition_point(|sent| sent.start + sent.bytes <= offset);
        let Some(sent) = self.sent.get_mut(index) else { return };
        if sent.start >= offset {
            return;
        }
        let head_bytes = offset - sent.start;
        let tail = SentRange { start: offset, bytes: sent.bytes - head_bytes, ..*sent };
        sent.bytes = head_bytes;
        self.sent.insert(index + 1, tail);
    }

    /// Forgets all transmissions on `path`, whose slot may now be reused.
    pub(super) fn forget_path(&mut self, path: PathId) {
        for sent in &mut self.sent {
            sent.sent_on = sent.sent_on.without(path);
        }
    }

    /// Treats everything from `offset` on as never sent, because the peer dropped it (RFC 8684
    /// §3.7).
    pub(super) fn rewind(&mut self, offset: u64) {
        self.split_at(offset);
        while self.sent.back().is_some_and(|sent| sent.start >= offset) {
            self.sent.pop_back();
        }
        self.next = offset;
    }

    /// Returns the parts of `range` that were sent and not acknowledged, each with the paths that
    /// carried it.
    pub(super) fn unacked_in(
        &self,
        range: DataRange,
    ) -> impl Iterator<Item = (DataRange, PathSet)> + '_ {
        let first_range = self.sent.partition_point(|sent| sent.start + sent.bytes <= range.start);
        let overlapping =
            self.sent.range(first_range..).take_while(move |sent| sent.start < range.end());
        overlapping.map(move |sent| {
            let start = sent.start.max(range.start);
            let end = (sent.start + sent.bytes).min(range.end());
            (DataRange { start, bytes: end - start }, sent.sent_on)
        })
    }

    /// Returns the oldest unacknowledged range.
    pub(super) fn head(&self) -> Option<SentRange> {
        self.sent.front().copied()
    }

    /// Processes a DATA_ACK for everything before `until` (RFC 8684 §3.3.2), with the window after
    /// it. Returns `None` if it acknowledges data that was never sent.
    pub(super) fn on_data_ack(&mut self, until: u64, window: u64) -> Option<DataAcked> {
        let fin_end = self.fin().map(|fin| fin + 1);
        if until > self.next && !(fin_end == Some(until) && self.next == self.end) {
            return None;
        }
        let mut acked = DataAcked::default();
        // A DATA_ACK may be old if it took a slower path. Its window edge still counts.
        let edge = until.saturating_add(window);
        if edge > self.edge {
            self.edge = edge;
            acked.window_opened = true;
        }
        if fin_end == Some(until) && !self.fin_acked {
            self.fin_acked = true;
            acked.fin = true;
        }
        let until = until.min(self.end);
        if until > self.acked {
            acked.bytes = until - self.acked;
            self.acked = until;
            self.drop_acked();
        }
        Some(acked)
    }

    fn drop_acked(&mut self) {
        while let Some(front) = self.sent.front_mut() {
            if front.start + front.bytes <= self.acked {
                self.sent.pop_front();
                continue;
            }
            if front.start < self.acked {
                front.bytes -= self.acked - front.start;
                front.start = self.acked;
            }
            break;
        }
        while self.chunks.front().is_some_and(|chunk| chunk.end() <= self.acked) {
            self.chunks.pop_front();
        }
        // Idle connections keep no memory.
        if self.chunks.is_empty() {
            self.chunks.shrink_to_fit();
            self.sent.shrink_to_fit();
        }
    }
}

impl Unsent for SendStore {
    fn first_unsent_on(&self, path: PathId) -> Option<DataRange> {
        let mut not_on_path = self.sent.iter().skip_while(|sent| sent.sent_on.contains(path));
        if let Some(sent) = not_on_path.next() {
            return Some(DataRange { start: sent.start, bytes: sent.bytes });
        }
        let bytes = self.unsent_bytes().min(self.window_bytes());
        (bytes > 0).then_some(DataRange { start: self.next, bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn store_with(bytes: usize) -> SendStore {
        let mut store = SendStore::new();
        let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        assert_eq!(store.write(&mut Bytes::from(data), u64::MAX), bytes);
        store
    }

    #[test]
    fn writes_after_the_data_fin_are_refused() {
        let mut store = store_with(10);
        store.finish();
        assert_eq!(store.write(&mut Bytes::from_static(b"x"), 100), 0);
        assert_eq!(store.fin(), Some(11));
    }

    #[test]
    fn the_rest_of_a_buffer_makes_no_new_slice() {
        let mut store = SendStore::new();
        let buffer = Bytes::from((0..100).collect::<Vec<u8>>());
        let mut data = buffer.clone();
        for room in [10, 20, 30] {
            assert_eq!(store.write(&mut data, room), room as usize);
        }
        assert_eq!(store.chunks.len(), 1);
        // A copy of the remaining bytes makes a new slice, and so does another part of the buffer.
        store.write(&mut Bytes::copy_from_slice(&buffer[60..70]), u64::MAX);
        store.write(&mut buffer.slice(50..60), u64::MAX);
        assert_eq!(store.chunks.len(), 3);
        let expected = [&buffer[..70], &buffer[50..60]].concat();
        assert_eq!(store.slice(1, 80).to_bytes(), expected);
    }

    #[test]
    fn an_acknowledgement_of_unsent_data_is_refused() {
        let mut store = store_with(10);
        store.on_sent_new(5, PathSet::only(PathId(0)), Instant::ZERO);
        assert_eq!(store.on_data_ack(7, 100), None);
        assert_eq!(store.on_data_ack(6, 100).unwrap().bytes, 5);
    }

    #[test]
    fn an_old_data_ack_with_a_larger_window_moves_the_edge() {
        let mut store = store_with(100);
        store.on_sent_new(50, PathSet::only(PathId(0)), Instant::ZERO);
        assert!(store.on_data_ack(41, 20).unwrap().window_opened);
        let old_ack = store.on_data_ack(31, 60).unwrap();
        assert_eq!((old_ack.bytes, store.edge()), (0, 91));
        assert!(!store.on_data_ack(41, 20).unwrap().window_opened, "the window never shrinks");
    }

    #[test]
    fn a_path_is_offered_first_the_data_it_has_not_sent() {
        let mut store = store_with(100);
        let [a, b] = [PathId(0), PathId(1)];
        let _ = store.on_data_ack(1, 80);
        store.on_sent_new(30, PathSet::only(a), Instant::ZERO);
        store.on_sent_new(20, PathSet::only(b), Instant::ZERO);
        assert_eq!(store.first_unsent_on(a), Some(DataRange { start: 31, bytes: 20 }));
        assert_eq!(store.first_unsent_on(b), Some(DataRange { start: 1, bytes: 30 }));
        store.on_reinjected(DataRange { start: 31, bytes: 20 }, a, Instant::ZERO);
        assert_eq!(store.first_unsent_on(a), Some(DataRange { start: 51, bytes: 30 }));
    }

    proptest! {
        #[test]
        fn slices_equal_the_written_data(
            sizes in prop::collection::vec(1_usize..50, 1..20), from in 0_usize..400, len in 0_usize..400,
        ) {
            let mut store = SendStore::new();
            let mut written = Vec::new();
            for size in sizes {
                let data: Vec<u8> = (0..size).map(|at| (written.len() + at) as u8).collect();
                written.extend_from_slice(&data);
                store.write(&mut Bytes::from(data), u64::MAX);
            }
            let from = from.min(written.len());
            let len = len.min(written.len() - from);
            let slice = store.slice(1 + from as u64, len as u64).to_bytes();
            prop_assert_eq!(&slice[..], &written[from..from + len]);
        }

        #[test]
        fn sent_ranges_cover_exactly_what_is_unacknowledged(
            steps in prop::collection::vec((0_u8..3, 1_u64..40, 0_u8..3), 1..60),
        ) {
            let mut store = store_with(1_000);
            for (operation, bytes, path) in steps {
                let path = PathId(path);
                match operation {
                    0 => store.on_sent_new(bytes, PathSet::only(path), Instant::ZERO),
                    1 => {
                        let until = (store.acked() + bytes).min(store.next());
                        prop_assert!(store.on_data_ack(until, 10).is_some());
                    }
                    _ => {
                        let start = store.acked() + bytes;
                        if start + bytes <= store.next() {
                            store.on_reinjected(DataRange { start, bytes }, path, Instant::ZERO);
                        }
                    }
                }
                let mut expected_start = store.acked();
                for sent in &store.sent {
                    prop_assert_eq!(sent.start, expected_start);
                    prop_assert!(sent.bytes > 0);
                    expected_start += sent.bytes;
                }
                prop_assert_eq!(expected_start, store.next());
            }
        }
    }
}
