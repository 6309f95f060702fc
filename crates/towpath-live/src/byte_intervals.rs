//! Interval arithmetic of received bytes: each interval has the bytes that arrived in it, and the
//! time in which they arrived.
//!
//! A sample may be late, so an interval ends when its bytes were read and not when the sample was
//! due. The intervals of a stream neither overlap nor leave a gap, and their sum is the total.

use std::time::Duration;

use towpath_net::Instant;

/// Bytes and length of one interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ByteInterval {
    /// End of the interval.
    pub(super) end: Instant,
    pub(super) span: Duration,
    pub(super) bytes: u64,
}

/// Meter of one stream and direction.
#[derive(Debug, Clone, Copy)]
pub(super) struct IntervalMeter {
    /// End of the last interval.
    end: Instant,
    /// Bytes of all intervals so far.
    total: u64,
    is_empty: bool,
}

impl Default for IntervalMeter {
    fn default() -> Self {
        Self { end: Instant::ZERO, total: 0, is_empty: true }
    }
}

impl IntervalMeter {
    /// Ends an interval at `at`, when `total` bytes had arrived. Returns `None` if no time has
    /// passed; the bytes then belong to the next interval.
    pub(super) fn advance(&mut self, total: u64, at: Instant) -> Option<ByteInterval> {
        let span = at.saturating_since(self.end);
        if span.is_zero() {
            return None;
        }
        let bytes = total.saturating_sub(self.total);
        *self = Self { end: at, total: self.total.max(total), is_empty: false };
        Some(ByteInterval { end: at, span, bytes })
    }

    /// Ends the last interval. The receiver stopped at `received_until`, possibly long before
    /// `now`; the time in between is not part of the interval.
    ///
    /// Returns `None` for a short interval without data, unless it is the only one.
    pub(super) fn finish(
        &mut self,
        total: u64,
        (received_until, now): (Option<Instant>, Instant),
        period: Duration,
    ) -> Option<ByteInterval> {
        let must_exist = total > self.total || self.is_empty;
        let received_until = received_until.unwrap_or(now).min(now);
        // A read is counted after its time was taken, so a sample in between misses its bytes.
        let end = if must_exist && received_until <= self.end { now } else { received_until };
        let is_short = end.saturating_since(self.end) * 2 < period;
        if is_short && !must_exist {
            return None;
        }
        self.advance(total, end)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PERIOD: Duration = Duration::from_millis(100);
    /// Rate of the line in bytes per microsecond.
    const LINE_RATE: u64 = 6;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    /// Bytes that a line delivers until `micros`.
    fn delivered(micros: u64) -> u64 {
        micros * LINE_RATE
    }

    /// Regression: a late sample counted for the time at which it was due, so that an interval was
    /// faster than the line, and the next one slower.
    #[test]
    fn no_interval_is_faster_than_the_line_if_samples_are_late() {
        let mut meter = IntervalMeter::default();
        for micros in [125_000, 200_000, 431_000, 500_000] {
            let interval = meter.advance(delivered(micros), at(micros)).unwrap();
            assert_eq!(interval.end, at(micros));
            assert_eq!(u128::from(interval.bytes), interval.span.as_micros() * 6, "{interval:?}");
        }
    }

    #[test]
    fn the_last_interval_ends_with_its_receiver() {
        let mut meter = IntervalMeter::default();
        meter.advance(delivered(100_000), at(100_000));
        let mut same = meter;
        let times = (Some(at(160_000)), at(199_000));
        let last = meter.finish(delivered(160_000), times, PERIOD).unwrap();
        assert_eq!((last.end, last.span), (at(160_000), Duration::from_millis(60)));
        assert_eq!(last.bytes, delivered(60_000));
        // No data arrived, and the receiver had stopped.
        assert_eq!(same.finish(delivered(100_000), (Some(at(90_000)), at(190_000)), PERIOD), None);
        // The receiver listened, but no data arrived.
        let silent = same.finish(delivered(100_000), (Some(at(180_000)), at(190_000)), PERIOD);
        assert_eq!(silent.unwrap().bytes, 0);
    }

    #[test]
    fn a_run_shorter_than_a_period_has_one_interval() {
        let finish = |total, times| IntervalMeter::default().finish(total, times, PERIOD).unwrap();
        assert_eq!(finish(0, (None, at(10))).bytes, 0);
        assert_eq!(finish(7, (Some(at(10)), at(20))).span, Duration::from_micros(10));
        assert_eq!(finish(7, (Some(Instant::ZERO), at(20))).span, Duration::from_micros(20));
    }

    proptest! {
        #[test]
        fn the_sum_of_all_intervals_is_the_total_and_their_times_are_contiguous(
            steps in prop::collection::vec((0_u64..200_000, 0_u64..1_000_000), 0..20),
            tail in (1_u64..200_000, 0_u64..1_000),
            idle in 0_u64..300_000,
        ) {
            let (mut meter, mut intervals) = (IntervalMeter::default(), Vec::new());
            let (mut now, mut total) = (0, 0);
            for (micros, bytes) in steps {
                (now, total) = (now + micros, total + bytes);
                intervals.extend(meter.advance(total, at(now)));
            }
            let end = now + tail.0;
            total += tail.1;
            intervals.extend(meter.finish(total, (Some(at(end)), at(end + idle)), PERIOD));
            let sum: u64 = intervals.iter().map(|interval| interval.bytes).sum();
            prop_assert_eq!(sum, total);
            let mut previous_end = Instant::ZERO;
            for interval in &intervals {
                prop_assert_eq!(previous_end + interval.span, interval.end);
                previous_end = interval.end;
            }
            prop_assert!(previous_end <= at(end));
        }
    }
}
