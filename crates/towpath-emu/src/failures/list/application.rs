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
        title: "the client's kernel knows no Multipath TCP",
        symptom: "Every program uses plain TCP; one that insists gets `Protocol not supported`.",
        explanation: "The kernel is older than 5.6 or was built without CONFIG_MPTCP, so socket(…, \
              IPPROTO_MPTCP) is refused with EPROTONOSUPPORT. (Here a filter refuses it.)",
        cause: Some("kernel-without-mptcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::OldKernel],
    },
    FailureCase {
        name: "mptcp-disabled",
        title: "Multipath TCP is switched off on the client",
        symptom: "Every program uses plain TCP; one that insists gets `Protocol not available`.",
        explanation: "net.mptcp.enabled is 0, so socket(…, IPPROTO_MPTCP) is refused with ENOPROTOOPT. \
              Listeners that were there before keep working.",
        cause: Some("mptcp-disabled"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Client, ENABLED_SYSCTL, "0")],
    },
    FailureCase {
        name: "server-mptcp-disabled",
        title: "Multipath TCP is switched off on the server",
        symptom: "Connections work, but over one path: plain TCP.",
        explanation: "The server's net.mptcp.enabled is 0; its program took plain TCP instead, and answers \
              the option with a SYN/ACK that has none.",
        cause: Some("listener-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Server, ENABLED_SYSCTL, "0")],
    },
    FailureCase {
        name: "blackhole-fallback",
        title: "one swallowed SYN has switched Multipath TCP off for an hour",
        symptom: "Every connection is plain TCP, to every server, though the way is clean today.",
        explanation: "A box swallowed SYNs with the option once. The kernel then leaves the option out for \
              net.mptcp.blackhole_timeout seconds, longer each time, for all destinations. Writing \
              that setting, even with its own value, ends it at once.",
        cause: Some("blackhole-fallback-active"),
        needs_server_report: false,
        changes: &[NetworkMutation::FormerBox(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "blackhole-fallback-announced",
        title: "the same hour without Multipath TCP, towards a server with two addresses",
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
        symptom: "The client asks for Multipath TCP and gets one path.",
        explanation: "The kernel of the server could, but its program opened its socket with IPPROTO_TCP. \
              The option reaches the last hop, the SYN/ACK has none.",
        cause: Some("listener-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Plain)],
    },
    FailureCase {
        name: "application-plain-tcp",
        title: "an application of the client's does not ask for Multipath TCP",
        symptom: "All is set up and a test succeeds, but the program that matters uses one path.",
        explanation: "The program opens its socket with IPPROTO_TCP. Only the socket shows it: no counter \
              moves. `towpath exec` or the program's own switch help.",
        cause: Some("application-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Application(AppSocket::Plain)],
    },
    FailureCase {
        name: "remote-refused",
        title: "nothing listens at the server",
        symptom: "`Connection refused`, with Multipath TCP and without.",
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
        title: "the server takes one connection and stops listening",
        symptom: "The connection stays on one path; further subflows are refused at once.",
        explanation: "A further subflow needs a listener on its port, too: the answer to its SYN is a \
              reset. The server must keep a listener, or signal an endpoint with a port.",
        cause: Some("listener-closed-after-accept"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Once)],
    },
    FailureCase {
        name: "load-balancer",
        title: "a load balancer sends the second path to another host",
        symptom: "The connection stays on one path; further subflows are reset.",
        explanation: "Behind one address there are two hosts, chosen by the client's address. The other one \
              does not know the token of the MP_JOIN and resets (its MPJoinNoTokenFound grows).",
        cause: Some("load-balancer-other-host"),
        needs_server_report: false,
        changes: &[NetworkMutation::OtherServer],
    },
    FailureCase {
        name: "join-id0-denied",
        title: "the server forbids further subflows to its first address",
        symptom: "One path, though the client has an endpoint; not even a SYN is sent.",
        explanation: "net.mptcp.allow_join_initial_addr_port is 0 on the server, as behind a load balancer, \
              but it announces no other address to connect to.",
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
