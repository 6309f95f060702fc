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
        key("name", Name(64), Required, "Short name, also of result files"),
        key("description", Text, Optional("empty"), "One or two sentences for lists and reports"),
        key("hosts", Named(&HOST, 32), Required, "2 to 64 hosts; an empty table is enough"),
        key("paths", Named(&PATH, 12), Required, "1 to 64 paths; a connection starts on the first"),
        key(
            "bottlenecks",
            Named(&BOTTLENECK, 32),
            Optional("none"),
            "Queues that several paths share",
        ),
        key("middleboxes", Tables(&MIDDLEBOX), Optional("none"), "Boxes that change packets"),
        key("timeline", Tables(&EVENT), Optional("nothing happens"), "What happens during the run"),
        key("flows", Tables(&FLOW), Optional("none"), "What is sent"),
        key("run", Table(&RUN), Optional("its defaults"), "How it is run"),
        key("expect", Table(&EXPECT), Optional("nothing"), "What is checked after the run"),
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
    doc: "Settings that start with `net.`, each a text or an integer: \
        `\"net.mptcp.checksum_enabled\" = 1`.",
    key_groups: &[],
};

pub(crate) static MPTCP: TableSchema = TableSchema {
    noun: "a host's MPTCP settings",
    heading: "[hosts.NAME.mptcp]",
    doc: "As `ip mptcp limits` and `ip mptcp endpoint` set them.",
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
            Optional("`subflow` on every path whose first end is this host"),
            "At most 8 addresses to use or announce",
        ),
    ]],
};

pub(crate) static ENDPOINT: TableSchema = TableSchema {
    noun: "an endpoint",
    heading: "Endpoint",
    doc: "This host's address on a path, and what it is for.",
    key_groups: &[&[
        key("path", Name(12), Required, "The path; it must end at this host"),
        key(
            "flags",
            List(&Words(&["subflow", "signal", "backup", "fullmesh", "laminar"])),
            Required,
            "As `ip mptcp endpoint` has them; `signal` and `fullmesh` exclude each other",
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
    key("duplicate", Percent, Optional("0 %"), "Packets that enter twice"),
    key("corrupt", Percent, Optional("0 %"), "Packets with one flipped bit"),
    key(
        "queue",
        QUEUE_KIND,
        Optional("100 ms where there is a rate"),
        "Droptail limit, or another kind of queue",
    ),
    key(
        "queue-position",
        Words(&["network", "host"]),
        Optional("`network`"),
        "Where the queue stands; at the `host` it pushes back on the sender",
    )
    .formerly("position"),
    key(
        "preset",
        Words(&["tbf", "netem", "htb+netem", "mininet", "mahimahi"]),
        Optional("a plain router"),
        "Behave exactly as this tool does, with the given rate, delay and queue",
    ),
    key(
        "overhead",
        Integer(0, 1_000),
        Optional("14"),
        "Bytes that each packet adds to its IP length when it is charged (14: Ethernet)",
    ),
    key(
        "link-mtu",
        Integer(68, 65_535),
        Optional("that of the interfaces"),
        "Larger packets vanish: a black hole for path MTU discovery",
    ),
    key(
        "when-down",
        Words(&["drop", "hold"]),
        Optional("`drop`"),
        "What happens to queued packets when the link goes down",
    ),
];

pub(crate) static PATH: TableSchema = TableSchema {
    noun: "a path",
    heading: "[paths.NAME]",
    doc: "A duplex link with one interface on each of two hosts. \
        `up` is from the first host to the second.",
    key_groups: &[
        &[key("between", List(&Name(32)), Required, "The two hosts; a phone or client first")],
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
                "Default endpoints on it carry the flag `backup`",
            ),
            key(
                "through",
                List(&Name(32)),
                Optional("none"),
                "Bottlenecks on the way, from the first host",
            ),
            key(
                "segmentation",
                Words(&["auto", "split", "coalesced"]),
                Optional("`auto`"),
                "Whether the emulator splits super-segments into MTU packets",
            )
            .formerly("segments"),
        ],
    ],
};

pub(crate) static BOTTLENECK: TableSchema = TableSchema {
    noun: "a bottleneck",
    heading: "[bottlenecks.NAME]",
    doc: "A queue and server that several paths pass through.",
    key_groups: &[LINK],
};

pub(crate) static SIDES: TableSchema = TableSchema {
    noun: "a pair of directions",
    heading: "Directions",
    doc: "`{ up = …, down = … }` in place of one value for both.",
    key_groups: &[&[
        key("up", Text, Required, "From the first host to the second"),
        key("down", Text, Required, "From the second host to the first"),
    ]],
};

pub(crate) static RATE: TableSchema = TableSchema {
    noun: "a rate",
    heading: "Rate",
    doc: "One entry for each direction. Traces are Mahimahi files, \
        found from the scenario's folder.",
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
    doc: "With netem's meaning of the parameters.",
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
            Optional("false; as netem does it with a preset"),
            "Whether a packet may overtake another",
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
            "A good and a bad state, as `netem loss gemodel`",
        ),
        key("burst", Table(&BURST), Optional("—"), "Runs of lost packets"),
    ]],
};

pub(crate) static GILBERT_ELLIOTT: TableSchema = TableSchema {
    noun: "a Gilbert-Elliott loss",
    heading: "Gilbert-Elliott loss",
    doc: "Two states; chances are per packet.",
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
    doc: "Whole runs of packets are lost.",
    key_groups: &[&[
        key("start", Percent, Required, "Chance that a burst starts at a packet"),
        key("length", Packets, Required, "Packets lost in a burst"),
    ]],
};

pub(crate) static QUEUE: TableSchema = TableSchema {
    noun: "a queue",
    heading: "Queue",
    doc: "In place of a droptail limit, exactly one of:",
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
        key("burst", Size, Required, "Bucket; an idle link passes this much at once"),
        key("latency", Duration, Optional("see `limit`"), "Longest wait; `tc` adds the burst"),
        key("limit", Size, Optional("see `latency`"), "Bytes that may wait"),
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
            "netem's limit: packets in delay and waiting",
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
    doc: "Something that happens to a path or a bottleneck.",
    key_groups: &[&[
        key("at", Duration, Required, "When, counted from the start of the traffic"),
        key("path", Name(12), Optional("see `bottleneck`"), "To this path"),
        key("bottleneck", Name(32), Optional("see `path`"), "To this bottleneck"),
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
            "With `down`: packets vanish, both ends lose the carrier, or one host's interface is \
             switched off",
        )
        .formerly("how"),
        key(
            "host",
            Name(32),
            Optional("—"),
            "With `down` by `interface`, and with `address`: whose",
        ),
        key("rate", Rate, Optional("—"), "With `rate` and `fade`: the new rate"),
        key("delay", Duration, Optional("—"), "With `delay` and `fade`: the new delay"),
        key("loss", LOSS_KIND, Optional("—"), "With `loss` and `fade`: the new loss"),
        key("over", Duration, Optional("—"), "With `fade`: how long it takes, in steps of 50 ms"),
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
    doc: "How the scenario is run; the command line can override it.",
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
                "Simulated, emulated, between real hosts",
            ),
            key("seed", Integer(0, i64::MAX as u64), Optional("1"), "Seed of all randomness"),
            key("repeat", Integer(1, 1_000), Optional("1"), "Repetitions of each"),
            key("sample", Duration, Optional("100 ms"), "Period of the series, 10 ms to 1 s"),
            key(
                "congestion-control",
                Text,
                Optional("`cubic`"),
                "Congestion control of every host that names none: towpath's stack has `cubic`, \
                 `reno`, `lia`, `olia`, `balia`, `wvegas`; the kernel what it has loaded",
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
        Without a transport it holds for each.",
    key_groups: &[],
};

/// Names of the metrics, for the reference.
pub(crate) static METRIC_NAMES: TableSchema = TableSchema {
    noun: "a metric",
    heading: "Metrics",
    doc: "What an expectation may be about.",
    key_groups: &[&[
        key(
            "goodput",
            Bound,
            Optional("a rate"),
            "Application bytes at the receiver, over the flow's time",
        ),
        key(
            "completed",
            Bound,
            Optional("`true` or `false`"),
            "Whether all bytes arrived, or the time was used up without an error",
        ),
        key("delay.p50", Bound, Optional("a time"), "Median delay of the answers to requests"),
        key("delay.p90", Bound, Optional("a time"), "The delay that 90 % of them do not exceed"),
        key("delay.p99", Bound, Optional("a time"), "The delay that 99 % of them do not exceed"),
        key("delay.p999", Bound, Optional("a time"), "The delay that 99.9 % of them do not exceed"),
        key("delay.max", Bound, Optional("a time"), "Largest delay"),
        key("unanswered", Bound, Optional("a number"), "Requests that were never answered"),
        key("video.startup", Bound, Optional("a time"), "Time until a video's first picture"),
        key("video.stalls", Bound, Optional("a number"), "Times that the picture stood still"),
        key("video.rebuffer", Bound, Optional("a time"), "For how long, all together"),
        key("web.load", Bound, Optional("a time"), "Time until everything on a page was there"),
        key(
            "stall.longest",
            Bound,
            Optional("a time"),
            "Longest time without progress of a transfer",
        ),
        key("stall.total", Bound, Optional("a time"), "All times without progress"),
        key(
            "recovery",
            Bound,
            Optional("a time"),
            "Time to 90 % of the earlier rate after the slowest event",
        ),
        key(
            "deficit",
            Bound,
            Optional("a size"),
            "Bytes that were not delivered because of events",
        ),
        key("retransmissions", Bound, Optional("a number"), "Retransmitted segments"),
        key("subflows", Bound, Optional("a number"), "Subflows that carried data"),
        key("paths", Bound, Optional("a number"), "Paths that carried data"),
        key(
            "share.PATH",
            Bound,
            Optional("a percentage"),
            "Part of the bytes that this path carried",
        ),
        key(
            "udping.lost.PATH",
            Bound,
            Optional("a percentage"),
            "Part of the datagrams over this path that did not come back",
        ),
        key("udping.p50.PATH", Bound, Optional("a time"), "Median time until they were back"),
        key(
            "udping.p99.PATH",
            Bound,
            Optional("a time"),
            "The time that 99 % of them do not exceed",
        ),
        key("udping.max.PATH", Bound, Optional("a time"), "The largest"),
        key(
            "udping.silence.PATH",
            Bound,
            Optional("a time"),
            "Longest time in which none came back",
        ),
        key(
            "udp.lost",
            Bound,
            Optional("a percentage"),
            "Part of the datagrams of `udp` that were lost",
        ),
        key("udp.burst", Bound, Optional("a number"), "Most of them that were lost in a row"),
        key("udp.jitter", Bound, Optional("a time"), "Mean of their interarrival jitter"),
        key(
            "udp.delay.p99",
            Bound,
            Optional("a time"),
            "One-way delay that 99 % of them do not exceed (not between real hosts)",
        ),
        key("udp.variation.p99", Bound, Optional("a time"), "The same, less the smallest delay"),
        key("call.score", Bound, Optional("a number"), "Mean opinion score of a call, 1 to 4.5"),
        key(
            "call.frames",
            Bound,
            Optional("a percentage"),
            "Part of the frames of a call's picture that were whole in time",
        ),
        key(
            "latency.rise.down",
            Bound,
            Optional("a time"),
            "Median of `latency` with a load down, less the idle one",
        ),
        key(
            "latency.rise.up",
            Bound,
            Optional("a time"),
            "Median of `latency` with a load up, less the idle one",
        ),
        key(
            "latency.rise.both",
            Bound,
            Optional("a time"),
            "Median of `latency` with a load both ways, less the idle one",
        ),
        key(
            "latency.rpm.down",
            Bound,
            Optional("a number"),
            "Round trips a minute of `latency` with a load down",
        ),
        key(
            "latency.rpm.up",
            Bound,
            Optional("a number"),
            "Round trips a minute of `latency` with a load up",
        ),
        key(
            "latency.rpm.both",
            Bound,
            Optional("a number"),
            "Round trips a minute of `latency` with a load both ways",
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
            "Bytes that arrived and were not needed any more (own stack only)",
        ),
        key(
            "reorder_peak",
            Bound,
            Optional("a size"),
            "Most bytes that waited for earlier data at the receiver (own stack only)",
        ),
        key(
            "window_blocked",
            Bound,
            Optional("a time"),
            "Time with data and room, but a full connection-level window (own stack only)",
        ),
        key(
            "penalisations",
            Bound,
            Optional("a number"),
            "Times that M2 slowed a path down (own stack only)",
        ),
        key(
            "cpu_per_gb",
            Bound,
            Optional("a time"),
            "Processor time of both ends for each gigabyte delivered (not simulated)",
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
