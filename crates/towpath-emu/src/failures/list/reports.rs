//! Reports of public issue trackers, each re-enacted with the roles and interfaces of its reporter.

use towpath_scenario::LinkSide;

use super::connection::{SERVER_V6, strip};
use super::variations::NAT;
use crate::failures::PORT;
use crate::failures::case::{
    FailureCase, HostSide, NetworkMutation, PathQuality, Routing, ServerBehaviour,
};
use crate::router::packet::MptcpOptionKind;
use crate::router::{ConnectionPhase, PacketAction, PacketMatch, RouterRule};

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "report-dead-first-path",
        title: "report: no new connection while the first WAN has no connectivity",
        symptom: "The fibre link loses its connectivity, but the interface stays up. Established \
              connections continue over the modem. New ones hang.",
        explanation: "New connections start on the route with the lowest metric, which is that of \
              the fibre. Without a first subflow, no second one is opened. Reported as \
              multipath-tcp/mptcp_net-next#593, and as multipath-tcp/mptcp_net-next#585.",
        cause: Some("first-path-unusable"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["eth1", "qmimux0"]),
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.1.2 dev eth1 subflow", "10.1.2.2 dev qmimux0 subflow"],
            ),
            NetworkMutation::Box(1, &[DROP_ALL]),
        ],
    },
    FailureCase {
        name: "report-equal-addresses",
        title: "report: two identical modems give the same address",
        symptom: "Each modem works alone. With both, only one is used.",
        explanation: "Both modems have the network 192.168.8.0/24, which cannot be changed, and \
              give the address 192.168.8.100. A subflow from that address is not a second path. \
              Reported as Ysurac/openmptcprouter#1525, and as Ysurac/openmptcprouter#3262.",
        cause: Some("duplicate-address"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["eth1", "eth2"]),
            NetworkMutation::IdenticalModems,
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Endpoints(HostSide::Client, &["192.168.8.100 dev eth2 subflow"]),
            NetworkMutation::Box(1, &[NAT]),
            NetworkMutation::Box(2, &[NAT]),
        ],
    },
    FailureCase {
        name: "report-ipv6-one-side",
        title: "report: one of the two client networks has IPv6 only",
        symptom: "The connection over IPv4 has one subflow, although the second interface has an \
              endpoint and the server announces its IPv6 address.",
        explanation: "Linux opens subflows of the other address family only for an AF_INET6 \
              socket, and only to announced addresses. The program used an AF_INET socket. \
              Reported as multipath-tcp/mptcp_net-next#269.",
        cause: None,
        needs_server_report: true,
        changes: &[
            NetworkMutation::Clients(&["eth0", "wwan0"]),
            NetworkMutation::OneFamily(1, true),
            NetworkMutation::OneFamily(2, false),
            NetworkMutation::Endpoints(HostSide::Client, &["2001:db8:1:2::2 dev wwan0 subflow"]),
            NetworkMutation::Endpoints(HostSide::Server, &["2001:db8:2:2::2 dev s2 signal"]),
        ],
    },
    FailureCase {
        name: "report-option-stripped-on-one-port",
        title: "report: no Multipath TCP on the web port, but on other ports",
        symptom: "A web page is loaded over plain TCP. A test page shows Multipath TCP on two \
              other ports of the same server.",
        explanation: "The first network has a web proxy that removes the option from connections \
              to one port. Here, it is port 4000, and port 8080 passes. Reported as \
              multipath-tcp/mptcp#143, and as multipath-tcp/mptcp#230.",
        cause: Some("syn-option-stripped"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["eth0", "wwan0"]),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev wwan0 subflow"]),
            NetworkMutation::Listener(ServerBehaviour::Web),
            NetworkMutation::SecondPort(8_080),
            NetworkMutation::Box(1, &[STRIP_ONE_PORT]),
        ],
    },
    FailureCase {
        name: "report-client-signal",
        title: "report: all endpoints of the client are `signal`",
        symptom: "The client has three interfaces and announces two of them, as the server does \
              with its own. Subflows to the client's announced addresses are closed at once.",
        explanation: "The server tries to connect to the addresses that the client announces, \
              where no program listens. A client needs `subflow` instead. Reported as \
              multipath-tcp/mptcp_net-next#501. The two flags are also the subject of \
              multipath-tcp/mptcp_net-next#459.",
        cause: Some("endpoint-wrong-role"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["ens192", "ens224", "ens256"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 id 2 dev ens224 signal", "10.1.3.2 id 3 dev ens256 signal"],
            ),
            NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.2 id 2 dev s2 signal"]),
        ],
    },
    FailureCase {
        name: "report-limits-zero",
        title: "report: endpoints on both hosts, but all limits are 0",
        symptom: "`ip mptcp endpoint` shows the endpoints of both hosts. The monitor shows one \
              subflow and an announced address.",
        explanation: "`ip mptcp limits` shows `add_addr_accepted 0 subflows 0` on the client. \
              Endpoints have no effect without limits. Reported as \
              multipath-tcp/mptcp_net-next#531. In multipath-tcp/mptcp_net-next#203, it was the \
              server's limit.",
        cause: Some("subflow-limit"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["eth0", "eth1"]),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev eth1 subflow"]),
            NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.2 dev s2 signal"]),
            NetworkMutation::Limits(HostSide::Client, 0, 0),
        ],
    },
    FailureCase {
        name: "report-vpn-mtu",
        title: "report: one path is a VPN with a smaller MTU, and its ICMP messages are lost",
        symptom: "Small requests work. Transfers over the VPN hang, and the interface has an MTU \
              of 1,500 bytes.",
        explanation: "The tunnel carries packets of up to 1,400 bytes. The message about larger \
              ones (packet too big) does not reach the client. The closest report is \
              Ysurac/openmptcprouter#1219, in which the size was found with ping.",
        cause: Some("path-mtu-hole"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Clients(&["eth0", "wg0"]),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev wg0 subflow"]),
            NetworkMutation::Quality(
                2,
                PathQuality { mtu_bytes: 1_400, delay_ms: 15, ..PathQuality::DEFAULT },
            ),
        ],
    },
    FailureCase {
        name: "report-server-reverse-path-filter",
        title: "report: the server's route to the second client network uses another interface",
        symptom: "The SYN of the second subflow arrives at the server, and gets no answer.",
        explanation: "Each interface of the server is its route to one client network. Packets \
              from the second network arrive at the first interface, where the strict filter \
              drops them. Reported as LNST-project/lnst#216, which turns the filter off.",
        cause: Some("reverse-path-filter"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Clients(&["eth0", "eth1"]),
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev eth1 subflow"]),
            NetworkMutation::ServerRouting(Routing::Paired),
            NetworkMutation::Sysctl(HostSide::Server, "net.ipv4.conf.all.rp_filter", "1"),
        ],
    },
    FailureCase {
        name: "report-announcement-dropped",
        title: "report: an announced IPv6 address with a port is never sent",
        symptom: "The server has an endpoint with `signal` and `port`. The client sees no \
              announcement.",
        explanation: "An ADD_ADDR with an IPv6 address and a port has 30 bytes, and TCP timestamps \
              have 12. A TCP header has room for 40 bytes of options, so Linux drops the \
              announcement. Reported as multipath-tcp/mptcp_net-next#448.",
        cause: Some("announcement-stripped"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Endpoints(
                HostSide::Server,
                &["2001:db8:2:2::2 port 4001 dev s2 signal"],
            ),
            NetworkMutation::Connect(SERVER_V6),
        ],
    },
    FailureCase {
        name: "report-nat-both-ends",
        title: "report: a server behind NAT announces its private address",
        symptom: "The first subflow works. No subflow to the announced address is established, \
              whatever port is forwarded.",
        explanation: "Client and server are behind NAT. The server has one address, which is \
              private, and announces it with a port. The client cannot reach it. Reported as \
              multipath-tcp/mptcp_net-next#337.",
        cause: Some("announced-address-private"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["eth0", "wlan0"]),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev wlan0 subflow"]),
            NetworkMutation::PrivateServer,
            NetworkMutation::Endpoints(HostSide::Server, &["172.20.1.2 port 12345 dev s1 signal"]),
            NetworkMutation::Box(1, &[NAT]),
            NetworkMutation::Box(2, &[NAT]),
        ],
    },
];

/// Drops all packets in both directions.
const DROP_ALL: RouterRule =
    RouterRule { side: LinkSide::Both, packets: PacketMatch::ALL, treatment: PacketAction::Drop };

/// Removes the options from connections to the case's port, and from no others.
const STRIP_ONE_PORT: RouterRule = {
    let rule = strip(LinkSide::Both, ConnectionPhase::Tcp, MptcpOptionKind::Every);
    RouterRule { packets: rule.packets.on_port(PORT), ..rule }
};
