//! Charts of our own stack's decisions at connection level.

use towpath_result::ReinjectionCause;
use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_scenario::{DataDirection, Transport};

use super::panel::{MAX_SUBFLOWS, PageStyle, axis_end, medium, per_point, scaled, series as line};
use crate::chart::{Chart, ChartSeries, ChartSize, SeriesStyle};
use crate::series::{self, Grid, StackSeries, SubflowSeries, Values};

/// Heading of the charts.
pub(super) const TITLE: &str = "Stack internals";
/// Explanation below the heading.
pub(super) const ABOUT: &str = "Multipath TCP is one stream over several subflows: what overtakes \
    on a fast path waits at the receiver, and a receiver that is full stops the sender.";

/// Maximum ratio of the receive buffer to the waiting data at which the buffer is drawn.
const FLATTEN_RATIO: f64 = 8.0;

/// Returns the charts of one direction; empty if the stack reported nothing, or has only one path.
pub(super) fn charts(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    style: &PageStyle,
    suffix: &str,
) -> Vec<Chart> {
    if matches!(run.meta.transport, Transport::Tcp | Transport::Quic) {
        return Vec::new();
    }
    let Some(stack) = StackSeries::of(run, grid, direction) else { return Vec::new() };
    let mut charts = Vec::new();
    if stack.waiting_bytes.iter().any(Option::is_some) {
        charts.push(reorder(&stack, grid, suffix));
    }
    if stack.has_sender_report {
        let subflows = series::subflows(run, grid, direction, MAX_SUBFLOWS);
        charts.push(blocked(&stack, grid, suffix));
        charts.push(retransmissions(&stack, grid, style, suffix));
        charts.push(shares(&stack, &subflows, grid, style, suffix));
    }
    charts
}

fn max(values: &Values) -> f64 {
    values.iter().flatten().copied().fold(0.0, f64::max)
}

fn reorder(stack: &StackSeries, grid: &Grid, suffix: &str) -> Chart {
    let (waiting, buffer) = (max(&stack.waiting_bytes), max(&stack.buffer_bytes));
    let buffer_is_cut_off = buffer > waiting * FLATTEN_RATIO;
    let unit = number::bytes_unit(if buffer_is_cut_off { waiting } else { buffer });
    let period_label = if grid.thinned { "largest of each" } else { "at the end of each" };
    let mut about = format!(
        "bytes that wait for earlier data, at the receiver, {period_label} {}",
        per_point(grid)
    );
    let values = scaled(stack.waiting_bytes.clone(), unit.size);
    let mut lines = vec![line("waiting", "waiting band".to_owned(), SeriesStyle::Stack, values)];
    if buffer_is_cut_off {
        about = format!("{about}; the receive buffer has {}", number::bytes(buffer));
    } else {
        let values = scaled(stack.buffer_bytes.clone(), unit.size);
        lines.push(line("receive buffer", "ink total d1".to_owned(), SeriesStyle::Steps, values));
    }
    medium(format!("Reorder buffer{suffix}"), about, unit.name, lines)
}

fn blocked(stack: &StackSeries, grid: &Grid, suffix: &str) -> Chart {
    let percent = scaled(stack.blocked.clone(), 0.01);
    Chart {
        title: format!("Receive window full{suffix}"),
        about: format!(
            "part of each {} in which there was data and room to send it, but the receiver allowed no more",
            per_point(grid)
        ),
        unit: "%".to_owned(),
        series: vec![line("window full", "full band".to_owned(), SeriesStyle::Stack, percent)],
        max: 100.0,
        size: ChartSize::Medium,
    }
}

/// Returns a cause's name in the legend, and its class.
fn cause_style(cause: Option<ReinjectionCause>) -> (&'static str, &'static str) {
    match cause {
        Some(ReinjectionCause::Timeout) => ("timeout", "again0 band"),
        Some(ReinjectionCause::Closed) => ("subflow gone", "again1 band"),
        Some(ReinjectionCause::Connection) => ("connection\u{2019}s timer", "again2 band"),
        Some(ReinjectionCause::Opportunistic) => ("it blocked the window (M1)", "again3 band"),
        Some(ReinjectionCause::Scheduler) => ("wanted by the scheduler", "again4 band"),
        None => ("retransmitted or reinjected", "again0 band"),
    }
}

/// Draws reinjected bytes by cause, and above them the penalisations of a path (M2).
fn retransmissions(stack: &StackSeries, grid: &Grid, style: &PageStyle, suffix: &str) -> Chart {
    let sums = (0..grid.points).map(|point| {
        let values = stack
            .reinjected_bytes
            .iter()
            .filter_map(|(_, values)| values.get(point).copied().flatten());
        values.sum::<f64>()
    });
    let unit = number::bytes_unit(sums.fold(0.0, f64::max));
    let mut all_series: Vec<ChartSeries> = stack
        .reinjected_bytes
        .iter()
        .map(|(reinjection_cause, values)| {
            let (name, class) = cause_style(*reinjection_cause);
            line(name, class.to_owned(), SeriesStyle::Stack, scaled(values.clone(), unit.size))
        })
        .collect();
    let mut chart = medium(
        format!("Reinjected on another subflow{suffix}"),
        format!("bytes in each {}, by cause, at the sender", per_point(grid)),
        unit.name,
        Vec::new(),
    );
    // Dots have a row of their own above the bars.
    let rows = stack.penalisations.len();
    let top = crate::chart::top(&all_series) * (1.0 + 0.12 * rows as f64);
    chart.max = axis_end(top, 5);
    for (row, (path, values)) in stack.penalisations.iter().enumerate() {
        let height = chart.max * (0.94 - 0.1 * row as f64);
        let name = format!("M2 slowed {} down", cut(&clean(path), 40));
        let class = format!("{} dots", style.class(path));
        let dots = line(&name, class, SeriesStyle::Dots, values.clone());
        all_series.push(ChartSeries { base: vec![Some(height); values.len()], ..dots });
    }
    chart.series = all_series;
    if chart.series.is_empty() {
        "nothing was retransmitted or reinjected, and no path was penalised"
            .clone_into(&mut chart.about);
    }
    chart
}

/// Draws the share of data that the scheduler gave to each subflow.
fn shares(
    stack: &StackSeries,
    subflows: &[SubflowSeries],
    grid: &Grid,
    style: &PageStyle,
    suffix: &str,
) -> Chart {
    let total_at = |point: usize| -> f64 {
        subflows.iter().filter_map(|s| s.sent_bytes.get(point).copied().flatten()).sum()
    };
    let share = |subflow: &SubflowSeries| {
        let part = |(point, bytes): (usize, &Option<f64>)| {
            let total = total_at(point);
            bytes.filter(|_| total > 0.0).map(|bytes| 100.0 * bytes / total)
        };
        let values = subflow.sent_bytes.iter().enumerate().map(part).collect();
        line(
            &subflow.name,
            format!("{} band", style.class(&subflow.path)),
            SeriesStyle::Stack,
            values,
        )
    };
    let switches = match stack.switches {
        0 => String::new(),
        1 => "; 1 switch of the scheduler in the run".to_owned(),
        n => format!("; {} switches of the scheduler in the run", number::count(n as f64)),
    };
    Chart {
        title: format!("Share of each subflow{suffix}"),
        about: format!("of the bytes sent in each {}{switches}", per_point(grid)),
        unit: "%".to_owned(),
        series: subflows.iter().map(share).collect(),
        max: 100.0,
        size: ChartSize::Medium,
    }
}
