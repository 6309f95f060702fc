//! Out-of-order data, and the SACK blocks that report it (RFC 2018, RFC 2883).

use std::collections::BTreeMap;

use arrayvec::ArrayVec;
use towpath_wire::Payload;

use super::ranges::Ranges;

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
    /// Out-of-order data by offset.
    waiting: BTreeMap<u64, Payload>,
    waiting_bytes: u64,
    /// Offsets of the out-of-order data.
    ranges: Ranges,
    /// An offset of each recently reported block, the latest first.
    latest: ArrayVec<u64, 4>,
    /// Duplicate range that the next SACK option reports.
    duplicate: Option<(u64, u64)>,
    /// Offset of the FIN.
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
        let last_piece = self.waiting.last_key_value();
        last_piece.map_or(0, |(start, payload)| start + payload.len() as u64 - self.next)
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
        let data_follows = self.ranges.descending().next().is_some_and(|(_, end)| end > offset);
        if self.fin.is_none() && !data_follows && offset >= self.next {
            self.fin = Some(offset);
        }
    }

    /// Takes the FIN if all data before it has arrived; returns true if it did.
    pub(super) fn take_fin(&mut self) -> bool {
        let in_order = self.fin == Some(self.next);
        self.next += u64::from(in_order);
        in_order
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
        self.insert_out_of_order(start, end, &payload, out)
    }

    fn insert_out_of_order(
        &mut self,
        start: u64,
        end: u64,
        payload: &Payload,
        out: &mut Vec<(u64, Payload)>,
    ) -> ReassemblyOutcome {
        let mut outcome =
            ReassemblyOutcome { hole: !self.ranges.is_empty(), ..ReassemblyOutcome::default() };
        if start >= end {
            return outcome;
        }
        let new_start = start.max(self.next);
        let new_parts = self.ranges.insert(new_start, end);
        let new_bytes: u64 = new_parts.iter().map(|(from, to)| to - from).sum();
        outcome.duplicate = end - start - new_bytes;
        outcome.hole |= start != self.next;
        if outcome.duplicate > 0 {
            self.note_duplicate(start, end, &new_parts);
        }
        for (from, to) in new_parts {
            let index = |offset: u64| usize::try_from(offset - start).unwrap_or(usize::MAX);
            self.waiting.insert(from, payload.slice(index(from), index(to)));
            self.waiting_bytes += to - from;
        }
        if new_start < end {
            self.note_latest(new_start);
        }
        outcome.in_order = self.drain(out);
        outcome
    }

    /// Records the first contiguous duplicate part, which is reported once (RFC 2883 §4). It lies
    /// between two new parts, or before the first.
    fn note_duplicate(&mut self, start: u64, end: u64, new_parts: &[(u64, u64)]) {
        let starts = new_parts.iter().map(|(from, _)| *from).chain([end]);
        let ends = [start].into_iter().chain(new_parts.iter().map(|(_, to)| *to));
        self.duplicate = ends.zip(starts).find(|(from, to)| from < to);
    }

    fn note_latest(&mut self, offset: u64) {
        let block = self.ranges.containing(offset);
        self.latest.retain(|o| self.ranges.containing(*o) != block);
        if self.latest.is_full() {
            self.latest.pop();
        }
        self.latest.insert(0, offset);
    }

    fn drain(&mut self, out: &mut Vec<(u64, Payload)>) -> u64 {
        let next_before = self.next;
        while let Some(entry) = self.waiting.first_entry()
            && *entry.key() == self.next
        {
            let (start, payload) = entry.remove_entry();
            self.waiting_bytes -= payload.len() as u64;
            self.next = start + payload.len() as u64;
            out.push((start, payload));
        }
        self.ranges.remove_below(self.next);
        self.latest.retain(|o| self.ranges.containing(*o).is_some());
        self.next - next_before
    }

    /// Returns at most `count` SACK blocks: a duplicate first, then the latest changed block (RFC
    /// 2018 §4). A duplicate is reported once.
    pub(super) fn take_sack_blocks(&mut self, count: usize) -> SackRanges {
        let mut blocks = SackRanges::new();
        let duplicate = if count > 0 { self.duplicate.take() } else { None };
        let latest = self.latest.iter().filter_map(|o| self.ranges.containing(*o));
        // When blocks were dropped for lack of space, older holes still matter: the highest blocks
        // fill the rest.
        for block in duplicate.into_iter().chain(latest).chain(self.ranges.descending().take(4)) {
            let already_listed =
                blocks.iter().skip(usize::from(duplicate.is_some())).any(|b| *b == block);
            if blocks.len() < count && !already_listed {
                let _ = blocks.try_push(block);
            }
        }
        blocks
    }
}
