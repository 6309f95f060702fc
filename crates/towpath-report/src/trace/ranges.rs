//! Ranges of sequence numbers, compact and bounded, for waiting data, its first sender and
//! mappings.
//!
//! Numbers are relative to the first byte and 64 bits wide. Nearly all data comes in order, so
//! most operations concern the ends of the queues. All searches are binary.

use std::collections::VecDeque;

/// Maximum number of ranges of one queue. Beyond that, the oldest gap is given up.
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

    pub(super) fn first(&self) -> Option<SeqRange> {
        self.pieces.front().map(|piece| piece.range)
    }

    /// Returns true if a gap must be given up.
    pub(super) fn is_full(&self) -> bool {
        self.pieces.len() >= MAX_RANGES
    }

    /// Removes and returns the first piece if it begins at or before `next`.
    pub(super) fn pop_reached(&mut self, next: i64) -> Option<TaggedRange<T>> {
        self.pop_if(|range| range.start <= next)
    }

    /// Removes and returns the first piece.
    pub(super) fn pop(&mut self) -> Option<TaggedRange<T>> {
        self.pop_if(|_| true)
    }

    fn pop_if(&mut self, wanted: impl FnOnce(SeqRange) -> bool) -> Option<TaggedRange<T>> {
        if !wanted(self.first()?) {
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

    /// Calls `known` with each part of `range` that is present, and `new` with each that is not.
    #[inline]
    pub(super) fn compare(
        &self,
        range: SeqRange,
        mut known: impl FnMut(SeqRange, T),
        mut new: impl FnMut(SeqRange),
    ) {
        let mut from = range.start;
        let at = self.after(range.start);
        for piece in self.pieces.range(at.min(self.pieces.len())..) {
            if piece.range.start >= range.end {
                break;
            }
            if piece.range.start > from {
                new(SeqRange::new(from, piece.range.start));
            }
            known(piece.range.and(range), piece.tag);
            from = piece.range.end;
        }
        if from < range.end {
            new(SeqRange::new(from, range.end));
        }
    }

    /// Returns the number of bytes of `range` that are present.
    pub(super) fn overlap(&self, range: SeqRange) -> u64 {
        let mut bytes = 0;
        self.compare(range, |part, _| bytes += part.len(), |_| {});
        bytes
    }

    /// Adds a range of which no part is present yet.
    pub(super) fn insert(&mut self, range: SeqRange, about: T) {
        if range.is_empty() {
            return;
        }
        self.bytes += range.len();
        match self.pieces.back_mut() {
            Some(last) if last.range.end <= range.start => {
                if last.range.end == range.start && last.tag == about {
                    last.range.end = range.end;
                } else {
                    self.pieces.push_back(TaggedRange { range, tag: about });
                }
            }
            None => self.pieces.push_back(TaggedRange { range, tag: about }),
            Some(_) => {
                let at = self.after(range.start);
                // A neighbour with the same value absorbs it, or the queue would fill with small
                // pieces.
                if let Some(before) = at.checked_sub(1).and_then(|at| self.pieces.get_mut(at))
                    && before.range.end == range.start
                    && before.tag == about
                {
                    before.range.end = range.end;
                } else {
                    self.pieces.insert(at, TaggedRange { range, tag: about });
                }
            }
        }
    }

    /// Returns the index of the first piece that ends after `start`.
    fn after(&self, start: i64) -> usize {
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

    /// Adds a mapping. Existing mappings win, because the same bytes cannot become other data.
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
        let at = self.all.partition_point(|known| known.range.end <= range.start);
        let covered = self.all.get(at).is_some_and(|next| next.range.start < range.end);
        if !covered {
            self.all.insert(at, ObservedMapping { range, data });
        } else if let Some(last) = self.all.back().copied()
            && last.range.end < range.end
        {
            // A longer mapping may begin with a known one (mapping of a super-segment).
            let start = last.range.end.max(range.start);
            let data = data.saturating_add(start.saturating_sub(range.start));
            self.all.push_back(ObservedMapping { range: SeqRange::new(start, range.end), data });
        }
        if self.all.len() > MAX_MAPPINGS {
            self.all.pop_front();
        }
    }

    /// Calls `found` with each mapped part of `range` and its data. Returns the number of unmapped
    /// bytes.
    #[inline]
    pub(super) fn each(&self, range: SeqRange, mut found: impl FnMut(SeqRange, SeqRange)) -> u64 {
        let first = match self.all.back() {
            Some(last) if last.range.start <= range.start => self.all.len() - 1,
            _ => self.all.partition_point(|known| known.range.end <= range.start),
        };
        let mut left = range.len();
        for mapping in self.all.range(first..) {
            let part = mapping.range.and(range);
            if mapping.range.start >= range.end {
                break;
            }
            if part.is_empty() {
                continue;
            }
            left -= part.len();
            let data = mapping.data.saturating_add(part.start - mapping.range.start);
            found(part, SeqRange::new(data, data.saturating_add_unsigned(part.len())));
        }
        left
    }
}
