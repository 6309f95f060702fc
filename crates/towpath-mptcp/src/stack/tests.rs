//! Tests of a host with single packets.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::{
    Ecn, Flags, MpCapable, MptcpOption, Options, Packet, Payload, Segment, Timestamps,
};

use super::{
    ConnectError, InterfaceId, LocalAddress, SecretGenerator, Stack, StackConfig, StackEvent,
    SynFloodProtection,
};
use crate::connection;

const PORT: u16 = 80;

fn at_ms(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn peer() -> SocketAddr {
    "10.0.0.2:4000".parse().unwrap()
}

fn local_ip(host: u8) -> IpAddr {
    IpAddr::from([10, 0, 0, host])
}

fn local_address(address: IpAddr, address_id: u8) -> LocalAddress {
    LocalAddress {
        address_id,
        address,
        port: None,
        interface: InterfaceId(0),
        up: true,
        subflow: false,
        signal: false,
        backup: false,
        fullmesh: false,
        laminar: false,
    }
}

fn plain_tcp() -> connection::ConnectionConfig {
    connection::ConnectionConfig { multipath: false, ..connection::ConnectionConfig::linux() }
}

/// Returns a host with the addresses 10.0.0.1 and 10.0.0.11.
fn host() -> Stack {
    let mut stack = Stack::new(StackConfig::default());
    stack.add_interface(InterfaceId(0), 1500);
    for (id, address) in [(1, local_ip(1)), (2, local_ip(11))] {
        stack.set_address(at_ms(0), local_address(address, id));
    }
    stack
}

fn segment(flags: Flags, seq: u32, ack: u32) -> Segment {
    Segment {
        source: peer(),
        destination: SocketAddr::new(local_ip(1), PORT),
        seq,
        ack,
        flags,
        window: 60_000,
        ecn: Ecn::NotCapable,
        options: Options::default(),
        payload: Payload::EMPTY,
        segment_bytes: 0,
    }
}

/// Feeds a segment to the host and returns its replies.
fn exchange(stack: &mut Stack, ms: u64, segment: &Segment) -> Vec<Segment> {
    stack.handle_packet(at_ms(ms), InterfaceId(0), Packet::emit(segment, 0));
    poll_segments(stack, ms)
}

fn poll_segments(stack: &mut Stack, ms: u64) -> Vec<Segment> {
    let mut segments = Vec::new();
    while let Some((_, packet)) = stack.poll_transmit(at_ms(ms)) {
        segments.extend(packet.split().map(|packet| packet.parse().unwrap()));
    }
    segments
}

fn events(stack: &mut Stack) -> Vec<StackEvent> {
    std::iter::from_fn(|| stack.poll_event()).collect()
}

#[test]
fn connections_need_the_address_of_one_host() {
    let mut stack = host();
    for text in ["224.0.0.1:80", "255.255.255.255:80", "0.0.0.0:80", "[ff02::1]:80"] {
        let remote: SocketAddr = text.parse().unwrap();
        let refused = stack.connect(at_ms(0), None, remote, plain_tcp());
        assert_eq!(refused, Err(ConnectError::NotUnicast(remote)));
    }
    stack.listen(PORT, plain_tcp()).unwrap();
    for address in ["224.0.0.1:9", "255.255.255.255:9", "0.0.0.0:9"] {
        let syn = Segment { source: address.parse().unwrap(), ..segment(Flags::SYN, 5, 0) };
        assert!(exchange(&mut stack, 1, &syn).is_empty(), "a SYN from {address}");
    }
    for address in ["224.0.0.1:80", "10.0.0.255:80", "255.255.255.255:80"] {
        let syn = Segment { destination: address.parse().unwrap(), ..segment(Flags::SYN, 5, 0) };
        assert!(exchange(&mut stack, 1, &syn).is_empty(), "a SYN to {address}");
    }
    assert_eq!(exchange(&mut stack, 1, &segment(Flags::SYN, 5, 0)).len(), 1);
}

#[test]
fn the_application_or_the_host_chooses_an_address_that_stays() {
    for (requested, expected) in [(None, local_ip(1)), (Some(local_ip(11)), local_ip(11))] {
        let mut stack = host();
        stack.connect(at_ms(0), requested, peer(), plain_tcp()).unwrap();
        let mut sources: Vec<IpAddr> =
            poll_segments(&mut stack, 0).iter().map(|s| s.source.ip()).collect();
        stack.handle_timeout(at_ms(1100));
        sources.extend(poll_segments(&mut stack, 1100).iter().map(|s| s.source.ip()));
        assert_eq!(sources, [expected, expected]);
    }
    let unknown = Some(local_ip(77));
    let refused = host().connect(at_ms(0), unknown, peer(), plain_tcp());
    assert_eq!(refused, Err(ConnectError::NoAddress(peer())));
}

/// Accepts a connection; returns the next sequence numbers of our side and of the peer.
fn accept_connection(stack: &mut Stack) -> (ConnectionId, u32, u32) {
    let mut syn = segment(Flags::SYN, 999, 0);
    syn.options.timestamps = Some(Timestamps { value: 50, echo: 0 });
    let syn_ack = exchange(stack, 1000, &syn).remove(0);
    assert!(syn_ack.flags.contains(Flags::SYN) && syn_ack.flags.contains(Flags::ACK));
    let (own_seq, peer_seq) = (syn_ack.seq.wrapping_add(1), 1000);
    exchange(stack, 1010, &segment(Flags::ACK, peer_seq, own_seq));
    let accepted = events(stack).into_iter().find_map(|event| {
        if let StackEvent::Accepted { connection, .. } = event { Some(connection) } else { None }
    });
    (accepted.unwrap(), own_seq, peer_seq)
}

#[test]
fn listening_and_connections_on_a_port_do_not_disturb_each_other() {
    let mut stack = host();
    stack.listen(PORT, plain_tcp()).unwrap();
    let (id, own_seq, peer_seq) = accept_connection(&mut stack);
    // Another connection is being set up on the port while it is listened on again.
    let other_syn = Segment { source: "10.0.0.3:1".parse().unwrap(), ..segment(Flags::SYN, 7, 0) };
    assert_eq!(exchange(&mut stack, 1020, &other_syn).len(), 1);
    assert!(stack.listen(PORT, plain_tcp()).is_ok());
    let mut data = segment(Flags::ACK, peer_seq, own_seq);
    data.payload = Bytes::from_static(b"still here").into();
    exchange(&mut stack, 1030, &data);
    assert_eq!(stack.read(at_ms(1030), id), Some(Bytes::from_static(b"still here")));
}

#[test]
fn the_last_packet_of_a_write_is_pushed_immediately() {
    let mut stack = host();
    stack.listen(PORT, plain_tcp()).unwrap();
    let (id, _, _) = accept_connection(&mut stack);
    let mut data = Bytes::from(vec![7; 5000]);
    assert_eq!(stack.write(at_ms(1100), id, &mut data), 5000);
    let segments = poll_segments(&mut stack, 1100);
    let bytes: usize = segments.iter().map(|segment| segment.payload.len()).sum();
    let push_flags: Vec<bool> =
        segments.iter().map(|segment| segment.flags.contains(Flags::PSH)).collect();
    assert_eq!(bytes, 5000);
    assert_eq!(push_flags.iter().filter(|push_flags| **push_flags).count(), 1, "{push_flags:?}");
    assert_eq!(push_flags.last(), Some(&true));
    assert!(segments.iter().rev().skip(1).all(|s| s.payload.len() >= 500), "full packets first");
}

#[test]
fn a_blocked_writer_retries_before_a_third_is_free() {
    for (retry, expected) in [(None, 0), (Some(Duration::from_millis(20)), 1)] {
        let mut stack = host();
        let linux = connection::ConnectionConfig {
            multipath: false,
            ..connection::ConnectionConfig::linux_6_18()
        };
        stack.listen(PORT, connection::ConnectionConfig { write_retry: retry, ..linux }).unwrap();
        let (id, own_seq, peer_seq) = accept_connection(&mut stack);
        let writable_events = |stack: &mut Stack| {
            events(stack).iter().filter(|event| matches!(event, StackEvent::Writable(_))).count()
        };
        // A full packet is sent before the next one is written.
        let mut data = Bytes::from(vec![7; 1_000_000]);
        let mut packets = VecDeque::new();
        let payload = |packet: &Segment| packet.payload.len() as u32;
        loop {
            assert!(stack.write(at_ms(1100), id, &mut data) > 0);
            packets.extend(poll_segments(&mut stack, 1100).iter().map(payload));
            stack.handle_timeout(at_ms(1100));
            if writable_events(&mut stack) == 0 {
                break;
            }
        }
        assert_eq!((stack.writable_bytes(id), packets.len()), (0, 10));
        let mut ack = own_seq;
        while stack.writable_bytes(id) == 0 {
            ack += packets.pop_front().unwrap();
            let more = exchange(&mut stack, 1105, &segment(Flags::ACK, peer_seq, ack));
            packets.extend(more.iter().map(payload));
        }
        assert_eq!(writable_events(&mut stack), 0, "a packet is less than a third");
        stack.handle_timeout(at_ms(1119));
        assert_eq!(writable_events(&mut stack), 0, "retry: {retry:?}");
        stack.handle_timeout(at_ms(1121));
        assert_eq!(writable_events(&mut stack), expected, "retry: {retry:?}");
    }
}

#[test]
fn small_writes_are_coalesced_only_on_request() {
    for (nagle, expected) in [(true, 0), (false, 1)] {
        let mut stack = host();
        stack.listen(PORT, connection::ConnectionConfig { nagle, ..plain_tcp() }).unwrap();
        let (id, own_seq, peer_seq) = accept_connection(&mut stack);
        stack.write(at_ms(1100), id, &mut Bytes::from_static(b"first"));
        assert_eq!(poll_segments(&mut stack, 1100).len(), 1);
        stack.write(at_ms(1101), id, &mut Bytes::from_static(b"second"));
        assert_eq!(poll_segments(&mut stack, 1101).len(), expected, "Nagle: {nagle}");
        let reply = exchange(&mut stack, 1150, &segment(Flags::ACK, peer_seq, own_seq + 5));
        assert_eq!(reply.len(), 1 - expected, "Nagle: {nagle}");
    }
}

#[test]
fn the_application_can_distinguish_reset_from_close() {
    for reset in [true, false] {
        let mut stack = host();
        stack.listen(PORT, plain_tcp()).unwrap();
        let (id, own_seq, peer_seq) = accept_connection(&mut stack);
        if reset {
            exchange(&mut stack, 1100, &segment(Flags::RST, peer_seq, 0));
        } else {
            exchange(&mut stack, 1100, &segment(Flags::FIN.with(Flags::ACK), peer_seq, own_seq));
            stack.shutdown(at_ms(1101), id);
            poll_segments(&mut stack, 1101);
            exchange(&mut stack, 1150, &segment(Flags::ACK, peer_seq + 1, own_seq + 1));
        }
        let error = events(&mut stack).into_iter().find_map(|event| {
            if let StackEvent::Closed { error, .. } = event { Some(error) } else { None }
        });
        assert_eq!(error.unwrap().is_some(), reset);
    }
}

#[test]
fn a_reset_for_a_segment_with_timestamps_has_them() {
    let mut stack = host();
    let mut stray = segment(Flags::ACK, 5, 6);
    stray.options.timestamps = Some(Timestamps { value: 41, echo: 42 });
    let [reset] = &exchange(&mut stack, 0, &stray)[..] else { panic!("one reset") };
    assert!(reset.flags.contains(Flags::RST));
    assert_eq!(reset.options.timestamps, Some(Timestamps { value: 0, echo: 41 }));
    stray.options.timestamps = None;
    let [reset] = &exchange(&mut stack, 0, &stray)[..] else { panic!("one reset") };
    assert_eq!(reset.options.timestamps, None);
}

/// Returns a host whose connection is in TIME-WAIT because we closed first, and the next sequence
/// numbers of our side and of the peer.
fn time_wait_stack() -> (Stack, u32, u32) {
    let mut stack = host();
    stack.listen(PORT, plain_tcp()).unwrap();
    let (id, own_seq, peer_seq) = accept_connection(&mut stack);
    stack.shutdown(at_ms(1100), id);
    poll_segments(&mut stack, 1100);
    let mut fin = segment(Flags::FIN.with(Flags::ACK), peer_seq, own_seq + 1);
    fin.options.timestamps = Some(Timestamps { value: 60, echo: 0 });
    exchange(&mut stack, 1150, &fin);
    (stack, own_seq + 1, peer_seq + 1)
}

#[test]
fn a_new_syn_ends_time_wait_and_an_old_one_does_not() {
    for (seq_ahead, stamp, accepted) in [
        (1, None, true),
        (-500, None, false),
        (-500, Some(61), true),
        (500, Some(59), false),
        (500, Some(60), true),
        (-500, Some(60), false),
    ] {
        let (mut stack, own_seq, peer_seq) = time_wait_stack();
        let mut syn = segment(Flags::SYN, peer_seq.wrapping_add_signed(seq_ahead), 0);
        syn.options.timestamps = stamp.map(|value| Timestamps { value, echo: 0 });
        let reply = exchange(&mut stack, 1200, &syn).remove(0);
        let reopened = reply.flags.contains(Flags::SYN) && reply.flags.contains(Flags::ACK);
        assert_eq!(reopened, accepted, "{seq_ahead} {stamp:?}");
        if accepted {
            assert!(reply.seq.wrapping_sub(own_seq).cast_signed() > 0, "numbers go on");
            let ack = segment(Flags::ACK, syn.seq.wrapping_add(1), reply.seq.wrapping_add(1));
            exchange(&mut stack, 1250, &ack);
            let is_accepted = |event: &StackEvent| matches!(event, StackEvent::Accepted { .. });
            assert!(events(&mut stack).iter().any(is_accepted));
        } else {
            assert_eq!((reply.seq, reply.ack), (own_seq, peer_seq), "as the old connection");
        }
    }
}

#[test]
fn initial_sequence_numbers_of_other_hosts_are_unpredictable() {
    let connect_twice = |seed: u64| {
        let mut stack = Stack::new(StackConfig { seed, ..StackConfig::default() });
        stack.add_interface(InterfaceId(0), 1500);
        stack.set_address(at_ms(0), local_address(local_ip(1), 1));
        let mut isns = Vec::new();
        for _ in 0..2 {
            stack.connect(at_ms(0), None, peer(), plain_tcp()).unwrap();
            isns.push(poll_segments(&mut stack, 0).remove(0).seq);
        }
        isns
    };
    let (a, b) = (connect_twice(1), connect_twice(2));
    assert!(a[0] != a[1] && b[0] != b[1], "each pair of ports has its own");
    assert!(a[0].wrapping_sub(b[0]) != a[1].wrapping_sub(b[1]), "a secret is hashed, not added");
}

#[test]
fn a_key_whose_token_is_taken_is_not_used() {
    let mut stack = Stack::new(StackConfig::default());
    let mut same_seed = SecretGenerator::from_seed(StackConfig::default().seed);
    let [taken_key, free_key] = [same_seed.next(), same_seed.next()];
    stack.tokens.insert(towpath_wire::keys::token(taken_key), ConnectionId(0));
    assert_eq!(stack.fresh_key(), free_key);
}

/// Returns a host with SYN flood protection and the address 10.0.0.1.
fn protected_host(config: StackConfig, secret: u8) -> Stack {
    let mut stack =
        Stack::with_syn_flood_protection(config, &SynFloodProtection::new([secret; 16]));
    stack.add_interface(InterfaceId(0), 1500);
    stack.set_address(at_ms(0), local_address(local_ip(1), 1));
    stack
}

#[test]
fn public_stacks_choose_unpredictable_ports_and_sequence_numbers() {
    let connect_100_times = |secret: u8| {
        let mut stack = protected_host(StackConfig::default(), secret);
        let mut ports_and_isns = Vec::new();
        for _ in 0..100 {
            stack.connect(at_ms(0), None, peer(), plain_tcp()).unwrap();
            ports_and_isns.extend(
                poll_segments(&mut stack, 0).iter().map(|syn| (syn.source.port(), syn.seq)),
            );
        }
        ports_and_isns
    };
    let (first, second) = (connect_100_times(1), connect_100_times(2));
    assert_ne!(first, second);
    for ports_and_isns in [first, second] {
        let is_next_port = |pair: &&[(u16, u32)]| pair[1].0 == pair[0].0.wrapping_add(1);
        assert!(ports_and_isns.windows(2).filter(is_next_port).count() <= 2, "{ports_and_isns:?}");
        let mut ports: Vec<u16> = ports_and_isns.iter().map(|(port, _)| *port).collect();
        ports.sort_unstable();
        assert!(ports.windows(2).all(|pair| pair[0] != pair[1]), "each its own");
        assert!(ports[0] >= 49_152 && ports[99] - ports[0] > 12_000, "of the whole range");
        let isn_steps: Vec<u32> =
            ports_and_isns.windows(2).map(|pair| pair[1].1.wrapping_sub(pair[0].1)).collect();
        assert!(isn_steps.windows(2).all(|pair| pair[0] != pair[1]), "{isn_steps:?}");
    }
}

/// Sends a SYN with MP_CAPABLE, and returns our key from the reply.
fn offered_key(stack: &mut Stack, seq: u32) -> Option<u64> {
    let mut syn = segment(Flags::SYN, seq, 0);
    syn.options.mptcp.push(MptcpOption::Capable(MpCapable {
        version: 1,
        checksum: false,
        extensibility: false,
        no_join_to_source: false,
        hmac_sha256: true,
        sender_key: None,
        receiver_key: None,
        data: None,
    }));
    let syn_ack = exchange(stack, 5, &syn).remove(0);
    connection::capable(&syn_ack).and_then(|option| option.sender_key)
}

#[test]
fn a_cookie_whose_token_is_taken_offers_plain_tcp() {
    let mut stack = protected_host(StackConfig { syn_backlog: 0, ..StackConfig::default() }, 1);
    stack.listen(PORT, connection::ConnectionConfig::linux()).unwrap();
    let key = offered_key(&mut stack, 7).unwrap();
    assert_eq!(offered_key(&mut stack, 7), Some(key), "the same to the same SYN");
    assert_ne!(offered_key(&mut stack, 8), Some(key));
    stack.tokens.insert(towpath_wire::keys::token(key), ConnectionId(0));
    assert_eq!(offered_key(&mut stack, 7), None);
}

#[test]
fn under_attack_a_new_syn_still_ends_time_wait_with_higher_numbers() {
    let mut stack = protected_host(StackConfig { syn_backlog: 1, ..StackConfig::default() }, 1);
    stack.listen(PORT, plain_tcp()).unwrap();
    let (id, own_seq, peer_seq) = accept_connection(&mut stack);
    stack.shutdown(at_ms(1100), id);
    poll_segments(&mut stack, 1100);
    let mut fin = segment(Flags::FIN.with(Flags::ACK), peer_seq, own_seq + 1);
    fin.options.timestamps = Some(Timestamps { value: 60, echo: 0 });
    exchange(&mut stack, 1150, &fin);
    let mut new_syn = segment(Flags::SYN, peer_seq.wrapping_add(9_000), 0);
    new_syn.options.timestamps = Some(Timestamps { value: 99, echo: 0 });
    let reply = exchange(&mut stack, 1200, &new_syn).remove(0);
    assert!(reply.seq.wrapping_sub(own_seq).cast_signed() > 0, "numbers go on");
    assert_eq!(stack.counters().cookies_sent, 0);
    assert_eq!(stack.half_open_connections(), 1);
}
