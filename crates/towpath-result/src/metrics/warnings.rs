//! Warnings: points to check before trusting a result.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_net::Instant;
use towpath_scenario::flow_plan::FlowGoal;
use towpath_scenario::{DataDirection, Pattern};

use super::disruption::describe;
use super::summary::{MeasuredFlow, Summarizer};
use crate::Warning;
use crate::format;

const SINGLE_PATH_FIGURES: &str = "these figures are those of a single-path transport";

/// Returns all warnings of a run, the most serious first.
pub(super) fn find(run: &Summarizer<'_>) -> Vec<Warning> {
    let mut warnings = Vec::new();
    add_noise_warnings(run, &mut warnings);
    add_multipath_warning(run, &mut warnings);
    add_congestion_control_warnings(run, &mut warnings);
    add_stale_subflow_warnings(run, &mut warnings);
    add_missed_event_warning(run, &mut warnings);
    warnings
}

fn warning(text: String, hint: &str) -> Warning {
    Warning { text, hint: Some(hint.into()) }
}

fn add_noise_warnings(run: &Summarizer<'_>, warnings: &mut Vec<Warning>) {
    let Some(timing) = &run.emulator_timing else { return };
    if timing.unreliable {
        let lateness = format::time(Duration::from_nanos(timing.lateness_p99_ns));
        let reason = timing
            .reason
            .clone()
            .unwrap_or_else(|| format!("1 % of the packets were {lateness} late or more"));
        warnings.push(warning(
            format!("unreliable timing: {reason}"),
            "run it again on a quieter machine, or with lower rates",
        ));
    }
    if timing.lost_packets > 0 {
        warnings.push(warning(
            format!("the emulator itself lost {}", format::count(timing.lost_packets, "packet")),
            "these losses are not part of the scenario; lower the rates or use a faster machine",
        ));
    }
}

fn add_multipath_warning(run: &Summarizer<'_>, warnings: &mut Vec<Warning>) {
    let multipath = &run.multipath;
    // Constant-rate datagrams need no connection.
    let only_datagrams =
        run.flows.iter().all(|flow| matches!(flow.goal, FlowGoal::ConstantRate(_)));
    if !multipath.requested || (only_datagrams && !run.flows.is_empty()) {
        return;
    }
    let unused = multipath.unused_flows();
    if multipath.flows.is_empty() && !multipath.used {
        let reason = multipath.fallback.as_deref().unwrap_or("for an unknown reason");
        warnings.push(warning(
            format!("{} was asked for but not used: {reason}", run.transport),
            SINGLE_PATH_FIGURES,
        ));
        return;
    }
    for group in &unused {
        let (flows, reason) = (group.names(), group.reason);
        let is_whole_run = unused.len() == 1 && !multipath.flows.iter().any(|flow| flow.used);
        let (text, connected_hint) = if is_whole_run {
            let text = format!("{} was asked for but not used: {reason}", run.transport);
            (text, SINGLE_PATH_FIGURES.to_owned())
        } else {
            let text = format!("{flows} did not use {}: {reason}", run.transport);
            (text, format!("the figures of {flows} are those of a single-path transport"))
        };
        let without_figures = format!("{flows} carried no data; the verdict says why");
        let hint = if group.connected { &connected_hint } else { &without_figures };
        warnings.push(warning(text, hint));
    }
    add_single_path_warnings(run, warnings);
}

/// Warns of flows that should have used several paths, and whose data took one.
fn add_single_path_warnings(run: &Summarizer<'_>, warnings: &mut Vec<Warning>) {
    let multipath = &run.multipath;
    let configured = |flows: &mut dyn Iterator<Item = &MeasuredFlow>| {
        let mut configured: Vec<String> = Vec::new();
        for name in flows.flat_map(|flow| primary_path_names(run, flow)) {
            if !configured.iter().any(|other| other == name) {
                configured.push(name.to_owned());
            }
        }
        configured
    };
    let hint =
        "check that subflows on the other paths were established, and the endpoints' settings";
    if let [only] = multipath.paths_used.as_slice() {
        let configured = configured(&mut run.flows.iter());
        // A reason for each flow has been given already.
        let explained = !multipath.flows.is_empty() && multipath.flows.iter().all(|f| !f.used);
        if configured.len() > 1 && !explained {
            let text = format!("only {only} carried data, of {}", format::list(&configured));
            warnings.push(warning(text, hint));
        }
        return;
    }
    for flow in multipath.flows.iter().filter(|flow| flow.used) {
        let [only] = flow.paths_used.as_slice() else { continue };
        let configured =
            configured(&mut run.flows.iter().filter(|other| other.stats.flow == flow.flow));
        if configured.len() > 1 {
            let (number, paths) = (flow.flow, format::list(&configured));
            let text = format!("only {only} carried data of flow {number}, of {paths}");
            warnings.push(warning(text, hint));
        }
    }
}

/// Returns the names of the paths between a flow's hosts that should carry data from the start.
fn primary_path_names<'a>(
    run: &'a Summarizer<'_>,
    flow: &MeasuredFlow,
) -> impl Iterator<Item = &'a str> {
    let hosts = run.scenario.flows.get(flow.stats.flow as usize).map(|flow| [flow.from, flow.to]);
    run.scenario.paths.iter().filter_map(move |path| {
        let [from, to] = hosts?;
        let connects_hosts = path.between == [from, to] || path.between == [to, from];
        (connects_hosts && !path.backup).then_some(path.name.as_str())
    })
}

fn add_congestion_control_warnings(run: &Summarizer<'_>, warnings: &mut Vec<Warning>) {
    for flow in &run.flows {
        let Some(scenario_flow) = run.scenario.flows.get(flow.stats.flow as usize) else {
            continue;
        };
        let sender = match flow.stats.direction {
            DataDirection::Up | DataDirection::Both => scenario_flow.from,
            DataDirection::Down => scenario_flow.to,
        };
        let host = run.scenario.hosts.get(sender);
        let is_explicit = host.is_some_and(|host| run.scenario.names_congestion_control_of(host));
        // A program chooses its own congestion control; the default applies to towpath's sockets only.
        if matches!(scenario_flow.pattern, Pattern::Run { .. }) && !is_explicit {
            continue;
        }
        let requested = host
            .and_then(|host| host.congestion_control.as_ref())
            .unwrap_or(&run.scenario.run.congestion_control);
        let unexpected: BTreeSet<_> =
            flow.stats.congestion_control.iter().filter(|name| *name != requested).collect();
        if !unexpected.is_empty() {
            let unexpected: Vec<_> = unexpected.into_iter().collect();
            let new_warning = warning(
                format!(
                    "flow {} ran {} where {requested} was asked for",
                    flow.stats.flow,
                    format::list(&unexpected)
                ),
                "the system may not have it, or not allow it; compare runs with equal ones only",
            );
            // Both directions of a flow give one warning.
            if !warnings.contains(&new_warning) {
                warnings.push(new_warning);
            }
        }
    }
}

/// Warns of stale subflows. Linux marks a subflow as stale when it gets no acknowledgements while
/// others do.
fn add_stale_subflow_warnings(run: &Summarizer<'_>, warnings: &mut Vec<Warning>) {
    let is_stale_counter = |name: &str| name.rsplit('.').next() == Some("SubflowStale");
    for counter in run.counters.iter().filter(|counter| is_stale_counter(&counter.name)) {
        let times = counter.after.saturating_sub(counter.before);
        if times > 0 && run.flows.iter().all(|flow| flow.disruptions.is_empty()) {
            warnings.push(warning(
                format!(
                    "{} gave up a subflow without an event ({} +{times})",
                    counter.host, counter.name
                ),
                "a path stopped answering by itself: look at its loss and at the emulator's timing",
            ));
        }
    }
}

fn add_missed_event_warning(run: &Summarizer<'_>, warnings: &mut Vec<Warning>) {
    let Some(end) = run.flows.iter().map(|flow| flow.end).max() else { return };
    let missed = run.scenario.timeline.iter().filter(|event| Instant::ZERO + event.at >= end);
    let missed: BTreeSet<_> = missed
        .map(|event| {
            let (target, change) = describe(run.scenario, event);
            format!("`{target} {change}` at {}", format::seconds(event.at))
        })
        .collect();
    if !missed.is_empty() {
        let missed: Vec<_> = missed.into_iter().collect();
        warnings.push(warning(
            format!("the traffic was over before {}", format::list(&missed)),
            "let the traffic last longer or the event happen earlier",
        ));
    }
}
