//! Marks of a time–sequence picture in order of time, in bounded memory.
//!
//! A full log joins marks of one kind that are near each other in time. It gets coarser but keeps
//! everything, unless it has more subflows than marks.

use std::collections::HashMap;

use towpath_result::SequenceKind;

use super::ranges::SeqRange;

/// Maximum number of marks of one direction of a subflow or connection.
const MAX_LOG_MARKS: usize = 1 << 15;
/// Width of a column when a log gets coarser for the first time.
const INITIAL_COLUMN_NS: u64 = 1 << 14;
/// Number of recent marks in a column that are candidates for joining. In a column with more, each
/// kind of each subflow has at most one further mark.
const MAX_JOIN_LOOKBACK: usize = 48;

/// One observation in the picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PacketMark {
    pub(super) at_ns: u64,
    pub(super) kind: SequenceKind,
    /// Number of the subflow in its connection.
    pub(super) subflow: u16,
    /// Number of packets; 0 for a further part of one.
    pub(super) packets: u32,
    pub(super) range: SeqRange,
}

/// All observations of one direction.
#[derive(Debug, Clone)]
pub(super) struct SequenceLog {
    marks: Vec<PacketMark>,
    /// Period within which marks are joined; 0 disables it.
    column_ns: u64,
    limit: usize,
    crowd: ColumnCrowd,
}

/// Further marks of a column that has more than [`MAX_JOIN_LOOKBACK`].
#[derive(Debug, Clone, Default)]
struct ColumnCrowd {
    column: u64,
    /// Index of the mark of each kind and subflow. Only for lookups, never iterated.
    indices: HashMap<(SequenceKind, u16), usize>,
}

impl Default for SequenceLog {
    fn default() -> Self {
        Self {
            marks: Vec::new(),
            column_ns: 0,
            limit: MAX_LOG_MARKS,
            crowd: ColumnCrowd::default(),
        }
    }
}

impl SequenceLog {
    /// Returns a log with columns of this width and without a limit of marks.
    pub(super) fn with_column(column_ns: u64) -> Self {
        Self { column_ns, limit: usize::MAX, ..Self::default() }
    }

    pub(super) fn marks(&self) -> &[PacketMark] {
        &self.marks
    }

    /// Returns the marks for correction.
    pub(super) fn marks_mut(&mut self) -> impl Iterator<Item = &mut PacketMark> {
        self.marks.iter_mut()
    }

    pub(super) fn column_ns(&self) -> u64 {
        self.column_ns
    }

    /// Returns the marks in order of time: interfaces of a capture may be slightly out of order.
    pub(super) fn in_order(&self) -> Self {
        let mut sorted = self.clone();
        sorted.marks.sort_by_key(|mark| mark.at_ns);
        sorted
    }

    /// Adds a mark; coarsens the log if it is full.
    pub(super) fn add(&mut self, mark: PacketMark) {
        if self.limit == 0 {
            return;
        }
        self.push(mark);
        if self.marks.len() > self.limit {
            self.coarsen_to_limit();
        }
    }

    /// Coarsens a full log. One with too many kinds and subflows for that is given up, as each
    /// further mark would coarsen it again.
    fn coarsen_to_limit(&mut self) {
        let max_marks = self.limit - self.limit / 4;
        self.coarsen(max_marks);
        if self.marks.len() > max_marks {
            self.set_limit(0);
        }
    }

    /// Makes columns wider until at most `max_marks` marks are left, or all are in one column.
    pub(super) fn coarsen(&mut self, max_marks: usize) {
        let last_ns = self.marks.iter().map(|mark| mark.at_ns).max().unwrap_or(0);
        for _ in 0..48 {
            let is_one_column = self.column_ns > last_ns;
            if self.marks.len() <= max_marks || is_one_column {
                return;
            }
            self.column_ns = self.column_ns.saturating_mul(2).max(INITIAL_COLUMN_NS);
            let old = std::mem::take(&mut self.marks);
            self.crowd = ColumnCrowd::default();
            for mark in old {
                self.push(mark);
            }
        }
    }

    /// Limits the log to `limit` marks from now on; 0 drops them all.
    pub(super) fn set_limit(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        if self.limit == 0 {
            self.marks = Vec::new();
        } else if self.marks.len() > self.limit {
            self.coarsen_to_limit();
        }
    }

    /// Processes a report of duplicate data (DSACK) for `range`: its retransmission was spurious.
    pub(super) fn mark_spurious(&mut self, range: SeqRange) {
        /// Maximum number of marks to search: a report comes a round trip later, or never.
        const MAX_DSACK_LOOKBACK: usize = 4_096;
        let is_retransmission_of_range = |mark: &&mut PacketMark| {
            mark.kind == SequenceKind::Retransmitted && !mark.range.and(range).is_empty()
        };
        if let Some(mark) =
            self.marks.iter_mut().rev().take(MAX_DSACK_LOOKBACK).find(is_retransmission_of_range)
        {
            mark.kind = SequenceKind::Spurious;
        }
    }

    fn push(&mut self, mark: PacketMark) {
        if let Some(column) = mark.at_ns.checked_div(self.column_ns) {
            let width = self.column_ns;
            let is_in_column = |existing: &PacketMark| existing.at_ns / width == column;
            // A crowded column joins all marks of a kind.
            let oldest_candidate = self
                .marks
                .len()
                .checked_sub(MAX_JOIN_LOOKBACK)
                .and_then(|index| self.marks.get(index));
            let is_crowded = oldest_candidate.is_some_and(is_in_column);
            let candidates = self.marks.iter_mut().rev().take(MAX_JOIN_LOOKBACK);
            let can_absorb = |existing: &&mut PacketMark| {
                is_joinable(existing, &mark)
                    || (is_crowded
                        && (existing.kind, existing.subflow) == (mark.kind, mark.subflow))
            };
            let mut candidates = candidates.take_while(|existing| is_in_column(existing));
            if let Some(existing) = candidates.find(can_absorb) {
                join(existing, &mark);
                return;
            }
            if is_crowded {
                if self.crowd.column != column {
                    self.crowd = ColumnCrowd { column, indices: HashMap::new() };
                }
                let key = (mark.kind, mark.subflow);
                let previous = self.crowd.indices.get(&key).copied();
                let previous = previous.and_then(|index| self.marks.get_mut(index));
                if let Some(existing) = previous.filter(|m| (m.kind, m.subflow) == key) {
                    join(existing, &mark);
                    return;
                }
                self.crowd.indices.insert(key, self.marks.len());
            }
        }
        self.marks.push(mark);
    }
}

/// Returns true if a single mark can represent both marks.
fn is_joinable(existing: &PacketMark, added: &PacketMark) -> bool {
    use SequenceKind as Kind;
    if (existing.kind, existing.subflow) != (added.kind, added.subflow) {
        return false;
    }
    match added.kind {
        // Within a column these kinds join always; the others stay separate as long as possible.
        Kind::Ack | Kind::ZeroWindow | Kind::Sent | Kind::Sack => true,
        Kind::DuplicateAck => existing.range.start == added.range.start,
        Kind::OutOfOrder | Kind::Retransmitted | Kind::Spurious | Kind::Reinjected => {
            existing.range.start <= added.range.end && added.range.start <= existing.range.end
        }
        Kind::Syn | Kind::Fin | Kind::Rst => false,
    }
}

fn join(existing: &mut PacketMark, added: &PacketMark) {
    existing.packets = existing.packets.saturating_add(added.packets);
    if added.kind == SequenceKind::Ack {
        // A line shows its final value at the end of the column.
        (existing.at_ns, existing.range) = (added.at_ns, added.range);
    } else {
        let start = existing.range.start.min(added.range.start);
        existing.range = SeqRange::new(start, existing.range.end.max(added.range.end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u32, subflow: u16) -> PacketMark {
        let start = i64::from(number) * 100;
        PacketMark {
            at_ns: u64::from(number) * 1_000,
            kind: SequenceKind::Sent,
            subflow,
            packets: 1,
            range: SeqRange::new(start, start + 100),
        }
    }

    #[test]
    fn a_full_log_of_many_subflows_joins_marks_and_forgets_no_packet() {
        let mut log = SequenceLog::default();
        let packets = 3 * MAX_LOG_MARKS as u32;
        for number in 0..packets {
            log.add(sent(number, (number % 200) as u16));
        }
        assert!((1_000..=MAX_LOG_MARKS).contains(&log.marks().len()), "{}", log.marks().len());
        assert_eq!(log.marks().iter().map(|mark| mark.packets).sum::<u32>(), packets);
    }

    #[test]
    fn a_log_with_more_subflows_than_marks_is_given_up() {
        let mut log = SequenceLog::default();
        for number in 0..u32::from(u16::MAX) {
            log.add(sent(number, number as u16));
        }
        assert!(log.marks().is_empty());
    }
}
