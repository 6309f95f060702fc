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
    let rows =
        rows.iter().map(|(property, distribution)| format!("| {property} | {distribution} |\n"));
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
            weights(&RATES, |range| range_text(range, 1_000, "Mbit/s"))
                + &format!("; {} Mbit/s together at most", MAX_RATE_SUM_KBPS / 1_000),
        ),
        ("one-way delay of each", range_text(&DELAY, 1_000, "ms")),
        (
            "queue of each",
            format!(
                "droptail {} %, `tbf` {} % (burst {}), CoDel {} %; {}, {MIN_QUEUE_PACKETS} packets at least",
                QUEUES[0].0,
                QUEUES[1].0,
                range_text(&BURST, 1_000, "KB"),
                QUEUES[2].0,
                range_text(&QUEUE, 1_000, "ms"),
            ),
        ),
    ]
}

/// Describes the impairments of paths.
fn impairments() -> Vec<ScenarioRow> {
    vec![
        ("random loss on one path", chance_of(LOSS.0, &range_text(&LOSS.1, 1_000_000, "%"))),
        (
            "bursts of loss on one path",
            chance_of(
                BURST_LOSS.0,
                &format!(
                    "{} to {} packets, begun with {}",
                    BURST_LOSS.2[0],
                    BURST_LOSS.2[1],
                    range_text(&BURST_LOSS.1, 1_000_000, "%")
                ),
            ),
        ),
        (
            "jitter on one path",
            format!(
                "{JITTER_REORDERS} % that reorders, {JITTER_IN_ORDER} % in order: {}, at most half of \
                 the delay; {}",
                range_text(&JITTER, 1_000, "ms"),
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
            chance_of(OUTAGE.0, &range_text(&OUTAGE.1, 1_000, "s"))
                + ": "
                + &weights(&OUTAGES, |how| (*how).to_owned()),
        ),
        (
            "new rate of one path",
            chance_of(RATE_CHANGE.0, &range_text(&RATE_CHANGE.1, 1, "% of the old")),
        ),
        (
            "new delay of one path",
            chance_of(DELAY_CHANGE.0, &range_text(&DELAY_CHANGE.1, 1, "% of the old")),
        ),
        ("new address of the client", format!("in {NEW_ADDRESS} %")),
        (
            "rate that flaps",
            chance_of(FLAPPING.0, &format!("each {}", range_text(&FLAPPING.1, 1, "ms")))
                + &format!(", to {} and back", range_text(&FLAPPING.2, 1, "%")),
        ),
    ]
}

/// Describes buffers, congestion control and traffic of the hosts.
fn hosts() -> Vec<ScenarioRow> {
    vec![
        (
            "receiver's buffer",
            weights(&RECEIVE_BUFFERS, |range| {
                range.map_or("the system's".to_owned(), |range| range_text(&range, 1_000, "MB"))
            }),
        ),
        ("sender's buffer", chance_of(SEND_BUFFER.0, &range_text(&SEND_BUFFER.1, 1_000, "MB"))),
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
                range_text(&REQUEST, 1_000, "KB"),
                range_text(&REPLY, 1_000, "KB"),
                range_text(&REQUEST_PERIOD, 1, "ms")
            ),
            Self::Video => format!(
                "video of {} (both at most {MAX_APP_LOAD_PERCENT} % of the rates)",
                range_text(&VIDEO, 1_000, "Mbit/s")
            ),
        }
    }
}

fn weights<T>(entries: &[(u32, T)], text: impl Fn(&T) -> String) -> String {
    let descriptions: Vec<_> =
        entries.iter().map(|(percent, value)| format!("{percent} % {}", text(value))).collect();
    descriptions.join(", ")
}

fn chance_of(percent: u32, what: &str) -> String {
    format!("in {percent} %: {what}")
}

/// Formats a range whose ends are in `unit`-ths.
fn range_text([min, max]: &[u64; 2], unit: u64, name: &str) -> String {
    let in_unit = |value: &u64| format!("{}", *value as f64 / unit as f64);
    format!("{} to {} {name}", in_unit(min), in_unit(max))
}
