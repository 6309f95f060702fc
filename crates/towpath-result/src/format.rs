//! Human-readable values: three significant digits and a unit, the same in every output.

pub mod number;
pub mod text;

use std::time::Duration;

/// Formats a rate: `22.6 Mbit/s`.
pub fn rate(bits_per_second: f64) -> String {
    format_scaled(bits_per_second, &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"])
}

/// Formats a size with decimal units: `28.3 MB`.
pub fn bytes(bytes: u64) -> String {
    format_scaled(bytes as f64, &["B", "kB", "MB", "GB", "TB", "PB"])
}

/// Formats a time in a suitable unit: `85 µs`, `310 ms`, `1.29 s`.
pub fn time(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    if span.is_zero() {
        "0 s".into()
    } else if seconds < 0.999_5 {
        format_scaled(span.as_nanos() as f64, &["ns", "µs", "ms"])
            .replace(".00 ", " ")
            .replace(".0 ", " ")
    } else {
        format!("{} s", format_three_digits(seconds))
    }
}

/// Formats a time in seconds, to hundredths (to tenths from 10 s): `0.31 s`.
pub fn seconds(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    if seconds < 9.995 { format!("{seconds:.2} s") } else { format!("{seconds:.1} s") }
}

/// Formats a count with its noun: `1 flow`, `2 flows`.
pub fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

/// Formats a share between 0 and 1: `12.3 %`.
pub fn share(share: f64) -> String {
    let text = format!("{:.1}", share * 100.0);
    format!("{} %", text.strip_suffix(".0").unwrap_or(&text))
}

/// Joins names in a sentence: `wifi`, `wifi and cellular`, `a, b and c`.
pub fn list<S: AsRef<str>>(names: &[S]) -> String {
    match names {
        [] => String::new(),
        [only] => only.as_ref().into(),
        [first @ .., last] => {
            let first: Vec<_> = first.iter().map(AsRef::as_ref).collect();
            format!("{} and {}", first.join(", "), last.as_ref())
        }
    }
}

fn format_scaled(value: f64, units: &[&str]) -> String {
    let (mut value, mut index) = (value, 0);
    // Values that would round to 1000 move to the next unit.
    while value.abs() >= 999.5 && index + 1 < units.len() {
        value /= 1_000.0;
        index += 1;
    }
    let unit = units.get(index).copied().unwrap_or_default();
    if index == 0 {
        format!("{value:.0} {unit}")
    } else {
        format!("{} {unit}", format_three_digits(value))
    }
}

/// Formats three significant digits.
fn format_three_digits(value: f64) -> String {
    match value.abs() {
        size if size < 9.995 => format!("{value:.2}"),
        size if size < 99.95 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_unit() {
        assert_eq!(rate(22_614_000.0), "22.6 Mbit/s");
        assert_eq!(rate(187_300_000.0), "187 Mbit/s");
        assert_eq!(rate(999_960_000.0), "1.00 Gbit/s");
        assert_eq!(rate(0.0), "0 bit/s");
        assert_eq!(bytes(28_312_000), "28.3 MB");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(share(0.1234), "12.3 %");
        assert_eq!(share(0.5), "50 %");
    }

    #[test]
    fn times_are_short_and_never_lose_their_unit() {
        let format_micros = |micros| time(Duration::from_micros(micros));
        assert_eq!(format_micros(0), "0 s");
        assert_eq!(format_micros(85), "85 µs");
        assert_eq!(format_micros(310_000), "310 ms");
        assert_eq!(format_micros(15_000), "15 ms");
        assert_eq!(format_micros(12_340), "12.3 ms");
        assert_eq!(format_micros(999_900), "1.00 s");
        assert_eq!(format_micros(1_290_000), "1.29 s");
        assert_eq!(format_micros(12_340_000), "12.3 s");
        assert_eq!(seconds(Duration::from_millis(310)), "0.31 s");
        assert_eq!(seconds(Duration::from_secs(12)), "12.0 s");
    }

    #[test]
    fn names_read_as_in_a_sentence() {
        assert_eq!(list(&["wifi", "cellular"]), "wifi and cellular");
        assert_eq!(list(&["a", "b", "c"]), "a, b and c");
        assert_eq!(list::<&str>(&[]), "");
    }
}
