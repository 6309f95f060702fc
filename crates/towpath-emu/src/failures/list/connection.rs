//! Failure cases on the path of the first subflow.

use LinkSide::{Both as BOTH, Down as DOWN, Up as UP};
use towpath_scenario::LinkSide;

use super::application::DROP_CAPABLE;
use crate::failures::case::{FailureCase, HostSide, NetworkMutation};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule, UnreachableReason};

/// First IPv6 address of the server.
pub(in crate::failures) const SERVER_V6: &str = "2001:db8:2:1::2";
/// Checksums of the data, requested by the client (RFC 8684 §3.3).
const CHECKSUM: NetworkMutation =
    NetworkMutation::Sysctl(HostSide::Client, "net.mptcp.checksum_enabled", "1");

/// Returns the rule of a middlebox that strips options.
pub(in crate::failures) const fn strip(
    side: LinkSide,
    phase: ConnectionPhase,
    kind: MptcpOptionKind,
) -> RouterRule {
    RouterRule { side, packets: PacketMatch::of(phase), treatment: PacketAction::Strip(kind) }
}

/// Returns the rule of a middlebox that modifies the SYN with MP_CAPABLE.
const fn capable_packets(treatment: PacketAction) -> RouterRule {
    RouterRule {
        side: UP,
        packets: PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Capable),
        treatment,
    }
}

/// Modifies data in the direction of the server.
pub(in crate::failures) const REWRITE: RouterRule = RouterRule {
    side: UP,
    packets: PacketMatch::of(ConnectionPhase::Later).carrying(1),
    treatment: PacketAction::Rewrite,
};

/// Drops all TCP packets in the direction of the server.
pub(in crate::failures) const DROP_TCP: RouterRule = RouterRule {
    side: UP,
    packets: PacketMatch::of(ConnectionPhase::Tcp),
    treatment: PacketAction::Drop,
};

/// Resets all connections to the server.
pub(super) const RESET_TCP: RouterRule = RouterRule {
    side: UP,
    packets: PacketMatch::of(ConnectionPhase::Syn),
    treatment: PacketAction::Reset,
};

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "syn-dropped",
        title: "a middlebox drops SYNs with the option",
        symptom: "Connecting takes three seconds and results in plain TCP.",
        explanation: "The middlebox drops the first SYNs. The kernel then omits the option, and \
              continues to do so for an hour towards all destinations.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "syn-dropped-v6",
        title: "a middlebox drops IPv6 SYNs with the option",
        symptom: "Connecting takes three seconds and results in plain TCP.",
        explanation: "The cause is that of `syn-dropped`, in IPv6.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_CAPABLE]), NetworkMutation::Connect(SERVER_V6)],
    },
    FailureCase {
        name: "syn-stripped",
        title: "a middlebox removes the option from SYNs",
        symptom: "The connection works, but over one path: it is plain TCP.",
        explanation: "The server never receives the option, so its SYN/ACK has none. SYNs with \
              increasing TTL show the router that removes it.",
        cause: Some("syn-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(UP, ConnectionPhase::Syn, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "syn-stripped-v6",
        title: "a middlebox removes the option from IPv6 SYNs",
        symptom: "The connection works, but over one path: it is plain TCP.",
        explanation: "The cause is that of `syn-stripped`, in IPv6.",
        cause: Some("syn-option-stripped"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Box(1, &[strip(UP, ConnectionPhase::Syn, MptcpOptionKind::Every)]),
            NetworkMutation::Connect(SERVER_V6),
        ],
    },
    FailureCase {
        name: "all-stripped",
        title: "a middlebox removes the option from every packet",
        symptom: "The connection works, but over one path: it is plain TCP.",
        explanation: "The cause is that of `syn-stripped`, but in both directions.",
        cause: Some("syn-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(BOTH, ConnectionPhase::Tcp, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "synack-stripped",
        title: "a middlebox removes the option from SYN/ACKs",
        symptom: "The connection works, but over one path: it is plain TCP.",
        explanation: "The option reaches the server, but the middlebox removes it from the \
              SYN/ACK. The server notices this at the third packet, and its MPCapableFallbackACK \
              grows.",
        cause: Some("synack-option-stripped"),
        needs_server_report: true,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(DOWN, ConnectionPhase::SynAck, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "later-stripped",
        title: "a middlebox passes the option only in the handshake",
        symptom: "The connection starts with Multipath TCP and soon falls back to plain TCP \
              permanently.",
        explanation: "Data arrives without the option, so both hosts fall back \
              (MPCapableDataFallback, RFC 8684 §3.7).",
        cause: Some("option-stripped-after-handshake"),
        needs_server_report: true,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(BOTH, ConnectionPhase::Later, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "later-stripped-up",
        title: "a middlebox removes the option from the client's packets after the SYN",
        symptom: "The connection starts with Multipath TCP and soon falls back to plain TCP \
              permanently.",
        explanation: "The third packet and the client's data reach the server without the option.",
        cause: Some("option-stripped-after-handshake"),
        needs_server_report: true,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(UP, ConnectionPhase::Later, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "dss-stripped",
        title: "a middlebox removes the data sequence signals",
        symptom: "The connection starts with Multipath TCP and soon falls back to plain TCP \
              permanently.",
        explanation: "The middlebox passes the options of the handshake, but does not know those \
              of data (DSS).",
        cause: Some("option-stripped-after-handshake"),
        needs_server_report: true,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(BOTH, ConnectionPhase::Later, MptcpOptionKind::Dss)],
        )],
    },
    FailureCase {
        name: "payload-rewritten",
        title: "a gateway modifies the client's data",
        symptom: "The connection ends with an error or falls back to plain TCP.",
        explanation: "An application gateway rewrites addresses in the payload. With checksums, \
              the receiver detects the change and sends MP_FAIL (RFC 8684 §3.7).",
        cause: Some("payload-rewritten"),
        needs_server_report: true,
        changes: &[CHECKSUM, NetworkMutation::Box(1, &[REWRITE])],
    },
    FailureCase {
        name: "payload-rewritten-unnoticed",
        title: "a gateway modifies the client's data, and neither host checks it",
        symptom: "Programs receive wrong data. Multipath TCP continues.",
        explanation: "Without checksums, which is Linux's default, the receiver accepts modified \
              data of the same length.",
        cause: Some("payload-rewritten"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[REWRITE])],
    },
    FailureCase {
        name: "syn-forbidden",
        title: "a firewall forbids SYNs with the option",
        symptom: "Connecting fails with `No route to host` with Multipath TCP, but works with \
              plain TCP.",
        explanation: "A middlebox answers the SYN with an ICMP message: administratively \
              prohibited.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            1,
            &[capable_packets(PacketAction::Unreachable(UnreachableReason::Prohibited))],
        )],
    },
    FailureCase {
        name: "syn-reset",
        title: "a firewall resets SYNs with the option",
        symptom: "Connecting fails with `Connection refused` with Multipath TCP, but works with \
              plain TCP.",
        explanation: "A middlebox answers the SYN with a reset from the server's address.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[capable_packets(PacketAction::Reset)])],
    },
    FailureCase {
        name: "payload-rewritten-second",
        title: "a gateway on the second path modifies the client's data",
        symptom: "The second subflow is reset when it carries its first data.",
        explanation: "With checksums, the receiver detects the change. It sends MP_FAIL and \
              closes the subflow. The connection continues over the first subflow.",
        cause: Some("payload-rewritten"),
        needs_server_report: true,
        changes: &[CHECKSUM, NetworkMutation::Box(2, &[REWRITE])],
    },
    FailureCase {
        name: "remote-silent",
        title: "the server does not reply",
        symptom: "Connecting hangs, with and without Multipath TCP.",
        explanation: "On both paths, a firewall drops every TCP packet to the server. The cause is \
              unrelated to Multipath TCP.",
        cause: Some("remote-silent"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP]), NetworkMutation::Box(2, &[DROP_TCP])],
    },
    FailureCase {
        name: "remote-silent-v6",
        title: "the server does not reply over IPv6",
        symptom: "Connecting hangs.",
        explanation: "On both paths, a firewall drops every TCP packet to the server's IPv6 \
              address.",
        cause: Some("remote-silent"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Box(1, &[DROP_TCP]),
            NetworkMutation::Box(2, &[DROP_TCP]),
            NetworkMutation::Connect(SERVER_V6),
        ],
    },
    FailureCase {
        name: "first-path-silent",
        title: "the server replies on the second path only",
        symptom: "Connecting hangs, with and without Multipath TCP, as if the server were down.",
        explanation: "A firewall on the first path drops every TCP packet to the server. New \
              connections start on that path, so they never reach the second one.",
        cause: Some("first-path-unusable"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP])],
    },
    FailureCase {
        name: "first-path-silent-v6",
        title: "the server replies on the second path only, over IPv6",
        symptom: "Connecting hangs.",
        explanation: "The same failure as `first-path-silent`, over IPv6.",
        cause: Some("first-path-unusable"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP]), NetworkMutation::Connect(SERVER_V6)],
    },
    FailureCase {
        name: "first-path-resets",
        title: "a firewall on the first path resets all connections",
        symptom: "Connecting fails with `Connection refused`, with and without Multipath TCP.",
        explanation: "A middlebox answers every SYN with a reset from the server's address.",
        cause: Some("first-path-unusable"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[RESET_TCP])],
    },
];
