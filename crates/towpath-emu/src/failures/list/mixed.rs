//! Variations that combine the faults of several failure cases.

use towpath_scenario::LinkSide;

use super::connection::{REWRITE, SERVER_V6, strip};
use super::variations::{NAT, join_packets, variation};
use super::{CLIENT_ENDPOINT, NO_ENDPOINTS, SERVER_SIGNAL_ENDPOINT};
use crate::failures::case::{
    AppSocket, FailureCase, FailureEvent, HostSide, NetworkMutation, PathQuality, Routing,
};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule, UnreachableReason};

pub(super) const MIXED_CASES: &[FailureCase] = &[
    variation(
        "third-of-three-stripped-on-the-way-back",
        "three paths, of which the third loses MP_JOIN in SYN/ACKs, behind a NAT",
        Some("join-option-stripped"),
        false,
        &[
            THREE_CLIENT_LINKS,
            THREE_CLIENT_ENDPOINTS,
            NetworkMutation::Box(
                3,
                &[strip(LinkSide::Down, ConnectionPhase::SynAck, MptcpOptionKind::Join), NAT],
            ),
        ],
    ),
    variation(
        "first-of-three-silent",
        "three paths, of which the first falls silent",
        Some("path-silent"),
        true,
        &[
            THREE_CLIENT_LINKS,
            THREE_CLIENT_ENDPOINTS,
            NetworkMutation::Event(FailureEvent::Box(1, &[DROP_ALL])),
        ],
    ),
    variation(
        "all-paths-silent",
        "both paths fall silent",
        Some("path-silent"),
        true,
        &[
            NetworkMutation::Event(FailureEvent::Box(1, &[DROP_ALL])),
            NetworkMutation::Event(FailureEvent::Box(2, &[DROP_ALL])),
        ],
    ),
    variation(
        "limits-at-both-ends",
        "neither host allows a further subflow",
        Some("subflow-limit"),
        true,
        &[
            NetworkMutation::Limits(HostSide::Client, 0, 0),
            NetworkMutation::Limits(HostSide::Server, 0, 0),
        ],
    ),
    variation(
        "v6-mtu-hole",
        "an IPv6 path that drops packets of more than 1,280 bytes without a report",
        Some("path-mtu-hole"),
        true,
        &[
            NetworkMutation::Connect(SERVER_V6),
            NetworkMutation::Quality(2, PathQuality { mtu_bytes: 1_280, ..PathQuality::DEFAULT }),
        ],
    ),
    variation(
        "data-dropped",
        "a firewall on the second path drops all packets except SYNs and SYN/ACKs",
        Some("path-silent"),
        true,
        &[NetworkMutation::Event(FailureEvent::Box(
            2,
            &[RouterRule {
                side: LinkSide::Both,
                packets: PacketMatch::of(ConnectionPhase::Later),
                treatment: PacketAction::Drop,
            }],
        ))],
    ),
    variation(
        "short-time-to-live",
        "the second path has more routers than the client's TTL permits",
        Some("join-unreachable"),
        false,
        &[
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.ip_default_ttl", "4"),
            NetworkMutation::FarBox(2),
        ],
    ),
    variation(
        "path-comes-up-later",
        "the second path reset further subflows when a program's connection began",
        Some("subflow-not-recreated"),
        false,
        &[
            NetworkMutation::InitialBox(2, &[join_packets(PacketAction::Reset)]),
            NetworkMutation::Application(AppSocket::Bursts),
        ],
    ),
    variation(
        "lossy-on-the-way-back",
        "the second path loses one in six packets of the server",
        Some("path-lossy"),
        true,
        &[NetworkMutation::Quality(
            2,
            PathQuality { loss_percent: 17, side: LinkSide::Down, ..PathQuality::DEFAULT },
        )],
    ),
    variation(
        "rewritten-on-the-way-back",
        "a gateway on the second path modifies the server's data, and checksums are on",
        Some("payload-rewritten"),
        true,
        &[
            NetworkMutation::Sysctl(HostSide::Server, "net.mptcp.checksum_enabled", "1"),
            NetworkMutation::Box(2, &[RouterRule { side: LinkSide::Down, ..REWRITE }]),
        ],
    ),
    variation(
        "announced-port-blocked",
        "the server announces an address with a port that a firewall blocks",
        Some("announced-address-unreachable"),
        false,
        &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.2 port 4001 signal"]),
            NetworkMutation::Box(1, &[join_packets(PacketAction::Drop)]),
        ],
    ),
    variation(
        "mesh-with-a-strict-path",
        "full mesh of addresses, and one path prohibits further subflows",
        Some("join-prohibited"),
        false,
        &[
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c2 subflow fullmesh"]),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::Box(
                2,
                &[join_packets(PacketAction::Unreachable(UnreachableReason::Prohibited))],
            ),
        ],
    ),
    variation(
        "laminar-pair-dropped",
        "each interface uses its own address of the server, and one path drops MP_JOIN",
        Some("join-dropped"),
        false,
        &[
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c2 laminar"]),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::Box(2, &[join_packets(PacketAction::Drop)]),
        ],
    ),
    variation(
        "stripped-first-path-nat-v4",
        "behind NAT on both paths; the first path strips SYNs, the second does not",
        Some("syn-option-stripped"),
        false,
        &[
            NetworkMutation::Box(
                1,
                &[strip(LinkSide::Up, ConnectionPhase::Syn, MptcpOptionKind::Every), NAT],
            ),
            NetworkMutation::Box(2, &[NAT]),
        ],
    ),
    variation(
        "backup-lost",
        "the only further path is a backup and drops MP_JOIN",
        Some("join-dropped"),
        false,
        &[
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c2 subflow backup"]),
            NetworkMutation::Box(2, &[join_packets(PacketAction::Drop)]),
        ],
    ),
    variation(
        "healthy-v6-second-path",
        "the second interface has no IPv4 address, and the connection is IPv6",
        None,
        true,
        &[
            NetworkMutation::NoAddress(HostSide::Client, 2, "10.1.2.2/24"),
            NetworkMutation::Connect(SERVER_V6),
            V6_ENDPOINT,
        ],
    ),
    variation(
        "healthy-metrics",
        "a default route for each interface, and endpoints that are bound to their interface",
        None,
        true,
        &[
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT),
        ],
    ),
    variation(
        "healthy-checksum-at-the-server",
        "only the server requires checksums, and the client sends them",
        None,
        true,
        &[NetworkMutation::Sysctl(HostSide::Server, "net.mptcp.checksum_enabled", "1")],
    ),
    variation(
        "healthy-idle-application",
        "a program that is idle for a long time, without a NAT",
        None,
        false,
        &[
            NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT),
            NetworkMutation::Application(AppSocket::Multipath),
        ],
    ),
    variation(
        "answers-reset-v6",
        "a firewall on the second IPv6 path resets the SYN/ACKs with MP_JOIN at the server",
        Some("join-dropped"),
        false,
        &[
            NetworkMutation::Connect(SERVER_V6),
            NetworkMutation::Box(
                2,
                &[RouterRule {
                    side: LinkSide::Down,
                    packets: PacketMatch::of(ConnectionPhase::SynAck).with(MptcpOptionKind::Join),
                    treatment: PacketAction::Reset,
                }],
            ),
        ],
    ),
    variation(
        "prohibited-v6",
        "a firewall on the second IPv6 path prohibits all packets",
        Some("join-prohibited"),
        false,
        &[
            NetworkMutation::Connect(SERVER_V6),
            NetworkMutation::Box(
                2,
                &[RouterRule {
                    side: LinkSide::Up,
                    packets: PacketMatch::ALL,
                    treatment: PacketAction::Unreachable(UnreachableReason::Prohibited),
                }],
            ),
        ],
    ),
    variation(
        "servers-second-route",
        "the server announces its second address and replies from it through the first interface",
        Some("no-source-route"),
        true,
        &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::ServerRouting(Routing::FirstOnly),
        ],
    ),
    variation(
        "first-link-down",
        "the first interface goes down during the connection",
        Some("link-down"),
        true,
        &[NetworkMutation::Event(FailureEvent::Down(1))],
    ),
    variation(
        "lossy-first-path",
        "the first path loses one packet in seven",
        Some("path-lossy"),
        true,
        &[NetworkMutation::Quality(1, PathQuality { loss_percent: 14, ..PathQuality::DEFAULT })],
    ),
    variation(
        "hole-on-the-way-back",
        "the second path drops large packets of the server",
        Some("path-mtu-hole"),
        true,
        &[NetworkMutation::Quality(
            2,
            PathQuality { mtu_bytes: 1_200, side: LinkSide::Down, ..PathQuality::DEFAULT },
        )],
    ),
    variation(
        "far-and-stripped",
        "a path of 150 ms in each direction that loses MP_JOIN",
        Some("join-option-stripped"),
        false,
        &[
            NetworkMutation::Quality(2, PathQuality { delay_ms: 150, ..PathQuality::DEFAULT }),
            NetworkMutation::Box(
                2,
                &[strip(LinkSide::Up, ConnectionPhase::Syn, MptcpOptionKind::Join)],
            ),
        ],
    ),
    variation(
        "one-of-two-accepted",
        "the server's limit permits one of two further subflows",
        Some("peer-limit"),
        false,
        &[
            THREE_CLIENT_LINKS,
            THREE_CLIENT_ENDPOINTS,
            NetworkMutation::Limits(HostSide::Server, 1, 0),
        ],
    ),
    variation(
        "forgotten-limit-and-swallowed",
        "an earlier black hole disabled Multipath TCP, and the limit permits no subflow",
        Some("blackhole-fallback-active"),
        false,
        &[
            NetworkMutation::Limits(HostSide::Client, 0, 0),
            NetworkMutation::FormerBox(1, &[super::application::DROP_CAPABLE]),
        ],
    ),
    variation(
        "healthy-satellite",
        "two paths with a round-trip time of 600 ms",
        None,
        false,
        &[
            NetworkMutation::Quality(1, PathQuality { delay_ms: 300, ..PathQuality::DEFAULT }),
            NetworkMutation::Quality(2, PathQuality { delay_ms: 300, ..PathQuality::DEFAULT }),
        ],
    ),
    variation(
        "healthy-slow-second",
        "a second path with a twentieth of the rate",
        None,
        true,
        &[NetworkMutation::Quality(2, PathQuality { rate_kbps: 1_000, ..PathQuality::DEFAULT })],
    ),
    variation(
        "healthy-forgetful-nat",
        "a NAT that drops idle state, without an idle connection",
        None,
        true,
        &[NetworkMutation::Box(
            2,
            &[RouterRule {
                side: LinkSide::Both,
                packets: PacketMatch::ALL,
                treatment: PacketAction::TranslateFor(800),
            }],
        )],
    ),
];

const THREE_CLIENT_LINKS: NetworkMutation = NetworkMutation::Clients(&["c1", "c2", "c3"]);
const THREE_CLIENT_ENDPOINTS: NetworkMutation = NetworkMutation::Endpoints(
    HostSide::Client,
    &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"],
);
const V6_ENDPOINT: NetworkMutation =
    NetworkMutation::Endpoints(HostSide::Client, &["2001:db8:1:2::2 dev c2 subflow"]);

/// Drops all packets in both directions.
const DROP_ALL: RouterRule =
    RouterRule { side: LinkSide::Both, packets: PacketMatch::ALL, treatment: PacketAction::Drop };
