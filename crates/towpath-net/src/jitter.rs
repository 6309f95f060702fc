//! netem's jitter: its arithmetic, and its distribution tables regenerated from their formulas.

use std::sync::OnceLock;
use std::time::Duration;

use crate::config::{Jitter, JitterDistribution};
use crate::random::RngStream;

/// Table value of one `sd` (netem's `NETEM_DIST_SCALE`).
const SCALE: i64 = 8_192;
const TABLE_SIZE: usize = 4_096;
/// Longest delay, about 39 hours: longer ones are clamped so that no product overflows.
const MAX_NANOS: i64 = 1 << 47;

type Table = [i16; TABLE_SIZE];

/// Draws delays around a mean.
#[derive(Debug, Clone)]
pub(crate) struct JitterSource {
    /// `None` is netem's default, the uniform distribution.
    table: Option<&'static Table>,
    sigma_nanos: i64,
}

impl JitterSource {
    pub(crate) fn new(jitter: Jitter) -> Self {
        let table = match jitter.distribution {
            JitterDistribution::Uniform => None,
            JitterDistribution::Normal => Some(normal()),
            JitterDistribution::Pareto => Some(pareto()),
            JitterDistribution::ParetoNormal => Some(pareto_normal()),
        };
        Self { table, sigma_nanos: clamped_nanos(jitter.sd) }
    }

    /// Draws a delay around `mean_nanos`, possibly negative, as netem's `tabledist` computes it.
    #[inline]
    pub(crate) fn draw(&self, mean_nanos: i64, stream: &mut RngStream) -> i64 {
        let sigma = self.sigma_nanos;
        if sigma == 0 {
            return mean_nanos;
        }
        let Some(table) = self.table else {
            return uniform(sigma, stream) + mean_nanos;
        };
        let index = stream.draw() as usize % TABLE_SIZE;
        let table_value = table.get(index).copied().map_or(0, i64::from);
        let low = (sigma % SCALE) * table_value;
        let rounding = if low >= 0 { SCALE / 2 } else { -SCALE / 2 };
        (low + rounding) / SCALE + (sigma / SCALE) * table_value + mean_nanos
    }
}

/// Returns the nanoseconds of `span`, clamped to [`MAX_NANOS`].
pub(crate) fn clamped_nanos(span: Duration) -> i64 {
    i64::try_from(span.as_nanos()).map_or(MAX_NANOS, |nanos| nanos.min(MAX_NANOS))
}

/// Draws evenly from −sigma ≤ result < sigma: netem's 32-bit draw, and a wider one if 32 bits are
/// too few.
fn uniform(sigma: i64, stream: &mut RngStream) -> i64 {
    let width = 2 * sigma.unsigned_abs();
    let drawn =
        if u32::try_from(width).is_ok() { u64::from(stream.draw()) } else { stream.draw_wide() };
    (drawn % width).cast_signed() - sigma
}

/// Pareto with shape 3, shifted and scaled to mean 0: (u^(−1/3) − 3/2) · 4/3 · 8192 for
/// u = 1 … 1/4096, cut at 4.0.
fn pareto() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| std::array::from_fn(|index| to_i16(pareto_value(index))))
}

/// Computes a value of the Pareto table in integers, so that the platform's `powf` does not matter.
/// With u = k/65536 the value is ∛(2⁶¹ / 27k) − 16384.
fn pareto_value(index: usize) -> i64 {
    let k = 65_536 - 16 * index as u128;
    // The doubled root keeps one more bit, by which the division rounds to nearest.
    let doubled = cube_root((1_u128 << 64) / (27 * k));
    i64::try_from(doubled.div_ceil(2)).map_or(0, |root| root - 16_384).min(32_767)
}

/// Returns the largest integer whose cube does not exceed `value`, for values up to 2⁶⁴.
fn cube_root(value: u128) -> u128 {
    let (mut low, mut high) = (0_u128, 1 << 22);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if middle.pow(3) <= value {
            low = middle;
        } else {
            high = middle;
        }
    }
    low
}

/// Quantiles of the normal distribution at (4·index + ½) / 16384, which gives −4.0 … 3.52.
fn normal() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| normal_values().map(to_i16))
}

/// A quarter normal and three quarters Pareto, both at the same quantile.
fn pareto_normal() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let normal = normal_values();
        let mut index = 0;
        normal.map(|value| {
            let mixed = (value + 3 * pareto_value(index)) / 4;
            index += 1;
            to_i16(mixed)
        })
    })
}

fn normal_values() -> [i64; TABLE_SIZE] {
    let mut x = -4.0;
    std::array::from_fn(|index| {
        x = normal_quantile((4.0 * index as f64 + 0.5) / 16_384.0, x);
        (x * SCALE as f64).round() as i64
    })
}

/// Newton's method from `start`, with short steps, because the tails are nearly flat.
fn normal_quantile(p: f64, start: f64) -> f64 {
    let mut x = start;
    for _ in 0..64 {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        // Φ(x) = ½ + φ(x) · (x + x³/3 + x⁵/(3·5) + …)
        let (mut term, mut sum) = (x, x);
        for odd in (3..400_u32).step_by(2) {
            term *= x * x / f64::from(odd);
            sum += term;
        }
        let step = ((0.5 + density * sum - p) / density).clamp(-0.5, 0.5);
        x -= step;
        if step.abs() < 1e-13 {
            break;
        }
    }
    x
}

fn to_i16(value: i64) -> i16 {
    value.clamp(i64::from(i16::MIN), i64::from(i16::MAX)) as i16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moments(table: &Table) -> (f64, f64) {
        let values = table.iter().map(|value| f64::from(*value) / SCALE as f64);
        let mean = values.clone().sum::<f64>() / TABLE_SIZE as f64;
        let variance = values.map(|v| (v - mean) * (v - mean)).sum::<f64>() / TABLE_SIZE as f64;
        (mean, variance.sqrt())
    }

    #[test]
    fn the_pareto_table_also_follows_its_floating_point_formula() {
        for (index, value) in pareto().iter().enumerate() {
            let u = (65_536 - 16 * index) as f64 / 65_536.0;
            let expected = ((u.powf(-1.0 / 3.0) - 1.5) * 4.0 / 3.0 * 8_192.0).round();
            assert_eq!(f64::from(*value).to_bits(), expected.min(32_767.0).to_bits(), "{index}");
        }
    }

    #[test]
    fn the_tables_have_the_moments_and_ends_measured_from_netem() {
        let (mean, sd) = moments(pareto());
        assert!((mean + 0.033).abs() < 0.001 && (sd - 0.82).abs() < 0.005, "{mean} {sd}");
        assert_eq!((pareto()[0], pareto()[4_095]), (-5_461, 32_767));
        let (mean, sd) = moments(normal());
        assert!(mean.abs() < 0.002 && (sd - 1.0).abs() < 0.003, "{mean} {sd}");
        assert_eq!(normal()[0], -32_768);
        assert!((f64::from(normal()[4_095]) / 8_192.0 - 3.52).abs() < 0.01);
        let (_, sd) = moments(pareto_normal());
        assert!((sd - 0.834).abs() < 0.005, "{sd}");
    }

    #[test]
    fn the_normal_table_holds_quantiles_in_ascending_order() {
        assert!(normal().is_sorted());
        assert!((normal_quantile(0.975, 0.0) - 1.959_963_984_540_054).abs() < 1e-9);
        assert!((normal_quantile(0.001, -4.0) + 3.090_232_306_167_813).abs() < 1e-9);
    }

    #[test]
    fn zero_sigma_is_the_mean_and_huge_values_do_not_overflow() {
        let mut stream = RngStream::new(1, "jitter");
        for distribution in [
            JitterDistribution::Uniform,
            JitterDistribution::Normal,
            JitterDistribution::Pareto,
            JitterDistribution::ParetoNormal,
        ] {
            let draw = |sd, stream: &mut RngStream| {
                JitterSource::new(Jitter { distribution, sd, reorder: true }).draw(5, stream)
            };
            assert_eq!(draw(Duration::ZERO, &mut stream), 5);
            for _ in 0..1_000 {
                let delay = draw(Duration::MAX, &mut stream);
                assert!(delay.abs() <= 4 * MAX_NANOS + 5);
            }
        }
    }

    #[test]
    fn uniform_jitter_covers_both_sides_evenly() {
        let mut stream = RngStream::new(1, "jitter");
        let draws: Vec<i64> = (0..100_000).map(|_| uniform(1_000, &mut stream)).collect();
        assert!(draws.iter().all(|draw| (-1_000..1_000).contains(draw)));
        let mean = draws.iter().sum::<i64>() as f64 / draws.len() as f64;
        assert!(mean.abs() < 10.0, "{mean}");
    }
}
