//! Constant-rate datagrams over time: delay, jitter and losses.

use towpath_result::store::StoredRun;
use towpath_result::{DatagramRow, Record};
use towpath_scenario::DataDirection;

use super::panel::{PageStyle, axis_end, per_point, series as line};
use crate::chart::{Chart, ChartSeries, ChartSize, SeriesStyle};
use crate::series::{Grid, Values};

/// Nanoseconds in a millisecond.
const NS_PER_MS: f64 = 1e6;
/// Height of the dots of lost datagrams, as a share of the data area.
const LOSS_DOT_HEIGHT: f64 = 0.94;
/// Ratio of the axis to the largest value, so that the dots are above the lines.
const HEADROOM_RATIO: f64 = 1.15;

/// Returns the charts of every flow in one direction.
pub(super) fn charts(
    run: &StoredRun,
    grid: &Grid,
    packet_direction: DataDirection,
    style: &PageStyle,
    suffix: &str,
) -> Vec<Chart> {
    let mut flows: Vec<(u32, Vec<&DatagramRow>)> = Vec::new();
    for record in &run.records {
        let Record::Datagrams(row) = record else { continue };
        if row.direction != packet_direction {
            continue;
        }
        match flows.iter_mut().find(|(flow, _)| *flow == row.flow) {
            Some((_, rows)) => rows.push(row),
            None => flows.push((row.flow, vec![row])),
        }
    }
    let has_several_flows = flows.len() > 1;
    let chart = |(flow, rows): &(u32, Vec<&DatagramRow>)| {
        let suffix =
            if has_several_flows { format!(", flow {flow}{suffix}") } else { suffix.to_owned() };
        flow_chart(run, (*flow, rows), grid, style, &suffix)
    };
    flows.iter().map(chart).collect()
}

fn flow_chart(
    run: &StoredRun,
    (flow, rows): (u32, &[&DatagramRow]),
    grid: &Grid,
    style: &PageStyle,
    suffix: &str,
) -> Chart {
    let direction = rows.first().map(|row| row.direction);
    let summaries = run.summary.iter().flat_map(|summary| &summary.flows);
    let matching = summaries.filter(|f| f.flow == flow && Some(f.direction) == direction);
    let min_delay_ns =
        { matching }.find_map(|f| f.datagrams.as_ref()?.delay).map(|delay| delay.min_ns);
    let base = min_delay_ns.unwrap_or(0);
    let delay = |pick: fn(&DatagramRow) -> Option<u64>| {
        max_per_point(rows, grid, move |row| {
            Some(pick(row)?.saturating_add(base) as f64 / NS_PER_MS)
        })
    };
    let largest = delay(|row| row.variation_max_ns);
    let mean = delay(|row| row.variation_mean_ns);
    let jitter = max_per_point(rows, grid, |row| Some(row.jitter_ns? as f64 / NS_PER_MS));
    let mut lost = grid.empty();
    for row in rows {
        if let (Some(slot), Some(count)) = (lost.get_mut(point_index(row, grid)), row.lost)
            && count > 0
        {
            *slot = Some(slot.unwrap_or(0.0) + count as f64);
        }
    }
    let class = rows.first().map_or_else(String::new, |row| style.class(&row.path));
    let max_ms = [&largest, &jitter].into_iter().flatten().flatten().copied().fold(0.0, f64::max);
    let has_losses = lost.iter().any(Option::is_some);
    let max = axis_end(max_ms * if has_losses { HEADROOM_RATIO } else { 1.0 }, 7);
    let name = if min_delay_ns.is_some() { "delay" } else { "delay over the smallest" };
    let mut series: Vec<ChartSeries> = vec![
        line(&format!("{name}, largest"), format!("{class} line o0"), SeriesStyle::Line, largest),
        line(&format!("{name}, mean"), format!("{class} line o1"), SeriesStyle::Line, mean),
        line("jitter", format!("{class} line o2"), SeriesStyle::Line, jitter),
    ];
    if has_losses {
        let base = lost.iter().map(|lost| lost.map(|_| max * LOSS_DOT_HEIGHT)).collect();
        let dots = line("lost", format!("{class} dots"), SeriesStyle::Dots, lost);
        series.push(ChartSeries { base, ..dots });
    }
    Chart {
        title: format!("Datagrams{suffix}"),
        about: format!(
            "one-way delay of those that were sent in each {}, and interarrival jitter (RFC 3550); \
             dots are datagrams that were lost",
            per_point(grid)
        ),
        unit: "ms".to_owned(),
        series,
        max,
        size: ChartSize::Large,
    }
}

fn point_index(row: &DatagramRow, grid: &Grid) -> usize {
    let middle = row.t_ns.saturating_sub(row.span_ns / 2);
    usize::try_from(middle / grid.step_ns.max(1)).unwrap_or(usize::MAX)
}

/// Returns the largest value of each point.
fn max_per_point(
    rows: &[&DatagramRow],
    grid: &Grid,
    value: impl Fn(&DatagramRow) -> Option<f64>,
) -> Values {
    let mut values = grid.empty();
    for row in rows {
        if let (Some(slot), Some(value)) = (values.get_mut(point_index(row, grid)), value(row)) {
            *slot = Some(slot.map_or(value, |old_max: f64| old_max.max(value)));
        }
    }
    values
}
