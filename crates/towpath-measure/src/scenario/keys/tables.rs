//! The tables themselves.

use super::Kind::{
    Bool, Bound, Duration, Integer, List, Name, Named, OneOf, Packets, Percent, Rate, Sides, Size,
    Table, Tables, Text, Words,
};
use super::Need::{Else, Required};
use super::flow::{FLOW, PATTERN_NAMES};
use super::stack::{MIDDLEBOX, STACK, SWITCHES};
use super::{Key, Kind, Shape, key};
use crate::scenario::units::Dimension;

/// All shapes, in the order of the reference.
pub(in crate::scenario) static ALL: [&Shape; 26] = [
    &SCENARIO,
    &HOST,
    &MPTCP,
    &ENDPOINT,
    &SYSCTL,
    &SWITCHES,
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

pub(in crate::scenario) static SCENARIO: Shape = Shape {
    noun: "a scenario",
    heading: "Top level",
    doc: "Units are mandatory: `40 Mbit/s`, `15 ms`, `0.1 %`, `100 KB`, `50 packets`.",
    groups: &[&[
        key("name", Name(64), Required, "Short name, also of result files"),
        key("description", Text, Else("empty"), "One or two sentences for lists and reports"),
        key("hosts", Named(&HOST, 32), Required, "2 to 64 hosts; an empty table is enough"),
        key("paths", Named(&PATH, 12), Required, "1 to 64 paths; a connection starts on the first"),
        key("bottlenecks", Named(&BOTTLENECK, 32), Else("none"), "Queues that several paths share"),
        key("middleboxes", Tables(&MIDDLEBOX), Else("none"), "Boxes that change packets"),
        key("timeline", Tables(&EVENT), Else("nothing happens"), "What happens during the run"),
        key("flows", Tables(&FLOW), Else("none"), "What is sent"),
        key("run", Table(&RUN), Else("its defaults"), "How it is run"),
        key("expect", Table(&EXPECT), Else("nothing"), "What is checked after the run"),
    ]],
};

const THREE_SIZES: Kind = OneOf(&[Size, List(&Size)]);

pub(in crate::scenario) static HOST: Shape = Shape {
    noun: "a host",
    heading: "[hosts.NAME]",
    doc: "A host is a network namespace (emulated) or a stack (simulated).",
    groups: &[
        &[
            key(
                "congestion-control",
                Text,
                Else("that of `[run]`"),
                "Congestion control of its sockets",
            ),
            key(
                "receive-buffer",
                THREE_SIZES,
                Else("the system's"),
                "`tcp_rmem`: one size, or minimum, default and maximum",
            ),
            key(
                "send-buffer",
                THREE_SIZES,
                Else("the system's"),
                "`tcp_wmem`: one size, or minimum, default and maximum",
            ),
            key("sysctl", Table(&SYSCTL), Else("none"), "Further settings of its namespace"),
            key("mptcp", Table(&MPTCP), Else("its defaults"), "Multipath TCP settings"),
        ],
        STACK,
    ],
};

/// Its keys are free but for the prefix `net.`.
pub(in crate::scenario) static SYSCTL: Shape = Shape {
    noun: "a table of sysctls",
    heading: "[hosts.NAME.sysctl]",
    doc: "Settings that start with `net.`, each a text or an integer: \
        `\"net.mptcp.checksum_enabled\" = 1`.",
    groups: &[],
};

pub(in crate::scenario) static MPTCP: Shape = Shape {
    noun: "a host's MPTCP settings",
    heading: "[hosts.NAME.mptcp]",
    doc: "As `ip mptcp limits` and `ip mptcp endpoint` set them.",
    groups: &[&[
        key("subflows", Integer(0, 8), Else("8"), "Limit of additional subflows"),
        key("add-addr-accepted", Integer(0, 8), Else("8"), "Limit of accepted announced addresses"),
        key(
            "endpoints",
            List(&Table(&ENDPOINT)),
            Else("`subflow` on every path whose first end is this host"),
            "At most 8 addresses to use or announce",
        ),
    ]],
};

pub(in crate::scenario) static ENDPOINT: Shape = Shape {
    noun: "an endpoint",
    heading: "Endpoint",
    doc: "This host's address on a path, and what it is for.",
    groups: &[&[
        key("path", Name(12), Required, "The path; it must end at this host"),
        key(
            "flags",
            List(&Words(&["subflow", "signal", "backup", "fullmesh", "laminar"])),
            Required,
            "As `ip mptcp endpoint` has them; `signal` and `fullmesh` exclude each other",
        ),
    ]],
};

const QUEUE_KIND: Kind =
    Sides(&OneOf(&[Duration, Size, Packets, Words(&["unlimited"]), Table(&QUEUE)]));

const RATE_KIND: Kind = OneOf(&[Rate, Table(&RATE)]);
const LOSS_KIND: Kind = OneOf(&[Percent, Table(&LOSS)]);

/// What paths and bottlenecks have in common.
const LINK: &[Key] = &[
    key("rate", RATE_KIND, Else("unlimited"), "Rate of each direction"),
    key("delay", Sides(&Duration), Else("0 s"), "Propagation delay, one way"),
    key("jitter", Table(&JITTER), Else("none"), "Variation of the delay"),
    key("loss", Sides(&LOSS_KIND), Else("none"), "Random loss, before the queue"),
    key("duplicate", Percent, Else("0 %"), "Packets that enter twice"),
    key("corrupt", Percent, Else("0 %"), "Packets with one flipped bit"),
    key(
        "queue",
        QUEUE_KIND,
        Else("100 ms where there is a rate"),
        "Droptail limit, or another kind of queue",
    ),
    key(
        "position",
        Words(&["network", "host"]),
        Else("`network`"),
        "Where the queue stands; at the `host` it pushes back on the sender",
    ),
    key(
        "preset",
        Words(&["tbf", "netem", "htb+netem", "mininet", "mahimahi"]),
        Else("a plain router"),
        "Behave exactly as this tool does, with the given rate, delay and queue",
    ),
    key(
        "overhead",
        Integer(0, 1_000),
        Else("14"),
        "Bytes that each packet adds to its IP length when it is charged (14: Ethernet)",
    ),
    key(
        "link-mtu",
        Integer(68, 65_535),
        Else("that of the interfaces"),
        "Larger packets vanish: a black hole for path MTU discovery",
    ),
    key(
        "when-down",
        Words(&["drop", "hold"]),
        Else("`drop`"),
        "What happens to queued packets when the link goes down",
    ),
];

pub(in crate::scenario) static PATH: Shape = Shape {
    noun: "a path",
    heading: "[paths.NAME]",
    doc: "A duplex link with one interface on each of two hosts. \
        `up` is from the first host to the second.",
    groups: &[
        &[key("between", List(&Name(32)), Required, "The two hosts; a phone or client first")],
        LINK,
        &[
            key(
                "mtu",
                Integer(576, 65_535),
                Else("1500"),
                "MTU of both interfaces; IPv6 needs 1280",
            ),
            key("backup", Bool, Else("false"), "Default endpoints on it carry the flag `backup`"),
            key(
                "through",
                List(&Name(32)),
                Else("none"),
                "Bottlenecks on the way, from the first host",
            ),
            key(
                "segments",
                Words(&["auto", "split", "coalesced"]),
                Else("`auto`"),
                "Whether the emulator splits super-segments into MTU packets",
            ),
        ],
    ],
};

pub(in crate::scenario) static BOTTLENECK: Shape = Shape {
    noun: "a bottleneck",
    heading: "[bottlenecks.NAME]",
    doc: "A queue and server that several paths pass through.",
    groups: &[LINK],
};

pub(in crate::scenario) static SIDES: Shape = Shape {
    noun: "a pair of directions",
    heading: "Directions",
    doc: "`{ up = …, down = … }` in place of one value for both.",
    groups: &[&[
        key("up", Text, Required, "From the first host to the second"),
        key("down", Text, Required, "From the second host to the first"),
    ]],
};

pub(in crate::scenario) static RATE: Shape = Shape {
    noun: "a rate",
    heading: "Rate",
    doc: "One entry for each direction. Traces are Mahimahi files, \
        found from the scenario's folder.",
    groups: &[&[
        key("up", Rate, Else("see `up-trace`"), "From the first host to the second"),
        key("down", Rate, Else("see `down-trace`"), "From the second host to the first"),
        key("trace", Text, Else("none"), "File of delivery opportunities, for both directions"),
        key("up-trace", Text, Else("none"), "The same for `up` alone"),
        key("down-trace", Text, Else("none"), "The same for `down` alone"),
    ]],
};

pub(in crate::scenario) static JITTER: Shape = Shape {
    noun: "a jitter",
    heading: "Jitter",
    doc: "With netem's meaning of the parameters.",
    groups: &[&[
        key(
            "distribution",
            Words(&["uniform", "normal", "pareto", "pareto-normal"]),
            Else("`normal`"),
            "Shape",
        ),
        key("sd", Duration, Required, "netem's `jitter`; for `uniform` half the width"),
        key(
            "reorder",
            Bool,
            Else("false; as netem does it with a preset"),
            "Whether a packet may overtake another",
        ),
    ]],
};

pub(in crate::scenario) static LOSS: Shape = Shape {
    noun: "a loss",
    heading: "Loss",
    doc: "Exactly one of:",
    groups: &[&[
        key(
            "gilbert-elliott",
            Table(&GILBERT_ELLIOTT),
            Else("—"),
            "A good and a bad state, as `netem loss gemodel`",
        ),
        key("burst", Table(&BURST), Else("—"), "Runs of lost packets"),
    ]],
};

pub(in crate::scenario) static GILBERT_ELLIOTT: Shape = Shape {
    noun: "a Gilbert-Elliott loss",
    heading: "Gilbert-Elliott loss",
    doc: "Two states; chances are per packet.",
    groups: &[&[
        key("p", Percent, Required, "From good to bad"),
        key("r", Percent, Required, "From bad to good"),
        key("loss-in-bad", Percent, Else("100 %"), "Loss in the bad state (1−h)"),
        key("loss-in-good", Percent, Else("0 %"), "Loss in the good state (1−k)"),
    ]],
};

pub(in crate::scenario) static BURST: Shape = Shape {
    noun: "a burst loss",
    heading: "Burst loss",
    doc: "Whole runs of packets are lost.",
    groups: &[&[
        key("start", Percent, Required, "Chance that a burst starts at a packet"),
        key("length", Packets, Required, "Packets lost in a burst"),
    ]],
};

pub(in crate::scenario) static QUEUE: Shape = Shape {
    noun: "a queue",
    heading: "Queue",
    doc: "In place of a droptail limit, exactly one of:",
    groups: &[&[
        key("tbf", Table(&TBF), Else("—"), "`tc tbf`: a token bucket"),
        key(
            "htb",
            Table(&HTB),
            Else("—"),
            "`tc htb` with netem as its child: delay first, then the server",
        ),
        key("codel", Table(&CODEL), Else("—"), "CoDel (RFC 8289)"),
        key("pie", Table(&PIE), Else("—"), "PIE (RFC 8033)"),
    ]],
};

pub(in crate::scenario) static TBF: Shape = Shape {
    noun: "a tbf queue",
    heading: "Queue tbf",
    doc: "Give `latency` or `limit`, as for `tc`.",
    groups: &[&[
        key("burst", Size, Required, "Bucket; an idle link passes this much at once"),
        key("latency", Duration, Else("see `limit`"), "Longest wait; `tc` adds the burst"),
        key("limit", Size, Else("see `latency`"), "Bytes that may wait"),
    ]],
};

pub(in crate::scenario) static HTB: Shape = Shape {
    noun: "an htb queue",
    heading: "Queue htb",
    doc: "One class whose ceil is its rate.",
    groups: &[&[
        key("burst", Size, Else("1600 B"), "As for `tc`"),
        key("cburst", Size, Else("1600 B"), "As for `tc`"),
        key("limit", Packets, Else("1000 packets"), "netem's limit: packets in delay and waiting"),
    ]],
};

const HARD_LIMIT: Kind = OneOf(&[Duration, Size, Packets, Words(&["unlimited"])]);

pub(in crate::scenario) static CODEL: Shape = Shape {
    noun: "a codel queue",
    heading: "Queue codel",
    doc: "Controlled delay.",
    groups: &[&[
        key("target", Duration, Else("5 ms"), "Acceptable standing delay"),
        key("interval", Duration, Else("100 ms"), "Sliding window"),
        key("limit", HARD_LIMIT, Else("1000 packets"), "Hard limit"),
    ]],
};

pub(in crate::scenario) static PIE: Shape = Shape {
    noun: "a pie queue",
    heading: "Queue pie",
    doc: "Proportional integral controller, enhanced.",
    groups: &[&[
        key("target", Duration, Else("15 ms"), "Target delay"),
        key("update", Duration, Else("15 ms"), "Time between updates of the drop probability"),
        key("limit", HARD_LIMIT, Else("1000 packets"), "Hard limit"),
    ]],
};

pub(in crate::scenario) static EVENT: Shape = Shape {
    noun: "an event",
    heading: "[[timeline]]",
    doc: "Something that happens to a path or a bottleneck.",
    groups: &[&[
        key("at", Duration, Required, "When, counted from the start of the traffic"),
        key("path", Name(12), Else("see `bottleneck`"), "To this path"),
        key("bottleneck", Name(32), Else("see `path`"), "To this bottleneck"),
        key(
            "set",
            Words(&["down", "up", "rate", "delay", "loss", "fade", "address"]),
            Required,
            "What changes",
        ),
        key(
            "how",
            Words(&["silent", "carrier", "interface"]),
            Else("`silent`"),
            "With `down`: packets vanish, both ends lose the carrier, or one host's interface is \
             switched off",
        ),
        key("host", Name(32), Else("—"), "With `down` by `interface`, and with `address`: whose"),
        key("rate", Rate, Else("—"), "With `rate` and `fade`: the new rate"),
        key("delay", Duration, Else("—"), "With `delay` and `fade`: the new delay"),
        key("loss", LOSS_KIND, Else("—"), "With `loss` and `fade`: the new loss"),
        key("over", Duration, Else("—"), "With `fade`: how long it takes, in steps of 50 ms"),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Else("`both`"),
            "With `rate`, `delay`, `loss` and `fade`",
        ),
    ]],
};

pub(in crate::scenario) static RUN: Shape = Shape {
    noun: "a run plan",
    heading: "[run]",
    doc: "How the scenario is run; the command line can override it.",
    groups: &[
        &[
            key(
                "transports",
                List(&Words(&["tcp", "mptcp", "quic", "mpquic"])),
                Else("`[\"tcp\", \"mptcp\"]`"),
                "Transports to compare, in order",
            ),
            key(
                "worlds",
                List(&Words(&["sim", "emu", "live"])),
                Else("`[\"emu\"]`"),
                "Simulated, emulated, between real hosts",
            ),
            key("seed", Integer(0, i64::MAX as u64), Else("1"), "Seed of all randomness"),
            key("repeat", Integer(1, 1_000), Else("1"), "Repetitions of each"),
            key("sample", Duration, Else("100 ms"), "Period of the series, 10 ms to 1 s"),
            key(
                "congestion-control",
                Text,
                Else("`cubic`"),
                "Congestion control of every host that names none: towpath's stack has `cubic`, \
                 `reno`, `lia`, `olia`, `balia`, `wvegas`; the kernel what it has loaded",
            ),
        ],
        STACK,
    ],
};

/// Its keys are `[transport.]metric`; see [`METRICS`].
pub(in crate::scenario) static EXPECT: Shape = Shape {
    noun: "a table of expectations",
    heading: "[expect]",
    doc: "`\"[TRANSPORT.]METRIC\" = \"OPERATOR VALUE\"`, such as \
        `\"mptcp.goodput\" = \">= 15 Mbit/s\"`; operators are `<`, `<=`, `==`, `>=` and `>`. \
        Without a transport it holds for each.",
    groups: &[],
};

/// The metrics, as the reference shows them.
pub(in crate::scenario) static METRIC_NAMES: Shape = Shape {
    noun: "a metric",
    heading: "Metrics",
    doc: "What an expectation may be about.",
    groups: &[&[
        key(
            "goodput",
            Bound,
            Else("a rate"),
            "Application bytes at the receiver, over the flow's time",
        ),
        key(
            "completed",
            Bound,
            Else("`true` or `false`"),
            "Whether all bytes arrived, or the time was used up without an error",
        ),
        key("delay.p50", Bound, Else("a time"), "Median delay of the answers to requests"),
        key("delay.p90", Bound, Else("a time"), "The delay that 90 % of them do not exceed"),
        key("delay.p99", Bound, Else("a time"), "The delay that 99 % of them do not exceed"),
        key("delay.p999", Bound, Else("a time"), "The delay that 99.9 % of them do not exceed"),
        key("delay.max", Bound, Else("a time"), "Largest delay"),
        key("unanswered", Bound, Else("a number"), "Requests that were never answered"),
        key("video.startup", Bound, Else("a time"), "Time until a video's first picture"),
        key("video.stalls", Bound, Else("a number"), "Times that the picture stood still"),
        key("video.rebuffer", Bound, Else("a time"), "For how long, all together"),
        key("web.load", Bound, Else("a time"), "Time until everything on a page was there"),
        key("stall.longest", Bound, Else("a time"), "Longest time without progress of a transfer"),
        key("stall.total", Bound, Else("a time"), "All times without progress"),
        key(
            "recovery",
            Bound,
            Else("a time"),
            "Time to 90 % of the earlier rate after the slowest event",
        ),
        key("deficit", Bound, Else("a size"), "Bytes that were not delivered because of events"),
        key("retransmissions", Bound, Else("a number"), "Segments sent again"),
        key("subflows", Bound, Else("a number"), "Subflows that carried data"),
        key("paths", Bound, Else("a number"), "Paths that carried data"),
        key("share.PATH", Bound, Else("a percentage"), "Part of the bytes that this path carried"),
        key(
            "udping.lost.PATH",
            Bound,
            Else("a percentage"),
            "Part of the datagrams over this path that did not come back",
        ),
        key("udping.p50.PATH", Bound, Else("a time"), "Median time until they were back"),
        key("udping.p99.PATH", Bound, Else("a time"), "The time that 99 % of them do not exceed"),
        key("udping.max.PATH", Bound, Else("a time"), "The largest"),
        key("udping.silence.PATH", Bound, Else("a time"), "Longest time in which none came back"),
        key(
            "udp.lost",
            Bound,
            Else("a percentage"),
            "Part of the datagrams of `udp` that were lost",
        ),
        key("udp.burst", Bound, Else("a number"), "Most of them that were lost in a row"),
        key("udp.jitter", Bound, Else("a time"), "Mean of their interarrival jitter"),
        key(
            "udp.delay.p99",
            Bound,
            Else("a time"),
            "One-way delay that 99 % of them do not exceed (not between real hosts)",
        ),
        key("udp.variation.p99", Bound, Else("a time"), "The same, less the smallest delay"),
        key("call.score", Bound, Else("a number"), "Mean opinion score of a call, 1 to 4.5"),
        key(
            "call.frames",
            Bound,
            Else("a percentage"),
            "Part of the frames of a call's picture that were whole in time",
        ),
        key(
            "latency.rise.down",
            Bound,
            Else("a time"),
            "Median of `latency` with a load down, less the idle one",
        ),
        key(
            "latency.rise.up",
            Bound,
            Else("a time"),
            "Median of `latency` with a load up, less the idle one",
        ),
        key(
            "latency.rise.both",
            Bound,
            Else("a time"),
            "Median of `latency` with a load both ways, less the idle one",
        ),
        key(
            "latency.rpm.down",
            Bound,
            Else("a number"),
            "Round trips a minute of `latency` with a load down",
        ),
        key(
            "latency.rpm.up",
            Bound,
            Else("a number"),
            "Round trips a minute of `latency` with a load up",
        ),
        key(
            "latency.rpm.both",
            Bound,
            Else("a number"),
            "Round trips a minute of `latency` with a load both ways",
        ),
        key("connect", Bound, Else("a time"), "Time to open the connection"),
        key(
            "reinjected",
            Bound,
            Else("a size"),
            "Bytes sent again on another subflow (own stack only)",
        ),
        key(
            "discarded",
            Bound,
            Else("a size"),
            "Bytes that arrived and were not needed any more (own stack only)",
        ),
        key(
            "reorder_peak",
            Bound,
            Else("a size"),
            "Most bytes that waited for earlier data at the receiver (own stack only)",
        ),
        key(
            "window_blocked",
            Bound,
            Else("a time"),
            "Time with data and room, but a full connection-level window (own stack only)",
        ),
        key(
            "penalisations",
            Bound,
            Else("a number"),
            "Times that M2 slowed a path down (own stack only)",
        ),
        key(
            "cpu_per_gb",
            Bound,
            Else("a time"),
            "Processor time of both ends for each gigabyte delivered (not simulated)",
        ),
    ]],
};

/// A metric that an expectation may be about, and what its bound is.
pub(in crate::scenario) static METRICS: [(&str, Metric); 45] = [
    ("goodput", Metric::Quantity(Dimension::Rate)),
    ("completed", Metric::Truth),
    ("delay.p50", Metric::Quantity(Dimension::Duration)),
    ("delay.p90", Metric::Quantity(Dimension::Duration)),
    ("delay.p99", Metric::Quantity(Dimension::Duration)),
    ("delay.p999", Metric::Quantity(Dimension::Duration)),
    ("delay.max", Metric::Quantity(Dimension::Duration)),
    ("unanswered", Metric::Quantity(Dimension::Count)),
    ("video.startup", Metric::Quantity(Dimension::Duration)),
    ("video.stalls", Metric::Quantity(Dimension::Count)),
    ("video.rebuffer", Metric::Quantity(Dimension::Duration)),
    ("web.load", Metric::Quantity(Dimension::Duration)),
    ("stall.longest", Metric::Quantity(Dimension::Duration)),
    ("stall.total", Metric::Quantity(Dimension::Duration)),
    ("recovery", Metric::Quantity(Dimension::Duration)),
    ("deficit", Metric::Quantity(Dimension::Size)),
    ("retransmissions", Metric::Quantity(Dimension::Count)),
    ("subflows", Metric::Quantity(Dimension::Count)),
    ("paths", Metric::Quantity(Dimension::Count)),
    ("share.PATH", Metric::Quantity(Dimension::Share)),
    ("udping.lost.PATH", Metric::Quantity(Dimension::Share)),
    ("udping.p50.PATH", Metric::Quantity(Dimension::Duration)),
    ("udping.p99.PATH", Metric::Quantity(Dimension::Duration)),
    ("udping.max.PATH", Metric::Quantity(Dimension::Duration)),
    ("udping.silence.PATH", Metric::Quantity(Dimension::Duration)),
    ("udp.lost", Metric::Quantity(Dimension::Share)),
    ("udp.burst", Metric::Quantity(Dimension::Count)),
    ("udp.jitter", Metric::Quantity(Dimension::Duration)),
    ("udp.delay.p99", Metric::Quantity(Dimension::Duration)),
    ("udp.variation.p99", Metric::Quantity(Dimension::Duration)),
    ("call.score", Metric::Quantity(Dimension::Count)),
    ("call.frames", Metric::Quantity(Dimension::Share)),
    ("latency.rise.down", Metric::Quantity(Dimension::Duration)),
    ("latency.rise.up", Metric::Quantity(Dimension::Duration)),
    ("latency.rise.both", Metric::Quantity(Dimension::Duration)),
    ("latency.rpm.down", Metric::Quantity(Dimension::Count)),
    ("latency.rpm.up", Metric::Quantity(Dimension::Count)),
    ("latency.rpm.both", Metric::Quantity(Dimension::Count)),
    ("connect", Metric::Quantity(Dimension::Duration)),
    ("reinjected", Metric::Quantity(Dimension::Size)),
    ("discarded", Metric::Quantity(Dimension::Size)),
    ("reorder_peak", Metric::Quantity(Dimension::Size)),
    ("window_blocked", Metric::Quantity(Dimension::Duration)),
    ("penalisations", Metric::Quantity(Dimension::Count)),
    ("cpu_per_gb", Metric::Quantity(Dimension::Duration)),
];

/// What a metric's bound is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::scenario) enum Metric {
    Quantity(Dimension),
    /// `true` or `false`, measured as 1 or 0.
    Truth,
}
