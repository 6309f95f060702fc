//! Parses the traffic of a flow: its `pattern`, or its command.

use std::sync::Arc;
use std::time::Duration;

use super::link::integer;
use super::{MAX_RUN, ReadContext, unreadable};
use crate::flow_plan::MIN_DATAGRAM_BYTES;
use crate::flow_plan::planned_datagrams;
use crate::flow_plan::requests_in;
use crate::flow_plan::{MIN_REPLY_BYTES, MIN_REQUEST_BYTES};
use crate::model::DataDirection;
use crate::pattern::{
    LatencyPhases, MessageExchange, Pattern, PlannedRequest, Schedule, Udp, Udping, Video, Web,
};
use crate::problem::quote;
use crate::section::{Section, Value};
use crate::units;

/// Default time limit of sized transfers and commands.
const DEFAULT_LIMIT: Duration = Duration::from_secs(60);
/// Default duration, as in iperf3.
pub(super) const DEFAULT_DURATION: Duration = Duration::from_secs(10);
/// Default time to wait for replies after the last request was due.
const DEFAULT_REPLY_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum size of a message.
const MAX_MESSAGE_BYTES: u64 = 1_000_000_000;
/// Payload of a datagram: at least its header, at most what an IP packet holds.
const DATAGRAM_BYTES_RANGE: std::ops::RangeInclusive<u64> = MIN_DATAGRAM_BYTES as u64..=65_507;
/// Maximum number of datagrams of a flow in one direction.
const MAX_DATAGRAMS: u64 = 1_000_000_000;
/// Default time to wait for late datagrams.
pub(super) const DEFAULT_LATE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of requests of a flow.
const MAX_REQUESTS: u32 = 1_000_000;

const DIRECTIONS: [(&str, DataDirection); 3] =
    [("up", DataDirection::Up), ("down", DataDirection::Down), ("both", DataDirection::Both)];

#[derive(Clone, Copy)]
enum PatternKind {
    Bulk,
    Iperf,
    Ping,
    Reqres,
    Interactive,
    Onoff,
    Trace,
    Video,
    Web,
    Udping,
    Udp,
    Call,
    Latency,
}

const KINDS: [(&str, PatternKind); 13] = [
    ("bulk", PatternKind::Bulk),
    ("iperf", PatternKind::Iperf),
    ("ping", PatternKind::Ping),
    ("reqres", PatternKind::Reqres),
    ("interactive", PatternKind::Interactive),
    ("onoff", PatternKind::Onoff),
    ("trace", PatternKind::Trace),
    ("video", PatternKind::Video),
    ("web", PatternKind::Web),
    ("udping", PatternKind::Udping),
    ("udp", PatternKind::Udp),
    ("call", PatternKind::Call),
    ("latency", PatternKind::Latency),
];

pub(super) fn pattern(section: &mut Section<'_>, context: &ReadContext<'_>) -> Option<Pattern> {
    let (pattern, run) = (section.take("pattern"), section.take("run"));
    match (pattern, run) {
        (Some(pattern), None) => {
            let Some(kind) = pattern_kind(&pattern) else {
                // Without a valid pattern, no key can be judged.
                section.take_all();
                return None;
            };
            section.set_label(format!("a flow with the pattern `{}`", pattern_name(kind)));
            match kind {
                PatternKind::Bulk => bulk(section),
                PatternKind::Iperf => iperf(section),
                PatternKind::Ping => ping(section),
                PatternKind::Reqres => reqres(section),
                PatternKind::Interactive => interactive(section),
                PatternKind::Onoff => onoff(section),
                PatternKind::Trace => trace(section, context),
                PatternKind::Video => video(section),
                PatternKind::Web => web(section),
                PatternKind::Udping => udping(section),
                PatternKind::Udp => udp(section),
                PatternKind::Call => super::call::call(section),
                PatternKind::Latency => latency(section),
            }
        }
        (None, Some(run)) => command(section, &run),
        (Some(_), Some(run)) => {
            run.fail("a flow has a `pattern` or a command to `run`, not both", "remove one");
            None
        }
        (None, None) => {
            let expected = "add `pattern = \"bulk\"`, or `run = \"a command\"`";
            section.fail("the flow has neither `pattern` nor `run`", expected);
            section.take_all();
            None
        }
    }
}

fn pattern_name(kind: PatternKind) -> &'static str {
    let is_kind = |candidate: PatternKind| {
        std::mem::discriminant(&candidate) == std::mem::discriminant(&kind)
    };
    KINDS.iter().find(|(_, candidate)| is_kind(*candidate)).map_or("", |(name, _)| name)
}

fn pattern_kind(value: &Value<'_>) -> Option<PatternKind> {
    if value.as_str() == Some("load") {
        value.fail_with_hint(
            "`load` is not a pattern of its own".to_owned(),
            "expected the pattern that runs at the same time as a load",
            "add `load = \"down\"` to a flow with the pattern `interactive`, for example",
        );
        return None;
    }
    value.word(&KINDS)
}

fn command(section: &mut Section<'_>, run: &Value<'_>) -> Option<Pattern> {
    let duration = section.take("duration");
    section.set_label("a flow that runs a command".to_owned());
    let command = run.text()?.trim();
    if command.is_empty() {
        run.fail("the command is empty", "expected a command for `sh -c`");
        return None;
    }
    let duration = duration_or(duration, DEFAULT_LIMIT)?;
    Some(Pattern::Run { command: command.to_owned(), duration })
}

pub(super) fn duration_or(value: Option<Value<'_>>, default: Duration) -> Option<Duration> {
    value.map_or(Some(default), |v| v.positive_duration(MAX_RUN))
}

fn bulk(section: &mut Section<'_>) -> Option<Pattern> {
    let is_paper_preset =
        section.take("preset").map(|v| v.word(&[("multipathtester", ())])).is_some();
    let (duration, size) = (section.take("duration"), section.take("size"));
    let direction = section.take("direction").map_or(
        Some(if is_paper_preset { DataDirection::Down } else { DataDirection::Up }),
        |v| {
            if v.as_str() == Some("both") {
                v.fail("only `iperf` sends in both directions", "expected `up` or `down`");
                return None;
            }
            v.word(&[("up", DataDirection::Up), ("down", DataDirection::Down)])
        },
    );
    let is_sized = size.is_some() || is_paper_preset;
    let size_bytes = match size {
        Some(value) => value.size(),
        None => is_paper_preset.then_some(10_000_000),
    };
    let duration = match duration {
        Some(value) => value.positive_duration(MAX_RUN)?,
        None if is_sized => DEFAULT_LIMIT,
        None => {
            let expected = "add `duration = \"10 s\"`, `size = \"100 MB\"`, or both";
            section.fail("a bulk transfer needs an end", expected);
            return None;
        }
    };
    Some(Pattern::Bulk { size_bytes, duration, direction: direction? })
}

fn iperf(section: &mut Section<'_>) -> Option<Pattern> {
    let is_paper_preset =
        section.take("preset").map(|v| v.word(&[("multipathtester", ())])).is_some();
    let direction = direction(section, DataDirection::Up);
    let streams = section.take("streams").map_or(Some(1), |v| integer(Some(v), 1, 128));
    let default = if is_paper_preset { Duration::from_secs(7) } else { DEFAULT_DURATION };
    let duration = duration_or(section.take("duration"), default)?;
    Some(Pattern::Iperf { duration, direction: direction?, streams: streams? })
}

pub(super) fn direction(
    section: &mut Section<'_>,
    default: DataDirection,
) -> Option<DataDirection> {
    section.take("direction").map_or(Some(default), |v| v.word(&DIRECTIONS))
}

/// Parses a message size: at least its header, at most the useful maximum.
fn message_bytes(
    section: &mut Section<'_>,
    key: &'static str,
    min_bytes: u32,
    default: u32,
) -> Option<u32> {
    let Some(value) = section.take(key) else { return Some(default) };
    let bytes = value.size()?;
    if !(u64::from(min_bytes)..=MAX_MESSAGE_BYTES).contains(&bytes) {
        let message = format!("no message has {bytes} bytes here");
        value.fail(message, format!("expected `{min_bytes} B` to `1 GB`"));
        return None;
    }
    u32::try_from(bytes).ok()
}

fn request(section: &mut Section<'_>, default: u32) -> Option<u32> {
    message_bytes(section, "request", MIN_REQUEST_BYTES, default)
}

fn reply(section: &mut Section<'_>, default: u32) -> Option<u32> {
    message_bytes(section, "reply", MIN_REPLY_BYTES, default)
}

/// Parses the time between requests; `span` must not hold too many.
fn period(section: &mut Section<'_>, default: Duration, span: Duration) -> Option<Duration> {
    let value = section.take("period");
    let period_value = value.clone();
    let period = duration_or(value, default)?;
    if requests_in(span, period) > MAX_REQUESTS {
        let message = "a flow has at most a million requests";
        match period_value {
            Some(value) => value.fail(message, "expected a longer period"),
            None => section.fail(message, "expected a shorter duration"),
        }
        return None;
    }
    Some(period)
}

fn reply_timeout(section: &mut Section<'_>, default: Duration) -> Option<Duration> {
    section.take("reply-timeout").map_or(Some(default), |v| v.duration(MAX_RUN))
}

/// As in the MultipathTester paper: five requests for a 10-byte file, after one that does not
/// count.
fn ping(section: &mut Section<'_>) -> Option<Pattern> {
    let count = section.take("count").map_or(Some(5), |v| integer(Some(v), 1, MAX_REQUESTS.into()));
    let warm_up = section.take("warm-up").map_or(Some(1), |v| integer(Some(v), 0, 1_000));
    let period = duration_or(section.take("period"), Duration::from_millis(200));
    let (request, reply) = (request(section, 100), reply(section, 10));
    let direction = direction(section, DataDirection::Up);
    let timeout = reply_timeout(section, DEFAULT_REPLY_TIMEOUT);
    let (period, warm_up) = (period?, warm_up?);
    let count = count?.saturating_add(warm_up);
    Some(Pattern::Exchange(MessageExchange {
        name: "ping",
        direction: direction?,
        schedule: Schedule::Every {
            period,
            count,
            request_bytes: request?,
            reply_bytes: reply?,
            ack: false,
        },
        warm_up,
        duration: period.saturating_mul(count).min(MAX_RUN),
        reply_timeout: timeout?,
        phases: None,
    }))
}

/// Parses requests at a fixed interval for a given time.
fn fixed_interval_exchange(
    section: &mut Section<'_>,
    (name, direction, ack): (&'static str, Option<DataDirection>, bool),
    (request_bytes, reply_bytes): (u32, u32),
    (default_period, default_duration): (Duration, Duration),
) -> Option<Pattern> {
    let duration = duration_or(section.take("duration"), default_duration);
    let period = period(section, default_period, duration.unwrap_or(default_duration));
    let (request, reply) = (request(section, request_bytes), reply(section, reply_bytes));
    let timeout = reply_timeout(section, DEFAULT_REPLY_TIMEOUT);
    let (duration, period) = (duration?, period?);
    Some(Pattern::Exchange(MessageExchange {
        name,
        direction: direction?,
        schedule: Schedule::Every {
            period,
            count: requests_in(duration, period),
            request_bytes: request?,
            reply_bytes: reply?,
            ack,
        },
        warm_up: 0,
        duration,
        reply_timeout: timeout?,
        phases: None,
    }))
}

fn reqres(section: &mut Section<'_>) -> Option<Pattern> {
    let direction = direction(section, DataDirection::Up);
    let times = (Duration::from_millis(400), Duration::from_secs(14));
    fixed_interval_exchange(section, ("reqres", direction, false), (750, 750), times)
}

/// As in the MultipathTester paper: request, acknowledgement and reply. The program measured in the
/// paper sends an acknowledgement only.
fn interactive(section: &mut Section<'_>) -> Option<Pattern> {
    let presets =
        [("multipathtester", (750, true)), ("multipathtester-app", (MIN_REPLY_BYTES, false))];
    let preset = section.take("preset").map_or(Some((750, true)), |v| v.word(&presets));
    let direction = direction(section, DataDirection::Both);
    let (reply_bytes, ack) = preset.unwrap_or((750, true));
    let times = (Duration::from_millis(100), DEFAULT_DURATION);
    fixed_interval_exchange(section, ("interactive", direction, ack), (2_000, reply_bytes), times)
        .filter(|_| preset.is_some())
}

/// Parses bursts of requests with pauses; `voice-assistant` is the preset of an early version of that program.
fn onoff(section: &mut Section<'_>) -> Option<Pattern> {
    let voice_assistant =
        section.take("preset").map(|v| v.word(&[("voice-assistant", ())])).is_some();
    let millis = Duration::from_millis;
    let (default_times, sizes) = if voice_assistant {
        ([millis(300), millis(2_700), millis(3_000)], (2_500, 750))
    } else {
        ([millis(20), millis(1_000), millis(1_000)], (1_000, MIN_REPLY_BYTES))
    };
    let [default_period, default_on, default_off] = default_times;
    let direction = direction(section, DataDirection::Up);
    let duration = duration_or(section.take("duration"), DEFAULT_DURATION);
    let on = duration_or(section.take("on"), default_on);
    let off = duration_or(section.take("off"), default_off);
    let period = period(section, default_period, duration.unwrap_or(DEFAULT_DURATION));
    let (request, reply) = (request(section, sizes.0), reply(section, sizes.1));
    let timeout = reply_timeout(section, DEFAULT_REPLY_TIMEOUT);
    Some(Pattern::Exchange(MessageExchange {
        name: "onoff",
        direction: direction?,
        schedule: Schedule::Bursts {
            period: period?,
            on: on?,
            off: off?,
            duration: duration?,
            request_bytes: request?,
            reply_bytes: reply?,
        },
        warm_up: 0,
        duration: duration?,
        reply_timeout: timeout?,
        phases: None,
    }))
}

fn trace(section: &mut Section<'_>, context: &ReadContext<'_>) -> Option<Pattern> {
    let timeout = reply_timeout(section, DEFAULT_REPLY_TIMEOUT);
    let value = section.require("messages", "messages = [\"0 s up 2000 B 750 B\"]")?;
    let lines = message_lines(&value, context)?;
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for (value, line) in &lines {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let Some((direction, request)) = parse_message(line) else {
            let expected = "expected time, direction, request and reply: `1.5 s up 2000 B 750 B`";
            value.fail(format!("{} is not a message", quote(line)), expected);
            return None;
        };
        if direction == DataDirection::Down { down.push(request) } else { up.push(request) }
    }
    up.sort_by_key(|request| request.at);
    down.sort_by_key(|request| request.at);
    let direction = match (up.as_slice(), down.as_slice()) {
        ([], []) => {
            value.fail("the file has no message to send", "expected at least one");
            return None;
        }
        (_, []) => DataDirection::Up,
        ([], _) => DataDirection::Down,
        _ => DataDirection::Both,
    };
    let last_due = up.last().into_iter().chain(down.last()).map(|request| request.at).max();
    let schedule = Schedule::Listed { up: Arc::from(up), down: Arc::from(down) };
    Some(Pattern::Exchange(MessageExchange {
        name: "trace",
        direction,
        schedule,
        warm_up: 0,
        // The last request also needs some time.
        duration: last_due.unwrap_or_default() + Duration::from_millis(1),
        reply_timeout: timeout?,
        phases: None,
    }))
}

/// Returns the lines of a message list with their positions; a file has one position for all.
fn message_lines<'a>(
    value: &Value<'a>,
    context: &ReadContext<'_>,
) -> Option<Vec<(Value<'a>, String)>> {
    let Some(file) = value.as_str() else {
        let elements = value.list("expected the name of a file, or a list of messages")?;
        let texts = elements.into_iter().filter_map(|e| e.text().map(|t| (e, t.to_owned())));
        return Some(texts.collect());
    };
    match (context.load)(file) {
        Ok(text) if text.lines().count() > MAX_REQUESTS as usize => {
            let message = format!("{} has more than {MAX_REQUESTS} lines", quote(file));
            value.fail(message, "expected one line for each message");
            None
        }
        Ok(text) => Some(text.lines().map(|line| (value.clone(), line.to_owned())).collect()),
        Err(error) => {
            let message = format!("cannot read {}: {}", quote(file), unreadable(&error));
            value.fail(message, "expected a file of messages, or a list of them");
            None
        }
    }
}

/// Parses a line such as `1.5 s up 2000 B 750 B`.
fn parse_message(line: &str) -> Option<(DataDirection, PlannedRequest)> {
    let words: Vec<_> = line.split_whitespace().collect();
    let &[at, at_unit, direction_word, request, request_unit, reply, reply_unit] = words.as_slice()
    else {
        return None;
    };
    let direction = match direction_word {
        "up" => DataDirection::Up,
        "down" => DataDirection::Down,
        _ => return None,
    };
    let at = units::duration(&format!("{at} {at_unit}")).ok().filter(|at| *at <= MAX_RUN)?;
    let size = |number: &str, unit: &str, min_bytes: u32| {
        let bytes = units::size(&format!("{number} {unit}")).ok()?;
        let range = u64::from(min_bytes)..=MAX_MESSAGE_BYTES;
        u32::try_from(bytes).ok().filter(|_| range.contains(&bytes))
    };
    let request_bytes = size(request, request_unit, MIN_REQUEST_BYTES)?;
    let reply_bytes = size(reply, reply_unit, MIN_REPLY_BYTES)?;
    Some((direction, PlannedRequest { at, request_bytes, reply_bytes, ack: false }))
}

fn video(section: &mut Section<'_>) -> Option<Pattern> {
    let seconds = Duration::from_secs;
    let duration = duration_or(section.take("duration"), seconds(30));
    let segment = duration_or(section.take("segment"), seconds(2));
    let rate = section.take("bitrate").map_or(Some(5_000_000), |v| Some(v.rate()?.as_bps()));
    let buffer_value = section.take("buffer");
    let buffer = duration_or(buffer_value.clone(), seconds(10));
    let startup_value = section.take("startup");
    let segment = segment?;
    let startup = duration_or(startup_value.clone(), segment)?;
    let (request, timeout) = (request(section, 400), reply_timeout(section, DEFAULT_DURATION));
    let buffer = buffer?;
    if buffer < segment || startup > buffer {
        let value_to_report =
            if startup > buffer { startup_value.or(buffer_value) } else { buffer_value };
        let message = "the player can never begin: its buffer is too small";
        let expected = "expected a buffer of a segment or more, and a startup that fits into it";
        match value_to_report {
            Some(value) => value.fail(message, expected),
            None => section.fail(message, expected),
        }
        return None;
    }
    let bits = u128::from(rate?) * segment.as_nanos() / 1_000_000_000;
    let bytes = (bits / 8).clamp(u128::from(MIN_REPLY_BYTES), u128::from(MAX_MESSAGE_BYTES));
    Some(Pattern::Video(Video {
        segment,
        segments: requests_in(duration?, segment).min(MAX_REQUESTS),
        segment_bytes: u32::try_from(bytes).unwrap_or(u32::MAX),
        request_bytes: request?,
        buffer,
        startup,
        max_overrun: timeout?,
    }))
}

fn web(section: &mut Section<'_>) -> Option<Pattern> {
    let page = message_bytes(section, "page", MIN_REPLY_BYTES, 30_000);
    let objects = section.take("objects").map_or(Some(30), |v| integer(Some(v), 0, 10_000));
    let object = message_bytes(section, "object", MIN_REPLY_BYTES, 50_000);
    let request = request(section, 400);
    let connections = section.take("streams").map_or(Some(6), |v| integer(Some(v), 1, 128));
    let duration = duration_or(section.take("duration"), Duration::from_secs(30));
    Some(Pattern::Web(Web {
        page_bytes: page?,
        objects: objects?,
        object_bytes: object?,
        request_bytes: request?,
        connections: connections?,
        duration: duration?,
    }))
}

/// As in MultipathTester: a small datagram every 100 ms over each interface.
fn udping(section: &mut Section<'_>) -> Option<Pattern> {
    let duration = duration_or(section.take("duration"), DEFAULT_DURATION);
    let span = duration.unwrap_or(DEFAULT_DURATION);
    let period = period(section, Duration::from_millis(100), span);
    let timeout = duration_or(section.take("reply-timeout"), DEFAULT_REPLY_TIMEOUT);
    let (period, duration, timeout) = (period?, duration?, timeout?);
    Some(Pattern::Udping(Udping { period, duration, reply_timeout: timeout }))
}

/// As `iperf3 -u`: 1 Mbit/s, in datagrams that fit into a packet with timestamps.
fn udp(section: &mut Section<'_>) -> Option<Pattern> {
    let duration = duration_or(section.take("duration"), DEFAULT_DURATION);
    let bitrate = section.take("bitrate");
    let rate = bitrate.clone().map_or(Some(1_000_000), |v| Some(v.rate()?.as_bps()));
    let length = section.take("length");
    let bytes = length.map_or(Some(1_448), |value| {
        let bytes = value.size()?;
        if !DATAGRAM_BYTES_RANGE.contains(&bytes) {
            let message = format!("no datagram has a payload of {bytes} bytes here");
            value.fail(message, "expected `40 B` to `65507 B`");
            return None;
        }
        u32::try_from(bytes).ok()
    });
    let direction = direction(section, DataDirection::Up);
    let late_timeout = section.take("reply-timeout");
    let late_timeout = late_timeout.map_or(Some(DEFAULT_LATE_TIMEOUT), |v| v.duration(MAX_RUN));
    let (rate_bps, bytes, duration) = (rate?, bytes?, duration?);
    let (direction, late_timeout) = (direction?, late_timeout?);
    let udp =
        Udp { rate_bps, bytes, direction, duration, late_timeout, is_bound: false, call: None };
    if planned_datagrams(&udp) > MAX_DATAGRAMS {
        let message = "a flow sends at most 1,000 million datagrams";
        match bitrate {
            Some(value) => value.fail(message, "expected a lower rate, or longer datagrams"),
            None => section.fail(message, "expected a shorter duration"),
        }
        return None;
    }
    Some(Pattern::Udp(udp))
}

/// Parses requests in four phases, the last three of them under load.
fn latency(section: &mut Section<'_>) -> Option<Pattern> {
    let phase_duration = duration_or(section.take("duration"), Duration::from_secs(5));
    let pause = section.take("off");
    let pause = pause.map_or(Some(Duration::from_secs(1)), |v| v.duration(MAX_RUN));
    let streams = section.take("streams").map_or(Some(4), |v| integer(Some(v), 1, 128));
    let phases = LatencyPhases { duration: phase_duration?, pause: pause?, streams: streams? };
    let duration = phases.total();
    if duration > MAX_RUN {
        let message = "the four phases take longer than any run may";
        section.fail(message, "expected a shorter `duration`");
        return None;
    }
    let period = period(section, Duration::from_millis(50), duration);
    let (request, reply) = (request(section, 100), reply(section, 100));
    let timeout = reply_timeout(section, DEFAULT_REPLY_TIMEOUT);
    let period = period?;
    Some(Pattern::Exchange(MessageExchange {
        name: "latency",
        direction: DataDirection::Up,
        schedule: Schedule::Every {
            period,
            count: requests_in(duration, period),
            request_bytes: request?,
            reply_bytes: reply?,
            ack: false,
        },
        warm_up: 0,
        duration,
        reply_timeout: timeout?,
        phases: Some(phases),
    }))
}
