//! Rates in bits per second.

use std::fmt;
use std::time::Duration;

/// A rate in bits per second (decimal multiples, as usual in networking). Never zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Creates a rate of `bits` per second; `None` for zero, at which no packet would ever leave.
    pub const fn from_bps(bits: u64) -> Option<Self> {
        if bits == 0 { None } else { Some(Self(bits)) }
    }

    /// Returns the rate in bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Returns the time that `bytes` take at this rate, rounded down to nanoseconds.
    pub fn time_for(self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(self.0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Returns the bytes that pass in `span`, rounded down.
    pub fn bytes_in(self, span: Duration) -> u64 {
        let bytes = u128::from(self.0).saturating_mul(span.as_nanos()) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, size) in [("Gbit/s", 1_000_000_000), ("Mbit/s", 1_000_000), ("kbit/s", 1_000)] {
            if self.0 >= size {
                let thousandths = u128::from(self.0) * 1_000 / u128::from(size);
                let text = format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000);
                let text = text.trim_end_matches('0').trim_end_matches('.');
                return write!(f, "{text} {unit}");
            }
        }
        write!(f, "{} bit/s", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_prints_in_the_largest_fitting_unit() {
        let text = |bits| Rate::from_bps(bits).unwrap().to_string();
        assert_eq!(text(40_000_000), "40 Mbit/s");
        assert_eq!(text(2_500_000_000), "2.5 Gbit/s");
        assert_eq!(text(999), "999 bit/s");
    }

    #[test]
    fn time_and_bytes_are_inverse_at_a_round_rate() {
        let rate = Rate::from_bps(100_000_000).unwrap();
        assert_eq!(rate.time_for(1_250), Duration::from_micros(100));
        assert_eq!(rate.bytes_in(Duration::from_micros(100)), 1_250);
    }
}
