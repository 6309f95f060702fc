//! Warnings: points to check before trusting a result.

use std::collections::BTreeSet;
use std::time::Duration;

use towpath_net::Instant;

use super::disruption::describe;
use super::summary::Summarizer;
use crate::format;
use crate::result::Warning;
use crate::scenario::{DataDirection, Pattern};
use crate::traffic::FlowGoal;

/// Returns all warnings of a run, the most serious first.
pub(super) fn find(run: &Summarizer<'_>) -> Vec<Warning> {
    let mut found = Vec::new();
    noise(run, &mut found);
    multipath(run, &mut found);
    congestion_control(run, &mut found);
    stale(run, &mut found);
    missed_events(run, &mut found);
    found
}

fn warning(text: String, hint: &str) -> Warning {
    Warning { text, hint: Some(hint.into()) }
}

fn noise(run: &Summarizer<'_>, found: &mut Vec<Warning>) {
    let Some(timing) = &run.emulator_timing else { return };
    if timing.unreliable {
        let late = format::time(Duration::from_nanos(timing.lateness_p99_ns));
        let reason = timing
            .reason
            .clone()
            .unwrap_or_else(|| format!("1 % of the packets were {late} late or more"));
        found.push(warning(
            format!("degraded run: {reason}"),
            "run it again on a quieter machine, or with lower rates",
        ));
    }
    if timing.lost_packets > 0 {
        found.push(warning(
            format!("the emulator itself lost {}", format::count(timing.lost_packets, "packet")),
            "these losses are not part of the scenario; lower the rates or use a faster machine",
        ));
    }
}

fn multipath(run: &Summarizer<'_>, found: &mut Vec<Warning>) {
    let proof = &run.multipath;
    // Constant-rate datagrams need no connection.
    let alone = run.flows.iter().all(|flow| matches!(flow.plan, FlowGoal::ConstantRate(_)));
    if !proof.requested || (alone && !run.flows.is_empty()) {
        return;
    }
    if !proof.used {
        let reason = proof.fallback.as_deref().unwrap_or("for an unknown reason");
        found.push(warning(
            format!("{} was asked for but not used: {reason}", run.transport),
            "these figures are those of a single-path transport",
        ));
        return;
    }
    let mut configured: Vec<_> = Vec::new();
    for name in run.flows.iter().flat_map(|flow| available(run, flow)) {
        if !configured.contains(&name) {
            configured.push(name);
        }
    }
    if let ([only], true) = (proof.paths_used.as_slice(), configured.len() > 1) {
        found.push(warning(
            format!("only {only} carried data, of {}", format::list(&configured)),
            "check that subflows on the other paths were established, and the endpoints' settings",
        ));
    }
}

/// Returns the names of the paths between a flow's hosts that should carry data from the start.
fn available<'a>(
    run: &'a Summarizer<'_>,
    flow: &super::summary::MeasuredFlow,
) -> impl Iterator<Item = &'a str> {
    let hosts = run.scenario.flows.get(flow.stats.flow as usize).map(|flow| [flow.from, flow.to]);
    run.scenario.paths.iter().filter_map(move |path| {
        let [from, to] = hosts?;
        let joins = path.between == [from, to] || path.between == [to, from];
        (joins && !path.backup).then_some(path.name.as_str())
    })
}

fn congestion_control(run: &Summarizer<'_>, found: &mut Vec<Warning>) {
    for flow in &run.flows {
        let Some(described) = run.scenario.flows.get(flow.stats.flow as usize) else { continue };
        let sender = match flow.stats.direction {
            DataDirection::Up | DataDirection::Both => described.from,
            DataDirection::Down => described.to,
        };
        let host = run.scenario.hosts.get(sender);
        let named = host.is_some_and(|host| run.scenario.names_congestion_control_of(host));
        // A program chooses for its own sockets; the default is only towpath's.
        if matches!(described.pattern, Pattern::Run { .. }) && !named {
            continue;
        }
        let asked = host
            .and_then(|host| host.congestion_control.as_ref())
            .unwrap_or(&run.scenario.run.congestion_control);
        let others: BTreeSet<_> =
            flow.stats.congestion_control.iter().filter(|name| *name != asked).collect();
        if !others.is_empty() {
            let others: Vec<_> = others.into_iter().collect();
            let told = warning(
                format!(
                    "flow {} ran {} where {asked} was asked for",
                    flow.stats.flow,
                    format::list(&others)
                ),
                "the system may not have it, or not allow it; compare runs with equal ones only",
            );
            // Both directions of a flow give one warning.
            if !found.contains(&told) {
                found.push(told);
            }
        }
    }
}

/// Warns of stale subflows. Linux marks a subflow as stale when it gets no acknowledgements while
/// others do.
fn stale(run: &Summarizer<'_>, found: &mut Vec<Warning>) {
    let stale = |name: &str| name.rsplit('.').next() == Some("SubflowStale");
    for counter in run.counters.iter().filter(|counter| stale(&counter.name)) {
        let times = counter.after.saturating_sub(counter.before);
        if times > 0 && run.flows.iter().all(|flow| flow.disruptions.is_empty()) {
            found.push(warning(
                format!(
                    "{} gave up a subflow without an event ({} +{times})",
                    counter.host, counter.name
                ),
                "a path stopped answering by itself: look at its loss and at the noise figures",
            ));
        }
    }
}

fn missed_events(run: &Summarizer<'_>, found: &mut Vec<Warning>) {
    let Some(end) = run.flows.iter().map(|flow| flow.end).max() else { return };
    let late = run.scenario.timeline.iter().filter(|event| Instant::ZERO + event.at >= end);
    let late: BTreeSet<_> = late
        .map(|event| {
            let (target, change) = describe(run.scenario, event);
            format!("`{target} {change}` at {}", format::seconds(event.at))
        })
        .collect();
    if !late.is_empty() {
        let late: Vec<_> = late.into_iter().collect();
        found.push(warning(
            format!("the traffic was over before {}", format::list(&late)),
            "let the traffic last longer or the event happen earlier",
        ));
    }
}
