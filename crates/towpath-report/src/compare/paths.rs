//! Table rows of single paths, measured by probe datagrams.

use towpath_result::format::number;
use towpath_result::format::text::clean;
use towpath_result::{DelayStats, PathStats};

use super::{Cell, TableBlock, TableRow, Tone, median_cell, missing, row};
use crate::group::RunGroup;

/// Label, meaning, and function for the metric.
type PathMetric = (&'static str, &'static str, fn(&[&PathStats]) -> Cell);

const ROWS: [PathMetric; 8] = [
    ("Replies received", "datagrams that returned in time, of those due", answered),
    ("RTT, median", "from sent to returned; lost datagrams do not count", |all| {
        round_trip(all, |d| d.p50_ns)
    }),
    ("RTT, 90 %", "from sent to returned; lost datagrams do not count", |all| {
        round_trip(all, |d| d.p90_ns)
    }),
    ("RTT, 99 %", "from sent to returned; lost datagrams do not count", |all| {
        round_trip(all, |d| d.p99_ns)
    }),
    ("RTT, 99.9 %", "from sent to returned; lost datagrams do not count", |all| {
        round_trip(all, |d| d.p999_ns)
    }),
    ("RTT, max", "from sent to returned; lost datagrams do not count", |all| {
        round_trip(all, |d| d.max_ns)
    }),
    (
        "RTT incl. timeouts, 99 %",
        "from due time to return; a lost datagram counts with its timeout",
        |all| median_cell(all.iter().map(|path| path.delay.p99_ns as f64), number::time),
    ),
    ("Longest gap without reply", "longest time without a returned datagram", longest_gap),
];

/// Returns one block for each path that was probed with datagrams.
pub(super) fn blocks(groups: &[RunGroup<'_>]) -> Vec<TableBlock> {
    let paths = groups.iter().flat_map(RunGroup::summaries).flat_map(|summary| &summary.paths);
    let mut keys: Vec<(u32, &str)> = Vec::new();
    for path in paths {
        if !keys.contains(&(path.flow, path.path.as_str())) {
            keys.push((path.flow, &path.path));
        }
    }
    let title = |(flow, path)| format!("flow {flow}: udping over {}", clean(path));
    keys.into_iter().map(|key| TableBlock { title: title(key), rows: rows(groups, key) }).collect()
}

fn rows(groups: &[RunGroup<'_>], (flow, path): (u32, &str)) -> Vec<TableRow> {
    let stats_of = |group: &RunGroup<'_>| -> Vec<PathStats> {
        let paths = group.summaries().flat_map(|summary| &summary.paths);
        paths.filter(|p| p.flow == flow && p.path == path).cloned().collect()
    };
    let stats_by_group: Vec<_> = groups.iter().map(stats_of).collect();
    let cell_of = |metric: fn(&[&PathStats]) -> Cell, stats: &Vec<PathStats>| {
        metric(&stats.iter().collect::<Vec<_>>())
    };
    let metrics = ROWS.iter();
    metrics
        .map(|(label, meaning, metric)| {
            row(label, meaning, stats_by_group.iter().map(|stats| cell_of(*metric, stats)))
        })
        .collect()
}

fn round_trip(all: &[&PathStats], pick: fn(&DelayStats) -> u64) -> Cell {
    let round_trips = all.iter().filter_map(|path| path.round_trip.as_ref());
    median_cell(round_trips.map(|times| pick(times) as f64), number::time)
}

fn answered(all: &[&PathStats]) -> Cell {
    let sum = |pick: fn(&PathStats) -> u64| all.iter().map(|path| pick(path)).sum::<u64>();
    let (answered, count) = (sum(|path| path.answered), sum(|path| path.count));
    if count == 0 {
        return missing();
    }
    let lost = (count - answered.min(count)) as f64 / count as f64;
    let note = if lost > 0.0 { format!("{} lost", number::percent(lost)) } else { String::new() };
    Cell { text: format!("{answered} of {count}"), note, tone: Tone::Plain, bar: None }
}

fn longest_gap(all: &[&PathStats]) -> Cell {
    match all {
        [only] => Cell {
            text: number::time(only.silence_ns as f64),
            note: format!("at {}", number::moment(only.silence_at_ns)),
            ..Cell::default()
        },
        _ => median_cell(all.iter().map(|path| path.silence_ns as f64), number::time),
    }
}
