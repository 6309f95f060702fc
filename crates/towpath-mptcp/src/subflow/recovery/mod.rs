//! Acknowledgements and their effect on the congestion window: phases, proportional rate reduction
//! (RFC 9937). Retransmission timeouts are in [`timeout`], the undo of spurious recovery in
//! [`undo`].

mod timeout;
mod undo;

use std::num::NonZeroU64;

use towpath_multipath::congestion::AckSample;
use towpath_multipath::path::RecoveryPhase;
use towpath_net::Instant;

use undo::SpuriousTimeout;

use super::delivery::Delivery;
use super::rack::{DUP_THRESH, ProbeEvidence};
use super::{SegmentOutcome, Subflow, Timer};
use crate::wire::{Flags, Segment};

/// State of loss recovery.
#[derive(Debug, Clone, Default)]
pub(super) struct LossRecovery {
    phase: RecoveryPhase,
    /// Offset whose acknowledgement ends the phase.
    end: u64,
    reduction: Prr,
    /// Congestion window during [`RecoveryPhase::Recovery`].
    window: u64,
    /// Set when one packet may exceed the window: the first retransmission of an episode.
    pub(super) forced: bool,
    /// Start of the episode's retransmissions, while an undo is possible.
    undo_from: Option<NonZeroU64>,
    /// Retransmitted bytes of the episode that the peer did not report as duplicates.
    retransmitted_bytes: u64,
    /// Time of the first retransmission of the episode; zero: none was sent.
    retransmitted_at: Instant,
    spurious: SpuriousTimeout,
    duplicates: u64,
    timeouts: u32,
    timeouts_total: u32,
    undone: u32,
    /// Offset until whose acknowledgement the window counts as full.
    limited_until: Option<NonZeroU64>,
    /// Maximum bytes outstanding in this round, and the end of the round.
    max_outstanding: u32,
    usage_until: u64,
    round_end: u64,
    /// Set when the next retransmission is caused by a timeout.
    pub(super) after_timeout: bool,
    /// Timeouts since the last measurement. Their back-off stays, and acknowledgements of
    /// retransmissions are not sampled (RFC 6298 §3, §5).
    pub(super) backed_off: u8,
}

/// Proportional rate reduction (RFC 9937).
#[derive(Debug, Clone, Copy, Default)]
struct Prr {
    delivered: u64,
    sent: u64,
    /// Bytes in flight at the start of the reduction (`RecoverFS`).
    base: u64,
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
        self.undone.into()
    }

    /// Returns true if the window limits sending. In slow start, half of it must be used, as a
    /// doubling window is always ahead of the sent data (RFC 7661 §4.3, Linux
    /// `tcp_is_cwnd_limited`).
    pub(super) fn cwnd_limited(&self, slow_start: bool, cwnd_bytes: u64) -> bool {
        let half_used = slow_start && cwnd_bytes < 2 * u64::from(self.max_outstanding);
        self.limited_until.is_some() || half_used
    }

    /// Records `out` outstanding bytes, all above `acked`, after sending up to `until`.
    pub(super) fn note_outstanding(&mut self, out: u64, acked: u64, until: u64) {
        let out = u32::try_from(out).unwrap_or(u32::MAX);
        if acked >= self.usage_until || out > self.max_outstanding {
            (self.max_outstanding, self.usage_until) = (out, until);
        }
    }

    pub(super) fn count_timeout(&mut self) -> u32 {
        self.timeouts += 1;
        self.backed_off = self.backed_off.saturating_add(1);
        self.timeouts_total += 1;
        self.timeouts
    }

    pub(super) fn forget_timeouts(&mut self) {
        self.timeouts = 0;
    }

    pub(super) fn enough_duplicates(&self) -> bool {
        self.phase == RecoveryPhase::Open && self.duplicates >= DUP_THRESH
    }

    /// Records that new data was sent up to `until`; `full`: the window allows no more.
    pub(super) fn note_sent(&mut self, bytes: u64, until: u64, full: bool) {
        self.reduction.sent += bytes;
        if full {
            self.limited_until = NonZeroU64::new(until);
        }
    }

    /// Records a retransmission; `full` as for new data: a window filled by retransmissions counts
    /// as used.
    pub(super) fn on_retransmitted(&mut self, now: Instant, bytes: u64, until: u64, full: bool) {
        if full {
            self.limited_until = NonZeroU64::new(until);
        }
        self.reduction.sent += bytes;
        self.retransmitted_bytes += bytes;
        if self.retransmitted_at == Instant::ZERO {
            self.retransmitted_at = now;
        }
        self.forced = false;
    }

    fn begin(&mut self, phase: RecoveryPhase, acked_until: u64, sent_until: u64) {
        (self.phase, self.end) = (phase, sent_until);
        self.undo_from = NonZeroU64::new(acked_until);
        (self.retransmitted_bytes, self.retransmitted_at) = (0, Instant::ZERO);
        self.spurious = SpuriousTimeout::Off;
    }

    /// Reduces the window (RFC 9937 §6.2). `safe`: progress without further loss.
    fn reduce(&mut self, delivered: u64, in_flight: u64, threshold: u64, mss: u64, safe: bool) {
        let Prr { delivered: total, sent, base } = &mut self.reduction;
        *total += delivered;
        let allowed = if in_flight > threshold {
            let due = u128::from(*total) * u128::from(threshold);
            let due = due.div_ceil(u128::from((*base).max(1)));
            u64::try_from(due).unwrap_or(u64::MAX).saturating_sub(*sent)
        } else {
            let growth = total.saturating_sub(*sent).max(delivered) + if safe { mss } else { 0 };
            growth.min(threshold - in_flight)
        };
        let first = *sent == 0 && allowed == 0;
        self.window = in_flight + if first { mss } else { allowed };
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
        let left = self.recovery.duplicates * u64::from(self.mss());
        self.send.in_flight().saturating_sub(if self.sack_on { 0 } else { left })
    }

    /// Processes an acceptable acknowledgement.
    pub(super) fn on_acknowledgement(
        &mut self,
        now: Instant,
        start: u64,
        ack: u64,
        segment: &Segment,
        received: &mut SegmentOutcome,
    ) {
        let window_changed = self.peer_window.update(segment.window, start, ack);
        if self.is_pure_repeat_ack(ack, segment) {
            self.on_probe_acked(now, ack, &ProbeEvidence::default());
            return self.arm_window_probe(now);
        }
        let before = self.send.acked_until();
        let in_flight = self.send.in_flight();
        let echo = self.timestamps.echo_ms(now, segment.options.timestamps);
        let smallest = self.rtt.min().unwrap_or_default();
        let mut delivery = Delivery::new(now, smallest, echo, self.rack.highest);
        let advanced = ack > before;
        if advanced {
            self.send.acknowledge(ack, &mut delivery);
        }
        received.acked_bytes = delivery.data_bytes;
        self.acked_bytes += delivery.data_bytes;
        let selective = delivery.bytes;
        let duplicate = self.take_sacks(segment, ack, &mut delivery);
        let sacked = delivery.bytes > selective;
        let outstanding = self.send.outstanding() > 0;
        let takes = segment.sequence_bytes() > 0;
        // An acknowledgement sent for its Multipath TCP option does not indicate loss (RFC 8684
        // §3).
        let signal = !segment.options.mptcp.is_empty();
        let repeats = ack == before && !takes && !window_changed && outstanding && !signal;
        if !self.sack_on && repeats {
            self.recovery.duplicates += 1;
        }
        let rtt = self.measure(now, &delivery, advanced, echo);
        self.rack.record_delivery(now, &delivery);
        let evidence = ProbeEvidence {
            duplicate_end: duplicate.map(|(_, end)| end),
            plain_duplicate: repeats && segment.options.sack.is_empty(),
        };
        self.on_probe_acked(now, ack, &evidence);
        if advanced {
            self.recovery.forget_timeouts();
            self.probes = 0;
            self.on_advance(ack - before);
        }
        let reducing = self.recovery.phase == RecoveryPhase::Recovery;
        self.update_phase(
            now,
            &AckProgress { ack, advanced, sacked, is_duplicate: repeats, in_flight },
            &delivery,
            received,
        );
        if segment.flags.contains(Flags::ECE) && self.echo.on && (advanced || outstanding) {
            self.on_ecn_echo(now, delivery.bytes, advanced);
        }
        self.notify_congestion_control(now, &delivery, in_flight, rtt, reducing, advanced);
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
        let oldest = self.send.oldest().map(|oldest| oldest.sent_at);
        let first = delivery.sent_once.map(|(first, _)| first);
        self.config.recovers_as_linux && first.zip(oldest).is_some_and(|(a, b)| a < b)
    }

    /// Fast path for a pure receiver: an acknowledgement without outstanding data is neither
    /// progress nor a duplicate.
    fn is_pure_repeat_ack(&self, ack: u64, segment: &Segment) -> bool {
        let calm = self.recovery.phase == RecoveryPhase::Open
            && self.recovery.retransmitted_at == Instant::ZERO;
        let plain = segment.options.sack.is_empty() && !segment.flags.contains(Flags::ECE);
        let settled = self.send.outstanding() == 0 && ack <= self.send.acked_until();
        self.sack_on && settled && plain && calm
    }

    /// Processes SACK blocks, after a DSACK (RFC 2883 §4), which is returned.
    fn take_sacks(
        &mut self,
        segment: &Segment,
        ack: u64,
        delivery: &mut Delivery,
    ) -> Option<(u64, u64)> {
        if !self.sack_on || segment.options.sack.is_empty() {
            return None;
        }
        let acked = self.send.acked_until();
        let offset = |wire: u32| {
            let distance = wire.wrapping_sub(self.wire_seq(acked)).cast_signed();
            u64::try_from(acked.cast_signed().saturating_add(i64::from(distance))).unwrap_or(0)
        };
        let blocks = segment.options.sack.iter().map(|(start, end)| (offset(*start), offset(*end)));
        let blocks: arrayvec::ArrayVec<(u64, u64), 4> = blocks.collect();
        let inside =
            |outer: &(u64, u64), inner: (u64, u64)| outer.0 <= inner.0 && inner.1 <= outer.1;
        let first = blocks.first().copied().filter(|(start, end)| start < end);
        let duplicate = first.filter(|block| {
            block.1 <= ack || blocks.get(1).is_some_and(|second| inside(second, *block))
        });
        if let Some((start, end)) = duplicate {
            self.on_duplicate(start, end);
        }
        let sent_until = self.send.sent_until();
        for (start, end) in blocks.iter().skip(usize::from(duplicate.is_some())).copied() {
            // Blocks of an overtaken acknowledgement may lie partly below.
            let start = start.max(acked);
            if start < end && end <= sent_until {
                self.send.acknowledge_selectively(start, end, delivery);
            }
        }
        duplicate
    }

    fn measure(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        advanced: bool,
        echo_ms: Option<u64>,
    ) -> Option<std::time::Duration> {
        // Karn's algorithm: no samples from data sent twice (RFC 6298 §3), unless timestamps
        // identify the copy.
        if let Some((first, last)) = delivery.sent_once.filter(|_| !delivery.ambiguous) {
            self.rack.record_rtt_sample();
            self.recovery.backed_off = 0;
            let rtt = now.saturating_since(last);
            self.sample_rtt(now.saturating_since(first));
            self.rtt.sample_min(now, rtt);
            return Some(rtt);
        }
        // If the first reply to a retransmission is lost, the reply to the next one still echoes
        // the first. Such a sample would contain whole timeouts.
        let believed = self.config.measures_as_linux || !delivery.old_echo;
        let echo_ms = echo_ms.filter(|_| advanced && believed)?;
        self.rack.record_rtt_sample();
        self.recovery.backed_off = 0;
        let sent = Instant::from_nanos(echo_ms.saturating_mul(1_000_000));
        self.sample_rtt(now.saturating_since(sent));
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

    /// Without SACK: counts the packets behind the hole that have arrived (RFC 6582 §3.2).
    fn on_advance(&mut self, bytes: u64) {
        let packets = bytes.div_ceil(u64::from(self.mss()));
        let recovery = &mut self.recovery;
        recovery.duplicates = match recovery.phase {
            RecoveryPhase::Open => 0,
            RecoveryPhase::Recovery | RecoveryPhase::Loss => {
                recovery.duplicates.saturating_sub(packets - 1)
            }
        };
    }

    /// Switches between the phases.
    fn update_phase(
        &mut self,
        now: Instant,
        progress: &AckProgress,
        delivery: &Delivery,
        received: &mut SegmentOutcome,
    ) {
        let AckProgress { ack, advanced, sacked, in_flight, .. } = *progress;
        if self.recovery.phase != RecoveryPhase::Open {
            self.check_spurious_timeout(now, progress, delivery);
        }
        self.undo_if_spurious(now, progress, delivery);
        if self.recovery.phase != RecoveryPhase::Open && ack >= self.recovery.end {
            self.end_recovery(now);
        }
        let repeated = self.send.retransmitted_bytes();
        let mut lost = (advanced || sacked || !self.sack_on) && self.detect_losses(now);
        if self.config.recovers_as_linux && self.send.retransmitted_bytes() < repeated {
            lost = true;
            if self.recovery.phase == RecoveryPhase::Loss {
                self.enter_recovery(now, in_flight);
                self.recovery.forced = true;
            }
        }
        if !self.sack_on && advanced && self.recovery.phase == RecoveryPhase::Recovery {
            // A partial acknowledgement: the next hole (RFC 6582 §3.2 step 5).
            self.send.mark_oldest_lost();
            (lost, self.recovery.forced) = (true, true);
        }
        received.lost = lost;
        if lost || self.send.has_lost() {
            self.note_losses(now, in_flight);
        }
        if self.recovery.phase == RecoveryPhase::Recovery && (delivery.bytes > 0 || !self.sack_on) {
            self.reduce(delivery.bytes, advanced && !lost);
        }
    }

    fn reduce(&mut self, delivered: u64, safe: bool) {
        let (threshold, mss) = (self.congestion.ssthresh_bytes(), u64::from(self.mss()));
        let in_flight = self.in_flight();
        // Without SACK each duplicate acknowledgement delivered a packet.
        let delivered = if self.sack_on { delivered } else { delivered.max(mss) };
        self.recovery.reduce(delivered, in_flight, threshold, mss, safe);
    }

    /// Starts recovery after a loss, unless it is in progress (RFC 6675 §5 step 4).
    pub(super) fn note_losses(&mut self, now: Instant, in_flight: u64) {
        if self.recovery.phase == RecoveryPhase::Open {
            self.enter_recovery(now, in_flight);
            self.recovery.forced = true;
        }
        self.timers.clear(Timer::TailProbe);
    }

    fn enter_recovery(&mut self, now: Instant, in_flight: u64) {
        let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
        let window = self.congestion.cwnd_bytes();
        let group = std::mem::take(&mut self.group);
        self.congestion.on_congestion(now, in_flight, self.own, &group);
        self.group = group;
        self.recovery.begin(RecoveryPhase::Recovery, acked, sent);
        let base = if self.config.recovers_as_linux {
            window.max(1)
        } else {
            in_flight.max(self.in_flight()).max(1)
        };
        self.recovery.reduction = Prr { delivered: 0, sent: 0, base };
        self.recovery.window = self.in_flight();
        self.forget_probe();
        if self.echo.on {
            self.echo.reduced = true;
        }
    }

    fn end_recovery(&mut self, now: Instant) {
        if self.recovery.phase == RecoveryPhase::Recovery {
            let window = self.congestion.ssthresh_bytes();
            self.congestion.on_recovered(now, window);
        }
        self.recovery.phase = RecoveryPhase::Open;
        self.recovery.spurious = SpuriousTimeout::Off;
        self.recovery.duplicates = 0;
        self.rack.record_recovery();
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
        let answered = self.send.acked_until() <= self.recovery.end;
        if self.recovery.phase == RecoveryPhase::Open && !answered {
            let in_flight = self.send.in_flight();
            self.enter_recovery(now, in_flight);
            // This acknowledgement belongs to the reduction, as in Linux: it releases what it
            // delivered.
            self.reduce(delivered, advanced);
        }
    }

    fn notify_congestion_control(
        &mut self,
        now: Instant,
        delivery: &Delivery,
        in_flight: u64,
        rtt: Option<std::time::Duration>,
        reducing: bool,
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
            in_recovery: reducing
                || self.recovery.phase == RecoveryPhase::Recovery
                || (!advanced && !self.rack.reordering_seen()),
        };
        self.congestion.on_ack(&sample, self.own, &self.group);
        if self.recovery.limited_until.is_some_and(|until| acked >= until.get()) {
            self.recovery.limited_until = None;
        }
    }
}

/// Effect of an acknowledgement.
#[derive(Debug, Clone, Copy)]
struct AckProgress {
    ack: u64,
    advanced: bool,
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
    fn window(delivered: u64, sent: u64, safe: bool) -> u64 {
        let reduction = Prr { delivered, sent, base: 12_000 };
        let mut recovery = LossRecovery { reduction, ..LossRecovery::default() };
        recovery.reduce(1000, 2000, 6000, 1000, safe);
        recovery.window
    }

    #[test]
    fn below_ssthresh_recovery_grows_no_faster_than_slow_start() {
        assert_eq!(window(3000, 4000, true), 2000 + 1000 + 1000);
        assert_eq!(window(3000, 4000, false), 2000 + 1000, "further losses: what was delivered");
    }

    #[test]
    fn unsent_window_of_a_pause_is_usable_up_to_the_threshold() {
        assert_eq!(window(3000, 2000, false), 2000 + 2000);
        assert_eq!(window(9000, 2000, false), 6000);
    }
}
