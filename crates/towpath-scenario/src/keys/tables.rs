//! Schemas of the tables.

use super::KeyPresence::{Optional, Required};
use super::ValueKind::{
    Bool, Bound, Duration, Integer, List, Name, Named, OneOf, Packets, Percent, Rate, Sides, Size,
    Table, Tables, Text, Words,
};
use super::flow::{FLOW, PATTERN_NAMES};
use super::stack::{MIDDLEBOX, PROFILE_SWITCHES, STACK};
use super::{KeySchema, TableSchema, ValueKind, key};
use crate::units::Dimension;

/// All schemas, in the order of the reference.
pub(crate) static ALL: [&TableSchema; 26] = [
    &SCENARIO,
    &HOST,
    &MPTCP,
    &ENDPOINT,
    &SYSCTL,
    &PROFILE_SWITCHES,
    &PATH,
    &BOTTLENECK,
    &SIDES,
    &RATE,
    &JITTER,
    &LOSS,
    &GILBERT_ELLIOTT,
    &BURST,
    &QUEUE,
    &TBF,
    &HTB,
    &CODEL,
    &PIE,
    &MIDDLEBOX,
    &EVENT,
    &FLOW,
    &RUN,
    &EXPECT,
    &PATTERN_NAMES,
    &METRIC_NAMES,
];

pub(crate) static SCENARIO: TableSchema = TableSchema {
    noun: "a scenario",
    heading: "Top level",
    doc: "Units are mandatory: `40 Mbit/s`, `15 ms`, `0.1 %`, `100 KB`, `50 packets`.",
    key_groups: &[&[
        key("name", Name(64), Required, "Short name, also used for result files"),
        key("description", Text, Optional("empty"), "One or two sentences for lists and reports"),
        key("hosts", Named(&HOST, 32), Required, "2 to 64 hosts; an empty table is enough"),
        key("paths", Named(&PATH, 12), Required, "1 to 64 paths; a connection starts on the first"),
        key(
            "bottlenecks",
            Named(&BOTTLENECK, 32),
            Optional("none"),
            "Queues that several paths share",
        ),
        key("middleboxes", Tables(&MIDDLEBOX), Optional("none"), "Middleboxes that change packets"),
        key("timeline", Tables(&EVENT), Optional("no events"), "Events during the run"),
        key("flows", Tables(&FLOW), Optional("none"), "What is sent"),
        key("run", Table(&RUN), Optional("its defaults"), "Options of the run"),
        key("expect", Table(&EXPECT), Optional("nothing"), "Bounds that are checked after the run"),
    ]],
};

const THREE_SIZES: ValueKind = OneOf(&[Size, List(&Size)]);

pub(crate) static HOST: TableSchema = TableSchema {
    noun: "a host",
    heading: "[hosts.NAME]",
    doc: "A host is a network namespace (emulated) or a stack (simulated).",
    key_groups: &[
        &[
            key(
                "congestion-control",
                Text,
                Optional("that of `[run]`"),
                "Congestion control of its sockets",
            ),
            key(
                "receive-buffer",
                THREE_SIZES,
                Optional("the system's"),
                "`tcp_rmem`: one size, or minimum, default and maximum",
            ),
            key(
                "send-buffer",
                THREE_SIZES,
                Optional("the system's"),
                "`tcp_wmem`: one size, or minimum, default and maximum",
            ),
            key("sysctl", Table(&SYSCTL), Optional("none"), "Further settings of its namespace"),
            key("mptcp", Table(&MPTCP), Optional("its defaults"), "Multipath TCP settings"),
        ],
        STACK,
    ],
};

/// Free keys that start with `net.`.
pub(crate) static SYSCTL: TableSchema = TableSchema {
    noun: "a table of sysctls",
    heading: "[hosts.NAME.sysctl]",
    doc: "Settings that start with `net.`, each a string or an integer: \
        `\"net.mptcp.checksum_enabled\" = 1`.",
    key_groups: &[],
};

pub(crate) static MPTCP: TableSchema = TableSchema {
    noun: "a host's MPTCP settings",
    heading: "[hosts.NAME.mptcp]",
    doc: "Values of `ip mptcp limits` and `ip mptcp endpoint`.",
    key_groups: &[&[
        key("subflows", Integer(0, 8), Optional("8"), "Limit of additional subflows"),
        key(
            "add-addr-accepted",
            Integer(0, 8),
            Optional("8"),
            "Limit of accepted announced addresses",
        ),
        key(
            "endpoints",
            List(&Table(&ENDPOINT)),
            Optional("`subflow` on every path whose first host is this host"),
            "At most 8 addresses to use or announce",
        ),
    ]],
};

pub(crate) static ENDPOINT: TableSchema = TableSchema {
    noun: "an endpoint",
    heading: "Endpoint",
    doc: "This host's address on a path, and its use.",
    key_groups: &[&[
        key("path", Name(12), Required, "The path; it must end at this host"),
        key(
            "flags",
            List(&Words(&["subflow", "signal", "backup", "fullmesh", "laminar"])),
            Required,
            "Flags of `ip mptcp endpoint`; `signal` and `fullmesh` exclude each other",
        ),
    ]],
};

const QUEUE_KIND: ValueKind =
    Sides(&OneOf(&[Duration, Size, Packets, Words(&["unlimited"]), Table(&QUEUE)]));

const RATE_KIND: ValueKind = OneOf(&[Rate, Table(&RATE)]);
const LOSS_KIND: ValueKind = OneOf(&[Percent, Table(&LOSS)]);

/// Keys common to paths and bottlenecks.
const LINK: &[KeySchema] = &[
    key("rate", RATE_KIND, Optional("unlimited"), "Rate of each direction"),
    key("delay", Sides(&Duration), Optional("0 s"), "Propagation delay, one way"),
    key("jitter", Table(&JITTER), Optional("none"), "Variation of the delay"),
    key("loss", Sides(&LOSS_KIND), Optional("none"), "Random loss, before the queue"),
    key("duplicate", Percent, Optional("0 %"), "Share of packets that are duplicated"),
    key("corrupt", Percent, Optional("0 %"), "Share of packets with one flipped bit"),
    key(
        "queue",
        QUEUE_KIND,
        Optional("100 ms if there is a rate"),
        "Droptail limit, or another kind of queue",
    ),
    key(
        "queue-position",
        Words(&["network", "host"]),
        Optional("`network`"),
        "Position of the queue; at the `host`, it exerts backpressure on the sender",
    )
    .formerly("position"),
    key(
        "preset",
        Words(&["tbf", "netem", "htb+netem", "mininet", "mahimahi"]),
        Optional("a plain router"),
        "Reproduce this tool's behaviour exactly, with the given rate, delay and queue",
    ),
    key(
        "overhead",
        Integer(0, 1_000),
        Optional("14"),
        "Bytes added to the IP length of each packet (14: Ethernet)",
    ),
    key(
        "link-mtu",
        Integer(68, 65_535),
        Optional("that of the interfaces"),
        "Larger packets are dropped silently (path MTU black hole)",
    ),
    key(
        "when-down",
        Words(&["drop", "hold"]),
        Optional("`drop`"),
        "Treatment of queued packets when the link goes down",
    ),
];

pub(crate) static PATH: TableSchema = TableSchema {
    noun: "a path",
    heading: "[paths.NAME]",
    doc: "A duplex link with one interface on each of two hosts. \
        `up` is from the first host to the second.",
    key_groups: &[
        &[key("between", List(&Name(32)), Required, "The two hosts; the phone or client first")],
        LINK,
        &[
            key(
                "mtu",
                Integer(576, 65_535),
                Optional("1500"),
                "MTU of both interfaces; IPv6 needs 1280",
            ),
            key(
                "backup",
                Bool,
                Optional("false"),
                "Default endpoints on this path have the flag `backup`",
            ),
            key(
                "through",
                List(&Name(32)),
                Optional("none"),
                "Bottlenecks on the path, starting at the first host",
            ),
            key(
                "segmentation",
                Words(&["auto", "split", "coalesced"]),
                Optional("`auto`"),
                "Super-segments in the emulator: split into MTU packets, or passed as they are (`coalesced`)",
            )
            .formerly("segments"),
        ],
    ],
};

pub(crate) static BOTTLENECK: TableSchema = TableSchema {
    noun: "a bottleneck",
    heading: "[bottlenecks.NAME]",
    doc: "Queue and server that several paths share.",
    key_groups: &[LINK],
};

pub(crate) static SIDES: TableSchema = TableSchema {
    noun: "a pair of directions",
    heading: "Directions",
    doc: "`{ up = …, down = … }` instead of one value for both.",
    key_groups: &[&[
        key("up", Text, Required, "From the first host to the second"),
        key("down", Text, Required, "From the second host to the first"),
    ]],
};

pub(crate) static RATE: TableSchema = TableSchema {
    noun: "a rate",
    heading: "Rate",
    doc: "One entry for each direction. Traces are Mahimahi files, relative to the scenario's folder.",
    key_groups: &[&[
        key("up", Rate, Optional("see `up-trace`"), "From the first host to the second"),
        key("down", Rate, Optional("see `down-trace`"), "From the second host to the first"),
        key("trace", Text, Optional("none"), "File of delivery opportunities, for both directions"),
        key("up-trace", Text, Optional("none"), "The same for `up` alone"),
        key("down-trace", Text, Optional("none"), "The same for `down` alone"),
    ]],
};

pub(crate) static JITTER: TableSchema = TableSchema {
    noun: "a jitter",
    heading: "Jitter",
    doc: "Parameters as in netem.",
    key_groups: &[&[
        key(
            "distribution",
            Words(&["uniform", "normal", "pareto", "pareto-normal"]),
            Optional("`normal`"),
            "Shape",
        ),
        key("sd", Duration, Required, "netem's `jitter`; for `uniform` half the width"),
        key(
            "reorder",
            Bool,
            Optional("false; with a preset, as netem"),
            "`true`: a packet may overtake another",
        ),
    ]],
};

pub(crate) static LOSS: TableSchema = TableSchema {
    noun: "a loss",
    heading: "Loss",
    doc: "Exactly one of:",
    key_groups: &[&[
        key(
            "gilbert-elliott",
            Table(&GILBERT_ELLIOTT),
            Optional("—"),
            "Good and bad state, as in `netem loss gemodel`",
        ),
        key("burst", Table(&BURST), Optional("—"), "Runs of lost packets"),
    ]],
};

pub(crate) static GILBERT_ELLIOTT: TableSchema = TableSchema {
    noun: "a Gilbert-Elliott loss",
    heading: "Gilbert-Elliott loss",
    doc: "Two states; probabilities are per packet.",
    key_groups: &[&[
        key("p", Percent, Required, "From good to bad"),
        key("r", Percent, Required, "From bad to good"),
        key("loss-in-bad", Percent, Optional("100 %"), "Loss in the bad state (1−h)"),
        key("loss-in-good", Percent, Optional("0 %"), "Loss in the good state (1−k)"),
    ]],
};

pub(crate) static BURST: TableSchema = TableSchema {
    noun: "a burst loss",
    heading: "Burst loss",
    doc: "Runs of consecutive packets are lost.",
    key_groups: &[&[
        key("start", Percent, Required, "Probability that a burst starts at a packet"),
        key("length", Packets, Required, "Packets lost in a burst"),
    ]],
};

pub(crate) static QUEUE: TableSchema = TableSchema {
    noun: "a queue",
    heading: "Queue",
    doc: "Instead of a droptail limit, exactly one of:",
    key_groups: &[&[
        key("tbf", Table(&TBF), Optional("—"), "`tc tbf`: a token bucket"),
        key(
            "htb",
            Table(&HTB),
            Optional("—"),
            "`tc htb` with netem as its child: delay first, then the server",
        ),
        key("codel", Table(&CODEL), Optional("—"), "CoDel (RFC 8289)"),
        key("pie", Table(&PIE), Optional("—"), "PIE (RFC 8033)"),
    ]],
};

pub(crate) static TBF: TableSchema = TableSchema {
    noun: "a tbf queue",
    heading: "Queue tbf",
    doc: "Give `latency` or `limit`, as for `tc`.",
    key_groups: &[&[
        key("burst", Size, Required, "Bucket size; an idle link forwards this amount immediately"),
        key(
            "latency",
            Duration,
            Optional("see `limit`"),
            "Maximum waiting time; `tc` adds the burst",
        ),
        key("limit", Size, Optional("see `latency`"), "Maximum number of waiting bytes"),
    ]],
};

pub(crate) static HTB: TableSchema = TableSchema {
    noun: "an htb queue",
    heading: "Queue htb",
    doc: "One class whose ceil is its rate.",
    key_groups: &[&[
        key("burst", Size, Optional("1600 B"), "As for `tc`"),
        key("cburst", Size, Optional("1600 B"), "As for `tc`"),
        key(
            "limit",
            Packets,
            Optional("1000 packets"),
            "netem's limit: packets in delay and in the queue",
        ),
    ]],
};

const HARD_LIMIT: ValueKind = OneOf(&[Duration, Size, Packets, Words(&["unlimited"])]);

pub(crate) static CODEL: TableSchema = TableSchema {
    noun: "a codel queue",
    heading: "Queue codel",
    doc: "Controlled delay.",
    key_groups: &[&[
        key("target", Duration, Optional("5 ms"), "Acceptable standing delay"),
        key("interval", Duration, Optional("100 ms"), "Sliding window"),
        key("limit", HARD_LIMIT, Optional("1000 packets"), "Hard limit"),
    ]],
};

pub(crate) static PIE: TableSchema = TableSchema {
    noun: "a pie queue",
    heading: "Queue pie",
    doc: "Proportional integral controller, enhanced.",
    key_groups: &[&[
        key("target", Duration, Optional("15 ms"), "Target delay"),
        key("update", Duration, Optional("15 ms"), "Time between updates of the drop probability"),
        key("limit", HARD_LIMIT, Optional("1000 packets"), "Hard limit"),
    ]],
};

pub(crate) static EVENT: TableSchema = TableSchema {
    noun: "an event",
    heading: "[[timeline]]",
    doc: "Event on a path or a bottleneck.",
    key_groups: &[&[
        key("at", Duration, Required, "Time since the start of the traffic"),
        key("path", Name(12), Optional("see `bottleneck`"), "Path of the event"),
        key("bottleneck", Name(32), Optional("see `path`"), "Bottleneck of the event"),
        key(
            "set",
            Words(&["down", "up", "rate", "delay", "loss", "fade", "address"]),
            Required,
            "What changes",
        ),
        key(
            "mode",
            Words(&["silent", "carrier", "interface"]),
            Optional("`silent`"),
            "With `down`: packets are dropped silently, both hosts lose the carrier, or one host's interface is disabled",
        )
        .formerly("how"),
        key(
            "host",
            Name(32),
            Optional("—"),
            "With mode `interface`, and with `address`: the affected host",
        ),
        key("rate", Rate, Optional("—"), "With `rate` and `fade`: the new rate"),
        key("delay", Duration, Optional("—"), "With `delay` and `fade`: the new delay"),
        key("loss", LOSS_KIND, Optional("—"), "With `loss` and `fade`: the new loss"),
        key("over", Duration, Optional("—"), "With `fade`: duration, in steps of 50 ms"),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`both`"),
            "With `rate`, `delay`, `loss` and `fade`",
        ),
    ]],
};

pub(crate) static RUN: TableSchema = TableSchema {
    noun: "a run plan",
    heading: "[run]",
    doc: "Options of the run; the command line can override them.",
    key_groups: &[
        &[
            key(
                "transports",
                List(&Words(&["tcp", "mptcp", "quic", "mpquic"])),
                Optional("`[\"tcp\", \"mptcp\"]`"),
                "Transports to compare, in order",
            ),
            key(
                "worlds",
                List(&Words(&["sim", "emu", "live"])),
                Optional("`[\"emu\"]`"),
                "Simulated, emulated, or between real hosts",
            ),
            key("seed", Integer(0, i64::MAX as u64), Optional("1"), "Seed of all random draws"),
            key("repeat", Integer(1, 1_000), Optional("1"), "Repetitions of each transport"),
            key(
                "sample",
                Duration,
                Optional("100 ms"),
                "Sampling period of the time series, 10 ms to 1 s",
            ),
            key(
                "congestion-control",
                Text,
                Optional("`cubic`"),
                "Default congestion control of all hosts. Towpath's stack has `cubic`, `reno`, `lia`, `olia`, `balia`, `wvegas`; the kernel has its loaded modules",
            ),
        ],
        STACK,
    ],
};

/// Keys of the form `[transport.]metric`; see [`METRICS`].
pub(crate) static EXPECT: TableSchema = TableSchema {
    noun: "a table of expectations",
    heading: "[expect]",
    doc: "`\"[TRANSPORT.]METRIC\" = \"OPERATOR VALUE\"`, such as \
        `\"mptcp.goodput\" = \">= 15 Mbit/s\"`; operators are `<`, `<=`, `==`, `>=` and `>`. \
        Without a transport, it applies to each.",
    key_groups: &[],
};

/// Names of the metrics, for the reference.
pub(crate) static METRIC_NAMES: TableSchema = TableSchema {
    noun: "a metric",
    heading: "Metrics",
    doc: "Metrics of expectations.",
    key_groups: &[&[
        key(
            "goodput",
            Bound,
            Optional("a rate"),
            "Application bytes at the receiver, divided by the flow's duration",
        ),
        key(
            "completed",
            Bound,
            Optional("`true` or `false`"),
            "`true` if all bytes arrived, or if the flow lasted its duration without an error",
        ),
        key("delay.p50", Bound, Optional("a time"), "Median delay of replies"),
        key("delay.p90", Bound, Optional("a time"), "90th percentile of the delay of replies"),
        key("delay.p99", Bound, Optional("a time"), "99th percentile of the delay of replies"),
        key("delay.p999", Bound, Optional("a time"), "99.9th percentile of the delay of replies"),
        key("delay.max", Bound, Optional("a time"), "Largest delay"),
        key("unanswered", Bound, Optional("a number"), "Requests without a reply"),
        key("video.startup", Bound, Optional("a time"), "Time until the first frame of a video"),
        key("video.stalls", Bound, Optional("a number"), "Number of rebuffer events"),
        key("video.rebuffer", Bound, Optional("a time"), "Total rebuffer time"),
        key("web.load", Bound, Optional("a time"), "Time until all objects of a page had arrived"),
        key("stall.longest", Bound, Optional("a time"), "Longest stall of a transfer"),
        key("stall.total", Bound, Optional("a time"), "Sum of all stalls"),
        key(
            "recovery",
            Bound,
            Optional("a time"),
            "Time from the slowest event until goodput is back to 90 %",
        ),
        key("deficit", Bound, Optional("a size"), "Shortfall in bytes because of events"),
        key("retransmissions", Bound, Optional("a number"), "Retransmitted segments"),
        key("subflows", Bound, Optional("a number"), "Subflows that carried data"),
        key("paths", Bound, Optional("a number"), "Paths that carried data"),
        key(
            "share.PATH",
            Bound,
            Optional("a percentage"),
            "Share of the bytes that this path carried",
        ),
        key(
            "udping.lost.PATH",
            Bound,
            Optional("a percentage"),
            "Share of the datagrams over this path that did not return",
        ),
        key(
            "udping.p50.PATH",
            Bound,
            Optional("a time"),
            "Median round-trip time of these datagrams",
        ),
        key(
            "udping.p99.PATH",
            Bound,
            Optional("a time"),
            "99th percentile of their round-trip time",
        ),
        key("udping.max.PATH", Bound, Optional("a time"), "The largest"),
        key(
            "udping.silence.PATH",
            Bound,
            Optional("a time"),
            "Longest time without a returned datagram",
        ),
        key(
            "udp.lost",
            Bound,
            Optional("a percentage"),
            "Share of the datagrams of `udp` that were lost",
        ),
        key("udp.burst", Bound, Optional("a number"), "Longest run of lost datagrams"),
        key("udp.jitter", Bound, Optional("a time"), "Mean of their interarrival jitter"),
        key(
            "udp.delay.p99",
            Bound,
            Optional("a time"),
            "99th percentile of the one-way delay (not between real hosts)",
        ),
        key("udp.variation.p99", Bound, Optional("a time"), "The same, minus the smallest delay"),
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
            "Median of `latency` with load down, minus the idle median",
        ),
        key(
            "latency.rise.up",
            Bound,
            Optional("a time"),
            "Median of `latency` with load up, minus the idle median",
        ),
        key(
            "latency.rise.both",
            Bound,
            Optional("a time"),
            "Median of `latency` with load both ways, minus the idle median",
        ),
        key(
            "latency.rpm.down",
            Bound,
            Optional("a number"),
            "Round trips per minute of `latency` with load down",
        ),
        key(
            "latency.rpm.up",
            Bound,
            Optional("a number"),
            "Round trips per minute of `latency` with load up",
        ),
        key(
            "latency.rpm.both",
            Bound,
            Optional("a number"),
            "Round trips per minute of `latency` with load both ways",
        ),
        key("connect", Bound, Optional("a time"), "Time to open the connection"),
        key(
            "reinjected",
            Bound,
            Optional("a size"),
            "Bytes reinjected on another subflow (own stack only)",
        ),
        key(
            "discarded",
            Bound,
            Optional("a size"),
            "Bytes that arrived more than once (own stack only)",
        ),
        key(
            "reorder_peak",
            Bound,
            Optional("a size"),
            "Largest number of bytes that waited for earlier data at the receiver (own stack only)",
        ),
        key(
            "window_blocked",
            Bound,
            Optional("a time"),
            "Time for which the receive window stopped a sender (own stack only)",
        ),
        key(
            "penalisations",
            Bound,
            Optional("a number"),
            "Number of penalisations (M2) of a path (own stack only)",
        ),
        key(
            "cpu_per_gb",
            Bound,
            Optional("a time"),
            "Processor time of both hosts per gigabyte delivered (not simulated)",
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
