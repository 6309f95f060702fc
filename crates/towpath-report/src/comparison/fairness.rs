//! Warnings about a doubtful comparison: conditions that differ, noise, or few repetitions.

use std::collections::BTreeSet;

use towpath_result::format;
use towpath_result::format::text::clean;
use towpath_result::metrics::statistics::MIN_SAMPLES;
use towpath_result::store::StoredRun;
use towpath_result::{OrderKind, Warning};
use towpath_scenario::World;

use super::conditions::{conditions, congestion_control, is_buffer, is_encrypted, is_tcp, timing};
use super::{ComparedCondition, Comparison};
use crate::group::RunGroup;

/// Minimum number of runs of a group; fewer may miss an effect that occurs in one run of ten.
const MIN_RUNS: usize = 20;

pub(super) fn warnings(comparison: &Comparison<'_>) -> Vec<Warning> {
    let conditions = conditions(comparison);
    let mut warnings = Vec::new();
    warn_mixed_conditions(&conditions, &mut warnings);
    warn_congestion_controls(comparison, &mut warnings);
    warn_encryption(comparison, &mut warnings);
    warn_stacks(comparison, &mut warnings);
    warn_scenarios(comparison, &mut warnings);
    warn_buffers(&conditions, &mut warnings);
    warn_unusable_runs(comparison, &mut warnings);
    warn_few_runs(comparison, &mut warnings);
    warn_run_orders(comparison, &mut warnings);
    warn_equal_runs(comparison, &mut warnings);
    warnings
}

fn warning(text: String, hint: &str) -> Warning {
    Warning { text, hint: Some(hint.to_owned()) }
}

/// Formats a value for each group: `tcp cubic, mptcp lia`.
fn per_group(groups: &[RunGroup<'_>], values: &[String]) -> String {
    let values_by_group =
        groups.iter().zip(values).map(|(group, value)| format!("{} {value}", group.label));
    values_by_group.collect::<Vec<_>>().join(", ")
}

/// Warns about conditions that must be the same for metrics to be comparable.
fn warn_mixed_conditions(conditions: &[ComparedCondition], warnings: &mut Vec<Warning>) {
    let hints = [
        (
            "World",
            "a simulated value against a measured one shows how good the model is, not which \
                   transport is better; compare within one world",
        ),
        ("Duration", "run them for the same time: start and end weigh differently"),
        ("Sampling interval", "sampling costs processor time; use one period"),
        ("Kernel", "measure on one kernel, or say that kernels are what is compared"),
        ("towpath", "measure again with one version"),
        (
            "CPU accounting",
            "CPU per GB counts different work here: the kernel's receive processing is in \
                         none, a transport outside the kernel is in whole",
        ),
    ];
    for (label, hint) in hints {
        let Some(condition) = conditions.iter().find(|c| c.label == label) else { continue };
        // A missing value does not count as a difference.
        let values: BTreeSet<&String> = condition.values.iter().filter(|v| *v != "–").collect();
        if values.len() > 1 {
            let values: Vec<_> = values.into_iter().map(String::as_str).collect();
            let text = format!("{} differs: {}", condition_name(label), values.join(" and "));
            warnings.push(warning(text, hint));
        }
    }
}

fn condition_name(label: &str) -> String {
    if label == "World" { "the world".to_owned() } else { format!("`{label}`") }
}

fn values_by_group(
    groups: &[RunGroup<'_>],
    value_of: impl Fn(&StoredRun) -> Option<String>,
) -> Vec<String> {
    let value = |group: &RunGroup<'_>| {
        let values: BTreeSet<String> = group.runs.iter().filter_map(|run| value_of(run)).collect();
        values.into_iter().collect::<Vec<_>>().join("; ")
    };
    groups.iter().map(value).collect()
}

fn differ(values: &[String]) -> bool {
    let known: BTreeSet<&String> = values.iter().filter(|value| !value.is_empty()).collect();
    known.len() > 1
}

fn warn_congestion_controls(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let values = values_by_group(&comparison.groups, congestion_control);
    if differ(&values) {
        let text =
            format!("congestion control differs: {}", per_group(&comparison.groups, &values));
        warnings.push(warning(
            clean(&text),
            "give all of them the same (`congestion-control`), or say that it is part of what is \
             compared",
        ));
    }
}

fn warn_encryption(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let labels_of = |encrypted: bool| {
        let groups = comparison.groups.iter();
        let matching =
            groups.filter(|group| group.runs.iter().all(|r| is_encrypted(r) == encrypted));
        format::list(&matching.map(|group| group.label.as_str()).collect::<Vec<_>>())
    };
    let (with, without) = (labels_of(true), labels_of(false));
    if !with.is_empty() && !without.is_empty() {
        warnings.push(warning(
            format!("TLS on one side only: with it {with}, without it {without}"),
            "encryption costs processor time, and its handshake up to a round trip: compare CPU and \
             connect times within each kind",
        ));
    }
}

fn warn_stacks(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let stack = |run: &StoredRun| is_tcp(run).then(|| run.meta.stack.clone());
    let values = values_by_group(&comparison.groups, stack);
    if differ(&values) {
        let text = format!("the TCP stack differs: {}", per_group(&comparison.groups, &values));
        warnings.push(warning(clean(&text), "choose one with `--stack`, unless that is compared"));
    }
}

/// Warns about scenarios that differ.
fn warn_scenarios(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let runs = comparison.groups.iter().flat_map(|group| &group.runs);
    let texts: BTreeSet<&str> = runs.map(|run| run.meta.scenario_toml.as_str()).collect();
    if texts.len() > 1 {
        warnings.push(warning(
            format!("{} different scenarios are compared", texts.len()),
            "read the scenarios in the runs' reports, and check that only what you compare \
             differs",
        ));
    }
}

fn warn_buffers(conditions: &[ComparedCondition], warnings: &mut Vec<Warning>) {
    // A missing value does not count as a difference: QUIC has no such settings.
    let differs = |condition: &&ComparedCondition| {
        let values: BTreeSet<_> = condition.values.iter().filter(|v| *v != "–").collect();
        is_buffer(&condition.label) && values.len() > 1
    };
    let names: Vec<_> =
        conditions.iter().filter(differs).map(|c| format!("`{}`", clean(&c.label))).collect();
    if !names.is_empty() {
        warnings.push(warning(
            format!("buffers differ: {}", names.join(", ")),
            "a full buffer limits goodput and hides loss: use equal buffers",
        ));
    }
}

fn warn_unusable_runs(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    for group in &comparison.groups {
        let total = group.runs.len();
        let count = |is_affected: fn(&StoredRun) -> bool| {
            group.runs.iter().filter(|run| is_affected(run)).count()
        };
        let unreliable = count(|run| timing(run).is_some_and(|timing| timing.unreliable));
        if unreliable > 0 {
            warnings.push(warning(
                format!("{}: {unreliable} of {total} runs were too late or too noisy", group.label),
                "measure again on an idle machine; its reports say what disturbed each run",
            ));
        }
        let without_summary = count(|run| run.summary.is_none());
        if without_summary > 0 {
            warnings.push(warning(
                format!(
                    "{}: {without_summary} of {total} results have no summary and are left out",
                    group.label
                ),
                "they were interrupted, or their files are truncated",
            ));
        }
        let not_multipath = count(|run| {
            run.summary.as_ref().is_some_and(|s| s.multipath.requested && !s.multipath.used)
        });
        if not_multipath > 0 {
            warnings.push(warning(
                format!(
                    "{}: {not_multipath} of {total} runs did not use it to the end",
                    group.label
                ),
                "they fell back: see *Was multipath used?* in their reports",
            ));
        }
    }
}

fn warn_few_runs(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let groups = &comparison.groups;
    if groups.len() < 2 {
        warnings.push(warning(
            "there is only one group, so nothing to compare it with".to_owned(),
            "give results of several transports, or more transports with `--transport`",
        ));
    }
    let counts: Vec<String> = groups.iter().map(|g| g.summaries().count().to_string()).collect();
    let fewest = groups.iter().map(|g| g.summaries().count()).min().unwrap_or(0);
    if differ(&counts) {
        let text = format!("numbers of repetitions differ: {}", per_group(groups, &counts));
        warnings.push(warning(text, "repeat all transports equally often, in turn"));
    }
    if fewest < MIN_SAMPLES {
        warnings.push(warning(
            match fewest {
                1 => format!("1 repetition is too few for an interval, which needs {MIN_SAMPLES}"),
                few => {
                    format!(
                        "{few} repetitions are too few for an interval, which needs {MIN_SAMPLES}"
                    )
                }
            },
            "repeat more often (`--repeat 20`): stalls tend to come in two sizes, and few runs see \
             only one of them",
        ));
    } else if fewest < MIN_RUNS && groups.iter().any(|group| !is_simulated(group)) {
        warnings.push(warning(
            format!("{fewest} repetitions: what happens in one run of ten may be missing"),
            "repeat 20 times or more (`--repeat 20`) before publishing it",
        ));
    }
}

fn is_simulated(group: &RunGroup<'_>) -> bool {
    group.runs.iter().all(|run| run.meta.world == World::Sim)
}

/// Warns about run orders: in real time, the machine may change between the first and the last
/// run.
fn warn_run_orders(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let real_time_runs = || {
        let runs = comparison.groups.iter().flat_map(|group| &group.runs);
        runs.filter(|run| run.meta.world != World::Sim)
    };
    if comparison.groups.len() < 2 {
        return;
    }
    if real_time_runs().any(|run| run.meta.order.is_none()) {
        warnings.push(warning(
            "the order of some of the runs is unknown".to_owned(),
            "use `towpath compare SCENARIO`, which alternates the transports",
        ));
    } else if real_time_runs().any(|run| run.meta.order.is_some_and(|o| o.kind == OrderKind::Fixed))
    {
        warnings.push(warning(
            "the transports alternated in a fixed order".to_owned(),
            "each transport then always follows the same one: use `--order random`",
        ));
    }
}

/// Returns true if a group's repetitions are simulated and identical.
pub(super) fn is_deterministic(comparison: &Comparison<'_>, index: usize) -> bool {
    let samples = comparison.rows.iter().filter_map(|row| row.samples.get(index));
    let are_equal =
        |values: &[f64]| values.first().map(|v| v.to_bits()) == values.last().map(|v| v.to_bits());
    let group = comparison.groups.get(index);
    group.is_some_and(|group| group.runs.len() > 1 && is_simulated(group)) && { samples }
        .all(|s| are_equal(s.values()))
}

/// Warns about scenarios without randomness, whose repetitions are all equal.
fn warn_equal_runs(comparison: &Comparison<'_>, warnings: &mut Vec<Warning>) {
    let groups = comparison.groups.iter().enumerate();
    let groups = groups.filter(|(at, _)| is_deterministic(comparison, *at));
    let names: Vec<&str> = groups.map(|(_, group)| group.label.as_str()).collect();
    if !names.is_empty() {
        warnings.push(warning(
            format!("all repetitions of {} are equal", format::list(&names)),
            "the scenario draws nothing at random for them, so their intervals mean nothing: give it \
             jitter or loss, or emulate it",
        ));
    }
}
