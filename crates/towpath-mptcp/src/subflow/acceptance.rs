//! Processing of received segments (RFC 9293 §3.10.7.4), with the checks of RFC 5961 and RFC 7323
//! §5.

use towpath_multipath::congestion::Sibling;
use towpath_multipath::path::PathId;
use towpath_net::Instant;
use towpath_wire::{Ecn, Flags, Payload, Segment};

use super::transmit::PendingReset;
use super::{CloseReason, SegmentOutcome, Subflow, TcpState, Timer};

impl Subflow {
    /// Processes one (super-)segment and takes its payload. `path_id` and `siblings` are for
    /// coupled congestion control; `siblings` is empty unless [`Subflow::is_coupled`].
    pub fn on_segment(
        &mut self,
        now: Instant,
        segment: &mut Segment,
        path_id: PathId,
        siblings: &[Sibling],
    ) -> SegmentOutcome {
        let mut outcome = SegmentOutcome::default();
        self.on_segment_into(now, segment, path_id, siblings, &mut outcome);
        outcome
    }

    /// As [`Subflow::on_segment`], but writes into an existing `outcome`, whose memory is reused.
    pub fn on_segment_into(
        &mut self,
        now: Instant,
        segment: &mut Segment,
        path_id: PathId,
        siblings: &[Sibling],
        outcome: &mut SegmentOutcome,
    ) {
        self.path_id = path_id;
        if self.congestion.is_coupled() {
            siblings.clone_into(&mut self.siblings);
        }
        outcome.data.clear();
        let data = std::mem::take(&mut outcome.data);
        *outcome = SegmentOutcome { data, ..SegmentOutcome::default() };
        match self.state {
            TcpState::Closed => {}
            TcpState::SynSent => self.on_segment_in_syn_sent(now, segment, outcome),
            TcpState::SynReceived
            | TcpState::Established
            | TcpState::FinWait1
            | TcpState::FinWait2
            | TcpState::CloseWait
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait => self.on_segment_in_sequence(now, segment, outcome),
        }
        outcome.closed = self.unreported_close.take();
    }

    /// Returns true if [`Subflow::on_segment`] would accept the segment's sequence and
    /// acknowledgement numbers. Otherwise its Multipath TCP options must be ignored (RFC 8684 §3).
    pub fn would_accept(&self, segment: &Segment) -> bool {
        if !segment.flags.contains(Flags::ACK) {
            return false;
        }
        if self.state == TcpState::SynSent {
            return segment.ack == self.wire_seq(1);
        }
        let (start, next) = (self.signed_offset_of(segment.seq), self.receive.next());
        let end = start + i64::from(segment.sequence_bytes());
        let limit = self.receive_window.limit(next).cast_signed();
        // The SYN has the first sequence number: only its acknowledgement completes the handshake.
        let min_ack = u64::from(self.state == TcpState::SynReceived);
        let ack_valid = self.valid_ack(segment).is_some_and(|ack| ack >= min_ack);
        start <= limit && end >= next.cast_signed() && ack_valid
    }

    fn on_segment_in_sequence(
        &mut self,
        now: Instant,
        segment: &mut Segment,
        outcome: &mut SegmentOutcome,
    ) {
        let flags = segment.flags;
        let mut start = self.signed_offset_of(segment.seq);
        if self.state == TcpState::SynReceived && flags.contains(Flags::SYN) && start == 0 {
            if !flags.contains(Flags::ACK) {
                return self.retransmit_syn_ack();
            }
            // Simultaneous open: the peer's SYN/ACK counts as its SYN and as an acknowledgement of
            // ours.
            segment.flags = flags.without(Flags::SYN);
            start = 1;
        }
        // The data of a window probe is dropped below, but its ECN mark counts (RFC 3168 §6.1.6).
        let marked = segment.ecn == Ecn::Marked && !segment.payload.is_empty();
        let Some(start) = self.accept_sequence(now, start, segment) else { return };
        if segment.flags.contains(Flags::RST) {
            return self.on_reset(now, start);
        }
        if segment.flags.contains(Flags::SYN) {
            // RFC 5961 §4: the peer must confirm a SYN by its reply to a challenge ACK, regardless
            // of the sequence number.
            return self.challenge_acks.request(now);
        }
        let Some(ack) = self.accept_ack(now, segment) else { return };
        if self.state == TcpState::SynReceived {
            if ack < 1 || self.syn_never_sent() {
                self.pending_reset = Some(PendingReset { seq: segment.ack, ack: None });
                return;
            }
            self.establish(now, segment, outcome);
        }
        outcome.acceptable = true;
        self.last_received_at = now;
        (self.unacked_keepalives, self.unacked_window_probes) = (0, 0);
        self.on_ecn_bits(segment.flags, marked);
        self.timestamps.update(now, start, segment.options.timestamps);
        self.measure_as_receiver(now, segment);
        self.on_acknowledgement(now, start, ack, segment, outcome);
        self.check_fin_acked(now);
        if self.state != TcpState::Closed {
            self.receive_data(now, start, segment, outcome);
        }
    }

    /// Checks sequence number and timestamps (RFC 9293 §3.10.7.4 first, RFC 7323 §5.3). Cuts off
    /// data beyond the window. Returns `None` for an unacceptable segment, after scheduling the
    /// reply.
    fn accept_sequence(&mut self, now: Instant, start: i64, segment: &mut Segment) -> Option<u64> {
        let next = self.receive.next();
        let limit = self.receive_window.limit(next);
        let len = i64::from(segment.sequence_bytes());
        let is_reset = segment.flags.contains(Flags::RST);
        let (next, limit) = (next.cast_signed(), limit.cast_signed());
        // The right edge itself is acceptable: a peer that has filled the window still
        // acknowledges.
        let in_window = if len == 0 || is_reset {
            start >= next && start <= limit
        } else {
            start >= 0 && start <= limit && start + len > next
        };
        let paws_rejects = !is_reset
            && self.timestamps.is_old(now, segment.options.timestamps)
            && !self.is_overtaken_ack(start, segment);
        if in_window && !paws_rejects {
            let start = u64::try_from(start).ok()?;
            self.truncate_to_window(start, limit.unsigned_abs(), segment);
            return Some(start);
        }
        if !is_reset {
            self.answer_unacceptable(now, start, segment);
        }
        None
    }

    /// Returns true for a pure acknowledgement that was overtaken within a timeout. Its timestamp
    /// does not count, as it is harmless and may carry new information (Linux
    /// `tcp_disordered_ack`). RFC 7323 §5.3 drops it.
    fn is_overtaken_ack(&self, start: i64, segment: &Segment) -> bool {
        let ack_advance =
            segment.ack.wrapping_sub(self.wire_seq(self.send.acked_until())).cast_signed();
        let age = self.timestamps.age_of(segment.options.timestamps);
        segment.sequence_bytes() == 0
            && start == self.receive.next().cast_signed()
            && ack_advance <= 0
            && age <= self.rtt.timeout()
    }

    fn truncate_to_window(&mut self, start: u64, limit: u64, segment: &mut Segment) {
        let room = limit.saturating_sub(start);
        if segment.payload.len() as u64 > room {
            segment.payload.truncate(usize::try_from(room).unwrap_or(usize::MAX));
            segment.flags = segment.flags.without(Flags::FIN);
            // A window probe, or a peer that ignores our window: it is acknowledged immediately.
            self.acks.due = true;
        }
    }

    /// Acknowledges an unacceptable segment (RFC 9293 §3.10.7.4), and reports duplicate data (RFC
    /// 2883 §4.1).
    fn answer_unacceptable(&mut self, now: Instant, start: i64, segment: &Segment) {
        let len = i64::from(segment.sequence_bytes());
        if self.state == TcpState::TimeWait && segment.flags.contains(Flags::FIN) {
            // Our last acknowledgement was lost.
            self.arm_time_wait(now);
        }
        let already_received = start > 0 && start + len <= self.receive.next().cast_signed();
        if len > 0 && already_received && !segment.flags.contains(Flags::SYN) {
            let mut no_new_data = Vec::new();
            let payload = segment.payload.clone();
            let start = start.unsigned_abs();
            self.duplicate_bytes += self.receive.insert(start, payload, &mut no_new_data).duplicate;
            self.enter_quickack();
        } else {
            self.challenge_acks.request(now);
        }
    }

    /// Processes a RST (RFC 5961 §3): only the exact number resets; others within the window get a
    /// challenge ACK.
    fn on_reset(&mut self, now: Instant, start: u64) {
        if start != self.receive.next() {
            return self.challenge_acks.request(now);
        }
        let open_refused = self.state == TcpState::SynReceived && self.is_simultaneous_open();
        let fins_sent =
            matches!(self.state, TcpState::TimeWait | TcpState::Closing | TcpState::LastAck);
        self.finish(match (open_refused, fins_sent) {
            (true, _) => CloseReason::Refused,
            (_, true) => CloseReason::Finished,
            (false, false) => CloseReason::Reset,
        });
    }

    /// Checks the acknowledgement (RFC 9293 §3.10.7.4 fifth, RFC 5961 §5.2).
    fn accept_ack(&mut self, now: Instant, segment: &Segment) -> Option<u64> {
        if !segment.flags.contains(Flags::ACK) {
            return None;
        }
        match self.valid_ack(segment) {
            Some(ack) => Some(ack),
            None if self.state == TcpState::SynReceived => {
                self.pending_reset = Some(PendingReset { seq: segment.ack, ack: None });
                None
            }
            None => {
                self.challenge_acks.request(now);
                None
            }
        }
    }

    /// Returns the acknowledged offset, if it is neither too old nor ahead (RFC 5961 §5.2).
    fn valid_ack(&self, segment: &Segment) -> Option<u64> {
        let acked = self.send.acked_until();
        let distance = segment.ack.wrapping_sub(self.wire_seq(acked)).cast_signed();
        let ack = acked.cast_signed().saturating_add(i64::from(distance));
        let oldest = acked.saturating_sub(self.peer_window.largest.max(u64::from(u16::MAX)));
        let in_range = ack <= self.send.sent_until().cast_signed() && ack >= oldest.cast_signed();
        u64::try_from(ack).ok().filter(|_| in_range)
    }

    /// Updates the state after an acknowledgement of our FIN.
    fn check_fin_acked(&mut self, now: Instant) {
        if !self.send.fin_acked() {
            return;
        }
        match self.state {
            TcpState::FinWait1 => {
                self.state = TcpState::FinWait2;
                self.arm_fin_wait(now);
            }
            TcpState::Closing => {
                self.state = TcpState::TimeWait;
                self.arm_time_wait(now);
            }
            TcpState::LastAck => self.finish(CloseReason::Finished),
            // While the peer sends, a half-closed connection stays alive.
            TcpState::FinWait2 => self.arm_fin_wait(now),
            TcpState::SynSent
            | TcpState::SynReceived
            | TcpState::Established
            | TcpState::CloseWait
            | TcpState::TimeWait
            | TcpState::Closed => {}
        }
    }

    /// Returns true if a SYN that arrives in TIME-WAIT cannot be an old one, by its timestamp or
    /// its number (RFC 9293 §3.10.7.4, RFC 6191 §2).
    pub fn allows_reuse_by(&self, syn: &Segment) -> bool {
        let only_syn = syn.flags.contains(Flags::SYN)
            && !syn.flags.contains(Flags::ACK)
            && !syn.flags.contains(Flags::RST);
        let seq_is_newer = syn.seq.wrapping_sub(self.wire_ack()).cast_signed() > 0;
        let syn_is_newer = match syn.options.timestamps.filter(|_| self.timestamps.on) {
            Some(option) => match option.value.wrapping_sub(self.timestamps.recent).cast_signed() {
                0 => seq_is_newer,
                clock_advance => clock_advance > 0,
            },
            None => seq_is_newer,
        };
        self.state == TcpState::TimeWait && only_syn && syn_is_newer
    }

    /// Returns the sequence number on the wire after the last one used here.
    pub fn used_until(&self) -> u32 {
        self.wire_seq(self.send.sent_until())
    }

    fn arm_time_wait(&mut self, now: Instant) {
        self.timers.set(Timer::TimeWait, now + self.config.time_wait);
    }

    /// Limits FIN-WAIT-2 once the application no longer reads. RFC 9293 has no limit, since a slow
    /// peer may take its time. A peer that vanished must not keep the state forever.
    pub(super) fn arm_fin_wait(&mut self, now: Instant) {
        if self.orphaned {
            self.timers.set(Timer::TimeWait, now + self.config.time_wait);
        }
    }

    /// Processes data and FIN (RFC 9293 §3.10.7.4 seventh and eighth). The urgent pointer is
    /// ignored.
    fn receive_data(
        &mut self,
        now: Instant,
        start: u64,
        segment: &mut Segment,
        outcome: &mut SegmentOutcome,
    ) {
        let payload: Payload = std::mem::take(&mut segment.payload);
        let bytes = payload.len() as u64;
        let end = start + bytes;
        let fin = segment.flags.contains(Flags::FIN);
        if bytes == 0 && !fin {
            return;
        }
        let packet_bytes = match u64::from(segment.segment_bytes) {
            0 => bytes,
            packet_bytes => packet_bytes,
        };
        if start > self.receive.next()
            && self.receive.out_of_order_bytes() + bytes
                > u64::from(self.receive_window.max_out_of_order_bytes)
        {
            // No memory is left to hold it (Linux `tcp_try_rmem_schedule`): the peer retransmits
            // it.
            self.schedule_ack(now, bytes, packet_bytes, false, true);
            return;
        }
        let had_fin = self.receive.fin_in_order();
        let reassembled = self.receive.insert(start, payload, &mut outcome.data);
        self.duplicate_bytes += reassembled.duplicate;
        if fin {
            self.receive.insert_fin(end);
        }
        if !had_fin && self.receive.take_fin() {
            outcome.fin = true;
            self.on_peer_fin(now);
        }
        let at_once = reassembled.hole || reassembled.duplicate > 0 || fin || outcome.fin;
        let psh = segment.flags.contains(Flags::PSH);
        self.schedule_ack(now, bytes, packet_bytes, psh, at_once);
    }

    /// Updates the state after the peer's FIN (RFC 9293 §3.10.7.4 eighth).
    fn on_peer_fin(&mut self, now: Instant) {
        match self.state {
            TcpState::SynReceived | TcpState::Established => self.state = TcpState::CloseWait,
            TcpState::FinWait1 => self.state = TcpState::Closing,
            TcpState::FinWait2 => {
                self.state = TcpState::TimeWait;
                self.arm_time_wait(now);
            }
            TcpState::SynSent
            | TcpState::CloseWait
            | TcpState::Closing
            | TcpState::LastAck
            | TcpState::TimeWait
            | TcpState::Closed => {}
        }
    }
}
