//! SYN cookies: contents, lifetime, and the addresses they are valid for.

use std::net::SocketAddr;

use bytes::Bytes;
use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::keys;
use towpath_mptcp::stack::{self, ConnectionId, InterfaceId, Stack, StackEvent};
use towpath_mptcp::wire::{
    DataAck, Dss, DssMapping, Flags, MpCapable, MptcpOption, Options, Packet, Segment, Timestamps,
};
use towpath_net::Instant;

use crate::flood::server_without_clients;
use crate::network::*;

const KEY: u64 = 0x0102_0304_0506_0708;

/// A server and one scripted peer.
struct Table {
    server: Stack,
    now: Instant,
}

impl Table {
    /// Creates both; with a `backlog` of 0, every SYN gets a cookie.
    fn new(backlog: usize, config: ConnectionConfig) -> Self {
        let config_of_stack =
            stack::StackConfig { syn_backlog: backlog, ..stack::StackConfig::default() };
        let mut server = server_without_clients(config_of_stack, server_address());
        server.listen(PORT, config).unwrap();
        Self { server, now: at(1_000) }
    }

    fn exchange(&mut self, segment: &Segment) -> Vec<Segment> {
        self.server.handle_packet(self.now, InterfaceId(1), Packet::emit(segment, 0));
        self.sent()
    }

    fn sent(&mut self) -> Vec<Segment> {
        let mut sent = Vec::new();
        while let Some((_, packet)) = self.server.poll_transmit(self.now) {
            sent.extend(packet.split().map(|packet| packet.parse().unwrap()));
        }
        sent
    }

    /// Sends a segment and returns the single reply.
    fn answer(&mut self, segment: &Segment) -> Segment {
        let mut sent = self.exchange(segment);
        assert_eq!(sent.len(), 1, "{sent:?}");
        sent.remove(0)
    }

    fn accepted(&mut self) -> Option<ConnectionId> {
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

fn plain() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..ConnectionConfig::linux() }
}

fn peer() -> SocketAddr {
    "198.51.100.7:4000".parse().unwrap()
}

/// Returns the third packet of a peer that sent `syn` and received `answer`.
fn third(syn: &Segment, answer: &Segment) -> Segment {
    let mut third = segment(syn.source, ACK, syn.seq.wrapping_add(1), answer.seq.wrapping_add(1));
    third.window = 500;
    third.options.timestamps = answer
        .options
        .timestamps
        .map(|theirs| Timestamps { value: syn.seq.wrapping_add(30), echo: theirs.value });
    if let Some(MpCapable { sender_key: Some(key), .. }) = capable(answer) {
        third.options.mptcp.push(both_keys(key, None));
    }
    third
}

fn both_keys(key: u64, data: Option<u16>) -> MptcpOption {
    let MptcpOption::Capable(offer) = offer() else { unreachable!() };
    MptcpOption::Capable(MpCapable {
        sender_key: Some(KEY),
        receiver_key: Some(key),
        data: data.map(|len| (len, None)),
        ..offer
    })
}

#[test]
fn a_client_answered_with_a_cookie_gets_full_service() {
    for multipath in [false, true] {
        let mut without =
            Table::new(128, ConnectionConfig { multipath, ..ConnectionConfig::linux() });
        let mut with = Table::new(0, ConnectionConfig { multipath, ..ConnectionConfig::linux() });
        let syn = syn(peer(), 77, multipath);
        let [usual, cookie] = [&mut without, &mut with].map(|table| table.answer(&syn));
        assert_eq!(
            (with.server.half_open_connections(), without.server.half_open_connections()),
            (0, 1)
        );
        let clock = |answer: &Segment| answer.options.timestamps.unwrap().value;
        assert_ne!(usual.seq, cookie.seq);
        // Equal, except for random values and the timestamp clock, which depends on them.
        let mut same = Segment { seq: usual.seq, ..cookie.clone() };
        same.options.timestamps = usual.options.timestamps;
        same.options.mptcp.clone_from(&usual.options.mptcp);
        assert_eq!(same, usual);
        assert_eq!(capable(&cookie).is_some(), multipath);
        let later = with.exchange(&third(&syn, &cookie));
        assert_eq!(later, [], "an acknowledgement is not answered");
        let id = with.accepted().expect("the cookie opens the connection");
        let status = with.server.status(id).unwrap();
        assert_eq!(
            (status.established, status.multipath, status.fallback),
            (true, multipath, None)
        );
        let mss = u32::from(syn.options.mss.unwrap()) - 12 - if multipath { 28 } else { 0 };
        assert_eq!(status.subflows[0].tcp.mss_bytes, mss);
        // The window is scaled, and the timestamp clock continues.
        let mut data = Bytes::from(vec![7; 60_000]);
        with.server.write(with.now, id, &mut data);
        let sent = with.sent();
        let bytes: usize = sent.iter().map(|segment| segment.payload.len()).sum();
        assert_eq!(bytes, 10 * mss as usize, "more than 500 bytes: {sent:?}");
        let ahead = clock(&sent[0]).wrapping_sub(clock(&cookie));
        assert!(ahead < 64, "the clock does not go back: {ahead}");
    }
}

#[test]
fn without_timestamps_a_cookie_carries_the_size_alone() {
    let mut table = Table::new(0, plain());
    let mut syn = syn(peer(), 77, false);
    syn.options.timestamps = None;
    let answer = table.answer(&syn);
    let Options { mss, window_scale, sack_permitted, timestamps, .. } = &answer.options;
    assert_eq!((*mss, *window_scale, *sack_permitted), (Some(1_460), None, false));
    assert_eq!(*timestamps, None);
    table.exchange(&third(&syn, &answer));
    let id = table.accepted().unwrap();
    assert_eq!(table.server.status(id).unwrap().subflows[0].tcp.mss_bytes, 1_460);
}

#[test]
fn packets_never_exceed_the_mss_of_the_peer() {
    for (peer_mss, gets) in
        [(Some(1_459), Some(1_440)), (Some(500), Some(216)), (None, Some(536)), (Some(215), None)]
    {
        let mut table = Table::new(0, plain());
        let mut syn = syn(peer(), 77, false);
        (syn.options.mss, syn.options.timestamps) = (peer_mss, None);
        let answers = table.exchange(&syn);
        assert_eq!(answers.len(), usize::from(gets.is_some()), "a size that no cookie can say");
        for answer in answers {
            table.exchange(&third(&syn, &answer));
            let id = table.accepted().unwrap();
            let status = table.server.status(id).unwrap();
            assert_eq!(Some(status.subflows[0].tcp.mss_bytes), gets);
        }
    }
}

#[test]
fn a_cookie_is_valid_for_one_minute_and_not_for_three() {
    for (made, used, good) in
        [(1, 1, true), (1, 64, true), (63, 127, true), (1, 128, false), (60, 188, false)]
    {
        let mut table = Table::new(0, plain());
        table.wait_until(at(1_000 * made));
        let syn = syn(peer(), 77, false);
        let answer = table.answer(&syn);
        table.wait_until(at(1_000 * used));
        // Other peers keep the listener under attack.
        let other = crate::network::syn("198.51.100.8:1".parse().unwrap(), 1, false);
        table.answer(&other);
        let answers = table.exchange(&third(&syn, &answer));
        assert_eq!(table.accepted().is_some(), good, "made at {made} s, used at {used} s");
        assert_eq!(
            answers.iter().filter(|answer| answer.flags.contains(RST)).count(),
            usize::from(!good)
        );
    }
}

#[test]
fn a_cookie_is_invalid_for_other_clients() {
    let mut table = Table::new(0, plain());
    let syn = syn(peer(), 77, false);
    let answer = table.answer(&syn);
    let stolen = third(&syn, &answer);
    let other = |text: &str| text.parse::<SocketAddr>().unwrap();
    for source in [other("198.51.100.7:4001"), other("198.51.100.8:4000")] {
        table.exchange(&Segment { source, ..stolen.clone() });
    }
    table.exchange(&Segment { seq: stolen.seq + 1, ..stolen.clone() });
    table.exchange(&Segment { ack: stolen.ack + 1, ..stolen.clone() });
    assert_eq!(table.accepted(), None);
    assert_eq!(table.server.counters().cookies_refused, 4);
    table.exchange(&stolen);
    assert!(table.accepted().is_some());
}

#[test]
fn guessed_cookies_open_nothing() {
    let mut world = TestNetwork::new(plain());
    for _ in 0..300 {
        let source = world.forged();
        let seq = world.random.next_u32();
        world.attack(at(1), syn(source, seq, false));
    }
    for number in 0..20_000 {
        let mut guess =
            segment(world.forged(), ACK, world.random.next_u32(), world.random.next_u32());
        if number % 2 == 0 {
            guess.options.timestamps = Some(Timestamps { value: 5, echo: world.random.next_u32() });
        }
        world.attack(Instant::from_nanos(100_000_000 + 50_000 * number), guess);
    }
    world.serve_clients(&plain());
    let counters = world.server.counters();
    assert_eq!((world.accepted, counters.cookies_refused), (CLIENTS, 20_000));
}

#[test]
fn without_a_flood_guessed_cookies_open_no_connection() {
    let mut table = Table::new(128, plain());
    let answer = table.answer(&segment(peer(), ACK, 5, 6));
    assert!(answer.flags.contains(RST));
    assert_eq!(table.server.counters().cookies_refused, 0, "nothing was looked at");
}

#[test]
fn the_first_data_brings_the_cookie_if_the_third_packet_is_lost() {
    for multipath in [false, true] {
        let mut table = Table::new(0, ConnectionConfig { multipath, ..ConnectionConfig::linux() });
        let syn = syn(peer(), 77, multipath);
        let answer = table.answer(&syn);
        let mut first = third(&syn, &answer);
        first.payload = Bytes::from_static(b"first").into();
        if let Some(MpCapable { sender_key: Some(key), .. }) = capable(&answer) {
            first.options.mptcp = vec![both_keys(key, Some(5))];
        }
        let mut second = third(&syn, &answer);
        second.seq = first.seq + 5;
        second.payload = Bytes::from_static(b"second").into();
        second.options.mptcp.clear();
        if multipath {
            let dsn = DataAck::Long(keys::initial_dsn(KEY).wrapping_add(6));
            let mapping = Some(DssMapping { dsn, ssn: 6, len: 6, checksum: None });
            second.options.dss = Some(Dss { data_fin: false, data_ack: None, mapping });
        }
        assert_eq!(table.exchange(&second), [], "what overtook it is not reset");
        assert_eq!(table.accepted(), None);
        table.exchange(&first);
        let id = table.accepted().unwrap();
        assert_eq!(table.server.read(table.now, id), Some(Bytes::from_static(b"first")));
        table.exchange(&second);
        assert_eq!(table.server.read(table.now, id), Some(Bytes::from_static(b"second")));
        assert_eq!(table.server.status(id).unwrap().multipath, multipath);
    }
}

#[test]
fn a_third_packet_without_the_right_keys_means_plain_tcp() {
    for wrong in [None, Some(1)] {
        let mut table = Table::new(0, ConnectionConfig::linux());
        let syn = syn(peer(), 77, true);
        let answer = table.answer(&syn);
        let mut third = third(&syn, &answer);
        let key = capable(&answer).unwrap().sender_key.unwrap();
        third.options.mptcp = wrong.map(|wrong| both_keys(key ^ wrong, None)).into_iter().collect();
        table.exchange(&third);
        let id = table.accepted().unwrap();
        assert!(!table.server.status(id).unwrap().multipath);
    }
}

#[test]
fn keys_arrive_later_if_a_dss_arrives_first() {
    let mut table = Table::new(0, ConnectionConfig::linux());
    let syn = syn(peer(), 77, true);
    let answer = table.answer(&syn);
    let third = third(&syn, &answer);
    let mut early = third.clone();
    early.options.mptcp.clear();
    early.options.dss = Some(Dss { data_ack: Some(DataAck::Short(1)), ..Dss::default() });
    assert_eq!(table.exchange(&early), []);
    assert_eq!(table.accepted(), None);
    table.exchange(&third);
    let id = table.accepted().unwrap();
    assert!(table.server.status(id).unwrap().multipath);
}

#[test]
fn a_reset_or_a_syn_ack_is_not_a_cookie() {
    let mut table = Table::new(0, plain());
    let syn = syn(peer(), 77, false);
    let answer = table.answer(&syn);
    let third = third(&syn, &answer);
    for flags in [RST.with(ACK), SYN.with(ACK), Flags::FIN] {
        table.exchange(&Segment { flags, ..third.clone() });
        assert_eq!(table.accepted(), None, "{flags:?}");
    }
}
