//! Keys of a campaign: the reader and the reference follow these tables.

use towpath_scenario::document::{KeyPresence, TableSchema, ValueKind, key, reference};

/// Maximum length of a name in characters.
pub(super) const MAX_NAME_CHARS: usize = 48;
/// Maximum number of rounds.
pub(super) const MAX_ROUNDS: u64 = 1_000_000;
/// Patterns that a campaign can use. Their traffic ends by itself, or can be limited.
pub(super) const PATTERNS: [&str; 10] =
    ["ping", "bulk", "iperf", "interactive", "reqres", "onoff", "video", "web", "udping", "udp"];
const TRANSPORT_LIST: ValueKind =
    ValueKind::List(&ValueKind::Words(&["tcp", "mptcp", "quic", "mpquic"]));
const FAMILY_LIST: ValueKind = ValueKind::List(&ValueKind::Words(&["ipv4", "ipv6"]));
const PORT_LIST: ValueKind = ValueKind::List(&ValueKind::Integer(1, 65_535));

pub(super) static CAMPAIGN: TableSchema = TableSchema {
    noun: "a campaign",
    heading: "The campaign",
    doc: "Keys at the top of the file. Each device measures once in each period.",
    key_groups: &[&[
        key(
            "name",
            ValueKind::Name(MAX_NAME_CHARS),
            KeyPresence::Required,
            "Name, unique on a collector",
        ),
        key(
            "description",
            ValueKind::Text,
            KeyPresence::Optional("empty"),
            "Purpose, for owners of devices",
        ),
        key(
            "mode",
            ValueKind::Words(&["stable", "mobile"]),
            KeyPresence::Required,
            "`stable`: one run after the other; `mobile`: all transports at the same time, until \
             the first network is lost",
        ),
        key(
            "start",
            ValueKind::Any("a date and time with its offset: `2026-12-01T00:00:00Z`"),
            KeyPresence::Optional("time of creation"),
            "Start of the first period",
        ),
        key(
            "end",
            ValueKind::Any("a date and time with its offset: `2026-12-31T00:00:00Z`"),
            KeyPresence::Required,
            "No run starts at this time or later",
        ),
        key("every", ValueKind::Duration, KeyPresence::Required, "Period of the rounds, from 10 s"),
        key(
            "jitter",
            ValueKind::Duration,
            KeyPresence::Optional("a tenth of `every`"),
            "Maximum delay of a round in its period; drawn for each device and round",
        ),
        key(
            "rounds",
            ValueKind::Integer(1, MAX_ROUNDS),
            KeyPresence::Optional("no limit"),
            "Maximum number of rounds of a device",
        ),
        key(
            "transports",
            TRANSPORT_LIST,
            KeyPresence::Optional("all; mobile: mptcp and mpquic"),
            "Transports",
        ),
        key(
            "families",
            FAMILY_LIST,
            KeyPresence::Optional("both; mobile: ipv4"),
            "Address families",
        ),
        key("ports", PORT_LIST, KeyPresence::Optional("`[443]`"), "Ports of the test server"),
        key(
            "servers",
            ValueKind::List(&ValueKind::Text),
            KeyPresence::Optional("all registered ones"),
            "Names or addresses of test servers; a device selects the nearest",
        ),
        key(
            "bytes-per-day",
            ValueKind::Size,
            KeyPresence::Required,
            "Maximum number of bytes of a device on one day (UTC)",
        ),
        key(
            "addresses",
            ValueKind::Words(&["prefix", "full"]),
            KeyPresence::Optional("`prefix`"),
            "IP addresses in results: network prefixes (/24 of IPv4, /48 of IPv6), or complete ones",
        ),
        key("patterns", ValueKind::Tables(&PATTERN), KeyPresence::Required, "Traffic, in order"),
    ]],
};

pub(super) static PATTERN: TableSchema = TableSchema {
    noun: "a pattern of a campaign",
    heading: "[[patterns]]",
    doc: "One traffic pattern. Further keys are those of a scenario's flow, such as `size`, \
          `duration`, `direction` or `preset`.",
    key_groups: &[&[
        key("pattern", ValueKind::Words(&PATTERNS), KeyPresence::Required, "Traffic pattern"),
        key("transports", TRANSPORT_LIST, KeyPresence::Optional("the campaign's"), "Transports"),
        key("families", FAMILY_LIST, KeyPresence::Optional("the campaign's"), "Address families"),
        key("ports", PORT_LIST, KeyPresence::Optional("the campaign's"), "Ports of the server"),
        key(
            "max-bytes",
            ValueKind::Size,
            KeyPresence::Optional("computed from the pattern"),
            "Maximum number of bytes of a run with headers. Required for a transfer that has a \
             duration and no size, whose rate it limits",
        ),
    ]],
};

/// Beginning of the reference page.
const INTRODUCTION: &str = "\
# Campaign files

*For operators of a collector who plan measurements on volunteers' devices. See also [devices](../guides/devices.md) and
[traffic patterns](scenario.md#traffic-patterns).*

A campaign is a TOML file that says what devices measure, how often, and until when. This page lists all its keys, as printed by
`towpath schema campaign-keys`. `towpath collect campaign example` prints an annotated example, and `--mobile` one for devices that move.

A campaign cannot contain commands, file names or other programs' options. Each run has a maximum number of bytes: computed from its pattern,
or given by `max-bytes`.";

/// Returns the reference of all keys as a Markdown page.
pub fn reference_markdown() -> String {
    reference(INTRODUCTION, [&CAMPAIGN, &PATTERN])
}
