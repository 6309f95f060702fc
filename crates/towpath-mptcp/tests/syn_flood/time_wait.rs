//! Connections in TIME-WAIT, which wait for delayed packets.

use std::net::SocketAddr;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{self, InterfaceId, Stack, StackEvent, SynFloodProtection};
use towpath_wire::{Flags, Packet, Segment};

use crate::flood::local_address;
use crate::network::*;

fn exchange(server: &mut Stack, now_ms: u64, segment: &Segment) -> Vec<Segment> {
    server.handle_packet(at_ms(now_ms), InterfaceId(1), Packet::emit(segment, 0));
    let mut replies = Vec::new();
    while let Some((_, packet)) = server.poll_transmit(at_ms(now_ms)) {
        replies.extend(packet.split().map(|packet| packet.parse().unwrap()));
    }
    replies
}

/// Opens a connection that the server closes first, which leaves it in TIME-WAIT.
fn open_and_close(server: &mut Stack, now_ms: u64, source: SocketAddr) {
    let syn_ack = exchange(server, now_ms, &syn(source, 9, false)).remove(0);
    exchange(server, now_ms, &segment(source, ACK, 10, syn_ack.seq.wrapping_add(1)));
    let accepted = std::iter::from_fn(|| server.poll_event()).find_map(|event| {
        if let StackEvent::Accepted { connection, .. } = event { Some(connection) } else { None }
    });
    server.release(at_ms(now_ms), accepted.unwrap());
    let fin = server.poll_transmit(at_ms(now_ms)).unwrap().1.parse().unwrap();
    assert!(fin.flags.contains(Flags::FIN));
    exchange(server, now_ms, &segment(source, Flags::FIN.with(ACK), 10, fin.seq.wrapping_add(1)));
}

#[test]
fn no_more_than_the_limit_wait_and_the_oldest_goes_first() {
    let config = stack::StackConfig { time_wait_limit: 10, ..stack::StackConfig::default() };
    let mut server = Stack::with_syn_flood_protection(config, &SynFloodProtection::new([3; 16]));
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(at_ms(0), local_address(server_address()));
    server
        .listen(PORT, ConnectionConfig { multipath: false, ..ConnectionConfig::linux() })
        .unwrap();
    let peer = |number: u64| SocketAddr::from(([198, 51, 100, 7], 4_000 + number as u16));
    for number in 0..100 {
        open_and_close(&mut server, number, peer(number));
    }
    // A connection in TIME-WAIT acknowledges a retransmitted FIN; any other sends RST.
    let is_in_time_wait = |server: &mut Stack, number: u64| {
        let fin = segment(peer(number), Flags::FIN.with(ACK), 10, 77);
        exchange(server, 200, &fin).iter().all(|reply| !reply.flags.contains(RST))
    };
    let in_time_wait: Vec<u64> =
        (0..100).filter(|number| is_in_time_wait(&mut server, *number)).collect();
    assert_eq!(in_time_wait, (90..100).collect::<Vec<_>>());
    assert!(!server.is_idle());
    server.handle_timeout(at_ms(61_000));
    while server.poll_transmit(at_ms(61_000)).is_some() {}
    assert!(server.is_idle());
}
