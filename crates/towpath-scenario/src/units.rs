//! Quantities in scenarios: `40 Mbit/s`, `15 ms`, `0.1 %`, `100 KB`, `50 packets`.
//!
//! Units are mandatory, spaces are optional. All values are exact: a value without an exact integer
//! representation in base units (bit/s, nanoseconds, bytes) is rejected, not rounded.

use std::time::Duration;

use towpath_net::Rate;
use towpath_net::config::Probability;

use super::nearest::nearest;
use super::problem::quote;

/// Physical dimension of a quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dimension {
    /// Rate in bits per second.
    Rate,
    /// Time span in nanoseconds.
    Duration,
    /// Amount of data in bytes.
    Size,
    /// Number of packets in a queue.
    Packets,
    /// Share of a whole, written as a percentage.
    Share,
    /// A number without unit.
    Count,
}

/// An exact number of base units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quantity {
    /// Dimension of the quantity.
    pub dimension: Dimension,
    numerator: u128,
    denominator: u128,
}

/// Reason why a text is not the expected quantity.
///
/// The message is a predicate, so that it can follow the key: `rate` “has no unit”.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnitError {
    /// No digits where the number should be.
    #[error("is not a number with a unit")]
    NotANumber,
    /// A number below zero.
    #[error("is negative")]
    Negative,
    /// A number without a unit.
    #[error("has no unit")]
    NoUnit,
    /// A unit that is not in the table.
    #[error("has the unknown unit {}", quote(.0))]
    UnknownUnit(String),
    /// A unit of the wrong dimension.
    #[error("is {got}, not {expected}", got = .got.noun(), expected = .expected.noun())]
    WrongDimension {
        /// Dimension of the value as written.
        got: Dimension,
        /// Dimension that was expected.
        expected: Dimension,
    },
    /// A value that is not a whole number of base units.
    #[error("is not a whole number of {}", .0.base())]
    NotWhole(Dimension),
    /// More digits than any quantity needs.
    #[error("has too many digits")]
    TooLong,
    /// A rate of zero.
    #[error("is zero")]
    Zero,
    /// A percentage above 100.
    #[error("is more than 100 %")]
    MoreThanAll,
    /// A non-zero percentage below 2⁻³².
    #[error("is too small to be told from zero")]
    TooSmall,
}

impl UnitError {
    /// Returns a suggested fix, if there is one.
    pub fn hint(&self, dimension: Dimension) -> Option<String> {
        match self {
            Self::NoUnit => Some(format!("units are mandatory: {}", dimension.unit_names())),
            Self::UnknownUnit(unit) if unit.starts_with(',') => {
                Some("the decimal separator is a point: `1.5`, not `1,5`".to_owned())
            }
            Self::UnknownUnit(unit)
                if dimension == Dimension::Rate && is_bytes_per_second(unit) =>
            {
                Some("rates are in bits: 1 MB/s is `8 Mbit/s`".to_owned())
            }
            Self::UnknownUnit(unit) => Some(match suggestion(unit, dimension) {
                Some(name) => format!("did you mean `{name}`?"),
                None => format!("units: {}", dimension.unit_names()),
            }),
            Self::Zero => {
                Some("a link that carries nothing is down: use a timeline event".to_owned())
            }
            Self::NotANumber
            | Self::Negative
            | Self::WrongDimension { .. }
            | Self::NotWhole(_)
            | Self::TooLong
            | Self::MoreThanAll
            | Self::TooSmall => None,
        }
    }
}

struct UnitDef {
    name: &'static str,
    dimension: Dimension,
    numerator: u128,
    denominator: u128,
}

const fn unit(name: &'static str, dimension: Dimension, numerator: u128) -> UnitDef {
    UnitDef { name, dimension, numerator, denominator: 1 }
}

static UNITS: [UnitDef; 24] = [
    unit("bit/s", Dimension::Rate, 1),
    unit("kbit/s", Dimension::Rate, 1_000),
    unit("Mbit/s", Dimension::Rate, 1_000_000),
    unit("Gbit/s", Dimension::Rate, 1_000_000_000),
    unit("ns", Dimension::Duration, 1),
    unit("us", Dimension::Duration, 1_000),
    unit("µs", Dimension::Duration, 1_000),
    unit("ms", Dimension::Duration, 1_000_000),
    unit("s", Dimension::Duration, 1_000_000_000),
    unit("min", Dimension::Duration, 60_000_000_000),
    unit("h", Dimension::Duration, 3_600_000_000_000),
    unit("B", Dimension::Size, 1),
    unit("KB", Dimension::Size, 1_000),
    unit("kB", Dimension::Size, 1_000),
    unit("MB", Dimension::Size, 1_000_000),
    unit("GB", Dimension::Size, 1_000_000_000),
    unit("TB", Dimension::Size, 1_000_000_000_000),
    unit("KiB", Dimension::Size, 1 << 10),
    unit("MiB", Dimension::Size, 1 << 20),
    unit("GiB", Dimension::Size, 1 << 30),
    unit("packets", Dimension::Packets, 1),
    unit("packet", Dimension::Packets, 1),
    UnitDef { name: "%", dimension: Dimension::Share, numerator: 1, denominator: 100 },
    unit("", Dimension::Count, 1),
];

/// Spellings of other tools that are not typing errors.
static ALIASES: [(&str, &str); 26] = [
    ("bps", "bit/s"),
    ("kbps", "kbit/s"),
    ("mbps", "Mbit/s"),
    ("gbps", "Gbit/s"),
    ("kbit", "kbit/s"),
    ("mbit", "Mbit/s"),
    ("gbit", "Gbit/s"),
    ("kb/s", "kbit/s"),
    ("mb/s", "Mbit/s"),
    ("gb/s", "Gbit/s"),
    ("usec", "us"),
    ("msec", "ms"),
    ("msecs", "ms"),
    ("milliseconds", "ms"),
    ("sec", "s"),
    ("secs", "s"),
    ("seconds", "s"),
    ("m", "min"),
    ("minutes", "min"),
    ("hours", "h"),
    ("bytes", "B"),
    ("k", "KB"),
    ("m", "MB"),
    ("g", "GB"),
    ("pkts", "packets"),
    ("percent", "%"),
];

impl Dimension {
    /// Returns the noun with its article, for messages.
    pub(super) fn noun(self) -> &'static str {
        match self {
            Self::Rate => "a rate",
            Self::Duration => "a time",
            Self::Size => "a size",
            Self::Packets => "a number of packets",
            Self::Share => "a percentage",
            Self::Count => "a plain number",
        }
    }

    /// Returns an example value.
    pub(super) fn example(self) -> &'static str {
        match self {
            Self::Rate => "40 Mbit/s",
            Self::Duration => "15 ms",
            Self::Size => "100 KB",
            Self::Packets => "50 packets",
            Self::Share => "0.1 %",
            Self::Count => "3",
        }
    }

    /// Returns a text such as “expected a rate such as `40 Mbit/s`”.
    pub(super) fn expectation(self) -> String {
        format!("expected {} such as `{}`", self.noun(), self.example())
    }

    /// Returns the base unit in the plural.
    fn base(self) -> &'static str {
        match self {
            Self::Rate => "bits per second",
            Self::Duration => "nanoseconds",
            Self::Size => "bytes",
            Self::Packets => "packets",
            Self::Share => "shares",
            Self::Count => "ones",
        }
    }

    /// Returns the spellings of its units, smallest first.
    pub(super) fn units(self) -> impl Iterator<Item = &'static str> {
        UNITS.iter().filter(move |u| u.dimension == self).map(|u| u.name)
    }

    fn unit_names(self) -> String {
        // `µs` and `kB` are accepted, but messages show one spelling only.
        let names: Vec<_> =
            self.units().filter(|n| !matches!(*n, "µs" | "kB" | "packet")).collect();
        names.join(", ")
    }
}

fn is_bytes_per_second(unit: &str) -> bool {
    matches!(unit, "B/s" | "KB/s" | "kB/s" | "MB/s" | "GB/s" | "KiB/s" | "MiB/s" | "GiB/s")
}

fn suggestion(unit: &str, dimension: Dimension) -> Option<&'static str> {
    let has_dimension =
        |name: &str| UNITS.iter().any(|u| u.name == name && u.dimension == dimension);
    let lowercase = unit.to_lowercase();
    let alias = ALIASES.iter().find(|(alias, name)| *alias == lowercase && has_dimension(name));
    alias.map(|&(_, name)| name).or_else(|| nearest(unit, dimension.units()))
}

/// Parses a number with its unit (or without: [`Dimension::Count`]).
pub fn quantity(text: &str) -> Result<Quantity, UnitError> {
    let text = text.trim();
    let after_minus = text.strip_prefix('-');
    let unsigned = after_minus.unwrap_or(text).trim_start();
    let after_integer = unsigned.trim_start_matches(|c: char| c.is_ascii_digit());
    let (integer_part, _) = unsigned.split_at(unsigned.len() - after_integer.len());
    let (fraction, rest) = match after_integer.strip_prefix('.') {
        Some(after_point) => {
            let rest = after_point.trim_start_matches(|c: char| c.is_ascii_digit());
            (after_point.get(..after_point.len() - rest.len()).unwrap_or(""), rest)
        }
        None => ("", after_integer),
    };
    if integer_part.is_empty() || (fraction.is_empty() && rest.len() != after_integer.len()) {
        return Err(UnitError::NotANumber);
    }
    if after_minus.is_some() {
        return Err(UnitError::Negative);
    }
    let name = rest.trim_start();
    let unit = UNITS
        .iter()
        .find(|u| u.name == name)
        .ok_or_else(|| UnitError::UnknownUnit(name.to_owned()))?;
    let fraction = fraction.trim_end_matches('0');
    let digits: u128 =
        format!("{integer_part}{fraction}").parse().map_err(|_| UnitError::TooLong)?;
    let scale = u32::try_from(fraction.len()).ok().and_then(|n| 10_u128.checked_pow(n));
    let numerator = digits.checked_mul(unit.numerator).ok_or(UnitError::TooLong)?;
    let denominator =
        scale.and_then(|s| s.checked_mul(unit.denominator)).ok_or(UnitError::TooLong)?;
    Ok(Quantity { dimension: unit.dimension, numerator, denominator })
}

impl Quantity {
    /// Returns the quantity if it has the expected dimension.
    pub fn of(self, expected: Dimension) -> Result<Self, UnitError> {
        let got = self.dimension;
        if got == expected {
            Ok(self)
        } else if got == Dimension::Count {
            Err(UnitError::NoUnit)
        } else {
            Err(UnitError::WrongDimension { got, expected })
        }
    }

    /// Returns the whole number of base units.
    pub fn whole(self) -> Result<u64, UnitError> {
        if !self.numerator.is_multiple_of(self.denominator) {
            return Err(UnitError::NotWhole(self.dimension));
        }
        u64::try_from(self.numerator / self.denominator).map_err(|_| UnitError::TooLong)
    }

    /// Converts to the units of measured values: bit/s, *seconds*, bytes, packets, a share or a
    /// count.
    pub fn as_f64(self) -> f64 {
        let base = match self.dimension {
            Dimension::Duration => 1e9,
            Dimension::Rate
            | Dimension::Size
            | Dimension::Packets
            | Dimension::Share
            | Dimension::Count => 1.0,
        };
        self.numerator as f64 / (self.denominator as f64 * base)
    }
}

/// Parses a rate such as `40 Mbit/s`.
pub fn rate(text: &str) -> Result<Rate, UnitError> {
    let bits = quantity(text)?.of(Dimension::Rate)?.whole()?;
    Rate::from_bps(bits).ok_or(UnitError::Zero)
}

/// Parses a time such as `15 ms`.
pub fn duration(text: &str) -> Result<Duration, UnitError> {
    Ok(Duration::from_nanos(quantity(text)?.of(Dimension::Duration)?.whole()?))
}

/// Parses a size such as `100 KB` in bytes.
pub fn size(text: &str) -> Result<u64, UnitError> {
    quantity(text)?.of(Dimension::Size)?.whole()
}

/// Parses a number of packets such as `50 packets`.
pub fn packets(text: &str) -> Result<u64, UnitError> {
    quantity(text)?.of(Dimension::Packets)?.whole()
}

/// Parses a percentage such as `0.1 %`, rounded down to a multiple of 2⁻³².
pub fn probability(text: &str) -> Result<Probability, UnitError> {
    let Quantity { numerator, denominator, .. } = quantity(text)?.of(Dimension::Share)?;
    if numerator > denominator {
        return Err(UnitError::MoreThanAll);
    }
    if numerator == denominator {
        return Ok(Probability::ALWAYS);
    }
    let raw = numerator.checked_mul(1 << 32).ok_or(UnitError::TooLong)? / denominator;
    match u32::try_from(raw) {
        Ok(0) if numerator > 0 => Err(UnitError::TooSmall),
        Ok(raw) => Ok(Probability::from_raw(raw)),
        Err(_) => Ok(Probability::ALWAYS),
    }
}

/// Formats a rate exactly, such as `2.5 Mbit/s`; [`rate`] parses it back.
pub fn rate_text(rate: Rate) -> String {
    format_scaled(rate.as_bps(), &["Gbit/s", "Mbit/s", "kbit/s", "bit/s"])
}

/// Formats a time exactly, such as `1.5 s`; [`duration`] parses it back up to 584 years.
pub fn duration_text(span: Duration) -> String {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    if nanos > 0 && nanos.is_multiple_of(3_600_000_000_000) {
        return format!("{} h", nanos / 3_600_000_000_000);
    }
    format_scaled(nanos, &["s", "ms", "us", "ns"])
}

/// Formats base units in the first of `units` (each a thousandth of the previous one) that fits.
fn format_scaled(value: u64, units: &[&str]) -> String {
    let mut size = 1_000_u64.pow(u32::try_from(units.len()).unwrap_or(1) - 1);
    for unit in units {
        if value >= size || size == 1 {
            let digits = size.ilog10() as usize;
            let text = format!("{}.{:0digits$}", value / size, value % size);
            return format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'));
        }
        size /= 1_000;
    }
    value.to_string()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_exact() {
        assert_eq!(rate("40 Mbit/s").unwrap().as_bps(), 40_000_000);
        assert_eq!(rate(" 0.1Gbit/s ").unwrap().as_bps(), 100_000_000);
        assert_eq!(duration("0.000000003 s"), Ok(Duration::from_nanos(3)));
        assert_eq!(duration("1.5 h"), Ok(Duration::from_secs(5_400)));
        assert_eq!(size("1.5 KiB"), Ok(1_536));
        assert_eq!(size("100KB"), Ok(100_000));
        assert_eq!(packets("50 packets"), Ok(50));
        assert_eq!(probability("0.1 %"), Ok(Probability::from_millionths(1_000)));
        assert_eq!(probability("100 %"), Ok(Probability::ALWAYS));
        assert_eq!(probability("0%"), Ok(Probability::NEVER));
    }

    #[test]
    fn an_invalid_quantity_is_refused_with_the_reason() {
        assert_eq!(rate("40"), Err(UnitError::NoUnit));
        assert_eq!(rate("-40 Mbit/s"), Err(UnitError::Negative));
        assert_eq!(rate("0 bit/s"), Err(UnitError::Zero));
        assert_eq!(rate("0.5 bit/s"), Err(UnitError::NotWhole(Dimension::Rate)));
        assert_eq!(rate("fast"), Err(UnitError::NotANumber));
        assert_eq!(rate("1. Mbit/s"), Err(UnitError::NotANumber));
        assert_eq!(duration("1e3 ms"), Err(UnitError::UnknownUnit("e3 ms".to_owned())));
        assert_eq!(duration(&format!("{} s", "9".repeat(99))), Err(UnitError::TooLong));
        assert_eq!(probability("101 %"), Err(UnitError::MoreThanAll));
        assert_eq!(probability("0.000000001 %"), Err(UnitError::TooSmall));
        let wrong_dimension =
            UnitError::WrongDimension { got: Dimension::Duration, expected: Dimension::Rate };
        assert_eq!(rate("15 ms"), Err(wrong_dimension));
    }

    #[test]
    fn the_spellings_of_other_tools_get_a_hint() {
        let hint = |unit: &str, dimension| {
            UnitError::UnknownUnit(unit.to_owned()).hint(dimension).unwrap()
        };
        assert_eq!(hint("Mbps", Dimension::Rate), "did you mean `Mbit/s`?");
        assert_eq!(hint("mbit/s", Dimension::Rate), "did you mean `Mbit/s`?");
        assert_eq!(hint("MB/s", Dimension::Rate), "rates are in bits: 1 MB/s is `8 Mbit/s`");
        assert_eq!(hint("m", Dimension::Duration), "did you mean `min`?");
        assert_eq!(hint("M", Dimension::Size), "did you mean `MB`?");
        assert_eq!(hint("parsec", Dimension::Share), "units: %");
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in ".*") {
            let _ = (rate(&text), duration(&text), size(&text), probability(&text));
        }

        #[test]
        fn no_number_causes_a_panic(text in "-?[0-9]{0,60}\\.?[0-9]{0,60} ?(ms|h|%|Gbit/s|GiB)?") {
            let _ = (rate(&text), duration(&text), size(&text), probability(&text));
        }

        #[test]
        fn a_rate_survives_a_round_trip(bits in 1..=u64::MAX) {
            let original = Rate::from_bps(bits).unwrap();
            prop_assert_eq!(rate(&rate_text(original)), Ok(original));
        }

        #[test]
        fn a_time_survives_a_round_trip(nanos: u64) {
            let original = Duration::from_nanos(nanos);
            prop_assert_eq!(duration(&duration_text(original)), Ok(original));
        }
    }
}
