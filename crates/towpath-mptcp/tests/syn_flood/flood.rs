//! SYN floods against a listener.

use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{self, InterfaceId, LocalAddress, Stack, SynFloodProtection};
use towpath_mptcp::wire::{Packet, Segment};
use towpath_net::Instant;

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

fn plain() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

/// Sends ten SYNs in each millisecond of the first second.
fn flood(world: &mut TestNetwork, mut one: impl FnMut(&mut TestNetwork) -> Segment) {
    for number in 0..SYNS {
        let segment = one(world);
        let at = Instant::from_nanos(100_000_000 + 100_000 * number);
        world.attack(at, segment);
    }
}

fn forged_syn(world: &mut TestNetwork, multipath: bool) -> Segment {
    let (source, seq) = (world.forged(), world.random.next_u32());
    syn(source, seq, multipath)
}

#[test]
fn ten_thousand_forged_syns_do_not_keep_five_clients_out() {
    for (config, multipath) in [(plain(), false), (ConnectionConfig::linux(), true)] {
        let mut world = TestNetwork::new(config.clone());
        flood(&mut world, |world| forged_syn(world, multipath));
        world.serve_clients(&config);
        let counters = world.server.counters();
        assert_eq!((world.accepted, world.max_half_open), (CLIENTS, BACKLOG), "{counters:?}");
        assert_eq!(counters.backlog_full, 0, "every SYN is answered");
        assert!(counters.cookies_sent >= SYNS - BACKLOG as u64, "{counters:?}");
        assert_eq!(counters.cookies_accepted, CLIENTS as u64);
        assert!(world.astray <= SYNS + 3 * BACKLOG as u64, "one answer each: {}", world.astray);
        for client in &world.clients {
            let status = client.stack.status(client.id.unwrap()).unwrap();
            let joined = status.subflows.iter().filter(|subflow| subflow.tcp.srtt > DELAY).count();
            assert_eq!(
                (status.fallback, joined),
                (None, 1 + usize::from(multipath)),
                "{status:#?}"
            );
        }
        let flood_over = at(1_100);
        world.run(world.now.max(flood_over + FREE_AFTER));
        assert_eq!(world.server.half_open_connections(), 0);
        world.run(world.now + IDLE_AFTER);
        assert!(world.server.is_idle());
    }
}

const DELAY: Duration = Duration::from_millis(10);

#[test]
fn the_same_flood_blocks_a_stack_that_stores_every_syn() {
    let mut server = Stack::new(stack::StackConfig::default());
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(Instant::ZERO, address(server_address()));
    server.listen(PORT, plain()).unwrap();
    let mut world = TestNetwork::with_server(server);
    flood(&mut world, |world| forged_syn(world, false));
    world.run(at(200));
    world.open(0, plain(), 1_000);
    world.run(at(5_200));
    assert!(!world.is_served(0), "otherwise these tests show nothing");
    assert_eq!(world.server.half_open_connections(), BACKLOG);
}

#[test]
fn one_source_gets_no_more_than_its_share_of_the_backlog() {
    let mut world = TestNetwork::new(plain());
    flood(&mut world, |world| {
        let port = world.random.next_u32() as u16 | 1;
        syn(SocketAddr::from(([192, 0, 2, 9], port)), world.random.next_u32(), false)
    });
    world.serve_clients(&plain());
    // A client may connect during the flood, and takes an entry of the backlog.
    assert!(world.max_half_open <= MAX_HALF_OPEN_PER_SOURCE + CLIENTS, "{}", world.max_half_open);
    assert_eq!(world.server.counters().cookies_accepted, 0, "the others need no cookies");
}

pub(crate) fn address(address: std::net::IpAddr) -> LocalAddress {
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
pub(crate) fn server_without_clients(config: stack::StackConfig, own: std::net::IpAddr) -> Stack {
    let mut server = Stack::with_syn_flood_protection(config, &SynFloodProtection::new([3; 16]));
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(Instant::ZERO, address(own));
    server.listen(PORT, plain()).unwrap();
    server
}

#[test]
fn the_addresses_of_one_network_are_one_source() {
    let own = Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1);
    let destination = SocketAddr::new(own.into(), PORT);
    // Networks, hosts in each, and the number of their SYNs kept.
    for (networks, hosts, expected) in
        [(1, 100, MAX_HALF_OPEN_PER_SOURCE), (100, 1, 100), (4, 50, 4 * MAX_HALF_OPEN_PER_SOURCE)]
    {
        let mut server = server_without_clients(stack::StackConfig::default(), own.into());
        for (network, host) in (1..=networks).flat_map(|n| (1..=hosts).map(move |h| (n, h))) {
            let source = Ipv6Addr::new(0x2001, 0xdb8, 7, network, host, 0, 0, 5);
            let syn = syn(SocketAddr::new(source.into(), 4_000), 1, false);
            let syn = Segment { destination, ..syn };
            server.handle_packet(at(1), InterfaceId(1), Packet::emit(&syn, 0));
        }
        assert_eq!(server.half_open_connections(), expected, "{networks} networks");
        let answers = std::iter::from_fn(|| server.poll_transmit(at(1))).count();
        assert_eq!(answers, usize::from(networks * hosts), "the others get cookies");
    }
}

#[test]
fn answers_that_cannot_be_sent_do_not_pile_up() {
    let mut world = TestNetwork::new(plain());
    for _ in 0..SYNS {
        let syn = forged_syn(&mut world, false);
        world.server.handle_packet(at(1), InterfaceId(1), Packet::emit(&syn, 0));
    }
    let answers = std::iter::from_fn(|| world.server.poll_transmit(at(1))).count();
    assert_eq!(answers, 1_024 + BACKLOG);
    let kept = answers as u64;
    assert_eq!(world.server.counters().replies_dropped, SYNS - kept);
}
