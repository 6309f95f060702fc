//! Reasons that limit a subflow's sending, as far as TCP knows them.

use towpath_net::Instant;

use super::{RecoveryPhase, Subflow};

/// Reason why TCP would send no new data now.
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
    /// The peer's window is full.
    PeerWindow,
}

impl Subflow {
    /// Returns the reason why nothing can be sent; `None`: new data would be sent.
    pub fn tcp_send_limit(&self, now: Instant) -> Option<TcpSendLimit> {
        let mss = u64::from(self.mss());
        if self.cwnd().saturating_sub(self.in_flight()) < mss {
            return Some(self.cwnd_limit());
        }
        if self.pacing_delays(now) {
            // Pacing only spreads a window that is used up within a round trip.
            let cwnd_limited = self.is_cwnd_limited();
            return Some(if cwnd_limited { self.cwnd_limit() } else { TcpSendLimit::Pacing });
        }
        if self.has_queued_data() {
            return Some(TcpSendLimit::PeerWindow);
        }
        (self.room_bytes(now) == 0).then_some(TcpSendLimit::PeerWindow)
    }

    /// Returns the phase that set the congestion window.
    fn cwnd_limit(&self) -> TcpSendLimit {
        let had_loss = self.recovery.phase() != RecoveryPhase::Open
            || self.retransmissions > 0
            || self.recovery.timeouts_total() > 0;
        if had_loss {
            TcpSendLimit::AfterLoss
        } else if self.congestion.cwnd_bytes() < self.congestion.ssthresh_bytes() {
            TcpSendLimit::SlowStart
        } else {
            TcpSendLimit::CongestionAvoidance
        }
    }

    /// Returns true if data waits here to be sent or retransmitted.
    pub fn has_queued_data(&self) -> bool {
        self.send.queued() > 0 || self.send.has_lost()
    }
}
