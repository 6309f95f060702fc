//! Headline of a report: one or two sentences for each world, never about two worlds at once.

use std::collections::BTreeSet;

use towpath_result::format;
use towpath_result::format::number;
use towpath_result::format::text::{capital, clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{EmulatorTiming, FlowSummary, Record, Recovery};
use towpath_scenario::World;

use super::{events, is_event, messages, shares};
use crate::group::{FlowKey, MedianRange, RunGroup, flow_keys};

/// Returns one headline for each world that has one.
pub(crate) fn headlines(groups: &[RunGroup<'_>]) -> Vec<String> {
    let worlds = worlds(groups);
    let several = worlds.len() > 1;
    let headline_of = |world: World| {
        let world_groups: Vec<RunGroup<'_>> =
            groups.iter().filter(|group| world_of(group) == Some(world)).cloned().collect();
        let text = headline(&world_groups)?;
        Some(if several { format!("In {world}: {}", uncapitalize(&text)) } else { text })
    };
    worlds.into_iter().filter_map(headline_of).collect()
}

/// Makes the first letter lower case, as after a colon.
fn uncapitalize(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

fn world_of(group: &RunGroup<'_>) -> Option<World> {
    group.runs.first().map(|run| run.meta.world)
}

/// Returns every world, in order of appearance.
fn worlds(groups: &[RunGroup<'_>]) -> Vec<World> {
    let mut worlds = Vec::new();
    for world in groups.iter().filter_map(world_of) {
        if !worlds.contains(&world) {
            worlds.push(world);
        }
    }
    worlds
}

/// Summarises these groups of one world.
fn headline(groups: &[RunGroup<'_>]) -> Option<String> {
    let special = messages::headline(groups).or_else(|| shares::headline(groups));
    let mut sentences: Vec<String> = Vec::new();
    match special {
        Some(text) => sentences.push(text),
        None => {
            if let [key] = flow_keys(groups)[..]
                && groups.len() > 1
            {
                sentences.extend(gaps(groups, key));
                sentences.extend(goodput(groups, key));
            }
        }
    }
    sentences.extend(machine_limit(groups));
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Maximum number of events with a sentence in the headline.
const MAX_EVENTS: usize = 2;

/// Returns a sentence for the worst event of each group, with its effect on all groups.
fn gaps(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<String> {
    let all_events = events(groups, key);
    let mut worst: Vec<(f64, &(u64, String))> = Vec::new();
    for group in groups {
        let times = all_events.iter().filter_map(|event| Some((gap(group, key, event)?, event)));
        let Some(longest) = times.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|gap| gap.0 > 0.0)
        else {
            continue;
        };
        match worst.iter_mut().find(|(_, event)| *event == longest.1) {
            Some((max_ns, _)) => *max_ns = max_ns.max(longest.0),
            None => worst.push(longest),
        }
    }
    worst.sort_by(|a, b| b.0.total_cmp(&a.0));
    worst.truncate(MAX_EVENTS);
    worst.sort_by_key(|(_, event)| event.0);
    worst.into_iter().map(|(_, event)| gap_sentence(groups, key, event)).collect()
}

/// Returns a group's median time from an event to the end of its last gap, in nanoseconds.
///
/// Infinite if the gaps never ended.
fn gap(group: &RunGroup<'_>, key: FlowKey, event: &(u64, String)) -> Option<f64> {
    let time =
        |recovery: &Recovery| recovery.last_stall_end_ns.map_or(f64::INFINITY, |ns| ns as f64);
    let flows = group.flows(key);
    let time_of_flow = |flow: &&FlowSummary| {
        flow.recoveries.iter().find(|recovery| is_event(recovery, event)).map(time)
    };
    let mut times: Vec<f64> = flows.iter().filter_map(time_of_flow).collect();
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

/// Returns a sentence such as `After wifi down: mpquic stall-free again in 1.58 s, mptcp in 3.02
/// s; tcp and quic never.`
fn gap_sentence(groups: &[RunGroup<'_>], key: FlowKey, event: &(u64, String)) -> String {
    let mut ended: Vec<(f64, &str)> = Vec::new();
    let mut never: Vec<&str> = Vec::new();
    for group in groups {
        match gap(group, key, event) {
            Some(median) if median.is_finite() => ended.push((median, &group.label)),
            Some(_) => never.push(&group.label),
            None => {}
        }
    }
    ended.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut is_first = true;
    let texts = ended.iter().map(|(ns, name)| {
        if *ns <= 0.0 {
            return format!("{name} had no gap");
        }
        let suffix = if std::mem::take(&mut is_first) { " stall-free again" } else { "" };
        format!("{name}{suffix} in {}", number::time(*ns))
    });
    let mut parts = texts.collect::<Vec<_>>().join(", ");
    if !never.is_empty() {
        let names = format::list(&never);
        parts = if ended.is_empty() {
            format!("{names} never stall-free again")
        } else {
            format!("{parts}; {names} never")
        };
    }
    format!("After {}: {parts}.", cut(&clean(&event.1), 60))
}

/// Returns a sentence about the fastest groups, such as
/// `Goodput: mpquic 27.1 Mbit/s, mptcp 25.9 Mbit/s, tcp 11.0 Mbit/s.`
fn goodput(groups: &[RunGroup<'_>], key: FlowKey) -> Option<String> {
    let mut goodputs: Vec<(f64, &str)> = Vec::new();
    for group in groups {
        let flows = group.flows(key);
        let goodput = MedianRange::of(flows.iter().map(|flow| flow.goodput_bps))?;
        goodputs.push((goodput.median, &group.label));
    }
    goodputs.sort_by(|a, b| b.0.total_cmp(&a.0));
    let [(best, winner), (second, name), rest @ ..] = goodputs.as_slice() else { return None };
    if *second <= 0.0 {
        return None;
    }
    let goodput_text = |(bps, name): &(f64, &str)| format!("{name} {}", number::rate(*bps));
    let ratio = best / second;
    if ratio >= 1.05 && rest.is_empty() {
        let (best, second) = (number::rate(*best), number::rate(*second));
        return Some(format!(
            "Goodput: {winner} {best}, {name} {second}: {ratio:.1} times as much."
        ));
    }
    let texts: Vec<String> = goodputs.iter().take(4).map(goodput_text).collect();
    let omitted = goodputs.len() - texts.len();
    let suffix = if omitted > 0 { format!(" and {omitted} more below") } else { String::new() };
    Some(format!("Goodput: {}{suffix}.", texts.join(", ")))
}

/// Returns a sentence if the machine, and not the network, was the limit.
fn machine_limit(groups: &[RunGroup<'_>]) -> Option<String> {
    let runs = || groups.iter().flat_map(|group| group.runs.iter().copied());
    let total = runs().count();
    let mut reasons: BTreeSet<String> = BTreeSet::new();
    let mut count = 0;
    for timing in runs().filter_map(unreliable_timing) {
        count += 1;
        reasons.extend(timing.reason.as_deref().map(|reason| cut(&clean(reason), 90)));
    }
    let reason = match reasons.first() {
        Some(only) if reasons.len() == 1 => format!(": {only}"),
        Some(one) => format!(": {one}, and similar reasons"),
        None => String::new(),
    };
    let runs_text = match (count, total) {
        (0, _) => return None,
        (1, 1) => "this run".to_owned(),
        (2, 2) => "both runs".to_owned(),
        (limited, total) if limited == total => format!("all {total} runs"),
        (limited, total) => format!("{limited} of {total} runs"),
    };
    Some(capital(&format!("the timing of {runs_text} is unreliable{reason}.")))
}

/// Returns the emulator timing of a run if it was too inexact.
fn unreliable_timing(run: &StoredRun) -> Option<&EmulatorTiming> {
    let mut timings = run.records.iter().filter_map(|record| {
        let Record::Timing(timing) = record else { return None };
        Some(timing)
    });
    timings.find(|timing| timing.unreliable)
}
