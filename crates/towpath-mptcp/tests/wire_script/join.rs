//! §3.2: additional subflows by MP_JOIN.

use std::net::SocketAddr;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::keys;
use towpath_mptcp::stack::{LocalAddress, StackNotice};
use towpath_mptcp::wire::{MpJoin, MpTcpRst, MptcpOption, Options, Segment};

use crate::script::*;

/// Returns a host that is about to open a subflow from its second address: its SYN is on line 1.
fn joining(config: ConnectionConfig) -> (Script, Segment) {
    let mut script = Script::connected(config);
    let _ = script.drain();
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local(1) });
    let syn = script.expect_on(1);
    (script, syn)
}

fn subflows(script: &Script) -> Vec<(u8, u8)> {
    script.status().subflows.iter().map(|flow| flow.address_ids).collect()
}

fn closed(script: &Script) -> bool {
    script.notices.iter().any(|notice| matches!(notice, StackNotice::SubflowClosed { .. }))
}

#[test]
fn a_joining_syn_has_the_receivers_token_and_the_senders_address_id() {
    let (script, syn) = joining(config());
    let token = keys::token(KEY);
    let Some(MpJoin::Syn { backup: false, address_id: 2, token: sent, .. }) = join_of(&syn) else {
        panic!("{syn:?}")
    };
    assert_eq!(sent, token);
    assert_eq!(syn.destination, script.lines[0].peer, "address and port of the first subflow");
    assert_eq!(capable_of(&syn), None, "that is for the first subflow alone");
    assert_eq!(subflows(&script), [(0, 0), (2, 0)]);
}

#[test]
fn a_valid_token_is_answered_by_the_left_64_bits_of_the_hmac() {
    let mut script = Script::accepted(config());
    let peer = SocketAddr::new(peer(1), 6_000);
    let line = script.add_line(SocketAddr::new(host(1), PORT), peer);
    script.send(line, SYN, mptcp(script.join_syn(9)), b"");
    let answer = script.expect_on(line);
    let Some(MpJoin::SynAck { backup: false, address_id: 2, hmac, .. }) = join_of(&answer) else {
        panic!("{answer:?}")
    };
    assert_eq!(hmac.to_be_bytes(), script.host_hmac()[..8]);
    assert_eq!(subflows(&script), [(0, 0), (2, 9)], "the peer's identifier is remembered");
}

#[test]
fn every_handshake_has_a_fresh_random_number() {
    let mut script = Script::accepted(config());
    let mut nonces = Vec::new();
    for path in [1, 2, 1] {
        let _ = script.join_half(path);
        nonces.push(script.host_nonce);
    }
    nonces.sort_unstable();
    nonces.dedup();
    assert_eq!(nonces.len(), 3);
}

#[test]
fn the_third_packet_and_its_copies_are_acknowledged_at_once() {
    let mut script = Script::accepted(ConnectionConfig {
        subflow: towpath_mptcp::subflow::SubflowConfig::linux(),
        ..config()
    });
    let line = script.join_half(1);
    for _ in 0..2 {
        script.send(line, ACK, mptcp(script.join_ack()), b"");
        let fourth = script.expect_on(line);
        assert!(fourth.payload.is_empty() && fourth.flags == ACK, "{fourth:?}");
    }
}

#[test]
fn the_third_packet_is_retransmitted_and_data_waits_for_its_ack() {
    let (mut script, _) = joining(config());
    script.send(1, SYN.with(ACK), mptcp(script.join_syn_ack(0)), b"");
    let third = script.expect_on(1);
    let Some(MpJoin::Ack { hmac }) = join_of(&third) else { panic!("{third:?}") };
    assert_eq!(hmac, script.host_hmac()[..20]);
    script.write(&vec![1; 60_000]);
    script.wait(seconds(4));
    let sent = script.drain();
    let on_new: Vec<_> = sent.iter().filter(|(line, _)| *line == 1).collect();
    assert!(on_new.len() >= 2, "1 s and 2 s later");
    for (_, again) in on_new {
        assert!(again.payload.is_empty() && join_of(again) == Some(MpJoin::Ack { hmac }));
    }
    script.send(1, ACK, script.data_ack(1), b"");
    let sent = script.drain();
    assert!(sent.iter().any(|(line, segment)| *line == 1 && !segment.payload.is_empty()));
    assert!(sent.iter().all(|(_, segment)| join_of(segment).is_none()));
}

#[test]
fn an_unknown_token_is_reset_with_a_reason() {
    let mut script = Script::accepted(config());
    script.host_key ^= 1;
    let peer = SocketAddr::new(peer(1), 6_000);
    let line = script.add_line(SocketAddr::new(host(1), PORT), peer);
    script.send(line, SYN, mptcp(script.join_syn(2)), b"");
    assert_eq!(reset_of(&script.expect_on(line)), Some(MPTCP_ERROR));
}

#[test]
fn subflows_that_policy_forbids_are_reset_with_a_reason() {
    let prohibited = MpTcpRst { transient: false, reason: 3, reserved: 0 };
    let too_many = MpTcpRst { transient: true, reason: 2, reserved: 0 };
    let forbids = ConnectionConfig { accept_joins: false, ..config() };
    let full = ConnectionConfig { subflow_limit: 0, ..config() };
    for (config, reason) in [(forbids, prohibited), (full, too_many)] {
        let mut script = Script::accepted(config);
        let peer = SocketAddr::new(peer(1), 6_000);
        let line = script.add_line(SocketAddr::new(host(1), PORT), peer);
        script.send(line, SYN, mptcp(script.join_syn(2)), b"");
        assert_eq!(reset_of(&script.expect_on(line)), Some(reason));
    }
}

#[test]
fn a_syn_ack_with_a_wrong_hmac_or_without_mp_join_is_reset() {
    let wrong = |script: &mut Script| {
        script.host_nonce ^= 1;
        mptcp(script.join_syn_ack(0))
    };
    let nothing = |_: &mut Script| Options::default();
    let new_connection = |_: &mut Script| mptcp(answer());
    let answers: [&dyn Fn(&mut Script) -> Options; 3] = [&wrong, &nothing, &new_connection];
    for make in answers {
        let (mut script, _) = joining(config());
        let options = make(&mut script);
        script.send(1, SYN.with(ACK), options, b"");
        let reset = script.expect_on(1);
        assert_eq!(reset_of(&reset), Some(MPTCP_ERROR));
        assert_eq!(reset.seq, script.lines[1].ack, "a RST that the peer accepts");
        // It is not tried again, and the connection continues.
        script.wait(seconds(300));
        script.silence();
        script.write(b"still here");
        assert_eq!(payload(&script.expect_on(0)), b"still here");
    }
}

#[test]
fn a_third_packet_with_a_wrong_hmac_or_without_mp_join_is_reset() {
    let wrong = |script: &mut Script| {
        script.host_nonce ^= 1;
        mptcp(script.join_ack())
    };
    let nothing = |_: &mut Script| Options::default();
    let dss = |script: &mut Script| script.data_ack(1);
    let answers: [&dyn Fn(&mut Script) -> Options; 3] = [&wrong, &nothing, &dss];
    for make in answers {
        let mut script = Script::accepted(config());
        let line = script.join_half(1);
        let options = make(&mut script);
        script.send(line, ACK, options, b"");
        assert_eq!(reset_of(&script.expect_on(line)), Some(MPTCP_ERROR));
        script.silence();
        script.write(b"still here");
        assert_eq!(payload(&script.expect_on(0)), b"still here");
    }
}

#[test]
fn an_off_path_attacker_cannot_reset_or_complete_a_subflow() {
    let (mut script, _) = joining(config());
    let blind = Segment { ack: 1, ..script.segment(1, SYN.with(ACK), Options::default(), b"") };
    script.inject(&blind);
    let _ = script.drain();
    assert!(!closed(&script));
    script.send(1, SYN.with(ACK), mptcp(script.join_syn_ack(0)), b"");
    let _ = script.drain();
    let good = script.segment(1, ACK, Options::default(), b"");
    script.inject(&Segment { ack: good.ack.wrapping_add(7), ..good.clone() });
    script.inject(&Segment { seq: good.seq.wrapping_sub(7_000), ..good.clone() });
    let established = |script: &Script| {
        let is = |notice: &StackNotice| {
            matches!(notice, StackNotice::SubflowEstablished { number: 1, .. })
        };
        script.notices.iter().any(is)
    };
    assert!(!established(&script));
    script.inject(&good);
    assert!(established(&script));
}

#[test]
fn a_joining_syn_is_matched_by_token_for_any_port() {
    let mut script = Script::accepted(config());
    let line = script.add_line(SocketAddr::new(host(1), 4_711), SocketAddr::new(peer(1), 6_000));
    script.send(line, SYN, mptcp(script.join_syn(2)), b"");
    assert!(join_of(&script.expect_on(line)).is_some());
    script.send(line, ACK, mptcp(script.join_ack()), b"");
    // From here on, the five-tuple identifies it.
    script.data(line, 1, b"over there");
    assert_eq!(script.read(), b"over there");
}

#[test]
fn no_data_is_sent_on_a_subflow_requested_as_backup() {
    let mut script = Script::accepted(config());
    let line = script.add_line(SocketAddr::new(host(1), PORT), SocketAddr::new(peer(1), 6_000));
    let token = keys::token(script.host_key);
    let syn = MpJoin::Syn { backup: true, address_id: 2, token, nonce: NONCE };
    script.send(line, SYN, mptcp(MptcpOption::Join(syn)), b"");
    script.send(line, ACK, mptcp(script.join_ack()), b"");
    let _ = script.drain();
    script.write(&vec![1; 60_000]);
    let sent = script.drain();
    assert!(sent.len() > 5 && sent.iter().all(|(on, _)| *on == 0));
    // MP_PRIO revokes it, for this direction and this subflow.
    script.send(line, ACK, mptcp(MptcpOption::Priority { backup: false }), b"");
    assert!(script.drain().iter().any(|(on, segment)| *on == line && !segment.payload.is_empty()));
    script.send(line, ACK, mptcp(MptcpOption::Priority { backup: true }), b"");
    let ids: Vec<bool> = script.status().subflows.iter().map(|flow| flow.backup).collect();
    assert_eq!(ids, [false, true]);
}

#[test]
fn a_cautious_host_sends_one_packet_until_the_subflow_answers() {
    for (cautious_joins, answer) in [(false, false), (true, false), (true, true)] {
        let mut script = Script::accepted(ConnectionConfig { cautious_joins, ..config() });
        let line = script.join(1);
        let _ = script.drain();
        script.write(&vec![1; 200_000]);
        let on_new = |sent: Vec<(usize, Segment)>| -> Vec<Segment> {
            let data =
                sent.into_iter().filter(|(on, sent)| *on == line && !sent.payload.is_empty());
            data.map(|(_, segment)| segment).collect()
        };
        let first = on_new(script.drain());
        assert_eq!(first.len() == 1, cautious_joins, "{} packets", first.len());
        assert!(!first.is_empty());
        if answer {
            script.data(line, 0, b"the peer sends: it has got the fourth packet");
            assert!(on_new(script.drain()).len() > 1);
        }
    }
}
