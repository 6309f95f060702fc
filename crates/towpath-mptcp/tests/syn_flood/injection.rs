//! Segments of an off-path attacker, who knows addresses and ports of a connection and cannot see
//! its packets.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::InterfaceId;
use towpath_mptcp::wire::{
    DataAck, Dss, DssMapping, Flags, MpTcpRst, MptcpOption, Options, Packet, Segment,
};

use crate::network::*;
use crate::repetitions::repeat;

fn plain() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

/// Returns the client's address and port of its first subflow.
fn port_of(world: &TestNetwork, number: usize) -> SocketAddr {
    let from = client_address(number, 0);
    world.find(|segment| segment.source.ip() == from && segment.flags.contains(SYN)).source
}

/// Returns a harmful segment of the given kind, with random numbers.
fn forged(world: &mut TestNetwork, from: SocketAddr, kind: u64) -> Segment {
    let (seq, ack) = (world.random.next_u32(), world.random.next_u32());
    let mut forged = segment(from, ACK, seq, ack);
    match kind % 8 {
        0 => forged.flags = RST,
        1 => forged.flags = RST.with(ACK),
        2 => forged.flags = SYN,
        3 => forged.flags = Flags::FIN.with(ACK),
        4 => {}
        5 => forged.payload = Bytes::from_static(b"forged data").into(),
        6 => {
            let mapping =
                DssMapping { dsn: DataAck::Short(seq), ssn: ack, len: 11, checksum: None };
            let dss =
                Dss { data_fin: true, data_ack: Some(DataAck::Short(ack)), mapping: Some(mapping) };
            forged.options = Options { dss: Some(dss), ..Options::default() };
            forged.payload = Bytes::from_static(b"forged data").into();
        }
        _ => {
            forged.flags = RST;
            let key = world.random.next_u64();
            let reset = MpTcpRst { transient: false, reason: 1, reserved: 0 };
            forged.options.mptcp = vec![MptcpOption::FastClose { key }, MptcpOption::Reset(reset)];
        }
    }
    forged
}

#[test]
fn forged_segments_neither_end_a_connection_nor_get_into_its_data() {
    let each = repeat([2_000, 10_000, 100_000]);
    for config in [plain(), ConnectionConfig::linux()] {
        let mut world = TestNetwork::new(config.clone());
        for number in 0..CLIENTS {
            world.open(number, config.clone(), 3_000_000);
        }
        world.run(at(50));
        let ports: Vec<SocketAddr> = (0..CLIENTS).map(|number| port_of(&world, number)).collect();
        for number in 0..each {
            let from = ports[number as usize % CLIENTS];
            let forged = forged(&mut world, from, number);
            let later = Duration::from_nanos(1_000_000_000 / each * number);
            world.attack(world.now + later, forged);
        }
        world.run(at(20_000));
        world.assert_all_served();
        for client in &world.clients {
            assert!(!matches!(client.closed, Some(Err(_))), "{:?}", client.closed);
        }
        assert_eq!(world.accepted, CLIENTS);
    }
}

#[test]
fn an_idle_connection_answers_ten_forged_segments_in_five_seconds() {
    let mut world = TestNetwork::new(plain());
    world.open(0, plain(), 0);
    world.run(at(1_000));
    let from = port_of(&world, 0);
    let before = world.server_sent;
    for number in 0..10_000 {
        // Segment types that get no reply when out of the window, and types that always get one.
        let kind = if number % 2 == 0 { 2 } else { 5 };
        let segment = forged(&mut world, from, kind);
        world.server.handle_packet(world.now, InterfaceId(1), Packet::emit(&segment, 0));
        while world.server.poll_transmit(world.now).is_some() {
            world.server_sent += 1;
        }
    }
    let answers = world.server_sent - before;
    assert_eq!(answers, 10, "RFC 5961 §7");
}
