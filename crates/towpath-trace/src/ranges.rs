//! Ranges of sequence numbers, compact and bounded, for waiting data, its first sender and
//! mappings.
//!
//! Numbers are relative to the first byte and 64 bits wide. Nearly all data comes in order, so
//! most operations concern the ends of the queues. All searches are binary.

use std::collections::VecDeque;

/// Maximum number of ranges in a queue. At this limit, the oldest gap is treated as filled.
const MAX_RANGES: usize = 1 << 15;

/// Half-open range `start..end` of sequence numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct SeqRange {
    pub(super) start: i64,
    pub(super) end: i64,
}

impl SeqRange {
    pub(super) fn new(start: i64, end: i64) -> Self {
        Self { start, end }
    }

    /// Returns the length in bytes; 0 if the end is before the start.
    pub(super) fn len(self) -> u64 {
        u64::try_from(self.end.saturating_sub(self.start)).unwrap_or(0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.end <= self.start
    }

    /// Returns the intersection of both ranges; empty if they are disjoint.
    pub(super) fn and(self, other: Self) -> Self {
        Self { start: self.start.max(other.start), end: self.end.min(other.end) }
    }
}

/// Range with a value attached.
#[derive(Debug, Clone, Copy)]
pub(super) struct TaggedRange<T> {
    pub(super) range: SeqRange,
    pub(super) tag: T,
}

/// Disjoint ranges in order, each with a value.
#[derive(Debug, Clone)]
pub(super) struct TaggedRanges<T> {
    pieces: VecDeque<TaggedRange<T>>,
    bytes: u64,
}

impl<T> Default for TaggedRanges<T> {
    fn default() -> Self {
        Self { pieces: VecDeque::new(), bytes: 0 }
    }
}

impl<T: Copy + PartialEq> TaggedRanges<T> {
    /// Returns the bytes in all ranges.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes all positions smaller by `bytes`.
    pub(super) fn shift_down(&mut self, bytes: i64) {
        for TaggedRange { range, .. } in &mut self.pieces {
            range.start = range.start.saturating_sub(bytes);
            range.end = range.end.saturating_sub(bytes);
        }
    }

    /// Returns the number of ranges.
    pub(super) fn len(&self) -> usize {
        self.pieces.len()
    }

    pub(super) fn first(&self) -> Option<SeqRange> {
        self.pieces.front().map(|piece| piece.range)
    }

    /// Returns true if a gap must be given up.
    pub(super) fn is_full(&self) -> bool {
        self.pieces.len() >= MAX_RANGES
    }

    /// Removes and returns the first range if it begins at or before `next`.
    pub(super) fn pop_reached(&mut self, next: i64) -> Option<TaggedRange<T>> {
        self.pop_if(|range| range.start <= next)
    }

    /// Removes and returns the first range.
    pub(super) fn pop(&mut self) -> Option<TaggedRange<T>> {
        self.pop_if(|_| true)
    }

    fn pop_if(&mut self, condition: impl FnOnce(SeqRange) -> bool) -> Option<TaggedRange<T>> {
        if !condition(self.first()?) {
            return None;
        }
        let piece = self.pieces.pop_front()?;
        self.bytes -= piece.range.len();
        Some(piece)
    }

    /// Drops everything below `end`.
    pub(super) fn forget_below(&mut self, end: i64) {
        while self.first().is_some_and(|range| range.end <= end) {
            self.pop();
        }
        if let Some(first) = self.pieces.front_mut()
            && first.range.start < end
        {
            self.bytes -= SeqRange::new(first.range.start, end).len();
            first.range.start = end;
        }
    }

    /// Calls `on_known` with each part of `range` that is present, and `on_new` with the others.
    #[inline]
    pub(super) fn compare(
        &self,
        range: SeqRange,
        mut on_known: impl FnMut(SeqRange, T),
        mut on_new: impl FnMut(SeqRange),
    ) {
        let mut next_start = range.start;
        let first_piece = self.index_after(range.start);
        for piece in self.pieces.range(first_piece.min(self.pieces.len())..) {
            if piece.range.start >= range.end {
                break;
            }
            if piece.range.start > next_start {
                on_new(SeqRange::new(next_start, piece.range.start));
            }
            on_known(piece.range.and(range), piece.tag);
            next_start = piece.range.end;
        }
        if next_start < range.end {
            on_new(SeqRange::new(next_start, range.end));
        }
    }

    /// Returns the number of bytes of `range` that are present.
    pub(super) fn overlap(&self, range: SeqRange) -> u64 {
        let mut bytes = 0;
        self.compare(range, |part, _| bytes += part.len(), |_| {});
        bytes
    }

    /// Adds a range of which no part is present yet.
    pub(super) fn insert(&mut self, range: SeqRange, tag: T) {
        if range.is_empty() {
            return;
        }
        self.bytes += range.len();
        match self.pieces.back_mut() {
            Some(last) if last.range.end <= range.start => {
                if last.range.end == range.start && last.tag == tag {
                    last.range.end = range.end;
                } else {
                    self.pieces.push_back(TaggedRange { range, tag });
                }
            }
            None => self.pieces.push_back(TaggedRange { range, tag }),
            Some(_) => {
                let index = self.index_after(range.start);
                // Adjacent ranges with the same tag are joined, so that the queue stays short.
                if let Some(previous) =
                    index.checked_sub(1).and_then(|index| self.pieces.get_mut(index))
                    && previous.range.end == range.start
                    && previous.tag == tag
                {
                    previous.range.end = range.end;
                } else {
                    self.pieces.insert(index, TaggedRange { range, tag });
                }
            }
        }
    }

    /// Returns the index of the first piece that ends after `start`.
    fn index_after(&self, start: i64) -> usize {
        // Usually the range comes after all pieces.
        if self.pieces.back().is_none_or(|last| last.range.end <= start) {
            return self.pieces.len();
        }
        self.pieces.partition_point(|piece| piece.range.end <= start)
    }
}

/// Data numbers of a subflow's bytes (RFC 8684 §3.3.1): mappings, joined where they continue each
/// other.
#[derive(Debug, Clone, Default)]
pub(super) struct ObservedMappings {
    all: VecDeque<ObservedMapping>,
}

#[derive(Debug, Clone, Copy)]
struct ObservedMapping {
    /// Range of positions on the subflow.
    range: SeqRange,
    /// Data number of its first byte.
    data: i64,
}

/// Maximum number of mappings for each direction of a subflow.
const MAX_MAPPINGS: usize = 1 << 13;

impl ObservedMappings {
    /// Returns true if no mapping is known.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Adds a mapping. Bytes that are already mapped keep their mapping (RFC 8684 §3.3.1).
    pub(super) fn add(&mut self, range: SeqRange, data: i64) {
        if range.is_empty() {
            return;
        }
        match self.all.back_mut() {
            Some(last) if last.range.start <= range.start && range.end <= last.range.end => return,
            Some(last)
                if last.range.end == range.start
                    && last.data.saturating_add_unsigned(last.range.len()) == data =>
            {
                last.range.end = range.end;
                return;
            }
            _ => {}
        }
        let index = self.all.partition_point(|m| m.range.end <= range.start);
        let is_overlapping = self.all.get(index).is_some_and(|next| next.range.start < range.end);
        if !is_overlapping {
            self.all.insert(index, ObservedMapping { range, data });
        } else if let Some(last) = self.all.back().copied()
            && last.range.end < range.end
        {
            // The mapping of a super-segment may begin with bytes that are already mapped.
            let start = last.range.end.max(range.start);
            let data = data.saturating_add(start.saturating_sub(range.start));
            self.all.push_back(ObservedMapping { range: SeqRange::new(start, range.end), data });
        }
        if self.all.len() > MAX_MAPPINGS {
            self.all.pop_front();
        }
    }

    /// Calls `on_mapped` with each mapped part of `range` and its data. Returns the number of
    /// unmapped bytes.
    #[inline]
    pub(super) fn each(
        &self,
        range: SeqRange,
        mut on_mapped: impl FnMut(SeqRange, SeqRange),
    ) -> u64 {
        let first = match self.all.back() {
            Some(last) if last.range.start <= range.start => self.all.len() - 1,
            _ => self.all.partition_point(|m| m.range.end <= range.start),
        };
        let mut unmapped_bytes = range.len();
        for mapping in self.all.range(first..) {
            let part = mapping.range.and(range);
            if mapping.range.start >= range.end {
                break;
            }
            if part.is_empty() {
                continue;
            }
            unmapped_bytes -= part.len();
            let data = mapping.data.saturating_add(part.start - mapping.range.start);
            on_mapped(part, SeqRange::new(data, data.saturating_add_unsigned(part.len())));
        }
        unmapped_bytes
    }
}
