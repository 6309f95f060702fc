//! Plots with a metric's value as axis, not time: one row for each group, or one curve.
//!
//! Positions are per cent of the data area, so that text keeps its size on every screen.

use std::fmt::Write as _;

use towpath_result::expect::MetricUnit;
use towpath_result::format::number;
use towpath_result::format::text::cut;

use super::{tick_label, ticks};
use crate::text::esc;

/// Height of a row, in pixels.
const ROW_PX: usize = 44;
/// Height of the axis around all rows, in pixels.
const AXIS_PX: usize = 46;
/// Maximum number of single values (dots) that are drawn in a row.
const MAX_DOTS: usize = 400;
/// Ratio of largest to smallest value from which a linear axis would hide the small values.
const LOG_AXIS_RATIO: f64 = 30.0;
/// Maximum length of a row's name, in characters.
const MAX_NAME_CHARS: usize = 22;

/// Value axis of a metric, linear or logarithmic.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ValueAxis {
    /// Value of one displayed unit, in base units.
    size: f64,
    unit: &'static str,
    ends: AxisRange,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum AxisRange {
    /// Range from 0 in `steps` steps of `step` base units.
    Linear { steps: u32, step: f64 },
    /// Decimal logarithms of the two ends, which are in base units.
    Log(f64, f64),
}

impl ValueAxis {
    /// Returns an axis that holds all values of a metric.
    pub(crate) fn of(unit: MetricUnit, values: impl Iterator<Item = f64> + Clone) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let min = finite.clone().fold(f64::INFINITY, f64::min);
        let max = finite.fold(0.0, f64::max);
        let (size, unit) = scale(unit, max);
        let ends = if min > 0.0 && min.is_finite() && max / min > LOG_AXIS_RATIO {
            AxisRange::Log((min * 0.9).log10(), (max * 1.1).log10())
        } else {
            // A dot right at the edge would be cut off.
            let ticks = ticks(max * 1.02 / size, 5);
            let step = ticks.get(1).copied().unwrap_or(1.0) * size;
            AxisRange::Linear { steps: ticks.len().saturating_sub(1).max(1) as u32, step }
        };
        Self { size, unit, ends }
    }

    /// Returns a logarithmic axis of ratios around 1.
    pub(crate) fn of_ratios(values: impl Iterator<Item = f64>) -> Self {
        let positive = values.filter(|value| value.is_finite() && *value > 0.0);
        let (low, high) = positive.fold((0.8_f64, 1.25_f64), |(l, h), v| (l.min(v), h.max(v)));
        let margin = (high / low).powf(0.06);
        Self {
            size: 1.0,
            unit: "",
            ends: AxisRange::Log((low / margin).log10(), (high * margin).log10()),
        }
    }

    /// Returns the position in per cent of the width; values beyond the axis are clamped to its
    /// end.
    fn position(&self, value: f64) -> f64 {
        let part = match self.ends {
            AxisRange::Linear { steps, step } => value / (f64::from(steps) * step),
            AxisRange::Log(from, to) => (value.max(f64::MIN_POSITIVE).log10() - from) / (to - from),
        };
        if part.is_nan() { 0.0 } else { 100.0 * part.clamp(0.0, 1.0) }
    }

    fn ticks(&self) -> Vec<(f64, String)> {
        match self.ends {
            AxisRange::Linear { steps, step } => {
                let tick =
                    |n| (self.position(f64::from(n) * step), f64::from(n) * step / self.size);
                let label = |(position, value)| (position, tick_label(value, step / self.size));
                (0..=steps).map(tick).map(label).collect()
            }
            AxisRange::Log(from, to) => self.log_ticks(from, to),
        }
    }

    fn log_ticks(&self, from: f64, to: f64) -> Vec<(f64, String)> {
        let shift = self.size.log10();
        let steps: &[f64] = match to - from {
            narrow if narrow < 0.6 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0],
            middle if middle < 2.2 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let powers = ((from - shift).floor() as i32)..=((to - shift).ceil() as i32);
        let values = powers.flat_map(|power| steps.iter().map(move |n| n * 10_f64.powi(power)));
        let inside = values.filter(|t| {
            let log = t.log10() + shift;
            from - 1e-9 <= log && log <= to + 1e-9
        });
        inside.map(|t| (self.position(t * self.size), trimmed_decimal(t))).collect()
    }

    /// Writes grid lines and labels, and the unit.
    fn write(&self, out: &mut String, quantity: &str) {
        for (x, label) in self.ticks() {
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y2=\"100%\"/>\
                 <text x=\"{x:.2}%\" y=\"100%\" dy=\"16\" text-anchor=\"middle\">{label}</text>"
            );
        }
        let mut text = [quantity, self.unit].join(if self.unit.is_empty() { "" } else { ", " });
        if matches!(self.ends, AxisRange::Log(..)) {
            text.push_str(" (logarithmic)");
        }
        let _ = write!(
            out,
            "<line class=\"zero\" y1=\"100%\" x2=\"100%\" y2=\"100%\"/>\
             <text class=\"unit\" x=\"50%\" y=\"100%\" dy=\"32\" text-anchor=\"middle\">{}</text>",
            esc(&text)
        );
    }
}

fn scale(unit: MetricUnit, max: f64) -> (f64, &'static str) {
    match unit {
        MetricUnit::Rate => {
            let unit = number::rate_unit(max);
            (unit.size, unit.name)
        }
        MetricUnit::Bytes => {
            let unit = number::bytes_unit(max);
            (unit.size, unit.name)
        }
        MetricUnit::Time if max >= 1.0 => (1.0, "s"),
        MetricUnit::Time if max >= 1e-3 => (1e-3, "ms"),
        MetricUnit::Time => (1e-6, "µs"),
        MetricUnit::Share => (0.01, "%"),
        MetricUnit::Count | MetricUnit::Score | MetricUnit::YesNo => (1.0, ""),
    }
}

fn trimmed_decimal(value: f64) -> String {
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// One row: a group's values with their statistics, or a ratio.
#[derive(Debug, Default)]
pub(crate) struct ValueRow {
    pub(crate) name: String,
    /// Text below the name.
    pub(crate) note: String,
    pub(crate) class: String,
    /// Values of the single runs.
    pub(crate) dots: Vec<f64>,
    /// Lower and upper quartile; `None` for a ratio.
    pub(crate) quartiles: Option<[f64; 2]>,
    /// Median of the values, or the estimated ratio.
    pub(crate) median: Option<f64>,
    /// 95 % confidence interval of the median, or of the ratio.
    pub(crate) confidence_interval: Option<[f64; 2]>,
}

/// Draws a plot of rows; `reference` is a line through all of them.
pub(crate) fn rows(
    title: &str,
    quantity: &str,
    axis: &ValueAxis,
    rows: &[ValueRow],
    reference: Option<f64>,
) -> String {
    let descriptions = rows.iter().map(|row| format!("{}: {}", row.name, row.note));
    let aria_text = descriptions.collect::<Vec<_>>().join("; ");
    let height = ROW_PX * rows.len() + AXIS_PX;
    let mut out = format!(
        "<svg class=\"plot rows\" height=\"{height}\" role=\"img\" aria-label=\"{}\">",
        esc(&format!("{title}: {aria_text}"))
    );
    axis.write(&mut out, quantity);
    if let Some(value) = reference {
        let x = axis.position(value);
        let _ = write!(out, "<line class=\"event\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y2=\"100%\"/>");
    }
    for (number, row) in rows.iter().enumerate() {
        let _ = write!(
            out,
            "<svg class=\"{}\" y=\"{}\" width=\"100%\" height=\"{ROW_PX}\" overflow=\"visible\">",
            row.class,
            ROW_PX * number
        );
        row.write(&mut out, axis);
        out.push_str("</svg>");
    }
    out.push_str("</svg>");
    out
}

impl ValueRow {
    fn write(&self, out: &mut String, axis: &ValueAxis) {
        let _ = write!(
            out,
            "<text class=\"name\" x=\"-10\" y=\"19\" text-anchor=\"end\">{}</text>\
             <text class=\"unit\" x=\"-10\" y=\"34\" text-anchor=\"end\">{}</text>",
            esc(&cut(&self.name, MAX_NAME_CHARS)),
            esc(&self.note)
        );
        let quartiles = self.quartiles.filter(|[low, _]| low.is_finite());
        if let Some([low, high]) = quartiles.map(|ends| ends.map(|end| axis.position(end))) {
            let _ = write!(
                out,
                "<rect class=\"box\" x=\"{low:.2}%\" width=\"{:.2}%\" y=\"10\" height=\"18\"/>",
                (high - low).max(0.0)
            );
        }
        for (number, value) in self.dots.iter().filter(|v| v.is_finite()).take(MAX_DOTS).enumerate()
        {
            // Dots alternate between three heights, so that equal values remain visible.
            let y = 14 + 5 * (number % 3);
            let x = axis.position(*value);
            let _ = write!(out, "<circle cx=\"{x:.2}%\" cy=\"{y}\" r=\"3\"/>");
        }
        // Below the box; a ratio has no box, so its estimate is a dot on the confidence interval.
        let y = if self.quartiles.is_some() { 35 } else { 22 };
        let confidence_interval = self.confidence_interval.filter(|[low, _]| low.is_finite());
        if let Some([low, high]) =
            confidence_interval.map(|ends| ends.map(|end| axis.position(end)))
        {
            let _ = write!(
                out,
                "<line class=\"interval\" x1=\"{low:.2}%\" x2=\"{high:.2}%\" \
                 y1=\"{y}\" y2=\"{y}\"/>"
            );
            for x in [low, high] {
                let _ = write!(
                    out,
                    "<line class=\"interval\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{}\" y2=\"{}\"/>",
                    y - 3,
                    y + 3
                );
            }
        }
        if self.median == Some(f64::INFINITY) {
            out.push_str("<text x=\"100%\" y=\"23\" text-anchor=\"end\">never</text>");
            return;
        }
        let Some(x) = self.median.map(|median| axis.position(median)) else { return };
        let _ = if self.quartiles.is_some() {
            write!(out, "<line class=\"median\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"8\" y2=\"30\"/>")
        } else {
            write!(out, "<circle class=\"estimate\" cx=\"{x:.2}%\" cy=\"{y}\" r=\"4.5\"/>")
        };
    }
}

/// A curve: name, class, and the corners of a distribution function.
pub(crate) type DistributionCurve = (String, String, Vec<(f64, f64)>);

/// Draws distribution functions: the share of the runs with at most this value.
pub(crate) fn distribution(
    title: &str,
    quantity: &str,
    axis: &ValueAxis,
    curves: &[DistributionCurve],
) -> String {
    let mut out = format!("<svg class=\"plot small\" role=\"img\" aria-label=\"{}\">", esc(title));
    for percent in [0, 25, 50, 75, 100] {
        let y = 100 - percent;
        let _ = write!(
            out,
            "<line class=\"grid\" x2=\"100%\" y1=\"{y}%\" y2=\"{y}%\"/>\
             <text x=\"-6\" y=\"{y}%\" dy=\".33em\" text-anchor=\"end\">{percent}</text>"
        );
    }
    let _ = write!(out, "<text class=\"unit\" x=\"-46\" y=\"-12\">% of the runs</text>");
    axis.write(&mut out, quantity);
    out.push_str(
        "<svg class=\"data\" width=\"100%\" height=\"100%\" viewBox=\"0 0 10000 1000\" \
         preserveAspectRatio=\"none\">",
    );
    for (_, class, steps) in curves {
        let _ = write!(out, "<g class=\"{class}\"><path d=\"M0 1000");
        for (value, share) in steps.iter().filter(|(value, _)| value.is_finite()) {
            let (x, y) = (axis.position(*value) * 100.0, 1_000.0 - 1_000.0 * share);
            let _ = write!(out, "H{x:.0}V{y:.0}");
        }
        out.push_str("H10000\"/></g>");
    }
    out.push_str("</svg></svg>");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_begins_at_zero_unless_that_would_hide_the_small_values() {
        let axis = ValueAxis::of(MetricUnit::Rate, [57.0e6, 20.0e6].into_iter());
        let AxisRange::Linear { steps, step } = axis.ends else { panic!("{axis:?}") };
        assert_eq!((axis.unit, f64::from(steps) * step), ("Mbit/s", 60.0e6));
        assert!((axis.position(30.0e6) - 50.0).abs() < 1e-9);
        let axis = ValueAxis::of(MetricUnit::Time, [0.01, 9.0].into_iter());
        assert!(matches!(axis.ends, AxisRange::Log(..)));
        assert!(
            axis.position(0.01) < axis.position(1.0) && axis.position(1.0) < axis.position(9.0)
        );
        // Zero has no position on a logarithmic axis.
        let axis = ValueAxis::of(MetricUnit::Time, [0.0, 9.0].into_iter());
        assert!(matches!(axis.ends, AxisRange::Linear { .. }));
    }

    #[test]
    fn ticks_are_evenly_spaced_to_the_end_of_the_axis() {
        for max in [22.1e6, 2.0e6, 7.0, 30.5, 0.0, 999.9] {
            let axis = ValueAxis::of(MetricUnit::Rate, [max].into_iter());
            let positions: Vec<f64> =
                axis.ticks().into_iter().map(|(position, _)| position).collect();
            let step = 100.0 / (positions.len() - 1) as f64;
            let is_even = |(n, position): (usize, &f64)| (position - n as f64 * step).abs() < 1e-6;
            assert!(
                positions.len() > 2 && positions.iter().enumerate().all(is_even),
                "{max}: {positions:?}"
            );
        }
    }

    #[test]
    fn never_is_the_last_axis_position_and_an_axis_without_values_is_valid() {
        let axis = ValueAxis::of(MetricUnit::Time, [1.0, f64::INFINITY].into_iter());
        assert!(axis.position(f64::INFINITY) >= 100.0);
        let empty = ValueAxis::of(MetricUnit::Count, std::iter::empty());
        assert!(!empty.ticks().is_empty());
    }

    #[test]
    fn one_is_always_on_the_axis_of_ratios() {
        let axis = ValueAxis::of_ratios([3.0, 5.0].into_iter());
        assert!(axis.position(1.0) > 0.0 && axis.position(1.0) < axis.position(3.0));
        assert!(axis.ticks().iter().any(|(_, label)| label == "1"), "{:?}", axis.ticks());
    }
}
