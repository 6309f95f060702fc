//! Verdict on a run, in one plain sentence.

use std::time::Duration;

use towpath_net::Instant;

use super::summary::{MeasuredFlow, Summarizer};
use crate::format;
use crate::result::{
    CallStats, DatagramStats, DelayStats, ExpectationResult, FlowSummary, Interface, Load,
    LoadPhase, PathStats, Recovery,
};
use crate::scenario::DataDirection;
use crate::traffic::FlowGoal;

/// Length of silence at the end after which a flow counts as stopped.
const STOPPED_AFTER: Duration = Duration::from_secs(1);

/// Smallest difference between the two recovery times at which both are reported.
const LATE_GAP: Duration = Duration::from_millis(300);

pub(super) fn verdict(run: &Summarizer<'_>, expectations: &[ExpectationResult]) -> String {
    let who = transport_text(run);
    let over = over_paths(&run.multipath.paths_used);
    let (constant_rate, others): (Vec<&MeasuredFlow>, Vec<&MeasuredFlow>) =
        run.flows.iter().partition(|flow| matches!(flow.plan, FlowGoal::ConstantRate(_)));
    let mut text = match others.as_slice() {
        [] if run.paths.is_empty() && constant_rate.is_empty() => format!("{who} ran no flow"),
        [] if run.paths.is_empty() => String::new(),
        [] => datagrams(&run.paths),
        flows if of_one_command(flows) => format!("{who} {}", command(run, flows, &over)),
        [only] => format!("{who} {}", transfer_text(only, &over)),
        flows if flows.iter().any(|flow| flow.stats.messages.is_some()) => {
            format!("{who} {}", reply_delays(flows, &over))
        }
        flows => several_transfers_text(&who, flows, &over),
    };
    for sentence in constant_rate.into_iter().map(at_constant_rate) {
        text = if text.is_empty() { sentence } else { format!("{text}; {sentence}") };
    }
    let missed = expectations.iter().filter(|checked| checked.passed == Some(false)).count();
    let unmeasured = expectations.iter().filter(|checked| checked.passed.is_none()).count();
    let all = expectations.len();
    for (count, what) in [(missed, "missed"), (unmeasured, "could not be checked")] {
        match (count, all) {
            (0, _) => {}
            (_, 1) => text = format!("{text}; the expectation {}", single_outcome(what)),
            (count, all) => text = format!("{text}; {count} of {all} expectations {what}"),
        }
    }
    text
}

/// Returns the outcome of a single expectation as text.
fn single_outcome(what: &str) -> &str {
    if what == "missed" { "was missed" } else { what }
}

/// Returns the transport, with the fallback if it differs from the requested one.
fn transport_text(run: &Summarizer<'_>) -> String {
    let proof = &run.multipath;
    let carried = |flow: &MeasuredFlow| !matches!(flow.plan, FlowGoal::ConstantRate(_));
    let delivered = run.flows.iter().any(|flow| carried(flow) && flow.stats.bytes > 0);
    match (&proof.fallback, proof.requested && !proof.used && delivered) {
        (Some(reason), true) => format!("{} (not used: {reason})", run.transport),
        (None, true) => format!("{} (not used)", run.transport),
        (_, false) => run.transport.to_string(),
    }
}

fn over_paths(paths: &[String]) -> String {
    if paths.is_empty() { String::new() } else { format!(" over {}", format::list(paths)) }
}

fn transfer_text(flow: &MeasuredFlow, over: &str) -> String {
    let figures = &flow.stats;
    let (amount, speed) = (format::bytes(figures.bytes), format::rate(figures.goodput_bps));
    let time = format::seconds(Duration::from_nanos(figures.duration_ns));
    if figures.completed {
        let delivered = match flow.plan {
            FlowGoal::Sized { .. } => format!("delivered {amount} in {time} ({speed}){over}"),
            FlowGoal::Timed(_)
            | FlowGoal::Messages(_)
            | FlowGoal::Datagrams(_)
            | FlowGoal::ConstantRate(_)
            | FlowGoal::Command(_) => {
                format!("delivered {amount} at {speed}{over}")
            }
        };
        return delivered + &aftermath([flow]);
    }
    let failure = figures.failure.as_deref().unwrap_or("unknown failure");
    let Some(last) = flow.last else {
        let why = if failure == "nothing arrived" { String::new() } else { format!(": {failure}") };
        return format!("delivered nothing{why}");
    };
    let silence = flow.end.saturating_since(last);
    if silence >= STOPPED_AFTER {
        let at = format::seconds(last.saturating_since(Instant::ZERO));
        let cause = cause(flow, last).map(|cause| format!(" when {cause}")).unwrap_or_default();
        let silence = format::seconds(silence);
        return format!(
            "stopped at {at}{cause}: {amount} delivered, nothing for the last {silence}"
        );
    }
    match flow.plan {
        FlowGoal::Sized { bytes, limit: _ } => {
            let all = format::bytes(bytes);
            format!("delivered only {amount} of {all} in {time} ({speed}){over}")
        }
        FlowGoal::Timed(_)
        | FlowGoal::Messages(_)
        | FlowGoal::Datagrams(_)
        | FlowGoal::ConstantRate(_)
        | FlowGoal::Command(_) => {
            format!("delivered {amount} at {speed}{over}, but did not complete: {failure}")
        }
    }
}

fn of_one_command(flows: &[&MeasuredFlow]) -> bool {
    let first = flows.first().map(|flow| flow.stats.flow);
    let own = |flow: &&MeasuredFlow| matches!(flow.plan, FlowGoal::Command(_));
    flows.iter().all(|flow| own(flow) && Some(flow.stats.flow) == first)
}

/// Describes the data moved by a command's connections. A direction that carried only control data
/// is omitted.
fn command(run: &Summarizer<'_>, flows: &[&MeasuredFlow], over: &str) -> String {
    let most = flows.iter().map(|flow| flow.stats.bytes).max().unwrap_or_default();
    let shown = flows.iter().filter(|flow| flow.stats.bytes > most / 100);
    let moved: Vec<_> = shown
        .map(|flow| {
            let FlowSummary { bytes, goodput_bps, direction, .. } = &flow.stats;
            let direction_text = if *direction == DataDirection::Down { "down" } else { "up" };
            format!("{} {direction_text} at {}", format::bytes(*bytes), format::rate(*goodput_bps))
        })
        .collect();
    let mut text = if moved.is_empty() {
        format!("ran the command{}", interface_bytes_text(run))
    } else {
        format!("moved {}{over}", format::list(&moved))
    };
    if let Some(failure) = flows.iter().find_map(|flow| flow.stats.failure.as_deref()) {
        text = format!("{text}, but {failure}");
    }
    // A program may pause on its own, so only the effect of an event is reported.
    let hit = flows.iter().any(|flow| !flow.stats.recoveries.is_empty());
    if hit { text + &aftermath(flows.iter().copied()) } else { text }
}

/// Describes the bytes that each path carried, for a run without a visible connection.
fn interface_bytes_text(run: &Summarizer<'_>) -> String {
    let carried = run.scenario.paths.iter().filter_map(|path| {
        let at = |end: usize| {
            let host = run.scenario.hosts.get(*path.between.get(end)?)?;
            let own = |i: &&Interface| i.host == host.name && i.interface == path.name;
            run.interfaces.iter().find(own).map(|interface| interface.rx_bytes)
        };
        let (up, down) = (at(1)?, at(0)?);
        let (sent, got) = (format::bytes(up), format::bytes(down));
        (up + down > 0).then(|| format!("{sent} up and {got} down over {}", path.name))
    });
    let carried: Vec<_> = carried.collect();
    if carried.is_empty() {
        return String::new();
    }
    format!("; the interfaces counted {}", carried.join(", "))
}

/// Describes the paths, for a run of `udping` alone.
fn datagrams(paths: &[PathStats]) -> String {
    let of = |path: &PathStats| {
        let median_rtt_text = path.round_trip.map_or_else(String::new, |times| {
            format!(", half of them within {}", format::time(Duration::from_nanos(times.p50_ns)))
        });
        let (answered, count) = (path.answered, path.count);
        let all = format::count(count, "datagram");
        format!("{answered} of {all} over {} came back{median_rtt_text}", path.path)
    };
    paths.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// Describes the outcome of constant-rate datagrams in one direction.
fn at_constant_rate(flow: &MeasuredFlow) -> String {
    let direction_text = if flow.stats.direction == DataDirection::Down { "down" } else { "up" };
    let Some(figures) = &flow.stats.datagrams else {
        let failure = flow.stats.failure.as_deref().unwrap_or("nothing is known of them");
        return format!("datagrams {direction_text}: {failure}");
    };
    if let Some(call) = &figures.call {
        let text = call_text((direction_text, figures), call);
        return match &flow.stats.failure {
            Some(failure) => format!("{text}: {failure}"),
            None => text,
        };
    }
    let DatagramStats { sent, received, lost, jitter_ns, path, .. } = figures;
    let jitter = format::time(Duration::from_nanos(*jitter_ns));
    let mut text = format!("{received} of {sent} datagrams arrived {direction_text} over {path}");
    if *lost > 0 {
        let (share, row) = (format::share(figures.lost_share()), figures.longest_loss_run);
        text = format!("{text}, {share} were lost, {row} in a row at most");
    }
    match &flow.stats.failure {
        Some(failure) => format!("{text}: {failure}"),
        None => format!("{text}; jitter {jitter}"),
    }
}

/// Describes the quality of a call in one direction.
fn call_text((direction_text, figures): (&str, &DatagramStats), call: &CallStats) -> String {
    let share = |count: u64, of: u64| format::share(count as f64 / of.max(1) as f64);
    let path = &figures.path;
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
fn reply_delays(flows: &[&MeasuredFlow], over: &str) -> String {
    let all: Vec<_> = flows.iter().filter_map(|flow| flow.stats.messages.as_ref()).collect();
    let (count, answered) =
        all.iter().fold((0, 0), |(count, answered), m| (count + m.count, answered + m.answered));
    if count == 0 {
        let failure = flows.iter().find_map(|flow| flow.stats.failure.as_deref());
        return format!("asked for nothing: {}", failure.unwrap_or("unknown failure"));
    }
    let time = |ns| format::time(Duration::from_nanos(ns));
    // With two directions, each value is that of the worse one.
    let worst = |pick: fn(&DelayStats) -> u64| {
        time(all.iter().map(|messages| pick(&messages.delay)).max().unwrap_or_default())
    };
    let mut text = format!(
        "answered {answered} of {}{over}; half within {}, the slowest {}",
        format::count(count, "request"),
        worst(|delay| delay.p50_ns),
        worst(|delay| delay.max_ns)
    );
    if answered < count {
        text = format!("{text} or never");
    }
    if let Some(phases) = all.iter().map(|m| &m.phases).find(|phases| !phases.is_empty()) {
        text = under_load(phases, over);
    }
    for video in all.iter().filter_map(|messages| messages.video) {
        let stalls = match video.stalls {
            0 => "the video never stood still".to_owned(),
            1 => format!("the video stood still once, for {}", time(video.rebuffer_ns)),
            n => format!("the video stood still {n} times, {} in all", time(video.rebuffer_ns)),
        };
        text = format!("{text}; {stalls}");
    }
    for page in all.iter().filter_map(|messages| messages.page) {
        let load = page.load_ns.map_or("the page was never whole".to_owned(), |ns| {
            format!("the page was there after {}", time(ns))
        });
        text = format!("{text}; {load}");
    }
    let failed = flows.iter().find(|flow| flow.stats.messages.is_none() && !flow.stats.completed);
    match failed {
        Some(load) => format!("{text}; the load beside it {}", transfer_text(load, "")),
        None => text,
    }
}

/// Describes the round trips without and with load.
fn under_load(phases: &[LoadPhase], over: &str) -> String {
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
    let text = format!("answered half of the requests within {}{over}", times.join(", "));
    if min_rpm.is_finite() {
        format!("{text}; {min_rpm:.0} round trips a minute at worst")
    } else {
        text
    }
}

/// Returns the event after which nothing arrived except data in flight.
fn cause(flow: &MeasuredFlow, last: Instant) -> Option<&str> {
    let near = |at: Instant| at <= last + Duration::from_millis(100) && last <= at + STOPPED_AFTER;
    let found = flow.disruptions.iter().rev().find(|disruption| near(disruption.at));
    found.map(|disruption| disruption.happened.as_str())
}

fn several_transfers_text(who: &str, flows: &[&MeasuredFlow], over: &str) -> String {
    let failed: Vec<_> = flows.iter().filter(|flow| !flow.stats.completed).collect();
    let count = flows.len();
    let Some(first) = failed.first() else {
        let bytes = flows.iter().map(|flow| flow.stats.bytes).fold(0, u64::saturating_add);
        let rate = flows.iter().map(|flow| flow.stats.goodput_bps).sum();
        let (amount, speed) = (format::bytes(bytes), format::rate(rate));
        let after = aftermath(flows.iter().copied());
        return format!("{who} delivered {amount} at {speed} in {count} transfers{over}{after}");
    };
    let direction = format!("{:?}", first.stats.direction).to_lowercase();
    let (number, what) = (first.stats.flow, transfer_text(first, ""));
    let failed = failed.len();
    format!(
        "{who}: {failed} of {count} transfers did not complete: flow {number} ({direction}) {what}"
    )
}

/// Describes the effect of the worst event; without events, the longest stall if there was one.
fn aftermath<'a>(flows: impl IntoIterator<Item = &'a MeasuredFlow> + Clone) -> String {
    let recoveries = || flows.clone().into_iter().flat_map(|flow| &flow.stats.recoveries);
    let never_last = |recovery: &&Recovery| {
        let never = |time: Option<u64>| time.unwrap_or(u64::MAX);
        (never(recovery.last_stall_end_ns), never(recovery.t90_ns))
    };
    if let Some(worst) = recoveries().max_by_key(never_last) {
        let last = recoveries().all(|other| other.event_ns <= worst.event_ns);
        return recovery_text(worst, if last { "never" } else { "not before the next event" });
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
fn recovery_text(worst: &Recovery, never: &str) -> String {
    let (event, end) = (&worst.event, |ns| format::seconds(Duration::from_nanos(ns)));
    let reference = format::rate(worst.reference_bps);
    let reference = match worst.capacity_bps {
        Some(capacity) if capacity <= worst.reference_bps => {
            format!("the {reference} that the remaining paths carry")
        }
        _ => format!("the {reference} before"),
    };
    match (worst.last_stall_end_ns, worst.t90_ns) {
        (None, _) => format!("; without gaps again {never} after `{event}`"),
        (Some(0), Some(0)) => format!("; `{event}` did not interrupt it"),
        (Some(0), None) => format!("; after `{event}` {never} back to 90 % of {reference}"),
        (Some(0), Some(t90)) => {
            format!("; back to 90 % {} after `{event}`, without gaps", end(t90))
        }
        (Some(smooth), None) => format!(
            "; without gaps again {} after `{event}`, but {never} back to 90 % of {reference}",
            end(smooth)
        ),
        (Some(smooth), Some(t90)) => {
            let apart = smooth.abs_diff(t90) > LATE_GAP.as_nanos() as u64;
            let back =
                if apart { format!(" (back to 90 % in {})", end(t90)) } else { String::new() };
            format!("; without gaps again {} after `{event}`{back}", end(smooth))
        }
    }
}
