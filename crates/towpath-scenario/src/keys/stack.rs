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
        "TCP and MPTCP stack; the simulated world has only `towpath`. The keys below apply to `towpath`",
    ),
    key(
        "profile",
        Words(&["linux-6.18", "linux-6.x", "linux-3.2-mptcp", "ideal"]),
        Optional("that of `[run]`, else `linux-6.18`"),
        "Behaviour of the host and the stack: a Linux version, the kernel of multipath-tcp.org, or an ideal host",
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
        "Scheduler, which selects the subflow for the next data: `linux`, `min-rtt`, `round-robin`, `redundant`, `blest`, \
         `ecf`, `pushing`, `backup-aware`, `aggregate`, `apple-handover`, `apple-interactive`, \
         `apple-interactive-assist`",
    ),
    key(
        "path-manager",
        Name(32),
        Optional("that of `[run]`, else the profile's"),
        "Path manager, which opens the subflows: `default`, `rejoin`, `fullmesh`, `ndiffports`, `single`",
    ),
    key(
        "opportunistic-retransmission",
        OPPORTUNISTIC_MODES,
        Optional("`off`; with `linux-3.2-mptcp` `mptcp-org`"),
        "Opportunistic retransmission (M1): reinject data that blocks the receive window on a faster path",
    ),
    key(
        "penalisation",
        OPPORTUNISTIC_MODES,
        Optional("`off`; with `linux-3.2-mptcp` `mptcp-org`"),
        "Penalisation (M2): slow down a path that blocks the receive window",
    ),
    key("checksum", Bool, Optional("false"), "Require DSS checksums"),
    key(
        "receive-buffer-mode",
        Words(&["linux", "fixed", "barre2011"]),
        Optional("`linux`; with `ideal` `fixed`"),
        "Growth of the receive buffer",
    ),
    key(
        "mss",
        Words(&["own", "smallest"]),
        Optional("`own`"),
        "Packet size of each subflow: its own, or that of the subflow with the smallest packets",
    ),
    key(
        "path-policy",
        Words(&["aggregate", "backup", "ios"]),
        Optional("`aggregate`"),
        "Use of paths by Multipath QUIC: all paths, the first path until it fails (`backup`), or until it is slow (`ios`)",
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
    doc: "Single deviations from the profile, to show the effect of each. Missing keys have the value of the profile.",
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
            "The first four retransmissions of a SYN follow at intervals of one second, before the interval doubles",
        ),
        key(
            "timer-granularity",
            Duration,
            Optional("Linux: 4 ms, `ideal`: 0 ms"),
            "Timers fire at multiples of this time",
        ),
        key("hystart", Bool, Optional("all: true"), "Leave slow start before packets are lost"),
        key(
            "linux-hystart",
            Bool,
            Optional("`linux-6.18`: true, else false"),
            "Leave slow start by Linux's HyStart (CUBIC only: ACK trains and delay) instead of RFC 9406",
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
            "Linux's error: the raised window of a subflow counts as announced",
        ),
        key("cpu-per-packet", Duration, Optional("0 ms"), "Processor time per packet"),
        key(
            "segmentation-offload",
            Bool,
            Optional("false"),
            "The network card splits super-segments: each costs the time of one packet",
        ),
    ]],
};

pub(crate) static MIDDLEBOX: TableSchema = TableSchema {
    noun: "a middlebox",
    heading: "[[middleboxes]]",
    doc: "Middlebox at the first host's end of a path that changes packets (simulated only).",
    key_groups: &[&[
        key("path", Name(12), Required, "The path"),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`both`"),
            "Direction of the packets it sees; `nat` and `shift-sequence` see both",
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
