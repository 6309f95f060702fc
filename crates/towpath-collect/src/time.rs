//! Wall-clock times: microseconds since 1970, and days as people write them.

use std::time::{SystemTime, UNIX_EPOCH};

use towpath_result::format::number;

/// Microseconds of a day.
pub(crate) const DAY_US: i64 = 86_400_000_000;
/// Start of 2020 in microseconds: towpath is younger, so no run is older.
pub(crate) const MIN_TIME_US: i64 = 1_577_836_800_000_000;

/// Returns the current time in microseconds since 1970.
#[expect(clippy::disallowed_methods, reason = "the server is the adapter of the real clock")]
pub(crate) fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_micros()).unwrap_or(i64::MAX)
}

/// Returns the number of the day, from 1970.
pub(crate) fn day(time_us: i64) -> i64 {
    time_us.div_euclid(DAY_US)
}

/// Formats a time: `2026-11-28 06:35:12.000 UTC`.
pub(crate) fn text(time_us: i64) -> String {
    number::date(u64::try_from(time_us).unwrap_or(0).saturating_mul(1_000))
}

/// Formats a time to the second: `2026-11-28 06:35:12 UTC`.
pub(crate) fn second_text(time_us: i64) -> String {
    let text = text(time_us);
    let end = text.len().saturating_sub(".000 UTC".len());
    format!("{} UTC", text.get(..end).unwrap_or(&text))
}

/// Formats a day: `2026-11-28`.
pub(crate) fn day_text(day: i64) -> String {
    let text = text(day.saturating_mul(DAY_US));
    text.get(..10).unwrap_or(&text).to_owned()
}

/// Reads a day such as `2026-11-28`; `None` if it is not one.
pub(crate) fn parse_day(text: &str) -> Option<i64> {
    let mut parts = text.splitn(3, '-');
    let mut number = |digits: usize| {
        let part = parts.next()?;
        let is_number = part.len() == digits && part.bytes().all(|byte| byte.is_ascii_digit());
        is_number.then(|| part.parse::<i64>().ok()).flatten()
    };
    let (year, month, day) = (number(4)?, number(2)?, number(2)?);
    // Days of the civil calendar, counted in years that begin in March.
    let (shifted_year, shifted_month) =
        if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = shifted_year * 365 + shifted_year / 4 - shifted_year / 100
        + shifted_year / 400
        + (shifted_month * 153 + 2) / 5
        + day
        - 1
        - 719_468;
    ((1..=12).contains(&month) && (1970..=9999).contains(&year) && day_text(days) == text)
        .then_some(days)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_survives_a_round_trip_and_other_texts_are_refused() {
        for day in (0..40_000).step_by(13) {
            assert_eq!(parse_day(&day_text(day)), Some(day));
        }
        assert_eq!(parse_day("2026-11-28").map(|day| day * DAY_US), Some(1_795_824_000_000_000));
        for text in ["", "2026-02-30", "2026-13-01", "2026-1-1", "20261128", "+026-01-01", "x"] {
            assert_eq!(parse_day(text), None, "{text}");
        }
    }
}
