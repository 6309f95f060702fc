//! Vertical scales of delays, linear or logarithmic.

use crate::chart;

use super::plot::HEIGHT;

/// Ratio of largest to smallest delay from which a linear scale would hide the short ones.
const MIN_LOG_RATIO: f64 = 20.0;
/// Smallest delay on a logarithmic scale, in milliseconds.
const MIN_LOG_MS: f64 = 0.01;
/// Largest delay on a scale, in milliseconds.
const MAX_MS: f64 = 1e12;

/// Scale of delays in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum DelayScale {
    Linear {
        max_ms: f64,
    },
    /// Decimal logarithms of both ends in milliseconds.
    Log {
        from: f64,
        to: f64,
    },
}

impl DelayScale {
    /// Returns a scale that holds all delays.
    pub(super) fn of(delays_ms: impl Iterator<Item = f64>) -> Self {
        let (mut min_ms, mut max_ms) = (f64::INFINITY, 0.0_f64);
        for delay_ms in delays_ms.filter(|delay_ms| delay_ms.is_finite() && *delay_ms > 0.0) {
            min_ms = min_ms.min(delay_ms);
            max_ms = max_ms.max(delay_ms.min(MAX_MS));
        }
        if min_ms.is_finite() && max_ms / min_ms > MIN_LOG_RATIO {
            return Self::Log {
                from: (min_ms.max(MIN_LOG_MS) * 0.8).log10(),
                to: (max_ms * 1.15).log10(),
            };
        }
        let top = chart::ticks(max_ms * 1.03, 5).last().copied().unwrap_or(1.0);
        Self::Linear { max_ms: top }
    }

    pub(super) fn is_logarithmic(self) -> bool {
        matches!(self, Self::Log { .. })
    }

    /// Returns the height of a delay in thousandths from the top; values outside are at the edge.
    pub(super) fn y(self, delay_ms: f64) -> u32 {
        let part = match self {
            Self::Linear { max_ms } => delay_ms / max_ms,
            Self::Log { from, to } => (delay_ms.max(MIN_LOG_MS).log10() - from) / (to - from),
        };
        let part = if part.is_nan() { 0.0 } else { part.clamp(0.0, 1.0) };
        ((1.0 - part) * f64::from(HEIGHT)).round() as u32
    }

    /// Returns the delays of the grid lines, with their labels.
    pub(super) fn ticks(self) -> Vec<(f64, String)> {
        match self {
            Self::Linear { max_ms } => {
                let ticks = chart::ticks(max_ms * 0.999, 5).into_iter();
                let inside = ticks.filter(|tick| *tick <= max_ms * 1.000_1);
                inside.map(|tick| (tick, delay_text(tick))).collect()
            }
            Self::Log { from, to } => {
                let steps: &[f64] = match to - from {
                    narrow if narrow < 1.7 => &[1.0, 2.0, 5.0],
                    middle if middle < 3.4 => &[1.0, 3.0],
                    _ => &[1.0],
                };
                let powers = (from.floor() as i32)..=(to.ceil() as i32);
                let values =
                    powers.flat_map(|power| steps.iter().map(move |n| n * 10_f64.powi(power)));
                let is_inside = |ms: &f64| (from..=to).contains(&ms.log10());
                values.filter(is_inside).map(|ms| (ms, delay_text(ms))).collect()
            }
        }
    }
}

/// Formats a round delay: `30 ms`, `1 s`.
fn delay_text(delay_ms: f64) -> String {
    let (value, unit) = if delay_ms >= 1_000.0 { (delay_ms / 1e3, "s") } else { (delay_ms, "ms") };
    let text = format!("{value:.2}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: DelayScale) -> Vec<String> {
        scale.ticks().into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn a_scale_is_logarithmic_only_if_long_delays_would_hide_short_ones() {
        let scale = DelayScale::of([25.0, 9_900.0].into_iter());
        assert!(scale.is_logarithmic());
        assert_eq!(labels(scale), ["30 ms", "100 ms", "300 ms", "1 s", "3 s", "10 s"]);
        assert!(scale.y(9_900.0) < scale.y(25.0) && scale.y(1e9) == 0);
        let scale = DelayScale::of([25.0, 90.0].into_iter());
        assert!(!scale.is_logarithmic() && scale.y(0.0) == HEIGHT);
        assert_eq!(labels(scale), ["0 ms", "20 ms", "40 ms", "60 ms", "80 ms", "100 ms"]);
    }

    #[test]
    fn a_scale_without_a_delay_has_ticks() {
        for scale in [DelayScale::of(std::iter::empty()), DelayScale::of([f64::NAN].into_iter())] {
            assert!(!scale.ticks().is_empty() && scale.y(f64::NAN) == HEIGHT);
        }
        assert!(DelayScale::of([1e-9, 1e300].into_iter()).ticks().len() < 30);
    }
}
