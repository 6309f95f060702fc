//! Variations that no list shows: a diagnosis that knows only the situations by heart fails here.

use super::application::DROP_CAPABLE;
use super::connection::{REWRITE, V6, strip};
use super::{ANNOUNCED, NONE, SECOND};
use crate::hop::packet::Kind;
use crate::hop::{Packets, Phase, Reason, Rule, Treatment};
use crate::zoo::situation::{Change, Happening, Host, Quality, Routing, Situation, Socket};
use towpath_measure::scenario::LinkSide;

/// An unlisted situation.
const fn variation(
    name: &'static str,
    title: &'static str,
    cause: Option<&'static str>,
    two_ends: bool,
    changes: &'static [Change],
) -> Situation {
    let hidden = "This is a variation for tests.";
    Situation { name, title, seen: hidden, why: hidden, cause, two_ends, changes }
}

/// A box on the way of further subflows.
const fn join(treatment: Treatment) -> Rule {
    let packets = Packets::of(Phase::Syn).with(Kind::Join);
    Rule { side: LinkSide::Up, packets, treatment }
}

const PHONE: Change = Change::Clients(&["wlan0", "wwan0"]);
const PHONE_ENDPOINTS: Change = Change::Endpoints(
    Host::Client,
    &["10.1.2.2 dev wwan0 subflow", "2001:db8:1:2::2 dev wwan0 subflow"],
);

pub(super) const VARIATIONS: &[Situation] = &[
    variation(
        "other-names-join-stripped-v6",
        "other interfaces' names, IPv6, MP_JOIN removed from SYN/ACKs",
        Some("join-option-stripped"),
        false,
        &[
            PHONE,
            PHONE_ENDPOINTS,
            Change::Connect(V6),
            Change::Box(2, &[strip(LinkSide::Down, Phase::SynAck, Kind::Every)]),
        ],
    ),
    variation(
        "other-names-no-source-route",
        "other interfaces' names, no table for the second",
        Some("no-source-route"),
        false,
        &[
            PHONE,
            Change::Routing(Routing::FirstOnly),
            Change::Endpoints(Host::Client, &["10.1.2.2 subflow"]),
        ],
    ),
    variation(
        "third-path-prohibited",
        "three paths, of which the third is prohibited",
        Some("join-prohibited"),
        false,
        &[
            Change::Clients(&["c1", "c2", "c3"]),
            Change::Endpoints(
                Host::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"],
            ),
            Change::Box(3, &[join(Treatment::Unreachable(Reason::Prohibited))]),
        ],
    ),
    variation(
        "third-path-silent-v6",
        "three paths over IPv6, of which the third falls silent",
        Some("path-silent"),
        true,
        &[
            Change::Clients(&["lan", "dsl", "sat"]),
            Change::Endpoints(
                Host::Client,
                &["2001:db8:1:2::2 dev dsl subflow", "2001:db8:1:3::2 dev sat subflow"],
            ),
            Change::Connect(V6),
            Change::Then(Happening::Box(
                3,
                &[Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::Drop }],
            )),
        ],
    ),
    variation(
        "announced-address-dropped",
        "the way to the announced address alone swallows MP_JOIN",
        Some("join-dropped"),
        false,
        &[
            Change::Endpoints(Host::Client, NONE),
            Change::Endpoints(Host::Server, ANNOUNCED),
            Change::Box(1, &[join(Treatment::Drop)]),
        ],
    ),
    variation(
        "limits-and-stripped",
        "the first SYN is stripped; the limits would not do either",
        Some("syn-option-stripped"),
        false,
        &[
            Change::Limits(Host::Client, 0, 0),
            Change::Box(1, &[strip(LinkSide::Up, Phase::Syn, Kind::Capable)]),
        ],
    ),
    variation(
        "wrong-address-and-limit",
        "a missing address, and no limit in its way",
        Some("endpoint-address-missing"),
        false,
        &[
            Change::Endpoints(Host::Client, &["172.16.0.9 subflow", "10.1.2.2 dev c2 subflow"]),
            Change::Limits(Host::Client, 8, 8),
        ],
    ),
    variation(
        "small-path-one-way",
        "large packets vanish on their way to the server only",
        Some("path-mtu-hole"),
        true,
        &[Change::Quality(2, Quality { mtu_bytes: 1_200, side: LinkSide::Up, ..Quality::USUAL })],
    ),
    variation(
        "nat-and-reset",
        "behind NAT on both paths, with a firewall on the second",
        Some("join-reset"),
        false,
        &[Change::Box(1, &[NAT]), Change::Box(2, &[join(Treatment::Reset), NAT])],
    ),
    variation(
        "late-box-strips",
        "a box strips SYNs behind its own time to live, one router farther away",
        Some("syn-option-stripped"),
        false,
        &[
            Change::FarBox(1),
            Change::LateBox(1),
            Change::Box(1, &[strip(LinkSide::Up, Phase::Syn, Kind::Every)]),
        ],
    ),
    variation(
        "late-box-drops-v6",
        "a box swallows IPv6 SYNs with the option behind its own time to live",
        Some("syn-option-dropped"),
        false,
        &[Change::LateBox(1), Change::Box(1, &[DROP_CAPABLE]), Change::Connect(V6)],
    ),
    variation(
        "far-box-join-dropped",
        "MP_JOIN is swallowed one router farther away, after its time to live",
        Some("join-dropped"),
        false,
        &[Change::FarBox(2), Change::LateBox(2), Change::Box(2, &[join(Treatment::Drop)])],
    ),
    variation(
        "routes-lost",
        "the second interface was off and on again, and nobody renewed its routes",
        Some("no-gateway-on-interface"),
        false,
        &[Change::WasDown(Host::Client, 2)],
    ),
    variation(
        "healthy-small-packets",
        "a path that carries 1,300 bytes, and says so",
        None,
        true,
        &[Change::Box(2, &[TELLS]), Change::Endpoints(Host::Client, SECOND)],
    ),
    variation(
        "healthy-some-loss",
        "a path that loses one packet in a hundred",
        None,
        true,
        &[Change::Quality(2, Quality { loss_percent: 1, ..Quality::USUAL })],
    ),
    variation(
        "healthy-far-away",
        "a server at the other end of the world",
        None,
        true,
        &[
            Change::Quality(1, Quality { delay_ms: 120, ..Quality::USUAL }),
            Change::Quality(2, Quality { delay_ms: 150, ..Quality::USUAL }),
        ],
    ),
    variation(
        "healthy-far",
        "one more router on each path",
        None,
        true,
        &[Change::FarBox(1), Change::FarBox(2)],
    ),
    variation(
        "healthy-phone-v6",
        "other interfaces' names, IPv6, unequal paths",
        None,
        true,
        &[
            PHONE,
            PHONE_ENDPOINTS,
            Change::Connect(V6),
            Change::Quality(2, Quality { delay_ms: 20, rate_kbps: 10_000, ..Quality::USUAL }),
        ],
    ),
    variation(
        "healthy-nat-three-announced",
        "three paths, NAT on one, an announced address",
        None,
        false,
        &[
            Change::Clients(&["eth0", "wlan0", "wwan0"]),
            Change::Endpoints(
                Host::Client,
                &["10.1.2.2 dev wlan0 subflow", "10.1.3.2 dev wwan0 subflow"],
            ),
            Change::Endpoints(Host::Server, ANNOUNCED),
            Change::Box(3, &[NAT]),
        ],
    ),
];

/// More of them: mixtures.
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
];

const THREE: Change = Change::Clients(&["c1", "c2", "c3"]);
const THREE_ENDPOINTS: Change =
    Change::Endpoints(Host::Client, &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"]);
const V6_ENDPOINT: Change = Change::Endpoints(Host::Client, &["2001:db8:1:2::2 dev c2 subflow"]);

/// Nothing passes any more.
const SILENT: Rule =
    Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::Drop };

/// A path of smaller packets whose router says so.
const TELLS: Rule = Rule {
    side: LinkSide::Both,
    packets: Packets::of(Phase::Later).carrying(1_260),
    treatment: Treatment::TooBig(1_300),
};

/// Translates addresses.
const NAT: Rule =
    Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::Translate };
