//! Parses `[[flows]]` and `[run]`.

use std::time::Duration;

use super::hosts::congestion_control_name;
use super::link::integer;
use super::pattern::pattern;
use super::{MAX_RUN, NameTable, ReadContext, UNKNOWN_ENDS, default_run, stack};
use crate::Load;
use crate::flow_plan::request_directions;
use crate::keys::{FLOW, RUN};
use crate::model::{DataDirection, Family, Flow, Path, RunPlan, Transport, World};
use crate::pattern::{Pattern, Schedule, Udping};
use crate::section::{Section, Value};
use crate::stack::StackOverrides;

/// Minimum MTU of IPv6 (RFC 8200 §5); Linux disables IPv6 on interfaces below it.
const MIN_V6_MTU_BYTES: u32 = 1_280;
/// Maximum number of flows.
const MAX_FLOWS: usize = 256;
/// Allowed interval of the time series.
const SAMPLE_INTERVAL_RANGE: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(1);
pub(super) fn flows(
    value: &Value<'_>,
    names: &NameTable,
    paths: &[Path],
    context: &ReadContext<'_>,
) -> Vec<Flow> {
    let list = super::sections(value, &FLOW, "the flow", "expected `[[flows]]`");
    if list.len() > MAX_FLOWS {
        value.fail("a scenario has at most 256 flows", "one `iperf` flow can have many streams");
        return Vec::new();
    }
    let parse_flow = |mut section: Section<'_>| {
        let flow = flow(&mut section, names, paths, context);
        let load = load(&mut section, flow.as_ref());
        section.finish();
        let phases = flow.as_ref().map(companion_flows).unwrap_or_default();
        flow.into_iter().chain(load).chain(phases)
    };
    list.into_iter().flat_map(parse_flow).collect()
}

/// Parses `load`: a bulk flow parallel to this one, for its planned duration.
fn load(section: &mut Section<'_>, parent: Option<&Flow>) -> Option<Flow> {
    let has_own_load = |pattern: &Pattern| matches!(pattern, Pattern::Exchange(exchange) if exchange.phases.is_some());
    let accepts_load = |pattern: &Pattern| {
        (!request_directions(pattern).is_empty() && !has_own_load(pattern))
            || is_transport_independent(pattern)
    };
    let flow = parent.filter(|flow| accepts_load(&flow.pattern));
    // The key applies only to patterns with requests or datagrams.
    let value = flow.and_then(|_| section.take("load"));
    let words =
        [("up", DataDirection::Up), ("down", DataDirection::Down), ("both", DataDirection::Both)];
    let direction = value?.word(&words)?;
    let duration = flow?.pattern.duration();
    let measured_flow = flow?;
    // Datagrams use no transport and leave the choice to their load flow.
    let transport =
        measured_flow.transport.filter(|_| !is_transport_independent(&measured_flow.pattern));
    let pattern = Pattern::Iperf { duration, direction, streams: 1 };
    Some(Flow { pattern, transport, ..measured_flow.clone() })
}

/// Returns the flows that a pattern implies: echo datagrams and loads for `latency`, and the video
/// of a call.
fn companion_flows(flow: &Flow) -> Vec<Flow> {
    if let Some(video) = flow.pattern.udp().and_then(super::call::companion_video) {
        return vec![Flow { pattern: Pattern::Udp(video), ..flow.clone() }];
    }
    let Pattern::Exchange(exchange) = &flow.pattern else { return Vec::new() };
    let (Some(phases), Schedule::Every { period, .. }) = (exchange.phases, &exchange.schedule)
    else {
        return Vec::new();
    };
    let (period, duration) = (*period, exchange.duration);
    let pings = Udping { period, duration, reply_timeout: exchange.reply_timeout };
    let mut flows = vec![Flow { pattern: Pattern::Udping(pings), transport: None, ..flow.clone() }];
    for (load, begin) in phases.all() {
        let direction = match load {
            Load::Idle => continue,
            Load::Down => DataDirection::Down,
            Load::Up => DataDirection::Up,
            Load::Both => DataDirection::Both,
        };
        let (duration, streams) = (phases.duration, phases.streams);
        let pattern = Pattern::Iperf { duration, direction, streams };
        flows.push(Flow { pattern, start: flow.start + begin, ..flow.clone() });
    }
    flows
}

/// Returns true if the pattern runs independently of any transport.
fn is_transport_independent(pattern: &Pattern) -> bool {
    matches!(pattern, Pattern::Udping(_) | Pattern::Udp(_))
}

fn flow(
    section: &mut Section<'_>,
    names: &NameTable,
    paths: &[Path],
    context: &ReadContext<'_>,
) -> Option<Flow> {
    let from = section.require("from", "from = \"client\"").and_then(|v| names.host(&v));
    let to_value = section.require("to", "to = \"server\"");
    let to = to_value.as_ref().and_then(|v| names.host(v));
    let via = section.take("via");
    let via_index = via.as_ref().map(|v| names.path(v));
    let pattern = pattern(section, context);
    let start = section.take("start").and_then(|v| v.duration(MAX_RUN)).unwrap_or_default();
    let families = [("v4", Family::V4), ("v6", Family::V6)];
    let family_value = section.take("family");
    let family = family_value.as_ref().map_or(Some(Family::V4), |v| v.word(&families));
    let transports = [("tcp", Transport::Tcp), ("mptcp", Transport::Mptcp)];
    let transport_value = section.take("transport");
    let transport = transport_value.as_ref().map(|v| v.word(&transports));
    let (from, to, to_value) = (from?, to?, to_value?);
    if from == to {
        to_value.fail("a flow cannot lead from a host to itself", "expected another host");
        return None;
    }
    let connects_hosts = |path: &Path| path.between == [from, to] || path.between == [to, from];
    let via_value = via.clone();
    let via = match (via, via_index) {
        (Some(value), Some(index)) => {
            let index = index?;
            let path = paths.get(index)?;
            if path.between != UNKNOWN_ENDS && !connects_hosts(path) {
                value.fail("this path does not join the flow's hosts", "expected one that does");
            }
            index
        }
        _ => match paths.iter().position(connects_hosts) {
            Some(index) => index,
            None if paths.iter().any(|path| path.between == UNKNOWN_ENDS) => return None,
            None => {
                let expected = "expected hosts at the two ends of one path";
                to_value.fail("no path joins the flow's hosts", expected);
                return None;
            }
        },
    };
    if let (Some(value), Some(Family::V6), Some(path)) = (family_value, family, paths.get(via))
        && path.mtu_bytes < MIN_V6_MTU_BYTES
    {
        let message = format!("IPv6 does not pass a path with an MTU of {}", path.mtu_bytes);
        value.fail(message, "expected `v4`, or an MTU of 1280");
    }
    let mut pattern = pattern?;
    check_transport_independent(&mut pattern, via_value.as_ref(), transport_value.as_ref());
    // An unknown word has already been reported.
    let transport = transport.map_or(Some(None), |word| word.map(Some))?;
    // UDP uses a single path, also in multipath runs.
    let transport = if let Pattern::Udp(_) = &pattern { Some(Transport::Tcp) } else { transport };
    Some(Flow { from, to, pattern, via, start, family: family?, transport })
}

/// Checks a transport-independent pattern: no `transport` key, and all paths or the one named.
fn check_transport_independent(
    pattern: &mut Pattern,
    via: Option<&Value<'_>>,
    transport: Option<&Value<'_>>,
) {
    if let Pattern::Udping(_) = pattern {
        for (key_value, noun) in [(via, "path"), (transport, "transport")] {
            if let Some(value) = key_value {
                let message = format!("`udping` has no {noun} of its own");
                value.fail(message, "remove it: it goes over every path between the hosts");
            }
        }
    }
    let name = pattern.name();
    if let Pattern::Udp(udp) = pattern {
        udp.is_bound = via.is_some();
        if let Some(value) = transport {
            let expected = "remove it: its datagrams go over one path, without a connection";
            value.fail(format!("`{name}` has no transport of its own"), expected);
        }
    }
}

pub(super) fn run_plan(value: &Value<'_>) -> Option<(RunPlan, StackOverrides)> {
    let mut section = value.section(&RUN, "the run plan", "expected a table: `[run]`")?;
    let transports = [
        ("tcp", Transport::Tcp),
        ("mptcp", Transport::Mptcp),
        ("quic", Transport::Quic),
        ("mpquic", Transport::Mpquic),
    ];
    let worlds = [("sim", World::Sim), ("emu", World::Emu), ("live", World::Live)];
    let default = default_run();
    let congestion_control =
        section.take("congestion-control").and_then(|v| congestion_control_name(&v));
    let plan = RunPlan {
        transports: distinct_words(section.take("transports"), &transports, default.transports),
        worlds: distinct_words(section.take("worlds"), &worlds, default.worlds),
        seed: section.take("seed").and_then(|v| v.integer(0, i64::MAX as u64)).unwrap_or(1),
        repeat: integer(section.take("repeat"), 1, 1_000).unwrap_or(1),
        sample: section.take("sample").and_then(|v| sample(&v)).unwrap_or(default.sample),
        names_congestion_control: congestion_control.is_some(),
        congestion_control: congestion_control.unwrap_or(default.congestion_control),
    };
    let keys = stack::stack_overrides(&mut section);
    section.finish();
    Some((plan, keys))
}

fn sample(value: &Value<'_>) -> Option<Duration> {
    let period = value.duration(MAX_RUN)?;
    if !SAMPLE_INTERVAL_RANGE.contains(&period) {
        value.fail("the series cannot be sampled like that", "expected `10 ms` to `1 s`");
    }
    Some(period)
}

/// Parses a list of distinct words, at least one.
fn distinct_words<T: Copy + PartialEq>(
    value: Option<Value<'_>>,
    words: &[(&'static str, T)],
    default: Vec<T>,
) -> Vec<T> {
    let Some(value) = value else { return default };
    let example = words.first().map_or("", |&(name, _)| name);
    let Some(list) = value.list(&format!("expected a list such as `[\"{example}\"]`")) else {
        return default;
    };
    if list.is_empty() {
        value.fail("the list is empty", format!("expected at least one, such as `{example}`"));
    }
    let mut chosen = Vec::new();
    for element in list {
        match element.word(words) {
            Some(word) if chosen.contains(&word) => {
                element.fail("this is in the list already", "remove it");
            }
            Some(word) => chosen.push(word),
            None => {}
        }
    }
    chosen
}
