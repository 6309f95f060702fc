//! Recorded links in Mahimahi's format: one line per delivery opportunity, in milliseconds.

use crate::Rate;
use crate::config::LinkTrace;

/// Bytes that one delivery opportunity carries.
pub const OPPORTUNITY_BYTES: u32 = 1_504;
/// Largest number of opportunities, more than any real recording has.
const MAX_OPPORTUNITIES: usize = 10_000_000;
/// Period of a trace made from a rate; longer if this time is too short for one opportunity.
const PERIOD_MS: u128 = 10_000;
/// Longest period of a trace: thirty days.
const MAX_PERIOD_MS: u64 = 30 * 24 * 3_600_000;

/// Reason for rejecting a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LinkTraceError {
    /// The trace has no lines.
    #[error("the trace is empty")]
    Empty,
    /// A line that is not a number.
    #[error("line {line}: expected a whole number of milliseconds")]
    NotANumber {
        /// Line number, counted from 1.
        line: usize,
    },
    /// A time is smaller than the one before.
    #[error("line {line}: {ms} ms comes before the line above it")]
    Descending {
        /// Line number, counted from 1.
        line: usize,
        /// The time on that line.
        ms: u64,
    },
    /// The last line, which is the period, is zero.
    #[error("line {line}: the trace must last longer than 0 ms")]
    ZeroPeriod {
        /// Line number, counted from 1.
        line: usize,
    },
    /// A time above the limit of 30 days.
    #[error("line {line}: {ms} ms is more than {MAX_PERIOD_MS} ms (30 days)")]
    TooLate {
        /// Line number, counted from 1.
        line: usize,
        /// The time on that line.
        ms: u64,
    },
    /// More lines than the limit of ten million.
    #[error("the trace has more than {MAX_OPPORTUNITIES} lines")]
    TooLong,
}

impl LinkTrace {
    /// Parses Mahimahi's text format.
    pub fn parse(text: &str) -> Result<Self, LinkTraceError> {
        let mut opportunities_ms = Vec::new();
        let mut previous = 0;
        for (line, content) in (1..).zip(text.lines()) {
            if line > MAX_OPPORTUNITIES {
                return Err(LinkTraceError::TooLong);
            }
            let content = content.trim();
            // `parse` alone would accept a sign.
            if !content.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(LinkTraceError::NotANumber { line });
            }
            let ms: u64 = content.parse().map_err(|_| LinkTraceError::NotANumber { line })?;
            if ms < previous {
                return Err(LinkTraceError::Descending { line, ms });
            }
            if ms > MAX_PERIOD_MS {
                return Err(LinkTraceError::TooLate { line, ms });
            }
            previous = ms;
            opportunities_ms.push(ms);
        }
        match opportunities_ms.last() {
            None => Err(LinkTraceError::Empty),
            Some(0) => Err(LinkTraceError::ZeroPeriod { line: opportunities_ms.len() }),
            Some(_) => Ok(Self { opportunities_ms }),
        }
    }

    /// Creates evenly spread opportunities that carry `rate`, as users of Mahimahi write them for a
    /// fixed rate.
    ///
    /// Times are whole milliseconds, and the opportunities in ten seconds are rounded down to a
    /// whole number.
    pub fn of_rate(rate: Rate) -> Self {
        let opportunity_bits = u128::from(OPPORTUNITY_BYTES) * 8;
        let bits = u128::from(rate.as_bps());
        let count = bits * PERIOD_MS / 1_000 / opportunity_bits;
        let to_u64 = |ms: u128| u64::try_from(ms).unwrap_or(u64::MAX);
        let opportunities_ms = if count == 0 {
            vec![to_u64(opportunity_bits * 1_000 / bits)]
        } else {
            (1..=count).map(|number| to_u64((number * PERIOD_MS).div_ceil(count))).collect()
        };
        Self { opportunities_ms }
    }

    /// Returns the mean rate over one period; `None` for a trace without opportunities or period.
    pub fn mean_rate(&self) -> Option<Rate> {
        let period_ms = u128::from(*self.opportunities_ms.last()?);
        let bits = self.opportunities_ms.len() as u128 * u128::from(OPPORTUNITY_BYTES) * 8;
        let bps = (bits * 1_000).checked_div(period_ms)?;
        Rate::from_bps(u64::try_from(bps).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_keeps_its_lines_in_order() {
        let trace = LinkTrace::parse("0\n3\r\n3\n10\n").unwrap();
        assert_eq!(trace.opportunities_ms, [0, 3, 3, 10]);
        assert_eq!(trace.mean_rate().unwrap().as_bps(), 4 * 1_504 * 8 * 100);
    }

    #[test]
    fn twelve_megabits_are_one_opportunity_a_millisecond() {
        let trace = LinkTrace::of_rate(Rate::from_bps(12_032_000).unwrap());
        assert_eq!(trace.opportunities_ms, (1..=10_000).collect::<Vec<u64>>());
        let slow = LinkTrace::of_rate(Rate::from_bps(100).unwrap());
        assert_eq!(slow.opportunities_ms, [120_320]);
    }

    #[test]
    fn a_bad_trace_is_refused_with_its_line() {
        let cases = [
            ("", LinkTraceError::Empty),
            ("1\n\n2", LinkTraceError::NotANumber { line: 2 }),
            ("1\n2 ms", LinkTraceError::NotANumber { line: 2 }),
            ("+1", LinkTraceError::NotANumber { line: 1 }),
            ("-1", LinkTraceError::NotANumber { line: 1 }),
            ("99999999999999999999999", LinkTraceError::NotANumber { line: 1 }),
            ("5\n4", LinkTraceError::Descending { line: 2, ms: 4 }),
            ("0\n0", LinkTraceError::ZeroPeriod { line: 2 }),
            ("9999999999", LinkTraceError::TooLate { line: 1, ms: 9_999_999_999 }),
        ];
        for (text, error) in cases {
            assert_eq!(LinkTrace::parse(text), Err(error), "{text:?}");
        }
        assert_eq!(LinkTrace::parse(&"1\n".repeat(10_000_001)), Err(LinkTraceError::TooLong));
    }
}
