//! Setup of a host, on the running kernel in network namespaces of the tests' own.

#![expect(clippy::disallowed_methods, reason = "these tests wait for a real kernel")]
#![expect(clippy::indexing_slicing, reason = "a test fails by panicking")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../towpath-netlink/tests/netns/mod.rs"]
mod netns;

use std::env;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use towpath_host::setup::{
    ConfigChange, ConfigHandles, HostState, SetupError, SetupPlan, SetupRequest, SetupRole,
    SetupState, apply, plan, undo,
};
use towpath_netlink::{
    Endpoint, EndpointFlags, MptcpLimits, MptcpPm, Prefix, RouteSocket, RouteSpec, RuleSpec,
    VethEnd,
};
use towpath_os::Namespace;
use towpath_os::sysctl::Sysctl;

use netns::in_namespace;

const HANG_TIMEOUT: Duration = Duration::from_secs(60);
const NAMES: [&str; 4] = ["eth0", "wlan0", "wwan0", "usb.0"];

/// One interface of a host before its setup.
#[derive(Debug, Clone)]
struct Interface {
    /// Network 0 to 3, so that interfaces may share one, and host number.
    v4: Option<(u8, u8)>,
    v6: Option<(u8, u8)>,
    /// Metric of a default route; `None` has none.
    metric: Option<u32>,
    /// A rule and a table for the IPv4 address exist, as if made by hand.
    has_table: bool,
    is_up: bool,
    rp_filter: u8,
    arp_ignore: u8,
    arp_announce: u8,
}

/// Configuration of a host before its setup.
#[derive(Debug, Clone)]
struct InitialHost {
    interfaces: Vec<Interface>,
    /// Endpoints: index of an address, flags, true with a port, true if bound to its interface.
    ///
    /// An interface without an IPv4 address gives a foreign address.
    endpoints: Vec<(usize, u32, bool, bool)>,
    limits: (u32, u32),
    enabled: bool,
    userspace: bool,
    all_rp_filter: u8,
    role: SetupRole,
    /// Network and host of each peer.
    peers: Vec<(u8, u8)>,
}

fn interface() -> impl Strategy<Value = Interface> {
    let settings = (0..3_u8, 0..3_u8, 0..3_u8);
    let address = || proptest::option::weighted(0.8, (0..4_u8, 1..6_u8));
    let metric = proptest::option::of(prop_oneof![Just(0_u32), Just(100), Just(200), Just(300)]);
    let switches = (proptest::bool::weighted(0.3), proptest::bool::weighted(0.9));
    (address(), address(), metric, switches, settings).prop_map(
        |(v4, v6, metric, (has_table, is_up), (rp_filter, arp_ignore, arp_announce))| Interface {
            v4,
            v6,
            metric,
            has_table,
            is_up,
            rp_filter,
            arp_ignore,
            arp_announce,
        },
    )
}

fn initial_host() -> impl Strategy<Value = InitialHost> {
    let flags = prop_oneof![
        Just(1_u32),        // signal
        Just(2),            // subflow
        Just(3),            // both
        Just(2 | 4),        // subflow backup
        Just(2 | 8),        // subflow fullmesh
        Just(1 | 4),        // signal backup
        Just(0),            // nothing
        Just(1 << 5),       // laminar
        Just(2 | (1 << 5)), // subflow laminar
    ];
    let endpoints =
        proptest::collection::vec((0..6_usize, flags, any::<bool>(), any::<bool>()), 0..4);
    let interfaces = proptest::collection::vec(interface(), 1..=4);
    let role = prop_oneof![Just(SetupRole::Client), Just(SetupRole::Server), Just(SetupRole::Both)];
    let peers = proptest::collection::vec((0..4_u8, 100..103_u8), 0..3);
    let switches = (proptest::bool::weighted(0.8), proptest::bool::weighted(0.1), 0..3_u8);
    (interfaces, endpoints, (0..=8_u32, 0..=8_u32), switches, role, peers).prop_map(
        |(interfaces, endpoints, limits, switches, role, peers)| {
            let (enabled, userspace, all_rp_filter) = switches;
            InitialHost {
                interfaces,
                endpoints,
                limits,
                enabled,
                userspace,
                all_rp_filter,
                role,
                peers,
            }
        },
    )
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn v4((network, host): (u8, u8), link: usize) -> Prefix {
    // Addresses in one network must differ for every draw.
    let host = usize::from(host) + 10 * link;
    format!("10.0.{network}.{host}/24").parse().unwrap()
}

fn v6((network, host): (u8, u8), link: usize) -> Prefix {
    let host = usize::from(host) + 10 * link;
    format!("fd00:{network}::{host}/64").parse().unwrap()
}

impl InitialHost {
    fn request(&self) -> SetupRequest {
        let peers = self.peers.iter().map(|(network, host)| ip(&format!("10.0.{network}.{host}")));
        SetupRequest {
            role: self.role,
            peers: peers.collect(),
            links: Vec::new(),
            routers: Vec::new(),
        }
    }

    /// Applies the configuration in the calling thread's new namespace.
    fn create(&self) {
        let mut route = RouteSocket::open().unwrap();
        // The kernel would add generated addresses at unpredictable times.
        Sysctl::ipv6("default", "addr_gen_mode").write("1").unwrap();
        route.set_up("lo").unwrap();
        for (index, interface) in self.interfaces.iter().enumerate() {
            let name = NAMES[index];
            let far = format!("far{index}");
            let veth_end = |name| VethEnd { name, ..VethEnd::default() };
            route.add_veth(&veth_end(name), &veth_end(&far)).unwrap();
            route.set_up(&far).unwrap();
            interface.create(&mut route, index);
        }
        for (index, interface) in self.interfaces.iter().enumerate() {
            wait_for("a carrier", || {
                let far = format!("far{index}");
                let mut is_running = |name: &str| route.link(name).unwrap().is_running();
                (is_running(NAMES[index]), is_running(&far)) == (interface.is_up, interface.is_up)
            });
        }
        wait_for("the kernel's own routes of IPv6", || has_all_own_routes(&mut route));
        Sysctl::ipv4("all", "rp_filter").write(&self.all_rp_filter.to_string()).unwrap();
        let mut manager = MptcpPm::open().unwrap();
        let (subflows, add_addr_accepted) = self.limits;
        manager.set_limits(MptcpLimits { subflows, add_addr_accepted }).unwrap();
        for (index, flags, has_port, is_bound) in &self.endpoints {
            let address = self
                .interfaces
                .get(*index)
                .and_then(|interface| interface.v4)
                .map(|address| v4(address, *index));
            let foreign = ip(&format!("203.0.113.{}", index + 1));
            let link = NAMES.get(*index).filter(|_| *is_bound && address.is_some());
            let flags = EndpointFlags::from_bits(*flags);
            let endpoint = Endpoint {
                address: address.map_or(foreign, Prefix::address),
                id: None,
                port: (*has_port && address.is_some() && flags == EndpointFlags::SIGNAL)
                    .then_some(8_000),
                flags,
                link_index: link.map(|link| route.link(link).unwrap().index),
            };
            // Duplicate addresses are refused, and so is a port on an interface that is down.
            let _ = manager.add_endpoint(&endpoint);
        }
        if self.userspace {
            Sysctl::new("net.mptcp.path_manager").write("userspace").unwrap();
        }
        let enabled = if self.enabled { "1" } else { "0" };
        Sysctl::new("net.mptcp.enabled").write(enabled).unwrap();
    }
}

impl Interface {
    fn create(&self, route: &mut RouteSocket, index: usize) {
        let name = NAMES[index];
        if self.is_up {
            route.set_up(name).unwrap();
        }
        if let Some(address) = self.v4 {
            route.add_address(name, v4(address, index)).unwrap();
        }
        // On an interface that is down, the kernel adds its routes at an unpredictable time.
        if let Some(address) = self.v6.filter(|_| self.is_up) {
            route.add_address(name, v6(address, index)).unwrap();
        }
        for (setting, value) in [
            ("rp_filter", self.rp_filter),
            ("arp_ignore", self.arp_ignore),
            ("arp_announce", self.arp_announce),
        ] {
            Sysctl::ipv4(name, setting).write(&value.to_string()).unwrap();
        }
        let Some((network, _)) = self.v4.filter(|_| self.is_up) else { return };
        let default_route = RouteSpec {
            to: Prefix::ALL_V4,
            link: name,
            gateway: Some(ip(&format!("10.0.{network}.254"))),
            source: None,
            table: None,
            metric: self.metric,
        };
        if self.metric.is_some() {
            // Two routes with the same metric are refused.
            let _ = route.add_route(&default_route);
        }
        if self.has_table {
            let table = 100 + index as u32;
            let table_route = RouteSpec { table: Some(table), metric: None, ..default_route };
            route.add_route(&table_route).unwrap();
            let from = v4(self.v4.unwrap(), index);
            let from = Prefix::host(from.address());
            let rule = RuleSpec { from, to: None, table, priority: Some(500) };
            route.add_rule(&rule).unwrap();
        }
    }
}

fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + HANG_TIMEOUT;
    while !condition() {
        assert!(Instant::now() < deadline, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Returns true once the kernel has added the routes that follow from addresses and links.
fn has_all_own_routes(route: &mut RouteSocket) -> bool {
    let routes = route.routes().unwrap();
    let mut links = route.links().unwrap();
    links.retain(|link| link.is_running() && !link.is_loopback());
    let multicast: Prefix = "ff00::/8".parse().unwrap();
    let has_route = |to: Prefix, link: u32| {
        routes.iter().any(|route| route.to == to && route.link_index == Some(link))
    };
    let is_running = |index: u32| links.iter().any(|link| link.index == index);
    let addresses = route.addresses().unwrap();
    let mut v6_addresses = addresses
        .iter()
        .filter(|address| is_running(address.link_index) && address.local.address().is_ipv6());
    links.iter().all(|link| has_route(multicast, link.index))
        && v6_addresses
            .all(|address| has_route(Prefix::host(address.local.address()), address.link_index))
}

/// Snapshot of all configuration that must not change: one line per row, tables in the kernel's
/// order.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Snapshot(Vec<String>);

impl Snapshot {
    fn take() -> Self {
        let mut manager = MptcpPm::open().unwrap();
        let mut lines = vec![format!("limits {:?}", manager.limits().unwrap())];
        lines.extend(
            manager.endpoints().unwrap().iter().map(|endpoint| format!("endpoint {endpoint:?}")),
        );
        let tables = [("address", libc::RTM_GETADDR, 8), ("route", libc::RTM_GETROUTE, 12)];
        for (name, kind, header) in tables.into_iter().chain([("rule", libc::RTM_GETRULE, 12)]) {
            lines.extend(dump(kind, header).iter().map(|row| format!("{name} {row:02x?}")));
        }
        let mut settings = Vec::new();
        for folder in ["mptcp", "ipv4/conf", "ipv6/conf", "ipv4/route", "ipv6/route"] {
            read_settings(&Path::new("/proc/sys/net").join(folder), &mut settings);
        }
        settings.sort();
        lines.extend(settings.iter().map(|(path, text)| format!("{} {text}", path.display())));
        Self(lines)
    }

    /// Returns the differing rows, as text.
    fn differences(&self, other: &Self) -> Vec<String> {
        let pairs = self.0.iter().zip(&other.0).filter(|(own, other_row)| own != other_row);
        let mut differences: Vec<_> =
            pairs.map(|(own, other_row)| format!("{own}\n  now {other_row}")).collect();
        if self.0.len() != other.0.len() {
            differences.insert(0, format!("{} rows, now {}", self.0.len(), other.0.len()));
        }
        differences
    }
}

fn read_settings(folder: &Path, settings: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read_settings(&path, settings);
        } else if let Ok(text) = fs::read_to_string(&path) {
            settings.push((path, text));
        }
    }
}

/// Returns the rows of a table, without netlink sequence numbers.
fn dump(kind: u16, header: usize) -> Vec<Vec<u8>> {
    let mut socket = Socket::new(NETLINK_ROUTE).unwrap();
    socket.bind_auto().unwrap();
    let mut request = Vec::new();
    request.extend((16 + header as u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(0x301_u16.to_ne_bytes());
    request.resize(16 + header, 0);
    socket.send_to(&request, &SocketAddr::new(0, 0), 0).unwrap();
    let mut rows = Vec::new();
    loop {
        let (bytes, _) = socket.recv_from_full().unwrap();
        let mut rest = &bytes[..];
        while rest.len() >= 16 {
            let length = u32::from_ne_bytes(rest[..4].try_into().unwrap()) as usize;
            let message_type = u16::from_ne_bytes(rest[4..6].try_into().unwrap());
            if i32::from(message_type) == libc::NLMSG_DONE {
                return rows;
            }
            rows.push([&rest[4..6], &rest[16..length]].concat());
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn make_plan(request: &SetupRequest, handles: &mut ConfigHandles) -> SetupPlan {
    let host = HostState::read(handles).unwrap();
    plan(&host, request, handles).unwrap()
}

fn state_folder(name: &str) -> PathBuf {
    env::temp_dir().join(format!("towpath-setup-{name}-{}", std::process::id()))
}

/// Sets up a host, checks the result, and reverts it.
fn apply_and_revert(host: &InitialHost, folder: &Path) -> Result<usize, TestCaseError> {
    host.create();
    let initial = Snapshot::take();
    let mut handles = ConfigHandles::open().unwrap();
    let mut state = SetupState::open(folder).unwrap();
    prop_assert!(state.changes().is_empty(), "a new namespace has no past");
    let request = host.request();
    let setup_plan = make_plan(&request, &mut handles);
    let no_differences: Vec<String> = Vec::new();
    prop_assert_eq!(
        &initial.differences(&Snapshot::take()),
        &no_differences,
        "a plan changes nothing"
    );
    apply(&setup_plan, &mut handles, &mut state).map_err(|e| TestCaseError::fail(e.to_string()))?;
    let second_plan = make_plan(&request, &mut handles);
    prop_assert!(second_plan.steps.is_empty(), "first {setup_plan:#?}\nagain {second_plan:#?}");
    let undo_result =
        undo(&mut handles, &mut state).map_err(|e| TestCaseError::fail(e.to_string()))?;
    prop_assert_eq!(&undo_result.remarks, &no_differences);
    prop_assert_eq!(
        &initial.differences(&Snapshot::take()),
        &no_differences,
        "after {:#?}",
        setup_plan
    );
    prop_assert!(state.changes().is_empty() && !state.path().exists());
    Ok(setup_plan.steps.len())
}

#[test]
fn applied_changes_are_undone_to_the_last_byte() {
    in_namespace("applied_changes_are_undone_to_the_last_byte", || {
        let folder = state_folder("bytes");
        let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
        let steps = std::cell::Cell::new(0);
        let result = TestRunner::new(config).run(&initial_host(), |host| {
            let namespace = Namespace::create().unwrap();
            let step_count = namespace.run(|| apply_and_revert(&host, &folder)).unwrap()?;
            steps.set(steps.get() + step_count);
            Ok(())
        });
        result.unwrap();
        assert!(steps.get() > 64, "the draws must have something to set up: {}", steps.get());
        let _ = fs::remove_dir_all(folder); // best effort
    });
}

fn two_interfaces_in_one_network() -> InitialHost {
    let interface = |host, metric| Interface {
        v4: Some((0, host)),
        v6: None,
        metric,
        has_table: false,
        is_up: true,
        rp_filter: 1,
        arp_ignore: 0,
        arp_announce: 0,
    };
    InitialHost {
        interfaces: vec![interface(1, Some(100)), interface(2, None)],
        endpoints: Vec::new(),
        limits: (2, 0),
        enabled: true,
        userspace: false,
        all_rp_filter: 0,
        role: SetupRole::Server,
        peers: Vec::new(),
    }
}

#[test]
fn a_failed_step_rolls_back_the_steps_before_it() {
    in_namespace("a_failed_step_rolls_back_the_steps_before_it", || {
        let host = two_interfaces_in_one_network();
        host.create();
        let (folder, mut handles) = (state_folder("refused"), ConfigHandles::open().unwrap());
        let mut state = SetupState::open(&folder).unwrap();
        let plan = make_plan(&host.request(), &mut handles);
        // An administrator adds an endpoint for an address in the meantime.
        let mut manager = MptcpPm::open().unwrap();
        let address = v4((0, 2), 1).address();
        let flags = EndpointFlags::SUBFLOW;
        let foreign_endpoint = Endpoint { address, id: None, port: None, flags, link_index: None };
        manager.add_endpoint(&foreign_endpoint).unwrap();
        let initial = Snapshot::take();
        let error = apply(&plan, &mut handles, &mut state).unwrap_err();
        let SetupError::Refused { number, all, .. } = &error else { panic!("{error}") };
        assert_eq!(number, all, "the last one");
        let text = error.to_string();
        assert!(text.contains("add MPTCP endpoint 10.0.0.12: "), "{text}");
        assert!(text.ends_with("the changes before it were undone"), "{text}");
        assert_eq!(initial.differences(&Snapshot::take()), Vec::<String>::new());
        assert!(state.changes().is_empty());
        let _ = fs::remove_dir_all(folder); // best effort
    });
}

#[test]
fn later_changes_by_others_are_left_alone() {
    in_namespace("later_changes_by_others_are_left_alone", || {
        let host = two_interfaces_in_one_network();
        host.create();
        let (folder, mut handles) = (state_folder("since"), ConfigHandles::open().unwrap());
        let mut state = SetupState::open(&folder).unwrap();
        let plan = make_plan(&host.request(), &mut handles);
        apply(&plan, &mut handles, &mut state).unwrap();
        let mut manager = MptcpPm::open().unwrap();
        let foreign_limits = MptcpLimits { subflows: 7, add_addr_accepted: 1 };
        manager.set_limits(foreign_limits).unwrap();
        manager.flush_endpoints().unwrap();
        let undo_result = undo(&mut handles, &mut SetupState::open(&folder).unwrap()).unwrap();
        assert_eq!(manager.limits().unwrap(), foreign_limits);
        let remarks = undo_result.remarks.join("\n");
        assert!(remarks.contains(": not changed"), "{remarks}");
        assert!(remarks.contains("there is no endpoint 10.0.0.1"), "{remarks}");
        let rules = RouteSocket::open().unwrap().rules().unwrap();
        assert!(rules.iter().all(|rule| rule.priority == 0 || rule.priority > 1_000), "{rules:?}");
        let _ = fs::remove_dir_all(folder); // best effort
    });
}

#[test]
fn a_server_of_two_interfaces_in_one_network_answers_on_each() {
    in_namespace("a_server_of_two_interfaces_in_one_network_answers_on_each", || {
        let host = two_interfaces_in_one_network();
        host.create();
        let mut handles = ConfigHandles::open().unwrap();
        let plan = make_plan(&host.request(), &mut handles);
        let commands: Vec<_> = plan.steps.iter().map(|step| step.change.command()).collect();
        let table = RouteSocket::open().unwrap().link("wlan0").unwrap().index + 1_000;
        let expected = [
            "sysctl -w net.ipv4.conf.eth0.arp_ignore=1".to_owned(),
            "sysctl -w net.ipv4.conf.eth0.arp_announce=2".to_owned(),
            "sysctl -w net.ipv4.conf.wlan0.arp_ignore=1".to_owned(),
            "sysctl -w net.ipv4.conf.wlan0.arp_announce=2".to_owned(),
            "ip -4 neighbour flush dev eth0".to_owned(),
            "ip -4 neighbour flush dev wlan0".to_owned(),
            format!("ip route add 10.0.0.0/24 dev wlan0 table {table} proto static"),
            // `wlan0` has no default route of its own, but the router of `eth0` is in its network.
            format!("ip route add default via 10.0.0.254 dev wlan0 table {table} proto static"),
            format!("ip rule add from 10.0.0.12 lookup {table} priority 999"),
            "ip mptcp limits set subflows 8 add_addr_accepted 0".to_owned(),
            "ip mptcp endpoint add 10.0.0.1 dev eth0 signal".to_owned(),
            "ip mptcp endpoint add 10.0.0.12 dev wlan0 signal".to_owned(),
        ];
        assert_eq!(commands, expected);
    });
}

#[test]
fn endpoints_of_the_wrong_role_or_of_another_host_are_replaced() {
    in_namespace("endpoints_of_the_wrong_role_or_of_another_host_are_replaced", || {
        let endpoints = vec![(0, 2, false, true), (5, 2, false, false)];
        let host = InitialHost { endpoints, ..two_interfaces_in_one_network() };
        host.create();
        let plan = make_plan(&host.request(), &mut ConfigHandles::open().unwrap());
        let has_reason = |reason: &str| plan.steps.iter().any(|step| step.reason == reason);
        assert!(has_reason("203.0.113.6 is not an address of this host"), "{plan:#?}");
        assert!(has_reason("endpoint 10.0.0.1 is not announced, which servers need"), "{plan:#?}");
        let replaced = plan.steps.iter().find_map(|step| {
            let ConfigChange::AddEndpoint(endpoint) = &step.change else { return None };
            (endpoint.address == ip("10.0.0.1")).then_some(endpoint)
        });
        assert_eq!(replaced.unwrap().id, Some(1), "under its number");
    });
}

#[test]
fn interfaces_with_the_same_address_are_refused_before_any_change() {
    in_namespace("interfaces_with_the_same_address_are_refused_before_any_change", || {
        let roles = [SetupRole::Client, SetupRole::Server, SetupRole::Both];
        for (count, is_v4) in [(2, true), (3, true), (4, true), (2, false), (3, false)] {
            let namespace = Namespace::create().unwrap();
            let check = || {
                let bare = Interface {
                    v4: None,
                    metric: None,
                    ..two_interfaces_in_one_network().interfaces.remove(0)
                };
                let interfaces = vec![bare; count];
                InitialHost { interfaces, ..two_interfaces_in_one_network() }.create();
                let address = if is_v4 { "192.168.8.100/24" } else { "fd00:8::100/64" };
                let mut route = RouteSocket::open().unwrap();
                for name in &NAMES[..count] {
                    route.add_address(name, address.parse().unwrap()).unwrap();
                }
                wait_for("the kernel's own routes of IPv6", || has_all_own_routes(&mut route));
                let initial = Snapshot::take();
                let mut handles = ConfigHandles::open().unwrap();
                let host = HostState::read(&mut handles).unwrap();
                for role in roles {
                    let request = InitialHost { role, ..two_interfaces_in_one_network() }.request();
                    let error = plan(&host, &request, &mut handles).unwrap_err();
                    let error = SetupError::from(error);
                    let (text, hint) = (error.to_string(), error.hint().unwrap());
                    let names = NAMES[..count].join(" and ");
                    let address = address.split_once('/').unwrap().0;
                    let expected = format!("{names} have the same address {address}");
                    assert!(text.contains(&expected), "{text}");
                    assert!(hint.contains("NAT") && hint.contains("--dev"), "{hint}");
                    // One of them alone is a complete setup.
                    let links = vec![NAMES[1].to_owned()];
                    let single = plan(&host, &SetupRequest { links, ..request }, &mut handles);
                    assert_eq!(single.unwrap().uses, [(NAMES[1].to_owned(), ip(address))]);
                }
                assert_eq!(initial.differences(&Snapshot::take()), Vec::<String>::new());
            };
            namespace.run(check).unwrap();
        }
    });
}
