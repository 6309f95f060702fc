//! One direction of a subflow: sequence numbers, retransmissions, waiting data, round-trip times.

use towpath_result::SequenceKind;

use super::data_stream::{DataStreamTracker, SendContext};
use super::ranges::{ObservedMappings, SeqRange, TaggedRange, TaggedRanges};
use super::send_limits::{SenderTracker, SubflowSendState, is_full};
use super::sequence::{PacketMark, SequenceLog};
use super::stats::{BinnedSeries, ByteProgress, InFlight};

/// Silence that separates two periods of use of a subflow.
const IDLE_GAP_NS: u64 = 1_000_000_000;
const MAX_ACTIVE_PERIODS: usize = 256;
/// Maximum number of ranges that wait for their mapping; the oldest ones stay unmapped.
const MAX_UNMAPPED_RANGES: usize = 256;
/// MSS assumed if the handshake was not captured.
const DEFAULT_MSS_BYTES: u32 = 1_460;

/// One direction of a subflow.
#[derive(Debug, Clone, Default)]
pub(super) struct DirectionTracker {
    /// Sequence number of the first byte.
    base: Option<u32>,
    /// True if `base` is the real beginning, known from the SYN or a mapping.
    pub(super) has_begun: bool,
    /// Bounds of the SYN's number if the SYN was not captured.
    isn_bounds: IsnBounds,
    /// Position before which the capture had not begun.
    floor: i64,
    /// Position below which everything was seen.
    next: i64,
    highest: i64,
    acked: i64,
    waiting: TaggedRanges<u64>,
    pub(super) maps: ObservedMappings,
    /// Payload whose mapping was not captured yet, with its arrival.
    unmapped: TaggedRanges<u64>,
    pub(super) flight: InFlight,
    fin: Option<i64>,
    pub(super) packets: u64,
    pub(super) ip_bytes: u64,
    /// Payload of packets that are copies of earlier ones, and not counted.
    pub(super) copied_bytes: u64,
    pub(super) data_packets: u64,
    pub(super) payload_bytes: u64,
    /// Payload seen before on this subflow.
    pub(super) retrans_bytes: u64,
    pub(super) retrans_packets: u64,
    /// Payload seen for the first time after later data: retransmitted, or reordered.
    pub(super) late_bytes: u64,
    pub(super) late_packets: u64,
    /// Payload that another subflow had carried before.
    pub(super) reinjected_bytes: u64,
    /// Payload that this subflow had carried before, under other numbers.
    pub(super) repeated_bytes: u64,
    /// Payload retransmitted although the receiver had acknowledged it.
    pub(super) spurious_bytes: u64,
    /// Payload without a mapping, on a connection that has some.
    pub(super) unmapped_bytes: u64,
    /// Payload acknowledged, but missing in the capture.
    pub(super) unseen_bytes: u64,
    pub(super) acked_bytes: u64,
    pub(super) largest_payload: u32,
    pub(super) progress: ByteProgress,
    pub(super) last_ns: u64,
    pub(super) series: BinnedSeries,
    /// Periods with data, at most [`MAX_ACTIVE_PERIODS`].
    pub(super) active_periods: Vec<ActivePeriod>,
    pub(super) mss_bytes: Option<u16>,
    pub(super) outbound: u64,
    pub(super) inbound: u64,
    pub(super) sender: SenderTracker,
    /// Marks for its picture.
    pub(super) sequence: SequenceLog,
    /// Window scale option of its SYN.
    pub(super) window_scale: WindowScale,
    /// Acknowledgement and window end that were recorded last, and the newest SACK block.
    last_advertised: (i64, i64),
    last_sack: SeqRange,
    scratch: Vec<SeqRange>,
}

/// Period in which a subflow carried data, without a gap of [`IDLE_GAP_NS`].
#[derive(Debug, Clone, Copy)]
pub(super) struct ActivePeriod {
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    /// True if the application had paused before it: all data of the connection was acknowledged,
    /// and none was sent for [`IDLE_GAP_NS`].
    pub(super) is_after_pause: bool,
}

/// Bounds of a SYN's sequence number, from packets with mappings.
#[derive(Debug, Clone, Copy, Default)]
struct IsnBounds {
    /// Latest possible number, and the number of bytes down to the earliest one.
    bounds: Option<(u32, u32)>,
}

impl IsnBounds {
    /// Adds a packet that allows the numbers from `latest - spare` to `latest`. Returns the number
    /// once it is known. A contradiction begins anew.
    fn narrow(&mut self, latest: u32, spare: u32) -> Option<u32> {
        let (old_latest, old_spare) = self.bounds.unwrap_or((latest, spare));
        let earliest = |latest: u32, spare: u32| latest.wrapping_sub(spare);
        let is_later = |a: u32, b: u32| a.wrapping_sub(b).cast_signed() > 0;
        let new_latest = if is_later(latest, old_latest) { old_latest } else { latest };
        let [new, old] = [earliest(latest, spare), earliest(old_latest, old_spare)];
        let new_earliest = if is_later(new, old) { new } else { old };
        let is_contradiction = is_later(new_earliest, new_latest);
        self.bounds = Some(if is_contradiction {
            (latest, spare)
        } else {
            (new_latest, new_latest.wrapping_sub(new_earliest))
        });
        self.bounds.filter(|(_, spare)| *spare == 0).map(|(latest, _)| latest)
    }
}

/// The window scale of a SYN (RFC 7323 §2).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum WindowScale {
    /// SYN not captured, so the scale is unknown.
    #[default]
    Unknown,
    /// SYN without a window scale option.
    Absent,
    /// Number of bits to shift by.
    Bits(u8),
}

impl WindowScale {
    /// Returns the window in bytes for a header field from an end with this scale; `other` is the
    /// other end's scale. `None` if a scale is unknown.
    pub(super) fn window(self, other: Self, field: u16) -> Option<i64> {
        match (self, other) {
            (Self::Absent, _) | (_, Self::Absent) => Some(i64::from(field)),
            // RFC 7323 §2.3: more than 14 count as 14.
            (Self::Bits(bits), Self::Bits(_)) => Some(i64::from(field) << bits.min(14)),
            (Self::Unknown, _) | (_, Self::Unknown) => None,
        }
    }
}

/// Acknowledgement information that a segment carries for the sender of a direction.
#[derive(Debug)]
pub(super) struct AckInfo<'a> {
    pub(super) context: SendContext,
    pub(super) ack: u32,
    /// Bytes that may be sent beyond `ack`; `None` if unknown, or if the window is not the
    /// subflow's own.
    pub(super) window: Option<i64>,
    pub(super) zero_window: bool,
    /// True if the segment has neither payload nor SYN nor FIN.
    pub(super) pure_ack: bool,
    pub(super) sack: &'a [(u32, u32)],
    /// True if an acknowledgement of the same number may have another reason.
    pub(super) multipath: bool,
}

impl DirectionTracker {
    /// Processes a SYN: the number after it is the first byte.
    pub(super) fn begin(&mut self, seq: u32) {
        self.base = Some(seq.wrapping_add(1));
        self.has_begun = true;
        self.floor = i64::MIN;
    }

    /// Returns true if this is the SYN that was seen already, or if none was seen.
    pub(super) fn is_syn(&self, seq: u32) -> bool {
        !self.has_begun || self.base == Some(seq.wrapping_add(1))
    }

    /// Converts a sequence number to a position; the first one seen is 0 if the SYN is missing.
    pub(super) fn position_of(&mut self, seq: u32) -> i64 {
        let base = *self.base.get_or_insert(seq);
        let near = self.highest.max(self.acked);
        let expected = base.wrapping_add(near as u32);
        near.saturating_add(i64::from(seq.wrapping_sub(expected).cast_signed()))
    }

    /// Returns the position of SYN + `ssn`, as in mappings; `None` before the first number is
    /// known.
    pub(super) fn position_of_ssn(&mut self, ssn: u32) -> Option<i64> {
        let base = self.base.filter(|_| self.has_begun)?;
        Some(self.position_of(base.wrapping_sub(1).wrapping_add(ssn)))
    }

    /// Derives the SYN's number from packets with a mapping of `ssn`. A packet lies within its
    /// mapping, which is `spare` bytes longer, so each one bounds the number from both sides.
    pub(super) fn infer_isn(&mut self, seq: u32, ssn: u32, spare: u32) {
        if self.has_begun || ssn == 0 {
            return;
        }
        let latest = seq.wrapping_sub(ssn);
        let Some(isn) = self.isn_bounds.narrow(latest, spare) else { return };
        // Positions stay unchanged: only the offset between them and `ssn` is new.
        let first = isn.wrapping_add(1);
        let shift = self.position_of(first);
        self.base = Some(first);
        self.has_begun = true;
        for number in [&mut self.next, &mut self.highest, &mut self.acked, &mut self.floor] {
            *number = number.saturating_sub(shift);
        }
        // Earlier data had no mapping, so nothing waits for it.
        self.waiting = TaggedRanges::default();
        self.unmapped.shift_down(shift);
        self.flight.clear();
        self.fin = None;
    }

    /// Processes a packet's payload.
    pub(super) fn payload(
        &mut self,
        data: &mut DataStreamTracker,
        range: SeqRange,
        context: SendContext,
    ) {
        let payload_bytes = range.len();
        self.data_packets += 1;
        self.payload_bytes += payload_bytes;
        self.largest_payload = self.largest_payload.max(payload_bytes as u32);
        self.note_active_period(context.now_ns, data.is_after_pause(context.now_ns, IDLE_GAP_NS));
        let mut new = std::mem::take(&mut self.scratch);
        new.clear();
        let (mut retransmitted, spurious_before) = (0, self.spurious_bytes);
        let in_order = range.start == self.next && self.waiting.bytes() == 0;
        if in_order {
            new.push(range);
        } else {
            retransmitted = self.split(data, range, &mut new, context);
        }
        let mut new_bytes = 0;
        let (mut late_bytes, mut reinjected, mut repeated) = (0, 0, 0);
        for (number, part) in new.iter().enumerate() {
            new_bytes += part.len();
            let is_late = part.start < self.highest;
            late_bytes += if is_late { part.len() } else { 0 };
            let [on_other_subflow, on_this_subflow] = self.register_data(data, *part, context);
            let kind = match (on_other_subflow, is_late) {
                (0, false) => SequenceKind::Sent,
                (0, true) => SequenceKind::OutOfOrder,
                _ => SequenceKind::Reinjected,
            };
            self.mark(kind, context, *part, u32::from(number == 0));
            (reinjected, repeated) = (reinjected + on_other_subflow, repeated + on_this_subflow);
            self.flight.sent(part.end, context.now_ns);
        }
        self.late_bytes += late_bytes;
        self.reinjected_bytes += reinjected;
        self.repeated_bytes += repeated;
        self.retrans_bytes += retransmitted;
        self.late_packets += u64::from(late_bytes > 0);
        self.retrans_packets += u64::from(retransmitted > 0);
        self.highest = self.highest.max(range.end);
        if let Some(bin) = self.series.bin_mut(context.now_ns) {
            bin.sent_bytes += payload_bytes;
            bin.bytes += new_bytes;
            bin.retrans_packets += u32::from(retransmitted > 0 || late_bytes > 0);
        }
        self.progress.add(context.now_ns, new_bytes);
        // A packet that fills the rest of a window may be followed by more data.
        let edge_slack = i64::from(self.full_bytes()) * 2;
        let reaches_edge = |edge: Option<i64>, end: i64| {
            edge.is_some_and(|edge| end.saturating_add(edge_slack) > edge)
        };
        let is_full = is_full(payload_bytes as u32, self.full_bytes())
            || reaches_edge(data.window_edges.latest(), data.highest())
            || (data.window_edges.latest().is_none()
                && reaches_edge(self.sender.window_edges.latest(), range.end));
        let spurious = self.spurious_bytes - spurious_before;
        // Data that arrives after later data was lost before the capture point.
        self.sender.had_loss |= late_bytes > 0;
        let sent_bytes = [new_bytes, retransmitted, spurious, reinjected];
        self.sender.on_sent(sent_bytes, is_full, context.now_ns);
        if new_bytes > 0 {
            data.is_app_limited = !is_full;
        }
        self.deliver_in_order(data, &new, in_order, context);
        self.scratch = new;
    }

    /// Adds the new parts of `range` to `new`. Returns the number of bytes seen before.
    fn split(
        &mut self,
        data: &mut DataStreamTracker,
        range: SeqRange,
        new: &mut Vec<SeqRange>,
        context: SendContext,
    ) -> u64 {
        // Data from before the capture's beginning may be new.
        let range = range.and(SeqRange::new(self.floor, i64::MAX));
        let delivered = range.and(SeqRange::new(i64::MIN, self.next));
        let not_delivered = range.and(SeqRange::new(self.next, i64::MAX));
        let mut seen: Vec<SeqRange> = Vec::new();
        if !delivered.is_empty() {
            seen.push(delivered);
        }
        if !not_delivered.is_empty() {
            self.waiting.compare(not_delivered, |part, _| seen.push(part), |part| new.push(part));
        }
        let mut retransmitted = 0;
        for (number, part) in seen.into_iter().enumerate() {
            retransmitted += part.len();
            self.flight.on_retransmitted(part);
            let mut acked_data = 0;
            let packets = u32::from(number == 0);
            self.maps.each(part, |_, numbers| {
                let acked = data.acked_bytes_of(numbers);
                acked_data += acked;
                let kind = retransmission_kind(acked, numbers);
                data.mark(kind, context, numbers, packets);
            });
            self.spurious_bytes += acked_data;
            let spurious =
                acked_data.max(SeqRange::new(part.start, part.end.min(self.acked)).len());
            self.mark(retransmission_kind(spurious, part), context, part, packets);
        }
        retransmitted
    }

    /// Passes carried data to the connection. Returns the bytes that another subflow had carried
    /// before, and those that this one had.
    fn register_data(
        &mut self,
        data: &mut DataStreamTracker,
        part: SeqRange,
        context: SendContext,
    ) -> [u64; 2] {
        let [mut reinjected, mut repeated] = [0, 0];
        let mut next_unmapped = part.start;
        let unmapped = &mut self.unmapped;
        self.unmapped_bytes += self.maps.each(part, |mapped, numbers| {
            unmapped.insert(SeqRange::new(next_unmapped, mapped.start), context.now_ns);
            next_unmapped = mapped.end;
            let [on_other_subflow, on_this_subflow] = data.on_sent(numbers, context);
            (reinjected, repeated) = (reinjected + on_other_subflow, repeated + on_this_subflow);
        });
        self.unmapped.insert(SeqRange::new(next_unmapped, part.end), context.now_ns);
        if self.unmapped.len() > MAX_UNMAPPED_RANGES {
            self.unmapped.pop();
        }
        [reinjected, repeated]
    }

    /// Passes on payload that came before its mapping, which a lost packet had carried. It belongs
    /// to the data from its transmission on, and arrives with its mapping.
    pub(super) fn map_earlier_payload(
        &mut self,
        data: &mut DataStreamTracker,
        context: SendContext,
    ) {
        let mut still_unmapped = TaggedRanges::default();
        while let Some(TaggedRange { range, tag: sent_ns }) = self.unmapped.pop() {
            let sent = SendContext { now_ns: sent_ns, ..context };
            let mut next_unmapped = range.start;
            let mut mapped_parts = Vec::new();
            let unmapped_bytes = self.maps.each(range, |mapped, numbers| {
                still_unmapped.insert(SeqRange::new(next_unmapped, mapped.start), sent_ns);
                next_unmapped = mapped.end;
                mapped_parts.push((mapped, numbers));
            });
            still_unmapped.insert(SeqRange::new(next_unmapped, range.end), sent_ns);
            self.unmapped_bytes -= range.len() - unmapped_bytes;
            for (mapped, numbers) in mapped_parts {
                let [reinjected, repeated] = data.on_sent(numbers, sent);
                self.reinjected_bytes += reinjected;
                self.repeated_bytes += repeated;
                let until = |position: i64| {
                    let len = mapped.end.min(position).saturating_sub(mapped.start);
                    SeqRange::new(numbers.start, numbers.start.saturating_add(len))
                };
                let (in_order, acked) = (until(self.next), until(self.acked));
                if !in_order.is_empty() {
                    data.on_arrived(in_order, sent_ns, context.now_ns);
                }
                data.on_delivered(acked);
            }
        }
        self.unmapped = still_unmapped;
    }

    /// Returns true if earlier payload is missing before `position`.
    pub(super) fn has_gap_before(&self, position: i64) -> bool {
        position > self.next
    }

    /// Passes on the data that is in order now.
    fn deliver_in_order(
        &mut self,
        data: &mut DataStreamTracker,
        new: &[SeqRange],
        in_order: bool,
        context: SendContext,
    ) {
        let waiting_before = self.waiting.bytes();
        for part in new {
            if part.start == self.next {
                self.next = part.end;
                self.deliver(data, *part, context.now_ns, context.now_ns);
            } else {
                self.waiting.insert(*part, context.now_ns);
            }
        }
        if !in_order {
            self.drain(data, context.now_ns);
            if self.waiting.is_full()
                && let Some(first) = self.waiting.first()
            {
                self.skip_to(data, first.start, context.now_ns);
            }
            data.subflow_queue_bytes =
                (data.subflow_queue_bytes + self.waiting.bytes()).saturating_sub(waiting_before);
        }
        data.note_waiting(context.now_ns);
    }

    fn deliver(&self, data: &mut DataStreamTracker, part: SeqRange, at_ns: u64, now_ns: u64) {
        self.maps.each(part, |_, numbers| data.on_arrived(numbers, at_ns, now_ns));
    }

    fn drain(&mut self, data: &mut DataStreamTracker, now_ns: u64) {
        while let Some(piece) = self.waiting.pop_reached(self.next) {
            let undelivered = piece.range.and(SeqRange::new(self.next, i64::MAX));
            if !undelivered.is_empty() {
                self.next = undelivered.end;
                self.deliver(data, undelivered, piece.tag, now_ns);
            }
        }
    }

    /// Gives up gaps below `target`.
    fn skip_to(&mut self, data: &mut DataStreamTracker, target: i64, now_ns: u64) {
        while self.next < target {
            let gap_end = self.waiting.first().map_or(target, |first| first.start.min(target));
            self.unseen_bytes += SeqRange::new(self.next, gap_end).len();
            self.next = self.next.max(gap_end);
            self.drain(data, now_ns);
        }
    }

    /// Adds a mark to the picture.
    pub(super) fn mark(
        &mut self,
        kind: SequenceKind,
        context: SendContext,
        range: SeqRange,
        packets: u32,
    ) {
        let SendContext { now_ns, subflow } = context;
        self.sequence.add(PacketMark { at_ns: now_ns, kind, subflow, packets, range });
    }

    /// Marks SYN, FIN or RST; the first two occupy a number.
    pub(super) fn mark_flag(&mut self, kind: SequenceKind, context: SendContext, number: i64) {
        let number = if kind == SequenceKind::Rst { self.highest } else { number };
        self.mark(kind, context, SeqRange::new(number, number), 1);
    }

    /// Records an acknowledgement for the picture, before [`DirectionTracker::acknowledge`]
    /// processes it.
    pub(super) fn mark_ack(&mut self, data: &mut DataStreamTracker, info: &AckInfo<'_>) {
        if self.base.is_none() {
            return;
        }
        let ack = self.position_of(info.ack);
        let ack = self.fin.map_or(ack, |fin| ack.min(fin));
        if ack < self.acked {
            return; // older than an ACK that was already seen
        }
        let context = info.context;
        let position = SeqRange::new(ack, ack);
        let new_sack = info.sack.first().is_some_and(|block| {
            let second = info.sack.get(1).copied();
            self.mark_sack(data, *block, second, (ack, context))
        });
        let end = ack.saturating_add(info.window.unwrap_or(0));
        let is_unchanged = self.last_advertised == (ack, end);
        let may_be_duplicate = ack == self.acked && self.highest > ack && info.pure_ack;
        if may_be_duplicate
            && (new_sack || (is_unchanged && !info.multipath && info.sack.is_empty()))
        {
            self.mark(SequenceKind::DuplicateAck, context, position, 1);
        }
        if info.zero_window {
            self.mark(SequenceKind::ZeroWindow, context, position, 1);
        }
        if !is_unchanged {
            self.last_advertised = (ack, end);
            self.mark(SequenceKind::Ack, context, SeqRange::new(ack, end), 1);
        }
    }

    /// Processes the first SACK block, which is the newest (RFC 2018 §4), or a report of a
    /// duplicate (RFC 2883 §4). Returns true for the former.
    fn mark_sack(
        &mut self,
        data: &mut DataStreamTracker,
        (start, end): (u32, u32),
        second: Option<(u32, u32)>,
        (ack, context): (i64, SendContext),
    ) -> bool {
        let block = SeqRange::new(self.position_of(start), self.position_of(end));
        let is_within_second = second.is_some_and(|(start, end)| {
            self.position_of(start) <= block.start && block.end <= self.position_of(end)
        });
        if block.start < ack || is_within_second {
            self.sequence.mark_spurious(block);
            self.maps.each(block, |_, numbers| data.sequence.mark_spurious(numbers));
            return false;
        }
        let previous = std::mem::replace(&mut self.last_sack, block);
        let new = if previous.start == block.start && previous.end <= block.end {
            SeqRange::new(previous.end, block.end)
        } else if previous.end == block.end && block.start <= previous.start {
            SeqRange::new(block.start, previous.start)
        } else {
            block
        };
        if !new.is_empty() {
            self.mark(SequenceKind::Sack, context, new, 1);
        }
        true
    }

    /// Processes an acknowledgement of this direction's data.
    pub(super) fn acknowledge(&mut self, data: &mut DataStreamTracker, ack: u32, now_ns: u64) {
        let is_first = self.base.is_none();
        let ack = self.position_of(ack);
        let ack = match self.fin {
            Some(fin) => ack.min(fin),
            None => ack,
        };
        if is_first || ack <= self.acked {
            return;
        }
        let new = SeqRange::new(self.acked, ack);
        self.acked = ack;
        self.acked_bytes += new.len();
        self.flight.acked(ack, now_ns);
        let srtt_us = self.flight.srtt_us();
        if let Some(bin) = self.series.bin_mut(now_ns) {
            bin.acked_bytes += new.len();
            bin.srtt_us = srtt_us;
        }
        self.maps.each(new, |_, numbers| data.on_delivered(numbers));
        if ack > self.next {
            let waiting_before = self.waiting.bytes();
            self.skip_to(data, ack, now_ns);
            data.subflow_queue_bytes =
                (data.subflow_queue_bytes + self.waiting.bytes()).saturating_sub(waiting_before);
        }
    }

    /// Processes selective acknowledgements and the window of an acknowledgement, after
    /// `acknowledge`.
    pub(super) fn on_sack(
        &mut self,
        ack: u32,
        blocks: &[(u32, u32)],
        window: Option<u16>,
        now_ns: u64,
    ) {
        if self.base.is_none() {
            return;
        }
        let highest = self.highest;
        let sacked: Vec<SeqRange> = { blocks.iter() }
            .map(|(start, end)| SeqRange::new(self.position_of(*start), self.position_of(*end)))
            .filter(|block| block.end <= highest)
            .collect();
        self.sender.on_ack(self.acked, &sacked, now_ns);
        let is_latest = self.position_of(ack) >= self.acked;
        if let Some((window, scale)) = window.zip(self.sender.window_scale).filter(|_| is_latest) {
            let edge = self.acked.saturating_add(i64::from(window) << scale.min(14));
            self.sender.window_edges.record(edge, now_ns);
        }
    }

    /// Returns the maximum payload of a full packet.
    fn full_bytes(&self) -> u32 {
        self.mss_bytes.map_or(DEFAULT_MSS_BYTES, u32::from)
    }

    /// Adds this direction's state to the subflow's state.
    pub(super) fn send_state(&self, state: SubflowSendState) -> SubflowSendState {
        SubflowSendState {
            srtt_ns: u64::from(self.flight.srtt_us()) * 1_000,
            highest: self.highest,
            acked: self.acked,
            mss_bytes: self.full_bytes(),
            ..state
        }
    }

    /// Returns the end of the data that is acknowledged on this subflow.
    pub(super) fn acked_data(&self) -> Option<i64> {
        let mut end = None;
        let last_byte = SeqRange::new(self.acked.saturating_sub(1), self.acked);
        self.maps.each(last_byte, |_, numbers| end = Some(numbers.end));
        end
    }

    /// Returns true for a keep-alive: one acknowledged byte again (RFC 1122 §4.2.3.6).
    pub(super) fn is_keep_alive(&self, start: i64, end: i64) -> bool {
        end.saturating_sub(start) == 1 && end == self.next && end == self.acked
    }

    /// Sets the position of the FIN, which follows the byte before `position`.
    pub(super) fn set_fin(&mut self, position: i64) {
        self.fin = Some(position);
    }

    fn note_active_period(&mut self, now_ns: u64, is_after_pause: bool) {
        let has_room = self.active_periods.len() < MAX_ACTIVE_PERIODS;
        match self.active_periods.last_mut() {
            Some(period) if !has_room || now_ns.saturating_sub(period.end_ns) < IDLE_GAP_NS => {
                period.end_ns = now_ns.max(period.end_ns);
            }
            _ => self.active_periods.push(ActivePeriod {
                start_ns: now_ns,
                end_ns: now_ns,
                is_after_pause,
            }),
        }
    }
}

/// Returns the kind of a retransmission, of which `had` bytes were known to have arrived.
fn retransmission_kind(acked_bytes: u64, part: SeqRange) -> SequenceKind {
    if acked_bytes >= part.len() { SequenceKind::Spurious } else { SequenceKind::Retransmitted }
}
