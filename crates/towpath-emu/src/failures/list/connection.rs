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

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "syn-dropped",
        title: "a middlebox drops SYNs with the option",
        symptom: "Connecting takes three seconds and results in plain TCP.",
        explanation: "The first SYNs are lost; the kernel then omits the option, and continues to do so for an hour for all destinations.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "syn-dropped-v6",
        title: "a middlebox drops IPv6 SYNs with the option",
        symptom: "Connecting takes three seconds and results in plain TCP.",
        explanation: "As `syn-dropped`, in IPv6.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_CAPABLE]), NetworkMutation::Connect(SERVER_V6)],
    },
    FailureCase {
        name: "syn-stripped",
        title: "a middlebox removes the option from SYNs",
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "The server never sees the option, so its SYN/ACK has none. SYNs with increasing TTL show the router that removes it.",
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
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "As `syn-stripped`, in IPv6.",
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
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "As `syn-stripped`, also on the return path.",
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
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "The option reaches the server, but is removed from the SYN/ACK. The server notices at the third packet (MPCapableFallbackACK grows there).",
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
        symptom: "Multipath TCP for a moment, then permanently plain TCP.",
        explanation: "Data without the option makes both hosts fall back (MPCapableDataFallback, RFC 8684 \
              §3.7).",
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
        symptom: "Multipath TCP for a moment, then permanently plain TCP.",
        explanation: "The third packet and the data reach the server without the option.",
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
        symptom: "Multipath TCP for a moment, then permanently plain TCP.",
        explanation: "It knows the options of the handshake, but not those of data.",
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
        symptom: "The connection ends with an error, or falls back.",
        explanation: "An application gateway rewrites addresses in the payload. With checksums the \
              receiver notices and sends MP_FAIL (RFC 8684 §3.7).",
        cause: Some("payload-rewritten"),
        needs_server_report: true,
        changes: &[CHECKSUM, NetworkMutation::Box(1, &[REWRITE])],
    },
    FailureCase {
        name: "payload-rewritten-unnoticed",
        title: "a gateway modifies the client's data, and no host checks it",
        symptom: "Programs receive wrong data; Multipath TCP continues.",
        explanation: "Without checksums (Linux's default), modified data of the same length is accepted.",
        cause: Some("payload-rewritten"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[REWRITE])],
    },
    FailureCase {
        name: "syn-forbidden",
        title: "a firewall forbids SYNs with the option",
        symptom: "`No route to host` with Multipath TCP, but not with plain TCP.",
        explanation: "A middlebox answers the SYN with ICMP: administratively prohibited.",
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
        symptom: "`Connection refused` with Multipath TCP, but not with plain TCP.",
        explanation: "A middlebox answers the SYN with a reset in the server's name.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[capable_packets(PacketAction::Reset)])],
    },
    FailureCase {
        name: "payload-rewritten-second",
        title: "a gateway on the second path modifies the client's data",
        symptom: "The second subflow is reset when the first data pass over it.",
        explanation: "With checksums the receiver sends MP_FAIL and closes that subflow; the connection continues over the other.",
        cause: Some("payload-rewritten"),
        needs_server_report: true,
        changes: &[CHECKSUM, NetworkMutation::Box(2, &[REWRITE])],
    },
    FailureCase {
        name: "remote-silent",
        title: "no reply from the server",
        symptom: "Connecting hangs, with and without Multipath TCP.",
        explanation: "A firewall drops every packet to the port; this has nothing to do with Multipath \
              TCP.",
        cause: Some("remote-silent"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP])],
    },
    FailureCase {
        name: "remote-silent-v6",
        title: "no host answers over IPv6",
        symptom: "Connecting hangs.",
        explanation: "A firewall drops every packet.",
        cause: Some("remote-silent"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP]), NetworkMutation::Connect(SERVER_V6)],
    },
];
