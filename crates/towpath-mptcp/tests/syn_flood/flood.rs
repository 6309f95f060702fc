//! SYN floods against a listener.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{self, InterfaceId, LocalAddress, Stack, SynFloodProtection};
use towpath_net::Instant;
use towpath_wire::{Packet, Segment};

use crate::network::*;

const SYNS: u64 = 10_000;
/// Backlog of a listener by default.
const BACKLOG: usize = 128;
/// Half-open connections that one source may have.
const MAX_HALF_OPEN_PER_SOURCE: usize = 16;
/// Time after which no state of a flood is left.
const FREE_AFTER: Duration = Duration::from_secs(16);
/// Time after which honest clients are also gone, whose subflows are in TIME-WAIT for 60 seconds.
const IDLE_AFTER: Duration = Duration::from_secs(130);

fn plain_tcp() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

/// Sends ten segments in each millisecond of the first second.
fn flood(network: &mut TestNetwork, mut make_segment: impl FnMut(&mut TestNetwork) -> Segment) {
    for number in 0..SYNS {
        let segment = make_segment(network);
        let arrival = Instant::from_nanos(100_000_000 + 100_000 * number);
        network.attack(arrival, segment);
    }
}

fn forged_syn(network: &mut TestNetwork, multipath: bool) -> Segment {
    let (source, seq) = (network.forged_source(), network.random.next_u32());
    syn(source, seq, multipath)
}

#[test]
fn ten_thousand_forged_syns_do_not_keep_five_clients_out() {
    for (config, multipath) in [(plain_tcp(), false), (ConnectionConfig::linux(), true)] {
        let mut network = TestNetwork::new(config.clone());
        flood(&mut network, |network| forged_syn(network, multipath));
        network.serve_clients(&config);
        let counters = network.server.counters();
        assert_eq!((network.accepted, network.max_half_open), (CLIENTS, BACKLOG), "{counters:?}");
        assert_eq!(counters.backlog_full, 0, "every SYN is answered");
        assert!(counters.cookies_sent >= SYNS - BACKLOG as u64, "{counters:?}");
        assert_eq!(counters.cookies_accepted, CLIENTS as u64);
        assert!(
            network.stray_replies <= SYNS + 3 * BACKLOG as u64,
            "one answer each: {}",
            network.stray_replies
        );
        for client in &network.clients {
            let status = client.stack.status(client.id.unwrap()).unwrap();
            let established_subflows =
                status.subflows.iter().filter(|subflow| subflow.tcp.srtt > DELAY).count();
            assert_eq!(
                (status.fallback, established_subflows),
                (None, 1 + usize::from(multipath)),
                "{status:#?}"
            );
        }
        let flood_end = at_ms(1_100);
        network.run(network.now.max(flood_end + FREE_AFTER));
        assert_eq!(network.server.half_open_connections(), 0);
        network.run(network.now + IDLE_AFTER);
        assert!(network.server.is_idle());
    }
}

const DELAY: Duration = Duration::from_millis(10);

#[test]
fn the_same_flood_blocks_a_stack_that_stores_every_syn() {
    let mut server = Stack::new(stack::StackConfig::default());
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(Instant::ZERO, local_address(server_address()));
    server.listen(PORT, plain_tcp()).unwrap();
    let mut network = TestNetwork::with_server(server);
    flood(&mut network, |network| forged_syn(network, false));
    network.run(at_ms(200));
    network.open(0, plain_tcp(), 1_000);
    network.run(at_ms(5_200));
    assert!(!network.is_served(0), "otherwise these tests show nothing");
    assert_eq!(network.server.half_open_connections(), BACKLOG);
}

#[test]
fn one_source_gets_no_more_than_its_share_of_the_backlog() {
    let mut network = TestNetwork::new(plain_tcp());
    flood(&mut network, |network| {
        let port = network.random.next_u32() as u16 | 1;
        syn(SocketAddr::from(([192, 0, 2, 9], port)), network.random.next_u32(), false)
    });
    network.serve_clients(&plain_tcp());
    // A client may connect during the flood, and takes an entry of the backlog.
    assert!(
        network.max_half_open <= MAX_HALF_OPEN_PER_SOURCE + CLIENTS,
        "{}",
        network.max_half_open
    );
    assert_eq!(network.server.counters().cookies_accepted, 0, "the others need no cookies");
}

pub(crate) fn local_address(address: std::net::IpAddr) -> LocalAddress {
    LocalAddress {
        address_id: 1,
        address,
        port: None,
        interface: InterfaceId(1),
        up: true,
        subflow: false,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    }
}

/// Returns a server without clients that has one address.
pub(crate) fn server_without_clients(
    config: stack::StackConfig,
    server_ip: std::net::IpAddr,
) -> Stack {
    let mut server = Stack::with_syn_flood_protection(config, &SynFloodProtection::new([3; 16]));
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(Instant::ZERO, local_address(server_ip));
    server.listen(PORT, plain_tcp()).unwrap();
    server
}

#[test]
fn the_addresses_of_one_network_are_one_source() {
    let server_ip = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let destination = SocketAddr::new(server_ip.into(), PORT);
    // Number of networks, of hosts in each, and of their half-open connections.
    for (networks, hosts, expected) in
        [(1, 100, MAX_HALF_OPEN_PER_SOURCE), (100, 1, 100), (4, 50, 4 * MAX_HALF_OPEN_PER_SOURCE)]
    {
        let mut server = server_without_clients(stack::StackConfig::default(), server_ip.into());
        for (network, host) in (1..=networks).flat_map(|n| (1..=hosts).map(move |h| (n, h))) {
            let source = Ipv6Addr::new(0x2001, 0xdb8, 7, network, host, 0, 0, 5);
            let syn = syn(SocketAddr::new(source.into(), 4_000), 1, false);
            let syn = Segment { destination, ..syn };
            server.handle_packet(at_ms(1), InterfaceId(1), Packet::emit(&syn, 0));
        }
        assert_eq!(server.half_open_connections(), expected, "{networks} networks");
        let replies = std::iter::from_fn(|| server.poll_transmit(at_ms(1))).count();
        assert_eq!(replies, usize::from(networks * hosts), "the others get cookies");
    }
}

#[test]
fn answers_that_cannot_be_sent_do_not_pile_up() {
    let mut network = TestNetwork::new(plain_tcp());
    for _ in 0..SYNS {
        let syn = forged_syn(&mut network, false);
        network.server.handle_packet(at_ms(1), InterfaceId(1), Packet::emit(&syn, 0));
    }
    let replies = std::iter::from_fn(|| network.server.poll_transmit(at_ms(1))).count();
    assert_eq!(replies, 1_024 + BACKLOG);
    let sent_replies = replies as u64;
    assert_eq!(network.server.counters().replies_dropped, SYNS - sent_replies);
}
