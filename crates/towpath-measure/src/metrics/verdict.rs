//! One plain sentence about a run.

use std::time::Duration;

use towpath_net::Instant;

use super::summary::{Measured, Summarizer};
use crate::format;
use crate::result::{Checked, Delays, PathFigures, Recovery};
use crate::traffic::Plan;

/// Silence of this length at the end means that a flow stopped.
const SILENCE: Duration = Duration::from_secs(1);

/// Gaps that end this much after the recovery are worth a word.
const LATER: Duration = Duration::from_millis(300);

pub(super) fn verdict(run: &Summarizer<'_>, expectations: &[Checked]) -> String {
    let who = who(run);
    let over = over(&run.multipath.paths_used);
    let mut text = match run.flows.as_slice() {
        [] if run.paths.is_empty() => format!("{who} ran no flow"),
        [] => datagrams(&run.paths),
        [only] => format!("{who} {}", one(only, &over)),
        flows if flows.iter().any(|flow| flow.figures.messages.is_some()) => {
            format!("{who} {}", answers(flows, &over))
        }
        flows => several(&who, flows, &over),
    };
    let missed = expectations.iter().filter(|checked| checked.held == Some(false)).count();
    let unmeasured = expectations.iter().filter(|checked| checked.held.is_none()).count();
    let all = expectations.len();
    for (count, what) in [(missed, "missed"), (unmeasured, "could not be checked")] {
        if count > 0 {
            text = format!("{text}; {count} of {all} expectations {what}");
        }
    }
    text
}

/// The transport, with its fallback if it is not what was asked for.
fn who(run: &Summarizer<'_>) -> String {
    let proof = &run.multipath;
    let delivered = run.flows.iter().any(|flow| flow.figures.bytes > 0);
    match (&proof.fallback, proof.requested && !proof.used && delivered) {
        (Some(reason), true) => format!("{} (not used: {reason})", run.transport),
        (None, true) => format!("{} (not used)", run.transport),
        (_, false) => run.transport.to_string(),
    }
}

fn over(paths: &[String]) -> String {
    if paths.is_empty() { String::new() } else { format!(" over {}", format::list(paths)) }
}

fn one(flow: &Measured, over: &str) -> String {
    let figures = &flow.figures;
    let (amount, speed) = (format::bytes(figures.bytes), format::rate(figures.goodput_bps));
    let time = format::seconds(Duration::from_nanos(figures.duration_ns));
    if figures.completed {
        let delivered = match flow.plan {
            Plan::Command(_) if figures.bytes == 0 => "ran the command".into(),
            Plan::Sized { .. } => format!("delivered {amount} in {time} ({speed}){over}"),
            Plan::Timed(_) | Plan::Messages(_) | Plan::Datagrams(_) | Plan::Command(_) => {
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
    if silence >= SILENCE {
        let at = format::seconds(last.saturating_since(Instant::ZERO));
        let cause = cause(flow, last).map(|cause| format!(" when {cause}")).unwrap_or_default();
        let silence = format::seconds(silence);
        return format!(
            "stopped at {at}{cause}: {amount} delivered, nothing for the last {silence}"
        );
    }
    match flow.plan {
        Plan::Sized { bytes, limit: _ } => {
            let all = format::bytes(bytes);
            format!("delivered only {amount} of {all} in {time} ({speed}){over}")
        }
        Plan::Timed(_) | Plan::Messages(_) | Plan::Datagrams(_) | Plan::Command(_) => {
            format!("delivered {amount} at {speed}{over}, but did not complete: {failure}")
        }
    }
}

/// What the paths are like, where nothing else was sent.
fn datagrams(paths: &[PathFigures]) -> String {
    let of = |path: &PathFigures| {
        let half = path.round_trip.map_or_else(String::new, |times| {
            format!(", half of them within {}", format::time(Duration::from_nanos(times.p50_ns)))
        });
        let (answered, count) = (path.answered, path.count);
        format!("{answered} of {count} datagrams over {} came back{half}", path.path)
    };
    paths.iter().map(of).collect::<Vec<_>>().join("; ")
}

/// How late the answers were; transfers beside them are only the load.
fn answers(flows: &[Measured], over: &str) -> String {
    let all: Vec<_> = flows.iter().filter_map(|flow| flow.figures.messages.as_ref()).collect();
    let (count, answered) =
        all.iter().fold((0, 0), |(count, answered), m| (count + m.count, answered + m.answered));
    if count == 0 {
        let failure = flows.iter().find_map(|flow| flow.figures.failure.as_deref());
        return format!("asked for nothing: {}", failure.unwrap_or("unknown failure"));
    }
    let time = |ns| format::time(Duration::from_nanos(ns));
    // Of two directions each figure is that of the worse one.
    let worst = |pick: fn(&Delays) -> u64| {
        time(all.iter().map(|messages| pick(&messages.delay)).max().unwrap_or_default())
    };
    let mut text = format!(
        "answered {answered} of {count} requests{over}; half within {}, the slowest {}",
        worst(|delay| delay.p50_ns),
        worst(|delay| delay.max_ns)
    );
    if answered < count {
        text = format!("{text} or never");
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
    let failed =
        flows.iter().find(|flow| flow.figures.messages.is_none() && !flow.figures.completed);
    match failed {
        Some(load) => format!("{text}; the load beside it {}", one(load, "")),
        None => text,
    }
}

/// The event after which nothing arrived but what was in flight.
fn cause(flow: &Measured, last: Instant) -> Option<&str> {
    let near = |at: Instant| at <= last + Duration::from_millis(100) && last <= at + SILENCE;
    let found = flow.disruptions.iter().rev().find(|disruption| near(disruption.at));
    found.map(|disruption| disruption.happened.as_str())
}

fn several(who: &str, flows: &[Measured], over: &str) -> String {
    let failed: Vec<_> = flows.iter().filter(|flow| !flow.figures.completed).collect();
    let count = flows.len();
    let Some(first) = failed.first() else {
        let bytes = flows.iter().map(|flow| flow.figures.bytes).fold(0, u64::saturating_add);
        let rate = flows.iter().map(|flow| flow.figures.goodput_bps).sum();
        let (amount, speed) = (format::bytes(bytes), format::rate(rate));
        let after = aftermath(flows);
        return format!("{who} delivered {amount} at {speed} in {count} transfers{over}{after}");
    };
    let direction = format!("{:?}", first.figures.direction).to_lowercase();
    let (number, what) = (first.figures.flow, one(first, ""));
    let failed = failed.len();
    format!(
        "{who}: {failed} of {count} transfers did not complete: flow {number} ({direction}) {what}"
    )
}

/// What the worst event did; without events, the longest stall if there was one.
fn aftermath<'a>(flows: impl IntoIterator<Item = &'a Measured> + Clone) -> String {
    let recoveries = flows.clone().into_iter().flat_map(|flow| &flow.figures.recoveries);
    let never_last = |recovery: &&Recovery| recovery.t90_ns.unwrap_or(u64::MAX);
    if let Some(worst) = recoveries.max_by_key(never_last) {
        let event = &worst.event;
        return match worst.t90_ns.map(Duration::from_nanos) {
            None => {
                let reference = format::rate(worst.reference_bps);
                format!("; after `{event}` it never was back to 90 % of {reference}")
            }
            Some(Duration::ZERO) => format!("; `{event}` did not interrupt it"),
            Some(t90) => {
                let back = format::seconds(t90);
                let later =
                    worst.smooth_ns.map(Duration::from_nanos).filter(|end| *end > t90 + LATER);
                let gaps =
                    later.map(|end| format!(", without gaps after {}", format::seconds(end)));
                let gaps = gaps.unwrap_or_default();
                format!("; after `{event}` it was back to 90 % in {back}{gaps}")
            }
        };
    }
    let stalls = flows.into_iter().map(|flow| flow.figures.stall);
    match stalls.filter(|stall| stall.count > 0).max_by_key(|stall| stall.longest_ns) {
        Some(stall) => {
            format!("; longest stall {}", format::seconds(Duration::from_nanos(stall.longest_ns)))
        }
        None => String::new(),
    }
}
