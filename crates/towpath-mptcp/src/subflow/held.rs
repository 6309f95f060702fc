//! What holds a subflow back, as far as TCP knows it.

use towpath_net::Instant;

use super::{RecoveryPhase, Subflow};

/// Why TCP would send nothing now, whatever it were given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TcpSendLimit {
    /// The next packet is not due yet.
    Pacing,
    /// The congestion window, in slow start, before any loss.
    SlowStart,
    /// The congestion window, after a loss.
    AfterLoss,
    /// The congestion window, in congestion avoidance, before any loss.
    CongestionAvoidance,
    /// The peer's window.
    PeerWindow,
}

impl Subflow {
    /// Why nothing can be sent; `None`: new data would go.
    pub fn tcp_send_limit(&self, now: Instant) -> Option<TcpSendLimit> {
        let mss = u64::from(self.mss());
        if self.cwnd().saturating_sub(self.in_flight()) < mss {
            return Some(self.cwnd_limit());
        }
        if self.paced(now) {
            // Pacing only spreads what a window lets go that is used up within a round trip.
            let by_window = self.is_cwnd_limited();
            return Some(if by_window { self.cwnd_limit() } else { TcpSendLimit::Pacing });
        }
        if self.has_queued_data() {
            return Some(TcpSendLimit::PeerWindow);
        }
        (self.room_bytes(now) == 0).then_some(TcpSendLimit::PeerWindow)
    }

    /// What the congestion window is after.
    fn cwnd_limit(&self) -> TcpSendLimit {
        let lost = self.recovery.phase() != RecoveryPhase::Open
            || self.retransmissions > 0
            || self.recovery.timeouts_total() > 0;
        if lost {
            TcpSendLimit::AfterLoss
        } else if self.congestion.cwnd_bytes() < self.congestion.ssthresh_bytes() {
            TcpSendLimit::SlowStart
        } else {
            TcpSendLimit::CongestionAvoidance
        }
    }

    /// Whether there is data here that is to be sent, or sent again.
    pub fn has_queued_data(&self) -> bool {
        self.send.queued() > 0 || self.send.has_lost()
    }
}
