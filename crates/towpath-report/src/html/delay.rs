//! Reply delays: over time, and as a distribution.

use towpath_result::format::number;
use towpath_result::store::StoredRun;
use towpath_result::{Message, Record};
use towpath_scenario::DataDirection;

use super::panel::{axis_end, figure, per_point, series as line, transport_class};
use crate::chart::{AxisScale, Chart, ChartSeries, ChartSize, SeriesStyle, SharedAxis};
use crate::group::RunGroup;
use crate::series::{Grid, Values};

/// Number of points of a distribution's curve.
const CURVE_POINTS: usize = 240;
/// Nanoseconds in a millisecond.
const NS_PER_MS: f64 = 1e6;
/// Counted items and the measured time span, for labels.
const REQUEST_LABELS: (&str, &str) = ("requests", "from due time to reply");
/// Minimum delay for an axis in seconds, in milliseconds.
const MIN_SECONDS_AXIS_MS: f64 = 5_000.0;

/// Returns the requests of one direction, without those of the warm-up.
fn requests(run: &StoredRun, packet_direction: DataDirection) -> impl Iterator<Item = &Message> {
    run.records.iter().filter_map(move |record| {
        let Record::Message(message) = record else { return None };
        Some(message).filter(|message| message.direction == packet_direction && !message.warm_up)
    })
}

/// Returns the directions of a run's requests.
fn directions(run: &StoredRun) -> Vec<DataDirection> {
    let up_and_down = [DataDirection::Up, DataDirection::Down];
    up_and_down.into_iter().filter(|direction| requests(run, *direction).next().is_some()).collect()
}

/// Returns the largest delay in milliseconds of the requests due at each point of the grid.
/// Unanswered requests last until the end.
fn delays(run: &StoredRun, grid: &Grid, direction: DataDirection) -> Values {
    let mut values: Values = vec![None; grid.points];
    let end_ns = grid.step_ns.saturating_mul(grid.points as u64);
    for message in requests(run, direction) {
        let index = usize::try_from(message.due_ns / grid.step_ns).unwrap_or(usize::MAX);
        let Some(value) = values.get_mut(index) else { continue };
        let end_or_answered_ns = message.answered_ns.unwrap_or(end_ns);
        let delay = end_or_answered_ns.saturating_sub(message.due_ns) as f64 / NS_PER_MS;
        *value = Some(value.map_or(delay, |old_max| old_max.max(delay)));
    }
    values
}

fn request_label(direction: DataDirection) -> &'static str {
    match direction {
        DataDirection::Up | DataDirection::Both => "requests up",
        DataDirection::Down => "requests down",
    }
}

fn class(direction: DataDirection) -> &'static str {
    match direction {
        DataDirection::Up | DataDirection::Both => "ink",
        DataDirection::Down => "ink d1",
    }
}

/// Draws steps where one request follows the other, else a dot for each.
fn series_style(name: &str, class: &str, values: Values) -> ChartSeries {
    let present: Vec<usize> =
        (0..).zip(&values).filter_map(|(index, v)| v.map(|_| index)).collect();
    let length = present.last().zip(present.first()).map_or(0, |(last, first)| last - first + 1);
    if present.len() * 2 > length {
        return line(name, format!("{class} line"), SeriesStyle::Steps, values);
    }
    let dots = line(name, format!("{class} dots"), SeriesStyle::Dots, values.clone());
    ChartSeries { base: values, ..dots }
}

fn chart(title: &str, grid: &Grid, mut series: Vec<ChartSeries>) -> Chart {
    let values = series.iter().flat_map(|series| &series.values).flatten();
    let top = values.copied().fold(0.0, f64::max);
    let (unit, ms_per_unit) = if top >= MIN_SECONDS_AXIS_MS { ("s", 1_000.0) } else { ("ms", 1.0) };
    for series in &mut series {
        for value in series.values.iter_mut().chain(&mut series.base).flatten() {
            *value /= ms_per_unit;
        }
    }
    Chart {
        title: title.to_owned(),
        about: format!("the slowest reply to the requests due in each {}", per_point(grid)),
        unit: unit.to_owned(),
        max: axis_end(top / ms_per_unit, 7),
        series,
        size: ChartSize::Large,
    }
}

/// Returns the delays of one run; `None` if no messages were exchanged.
pub(super) fn over_time(run: &StoredRun, grid: &Grid) -> Option<Chart> {
    let series_of = |direction: DataDirection| {
        series_style(request_label(direction), class(direction), delays(run, grid, direction))
    };
    let all_series: Vec<_> = directions(run).into_iter().map(series_of).collect();
    (!all_series.is_empty()).then(|| chart("Reply delay", grid, all_series))
}

/// Returns the delays of every transport, of the first repetition each.
pub(super) fn side_by_side(groups: &[RunGroup<'_>], grid: &Grid) -> Vec<Chart> {
    let directions = all_directions(groups);
    let show_direction = directions.len() > 1;
    let chart_of = |direction: DataDirection| {
        let runs = groups.iter().filter_map(|group| Some((group, *group.runs.first()?)));
        let series = |(group, run): (&RunGroup<'_>, &StoredRun)| {
            series_style(
                &group.label,
                &transport_class(groups, group),
                delays(run, grid, direction),
            )
        };
        let suffix =
            if show_direction { format!(", {}", request_label(direction)) } else { String::new() };
        let all_series = runs.map(series).collect();
        chart(&format!("Reply delay, every transport{suffix}"), grid, all_series)
    };
    directions.into_iter().map(chart_of).collect()
}

fn all_directions(groups: &[RunGroup<'_>]) -> Vec<DataDirection> {
    let runs = || groups.iter().flat_map(|group| group.runs.iter().copied());
    let up_and_down = [DataDirection::Up, DataDirection::Down];
    up_and_down
        .into_iter()
        .filter(|direction| runs().any(|run| directions(run).contains(direction)))
        .collect()
}

/// Name and class of a curve, and its delays in milliseconds; a `None` delay was not answered.
pub(super) type DelayCurve = (String, String, Vec<Option<f64>>);

fn delays_ms<'a>(messages: impl Iterator<Item = &'a Message>) -> Vec<Option<f64>> {
    let delay =
        |m: &Message| Some(m.answered_ns?.saturating_sub(m.due_ns).max(1) as f64 / NS_PER_MS);
    messages.map(delay).collect()
}

/// Writes the share of answered requests over time, for one run.
pub(super) fn distribution(out: &mut String, run: &StoredRun) {
    let curve_of = |direction| {
        (
            request_label(direction).to_owned(),
            format!("{} line", class(direction)),
            delays_ms(requests(run, direction)),
        )
    };
    write(
        out,
        ("Replies within", REQUEST_LABELS.0, REQUEST_LABELS.1),
        &directions(run).into_iter().map(curve_of).collect::<Vec<_>>(),
    );
}

/// Writes the distribution for every transport, all repetitions together.
pub(super) fn distributions(out: &mut String, groups: &[RunGroup<'_>]) {
    let directions = all_directions(groups);
    let show_direction = directions.len() > 1;
    for direction in directions {
        let curve = |group: &RunGroup<'_>| {
            let class = format!("{} line", transport_class(groups, group));
            let delays = group.runs.iter().flat_map(|run| delays_ms(requests(run, direction)));
            (group.label.clone(), class, delays.collect())
        };
        let suffix =
            if show_direction { format!(", {}", request_label(direction)) } else { String::new() };
        let curves: Vec<DelayCurve> = groups.iter().map(curve).collect();
        let title = format!("Replies within, every transport{suffix}");
        write(out, (&title, REQUEST_LABELS.0, REQUEST_LABELS.1), &curves);
    }
}

/// Draws the share of requests that were answered within each time. Has no cursor, because its
/// axis is not time.
pub(super) fn write(
    out: &mut String,
    (title, quantity, time): (&str, &str, &str),
    curves: &[DelayCurve],
) {
    let known_ms = || curves.iter().flat_map(|(.., delays)| delays).flatten().copied();
    let (min_ms, max_ms) = known_ms().fold((f64::MAX, 0.0_f64), |(l, m), d| (l.min(d), m.max(d)));
    if max_ms <= 0.0 {
        return;
    }
    // From a round delay below the smallest to one above the largest.
    let from_exponent = round_down(min_ms).log10();
    let end_s = (round_up(max_ms).log10() - from_exponent).max(0.3);
    let step_s = end_s / CURVE_POINTS as f64;
    let series = |(name, class, delays): &DelayCurve| {
        let mut sorted: Vec<f64> = delays.iter().flatten().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let percent_within = |point: usize| {
            let limit_ms = 10_f64.powf(from_exponent + (point + 1) as f64 * step_s) * (1.0 + 1e-9);
            let count = sorted.partition_point(|delay| *delay <= limit_ms);
            Some(100.0 * count as f64 / delays.len().max(1) as f64)
        };
        line(
            name,
            class.clone(),
            SeriesStyle::Line,
            (0..CURVE_POINTS).map(percent_within).collect(),
        )
    };
    let chart = Chart {
        title: title.to_owned(),
        about: format!(
            "share of the {} {quantity}, by the time {time}",
            number::count(curves.iter().map(|(.., delays)| delays.len()).max().unwrap_or(0) as f64)
        ),
        unit: "%".to_owned(),
        series: curves.iter().map(series).collect(),
        max: 100.0,
        size: ChartSize::Large,
    };
    let axis = SharedAxis {
        scale: AxisScale::Delay(from_exponent),
        step_s,
        end_s,
        marks: Vec::new(),
        stalls: Vec::new(),
    };
    out.push_str("<div class=\"panel\">");
    figure(out, 0, &chart, &axis);
    out.push_str("</div>");
}

/// Returns the largest of 1, 2 and 5 times a power of ten that is at most `value`.
fn round_down(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [5.0, 2.0, 1.0].map(|n| n * power);
    steps.into_iter().find(|step| *step <= value * (1.0 + 1e-9)).unwrap_or(power)
}

/// Returns the smallest of 1, 2 and 5 times a power of ten that is at least `value`.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|n| n * power);
    steps.into_iter().find(|step| *step >= value * (1.0 - 1e-9)).unwrap_or(10.0 * power)
}
