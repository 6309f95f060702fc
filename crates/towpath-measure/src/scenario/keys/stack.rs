//! The keys of our own stack and of what stands in its way.

use super::Kind::{Bool, Duration, Name, Table, Words};
use super::Need::{Else, Required};
use super::{Key, Kind, Shape, key};

/// What `[run]` and hosts have in common.
pub(super) const STACK: &[Key] = &[
    key(
        "stack",
        Words(&["kernel", "towpath"]),
        Else("that of `[run]`, else `kernel`"),
        "Whose TCP and MPTCP; the simulated world has only ours. All that follows is for `towpath`",
    ),
    key(
        "profile",
        Words(&["linux-6.18", "linux-6.x", "linux-3.2-mptcp", "ideal"]),
        Else("that of `[run]`, else `linux-6.18`"),
        "What the host around our stack is like",
    ),
    key("profile-switches", Table(&SWITCHES), Else("the profile's"), "Deviations from the profile"),
    key(
        "scheduler",
        Name(32),
        Else("that of `[run]`, else the profile's"),
        "Which subflow carries the next data: `linux`, `min-rtt`, `round-robin`, `redundant`, `blest`, \
         `ecf`, `pushing`, `backup-aware`, `aggregate`, `apple-handover`, `apple-interactive`, \
         `apple-interactive-assist`",
    ),
    key(
        "path-manager",
        Name(32),
        Else("that of `[run]`, else the profile's"),
        "Which subflows there are: `default`, `rejoin`, `fullmesh`, `ndiffports`, `single`",
    ),
    key(
        "opportunistic-retransmission",
        VARIANT,
        Else("`off`; with `linux-3.2-mptcp` `guarded`"),
        "M1: resend on a fast path what blocks the window",
    ),
    key(
        "penalisation",
        VARIANT,
        Else("`off`; with `linux-3.2-mptcp` `guarded`"),
        "M2: slow the path down that blocks the window",
    ),
    key("checksum", Bool, Else("false"), "Require DSS checksums"),
    key(
        "receive-buffer-mode",
        Words(&["linux", "fixed", "seed003"]),
        Else("`linux`; with `ideal` `fixed`"),
        "How the receive buffer grows",
    ),
    key(
        "mss",
        Words(&["own", "smallest"]),
        Else("`own`"),
        "Packet size of each subflow: its own, or that of the smallest",
    ),
    key(
        "path-policy",
        Words(&["aggregate", "backup", "ios"]),
        Else("`aggregate`"),
        "Multipath QUIC: all paths at once, the first one until it fails, or until it is slow",
    ),
    key(
        "quic-congestion-control",
        Name(32),
        Else("that of its sockets"),
        "Congestion control of QUIC: `newreno`, `noq-cubic`, `bbr` (emulated only), or one of TCP's",
    ),
];

const VARIANT: Kind = Words(&["off", "nsdi12", "guarded"]);

pub(in crate::scenario) static SWITCHES: Shape = Shape {
    noun: "a profile's switches",
    heading: "Profile switches",
    doc: "Single deviations from the profile, so that each one's effect can be seen. What is \
        missing is as the profile has it.",
    groups: &[&[
        key(
            "delayed-ack",
            Bool,
            Else("all: true"),
            "Acknowledgements wait for a second packet, at most 40 ms",
        ),
        key(
            "tso-autosizing",
            Bool,
            Else("`linux-6.18`, `linux-6.x`: true, else false"),
            "Super-segments of about 1 ms, sent in one burst",
        ),
        key(
            "tsq",
            Bool,
            Else("`linux-6.18`, `linux-6.x`: true, else false"),
            "TCP small queues: stop when the host's own queue holds about 1 ms",
        ),
        key(
            "linear-syn",
            Bool,
            Else("`linux-6.18`, `linux-6.x`: true, else false"),
            "The first four repetitions of a SYN come each second, before the time doubles",
        ),
        key(
            "timer-granularity",
            Duration,
            Else("Linux: 4 ms, `ideal`: 0 ms"),
            "Timers fire at multiples of it",
        ),
        key("hystart", Bool, Else("all: true"), "Leave slow start before packets are lost"),
        key(
            "linux-hystart",
            Bool,
            Else("`linux-6.18`: true, else false"),
            "Leave it by Linux's rule (CUBIC only: ACK trains and delay), not by RFC 9406",
        ),
        key("pacing", Bool, Else("false"), "Spread packets over the round-trip time"),
        key(
            "rmem-scaling",
            Bool,
            Else("Linux: true, `ideal`: false"),
            "Two fifths of the receive buffer are overhead and not offered as window",
        ),
        key(
            "window-overstep",
            Bool,
            Else("`linux-6.18`: true, else false"),
            "Linux's slip: what a subflow's window was raised to counts as told",
        ),
        key("cpu-per-packet", Duration, Else("0 ms"), "Processor time of each packet"),
        key(
            "segmentation-offload",
            Bool,
            Else("false"),
            "The network card cuts super-segments: each takes the time of one packet",
        ),
    ]],
};

pub(in crate::scenario) static MIDDLEBOX: Shape = Shape {
    noun: "a middlebox",
    heading: "[[middleboxes]]",
    doc: "A box at the first host's end of a path that changes packets (simulated only).",
    groups: &[&[
        key("path", Name(12), Required, "The path"),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Else("`both`"),
            "Which packets it sees; `nat` and `shift-sequence` see both",
        ),
        key(
            "do",
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
        ),
    ]],
};
