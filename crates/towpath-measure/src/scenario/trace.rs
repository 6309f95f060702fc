//! Recorded links in Mahimahi's format: one line per delivery opportunity, in milliseconds.

use towpath_net::Rate;
use towpath_net::config::Trace;

/// Bytes that pass at each opportunity.
const OPPORTUNITY_BITS: u128 = 1_504 * 8;
/// A trace made from a rate repeats after this time at the latest.
const PERIOD_MS: u128 = 10_000;

/// Reads a trace; the error is the line (from 1) and what is wrong with it.
pub(super) fn trace_from_text(text: &str) -> Result<Trace, (usize, String)> {
    let mut opportunities_ms: Vec<u64> = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let ms: u64 = line
            .parse()
            .map_err(|_| (i + 1, "is not a whole number of milliseconds".to_owned()))?;
        if opportunities_ms.last().is_some_and(|&last| ms < last) {
            return Err((i + 1, "is earlier than the line before".to_owned()));
        }
        opportunities_ms.push(ms);
    }
    match opportunities_ms.last() {
        None => Err((1, "has no delivery opportunity".to_owned())),
        Some(0) => Err((1, "ends at 0 ms, so it would repeat for ever at once".to_owned())),
        Some(_) => Ok(Trace { opportunities_ms }),
    }
}

/// Evenly spread opportunities that carry `rate`, as users of Mahimahi write them for a fixed rate:
/// whole milliseconds, rounded down to a whole number of opportunities in ten seconds.
pub(super) fn trace_of_rate(rate: Rate) -> Trace {
    let bits = u128::from(rate.as_bps());
    let count = bits * PERIOD_MS / 1_000 / OPPORTUNITY_BITS;
    let opportunities_ms = if count == 0 {
        vec![to_u64(OPPORTUNITY_BITS * 1_000 / bits)]
    } else {
        (1..=count).map(|k| to_u64((k * PERIOD_MS).div_ceil(count))).collect()
    };
    Trace { opportunities_ms }
}

fn to_u64(ms: u128) -> u64 {
    u64::try_from(ms).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_line_by_line() {
        assert_eq!(trace_from_text("0\n5\n5\n12\n").unwrap().opportunities_ms, [0, 5, 5, 12]);
        assert_eq!(trace_from_text("5\n4\n").unwrap_err().0, 2);
        assert_eq!(trace_from_text("5\n\nx\n").unwrap_err().0, 3);
        assert!(trace_from_text("").is_err() && trace_from_text("0\n0\n").is_err());
    }

    #[test]
    fn twelve_megabits_are_one_opportunity_a_millisecond() {
        let trace = trace_of_rate(Rate::from_bps(12_032_000).unwrap());
        assert_eq!(trace.opportunities_ms, (1..=10_000).collect::<Vec<u64>>());
        let slow = trace_of_rate(Rate::from_bps(100).unwrap());
        assert_eq!(slow.opportunities_ms, [120_320]);
    }
}
