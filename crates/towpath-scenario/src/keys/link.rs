//! Schemas of paths and bottlenecks, and of the tables in them.

use super::KeyPresence::{Optional, Required};
use super::ValueKind::{
    Bool, Duration, Integer, List, Name, OneOf, Packets, Percent, Rate, Sides, Size, Table, Text,
    Words,
};
use super::{KeySchema, TableSchema, ValueKind, key};

const QUEUE_KIND: ValueKind =
    Sides(&OneOf(&[Duration, Size, Packets, Words(&["unlimited"]), Table(&QUEUE)]));

const RATE_KIND: ValueKind = OneOf(&[Rate, Table(&RATE)]);
pub(super) const LOSS_KIND: ValueKind = OneOf(&[Percent, Table(&LOSS)]);

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
        "Silently drop larger IP packets (path MTU black hole). On a path, the value must be less than `mtu`",
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
