//! Segments of an off-path attacker, who knows addresses and ports of a connection and cannot see
//! its packets.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::InterfaceId;
use towpath_wire::{
    DataAck, Dss, DssMapping, Flags, MpTcpRst, MptcpOption, Options, Packet, Segment,
};

use crate::network::*;
use crate::repetitions::repeat;

fn plain_tcp() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

/// Returns the source of a client's first SYN.
fn first_syn_source(network: &TestNetwork, number: usize) -> SocketAddr {
    let client = client_address(number, 0);
    network
        .find_segment(|segment| segment.source.ip() == client && segment.flags.contains(SYN))
        .source
}

/// Returns a harmful segment of the given kind, with random sequence numbers.
fn forged_segment(network: &mut TestNetwork, source: SocketAddr, kind: u64) -> Segment {
    let (seq, ack) = (network.random.next_u32(), network.random.next_u32());
    let mut forged = segment(source, ACK, seq, ack);
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
            let key = network.random.next_u64();
            let reset = MpTcpRst { transient: false, reason: 1, reserved: 0 };
            forged.options.mptcp = vec![MptcpOption::FastClose { key }, MptcpOption::Reset(reset)];
        }
    }
    forged
}

#[test]
fn forged_segments_neither_end_a_connection_nor_get_into_its_data() {
    let segment_count = repeat([2_000, 10_000, 100_000]);
    for config in [plain_tcp(), ConnectionConfig::linux()] {
        let mut network = TestNetwork::new(config.clone());
        for number in 0..CLIENTS {
            network.open(number, config.clone(), 3_000_000);
        }
        network.run(at_ms(50));
        let sources: Vec<SocketAddr> =
            (0..CLIENTS).map(|number| first_syn_source(&network, number)).collect();
        for number in 0..segment_count {
            let source = sources[number as usize % CLIENTS];
            let segment = forged_segment(&mut network, source, number);
            let delay = Duration::from_nanos(1_000_000_000 / segment_count * number);
            network.attack(network.now + delay, segment);
        }
        network.run(at_ms(20_000));
        network.assert_all_served();
        for client in &network.clients {
            assert!(!matches!(client.closed, Some(Err(_))), "{:?}", client.closed);
        }
        assert_eq!(network.accepted, CLIENTS);
    }
}

#[test]
fn an_idle_connection_answers_ten_forged_segments_in_five_seconds() {
    let mut network = TestNetwork::new(plain_tcp());
    network.open(0, plain_tcp(), 0);
    network.run(at_ms(1_000));
    let source = first_syn_source(&network, 0);
    let sent_before = network.server_sent;
    for number in 0..10_000 {
        // Segment types that get no reply when out of the window, and types that always get one.
        let kind = if number % 2 == 0 { 2 } else { 5 };
        let segment = forged_segment(&mut network, source, kind);
        network.server.handle_packet(network.now, InterfaceId(1), Packet::emit(&segment, 0));
        while network.server.poll_transmit(network.now).is_some() {
            network.server_sent += 1;
        }
    }
    let replies = network.server_sent - sent_before;
    assert_eq!(replies, 10, "RFC 5961 §7");
}
