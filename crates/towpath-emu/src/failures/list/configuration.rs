//! Failure cases of configuration: endpoints, limits, routes, sysctls of both hosts.

use super::{CLIENT_ENDPOINT, NO_ENDPOINTS, SERVER_SIGNAL_ENDPOINT};
use crate::failures::case::{FailureCase, HostSide, NetworkMutation, Routing};

const ENDPOINT_WITHOUT_DEVICE: &[&str] = &["10.1.2.2 subflow"];

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "kernel-defaults",
        title: "a default client: no endpoint, no announced address accepted",
        symptom: "The server announces its second address, but the client does not use it.",
        explanation: "The client has no endpoint, and `add_addr_accepted` is 0 by default. Its \
              kernel therefore ignores announced addresses.",
        cause: Some("add-addr-limit"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Limits(HostSide::Client, 2, 0),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
        ],
    },
    FailureCase {
        name: "no-endpoints",
        title: "the client has no endpoint, and the server announces nothing",
        symptom: "The connection uses Multipath TCP with one subflow, without an error.",
        explanation: "The limits permit further subflows, but the client has no address for them.",
        cause: Some("no-endpoints"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Limits(HostSide::Client, 2, 0),
        ],
    },
    FailureCase {
        name: "subflow-limit",
        title: "the client's limit allows no further subflow",
        symptom: "An endpoint exists, but the client sends no SYN from it.",
        explanation: "`ip mptcp limits` shows `subflows 0`.",
        cause: Some("subflow-limit"),
        needs_server_report: false,
        changes: &[NetworkMutation::Limits(HostSide::Client, 0, 0)],
    },
    FailureCase {
        name: "subflow-limit-partly",
        title: "two further interfaces, but only one further subflow allowed",
        symptom: "Two of three paths carry data.",
        explanation: "Two endpoints exist, but the limit of subflows beyond the first is 1.",
        cause: Some("subflow-limit"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Clients(&["c1", "c2", "c3"]),
            NetworkMutation::Endpoints(
                HostSide::Client,
                &["10.1.2.2 dev c2 subflow", "10.1.3.2 dev c3 subflow"],
            ),
            NetworkMutation::Limits(HostSide::Client, 1, 0),
        ],
    },
    FailureCase {
        name: "add-addr-limit",
        title: "the client accepts no announced address",
        symptom: "The server's second address (ADD_ADDR) arrives, but the client does not use it.",
        explanation: "`add_addr_accepted` is 0 on the client. It also has no endpoint of its own.",
        cause: Some("add-addr-limit"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, NO_ENDPOINTS),
            NetworkMutation::Limits(HostSide::Client, 8, 0),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
        ],
    },
    FailureCase {
        name: "peer-limit",
        title: "the server's limit allows no further subflow",
        symptom: "Further subflows are established and reset within a millisecond.",
        explanation: "The server's limit is `subflows 0`. It rejects the third packet of the \
              MP_JOIN handshake, and its MPJoinRejected grows.",
        cause: Some("peer-limit"),
        needs_server_report: false,
        changes: &[NetworkMutation::Limits(HostSide::Server, 0, 0)],
    },
    FailureCase {
        name: "userspace-path-manager",
        title: "the path manager is delegated to a daemon that does not run",
        symptom: "Endpoints and limits are correct, but have no effect.",
        explanation: "net.mptcp.path_manager (pm_type) is userspace. The kernel delegates \
              subflows to a daemon such as mptcpd, but none runs.",
        cause: Some("userspace-path-manager-without-daemon"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Sysctl(HostSide::Client, "net.mptcp.pm_type", "1"),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
        ],
    },
    FailureCase {
        name: "endpoint-address-missing",
        title: "this host does not have the endpoint's address",
        symptom: "The kernel accepted the endpoint without an error, but opens no subflow.",
        explanation: "The kernel does not check whether this host has an endpoint's address. \
              Binding to the address fails later (MPJoinSynTxBindErr).",
        cause: Some("endpoint-address-missing"),
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Client, &["10.1.9.2 subflow"])],
    },
    FailureCase {
        name: "endpoint-address-stale",
        title: "the interface got a new address from DHCP",
        symptom: "Both paths worked yesterday. Today the connection uses one path.",
        explanation: "The interface has a new address, and the endpoint still has the old one. \
              The program that sets the endpoints must follow changes of addresses.",
        cause: Some("endpoint-address-missing"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT),
            NetworkMutation::NoAddress(HostSide::Client, 2, "10.1.2.2/24"),
            NetworkMutation::Address(HostSide::Client, 2, "10.1.2.77/24"),
        ],
    },
    FailureCase {
        name: "endpoint-interface-down",
        title: "the endpoint's interface is disabled",
        symptom: "The connection stays on one path, although the endpoint exists.",
        explanation: "The interface of the endpoint is down, so its address has no route.",
        cause: Some("endpoint-interface-down"),
        needs_server_report: false,
        changes: &[NetworkMutation::Down(HostSide::Client, 2)],
    },
    FailureCase {
        name: "endpoint-wrong-interface",
        title: "the endpoint is bound to another interface than the one that has its address",
        symptom: "The connection stays on one path, although the endpoint exists.",
        explanation: "The endpoint has `dev c1`, and its address is on c2. The SYN leaves over c1.",
        cause: Some("endpoint-wrong-interface"),
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c1 subflow"])],
    },
    FailureCase {
        name: "client-signal",
        title: "the client's endpoint has the flag `signal` instead of `subflow`",
        symptom: "The connection stays on one path. The client announces its second address, but \
              the server does not use it.",
        explanation: "`signal` announces an address so that the peer connects to it, which \
              servers do not do. A client needs `subflow`.",
        cause: Some("endpoint-wrong-role"),
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c2 signal"])],
    },
    FailureCase {
        name: "server-subflow",
        title: "the server's endpoint has the flag `subflow` instead of `signal`",
        symptom: "The connection has two subflows. The client never learns the server's second \
              address.",
        explanation: "A server does not connect to its clients. It must announce its second \
              address with `signal`.",
        cause: Some("endpoint-wrong-role"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT),
            NetworkMutation::Endpoints(HostSide::Server, &["203.0.113.2 dev s2 subflow"]),
        ],
    },
    FailureCase {
        name: "server-has-the-clients-block",
        title: "the client's commands were pasted on the server",
        symptom: "Every command succeeded on both hosts, but the server's second address is never \
              used.",
        explanation: "The server's endpoints are the two addresses of the client, with `subflow`. \
              The kernel accepts addresses that the host does not have. The server needs its own \
              address, with `signal`.",
        cause: Some("endpoint-wrong-role"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Client, CLIENT_ENDPOINT),
            NetworkMutation::Endpoints(
                HostSide::Server,
                &["10.1.1.2 dev s1 subflow", "10.1.2.2 dev s2 subflow"],
            ),
        ],
    },
    FailureCase {
        name: "no-source-route",
        title: "the second interface has no route of its own",
        symptom: "The second subflow stays in SYN-SENT. The kernel still counts it.",
        explanation: "Packets with the second interface's address leave through the gateway of \
              the first. This gateway does not forward foreign addresses. The client needs a \
              routing table for each source address.",
        cause: Some("no-source-route"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::FirstOnly),
            NetworkMutation::Endpoints(HostSide::Client, ENDPOINT_WITHOUT_DEVICE),
        ],
    },
    FailureCase {
        name: "no-source-route-v6",
        title: "the second interface has no IPv6 route of its own",
        symptom: "The second subflow stays in SYN-SENT.",
        explanation: "The cause is that of `no-source-route`, in IPv6.",
        cause: Some("no-source-route"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::FirstOnly),
            NetworkMutation::Endpoints(HostSide::Client, &["2001:db8:1:2::2 subflow"]),
            NetworkMutation::Connect("2001:db8:2:1::2"),
        ],
    },
    FailureCase {
        name: "no-gateway-on-interface",
        title: "the endpoint is bound to an interface without a gateway",
        symptom: "The second subflow stays in SYN-SENT, and none of its packets leaves the \
              client.",
        explanation: "`dev` binds the subflow to an interface without a route to the server. The \
              kernel treats the server as a neighbour and sends ARP requests, which get no reply.",
        cause: Some("no-gateway-on-interface"),
        needs_server_report: false,
        changes: &[NetworkMutation::Routing(Routing::FirstOnly)],
    },
    FailureCase {
        name: "reverse-path-filter",
        title: "strict reverse path filtering on the second interface",
        symptom: "SYN/ACKs arrive at the second interface and are ignored.",
        explanation: "rp_filter is 1, and the best route to the server is the first interface. \
              Packets of the server that arrive at the second interface count as spoofed \
              (IPReversePathFilter grows).",
        cause: Some("reverse-path-filter"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.conf.all.rp_filter", "1"),
        ],
    },
    FailureCase {
        name: "reverse-path-filter-one-interface",
        title: "strict reverse path filtering, set on one interface only",
        symptom: "SYN/ACKs arrive at the second interface and are ignored, although \
              `conf.all.rp_filter` is 0.",
        explanation: "`conf.c2.rp_filter` is 1, and the larger of the two values counts.",
        cause: Some("reverse-path-filter"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.conf.c2.rp_filter", "1"),
        ],
    },
    FailureCase {
        name: "server-reverse-path-filter",
        title: "strict reverse path filtering at the server's second address",
        symptom: "The client tries the announced address, but gets no reply.",
        explanation: "rp_filter is 1 on the server, and its best route to the client is its first \
              interface. Packets that arrive at the second interface count as spoofed (the \
              server's IPReversePathFilter grows).",
        cause: Some("reverse-path-filter"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
            NetworkMutation::ServerRouting(Routing::FirstOnly),
            NetworkMutation::Sysctl(HostSide::Server, "net.ipv4.conf.all.rp_filter", "1"),
        ],
    },
    FailureCase {
        name: "same-subnet",
        title: "all interfaces in one subnet: two subflows, one cable",
        symptom: "Two subflows work without errors, but have the throughput of one.",
        explanation: "Each interface answers for every address of its host (ARP flux). Without \
              routing tables, every packet leaves through the first interface. Only the byte \
              counters of the interfaces show it. arp_ignore=1, arp_announce=2 and a table for \
              each address fix it.",
        cause: Some("same-subnet-arp"),
        needs_server_report: true,
        changes: &[
            NetworkMutation::OneSubnet,
            NetworkMutation::Routing(Routing::FirstOnly),
            NetworkMutation::Endpoints(HostSide::Client, &["192.0.2.12 subflow"]),
            NetworkMutation::Endpoints(HostSide::Server, &["192.0.2.22 signal"]),
        ],
    },
    FailureCase {
        name: "endpoint-backup-only",
        title: "the only further endpoint is a backup",
        symptom: "The connection has two subflows, but all data uses the first.",
        explanation: "The endpoint has the flag `backup`. Its subflow waits until all other \
              subflows fail.",
        cause: Some("endpoint-backup-only"),
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(
            HostSide::Client,
            &["10.1.2.2 dev c2 subflow backup"],
        )],
    },
    FailureCase {
        name: "all-endpoints-one-interface",
        title: "the endpoints are all on the first interface",
        symptom: "Two subflows have the throughput of one path.",
        explanation: "The endpoint is a second address of the first interface. The second \
              interface has no endpoint.",
        cause: Some("all-endpoints-one-interface"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Address(HostSide::Client, 1, "10.1.1.3/24"),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.1.3 dev c1 subflow"]),
        ],
    },
    FailureCase {
        name: "duplicate-managers",
        title: "a program repeatedly deletes the endpoint and adds it again",
        symptom: "Subflows repeatedly appear and disappear.",
        explanation: "Two programs manage the endpoints (NetworkManager, mptcpd, a script). Each \
              undoes the changes of the other.",
        cause: Some("duplicate-managers"),
        needs_server_report: false,
        changes: &[NetworkMutation::FlapEndpoint("10.1.2.2")],
    },
    FailureCase {
        name: "no-route",
        title: "the client has no route to the server",
        symptom: "Connecting fails with `Network is unreachable`.",
        explanation: "The client has no default route. The cause is unrelated to Multipath TCP.",
        cause: Some("no-route"),
        needs_server_report: false,
        changes: &[NetworkMutation::Routing(Routing::LinkLocalOnly)],
    },
    FailureCase {
        name: "no-route-v6",
        title: "the client has no IPv6 route to the server",
        symptom: "Connecting fails with `Network is unreachable`.",
        explanation: "The client has no IPv6 default route.",
        cause: Some("no-route"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::LinkLocalOnly),
            NetworkMutation::Connect("2001:db8:2:1::2"),
        ],
    },
];
