//! Conditions of each group side by side, with a mark where groups differ.

use std::collections::BTreeSet;

use towpath_result::format::number;
use towpath_result::format::text::clean;
use towpath_result::store::StoredRun;
use towpath_result::{CpuAccounting, EmulatorTiming, OrderKind, Record};
use towpath_scenario::{Transport, World};

use super::Comparison;
use crate::group::RunGroup;

/// Shown where a group has no value.
const NO_VALUE: &str = "–";

/// One condition of every group.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ComparedCondition {
    pub(crate) label: String,
    /// Value of each group; several values of a group are joined.
    pub(crate) values: Vec<String>,
    /// True if groups should agree in it.
    pub(crate) must_agree: bool,
}

impl ComparedCondition {
    /// Returns true if groups that should agree do not.
    pub(crate) fn differs(&self) -> bool {
        // A missing value does not count as a difference: QUIC has no settings of TCP.
        let values: BTreeSet<_> = self.values.iter().filter(|value| *value != NO_VALUE).collect();
        self.must_agree && values.len() > 1
    }
}

/// Reads one condition of a run; `None` if the run has no such condition.
type ConditionFn = fn(&StoredRun) -> Option<String>;

pub(crate) fn conditions(comparison: &Comparison<'_>) -> Vec<ComparedCondition> {
    let groups = &comparison.groups;
    let fixed: [(&str, bool, ConditionFn); 13] = [
        ("Scenario", true, |run| Some(run.meta.scenario.clone())),
        ("World", true, |run| Some(run.meta.world.to_string())),
        ("Stack", true, |run| Some(run.meta.stack.clone()).filter(|_| is_tcp(run))),
        ("Congestion control", true, congestion_control),
        ("TLS", true, |run| Some(if is_encrypted(run) { "yes" } else { "no" }.to_owned())),
        ("Duration", true, |run| Some(number::short_moment(run.meta.duration_ns as f64 / 1e9))),
        ("Sampling interval", true, |run| Some(number::period(run.meta.sample_ns))),
        ("Kernel", true, |run| Some(run.meta.kernel.clone())),
        ("towpath", true, |run| Some(run.meta.towpath.clone())),
        ("Run order", true, order),
        ("CPU accounting", true, cpu_accounting),
        ("Multipath", false, multipath),
        ("Result", false, |run| {
            let has_summary = run.summary.is_some();
            Some(if has_summary { "complete" } else { "truncated" }.to_owned())
                .filter(|_| !has_summary)
        }),
    ];
    let mut conditions: Vec<ComparedCondition> = fixed
        .into_iter()
        .map(|(label, must_agree, value_of)| condition(groups, label, must_agree, value_of))
        .collect();
    conditions.extend(settings(groups));
    conditions.push(spread(
        groups,
        "Seeds",
        |run| run.meta.seed as f64,
        |seed| format!("{seed:.0}"),
    ));
    conditions.extend(cost(comparison));
    conditions.extend(timing_conditions(groups));
    conditions.retain(|condition| condition.values.iter().any(|value| value != NO_VALUE));
    conditions
}

fn join_values(mut values: Vec<String>) -> String {
    values.retain(|value| !value.is_empty());
    if values.is_empty() { NO_VALUE.to_owned() } else { clean(&values.join("; ")) }
}

fn condition(
    groups: &[RunGroup<'_>],
    label: &str,
    must_agree: bool,
    value_of: impl Fn(&StoredRun) -> Option<String>,
) -> ComparedCondition {
    let value = |group: &RunGroup<'_>| {
        let values: BTreeSet<String> = group.runs.iter().filter_map(|run| value_of(run)).collect();
        join_values(values.into_iter().collect())
    };
    ComparedCondition {
        label: label.to_owned(),
        values: groups.iter().map(value).collect(),
        must_agree,
    }
}

/// Formats the smallest and the largest value of a group.
fn spread(
    groups: &[RunGroup<'_>],
    label: &str,
    value_of: impl Fn(&StoredRun) -> f64,
    text: impl Fn(f64) -> String,
) -> ComparedCondition {
    let value = |group: &RunGroup<'_>| {
        let values: Vec<f64> = group.runs.iter().map(|run| value_of(run)).collect();
        let min = values.iter().copied().fold(f64::INFINITY, f64::min);
        let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let (min, max) = (text(min), text(max));
        if min == max { min } else { number::spread(&min, &max) }
    };
    let values = groups.iter().map(value).collect();
    ComparedCondition { label: label.to_owned(), values, must_agree: false }
}

pub(super) fn is_tcp(run: &StoredRun) -> bool {
    matches!(run.meta.transport, Transport::Tcp | Transport::Mptcp)
}

/// Returns true if the traffic was encrypted: QUIC always is, TCP if the conditions include TLS.
pub(super) fn is_encrypted(run: &StoredRun) -> bool {
    !is_tcp(run) || run.meta.conditions.get("tls").is_some_and(|value| value != "no")
}

/// Returns the congestion control, as read back from the senders.
pub(super) fn congestion_control(run: &StoredRun) -> Option<String> {
    let flows = run.summary.iter().flat_map(|summary| &summary.flows);
    let names: BTreeSet<&str> =
        flows.flat_map(|flow| &flow.congestion_control).map(String::as_str).collect();
    (!names.is_empty()).then(|| names.into_iter().collect::<Vec<_>>().join(", "))
}

fn order(run: &StoredRun) -> Option<String> {
    if run.meta.world == World::Sim {
        return None;
    }
    Some(match run.meta.order.map(|order| (order.kind, order.seed)) {
        Some((OrderKind::Random, seed)) => format!("random, seed {seed}"),
        Some((OrderKind::Fixed, _)) => "fixed".to_owned(),
        None => "unknown".to_owned(),
    })
}

fn cpu_accounting(run: &StoredRun) -> Option<String> {
    let accounting = run.summary.as_ref()?.cpu?.accounting;
    Some(
        match accounting {
            CpuAccounting::SocketThreads => "threads with sockets",
            CpuAccounting::StackThreads => "threads with the transport",
            CpuAccounting::MixedThreads => "threads, of one end with the transport",
            CpuAccounting::Process => "processes",
        }
        .to_owned(),
    )
}

fn multipath(run: &StoredRun) -> Option<String> {
    let multipath = &run.summary.as_ref()?.multipath;
    multipath.requested.then(|| {
        match (multipath.used, multipath.paths_used.len()) {
            (true, 2..) => "used",
            (true, _) => "negotiated, one path",
            (false, _) if multipath.is_partly_used() => "used by some flows",
            (false, _) => "not used",
        }
        .to_owned()
    })
}

/// Returns all other host settings: buffers, schedulers, libraries, processors.
fn settings(groups: &[RunGroup<'_>]) -> Vec<ComparedCondition> {
    let mut setting_names: BTreeSet<&str> = BTreeSet::new();
    for run in groups.iter().flat_map(|group| &group.runs) {
        let names = run.meta.conditions.keys().map(String::as_str);
        // `load before` differs in every run, and `tls` has a row of its own.
        setting_names.extend(names.filter(|name| !matches!(*name, "load before" | "tls")));
    }
    let setting = |name: &str| {
        condition(groups, name, is_buffer(name), |run| run.meta.conditions.get(name).cloned())
    };
    setting_names.into_iter().map(setting).collect()
}

/// Returns true for settings that bound the data in flight.
pub(super) fn is_buffer(name: &str) -> bool {
    ["rmem", "wmem", "buffer", "window"].iter().any(|part| name.contains(part))
}

pub(crate) fn timing(run: &StoredRun) -> Option<&EmulatorTiming> {
    run.records.iter().find_map(|record| {
        let Record::Timing(timing) = record else { return None };
        Some(timing)
    })
}

/// Returns the CPU cost, for information: groups need not agree in it.
fn cost(comparison: &Comparison<'_>) -> Option<ComparedCondition> {
    let row = comparison.rows.iter().find(|row| row.metric.name == "cpu_per_gb")?;
    let text = |median: f64| row.metric.text(median);
    let values = row.estimates.iter();
    let values = values.map(|e| e.as_ref().map_or(NO_VALUE.to_owned(), |e| text(e.median)));
    let label = row.metric.label.to_owned();
    Some(ComparedCondition { label, values: values.collect(), must_agree: false })
}

fn timing_conditions(groups: &[RunGroup<'_>]) -> Vec<ComparedCondition> {
    let mut runs = groups.iter().flat_map(|group| &group.runs);
    // Virtual time is never late.
    if runs.all(|run| run.meta.world == World::Sim || timing(run).is_none()) {
        return Vec::new();
    }
    let value_of =
        |pick: fn(&EmulatorTiming) -> f64| move |run: &StoredRun| timing(run).map_or(0.0, pick);
    vec![
        spread(groups, "Lateness, 99 %", value_of(|n| n.lateness_p99_ns as f64), number::time),
        spread(
            groups,
            "CPU used by other processes",
            value_of(|n| n.other_cpu_share),
            number::percent,
        ),
        spread(groups, "Load average", value_of(|n| n.load), |load| format!("{load:.1}")),
        ComparedCondition {
            label: "Runs with unreliable timing".to_owned(),
            values: groups.iter().map(unreliable).collect(),
            must_agree: false,
        },
    ]
}

fn unreliable(group: &RunGroup<'_>) -> String {
    let count = group.runs.iter().filter(|run| timing(run).is_some_and(|n| n.unreliable)).count();
    format!("{count} of {}", group.runs.len())
}
