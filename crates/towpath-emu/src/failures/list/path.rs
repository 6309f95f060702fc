//! Failure cases on the paths of further subflows, and of path quality.

use towpath_scenario::LinkSide;

use super::connection::{RESET_TCP, SERVER_V6, strip};
use super::{NO_ENDPOINTS, SERVER_SIGNAL_ENDPOINT};
use crate::failures::case::{
    AppSocket, FailureCase, FailureEvent, HostSide, NetworkMutation, PathQuality,
};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule, UnreachableReason};

/// Returns the rule of a middlebox that modifies the SYN with MP_JOIN.
const fn join_packets(treatment: PacketAction) -> RouterRule {
    let packets = PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Join);
    RouterRule { side: LinkSide::Up, packets, treatment }
}

/// Returns the rule of a router that modifies everything in the direction of the server.
pub(in crate::failures) const fn all_packets(treatment: PacketAction) -> RouterRule {
    RouterRule { side: LinkSide::Up, packets: PacketMatch::ALL, treatment }
}

/// Drops all packets in both directions.
pub(in crate::failures) const DROP_ALL: RouterRule =
    RouterRule { side: LinkSide::Both, packets: PacketMatch::ALL, treatment: PacketAction::Drop };

/// NAT with a short timeout: 800 ms.
const SHORT_NAT_TIMEOUT: RouterRule = RouterRule {
    side: LinkSide::Both,
    packets: PacketMatch::ALL,
    treatment: PacketAction::TranslateFor(800),
};

/// High bandwidth-delay product: a path that needs a large buffer.
const HIGH_BDP: PathQuality = PathQuality { delay_ms: 50, ..PathQuality::DEFAULT };

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "join-dropped",
        title: "a middlebox on the second path drops further subflows",
        symptom: "The second subflow stays in SYN-SENT. The kernel still counts it.",
        explanation: "The middlebox drops SYNs with MP_JOIN, so they get no reply.",
        cause: Some("join-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(2, &[join_packets(PacketAction::Drop)])],
    },
    FailureCase {
        name: "join-dropped-v6",
        title: "a middlebox on the second path drops further subflows over IPv6",
        symptom: "The second subflow stays in SYN-SENT.",
        explanation: "The cause is that of `join-dropped`, in IPv6.",
        cause: Some("join-dropped"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Box(2, &[join_packets(PacketAction::Drop)]),
            NetworkMutation::Connect(SERVER_V6),
        ],
    },
    FailureCase {
        name: "join-answer-dropped",
        title: "a middlebox on the second path drops the SYN/ACKs of further subflows",
        symptom: "The second subflow stays in SYN-SENT.",
        explanation: "The middlebox drops SYN/ACKs with MP_JOIN, so they do not reach the client.",
        cause: Some("join-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[RouterRule {
                side: LinkSide::Down,
                packets: PacketMatch::of(ConnectionPhase::SynAck).with(MptcpOptionKind::Join),
                treatment: PacketAction::Drop,
            }],
        )],
    },
    FailureCase {
        name: "join-stripped",
        title: "a middlebox on the second path removes MP_JOIN",
        symptom: "The second subflow is established and reset immediately, without an error.",
        explanation: "The server receives a SYN without MP_JOIN and treats it as a new \
              connection. Its SYN/ACK has no MP_JOIN, so the client resets the subflow.",
        cause: Some("join-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[strip(LinkSide::Up, ConnectionPhase::Syn, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "join-answer-stripped",
        title: "a middlebox on the second path removes MP_JOIN from SYN/ACKs",
        symptom: "The second subflow is established and reset immediately, without an error.",
        explanation: "The server receives the MP_JOIN, but the client receives a SYN/ACK without \
              it.",
        cause: Some("join-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[strip(LinkSide::Down, ConnectionPhase::SynAck, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "join-stripped-both",
        title: "a middlebox on the second path removes every Multipath TCP option",
        symptom: "The second subflow is established and reset immediately, without an error.",
        explanation: "The cause is that of `join-stripped`, but in both directions and for every \
              packet.",
        cause: Some("join-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[strip(LinkSide::Both, ConnectionPhase::Tcp, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "join-reset",
        title: "a firewall on the second path resets further subflows",
        symptom: "Further subflows are refused immediately.",
        explanation: "A middlebox answers SYNs with MP_JOIN with a reset from the server's \
              address.",
        cause: Some("join-reset"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(2, &[join_packets(PacketAction::Reset)])],
    },
    FailureCase {
        name: "path-refused",
        title: "a firewall on the second path resets all connections",
        symptom: "Further subflows are refused immediately, and so is plain TCP over that path.",
        explanation: "A middlebox answers every SYN with a reset from the server's address.",
        cause: Some("path-refused"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(2, &[RESET_TCP])],
    },
    FailureCase {
        name: "join-prohibited",
        title: "a firewall on the second path forbids further subflows",
        symptom: "Further subflows end after a second with `No route to host`.",
        explanation: "A middlebox answers with an ICMP message: administratively prohibited.",
        cause: Some("join-prohibited"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[join_packets(PacketAction::Unreachable(UnreachableReason::Prohibited))],
        )],
    },
    FailureCase {
        name: "join-unreachable",
        title: "the second path has no route to the server",
        symptom: "Further subflows end after a second with `Network is unreachable`.",
        explanation: "A router on the second path answers with an ICMP message: network \
              unreachable.",
        cause: Some("join-unreachable"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[all_packets(PacketAction::Unreachable(UnreachableReason::Network))],
        )],
    },
    FailureCase {
        name: "join-unreachable-host",
        title: "a router on the second path cannot reach the server",
        symptom: "Further subflows end after a second with `No route to host`.",
        explanation: "A router on the second path answers with an ICMP message: host unreachable.",
        cause: Some("join-unreachable"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            2,
            &[all_packets(PacketAction::Unreachable(UnreachableReason::Host))],
        )],
    },
    FailureCase {
        name: "announced-address-unreachable",
        title: "the server announces an address that does not exist",
        symptom: "The connection stays on one path. The client tries the announced address \
              (ADD_ADDR), and the attempt fails after a second.",
        explanation: "The route to the announced address ends at a router that answers with an \
              ICMP message.",
        cause: Some("announced-address-unreachable"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Endpoints(HostSide::Server, &["192.0.2.99 signal"]),
        ],
    },
    FailureCase {
        name: "announced-address-silent",
        title: "the server announces an address that does not answer",
        symptom: "The connection stays on one path. The client tries the announced address \
              (ADD_ADDR), and the subflow stays in SYN-SENT.",
        explanation: "No host has the announced address. The kernel still counts the subflow.",
        cause: Some("announced-address-unreachable"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.99 signal"]),
        ],
    },
    FailureCase {
        name: "announcement-swallowed",
        title: "a middlebox drops the server's announcements",
        symptom: "The connection has two subflows. Neither goes to the server's second address.",
        explanation: "A middlebox drops the packets with ADD_ADDR and passes all others. The \
              server's AddAddrTx grows, but its EchoAdd does not.",
        cause: Some("announcement-stripped"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::Box(
                1,
                &[RouterRule {
                    side: LinkSide::Down,
                    packets: PacketMatch::of(ConnectionPhase::Later)
                        .with(MptcpOptionKind::AddAddress),
                    treatment: PacketAction::Drop,
                }],
            ),
        ],
    },
    FailureCase {
        name: "announced-address-private",
        title: "a server behind NAT announces its private address",
        symptom: "The connection stays on one path. The client tries the announced address \
              (ADD_ADDR) and gets no answer.",
        explanation: "The server does not know its public address. It announces its private \
              address, which the client cannot reach.",
        cause: Some("announced-address-private"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Address(HostSide::Server, 2, "192.168.7.2/24"),
            NetworkMutation::Endpoints(HostSide::Server, &["192.168.7.2 signal"]),
        ],
    },
    FailureCase {
        name: "dead-announced-addresses",
        title: "dead announced addresses use up the limit",
        symptom: "The server announces three addresses. The client does not use the only \
              reachable one.",
        explanation: "Each announced address counts towards `add_addr_accepted`, even if the \
              attempt failed.",
        cause: Some("dead-announced-addresses-use-limits"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Limits(HostSide::Client, 2, 2),
            NetworkMutation::Endpoints(
                HostSide::Server,
                &["192.0.2.98 id 1 signal", "192.0.2.99 id 2 signal", "203.0.113.2 id 3 signal"],
            ),
        ],
    },
    FailureCase {
        name: "path-silent",
        title: "the second path falls silent during the connection",
        symptom: "Throughput drops without an event. The kernel still counts the subflow.",
        explanation: "At some time, the path starts to lose every packet. The kernel only marks \
              the subflow as stale and reinjects its data on the other subflow.",
        cause: Some("path-silent"),
        needs_server_report: true,
        changes: &[NetworkMutation::Event(FailureEvent::Box(2, &[DROP_ALL]))],
    },
    FailureCase {
        name: "parallel-link-silent",
        title: "one of two parallel links on the second path drops packets",
        symptom: "The second subflow works in some connections and not in others.",
        explanation: "A router distributes connections over two links by their ports. One link is down.",
        cause: Some("parallel-link-silent"),
        needs_server_report: false,
        changes: &[NetworkMutation::ParallelLinks(2, 3), NetworkMutation::SilentParallelLink(2)],
    },
    FailureCase {
        name: "path-silent-first",
        title: "the first path falls silent during the connection",
        symptom: "After a short stall, the second path carries all data.",
        explanation: "The cause is that of `path-silent`, on the path of the first subflow.",
        cause: Some("path-silent"),
        needs_server_report: true,
        changes: &[NetworkMutation::Event(FailureEvent::Box(1, &[DROP_ALL]))],
    },
    FailureCase {
        name: "nat-timeout",
        title: "a NAT on the first path drops the state of a program's idle subflow",
        symptom: "After a pause, a long-lived connection is slow, but a new one is not.",
        explanation: "The NAT drops the state of a connection after 0.8 s without packets, and \
              then its packets. Real NATs do so after minutes. The subflow remains established on \
              both hosts.",
        cause: Some("nat-timeout"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Box(1, &[SHORT_NAT_TIMEOUT]),
            NetworkMutation::Application(AppSocket::Bursts),
        ],
    },
    FailureCase {
        name: "subflow-not-recreated",
        title: "a program's first subflow was reset once and is not reopened",
        symptom: "A long-lived connection has one subflow, but a new one has two.",
        explanation: "A firewall on the first path was restarted and reset unknown connections. \
              Linux opens a subflow at the start of a connection or for a new endpoint. It does \
              not reopen a lost one.",
        cause: Some("subflow-not-recreated"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::TemporaryBox(
                1,
                &[RouterRule {
                    side: LinkSide::Up,
                    packets: PacketMatch::of(ConnectionPhase::Later).carrying(1),
                    treatment: PacketAction::Reset,
                }],
            ),
            NetworkMutation::Application(AppSocket::Bursts),
        ],
    },
    FailureCase {
        name: "link-down",
        title: "the second interface goes down during the connection",
        symptom: "Throughput drops without an event.",
        explanation: "The interface is down. The kernel does not report that the subflow has \
              failed.",
        cause: Some("link-down"),
        needs_server_report: true,
        changes: &[NetworkMutation::Event(FailureEvent::Down(2))],
    },
    FailureCase {
        name: "path-mtu-hole",
        title: "the second path drops large packets",
        symptom: "Both subflows are established, but all data uses the first.",
        explanation: "The path drops packets of more than 1,300 bytes, and no router reports it. \
              Handshakes pass, but full packets do not.",
        cause: Some("path-mtu-hole"),
        needs_server_report: true,
        changes: &[NetworkMutation::Quality(
            2,
            PathQuality { mtu_bytes: 1_300, ..PathQuality::DEFAULT },
        )],
    },
    FailureCase {
        name: "path-mtu-hole-first",
        title: "the first path drops large packets",
        symptom: "The connection is established, but then hangs or is slow.",
        explanation: "The cause is that of `path-mtu-hole`, on the path of the first subflow.",
        cause: Some("path-mtu-hole"),
        needs_server_report: true,
        changes: &[NetworkMutation::Quality(
            1,
            PathQuality { mtu_bytes: 1_300, ..PathQuality::DEFAULT },
        )],
    },
    FailureCase {
        name: "path-lossy",
        title: "the second path loses one packet in five",
        symptom: "The second subflow carries almost no data.",
        explanation: "The losses keep the congestion window of the subflow small.",
        cause: Some("path-lossy"),
        needs_server_report: true,
        changes: &[NetworkMutation::Quality(
            2,
            PathQuality { loss_percent: 20, ..PathQuality::DEFAULT },
        )],
    },
    FailureCase {
        name: "path-much-slower",
        title: "the second path has eighty times the delay",
        symptom: "Two subflows have hardly more throughput than one, and data arrives late.",
        explanation: "The round-trip time is 800 ms on the second path and 10 ms on the first. \
              Data on the second path delays later data on the first.",
        cause: Some("path-much-slower"),
        needs_server_report: true,
        changes: &[NetworkMutation::Quality(
            2,
            PathQuality { delay_ms: 400, ..PathQuality::DEFAULT },
        )],
    },
    FailureCase {
        name: "receive-buffer-too-small",
        title: "the client's buffers hold a few packets",
        symptom: "Two subflows have less throughput than their paths permit.",
        explanation: "net.ipv4.tcp_rmem and tcp_wmem are far below the bandwidth-delay product of \
              all paths. One buffer serves all subflows.",
        cause: Some("receive-buffer-too-small"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Quality(1, HIGH_BDP),
            NetworkMutation::Quality(2, HIGH_BDP),
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.tcp_rmem", "4096 8192 8192"),
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.tcp_wmem", "4096 8192 8192"),
        ],
    },
    FailureCase {
        name: "backup-used",
        title: "the server sends over the path that the client keeps as a backup",
        symptom: "The expensive path carries as much data as the other paths.",
        explanation: "The backup flag is only a request: the peer may not receive it or may \
              ignore it. Here, a middlebox clears it in MP_JOIN, so the server never receives it.",
        cause: Some("backup-used"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Clients(&["c1", "c2", "c3"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow backup"],
            ),
            NetworkMutation::Box(3, &[join_packets(PacketAction::ClearBackup)]),
        ],
    },
    FailureCase {
        name: "backup-flag-asymmetric",
        title: "the server marks the second subflow as a backup, the client does not",
        symptom: "The connection has two subflows, but the server sends only over the first.",
        explanation: "Each host requests the backup flag for the data that it receives. Here, the \
              server announces its address as a backup.",
        cause: Some("backup-flag-asymmetric"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.2 signal backup"]),
        ],
    },
];
