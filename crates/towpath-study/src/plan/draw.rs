//! Drawing of random settings.

use rand_core::Rng;
use rand_pcg::Pcg32;
use toml::Value;
use towpath_net::stream_seed;

use super::{AxisValue, Distribution, DrawUnit, RandomDraw};

/// Maximum number of draws outside the limits; after that, the limit itself is used.
const MAX_REDRAWS: u32 = 1_000;

impl RandomDraw {
    /// Returns the draw of sample `number`, with `added` added. `seed_name` is the plan's name. The value depends
    /// only on these names and the number. Further draws or more samples change nothing.
    pub(crate) fn sample(&self, seed_name: &str, number: u64, added: f64) -> AxisValue {
        let seed = stream_seed(number, seed_name, &self.name);
        let mut stream = RngStream(Pcg32::new(seed, seed));
        let (number, measure) = match &self.from {
            Distribution::Choice(choices) => return choose_weighted(choices, &mut stream),
            &Distribution::Uniform([min, max], DrawUnit::Whole) => {
                let span = max - min + 1.0;
                let draw = |u: f64| (min + (u * span).floor()).min(max);
                (self.draw_within_limits(&mut stream, draw), DrawUnit::Whole)
            }
            &Distribution::Uniform([min, max], measure) => {
                (self.draw_within_limits(&mut stream, |u| min + u * (max - min)), measure)
            }
            &Distribution::Exponential(mean, measure) => {
                (self.draw_within_limits(&mut stream, |u| -u.ln() * mean), measure)
            }
            &Distribution::LogNormal { median, sigma, measure } => {
                let draw = |u: f64| median * (sigma * normal_quantile(u)).exp();
                (self.draw_within_limits(&mut stream, draw), measure)
            }
        };
        measure.to_axis_value(added + number)
    }

    /// Repeats a draw until it is within the limits.
    fn draw_within_limits(&self, stream: &mut RngStream, draw: impl Fn(f64) -> f64) -> f64 {
        let [min, max] = self.limits.map(|limit| limit.unwrap_or(f64::NAN));
        let mut number = f64::NAN;
        for _ in 0..MAX_REDRAWS {
            number = draw(stream.uniform());
            // Comparisons with a missing limit (NaN) are false.
            if !(number < min || number > max) {
                return number;
            }
        }
        number.max(min).min(max)
    }
}

fn choose_weighted(choices: &[(AxisValue, f64)], stream: &mut RngStream) -> AxisValue {
    let total: f64 = choices.iter().map(|(_, weight)| weight).sum();
    let mut remaining_weight = stream.uniform() * total;
    let chosen = choices.iter().find(|(_, weight)| {
        remaining_weight -= weight;
        remaining_weight < 0.0
    });
    let (setting, _) = chosen.or(choices.last()).cloned().unzip();
    setting.unwrap_or_else(|| AxisValue::new(Value::Integer(0)))
}

struct RngStream(Pcg32);

impl RngStream {
    /// Returns a number between 0 and 1, both excluded.
    fn uniform(&mut self) -> f64 {
        (f64::from(self.0.next_u32()) + 0.5) / 4_294_967_296.0
    }
}

impl DrawUnit {
    /// Converts a number in base units to a scenario value with six digits. Further digits would
    /// differ between computers.
    fn to_axis_value(self, number: f64) -> AxisValue {
        let rounded = six_digits(number);
        let whole_text = || format!("{:.0}", rounded.max(0.0));
        let (value, number) = match self {
            // A time must be a whole number of nanoseconds.
            Self::Time => {
                let nanos = (rounded * 1e9).round().max(0.0);
                (Value::String(time_text(nanos)), nanos / 1e9)
            }
            Self::Rate => {
                (Value::String(format!("{:.0} bit/s", rounded.max(1.0))), rounded.round())
            }
            Self::Size => (Value::String(format!("{} B", whole_text())), rounded.round()),
            Self::Packets => (Value::String(format!("{} packets", whole_text())), rounded.round()),
            Self::Share => {
                let percent = format!("{:.6}", rounded * 100.0);
                (Value::String(format!("{percent} %")), rounded)
            }
            Self::Whole => (Value::Integer(rounded.round() as i64), rounded.round()),
            Self::Number => (Value::Float(rounded), rounded),
        };
        AxisValue { number: Some(number), ..AxisValue::new(value) }
    }
}

fn time_text(nanos: f64) -> String {
    if nanos >= 1e9 {
        let (seconds, fraction_ns) = ((nanos / 1e9).floor(), nanos % 1e9);
        let text = format!("{seconds:.0}.{fraction_ns:09.0}");
        return format!("{} s", text.trim_end_matches('0').trim_end_matches('.'));
    }
    format!("{nanos:.0} ns")
}

fn six_digits(number: f64) -> f64 {
    format!("{number:.5e}").parse().unwrap_or(number)
}

/// Returns the normal distribution's quantile: Acklam's rational approximation, within 1.15 ×
/// 10⁻⁹.
fn normal_quantile(probability: f64) -> f64 {
    const A: [f64; 6] = [
        -3.969_683_028_665_376e1,
        2.209_460_984_245_205e2,
        -2.759_285_104_469_687e2,
        1.383_577_518_672_69e2,
        -3.066_479_806_614_716e1,
        2.506_628_277_459_239,
    ];
    const B: [f64; 6] = [
        -5.447_609_879_822_406e1,
        1.615_858_368_580_409e2,
        -1.556_989_798_598_866e2,
        6.680_131_188_771_972e1,
        -1.328_068_155_288_572e1,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784_894_002_430_293e-3,
        -3.223_964_580_411_365e-1,
        -2.400_758_277_161_838,
        -2.549_732_539_343_734,
        4.374_664_141_464_968,
        2.938_163_982_698_783,
    ];
    const D: [f64; 5] = [
        7.784_695_709_041_462e-3,
        3.224_671_290_700_398e-1,
        2.445_134_137_142_996,
        3.754_408_661_907_416,
        1.0,
    ];
    const TAIL_PROBABILITY: f64 = 0.024_25;
    let polynomial = |terms: &[f64], x: f64| terms.iter().fold(0.0, |sum, term| sum * x + term);
    let tail = |probability: f64| {
        let q = (-2.0 * probability.ln()).sqrt();
        polynomial(&C, q) / polynomial(&D, q)
    };
    if probability < TAIL_PROBABILITY {
        tail(probability)
    } else if probability > 1.0 - TAIL_PROBABILITY {
        -tail(1.0 - probability)
    } else {
        let q = probability - 0.5;
        polynomial(&A, q * q) * q / polynomial(&B, q * q)
    }
}
