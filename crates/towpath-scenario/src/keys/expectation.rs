//! Schema of `[expect]`: metrics and the kinds of their bounds.

use super::KeyPresence::Optional;
use super::ValueKind::Bound;
use super::{TableSchema, key};
use crate::units::Dimension;

/// Keys of the form `[transport.]metric`; see [`METRICS`].
pub(crate) static EXPECT: TableSchema = TableSchema {
    noun: "a table of expectations",
    heading: "[expect]",
    doc: "Each entry is a bound: `\"[TRANSPORT.]METRIC\" = \"OPERATOR VALUE\"`, such as \
        `\"mptcp.goodput\" = \">= 15 Mbit/s\"`. Operators are `<`, `<=`, `==`, `>=` and `>`. \
        Without a transport, the bound applies to every transport. [Metrics](#metrics) lists the \
        names.",
    key_groups: &[],
};

/// Names of the metrics, for the reference.
pub(crate) static METRIC_NAMES: TableSchema = TableSchema {
    noun: "a metric",
    heading: "Metrics",
    doc: "Names for `[expect]`. [Expectations](metrics.md#expectations) defines how several flows \
        are combined. A metric that was not measured makes the run fail. *Own stack* means a host \
        with `stack = \"towpath\"`.",
    key_groups: &[&[
        key(
            "goodput",
            Bound,
            Optional("a rate"),
            "Application bytes that the receiver read, divided by the duration of the flow; sum \
             of all flows",
        ),
        key(
            "completed",
            Bound,
            Optional("`true` or `false`"),
            "`true` if all bytes arrived, or if the flow lasted its planned duration without an \
             error",
        ),
        key(
            "delay.p50",
            Bound,
            Optional("a time"),
            "Median delay of replies, from the time at which the request was due",
        ),
        key("delay.p90", Bound, Optional("a time"), "90th percentile of the delay of replies"),
        key("delay.p99", Bound, Optional("a time"), "99th percentile of the delay of replies"),
        key("delay.p999", Bound, Optional("a time"), "99.9th percentile of the delay of replies"),
        key("delay.max", Bound, Optional("a time"), "Largest delay of a reply"),
        key("unanswered", Bound, Optional("a number"), "Number of requests without a reply"),
        key("video.startup", Bound, Optional("a time"), "Time until playback starts"),
        key(
            "video.stalls",
            Bound,
            Optional("a number"),
            "Number of times that playback stopped because the buffer was empty",
        ),
        key(
            "video.rebuffer",
            Bound,
            Optional("a time"),
            "Total time for which playback was stopped",
        ),
        key(
            "web.load",
            Bound,
            Optional("a time"),
            "Time until the page and all its objects had arrived",
        ),
        key(
            "stall.longest",
            Bound,
            Optional("a time"),
            "Longest gap between two arrivals of a transfer",
        ),
        key("stall.total", Bound, Optional("a time"), "Sum of all gaps of 100 ms and more"),
        key(
            "recovery",
            Bound,
            Optional("a time"),
            "Time from an event until goodput is back at 90 % of that before; the longest of all \
             events",
        ),
        key(
            "deficit",
            Bound,
            Optional("a size"),
            "Bytes that events cost: expected minus delivered bytes until recovery",
        ),
        key("retransmissions", Bound, Optional("a number"), "Number of retransmitted packets"),
        key(
            "subflows",
            Bound,
            Optional("a number"),
            "Number of subflows of a connection, of the connection with the fewest",
        ),
        key("paths", Bound, Optional("a number"), "Number of paths that carried data"),
        key(
            "share.PATH",
            Bound,
            Optional("a percentage"),
            "Share of the bytes that arrived over this path",
        ),
        key(
            "udping.lost.PATH",
            Bound,
            Optional("a percentage"),
            "Share of the `udping` datagrams over this path that were lost",
        ),
        key(
            "udping.p50.PATH",
            Bound,
            Optional("a time"),
            "Median delay of the `udping` datagrams over this path; a lost one counts with \
             `reply-timeout`",
        ),
        key("udping.p99.PATH", Bound, Optional("a time"), "99th percentile of the same delay"),
        key("udping.max.PATH", Bound, Optional("a time"), "Largest value of the same delay"),
        key(
            "udping.silence.PATH",
            Bound,
            Optional("a time"),
            "Longest time between two `udping` datagrams that came back",
        ),
        key(
            "udp.lost",
            Bound,
            Optional("a percentage"),
            "Share of the `udp` datagrams that were lost",
        ),
        key(
            "udp.burst",
            Bound,
            Optional("a number"),
            "Longest run of consecutive lost `udp` datagrams",
        ),
        key(
            "udp.jitter",
            Bound,
            Optional("a time"),
            "Mean interarrival jitter of the `udp` datagrams (RFC 3550)",
        ),
        key(
            "udp.delay.p99",
            Bound,
            Optional("a time"),
            "99th percentile of the one-way delay of `udp` datagrams; not in the live world",
        ),
        key(
            "udp.variation.p99",
            Bound,
            Optional("a time"),
            "99th percentile of the delay above the smallest delay of the flow",
        ),
        key("call.score", Bound, Optional("a number"), "Mean opinion score of a call, 1 to 4.5"),
        key(
            "call.frames",
            Bound,
            Optional("a percentage"),
            "Share of a call's video frames whose datagrams all arrived in time",
        ),
        key(
            "latency.rise.down",
            Bound,
            Optional("a time"),
            "Increase of the median delay of `latency` under load down, compared with the idle \
             phase",
        ),
        key(
            "latency.rise.up",
            Bound,
            Optional("a time"),
            "Increase of the median delay of `latency` under load up, compared with the idle \
             phase",
        ),
        key(
            "latency.rise.both",
            Bound,
            Optional("a time"),
            "Increase of the median delay of `latency` under load in both directions, compared \
             with the idle phase",
        ),
        key(
            "latency.rpm.down",
            Bound,
            Optional("a number"),
            "Round trips per minute of `latency` under load down",
        ),
        key(
            "latency.rpm.up",
            Bound,
            Optional("a number"),
            "Round trips per minute of `latency` under load up",
        ),
        key(
            "latency.rpm.both",
            Bound,
            Optional("a number"),
            "Round trips per minute of `latency` under load in both directions",
        ),
        key(
            "connect",
            Bound,
            Optional("a time"),
            "Time until the connections of the flow are open",
        ),
        key(
            "reinjected",
            Bound,
            Optional("a size"),
            "Bytes that were reinjected on another subflow; own stack only",
        ),
        key(
            "discarded",
            Bound,
            Optional("a size"),
            "Bytes that arrived although they had arrived before; own stack only",
        ),
        key(
            "reorder_peak",
            Bound,
            Optional("a size"),
            "Largest number of bytes that waited at the receiver for earlier data; own stack only",
        ),
        key(
            "window_blocked",
            Bound,
            Optional("a time"),
            "Time for which only the peer's receive window stopped the sender; own stack only",
        ),
        key(
            "penalisations",
            Bound,
            Optional("a number"),
            "Number of times that penalisation (M2) reduced a path's congestion window; own stack \
             only",
        ),
        key(
            "cpu_per_gb",
            Bound,
            Optional("a time"),
            "Processor time of both hosts per delivered gigabyte; not in the simulated world",
        ),
    ]],
};

/// Metrics for expectations, with the kind of their bounds.
pub(crate) static METRICS: [(&str, MetricKind); 45] = [
    ("goodput", MetricKind::Quantity(Dimension::Rate)),
    ("completed", MetricKind::Truth),
    ("delay.p50", MetricKind::Quantity(Dimension::Duration)),
    ("delay.p90", MetricKind::Quantity(Dimension::Duration)),
    ("delay.p99", MetricKind::Quantity(Dimension::Duration)),
    ("delay.p999", MetricKind::Quantity(Dimension::Duration)),
    ("delay.max", MetricKind::Quantity(Dimension::Duration)),
    ("unanswered", MetricKind::Quantity(Dimension::Count)),
    ("video.startup", MetricKind::Quantity(Dimension::Duration)),
    ("video.stalls", MetricKind::Quantity(Dimension::Count)),
    ("video.rebuffer", MetricKind::Quantity(Dimension::Duration)),
    ("web.load", MetricKind::Quantity(Dimension::Duration)),
    ("stall.longest", MetricKind::Quantity(Dimension::Duration)),
    ("stall.total", MetricKind::Quantity(Dimension::Duration)),
    ("recovery", MetricKind::Quantity(Dimension::Duration)),
    ("deficit", MetricKind::Quantity(Dimension::Size)),
    ("retransmissions", MetricKind::Quantity(Dimension::Count)),
    ("subflows", MetricKind::Quantity(Dimension::Count)),
    ("paths", MetricKind::Quantity(Dimension::Count)),
    ("share.PATH", MetricKind::Quantity(Dimension::Share)),
    ("udping.lost.PATH", MetricKind::Quantity(Dimension::Share)),
    ("udping.p50.PATH", MetricKind::Quantity(Dimension::Duration)),
    ("udping.p99.PATH", MetricKind::Quantity(Dimension::Duration)),
    ("udping.max.PATH", MetricKind::Quantity(Dimension::Duration)),
    ("udping.silence.PATH", MetricKind::Quantity(Dimension::Duration)),
    ("udp.lost", MetricKind::Quantity(Dimension::Share)),
    ("udp.burst", MetricKind::Quantity(Dimension::Count)),
    ("udp.jitter", MetricKind::Quantity(Dimension::Duration)),
    ("udp.delay.p99", MetricKind::Quantity(Dimension::Duration)),
    ("udp.variation.p99", MetricKind::Quantity(Dimension::Duration)),
    ("call.score", MetricKind::Quantity(Dimension::Count)),
    ("call.frames", MetricKind::Quantity(Dimension::Share)),
    ("latency.rise.down", MetricKind::Quantity(Dimension::Duration)),
    ("latency.rise.up", MetricKind::Quantity(Dimension::Duration)),
    ("latency.rise.both", MetricKind::Quantity(Dimension::Duration)),
    ("latency.rpm.down", MetricKind::Quantity(Dimension::Count)),
    ("latency.rpm.up", MetricKind::Quantity(Dimension::Count)),
    ("latency.rpm.both", MetricKind::Quantity(Dimension::Count)),
    ("connect", MetricKind::Quantity(Dimension::Duration)),
    ("reinjected", MetricKind::Quantity(Dimension::Size)),
    ("discarded", MetricKind::Quantity(Dimension::Size)),
    ("reorder_peak", MetricKind::Quantity(Dimension::Size)),
    ("window_blocked", MetricKind::Quantity(Dimension::Duration)),
    ("penalisations", MetricKind::Quantity(Dimension::Count)),
    ("cpu_per_gb", MetricKind::Quantity(Dimension::Duration)),
];

/// Kind of a metric's bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Quantity(Dimension),
    /// Boolean bound, `true` or `false`, measured as 1 or 0.
    Truth,
}
