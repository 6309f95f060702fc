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
    pub fn to_server_time(self, at: Instant) -> Instant {
        let nanos = i128::from(at.as_nanos()).saturating_add(self.nanos).max(0);
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
    /// Adds a sample: the request left at `asked`, the reply with the time `server` arrived at
    /// `now`.
    pub fn add_sample(&mut self, asked: Instant, now: Instant, server: Instant) {
        let trip = now.saturating_since(asked);
        let middle = asked + trip / 2;
        let nanos = i128::from(server.as_nanos()) - i128::from(middle.as_nanos());
        // The division may round down, which adds to the error.
        let error = trip / 2 + Duration::from_nanos(1);
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
            ahead in -1_000_000_000_000_i64..1_000_000_000_000,
            trips in proptest::collection::vec((0_u64..500_000_000, 0_u64..500_000_000), 1..20),
        ) {
            let mut probes = ClockEstimator::default();
            let mut now = 2_000_000_000_000_u64;
            for (there, back) in trips {
                let asked = now;
                let server = (asked + there).checked_add_signed(ahead).unwrap();
                now = asked + there + back;
                let at = Instant::from_nanos;
                probes.add_sample(at(asked), at(now), at(server));
                now += 1_000;
            }
            let best = probes.best().unwrap();
            let wrong = (best.nanos - i128::from(ahead)).unsigned_abs();
            prop_assert!(wrong <= best.error.as_nanos(), "{wrong} {:?}", best.error);
        }
    }

    #[test]
    fn a_clock_that_would_be_before_its_beginning_is_at_it() {
        let offset = ClockOffset { nanos: -5, error: Duration::ZERO };
        assert_eq!(offset.to_server_time(Instant::from_nanos(3)), Instant::ZERO);
        assert_eq!(offset.to_server_time(Instant::from_nanos(9)), Instant::from_nanos(4));
    }
}
