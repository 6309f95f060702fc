//! Round-trip time and retransmission timeout (RFC 6298).

use std::time::Duration;

use towpath_net::Instant;

/// Lifetime of the minimum round-trip time (Linux `tcp_min_rtt_wlen`).
const MIN_RTT_WINDOW: Duration = Duration::from_secs(300);
/// Initial timeout after a retransmitted SYN (RFC 6298 §5.7).
const SYN_RETRANSMITTED_RTO_US: u32 = 3_000_000;

/// Round-trip time estimator. Keeps nanoseconds as integers: with [`Duration`], each step of the
/// filters would take several divisions for every acknowledgement.
#[derive(Debug, Clone)]
pub(super) struct Rtt {
    /// Smoothed round-trip time; 0: nothing was measured.
    srtt_ns: u64,
    rttvar_ns: u64,
    /// Minimum round-trip time; [`u64::MAX`]: not known.
    min_rtt_ns: u64,
    min_rtt_at: Instant,
    initial_us: u32,
    min_rto_us: u32,
    max_rto_us: u32,
    mdev: MdevTracker,
}

/// Deviation of round-trip times, as Linux keeps it (`tcp_rtt_estimator`): four times the
/// deviation.
#[derive(Debug, Clone, Copy, Default)]
struct MdevTracker {
    /// Smoothed deviation after the last sample.
    mdev_us: u32,
    /// Maximum deviation in this round.
    mdev_max_us: u32,
    /// Deviation used for the timeout; 0: deviations are not kept by rounds.
    rttvar_us: u32,
    /// End of the round: the acknowledged offset, as on the wire, without its upper 32 bits.
    round_end: u32,
}

impl MdevTracker {
    fn from_first_sample(rtt_us: u32, min_rto_us: u32, sent_until: u64) -> Self {
        let mdev_us = rtt_us.saturating_mul(2);
        let mdev_max_us = mdev_us.max(min_rto_us);
        Self { mdev_us, mdev_max_us, rttvar_us: mdev_max_us, round_end: sent_until as u32 }
    }

    /// Adds a sample `rtt_us` and compares it with the expected value.
    fn sample(&mut self, expected_us: u32, rtt_us: u32) {
        let error_us = expected_us.abs_diff(rtt_us);
        let deviation_us = self.mdev_us / 4;
        // An early reply does not increase the uncertainty of the next.
        let growth_us =
            error_us.saturating_sub(deviation_us) / if rtt_us < expected_us { 8 } else { 1 };
        self.mdev_us =
            self.mdev_us.saturating_add(growth_us) - deviation_us.saturating_sub(error_us);
        self.mdev_max_us = self.mdev_max_us.max(self.mdev_us);
        self.rttvar_us = self.rttvar_us.max(self.mdev_max_us);
    }

    fn end_round(&mut self, min_rto_us: u32, sent_until: u64) {
        self.rttvar_us -= self.rttvar_us.saturating_sub(self.mdev_max_us) / 4;
        (self.round_end, self.mdev_max_us) = (sent_until as u32, min_rto_us);
    }
}

impl Rtt {
    pub(super) fn new(initial: Duration, min: Duration, max: Duration) -> Self {
        Self {
            srtt_ns: 0,
            rttvar_ns: 0,
            min_rtt_ns: u64::MAX,
            min_rtt_at: Instant::ZERO,
            initial_us: micros(initial),
            min_rto_us: micros(min),
            max_rto_us: micros(max),
            mdev: MdevTracker::default(),
        }
    }

    /// Adds a sample by rounds, as Linux does: everything below `acked` is acknowledged, and
    /// everything below `sent_until` sent.
    pub(super) fn sample_in_round(&mut self, rtt: Duration, acked: u64, sent_until: u64) {
        let expected = self.smoothed().map(micros);
        match expected.filter(|_| self.mdev.rttvar_us > 0) {
            Some(expected) => {
                self.mdev.sample(expected, micros(rtt));
                if (acked as u32).wrapping_sub(self.mdev.round_end).cast_signed() > 0 {
                    self.mdev.end_round(self.min_rto_us, sent_until);
                }
            }
            None => {
                self.mdev =
                    MdevTracker::from_first_sample(micros(rtt), self.min_rto_us, sent_until);
            }
        }
        self.sample(rtt);
        self.rttvar_ns = u64::from(self.mdev.mdev_us / 4) * 1_000;
    }

    /// Adds a round-trip time measurement (§2).
    pub(super) fn sample(&mut self, rtt: Duration) {
        let rtt = nanos(rtt);
        let srtt_ns = self.srtt_ns;
        if srtt_ns == 0 {
            self.srtt_ns = rtt.max(1);
            self.rttvar_ns = rtt / 2;
            return;
        }
        let deviation = self.rttvar_ns.saturating_mul(3) / 4;
        self.rttvar_ns = deviation.saturating_add(srtt_ns.abs_diff(rtt) / 4);
        self.srtt_ns = (srtt_ns.saturating_mul(7) / 8).saturating_add(rtt / 8).max(1);
    }

    /// Adds a sample for the minimum round-trip time.
    pub(super) fn sample_min(&mut self, now: Instant, rtt: Duration) {
        let rtt = nanos(rtt);
        let is_current =
            self.min_rtt_ns < rtt && now.saturating_since(self.min_rtt_at) < MIN_RTT_WINDOW;
        if !is_current {
            (self.min_rtt_ns, self.min_rtt_at) = (rtt, now);
        }
    }

    /// Sets a timeout of three seconds, as the SYN was retransmitted and not measured (§5.7).
    pub(super) fn on_unmeasured_handshake(&mut self) {
        if self.srtt_ns == 0 {
            self.initial_us = self.initial_us.max(SYN_RETRANSMITTED_RTO_US);
        }
    }

    /// Returns the timeout without back-off. The deviation's term is at least the lower bound, as
    /// in Linux; RFC 6298 §2.4 bounds the sum. A timeout is thus at least that long after the
    /// expected reply.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_nanos(self.timeout_nanos())
    }

    fn timeout_nanos(&self) -> u64 {
        let min_rto = u64::from(self.min_rto_us) * 1_000;
        let round_rttvar_ns = u64::from(self.mdev.rttvar_us) * 1_000;
        let deviation =
            if round_rttvar_ns > 0 { round_rttvar_ns } else { self.rttvar_ns.saturating_mul(4) };
        let timeout = match self.srtt_ns {
            0 => u64::from(self.initial_us) * 1_000,
            srtt => srtt.saturating_add(deviation.max(min_rto)),
        };
        timeout.min(u64::from(self.max_rto_us) * 1_000)
    }

    /// Returns the timeout after `count` timeouts (§5.5).
    pub(super) fn backed_off_timeout(&self, count: u32) -> Duration {
        let timeout = self.timeout_nanos().saturating_mul(1 << count.min(20));
        Duration::from_nanos(timeout.min(u64::from(self.max_rto_us) * 1_000))
    }

    pub(super) fn smoothed(&self) -> Option<Duration> {
        self.smoothed_nanos().map(Duration::from_nanos)
    }

    pub(super) fn smoothed_nanos(&self) -> Option<u64> {
        (self.srtt_ns > 0).then_some(self.srtt_ns)
    }

    pub(super) fn deviation(&self) -> Duration {
        Duration::from_nanos(self.rttvar_ns)
    }

    pub(super) fn min(&self) -> Option<Duration> {
        (self.min_rtt_ns != u64::MAX).then(|| Duration::from_nanos(self.min_rtt_ns))
    }
}

fn micros(span: Duration) -> u32 {
    u32::try_from(span.as_micros()).unwrap_or(u32::MAX)
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
        assert_eq!(rtt.backed_off_timeout(1), settled * 2);
        assert_eq!(rtt.backed_off_timeout(30), 120_000 * MS);
    }

    #[test]
    fn as_linux_the_largest_deviation_counts_and_decays_by_quarters() {
        let mut rtt = Rtt::new(1000 * MS, 200 * MS, 120_000 * MS);
        rtt.sample_in_round(100 * MS, 1, 100);
        assert_eq!(rtt.timeout(), 300 * MS);
        rtt.sample_in_round(300 * MS, 50, 200);
        assert_eq!(rtt.timeout(), (125 + 350) * MS); // 200 + (200 - 50)
        rtt.sample_in_round(125 * MS, 150, 200);
        assert_eq!(rtt.timeout(), (125 + 350) * MS, "the round ends, with this as its worst");
        rtt.sample_in_round(125 * MS, 300, 400);
        assert_eq!(rtt.timeout(), Duration::from_micros(125_000 + 312_500)); // 350 - 150 / 4
    }

    #[test]
    fn as_linux_a_shorter_round_trip_hardly_counts_as_deviation() {
        let mut rtt = Rtt::new(1000 * MS, 200 * MS, 120_000 * MS);
        rtt.sample_in_round(500 * MS, 1, 100);
        rtt.sample_in_round(100 * MS, 50, 100);
        assert_eq!(rtt.deviation(), Duration::from_micros(254_687)); // (1000 + 150 / 8) / 4
    }

    #[test]
    fn the_minimum_rtt_expires_after_five_minutes() {
        let mut rtt = Rtt::new(MS, MS, MS);
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        rtt.sample_min(at(0), 10 * MS);
        rtt.sample_min(at(10), 20 * MS);
        assert_eq!(rtt.min(), Some(10 * MS));
        rtt.sample_min(at(301), 20 * MS);
        assert_eq!(rtt.min(), Some(20 * MS));
    }
}
