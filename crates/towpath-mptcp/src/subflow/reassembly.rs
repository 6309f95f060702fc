//! Out-of-order data, and the SACK blocks that report it (RFC 2018, RFC 2883).

use std::collections::BTreeMap;

use arrayvec::ArrayVec;

use super::ranges::Ranges;
use crate::wire::Payload;

/// Blocks of offsets for the peer; at most four fit into the options.
pub(super) type SackRanges = ArrayVec<(u64, u64), 4>;

/// Effect of a segment's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ReassemblyOutcome {
    /// Bytes that became in order.
    pub(super) in_order: u64,
    /// Bytes that had arrived before.
    pub(super) duplicate: u64,
    /// Set when there is, or was, a hole: acknowledge immediately (RFC 5681 §4.2).
    pub(super) hole: bool,
}

/// Reassembly state of the receiver.
#[derive(Debug, Clone)]
pub(super) struct Reassembly {
    /// Next expected offset; includes the FIN once it is in order.
    next: u64,
    waiting: BTreeMap<u64, Payload>,
    waiting_bytes: u64,
    ranges: Ranges,
    /// An offset of each recently reported block, the latest first.
    latest: ArrayVec<u64, 4>,
    duplicate: Option<(u64, u64)>,
    fin: Option<u64>,
}

impl Reassembly {
    /// Creates the state after a SYN, without any data.
    pub(super) fn new() -> Self {
        Self {
            next: 1,
            waiting: BTreeMap::new(),
            waiting_bytes: 0,
            ranges: Ranges::default(),
            latest: ArrayVec::new(),
            duplicate: None,
            fin: None,
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the offset after the last data byte in order.
    pub(super) fn data_until(&self) -> u64 {
        self.next - u64::from(self.fin_in_order())
    }

    pub(super) fn out_of_order_bytes(&self) -> u64 {
        self.waiting_bytes
    }

    /// Returns the distance from the next expected offset to the end of out-of-order data.
    pub(super) fn out_of_order_span(&self) -> u64 {
        let last = self.waiting.last_key_value();
        last.map_or(0, |(start, payload)| start + payload.len() as u64 - self.next)
    }

    pub(super) fn fin_in_order(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// Returns true if SACK blocks have anything to report.
    pub(super) fn has_blocks(&self) -> bool {
        self.duplicate.is_some() || !self.ranges.is_empty()
    }

    /// Records a FIN at `offset`; only the first counts. It is ignored if data beyond it has
    /// arrived.
    pub(super) fn insert_fin(&mut self, offset: u64) {
        let beyond = self.ranges.descending().next().is_some_and(|(_, end)| end > offset);
        if self.fin.is_none() && !beyond && offset >= self.next {
            self.fin = Some(offset);
        }
    }

    /// Takes the FIN if all data before it has arrived; returns true if it did.
    pub(super) fn take_fin(&mut self) -> bool {
        let now = self.fin == Some(self.next);
        self.next += u64::from(now);
        now
    }

    /// Inserts data at `start`; appends the data that is now in order to `out`.
    pub(super) fn insert(
        &mut self,
        start: u64,
        mut payload: Payload,
        out: &mut Vec<(u64, Payload)>,
    ) -> ReassemblyOutcome {
        // No data may follow a FIN.
        let limit = self.fin.map_or(u64::MAX, |fin| fin.saturating_sub(start));
        if payload.len() as u64 > limit {
            payload.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        }
        let end = start + payload.len() as u64;
        if start == self.next && self.ranges.is_empty() && end > start {
            self.next = end;
            out.push((start, payload));
            return ReassemblyOutcome { in_order: end - start, duplicate: 0, hole: false };
        }
        self.insert_slowly(start, end, &payload, out)
    }

    fn insert_slowly(
        &mut self,
        start: u64,
        end: u64,
        payload: &Payload,
        out: &mut Vec<(u64, Payload)>,
    ) -> ReassemblyOutcome {
        let mut arrival =
            ReassemblyOutcome { hole: !self.ranges.is_empty(), ..ReassemblyOutcome::default() };
        if start >= end {
            return arrival;
        }
        let low = start.max(self.next);
        let fresh = self.ranges.insert(low, end);
        let new: u64 = fresh.iter().map(|(from, to)| to - from).sum();
        arrival.duplicate = end - start - new;
        arrival.hole |= start != self.next;
        if arrival.duplicate > 0 {
            self.note_duplicate(start, end, &fresh);
        }
        for (from, to) in fresh {
            let slice = |at: u64| usize::try_from(at - start).unwrap_or(usize::MAX);
            self.waiting.insert(from, payload.slice(slice(from), slice(to)));
            self.waiting_bytes += to - from;
        }
        if low < end {
            self.note_latest(low);
        }
        arrival.in_order = self.drain(out);
        arrival
    }

    /// Records the first contiguous duplicate part, which is reported once (RFC 2883 §4). It lies
    /// between two fresh parts, or before the first.
    fn note_duplicate(&mut self, start: u64, end: u64, fresh: &[(u64, u64)]) {
        let starts = fresh.iter().map(|(from, _)| *from).chain([end]);
        let ends = [start].into_iter().chain(fresh.iter().map(|(_, to)| *to));
        self.duplicate = ends.zip(starts).find(|(from, to)| from < to);
    }

    fn note_latest(&mut self, offset: u64) {
        let block = self.ranges.around(offset);
        self.latest.retain(|at| self.ranges.around(*at) != block);
        if self.latest.is_full() {
            self.latest.pop();
        }
        self.latest.insert(0, offset);
    }

    fn drain(&mut self, out: &mut Vec<(u64, Payload)>) -> u64 {
        let before = self.next;
        while let Some(entry) = self.waiting.first_entry()
            && *entry.key() == self.next
        {
            let (start, payload) = entry.remove_entry();
            self.waiting_bytes -= payload.len() as u64;
            self.next = start + payload.len() as u64;
            out.push((start, payload));
        }
        self.ranges.remove_below(self.next);
        self.latest.retain(|at| self.ranges.around(*at).is_some());
        self.next - before
    }

    /// Returns at most `count` SACK blocks: a duplicate first, then the latest changed block (RFC
    /// 2018 §4). A duplicate is reported once.
    pub(super) fn take_sack_blocks(&mut self, count: usize) -> SackRanges {
        let mut blocks = SackRanges::new();
        let duplicate = if count > 0 { self.duplicate.take() } else { None };
        let latest = self.latest.iter().filter_map(|at| self.ranges.around(*at));
        // When blocks were dropped for lack of space, older holes still matter: the highest blocks
        // fill the rest.
        for block in duplicate.into_iter().chain(latest).chain(self.ranges.descending().take(4)) {
            let known = blocks.iter().skip(usize::from(duplicate.is_some())).any(|b| *b == block);
            if blocks.len() < count && !known {
                let _ = blocks.try_push(block);
            }
        }
        blocks
    }
}
