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
        "TCP and Multipath TCP stack of the host. The simulated world always uses `towpath`. \
         Except for the two keys of QUIC, the keys below need `towpath`",
    ),
    key(
        "profile",
        Words(&["linux-6.18", "linux-6.x", "linux-3.2-mptcp", "ideal"]),
        Optional("that of `[run]`, else `linux-6.18`"),
        "Behaviour of the host and its stack: a Linux version, the kernel of multipath-tcp.org, \
         or an ideal host; see [Profiles](#profiles)",
    ),
    key(
        "profile-switches",
        Table(&PROFILE_SWITCHES),
        Optional("the profile's"),
        "Single deviations from the profile",
    ),
    key(
        "scheduler",
        Name(32),
        Optional("that of `[run]`, else the profile's"),
        "Scheduler, which selects the subflow for the next data: `linux`, `min-rtt`, \
         `round-robin`, `redundant`, `blest`, `ecf`, `pushing`, `backup-aware`, `aggregate`, \
         `apple-handover`, `apple-interactive`, `apple-interactive-assist`; see \
         [Schedulers](#schedulers)",
    ),
    key(
        "path-manager",
        Name(32),
        Optional("that of `[run]`, else the profile's"),
        "Path manager, which opens the subflows: `default`, `rejoin`, `fullmesh`, `ndiffports`, \
         `single`; see [Path managers](#path-managers)",
    ),
    key(
        "opportunistic-retransmission",
        OPPORTUNISTIC_MODES,
        Optional("`off`; `mptcp-org` with the profile `linux-3.2-mptcp`"),
        "Opportunistic retransmission (M1): reinjects the oldest data on a faster path if it \
         blocks the connection; see [M1 and M2](#m1-and-m2)",
    ),
    key(
        "penalisation",
        OPPORTUNISTIC_MODES,
        Optional("`off`; `mptcp-org` with the profile `linux-3.2-mptcp`"),
        "Penalisation (M2): halves the congestion window of a slow path whose data blocks the \
         connection; see [M1 and M2](#m1-and-m2)",
    ),
    key("checksum", Bool, Optional("false"), "Require checksums of the data (DSS checksums)"),
    key(
        "receive-buffer-mode",
        Words(&["linux", "fixed", "barre2011"]),
        Optional("`linux`; with `ideal` `fixed`"),
        "Growth of the receive buffer; see [Receive buffer](#receive-buffer)",
    ),
    key(
        "mss",
        Words(&["own", "smallest"]),
        Optional("`own`"),
        "Packet size of each subflow: its own maximum (`own`), or the smallest maximum of all \
         subflows (`smallest`)",
    ),
    key(
        "path-policy",
        Words(&["aggregate", "backup", "ios"]),
        Optional("`aggregate`"),
        "Paths of Multipath QUIC: all except backups (`aggregate`), the first until it fails \
         (`backup`), or until it is slow or times out (`ios`)",
    ),
    key(
        "quic-congestion-control",
        Name(32),
        Optional("`congestion-control`"),
        "Congestion control of QUIC: one of the names for TCP, or one of the QUIC library: `newreno`, `noq-cubic`, \
         `bbr`. `bbr` is not available in the simulated world",
    ),
];

const OPPORTUNISTIC_MODES: ValueKind = Words(&["off", "nsdi12", "mptcp-org"]);

pub(crate) static PROFILE_SWITCHES: TableSchema = TableSchema {
    noun: "a profile's switches",
    heading: "Profile switches",
    doc: "Single deviations from the profile, to observe the effect of each one alone. A missing \
        key keeps the value of the profile.",
    key_groups: &[&[
        key(
            "delayed-ack",
            Bool,
            Optional("`ideal`: false, else true"),
            "Delay an acknowledgement until a second packet arrives: by at most 40 ms, with \
             `linux-6.18` by at most 200 ms",
        ),
        key(
            "tso-autosizing",
            Bool,
            Optional("`linux-6.18`, `linux-6.x`: true, else false"),
            "Limit super-segments, which leave in one burst, to about 1 ms of the rate",
        ),
        key(
            "tsq",
            Bool,
            Optional("`linux-6.18`, `linux-6.x`: true, else false"),
            "TCP small queues: stop sending while the host's own queue holds about 1 ms of the \
             link's rate",
        ),
        key(
            "linear-syn",
            Bool,
            Optional("`linux-6.18`, `linux-6.x`: true, else false"),
            "Retransmit a SYN four times at intervals of 1 s before the interval doubles",
        ),
        key(
            "timer-granularity",
            Duration,
            Optional("Linux: 4 ms, `ideal`: 0 ms"),
            "Timers fire at multiples of this time, at most 1 s; 0 means exact timers",
        ),
        key(
            "hystart",
            Bool,
            Optional("all: true"),
            "Leave slow start early, before packets are lost (HyStart)",
        ),
        key(
            "linux-hystart",
            Bool,
            Optional("`linux-6.18`: true, else false"),
            "Leave slow start by Linux's HyStart (ACK trains and delay; CUBIC only) instead of \
             that of RFC 9406",
        ),
        key(
            "pacing",
            Bool,
            Optional("false"),
            "Spread packets over the round-trip time instead of sending bursts",
        ),
        key(
            "rmem-scaling",
            Bool,
            Optional("Linux: true, `ideal`: false"),
            "Offer only a part of the receive buffer as window; the rest is overhead. `true` \
             offers 60 %, `false` offers everything",
        ),
        key(
            "window-overstep",
            Bool,
            Optional("`linux-6.18`: true, else false"),
            "Send more than the peer's window permits, as Linux 6.18 does by mistake: if it raises a subflow's window, it treats the new value as announced by the peer",
        ),
        key(
            "cpu-per-packet",
            Duration,
            Optional("0 ms"),
            "Processor time for each packet sent or received, at most 100 ms",
        ),
        key(
            "segmentation-offload",
            Bool,
            Optional("false"),
            "Charge the processor time of one packet for a transmitted super-segment, which the \
             network card splits",
        ),
    ]],
};

pub(crate) static MIDDLEBOX: TableSchema = TableSchema {
    noun: "a middlebox",
    heading: "[[middleboxes]]",
    doc: "Middlebox that changes the packets of a path, at the first host's end of the path. \
        Simulated world only. Values of `action`:\n\n\
        - `strip-mptcp`: removes the Multipath TCP options of every packet.\n\
        - `strip-mptcp-syn`: removes them from SYNs only.\n\
        - `strip-dss`: removes only the DSS options, which carry the data sequence numbers.\n\
        - `strip-add-addr`: removes only the ADD_ADDR options, which announce addresses.\n\
        - `split`: splits a packet with data in two; both have the options.\n\
        - `coalesce`: joins two consecutive packets with data; only the options of the first \
        remain.\n\
        - `nat`: translates the addresses and ports of the first host.\n\
        - `shift-sequence`: adds a constant to the first host's sequence numbers, as some \
        firewalls do.\n\
        - `rewrite-payload`: changes a byte in one of 50 packets with data and corrects the TCP \
        checksum.",
    key_groups: &[&[
        key("path", Name(12), Required, "Path on which the middlebox is"),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`both`"),
            "Direction of the packets that it changes; `nat` and `shift-sequence` require `both`",
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
            "Change of the packets, see the list above",
        )
        .formerly("do"),
    ]],
};
