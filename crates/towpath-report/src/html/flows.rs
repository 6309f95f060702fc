//! Goodput of each flow over time: shares of the total, and small flows on a scale of their own.

use std::collections::BTreeMap;

use towpath_result::Record;
use towpath_result::store::StoredRun;
use towpath_scenario::DataDirection;

use super::panel::{COLOUR_COUNT, GoodputAxis, per_point, scaled, series as line};
use crate::chart::{Chart, ChartSeries, ChartSize, SeriesStyle, robust_top};
use crate::compare::shares::{competing_flows, flow_name};
use crate::group::{RunGroup, groups};
use crate::series::{Grid, Values, goodput_of};

/// Maximum number of flows that are drawn one by one.
const MAX_FLOWS: usize = COLOUR_COUNT;
/// Minimum ratio of the largest flow to a flow that is drawn on a scale of its own.
const OWN_SCALE_RATIO: f64 = 8.0;

/// Returns the flows that delivered anything in a direction.
fn flows(run: &StoredRun, packet_direction: DataDirection) -> Vec<u32> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for record in &run.records {
        if let Record::Interval(interval) = record
            && interval.direction == packet_direction
        {
            let sum = bytes.entry(interval.flow).or_default();
            *sum = sum.saturating_add(interval.bytes);
        }
    }
    bytes.into_iter().filter(|(_, bytes)| *bytes > 0).map(|(flow, _)| flow).collect()
}

fn class(index: usize) -> String {
    format!("g{} d{}", index % COLOUR_COUNT, index % 4)
}

/// Index of a flow's colour, its name, and its goodput.
type FlowGoodput = (usize, String, Values);

/// Returns the charts of a run in which several flows share a direction.
pub(super) fn run_charts(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    suffix: &str,
) -> Vec<Chart> {
    let flow_ids = flows(run, direction);
    if !(2..=MAX_FLOWS).contains(&flow_ids.len()) {
        return Vec::new();
    }
    let run_groups = groups(std::slice::from_ref(run));
    let numbered = flow_ids.into_iter().enumerate();
    let flows: Vec<FlowGoodput> = numbered
        .map(|(index, flow)| {
            (index, flow_name(&run_groups, flow), goodput_of(run, grid, direction, Some(flow)))
        })
        .collect();
    goodput(&flows, grid, suffix)
}

/// Draws large flows on one axis, and flows too small for it on another.
fn goodput(flows: &[FlowGoodput], grid: &Grid, suffix: &str) -> Vec<Chart> {
    let top = |flow: &FlowGoodput| robust_top(flow.2.iter().copied());
    let max_bps = flows.iter().map(top).fold(0.0, f64::max);
    let (large, small): (Vec<&FlowGoodput>, Vec<&FlowGoodput>) =
        flows.iter().partition(|flow| top(flow) * OWN_SCALE_RATIO >= max_bps);
    let chart = |title: &str, flows: Vec<&FlowGoodput>| {
        let GoodputAxis { unit, max } =
            GoodputAxis::to(flows.iter().map(|flow| top(flow)).fold(0.0, f64::max));
        let series = |(index, name, values): &&FlowGoodput| -> ChartSeries {
            let class = format!("{} line", class(*index));
            line(name, class, SeriesStyle::Steps, scaled(values.clone(), unit.size))
        };
        Chart {
            title: format!("{title}{suffix}"),
            about: format!("goodput at each receiver; mean of {}", per_point(grid)),
            unit: unit.name.to_owned(),
            series: flows.iter().map(series).collect(),
            max,
            size: ChartSize::Medium,
        }
    };
    let mut charts = vec![chart("Goodput of each flow", large)];
    if !small.is_empty() {
        charts.push(chart("Goodput of small flows", small));
    }
    charts
}

fn share(flows: &[FlowGoodput], grid: &Grid, title: &str) -> Chart {
    let total_at = |index: usize| -> f64 {
        flows.iter().filter_map(|(_, _, values)| values.get(index).copied().flatten()).sum()
    };
    let totals: Vec<f64> = (0..grid.points).map(total_at).collect();
    let series = |(index, name, values): &FlowGoodput| -> ChartSeries {
        let parts = values.iter().zip(&totals).map(|(value, total)| {
            value.filter(|_| *total > 0.0).map(|value| 100.0 * value / total)
        });
        line(name, format!("{} band", class(*index)), SeriesStyle::Stack, parts.collect())
    };
    Chart {
        title: title.to_owned(),
        about: format!("share of the total in each {}", per_point(grid)),
        unit: "%".to_owned(),
        series: flows.iter().map(series).collect(),
        max: 100.0,
        size: ChartSize::Small,
    }
}

/// Returns the goodput of competing transfers over each transport, of the first repetition each.
pub(super) fn side_by_side(
    groups: &[RunGroup<'_>],
    grid: &Grid,
    packet_direction: DataDirection,
    suffix: &str,
) -> Vec<Chart> {
    let competing = competing_flows(groups);
    let Some(keys) =
        competing.iter().find(|keys| keys.iter().all(|key| key.direction == packet_direction))
    else {
        return Vec::new();
    };
    if keys.len() > MAX_FLOWS {
        return Vec::new();
    }
    let chart = |group: &RunGroup<'_>| {
        let run = *group.runs.first()?;
        let goodput_of_flow = |(index, key): (usize, &crate::group::FlowKey)| -> FlowGoodput {
            (
                index,
                flow_name(groups, key.flow),
                goodput_of(run, grid, packet_direction, Some(key.flow)),
            )
        };
        let flows: Vec<FlowGoodput> = keys.iter().enumerate().map(goodput_of_flow).collect();
        let title = format!("{}: share of each flow{suffix}", group.label);
        Some(share(&flows, grid, &title))
    };
    groups.iter().filter_map(chart).collect()
}
