//! Networks without a failure: a diagnosis must not find one.

use towpath_scenario::LinkSide;

use super::connection::SERVER_V6;
use super::{CLIENT_ENDPOINT, SERVER_SIGNAL_ENDPOINT};
use crate::failures::case::{AppSocket, FailureCase, HostSide, NetworkMutation, PathQuality};
use crate::router::{PacketAction, PacketMatch, RouterRule};

/// NAT in both directions, for all packets.
const NAT: RouterRule = RouterRule {
    side: LinkSide::Both,
    packets: PacketMatch::ALL,
    treatment: PacketAction::Translate,
};

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "healthy-v4",
        title: "two paths over IPv4",
        symptom: "Two subflows carry data.",
        explanation: "A typical network without a failure.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT)],
    },
    FailureCase {
        name: "healthy-v6",
        title: "two paths over IPv6",
        symptom: "Two subflows carry data.",
        explanation: "The same network as `healthy-v4`, over IPv6.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, &["2001:db8:1:2::2 dev c2 subflow"]),
            NetworkMutation::Connect(SERVER_V6),
        ],
    },
    FailureCase {
        name: "healthy-dual-stack",
        title: "endpoints of both families",
        symptom: "Two subflows carry data.",
        explanation: "The client uses only the endpoint of the connection's address family.",
        cause: None,
        needs_server_report: false,
        changes: &[],
    },
    FailureCase {
        name: "healthy-announced",
        title: "the server announces its second address",
        symptom: "The connection has three subflows.",
        explanation: "The client has an endpoint, and the server has one with `signal`.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT)],
    },
    FailureCase {
        name: "healthy-nat",
        title: "the second path has a NAT",
        symptom: "Two subflows carry data.",
        explanation: "The server sees a translated address and port. This is harmless, because \
              MP_JOIN carries an identifier instead of the address.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::Box(2, &[NAT])],
    },
    FailureCase {
        name: "healthy-nat-both",
        title: "both paths have a NAT",
        symptom: "Two subflows carry data.",
        explanation: "Home networks and mobile networks usually have a NAT.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::Box(1, &[NAT]), NetworkMutation::Box(2, &[NAT])],
    },
    FailureCase {
        name: "healthy-three-paths",
        title: "three paths",
        symptom: "Three subflows carry data.",
        explanation: "The client has endpoints on two interfaces in addition to the first.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["c1", "c2", "c3"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"],
            ),
        ],
    },
    FailureCase {
        name: "healthy-one-subnet",
        title: "one subnet, configured correctly",
        symptom: "Two subflows carry data.",
        explanation: "arp_ignore=1, arp_announce=2 and a routing table for each address keep each \
              subflow on its own cable.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.conf.all.arp_ignore", "1"),
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.conf.all.arp_announce", "2"),
            NetworkMutation::Sysctl(HostSide::Server, "net.ipv4.conf.all.arp_ignore", "1"),
            NetworkMutation::Sysctl(HostSide::Server, "net.ipv4.conf.all.arp_announce", "2"),
            NetworkMutation::OneSubnet,
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["192.0.2.12 dev c2 laminar", "192.0.2.11 dev c1 laminar"],
            ),
            NetworkMutation::Endpoints(HostSide::Server, &["192.0.2.22 dev s2 signal"]),
        ],
    },
    FailureCase {
        name: "healthy-one-interface",
        title: "one interface with two addresses",
        symptom: "The connection has two subflows over one cable.",
        explanation: "The client has one interface only. Its two addresses may still take two \
              routes beyond it.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["c1"]),
            NetworkMutation::Address(HostSide::Client, 1, "10.1.1.3/24"),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.1.3 dev c1 subflow"]),
        ],
    },
    FailureCase {
        name: "healthy-parallel-links",
        title: "two parallel links on the second path",
        symptom: "Two subflows carry data.",
        explanation: "A router distributes connections over both links, and each works.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::ParallelLinks(2, 3)],
    },
    FailureCase {
        name: "healthy-laminar",
        title: "each interface uses its own address of the server",
        symptom: "The connection has two subflows: from c1 to s1, and from c2 to s2.",
        explanation: "A `laminar` endpoint (Linux 6.18) answers each announced address with one \
              subflow.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c2 laminar"]),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
        ],
    },
    FailureCase {
        name: "healthy-fullmesh",
        title: "every client address is paired with every server address",
        symptom: "The connection has four subflows.",
        explanation: "The endpoints have the flag `fullmesh`.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.1.2 dev c1 subflow fullmesh", "10.1.2.2 dev c2 subflow fullmesh"],
            ),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
        ],
    },
    FailureCase {
        name: "healthy-backup",
        title: "a third interface is kept as a backup",
        symptom: "Two subflows carry data, and a third one waits.",
        explanation: "The expensive path has the flag `backup`, and regular paths are available.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["c1", "c2", "c3"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow backup"],
            ),
        ],
    },
    FailureCase {
        name: "healthy-port-endpoint",
        title: "the server announces an address with a port",
        symptom: "The connection has three subflows.",
        explanation: "An endpoint with `port` has a listener of its own.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.2 port 4001 signal"])],
    },
    FailureCase {
        name: "healthy-checksum",
        title: "both hosts use checksums",
        symptom: "Two subflows carry data.",
        explanation: "net.mptcp.checksum_enabled is 1 on both hosts.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Sysctl(HostSide::Client, "net.mptcp.checksum_enabled", "1"),
            NetworkMutation::Sysctl(HostSide::Server, "net.mptcp.checksum_enabled", "1"),
        ],
    },
    FailureCase {
        name: "healthy-wifi-cellular",
        title: "two paths, one with twice the delay",
        symptom: "Two subflows carry data.",
        explanation: "Paths may differ in delay and rate.",
        cause: None,
        needs_server_report: false,
        changes: &[
            NetworkMutation::Quality(1, PathQuality { delay_ms: 15, ..PathQuality::DEFAULT }),
            NetworkMutation::Quality(
                2,
                PathQuality { delay_ms: 30, rate_kbps: 10_000, ..PathQuality::DEFAULT },
            ),
        ],
    },
    FailureCase {
        name: "healthy-application",
        title: "an application that uses Multipath TCP",
        symptom: "Two subflows carry data.",
        explanation: "The socket of the application is a Multipath TCP socket.",
        cause: None,
        needs_server_report: false,
        changes: &[NetworkMutation::Application(AppSocket::Multipath)],
    },
];
