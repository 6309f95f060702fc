//! Retransmission timer (RFC 6298), and the actions when it fires.

use towpath_multipath::path::RecoveryPhase;
use towpath_net::Instant;

use super::undo::SpuriousTimeout;
use crate::subflow::{CloseReason, Subflow, TcpState, TimeoutOutcome, Timer};

/// Consecutive timeouts after which full packets are assumed to be too big for the path.
const PMTU_BLACKHOLE_TIMEOUTS: u32 = 2;

impl Subflow {
    /// Starts the retransmission timer if it does not run (RFC 6298 §5.1).
    pub(in crate::subflow) fn arm_retransmission(&mut self, now: Instant) {
        if !self.timers.is_set(Timer::Retransmission) {
            self.rearm_retransmission(now);
        }
    }

    /// Restarts the timer (RFC 6298 §5.2 and §5.3).
    pub(in crate::subflow) fn rearm_retransmission(&mut self, now: Instant) {
        if self.send.outstanding() == 0 {
            self.timers.clear(Timer::Retransmission);
            self.timers.clear(Timer::Reordering);
            self.timers.clear(Timer::TailProbe);
        } else {
            let delay = self.rtt.backed_off_timeout(self.recovery.backoff_count.into());
            self.timers.set(Timer::Retransmission, now + delay);
        }
    }

    /// Handles the retransmission timeout (RFC 6298 §5.4 to §5.7).
    pub(in crate::subflow) fn on_retransmission_timeout(
        &mut self,
        now: Instant,
        outcome: &mut TimeoutOutcome,
    ) {
        if matches!(self.state, TcpState::SynSent | TcpState::SynReceived) {
            return self.on_handshake_timeout(outcome);
        }
        if self.send.outstanding() == 0 || self.state == TcpState::Closed {
            return;
        }
        outcome.retransmission = true;
        // A peer that replies is alive, if the unacknowledged data lies beyond its window (RFC 9293
        // §3.8.6, §3.8.6.1).
        let stalled = self.peer_window.usable(self.send.acked_until()) == 0
            && now.saturating_since(self.last_received_at) <= self.config.rto_max * 2;
        if self.recovery.count_timeout() > self.config.retries && !stalled {
            return self.finish(CloseReason::TimedOut);
        }
        let in_flight = self.send.in_flight();
        let is_first_timeout = self.recovery.timeouts == 1;
        let in_recovery = self.recovery.phase != RecoveryPhase::Open;
        // A timeout found to be spurious ended the recovery; the next one is an ordinary loss.
        let starts_episode = is_first_timeout || !in_recovery;
        if self.config.recovers_as_linux {
            self.begin_loss_as_linux(now, in_flight, is_first_timeout);
        } else if starts_episode {
            // RFC 3168 §6.1.2: the peer is notified of every window reduction, regardless of its
            // cause.
            self.ecn.reduced |= self.ecn.on;
            self.congestion.on_timeout(now, in_flight);
            let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
            self.recovery.begin(RecoveryPhase::Loss, acked, sent);
            // RFC 5682 §2.1 step 1 and §3.1: not while earlier losses are being repaired.
            if self.config.undo && !in_recovery {
                self.recovery.spurious_timeout = SpuriousTimeout::AwaitFirstAck;
            }
        } else {
            self.recovery.spurious_timeout = SpuriousTimeout::Inactive;
        }
        if self.send.reneged() {
            self.send.forget_sacks();
        }
        self.recovery.dup_acks = 0;
        let lost_until = self.lost_if_sent_until(now);
        self.send.mark_lost_sent_until(lost_until);
        if self.config.recovers_as_linux {
            let window = self.send.in_flight() + u64::from(self.mss());
            self.congestion.on_recovered(now, window);
        }
        self.search_black_hole();
        (self.recovery.may_exceed_cwnd, self.recovery.after_timeout) = (true, true);
        self.forget_tail_probe();
        self.timers.clear(Timer::TailProbe);
        self.timers.clear(Timer::Reordering);
        self.rearm_retransmission(now);
    }

    /// Handles the timeout as with [`crate::subflow::SubflowConfig::recovers_as_linux`].
    /// `is_first_timeout` is true if nothing has timed out since the last progress.
    fn begin_loss_as_linux(&mut self, now: Instant, in_flight: u64, is_first_timeout: bool) {
        let phase = self.recovery.phase;
        let reduces = match phase {
            RecoveryPhase::Open => true,
            RecoveryPhase::Recovery => false,
            RecoveryPhase::Loss => is_first_timeout,
        };
        let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
        self.ecn.reduced |= self.ecn.on;
        if reduces {
            self.congestion.on_timeout(now, in_flight);
            self.recovery.begin(RecoveryPhase::Loss, acked, sent);
        } else {
            self.congestion.on_further_timeout();
            (self.recovery.phase, self.recovery.end) = (RecoveryPhase::Loss, sent);
        }
        // A first timeout during another recovery proves nothing.
        let may_be_spurious =
            self.config.undo && (phase == RecoveryPhase::Open || !is_first_timeout);
        self.recovery.spurious_timeout = if may_be_spurious {
            SpuriousTimeout::AwaitFirstAck
        } else {
            SpuriousTimeout::Inactive
        };
    }

    fn search_black_hole(&mut self) {
        let is_full_packet = self.send.oldest().is_some_and(|record| record.len >= self.mss());
        let timed_out_repeatedly = self.recovery.timeouts.is_multiple_of(PMTU_BLACKHOLE_TIMEOUTS);
        if self.config.black_hole_detection
            && is_full_packet
            && timed_out_repeatedly
            && self.path_mtu.halve()
        {
            self.apply_packet_size();
        }
    }

    /// Retransmits packets that a router dropped for their size, which does not indicate congestion
    /// (RFC 1191 §6.5).
    pub(in crate::subflow) fn resend_too_big(&mut self, now: Instant) {
        self.send.mark_lost_sent_until(now);
        if self.recovery.phase == RecoveryPhase::Open {
            let (acked, sent) = (self.send.acked_until(), self.send.sent_until());
            // The window stays, as after a spurious timeout, and lost data is retransmitted.
            self.recovery.begin(RecoveryPhase::Loss, acked, sent);
            self.recovery.undo_from = None;
        }
        self.recovery.may_exceed_cwnd = true;
    }
}
