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
        symptom: "Every program uses plain TCP. A program that requires Multipath TCP gets \
              `Protocol not supported`.",
        explanation: "The kernel is older than 5.6 or was built without CONFIG_MPTCP. It refuses \
              socket(…, IPPROTO_MPTCP) with EPROTONOSUPPORT. Here, a filter refuses it.",
        cause: Some("kernel-without-mptcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::OldKernel],
    },
    FailureCase {
        name: "mptcp-disabled",
        title: "Multipath TCP is disabled on the client",
        symptom: "Every program uses plain TCP. A program that requires Multipath TCP gets \
              `Protocol not available`.",
        explanation: "net.mptcp.enabled is 0, so the kernel refuses socket(…, IPPROTO_MPTCP) with \
              ENOPROTOOPT. Existing listeners continue to work.",
        cause: Some("mptcp-disabled"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Client, ENABLED_SYSCTL, "0")],
    },
    FailureCase {
        name: "server-mptcp-disabled",
        title: "Multipath TCP is disabled on the server",
        symptom: "The connection works, but over one path: it is plain TCP.",
        explanation: "net.mptcp.enabled is 0 on the server. Its program uses plain TCP instead, \
              so the SYN/ACK has no Multipath TCP option.",
        cause: Some("listener-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Sysctl(HostSide::Server, ENABLED_SYSCTL, "0")],
    },
    FailureCase {
        name: "blackhole-fallback",
        title: "one dropped SYN has disabled Multipath TCP for an hour",
        symptom: "Every connection to every server is plain TCP, although the path now passes all \
              options.",
        explanation: "A middlebox once dropped SYNs with the Multipath TCP option. The kernel \
              then omits the option towards all destinations for net.mptcp.blackhole_timeout \
              seconds. Each repetition makes this time longer. Writing the setting, even with its \
              current value, ends it immediately.",
        cause: Some("blackhole-fallback-active"),
        needs_server_report: false,
        changes: &[NetworkMutation::FormerBox(1, &[DROP_CAPABLE])],
    },
    FailureCase {
        name: "blackhole-fallback-announced",
        title: "an hour without Multipath TCP, to a server with two addresses",
        symptom: "The server announces addresses to other clients, but this client stays on one \
              path.",
        explanation: "The cause is that of `blackhole-fallback`. The state belongs to the client \
              and does not depend on the server.",
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
        symptom: "The client requests Multipath TCP and gets plain TCP over one path.",
        explanation: "The server's kernel supports Multipath TCP, but the program opened its \
              socket with IPPROTO_TCP. The client's option reaches the last hop, but the SYN/ACK \
              has none.",
        cause: Some("listener-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Plain)],
    },
    FailureCase {
        name: "application-plain-tcp",
        title: "an application of the client does not request Multipath TCP",
        symptom: "The setup is complete and a test succeeds, but the program in question uses one \
              path.",
        explanation: "The program opens its socket with IPPROTO_TCP. No counter changes: only the \
              socket shows the cause. `towpath exec` or an option of the program fixes it.",
        cause: Some("application-plain-tcp"),
        needs_server_report: false,
        changes: &[NetworkMutation::Application(AppSocket::Plain)],
    },
    FailureCase {
        name: "remote-refused",
        title: "nothing listens at the server",
        symptom: "Connecting fails with `Connection refused`, with and without Multipath TCP.",
        explanation: "No program listens on the port. The cause is unrelated to Multipath TCP.",
        cause: Some("remote-refused"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Nothing)],
    },
    FailureCase {
        name: "remote-refused-v6",
        title: "nothing listens at the server's IPv6 address",
        symptom: "Connecting fails with `Connection refused`.",
        explanation: "No program listens on the port of the IPv6 address.",
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
        symptom: "The connection stays on one path. Further subflows are refused immediately.",
        explanation: "A further subflow also needs a listener on its port. Without one, the \
              server answers its SYN with a reset. The server must keep its listener, or signal \
              an endpoint with a port.",
        cause: Some("listener-closed-after-accept"),
        needs_server_report: false,
        changes: &[NetworkMutation::Listener(ServerBehaviour::Once)],
    },
    FailureCase {
        name: "load-balancer",
        title: "a load balancer sends the second path to another host",
        symptom: "The connection stays on one path. Further subflows are reset.",
        explanation: "Two hosts share one address, and the client's address selects the host. The \
              other host does not know the token of the MP_JOIN and resets the subflow. Its \
              MPJoinNoTokenFound grows.",
        cause: Some("load-balancer-other-host"),
        needs_server_report: false,
        changes: &[NetworkMutation::OtherServer],
    },
    FailureCase {
        name: "join-id0-denied",
        title: "the server forbids further subflows to its first address",
        symptom: "The connection stays on one path, although the client has an endpoint. The \
              client sends no further SYN.",
        explanation: "net.mptcp.allow_join_initial_addr_port is 0 on the server, as behind a load \
              balancer. The server also announces no other address.",
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
