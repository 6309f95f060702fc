//! Bytes on each interface, and the state of the first interface's subflows.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::{Subflow, SubflowEnd};
use towpath_scenario::DataDirection;

use super::plot::{PlotBand, PlotLegendEntry, PlotPart, RoundCurve, RoundPlot, WIDTH};
use super::round::{MobileRound, RoundRun, is_sampled_by_client, path_name, time_text};
use super::scale::DelayScale;

/// Maximum number of steps of a band.
const MAX_STEPS: u64 = 1_000;
/// Quantile of the positive values that fits into a band, and the room above it as a ratio.
const TYPICAL_QUANTILE: f64 = 0.9;
const HEADROOM_RATIO: f64 = 1.3;
/// Shortest sampling period that has a step of its own, in nanoseconds.
const MIN_STEP_NS: u64 = 1_000_000;

/// Equal steps of the time axis.
#[derive(Debug, Clone, Copy)]
struct TimeSteps {
    step_ns: u64,
    count: usize,
}

impl TimeSteps {
    fn of(round: &MobileRound<'_>) -> Self {
        let samples = round.runs.iter().map(|view| view.run.meta.sample_ns).max();
        let sample_ns = samples.unwrap_or(0).max(MIN_STEP_NS);
        let count = round.end_ns.div_ceil(sample_ns);
        let step_ns = sample_ns.saturating_mul(count.div_ceil(MAX_STEPS).max(1));
        let count = usize::try_from(round.end_ns.div_ceil(step_ns)).unwrap_or(1).max(1);
        Self { step_ns, count }
    }

    /// Returns the length of a step, in units across.
    fn width(self, round: &MobileRound<'_>) -> f64 {
        self.step_ns as f64 / round.end_ns as f64 * f64::from(WIDTH)
    }

    /// Returns the number of the step that holds a time.
    fn index(self, at_ns: u64) -> usize {
        usize::try_from(at_ns / self.step_ns).unwrap_or(usize::MAX)
    }

    /// Spreads an amount evenly over the period that ends at `at_ns`.
    fn spread(self, values: &mut [f64], (at_ns, span_ns): (u64, u64), amount: f64) {
        let start_ns = at_ns.saturating_sub(span_ns.max(1));
        let span = (at_ns - start_ns).max(1) as f64;
        let (first, last) = (self.index(start_ns), self.index(at_ns.saturating_sub(1)));
        for (index, value) in values.iter_mut().enumerate().skip(first) {
            if index > last {
                return;
            }
            let from = (index as u64).saturating_mul(self.step_ns).max(start_ns);
            let to = (index as u64 + 1).saturating_mul(self.step_ns).min(at_ns);
            *value += amount * to.saturating_sub(from) as f64 / span;
        }
    }
}

/// Bytes of one transport on one path.
#[derive(Debug)]
struct CarriedBytes {
    label: String,
    class: String,
    /// Bytes up and down in each step.
    values: [Vec<f64>; 2],
}

/// Returns the plot of the bytes of every transport on every path; `None` without samples.
pub(super) fn carried_plot(round: &MobileRound<'_>) -> Option<RoundPlot> {
    let steps = TimeSteps::of(round);
    let mut carried: Vec<CarriedBytes> = Vec::new();
    for view in &round.runs {
        let used = |path: &str| view.subflows().any(|sample| sample.path == path);
        for (number, path) in round.paths.iter().enumerate().filter(|(_, path)| used(path)) {
            carried.push(carried_bytes(view, (number, path), steps));
        }
    }
    let directions = || carried.iter().flat_map(|bytes| &bytes.values);
    let all = directions().flatten().copied();
    let largest = all.clone().fold(0.0, f64::max);
    if carried.is_empty() {
        return None;
    }
    let top = typical_max(all).max(f64::MIN_POSITIVE);
    let rate = |bytes: f64| number::rate(bytes * 8e9 / steps.step_ns as f64);
    let mut about = format!(
        "Bytes that arrived or were acknowledged in each {}, as sampled by {}. Above the line: up; below: down. \
         The full height is {}",
        number::period(steps.step_ns),
        round.runs.first().map(|view| path_name(view.client())).unwrap_or_default(),
        rate(top)
    );
    if largest > top * 1.000_1 {
        let _ = write!(about, "; higher rates, up to {}, are cut off", rate(largest));
    }
    about.push('.');
    let width = steps.width(round);
    let band = |bytes: CarriedBytes| {
        let [above, below] =
            bytes.values.map(|values| values.into_iter().map(|value| value / top).collect());
        let CarriedBytes { label, class, .. } =
            CarriedBytes { values: [Vec::new(), Vec::new()], ..bytes };
        PlotPart::Band(PlotBand { class, label, above, below: Some(below), step: width })
    };
    let parts = carried.into_iter().map(band).collect();
    let title = "Bytes on each interface".to_owned();
    let entry = |(number, path): (usize, &&str)| PlotLegendEntry {
        class: format!("p{} dots", number % 8),
        text: round.path_text(path),
    };
    let legend = round.paths.iter().enumerate().map(entry).collect();
    Some(RoundPlot { title, about, legend, parts })
}

/// Returns a height of bands at which the usual rate is visible; bursts may exceed it.
fn typical_max(values: impl Iterator<Item = f64>) -> f64 {
    let mut positive: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    positive.sort_by(f64::total_cmp);
    let typical = positive.get((positive.len() as f64 * TYPICAL_QUANTILE) as usize);
    let largest = positive.last().copied().unwrap_or(0.0);
    typical.map_or(largest, |typical| (typical * HEADROOM_RATIO).min(largest))
}

fn carried_bytes(
    view: &RoundRun<'_>,
    (number, path): (usize, &str),
    steps: TimeSteps,
) -> CarriedBytes {
    let mut values = [vec![0.0; steps.count], vec![0.0; steps.count]];
    let mut sums = [0_u64; 2];
    let samples = view.subflows().filter(|sample| sample.path == path);
    for sample in samples.filter(|sample| is_sampled_by_client(sample)) {
        let [up, down] = &mut values;
        let [up_sum, down_sum] = &mut sums;
        let (values, sum) = match sample.direction {
            DataDirection::Up | DataDirection::Both => (up, up_sum),
            DataDirection::Down => (down, down_sum),
        };
        *sum = sum.saturating_add(sample.bytes);
        steps.spread(values, (view.at(sample.t_ns), sample.span_ns), sample.bytes as f64);
    }
    let [up, down] = sums.map(|bytes| number::bytes(bytes as f64));
    let label = format!("{} on {}: {up} up, {down} down", view.name, path_name(path));
    CarriedBytes { label, class: format!("p{}", number % 8), values }
}

/// Returns the plot of the round-trip times and timeouts on the first path; `None` without samples.
pub(super) fn state_plot(round: &MobileRound<'_>) -> Option<RoundPlot> {
    let path = round.first_path()?;
    let of_run = |view: &RoundRun<'_>| -> BTreeMap<u64, u32> {
        let is_valid = |sample: &&Subflow| {
            sample.path == path && is_sampled_by_client(sample) && sample.srtt_us > 0
        };
        let mut states = BTreeMap::new();
        for sample in view.subflows().filter(is_valid) {
            let srtt_us: &mut u32 = states.entry(view.at(sample.t_ns)).or_default();
            *srtt_us = sample.srtt_us.max(*srtt_us);
        }
        states.retain(|at_ns, _| *at_ns <= round.end_ns);
        states
    };
    let states: Vec<BTreeMap<u64, u32>> = round.runs.iter().map(of_run).collect();
    if states.iter().all(BTreeMap::is_empty) {
        return None;
    }
    let ms = |srtt_us: u32| f64::from(srtt_us) / 1e3;
    let scale = DelayScale::of(states.iter().flat_map(BTreeMap::values).map(|us| ms(*us)));
    let mut plot = RoundPlot {
        title: format!("State of the subflows on {}", path_name(path)),
        about: format!(
            "Largest smoothed round-trip time at {}, and back-off of the retransmission \
             timer (RTO) where there was one.{}",
            round.runs.first().map(|view| path_name(view.client())).unwrap_or_default(),
            if scale.is_logarithmic() { " The scale is logarithmic." } else { "" }
        ),
        legend: Vec::new(),
        parts: Vec::new(),
    };
    let mut curves = Vec::new();
    for (view, states) in round.runs.iter().zip(&states) {
        let class = format!("{} line", view.class);
        let largest = states.values().max().copied().unwrap_or(0);
        let text = if states.is_empty() {
            format!("{}: no samples", view.name)
        } else {
            format!("{}: smoothed RTT up to {}", view.name, time_text(u64::from(largest) * 1_000))
        };
        plot.legend.push(PlotLegendEntry { class: class.clone(), text });
        let max_gap_ns = view.run.meta.sample_ns.max(MIN_STEP_NS).saturating_mul(3);
        let points = states.iter().map(|(at_ns, srtt_us)| (*at_ns, scale.y(ms(*srtt_us))));
        curves.push(RoundCurve { class, segments: segments(round, points, max_gap_ns) });
    }
    plot.parts.push(PlotPart::Curves { scale, curves });
    plot.parts.extend(back_off_bands(round, path));
    Some(plot)
}

/// Splits points where more than `max_gap_ns` has no sample.
fn segments(
    round: &MobileRound<'_>,
    points: impl Iterator<Item = (u64, u32)>,
    max_gap_ns: u64,
) -> Vec<Vec<(u32, u32)>> {
    let mut segments: Vec<Vec<(u32, u32)>> = Vec::new();
    let mut last_ns = None;
    for (at_ns, y) in points {
        let Some(x) = round.x(at_ns) else { continue };
        let is_near = last_ns.is_some_and(|last_ns| at_ns.saturating_sub(last_ns) <= max_gap_ns);
        last_ns = Some(at_ns);
        match segments.last_mut().filter(|_| is_near) {
            Some(segment) => segment.push((x, y)),
            None => segments.push(vec![(x, y)]),
        }
    }
    segments
}

/// Returns a band for each transport and host whose timer was backed off.
fn back_off_bands(round: &MobileRound<'_>, path: &str) -> Vec<PlotPart> {
    let steps = TimeSteps::of(round);
    let mut bands = Vec::new();
    for view in &round.runs {
        for is_client in [true, false] {
            let mut values = vec![0.0_f64; steps.count];
            let mut largest = 0;
            let is_sender = |sample: &&Subflow| {
                sample.path == path
                    && sample.side == SubflowEnd::Sender
                    && is_sampled_by_client(sample) == is_client
                    && view.at(sample.t_ns) <= round.end_ns
            };
            for sample in view.subflows().filter(is_sender) {
                largest = sample.backoff.max(largest);
                let index = steps.index(view.at(sample.t_ns).saturating_sub(1));
                if let Some(value) = values.get_mut(index) {
                    *value = value.max(f64::from(sample.backoff));
                }
            }
            if largest == 0 {
                continue;
            }
            let host = path_name(if is_client { view.client() } else { view.server() });
            let max = f64::from(largest);
            bands.push(PlotPart::Band(PlotBand {
                class: view.class.to_owned(),
                label: format!("{}, {host}: RTO back-off, up to {largest}", view.name),
                above: values.into_iter().map(|value| value / max).collect(),
                below: None,
                step: steps.width(round),
            }));
        }
    }
    bands
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_is_spread_over_its_period() {
        let steps = TimeSteps { step_ns: 100, count: 4 };
        let mut values = [0.0; 4];
        steps.spread(&mut values, (250, 200), 20.0);
        assert_eq!(values.map(|value| value.round() as u32), [5, 10, 5, 0]);
        steps.spread(&mut values, (u64::MAX, 1), 20.0);
        steps.spread(&mut values, (0, u64::MAX), 20.0);
        assert_eq!(values.map(|value| value.round() as u32), [5, 10, 5, 0]);
    }
}
