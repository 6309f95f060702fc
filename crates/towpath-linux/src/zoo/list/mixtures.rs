//! Variations that mix what the situations have alone.

use super::connection::{REWRITE, V6, strip};
use super::variations::{NAT, join, variation};
use super::{ANNOUNCED, NONE, SECOND};
use crate::hop::packet::Kind;
use crate::hop::{Packets, Phase, Reason, Rule, Treatment};
use crate::zoo::situation::{Change, Happening, Host, Quality, Routing, Situation, Socket};
use towpath_measure::scenario::LinkSide;

pub(super) const MIXTURES: &[Situation] = &[
    variation(
        "third-of-three-stripped-on-the-way-back",
        "three paths, of which the third loses MP_JOIN in answers, behind a NAT",
        Some("join-option-stripped"),
        false,
        &[
            THREE,
            THREE_ENDPOINTS,
            Change::Box(3, &[strip(LinkSide::Down, Phase::SynAck, Kind::Join), NAT]),
        ],
    ),
    variation(
        "first-of-three-silent",
        "three paths, of which the first falls silent",
        Some("path-silent"),
        true,
        &[THREE, THREE_ENDPOINTS, Change::Then(Happening::Box(1, &[SILENT]))],
    ),
    variation(
        "all-paths-silent",
        "both paths fall silent",
        Some("path-silent"),
        true,
        &[Change::Then(Happening::Box(1, &[SILENT])), Change::Then(Happening::Box(2, &[SILENT]))],
    ),
    variation(
        "limits-at-both-ends",
        "neither host allows a further subflow",
        Some("subflow-limit"),
        true,
        &[Change::Limits(Host::Client, 0, 0), Change::Limits(Host::Server, 0, 0)],
    ),
    variation(
        "v6-mtu-hole",
        "an IPv6 path that carries 1,280 bytes, and does not say so",
        Some("path-mtu-hole"),
        true,
        &[Change::Connect(V6), Change::Quality(2, Quality { mtu_bytes: 1_280, ..Quality::USUAL })],
    ),
    variation(
        "data-dropped",
        "a firewall lets two packets of each connection pass, and no more",
        Some("path-silent"),
        true,
        &[Change::Then(Happening::Box(
            2,
            &[Rule {
                side: LinkSide::Both,
                packets: Packets::of(Phase::Later),
                treatment: Treatment::Drop,
            }],
        ))],
    ),
    variation(
        "short-time-to-live",
        "the second path has more routers than the time to live allows",
        Some("join-unreachable"),
        false,
        &[Change::Sysctl(Host::Client, "net.ipv4.ip_default_ttl", "4"), Change::FarBox(2)],
    ),
    variation(
        "path-comes-up-later",
        "the second path forbade subflows when a program's connection began",
        Some("subflow-not-recreated"),
        false,
        &[Change::AtFirst(2, &[join(Treatment::Reset)]), Change::Application(Socket::Bursts)],
    ),
    variation(
        "lossy-on-the-way-back",
        "the second path loses one packet in six, of those from the server",
        Some("path-lossy"),
        true,
        &[Change::Quality(2, Quality { loss_percent: 17, side: LinkSide::Down, ..Quality::USUAL })],
    ),
    variation(
        "rewritten-on-the-way-back",
        "a gateway on the second path changes what the server sends, and checksums are on",
        Some("payload-rewritten"),
        true,
        &[
            Change::Sysctl(Host::Server, "net.mptcp.checksum_enabled", "1"),
            Change::Box(2, &[Rule { side: LinkSide::Down, ..REWRITE }]),
        ],
    ),
    variation(
        "announced-port-blocked",
        "the server announces an address with a port that a firewall swallows",
        Some("announced-address-unreachable"),
        false,
        &[
            Change::Endpoints(Host::Client, NONE),
            Change::Endpoints(Host::Server, &["203.0.113.2 port 4001 signal"]),
            Change::Box(1, &[join(Treatment::Drop)]),
        ],
    ),
    variation(
        "mesh-with-a-strict-path",
        "every address with every other, and one path forbids further subflows",
        Some("join-prohibited"),
        false,
        &[
            Change::Endpoints(Host::Client, &["10.1.2.2 dev c2 subflow fullmesh"]),
            Change::Endpoints(Host::Server, ANNOUNCED),
            Change::Box(2, &[join(Treatment::Unreachable(Reason::Prohibited))]),
        ],
    ),
    variation(
        "laminar-pair-dropped",
        "each interface with an address of its own at the server, and one way swallows MP_JOIN",
        Some("join-dropped"),
        false,
        &[
            Change::Endpoints(Host::Client, &["10.1.2.2 dev c2 laminar"]),
            Change::Endpoints(Host::Server, ANNOUNCED),
            Change::Box(2, &[join(Treatment::Drop)]),
        ],
    ),
    variation(
        "stripped-first-path-nat-v4",
        "behind NAT on both paths, the first strips SYNs and the second does not",
        Some("syn-option-stripped"),
        false,
        &[
            Change::Box(1, &[strip(LinkSide::Up, Phase::Syn, Kind::Every), NAT]),
            Change::Box(2, &[NAT]),
        ],
    ),
    variation(
        "backup-lost",
        "the only further path is a backup, and swallows MP_JOIN",
        Some("join-dropped"),
        false,
        &[
            Change::Endpoints(Host::Client, &["10.1.2.2 dev c2 subflow backup"]),
            Change::Box(2, &[join(Treatment::Drop)]),
        ],
    ),
    variation(
        "healthy-v6-second-path",
        "the second interface has no IPv4 address, and the connection is IPv6",
        None,
        true,
        &[Change::NoAddress(Host::Client, 2, "10.1.2.2/24"), Change::Connect(V6), V6_ENDPOINT],
    ),
    variation(
        "healthy-metrics",
        "a default route for each interface, and endpoints that are bound to theirs",
        None,
        true,
        &[Change::Routing(Routing::ByMetric), Change::Endpoints(Host::Client, SECOND)],
    ),
    variation(
        "healthy-checksum-at-the-server",
        "the server alone wants checksums, and gets them",
        None,
        true,
        &[Change::Sysctl(Host::Server, "net.mptcp.checksum_enabled", "1")],
    ),
    variation(
        "healthy-idle-application",
        "a program that is silent for long, and no NAT",
        None,
        false,
        &[Change::Endpoints(Host::Client, SECOND), Change::Application(Socket::Multipath)],
    ),
    variation(
        "answers-reset-v6",
        "a firewall on the second IPv6 path resets the answers to MP_JOIN at the server",
        Some("join-dropped"),
        false,
        &[
            Change::Connect(V6),
            Change::Box(
                2,
                &[Rule {
                    side: LinkSide::Down,
                    packets: Packets::of(Phase::SynAck).with(Kind::Join),
                    treatment: Treatment::Reset,
                }],
            ),
        ],
    ),
    variation(
        "prohibited-v6",
        "a firewall on the second IPv6 path forbids everything",
        Some("join-prohibited"),
        false,
        &[
            Change::Connect(V6),
            Change::Box(
                2,
                &[Rule {
                    side: LinkSide::Up,
                    packets: Packets::ALL,
                    treatment: Treatment::Unreachable(Reason::Prohibited),
                }],
            ),
        ],
    ),
    variation(
        "servers-second-route",
        "the server announces its second address, and answers from there by the first interface",
        Some("no-source-route"),
        true,
        &[
            Change::Endpoints(Host::Client, NONE),
            Change::Endpoints(Host::Server, ANNOUNCED),
            Change::ServerRouting(Routing::FirstOnly),
        ],
    ),
    variation(
        "first-link-down",
        "the first interface goes down during the connection",
        Some("link-down"),
        true,
        &[Change::Then(Happening::Down(1))],
    ),
    variation(
        "lossy-first-path",
        "the first path loses one packet in seven",
        Some("path-lossy"),
        true,
        &[Change::Quality(1, Quality { loss_percent: 14, ..Quality::USUAL })],
    ),
    variation(
        "hole-on-the-way-back",
        "large packets vanish on their way from the server, on the second path",
        Some("path-mtu-hole"),
        true,
        &[Change::Quality(2, Quality { mtu_bytes: 1_200, side: LinkSide::Down, ..Quality::USUAL })],
    ),
    variation(
        "far-and-stripped",
        "a path of 150 ms each way that loses MP_JOIN",
        Some("join-option-stripped"),
        false,
        &[
            Change::Quality(2, Quality { delay_ms: 150, ..Quality::USUAL }),
            Change::Box(2, &[strip(LinkSide::Up, Phase::Syn, Kind::Join)]),
        ],
    ),
    variation(
        "one-of-two-accepted",
        "the server's limit allows one further subflow of two",
        Some("peer-limit"),
        false,
        &[THREE, THREE_ENDPOINTS, Change::Limits(Host::Server, 1, 0)],
    ),
    variation(
        "forgotten-limit-and-swallowed",
        "a black hole of yesterday, and no limit for today",
        Some("blackhole-fallback-active"),
        false,
        &[
            Change::Limits(Host::Client, 0, 0),
            Change::WasBox(1, &[super::application::DROP_CAPABLE]),
        ],
    ),
    variation(
        "healthy-satellite",
        "two paths of 600 ms there and back",
        None,
        false,
        &[
            Change::Quality(1, Quality { delay_ms: 300, ..Quality::USUAL }),
            Change::Quality(2, Quality { delay_ms: 300, ..Quality::USUAL }),
        ],
    ),
    variation(
        "healthy-slow-second",
        "a second path of a twentieth of the rate",
        None,
        true,
        &[Change::Quality(2, Quality { rate_kbps: 1_000, ..Quality::USUAL })],
    ),
    variation(
        "healthy-forgetful-nat",
        "a NAT that forgets what is idle, and nothing that is",
        None,
        true,
        &[Change::Box(
            2,
            &[Rule {
                side: LinkSide::Both,
                packets: Packets::ALL,
                treatment: Treatment::TranslateFor(800),
            }],
        )],
    ),
];

const THREE: Change = Change::Clients(&["c1", "c2", "c3"]);
const THREE_ENDPOINTS: Change =
    Change::Endpoints(Host::Client, &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"]);
const V6_ENDPOINT: Change = Change::Endpoints(Host::Client, &["2001:db8:1:2::2 dev c2 subflow"]);

/// Nothing passes any more.
const SILENT: Rule =
    Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::Drop };
