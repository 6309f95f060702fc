//! Loss detection by time, and tail loss probes (RFC 8985).
//!
//! The reordering timer is set to the earliest time at which one more packet counts as lost. RFC
//! 8985 §6.2 step 5 waits for the last one. The rule for each packet is the same, but losses are
//! detected sooner.

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;
use towpath_net::Instant;

use super::delivery::Delivery;
use super::send_queue::RackWindow;
use super::{Subflow, TcpState, Timer, TransmitReason};

/// Packets that must arrive before a hole counts as a loss (RFC 5681 §3.2, RFC 6675 §2).
pub(super) const DUP_THRESH: u64 = 3;
/// Recoveries before a widened reordering window shrinks (RFC 8985 §6.2 step 4).
const REO_WND_PERSIST: u32 = 16;
/// Maximum acknowledgement delay to expect from a peer (RFC 8985 §7.2).
const MAX_PEER_ACK_DELAY: Duration = Duration::from_millis(200);

/// State of RACK and of the tail loss probe.
#[derive(Debug, Clone, Default)]
pub(super) struct Rack {
    /// Delivered transmission with the latest send time: time and end.
    newest: Option<(Instant, u64)>,
    /// Round-trip time of the newest delivered transmission.
    rtt: Duration,
    /// Highest offset delivered so far.
    pub(super) highest: u64,
    reordering_seen: bool,
    /// Quarters of the smallest round-trip time by which DSACKs have widened the reordering window
    /// of one quarter.
    extra_quarters: u32,
    /// Recoveries until the window shrinks.
    reo_wnd_persist: u32,
    /// Offset whose acknowledgement lets the next DSACK count.
    round_end: Option<u64>,
    probe: Option<TailProbe>,
    /// Set when the next transmission is a probe.
    pub(super) probe_due: bool,
    /// Set when no round-trip time was measured since the last probe.
    awaits_rtt_sample: bool,
}

/// Tail loss probe that is not yet acknowledged.
#[derive(Debug, Clone, Copy)]
struct TailProbe {
    /// Sent offset at the time of the probe.
    end: u64,
    /// Set when the probe retransmitted data.
    is_retransmission: bool,
}

impl Rack {
    /// Records delivered data (RFC 8985 §6.2 steps 1 to 3).
    pub(super) fn record_delivery(&mut self, now: Instant, delivery: &Delivery) {
        if let Some(newest) = delivery.newest {
            self.rtt = now.saturating_since(newest.0);
            self.newest = self.newest.max(Some(newest));
        }
        self.highest = self.highest.max(delivery.highest);
        self.reordering_seen |= delivery.reordered;
    }

    /// Widens the reordering window after a DSACK: it was too small (step 4).
    pub(super) fn widen_reo_wnd(&mut self, acked_until: u64, sent_until: u64) {
        if self.round_end.is_none_or(|end| acked_until >= end) {
            self.round_end = Some(sent_until);
            self.extra_quarters = self.extra_quarters.saturating_add(1);
            self.reo_wnd_persist = REO_WND_PERSIST;
        }
    }

    /// Records the end of a recovery: a widened reordering window shrinks after several (step 4).
    pub(super) fn record_recovery_end(&mut self) {
        self.reo_wnd_persist = self.reo_wnd_persist.saturating_sub(1);
        if self.reo_wnd_persist == 0 {
            self.extra_quarters = 0;
        }
    }

    /// Returns the limit of loss detection. Transmissions before the newest delivered one are lost
    /// after its round-trip time plus the reordering `window`.
    fn loss_window(&self, window: Duration) -> Option<RackWindow> {
        Some(RackWindow { newest: self.newest?, wait: self.rtt + window })
    }

    /// Records that a probe was sent.
    pub(super) fn record_probe(&mut self, end: u64, is_retransmission: bool) {
        self.probe_due = false;
        self.probe = Some(TailProbe { end, is_retransmission });
        self.awaits_rtt_sample = true;
    }

    /// Returns true if the path is known to reorder.
    pub(super) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// Records that a round-trip time was measured.
    pub(super) fn record_rtt_sample(&mut self) {
        self.awaits_rtt_sample = false;
    }
}

impl Subflow {
    fn uses_rack(&self) -> bool {
        self.config.rack && self.sack_on
    }

    fn reordering_window(&self) -> Duration {
        let rack = &self.rack;
        let loss_threshold = DUP_THRESH * u64::from(self.mss());
        let detect_now =
            self.phase() != RecoveryPhase::Open || self.send.sacked_bytes() >= loss_threshold;
        if !rack.reordering_seen && detect_now {
            return Duration::ZERO;
        }
        let quarter = self.rtt.min().unwrap_or_default() / 4;
        let max_window = self.rtt.smoothed().unwrap_or_default();
        quarter.saturating_mul(rack.extra_quarters.saturating_add(1)).min(max_window)
    }

    /// Marks data that must be lost; returns true if any is newly lost.
    pub(super) fn detect_losses(&mut self, now: Instant) -> bool {
        let lost_before = self.send.lost_bytes();
        if self.uses_rack() {
            self.timers.clear(Timer::Reordering);
            let loss_window = self.rack.loss_window(self.reordering_window());
            let next_check =
                loss_window.and_then(|loss_window| self.send.detect_rack_losses(now, &loss_window));
            if let Some(next_check) = next_check {
                self.timers.set(Timer::Reordering, next_check);
            }
        } else if self.sack_on {
            self.send.detect_sack_losses((DUP_THRESH - 1) * u64::from(self.mss()));
        } else if self.recovery.has_enough_dup_acks() {
            self.send.mark_oldest_lost();
        }
        self.send.lost_bytes() > lost_before
    }

    /// Returns the send time before which RACK declares data lost at a retransmission timeout (RFC
    /// 8985 §6.3).
    pub(super) fn lost_if_sent_until(&self, now: Instant) -> Instant {
        let loss_window =
            self.rack.loss_window(self.reordering_window()).filter(|_| self.uses_rack());
        loss_window.map_or(now, |loss_window| now - loss_window.wait)
    }

    pub(super) fn on_reordering_timeout(&mut self, now: Instant) {
        let in_flight = self.send.in_flight();
        if self.detect_losses(now) {
            self.on_losses(now, in_flight);
        }
        self.arm_retransmission(now);
    }

    /// Arms the tail loss probe after new data was sent or acknowledged (RFC 8985 §7.2).
    pub(super) fn arm_tail_probe(&mut self, now: Instant) {
        // RFC 8985 §7.3: one probe at a time, and the next only after a round-trip measurement.
        let probe_pending = self.rack.probe.is_some() || self.rack.awaits_rtt_sample;
        let cannot_probe = self.send.outstanding() == 0 || probe_pending;
        let no_loss_suspected =
            self.phase() == RecoveryPhase::Open && self.send.sacked_bytes() == 0;
        if cannot_probe || !no_loss_suspected || !self.uses_rack() || self.rack.probe_due {
            return self.timers.clear(Timer::TailProbe);
        }
        let delay = match self.rtt.smoothed() {
            // A single packet may get a delayed acknowledgement.
            Some(srtt) if self.send.outstanding() <= u64::from(self.mss()) => {
                2 * srtt + MAX_PEER_ACK_DELAY
            }
            Some(srtt) => 2 * srtt,
            None => Duration::from_secs(1),
        };
        let timeout = self.timers.get(Timer::Retransmission).unwrap_or(Instant::MAX);
        let probe_at = (now + delay).min(timeout);
        self.timers.set(Timer::TailProbe, probe_at);
    }

    /// Arms the tail loss probe after new data was sent, as [`Subflow::arm_tail_probe`] does. In
    /// Linux it fires no later than the timeout of the oldest data, even after acknowledgements
    /// (`tcp_rto_delta_us`).
    pub(super) fn arm_tail_probe_after_send(&mut self, now: Instant) {
        self.arm_tail_probe(now);
        let Some(probe_at) =
            self.timers.get(Timer::TailProbe).filter(|_| self.config.measures_as_linux)
        else {
            return;
        };
        let oldest_timeout = self.send.oldest().map(|record| record.sent_at + self.rtt.timeout());
        if let Some(earlier) =
            oldest_timeout.filter(|earlier| *earlier > now && *earlier < probe_at)
        {
            self.timers.set(Timer::TailProbe, earlier);
        }
    }

    /// Sends the tail loss probe (RFC 8985 §7.3): new data if there is any, otherwise the last
    /// packet.
    pub(super) fn on_tail_probe(&mut self, now: Instant) {
        if self.send.outstanding() > 0 && self.state != TcpState::Closed {
            self.rack.probe_due = true;
        }
        self.rearm_retransmission(now);
    }

    /// Evaluates the reply to a probe (RFC 8985 §7.4). A necessary retransmission hides a loss from
    /// congestion control, which is notified here.
    pub(super) fn on_probe_acked(&mut self, now: Instant, ack: u64, evidence: &ProbeEvidence) {
        let Some(probe) = self.rack.probe.filter(|probe| ack >= probe.end) else { return };
        if !probe.is_retransmission || evidence.duplicate_end == Some(probe.end) {
            self.rack.probe = None;
        } else if ack > probe.end {
            self.rack.probe = None;
            if self.phase() == RecoveryPhase::Open {
                self.on_tlp_loss_repair(now);
            }
        } else if evidence.plain_duplicate {
            self.rack.probe = None;
        }
    }

    /// Returns the bytes of new data to send as a probe, regardless of the congestion window. A due
    /// tail loss probe needs one packet. After a timeout that may be spurious, it is two packets
    /// (RFC 5682 §2.1 step 2b). The result is smaller if less data waits, and 0
    /// if the peer has no room.
    pub fn probe_bytes(&self) -> u64 {
        let may_send = self.may_send_data() && self.send.fin_ssn().is_none();
        if !may_send || self.send.next_unsent().is_some() {
            return 0;
        }
        let packets = match (self.rack.probe_due, self.recovery.prefers_new_data()) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => return 0,
        };
        let bytes = u64::from(self.waiting_bytes.min(packets * self.mss()));
        let fits = self.peer_window.usable(self.send.pushed_until()) >= bytes;
        if fits { bytes } else { 0 }
    }

    /// Returns the reason to transmit if a tail loss probe is due.
    pub(super) fn tail_probe_reason(&self) -> Option<TransmitReason> {
        self.rack.probe_due.then_some(TransmitReason::TailProbe)
    }

    /// Forgets the probe: after a timeout its reply has no meaning.
    pub(super) fn forget_tail_probe(&mut self) {
        (self.rack.probe, self.rack.probe_due) = (None, false);
    }
}

/// Evidence in an acknowledgement about the result of a probe.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProbeEvidence {
    /// End of the DSACK block.
    pub(super) duplicate_end: Option<u64>,
    /// True if the acknowledgement is a duplicate without SACK blocks.
    pub(super) plain_duplicate: bool,
}
