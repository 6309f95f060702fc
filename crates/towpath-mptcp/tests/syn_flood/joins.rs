//! MP_JOIN from unauthenticated peers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::keys;
use towpath_mptcp::stack::{self, InterfaceId, Stack, StackNotice};
use towpath_mptcp::wire::{MpJoin, MptcpOption, Packet, Segment};
use towpath_net::Instant;

use crate::flood::address;
use crate::network::*;

const JOINS: u64 = 10_000;
/// Capacity for subflows whose peers are not authenticated.
const MAX_PENDING_JOINS: usize = 4_096;
/// Half-open joins that one source may have.
const MAX_JOINS_PER_SOURCE: usize = 8;
const FREE_AFTER: Duration = Duration::from_secs(16);

fn join_syn(source: SocketAddr, seq: u32, token: u32) -> Segment {
    let mut syn = syn(source, seq, false);
    syn.options.mptcp =
        vec![MptcpOption::Join(MpJoin::Syn { backup: false, address_id: 9, token, nonce: seq })];
    syn
}

fn join(segment: &Segment) -> Option<MpJoin> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Join(join) => Some(*join),
        _ => None,
    })
}

/// Returns a third packet to a SYN/ACK, with this HMAC.
fn third(answer: &Segment, hmac: [u8; 20]) -> Segment {
    let mut third = segment(answer.destination, ACK, answer.ack, answer.seq.wrapping_add(1));
    third.options.mptcp.push(MptcpOption::Join(MpJoin::Ack { hmac }));
    third
}

/// Connects all clients, with their second subflows about to begin; returns the tokens.
fn about_to_join(world: &mut TestNetwork) -> Vec<u32> {
    world.ends_at = at(1_150);
    for number in 0..CLIENTS {
        world.open(number, ConnectionConfig::linux(), 100_000);
    }
    // The server has the third packets, and clients have no DSS.
    world.run(at(35));
    (0..CLIENTS).map(|number| keys::token(world.keys(number).1)).collect()
}

/// Sends ten joins in each millisecond of the next second, to each client's connection in turn.
fn flood(world: &mut TestNetwork, mut one: impl FnMut(&mut TestNetwork, usize) -> Segment) {
    for number in 0..JOINS {
        let segment = one(world, number as usize % CLIENTS);
        let at = world.now + Duration::from_micros(100 * number);
        world.attack(at, segment);
    }
}

fn assert_all_joined(world: &TestNetwork) {
    world.assert_all_served();
    for client in &world.clients {
        let joined = |notice: &&StackNotice| {
            matches!(notice, StackNotice::SubflowEstablished { number: 1, .. })
        };
        assert_eq!(client.notices.iter().filter(joined).count(), 1, "{:?}", client.notices);
        let status = client.stack.status(client.id.unwrap()).unwrap();
        assert!(status.multipath && status.subflows.len() == 2, "{status:#?}");
    }
}

#[test]
fn a_valid_token_from_forged_sources_blocks_no_subflow() {
    let mut world = TestNetwork::new(ConnectionConfig::linux());
    let tokens = about_to_join(&mut world);
    flood(&mut world, |world, client| {
        join_syn(world.forged(), world.random.next_u32(), tokens[client])
    });
    let mut most = 0;
    for ms in 0..120 {
        world.run(at(35 + 10 * ms));
        most = most.max(world.server.half_open_joins(world.now));
    }
    assert!((MAX_PENDING_JOINS / 2..=MAX_PENDING_JOINS).contains(&most), "{most} places taken");
    assert_eq!(world.accepted, CLIENTS);
    assert_eq!(world.server.counters().refused_joins, 0);
    assert_all_joined(&world);
    world.run(at(1_200) + FREE_AFTER);
    assert_eq!(world.server.half_open_joins(world.now), 0);
}

#[test]
fn eight_forged_joins_block_subflows_if_every_syn_is_stored() {
    let mut server = Stack::new(stack::StackConfig::default());
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(Instant::ZERO, address(server_address()));
    server.listen(PORT, ConnectionConfig::linux()).unwrap();
    let mut world = TestNetwork::with_server(server);
    let tokens = about_to_join(&mut world);
    for _ in 0..8 {
        let (source, seq) = (world.forged(), world.random.next_u32());
        world.attack(world.now, join_syn(source, seq, tokens[0]));
    }
    world.run(at(2_000));
    let joined =
        |notice: &StackNotice| matches!(notice, StackNotice::SubflowEstablished { number: 1, .. });
    assert!(!world.clients[0].notices.iter().any(joined), "otherwise these tests show nothing");
    assert!(world.clients[1].notices.iter().any(joined));
}

#[test]
fn wrong_hmacs_are_reset_and_consume_no_entries() {
    for many in [false, true] {
        let mut world = TestNetwork::new(ConnectionConfig::linux());
        let tokens = about_to_join(&mut world);
        // The attacker receives each reply and tries a HMAC.
        let mut guess = 0_u8;
        world.answer = Some(Box::new(move |answer| {
            guess = guess.wrapping_add(1);
            join(answer).map(|_| third(answer, [guess; 20]))
        }));
        flood(&mut world, |world, client| {
            let port = world.random.next_u32() as u16 | 1;
            let one = SocketAddr::from(([192, 0, 2, 9], port));
            let source = if many { world.forged() } else { one };
            join_syn(source, world.random.next_u32(), tokens[client])
        });
        world.run(at(2_000));
        let counters = world.server.counters();
        assert!(counters.refused_joins > JOINS * 9 / 10, "{counters:?}");
        // The server sends a SYN/ACK and a RST for each.
        assert!(world.astray <= 2 * JOINS, "{}", world.astray);
        assert_eq!(world.server.half_open_joins(world.now), 0, "each was tried and refused");
        assert_all_joined(&world);
    }
}

#[test]
fn one_silent_source_gets_only_its_share_of_entries() {
    let mut world = TestNetwork::new(ConnectionConfig::linux());
    let tokens = about_to_join(&mut world);
    flood(&mut world, |world, client| {
        let port = world.random.next_u32() as u16 | 1;
        join_syn(SocketAddr::from(([192, 0, 2, 9], port)), world.random.next_u32(), tokens[client])
    });
    let mut most = 0;
    for ms in 0..120 {
        world.run(at(35 + 10 * ms));
        most = most.max(world.server.half_open_joins(world.now));
    }
    assert!(most <= MAX_JOINS_PER_SOURCE + CLIENTS, "{most}");
    assert_all_joined(&world);
}

#[test]
fn unknown_tokens_are_reset_and_leave_no_state() {
    let mut world = TestNetwork::new(ConnectionConfig::linux());
    let known = about_to_join(&mut world);
    flood(&mut world, |world, _| {
        let token = world.random.next_u32();
        assert!(!known.contains(&token));
        join_syn(world.forged(), world.random.next_u32(), token)
    });
    let mut most = 0;
    for ms in 0..120 {
        world.run(at(35 + 10 * ms));
        most = most.max(world.server.half_open_joins(world.now));
    }
    assert!(most <= CLIENTS, "those of clients alone: {most}");
    assert_eq!((world.server.counters().unknown_token, world.astray), (JOINS, JOINS));
    assert_all_joined(&world);
}

/// Client that is connected and joins manually, from an address that belongs to no host.
struct ScriptedClient {
    world: TestNetwork,
    from: SocketAddr,
    token: u32,
    keys: (u64, u64),
}

impl ScriptedClient {
    fn new() -> Self {
        let mut world = TestNetwork::new(ConnectionConfig::linux());
        // No subflow of its own.
        let single =
            ConnectionConfig { path_manager: "single".to_owned(), ..ConnectionConfig::linux() };
        world.open(0, single, 0);
        world.run(at(1_000));
        // Options have passed in both directions once data has.
        let keys = world.keys(0);
        Self { world, from: "203.0.113.5:77".parse().unwrap(), token: keys::token(keys.1), keys }
    }

    fn send(&mut self, segment: &Segment) -> Vec<Segment> {
        let now = self.world.now;
        self.world.server.handle_packet(now, InterfaceId(1), Packet::emit(segment, 0));
        let mut sent = Vec::new();
        while let Some((_, packet)) = self.world.server.poll_transmit(now) {
            sent.extend(packet.split().map(|packet| packet.parse().unwrap()));
        }
        sent
    }

    fn hmac(&self, seq: u32, answer: &Segment) -> [u8; 20] {
        let Some(MpJoin::SynAck { nonce, .. }) = join(answer) else { panic!("{answer:?}") };
        let hmac = keys::join_hmac(self.keys.0, self.keys.1, seq, nonce);
        *hmac.first_chunk().unwrap()
    }

    /// Returns the addresses of the subflows that the server has.
    fn subflows(&self) -> Vec<IpAddr> {
        let ids = (0..20).map(stack::ConnectionId);
        let status = ids.filter_map(|id| self.world.server.status(id));
        status.flat_map(|status| status.subflows).map(|flow| flow.remote.ip()).collect()
    }
}

#[test]
fn a_subflow_exists_only_after_its_peer_is_authenticated() {
    let mut hand = ScriptedClient::new();
    let first = client_address(0, 0);
    let syn = join_syn(hand.from, 5, hand.token);
    let answer = hand.send(&syn).remove(0);
    assert!(answer.flags.contains(SYN.with(ACK)));
    assert_eq!(
        (hand.subflows(), hand.world.server.half_open_joins(hand.world.now)),
        (vec![first], 1)
    );
    // A retransmitted SYN gets the same reply, except for the clock.
    hand.world.run(at(2_000));
    let again = hand.send(&syn).remove(0);
    assert_eq!((again.seq, join(&again)), (answer.seq, join(&answer)));
    // An attacker without the numbers can neither complete nor end it.
    let proof = hand.hmac(5, &answer);
    let right = third(&answer, proof);
    for (seq, ack) in [(1, 0), (0, 1), (u32::MAX, 0)] {
        let (seq, ack) = (right.seq.wrapping_add(seq), right.ack.wrapping_add(ack));
        assert_eq!(hand.send(&Segment { seq, ack, ..right.clone() }), []);
        hand.send(&segment(hand.from, RST, seq, ack));
    }
    assert_eq!(hand.subflows(), [first]);
    let fourth = hand.send(&right);
    assert_eq!(hand.subflows(), [first, hand.from.ip()]);
    assert_eq!(hand.world.server.half_open_joins(hand.world.now), 0);
    // RFC 8684 §3.2: it is acknowledged immediately.
    assert!(fourth.iter().any(|sent| sent.destination == hand.from && sent.flags == ACK));
}

#[test]
fn a_third_packet_without_the_right_hmac_is_reset_with_a_reason() {
    for bare in [false, true] {
        let mut hand = ScriptedClient::new();
        let answer = hand.send(&join_syn(hand.from, 5, hand.token)).remove(0);
        let mut hmac = hand.hmac(5, &answer);
        hmac[19] ^= 1;
        let mut wrong = third(&answer, hmac);
        if bare {
            wrong.options.mptcp.clear();
        }
        let reset = hand.send(&wrong).remove(0);
        assert!(reset.flags.contains(RST) && reset.seq == answer.seq.wrapping_add(1));
        let reasons = &reset.options.mptcp[..];
        assert!(matches!(reasons, [MptcpOption::Reset(reason)] if reason.reason == 1), "{reset:?}");
        assert_eq!(hand.subflows(), [client_address(0, 0)]);
        assert_eq!(hand.world.server.half_open_joins(hand.world.now), 0);
        // The correct one arrives too late.
        let right = third(&answer, hand.hmac(5, &answer));
        assert!(hand.send(&right).remove(0).flags.contains(RST));
    }
}

#[test]
fn a_limit_is_checked_again_after_authentication() {
    let mut hand = ScriptedClient::new();
    // Eight more are allowed; ten are begun.
    let begun: Vec<(SocketAddr, Segment)> = (0..10)
        .map(|number| {
            let from = SocketAddr::from(([203, 0, 113, 10 + number], 77));
            (from, hand.send(&join_syn(from, 5, hand.token)).remove(0))
        })
        .collect();
    let mut refused = 0;
    for (from, answer) in begun {
        let answers = hand.send(&third(&answer, hand.hmac(5, &answer)));
        refused += answers
            .iter()
            .filter(|sent| sent.destination == from && sent.flags.contains(RST))
            .count();
    }
    assert_eq!((refused, hand.subflows().len()), (2, 9));
}

#[test]
fn a_join_expires_if_not_completed_within_15_seconds() {
    let mut hand = ScriptedClient::new();
    let answer = hand.send(&join_syn(hand.from, 5, hand.token)).remove(0);
    hand.world.run(at(17_000));
    assert_eq!(hand.world.server.half_open_joins(hand.world.now), 0);
    let late = third(&answer, hand.hmac(5, &answer));
    assert!(hand.send(&late).remove(0).flags.contains(RST));
}
