//! Netlink against the running kernel, in user and network namespaces of the tests' own.

#![expect(clippy::disallowed_methods, reason = "these tests wait for a real kernel")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod netns;

use std::fmt::Debug;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, thread};

use socket2::{Domain, Protocol, Socket, Type};
use towpath_net::Rate;
use towpath_netlink::{
    DestroyedSockets, Endpoint, EndpointFlags, LinkEvent, LinkEvents, MibCounters, MptcpEvent,
    MptcpEventKind, MptcpEvents, MptcpLimits, MptcpPm, OperationalState, Prefix, RouteQuery,
    RouteSocket, RouteSpec, RuleAction, RuleEntry, RuleSpec, SocketDiag, StateFilter, SubflowFlags,
    Tbf, TcpState, VethEnd,
};

use netns::in_namespace;

/// Timeout above any expected wait, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Repeats a query until it has a result.
fn wait_for<T>(what: impl Debug, mut poll: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + HANG_TIMEOUT;
    loop {
        if let Some(result) = poll() {
            return result;
        }
        assert!(Instant::now() < deadline, "timed out waiting for {what:?}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Another network namespace, which exists until this value is dropped.
struct OtherNamespace {
    /// Process inside the namespace.
    process: Child,
    file: File,
}

impl OtherNamespace {
    fn new() -> Self {
        // Ends when its input does: at the latest with this process.
        let mut process = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        let file = File::open(format!("/proc/{}/ns/net", process.id())).unwrap();
        Self { process, file }
    }

    /// Returns the names of the links in the namespace.
    fn link_names(&self) -> Vec<String> {
        let path = format!("/proc/{}/net/dev", self.process.id());
        let text = std::fs::read_to_string(path).unwrap();
        let names = text.lines().filter_map(|line| line.split_once(':'));
        names.map(|(name, _)| name.trim().to_owned()).collect()
    }
}

impl Drop for OtherNamespace {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        self.process.wait().unwrap();
    }
}

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn veth_end(name: &str) -> VethEnd<'_> {
    VethEnd { name, ..VethEnd::default() }
}

/// Creates a veth pair that is up; `wifi` has the addresses 10.0.0.1/24 and `fd00::1/64`.
fn wifi_and_server() -> RouteSocket {
    let mut route = RouteSocket::open().unwrap();
    route.add_veth(&veth_end("wifi"), &veth_end("server")).unwrap();
    for link in ["lo", "wifi", "server"] {
        route.set_up(link).unwrap();
    }
    route.add_address("wifi", prefix("10.0.0.1/24")).unwrap();
    route.add_address("wifi", prefix("fd00::1/64")).unwrap();
    route
}

fn route_to<'a>(to: &str, link: &'a str) -> RouteSpec<'a> {
    let to = prefix(to);
    RouteSpec { to, link, gateway: None, source: None, table: None, metric: None }
}

#[test]
fn a_veth_pair_has_the_requested_properties() {
    in_namespace("a_veth_pair_has_the_requested_properties", || {
        let mut route = RouteSocket::open().unwrap();
        let wifi =
            VethEnd { mac: Some(MAC), mtu: Some(1400), tx_queue_len: Some(7), ..veth_end("wifi") };
        route.add_veth(&wifi, &veth_end("server")).unwrap();
        let link = route.link("wifi").unwrap();
        assert_eq!((link.mac, link.mtu, link.tx_queue_len), (Some(MAC), 1400, 7));
        assert!(!link.is_up() && !link.is_running() && link.has_arp());
        assert_eq!(route.link("server").unwrap().mtu, 1500);

        route.set_mtu("wifi", 1300).unwrap();
        route.set_mac("wifi", [2, 0, 0, 0, 0, 9]).unwrap();
        route.set_tx_queue_len("wifi", 1000).unwrap();
        route.set_arp("wifi", false).unwrap();
        route.set_up("wifi").unwrap();
        assert_eq!(route.link("wifi").unwrap().carrier, Some(false), "the other end is down");
        route.set_up("server").unwrap();
        let link = wait_for("a running link", || {
            route.link("wifi").ok().filter(|link| link.state == OperationalState::Up)
        });
        assert_eq!((link.mac, link.mtu, link.tx_queue_len), (Some([2, 0, 0, 0, 0, 9]), 1300, 1000));
        assert!(link.is_up() && link.is_running() && !link.has_arp());
        assert_eq!(link.carrier, Some(true));

        let names: Vec<_> = route.links().unwrap().into_iter().map(|link| link.name).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        route.delete_link("wifi").unwrap();
        let names: Vec<_> = route.links().unwrap().into_iter().map(|link| link.name).collect();
        assert_eq!(names, ["lo"], "both ends go");
    });
}

#[test]
fn a_refusal_names_the_attempted_operation() {
    in_namespace("a_refusal_names_the_attempted_operation", || {
        let mut route = wifi_and_server();
        let error = route.add_address("wifi", prefix("10.0.0.1/24")).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EEXIST));
        let text = error.to_string();
        assert!(text.starts_with("add address 10.0.0.1/24 to `wifi`: File exists"), "{text}");

        let error = route.set_up("cellular").unwrap_err();
        assert_eq!(error.to_string(), "set `cellular` up: No such device");
        let error = route.add_address("cellular", prefix("10.0.0.1/24")).unwrap_err();
        assert_eq!(error.to_string(), "add address 10.0.0.1/24 to `cellular`: No such device");

        let error = route.set_mtu("wifi", 70_000).unwrap_err();
        assert_eq!(error.explanation(), Some("mtu greater than device maximum"), "{error}");
        assert!(error.to_string().starts_with("set MTU of `wifi` to 70000: "), "{error}");

        let error = route.add_veth(&veth_end("wifi"), &veth_end("other")).unwrap_err();
        assert_eq!(error.to_string(), "add veth pair `wifi` and `other`: File exists");
        let error =
            route.add_veth(&veth_end("a-name-that-is-too-long"), &veth_end("other")).unwrap_err();
        assert_eq!(error.errno(), Some(libc::ERANGE), "{error}");
        assert!(route.link("other").is_err(), "no half of a pair is left");
        let very_long = "x".repeat(70_000);
        assert!(route.set_up(&very_long).is_err());
    });
}

#[test]
fn a_link_can_be_created_in_or_moved_to_another_namespace() {
    in_namespace("a_link_can_be_created_in_or_moved_to_another_namespace", || {
        let other = OtherNamespace::new();
        let mut route = RouteSocket::open().unwrap();
        let far = VethEnd { namespace: Some(other.file.as_fd()), ..veth_end("far") };
        route.add_veth(&veth_end("near"), &far).unwrap();
        let far = VethEnd { namespace: Some(other.file.as_fd()), ..veth_end("far2") };
        route.add_veth(&far, &veth_end("near2")).unwrap();
        route.add_veth(&veth_end("here"), &veth_end("there")).unwrap();
        route.move_to("there", other.file.as_fd()).unwrap();

        let mut names: Vec<_> = route.links().unwrap().into_iter().map(|link| link.name).collect();
        names.sort();
        assert_eq!(names, ["here", "lo", "near", "near2"]);
        let mut names = other.link_names();
        names.sort();
        assert_eq!(names, ["far", "far2", "lo", "there"]);

        drop(other);
        wait_for("the end of pairs that lost one end", || {
            (route.links().unwrap().len() == 1).then_some(())
        });
    });
}

#[test]
fn addresses_come_and_go() {
    in_namespace("addresses_come_and_go", || {
        let mut route = wifi_and_server();
        route.add_peer_address("server", ip("10.9.0.1"), prefix("10.9.0.2/32")).unwrap();
        route.add_peer_address("server", ip("fd09::1"), prefix("fd09::2/128")).unwrap();
        let wifi = route.link("wifi").unwrap().index;
        let addresses = route.addresses().unwrap();
        let find = |text| addresses.iter().find(|address| address.local.address() == ip(text));
        let v4 = find("10.0.0.1").unwrap();
        assert_eq!((v4.link_index, v4.local, v4.peer), (wifi, prefix("10.0.0.1/24"), None));
        let v6 = find("fd00::1").unwrap();
        assert_eq!((v6.link_index, v6.local, v6.peer), (wifi, prefix("fd00::1/64"), None));
        assert_eq!(v6.flags & libc::IFA_F_TENTATIVE, 0, "usable at once");
        assert_eq!(find("10.9.0.1").unwrap().peer, Some(ip("10.9.0.2")));
        assert_eq!(find("fd09::1").unwrap().peer, Some(ip("fd09::2")));

        route.delete_address("wifi", prefix("10.0.0.1/24")).unwrap();
        route.delete_address("wifi", prefix("fd00::1/64")).unwrap();
        let error = route.delete_address("wifi", prefix("10.0.0.1/24")).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EADDRNOTAVAIL), "{error}");
        let remaining = route.addresses().unwrap();
        assert!(
            remaining.iter().all(|address| address.local.address() != ip("fd00::1")),
            "{remaining:?}"
        );
    });
}

#[test]
fn a_rule_leads_a_source_address_to_its_own_table() {
    in_namespace("a_rule_leads_a_source_address_to_its_own_table", || {
        let mut route = wifi_and_server();
        route.add_veth(&veth_end("cellular"), &veth_end("base")).unwrap();
        route.set_up("cellular").unwrap();
        route.set_up("base").unwrap();
        for (v4, v6) in [("10.1.0.1/24", "fd01::1/64"), ("10.1.0.2/32", "fd01::2/128")] {
            route.add_address("cellular", prefix(v4)).unwrap();
            route.add_address("cellular", prefix(v6)).unwrap();
        }
        for (any_destination, wifi, cellular, from, to) in [
            (Prefix::ALL_V4, "10.0.0.254", "10.1.0.254", "10.1.0.1", "192.0.2.1"),
            (Prefix::ALL_V6, "fd00::fe", "fd01::fe", "fd01::1", "2001:db8::1"),
        ] {
            let default = RouteSpec { gateway: Some(ip(wifi)), ..route_to("::/0", "wifi") };
            let default = RouteSpec { to: any_destination, metric: Some(100), ..default };
            route.add_route(&default).unwrap();
            let over_cellular = RouteSpec { table: Some(1000), link: "cellular", ..default };
            let over_cellular = RouteSpec { gateway: Some(ip(cellular)), ..over_cellular };
            route.add_route(&over_cellular).unwrap();
            let source_prefix = Prefix::host(ip(from));
            let rule = RuleSpec { from: source_prefix, to: None, table: 1000, priority: Some(500) };
            route.add_rule(&rule).unwrap();

            let query = RouteQuery { to: ip(to), from: None, link: None };
            let found_route = route.lookup(&query).unwrap();
            assert_eq!(found_route.link_index, Some(route.link("wifi").unwrap().index));
            assert_eq!((found_route.gateway, found_route.table), (Some(ip(wifi)), 254));
            assert!(found_route.source.is_some());
            let query = RouteQuery { from: Some(ip(from)), ..query };
            let found_route = route.lookup(&query).unwrap();
            assert_eq!(found_route.link_index, Some(route.link("cellular").unwrap().index));
            assert_eq!((found_route.gateway, found_route.table), (Some(ip(cellular)), 1000));

            assert!(route.routes().unwrap().iter().any(|entry| {
                (entry.table, entry.gateway, entry.metric) == (1000, Some(ip(cellular)), Some(100))
            }));
            let error = route.add_rule(&rule).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EEXIST), "{error}");
            let is_added_rule = |entry: &RuleEntry| {
                (entry.priority, entry.from, entry.action)
                    == (500, rule.from, RuleAction::Table(1000))
            };
            assert_eq!(route.rules().unwrap().iter().filter(|rule| is_added_rule(rule)).count(), 1);
            route.delete_rule(&rule).unwrap();
            assert!(!route.rules().unwrap().iter().any(is_added_rule));
            assert_eq!(route.lookup(&query).unwrap().gateway, Some(ip(wifi)));
            route.delete_route(&over_cellular).unwrap();
            assert!(route.delete_route(&over_cellular).is_err());
        }
    });
}

#[test]
fn a_route_on_the_link_prefers_its_source_and_a_rule_can_ask_for_the_destination() {
    let name = "a_route_on_the_link_prefers_its_source_and_a_rule_can_ask_for_the_destination";
    in_namespace(name, || {
        let mut route = wifi_and_server();
        route.add_address("wifi", prefix("10.0.0.7/32")).unwrap();
        let spec = RouteSpec { table: Some(77), ..route_to("198.51.100.9/24", "wifi") };
        let spec = RouteSpec { source: Some(ip("10.0.0.7")), ..spec };
        route.add_route(&spec).unwrap();
        let to = Some(prefix("198.51.100.0/24"));
        let rule = RuleSpec { from: Prefix::ALL_V4, to, table: 77, priority: None };
        route.add_rule(&rule).unwrap();
        let query = RouteQuery { to: ip("198.51.100.1"), from: None, link: None };
        let found_route = route.lookup(&query).unwrap();
        assert_eq!(
            (found_route.source, found_route.gateway, found_route.table),
            (Some(ip("10.0.0.7")), None, 77)
        );

        let unreachable = RouteQuery { to: ip("203.0.113.1"), from: None, link: None };
        let error = route.lookup(&unreachable).unwrap_err();
        assert_eq!(error.to_string(), "look up the way to 203.0.113.1: Network is unreachable");
        let bound_query = RouteQuery { link: Some("server"), ..unreachable };
        assert!(
            route.lookup(&bound_query).is_ok(),
            "a bound socket takes the link for the network"
        );
    });
}

#[test]
fn a_token_bucket_filter_drops_what_exceeds_its_queue() {
    in_namespace("a_token_bucket_filter_drops_what_exceeds_its_queue", || {
        let mut route = wifi_and_server();
        route.set_arp("wifi", false).unwrap();
        // One packet per 0.4 s, so that the duration of the other 99 does not matter.
        let rate = Rate::from_bps(20_000).unwrap();
        let tbf = Tbf { rate, burst_bytes: 3_000, limit_bytes: 10_000 };
        route.set_tbf("wifi", &tbf).unwrap();
        let initial_qdisc = route.qdisc("wifi").unwrap().unwrap();
        assert_eq!(
            (initial_qdisc.kind.as_str(), initial_qdisc.rate, initial_qdisc.drops),
            ("tbf", Some(rate), 0)
        );

        let socket = UdpSocket::bind("10.0.0.1:0").unwrap();
        for _ in 0..100 {
            let _ = socket.send_to(&[0; 1_000], "10.0.0.2:9");
        }
        let full_qdisc = route.qdisc("wifi").unwrap().unwrap();
        assert!(full_qdisc.drops >= 50 && full_qdisc.overlimits > 0, "{full_qdisc:?}");
        assert!(full_qdisc.backlog_bytes <= 10_000, "{full_qdisc:?}");

        // The queue is kept: when the rate rises, queued packets are sent, not dropped.
        let fast_tbf = Tbf { rate: Rate::from_bps(50_000_000_000).unwrap(), ..tbf };
        route.set_tbf("wifi", &fast_tbf).unwrap();
        let drained_qdisc = wait_for("an empty queue", || {
            let qdisc = route.qdisc("wifi").unwrap().unwrap();
            (qdisc.backlog_packets == 0).then_some(qdisc)
        });
        assert_eq!(drained_qdisc.rate, Some(fast_tbf.rate), "over 32 bits of bytes per second");
        assert_eq!(drained_qdisc.drops, full_qdisc.drops);
        assert!(drained_qdisc.packets >= initial_qdisc.packets + 10, "{drained_qdisc:?}");
        assert!(route.link("wifi").unwrap().stats.tx_packets >= 10);

        route.delete_qdisc("wifi").unwrap();
        assert!(route.qdisc("wifi").unwrap().is_none_or(|qdisc| qdisc.kind != "tbf"));
        let error = route.delete_qdisc("wifi").unwrap_err();
        assert!(error.to_string().starts_with("delete the queueing discipline"), "{error}");
    });
}

#[test]
fn link_and_address_changes_cause_events() {
    in_namespace("link_and_address_changes_cause_events", || {
        let mut events = LinkEvents::open_with_routes().unwrap();
        let mut route = wifi_and_server();
        let wifi = route.link("wifi").unwrap().index;
        route.set_down("server").unwrap();
        route.delete_address("wifi", prefix("10.0.0.1/24")).unwrap();
        route.delete_link("wifi").unwrap();

        let mut pending = Vec::new();
        let mut wait_for_event = |what: &str, predicate: &dyn Fn(&LinkEvent) -> bool| {
            wait_for(what, || {
                let received = events.drain().unwrap();
                assert!(!received.lost);
                pending.extend(received.events);
                let position = pending.iter().position(predicate)?;
                pending.drain(..=position).next_back()
            })
        };
        wait_for_event(
            "the new link",
            &|event| matches!(event, LinkEvent::Link(link) if link.name == "wifi" && !link.is_up()),
        );
        wait_for_event(
            "a running link",
            &|event| matches!(event, LinkEvent::Link(link) if link.index == wifi && link.is_running()),
        );
        wait_for_event("a new address", &|event| {
            matches!(event, LinkEvent::AddressAdded(address)
                if (address.local, address.link_index) == (prefix("10.0.0.1/24"), wifi))
        });
        wait_for_event(
            "a new route",
            &|event| matches!(event, LinkEvent::RouteAdded(entry) if entry.to == prefix("fd00::/64")),
        );
        wait_for_event("the loss of the carrier", &|event| {
            matches!(event, LinkEvent::Link(link)
                if link.index == wifi && link.is_up() && !link.is_running())
        });
        wait_for_event("a lost address", &|event| {
            matches!(event, LinkEvent::AddressRemoved(address)
                if address.local == prefix("10.0.0.1/24"))
        });
        wait_for_event(
            "the end of the link",
            &|event| matches!(event, LinkEvent::LinkRemoved(link) if link.name == "wifi"),
        );
    });
}

#[test]
fn an_unread_event_stream_reports_its_loss() {
    in_namespace("an_unread_event_stream_reports_its_loss", || {
        let mut events = LinkEvents::open().unwrap();
        let mut route = wifi_and_server();
        let lost = wait_for("a loss", || {
            for _ in 0..500 {
                route.set_up("wifi").unwrap();
                route.set_mtu("wifi", 1_400).unwrap();
                route.set_mtu("wifi", 1_500).unwrap();
            }
            events.drain().unwrap().lost.then_some(true)
        });
        assert!(lost);
    });
}

#[test]
fn endpoints_and_limits_read_back() {
    in_namespace("endpoints_and_limits_read_back", || {
        let mut route = wifi_and_server();
        let mut manager = MptcpPm::open().unwrap();
        let limits = MptcpLimits { subflows: 4, add_addr_accepted: 3 };
        manager.set_limits(limits).unwrap();
        assert_eq!(manager.limits().unwrap(), limits);
        let too_many = MptcpLimits { subflows: 1_000, ..limits };
        let error = manager.set_limits(too_many).unwrap_err();
        assert!(error.to_string().contains("1000 subflows and 3 accepted"), "{error}");
        assert!(error.explanation().is_some(), "{error:?}");

        let wifi_endpoint = Endpoint {
            address: ip("10.0.0.1"),
            id: Some(7),
            port: None,
            flags: EndpointFlags::SUBFLOW | EndpointFlags::FULLMESH,
            link_index: Some(route.link("wifi").unwrap().index),
        };
        let v6_endpoint = Endpoint {
            address: ip("fd00::1"),
            id: None,
            port: Some(8_080),
            flags: EndpointFlags::SIGNAL,
            link_index: None,
        };
        manager.add_endpoint(&wifi_endpoint).unwrap();
        manager.add_endpoint(&v6_endpoint).unwrap();
        let listed = manager.endpoints().unwrap();
        assert!(listed.contains(&wifi_endpoint), "{listed:?}");
        let id = listed.iter().find(|endpoint| endpoint.address == v6_endpoint.address).unwrap().id;
        assert!(listed.contains(&Endpoint { id, ..v6_endpoint }) && id.is_some(), "{listed:?}");

        let error = manager.add_endpoint(&wifi_endpoint).unwrap_err();
        assert!(error.to_string().starts_with("add MPTCP endpoint 7 10.0.0.1: "), "{error}");
        let flags = EndpointFlags::SIGNAL | EndpointFlags::FULLMESH;
        let error =
            manager.add_endpoint(&Endpoint { id: None, flags, ..wifi_endpoint }).unwrap_err();
        let explanation = error.explanation().unwrap();
        assert!(explanation.contains("both signal and fullmesh"), "{explanation}");

        manager.set_endpoint_flags(7, EndpointFlags::BACKUP).unwrap();
        let listed = manager.endpoints().unwrap();
        let changed_endpoint = listed.iter().find(|endpoint| endpoint.id == Some(7)).unwrap();
        assert!(changed_endpoint.flags.contains(EndpointFlags::BACKUP | EndpointFlags::SUBFLOW));
        manager.delete_endpoint(7).unwrap();
        assert_eq!(manager.endpoints().unwrap().len(), 1);
        manager.flush_endpoints().unwrap();
        assert_eq!(manager.endpoints().unwrap(), []);
        let error = manager.delete_endpoint(7).unwrap_err();
        assert!(error.to_string().starts_with("delete MPTCP endpoint 7: "), "{error}");
    });
}

fn mptcp_socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap()
}

/// An MPTCP connection from 10.0.0.1 to 10.0.1.1, closed when dropped.
struct MptcpConnection {
    /// Client, server, and the listener: without it, further subflows are refused.
    _sockets: [Socket; 3],
    /// Address on which the server listens.
    address: SocketAddr,
}

fn connect_mptcp() -> MptcpConnection {
    let listener = mptcp_socket();
    listener.bind(&"10.0.1.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    listener.listen(1).unwrap();
    let address = listener.local_addr().unwrap().as_socket().unwrap();
    let client = mptcp_socket();
    client.bind(&"10.0.0.1:0".parse::<SocketAddr>().unwrap().into()).unwrap();
    client.connect(&address.into()).unwrap();
    let (server, _) = listener.accept().unwrap();
    // One byte in each direction, so that both sides are fully established.
    for (mut sender, mut receiver) in [(&client, &server), (&server, &client)] {
        sender.write_all(b"x").unwrap();
        receiver.read_exact(&mut [0]).unwrap();
    }
    MptcpConnection { _sockets: [client, server, listener], address }
}

/// Prepares a second, backup subflow from 10.0.2.1 to the server: the endpoint with ID 5.
fn prepare_backup_subflow() -> MptcpPm {
    let mut route = wifi_and_server();
    route.add_address("wifi", prefix("10.0.2.1/24")).unwrap();
    route.add_address("server", prefix("10.0.1.1/24")).unwrap();
    let mut manager = MptcpPm::open().unwrap();
    manager.set_limits(MptcpLimits { subflows: 2, add_addr_accepted: 2 }).unwrap();
    let second = Endpoint {
        address: ip("10.0.2.1"),
        id: Some(5),
        port: None,
        flags: EndpointFlags::SUBFLOW | EndpointFlags::BACKUP,
        link_index: None,
    };
    manager.add_endpoint(&second).unwrap();
    manager
}

/// All Multipath TCP events so far.
struct EventHistory {
    events: MptcpEvents,
    past_events: Vec<MptcpEvent>,
}

impl EventHistory {
    fn new() -> Self {
        Self { events: MptcpEvents::open().unwrap(), past_events: Vec::new() }
    }

    /// Waits for the first event of a kind that satisfies `predicate`.
    fn wait_for_event(
        &mut self,
        kind: MptcpEventKind,
        predicate: impl Fn(&MptcpEvent) -> bool,
    ) -> MptcpEvent {
        wait_for(kind, || {
            let received = self.events.drain().unwrap();
            assert!(!received.lost);
            self.past_events.extend(received.events);
            self.past_events.iter().find(|event| event.kind == kind && predicate(event)).copied()
        })
    }
}

#[test]
fn events_cover_the_life_of_a_connection() {
    in_namespace("events_cover_the_life_of_a_connection", || {
        let mut manager = prepare_backup_subflow();
        let mut history = EventHistory::new();
        let connection = connect_mptcp();
        let port = Some(connection.address.port());

        let client_side = |event: &MptcpEvent| event.is_server_side() == Some(false);
        let server_side = |event: &MptcpEvent| event.is_server_side() == Some(true);
        let created = history.wait_for_event(MptcpEventKind::Created, client_side);
        let accepted = history.wait_for_event(MptcpEventKind::Created, server_side);
        let established = history.wait_for_event(MptcpEventKind::Established, client_side);
        assert_eq!(created.token, established.token);
        assert_eq!((created.local, created.remote), (Some(ip("10.0.0.1")), Some(ip("10.0.1.1"))));
        assert_eq!((created.remote_port, accepted.local_port), (port, port));

        let of_client = |event: &MptcpEvent| event.token == created.token;
        let of_server = |event: &MptcpEvent| event.token == accepted.token;
        let joined = history.wait_for_event(MptcpEventKind::SubflowEstablished, of_client);
        assert_eq!((joined.local_id, joined.local), (Some(5), Some(ip("10.0.2.1"))));
        let joined = history.wait_for_event(MptcpEventKind::SubflowEstablished, of_server);
        assert_eq!((joined.remote_id, joined.remote), (Some(5), Some(ip("10.0.2.1"))));
        assert_eq!(joined.backup, Some(true), "the client asked for a backup");

        manager.set_endpoint_flags(5, EndpointFlags::default()).unwrap();
        let changed = history.wait_for_event(MptcpEventKind::SubflowPriority, of_server);
        assert_eq!((changed.backup, changed.remote_id), (Some(false), Some(5)));
        manager.delete_endpoint(5).unwrap();
        let closed = history.wait_for_event(MptcpEventKind::SubflowClosed, of_client);
        assert_eq!((closed.local_id, closed.local_port), (Some(5), joined.remote_port));
        assert_eq!(history.wait_for_event(MptcpEventKind::Removed, of_server).remote_id, Some(5));
        drop(connection);
        history.wait_for_event(MptcpEventKind::Closed, of_client);
        history.wait_for_event(MptcpEventKind::Closed, of_server);
    });
}

#[test]
fn subflows_are_listed_and_leave_final_statistics() {
    in_namespace("subflows_are_listed_and_leave_final_statistics", || {
        let mut manager = prepare_backup_subflow();
        let mut destroyed = DestroyedSockets::open().unwrap();
        let mut history = EventHistory::new();
        let initial_counters = MibCounters::read().unwrap();
        let _connection = connect_mptcp();
        let joined = history
            .wait_for_event(MptcpEventKind::SubflowEstablished, |event| event.local_id == Some(5));

        let mut diag = SocketDiag::open().unwrap();
        let connections = diag.mptcp(StateFilter::CONNECTED).unwrap();
        assert_eq!(connections.len(), 2, "{connections:?}");
        assert!(connections.iter().all(|socket| socket.info.len() >= 72), "struct mptcp_info");
        assert_eq!(diag.mptcp(StateFilter::LISTEN).unwrap().len(), 1);
        let mut subflows = diag.tcp(StateFilter::CONNECTED).unwrap();
        subflows.retain(|socket| {
            socket.subflow.is_some_and(|subflow| subflow.token_local == joined.token)
        });
        assert_eq!(subflows.len(), 2, "{subflows:?}");
        assert_eq!(subflows[0].inode, subflows[1].inode, "that of the MPTCP socket");
        let second =
            subflows.iter().find(|socket| Some(socket.local.ip()) == joined.local).unwrap();
        assert_eq!(Some(second.local.port()), joined.local_port);
        let mptcp_info = second.subflow.unwrap();
        assert_eq!((second.state, mptcp_info.local_id), (TcpState::Established, Some(5)));
        assert!(
            mptcp_info.token_remote.is_some() && mptcp_info.token_remote != mptcp_info.token_local
        );
        assert!(mptcp_info.flags.contains(SubflowFlags::JOIN_LOCAL | SubflowFlags::BACKUP_LOCAL));
        assert!(second.info.len() >= 232 && second.congestion.is_some(), "struct tcp_info");

        manager.flush_endpoints().unwrap();
        let mut destroyed_sockets = Vec::new();
        let final_state = wait_for("the last words of the second subflow", || {
            destroyed_sockets.extend(destroyed.drain().unwrap().events);
            destroyed_sockets.iter().find(|socket| socket.cookie == second.cookie).cloned()
        });
        assert_eq!((final_state.local, final_state.remote), (second.local, second.remote));
        assert!(final_state.info.len() >= 232, "struct tcp_info");
        let increments = MibCounters::read().unwrap().since(&initial_counters);
        assert_eq!(increments.get("MPTcpExt.MPCapableSYNTX"), Some(1), "{increments:?}");
        assert!(increments.get("MPTcpExt.MPJoinSynRx").is_some(), "{increments:?}");
    });
}

#[test]
fn an_announced_address_and_its_listener_are_events() {
    in_namespace("an_announced_address_and_its_listener_are_events", || {
        let mut route = wifi_and_server();
        route.add_address("server", prefix("10.0.1.1/24")).unwrap();
        route.add_address("server", prefix("10.0.1.2/24")).unwrap();
        let mut manager = MptcpPm::open().unwrap();
        manager.set_limits(MptcpLimits { subflows: 2, add_addr_accepted: 2 }).unwrap();
        let mut history = EventHistory::new();
        let announced = Endpoint {
            address: ip("10.0.1.2"),
            id: Some(9),
            port: Some(4_321),
            flags: EndpointFlags::SIGNAL,
            link_index: None,
        };
        manager.add_endpoint(&announced).unwrap();
        let connection = connect_mptcp();
        let has_announced_address = |event: &MptcpEvent| event.local == Some(ip("10.0.1.2"));
        let listener =
            history.wait_for_event(MptcpEventKind::ListenerCreated, has_announced_address);
        assert_eq!((listener.local, listener.local_port), (Some(ip("10.0.1.2")), Some(4_321)));
        let event = history.wait_for_event(MptcpEventKind::Announced, |_| true);
        assert_eq!((event.remote, event.remote_port), (Some(ip("10.0.1.2")), Some(4_321)));
        assert_eq!(event.remote_id, Some(9));
        manager.flush_endpoints().unwrap();
        history.wait_for_event(MptcpEventKind::ListenerClosed, has_announced_address);
        drop(connection);
    });
}

#[test]
fn privileged_operations_are_refused_without_privileges() {
    in_namespace("privileged_operations_are_refused_without_privileges", || {
        // A user namespace inside the first owns no network namespace.
        let output = Command::new("unshare")
            .arg("-U")
            .arg(env::current_exe().unwrap())
            .args(["--exact", "without_privileges", "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && stdout.contains("1 passed"), "{output:?}");
    });
}

#[test]
#[ignore = "run by `privileged_operations_are_refused_without_privileges`, in a namespace of its own"]
fn without_privileges() {
    let mut route = RouteSocket::open().unwrap();
    assert_eq!(route.links().unwrap().len(), 1);
    assert_eq!(route.set_up("lo").unwrap_err().to_string(), "set `lo` up: Operation not permitted");
    assert!(LinkEvents::open().is_ok());
    let mut manager = MptcpPm::open().unwrap();
    assert!(manager.limits().is_ok() && manager.endpoints().is_ok());
    assert_eq!(manager.flush_endpoints().unwrap_err().errno(), Some(libc::EPERM));
    let error = MptcpEvents::open().unwrap_err();
    assert_eq!(error.to_string(), "subscribe to MPTCP events: Operation not permitted");
    assert!(SocketDiag::open().unwrap().tcp(StateFilter::ALL).is_ok());
    assert!(MibCounters::read().is_ok());
}
