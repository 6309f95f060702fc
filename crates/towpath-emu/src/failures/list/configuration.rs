//! Failure cases of configuration: endpoints, limits, routes, sysctls of both hosts.

use super::{CLIENT_ENDPOINT, NO_ENDPOINTS, SERVER_SIGNAL_ENDPOINT};
use crate::failures::case::{FailureCase, HostSide, NetworkMutation, Routing};

const ENDPOINT_WITHOUT_DEVICE: &[&str] = &["10.1.2.2 subflow"];

pub(super) const CASES: &[FailureCase] = &[
    FailureCase {
        name: "kernel-defaults",
        title: "a fresh client: no endpoint, no announced address accepted",
        symptom: "The server announces its second address; the client does nothing with it.",
        explanation: "`add_addr_accepted` is 0 by default, and there is no endpoint: the kernel may not use \
              what it is told.",
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
        symptom: "Multipath TCP with one subflow, and no sign of trouble.",
        explanation: "Limits allow subflows, but no address was given out for them.",
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
        symptom: "An endpoint is there, yet no SYN leaves from it.",
        explanation: "`ip mptcp limits` says `subflows 0`.",
        cause: Some("subflow-limit"),
        needs_server_report: false,
        changes: &[NetworkMutation::Limits(HostSide::Client, 0, 0)],
    },
    FailureCase {
        name: "subflow-limit-partly",
        title: "two further interfaces, but only one further subflow allowed",
        symptom: "Two of three paths carry data.",
        explanation: "The limit of subflows beyond the first is 1, and there are two endpoints.",
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
        symptom: "The server's second address arrives (ADD_ADDR) and stays unused.",
        explanation: "`add_addr_accepted` is 0 on the client. It has no endpoint of its own, either.",
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
        symptom: "Further subflows are made and closed within a millisecond, with a reset.",
        explanation: "`subflows 0` on the server: it rejects the MP_JOIN's third packet \
              (its MPJoinRejected grows).",
        cause: Some("peer-limit"),
        needs_server_report: false,
        changes: &[NetworkMutation::Limits(HostSide::Server, 0, 0)],
    },
    FailureCase {
        name: "userspace-path-manager",
        title: "the path manager is left to a daemon that is not there",
        symptom: "Endpoints and limits look right, but nothing is done with them.",
        explanation: "net.mptcp.path_manager (pm_type) says userspace: the kernel leaves subflows to a \
              daemon such as mptcpd, and none runs.",
        cause: Some("userspace-path-manager-without-daemon"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Sysctl(HostSide::Client, "net.mptcp.pm_type", "1"),
            NetworkMutation::Endpoints(HostSide::Server, SERVER_SIGNAL_ENDPOINT),
        ],
    },
    FailureCase {
        name: "endpoint-address-missing",
        title: "the endpoint's address is not one of this host",
        symptom: "The kernel took the endpoint without a word, and opens nothing.",
        explanation: "Endpoints are not checked against addresses: binding to it fails \
              (MPJoinSynTxBindErr).",
        cause: Some("endpoint-address-missing"),
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Client, &["10.1.9.2 subflow"])],
    },
    FailureCase {
        name: "endpoint-address-stale",
        title: "the interface got another address from DHCP since",
        symptom: "It worked yesterday; today there is one path.",
        explanation: "The endpoint still has the old address. What sets endpoints must follow addresses.",
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
        title: "the endpoint's interface is switched off",
        symptom: "One path; the endpoint is there.",
        explanation: "Its interface is down, so that no route leaves from it.",
        cause: Some("endpoint-interface-down"),
        needs_server_report: false,
        changes: &[NetworkMutation::Down(HostSide::Client, 2)],
    },
    FailureCase {
        name: "client-signal",
        title: "the client's endpoint says `signal` instead of `subflow`",
        symptom: "One path. The client announces its second address, and nobody comes.",
        explanation: "`signal` announces an address for the other side to connect to, which servers do not \
              do. A client needs `subflow`.",
        cause: Some("endpoint-wrong-role"),
        needs_server_report: false,
        changes: &[NetworkMutation::Endpoints(HostSide::Client, &["10.1.2.2 dev c2 signal"])],
    },
    FailureCase {
        name: "server-subflow",
        title: "the server's endpoint says `subflow` instead of `signal`",
        symptom: "Two subflows; the client is never told of the server's second address.",
        explanation: "A server does not connect to its clients: its second address must be announced \
              (`signal`).",
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
        symptom: "Every command succeeded on both hosts; the server's second address is never used.",
        explanation: "The server's endpoints are the client's two addresses, with `subflow`. The kernel \
              takes addresses that are not its own. It needs its own, with `signal`.",
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
        symptom: "The second subflow stays in SYN-SENT; the kernel counts it all the same.",
        explanation: "Packets with the second interface's address leave by the first one's gateway, which \
              takes no foreign addresses. A table for each source address is missing.",
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
        explanation: "As `no-source-route`, in IPv6.",
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
        symptom: "The second subflow stays in SYN-SENT, and no packet leaves.",
        explanation: "`dev` binds the subflow to an interface that has no route to the server: the kernel \
              takes the server for a neighbour, and asks for its hardware address, without an answer.",
        cause: Some("no-gateway-on-interface"),
        needs_server_report: false,
        changes: &[NetworkMutation::Routing(Routing::FirstOnly)],
    },
    FailureCase {
        name: "reverse-path-filter",
        title: "strict reverse path filtering on the second interface",
        symptom: "SYN/ACKs arrive at the second interface and are ignored.",
        explanation: "rp_filter is 1 and the best route back to the server is the first interface, so what \
              comes in at the second one is taken for spoofed (IPReversePathFilter grows).",
        cause: Some("reverse-path-filter"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::ByMetric),
            NetworkMutation::Sysctl(HostSide::Client, "net.ipv4.conf.all.rp_filter", "1"),
        ],
    },
    FailureCase {
        name: "reverse-path-filter-one-interface",
        title: "strict reverse path filtering, set on the interface alone",
        symptom: "As before, though `conf.all.rp_filter` is 0.",
        explanation: "The larger of the two values counts: `conf.c2.rp_filter` is 1.",
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
        symptom: "The announced address is tried, and nothing comes back.",
        explanation: "The server's rp_filter is 1 and its best route to the client is its first interface, \
              so what comes in at the second is taken for spoofed (its IPReversePathFilter grows).",
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
        symptom: "Two healthy subflows, and no more than the throughput of one.",
        explanation: "Any interface answers for every address of its host (ARP flux), and without tables \
              every packet leaves by the first: only the interfaces' own byte counters show it. \
              arp_ignore=1, arp_announce=2 and a table for each address help.",
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
        symptom: "Two subflows, and all data on the first.",
        explanation: "The endpoint has the flag `backup`: its subflow waits until no other works.",
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
        symptom: "Two subflows, and no more than one path's throughput.",
        explanation: "The endpoint is a second address of the interface that is used anyway; the second \
              interface has none.",
        cause: Some("all-endpoints-one-interface"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Address(HostSide::Client, 1, "10.1.1.3/24"),
            NetworkMutation::Endpoints(HostSide::Client, &["10.1.1.3 dev c1 subflow"]),
        ],
    },
    FailureCase {
        name: "duplicate-managers",
        title: "something deletes the endpoint and adds it again, all the time",
        symptom: "Subflows come and go.",
        explanation: "Two programs look after endpoints (NetworkManager, mptcpd, a script), each undoing \
              what the other did.",
        cause: Some("duplicate-managers"),
        needs_server_report: false,
        changes: &[NetworkMutation::FlapEndpoint("10.1.2.2")],
    },
    FailureCase {
        name: "no-route",
        title: "the client has no route to the server",
        symptom: "`Network is unreachable`.",
        explanation: "There is no default route; this has nothing to do with Multipath TCP.",
        cause: Some("no-route"),
        needs_server_report: false,
        changes: &[NetworkMutation::Routing(Routing::LinkLocalOnly)],
    },
    FailureCase {
        name: "no-route-v6",
        title: "the client has no IPv6 route to the server",
        symptom: "`Network is unreachable`.",
        explanation: "There is no IPv6 default route.",
        cause: Some("no-route"),
        needs_server_report: false,
        changes: &[
            NetworkMutation::Routing(Routing::LinkLocalOnly),
            NetworkMutation::Connect("2001:db8:2:1::2"),
        ],
    },
];
