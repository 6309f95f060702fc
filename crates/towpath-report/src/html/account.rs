//! Capacity accounting: a sentence, a table of the parts, and a chart for each link.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::number::ScaledUnit;
use towpath_result::format::text::{capital, clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{AccountSummary, Basis, LinkAccount, Part, PartGroup, Parts};
use towpath_scenario::DataDirection;

use super::panel::{PageStyle, per_point, series as line};
use super::run::{first_of, path_dot, table_end};
use crate::chart::{self, Chart, ChartSeries, ChartSize, SeriesStyle};
use crate::compare::direction;
use crate::series::{self, Grid};
use crate::text::{esc, prose};

/// Parts below this share of every link's capacity are merged into one row.
const MIN_TABLE_SHARE: f64 = 0.005;
/// Parts below this share of the link's capacity are merged into one band of the chart.
const MIN_CHART_SHARE: f64 = 0.02;

/// Returns the capacity accounting of a run; `None` if it has none or its capacity is zero.
pub(super) fn account_of(run: &StoredRun) -> Option<&AccountSummary> {
    let account = run.summary.as_ref()?.account.as_deref()?;
    (account.total.capacity_bytes > 0 && account.span_ns > 0).then_some(account)
}

/// Writes heading, sentence and table; the charts come below.
pub(super) fn write(out: &mut String, run: &StoredRun, style: &PageStyle) {
    let Some(account) = account_of(run) else { return };
    out.push_str("<h3 class=\"account\">Where the capacity went</h3>");
    let _ = write!(out, "<p class=\"lead\">{}</p>", prose(&capital(&account.sentence)));
    table(out, account, style);
    let basis = match account.basis {
        Basis::Model => {
            "Capacity and carried data come from the link model, the reasons for unused capacity \
             from the stack itself. All values are exact."
        }
        Basis::Sampled => {
            "Capacity and carried data come from the link model and are exact. The reasons for \
             unused capacity follow from the state that the kernel or the library reported in \
             each sample."
        }
        Basis::Estimate => {
            "The capacity of these paths is unknown; the account uses the largest rate observed. \
             The capacity that lost packets used is unknown. The cost of their loss counts for the \
             congestion window."
        }
    };
    let unlimited_paths: Vec<String> =
        account.unlimited.iter().map(|path| cut(&clean(path), 40)).collect();
    let unlimited_text = match unlimited_paths.as_slice() {
        [] => String::new(),
        paths => format!(" Without a limit, and so without an account: {}.", paths.join(", ")),
    };
    let _ = write!(out, "<p class=\"about\">{basis}{}</p>", esc(&unlimited_text));
}

/// Writes a table with parts down and links across; the last column is the total.
fn table(out: &mut String, account: &AccountSummary, style: &PageStyle) {
    let links = &account.links;
    let bps = |bytes: u64| bytes as f64 * 8e9 / account.span_ns as f64;
    let unit = number::rate_unit(bps(account.total.capacity_bytes));
    let mut columns: Vec<&Parts> = links.iter().map(|link| &link.parts).collect();
    if links.len() > 1 {
        columns.push(&account.total);
    }
    out.push_str("<div class=\"scroll\"><table class=\"list parts\"><thead><tr><td></td>");
    for link in links {
        let _ = write!(
            out,
            "<th scope=\"col\">{} <small>{}</small></th>",
            path_dot(style, &link.path),
            direction(link.direction)
        );
    }
    if links.len() > 1 {
        out.push_str("<th scope=\"col\">together</th>");
    }
    out.push_str("</tr></thead><tbody>");
    let cells_of = |bytes_of: &dyn Fn(&Parts) -> u64| -> Vec<(u64, u64)> {
        columns.iter().map(|parts| (bytes_of(parts), parts.capacity_bytes)).collect()
    };
    let write_row = |out: &mut String, class: &str, label: &str, cells: Vec<(u64, u64)>| {
        let _ = write!(out, "<tr class=\"{class}\"><th scope=\"row\">{label}</th>");
        for (bytes, capacity_bytes) in cells {
            cell(out, unit, bps(bytes), share(bytes, capacity_bytes));
        }
        out.push_str("</tr>");
    };
    write_row(
        out,
        "whole",
        &format!("capacity, {}", unit.name),
        cells_of(&|parts| parts.capacity_bytes),
    );
    let is_small = |part: Part| {
        columns.iter().all(|parts| share(parts.of(part), parts.capacity_bytes) < MIN_TABLE_SHARE)
    };
    for part in Part::ALL.into_iter().filter(|part| !is_small(*part)) {
        let dot = format!("<i class=\"dot {}\"></i>", class(part.group()));
        let label = format!("{dot}{}{}", esc(part.label()), blocked_by(part, &account.total));
        write_row(out, "", &label, cells_of(&|parts| parts.of(part)));
    }
    let small_parts = cells_of(&|parts| {
        Part::ALL.into_iter().filter(|p| is_small(*p)).map(|p| parts.of(p)).sum()
    });
    if small_parts.iter().any(|(bytes, _)| *bytes > 0) {
        write_row(out, "", "everything smaller", small_parts);
    }
    table_end(out);
}

fn share(bytes: u64, total_bytes: u64) -> f64 {
    if total_bytes == 0 { 0.0 } else { bytes as f64 / total_bytes as f64 }
}

fn cell(out: &mut String, unit: ScaledUnit, bps: f64, share: f64) {
    if bps <= 0.0 {
        out.push_str("<td class=\"n\">–</td>");
        return;
    }
    let _ = write!(
        out,
        "<td class=\"n\">{} <small>{}</small></td>",
        number::three_digits(bps / unit.size),
        number::percent(share)
    );
}

/// Lists the paths whose data filled the window.
fn blocked_by(part: Part, total: &Parts) -> String {
    if part != Part::HeadOfLineBlocking || total.blocked_by.is_empty() {
        return String::new();
    }
    let paths: Vec<String> = total.blocked_by.keys().map(|path| cut(&clean(path), 40)).collect();
    format!(" <small>({})</small>", esc(&first_of(&paths).join(", ")))
}

/// Returns one chart for each link and direction.
pub(super) fn charts(run: &StoredRun, grid: &Grid) -> Vec<Chart> {
    let Some(account) = account_of(run) else { return Vec::new() };
    let show_direction = account.links.iter().any(|link| link.direction != DataDirection::Up);
    account.links.iter().map(|link| chart(run, grid, link, show_direction)).collect()
}

fn chart(run: &StoredRun, grid: &Grid, link: &LinkAccount, show_direction: bool) -> Chart {
    let parts = series::account(run, grid, link);
    let points = 0..grid.points;
    let point_sum = |index: usize| -> f64 {
        parts.iter().filter_map(|(_, values)| values.get(index).copied().flatten()).sum()
    };
    let unit = number::rate_unit(points.map(point_sum).fold(0.0, f64::max));
    let (large, small): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(group, _)| {
        share(link.parts.of_group(*group), link.parts.capacity_bytes) >= MIN_CHART_SHARE
    });
    let mut small_sum = vec![None; grid.points];
    for (_, values) in &small {
        for (sum, value) in small_sum.iter_mut().zip(values) {
            *sum = value.map_or(*sum, |value| Some(sum.unwrap_or(0.0) + value));
        }
    }
    let bands = large.into_iter().map(|(group, values)| (name(group), class(group), values));
    let small_sum = (!small.is_empty()).then_some(("everything smaller", "c-rest", small_sum));
    let bands: Vec<ChartSeries> = bands
        .chain(small_sum)
        .map(|(name, class, values)| {
            let scaled = values.into_iter().map(|value| value.map(|bps| bps / unit.size)).collect();
            line(name, format!("{class} band part"), SeriesStyle::Stack, scaled)
        })
        .collect();
    // The capacity is the top of the chart; there is nothing above it.
    let max = Some(chart::top(&bands)).filter(|top| *top > 0.0).unwrap_or(1.0);
    let direction_text =
        if show_direction { format!(", {}", direction(link.direction)) } else { String::new() };
    Chart {
        title: format!("Capacity of {}{direction_text}", cut(&clean(&link.path), 40)),
        about: format!("use of the capacity; mean of {}", per_point(grid)),
        unit: unit.name.to_owned(),
        series: bands,
        max,
        size: ChartSize::Account,
    }
}

fn class(group: PartGroup) -> &'static str {
    match group {
        PartGroup::Delivered => "c-got",
        PartGroup::Headers => "c-head",
        PartGroup::Undelivered => "c-late",
        PartGroup::Wasted => "c-again",
        PartGroup::Application => "c-app",
        PartGroup::Window => "c-wnd",
        PartGroup::Congestion => "c-cwnd",
        PartGroup::SendBuffer => "c-buf",
        PartGroup::Pacing => "c-pace",
        PartGroup::Scheduler => "c-sched",
        PartGroup::Unusable => "c-down",
        PartGroup::Cpu => "c-cpu",
        PartGroup::Unknown => "c-unknown",
    }
}

/// Returns the name of a part in legend and bands.
fn name(group: PartGroup) -> &'static str {
    match group {
        PartGroup::Delivered => "delivered",
        PartGroup::Headers => "headers",
        PartGroup::Undelivered => "not readable yet",
        PartGroup::Wasted => "lost or duplicate",
        PartGroup::Application => "nothing to send",
        PartGroup::Window => "receive window",
        PartGroup::Congestion => "congestion window",
        PartGroup::SendBuffer => "send buffer",
        PartGroup::Pacing => "pacing",
        PartGroup::Scheduler => "scheduler",
        PartGroup::Unusable => "path not usable",
        PartGroup::Cpu => "processor",
        PartGroup::Unknown => "unknown",
    }
}
