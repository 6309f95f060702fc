//! Schemas of the tables.

use super::KeyPresence::{Optional, Required};
use super::ValueKind::{
    Duration, Integer, List, Name, Named, OneOf, Rate, Size, Table, Tables, Text, Words,
};
use super::expectation::{EXPECT, METRIC_NAMES};
use super::flow::{FLOW, PATTERN_NAMES};
use super::link::{
    BOTTLENECK, BURST, CODEL, GILBERT_ELLIOTT, HTB, JITTER, LOSS, LOSS_KIND, PATH, PIE, QUEUE,
    RATE, SIDES, TBF,
};
use super::stack::{MIDDLEBOX, PROFILE_SWITCHES, STACK};
use super::{TableSchema, ValueKind, key};

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
            "Addresses that the host uses or announces; at most 8, and at most one for each path",
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
