//! Failure cases of kernels, applications and listeners.

use towpath_scenario::LinkSide;

use super::SERVER_SIGNAL_ENDPOINT;
use crate::failures::case::{AppSocket, FailureCase, HostSide, NetworkMutation, ServerBehaviour};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule};

const ENABLED_SYSCTL: &str = "net.mptcp.enabled";

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "kernel-without-mptcp",
        title: "the client's kernel does not support Multipath TCP",
        symptom: "Every program uses plain TCP; a program that requires Multipath TCP gets `Protocol not supported`.",
        explanation: "The kernel is older than 5.6 or was built without CONFIG_MPTCP, so socket(…, \
              IPPROTO_MPTCP) is refused with EPROTONOSUPPORT. (Here a filter refuses it.)",
        cause: Some("kernel-without-mptcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::OldKernel],
    },
    FailureCase {
        name: "mptcp-disabled",
        title: "Multipath TCP is disabled on the client",
        symptom: "Every program uses plain TCP; a program that requires Multipath TCP gets `Protocol not available`.",
        explanation: "net.mptcp.enabled is 0, so socket(…, IPPROTO_MPTCP) is refused with ENOPROTOOPT. \
              Existing listeners keep working.",
        cause: Some("mptcp-disabled"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Client, ENABLED_SYSCTL, "0")],
    },
    FailureCase {
        name: "server-mptcp-disabled",
        title: "Multipath TCP is disabled on the server",
        symptom: "Connections work, but over one path: plain TCP.",
        explanation: "The server's net.mptcp.enabled is 0; its program used plain TCP instead, and answers with a SYN/ACK without the option.",
        cause: Some("listener-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Server, ENABLED_SYSCTL, "0")],
    },
    FailureCase {
        name: "blackhole-fallback",
        title: "one dropped SYN has disabled Multipath TCP for an hour",
        symptom: "Every connection to every server is plain TCP, although the path is clean now.",
        explanation: "A middlebox dropped SYNs with the option once. The kernel then omits the option for net.mptcp.blackhole_timeout seconds, longer each time, for all destinations. Writing that setting, even with its current value, ends it immediately.",
        cause: Some("blackhole-fallback-active"),
        needs_server_report: false,
        changes: &[NetworkMutation::FormerBox(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "blackhole-fallback-announced",
        title: "the same hour without Multipath TCP, to a server with two addresses",
        symptom: "The server announces addresses to others, but this client stays on one path.",
        explanation: "See `blackhole-fallback`: the state belongs to the client, not to a server.",
        cause: Some("blackhole-fallback-active"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::FormerBox(1, &[DROP_CAPABLE]),
        ],
    },
    FailureCase {
        name: "listener-plain-tcp",
        title: "the server's program listens with plain TCP",
        symptom: "The client requests Multipath TCP and gets one path.",
        explanation: "The server's kernel supports it, but the program opened its socket with IPPROTO_TCP. The option reaches the last hop, but the SYN/ACK has none.",
        cause: Some("listener-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Plain)],
    },
    FailureCase {
        name: "application-plain-tcp",
        title: "an application of the client does not request Multipath TCP",
        symptom: "The setup is complete and a test succeeds, but the relevant program uses one path.",
        explanation: "The program opens its socket with IPPROTO_TCP. Only the socket shows it; no counter changes. `towpath exec` or the program's own option fixes it.",
        cause: Some("application-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Application(AppSocket::Plain)],
    },
    FailureCase {
        name: "remote-refused",
        title: "nothing listens at the server",
        symptom: "`Connection refused`, with and without Multipath TCP.",
        explanation: "No program has the port open; this has nothing to do with Multipath TCP.",
        cause: Some("remote-refused"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Nothing)],
    },
    FailureCase {
        name: "remote-refused-v6",
        title: "nothing listens at the server's IPv6 address",
        symptom: "`Connection refused`.",
        explanation: "No program has the port open.",
        cause: Some("remote-refused"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Listener(ServerBehaviour::Nothing),
            NetworkMutation::Connect("2001:db8:2:1::2"),
        ],
    },
    FailureCase {
        name: "listener-closed-after-accept",
        title: "the server accepts one connection and stops listening",
        symptom: "The connection stays on one path; further subflows are refused immediately.",
        explanation: "A further subflow also needs a listener on its port; here its SYN is answered with a reset. The server must keep a listener, or signal an endpoint with a port.",
        cause: Some("listener-closed-after-accept"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Once)],
    },
    FailureCase {
        name: "load-balancer",
        title: "a load balancer sends the second path to another host",
        symptom: "The connection stays on one path; further subflows are reset.",
        explanation: "Two hosts share one address; the client's address selects one. The other host does not know the token of the MP_JOIN and resets (its MPJoinNoTokenFound grows).",
        cause: Some("load-balancer-other-host"),
        needs_server_report: false,
        changes: &[NetworkMutation::OtherServer],
    },
    FailureCase {
        name: "join-id0-denied",
        title: "the server forbids further subflows to its first address",
        symptom: "One path, although the client has an endpoint; no SYN is sent.",
        explanation: "net.mptcp.allow_join_initial_addr_port is 0 on the server, as behind a load balancer, but it announces no other address.",
        cause: Some("join-id0-denied"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(
            HostSide::Server,
            "net.mptcp.allow_join_initial_addr_port",
            "0",
        )],
    },
];

/// Middlebox that drops the SYN with MP_CAPABLE.
pub(in crate::failures) const DROP_CAPABLE: RouterRule = RouterRule {
    side: LinkSide::Up,
    packets: PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Capable),
    treatment: PacketAction::Drop,
};
