//! Schema of flows and their patterns.

use super::KeyPresence::{Optional, Required};
use super::ValueKind::{Bound, Duration, Integer, List, Name, OneOf, Rate, Size, Text, Words};
use super::{TableSchema, key};

pub(crate) static FLOW: TableSchema = TableSchema {
    noun: "a flow",
    heading: "[[flows]]",
    doc: "Application traffic between two hosts. A flow has either a traffic `pattern` or a \
        command to `run`. Each key names the patterns to which it applies; other patterns reject \
        it. A scenario has at most 256 flows.",
    key_groups: &[&[
        key("from", Name(32), Required, "Host that opens the connection"),
        key("to", Name(32), Required, "Host that accepts the connection"),
        key(
            "pattern",
            Words(&[
                "bulk",
                "iperf",
                "ping",
                "reqres",
                "interactive",
                "onoff",
                "trace",
                "video",
                "web",
                "udping",
                "udp",
                "call",
                "latency",
            ]),
            Optional("see `run`"),
            "Traffic pattern; see [Traffic patterns](#traffic-patterns)",
        ),
        key(
            "run",
            Text,
            Optional("see `pattern`"),
            "Command for `sh -c` on the `from` host, instead of a pattern; emulated world only",
        ),
        key(
            "preset",
            Words(&["multipathtester", "multipathtester-app", "voice-assistant"]),
            Optional("none"),
            "Defaults of a published program: `multipathtester` (with `bulk`, `iperf`, \
             `interactive`), `multipathtester-app` (`interactive`) or `voice-assistant` \
             (`onoff`). Other keys override them",
        ),
        key(
            "size",
            Size,
            Optional("as much as possible in the time"),
            "With `bulk`: number of bytes to transfer",
        ),
        key(
            "duration",
            Duration,
            Optional(
                "`bulk` with size and `run`: 60 s; `reqres`: 14 s; `video`, `web`: 30 s; \
                 `latency`: 5 s; else 10 s",
            ),
            "Planned duration of sending, requests, playback or each phase of `latency`. Time \
             limit of a sized transfer, a web page or a command. At most 24 h",
        ),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`interactive`, `call`: `both`; else `up`"),
            "`up`: the `from` host sends the data or the requests. `down`: the `to` host does. \
             `both`: both hosts do; not with `bulk`",
        ),
        key(
            "streams",
            Integer(1, 128),
            Optional("`iperf`: 1; `latency`: 4; `web`: 6"),
            "With `iperf`, `web` and the loads of `latency`: number of parallel connections",
        ),
        key(
            "request",
            Size,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff`, `latency`, `video` and `web`: size of \
             a request, 13 B to 1 GB",
        ),
        key(
            "reply",
            Size,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff` and `latency`: size of a reply, 9 B to \
             1 GB",
        ),
        key(
            "period",
            Duration,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff`, `latency` and `udping`: time between \
             two requests or datagrams",
        ),
        key(
            "count",
            Integer(1, 1_000_000),
            Optional("5"),
            "With `ping`: number of measured requests",
        ),
        key(
            "warm-up",
            Integer(0, 1_000),
            Optional("1"),
            "With `ping`: number of initial requests that are not measured",
        ),
        key("on", Duration, Optional("1 s"), "With `onoff`: duration of a burst of requests"),
        key(
            "off",
            Duration,
            Optional("1 s"),
            "With `onoff`: pause between two bursts; with `latency`: pause between two phases",
        ),
        key(
            "messages",
            OneOf(&[Text, List(&Text)]),
            Optional("—"),
            "With `trace`: list of messages, or a file with one message per line. Each has a \
             time, direction, request size and reply size: `1.5 s up 2000 B 750 B`",
        ),
        key("segment", Duration, Optional("2 s"), "With `video`: playing time of a segment"),
        key(
            "bitrate",
            Rate,
            Optional("`video`: 5 Mbit/s; `udp`: 1 Mbit/s"),
            "With `video`: bit rate of the video; with `udp`: rate of the payload, without \
             headers",
        ),
        key(
            "length",
            Size,
            Optional("1448 B"),
            "With `udp`: payload of a datagram, 40 B to 65507 B",
        ),
        key(
            "codec",
            Words(&["g711", "g729a"]),
            Optional("`g711`"),
            "With `call`: audio codec, G.711 or G.729A; each host sends 50 datagrams per second",
        ),
        key(
            "jitter-buffer",
            Duration,
            Optional("60 ms"),
            "With `call`: size of the jitter buffer. A datagram is played if it takes at most \
             this much longer than the fastest one so far",
        ),
        key(
            "video",
            Rate,
            Optional("none"),
            "With `call`: payload rate of an additional video flow with 30 frames per second",
        ),
        key(
            "buffer",
            Duration,
            Optional("10 s"),
            "With `video`: capacity of the player's buffer in playing time, at least one segment",
        ),
        key(
            "startup",
            Duration,
            Optional("a segment"),
            "With `video`: buffered playing time at which playback starts, and resumes after a \
             stall; at most `buffer`",
        ),
        key(
            "page",
            Size,
            Optional("30 kB"),
            "With `web`: size of the page without its objects, 9 B to 1 GB",
        ),
        key(
            "objects",
            Integer(0, 10_000),
            Optional("30"),
            "With `web`: number of objects on the page",
        ),
        key("object", Size, Optional("50 kB"), "With `web`: size of each object, 9 B to 1 GB"),
        key(
            "reply-timeout",
            Duration,
            Optional("3 s; `video`: 10 s; `udp`, `call`: 1 s"),
            "With requests (except `web`), `udp` and `call`: time to wait for late arrivals after \
             the planned end. With `udping`: time after which a datagram is lost",
        )
        .formerly("patience"),
        key(
            "load",
            Words(&["up", "down", "both"]),
            Optional("none"),
            "With requests (except `latency`), `udping`, `udp` and `call`: direction of an \
             additional transfer that runs during the flow",
        ),
        key(
            "via",
            Name(12),
            Optional("the first path between them"),
            "Path of the first subflow; with `udp` and `call`: path of the datagrams",
        ),
        key(
            "start",
            Duration,
            Optional("0 s"),
            "Start of the flow, counted from the start of the traffic",
        ),
        key("family", Words(&["v4", "v6"]), Optional("`v4`"), "Address family, IPv4 or IPv6"),
        key(
            "transport",
            Words(&["tcp", "mptcp"]),
            Optional("the compared transport"),
            "Fixed transport of this flow in every run, for background traffic; not with `run`",
        ),
    ]],
};

/// Names of the patterns, for the reference.
pub(crate) static PATTERN_NAMES: TableSchema = TableSchema {
    noun: "a pattern",
    heading: "Traffic patterns",
    doc: "Values of a flow's `pattern`. The column *value* has the default settings, which the \
        keys of the flow change.\n\n\
        - `bulk` and `iperf` are transfers.\n\
        - `udping`, `udp` and `call` send datagrams.\n\
        - The other patterns exchange requests and replies. The delay of a reply counts from the \
        time at which the request was *due*. The schedule begins when all connections of the flow \
        are open. If both hosts make requests, each host has its own connection.\n\n\
        MultipathTester is the program of De Coninck and Bonaventure (2019).",
    key_groups: &[&[
        key(
            "bulk",
            Bound,
            Optional("up; `multipathtester`: 10 MB down"),
            "One transfer at maximum speed, until the size or the duration is reached",
        ),
        key(
            "iperf",
            Bound,
            Optional("up, 10 s; `multipathtester`: 7 s"),
            "Transfer for a fixed duration, as iperf3 sends",
        ),
        key(
            "ping",
            Bound,
            Optional("5 requests of 100 B, replies of 10 B, every 200 ms"),
            "Round-trip time of small requests; the first request is not measured",
        ),
        key(
            "reqres",
            Bound,
            Optional("750 B, reply 750 B, every 400 ms, 14 s"),
            "Requests at a fixed interval, with a reply to each",
        ),
        key(
            "interactive",
            Bound,
            Optional(
                "`multipathtester`: 2 kB, reply 750 B after an acknowledgement of 9 B; \
                 `multipathtester-app`: 2 kB, reply 9 B; every 100 ms, both ways",
            ),
            "Frequent small messages, as of a voice assistant and a radio; the presets follow \
             MultipathTester's paper and its program",
        ),
        key(
            "onoff",
            Bound,
            Optional(
                "1 kB, reply 9 B, every 20 ms, 1 s on, 1 s off; `voice-assistant`: 2.5 kB, reply \
                 750 B, every 300 ms, 2.7 s on, 3 s off",
            ),
            "Bursts of requests with pauses between them",
        ),
        key(
            "trace",
            Bound,
            Optional("`messages`"),
            "Messages of a list or file, each at its own time",
        ),
        key(
            "video",
            Bound,
            Optional("30 s at 5 Mbit/s in segments of 2 s, buffer 10 s"),
            "Video player that requests a segment whenever its buffer has room for one",
        ),
        key(
            "web",
            Bound,
            Optional("30 kB, then 30 objects of 50 kB over 6 connections"),
            "Web page with objects; all objects are due when the page itself has arrived",
        ),
        key(
            "udping",
            Bound,
            Optional("every 100 ms, 10 s"),
            "Datagrams of 32 B over each path, echoed by the other host: the quality of each \
             path, independent of the transport",
        ),
        key(
            "udp",
            Bound,
            Optional("1 Mbit/s of 1448 B up, 10 s"),
            "Datagrams at a constant rate over one path: loss, jitter and delay",
        ),
        key(
            "call",
            Bound,
            Optional("G.711 both ways, jitter buffer of 60 ms, 10 s"),
            "Telephone call in datagrams over one path: loss, late datagrams, mouth-to-ear delay, \
             rating R and opinion score (ITU-T G.107)",
        ),
        key(
            "latency",
            Bound,
            Optional("4 phases of 5 s, pauses of 1 s, 100 B and reply 100 B every 50 ms"),
            "Latency under load: requests, and datagrams over each path. The first phase is idle; \
             then connections send down, up, and both ways",
        ),
    ]],
};
