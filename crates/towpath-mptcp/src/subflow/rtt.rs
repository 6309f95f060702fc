//! Round-trip time and retransmission timeout (RFC 6298).

use std::time::Duration;

use towpath_net::Instant;

/// The smallest round-trip time is forgotten after this time (Linux `tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);

/// What the round-trip times so far say.
#[derive(Debug, Clone)]
pub(super) struct Rtt {
    smoothed: Option<Duration>,
    deviation: Duration,
    smallest: Option<(Duration, Instant)>,
    initial: Duration,
    bounds: (Duration, Duration),
}

impl Rtt {
    pub(super) fn new(initial: Duration, least: Duration, most: Duration) -> Self {
        let bounds = (least, most);
        Self { smoothed: None, deviation: Duration::ZERO, smallest: None, initial, bounds }
    }

    /// A measurement (§2).
    pub(super) fn sample(&mut self, rtt: Duration) {
        let Some(smoothed) = self.smoothed else {
            self.smoothed = Some(rtt);
            self.deviation = rtt / 2;
            return;
        };
        self.deviation = self.deviation * 3 / 4 + smoothed.abs_diff(rtt) / 4;
        self.smoothed = Some(smoothed * 7 / 8 + rtt / 8);
    }

    /// A measurement that may be the smallest.
    pub(super) fn sample_smallest(&mut self, now: Instant, rtt: Duration) {
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
            self.initial = self.initial.max(Duration::from_secs(3));
        }
    }

    /// Timeout without back-off. The deviation's term is at least the lower bound, as in Linux,
    /// where RFC 6298 §2.4 bounds the sum: a timeout never comes sooner than that after the answer
    /// was expected.
    pub(super) fn timeout(&self) -> Duration {
        let (least, most) = self.bounds;
        let timeout =
            self.smoothed.map_or(self.initial, |srtt| srtt + least.max(self.deviation * 4));
        timeout.min(most)
    }

    /// Timeout after `count` timeouts in a row (§5.5).
    pub(super) fn backed_off(&self, count: u32) -> Duration {
        self.timeout().saturating_mul(1 << count.min(20)).min(self.bounds.1)
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed
    }

    pub(super) fn deviation(&self) -> Duration {
        self.deviation
    }

    pub(super) fn smallest(&self) -> Option<Duration> {
        self.smallest.map(|(rtt, _)| rtt)
    }
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
