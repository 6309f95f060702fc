//! Acknowledgements and their effect on the congestion window: phases, proportional rate reduction
//! (RFC 9937). Retransmission timeouts are in [`timeout`], the undo of spurious recovery in
//! [`undo`].

mod timeout;
mod undo;

use std::num::NonZeroU64;

use towpath_multipath::congestion::AckSample;
use towpath_multipath::path::RecoveryPhase;
use towpath_net::Instant;
use towpath_wire::{Flags, Segment};

use super::delivery::Delivery;
use super::rack::{DUP_THRESH, ProbeEvidence};
use super::{SegmentOutcome, Subflow, Timer};

use undo::SpuriousTimeout;

/// State of loss recovery.
#[derive(Debug, Clone, Default)]
pub(super) struct LossRecovery {
    phase: RecoveryPhase,
    /// Offset whose acknowledgement ends the phase.
    end: u64,
    prr: Prr,
    /// Congestion window during [`RecoveryPhase::Recovery`].
    window: u64,
    /// Set when one packet may exceed the window: the first retransmission of an episode.
    pub(super) may_exceed_cwnd: bool,
    /// Acknowledged offset at the start of the episode, while an undo is possible.
    undo_from: Option<NonZeroU64>,
    /// Retransmitted bytes of the episode that the peer did not report as duplicates.
    retransmitted_bytes: u64,
    /// Time of the first retransmission of the episode; zero: none was sent.
    retransmitted_at: Instant,
    spurious_timeout: SpuriousTimeout,
    dup_acks: u64,
    timeouts: u32,
    timeouts_total: u32,
    undo_count: u32,
    /// The window counts as full until this offset is acknowledged.
    limited_until: Option<NonZeroU64>,
    /// Maximum bytes outstanding in this round, and the offset that ends the round.
    max_outstanding: u32,
    max_outstanding_until: u64,
    round_end: u64,
    /// Set when the next retransmission is caused by a timeout.
    pub(super) after_timeout: bool,
    /// Timeouts since the last measurement. Their back-off stays, and acknowledgements of
    /// retransmissions are not sampled (RFC 6298 §3, §5).
    pub(super) backoff_count: u8,
}

/// Proportional rate reduction (RFC 9937).
#[derive(Debug, Clone, Copy, Default)]
struct Prr {
    delivered: u64,
    sent: u64,
    /// Bytes in flight at the start of the reduction.
    recover_fs: u64,
}

impl LossRecovery {
    pub(super) fn phase(&self) -> RecoveryPhase {
        self.phase
    }

    pub(super) fn timeouts(&self) -> u32 {
        self.timeouts
    }

    pub(super) fn timeouts_total(&self) -> u64 {
        self.timeouts_total.into()
    }

    pub(super) fn undone(&self) -> u64 {
        self.undo_count.into()
    }

    /// Returns true if the window limits sending. In slow start, half of it must be used, as a
    /// doubling window is always ahead of the sent data (RFC 7661 §4.3, Linux
    /// `tcp_is_cwnd_limited`).
    pub(super) fn cwnd_limited(&self, slow_start: bool, cwnd_bytes: u64) -> bool {
        let half_used = slow_start && cwnd_bytes < 2 * u64::from(self.max_outstanding);
        self.limited_until.is_some() || half_used
    }

    /// Records the `outstanding` bytes between `acked_until` and `sent_until`.
    pub(super) fn note_outstanding(&mut self, outstanding: u64, acked_until: u64, sent_until: u64) {
        let outstanding = u32::try_from(outstanding).unwrap_or(u32::MAX);
        if acked_until >= self.max_outstanding_until || outstanding > self.max_outstanding {
            (self.max_outstanding, self.max_outstanding_until) = (outstanding, sent_until);
        }
    }

    pub(super) fn count_timeout(&mut self) -> u32 {
        self.timeouts += 1;
        self.backoff_count = self.backoff_count.saturating_add(1);
        self.timeouts_total += 1;
        self.timeouts
    }

    pub(super) fn forget_timeouts(&mut self) {
        self.timeouts = 0;
    }

    pub(super) fn has_enough_dup_acks(&self) -> bool {
        self.phase == RecoveryPhase::Open && self.dup_acks >= DUP_THRESH
    }

    /// Records that new data was sent up to `sent_until`; `fills_cwnd`: the window allows no more.
    pub(super) fn note_sent(&mut self, bytes: u64, sent_until: u64, fills_cwnd: bool) {
        self.prr.sent += bytes;
        if fills_cwnd {
            self.limited_until = NonZeroU64::new(sent_until);
        }
    }

    /// Records a retransmission; `fills_cwnd` as for new data. A window filled by retransmissions
    /// counts as used.
    pub(super) fn on_retransmitted(
        &mut self,
        now: Instant,
        bytes: u64,
        sent_until: u64,
        fills_cwnd: bool,
    ) {
        if fills_cwnd {
            self.limited_until = NonZeroU64::new(sent_until);
        }
        self.prr.sent += bytes;
        self.retransmitted_bytes += bytes;
        if self.retransmitted_at == Instant::ZERO {
            self.retransmitted_at = now;
        }
        self.may_exceed_cwnd = false;
    }

    fn begin(&mut self, phase: RecoveryPhase, acked_until: u64, sent_until: u64) {
        (self.phase, self.end) = (phase, sent_until);
        self.undo_from = NonZeroU64::new(acked_until);
        (self.retransmitted_bytes, self.retransmitted_at) = (0, Instant::ZERO);
        self.spurious_timeout = SpuriousTimeout::Inactive;
    }

    /// Reduces the window (RFC 9937 §6.2). `safe_ack`: progress without further loss.
    fn reduce(&mut self, delivered: u64, in_flight: u64, ssthresh: u64, mss: u64, safe_ack: bool) {
        let Prr { delivered: total_delivered, sent, recover_fs } = &mut self.prr;
        *total_delivered += delivered;
        let allowed = if in_flight > ssthresh {
            let allowed_total = u128::from(*total_delivered) * u128::from(ssthresh);
            let allowed_total = allowed_total.div_ceil(u128::from((*recover_fs).max(1)));
            u64::try_from(allowed_total).unwrap_or(u64::MAX).saturating_sub(*sent)
        } else {
            let growth = total_delivered.saturating_sub(*sent).max(delivered)
                + if safe_ack { mss } else { 0 };
            growth.min(ssthresh - in_flight)
        };
        let is_first_packet = *sent == 0 && allowed == 0;
        self.window = in_flight + if is_first_packet { mss } else { allowed };
    }
}

impl Subflow {
    /// Returns the current congestion window; during recovery, the reduced one.
    pub(super) fn cwnd(&self) -> u64 {
        match self.recovery.phase {
            RecoveryPhase::Recovery => self.recovery.window,
            RecoveryPhase::Open | RecoveryPhase::Loss => self.congestion.cwnd_bytes(),
        }
        .max(u64::from(self.mss()))
    }

    /// Returns the bytes in flight. Without SACK, duplicate acknowledgements reduce them (RFC 5681
    /// §3.2 step 4).
    pub(super) fn in_flight(&self) -> u64 {
        let dup_ack_bytes = self.recovery.dup_acks * u64::from(self.mss());
        self.send.in_flight().saturating_sub(if self.sack_on { 0 } else { dup_ack_bytes })
    }

    /// Processes an acceptable acknowledgement.
    pub(super) fn on_acknowledgement(
        &mut self,
        now: Instant,
        start: u64,
        ack: u64,
        segment: &Segment,
        outcome: &mut SegmentOutcome,
    ) {
        let window_changed = self.peer_window.update(segment.window, start, ack);
        if self.is_pure_repeat_ack(ack, segment) {
            self.on_probe_acked(now, ack, &ProbeEvidence::default());
            return self.arm_window_probe(now);
        }
        let acked_before = self.send.acked_until();
        let in_flight = self.send.in_flight();
        let echo_ms = self.timestamps.echo_ms(now, segment.options.timestamps);
        let min_rtt = self.rtt.min().unwrap_or_default();
        let mut delivery = Delivery::new(now, min_rtt, echo_ms, self.rack.highest);
        let advanced = ack > acked_before;
        if advanced {
            self.send.acknowledge(ack, &mut delivery);
        }
        outcome.acked_bytes = delivery.data_bytes;
        self.acked_bytes += delivery.data_bytes;
        let cumulative_bytes = delivery.bytes;
        let dsack = self.apply_sacks(segment, ack, &mut delivery);
        let sacked = delivery.bytes > cumulative_bytes;
        let has_outstanding = self.send.outstanding() > 0;
        // An acknowledgement sent for its Multipath TCP option does not indicate loss (RFC 8684
        // §3).
        let is_bare = segment.sequence_bytes() == 0 && segment.options.mptcp.is_empty();
        let is_duplicate = ack == acked_before && is_bare && !window_changed && has_outstanding;
        if !self.sack_on && is_duplicate {
            self.recovery.dup_acks += 1;
        }
        let rtt = self.measure_rtt(now, &delivery, advanced, echo_ms);
        self.rack.record_delivery(now, &delivery);
        let evidence = ProbeEvidence {
            duplicate_end: dsack.map(|(_, end)| end),
            plain_duplicate: is_duplicate && segment.options.sack.is_empty(),
        };
        self.on_probe_acked(now, ack, &evidence);
        if advanced {
            self.recovery.forget_timeouts();
            self.window_probes = 0;
            self.reduce_dup_acks(ack - acked_before);
        }
        let was_in_recovery = self.recovery.phase == RecoveryPhase::Recovery;
        self.update_phase(
            now,
            &AckProgress { ack, advanced, sacked, is_duplicate, in_flight },
            &delivery,
            outcome,
        );
        if segment.flags.contains(Flags::ECE) && self.ecn.on && (advanced || has_outstanding) {
            self.on_ecn_echo(now, delivery.bytes, advanced);
        }
        self.notify_congestion_control(now, &delivery, in_flight, rtt, was_in_recovery, advanced);
        if advanced || sacked && self.acks_before_oldest_retransmit(&delivery) {
            self.rearm_retransmission(now);
        }
        if advanced {
            self.arm_user_timeout(now);
        }
        if advanced || sacked {
            self.arm_tail_probe(now);
        }
        self.grow_send_buffer();
        self.arm_window_probe(now);
    }

    /// Returns true if the acknowledgement covers data sent before the oldest packet was
    /// retransmitted, as in Linux (`tcp_clean_rtx_queue`). The timer then restarts.
    fn acks_before_oldest_retransmit(&self, delivery: &Delivery) -> bool {
        let oldest_sent_at = self.send.oldest().map(|record| record.sent_at);
        let first_sent_at = delivery.sent_once.map(|(earliest, _)| earliest);
        self.config.recovers_as_linux
            && first_sent_at.zip(oldest_sent_at).is_some_and(|(a, b)| a < b)
    }

    /// Fast path for a pure receiver: an acknowledgement without outstanding data is neither
    /// progress nor a duplicate.
    fn is_pure_repeat_ack(&self, ack: u64, segment: &Segment) -> bool {
        let no_recovery = self.recovery.phase == RecoveryPhase::Open
            && self.recovery.retransmitted_at == Instant::ZERO;
        let no_loss_signal = segment.options.sack.is_empty() && !segment.flags.contains(Flags::ECE);
        let nothing_outstanding = self.send.outstanding() == 0 && ack <= self.send.acked_until();
        self.sack_on && nothing_outstanding && no_loss_signal && no_recovery
    }

    /// Processes SACK blocks, after a DSACK (RFC 2883 §4), which is returned.
    fn apply_sacks(
        &mut self,
        segment: &Segment,
        ack: u64,
        delivery: &mut Delivery,
    ) -> Option<(u64, u64)> {
        if !self.sack_on || segment.options.sack.is_empty() {
            return None;
        }
        let acked_until = self.send.acked_until();
        let offset = |wire: u32| {
            let distance = wire.wrapping_sub(self.wire_seq(acked_until)).cast_signed();
            u64::try_from(acked_until.cast_signed().saturating_add(i64::from(distance)))
                .unwrap_or(0)
        };
        let blocks = segment.options.sack.iter().map(|(start, end)| (offset(*start), offset(*end)));
        let blocks: arrayvec::ArrayVec<(u64, u64), 4> = blocks.collect();
        let contains =
            |outer: &(u64, u64), inner: (u64, u64)| outer.0 <= inner.0 && inner.1 <= outer.1;
        let first_block = blocks.first().copied().filter(|(start, end)| start < end);
        let dsack = first_block.filter(|block| {
            block.1 <= ack || blocks.get(1).is_some_and(|second| contains(second, *block))
        });
        if let Some((start, end)) = dsack {
            self.on_dsack(start, end);
        }
        let sent_until = self.send.sent_until();
        for (start, end) in blocks.iter().skip(usize::from(dsack.is_some())).copied() {
            // Blocks of an overtaken acknowledgement may lie partly below the acknowledged data.
            let start = start.max(acked_until);
            if start < end && end <= sent_until {
                self.send.acknowledge_selectively(start, end, delivery);
            }
        }
        dsack
    }

    fn measure_rtt(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        advanced: bool,
        echo_ms: Option<u64>,
    ) -> Option<std::time::Duration> {
        // Karn's algorithm: no samples from data sent twice (RFC 6298 §3), unless timestamps
        // identify the copy.
        if let Some((first_sent_at, last_sent_at)) =
            delivery.sent_once.filter(|_| !delivery.ambiguous)
        {
            self.rack.record_rtt_sample();
            self.recovery.backoff_count = 0;
            let rtt = now.saturating_since(last_sent_at);
            self.sample_rtt(now.saturating_since(first_sent_at));
            self.rtt.sample_min(now, rtt);
            return Some(rtt);
        }
        // If the first reply to a retransmission is lost, the reply to the next one still echoes
        // the first. Such a sample would contain whole timeouts.
        let echo_is_reliable = self.config.measures_as_linux || !delivery.echoes_earlier_copy;
        let echo_ms = echo_ms.filter(|_| advanced && echo_is_reliable)?;
        self.rack.record_rtt_sample();
        self.recovery.backoff_count = 0;
        let sent_at = Instant::from_nanos(echo_ms.saturating_mul(1_000_000));
        self.sample_rtt(now.saturating_since(sent_at));
        None
    }

    pub(super) fn sample_rtt(&mut self, rtt: std::time::Duration) {
        if self.config.measures_as_linux {
            let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
            self.rtt.sample_in_round(rtt, acked, sent);
        } else {
            self.rtt.sample(rtt);
        }
    }

    /// Reduces the count of duplicate acknowledgements by the packets that are now acknowledged
    /// (RFC 6582 §3.2). The count matters only without SACK.
    fn reduce_dup_acks(&mut self, bytes: u64) {
        let packets = bytes.div_ceil(u64::from(self.mss()));
        let recovery = &mut self.recovery;
        recovery.dup_acks = match recovery.phase {
            RecoveryPhase::Open => 0,
            RecoveryPhase::Recovery | RecoveryPhase::Loss => {
                recovery.dup_acks.saturating_sub(packets - 1)
            }
        };
    }

    /// Switches between the phases.
    fn update_phase(
        &mut self,
        now: Instant,
        progress: &AckProgress,
        delivery: &Delivery,
        outcome: &mut SegmentOutcome,
    ) {
        let AckProgress { ack, advanced, sacked, in_flight, .. } = *progress;
        if self.recovery.phase != RecoveryPhase::Open {
            self.check_spurious_timeout(now, progress, delivery);
        }
        self.undo_if_spurious(now, progress, delivery);
        if self.recovery.phase != RecoveryPhase::Open && ack >= self.recovery.end {
            self.end_recovery(now);
        }
        let retransmitted_before = self.send.retransmitted_bytes();
        let mut lost = (advanced || sacked || !self.sack_on) && self.detect_losses(now);
        if self.config.recovers_as_linux && self.send.retransmitted_bytes() < retransmitted_before {
            lost = true;
            if self.recovery.phase == RecoveryPhase::Loss {
                self.enter_recovery(now, in_flight);
                self.recovery.may_exceed_cwnd = true;
            }
        }
        if !self.sack_on && advanced && self.recovery.phase == RecoveryPhase::Recovery {
            // A partial acknowledgement: the next hole (RFC 6582 §3.2 step 5).
            self.send.mark_oldest_lost();
            (lost, self.recovery.may_exceed_cwnd) = (true, true);
        }
        outcome.lost = lost;
        if lost || self.send.has_lost() {
            self.on_losses(now, in_flight);
        }
        if self.recovery.phase == RecoveryPhase::Recovery && (delivery.bytes > 0 || !self.sack_on) {
            self.reduce(delivery.bytes, advanced && !lost);
        }
    }

    fn reduce(&mut self, delivered: u64, safe_ack: bool) {
        let (ssthresh, mss) = (self.congestion.ssthresh_bytes(), u64::from(self.mss()));
        let in_flight = self.in_flight();
        // Without SACK each duplicate acknowledgement delivered a packet.
        let delivered = if self.sack_on { delivered } else { delivered.max(mss) };
        self.recovery.reduce(delivered, in_flight, ssthresh, mss, safe_ack);
    }

    /// Starts recovery after a loss, unless it is in progress (RFC 6675 §5 step 4).
    pub(super) fn on_losses(&mut self, now: Instant, in_flight: u64) {
        if self.recovery.phase == RecoveryPhase::Open {
            self.enter_recovery(now, in_flight);
            self.recovery.may_exceed_cwnd = true;
        }
        self.timers.clear(Timer::TailProbe);
    }

    fn enter_recovery(&mut self, now: Instant, in_flight: u64) {
        let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
        let cwnd = self.congestion.cwnd_bytes();
        let siblings = std::mem::take(&mut self.siblings);
        self.congestion.on_congestion(now, in_flight, self.path_id, &siblings);
        self.siblings = siblings;
        self.recovery.begin(RecoveryPhase::Recovery, acked, sent);
        let recover_fs = if self.config.recovers_as_linux {
            cwnd.max(1)
        } else {
            in_flight.max(self.in_flight()).max(1)
        };
        self.recovery.prr = Prr { delivered: 0, sent: 0, recover_fs };
        self.recovery.window = self.in_flight();
        self.forget_tail_probe();
        if self.ecn.on {
            self.ecn.reduced = true;
        }
    }

    fn end_recovery(&mut self, now: Instant) {
        if self.recovery.phase == RecoveryPhase::Recovery {
            let window = self.congestion.ssthresh_bytes();
            self.congestion.on_recovered(now, window);
        }
        self.recovery.phase = RecoveryPhase::Open;
        self.recovery.spurious_timeout = SpuriousTimeout::Inactive;
        self.recovery.dup_acks = 0;
        self.rack.record_recovery_end();
    }

    /// Handles a loss that only a tail loss probe revealed and repaired (RFC 8985 §7.4.2).
    pub(super) fn on_tlp_loss_repair(&mut self, now: Instant) {
        let in_flight = self.send.in_flight();
        self.enter_recovery(now, in_flight);
        if self.config.recovers_as_linux {
            // Nothing is missing: the window equals the threshold immediately.
            self.recovery.phase = RecoveryPhase::Open;
            self.recovery.undo_from = None;
        }
    }

    /// Handles an ECN echo: as a loss, once in a round trip (RFC 3168 §6.1.2).
    fn on_ecn_echo(&mut self, now: Instant, delivered: u64, advanced: bool) {
        if self.cwnd() <= u64::from(self.mss()) {
            // The smallest window: only the timer can slow it down further.
            self.rearm_retransmission(now);
        }
        // The last acknowledgement of the episode still echoes it: CWR is sent with later data.
        let already_reduced = self.send.acked_until() <= self.recovery.end;
        if self.recovery.phase == RecoveryPhase::Open && !already_reduced {
            let in_flight = self.send.in_flight();
            self.enter_recovery(now, in_flight);
            // The acknowledgement belongs to the reduction, as in Linux: the delivered bytes
            // release new data.
            self.reduce(delivered, advanced);
        }
    }

    fn notify_congestion_control(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        in_flight: u64,
        rtt: Option<std::time::Duration>,
        was_in_recovery: bool,
        advanced: bool,
    ) {
        if delivery.bytes == 0 {
            return;
        }
        let acked = self.send.acked_until();
        let round_ended = acked >= self.recovery.round_end;
        if round_ended {
            self.recovery.round_end = self.send.sent_until().max(acked + 1);
        }
        let srtt = self.rtt.smoothed().unwrap_or_default();
        let sample = AckSample {
            now,
            acked_bytes: delivery.bytes,
            in_flight_bytes: in_flight,
            rtt,
            srtt,
            min_rtt: self.rtt.min().unwrap_or(srtt),
            cwnd_limited: self.is_cwnd_limited(),
            round_ended,
            // Duplicate acknowledgements do not grow the window (RFC 5681 §3.2 step 1, RFC 3042
            // §2), unless the path is known to reorder (Linux `tcp_may_raise_cwnd`).
            in_recovery: was_in_recovery
                || self.recovery.phase == RecoveryPhase::Recovery
                || (!advanced && !self.rack.reordering_seen()),
        };
        self.congestion.on_ack(&sample, self.path_id, &self.siblings);
        if self.recovery.limited_until.is_some_and(|until| acked >= until.get()) {
            self.recovery.limited_until = None;
        }
    }
}

/// Effect of an acknowledgement.
#[derive(Debug, Clone, Copy)]
struct AckProgress {
    /// Acknowledged offset.
    ack: u64,
    /// True if the cumulative acknowledgement moved.
    advanced: bool,
    /// True if SACK blocks reported new data.
    sacked: bool,
    /// True for a duplicate acknowledgement (RFC 5681 §2).
    is_duplicate: bool,
    /// Bytes in flight before the acknowledgement.
    in_flight: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the window after 1000 bytes were delivered, with 2000 in flight and a threshold of
    /// 6000.
    fn window_after_reduction(delivered: u64, sent: u64, safe_ack: bool) -> u64 {
        let prr = Prr { delivered, sent, recover_fs: 12_000 };
        let mut recovery = LossRecovery { prr, ..LossRecovery::default() };
        recovery.reduce(1000, 2000, 6000, 1000, safe_ack);
        recovery.window
    }

    #[test]
    fn below_ssthresh_recovery_grows_no_faster_than_slow_start() {
        assert_eq!(window_after_reduction(3000, 4000, true), 2000 + 1000 + 1000);
        assert_eq!(
            window_after_reduction(3000, 4000, false),
            2000 + 1000,
            "further losses: what was delivered"
        );
    }

    #[test]
    fn unsent_window_of_a_pause_is_usable_up_to_the_threshold() {
        assert_eq!(window_after_reduction(3000, 2000, false), 2000 + 2000);
        assert_eq!(window_after_reduction(9000, 2000, false), 6000);
    }
}
