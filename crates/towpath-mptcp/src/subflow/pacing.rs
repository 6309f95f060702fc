//! Pacing, and the size of super-segments that follows from the pacing rate.

use std::time::Duration;

use towpath_net::Instant;

use super::{Subflow, Timer};

/// Send time of the next packet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pacer {
    next_send_at: Instant,
}

impl Subflow {
    /// Returns the pacing rate in bytes per second: a share of the window for each round-trip time.
    pub(super) fn pacing_rate(&self) -> u64 {
        let Some(nanos) = self.rtt.smoothed_nanos().map(|srtt| srtt.max(1)) else {
            return u64::MAX;
        };
        let window = self.cwnd().max(self.send.in_flight());
        let percent = u64::from(self.congestion.pacing_percent());
        // Computed for every decision, so the usual case avoids a wide division.
        if let Some(scaled_window) =
            percent.checked_mul(10_000_000).and_then(|factor| window.checked_mul(factor))
        {
            return scaled_window / nanos;
        }
        let scaled_window = u128::from(window) * u128::from(percent) * 10_000_000;
        u64::try_from(scaled_window / u128::from(nanos)).unwrap_or(u64::MAX)
    }

    /// Returns true if pacing delays the next packet.
    pub(super) fn pacing_delays(&self, now: Instant) -> bool {
        self.config.pacing && self.pacer.next_send_at > now
    }

    /// Advances the pacer after `bytes` were sent. The first window is not paced, as the rate is
    /// not known then.
    pub(super) fn advance_pacer(&mut self, now: Instant, bytes: u64) {
        let initial_window_bytes =
            u64::from(self.config.initial_window_packets) * u64::from(self.mss());
        if !self.config.pacing || self.sent_bytes <= initial_window_bytes {
            return;
        }
        let rate = self.pacing_rate();
        if rate == 0 || rate == u64::MAX {
            return;
        }
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
        let gap = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.pacer.next_send_at = self.pacer.next_send_at.max(now) + gap;
        self.timers.set_exactly(Timer::Pacing, self.pacer.next_send_at);
    }

    /// Returns the maximum bytes of one push now (TSO autosizing,
    /// [`super::SubflowConfig::super_segment_bytes`]); a multiple of the MSS.
    pub fn quantum_bytes(&self) -> u32 {
        let mss = self.mss();
        let max_bytes = self.config.super_segment_bytes;
        let bytes = if self.config.tso_autosizing {
            // Data of about a millisecond, and more with a short round-trip time: a burst does less
            // harm to a near peer (Linux `tcp_tso_rtt_log`).
            let rtt_shift = self.rtt.min().map_or(u128::MAX, |rtt| rtt.as_micros() >> 9);
            let extra_bytes = u32::try_from(rtt_shift)
                .ok()
                .and_then(|shift| max_bytes.checked_shr(shift))
                .unwrap_or(0);
            let rate_bytes = u32::try_from(self.pacing_rate() >> 10).unwrap_or(u32::MAX);
            max_bytes.min(rate_bytes.saturating_add(extra_bytes)).max(2 * mss)
        } else {
            max_bytes
        };
        (bytes.min(max_bytes) / mss).max(1) * mss
    }
}
