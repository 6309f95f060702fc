//! Parses amounts in iperf3's form (`10`, `10M`) or with their unit (`"10 s"`, `10MB`).

use std::time::Duration;

use towpath_net::Rate;
use towpath_scenario::units;

/// Returns bytes for iperf3's `K`, `M`, `G`, `T`: powers of two, as in iperf3.
fn binary_factor(letter: char) -> Option<u64> {
    match letter.to_ascii_uppercase() {
        'K' => Some(1 << 10),
        'M' => Some(1 << 20),
        'G' => Some(1 << 30),
        'T' => Some(1 << 40),
        _ => None,
    }
}

/// Returns bits for iperf3's `K`, `M`, `G`, `T`: powers of ten, as in iperf3.
fn decimal_factor(letter: char) -> Option<u64> {
    match letter.to_ascii_uppercase() {
        'K' => Some(1_000),
        'M' => Some(1_000_000),
        'G' => Some(1_000_000_000),
        'T' => Some(1_000_000_000_000),
        _ => None,
    }
}

/// Parses a number with at most one letter; `None` for anything else.
fn parse_number(text: &str, factor: fn(char) -> Option<u64>) -> Option<f64> {
    let text = text.trim();
    let (number, factor) = match text.char_indices().last()? {
        (position, letter) if letter.is_ascii_alphabetic() => {
            (text.get(..position)?, factor(letter)?)
        }
        _ => (text, 1),
    };
    let number: f64 = number.parse().ok()?;
    (number.is_finite() && number >= 0.0).then_some(number * factor as f64)
}

/// Parses a duration: seconds, or a number with its unit.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    match parse_number(text, |_| None) {
        Some(seconds) => Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string()),
        None => units::duration(text).map_err(|error| format!("it {error}")),
    }
}

/// Parses an amount of data: bytes, with one of iperf3's letters, or with its unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let with_unit = || units::size(text).map_err(|error| format!("it {error}"));
    parse_number(text, binary_factor).map_or_else(with_unit, |bytes| Ok(bytes as u64))
}

/// Parses a rate: bits per second, with one of iperf3's letters, or with its unit.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let with_unit = || units::rate(text).map_err(|error| format!("it {error}"));
    parse_number(text, decimal_factor).map_or_else(with_unit, |bits| {
        Rate::from_bps(bits as u64).ok_or_else(|| "it is zero".to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_options_of_iperf3_have_the_same_meaning() {
        assert_eq!(size("10M"), Ok(10 << 20));
        assert_eq!(size("1.5k"), Ok(1_536));
        assert_eq!(size("100"), Ok(100));
        assert_eq!(rate("50M").unwrap().as_bps(), 50_000_000);
        assert_eq!(time("10"), Ok(Duration::from_secs(10)));
        assert_eq!(time("0.5"), Ok(Duration::from_millis(500)));
    }

    #[test]
    fn units_are_understood_with_and_without_a_space() {
        assert_eq!(size("10 MB"), Ok(10_000_000));
        assert_eq!(size("10MB"), Ok(10_000_000));
        assert_eq!(rate("50 Mbit/s").unwrap().as_bps(), 50_000_000);
        assert_eq!(time("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(time("2 min"), Ok(Duration::from_secs(120)));
    }

    #[test]
    fn an_invalid_amount_is_reported() {
        for invalid in ["", "ten", "10 parsecs", "-1", "nan"] {
            assert!(
                time(invalid).is_err() && size(invalid).is_err() && rate(invalid).is_err(),
                "{invalid}"
            );
        }
        assert!(rate("0").is_err());
    }
}
