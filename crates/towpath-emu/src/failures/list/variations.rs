//! Variations that no listing shows: a diagnosis that matches only the listed cases fails here.

use towpath_scenario::LinkSide;

use super::application::DROP_CAPABLE;
use super::connection::{SERVER_V6, strip};
use super::{CLIENT_ENDPOINT, NO_ENDPOINTS, SERVER_SIGNAL_ENDPOINT};
use crate::failures::case::{
    FailureCase, FailureEvent, HostSide, NetworkMutation, PathQuality, Routing,
};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule, UnreachableReason};

/// Creates a case that is not listed.
pub(super) const fn variation(
    name: &'static str,
    title: &'static str,
    cause: Option<&'static str>,
    needs_server_report: bool,
    changes: &'static [NetworkMutation],
) -> FailureCase {
    let placeholder = "This is a variation for tests.";
    FailureCase {
        name,
        title,
        symptom: placeholder,
        explanation: placeholder,
        cause,
        needs_server_report,
        changes,
    }
}

/// Returns the rule of a middlebox on the path of further subflows.
pub(in crate::failures) const fn join_packets(treatment: PacketAction) -> RouterRule {
    let packets = PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Join);
    RouterRule { side: LinkSide::Up, packets, treatment }
}

const PHONE_INTERFACES: NetworkMutation = NetworkMutation::Clients(&["wlan0", "wwan0"]);
const PHONE_ENDPOINTS: NetworkMutation = NetworkMutation::Endpoints(
    HostSide::Client,
    &["10.1.2.2 dev wwan0 subflow", "2001:db8:1:2::2 dev wwan0 subflow"],
);

pub(super) const VARIATION_CASES: &[FailureCase] = &[
    variation(
        "other-names-join-stripped-v6",
        "different names of interfaces, IPv6, MP_JOIN removed from SYN/ACKs",
        Some("join-option-stripped"),
        false,
        &[
            PHONE_INTERFACES,
            PHONE_ENDPOINTS,
            NetworkMutation::Connect(SERVER_V6),
            NetworkMutation::Box(
                2,
                &[strip(LinkSide::Down, ConnectionPhase::SynAck, MptcpOptionKind::Every)],
            ),
        ],
    ),
    variation(
        "other-names-no-source-route",
        "different names of interfaces, no routing table for the second",
        Some("no-source-route"),
        false,
        &[
            PHONE_INTERFACES,
            NetworkMutation::Routing(Routing::FirstOnly),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 subflow"]),
        ],
    ),
    variation(
        "third-path-prohibited",
        "three paths, of which the third prohibits further subflows",
        Some("join-prohibited"),
        false,
        &[
            NetworkMutation::Clients(&["c1", "c2", "c3"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"],
            ),
            NetworkMutation::Box(
                3,
                &[join_packets(PacketAction::Unreachable(UnreachableReason::Prohibited))],
            ),
        ],
    ),
    variation(
        "third-path-silent-v6",
        "three paths over IPv6, of which the third falls silent",
        Some("path-silent"),
        true,
        &[
            NetworkMutation::Clients(&["lan", "dsl", "sat"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["2001:db8:1:2::2 dev dsl subflow", "2001:db8:1:3::2 dev sat subflow"],
            ),
            NetworkMutation::Connect(SERVER_V6),
            NetworkMutation::Event(FailureEvent::Box(
                3,
                &[RouterRule {
                    side: LinkSide::Both,
                    packets: PacketMatch::ALL,
                    treatment: PacketAction::Drop,
                }],
            )),
        ],
    ),
    variation(
        "announced-address-dropped",
        "only the path to the announced address drops MP_JOIN",
        Some("join-dropped"),
        false,
        &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::Box(1, &[join_packets(PacketAction::Drop)]),
        ],
    ),
    variation(
        "limits-and-stripped",
        "the first SYN is stripped, and the limits permit no further subflow",
        Some("syn-option-stripped"),
        false,
        &[
            NetworkMutation::Limits(HostSide::Client, 0, 0),
            NetworkMutation::Box(
                1,
                &[strip(LinkSide::Up, ConnectionPhase::Syn, MptcpOptionKind::Capable)],
            ),
        ],
    ),
    variation(
        "wrong-address-and-limit",
        "an endpoint whose address is missing, with sufficient limits",
        Some("endpoint-address-missing"),
        false,
        &[
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["172.16.0.9 subflow", "10.1.2.2 dev c2 subflow"],
            ),
            NetworkMutation::Limits(HostSide::Client, 8, 8),
        ],
    ),
    variation(
        "small-path-one-way",
        "the second path drops large packets towards the server only",
        Some("path-mtu-hole"),
        true,
        &[NetworkMutation::Quality(
            2,
            PathQuality { mtu_bytes: 1_200, side: LinkSide::Up, ..PathQuality::DEFAULT },
        )],
    ),
    variation(
        "nat-and-reset",
        "behind NAT on both paths, with a firewall on the second",
        Some("join-reset"),
        false,
        &[
            NetworkMutation::Box(1, &[NAT]),
            NetworkMutation::Box(2, &[join_packets(PacketAction::Reset), NAT]),
        ],
    ),
    variation(
        "late-box-strips",
        "a middlebox strips SYNs after it decrements the TTL, one router farther away",
        Some("syn-option-stripped"),
        false,
        &[
            NetworkMutation::FarBox(1),
            NetworkMutation::LateBox(1),
            NetworkMutation::Box(
                1,
                &[strip(LinkSide::Up, ConnectionPhase::Syn, MptcpOptionKind::Every)],
            ),
        ],
    ),
    variation(
        "late-box-drops-v6",
        "a middlebox drops IPv6 SYNs with the option after it decrements the TTL",
        Some("syn-option-dropped"),
        false,
        &[
            NetworkMutation::LateBox(1),
            NetworkMutation::Box(1, &[DROP_CAPABLE]),
            NetworkMutation::Connect(SERVER_V6),
        ],
    ),
    variation(
        "far-box-join-dropped",
        "a middlebox drops MP_JOIN after it decrements the TTL, one router farther away",
        Some("join-dropped"),
        false,
        &[
            NetworkMutation::FarBox(2),
            NetworkMutation::LateBox(2),
            NetworkMutation::Box(2, &[join_packets(PacketAction::Drop)]),
        ],
    ),
    variation(
        "routes-lost",
        "the second interface was down and up again, and its routes were not restored",
        Some("no-gateway-on-interface"),
        false,
        &[NetworkMutation::BouncedLink(HostSide::Client, 2)],
    ),
    variation(
        "healthy-small-packets",
        "a path that carries 1,300 bytes and reports it",
        None,
        true,
        &[
            NetworkMutation::Box(2, &[SMALL_MTU_WITH_PTB]),
            NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT),
        ],
    ),
    variation(
        "healthy-some-loss",
        "a path that loses one packet in a hundred",
        None,
        true,
        &[NetworkMutation::Quality(2, PathQuality { loss_percent: 1, ..PathQuality::DEFAULT })],
    ),
    variation(
        "healthy-far-away",
        "a server on another continent",
        None,
        true,
        &[
            NetworkMutation::Quality(1, PathQuality { delay_ms: 120, ..PathQuality::DEFAULT }),
            NetworkMutation::Quality(2, PathQuality { delay_ms: 150, ..PathQuality::DEFAULT }),
        ],
    ),
    variation(
        "healthy-far",
        "one more router on each path",
        None,
        true,
        &[NetworkMutation::FarBox(1), NetworkMutation::FarBox(2)],
    ),
    variation(
        "healthy-phone-v6",
        "different names of interfaces, IPv6, unequal paths",
        None,
        true,
        &[
            PHONE_INTERFACES,
            PHONE_ENDPOINTS,
            NetworkMutation::Connect(SERVER_V6),
            NetworkMutation::Quality(
                2,
                PathQuality { delay_ms: 20, rate_kbps: 10_000, ..PathQuality::DEFAULT },
            ),
        ],
    ),
    variation(
        "healthy-nat-three-announced",
        "three paths, NAT on one of them, and an announced address",
        None,
        false,
        &[
            NetworkMutation::Clients(&["eth0", "wlan0", "wwan0"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 dev wlan0 subflow", "10.1.3.2 dev wwan0 subflow"],
            ),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::Box(3, &[NAT]),
        ],
    ),
];

/// Path with a smaller MTU whose router sends "packet too big".
const SMALL_MTU_WITH_PTB: RouterRule = RouterRule {
    side: LinkSide::Both,
    packets: PacketMatch::of(ConnectionPhase::Later).carrying(1_260),
    treatment: PacketAction::TooBig(1_300),
};

/// NAT in both directions, for all packets.
pub(in crate::failures) const NAT: RouterRule = RouterRule {
    side: LinkSide::Both,
    packets: PacketMatch::ALL,
    treatment: PacketAction::Translate,
};
