//! SYN cookies: contents, lifetime, and the addresses they are valid for.

use std::net::SocketAddr;

use bytes::Bytes;
use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack;
use towpath_mptcp::stack::{InterfaceId, Stack, StackEvent};
use towpath_net::Instant;
use towpath_wire::ConnectionId;
use towpath_wire::keys;
use towpath_wire::{
    DataAck, Dss, DssMapping, Flags, MpCapable, MptcpOption, Options, Packet, Segment, Timestamps,
};

use crate::flood::server_without_clients;
use crate::network::*;

const PEER_KEY: u64 = 0x0102_0304_0506_0708;

/// A server that may reply with cookies, and one scripted peer.
struct CookieServer {
    server: Stack,
    now: Instant,
}

impl CookieServer {
    /// Creates the server; with a `backlog` of 0, every SYN gets a cookie.
    fn new(backlog: usize, config: ConnectionConfig) -> Self {
        let stack_config =
            stack::StackConfig { syn_backlog: backlog, ..stack::StackConfig::default() };
        let mut server = server_without_clients(stack_config, server_address());
        server.listen(PORT, config).unwrap();
        Self { server, now: at_ms(1_000) }
    }

    fn exchange(&mut self, segment: &Segment) -> Vec<Segment> {
        self.server.handle_packet(self.now, InterfaceId(1), Packet::emit(segment, 0));
        self.poll_segments()
    }

    fn poll_segments(&mut self) -> Vec<Segment> {
        let mut segments = Vec::new();
        while let Some((_, packet)) = self.server.poll_transmit(self.now) {
            segments.extend(packet.split().map(|packet| packet.parse().unwrap()));
        }
        segments
    }

    /// Sends a segment and returns the single reply.
    fn single_reply(&mut self, segment: &Segment) -> Segment {
        let mut replies = self.exchange(segment);
        assert_eq!(replies.len(), 1, "{replies:?}");
        replies.remove(0)
    }

    fn accepted_connection(&mut self) -> Option<ConnectionId> {
        std::iter::from_fn(|| self.server.poll_event()).find_map(|event| {
            if let StackEvent::Accepted { connection, .. } = event {
                Some(connection)
            } else {
                None
            }
        })
    }

    fn wait_until(&mut self, now: Instant) {
        self.now = now;
        self.server.handle_timeout(now);
    }
}

fn plain_tcp() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

fn peer() -> SocketAddr {
    "198.51.100.7:4000".parse().unwrap()
}

/// Returns the third packet of a peer that sent `syn` and received `answer`.
fn third_packet(syn: &Segment, syn_ack: &Segment) -> Segment {
    let mut packet = segment(syn.source, ACK, syn.seq.wrapping_add(1), syn_ack.seq.wrapping_add(1));
    packet.window = 500;
    packet.options.timestamps = syn_ack
        .options
        .timestamps
        .map(|received| Timestamps { value: syn.seq.wrapping_add(30), echo: received.value });
    if let Some(MpCapable { sender_key: Some(key), .. }) = capable_of(syn_ack) {
        packet.options.mptcp.push(capable_with_both_keys(key, None));
    }
    packet
}

fn capable_with_both_keys(key: u64, data: Option<u16>) -> MptcpOption {
    let MptcpOption::Capable(capable) = capable_syn() else { unreachable!() };
    MptcpOption::Capable(MpCapable {
        sender_key: Some(PEER_KEY),
        receiver_key: Some(key),
        data: data.map(|len| (len, None)),
        ..capable
    })
}

#[test]
fn a_client_answered_with_a_cookie_gets_full_service() {
    for multipath in [false, true] {
        let mut with_state =
            CookieServer::new(128, ConnectionConfig { multipath, ..ConnectionConfig::linux() });
        let mut with_cookie =
            CookieServer::new(0, ConnectionConfig { multipath, ..ConnectionConfig::linux() });
        let syn = syn(peer(), 77, multipath);
        let [stateful_syn_ack, cookie_syn_ack] =
            [&mut with_state, &mut with_cookie].map(|server| server.single_reply(&syn));
        assert_eq!(
            (with_cookie.server.half_open_connections(), with_state.server.half_open_connections()),
            (0, 1)
        );
        let clock = |segment: &Segment| segment.options.timestamps.unwrap().value;
        assert_ne!(stateful_syn_ack.seq, cookie_syn_ack.seq);
        // Equal, except for random values and the timestamp clock, which depends on them.
        let mut expected = Segment { seq: stateful_syn_ack.seq, ..cookie_syn_ack.clone() };
        expected.options.timestamps = stateful_syn_ack.options.timestamps;
        expected.options.mptcp.clone_from(&stateful_syn_ack.options.mptcp);
        assert_eq!(expected, stateful_syn_ack);
        assert_eq!(capable_of(&cookie_syn_ack).is_some(), multipath);
        let replies = with_cookie.exchange(&third_packet(&syn, &cookie_syn_ack));
        assert_eq!(replies, [], "an acknowledgement is not answered");
        let id = with_cookie.accepted_connection().expect("the cookie opens the connection");
        let status = with_cookie.server.status(id).unwrap();
        assert_eq!(
            (status.established, status.multipath, status.fallback),
            (true, multipath, None)
        );
        let mss = u32::from(syn.options.mss.unwrap()) - 12 - if multipath { 28 } else { 0 };
        assert_eq!(status.subflows[0].tcp.mss_bytes, mss);
        // The window is scaled, and the timestamp clock continues.
        let mut data = Bytes::from(vec![7; 60_000]);
        with_cookie.server.write(with_cookie.now, id, &mut data);
        let segments = with_cookie.poll_segments();
        let bytes: usize = segments.iter().map(|segment| segment.payload.len()).sum();
        assert_eq!(bytes, 10 * mss as usize, "more than 500 bytes: {segments:?}");
        let clock_advance = clock(&segments[0]).wrapping_sub(clock(&cookie_syn_ack));
        assert!(clock_advance < 64, "the clock does not go back: {clock_advance}");
    }
}

#[test]
fn without_timestamps_a_cookie_carries_the_size_alone() {
    let mut server = CookieServer::new(0, plain_tcp());
    let mut syn = syn(peer(), 77, false);
    syn.options.timestamps = None;
    let syn_ack = server.single_reply(&syn);
    let Options { mss, window_scale, sack_permitted, timestamps, .. } = &syn_ack.options;
    assert_eq!((*mss, *window_scale, *sack_permitted), (Some(1_460), None, false));
    assert_eq!(*timestamps, None);
    server.exchange(&third_packet(&syn, &syn_ack));
    let id = server.accepted_connection().unwrap();
    assert_eq!(server.server.status(id).unwrap().subflows[0].tcp.mss_bytes, 1_460);
}

#[test]
fn packets_never_exceed_the_mss_of_the_peer() {
    for (peer_mss, expected_mss) in
        [(Some(1_459), Some(1_440)), (Some(500), Some(216)), (None, Some(536)), (Some(215), None)]
    {
        let mut server = CookieServer::new(0, plain_tcp());
        let mut syn = syn(peer(), 77, false);
        (syn.options.mss, syn.options.timestamps) = (peer_mss, None);
        let replies = server.exchange(&syn);
        assert_eq!(
            replies.len(),
            usize::from(expected_mss.is_some()),
            "a size that no cookie can say"
        );
        for syn_ack in replies {
            server.exchange(&third_packet(&syn, &syn_ack));
            let id = server.accepted_connection().unwrap();
            let status = server.server.status(id).unwrap();
            assert_eq!(Some(status.subflows[0].tcp.mss_bytes), expected_mss);
        }
    }
}

#[test]
fn a_cookie_is_valid_for_one_minute_and_not_for_three() {
    for (created_secs, used_secs, is_valid) in
        [(1, 1, true), (1, 64, true), (63, 127, true), (1, 128, false), (60, 188, false)]
    {
        let mut server = CookieServer::new(0, plain_tcp());
        server.wait_until(at_ms(1_000 * created_secs));
        let syn = syn(peer(), 77, false);
        let syn_ack = server.single_reply(&syn);
        server.wait_until(at_ms(1_000 * used_secs));
        // Other peers keep the listener under attack.
        let other_syn = crate::network::syn("198.51.100.8:1".parse().unwrap(), 1, false);
        server.single_reply(&other_syn);
        let replies = server.exchange(&third_packet(&syn, &syn_ack));
        assert_eq!(
            server.accepted_connection().is_some(),
            is_valid,
            "made at {created_secs} s, used at {used_secs} s"
        );
        assert_eq!(
            replies.iter().filter(|reply| reply.flags.contains(RST)).count(),
            usize::from(!is_valid)
        );
    }
}

#[test]
fn a_cookie_is_invalid_for_other_clients() {
    let mut server = CookieServer::new(0, plain_tcp());
    let syn = syn(peer(), 77, false);
    let syn_ack = server.single_reply(&syn);
    let third_packet = third_packet(&syn, &syn_ack);
    let address = |text: &str| text.parse::<SocketAddr>().unwrap();
    for source in [address("198.51.100.7:4001"), address("198.51.100.8:4000")] {
        server.exchange(&Segment { source, ..third_packet.clone() });
    }
    server.exchange(&Segment { seq: third_packet.seq + 1, ..third_packet.clone() });
    server.exchange(&Segment { ack: third_packet.ack + 1, ..third_packet.clone() });
    assert_eq!(server.accepted_connection(), None);
    assert_eq!(server.server.counters().cookies_refused, 4);
    server.exchange(&third_packet);
    assert!(server.accepted_connection().is_some());
}

#[test]
fn guessed_cookies_open_nothing() {
    let mut network = TestNetwork::new(plain_tcp());
    for _ in 0..300 {
        let source = network.forged_source();
        let seq = network.random.next_u32();
        network.attack(at_ms(1), syn(source, seq, false));
    }
    for number in 0..20_000 {
        let mut forged_ack = segment(
            network.forged_source(),
            ACK,
            network.random.next_u32(),
            network.random.next_u32(),
        );
        if number % 2 == 0 {
            forged_ack.options.timestamps =
                Some(Timestamps { value: 5, echo: network.random.next_u32() });
        }
        network.attack(Instant::from_nanos(100_000_000 + 50_000 * number), forged_ack);
    }
    network.serve_clients(&plain_tcp());
    let counters = network.server.counters();
    assert_eq!((network.accepted, counters.cookies_refused), (CLIENTS, 20_000));
}

#[test]
fn without_a_flood_guessed_cookies_open_no_connection() {
    let mut server = CookieServer::new(128, plain_tcp());
    let reply = server.single_reply(&segment(peer(), ACK, 5, 6));
    assert!(reply.flags.contains(RST));
    assert_eq!(server.server.counters().cookies_refused, 0, "nothing was looked at");
}

#[test]
fn the_first_data_brings_the_cookie_if_the_third_packet_is_lost() {
    for multipath in [false, true] {
        let mut server =
            CookieServer::new(0, ConnectionConfig { multipath, ..ConnectionConfig::linux() });
        let syn = syn(peer(), 77, multipath);
        let syn_ack = server.single_reply(&syn);
        let mut first_data = third_packet(&syn, &syn_ack);
        first_data.payload = Bytes::from_static(b"first").into();
        if let Some(MpCapable { sender_key: Some(key), .. }) = capable_of(&syn_ack) {
            first_data.options.mptcp = vec![capable_with_both_keys(key, Some(5))];
        }
        let mut second_data = third_packet(&syn, &syn_ack);
        second_data.seq = first_data.seq + 5;
        second_data.payload = Bytes::from_static(b"second").into();
        second_data.options.mptcp.clear();
        if multipath {
            let dsn = DataAck::Long(keys::initial_dsn(PEER_KEY).wrapping_add(6));
            let mapping = Some(DssMapping { dsn, ssn: 6, len: 6, checksum: None });
            second_data.options.dss = Some(Dss { data_fin: false, data_ack: None, mapping });
        }
        assert_eq!(server.exchange(&second_data), [], "what overtook it is not reset");
        assert_eq!(server.accepted_connection(), None);
        server.exchange(&first_data);
        let id = server.accepted_connection().unwrap();
        assert_eq!(server.server.read(server.now, id), Some(Bytes::from_static(b"first")));
        server.exchange(&second_data);
        assert_eq!(server.server.read(server.now, id), Some(Bytes::from_static(b"second")));
        assert_eq!(server.server.status(id).unwrap().multipath, multipath);
    }
}

#[test]
fn a_third_packet_without_the_right_keys_means_plain_tcp() {
    for key_error in [None, Some(1)] {
        let mut server = CookieServer::new(0, ConnectionConfig::linux());
        let syn = syn(peer(), 77, true);
        let syn_ack = server.single_reply(&syn);
        let mut third_packet = third_packet(&syn, &syn_ack);
        let key = capable_of(&syn_ack).unwrap().sender_key.unwrap();
        third_packet.options.mptcp = key_error
            .map(|key_error| capable_with_both_keys(key ^ key_error, None))
            .into_iter()
            .collect();
        server.exchange(&third_packet);
        let id = server.accepted_connection().unwrap();
        assert!(!server.server.status(id).unwrap().multipath);
    }
}

#[test]
fn keys_arrive_later_if_a_dss_arrives_first() {
    let mut server = CookieServer::new(0, ConnectionConfig::linux());
    let syn = syn(peer(), 77, true);
    let syn_ack = server.single_reply(&syn);
    let third_packet = third_packet(&syn, &syn_ack);
    let mut dss_segment = third_packet.clone();
    dss_segment.options.mptcp.clear();
    dss_segment.options.dss = Some(Dss { data_ack: Some(DataAck::Short(1)), ..Dss::default() });
    assert_eq!(server.exchange(&dss_segment), []);
    assert_eq!(server.accepted_connection(), None);
    server.exchange(&third_packet);
    let id = server.accepted_connection().unwrap();
    assert!(server.server.status(id).unwrap().multipath);
}

#[test]
fn a_reset_or_a_syn_ack_is_not_a_cookie() {
    let mut server = CookieServer::new(0, plain_tcp());
    let syn = syn(peer(), 77, false);
    let syn_ack = server.single_reply(&syn);
    let third_packet = third_packet(&syn, &syn_ack);
    for flags in [RST.with(ACK), SYN.with(ACK), Flags::FIN] {
        server.exchange(&Segment { flags, ..third_packet.clone() });
        assert_eq!(server.accepted_connection(), None, "{flags:?}");
    }
}
