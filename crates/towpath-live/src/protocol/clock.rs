//! Clock offset between two hosts.

use std::time::Duration;

use towpath_net::Instant;

/// Offset of the server's clock from the client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockOffset {
    /// Nanoseconds to add to the client's time.
    pub nanos: i128,
    /// Maximum error of the offset.
    pub error: Duration,
}

impl ClockOffset {
    /// Converts a point in time from the client's clock to the server's.
    pub fn to_server_time(self, client_time: Instant) -> Instant {
        let nanos = i128::from(client_time.as_nanos()).saturating_add(self.nanos).max(0);
        Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Clock offset estimator, fed by request-reply probes.
///
/// The server read its clock between request and reply, so the error is at most half the round-trip
/// time. The shortest round trip gives the best estimate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClockEstimator {
    best: Option<ClockOffset>,
    count: u32,
}

impl ClockEstimator {
    /// Adds a sample: the request left at `sent`, the reply with the time `server` arrived at
    /// `now`.
    pub fn add_sample(&mut self, sent: Instant, now: Instant, server: Instant) {
        let rtt = now.saturating_since(sent);
        let midpoint = sent + rtt / 2;
        let nanos = i128::from(server.as_nanos()) - i128::from(midpoint.as_nanos());
        // The division may round down, which adds to the error.
        let error = rtt / 2 + Duration::from_nanos(1);
        self.count = self.count.saturating_add(1);
        if self.best.is_none_or(|best| error < best.error) {
            self.best = Some(ClockOffset { nanos, error });
        }
    }

    /// Returns the number of samples.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns the best estimate so far; `None` before the first sample.
    pub fn best(&self) -> Option<ClockOffset> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_error(
            true_offset in -1_000_000_000_000_i64..1_000_000_000_000,
            delays in proptest::collection::vec((0_u64..500_000_000, 0_u64..500_000_000), 1..20),
        ) {
            let mut estimator = ClockEstimator::default();
            let mut now_ns = 2_000_000_000_000_u64;
            for (to_server, from_server) in delays {
                let sent_ns = now_ns;
                let server_ns = (sent_ns + to_server).checked_add_signed(true_offset).unwrap();
                now_ns = sent_ns + to_server + from_server;
                let instant = Instant::from_nanos;
                estimator.add_sample(instant(sent_ns), instant(now_ns), instant(server_ns));
                now_ns += 1_000;
            }
            let best = estimator.best().unwrap();
            let difference = (best.nanos - i128::from(true_offset)).unsigned_abs();
            prop_assert!(difference <= best.error.as_nanos(), "{difference} {:?}", best.error);
        }
    }

    #[test]
    fn a_converted_time_is_never_negative() {
        let offset = ClockOffset { nanos: -5, error: Duration::ZERO };
        assert_eq!(offset.to_server_time(Instant::from_nanos(3)), Instant::ZERO);
        assert_eq!(offset.to_server_time(Instant::from_nanos(9)), Instant::from_nanos(4));
    }
}
