//! Changes of the network under a live test, in user and network namespaces of the tests' own.

#![expect(clippy::disallowed_methods, reason = "these tests wait for a real kernel")]
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod netns;

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use towpath_linux::live::{
    NetworkChange, NetworkWatch, ProbeKind, ProbeOutcome, Server, ServerConfig, check,
};
use towpath_linux::netlink::{Prefix, RouteSocket, RouteSpec, VethEnd};
use towpath_measure::live::ServerLimits;

use netns::in_namespace;

/// Timeout above any expected wait, even on a busy machine.
const HANG_TIMEOUT: Duration = Duration::from_secs(60);

fn prefix(text: &str) -> Prefix {
    text.parse().unwrap()
}

/// Waits until a change satisfies `wanted`; skips others.
fn wait_for(
    watch: &mut NetworkWatch,
    what: &str,
    wanted: impl Fn(&NetworkChange) -> bool,
) -> Vec<NetworkChange> {
    let deadline = Instant::now() + HANG_TIMEOUT;
    let mut heard = Vec::new();
    while !heard.iter().any(&wanted) {
        assert!(Instant::now() < deadline, "waited in vain for {what}, heard {heard:?}");
        heard.extend(watch.changes().unwrap());
        thread::sleep(Duration::from_millis(1));
    }
    heard
}

#[test]
fn a_watch_reports_every_change_and_nothing_else() {
    in_namespace("a_watch_reports_every_change_and_nothing_else", || {
        let mut route = RouteSocket::open().unwrap();
        let end = |name| VethEnd { name, ..VethEnd::default() };
        route.add_veth(&end("wifi"), &end("other")).unwrap();
        for link in ["lo", "wifi", "other"] {
            route.set_up(link).unwrap();
        }
        let mut watch = NetworkWatch::open().unwrap();
        let address = prefix("10.0.0.1/24");
        route.add_address("wifi", address).unwrap();
        let is_address = |there| {
            move |change: &NetworkChange| {
                let NetworkChange::Address { interface, address, present } = change else {
                    return false;
                };
                interface == "wifi" && address.is_ipv4() && *present == there
            }
        };
        wait_for(&mut watch, "the address", is_address(true));
        let gateway: IpAddr = "10.0.0.2".parse().unwrap();
        let default = RouteSpec {
            to: Prefix::ALL_V4,
            link: "wifi",
            gateway: Some(gateway),
            source: None,
            table: None,
            metric: None,
        };
        route.add_route(&default).unwrap();
        let now = Some(("wifi".to_owned(), Some(gateway)));
        let wanted = NetworkChange::DefaultRoute { v6: false, now };
        wait_for(&mut watch, "the default route", |change| *change == wanted);
        // A route worse than the best one changes nothing; the link change marks the end of the
        // wait.
        route.add_route(&RouteSpec { metric: Some(9), ..default }).unwrap();
        route.set_down("wifi").unwrap();
        let down = NetworkChange::Link { interface: "wifi".to_owned(), running: false };
        let heard = wait_for(&mut watch, "the link", |change| *change == down);
        let routes = |change: &&NetworkChange| {
            matches!(change, NetworkChange::DefaultRoute { now: Some(_), .. })
        };
        assert_eq!(heard.iter().find(routes), None);
        // The kernel does not announce routes that it removes with an interface.
        let gone = NetworkChange::DefaultRoute { v6: false, now: None };
        if !heard.contains(&gone) {
            wait_for(&mut watch, "no default route", |change| *change == gone);
        }
        route.delete_address("wifi", address).unwrap();
        wait_for(&mut watch, "no address", is_address(false));
        route.delete_link("wifi").unwrap();
        let removed = NetworkChange::Removed { interface: "wifi".to_owned() };
        wait_for(&mut watch, "no link", |change| *change == removed);
    });
}

/// Forwards bytes between TCP clients and `to`, as a proxy on the path does.
fn proxy(listener: TcpListener, to: SocketAddr) {
    thread::spawn(move || {
        for accepted in listener.incoming() {
            let (near, far) = (accepted.unwrap(), TcpStream::connect(to).unwrap());
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
            identity: None,
        };
        let server = Server::open(config).unwrap();
        // The server ends with the process.
        thread::spawn(|| server.run(|_| {}));
        let v4 = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 5_210));
        proxy(TcpListener::bind(v4(5_300)).unwrap(), v4(5_210));
        let _socket = UdpSocket::bind(v4(5_300)).unwrap();
        let tried = check(&[v4(5_210), v6, v4(5_300), v4(5_999)]);
        let found: Vec<_> = tried.iter().map(|one| (one.probe, one.finding.clone())).collect();
        let all =
            [ProbeKind::Tcp, ProbeKind::Mptcp, ProbeKind::Udp, ProbeKind::Quic, ProbeKind::Mpquic];
        let works = all.map(|probe| (probe, ProbeOutcome::Works));
        let behind_proxy = [
            (ProbeKind::Tcp, ProbeOutcome::Works),
            (ProbeKind::Mptcp, ProbeOutcome::StrippedForward),
            (ProbeKind::Udp, ProbeOutcome::Blocked),
            (ProbeKind::Quic, ProbeOutcome::Blocked),
            (ProbeKind::Mpquic, ProbeOutcome::Blocked),
        ];
        let nobody = all.map(|probe| (probe, ProbeOutcome::Refused));
        assert_eq!(found, [works.clone(), works, behind_proxy, nobody].concat(), "{tried:?}");
        assert!(
            tried.iter().all(|one| one.finding != ProbeOutcome::Works || one.answer_ns.is_some())
        );
    });
}
