//! Mapping of values to positions on an axis, and choice of ticks.

use super::{Axis, CurveKind, Panel, ScaleKind};
use crate::chart::{tick_label, ticks};

/// Largest power of ten on a logarithmic axis. Its inverse is a normal number as well.
const MAX_LOG: f64 = 300.0;

/// An axis with its ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AxisLayout {
    low: f64,
    high: f64,
    log: bool,
    /// Tick values with their labels.
    pub(super) ticks: Vec<(f64, String)>,
    /// Values of minor ticks, which have no label.
    pub(super) minor: Vec<f64>,
}

impl AxisLayout {
    /// Returns the position of a value as a share of the axis, 0 at the low end, 1 at the high end.
    ///
    /// Values outside the axis are below 0 or above 1; `None` if the position is undefined.
    pub(super) fn relative_position(&self, value: f64) -> Option<f64> {
        let axis_value = |value: f64| if self.log { value.log10() } else { value };
        let (low, high) = (axis_value(self.low), axis_value(self.high));
        let share = (axis_value(value) - low) / (high - low);
        share.is_finite().then_some(share)
    }

    /// Returns the low end, in units of the axis.
    pub(super) fn low(&self) -> f64 {
        self.low
    }

    /// Returns the high end, in units of the axis.
    pub(super) fn high(&self) -> f64 {
        self.high
    }

    fn names(names: &[String]) -> Self {
        let ticks =
            names.iter().enumerate().map(|(index, name)| (index as f64, name.clone())).collect();
        Self {
            low: -0.5,
            high: names.len().max(1) as f64 - 0.5,
            log: false,
            ticks,
            minor: Vec::new(),
        }
    }

    /// Returns a linear axis with round ticks.
    fn linear([low, high]: [f64; 2], fixed: bool, max_ticks: usize) -> Self {
        let (low, high) = if high > low { (low, high) } else { (low, low + 1.0) };
        let steps = ticks(high - low.min(0.0), max_ticks);
        let step = steps.get(1).copied().unwrap_or(1.0);
        let (first, last) = if fixed {
            ((low / step - 1e-9).ceil(), (high / step + 1e-9).floor())
        } else {
            ((low / step + 1e-9).floor(), (high / step - 1e-9).ceil())
        };
        let count = (last - first).clamp(0.0, 50.0) as u32;
        let values = (0..=count).map(|n| (first + f64::from(n)) * step);
        let ticks = values.map(|value| (value, tick_label(value, step))).collect();
        let (low, high) = if fixed { (low, high) } else { (first * step, last * step) };
        Self { low, high, log: false, ticks, minor: Vec::new() }
    }

    /// Returns a logarithmic axis. Ticks are at the values themselves if they are few. Otherwise
    /// they are at 1, 2 and 5 times the powers of ten, or at the powers alone.
    fn log([low, high]: [f64; 2], values: &[f64], length: f64) -> Self {
        let (log_low, log_high) = (low.log10(), high.log10());
        let is_readable_gap =
            |a: f64, b: f64| (b.log10() - a.log10()) / (log_high - log_low) * length > 30.0;
        let are_readable =
            values.iter().zip(values.iter().skip(1)).all(|(a, b)| is_readable_gap(*a, *b));
        let powers = || (log_low.floor() as i32)..=(log_high.ceil() as i32);
        let multiples = |steps: &'static [f64]| -> Vec<f64> {
            let candidates =
                powers().flat_map(|power| steps.iter().map(move |n| n * 10_f64.powi(power)));
            candidates.filter(|value| (low * 0.999..=high * 1.001).contains(value)).collect()
        };
        let ticks = if are_readable && (2..=9).contains(&values.len()) {
            values.to_vec()
        } else if (log_high - log_low) * 3.0 <= length / 30.0 {
            multiples(&[1.0, 2.0, 5.0])
        } else {
            multiples(&[1.0])
        };
        let label = |value: f64| (value, tick_label(value, value));
        let minor = multiples(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]);
        Self { low, high, log: true, ticks: ticks.into_iter().map(label).collect(), minor }
    }
}

/// Returns the horizontal axis of a panel's data area that is `length` wide, in SVG units.
pub(super) fn horizontal(panel: &Panel, length: f64) -> AxisLayout {
    let points = panel.curves.iter().flat_map(|curve| &curve.points).map(|point| point.x);
    let references = panel.references.iter().map(|reference| reference.x);
    axis(&panel.x, points.chain(references), length, 6, panel.kind == CurveKind::Lines)
}

/// Returns the vertical axis of a panel's data area that is `length` high, in SVG units.
pub(super) fn vertical(panel: &Panel, length: f64) -> AxisLayout {
    if panel.kind == CurveKind::Cdf {
        let percent_axis =
            Axis { range: Some(panel.y.range.unwrap_or([0.0, 100.0])), ..panel.y.clone() };
        return axis(&percent_axis, std::iter::empty(), length, 7, false);
    }
    let tops = super::marks::tops(panel);
    let points = panel.curves.iter().flat_map(|curve| &curve.points);
    let ends = points.flat_map(|point| [point.middle, point.spread[0], point.spread[1]]);
    let ends: Vec<f64> = if panel.kind == CurveKind::StackedBars { tops } else { ends.collect() };
    let references = panel.references.iter().map(|reference| reference.y);
    let lines = panel.lines.iter().map(|line| line.at);
    axis(&panel.y, ends.into_iter().chain(references).chain(lines), length, 6, false)
}

fn axis(
    axis: &Axis,
    values: impl Iterator<Item = f64>,
    length: f64,
    max_ticks: usize,
    may_start_above_zero: bool,
) -> AxisLayout {
    let log = axis.scale == ScaleKind::Log;
    let usable = |value: &f64| value.is_finite() && (!log || *value > 0.0);
    let mut values: Vec<f64> = values.filter(usable).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    let min = values.first().copied().unwrap_or(1.0);
    let max = values.last().copied().unwrap_or(min);
    match (&axis.scale, axis.range) {
        (ScaleKind::Names(names), _) => AxisLayout::names(names),
        (ScaleKind::Linear, Some(range)) => AxisLayout::linear(range, true, max_ticks),
        // A curve may begin far from zero. A bar may not: readers compare its length.
        (ScaleKind::Linear, None) if may_start_above_zero && min > 0.5 * max => {
            AxisLayout::linear([min, max], false, max_ticks)
        }
        (ScaleKind::Linear, None) => {
            AxisLayout::linear([min.min(0.0), max * 1.02], false, max_ticks)
        }
        (ScaleKind::Log, Some(range)) if range[0] > 0.0 => AxisLayout::log(range, &values, length),
        (ScaleKind::Log, _) => {
            let (log_min, log_max) = (min.log10(), max.log10());
            let log_max = if log_max > log_min { log_max } else { log_min + 1.0 };
            let margin = 0.04 * (log_max - log_min);
            let end = |log: f64| 10_f64.powf(log.clamp(-MAX_LOG, MAX_LOG));
            AxisLayout::log([end(log_min - margin), end(log_max + margin)], &values, length)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &AxisLayout) -> Vec<&str> {
        axis.ticks.iter().map(|(_, label)| label.as_str()).collect()
    }

    #[test]
    fn extreme_values_have_an_axis_with_few_ticks() {
        for scale in [ScaleKind::Log, ScaleKind::Linear] {
            for values in [[1e-320, 1e308], [1e308, 1e308], [-1e308, 1e308], [5e-324, 5e-324]] {
                let plain = Axis { label: String::new(), scale: scale.clone(), range: None };
                let axis = axis(&plain, values.into_iter(), 340.0, 6, true);
                let count = axis.ticks.len() + axis.minor.len();
                assert!(count < 10_000, "{values:?}: {count}");
            }
        }
    }

    #[test]
    fn few_values_of_a_logarithmic_axis_are_its_ticks() {
        let axis_of = |values: &[f64]| {
            let scale = ScaleKind::Log;
            let plain = Axis { label: String::new(), scale, range: None };
            axis(&plain, values.iter().copied(), 340.0, 6, true)
        };
        assert_eq!(labels(&axis_of(&[2.0, 4.0, 8.0, 16.0])), ["2", "4", "8", "16"]);
        let many: Vec<f64> = (1..=100).map(|n| f64::from(n) * 10.0).collect();
        assert_eq!(labels(&axis_of(&many)), ["10", "20", "50", "100", "200", "500", "1000"]);
        assert_eq!(
            labels(&axis_of(&[0.001, 0.002, 1e6])),
            [
                "0.001",
                "0.01",
                "0.1",
                "1",
                "10",
                "100",
                "1000",
                "10\u{a0}000",
                "100\u{a0}000",
                "1\u{a0}000\u{a0}000"
            ]
        );
    }

    #[test]
    fn heights_begin_at_zero_and_end_at_a_tick_above_the_highest() {
        let plain = Axis { label: String::new(), scale: ScaleKind::Linear, range: None };
        let layout = axis(&plain, [8.2, 9.4].into_iter(), 220.0, 6, false);
        assert!(layout.low().abs() < 1e-9);
        assert_eq!(layout.ticks.last().map(|tick| tick.0), Some(10.0));
        assert_eq!(layout.relative_position(5.0), Some(0.5));
        let range = Some([0.0, 12.0]);
        let layout = axis(&Axis { range, ..plain }, [8.2].into_iter(), 220.0, 6, false);
        assert_eq!(layout.relative_position(12.0), Some(1.0));
    }

    #[test]
    fn an_axis_exists_for_no_values_and_for_infinity() {
        for scale in [ScaleKind::Linear, ScaleKind::Log, ScaleKind::Names(vec![])] {
            let plain = Axis { label: String::new(), scale, range: None };
            for values in [vec![], vec![0.0], vec![f64::NAN, f64::INFINITY], vec![5.0]] {
                let layout = axis(&plain, values.into_iter(), 220.0, 6, true);
                assert!(layout.relative_position(0.7).is_none_or(f64::is_finite), "{layout:?}");
            }
        }
    }
}
