//! Schema of flows and their patterns.

use super::KeyPresence::{Optional, Required};
use super::ValueKind::{Bound, Duration, Integer, List, Name, OneOf, Rate, Size, Text, Words};
use super::{TableSchema, key};

pub(in crate) static FLOW: TableSchema = TableSchema {
    noun: "a flow",
    heading: "[[flows]]",
    doc: "Application traffic between two hosts: a `pattern` or a command to `run`.",
    key_groups: &[&[
        key("from", Name(32), Required, "Host that opens the connection"),
        key("to", Name(32), Required, "Host that accepts it"),
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
            "Traffic pattern: see [Traffic patterns](#traffic-patterns)",
        ),
        key(
            "run",
            Text,
            Optional("see `pattern`"),
            "Command for `sh -c` on the first host (emulated only)",
        ),
        key(
            "preset",
            Words(&["multipathtester", "multipathtester-app", "voice-assistant"]),
            Optional("none"),
            "Preset values: `multipathtester` with `bulk`, `iperf` and `interactive`, `multipathtester-app` with `interactive`, `voice-assistant` with `onoff`; other keys override them",
        ),
        key("size", Size, Optional("as much as possible in the time"), "With `bulk`: bytes to transfer"),
        key(
            "duration",
            Duration,
            Optional(
                "`bulk` with size and `run`: 60 s; `reqres`: 14 s; `video`, `web`: 30 s; `latency`: 5 s; \
                 else 10 s",
            ),
            "Duration of requests, video playback and each phase of `latency`; maximum duration of a transfer, page or command",
        ),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`interactive`, `call`: `both`; else `up`"),
            "Sender, or host that makes the requests: `up` is the first host, `down` the second; `both` is not for `bulk`",
        ),
        key(
            "streams",
            Integer(1, 128),
            Optional("`iperf`: 1; `latency`: 4; `web`: 6"),
            "With `iperf`, `web` and the loads of `latency`: number of parallel connections",
        ),
        key("request", Size, Optional("of the pattern"), "Size of a request, at least 13 bytes"),
        key(
            "reply",
            Size,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff` and `latency`: size of a reply, at least 9 bytes",
        ),
        key(
            "period",
            Duration,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff`, `latency` and `udping`: time from one \
             request to the next",
        ),
        key("count", Integer(1, 1_000_000), Optional("5"), "With `ping`: number of measured requests"),
        key("warm-up", Integer(0, 1_000), Optional("1"), "With `ping`: number of requests before the measured ones"),
        key("on", Duration, Optional("1 s"), "With `onoff`: duration of a burst"),
        key("off", Duration, Optional("1 s"), "With `onoff` and `latency`: duration of a pause"),
        key(
            "messages",
            OneOf(&[Text, List(&Text)]),
            Optional("—"),
            "With `trace`: file with one message per line, or list; each with time, direction, request and reply: `1.5 s up 2000 B 750 B`",
        ),
        key("segment", Duration, Optional("2 s"), "With `video`: duration of a segment"),
        key(
            "bitrate",
            Rate,
            Optional("`video`: 5 Mbit/s; `udp`: 1 Mbit/s"),
            "With `video`: bit rate of the video; with `udp`: payload rate",
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
            "With `call`: audio codec, 50 datagrams per second",
        ),
        key(
            "jitter-buffer",
            Duration,
            Optional("60 ms"),
            "With `call`: largest additional delay, compared with the fastest datagram, with which a datagram is still played",
        ),
        key(
            "video",
            Rate,
            Optional("none"),
            "With `call`: payload rate of an additional video flow with 30 frames per second",
        ),
        key("buffer", Duration, Optional("10 s"), "With `video`: maximum playback time in the player's buffer"),
        key(
            "startup",
            Duration,
            Optional("a segment"),
            "With `video`: buffered playback time at which playback starts, also after a stall",
        ),
        key("page", Size, Optional("30 kB"), "With `web`: size of the page itself"),
        key("objects", Integer(0, 10_000), Optional("30"), "With `web`: number of objects on the page"),
        key("object", Size, Optional("50 kB"), "With `web`: size of each object"),
        key(
            "reply-timeout",
            Duration,
            Optional("3 s; `video`: 10 s; `udp`, `call`: 1 s"),
            "With requests, `udp` and `call`: time to wait for late replies after the planned end; with `udping`: timeout of each datagram",
        )
.formerly("patience"),
        key(
            "load",
            Words(&["up", "down", "both"]),
            Optional("none"),
            "With requests, `udping`, `udp` and `call`: adds a bulk flow in this direction",
        ),
        key(
            "via",
            Name(12),
            Optional("the first path between them"),
            "Path of the first subflow; with `udp` and `call`: path of the datagrams",
        ),
        key("start", Duration, Optional("0 s"), "Time since the start of the traffic"),
        key("family", Words(&["v4", "v6"]), Optional("`v4`"), "Address family"),
        key(
            "transport",
            Words(&["tcp", "mptcp"]),
            Optional("the compared transport"),
            "Fixed transport of this flow in every run, for background traffic (not for `run`)",
        ),
    ]],
};

/// Names of the patterns, for the reference.
pub(crate) static PATTERN_NAMES: TableSchema = TableSchema {
    noun: "a pattern",
    heading: "Traffic patterns",
    doc: "Traffic of a flow. The first two patterns are transfers. The others exchange requests and replies; every delay counts from the time at which the request was *due*. The schedule begins when the flow's connections are open. If both hosts make requests, each has its own connection.",
    key_groups: &[&[
        key(
            "bulk",
            Bound,
            Optional("up; `multipathtester`: 10 MB down"),
            "One transfer at the maximum speed",
        ),
        key(
            "iperf",
            Bound,
            Optional("up, 10 s; `multipathtester`: 7 s"),
            "As iperf3: send for a duration",
        ),
        key(
            "ping",
            Bound,
            Optional("5 requests of 100 B, replies of 10 B, every 200 ms"),
            "Round-trip time, after one request that is not measured",
        ),
        key(
            "reqres",
            Bound,
            Optional("750 B, reply 750 B, every 400 ms, 14 s"),
            "Requests and replies",
        ),
        key(
            "interactive",
            Bound,
            Optional(
                "`multipathtester`: 2 kB, reply 750 B after an acknowledgement of 9 B; `multipathtester-app`: 2 kB, reply \
                 9 B; every 100 ms, both ways",
            ),
            "Voice assistant and radio, as in MultipathTester's paper and program",
        ),
        key(
            "onoff",
            Bound,
            Optional(
                "1 kB, reply 9 B, every 20 ms, 1 s on, 1 s off; `voice-assistant`: 2.5 kB, reply 750 B, every \
                 300 ms, 2.7 s on, 3 s off",
            ),
            "Bursts of requests with pauses",
        ),
        key("trace", Bound, Optional("`messages`"), "Messages from a list, at their times"),
        key(
            "video",
            Bound,
            Optional("30 s at 5 Mbit/s in segments of 2 s, buffer 10 s"),
            "Video player that fetches segments while its buffer has room",
        ),
        key(
            "web",
            Bound,
            Optional("30 kB, then 30 objects of 50 kB over 6 connections"),
            "Web page; its objects are due when the page itself has arrived",
        ),
        key(
            "udping",
            Bound,
            Optional("every 100 ms, 10 s"),
            "Datagram of 32 B over each path, returned by the other host: quality of each path, independent of the transport",
        ),
        key(
            "udp",
            Bound,
            Optional("1 Mbit/s of 1448 B up, 10 s"),
            "Plain datagrams at a constant rate over one path: loss, jitter, delay",
        ),
        key(
            "call",
            Bound,
            Optional("G.711 both ways, jitter buffer of 60 ms, 10 s"),
            "Telephone call over one path, as plain datagrams: loss, late datagrams, mouth-to-ear delay, rating R and score (ITU-T G.107)",
        ),
        key(
            "latency",
            Bound,
            Optional("4 phases of 5 s, pauses of 1 s, 100 B and reply 100 B every 50 ms"),
            "Latency under load: requests, and datagrams over each path, first idle, then with 4 connections that send down, up, and both ways",
        ),
    ]],
};
