//! Numbers for people: the functions of [`format`], and further formats for charts and tables.

use std::time::Duration;

use crate::format;

/// Formats a rate with its unit: `57.9 Mbit/s`.
pub fn rate(bps: f64) -> String {
    format::rate(bps)
}

/// Formats bytes with a decimal unit: `31.2 MB`.
pub fn bytes(bytes: f64) -> String {
    format::bytes(bytes as u64)
}

/// Formats a duration given in nanoseconds: `310 ms`.
pub fn time(ns: f64) -> String {
    format::time(Duration::from_nanos(ns as u64))
}

/// Formats a chosen period: `100 ms`, `1 s`.
pub fn period(ns: u64) -> String {
    if ns >= 1_000_000_000 { short_moment(ns as f64 / 1e9) } else { time(ns as f64) }
}

/// Formats a moment of a run as `3.000 s`: always in seconds, so that a column is comparable.
pub fn moment(ns: u64) -> String {
    format!("{:.3} s", ns as f64 / 1e9)
}

/// Formats a planned moment as briefly as possible: `3 s`, `3.25 s`.
pub fn short_moment(seconds: f64) -> String {
    let text = format!("{seconds:.2}");
    format!("{} s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Formats nanoseconds since 1970 as a date: `2026-01-01 00:00:00.000 UTC`.
pub fn date(ns: u64) -> String {
    const MS_PER_DAY: u64 = 24 * 3_600_000;
    let (days, ms) = (ns / 1_000_000 / MS_PER_DAY, ns / 1_000_000 % MS_PER_DAY);
    // Years begin in March here, so that the leap day is a year's last; any 400 of them are
    // equally long.
    let days_since_0000_03_01 = days + 719_468;
    let (era, day) = (days_since_0000_03_01 / 146_097, days_since_0000_03_01 % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let date = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hours, minutes, seconds) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1_000 % 60);
    format!(
        "{year:04}-{month:02}-{date:02} {hours:02}:{minutes:02}:{seconds:02}.{:03} UTC",
        ms % 1_000
    )
}

/// Formats a share of 0 to 1: `38.2 %`.
pub fn percent(share: f64) -> String {
    if share > 0.0 && share < 0.000_5 { "< 0.1 %".to_owned() } else { format::share(share) }
}

/// Formats a whole number as `12 345`, with a thin no-break space between thousands.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 && digits.len() > 4 {
            out.push('\u{a0}');
        }
        out.push(digit);
    }
    if value < 0.0 { format!("-{out}") } else { out }
}

/// Formats three significant digits without a unit: `0.31`, `5.42`, `57.9`, `312`.
pub fn three_digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a range: `23.8–25.3 Mbit/s`. The unit appears once when both ends share it.
pub fn spread(low: &str, high: &str) -> String {
    match (low.rsplit_once(' '), high.rsplit_once(' ')) {
        (Some((value, unit)), Some((_, other))) if unit == other => format!("{value}–{high}"),
        (None, None) => format!("{low}–{high}"),
        _ => format!("{low} – {high}"),
    }
}

/// Unit of a whole chart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScaledUnit {
    /// Value of one unit.
    pub size: f64,
    /// Name of the unit, such as `Mbit/s`.
    pub name: &'static str,
}

/// Returns the unit of a rate chart whose largest value is `max_bps`.
pub fn rate_unit(max_bps: f64) -> ScaledUnit {
    unit(max_bps, &[(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")])
}

/// Returns the unit of a bytes chart whose largest value is `max_bytes`.
pub fn bytes_unit(max_bytes: f64) -> ScaledUnit {
    unit(max_bytes, &[(1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")])
}

fn unit(max: f64, units: &[(f64, &'static str)]) -> ScaledUnit {
    let best = units.iter().find(|(size, _)| max >= *size * 0.9995).or(units.last());
    best.map_or(ScaledUnit { size: 1.0, name: "" }, |&(size, name)| ScaledUnit { size, name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_counts_are_grouped() {
        assert_eq!(count(1_234_567.0), "1\u{a0}234\u{a0}567");
        assert_eq!(count(9_999.0), "9999");
    }

    #[test]
    fn a_spread_prints_a_shared_unit_once() {
        assert_eq!(spread("23.8 Mbit/s", "25.3 Mbit/s"), "23.8–25.3 Mbit/s");
        assert_eq!(spread("310 ms", "1.20 s"), "310 ms – 1.20 s");
    }

    #[test]
    fn a_moment_since_1970_is_a_date() {
        assert_eq!(date(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(date(1_767_225_600_000_000_000), "2026-01-01 00:00:00.000 UTC");
        assert_eq!(date(951_782_399_999_000_000), "2000-02-28 23:59:59.999 UTC");
        assert_eq!(date(951_782_400_000_000_000), "2000-02-29 00:00:00.000 UTC");
        assert_eq!(&date(u64::MAX)[..10], "2554-07-21");
    }

    #[test]
    fn a_small_share_is_not_rounded_to_nothing() {
        assert_eq!(percent(0.000_1), "< 0.1 %");
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(1.0), "100 %");
    }
}
