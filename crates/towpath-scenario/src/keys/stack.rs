//! Schema of the stack keys and of middleboxes.

use super::KeyPresence::{Optional, Required};
use super::ValueKind::{Bool, Duration, Name, Table, Words};
use super::{KeySchema, TableSchema, ValueKind, key};

/// Keys common to `[run]` and hosts.
pub(super) const STACK: &[KeySchema] = &[
    key(
        "stack",
        Words(&["kernel", "towpath"]),
        Optional("that of `[run]`, else `kernel`"),
        "Whose TCP and MPTCP; the simulated world has only ours. All that follows is for `towpath`",
    ),
    key(
        "profile",
        Words(&["linux-6.18", "linux-6.x", "linux-3.2-mptcp", "ideal"]),
        Optional("that of `[run]`, else `linux-6.18`"),
        "What the host around our stack is like",
    ),
    key(
        "profile-switches",
        Table(&PROFILE_SWITCHES),
        Optional("the profile's"),
        "Deviations from the profile",
    ),
    key(
        "scheduler",
        Name(32),
        Optional("that of `[run]`, else the profile's"),
        "Which subflow carries the next data: `linux`, `min-rtt`, `round-robin`, `redundant`, `blest`, \
         `ecf`, `pushing`, `backup-aware`, `aggregate`, `apple-handover`, `apple-interactive`, \
         `apple-interactive-assist`",
    ),
    key(
        "path-manager",
        Name(32),
        Optional("that of `[run]`, else the profile's"),
        "Which subflows there are: `default`, `rejoin`, `fullmesh`, `ndiffports`, `single`",
    ),
    key(
        "opportunistic-retransmission",
        OPPORTUNISTIC_MODES,
        Optional("`off`; with `linux-3.2-mptcp` `mptcp-org`"),
        "M1: resend on a fast path what blocks the window",
    ),
    key(
        "penalisation",
        OPPORTUNISTIC_MODES,
        Optional("`off`; with `linux-3.2-mptcp` `mptcp-org`"),
        "M2: slow the path down that blocks the window",
    ),
    key("checksum", Bool, Optional("false"), "Require DSS checksums"),
    key(
        "receive-buffer-mode",
        Words(&["linux", "fixed", "barre2011"]),
        Optional("`linux`; with `ideal` `fixed`"),
        "How the receive buffer grows",
    ),
    key(
        "mss",
        Words(&["own", "smallest"]),
        Optional("`own`"),
        "Packet size of each subflow: its own, or that of the smallest",
    ),
    key(
        "path-policy",
        Words(&["aggregate", "backup", "ios"]),
        Optional("`aggregate`"),
        "Multipath QUIC: all paths at once, the first one until it fails, or until it is slow",
    ),
    key(
        "quic-congestion-control",
        Name(32),
        Optional("that of its sockets"),
        "Congestion control of QUIC: `newreno`, `noq-cubic`, `bbr` (emulated only), or one of TCP's",
    ),
];

const OPPORTUNISTIC_MODES: ValueKind = Words(&["off", "nsdi12", "mptcp-org"]);

pub(crate) static PROFILE_SWITCHES: TableSchema = TableSchema {
    noun: "a profile's switches",
    heading: "Profile switches",
    doc: "Single deviations from the profile, so that each one's effect can be seen. What is \
        missing is as the profile has it.",
    key_groups: &[&[
        key(
            "delayed-ack",
            Bool,
            Optional("all: true"),
            "Acknowledgements wait for a second packet, at most 40 ms",
        ),
        key(
            "tso-autosizing",
            Bool,
            Optional("`linux-6.18`, `linux-6.x`: true, else false"),
            "Super-segments of about 1 ms, sent in one burst",
        ),
        key(
            "tsq",
            Bool,
            Optional("`linux-6.18`, `linux-6.x`: true, else false"),
            "TCP small queues: stop when the host's own queue holds about 1 ms",
        ),
        key(
            "linear-syn",
            Bool,
            Optional("`linux-6.18`, `linux-6.x`: true, else false"),
            "The first four repetitions of a SYN come each second, before the time doubles",
        ),
        key(
            "timer-granularity",
            Duration,
            Optional("Linux: 4 ms, `ideal`: 0 ms"),
            "Timers fire at multiples of it",
        ),
        key("hystart", Bool, Optional("all: true"), "Leave slow start before packets are lost"),
        key(
            "linux-hystart",
            Bool,
            Optional("`linux-6.18`: true, else false"),
            "Leave it by Linux's rule (CUBIC only: ACK trains and delay), not by RFC 9406",
        ),
        key("pacing", Bool, Optional("false"), "Spread packets over the round-trip time"),
        key(
            "rmem-scaling",
            Bool,
            Optional("Linux: true, `ideal`: false"),
            "Two fifths of the receive buffer are overhead and not offered as window",
        ),
        key(
            "window-overstep",
            Bool,
            Optional("`linux-6.18`: true, else false"),
            "Linux's slip: what a subflow's window was raised to counts as told",
        ),
        key("cpu-per-packet", Duration, Optional("0 ms"), "Processor time of each packet"),
        key(
            "segmentation-offload",
            Bool,
            Optional("false"),
            "The network card cuts super-segments: each takes the time of one packet",
        ),
    ]],
};

pub(crate) static MIDDLEBOX: TableSchema = TableSchema {
    noun: "a middlebox",
    heading: "[[middleboxes]]",
    doc: "A box at the first host's end of a path that changes packets (simulated only).",
    key_groups: &[&[
        key("path", Name(12), Required, "The path"),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`both`"),
            "Which packets it sees; `nat` and `shift-sequence` see both",
        ),
        key(
            "action",
            Words(&[
                "strip-mptcp",
                "strip-mptcp-syn",
                "strip-dss",
                "strip-add-addr",
                "split",
                "coalesce",
                "nat",
                "shift-sequence",
                "rewrite-payload",
            ]),
            Required,
            "What it does",
        )
        .formerly("do"),
    ]],
};
