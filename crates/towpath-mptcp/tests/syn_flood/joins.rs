//! MP_JOIN from unauthenticated peers.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rand_core::Rng;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{self, InterfaceId, Stack, StackNotice};
use towpath_net::Instant;
use towpath_wire::keys;
use towpath_wire::{MpJoin, MptcpOption, Packet, Segment};

use crate::flood::local_address;
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

fn join_option(segment: &Segment) -> Option<MpJoin> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Join(join) => Some(*join),
        _ => None,
    })
}

/// Returns a third packet to a SYN/ACK, with this HMAC.
fn third_packet(syn_ack: &Segment, hmac: [u8; 20]) -> Segment {
    let mut packet = segment(syn_ack.destination, ACK, syn_ack.ack, syn_ack.seq.wrapping_add(1));
    packet.options.mptcp.push(MptcpOption::Join(MpJoin::Ack { hmac }));
    packet
}

/// Connects all clients, which are about to open their second subflows; returns the tokens.
fn connect_clients(network: &mut TestNetwork) -> Vec<u32> {
    network.clients_end_at = at_ms(1_150);
    for number in 0..CLIENTS {
        network.open(number, ConnectionConfig::linux(), 100_000);
    }
    // The server has the third packets, and clients have no DSS.
    network.run(at_ms(35));
    (0..CLIENTS).map(|number| keys::token(network.keys(number).1)).collect()
}

/// Sends ten joins in each millisecond of the next second, to each client's connection in turn.
fn flood(
    network: &mut TestNetwork,
    mut make_segment: impl FnMut(&mut TestNetwork, usize) -> Segment,
) {
    for number in 0..JOINS {
        let segment = make_segment(network, number as usize % CLIENTS);
        let arrival = network.now + Duration::from_micros(100 * number);
        network.attack(arrival, segment);
    }
}

fn assert_all_joined(network: &TestNetwork) {
    network.assert_all_served();
    for client in &network.clients {
        let is_second_subflow = |notice: &&StackNotice| {
            matches!(notice, StackNotice::SubflowEstablished { number: 1, .. })
        };
        assert_eq!(
            client.notices.iter().filter(is_second_subflow).count(),
            1,
            "{:?}",
            client.notices
        );
        let status = client.stack.status(client.id.unwrap()).unwrap();
        assert!(status.multipath && status.subflows.len() == 2, "{status:#?}");
    }
}

#[test]
fn a_valid_token_from_forged_sources_blocks_no_subflow() {
    let mut network = TestNetwork::new(ConnectionConfig::linux());
    let tokens = connect_clients(&mut network);
    flood(&mut network, |network, client| {
        join_syn(network.forged_source(), network.random.next_u32(), tokens[client])
    });
    let mut max_joins = 0;
    for ms in 0..120 {
        network.run(at_ms(35 + 10 * ms));
        max_joins = max_joins.max(network.server.half_open_joins(network.now));
    }
    assert!(
        (MAX_PENDING_JOINS / 2..=MAX_PENDING_JOINS).contains(&max_joins),
        "{max_joins} places taken"
    );
    assert_eq!(network.accepted, CLIENTS);
    assert_eq!(network.server.counters().refused_joins, 0);
    assert_all_joined(&network);
    network.run(at_ms(1_200) + FREE_AFTER);
    assert_eq!(network.server.half_open_joins(network.now), 0);
}

#[test]
fn eight_forged_joins_block_subflows_if_every_syn_is_stored() {
    let mut server = Stack::new(stack::StackConfig::default());
    server.add_interface(InterfaceId(1), 1_500);
    server.set_address(Instant::ZERO, local_address(server_address()));
    server.listen(PORT, ConnectionConfig::linux()).unwrap();
    let mut network = TestNetwork::with_server(server);
    let tokens = connect_clients(&mut network);
    for _ in 0..8 {
        let (source, seq) = (network.forged_source(), network.random.next_u32());
        network.attack(network.now, join_syn(source, seq, tokens[0]));
    }
    network.run(at_ms(2_000));
    let is_second_subflow =
        |notice: &StackNotice| matches!(notice, StackNotice::SubflowEstablished { number: 1, .. });
    assert!(
        !network.clients[0].notices.iter().any(is_second_subflow),
        "otherwise these tests show nothing"
    );
    assert!(network.clients[1].notices.iter().any(is_second_subflow));
}

#[test]
fn wrong_hmacs_are_reset_and_consume_no_entries() {
    for many_sources in [false, true] {
        let mut network = TestNetwork::new(ConnectionConfig::linux());
        let tokens = connect_clients(&mut network);
        // The attacker receives each reply and tries a HMAC.
        let mut guess = 0_u8;
        network.attacker_reply = Some(Box::new(move |reply| {
            guess = guess.wrapping_add(1);
            join_option(reply).map(|_| third_packet(reply, [guess; 20]))
        }));
        flood(&mut network, |network, client| {
            let port = network.random.next_u32() as u16 | 1;
            let single_source = SocketAddr::from(([192, 0, 2, 9], port));
            let source = if many_sources { network.forged_source() } else { single_source };
            join_syn(source, network.random.next_u32(), tokens[client])
        });
        network.run(at_ms(2_000));
        let counters = network.server.counters();
        assert!(counters.refused_joins > JOINS * 9 / 10, "{counters:?}");
        // The server sends a SYN/ACK and a RST for each.
        assert!(network.stray_replies <= 2 * JOINS, "{}", network.stray_replies);
        assert_eq!(network.server.half_open_joins(network.now), 0, "each was tried and refused");
        assert_all_joined(&network);
    }
}

#[test]
fn one_silent_source_gets_only_its_share_of_entries() {
    let mut network = TestNetwork::new(ConnectionConfig::linux());
    let tokens = connect_clients(&mut network);
    flood(&mut network, |network, client| {
        let port = network.random.next_u32() as u16 | 1;
        join_syn(
            SocketAddr::from(([192, 0, 2, 9], port)),
            network.random.next_u32(),
            tokens[client],
        )
    });
    let mut max_joins = 0;
    for ms in 0..120 {
        network.run(at_ms(35 + 10 * ms));
        max_joins = max_joins.max(network.server.half_open_joins(network.now));
    }
    assert!(max_joins <= MAX_JOINS_PER_SOURCE + CLIENTS, "{max_joins}");
    assert_all_joined(&network);
}

#[test]
fn unknown_tokens_are_reset_and_leave_no_state() {
    let mut network = TestNetwork::new(ConnectionConfig::linux());
    let tokens = connect_clients(&mut network);
    flood(&mut network, |network, _| {
        let token = network.random.next_u32();
        assert!(!tokens.contains(&token));
        join_syn(network.forged_source(), network.random.next_u32(), token)
    });
    let mut max_joins = 0;
    for ms in 0..120 {
        network.run(at_ms(35 + 10 * ms));
        max_joins = max_joins.max(network.server.half_open_joins(network.now));
    }
    assert!(max_joins <= CLIENTS, "those of clients alone: {max_joins}");
    assert_eq!((network.server.counters().unknown_token, network.stray_replies), (JOINS, JOINS));
    assert_all_joined(&network);
}

/// Client that is connected and joins manually, from an address that belongs to no host.
struct ScriptedClient {
    network: TestNetwork,
    source: SocketAddr,
    token: u32,
    keys: (u64, u64),
}

impl ScriptedClient {
    fn new() -> Self {
        let mut network = TestNetwork::new(ConnectionConfig::linux());
        // No subflow of its own.
        let single =
            ConnectionConfig { path_manager: "single".to_owned(), ..ConnectionConfig::linux() };
        network.open(0, single, 0);
        network.run(at_ms(1_000));
        // Options have passed in both directions once data has.
        let keys = network.keys(0);
        Self {
            network,
            source: "203.0.113.5:77".parse().unwrap(),
            token: keys::token(keys.1),
            keys,
        }
    }

    fn send(&mut self, segment: &Segment) -> Vec<Segment> {
        let now = self.network.now;
        self.network.server.handle_packet(now, InterfaceId(1), Packet::emit(segment, 0));
        let mut replies = Vec::new();
        while let Some((_, packet)) = self.network.server.poll_transmit(now) {
            replies.extend(packet.split().map(|packet| packet.parse().unwrap()));
        }
        replies
    }

    fn hmac(&self, seq: u32, syn_ack: &Segment) -> [u8; 20] {
        let Some(MpJoin::SynAck { nonce, .. }) = join_option(syn_ack) else {
            panic!("{syn_ack:?}")
        };
        let hmac = keys::join_hmac(self.keys.0, self.keys.1, seq, nonce);
        *hmac.first_chunk().unwrap()
    }

    /// Returns the addresses of the subflows that the server has.
    fn subflows(&self) -> Vec<IpAddr> {
        let ids = (0..20).map(stack::ConnectionId);
        let status = ids.filter_map(|id| self.network.server.status(id));
        status.flat_map(|status| status.subflows).map(|flow| flow.remote.ip()).collect()
    }
}

#[test]
fn a_subflow_exists_only_after_its_peer_is_authenticated() {
    let mut client = ScriptedClient::new();
    let first_address = client_address(0, 0);
    let syn = join_syn(client.source, 5, client.token);
    let syn_ack = client.send(&syn).remove(0);
    assert!(syn_ack.flags.contains(SYN.with(ACK)));
    assert_eq!(
        (client.subflows(), client.network.server.half_open_joins(client.network.now)),
        (vec![first_address], 1)
    );
    // A retransmitted SYN gets the same reply, except for the clock.
    client.network.run(at_ms(2_000));
    let repeated_syn_ack = client.send(&syn).remove(0);
    assert_eq!(
        (repeated_syn_ack.seq, join_option(&repeated_syn_ack)),
        (syn_ack.seq, join_option(&syn_ack))
    );
    // An attacker without the numbers can neither complete nor end it.
    let hmac = client.hmac(5, &syn_ack);
    let third_packet = third_packet(&syn_ack, hmac);
    for (seq, ack) in [(1, 0), (0, 1), (u32::MAX, 0)] {
        let (seq, ack) = (third_packet.seq.wrapping_add(seq), third_packet.ack.wrapping_add(ack));
        assert_eq!(client.send(&Segment { seq, ack, ..third_packet.clone() }), []);
        client.send(&segment(client.source, RST, seq, ack));
    }
    assert_eq!(client.subflows(), [first_address]);
    let replies = client.send(&third_packet);
    assert_eq!(client.subflows(), [first_address, client.source.ip()]);
    assert_eq!(client.network.server.half_open_joins(client.network.now), 0);
    // RFC 8684 §3.2: it is acknowledged immediately.
    assert!(replies.iter().any(|sent| sent.destination == client.source && sent.flags == ACK));
}

#[test]
fn a_third_packet_without_the_right_hmac_is_reset_with_a_reason() {
    for without_option in [false, true] {
        let mut client = ScriptedClient::new();
        let syn_ack = client.send(&join_syn(client.source, 5, client.token)).remove(0);
        let mut hmac = client.hmac(5, &syn_ack);
        hmac[19] ^= 1;
        let mut unauthenticated = third_packet(&syn_ack, hmac);
        if without_option {
            unauthenticated.options.mptcp.clear();
        }
        let reset = client.send(&unauthenticated).remove(0);
        assert!(reset.flags.contains(RST) && reset.seq == syn_ack.seq.wrapping_add(1));
        let mptcp_options = &reset.options.mptcp[..];
        assert!(
            matches!(mptcp_options, [MptcpOption::Reset(reason)] if reason.reason == 1),
            "{reset:?}"
        );
        assert_eq!(client.subflows(), [client_address(0, 0)]);
        assert_eq!(client.network.server.half_open_joins(client.network.now), 0);
        // The correct one arrives too late.
        let third_packet = third_packet(&syn_ack, client.hmac(5, &syn_ack));
        assert!(client.send(&third_packet).remove(0).flags.contains(RST));
    }
}

#[test]
fn a_limit_is_checked_again_after_authentication() {
    let mut client = ScriptedClient::new();
    // Eight more subflows are allowed; ten are begun.
    let pending: Vec<(SocketAddr, Segment)> = (0..10)
        .map(|number| {
            let source = SocketAddr::from(([203, 0, 113, 10 + number], 77));
            (source, client.send(&join_syn(source, 5, client.token)).remove(0))
        })
        .collect();
    let mut refused = 0;
    for (source, syn_ack) in pending {
        let replies = client.send(&third_packet(&syn_ack, client.hmac(5, &syn_ack)));
        refused += replies
            .iter()
            .filter(|sent| sent.destination == source && sent.flags.contains(RST))
            .count();
    }
    assert_eq!((refused, client.subflows().len()), (2, 9));
}

#[test]
fn a_join_expires_if_not_completed_within_15_seconds() {
    let mut client = ScriptedClient::new();
    let syn_ack = client.send(&join_syn(client.source, 5, client.token)).remove(0);
    client.network.run(at_ms(17_000));
    assert_eq!(client.network.server.half_open_joins(client.network.now), 0);
    let third_packet = third_packet(&syn_ack, client.hmac(5, &syn_ack));
    assert!(client.send(&third_packet).remove(0).flags.contains(RST));
}
