//! What a time–sequence picture is made of: marks in order of time, bounded. A log that is full joins
//! marks of one kind that are near each other in time, so it gets coarser and forgets nothing.

use towpath_measure::result::SequenceKind;

use super::interval::SeqRange;

/// Marks that one direction of a subflow or connection keeps.
const MAX_LOG_MARKS: usize = 1 << 15;
/// Width of a column when a log gets coarser for the first time.
const INITIAL_COLUMN_NS: u64 = 1 << 14;
/// Marks of a column among which one is looked for that takes up another.
const MAX_JOIN_LOOKBACK: usize = 48;

/// Something that was seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketMark {
    pub(super) at_ns: u64,
    pub(super) kind: SequenceKind,
    /// Number of the subflow in its connection.
    pub(super) subflow: u16,
    /// Packets; 0 for a further part of one.
    pub(super) packets: u32,
    pub(super) range: SeqRange,
}

/// All that was seen of a direction.
#[derive(Debug, Clone)]
pub(super) struct SequenceLog {
    marks: Vec<PacketMark>,
    /// Marks within such a period are joined; 0: none are.
    column_ns: u64,
    limit: usize,
}

impl Default for SequenceLog {
    fn default() -> Self {
        Self { marks: Vec::new(), column_ns: 0, limit: MAX_LOG_MARKS }
    }
}

impl SequenceLog {
    /// A log with columns of this width that takes any number of marks.
    pub(super) fn with_column(column_ns: u64) -> Self {
        Self { marks: Vec::new(), column_ns, limit: usize::MAX }
    }

    pub(super) fn marks(&self) -> &[PacketMark] {
        &self.marks
    }

    pub(super) fn column_ns(&self) -> u64 {
        self.column_ns
    }

    /// The marks in order of time: interfaces of a capture may be a little out of order.
    pub(super) fn in_order(&self) -> Self {
        let mut same = self.clone();
        same.marks.sort_by_key(|mark| mark.at_ns);
        same
    }

    /// Adds a mark.
    pub(super) fn add(&mut self, mark: PacketMark) {
        if self.limit == 0 {
            return;
        }
        self.push(mark);
        if self.marks.len() > self.limit {
            self.coarsen(self.limit - self.limit / 4);
        }
    }

    /// Makes columns wider until no more than `most` marks are left, or hardly anything is gained.
    pub(super) fn coarsen(&mut self, most: usize) {
        for _ in 0..48 {
            if self.marks.len() <= most {
                return;
            }
            self.column_ns = self.column_ns.saturating_mul(2).max(INITIAL_COLUMN_NS);
            let old = std::mem::take(&mut self.marks);
            for mark in old {
                self.push(mark);
            }
        }
    }

    /// Keeps at most so many marks from now on; 0 forgets them all.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        if self.limit == 0 {
            self.marks = Vec::new();
        } else if self.marks.len() > self.limit {
            self.coarsen(self.limit - self.limit / 4);
        }
    }

    /// That data arrived twice was told for `range`: what was sent again of it was sent for nothing.
    pub(super) fn mark_spurious(&mut self, range: SeqRange) {
        /// A report comes a round trip later, or never.
        const MAX_DSACK_LOOKBACK: usize = 4_096;
        let is_it = |mark: &&mut PacketMark| {
            mark.kind == SequenceKind::Retransmitted && !mark.range.and(range).is_empty()
        };
        if let Some(mark) = self.marks.iter_mut().rev().take(MAX_DSACK_LOOKBACK).find(is_it) {
            mark.kind = SequenceKind::Spurious;
        }
    }

    fn push(&mut self, mark: PacketMark) {
        if let Some(column) = mark.at_ns.checked_div(self.column_ns) {
            let width = self.column_ns;
            let is_here = |old: &PacketMark| old.at_ns / width == column;
            // A crowded column takes everything of a kind together.
            let before =
                self.marks.len().checked_sub(MAX_JOIN_LOOKBACK).and_then(|at| self.marks.get(at));
            let crowded = before.is_some_and(is_here);
            let recent = self.marks.iter_mut().rev().take(MAX_JOIN_LOOKBACK);
            let takes = |old: &&mut PacketMark| {
                can_join(old, &mark)
                    || (crowded && (old.kind, old.subflow) == (mark.kind, mark.subflow))
            };
            let mut recent = recent.take_while(|old| is_here(old));
            if let Some(old) = recent.find(takes) {
                join(old, &mark);
                return;
            }
        }
        self.marks.push(mark);
    }
}

/// Whether one mark can stand for both.
fn can_join(old: &PacketMark, new: &PacketMark) -> bool {
    use SequenceKind as Kind;
    if (old.kind, old.subflow) != (new.kind, new.subflow) {
        return false;
    }
    match new.kind {
        // What goes on in a column goes on between its ends; the others are told apart as long as they can.
        Kind::Ack | Kind::ZeroWindow | Kind::Sent | Kind::Sack => true,
        Kind::DuplicateAck => old.range.start == new.range.start,
        Kind::OutOfOrder | Kind::Retransmitted | Kind::Spurious | Kind::Reinjected => {
            old.range.start <= new.range.end && new.range.start <= old.range.end
        }
        Kind::Syn | Kind::Fin | Kind::Rst => false,
    }
}

fn join(old: &mut PacketMark, new: &PacketMark) {
    old.packets = old.packets.saturating_add(new.packets);
    if new.kind == SequenceKind::Ack {
        // A line holds at the end of its column what it came to.
        (old.at_ns, old.range) = (new.at_ns, new.range);
    } else {
        let start = old.range.start.min(new.range.start);
        old.range = SeqRange::new(start, old.range.end.max(new.range.end));
    }
}
