//! Failure cases of kernels, applications and listeners.

use super::SERVER_SIGNAL_ENDPOINT;
use crate::hop::packet::MptcpOptionKind;
use crate::hop::{ConnectionPhase, PacketAction, PacketMatch, RouterRule};
use crate::zoo::situation::{AppSocket, FailureCase, HostSide, NetworkMutation, ServerBehaviour};
use towpath_measure::scenario::LinkSide;

const ENABLED: &str = "net.mptcp.enabled";

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "kernel-without-mptcp",
        title: "the client's kernel knows no Multipath TCP",
        seen: "Every program uses plain TCP; one that insists gets `Protocol not supported`.",
        why: "The kernel is older than 5.6 or was built without CONFIG_MPTCP, so socket(…, \
              IPPROTO_MPTCP) is refused with EPROTONOSUPPORT. (Here a filter refuses it.)",
        cause: Some("kernel-without-mptcp"),
        two_ends: false,
        changes: &[NetworkMutation::OldKernel],
    },
    FailureCase {
        name: "mptcp-disabled",
        title: "Multipath TCP is switched off on the client",
        seen: "Every program uses plain TCP; one that insists gets `Protocol not available`.",
        why: "net.mptcp.enabled is 0, so socket(…, IPPROTO_MPTCP) is refused with ENOPROTOOPT. \
              Listeners that were there before keep working.",
        cause: Some("mptcp-disabled"),
        two_ends: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Client, ENABLED, "0")],
    },
    FailureCase {
        name: "server-mptcp-disabled",
        title: "Multipath TCP is switched off on the server",
        seen: "Connections work, but over one path: plain TCP.",
        why: "The server's net.mptcp.enabled is 0; its program took plain TCP instead, and answers \
              the option with a SYN/ACK that has none.",
        cause: Some("listener-plain-tcp"),
        two_ends: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Server, ENABLED, "0")],
    },
    FailureCase {
        name: "blackhole-fallback",
        title: "one swallowed SYN has switched Multipath TCP off for an hour",
        seen: "Every connection is plain TCP, to every server, though the way is clean today.",
        why: "A box swallowed SYNs with the option once. The kernel then leaves the option out for \
              net.mptcp.blackhole_timeout seconds, longer each time, for all destinations. Writing \
              that setting, even with its own value, ends it at once.",
        cause: Some("blackhole-fallback-active"),
        two_ends: false,
        changes: &[NetworkMutation::FormerBox(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "blackhole-fallback-announced",
        title: "the same hour without Multipath TCP, towards a server with two addresses",
        seen: "The server announces addresses to others, but this client stays on one path.",
        why: "See `blackhole-fallback`: the state belongs to the client, not to a server.",
        cause: Some("blackhole-fallback-active"),
        two_ends: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::FormerBox(1, &[DROP_CAPABLE]),
        ],
    },
    FailureCase {
        name: "listener-plain-tcp",
        title: "the server's program listens with plain TCP",
        seen: "The client asks for Multipath TCP and gets one path.",
        why: "The kernel of the server could, but its program opened its socket with IPPROTO_TCP. \
              The option reaches the last hop, the SYN/ACK has none.",
        cause: Some("listener-plain-tcp"),
        two_ends: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Plain)],
    },
    FailureCase {
        name: "application-plain-tcp",
        title: "an application of the client's does not ask for Multipath TCP",
        seen: "All is set up and a test succeeds, but the program that matters uses one path.",
        why: "The program opens its socket with IPPROTO_TCP. Only the socket shows it: no counter \
              moves. `towpath exec` or the program's own switch help.",
        cause: Some("application-plain-tcp"),
        two_ends: false,
        changes: &[NetworkMutation::Application(AppSocket::Plain)],
    },
    FailureCase {
        name: "remote-refused",
        title: "nothing listens at the server",
        seen: "`Connection refused`, with Multipath TCP and without.",
        why: "No program has the port open; this has nothing to do with Multipath TCP.",
        cause: Some("remote-refused"),
        two_ends: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Nothing)],
    },
    FailureCase {
        name: "remote-refused-v6",
        title: "nothing listens at the server's IPv6 address",
        seen: "`Connection refused`.",
        why: "No program has the port open.",
        cause: Some("remote-refused"),
        two_ends: false,
        changes: &[
            NetworkMutation::Listener(ServerBehaviour::Nothing),
            NetworkMutation::Connect("2001:db8:2:1::2"),
        ],
    },
    FailureCase {
        name: "listener-closed-after-accept",
        title: "the server takes one connection and stops listening",
        seen: "The connection stays on one path; further subflows are refused at once.",
        why: "A further subflow needs a listener on its port, too: the answer to its SYN is a \
              reset. The server must keep a listener, or signal an endpoint with a port.",
        cause: Some("listener-closed-after-accept"),
        two_ends: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Once)],
    },
    FailureCase {
        name: "load-balancer",
        title: "a load balancer sends the second path to another host",
        seen: "The connection stays on one path; further subflows are reset.",
        why: "Behind one address there are two hosts, chosen by the client's address. The other one \
              does not know the token of the MP_JOIN and resets (its MPJoinNoTokenFound grows).",
        cause: Some("load-balancer-other-host"),
        two_ends: false,
        changes: &[NetworkMutation::OtherServer],
    },
    FailureCase {
        name: "join-id0-denied",
        title: "the server forbids further subflows to its first address",
        seen: "One path, though the client has an endpoint; not even a SYN is sent.",
        why: "net.mptcp.allow_join_initial_addr_port is 0 on the server, as behind a load balancer, \
              but it announces no other address to connect to.",
        cause: Some("join-id0-denied"),
        two_ends: false,
        changes: &[NetworkMutation::Sysctl(
            HostSide::Server,
            "net.mptcp.allow_join_initial_addr_port",
            "0",
        )],
    },
];

/// Middlebox that drops the SYN with MP_CAPABLE.
pub(in crate::zoo) const DROP_CAPABLE: RouterRule = RouterRule {
    side: LinkSide::Up,
    packets: PacketMatch::of(ConnectionPhase::Syn).with(MptcpOptionKind::Capable),
    treatment: PacketAction::Drop,
};
