//! The ways of further subflows, and the quality of paths.

use super::connection::{V6, strip};
use super::{ANNOUNCED, NONE};
use crate::hop::packet::Kind;
use crate::hop::{Packets, Phase, Reason, Rule, Treatment};
use crate::zoo::situation::{Change, Happening, Host, Quality, Situation, Socket};
use towpath_measure::scenario::LinkSide;

/// A box that treats the first packet of a further subflow.
const fn join(treatment: Treatment) -> Rule {
    let packets = Packets::of(Phase::Syn).with(Kind::Join);
    Rule { side: LinkSide::Up, packets, treatment }
}

/// A router that treats everything towards the server.
pub(in crate::zoo) const fn all(treatment: Treatment) -> Rule {
    Rule { side: LinkSide::Up, packets: Packets::ALL, treatment }
}

/// Nothing passes any more.
pub(in crate::zoo) const SILENT: Rule =
    Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::Drop };

/// A translator that does not remember for long.
const FORGETFUL: Rule =
    Rule { side: LinkSide::Both, packets: Packets::ALL, treatment: Treatment::TranslateFor(800) };

/// A path that needs a buffer.
const LONG: Quality = Quality { delay_ms: 50, ..Quality::USUAL };

pub(super) const SITUATIONS: &[Situation] = &[
    Situation {
        name: "join-dropped",
        title: "a box on the second path swallows further subflows",
        seen: "The second subflow stays in SYN-SENT; the kernel counts it all the same.",
        why: "SYNs with MP_JOIN get no answer.",
        cause: Some("join-dropped"),
        two_ends: false,
        changes: &[Change::Box(2, &[join(Treatment::Drop)])],
    },
    Situation {
        name: "join-dropped-v6",
        title: "a box on the second path swallows further subflows over IPv6",
        seen: "The second subflow stays in SYN-SENT.",
        why: "As `join-dropped`, in IPv6.",
        cause: Some("join-dropped"),
        two_ends: false,
        changes: &[Change::Box(2, &[join(Treatment::Drop)]), Change::Connect(V6)],
    },
    Situation {
        name: "join-answer-dropped",
        title: "a box on the second path swallows the answers to further subflows",
        seen: "The second subflow stays in SYN-SENT.",
        why: "SYN/ACKs with MP_JOIN do not come back.",
        cause: Some("join-dropped"),
        two_ends: false,
        changes: &[Change::Box(
            2,
            &[Rule {
                side: LinkSide::Down,
                packets: Packets::of(Phase::SynAck).with(Kind::Join),
                treatment: Treatment::Drop,
            }],
        )],
    },
    Situation {
        name: "join-stripped",
        title: "a box on the second path removes MP_JOIN",
        seen: "The second subflow is made and reset at once, without an error.",
        why: "The server takes the SYN for a new connection; its SYN/ACK has no MP_JOIN, so the \
              client resets.",
        cause: Some("join-option-stripped"),
        two_ends: false,
        changes: &[Change::Box(2, &[strip(LinkSide::Up, Phase::Syn, Kind::Every)])],
    },
    Situation {
        name: "join-answer-stripped",
        title: "a box on the second path removes MP_JOIN from SYN/ACKs",
        seen: "The second subflow is made and reset at once, without an error.",
        why: "The client's own SYN was understood, but it sees an answer without the option.",
        cause: Some("join-option-stripped"),
        two_ends: false,
        changes: &[Change::Box(2, &[strip(LinkSide::Down, Phase::SynAck, Kind::Every)])],
    },
    Situation {
        name: "join-stripped-both",
        title: "a box on the second path removes every option of Multipath TCP",
        seen: "The second subflow is made and reset at once, without an error.",
        why: "As `join-stripped`.",
        cause: Some("join-option-stripped"),
        two_ends: false,
        changes: &[Change::Box(2, &[strip(LinkSide::Both, Phase::Tcp, Kind::Every)])],
    },
    Situation {
        name: "join-reset",
        title: "a firewall on the second path resets further subflows",
        seen: "Further subflows are refused at once.",
        why: "A box answers SYNs with MP_JOIN by a reset in the server's name.",
        cause: Some("join-reset"),
        two_ends: false,
        changes: &[Change::Box(2, &[join(Treatment::Reset)])],
    },
    Situation {
        name: "join-prohibited",
        title: "a firewall on the second path forbids further subflows",
        seen: "Further subflows end after a second with `No route to host`.",
        why: "A box answers with ICMP: administratively prohibited.",
        cause: Some("join-prohibited"),
        two_ends: false,
        changes: &[Change::Box(2, &[join(Treatment::Unreachable(Reason::Prohibited))])],
    },
    Situation {
        name: "join-unreachable",
        title: "the second path has no route to the server",
        seen: "Further subflows end after a second with `Network is unreachable`.",
        why: "A router on the second path answers with ICMP: network unreachable.",
        cause: Some("join-unreachable"),
        two_ends: false,
        changes: &[Change::Box(2, &[all(Treatment::Unreachable(Reason::Network))])],
    },
    Situation {
        name: "join-unreachable-host",
        title: "a router on the second path does not find the server",
        seen: "Further subflows end after a second with `No route to host`.",
        why: "A router on the second path answers with ICMP: host unreachable.",
        cause: Some("join-unreachable"),
        two_ends: false,
        changes: &[Change::Box(2, &[all(Treatment::Unreachable(Reason::Host))])],
    },
    Situation {
        name: "announced-address-unreachable",
        title: "the server announces an address that nobody finds",
        seen: "One path. The announced address (ADD_ADDR) is tried, and the try fails after a \
              second.",
        why: "The way to the announced address ends at a router that says so.",
        cause: Some("announced-address-unreachable"),
        two_ends: false,
        changes: &[
            Change::Endpoints(Host::Client, NONE),
            Change::Endpoints(Host::Server, &["192.0.2.99 signal"]),
        ],
    },
    Situation {
        name: "announced-address-silent",
        title: "the server announces an address that does not answer",
        seen: "One path. The announced address (ADD_ADDR) is tried, and stays in SYN-SENT.",
        why: "No host has the announced address; the kernel counts the subflow all the same.",
        cause: Some("announced-address-unreachable"),
        two_ends: false,
        changes: &[
            Change::Endpoints(Host::Client, NONE),
            Change::Endpoints(Host::Server, &["203.0.113.99 signal"]),
        ],
    },
    Situation {
        name: "announcement-swallowed",
        title: "a box swallows the server's announcements",
        seen: "Two subflows, none of them to the server's second address.",
        why: "A box passes every packet but those with ADD_ADDR. The server's AddAddrTx grows, its \
              EchoAdd does not.",
        cause: Some("announcement-stripped"),
        two_ends: true,
        changes: &[
            Change::Endpoints(Host::Server, ANNOUNCED),
            Change::Box(
                1,
                &[Rule {
                    side: LinkSide::Down,
                    packets: Packets::of(Phase::Later).with(Kind::AddAddress),
                    treatment: Treatment::Drop,
                }],
            ),
        ],
    },
    Situation {
        name: "announced-address-private",
        title: "a server behind NAT announces its private address",
        seen: "One path. The announced address (ADD_ADDR) is tried in vain.",
        why: "The server does not know its public address and announces the one that its interface \
              has, which means nothing here.",
        cause: Some("announced-address-private"),
        two_ends: false,
        changes: &[
            Change::Endpoints(Host::Client, NONE),
            Change::Address(Host::Server, 2, "192.168.7.2/24"),
            Change::Endpoints(Host::Server, &["192.168.7.2 signal"]),
        ],
    },
    Situation {
        name: "dead-announced-addresses",
        title: "dead announced addresses use up the limit",
        seen: "The server announces three addresses, of which one would work, and it is not used.",
        why: "Each announced address counts against `add_addr_accepted`, also when the try failed.",
        cause: Some("dead-announced-addresses-use-limits"),
        two_ends: false,
        changes: &[
            Change::Endpoints(Host::Client, NONE),
            Change::Limits(Host::Client, 2, 2),
            Change::Endpoints(
                Host::Server,
                &["192.0.2.98 id 1 signal", "192.0.2.99 id 2 signal", "203.0.113.2 id 3 signal"],
            ),
        ],
    },
    Situation {
        name: "path-silent",
        title: "the second path falls silent during the connection",
        seen: "Throughput drops; no event says why, and the subflow is still counted.",
        why: "Every packet of the path vanishes from some moment on. The kernel only marks the \
              subflow as stale and sends its data again over the other.",
        cause: Some("path-silent"),
        two_ends: true,
        changes: &[Change::Then(Happening::Box(2, &[SILENT]))],
    },
    Situation {
        name: "path-silent-first",
        title: "the first path falls silent during the connection",
        seen: "A short stall; then the second path carries all.",
        why: "As `path-silent`, where the connection began.",
        cause: Some("path-silent"),
        two_ends: true,
        changes: &[Change::Then(Happening::Box(1, &[SILENT]))],
    },
    Situation {
        name: "nat-timeout",
        title: "a NAT on the first path forgets a program's idle subflow",
        seen: "After a pause, a long-lived connection is slow; a new one is not.",
        why: "The NAT forgets connections that are silent for 0.8 s (real ones take minutes), and \
              drops what comes later. The subflow looks established at both ends.",
        cause: Some("nat-timeout"),
        two_ends: false,
        changes: &[Change::Box(1, &[FORGETFUL]), Change::Application(Socket::Bursts)],
    },
    Situation {
        name: "subflow-not-recreated",
        title: "a program's first subflow was reset once, and does not come back",
        seen: "A long-lived connection has one subflow; a new one has two.",
        why: "A firewall of the first path was restarted and reset what it did not know. Linux \
              opens a subflow when the connection begins or an endpoint is new, not when it was lost.",
        cause: Some("subflow-not-recreated"),
        two_ends: false,
        changes: &[
            Change::ForAWhile(
                1,
                &[Rule {
                    side: LinkSide::Up,
                    packets: Packets::of(Phase::Later).carrying(1),
                    treatment: Treatment::Reset,
                }],
            ),
            Change::Application(Socket::Bursts),
        ],
    },
    Situation {
        name: "link-down",
        title: "the second interface goes down during the connection",
        seen: "Throughput drops; no event says why.",
        why: "The interface is switched off. The kernel tells nobody that the subflow is dead.",
        cause: Some("link-down"),
        two_ends: true,
        changes: &[Change::Then(Happening::Down(2))],
    },
    Situation {
        name: "path-mtu-hole",
        title: "the second path swallows large packets",
        seen: "Both subflows are established, and all data go over the first.",
        why: "The path carries 1,300 bytes at most, and no router says so: handshakes pass, data \
              do not.",
        cause: Some("path-mtu-hole"),
        two_ends: true,
        changes: &[Change::Quality(2, Quality { mtu_bytes: 1_300, ..Quality::USUAL })],
    },
    Situation {
        name: "path-mtu-hole-first",
        title: "the first path swallows large packets",
        seen: "The connection is made, and then hangs or is slow.",
        why: "As `path-mtu-hole`, where the connection begins.",
        cause: Some("path-mtu-hole"),
        two_ends: true,
        changes: &[Change::Quality(1, Quality { mtu_bytes: 1_300, ..Quality::USUAL })],
    },
    Situation {
        name: "path-lossy",
        title: "the second path loses one packet in five",
        seen: "The second subflow carries next to nothing.",
        why: "Loss keeps its window small.",
        cause: Some("path-lossy"),
        two_ends: true,
        changes: &[Change::Quality(2, Quality { loss_percent: 20, ..Quality::USUAL })],
    },
    Situation {
        name: "path-much-slower",
        title: "the second path takes a hundred times as long",
        seen: "Two subflows, hardly more throughput than one, and late data.",
        why: "Its round trip takes 800 ms, that of the first path 10 ms: what is sent there holds \
              up what comes behind.",
        cause: Some("path-much-slower"),
        two_ends: true,
        changes: &[Change::Quality(2, Quality { delay_ms: 400, ..Quality::USUAL })],
    },
    Situation {
        name: "receive-buffer-too-small",
        title: "the client's buffers hold a few packets",
        seen: "Two subflows are slower than they should be.",
        why: "net.ipv4.tcp_rmem and tcp_wmem are far below what bandwidth times delay of all paths \
              needs; one buffer serves all subflows.",
        cause: Some("receive-buffer-too-small"),
        two_ends: true,
        changes: &[
            Change::Quality(1, LONG),
            Change::Quality(2, LONG),
            Change::Sysctl(Host::Client, "net.ipv4.tcp_rmem", "4096 8192 8192"),
            Change::Sysctl(Host::Client, "net.ipv4.tcp_wmem", "4096 8192 8192"),
        ],
    },
    Situation {
        name: "backup-used",
        title: "the server sends over the path that the client keeps as a backup",
        seen: "The expensive path is as busy as the others.",
        why: "The flag is a wish: the other side may not know or not obey it. (Here a box clears it \
              in MP_JOIN, so that the server does not learn of it.)",
        cause: Some("backup-used"),
        two_ends: true,
        changes: &[
            Change::Clients(&["c1", "c2", "c3"]),
            Change::Endpoints(
                Host::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow backup"],
            ),
            Change::Box(3, &[join(Treatment::ClearBackup)]),
        ],
    },
    Situation {
        name: "backup-flag-asymmetric",
        title: "the server calls the second subflow a backup, the client does not",
        seen: "Two subflows; what the server sends goes over the first alone.",
        why: "The flag is asked for by each side for its own direction of data: here the server \
              announces its address as a backup.",
        cause: Some("backup-flag-asymmetric"),
        two_ends: true,
        changes: &[
            Change::Endpoints(Host::Client, NONE),
            Change::Endpoints(Host::Server, &["203.0.113.2 signal backup"]),
        ],
    },
];
