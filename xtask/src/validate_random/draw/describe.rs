//! The distributions in words, derived from the same constants.

use super::{
    BURST, BURST_LOSS, CONTROLS, DELAY, DELAY_CHANGE, DIRECTIONS, DURATIONS, FAMILIES, FLAPPING,
    JITTER, JITTER_IN_ORDER, JITTER_REORDERS, JITTER_SHAPES, LONG_DELAY_US, LOSS,
    MAX_APP_LOAD_PERCENT, MAX_RATE_SUM_KBPS, MIN_MTU_V6, MIN_QUEUE_PACKETS, MTU_RANGE, MULTIPATH,
    NEW_ADDRESS, ODD_MTU, OUTAGE, OUTAGES, PATHS, PATTERNS, PatternKind, QUEUE, QUEUES,
    RATE_CHANGE, RATES, RECEIVE_BUFFERS, REPLY, REQUEST, REQUEST_PERIOD, SEND_BUFFER, VIDEO,
};

/// Returns the distributions as a Markdown table.
pub(in super::super) fn describe() -> String {
    let rows = [paths(), impairments(), events(), hosts()].concat();
    let rows = rows.iter().map(|(what, how)| format!("| {what} | {how} |\n"));
    format!("| what | drawn |\n|---|---|\n{}", rows.collect::<String>())
}

/// Property and its distribution.
type ScenarioRow = (&'static str, String);

/// Describes paths and their queues.
fn paths() -> Vec<ScenarioRow> {
    vec![
        ("paths", weights(&PATHS, usize::to_string)),
        (
            "rate of each",
            weights(&RATES, |range| between(range, 1_000, "Mbit/s"))
                + &format!("; {} Mbit/s together at most", MAX_RATE_SUM_KBPS / 1_000),
        ),
        ("one-way delay of each", between(&DELAY, 1_000, "ms")),
        (
            "queue of each",
            format!(
                "droptail {} %, `tbf` {} % (burst {}), CoDel {} %; {}, {MIN_QUEUE_PACKETS} packets at least",
                QUEUES[0].0,
                QUEUES[1].0,
                between(&BURST, 1_000, "KB"),
                QUEUES[2].0,
                between(&QUEUE, 1_000, "ms"),
            ),
        ),
    ]
}

/// Describes the impairments of paths.
fn impairments() -> Vec<ScenarioRow> {
    vec![
        ("random loss on one path", with(LOSS.0, &between(&LOSS.1, 1_000_000, "%"))),
        (
            "bursts of loss on one path",
            with(
                BURST_LOSS.0,
                &format!(
                    "{} to {} packets, begun with {}",
                    BURST_LOSS.2[0],
                    BURST_LOSS.2[1],
                    between(&BURST_LOSS.1, 1_000_000, "%")
                ),
            ),
        ),
        (
            "jitter on one path",
            format!(
                "{JITTER_REORDERS} % that reorders, {JITTER_IN_ORDER} % in order: {}, at most half of \
                 the delay; {}",
                between(&JITTER, 1_000, "ms"),
                weights(&JITTER_SHAPES, |shape| (*shape).to_owned())
            ),
        ),
        (
            "MTU, on one path or on all",
            format!(
                "{} % 1500, else 576, 1280, 1400, 4000, 9000 or even from {} to {}; IPv6 {MIN_MTU_V6} at \
                 least",
                100 - ODD_MTU,
                MTU_RANGE[0],
                MTU_RANGE[1]
            ),
        ),
    ]
}

/// Describes the events during a run.
fn events() -> Vec<ScenarioRow> {
    vec![
        (
            "outage of one path",
            with(OUTAGE.0, &between(&OUTAGE.1, 1_000, "s"))
                + ": "
                + &weights(&OUTAGES, |how| (*how).to_owned()),
        ),
        ("new rate of one path", with(RATE_CHANGE.0, &between(&RATE_CHANGE.1, 1, "% of the old"))),
        (
            "new delay of one path",
            with(DELAY_CHANGE.0, &between(&DELAY_CHANGE.1, 1, "% of the old")),
        ),
        ("new address of the client", format!("in {NEW_ADDRESS} %")),
        (
            "rate that flaps",
            with(FLAPPING.0, &format!("each {}", between(&FLAPPING.1, 1, "ms")))
                + &format!(", to {} and back", between(&FLAPPING.2, 1, "%")),
        ),
    ]
}

/// Describes buffers, congestion control and traffic of the hosts.
fn hosts() -> Vec<ScenarioRow> {
    vec![
        (
            "receiver's buffer",
            weights(&RECEIVE_BUFFERS, |range| {
                range.map_or("the system's".to_owned(), |range| between(&range, 1_000, "MB"))
            }),
        ),
        ("sender's buffer", with(SEND_BUFFER.0, &between(&SEND_BUFFER.1, 1_000, "MB"))),
        ("congestion control", weights(&CONTROLS, |name| (*name).to_owned())),
        ("who sends or asks", weights(&DIRECTIONS, |name| (*name).to_owned())),
        ("address family", weights(&FAMILIES, |name| (*name).to_owned())),
        (
            "Multipath TCP, else TCP",
            format!("{} % with one path, {} % with several", MULTIPATH[0], MULTIPATH[1]),
        ),
        ("traffic", weights(&PATTERNS, |pattern| pattern.text())),
        (
            "how long",
            format!(
                "{} s; {} s with a delay above {} ms",
                DURATIONS[0] / 1_000,
                DURATIONS[1] / 1_000,
                LONG_DELAY_US / 1_000
            ),
        ),
    ]
}

impl PatternKind {
    fn text(self) -> String {
        match self {
            Self::Bulk => "bulk".to_owned(),
            Self::Requests => format!(
                "requests of {}, replies of {}, each {}",
                between(&REQUEST, 1_000, "KB"),
                between(&REPLY, 1_000, "KB"),
                between(&REQUEST_PERIOD, 1, "ms")
            ),
            Self::Video => format!(
                "video of {} (both at most {MAX_APP_LOAD_PERCENT} % of the rates)",
                between(&VIDEO, 1_000, "Mbit/s")
            ),
        }
    }
}

fn weights<T>(entries: &[(u32, T)], text: impl Fn(&T) -> String) -> String {
    let all: Vec<_> =
        entries.iter().map(|(percent, value)| format!("{percent} % {}", text(value))).collect();
    all.join(", ")
}

fn with(percent: u32, what: &str) -> String {
    format!("in {percent} %: {what}")
}

/// Formats a range whose ends are in `unit`-ths.
fn between([from, to]: &[u64; 2], unit: u64, name: &str) -> String {
    let number = |value: &u64| format!("{}", *value as f64 / unit as f64);
    format!("{} to {} {name}", number(from), number(to))
}
