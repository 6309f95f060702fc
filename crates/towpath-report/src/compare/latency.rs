//! The rows of latency under load: each phase, and each path in it.

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::{DelayStats, LoadPath, LoadPhase};
use towpath_scenario::Load;

use super::{Cell, TableRow, median_cell, missing, row};
use crate::group::{FlowKey, RunGroup};

const LOADS: [(Load, &str); 4] = [
    (Load::Idle, "Idle"),
    (Load::Down, "Loaded down"),
    (Load::Up, "Loaded up"),
    (Load::Both, "Loaded both"),
];

fn load_phases(group: &RunGroup<'_>, key: FlowKey, load: Load) -> Vec<LoadPhase> {
    let flows = group.flows(key);
    let phases = flows.iter().filter_map(|flow| flow.messages.as_ref()).flat_map(|m| &m.phases);
    phases.filter(|phase| phase.load == load).cloned().collect()
}

/// Returns the rows of a flow that has latency phases.
pub(super) fn rows(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    let mut rows = Vec::new();
    for (load, name) in LOADS {
        let phases_by_group: Vec<_> =
            groups.iter().map(|group| load_phases(group, key, load)).collect();
        if phases_by_group.iter().all(Vec::is_empty) {
            continue;
        }
        let mut add = |statistic: &str, meaning, cell: &dyn Fn(&[LoadPhase]) -> Cell| {
            let cells = phases_by_group.iter().map(|phases| cell(phases));
            rows.push(row(&format!("{name}, {statistic}"), meaning, cells));
        };
        add("median", "half of the requests had their reply within this time", &|phases| {
            let cell = delay(phases, |d| d.p50_ns);
            with_increase(cell, phases.iter().filter_map(|phase| phase.delay_increase_ns))
        });
        add("95 %", "95 % of the requests had their reply within this time", &|phases| {
            delay(phases, |d| d.p95_ns)
        });
        add("99 %", "99 % of the requests had their reply within this time", &|phases| {
            delay(phases, |d| d.p99_ns)
        });
        let cells = phases_by_group.iter().map(|phases| {
            let rates = phases.iter().filter_map(|phase| phase.round_trips_per_minute);
            median_cell(rates, number::count)
        });
        let meaning = "60 s divided by the mean of the fastest 95 %";
        rows.push(row(&format!("Round trips per minute, {}", load_label(load)), meaning, cells));
    }
    rows.extend(paths(groups, key));
    rows
}

fn load_label(load: Load) -> &'static str {
    match load {
        Load::Idle => "idle",
        Load::Down => "down",
        Load::Up => "up",
        Load::Both => "both",
    }
}

/// Returns the rows of each path, measured by probe datagrams.
fn paths(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    let mut names: Vec<String> = Vec::new();
    for (load, _) in LOADS {
        let phases = groups.iter().flat_map(|group| load_phases(group, key, load));
        for path in phases.flat_map(|phase| phase.paths) {
            if !names.contains(&path.path) {
                names.push(path.path);
            }
        }
    }
    let mut rows = Vec::new();
    for name in names {
        for (load, _) in LOADS {
            let cells = groups.iter().map(|group| {
                let phases =
                    load_phases(group, key, load).into_iter().flat_map(|phase| phase.paths);
                path_cell(&phases.filter(|path| path.path == name).collect::<Vec<_>>())
            });
            let label = format!("{} {}, median", cut(&clean(&name), 20), load_label(load));
            rows.push(row(&label, "datagrams over this path, from sent to returned", cells));
        }
    }
    rows
}

fn path_cell(paths: &[LoadPath]) -> Cell {
    let round_trips = paths.iter().filter_map(|path| path.round_trip);
    let cell = median_cell(round_trips.map(|times| times.p50_ns as f64), number::time);
    with_increase(cell, paths.iter().filter_map(|path| path.delay_increase_ns))
}

/// Adds the increase over idle to a cell; repetitions show their range instead.
fn with_increase(cell: Cell, increases: impl Iterator<Item = i64>) -> Cell {
    let increases: Vec<i64> = increases.collect();
    match increases.as_slice() {
        [only] if cell.note.is_empty() && cell != missing() => {
            let sign = if *only < 0 { "−" } else { "+" };
            let note = format!("{sign}{}", number::time(only.unsigned_abs() as f64));
            Cell { note, ..cell }
        }
        _ => cell,
    }
}

fn delay(phases: &[LoadPhase], pick: fn(&DelayStats) -> u64) -> Cell {
    median_cell(phases.iter().filter_map(|phase| Some(pick(&phase.delay?) as f64)), number::time)
}
