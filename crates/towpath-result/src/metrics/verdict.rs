//! Verdict on a run, in one plain sentence.

use std::time::Duration;

use towpath_net::Instant;
use towpath_scenario::DataDirection;
use towpath_scenario::Load;
use towpath_scenario::flow_plan::FlowGoal;

use super::summary::{MeasuredFlow, Summarizer};
use crate::format;
use crate::{
    CallStats, DatagramStats, DelayStats, ExpectationResult, FlowSummary, Interface, LoadPhase,
    PathStats, Recovery,
};

/// Length of silence at the end after which a flow counts as stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(1);

/// Maximum time from the end of the last stall until 90 % of the goodput is back for which the
/// verdict reports the end of the stall only.
const MAX_OMITTED_DIFFERENCE: Duration = Duration::from_millis(300);

pub(super) fn verdict(run: &Summarizer<'_>, expectations: &[ExpectationResult]) -> String {
    let transport = transport_text(run);
    let paths_text = over_paths_text(&run.multipath.paths_used);
    let (constant_rate, others): (Vec<&MeasuredFlow>, Vec<&MeasuredFlow>) =
        run.flows.iter().partition(|flow| matches!(flow.goal, FlowGoal::ConstantRate(_)));
    let mut text = match others.as_slice() {
        [] if run.udping_paths.is_empty() && constant_rate.is_empty() => {
            format!("{transport} ran no flow")
        }
        [] if run.udping_paths.is_empty() => String::new(),
        [] => datagrams_text(&run.udping_paths),
        flows if is_one_command(flows) => {
            format!("{transport} {}", command_text(run, flows, &paths_text))
        }
        [flow] => format!("{transport} {}", transfer_text(flow, &paths_text)),
        flows if flows.iter().any(|flow| flow.stats.messages.is_some()) => {
            format!("{transport} {}", reply_delays_text(flows, &paths_text))
        }
        flows => several_transfers_text(&transport, flows, &paths_text),
    };
    for sentence in constant_rate.into_iter().map(constant_rate_text) {
        text = if text.is_empty() { sentence } else { format!("{text}; {sentence}") };
    }
    let missed_count = expectations.iter().filter(|checked| checked.passed == Some(false)).count();
    let unmeasured_count = expectations.iter().filter(|checked| checked.passed.is_none()).count();
    let total = expectations.len();
    for (count, outcome) in [(missed_count, "missed"), (unmeasured_count, "could not be checked")] {
        match (count, total) {
            (0, _) => {}
            (_, 1) => text = format!("{text}; the expectation {}", single_outcome(outcome)),
            (count, total) => text = format!("{text}; {count} of {total} expectations {outcome}"),
        }
    }
    text
}

/// Returns the outcome of a single expectation as text.
fn single_outcome(outcome: &str) -> &str {
    if outcome == "missed" { "was missed" } else { outcome }
}

/// Returns the transport, with the fallback if it differs from the requested one. A flow that never
/// connected has its own failure.
fn transport_text(run: &Summarizer<'_>) -> String {
    let (multipath, transport) = (&run.multipath, run.transport);
    let needs_connection = |flow: &MeasuredFlow| !matches!(flow.goal, FlowGoal::ConstantRate(_));
    let has_delivered = run.flows.iter().any(|flow| needs_connection(flow) && flow.stats.bytes > 0);
    if !multipath.requested || multipath.used || !has_delivered {
        return transport.to_string();
    }
    if multipath.is_partly_used() {
        let groups = multipath.unused_flows();
        let connected = groups.iter().filter(|group| group.connected);
        let texts: Vec<_> = connected
            .map(|group| format!("not used by {}: {}", group.names(), group.reason))
            .collect();
        return match texts.as_slice() {
            [] => transport.to_string(),
            texts => format!("{transport} ({})", texts.join("; ")),
        };
    }
    match &multipath.fallback {
        Some(reason) => format!("{transport} (not used: {reason})"),
        None => format!("{transport} (not used)"),
    }
}

fn over_paths_text(paths: &[String]) -> String {
    if paths.is_empty() { String::new() } else { format!(" over {}", format::list(paths)) }
}

fn transfer_text(flow: &MeasuredFlow, paths_text: &str) -> String {
    let stats = &flow.stats;
    let (amount, speed) = (format::bytes(stats.bytes), format::rate(stats.goodput_bps));
    let time = format::seconds(Duration::from_nanos(stats.duration_ns));
    if stats.completed {
        let delivered = match flow.goal {
            FlowGoal::Sized { .. } => format!("delivered {amount} in {time} ({speed}){paths_text}"),
            FlowGoal::Timed(_)
            | FlowGoal::Messages(_)
            | FlowGoal::Probes(_)
            | FlowGoal::ConstantRate(_)
            | FlowGoal::Command(_) => {
                format!("delivered {amount} at {speed}{paths_text}")
            }
        };
        return delivered + &recovery_or_stall_text([flow]);
    }
    let failure = stats.failure.as_deref().unwrap_or("unknown failure");
    let Some(last_arrival) = flow.last_arrival else {
        let reason =
            if failure == "nothing arrived" { String::new() } else { format!(": {failure}") };
        return format!("delivered nothing{reason}");
    };
    let silence = flow.end.saturating_since(last_arrival);
    if silence >= STOPPED_AFTER {
        let at = format::seconds(last_arrival.saturating_since(Instant::ZERO));
        let cause_text = stop_cause(flow, last_arrival)
            .map(|cause| format!(" when {cause}"))
            .unwrap_or_default();
        let silence = format::seconds(silence);
        return format!(
            "stopped at {at}{cause_text}: {amount} delivered, nothing for the last {silence}"
        );
    }
    match flow.goal {
        FlowGoal::Sized { bytes, limit: _ } => {
            let total = format::bytes(bytes);
            format!("delivered only {amount} of {total} in {time} ({speed}){paths_text}")
        }
        FlowGoal::Timed(_)
        | FlowGoal::Messages(_)
        | FlowGoal::Probes(_)
        | FlowGoal::ConstantRate(_)
        | FlowGoal::Command(_) => {
            format!("delivered {amount} at {speed}{paths_text}, but did not complete: {failure}")
        }
    }
}

fn is_one_command(flows: &[&MeasuredFlow]) -> bool {
    let first_flow = flows.first().map(|flow| flow.stats.flow);
    let is_command = |flow: &&MeasuredFlow| matches!(flow.goal, FlowGoal::Command(_));
    flows.iter().all(|flow| is_command(flow) && Some(flow.stats.flow) == first_flow)
}

/// Describes the data moved by a command's connections. A direction that carried only control data
/// is omitted.
fn command_text(run: &Summarizer<'_>, flows: &[&MeasuredFlow], paths_text: &str) -> String {
    let max_bytes = flows.iter().map(|flow| flow.stats.bytes).max().unwrap_or_default();
    let main_flows = flows.iter().filter(|flow| flow.stats.bytes > max_bytes / 100);
    let moved_texts: Vec<_> = main_flows
        .map(|flow| {
            let FlowSummary { bytes, goodput_bps, direction, .. } = &flow.stats;
            let direction_text = if *direction == DataDirection::Down { "down" } else { "up" };
            format!("{} {direction_text} at {}", format::bytes(*bytes), format::rate(*goodput_bps))
        })
        .collect();
    let mut text = if moved_texts.is_empty() {
        format!("ran the command{}", interface_bytes_text(run))
    } else {
        format!("moved {}{paths_text}", format::list(&moved_texts))
    };
    if let Some(failure) = flows.iter().find_map(|flow| flow.stats.failure.as_deref()) {
        text = format!("{text}, but {failure}");
    }
    // A program may pause on its own, so only the effect of an event is reported.
    let is_disrupted = flows.iter().any(|flow| !flow.stats.recoveries.is_empty());
    if is_disrupted { text + &recovery_or_stall_text(flows.iter().copied()) } else { text }
}

/// Describes the bytes that each path carried, for a run without a visible connection.
fn interface_bytes_text(run: &Summarizer<'_>) -> String {
    let path_texts = run.scenario.paths.iter().filter_map(|path| {
        let received_bytes = |end: usize| {
            let host = run.scenario.hosts.get(*path.between.get(end)?)?;
            let is_path_end = |i: &&Interface| i.host == host.name && i.interface == path.name;
            run.interfaces.iter().find(is_path_end).map(|interface| interface.rx_bytes)
        };
        let (up, down) = (received_bytes(1)?, received_bytes(0)?);
        let (up_text, down_text) = (format::bytes(up), format::bytes(down));
        (up + down > 0).then(|| format!("{up_text} up and {down_text} down over {}", path.name))
    });
    let path_texts: Vec<_> = path_texts.collect();
    if path_texts.is_empty() {
        return String::new();
    }
    format!("; the interfaces counted {}", path_texts.join(", "))
}

/// Describes the paths, for a run of `udping` alone.
fn datagrams_text(paths: &[PathStats]) -> String {
    let path_text = |path: &PathStats| {
        let median_rtt_text = path.round_trip.map_or_else(String::new, |times| {
            format!(", half of them within {}", format::time(Duration::from_nanos(times.p50_ns)))
        });
        let (answered, count) = (path.answered, path.count);
        let total_text = format::count(count, "datagram");
        format!("{answered} of {total_text} over {} came back{median_rtt_text}", path.path)
    };
    paths.iter().map(path_text).collect::<Vec<_>>().join("; ")
}

/// Describes the outcome of constant-rate datagrams in one direction.
fn constant_rate_text(flow: &MeasuredFlow) -> String {
    let direction_text = if flow.stats.direction == DataDirection::Down { "down" } else { "up" };
    let Some(stats) = &flow.stats.datagrams else {
        let failure = flow.stats.failure.as_deref().unwrap_or("nothing is known of them");
        return format!("datagrams {direction_text}: {failure}");
    };
    if let Some(call) = &stats.call {
        let text = call_text((direction_text, stats), call);
        return match &flow.stats.failure {
            Some(failure) => format!("{text}: {failure}"),
            None => text,
        };
    }
    let DatagramStats { sent, received, lost, jitter_ns, path, .. } = stats;
    let jitter = format::time(Duration::from_nanos(*jitter_ns));
    let mut text = format!("{received} of {sent} datagrams arrived {direction_text} over {path}");
    if *lost > 0 {
        let (share, run_length) = (format::share(stats.lost_share()), stats.longest_loss_run);
        text = format!("{text}, {share} were lost, {run_length} in a row at most");
    }
    match &flow.stats.failure {
        Some(failure) => format!("{text}: {failure}"),
        None => format!("{text}; jitter {jitter}"),
    }
}

/// Describes the quality of a call in one direction.
fn call_text((direction_text, stats): (&str, &DatagramStats), call: &CallStats) -> String {
    let share = |count: u64, total: u64| format::share(count as f64 / total.max(1) as f64);
    let path = &stats.path;
    let Some((score, rating)) = call.score.zip(call.rating) else {
        let (played, planned) = (call.played, format::count(call.planned, "frame"));
        return format!("{played} of {planned} {direction_text} over {path} were whole in time");
    };
    let (lost, late) = (share(call.lost, call.planned), share(call.late, call.planned));
    let delay = call.mouth_to_ear_ns.map_or_else(String::new, |delay| {
        format!(", {} from mouth to ear", format::time(Duration::from_nanos(delay)))
    });
    format!(
        "the call {direction_text} over {path} scores {score:.2} of 4.5 (R {rating:.0}){delay}, {lost} lost, \
         {late} late"
    )
}

/// Describes the reply delays of requests; concurrent transfers are only the load.
fn reply_delays_text(flows: &[&MeasuredFlow], paths_text: &str) -> String {
    let messages: Vec<_> = flows.iter().filter_map(|flow| flow.stats.messages.as_ref()).collect();
    let (count, answered) = messages
        .iter()
        .fold((0, 0), |(count, answered), m| (count + m.count, answered + m.answered));
    if count == 0 {
        let failure = flows.iter().find_map(|flow| flow.stats.failure.as_deref());
        return format!("asked for nothing: {}", failure.unwrap_or("unknown failure"));
    }
    let time_text = |ns| format::time(Duration::from_nanos(ns));
    // With two directions, each value is that of the worse one.
    let worst_text = |pick: fn(&DelayStats) -> u64| {
        time_text(messages.iter().map(|messages| pick(&messages.delay)).max().unwrap_or_default())
    };
    let mut text = format!(
        "answered {answered} of {}{paths_text}; half within {}, the slowest {}",
        format::count(count, "request"),
        worst_text(|delay| delay.p50_ns),
        worst_text(|delay| delay.max_ns)
    );
    if answered < count {
        text = format!("{text} or never");
    }
    if let Some(phases) = messages.iter().map(|m| &m.phases).find(|phases| !phases.is_empty()) {
        text = load_phases_text(phases, paths_text);
    }
    for video in messages.iter().filter_map(|messages| messages.video) {
        let stalls = match video.stalls {
            0 => "the video never stood still".to_owned(),
            1 => format!("the video stood still once, for {}", time_text(video.rebuffer_ns)),
            n => {
                format!("the video stood still {n} times, {} in all", time_text(video.rebuffer_ns))
            }
        };
        text = format!("{text}; {stalls}");
    }
    for page in messages.iter().filter_map(|messages| messages.page) {
        let load_text = page.load_ns.map_or("the page was never whole".to_owned(), |ns| {
            format!("the page was there after {}", time_text(ns))
        });
        text = format!("{text}; {load_text}");
    }
    let failed_load =
        flows.iter().find(|flow| flow.stats.messages.is_none() && !flow.stats.completed);
    match failed_load {
        Some(load) => format!("{text}; its load {}", transfer_text(load, "")),
        None => text,
    }
}

/// Describes the round trips without and with load.
fn load_phases_text(phases: &[LoadPhase], paths_text: &str) -> String {
    let times = phases.iter().map(|phase| {
        let name = match phase.load {
            Load::Idle => "idle",
            Load::Down => "with a load down",
            Load::Up => "up",
            Load::Both => "both ways",
        };
        let Some(delay) = phase.delay else { return format!("unknown {name}") };
        let median = format::time(Duration::from_nanos(delay.p50_ns));
        let missing = phase.count.saturating_sub(phase.answered);
        let missing = if missing > 0 { format!(" ({missing} unanswered)") } else { String::new() };
        format!("{median} {name}{missing}")
    });
    let times: Vec<_> = times.collect();
    let rpms = phases.iter().filter_map(|phase| phase.round_trips_per_minute);
    let min_rpm = rpms.fold(f64::INFINITY, f64::min);
    let text = format!("answered half of the requests within {}{paths_text}", times.join(", "));
    if min_rpm.is_finite() {
        format!("{text}; {min_rpm:.0} round trips a minute at worst")
    } else {
        text
    }
}

/// Returns the event after which nothing arrived except data in flight.
fn stop_cause(flow: &MeasuredFlow, last_arrival: Instant) -> Option<&str> {
    let is_near = |at: Instant| {
        at <= last_arrival + Duration::from_millis(100) && last_arrival <= at + STOPPED_AFTER
    };
    let disruption = flow.disruptions.iter().rev().find(|disruption| is_near(disruption.at));
    disruption.map(|disruption| disruption.happened.as_str())
}

fn several_transfers_text(transport: &str, flows: &[&MeasuredFlow], paths_text: &str) -> String {
    let failed_flows: Vec<_> = flows.iter().filter(|flow| !flow.stats.completed).collect();
    let count = flows.len();
    let Some(first_failed) = failed_flows.first() else {
        let bytes = flows.iter().map(|flow| flow.stats.bytes).fold(0, u64::saturating_add);
        let rate = flows.iter().map(|flow| flow.stats.goodput_bps).sum();
        let (amount, speed) = (format::bytes(bytes), format::rate(rate));
        let effect_text = recovery_or_stall_text(flows.iter().copied());
        return format!(
            "{transport} delivered {amount} at {speed} in {count} transfers{paths_text}{effect_text}"
        );
    };
    let direction = format!("{:?}", first_failed.stats.direction).to_lowercase();
    let (number, failure_text) = (first_failed.stats.flow, transfer_text(first_failed, ""));
    let failed_count = failed_flows.len();
    format!(
        "{transport}: {failed_count} of {count} transfers did not complete: flow {number} ({direction}) {failure_text}"
    )
}

/// Describes the effect of the worst event; without events, the longest stall if there was one.
fn recovery_or_stall_text<'a>(flows: impl IntoIterator<Item = &'a MeasuredFlow> + Clone) -> String {
    let recoveries = || flows.clone().into_iter().flat_map(|flow| &flow.stats.recoveries);
    let recovery_times = |recovery: &&Recovery| {
        let or_never = |time: Option<u64>| time.unwrap_or(u64::MAX);
        (or_never(recovery.last_stall_end_ns), or_never(recovery.t90_ns))
    };
    if let Some(worst) = recoveries().max_by_key(recovery_times) {
        let is_last = recoveries().all(|other| other.event_ns <= worst.event_ns);
        return recovery_text(worst, if is_last { "never" } else { "not before the next event" });
    }
    let stalls = flows.into_iter().map(|flow| flow.stats.stall);
    match stalls.filter(|stall| stall.count > 0).max_by_key(|stall| stall.longest_ns) {
        Some(stall) => {
            format!("; longest stall {}", format::seconds(Duration::from_nanos(stall.longest_ns)))
        }
        None => String::new(),
    }
}

/// Describes a recovery, starting with the time until delivery was free of gaps. Goodput may be
/// back at 90 % on average while later seconds are still empty.
fn recovery_text(recovery: &Recovery, never_text: &str) -> String {
    let (event, time_text) = (&recovery.event, |ns| format::seconds(Duration::from_nanos(ns)));
    let reference = format::rate(recovery.reference_bps);
    // The reference is the smaller of two rates: goodput before the event, and capacity after it.
    let reference = match recovery.capacity_bps {
        Some(capacity) if capacity <= recovery.reference_bps => {
            format!("the {reference} that the remaining paths carry")
        }
        _ => format!("the {reference} before the event"),
    };
    match (recovery.last_stall_end_ns, recovery.t90_ns) {
        (None, _) => format!("; stall-free again {never_text} after `{event}`"),
        (Some(0), Some(0)) => format!("; `{event}` did not interrupt it"),
        (Some(0), None) => format!("; after `{event}` {never_text} back to 90 % of {reference}"),
        (Some(0), Some(t90)) => {
            format!("; back to 90 % {} after `{event}`, without gaps", time_text(t90))
        }
        (Some(stall_end), None) => format!(
            "; stall-free again {} after `{event}`, but {never_text} back to 90 % of {reference}",
            time_text(stall_end)
        ),
        (Some(stall_end), Some(t90)) => {
            let differ = stall_end.abs_diff(t90) > MAX_OMITTED_DIFFERENCE.as_nanos() as u64;
            let t90_text = if differ {
                format!(" (back to 90 % in {})", time_text(t90))
            } else {
                String::new()
            };
            format!("; stall-free again {} after `{event}`{t90_text}", time_text(stall_end))
        }
    }
}
