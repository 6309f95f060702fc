//! Reference of the scenario format, as Markdown.

use std::fmt::Write as _;

use super::tables::ALL;
use super::{KeyPresence, KeySchema, TableSchema, ValueKind};
use crate::units::Dimension;

/// Beginning of the page.
const INTRODUCTION: &str = r#"# Scenario files

*For writers of scenarios. Assumes that you have read the [tutorial](../tutorial.md). See also [metrics](metrics.md) and the
[simulator](../explanation/simulator.md) and [emulator](../explanation/emulator.md), which run scenarios.*

A scenario is a TOML file that describes the hosts, paths and traffic of a run. This page lists all its keys, as printed by
`towpath schema scenario-keys`. An example, which `towpath run FILE` runs:

```toml
name = "dsl-and-lte"                  # also names the result files
hosts = { office = {}, server = {} }  # two hosts with default settings

[paths.dsl]                           # a path with the name dsl
between = ["office", "server"]        # up: from the office to the server
rate = { up = "4 Mbit/s", down = "16 Mbit/s" }
delay = "20 ms"                       # one way, in each direction

[paths.lte]
between = ["office", "server"]
rate = "30 Mbit/s"                    # in each direction
delay = "45 ms"

[[flows]]
from = "office"                       # opens the connection, over dsl
to = "server"
pattern = "iperf"                     # sends up for 10 s

[[timeline]]
at = "1 s"
path = "dsl"
set = "down"                          # from now on, dsl drops all packets
```

`towpath scenarios show two-links` prints a longer annotated file. In the tables below:

- A *name* consists of lower-case letters, digits and hyphens. `(≤ 12)` is its maximum length.
- `"15 ms"`, `"40 Mbit/s"`, `"100 KB"`, `"0.1 %"` and `"50 packets"` are examples of a time, a rate, a size, a share and a queue length.
- Other words in quotes are the permitted values.

"#;

/// End of the page: values that need more than a cell of a table.
const VALUES: &str = r#"## Profiles

Values of `profile`. [The simulator](../explanation/simulator.md#profiles) compares them in a table.

- `linux-6.18`: Linux 6.18, fitted to measurements on random networks.
- `linux-6.x`: the default of earlier versions of towpath, fitted to six scenarios. It counts payload bytes where Linux counts memory.
- `linux-3.2-mptcp`: Linux 3.2 with the patch of multipath-tcp.org. It has opportunistic retransmission (M1) and penalisation (M2), but not
  TCP small queues.
- `ideal`: the protocol without the limits of a host: exact timers, no memory overhead, and no batching of packets.

## Schedulers

Values of `scheduler`. A path has *room* if its congestion window permits more data. *RTT* is the smoothed round-trip time.

- `linux`: the path with the shortest time to send what is queued, in bursts (Linux since 5.15).
- `min-rtt`: the path with the lowest RTT that has room (multipath-tcp.org).
- `round-robin`: each path in turn, for one packet (multipath-tcp.org).
- `redundant`: every path, for all data (multipath-tcp.org).
- `blest`: as `min-rtt`, but not a slow path whose data would block the window (Ferlin et al. 2016).
- `ecf`: as `min-rtt`, but waits for the fast path if that completes earlier (Lim et al. 2017).
- `pushing`: as `min-rtt`, but as soon as the data is written (Barré et al. 2011, first design).
- `backup-aware`: as `min-rtt`; backup paths as soon as all regular paths have trouble: loss under repair, a timeout or silence.
- `aggregate`: the path with the lowest RTT that has room, including backup paths (Apple).
- `apple-handover`: the first path; other paths after it has failed (Apple).
- `apple-interactive`: the first path; other paths while it is slow or silent (Apple).
- `apple-interactive-assist`: as `apple-interactive` with half the limits, as while Wi-Fi Assist rates Wi-Fi as bad (Apple).

`apple-handover` and `apple-interactive` follow observations of De Coninck and Bonaventure (2019).

## Path managers

Values of `path-manager`.

- `default`: opens subflows as Linux does, according to the endpoints.
- `rejoin`: as `default`, and reopens failed subflows after 1 s to 60 s.
- `fullmesh`: opens a subflow between each own address and each address of the peer (multipath-tcp.org).
- `ndiffports`: opens two subflows between the first addresses, from different ports (multipath-tcp.org).
- `single`: keeps the first subflow only, and announces nothing.

## M1 and M2

Values of `opportunistic-retransmission` (M1) and `penalisation` (M2). Both act when the receive window or the send buffer is full because
a slow path holds the oldest data. M1 reinjects this data on the fast path. M2 halves the congestion window of the slow path.

- `off`: never acts.
- `nsdi12`: the rules of Raiciu et al. 2012. M1 acts whenever the slow path has the longer round-trip time. M2 acts at most once per
  round trip of the slow path, and ends its slow start.
- `mptcp-org`: later versions of multipath-tcp.org, which restrict both:
  - M1 acts only if the slow path has more than four times the round-trip time, or a window of at most four packets.
  - M2 acts at most once per round trip of the fast path, does not end slow start, and spares a path in recovery. If the send buffer is
    the limit, M2 acts only if the application waits for it.

## Receive buffer

Values of `receive-buffer-mode`.

- `linux`: grows to twice the bytes that the application read in the longest round-trip time of a subflow.
- `fixed`: always has its maximum size.
- `barre2011`: grows to twice the total bandwidth × the longest round-trip time (Barré et al. 2011).

## Link presets

Values of a link's `preset`. Each applies the queueing rules of a tool to the `rate`, `delay` and `queue` of the link. Among them,
only `tbf` supports `queue-position = "host"`.

- `tbf`: `tc tbf` with a burst of 15000 B. `queue` is a time or a size; when missing, 100 ms.
- `netem`: `tc netem`, with or without a rate. `queue` is a number of packets, delayed packets included; when missing, 1000.
- `htb+netem`: `tc htb` with netem as its child: the delay comes before the rate. `queue` is as with `netem`.
- `mininet`: `TCLink` of Mininet, which is `htb+netem` with a burst of 15360 B.
- `mahimahi`: `mm-link` in `mm-delay`, with a trace or a rate of at most 1 Gbit/s. `queue` is a number of packets or a size; when missing,
  unlimited.

The limit of netem includes the packets that its delay holds, so it bounds the rate: 1000 packets of 1514 bytes within 100 ms are
121 Mbit/s. `towpath scenarios check` and `towpath run` warn if this bound is below the rate of the link.

A queue that counts packets counts a super-segment as one packet, as Linux does. Only links that carry super-segments whole have them:
those with `segmentation = "coalesced"`, and by default those of 1 Gbit/s or more without loss and jitter. On every other link, each packet
of the MTU's size counts.
"#;

/// Returns the reference of every table and key, for `docs/reference/scenario.md`.
pub fn reference_markdown() -> String {
    let mut out = INTRODUCTION.to_owned();
    for schema in ALL {
        section(&mut out, schema);
    }
    out.push_str(VALUES);
    out
}

/// Writes the reference of one table and its keys.
pub(crate) fn section(out: &mut String, schema: &TableSchema) {
    let heading = match schema.heading {
        table if table.starts_with('[') => format!("`{table}`"),
        words => words.to_owned(),
    };
    // Writing to a `String` cannot fail.
    let _ = write!(out, "## {heading}\n\n{}\n\n", schema.doc);
    if schema.key_groups.is_empty() {
        return;
    }
    out.push_str("| key | value | when missing | meaning |\n|---|---|---|---|\n");
    for KeySchema { name, kind, presence, doc, former_name: _ } in schema.keys() {
        let (value, missing) = match (kind, presence) {
            (ValueKind::Bound, KeyPresence::Optional(bound)) => ((*bound).to_owned(), "—"),
            (_, KeyPresence::Required) => (value(kind), "**required**"),
            (_, KeyPresence::Optional(text)) => (value(kind), *text),
        };
        let _ = writeln!(out, "| `{name}` | {value} | {missing} | {doc} |");
    }
    out.push('\n');
}

fn value(kind: &ValueKind) -> String {
    let example = |dimension: Dimension| format!("`\"{}\"`", dimension.example());
    match kind {
        ValueKind::Text => "text".to_owned(),
        ValueKind::Name(max_chars) => format!("name (≤ {max_chars})"),
        ValueKind::Bool => "`true`, `false`".to_owned(),
        ValueKind::Integer(min, max) if *max > 1 << 32 => format!("integer ≥ {min}"),
        ValueKind::Integer(min, max) => format!("{min} to {max}"),
        ValueKind::Rate => example(Dimension::Rate),
        ValueKind::Duration => example(Dimension::Duration),
        ValueKind::Size => example(Dimension::Size),
        ValueKind::Packets => example(Dimension::Packets),
        ValueKind::Percent => example(Dimension::Share),
        ValueKind::Words(words) => {
            words.iter().map(|w| format!("`\"{w}\"`")).collect::<Vec<_>>().join(", ")
        }
        ValueKind::Any(text) => (*text).to_owned(),
        ValueKind::Bound => "operator and value".to_owned(),
        ValueKind::List(inner) => format!("list of {}", value(inner)),
        ValueKind::OneOf(kinds) => kinds.iter().map(value).collect::<Vec<_>>().join(", "),
        ValueKind::Sides(inner) => format!("{}, `{{ up = …, down = … }}`", value(inner)),
        ValueKind::Table(schema) => format!("table, see *{}*", schema.heading),
        ValueKind::Named(schema, _) | ValueKind::Tables(schema) => {
            format!("see `{}`", schema.heading)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_documented_page_is_up_to_date() {
        let page = include_str!("../../../../docs/reference/scenario.md");
        assert!(
            page == reference_markdown(),
            "docs/reference/scenario.md is old: write it again with `towpath schema scenario-keys`"
        );
    }

    #[test]
    fn the_reference_names_every_key_in_a_well_formed_table() {
        let text = reference_markdown();
        for key in ALL.iter().flat_map(|schema| schema.keys()) {
            assert!(text.contains(&format!("| `{}` |", key.name)), "{}", key.name);
        }
        for row in text.lines().filter(|line| line.starts_with('|')) {
            assert_eq!(row.matches('|').count(), 5, "{row}");
        }
    }
}
