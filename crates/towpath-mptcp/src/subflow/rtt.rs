//! Round-trip time and retransmission timeout (RFC 6298).

use std::time::Duration;

use towpath_net::Instant;

/// The smallest round-trip time is forgotten after this time (Linux `tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);
/// First timeout after a SYN that was repeated, in nanoseconds (RFC 6298 §5.7).
const HANDSHAKE_REPEATED: u64 = 3_000_000_000;

/// What the round-trip times so far say. Nanoseconds as numbers: with [`Duration`] each step of the
/// filters would be several divisions, for every acknowledgement.
#[derive(Debug, Clone)]
pub(super) struct Rtt {
    smoothed: Option<u64>,
    deviation: u64,
    smallest: Option<(u64, Instant)>,
    initial: u64,
    bounds: (u64, u64),
}

impl Rtt {
    pub(super) fn new(initial: Duration, least: Duration, most: Duration) -> Self {
        let (initial, bounds) = (nanos(initial), (nanos(least), nanos(most)));
        Self { smoothed: None, deviation: 0, smallest: None, initial, bounds }
    }

    /// A measurement (§2).
    pub(super) fn sample(&mut self, rtt: Duration) {
        let rtt = nanos(rtt);
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.deviation = rtt / 2;
            return;
        };
        let deviation = self.deviation.saturating_mul(3) / 4;
        self.deviation = deviation.saturating_add(smoothed.abs_diff(rtt) / 4);
        self.smoothed = Some((smoothed.saturating_mul(7) / 8).saturating_add(rtt / 8));
    }

    /// A measurement that may be the smallest.
    pub(super) fn sample_smallest(&mut self, now: Instant, rtt: Duration) {
        let rtt = nanos(rtt);
        let keep = self.smallest.is_some_and(|(smallest, at)| {
            smallest < rtt && now.saturating_since(at) < MIN_RTT_WINDOW
        });
        if !keep {
            self.smallest = Some((rtt, now));
        }
    }

    /// The SYN was repeated and nothing could be measured: three seconds (§5.7).
    pub(super) fn without_handshake_sample(&mut self) {
        if self.smoothed.is_none() {
            self.initial = self.initial.max(HANDSHAKE_REPEATED);
        }
    }

    /// Timeout without back-off. The deviation's term is at least the lower bound, as in Linux,
    /// where RFC 6298 §2.4 bounds the sum: a timeout never comes sooner than that after the answer
    /// was expected.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos())
    }

    fn timeout_nanos(&self) -> u64 {
        let (least, most) = self.bounds;
        let late = self.deviation.saturating_mul(4).max(least);
        self.smoothed.map_or(self.initial, |srtt| srtt.saturating_add(late)).min(most)
    }

    /// Timeout after `count` timeouts (§5.5).
    pub(super) fn backed_off(&self, count: u32) -> Duration {
        let timeout = self.timeout_nanos().saturating_mul(1 << count.min(20));
        Duration::from_nanos(timeout.min(self.bounds.1))
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed.map(Duration::from_nanos)
    }

    pub(super) fn smoothed_nanos(&self) -> Option<u64> {
        self.smoothed
    }

    pub(super) fn deviation(&self) -> Duration {
        Duration::from_nanos(self.deviation)
    }

    pub(super) fn smallest(&self) -> Option<Duration> {
        self.smallest.map(|(rtt, _)| Duration::from_nanos(rtt))
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn timeouts_follow_the_samples_within_their_bounds() {
        let mut rtt = Rtt::new(1000 * MS, 200 * MS, 120_000 * MS);
        assert_eq!(rtt.timeout(), 1000 * MS);
        rtt.sample(100 * MS);
        assert_eq!(rtt.timeout(), 300 * MS); // 100 + 4 · 50
        rtt.sample(500 * MS);
        assert_eq!(rtt.smoothed(), Some(150 * MS)); // 7/8 · 100 + 1/8 · 500
        assert_eq!(rtt.timeout(), (150 + 550) * MS); // deviation 3/4 · 50 + 1/4 · 400
        for _ in 0..200 {
            rtt.sample(100 * MS);
        }
        let settled = rtt.timeout();
        assert!(settled >= 299 * MS && settled <= 301 * MS, "{settled:?}");
        assert_eq!(rtt.backed_off(1), settled * 2);
        assert_eq!(rtt.backed_off(30), 120_000 * MS);
    }

    #[test]
    fn the_smallest_is_forgotten_after_five_minutes() {
        let mut rtt = Rtt::new(MS, MS, MS);
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        rtt.sample_smallest(at(0), 10 * MS);
        rtt.sample_smallest(at(10), 20 * MS);
        assert_eq!(rtt.smallest(), Some(10 * MS));
        rtt.sample_smallest(at(301), 20 * MS);
        assert_eq!(rtt.smallest(), Some(20 * MS));
    }
}
