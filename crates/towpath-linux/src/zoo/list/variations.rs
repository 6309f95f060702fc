//! Variations that no list shows: a diagnosis that knows only the situations by heart fails here.

use super::application::DROP_CAPABLE;
use super::connection::{V6, strip};
use super::{ANNOUNCED, NONE, SECOND};
use crate::hop::packet::Kind;
use crate::hop::{Packets, Phase, Reason, Rule, Treatment};
use crate::zoo::situation::{Change, Happening, Host, Quality, Routing, Situation};
use towpath_measure::scenario::LinkSide;

/// An unlisted situation.
pub(super) const fn variation(
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
pub(in crate::zoo) const fn join(treatment: Treatment) -> Rule {
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

/// A path of smaller packets whose router says so.
const TELLS: Rule = Rule {
    side: LinkSide::Both,
    packets: Packets::of(Phase::Later).carrying(1_260),
    treatment: Treatment::TooBig(1_300),
};

/// Translates addresses.
pub(in crate::zoo) const NAT: Rule =
    Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::Translate };
