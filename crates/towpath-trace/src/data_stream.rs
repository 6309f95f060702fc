//! One direction of a connection above its subflows: data sequence numbers, in-order arrival, and
//! the subflow that first carried each byte.
//!
//! A plain TCP connection has the same state, with its bytes as data.

use towpath_result::SequenceKind;
use towpath_wire::DataAck;

use super::ranges::{SeqRange, TaggedRanges};
use super::send_limits::{ConnectionSendState, WindowEdges};
use super::sequence::{PacketMark, SequenceLog};
use super::stats::{BinnedSeries, ByteProgress, DelayHistogram, InFlight};

/// Subflow and time of a packet.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendContext {
    /// Nanoseconds since the beginning of the capture.
    pub(super) now_ns: u64,
    /// Number of the subflow in its connection.
    pub(super) subflow: u16,
}

/// Largest plausible jump of a data number: no receive window is larger.
const MAX_JUMP: i64 = 1 << 40;

/// One direction of a connection.
#[derive(Debug, Clone, Default)]
pub(super) struct DataStreamTracker {
    base: Option<DsnBase>,
    /// Position below which everything has arrived, at both levels.
    next: i64,
    /// Highest number that was sent.
    highest: i64,
    /// Data that waits for earlier data, with its arrival.
    waiting: TaggedRanges<u64>,
    /// Bytes that wait in the queues of its subflows, out of order there.
    pub(super) subflow_queue_bytes: u64,
    /// Subflow that first carried each range of data.
    owners: TaggedRanges<u16>,
    /// Position below which `owners` was dropped; `None` before that. Data from before the first
    /// captured data has a negative position, and may be new.
    owners_dropped_until: Option<i64>,
    /// Highest number acknowledged by DATA_ACK.
    acked: i64,
    /// Time of the last packet with data.
    last_sent_ns: u64,
    /// Data acknowledged on a subflow, but not yet by DATA_ACK.
    delivered: TaggedRanges<()>,
    /// Position of DATA_FIN, if seen.
    fin: Option<i64>,
    /// Data from its first transmission until DATA_ACK covers it.
    pub(super) flight: InFlight,
    /// Delay from a packet's arrival until everything before it was there.
    pub(super) wait: DelayHistogram,
    pub(super) arrivals: ByteProgress,
    pub(super) acks: ByteProgress,
    pub(super) series: BinnedSeries,
    /// Maximum of the waiting bytes, at both levels.
    pub(super) waiting_peak_bytes: u64,
    /// Bytes that another subflow had carried, or that came again under new subflow numbers.
    pub(super) copied_bytes: u64,
    /// Acknowledged bytes that are missing in the capture.
    pub(super) unseen_bytes: u64,
    /// Subflow that carried new data last, and the number of changes.
    last_subflow: Option<u16>,
    pub(super) switches: u64,
    /// Windows offered by the receiver, relative to DATA_ACK.
    pub(super) window_edges: WindowEdges,
    /// True if the last packet with new data was not full.
    pub(super) is_app_limited: bool,
    /// Marks for its picture; only if data has numbers of its own.
    pub(super) sequence: SequenceLog,
    pub(super) is_plotted: bool,
    /// Acknowledgement and window end that were recorded last.
    last_advertised: (i64, i64),
    scratch: Vec<SeqRange>,
}

/// Distance of a data number from those of a connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct DsnDistance {
    pub(super) bytes: u64,
    /// False if only the lower 32 bits could be compared.
    pub(super) is_64_bit: bool,
}

/// The absolute data number of relative number 0.
#[derive(Debug, Clone, Copy)]
struct DsnBase {
    number: u64,
    /// True if the upper 32 bits are known.
    is_64_bit: bool,
}

impl DataStreamTracker {
    /// Sets the number of the first byte, derived from the keys (RFC 8684 §3.1).
    pub(super) fn begin(&mut self, number: u64) {
        if self.base.is_none() {
            self.base = Some(DsnBase { number, is_64_bit: true });
        }
    }

    /// Converts a number of 32 or 64 bits to a relative one; `None` if implausible.
    pub(super) fn position_of(&mut self, number: DataAck) -> Option<i64> {
        let base = match (&mut self.base, number) {
            (Some(base), _) => base,
            (none, DataAck::Long(number)) => none.insert(DsnBase { number, is_64_bit: true }),
            (none, DataAck::Short(number)) => {
                none.insert(DsnBase { number: u64::from(number), is_64_bit: false })
            }
        };
        let near = self.highest.max(self.acked);
        let low = match number {
            DataAck::Long(number) if base.is_64_bit => {
                let relative = number.wrapping_sub(base.number).cast_signed();
                return (relative.abs_diff(near) < MAX_JUMP.unsigned_abs()).then_some(relative);
            }
            DataAck::Long(number) => number as u32,
            DataAck::Short(number) => number,
        };
        let expected = (base.number as u32).wrapping_add(near as u32);
        Some(near.saturating_add(i64::from(low.wrapping_sub(expected).cast_signed())))
    }

    /// Returns the distance of a number from the current position; `None` if nothing was seen.
    pub(super) fn distance(&self, number: DataAck) -> Option<DsnDistance> {
        let base = self.base?;
        let near = self.highest.max(self.acked);
        let low = match number {
            DataAck::Long(number) if base.is_64_bit => {
                let bytes = number.wrapping_sub(base.number).cast_signed().abs_diff(near);
                return Some(DsnDistance { bytes, is_64_bit: true });
            }
            DataAck::Long(number) => number as u32,
            DataAck::Short(number) => number,
        };
        let expected = (base.number as u32).wrapping_add(near as u32);
        let bytes = u64::from(low.wrapping_sub(expected).cast_signed().unsigned_abs());
        Some(DsnDistance { bytes, is_64_bit: false })
    }

    /// Records data that a subflow carries under new subflow numbers. Returns the bytes that
    /// another subflow had carried before, and those that the same one had.
    pub(super) fn on_sent(&mut self, range: SeqRange, context: SendContext) -> [u64; 2] {
        let SendContext { now_ns, subflow } = context;
        let full_range = range;
        self.last_sent_ns = self.last_sent_ns.max(now_ns);
        self.highest = self.highest.max(range.end);
        let [mut copies, mut repeats] = [0, 0];
        let dropped_until = self.owners_dropped_until.unwrap_or(i64::MIN);
        if range.start < dropped_until {
            copies += range.and(SeqRange::new(i64::MIN, dropped_until)).len();
        }
        let range = range.and(SeqRange::new(dropped_until, i64::MAX));
        let mut new = std::mem::take(&mut self.scratch);
        new.clear();
        self.owners.compare(
            range,
            |part, owner| *if owner == subflow { &mut repeats } else { &mut copies } += part.len(),
            |part| new.push(part),
        );
        let kind = match (copies, repeats) {
            (0, 0) => SequenceKind::Sent,
            (0, _) => SequenceKind::Retransmitted,
            _ => SequenceKind::Reinjected,
        };
        self.mark(kind, context, full_range, 1);
        for part in &new {
            self.owners.insert(*part, subflow);
            self.flight.sent(part.end, now_ns);
        }
        if !new.is_empty() && self.last_subflow != Some(subflow) {
            self.switches += u64::from(self.last_subflow.is_some());
            self.last_subflow = Some(subflow);
        }
        self.scratch = new;
        if self.owners.is_full()
            && let Some(oldest) = self.owners.pop()
        {
            self.owners_dropped_until = Some(oldest.range.end);
        }
        [copies, repeats]
    }

    /// Adds a mark to the picture.
    pub(super) fn mark(
        &mut self,
        kind: SequenceKind,
        context: SendContext,
        range: SeqRange,
        packets: u32,
    ) {
        if self.is_plotted {
            let SendContext { now_ns, subflow } = context;
            self.sequence.add(PacketMark { at_ns: now_ns, kind, subflow, packets, range });
        }
    }

    /// Records an acknowledgement for the picture, before [`DataStreamTracker::acknowledge`]
    /// processes it. The window counts from DATA_ACK (RFC 8684 §3.3.1).
    pub(super) fn mark_ack(
        &mut self,
        ack: i64,
        window: Option<i64>,
        field: u16,
        context: SendContext,
    ) {
        let ack = self.fin.map_or(ack, |fin| ack.min(fin));
        if ack < self.acked {
            return;
        }
        let context = SendContext { subflow: 0, ..context };
        let advertised = (ack, ack.saturating_add(window.unwrap_or(0)));
        if field == 0 {
            self.mark(SequenceKind::ZeroWindow, context, SeqRange::new(ack, ack), 1);
        }
        if self.last_advertised != advertised {
            self.last_advertised = advertised;
            self.mark(SequenceKind::Ack, context, SeqRange::new(ack, advertised.1), 1);
        }
    }

    /// Processes data that is in order on its subflow and had arrived at `at_ns`.
    pub(super) fn on_arrived(&mut self, range: SeqRange, at_ns: u64, now_ns: u64) {
        // Data from before the first captured data has not arrived twice.
        let range = range.and(SeqRange::new(0, i64::MAX));
        if range.is_empty() {
            return;
        }
        if range.start == self.next && self.waiting.first().is_none_or(|w| w.start >= range.end) {
            self.deliver(range, at_ns, now_ns);
        } else {
            let not_yet_in_order = range.and(SeqRange::new(self.next, i64::MAX));
            let mut new = std::mem::take(&mut self.scratch);
            new.clear();
            let mut already_received = range.len() - not_yet_in_order.len().min(range.len());
            if !not_yet_in_order.is_empty() {
                self.waiting.compare(
                    not_yet_in_order,
                    |part, _| already_received += part.len(),
                    |part| new.push(part),
                );
            }
            self.copied_bytes += already_received;
            for part in &new {
                self.waiting.insert(*part, at_ns);
            }
            self.scratch = new;
        }
        self.drain(now_ns);
        if self.waiting.is_full()
            && let Some(first) = self.waiting.first()
        {
            self.skip_to(first.start, now_ns);
        }
    }

    fn deliver(&mut self, range: SeqRange, at_ns: u64, now_ns: u64) {
        self.next = range.end;
        self.wait.record(now_ns.saturating_sub(at_ns));
        self.arrivals.add(now_ns, range.len());
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.bytes += range.len();
        }
    }

    fn drain(&mut self, now_ns: u64) {
        while let Some(piece) = self.waiting.pop_reached(self.next) {
            let undelivered = piece.range.and(SeqRange::new(self.next, i64::MAX));
            if !undelivered.is_empty() {
                self.deliver(undelivered, piece.tag, now_ns);
            }
        }
    }

    /// Gives up gaps below `target`, whose data is missing in the capture.
    fn skip_to(&mut self, target: i64, now_ns: u64) {
        while self.next < target {
            let gap_end = self.waiting.first().map_or(target, |first| first.start.min(target));
            let gap = SeqRange::new(self.next, gap_end).len();
            self.unseen_bytes += gap;
            self.arrivals.add(now_ns, gap);
            self.next = self.next.max(gap_end);
            self.drain(now_ns);
        }
    }

    /// Records the amount of waiting data.
    pub(super) fn note_waiting(&mut self, now_ns: u64) {
        let waiting = self.subflow_queue_bytes + self.waiting.bytes();
        if waiting == 0 {
            return;
        }
        self.waiting_peak_bytes = self.waiting_peak_bytes.max(waiting);
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.waiting_bytes = bin.waiting_bytes.max(waiting);
        }
    }

    /// Processes a DATA_ACK, as a relative number.
    pub(super) fn acknowledge(&mut self, ack: i64, now_ns: u64) {
        let ack = if self.fin.is_some_and(|fin| fin.checked_add(1) == Some(ack)) {
            ack.saturating_sub(1) // DATA_FIN takes a number, but is no data
        } else {
            ack
        };
        if ack <= self.acked {
            return;
        }
        let new = SeqRange::new(self.acked, ack).len();
        self.acked = ack;
        self.flight.all_acked(ack, now_ns);
        self.acks.add(now_ns, new);
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.acked_bytes += new;
        }
        self.delivered.forget_below(ack);
    }

    /// Records a window offered with a DATA_ACK, unless a later DATA_ACK was seen.
    pub(super) fn on_window(&mut self, ack: DataAck, (window, scale): (u16, u8), now_ns: u64) {
        // DATA_FIN occupies one number.
        if self.position_of(ack).is_none_or(|ack| ack.saturating_add(1) < self.acked) {
            return;
        }
        let edge = self.acked.saturating_add(i64::from(window) << scale.min(14));
        self.window_edges.record(edge, now_ns);
    }

    /// Returns the position after the last data that was sent.
    pub(super) fn highest(&self) -> i64 {
        self.highest
    }

    /// Returns true if all data was acknowledged, and none was sent for `gap_ns`.
    pub(super) fn is_after_pause(&self, now_ns: u64, gap_ns: u64) -> bool {
        self.has_begun()
            && self.acked >= self.highest
            && now_ns.saturating_sub(self.last_sent_ns) >= gap_ns
    }

    /// Returns true if any data was ever sent.
    pub(super) fn has_begun(&self) -> bool {
        self.highest > 0
    }

    /// Returns the connection state that subflows need to find their limits.
    pub(super) fn send_state(&self, is_multipath: bool) -> ConnectionSendState {
        /// Maximum packet size, except for super-segments.
        const NEAR: i64 = 1 << 14;
        let is_near_edge =
            self.window_edges.latest().is_some_and(|edge| self.highest.saturating_add(NEAR) > edge);
        let mut next_owner = None;
        if is_near_edge && is_multipath {
            let next_unacked = SeqRange::new(self.acked, self.acked.saturating_add(1));
            self.owners.compare(next_unacked, |_, owner| next_owner = Some(owner), |_| {});
        }
        ConnectionSendState {
            is_multipath,
            is_outstanding: self.highest > self.acked,
            is_app_limited: self.is_app_limited,
            has_gap: self.subflow_queue_bytes > 0 || self.waiting.bytes() > 0,
            highest: self.highest,
            next_subflow: next_owner,
        }
    }

    /// Gives up acknowledged data that is missing in the capture, with some slack. If packets of
    /// two subflows are captured, an acknowledgement may precede the data that it covers.
    pub(super) fn skip_missing(&mut self, now_ns: u64) {
        const SLACK: i64 = 1 << 20;
        if self.acked.saturating_sub(SLACK) > self.next {
            self.skip_to(self.acked - SLACK, now_ns);
        }
    }

    /// Gives up all missing data that was acknowledged, at the end of the capture.
    pub(super) fn close(&mut self, now_ns: u64) {
        self.skip_to(self.acked, now_ns);
    }

    /// Records the data covered by a subflow's acknowledgement.
    pub(super) fn on_delivered(&mut self, range: SeqRange) {
        let range = range.and(SeqRange::new(self.acked, i64::MAX));
        if range.is_empty() || self.delivered.is_full() {
            return;
        }
        let mut new = std::mem::take(&mut self.scratch);
        new.clear();
        self.delivered.compare(range, |_, ()| {}, |part| new.push(part));
        for part in &new {
            self.delivered.insert(*part, ());
        }
        self.scratch = new;
    }

    /// Returns the bytes of `range` that the receiver had already acknowledged.
    pub(super) fn acked_bytes_of(&self, range: SeqRange) -> u64 {
        range.and(SeqRange::new(i64::MIN, self.acked)).len()
            + self.delivered.overlap(range.and(SeqRange::new(self.acked, i64::MAX)))
    }

    /// Sets the position of the end of data.
    pub(super) fn set_fin(&mut self, position: i64) {
        self.fin = Some(position);
    }
}
