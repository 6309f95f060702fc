//! Bytes over the whole time as mean rates, in one unit per sentence.

const UNITS: [(f64, &str); 4] = [(1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s"), (1.0, "bit/s")];
/// Smallest value shown in a unit; less would be rounded to zero.
const MIN_SHOWN: f64 = 0.095;

/// Common unit of all rates in a sentence.
#[derive(Debug, Clone, Copy)]
pub(super) struct RateScale {
    total_bytes: u64,
    span_ns: u64,
    unit: f64,
    name: &'static str,
}

impl RateScale {
    /// Chooses the unit for parts of `total_bytes`, of which the smallest is `smallest_bytes`.
    pub(super) fn new(total_bytes: u64, smallest_bytes: u64, span_ns: u64) -> Self {
        let (total_unit, _) = unit_of(bps(total_bytes, span_ns));
        let smallest = bps(smallest_bytes, span_ns);
        let fits = |(unit, _): &(f64, &str)| *unit <= total_unit && smallest >= MIN_SHOWN * unit;
        let (unit, name) = UNITS.into_iter().find(fits).unwrap_or((1.0, "bit/s"));
        Self { total_bytes, span_ns, unit, name }
    }

    /// Formats the total, in its own unit.
    pub(super) fn total_text(&self) -> String {
        rate(self.total_bytes, self.span_ns)
    }

    /// Formats a part, without the unit.
    pub(super) fn of(&self, bytes: u64) -> String {
        number(bps(bytes, self.span_ns) / self.unit)
    }

    /// Formats a part, with the unit if it differs from the total's.
    pub(super) fn text_with_unit(&self, bytes: u64) -> String {
        let (total_unit, _) = unit_of(bps(self.total_bytes, self.span_ns));
        let name = if self.unit < total_unit { format!(" {}", self.name) } else { String::new() };
        self.of(bytes) + &name
    }

    /// Returns true if the part would be rounded to zero.
    pub(super) fn rounds_to_zero(&self, bytes: u64) -> bool {
        bps(bytes, self.span_ns) < 0.05 * self.unit
    }
}

/// Formats bytes over `span_ns` as a mean rate, in the unit that suits it.
pub(super) fn rate(bytes: u64, span_ns: u64) -> String {
    let bps = bps(bytes, span_ns);
    let (unit, name) = unit_of(bps);
    format!("{} {name}", number(bps / unit))
}

fn unit_of(bps: f64) -> (f64, &'static str) {
    let chosen = UNITS.into_iter().find(|(unit, _)| bps >= 0.999_5 * unit);
    chosen.unwrap_or((1.0, "bit/s"))
}

fn number(value: f64) -> String {
    let text = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    text.strip_suffix(".0").unwrap_or(&text).to_owned()
}

fn bps(bytes: u64, span_ns: u64) -> f64 {
    bytes as f64 * 8e9 / span_ns.max(1) as f64
}
