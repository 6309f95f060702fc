//! Loss detection by time, and tail loss probes (RFC 8985).
//!
//! The reordering timer is set to the earliest time at which one more packet counts as lost, where
//! RFC 8985 §6.2 step 5 waits for the last one: each packet is judged by the same rule, only sooner.

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;
use towpath_net::Instant;

use super::delivery::Delivery;
use super::send_queue::RackWindow;
use super::{Subflow, TcpState, Timer, TransmitReason};

/// Packets that must arrive before a hole counts as a loss (RFC 5681 §3.2, RFC 6675 §2).
pub(super) const DUP_THRESH: u64 = 3;
/// Recoveries after which a widened reordering window shrinks again (RFC 8985 §6.2 step 4).
const REO_WND_PERSIST: u32 = 16;
/// Longest delay of an acknowledgement that must be expected of a peer (RFC 8985 §7.2).
const MAX_PEER_ACK_DELAY: Duration = Duration::from_millis(200);

/// State of RACK and of the tail loss probe.
#[derive(Debug, Clone, Default)]
pub(super) struct Rack {
    /// The delivered transmission that was sent last: time and end.
    newest: Option<(Instant, u64)>,
    /// Its round-trip time.
    rtt: Duration,
    /// Highest offset delivered.
    pub(super) highest: u64,
    reordering_seen: bool,
    /// The window in quarters of the smallest round-trip time, less one.
    widened: u32,
    /// Recoveries until it shrinks again.
    wide_for: u32,
    /// A DSACK counts once until this is acknowledged.
    round_end: Option<u64>,
    probe: Option<TailProbe>,
    /// The next transmission is a probe.
    pub(super) probe_due: bool,
    /// No round-trip time was measured since the last probe.
    unmeasured: bool,
}

/// A tail loss probe that is not yet answered.
#[derive(Debug, Clone, Copy)]
struct TailProbe {
    /// What was sent when it left.
    end: u64,
    /// It repeated data.
    repeated: bool,
}

impl Rack {
    /// What was delivered (RFC 8985 §6.2 steps 1 to 3).
    pub(super) fn note(&mut self, now: Instant, delivery: &Delivery) {
        if let Some(newest) = delivery.newest {
            self.rtt = now.saturating_since(newest.0);
            self.newest = self.newest.max(Some(newest));
        }
        self.highest = self.highest.max(delivery.highest);
        self.reordering_seen |= delivery.reordered;
    }

    /// The peer had something twice: the window was too small (step 4).
    pub(super) fn note_duplicate(&mut self, acked_until: u64, sent_until: u64) {
        if self.round_end.is_none_or(|end| acked_until >= end) {
            self.round_end = Some(sent_until);
            self.widened = self.widened.saturating_add(1);
            self.wide_for = REO_WND_PERSIST;
        }
    }

    /// A recovery has ended.
    pub(super) fn note_recovered(&mut self) {
        self.wide_for = self.wide_for.saturating_sub(1);
        if self.wide_for == 0 {
            self.widened = 0;
        }
    }

    /// How long after the newest delivered one anything sent before it counts as in flight.
    fn horizon(&self, window: Duration) -> Option<RackWindow> {
        Some(RackWindow { newest: self.newest?, wait: self.rtt + window })
    }

    /// A probe is on its way.
    pub(super) fn note_probe(&mut self, end: u64, repeated: bool) {
        self.probe_due = false;
        self.probe = Some(TailProbe { end, repeated });
        self.unmeasured = true;
    }

    /// The path is known to reorder.
    pub(super) fn reordering_seen(&self) -> bool {
        self.reordering_seen
    }

    /// A round-trip time was measured.
    pub(super) fn note_measured(&mut self) {
        self.unmeasured = false;
    }
}

impl Subflow {
    fn uses_rack(&self) -> bool {
        self.config.rack && self.sack_on
    }

    fn reordering_window(&self) -> Duration {
        let rack = &self.rack;
        let enough = DUP_THRESH * u64::from(self.mss());
        let hurry = self.phase() != RecoveryPhase::Open || self.send.sacked_bytes() >= enough;
        if !rack.reordering_seen && hurry {
            return Duration::ZERO;
        }
        let quarter = self.rtt.min().unwrap_or_default() / 4;
        let widest = self.rtt.smoothed().unwrap_or_default();
        quarter.saturating_mul(rack.widened.saturating_add(1)).min(widest)
    }

    /// Marks what must be lost; true if something is newly lost.
    pub(super) fn detect_losses(&mut self, now: Instant) -> bool {
        let before = self.send.lost_bytes();
        if self.uses_rack() {
            self.timers.clear(Timer::Reordering);
            let horizon = self.rack.horizon(self.reordering_window());
            let again = horizon.and_then(|horizon| self.send.detect_by_time(now, &horizon));
            if let Some(again) = again {
                self.timers.set(Timer::Reordering, again);
            }
        } else if self.sack_on {
            self.send.detect_by_bytes((DUP_THRESH - 1) * u64::from(self.mss()));
        } else if self.recovery.enough_duplicates() {
            self.send.mark_oldest_lost();
        }
        self.send.lost_bytes() > before
    }

    /// What RACK judges as lost at a retransmission timeout (RFC 8985 §6.3): sent before this time.
    pub(super) fn lost_if_sent_until(&self, now: Instant) -> Instant {
        let horizon = self.rack.horizon(self.reordering_window()).filter(|_| self.uses_rack());
        horizon.map_or(now, |horizon| now - horizon.wait)
    }

    pub(super) fn on_reordering_timeout(&mut self, now: Instant) {
        let in_flight = self.send.in_flight();
        if self.detect_losses(now) {
            self.note_losses(now, in_flight);
        }
        self.arm_retransmission(now);
    }

    /// RFC 8985 §7.2: after new data was sent, or something was acknowledged.
    pub(super) fn arm_tail_probe(&mut self, now: Instant) {
        // RFC 8985 §7.3: one probe at a time, and none before its round trip is known.
        let probed = self.rack.probe.is_some() || self.rack.unmeasured;
        let idle = self.send.outstanding() == 0 || probed;
        let calm = self.phase() == RecoveryPhase::Open && self.send.sacked_bytes() == 0;
        if idle || !calm || !self.uses_rack() || self.rack.probe_due {
            return self.timers.clear(Timer::TailProbe);
        }
        let delay = match self.rtt.smoothed() {
            // One packet alone may be acknowledged late.
            Some(srtt) if self.send.outstanding() <= u64::from(self.mss()) => {
                2 * srtt + MAX_PEER_ACK_DELAY
            }
            Some(srtt) => 2 * srtt,
            None => Duration::from_secs(1),
        };
        let timeout = self.timers.get(Timer::Retransmission).unwrap_or(Instant::MAX);
        let at = (now + delay).min(timeout);
        self.timers.set(Timer::TailProbe, at);
    }

    /// New data was sent: as [`Subflow::arm_tail_probe`]; in Linux never later than the oldest data
    /// times out by itself, whatever was acknowledged since it was sent (`tcp_rto_delta_us`).
    pub(super) fn arm_tail_probe_behind(&mut self, now: Instant) {
        self.arm_tail_probe(now);
        let Some(at) = self.timers.get(Timer::TailProbe).filter(|_| self.config.measures_as_linux)
        else {
            return;
        };
        let oldest = self.send.oldest().map(|record| record.sent_at + self.rtt.timeout());
        if let Some(due) = oldest.filter(|due| *due > now && *due < at) {
            self.timers.set(Timer::TailProbe, due);
        }
    }

    /// RFC 8985 §7.3: new data if there is some, else the last packet again.
    pub(super) fn on_tail_probe(&mut self, now: Instant) {
        if self.send.outstanding() > 0 && self.state != TcpState::Closed {
            self.rack.probe_due = true;
        }
        self.rearm_retransmission(now);
    }

    /// RFC 8985 §7.4: what the answer to a probe says. A repeated packet that was needed hides a loss
    /// from congestion control, which is told here.
    pub(super) fn on_probe_acked(&mut self, now: Instant, ack: u64, told: &ProbeEvidence) {
        let Some(probe) = self.rack.probe.filter(|probe| ack >= probe.end) else { return };
        if !probe.repeated || told.duplicate_end == Some(probe.end) {
            self.rack.probe = None;
        } else if ack > probe.end {
            self.rack.probe = None;
            if self.phase() == RecoveryPhase::Open {
                self.on_tlp_loss_repair(now);
            }
        } else if told.plain_duplicate {
            self.rack.probe = None;
        }
    }

    /// How much new data finds out what repeated data cannot, whatever the congestion window says: for
    /// the tail loss probe that is due a packet, after a timeout that may have been spurious two (RFC
    /// 5682 §2.1 step 2b), or all that waits if that is less; 0 if the peer has no room for it.
    pub fn probe_bytes(&self) -> u64 {
        let sends = self.may_send_data() && self.send.fin_ssn().is_none();
        if !sends || self.send.next_unsent().is_some() {
            return 0;
        }
        let packets = match (self.rack.probe_due, self.recovery.prefers_new_data()) {
            (true, _) => 1,
            (false, true) => 2,
            (false, false) => return 0,
        };
        let wanted = u64::from(self.waiting_bytes.min(packets * self.mss()));
        let fits = self.peer_window.usable(self.send.pushed_until()) >= wanted;
        if fits { wanted } else { 0 }
    }

    /// The probe itself.
    pub(super) fn probe_reason(&self) -> Option<TransmitReason> {
        self.rack.probe_due.then_some(TransmitReason::TailProbe)
    }

    /// After a timeout a probe tells nothing any more.
    pub(super) fn forget_probe(&mut self) {
        (self.rack.probe, self.rack.probe_due) = (None, false);
    }
}

/// What an acknowledgement says about a probe.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProbeEvidence {
    /// End of the DSACK block.
    pub(super) duplicate_end: Option<u64>,
    /// It repeats the one before, without SACK blocks.
    pub(super) plain_duplicate: bool,
}
