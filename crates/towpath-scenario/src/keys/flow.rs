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
            "What is sent: see [Traffic patterns](#traffic-patterns)",
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
            "Figures to begin with: `multipathtester` with `bulk`, `iperf` and \
             `interactive`, `multipathtester-app` with `interactive`, `voice-assistant` with `onoff`; other keys override them",
        ),
        key("size", Size, Optional("whatever passes in time"), "With `bulk`: bytes to transfer"),
        key(
            "duration",
            Duration,
            Optional(
                "`bulk` with size and `run`: 60 s; `reqres`: 14 s; `video`, `web`: 30 s; `latency`: 5 s; \
                 else 10 s",
            ),
            "A transfer, a page and a command are ended after this time; requests are due, and a \
             video is played, for so long; each phase of `latency` takes it",
        ),
        key(
            "direction",
            Words(&["up", "down", "both"]),
            Optional("`interactive`, `call`: `both`; else `up`"),
            "Who sends or asks: the first host, the second, or (not `bulk`) both",
        ),
        key(
            "streams",
            Integer(1, 128),
            Optional("`iperf`: 1; `latency`: 4; `web`: 6"),
            "With `iperf`, `web` and the loads of `latency`: parallel connections",
        ),
        key("request", Size, Optional("of the pattern"), "Bytes of a request, 13 or more"),
        key(
            "reply",
            Size,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff` and `latency`: bytes of a reply, 9 or more",
        ),
        key(
            "period",
            Duration,
            Optional("of the pattern"),
            "With `ping`, `reqres`, `interactive`, `onoff`, `latency` and `udping`: time from one \
             request to the next",
        ),
        key("count", Integer(1, 1_000_000), Optional("5"), "With `ping`: requests that count"),
        key("warm-up", Integer(0, 1_000), Optional("1"), "With `ping`: requests before that"),
        key("on", Duration, Optional("1 s"), "With `onoff`: length of a burst"),
        key("off", Duration, Optional("1 s"), "With `onoff` and `latency`: length of a pause"),
        key(
            "messages",
            OneOf(&[Text, List(&Text)]),
            Optional("—"),
            "With `trace`: a file of messages, one a line, or a list; time, direction, request and \
             reply: `1.5 s up 2000 B 750 B`",
        ),
        key("segment", Duration, Optional("2 s"), "With `video`: length of a segment"),
        key(
            "bitrate",
            Rate,
            Optional("`video`: 5 Mbit/s; `udp`: 1 Mbit/s"),
            "With `video`: how much a second of it holds; with `udp`: payload that is sent in a second",
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
            "With `call`: how the sound is coded, 50 datagrams a second",
        ),
        key(
            "jitter-buffer",
            Duration,
            Optional("60 ms"),
            "With `call`: how much longer than the fastest one a datagram may take and still be played",
        ),
        key(
            "video",
            Rate,
            Optional("none"),
            "With `call`: payload of a picture beside the sound, 30 frames a second, as a flow of \
             its own",
        ),
        key("buffer", Duration, Optional("10 s"), "With `video`: most that the player keeps"),
        key(
            "startup",
            Duration,
            Optional("a segment"),
            "With `video`: it plays, at first and after a stall, when the buffer holds so much",
        ),
        key("page", Size, Optional("30 kB"), "With `web`: bytes of the page itself"),
        key("objects", Integer(0, 10_000), Optional("30"), "With `web`: what else is on the page"),
        key("object", Size, Optional("50 kB"), "With `web`: bytes of each object"),
        key(
            "reply-timeout",
            Duration,
            Optional("3 s; `video`: 10 s; `udp`, `call`: 1 s"),
            "With requests, `udp` and `call`: how long late ones are waited for after the planned end; with \
             `udping`: how long each is",
        )
.formerly("patience"),
        key(
            "load",
            Words(&["up", "down", "both"]),
            Optional("none"),
            "With requests, `udping`, `udp` and `call`: a bulk flow in this direction beside it",
        ),
        key(
            "via",
            Name(12),
            Optional("the first path between them"),
            "Path on which the connection starts; with `udp` and `call`: the one they take",
        ),
        key("start", Duration, Optional("0 s"), "When, counted from the start of the traffic"),
        key("family", Words(&["v4", "v6"]), Optional("`v4`"), "Address family"),
        key(
            "transport",
            Words(&["tcp", "mptcp"]),
            Optional("the one that is compared"),
            "Transport of this flow in every run, as for background traffic (not for `run`)",
        ),
    ]],
};

/// Names of the patterns, for the reference.
pub(crate) static PATTERN_NAMES: TableSchema = TableSchema {
    noun: "a pattern",
    heading: "Traffic patterns",
    doc: "What a flow sends. The first two are transfers; in all others somebody asks and somebody \
        answers, and every delay counts from when the request was *due*, whenever it could be \
        written. The schedule begins when the flow's connections are open. Where both ends ask, each \
        has a connection of its own.",
    key_groups: &[&[
        key(
            "bulk",
            Bound,
            Optional("up; `multipathtester`: 10 MB down"),
            "One transfer, as fast as it goes",
        ),
        key(
            "iperf",
            Bound,
            Optional("up, 10 s; `multipathtester`: 7 s"),
            "As iperf3: send for a time",
        ),
        key(
            "ping",
            Bound,
            Optional("5 requests of 100 B, replies of 10 B, every 200 ms"),
            "How far the other end is, after one request that does not count",
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
            "A voice assistant and a radio, as MultipathTester has them in the paper, and in its \
             program",
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
        key("trace", Bound, Optional("`messages`"), "What a list says, when it says"),
        key(
            "video",
            Bound,
            Optional("30 s at 5 Mbit/s in segments of 2 s, buffer 10 s"),
            "A player that fetches segment after segment while its buffer has room",
        ),
        key(
            "web",
            Bound,
            Optional("30 kB, then 30 objects of 50 kB over 6 connections"),
            "A page; what is on it is due when the page itself is there",
        ),
        key(
            "udping",
            Bound,
            Optional("every 100 ms, 10 s"),
            "A datagram of 32 B over each path, which the other host sends back: what the paths are \
             like, beside whatever transport",
        ),
        key(
            "udp",
            Bound,
            Optional("1 Mbit/s of 1448 B up, 10 s"),
            "Datagrams at a constant rate over one path, without any transport: lost ones, jitter, \
             delay",
        ),
        key(
            "call",
            Bound,
            Optional("G.711 both ways, jitter buffer of 60 ms, 10 s"),
            "A telephone call over one path, as datagrams without any transport: lost and late ones, \
             delay from mouth to ear, rating R and score (ITU-T G.107)",
        ),
        key(
            "latency",
            Bound,
            Optional("4 phases of 5 s, pauses of 1 s, 100 B and reply 100 B every 50 ms"),
            "Latency under load: requests, and datagrams over each path, first idle, then beside \
             4 connections that send down, up, and both ways",
        ),
    ]],
};
