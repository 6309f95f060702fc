//! Charts that share a time axis and a cursor, with their legends and data.

use std::collections::HashMap;
use std::fmt::Write as _;

use serde_json::{Value, json};
use towpath_result::format::number;
use towpath_result::format::number::ScaledUnit;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_scenario::{DataDirection, Transport};

use super::{account, datagrams, delay, flows, paths, stack, video};
use crate::chart::{self, AxisScale, Chart, ChartSeries, ChartSize, SeriesStyle, SharedAxis};
use crate::compare::direction;
use crate::group::RunGroup;
use crate::series::{self, Grid, SubflowSeries, Values};
use crate::text::esc;

/// Maximum number of subflows drawn separately; more are merged by path.
pub(super) const MAX_SUBFLOWS: usize = 6;

/// Minimum ratio of the goodput of a direction to that of a direction with its own scale.
const OWN_SCALE_RATIO: f64 = 8.0;

/// Settings common to all charts of a page: each path's colour, and the scale of goodput.
#[derive(Debug)]
pub(super) struct PageStyle {
    /// Position of each path. Only for lookups, never iterated.
    paths: HashMap<String, usize>,
    /// End of the goodput axis by direction, in bit/s.
    tops: Vec<(DataDirection, f64)>,
}

/// An axis of goodput.
#[derive(Debug, Clone, Copy)]
pub(super) struct GoodputAxis {
    pub(super) unit: ScaledUnit,
    pub(super) max: f64,
}

impl GoodputAxis {
    /// Returns an axis to at least `top_bps`.
    pub(super) fn to(top_bps: f64) -> Self {
        let unit = number::rate_unit(top_bps);
        Self { unit, max: axis_end(top_bps / unit.size, 7) }
    }
}

impl PageStyle {
    pub(super) fn of(runs: &[StoredRun]) -> Self {
        let mut paths: HashMap<String, usize> = HashMap::new();
        let mut add_path = |name: &str| {
            if !paths.contains_key(name) {
                paths.insert(name.to_owned(), paths.len());
            }
        };
        for run in runs {
            run.meta.paths.iter().for_each(|path| add_path(&path.name));
            let subflows = run.summary.iter().flat_map(|summary| &summary.subflows);
            subflows.for_each(|subflow| add_path(&subflow.path));
        }
        let mut tops: Vec<(DataDirection, f64)> = Vec::new();
        for (direction, top) in runs.iter().flat_map(largest_goodput) {
            match tops.iter_mut().find(|(d, _)| *d == direction) {
                Some((_, max_bps)) => *max_bps = max_bps.max(top),
                None => tops.push((direction, top)),
            }
        }
        Self { paths, tops }
    }

    /// Returns the axis of a direction's goodput: shared by all, except where its values would be
    /// too small to see.
    pub(super) fn goodput(&self, direction: DataDirection) -> GoodputAxis {
        let max_bps = self.tops.iter().map(|(_, top)| *top).fold(0.0, f64::max);
        let own_max_bps =
            self.tops.iter().find(|(d, _)| *d == direction).map_or(max_bps, |(_, top)| *top);
        GoodputAxis::to(if own_max_bps * OWN_SCALE_RATIO < max_bps { own_max_bps } else { max_bps })
    }

    /// Returns the path's class; a path that no run names comes last.
    pub(super) fn class(&self, path: &str) -> String {
        let index = self.paths.get(path).copied().unwrap_or(self.paths.len());
        format!("p{}", index % 8)
    }
}

/// Returns the maximum that the axis of each direction must hold: everything except brief spikes.
fn largest_goodput(run: &StoredRun) -> Vec<(DataDirection, f64)> {
    let grid = Grid::of(&[run]);
    let top = |direction: DataDirection| {
        let mut stacked: Values = vec![None; grid.points];
        for subflow in series::subflows(run, &grid, direction, MAX_SUBFLOWS) {
            for (sum, value) in stacked.iter_mut().zip(subflow.goodput_bps) {
                *sum = Some(sum.unwrap_or(0.0) + value.unwrap_or(0.0));
            }
        }
        let total = chart::robust_top(series::goodput(run, &grid, direction).into_iter());
        (direction, chart::robust_top(stacked.into_iter()).max(total))
    };
    series::directions(run).into_iter().map(top).collect()
}

pub(super) fn axis_end(top: f64, max_ticks: usize) -> f64 {
    chart::ticks(top, max_ticks).last().copied().unwrap_or(1.0)
}

/// Charts on one axis.
#[derive(Debug)]
pub(super) struct ChartPanel {
    pub(super) axis: SharedAxis,
    pub(super) charts: Vec<Chart>,
    /// Stall periods that each chart shades; shorter than `charts` if the last ones have none.
    stalls: Vec<Vec<(f64, f64)>>,
    /// Heading with a sentence, and the index of the chart below it.
    heading: Option<(usize, &'static str, &'static str)>,
}

impl ChartPanel {
    fn new(axis: SharedAxis) -> Self {
        Self { axis, charts: Vec::new(), stalls: Vec::new(), heading: None }
    }

    fn add_videos(&mut self, videos: Vec<video::BufferChart>) {
        for (chart, stalls) in videos {
            self.charts.push(chart);
            self.stalls.push(stalls);
        }
    }

    /// Writes the charts and returns the numbers behind them.
    pub(super) fn write(&self, out: &mut String, number: usize) -> Value {
        let _ = write!(out, "<div class=\"panel\" data-panel=\"{number}\">");
        for (chart_index, chart) in self.charts.iter().enumerate() {
            if let Some((_, title, about)) =
                self.heading.filter(|(index, ..)| *index == chart_index)
            {
                let _ = write!(
                    out,
                    "<div class=\"part\"><h3>{title}</h3><p class=\"about\">{about}</p></div>"
                );
            }
            let stalls = self.stalls.get(chart_index).cloned().unwrap_or_default();
            let axis = SharedAxis { stalls, marks: self.axis.marks.clone(), ..self.axis };
            figure(out, chart_index, chart, &axis);
        }
        out.push_str("</div>");
        let charts: Vec<Value> = self.charts.iter().map(numbers).collect();
        json!({ "step": self.axis.step_s, "end": self.axis.end_s, "charts": charts })
    }
}

pub(super) fn figure(out: &mut String, chart_index: usize, chart: &Chart, axis: &SharedAxis) {
    let _ = write!(
        out,
        "<figure class=\"{}\" data-chart=\"{chart_index}\"><figcaption><strong>{}</strong> \
         <span class=\"about\">{}{}</span></figcaption><ul class=\"legend\">",
        chart.size.class(),
        esc(&chart.title),
        esc(&chart.about),
        clipped_note(chart, axis)
    );
    for (number, series) in chart.series.iter().enumerate() {
        let _ = write!(
            out,
            "<li class=\"{} {}\" data-s=\"{number}\" data-name=\"{}\">\
             <svg class=\"swatch\" width=\"22\" height=\"12\" aria-hidden=\"true\">{}</svg>\
             <span>{}</span><output></output></li>",
            series.class,
            series.shape.code(),
            esc(&series.name),
            swatch(series.shape),
            esc(&series.name)
        );
    }
    if !axis.stalls.is_empty() {
        let _ = write!(
            out,
            "<li class=\"quiet\"><svg class=\"swatch stalls\" width=\"22\" height=\"12\" \
             aria-hidden=\"true\"><path d=\"M0 0h22v12h-22z\"/></svg><span>{}</span></li>",
            video::shading_meaning(chart)
        );
    }
    let _ = write!(out, "</ul>{}</figure>", chart::svg(chart, axis));
}

/// Describes the values that the axis cuts off.
fn clipped_note(chart: &Chart, axis: &SharedAxis) -> String {
    let peaks = chart.peaks();
    let Some((point, peak)) = peaks.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return String::new();
    };
    let at_s = (point as f64 + 0.5) * axis.step_s;
    format!(
        "; ▲ goes beyond the axis, to {}\u{a0}{} at {}",
        number::three_digits(peak),
        esc(&chart.unit),
        number::short_moment(at_s).replace(' ', "\u{a0}")
    )
}

pub(super) fn swatch(shape: SeriesStyle) -> &'static str {
    match shape {
        SeriesStyle::Stack | SeriesStyle::Range => "<path d=\"M0 1h22v10h-22z\"/>",
        SeriesStyle::Steps | SeriesStyle::Line => "<path d=\"M1 6h20\"/>",
        SeriesStyle::Dots => "<path d=\"M11 6h0\"/>",
    }
}

fn numbers(chart: &Chart) -> Value {
    let series: Vec<Value> = chart
        .series
        .iter()
        .map(|series| {
            let values: Vec<Value> =
                series.values.iter().map(|v| v.map_or(Value::Null, rounded_json)).collect();
            json!({ "k": series.shape.code(), "v": values })
        })
        .collect();
    json!({ "max": chart.max, "series": series })
}

/// Rounds to two decimals below 100, else to a whole number: the precision of the read-out.
fn rounded_json(value: f64) -> Value {
    let scale = if value.abs() >= 99.95 { 1.0 } else { 100.0 };
    let rounded = (value * scale).round() / scale;
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

pub(super) fn scaled(values: Values, unit: f64) -> Values {
    values.into_iter().map(|value| value.map(|value| value / unit)).collect()
}

pub(super) fn series(name: &str, class: String, shape: SeriesStyle, values: Values) -> ChartSeries {
    ChartSeries { name: name.to_owned(), class, shape, values, base: Values::new() }
}

pub(super) fn per_point(grid: &Grid) -> String {
    // A number and its unit stay on one line.
    number::period(grid.step_ns).replace(' ', "\u{a0}")
}

/// Returns every chart of one run.
pub(super) fn run_panel(run: &StoredRun, style: &PageStyle) -> ChartPanel {
    let grid = Grid::of(&[run]);
    let mut panel = ChartPanel::new(axis(run, &grid));
    let directions = series::directions(run);
    let show_direction = directions.len() > 1;
    panel.charts.extend(delay::over_time(run, &grid));
    panel.charts.extend(paths::over_time(run, &grid, style));
    panel.stalls.resize(panel.charts.len(), Vec::new());
    panel.add_videos(video::charts(run, &grid));
    for &data_direction in &directions {
        let subflows = series::subflows(run, &grid, data_direction, MAX_SUBFLOWS);
        let suffix =
            if show_direction { format!(", {}", direction(data_direction)) } else { String::new() };
        let stalls = series::stalls(run, data_direction);
        panel.charts.extend(datagrams::charts(run, &grid, data_direction, style, &suffix));
        panel.charts.push(goodput(run, &grid, data_direction, style, &suffix));
        panel.charts.extend(flows::run_charts(run, &grid, data_direction, &suffix));
        panel.charts.extend(sender(&subflows, &grid, style, &suffix));
        panel.stalls.extend(std::iter::repeat_n(stalls, panel.charts.len() - panel.stalls.len()));
    }
    for &data_direction in &directions {
        let suffix =
            if show_direction { format!(", {}", direction(data_direction)) } else { String::new() };
        panel.charts.extend(links(run, &grid, data_direction, style, &suffix));
    }
    let first_stack_chart = panel.charts.len();
    for &data_direction in &directions {
        let suffix =
            if show_direction { format!(", {}", direction(data_direction)) } else { String::new() };
        panel.charts.extend(stack::charts(run, &grid, data_direction, style, &suffix));
    }
    if panel.charts.len() > first_stack_chart {
        panel.heading = Some((first_stack_chart, stack::TITLE, stack::ABOUT));
    }
    panel
}

/// Returns the charts of goodput by subflow.
pub(super) fn goodput_panel(run: &StoredRun, style: &PageStyle) -> ChartPanel {
    let grid = Grid::of(&[run]);
    let mut panel = ChartPanel::new(axis(run, &grid));
    let directions = series::directions(run);
    for &data_direction in &directions {
        let suffix = if directions.len() > 1 {
            format!(", {}", direction(data_direction))
        } else {
            String::new()
        };
        panel.charts.push(goodput(run, &grid, data_direction, style, &suffix));
        panel.stalls.push(series::stalls(run, data_direction));
    }
    panel
}

/// Returns the capacity accounting charts of each link.
pub(super) fn account_panel(run: &StoredRun) -> ChartPanel {
    let grid = Grid::of(&[run]);
    let mut panel = ChartPanel::new(axis(run, &grid));
    panel.charts = account::charts(run, &grid);
    panel
}

fn axis(run: &StoredRun, grid: &Grid) -> SharedAxis {
    let marks = series::marks(run);
    let (step_s, end_s) = (grid.step_s(), grid.end_s());
    SharedAxis { scale: AxisScale::Time, step_s, end_s, marks, stalls: Vec::new() }
}

/// Draws goodput stacked by subflow, and the line of the application's goodput.
fn goodput(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    style: &PageStyle,
    suffix: &str,
) -> Chart {
    let GoodputAxis { unit, max } = style.goodput(direction);
    let mut all_series: Vec<ChartSeries> = series::subflows(run, grid, direction, MAX_SUBFLOWS)
        .into_iter()
        .map(|subflow| {
            let class =
                format!("{} band o{}", style.class(&subflow.path), subflow.occurrence.min(2));
            series(&subflow.name, class, SeriesStyle::Stack, scaled(subflow.goodput_bps, unit.size))
        })
        .collect();
    let total = scaled(series::goodput(run, grid, direction), unit.size);
    all_series.push(series("application", "ink total".to_owned(), SeriesStyle::Steps, total));
    let omitted_text = match series::omitted_paths(run, direction) {
        0 => String::new(),
        omitted => {
            format!("; {} paths with less data are not shown", number::count(omitted as f64))
        }
    };
    Chart {
        title: format!("Goodput by subflow{suffix}"),
        about: format!(
            "what arrived on each subflow, and what the application read; mean of {}{omitted_text}",
            per_point(grid)
        ),
        unit: unit.name.to_owned(),
        series: all_series,
        max,
        size: ChartSize::Large,
    }
}

fn sender(subflows: &[SubflowSeries], grid: &Grid, style: &PageStyle, suffix: &str) -> Vec<Chart> {
    let period_label = if grid.thinned { "largest of each" } else { "every" };
    let lines = |pick: fn(&SubflowSeries) -> &Values, shape: SeriesStyle| -> Vec<ChartSeries> {
        let line = |s: &SubflowSeries| {
            let class = format!("{} line o{}", style.class(&s.path), s.occurrence.min(2));
            series(&s.name, class, shape, pick(s).clone())
        };
        subflows.iter().map(line).collect()
    };
    let step = per_point(grid);
    // A capture does not contain the congestion window.
    let has_windows =
        subflows.iter().flat_map(|s| &s.cwnd_packets).flatten().any(|packets| *packets > 0.0);
    let mut charts = vec![
        medium(
            format!("Round-trip time{suffix}"),
            format!("smoothed, at the sender; {period_label} {step}"),
            "ms",
            lines(|s| &s.srtt_ms, SeriesStyle::Line),
        ),
        medium(
            format!("Congestion window{suffix}"),
            format!("at the sender; {period_label} {step}"),
            "packets",
            lines(|s| &s.cwnd_packets, SeriesStyle::Line),
        ),
        medium(
            format!("Retransmissions{suffix}"),
            format!("in each {step}, at the sender"),
            "packets",
            lines(|s| &s.retransmissions, SeriesStyle::Steps),
        ),
    ];
    if !has_windows {
        charts.remove(1);
    }
    charts
}

pub(super) fn medium(title: String, about: String, unit: &str, series: Vec<ChartSeries>) -> Chart {
    // Half a packet makes no sense as a tick.
    let min_top = if unit == "packets" { 4.0 } else { 0.0 };
    // A spike of a state may be cut off; in counts, the spikes are of interest.
    let is_state = series.iter().all(|s| s.shape == SeriesStyle::Line);
    let top = if is_state { chart::robust_top_of(&series) } else { chart::top(&series) };
    let max = axis_end(top.max(min_top), 5);
    Chart { title, about, unit: unit.to_owned(), series, max, size: ChartSize::Medium }
}

fn links(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    style: &PageStyle,
    suffix: &str,
) -> Vec<Chart> {
    let links = series::links(run, grid, direction);
    if links.is_empty() {
        return Vec::new();
    }
    let largest = links.iter().flat_map(|link| &link.backlog_bytes).flatten();
    let unit = number::bytes_unit(largest.copied().fold(0.0, f64::max));
    let step = per_point(grid);
    let period_label = if grid.thinned { "largest of each" } else { "every" };
    let line = |path: &str, shape: SeriesStyle, values: Values| {
        let class = format!("{} line o0", style.class(path));
        series(&cut(&clean(path), 40), class, shape, values)
    };
    let backlog = links.iter().map(|link| {
        line(&link.path, SeriesStyle::Line, scaled(link.backlog_bytes.clone(), unit.size))
    });
    let drops = links.iter().map(|link| line(&link.path, SeriesStyle::Steps, link.drops.clone()));
    vec![
        medium(
            format!("Link queue{suffix}"),
            format!("bytes waiting at the link; {period_label} {step}"),
            unit.name,
            backlog.collect(),
        ),
        medium(
            format!("Drops on the link{suffix}"),
            format!("queue full, loss or link down; in each {step}"),
            "packets",
            drops.collect(),
        ),
    ]
}

/// Draws every group's goodput in one chart, then each by subflow on the same scale.
pub(super) fn comparison(groups: &[RunGroup<'_>], style: &PageStyle) -> Option<ChartPanel> {
    let runs: Vec<&StoredRun> =
        groups.iter().flat_map(|group| group.runs.iter().copied()).collect();
    let first = *runs.first()?;
    let grid = Grid::of(&runs);
    let mut directions: Vec<DataDirection> = Vec::new();
    for data_direction in runs.iter().flat_map(|run| series::directions(run)) {
        if !directions.contains(&data_direction) {
            directions.push(data_direction);
        }
    }
    let show_direction = directions.len() > 1;
    let marked = runs.iter().copied().find(|run| !series::marks(run).is_empty()).unwrap_or(first);
    let mut panel = ChartPanel::new(axis(marked, &grid));
    panel.charts.extend(delay::side_by_side(groups, &grid));
    panel.stalls.resize(panel.charts.len(), Vec::new());
    panel.add_videos(videos(groups, &grid));
    for data_direction in directions {
        let suffix =
            if show_direction { format!(", {}", direction(data_direction)) } else { String::new() };
        panel.charts.push(overview(groups, &grid, data_direction, style, &suffix));
        panel.stalls.push(Vec::new());
        for group in groups {
            let Some(run) = group.runs.first() else { continue };
            let repetition = if group.runs.len() > 1 { ", first repetition" } else { "" };
            panel.charts.push(Chart {
                title: format!("{}{suffix}", group.label),
                about: format!("by subflow{repetition}"),
                size: ChartSize::Small,
                ..goodput(run, &grid, data_direction, style, "")
            });
            panel.stalls.push(series::stalls(run, data_direction));
        }
        for chart in flows::side_by_side(groups, &grid, data_direction, &suffix) {
            panel.charts.push(chart);
            panel.stalls.push(Vec::new());
        }
    }
    Some(panel)
}

/// Returns the video buffers of every group's first repetition, on equal axes.
fn videos(groups: &[RunGroup<'_>], grid: &Grid) -> Vec<video::BufferChart> {
    let mut charts: Vec<video::BufferChart> = Vec::new();
    for group in groups {
        let Some(run) = group.runs.first() else { continue };
        let has_repetitions = group.runs.len() > 1;
        charts.extend(video::charts(run, grid).into_iter().map(|(chart, stalls)| {
            let repetition = if has_repetitions { "; first repetition" } else { "" };
            let about = format!("{}{repetition}", chart.about);
            let title = format!("{}, {}", chart.title, group.label);
            (Chart { title, about, size: ChartSize::Small, ..chart }, stalls)
        }));
    }
    let max = charts.iter().map(|(chart, _)| chart.max).fold(0.0, f64::max);
    for (chart, _) in &mut charts {
        chart.max = max;
    }
    charts
}

fn overview(
    groups: &[RunGroup<'_>],
    grid: &Grid,
    direction: DataDirection,
    style: &PageStyle,
    suffix: &str,
) -> Chart {
    let GoodputAxis { unit, max } = style.goodput(direction);
    let mut ranges = Vec::new();
    let mut lines = Vec::new();
    for group in groups {
        let values_of_runs: Vec<Values> = group
            .runs
            .iter()
            .map(|run| scaled(series::goodput(run, grid, direction), unit.size))
            .collect();
        let (median, low, high) = series::envelope(&values_of_runs);
        let class = transport_class(groups, group);
        if values_of_runs.len() > 1 {
            let name = format!("{} smallest to largest", group.label);
            let range = series(&name, format!("{class} range"), SeriesStyle::Range, high);
            ranges.push(ChartSeries { base: low, ..range });
        }
        lines.push(series(&group.label, format!("{class} line"), SeriesStyle::Steps, median));
    }
    ranges.append(&mut lines);
    let has_repetitions = groups.iter().any(|group| group.runs.len() > 1);
    let mut transports: Vec<Transport> = groups.iter().map(|group| group.transport).collect();
    transports.sort_unstable();
    transports.dedup();
    let are_single_runs = !has_repetitions && transports.len() < groups.len();
    let subject = if are_single_runs { "run" } else { "transport" };
    let quantity =
        if has_repetitions { "median of the repetitions" } else { "what the application read" };
    Chart {
        title: format!("Goodput of every {subject}{suffix}"),
        about: format!("{quantity}; mean of {}", per_point(grid)),
        unit: unit.name.to_owned(),
        series: ranges,
        max,
        size: ChartSize::Large,
    }
}

/// Returns the class of a group's transport, whose colour differs from those of paths. Each
/// transport has a dash of its own, for readers who see no colours. If a transport appears more
/// than once, every group has a colour and a dash of its own: lines that differ by their dash
/// alone are hard to distinguish.
pub(super) fn transport_class(groups: &[RunGroup<'_>], group: &RunGroup<'_>) -> String {
    let is_repeated =
        groups.iter().any(|a| groups.iter().filter(|b| b.transport == a.transport).count() > 1);
    if is_repeated {
        let index = groups.iter().position(|other| other.label == group.label).unwrap_or(0);
        return format!("g{} d{}", index % COLOUR_COUNT, (index + index / COLOUR_COUNT) % 4);
    }
    let (name, dash) = match group.transport {
        Transport::Mptcp => ("mptcp", 0),
        Transport::Tcp => ("tcp", 1),
        Transport::Quic => ("quic", 2),
        Transport::Mpquic => ("mpquic", 3),
    };
    format!("{name} d{dash}")
}

/// Number of colours for groups and flows, in addition to those of paths and transports.
pub(super) const COLOUR_COUNT: usize = 8;
