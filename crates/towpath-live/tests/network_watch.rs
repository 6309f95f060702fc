//! Changes of the network under a live test, in user and network namespaces of the tests' own.

#![expect(clippy::disallowed_methods, reason = "these tests wait for a real kernel")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

#[path = "../../towpath-netlink/tests/netns/mod.rs"]
mod netns;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use towpath_live::protocol::ServerLimits;
use towpath_live::{
    NetworkChange, NetworkWatch, ProbeKind, ProbeOutcome, Server, ServerConfig, check,
};
use towpath_netlink::{Prefix, RouteSocket, RouteSpec, VethEnd};

use netns::in_namespace;

/// Timeout above any expected wait, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// Waits until a change satisfies `predicate`; returns all changes until then.
fn wait_for(
    watch: &mut NetworkWatch,
    what: &str,
    predicate: impl Fn(&NetworkChange) -> bool,
) -> Vec<NetworkChange> {
    let deadline = Instant::now() + HANG_TIMEOUT;
    let mut changes = Vec::new();
    while !changes.iter().any(&predicate) {
        assert!(Instant::now() < deadline, "timed out waiting for {what}, heard {changes:?}");
        changes.extend(watch.changes().unwrap());
        thread::sleep(Duration::from_millis(1));
    }
    changes
}

#[test]
fn a_watch_reports_every_change_and_nothing_else() {
    in_namespace("a_watch_reports_every_change_and_nothing_else", || {
        let mut route = RouteSocket::open().unwrap();
        let veth_end = |name| VethEnd { name, ..VethEnd::default() };
        route.add_veth(&veth_end("wifi"), &veth_end("other")).unwrap();
        for link in ["lo", "wifi", "other"] {
            route.set_up(link).unwrap();
        }
        let mut watch = NetworkWatch::open().unwrap();
        let address = prefix("10.0.0.1/24");
        route.add_address("wifi", address).unwrap();
        let is_address = |is_present| {
            move |change: &NetworkChange| {
                let NetworkChange::Address { interface, address, present } = change else {
                    return false;
                };
                interface == "wifi" && address.is_ipv4() && *present == is_present
            }
        };
        wait_for(&mut watch, "the address", is_address(true));
        let gateway: IpAddr = "10.0.0.2".parse().unwrap();
        let default_route = RouteSpec {
            to: Prefix::ALL_V4,
            link: "wifi",
            gateway: Some(gateway),
            source: None,
            table: None,
            metric: None,
        };
        route.add_route(&default_route).unwrap();
        let new_route = Some(("wifi".to_owned(), Some(gateway)));
        let new_default = NetworkChange::DefaultRoute { v6: false, now: new_route };
        wait_for(&mut watch, "the default route", |change| *change == new_default);
        // A route worse than the best one changes nothing; the link change marks the end of the
        // wait.
        route.add_route(&RouteSpec { metric: Some(9), ..default_route }).unwrap();
        route.set_down("wifi").unwrap();
        let down = NetworkChange::Link { interface: "wifi".to_owned(), running: false };
        let changes = wait_for(&mut watch, "the link", |change| *change == down);
        let is_new_default = |change: &&NetworkChange| {
            matches!(change, NetworkChange::DefaultRoute { now: Some(_), .. })
        };
        assert_eq!(changes.iter().find(is_new_default), None);
        // The kernel does not announce routes that it removes with an interface.
        let no_default = NetworkChange::DefaultRoute { v6: false, now: None };
        if !changes.contains(&no_default) {
            wait_for(&mut watch, "no default route", |change| *change == no_default);
        }
        route.delete_address("wifi", address).unwrap();
        wait_for(&mut watch, "no address", is_address(false));
        route.delete_link("wifi").unwrap();
        let removed = NetworkChange::Removed { interface: "wifi".to_owned() };
        wait_for(&mut watch, "no link", |change| *change == removed);
    });
}

/// Starts a proxy that forwards bytes between TCP clients and `server`.
fn start_proxy(listener: TcpListener, server: SocketAddr) {
    thread::spawn(move || {
        for accepted in listener.incoming() {
            let (near, far) = (accepted.unwrap(), TcpStream::connect(server).unwrap());
            for (mut from, mut to) in
                [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
            {
                thread::spawn(move || io::copy(&mut from, &mut to));
            }
        }
    });
}

#[test]
fn a_check_names_the_obstacles() {
    in_namespace("a_check_names_the_obstacles", || {
        RouteSocket::open().unwrap().set_up("lo").unwrap();
        let config = ServerConfig {
            ports: vec![5_210],
            bind: None,
            secret: None,
            limits: ServerLimits::default(),
            once: false,
            public_diagnostics: false,
            quic_migration: false,
            identity: None,
            access: None,
        };
        let server = Server::open(config).unwrap();
        // The server ends with the process.
        thread::spawn(|| server.run(|_| {}));
        let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 5_210));
        start_proxy(TcpListener::bind(v4(5_300)).unwrap(), v4(5_210));
        let _socket = UdpSocket::bind(v4(5_300)).unwrap();
        let attempts = check(&[v4(5_210), v6, v4(5_300), v4(5_999)]);
        let findings: Vec<_> =
            attempts.iter().map(|attempt| (attempt.probe, attempt.finding.clone())).collect();
        let probes =
            [ProbeKind::Tcp, ProbeKind::Mptcp, ProbeKind::Udp, ProbeKind::Quic, ProbeKind::Mpquic];
        let works = probes.map(|probe| (probe, ProbeOutcome::Works));
        let behind_proxy = [
            (ProbeKind::Tcp, ProbeOutcome::Works),
            (ProbeKind::Mptcp, ProbeOutcome::StrippedForward),
            (ProbeKind::Udp, ProbeOutcome::Blocked),
            (ProbeKind::Quic, ProbeOutcome::Blocked),
            (ProbeKind::Mpquic, ProbeOutcome::Blocked),
        ];
        let refused = probes.map(|probe| (probe, ProbeOutcome::Refused));
        assert_eq!(
            findings,
            [works.clone(), works, behind_proxy, refused].concat(),
            "{attempts:?}"
        );
        assert!(
            attempts.iter().all(
                |attempt| attempt.finding != ProbeOutcome::Works || attempt.answer_ns.is_some()
            )
        );
    });
}
