//! Charts: inline SVG that keeps its text at one readable size on every screen.
//!
//! `plotters` computes the coordinates, ticks and outlines, and our own back-end ([`canvas`])
//! writes them. The stock SVG of `plotters` and `kuva` is a picture of fixed size and fixed
//! colours. On a phone its text shrinks to 4 px, and in dark mode it stays a white box. Here only
//! the data area is stretched, colours are names of the style sheet, and a chart of 100 samples
//! takes 2–4 KB.

mod bands;
mod canvas;
mod draw;
pub(crate) mod sequence;
pub(crate) mod values;

pub(crate) use draw::svg;

use towpath_result::format::number;

use crate::series::{Mark, Values};

/// A chart of several series over time.
#[derive(Debug)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// One short sentence: the quantity drawn and the place of the measurement.
    pub(crate) about: String,
    /// Unit of the values.
    pub(crate) unit: String,
    pub(crate) series: Vec<ChartSeries>,
    /// Top of the y axis.
    pub(crate) max: f64,
    pub(crate) size: ChartSize,
}

/// Size class of a chart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChartSize {
    Large,
    Medium,
    Small,
    /// Medium, with the names of its bands in them.
    Account,
}

impl ChartSize {
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Large => "large",
            Self::Medium => "medium",
            Self::Small => "small",
            Self::Account => "account",
        }
    }
}

/// Drawing style of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeriesStyle {
    /// A band on top of the bands before it.
    Stack,
    /// Counts of a period: constant within it.
    Steps,
    /// A state, known at the end of each period.
    Line,
    /// Band from `base` to the value: the range of several repetitions.
    Range,
    /// A dot for each period with a value, at the height given by `base`.
    Dots,
}

impl SeriesStyle {
    /// Returns the letter of the style in the page's data, for the script.
    pub(crate) fn code(self) -> &'static str {
        match self {
            Self::Stack => "s",
            Self::Steps => "t",
            Self::Line => "l",
            Self::Range => "r",
            Self::Dots => "d",
        }
    }
}

/// One series of a chart, in the chart's unit.
#[derive(Debug)]
pub(crate) struct ChartSeries {
    pub(crate) name: String,
    /// Classes of the style sheet that give colour and dash.
    pub(crate) class: String,
    pub(crate) shape: SeriesStyle,
    pub(crate) values: Values,
    /// Lower edge, for [`SeriesStyle::Range`]; height, for [`SeriesStyle::Dots`].
    pub(crate) base: Values,
}

/// Quantity and scale of the horizontal axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum AxisScale {
    /// Seconds since the start of the run.
    Time,
    /// Logarithmic delays. The value is the power of ten (in ms) at position 0; each step of 1 is
    /// ten times more.
    Delay(f64),
}

/// The horizontal axis that all charts of a run share.
#[derive(Debug)]
pub(crate) struct SharedAxis {
    pub(crate) scale: AxisScale,
    pub(crate) step_s: f64,
    pub(crate) end_s: f64,
    pub(crate) marks: Vec<Mark>,
    pub(crate) stalls: Vec<(f64, f64)>,
}

/// Returns the largest value of the series, bands added up.
pub(crate) fn top(series: &[ChartSeries]) -> f64 {
    let points = series.iter().map(|series| series.values.len()).max().unwrap_or(0);
    let mut top = 0.0_f64;
    for point in 0..points {
        let mut sum = 0.0;
        for series in series.iter().filter(|series| series.shape != SeriesStyle::Dots) {
            let value = series.values.get(point).copied().flatten().unwrap_or(0.0);
            if series.shape == SeriesStyle::Stack {
                sum += value;
            }
            top = top.max(value).max(sum);
        }
    }
    top
}

/// Minimum number of positive values; with fewer, no value counts as a spike.
const MIN_VALUES: usize = 20;
/// Quantile of the values at which an axis that cuts off spikes ends.
const TYPICAL_QUANTILE: f64 = 0.95;
/// Room above [`TYPICAL_QUANTILE`], as a ratio.
const HEADROOM_RATIO: f64 = 1.25;
/// Minimum ratio of a spike to [`TYPICAL_QUANTILE`].
const MIN_SPIKE_RATIO: f64 = 1.6;
/// Maximum length of a spike, in points.
const MAX_SPIKE_POINTS: usize = 3;

/// Returns a good end for an axis of these values: the largest one, unless that is a brief spike
/// far above the others. One burst out of a reorder buffer would flatten everything else.
pub(crate) fn robust_top(values: impl Iterator<Item = Option<f64>>) -> f64 {
    let points: Vec<f64> = values.map(|value| value.unwrap_or(0.0)).collect();
    let mut sorted: Vec<f64> = points.iter().copied().filter(|value| *value > 0.0).collect();
    sorted.sort_by(f64::total_cmp);
    let most = sorted.last().copied().unwrap_or(0.0);
    let typical_max =
        sorted.get((sorted.len() as f64 * TYPICAL_QUANTILE) as usize).copied().unwrap_or(most);
    let top = typical_max * HEADROOM_RATIO;
    if sorted.len() < MIN_VALUES || most < typical_max * MIN_SPIKE_RATIO {
        return most;
    }
    let peaks = points
        .chunk_by(|a, b| (*a > top) == (*b > top))
        .filter(|run| run.first().is_some_and(|value| *value > top));
    if peaks.map(<[f64]>::len).max().unwrap_or(0) > MAX_SPIKE_POINTS { most } else { top }
}

/// Applies [`robust_top`] to a chart's series, bands added up.
pub(crate) fn robust_top_of(series: &[ChartSeries]) -> f64 {
    let is_band = |series: &&ChartSeries| series.shape == SeriesStyle::Stack;
    let lines = series.iter().filter(|s| !is_band(s) && s.shape != SeriesStyle::Dots);
    let lines = lines.map(|s| robust_top(s.values.iter().copied()));
    lines.chain([robust_top(band_sums(series).into_iter().map(Some))]).fold(0.0, f64::max)
}

/// Returns the sum of the bands at each point.
fn band_sums(series: &[ChartSeries]) -> Vec<f64> {
    let points = series.iter().map(|series| series.values.len()).max().unwrap_or(0);
    let bands = || series.iter().filter(|series| series.shape == SeriesStyle::Stack);
    let band_sum =
        |point: usize| bands().filter_map(|s| s.values.get(point).copied().flatten()).sum();
    (0..points).map(band_sum).collect()
}

impl Chart {
    /// Returns each point that the axis cuts off, with the largest value there.
    pub(crate) fn peaks(&self) -> Vec<(usize, f64)> {
        let sums = band_sums(&self.series);
        let lines = || {
            let shown =
                |s: &&ChartSeries| !matches!(s.shape, SeriesStyle::Stack | SeriesStyle::Dots);
            self.series.iter().filter(shown)
        };
        let point_max = |(point, sum): (usize, f64)| {
            let values = lines().filter_map(|s| s.values.get(point).copied().flatten());
            (point, values.fold(sum, f64::max))
        };
        let maxima = sums.into_iter().enumerate().map(point_max);
        maxima.filter(|(_, value)| *value > self.max * 1.000_1).collect()
    }
}

/// Returns ticks of an axis from 0 to at least `max`; the last one is the end of the axis.
pub(crate) fn ticks(max: f64, max_ticks: usize) -> Vec<f64> {
    use plotters::coord::ranged1d::{BoldPoints, Ranged};
    let max = if max > 0.0 { max.clamp(1e-9, 1e15) } else { 1.0 };
    let axis = plotters::coord::types::RangedCoordf64::from(0.0..max);
    let key_points = axis.key_points(BoldPoints(max_ticks));
    let step = match key_points.as_slice() {
        [first, second, ..] => second - first,
        _ => max,
    };
    let count = (max / step - 1e-9).ceil().max(1.0) as u32;
    (0..=count).map(|n| f64::from(n) * step).collect()
}

/// Returns ticks of the time axis, which ends where the run ends.
pub(crate) fn time_ticks(end_s: f64) -> Vec<f64> {
    let mut ticks = ticks(end_s, 6);
    ticks.retain(|tick| *tick <= end_s * 1.000_001);
    ticks
}

/// Returns ticks of a delay axis, at 1, 2 and 5 times every power of ten, as positions and labels.
///
/// `first_power` is the power of ten (in ms) at position 0; `length` is the number of powers.
pub(crate) fn delay_ticks(first_power: f64, length: f64) -> Vec<(f64, String)> {
    let decades = (first_power.floor() as i32)..=((first_power + length).ceil() as i32);
    let tick_values_ms = decades.flat_map(|power| [1.0, 2.0, 5.0].map(|n| n * 10_f64.powi(power)));
    let positions = tick_values_ms.map(|ms| (ms.log10() - first_power, ms));
    let inside = positions.filter(|(position, _)| (-1e-9..=length + 1e-9).contains(position));
    inside
        .map(|(position, ms)| {
            (position, if ms < 1.0 { format!("{ms}") } else { number::count(ms) })
        })
        .collect()
}

/// Formats a tick's label, with as many decimals as the step needs.
pub(crate) fn tick_label(value: f64, step: f64) -> String {
    let decimals = (0..=6).find(|n| {
        let scaled = step * 10_f64.powi(*n);
        (scaled - scaled.round()).abs() < 1e-6 * scaled.max(1e-9)
    });
    let decimals = usize::try_from(decimals.unwrap_or(6)).unwrap_or(6);
    if decimals == 0 { number::count(value) } else { format!("{value:.decimals$}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_largest_value() {
        assert_eq!(ticks(57.3, 6), [0.0, 10.0, 20.0, 30.0, 40.0, 50.0, 60.0]);
        assert_eq!(ticks(0.0, 6).len(), 6);
        assert_eq!(ticks(f64::NAN, 6).first(), Some(&0.0));
        assert_eq!(tick_label(0.25, 0.25), "0.25");
        assert_eq!(tick_label(10.0, 5.0), "10");
    }

    #[test]
    fn one_spike_does_not_set_an_axis_and_a_phase_does() {
        let mut values = vec![Some(50.0); 100];
        values[40] = Some(250.0);
        assert_eq!(Some(robust_top(values.iter().copied())), Some(62.5));
        // A long-lasting rise does not count as a spike, nor does one among few values.
        values[41..44].fill(Some(240.0));
        assert_eq!(Some(robust_top(values.iter().copied())), Some(250.0));
        assert_eq!(Some(robust_top([Some(1.0), None, Some(9.0)].into_iter())), Some(9.0));
        assert_eq!(Some(robust_top(std::iter::empty())), Some(0.0));
    }

    #[test]
    fn clipped_points_are_listed_one_by_one() {
        let band = |name: &str, values: [f64; 3]| ChartSeries {
            name: name.to_owned(),
            class: String::new(),
            shape: SeriesStyle::Stack,
            values: values.map(Some).into(),
            base: Values::new(),
        };
        let chart = Chart {
            title: String::new(),
            about: String::new(),
            unit: String::new(),
            series: vec![band("a", [1.0, 6.0, 2.0]), band("b", [1.0, 6.0, 2.0])],
            max: 10.0,
            size: ChartSize::Small,
        };
        assert_eq!(chart.peaks(), [(1, 12.0)]);
    }
}
