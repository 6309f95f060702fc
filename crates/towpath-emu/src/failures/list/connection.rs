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
        title: "a box swallows SYNs with the option",
        symptom: "Connecting takes three seconds; then it is plain TCP.",
        explanation: "The first SYNs vanish, the kernel leaves the option out of a later one, and \
              remembers that for an hour, for all destinations.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "syn-dropped-v6",
        title: "a box swallows IPv6 SYNs with the option",
        symptom: "Connecting takes three seconds; then it is plain TCP.",
        explanation: "As `syn-dropped`, in IPv6.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_CAPABLE]), NetworkMutation::Connect(SERVER_V6)],
    },
    FailureCase {
        name: "syn-stripped",
        title: "a box removes the option from SYNs",
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "The server never sees the option, so its SYN/ACK has none. SYNs with a rising time \
              to live show between which routers it goes.",
        cause: Some("syn-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(UP, ConnectionPhase::Syn, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "syn-stripped-v6",
        title: "a box removes the option from IPv6 SYNs",
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
        title: "a box removes the option from every packet",
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "As `syn-stripped`; the way back is the same.",
        cause: Some("syn-option-stripped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(BOTH, ConnectionPhase::Tcp, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "synack-stripped",
        title: "a box removes the option from SYN/ACKs",
        symptom: "The connection works, over one path: plain TCP.",
        explanation: "The option reaches the server, and its answer is lost on the way back. The server \
              learns of it from the third packet (MPCapableFallbackACK grows there).",
        cause: Some("synack-option-stripped"),
        needs_server_report: true,
        changes: &[NetworkMutation::Box(
            1,
            &[strip(DOWN, ConnectionPhase::SynAck, MptcpOptionKind::Every)],
        )],
    },
    FailureCase {
        name: "later-stripped",
        title: "a box lets the option pass in the handshake only",
        symptom: "Multipath TCP for a moment, then plain TCP for ever.",
        explanation: "Data without the option makes both sides fall back (MPCapableDataFallback, RFC 8684 \
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
        title: "a box removes the option from what the client sends, after the SYN",
        symptom: "Multipath TCP for a moment, then plain TCP for ever.",
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
        title: "a box removes the data sequence signals",
        symptom: "Multipath TCP for a moment, then plain TCP for ever.",
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
        title: "a gateway changes what the client sends",
        symptom: "The connection ends with an error, or falls back.",
        explanation: "An application gateway rewrites addresses in the payload. With checksums the \
              receiver notices and sends MP_FAIL (RFC 8684 §3.7).",
        cause: Some("payload-rewritten"),
        needs_server_report: true,
        changes: &[CHECKSUM, NetworkMutation::Box(1, &[REWRITE])],
    },
    FailureCase {
        name: "payload-rewritten-unnoticed",
        title: "a gateway changes what the client sends, and nobody checks",
        symptom: "Programs get wrong data; Multipath TCP goes on.",
        explanation: "Without checksums (the default of Linux), what has its length is taken as it comes.",
        cause: Some("payload-rewritten"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[REWRITE])],
    },
    FailureCase {
        name: "syn-forbidden",
        title: "a firewall forbids SYNs with the option",
        symptom: "`No route to host` with Multipath TCP, and none of that with plain TCP.",
        explanation: "A box answers the SYN with ICMP: administratively prohibited.",
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
        symptom: "`Connection refused` with Multipath TCP, and none of that with plain TCP.",
        explanation: "A box answers the SYN by a reset in the server's name.",
        cause: Some("syn-option-dropped"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[capable_packets(PacketAction::Reset)])],
    },
    FailureCase {
        name: "payload-rewritten-second",
        title: "a gateway on the second path changes what the client sends",
        symptom: "The second subflow is reset when the first data pass over it.",
        explanation: "With checksums the receiver sends MP_FAIL and closes that subflow; the connection \
              goes on over the other.",
        cause: Some("payload-rewritten"),
        needs_server_report: true,
        changes: &[CHECKSUM, NetworkMutation::Box(2, &[REWRITE])],
    },
    FailureCase {
        name: "remote-silent",
        title: "nobody answers",
        symptom: "Connecting hangs, with Multipath TCP and without.",
        explanation: "A firewall swallows every packet to the port; this has nothing to do with Multipath \
              TCP.",
        cause: Some("remote-silent"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP])],
    },
    FailureCase {
        name: "remote-silent-v6",
        title: "nobody answers over IPv6",
        symptom: "Connecting hangs.",
        explanation: "A firewall swallows every packet.",
        cause: Some("remote-silent"),
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[DROP_TCP]), NetworkMutation::Connect(SERVER_V6)],
    },
];
