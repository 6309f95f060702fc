//! What holds a subflow back, as far as TCP knows it.

use towpath_net::Instant;

use super::{RecoveryPhase, Subflow};

/// Why TCP would send nothing now, whatever it were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldBy {
    /// The next packet is not due yet.
    Pacing,
    /// The congestion window, in slow start, before any loss.
    SlowStart,
    /// The congestion window, after a loss.
    Loss,
    /// The congestion window, in congestion avoidance, before any loss.
    CongestionAvoidance,
    /// The peer's window.
    PeerWindow,
}

impl Subflow {
    /// Why nothing can be sent; `None`: new data would go.
    pub fn held_by(&self, now: Instant) -> Option<HeldBy> {
        let mss = u64::from(self.mss());
        if self.cwnd().saturating_sub(self.in_flight()) < mss {
            return Some(self.window_state());
        }
        if self.paced(now) {
            // Pacing only spreads what a window lets go that is used up within a round trip.
            let by_window = self.is_cwnd_limited();
            return Some(if by_window { self.window_state() } else { HeldBy::Pacing });
        }
        if self.has_something_queued() {
            return Some(HeldBy::PeerWindow);
        }
        (self.room_bytes(now) == 0).then_some(HeldBy::PeerWindow)
    }

    /// What the congestion window is after.
    fn window_state(&self) -> HeldBy {
        let lost = self.recovery.phase() != RecoveryPhase::Open
            || self.retransmissions > 0
            || self.recovery.timeouts_total() > 0;
        if lost {
            HeldBy::Loss
        } else if self.congestion.cwnd_bytes() < self.congestion.ssthresh_bytes() {
            HeldBy::SlowStart
        } else {
            HeldBy::CongestionAvoidance
        }
    }

    /// Whether there is data here that is to be sent, or sent again.
    pub fn has_something_queued(&self) -> bool {
        self.send.queued() > 0 || self.send.has_lost()
    }
}
