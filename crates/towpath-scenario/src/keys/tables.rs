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
    doc: "Units are mandatory:\n\n\
        - rates: `bit/s`, `kbit/s`, `Mbit/s`, `Gbit/s`\n\
        - times: `ns`, `us`, `ms`, `s`, `min`, `h`\n\
        - sizes: `B`, `KB`, `MB`, `GB` (powers of 1000), `KiB`, `MiB`, `GiB` (powers of 1024)\n\
        - shares: `%`\n\
        - queues: `packets`",
    key_groups: &[&[
        key("name", Name(64), Required, "Short name, also used for result files"),
        key("description", Text, Optional("empty"), "One or two sentences for lists and reports"),
        key("hosts", Named(&HOST, 32), Required, "2 to 64 hosts; the table of a host may be empty"),
        key(
            "paths",
            Named(&PATH, 12),
            Required,
            "1 to 64 paths; a connection starts on the first one between its hosts",
        ),
        key(
            "bottlenecks",
            Named(&BOTTLENECK, 32),
            Optional("none"),
            "Links that several paths share",
        ),
        key(
            "middleboxes",
            Tables(&MIDDLEBOX),
            Optional("none"),
            "Middleboxes that change packets, at most 64",
        ),
        key(
            "timeline",
            Tables(&EVENT),
            Optional("no events"),
            "Events during the run, such as a path that goes down",
        ),
        key("flows", Tables(&FLOW), Optional("none"), "Traffic of the run, at most 256 flows"),
        key("run", Table(&RUN), Optional("its defaults"), "Options of the run"),
        key(
            "expect",
            Table(&EXPECT),
            Optional("nothing"),
            "Bounds of metrics; a run that misses one fails",
        ),
    ]],
};

const THREE_SIZES: ValueKind = OneOf(&[Size, List(&Size)]);

pub(crate) static HOST: TableSchema = TableSchema {
    noun: "a host",
    heading: "[hosts.NAME]",
    doc: "A host is a network namespace with a kernel (emulated world) or a stack (simulated \
        world).",
    key_groups: &[
        &[
            key(
                "congestion-control",
                Text,
                Optional("that of `[run]`"),
                "Congestion control of the host's sockets; see [`[run]`](#run)",
            ),
            key(
                "receive-buffer",
                THREE_SIZES,
                Optional("the system's"),
                "Receive buffer (`tcp_rmem`): one size for all, or minimum, default and maximum; \
                 less than 2 GiB",
            ),
            key(
                "send-buffer",
                THREE_SIZES,
                Optional("the system's"),
                "Send buffer (`tcp_wmem`): one size for all, or minimum, default and maximum; \
                 less than 2 GiB",
            ),
            key(
                "sysctl",
                Table(&SYSCTL),
                Optional("none"),
                "Further settings of the host's network namespace; emulated world only",
            ),
            key(
                "mptcp",
                Table(&MPTCP),
                Optional("its defaults"),
                "Limits and endpoints of Multipath TCP",
            ),
        ],
        STACK,
    ],
};

/// Free keys that start with `net.`.
pub(crate) static SYSCTL: TableSchema = TableSchema {
    noun: "a table of sysctls",
    heading: "[hosts.NAME.sysctl]",
    doc: "Settings whose names start with `net.`. Each value is a string or an integer: \
        `\"net.mptcp.checksum_enabled\" = 1`.",
    key_groups: &[],
};

pub(crate) static MPTCP: TableSchema = TableSchema {
    noun: "a host's MPTCP settings",
    heading: "[hosts.NAME.mptcp]",
    doc: "Values of `ip mptcp limits` and `ip mptcp endpoint`. Linux takes 8 endpoints per host, where \
          an IPv4 and an IPv6 address on a path are two. The first ones are used; `towpath scenarios \
          check` names the paths that stay idle.",
    key_groups: &[&[
        key(
            "subflows",
            Integer(0, 8),
            Optional("8"),
            "Maximum number of subflows in addition to the first",
        ),
        key(
            "add-addr-accepted",
            Integer(0, 8),
            Optional("8"),
            "Maximum number of accepted addresses that the peer announces",
        ),
        key(
            "endpoints",
            List(&Table(&ENDPOINT)),
            Optional("`subflow` on every path whose first host is this host"),
            "Addresses that the host uses or announces; at most 8, and one for each path",
        ),
    ]],
};

pub(crate) static ENDPOINT: TableSchema = TableSchema {
    noun: "an endpoint",
    heading: "Endpoint",
    doc: "This host's address on a path, and its use by Multipath TCP. Flags:\n\n\
        - `subflow`: open a subflow from this address.\n\
        - `signal`: announce this address to the peer.\n\
        - `backup`: use this address only while no regular path works.\n\
        - `fullmesh`: open a subflow from this address to every address of the peer.\n\
        - `laminar`: open one subflow for each address that the peer announces (Linux 6.18).",
    key_groups: &[&[
        key("path", Name(12), Required, "Path that has the address; it must end at this host"),
        key(
            "flags",
            List(&Words(&["subflow", "signal", "backup", "fullmesh", "laminar"])),
            Required,
            "One or more of the flags above, as in `ip mptcp endpoint`; `signal` and `fullmesh` \
             exclude each other",
        ),
    ]],
};

const QUEUE_KIND: ValueKind =
    Sides(&OneOf(&[Duration, Size, Packets, Words(&["unlimited"]), Table(&QUEUE)]));

const RATE_KIND: ValueKind = OneOf(&[Rate, Table(&RATE)]);
const LOSS_KIND: ValueKind = OneOf(&[Percent, Table(&LOSS)]);

/// Keys common to paths and bottlenecks.
const LINK: &[KeySchema] = &[
    key(
        "rate",
        RATE_KIND,
        Optional("unlimited"),
        "Rate in bits per second, for each direction; greater than 0",
    ),
    key(
        "delay",
        Sides(&Duration),
        Optional("0 s"),
        "Propagation delay, one way, in each direction; at most 1 h",
    ),
    key("jitter", Table(&JITTER), Optional("none"), "Random variation of the delay"),
    key("loss", Sides(&LOSS_KIND), Optional("none"), "Random loss of packets, before the queue"),
    key("duplicate", Percent, Optional("0 %"), "Probability that a packet is duplicated"),
    key(
        "corrupt",
        Percent,
        Optional("0 %"),
        "Probability that one bit of a packet is flipped; the receiving kernel or stack discards \
         such a packet",
    ),
    key(
        "queue",
        QUEUE_KIND,
        Optional("100 ms if there is a rate"),
        "Droptail limit of the queue, or another kind of queue. A time means the bytes that the \
         rate carries in this time",
    ),
    key(
        "queue-position",
        Words(&["network", "host"]),
        Optional("`network`"),
        "Position of the queue. A full queue in the `network` drops packets; a full queue at the \
         `host` blocks the sender (backpressure)",
    )
    .formerly("position"),
    key(
        "preset",
        Words(&["tbf", "netem", "htb+netem", "mininet", "mahimahi"]),
        Optional("a plain router"),
        "Queueing rules of a tool, with the given rate, delay and queue limit; see [Link \
         presets](#link-presets)",
    ),
    key(
        "overhead",
        Integer(0, 1_000),
        Optional("14"),
        "Bytes that each packet occupies on the link in addition to its IP length (14: Ethernet \
         header)",
    ),
    key(
        "link-mtu",
        Integer(68, 65_535),
        Optional("that of the interfaces"),
        "Silently drop IP packets of more bytes (path MTU black hole); on a path, less than `mtu`",
    ),
    key(
        "when-down",
        Words(&["drop", "hold"]),
        Optional("`drop`"),
        "Packets on a link that goes down: lost (`drop`), or kept in the queue until it is up \
         again (`hold`)",
    ),
];

pub(crate) static PATH: TableSchema = TableSchema {
    noun: "a path",
    heading: "[paths.NAME]",
    doc: "A duplex link with one interface on each of two hosts. `up` is the direction from the \
        first host to the second, `down` the opposite direction.",
    key_groups: &[
        &[key(
            "between",
            List(&Name(32)),
            Required,
            "The two hosts that the path connects, the client first",
        )],
        LINK,
        &[
            key(
                "mtu",
                Integer(576, 65_535),
                Optional("1500"),
                "MTU of both interfaces in bytes; IPv6 needs at least 1280",
            ),
            key(
                "backup",
                Bool,
                Optional("false"),
                "Give the default endpoints on this path the flag `backup`",
            ),
            key(
                "through",
                List(&Name(32)),
                Optional("none"),
                "Bottlenecks on the path, in order from the first host",
            ),
            key(
                "segmentation",
                Words(&["auto", "split", "coalesced"]),
                Optional("`auto`"),
                "Super-segments: split into packets of the MTU (`split`), kept (`coalesced`), or \
                 split if slower than 1 Gbit/s, lossy or with jitter (`auto`)",
            )
            .formerly("segments"),
        ],
    ],
};

pub(crate) static BOTTLENECK: TableSchema = TableSchema {
    noun: "a bottleneck",
    heading: "[bottlenecks.NAME]",
    doc: "A link that several paths share: they name it in `through`.",
    key_groups: &[LINK],
};

pub(crate) static SIDES: TableSchema = TableSchema {
    noun: "a pair of directions",
    heading: "Directions",
    doc: "Keys with this form accept `{ up = …, down = … }` instead of one value for both \
        directions.",
    key_groups: &[&[
        key("up", Text, Required, "Value from the first host to the second"),
        key("down", Text, Required, "Value from the second host to the first"),
    ]],
};

pub(crate) static RATE: TableSchema = TableSchema {
    noun: "a rate",
    heading: "Rate",
    doc: "Each direction has exactly one of a constant rate, its own trace, or the common trace. \
        A trace is a Mahimahi file; its path is relative to the scenario's folder.",
    key_groups: &[&[
        key(
            "up",
            Rate,
            Optional("see `up-trace`"),
            "Constant rate from the first host to the second",
        ),
        key(
            "down",
            Rate,
            Optional("see `down-trace`"),
            "Constant rate from the second host to the first",
        ),
        key(
            "trace",
            Text,
            Optional("none"),
            "File of delivery opportunities (1504 bytes each) for both directions; it repeats \
             without end",
        ),
        key("up-trace", Text, Optional("none"), "The same for `up` only"),
        key("down-trace", Text, Optional("none"), "The same for `down` only"),
    ]],
};

pub(crate) static JITTER: TableSchema = TableSchema {
    noun: "a jitter",
    heading: "Jitter",
    doc: "Random variation of the delay, with the parameters and distribution tables of `tc \
        netem`.",
    key_groups: &[&[
        key(
            "distribution",
            Words(&["uniform", "normal", "pareto", "pareto-normal"]),
            Optional("`normal`"),
            "Distribution of the variation",
        ),
        key(
            "sd",
            Duration,
            Required,
            "Width of the distribution, as netem's `jitter`; with `uniform` the delay varies by \
             at most this time; at most 1 h",
        ),
        key(
            "reorder",
            Bool,
            Optional("false; with a preset, as netem"),
            "If `true`, a packet with a shorter delay may overtake an earlier packet",
        ),
    ]],
};

pub(crate) static LOSS: TableSchema = TableSchema {
    noun: "a loss",
    heading: "Loss",
    doc: "A loss that depends on earlier packets. Give exactly one of:",
    key_groups: &[&[
        key(
            "gilbert-elliott",
            Table(&GILBERT_ELLIOTT),
            Optional("—"),
            "Good and bad state with different losses, as in `netem loss gemodel`",
        ),
        key("burst", Table(&BURST), Optional("—"), "Loss of several consecutive packets"),
    ]],
};

pub(crate) static GILBERT_ELLIOTT: TableSchema = TableSchema {
    noun: "a Gilbert-Elliott loss",
    heading: "Gilbert-Elliott loss",
    doc: "The link is in a good or a bad state. All probabilities apply to each packet.",
    key_groups: &[&[
        key("p", Percent, Required, "Probability of the change from good to bad"),
        key("r", Percent, Required, "Probability of the change from bad to good"),
        key("loss-in-bad", Percent, Optional("100 %"), "Loss probability in the bad state (1−h)"),
        key("loss-in-good", Percent, Optional("0 %"), "Loss probability in the good state (1−k)"),
    ]],
};

pub(crate) static BURST: TableSchema = TableSchema {
    noun: "a burst loss",
    heading: "Burst loss",
    doc: "Bursts of consecutive packets are lost.",
    key_groups: &[&[
        key("start", Percent, Required, "Probability that a burst starts at a packet"),
        key("length", Packets, Required, "Number of packets that are lost in a burst"),
    ]],
};

pub(crate) static QUEUE: TableSchema = TableSchema {
    noun: "a queue",
    heading: "Queue",
    doc: "Instead of a droptail limit, give exactly one of:",
    key_groups: &[&[
        key("tbf", Table(&TBF), Optional("—"), "Token bucket, as `tc tbf`"),
        key(
            "htb",
            Table(&HTB),
            Optional("—"),
            "Class of `tc htb` with netem as its child: the delay comes before the rate",
        ),
        key("codel", Table(&CODEL), Optional("—"), "Active queue management CoDel (RFC 8289)"),
        key("pie", Table(&PIE), Optional("—"), "Active queue management PIE (RFC 8033)"),
    ]],
};

pub(crate) static TBF: TableSchema = TableSchema {
    noun: "a tbf queue",
    heading: "Queue tbf",
    doc: "Give either `latency` or `limit`, as for `tc tbf`.",
    key_groups: &[&[
        key(
            "burst",
            Size,
            Required,
            "Size of the token bucket; an idle link forwards this many bytes immediately",
        ),
        key(
            "latency",
            Duration,
            Optional("see `limit`"),
            "Maximum waiting time in the queue; as in `tc`, the burst is added to the resulting \
             limit",
        ),
        key("limit", Size, Optional("see `latency`"), "Maximum number of bytes in the queue"),
    ]],
};

pub(crate) static HTB: TableSchema = TableSchema {
    noun: "an htb queue",
    heading: "Queue htb",
    doc: "One class of `tc htb`; its ceiling is its rate.",
    key_groups: &[&[
        key(
            "burst",
            Size,
            Optional("1600 B"),
            "Bytes that the class may send at full speed, as `burst` of `tc htb`",
        ),
        key(
            "cburst",
            Size,
            Optional("1600 B"),
            "The same for the ceiling, as `cburst` of `tc htb`",
        ),
        key(
            "limit",
            Packets,
            Optional("1000 packets"),
            "Limit of netem: packets in the delay and in the queue together",
        ),
    ]],
};

const HARD_LIMIT: ValueKind = OneOf(&[Duration, Size, Packets, Words(&["unlimited"])]);

pub(crate) static CODEL: TableSchema = TableSchema {
    noun: "a codel queue",
    heading: "Queue codel",
    doc: "Controlled delay: drops packets when they leave the queue.",
    key_groups: &[&[
        key("target", Duration, Optional("5 ms"), "Acceptable standing delay of the queue"),
        key(
            "interval",
            Duration,
            Optional("100 ms"),
            "Time above the target before the first drop",
        ),
        key(
            "limit",
            HARD_LIMIT,
            Optional("1000 packets"),
            "Size at which the queue drops all arrivals",
        ),
    ]],
};

pub(crate) static PIE: TableSchema = TableSchema {
    noun: "a pie queue",
    heading: "Queue pie",
    doc: "Proportional integral controller, enhanced: drops packets when they enter the queue.",
    key_groups: &[&[
        key("target", Duration, Optional("15 ms"), "Target delay of the queue"),
        key("update", Duration, Optional("15 ms"), "Time between updates of the drop probability"),
        key(
            "limit",
            HARD_LIMIT,
            Optional("1000 packets"),
            "Size at which the queue drops all arrivals",
        ),
    ]],
};

pub(crate) static EVENT: TableSchema = TableSchema {
    noun: "an event",
    heading: "[[timeline]]",
    doc: "A change of a path or a bottleneck during the run.",
    key_groups: &[&[
        key(
            "at",
            Duration,
            Required,
            "Time of the event, counted from the start of the traffic; not after the last flow",
        ),
        key("path", Name(12), Optional("see `bottleneck`"), "Path that changes"),
        key("bottleneck", Name(32), Optional("see `path`"), "Bottleneck that changes"),
        key(
            "set",
            Words(&["down", "up", "rate", "delay", "loss", "fade", "address"]),
            Required,
            "`down`, `up`: state of the link. `rate`, `delay`, `loss`: new value. `fade`: gradual \
             change of these values. `address`: new address of a host on the path",
        ),
        key(
            "mode",
            Words(&["silent", "carrier", "interface"]),
            Optional("`silent`"),
            "With `down`: drop packets silently, take the carrier from both hosts, or disable the \
             interface of one host; a bottleneck has only `silent`",
        )
        .formerly("how"),
        key(
            "host",
            Name(32),
            Optional("—"),
            "With mode `interface` and with `address`: the host that is affected",
        ),
        key("rate", Rate, Optional("—"), "With `rate` and `fade`: new rate"),
        key("delay", Duration, Optional("—"), "With `delay` and `fade`: new delay, one way"),
        key("loss", LOSS_KIND, Optional("—"), "With `loss` and `fade`: new loss"),
        key(
            "over",
            Duration,
            Optional("—"),
            "With `fade`: duration of the linear change, in steps of 50 ms; at most 1 h",
        ),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`both`"),
            "With `rate`, `delay`, `loss` and `fade`: direction that changes",
        ),
    ]],
};

pub(crate) static RUN: TableSchema = TableSchema {
    noun: "a run plan",
    heading: "[run]",
    doc: "Options of the run. Options of the command line override them. The keys from `stack` on \
        are the defaults of all hosts; [`[hosts.NAME]`](#hostsname) has the same keys.",
    key_groups: &[
        &[
            key(
                "transports",
                List(&Words(&["tcp", "mptcp", "quic", "mpquic"])),
                Optional("`[\"tcp\", \"mptcp\"]`"),
                "Transports to compare, in this order",
            ),
            key(
                "worlds",
                List(&Words(&["sim", "emu", "live"])),
                Optional("`[\"emu\"]`"),
                "Worlds: simulated (`sim`), emulated with real kernels (`emu`), or between two \
                 real hosts (`live`)",
            ),
            key("seed", Integer(0, i64::MAX as u64), Optional("1"), "Seed of all random draws"),
            key(
                "repeat",
                Integer(1, 1_000),
                Optional("1"),
                "Number of repetitions of each transport; each has its own seed",
            ),
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
                "Default congestion control of all hosts. Towpath's stack has `cubic`, `reno`, \
                 `lia`, `olia`, `balia`, `wvegas`; the kernel has its loaded modules",
            ),
        ],
        STACK,
    ],
};

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
