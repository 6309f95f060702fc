//! Terminal view of a sweep's rows: the metrics of each curve at each point of the grid.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use towpath_report::{SweepMetric, SweepPage, SweepPoint, sweep_page};
use towpath_result::expect::{Metric, MetricUnit};
use towpath_result::format::text::clean;
use towpath_result::metrics::statistics::Sample;
use towpath_scenario::World;

use crate::plan::Plan;
use crate::row::RunRow;

/// Maximum width of a cell.
const MAX_CELL_WIDTH: usize = 34;
/// Default metrics by priority; the first available one is shown.
const DEFAULT_METRICS: [&str; 3] = ["goodput", "delay.p50", "udping.p50"];

/// Returns the unit of a metric; `None` for a plain number.
pub fn unit(metric: &str) -> Option<MetricUnit> {
    let last_name = metric.rsplit('.').next().unwrap_or(metric);
    match (metric, last_name) {
        (_, "goodput" | "throughput") => Some(MetricUnit::Rate),
        (_, "cpu") => Some(MetricUnit::Share),
        ("silent", _) => Some(MetricUnit::YesNo),
        _ => Metric::parse(metric).map(|metric| metric.unit()),
    }
}

/// Returns medians (and quartiles, of several runs) of some metrics by variant and point, in the
/// plan's order.
pub fn table(rows: &[RunRow], plan: &Plan, metrics: &[String]) -> String {
    let default_metrics =
        DEFAULT_METRICS.iter().find(|name| rows.iter().any(|row| row.metrics.contains_key(**name)));
    let default_metrics: Vec<_> = default_metrics.iter().map(|name| (**name).to_owned()).collect();
    let metrics = if metrics.is_empty() { &default_metrics } else { metrics };
    let axes: Vec<_> = plan.axes.iter().map(|axis| axis.name.as_str()).collect();
    let mut header = vec!["variant".to_owned()];
    header.extend(axes.iter().map(|&axis| axis.to_owned()));
    header.extend(["runs".to_owned(), "failed".to_owned()]);
    header.extend(metrics.iter().cloned());
    let mut table_rows = vec![header];
    for (point, rows) in points(rows, &axes) {
        let failed = rows.iter().filter(|row| row.error.is_some()).count();
        let mut cells = point;
        cells.extend([rows.len().to_string(), failed.to_string()]);
        cells.extend(metrics.iter().map(|metric| cell(&rows, metric)));
        table_rows.push(cells);
    }
    if rows.iter().all(|row| row.error.is_none()) {
        for cells in &mut table_rows {
            cells.remove(axes.len() + 2);
        }
    }
    align_columns(&table_rows)
}

/// Metrics of a page; missing ones are left out.
const PAGE_METRICS: [&str; 9] = [
    "goodput",
    "delay.p50",
    "delay.p99",
    "delay.max",
    "udping.p50",
    "recovery",
    "stall.longest",
    "stall.total",
    "retransmissions",
];

/// Returns the page of a sweep: each metric with its spread over the seeds, requested ones first.
pub fn page(rows: &[RunRow], plan: &Plan, world: World, requested: &[String]) -> String {
    let axes: Vec<&str> = plan.axes.iter().map(|axis| axis.name.as_str()).collect();
    let points = points(rows, &axes);
    let mut names: Vec<&str> = requested.iter().map(String::as_str).collect();
    names.extend(
        PAGE_METRICS.into_iter().filter(|name| !requested.iter().any(|other| other == name)),
    );
    names.retain(|name| rows.iter().any(|row| row.metrics.contains_key(*name)));
    let style =
        |variant: &str| plan.variants.iter().position(|v| v.name == variant).unwrap_or_default();
    let sweep_metric = |name: &str| SweepMetric {
        name: name.to_owned(),
        unit: unit(name),
        points: points
            .iter()
            .filter_map(|(point, rows)| {
                let (variant, parameters) = point.split_first()?;
                let values = rows.iter().filter_map(|row| row.metrics.get(name).copied());
                Some(SweepPoint {
                    variant: variant.clone(),
                    style: style(variant),
                    parameters: parameters.to_vec(),
                    values: values.collect(),
                })
            })
            .collect(),
    };
    let failed = rows.iter().filter(|row| row.error.is_some()).count();
    let mut facts = vec![world.to_string(), format!("{} runs", rows.len())];
    facts.extend((failed > 0).then(|| format!("{failed} failed")));
    facts.push(format!("scenario {}", plan.scenario_name));
    sweep_page(&SweepPage {
        name: plan.name.clone(),
        about: plan.title.clone(),
        facts,
        axes: axes.into_iter().map(str::to_owned).collect(),
        metrics: names.into_iter().map(sweep_metric).collect(),
    })
}

/// Groups rows by variant and point, in order of first appearance.
fn points<'a>(rows: &'a [RunRow], axes: &[&str]) -> Vec<(Vec<String>, Vec<&'a RunRow>)> {
    let mut index_of_point: BTreeMap<Vec<String>, usize> = BTreeMap::new();
    let mut points: Vec<(Vec<String>, Vec<&RunRow>)> = Vec::new();
    for row in rows {
        let parameter_text =
            |axis: &&str| row.parameters.get(*axis).map_or("", |p| p.text.as_str()).to_owned();
        let point: Vec<_> =
            [row.variant.clone()].into_iter().chain(axes.iter().map(parameter_text)).collect();
        let index = *index_of_point.entry(point.clone()).or_insert(points.len());
        match points.get_mut(index) {
            Some((_, rows)) => rows.push(row),
            None => points.push((point, vec![row])),
        }
    }
    points
}

fn cell(rows: &[&RunRow], metric: &str) -> String {
    let sample = Sample::of(rows.iter().filter_map(|row| row.metrics.get(metric).copied()));
    let format_value =
        |value: f64| unit(metric).map_or_else(|| three_decimals(value), |unit| unit.text(value));
    match (sample.median(), sample.quartiles()) {
        (Some(median), Some([low, high])) if low < high => {
            format!("{} ({} … {})", format_value(median), format_value(low), format_value(high))
        }
        (Some(median), _) => format_value(median),
        (None, _) => "—".to_owned(),
    }
}

fn three_decimals(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats columns as wide as their widest cell. A cell is cleaned, since rows and names of metrics
/// come from files and arguments.
fn align_columns(lines: &[Vec<String>]) -> String {
    let cleaned = lines.iter().map(|line| line.iter().map(|cell| clean(cell)).collect());
    let lines: Vec<Vec<String>> = cleaned.collect();
    let count = |text: &str| text.chars().count();
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            let cells = lines.iter().filter_map(|line| line.get(column));
            cells.map(|cell| count(cell)).max().unwrap_or(0).min(MAX_CELL_WIDTH)
        })
        .collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (cell, width) in line.iter().zip(&widths) {
            let cell = if count(cell) > MAX_CELL_WIDTH && !cell.contains(" … ") {
                cell.chars().take(MAX_CELL_WIDTH - 1).chain(['…']).collect()
            } else {
                cell.clone()
            };
            // Writing to a `String` cannot fail.
            let _ = write!(text, "{cell:<width$}  ");
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}
