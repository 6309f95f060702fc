//! §3.2: additional subflows by MP_JOIN.

use std::net::SocketAddr;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{LocalAddress, StackNotice};
use towpath_wire::keys;
use towpath_wire::{MpJoin, MpTcpRst, MptcpOption, Options, Segment};

use crate::script::*;

/// Returns a host that is opening a subflow from its second address (index 1), and its SYN.
fn joining_host(config: ConnectionConfig) -> (Script, Segment) {
    let mut script = Script::connected(config);
    let _ = script.drain();
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local_address(1) });
    let syn = script.expect_on(1);
    (script, syn)
}

fn subflow_address_ids(script: &Script) -> Vec<(u8, u8)> {
    script.status().subflows.iter().map(|flow| flow.address_ids).collect()
}

fn has_closed_subflow(script: &Script) -> bool {
    script.notices.iter().any(|notice| matches!(notice, StackNotice::SubflowClosed { .. }))
}

#[test]
fn a_joining_syn_has_the_receivers_token_and_the_senders_address_id() {
    let (script, syn) = joining_host(config());
    let token = keys::token(PEER_KEY);
    let Some(MpJoin::Syn { backup: false, address_id: 2, token: sent_token, .. }) = join_of(&syn)
    else {
        panic!("{syn:?}")
    };
    assert_eq!(sent_token, token);
    assert_eq!(syn.destination, script.subflows[0].peer, "address and port of the first subflow");
    assert_eq!(capable_of(&syn), None, "that is for the first subflow alone");
    assert_eq!(subflow_address_ids(&script), [(0, 0), (2, 0)]);
}

#[test]
fn a_valid_token_is_answered_by_the_left_64_bits_of_the_hmac() {
    let mut script = Script::accepted(config());
    let peer = SocketAddr::new(peer_address(1), 6_000);
    let subflow = script.add_subflow(SocketAddr::new(host_address(1), PORT), peer);
    script.send(subflow, SYN, mptcp(script.join_syn(9)), b"");
    let syn_ack = script.expect_on(subflow);
    let Some(MpJoin::SynAck { backup: false, address_id: 2, hmac, .. }) = join_of(&syn_ack) else {
        panic!("{syn_ack:?}")
    };
    assert_eq!(hmac.to_be_bytes(), script.host_hmac()[..8]);
    assert_eq!(
        subflow_address_ids(&script),
        [(0, 0), (2, 9)],
        "the peer's identifier is remembered"
    );
}

#[test]
fn every_handshake_has_a_fresh_random_number() {
    let mut script = Script::accepted(config());
    let mut nonces = Vec::new();
    for path in [1, 2, 1] {
        let _ = script.begin_join(path);
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
    let subflow = script.begin_join(1);
    for _ in 0..2 {
        script.send(subflow, ACK, mptcp(script.join_ack()), b"");
        let fourth = script.expect_on(subflow);
        assert!(fourth.payload.is_empty() && fourth.flags == ACK, "{fourth:?}");
    }
}

#[test]
fn the_third_packet_is_retransmitted_and_data_waits_for_its_ack() {
    let (mut script, _) = joining_host(config());
    script.send(1, SYN.with(ACK), mptcp(script.join_syn_ack(0)), b"");
    let third_packet = script.expect_on(1);
    let Some(MpJoin::Ack { hmac }) = join_of(&third_packet) else { panic!("{third_packet:?}") };
    assert_eq!(hmac, script.host_hmac()[..20]);
    script.write(&vec![1; 60_000]);
    script.wait(seconds(4));
    let segments = script.drain();
    let on_new_subflow: Vec<_> = segments.iter().filter(|(subflow, _)| *subflow == 1).collect();
    assert!(on_new_subflow.len() >= 2, "1 s and 2 s later");
    for (_, retransmission) in on_new_subflow {
        assert!(
            retransmission.payload.is_empty()
                && join_of(retransmission) == Some(MpJoin::Ack { hmac })
        );
    }
    script.send(1, ACK, script.data_ack(1), b"");
    let segments = script.drain();
    assert!(segments.iter().any(|(subflow, segment)| *subflow == 1 && !segment.payload.is_empty()));
    assert!(segments.iter().all(|(_, segment)| join_of(segment).is_none()));
}

#[test]
fn an_unknown_token_is_reset_with_a_reason() {
    let mut script = Script::accepted(config());
    script.host_key ^= 1;
    let peer = SocketAddr::new(peer_address(1), 6_000);
    let subflow = script.add_subflow(SocketAddr::new(host_address(1), PORT), peer);
    script.send(subflow, SYN, mptcp(script.join_syn(2)), b"");
    assert_eq!(reset_of(&script.expect_on(subflow)), Some(MPTCP_ERROR));
}

#[test]
fn subflows_that_policy_forbids_are_reset_with_a_reason() {
    let prohibited = MpTcpRst { transient: false, reason: 3, reserved: 0 };
    let too_many = MpTcpRst { transient: true, reason: 2, reserved: 0 };
    let joins_forbidden = ConnectionConfig { accept_joins: false, ..config() };
    let limit_reached = ConnectionConfig { subflow_limit: 0, ..config() };
    for (config, reason) in [(joins_forbidden, prohibited), (limit_reached, too_many)] {
        let mut script = Script::accepted(config);
        let peer = SocketAddr::new(peer_address(1), 6_000);
        let subflow = script.add_subflow(SocketAddr::new(host_address(1), PORT), peer);
        script.send(subflow, SYN, mptcp(script.join_syn(2)), b"");
        assert_eq!(reset_of(&script.expect_on(subflow)), Some(reason));
    }
}

#[test]
fn a_syn_ack_with_a_wrong_hmac_or_without_mp_join_is_reset() {
    let wrong_hmac = |script: &mut Script| {
        script.host_nonce ^= 1;
        mptcp(script.join_syn_ack(0))
    };
    let no_option = |_: &mut Script| Options::default();
    let capable_option = |_: &mut Script| mptcp(capable_syn_ack());
    let option_makers: [&dyn Fn(&mut Script) -> Options; 3] =
        [&wrong_hmac, &no_option, &capable_option];
    for make_options in option_makers {
        let (mut script, _) = joining_host(config());
        let options = make_options(&mut script);
        script.send(1, SYN.with(ACK), options, b"");
        let reset = script.expect_on(1);
        assert_eq!(reset_of(&reset), Some(MPTCP_ERROR));
        assert_eq!(reset.seq, script.subflows[1].ack, "a RST that the peer accepts");
        // The subflow is not tried again, and the connection continues.
        script.wait(seconds(300));
        script.expect_silence();
        script.write(b"still here");
        assert_eq!(payload(&script.expect_on(0)), b"still here");
    }
}

#[test]
fn a_third_packet_with_a_wrong_hmac_or_without_mp_join_is_reset() {
    let wrong_hmac = |script: &mut Script| {
        script.host_nonce ^= 1;
        mptcp(script.join_ack())
    };
    let no_option = |_: &mut Script| Options::default();
    let dss_only = |script: &mut Script| script.data_ack(1);
    let option_makers: [&dyn Fn(&mut Script) -> Options; 3] = [&wrong_hmac, &no_option, &dss_only];
    for make_options in option_makers {
        let mut script = Script::accepted(config());
        let subflow = script.begin_join(1);
        let options = make_options(&mut script);
        script.send(subflow, ACK, options, b"");
        assert_eq!(reset_of(&script.expect_on(subflow)), Some(MPTCP_ERROR));
        script.expect_silence();
        script.write(b"still here");
        assert_eq!(payload(&script.expect_on(0)), b"still here");
    }
}

#[test]
fn an_off_path_attacker_cannot_reset_or_complete_a_subflow() {
    let (mut script, _) = joining_host(config());
    let forged = Segment { ack: 1, ..script.segment(1, SYN.with(ACK), Options::default(), b"") };
    script.inject(&forged);
    let _ = script.drain();
    assert!(!has_closed_subflow(&script));
    script.send(1, SYN.with(ACK), mptcp(script.join_syn_ack(0)), b"");
    let _ = script.drain();
    let valid_ack = script.segment(1, ACK, Options::default(), b"");
    script.inject(&Segment { ack: valid_ack.ack.wrapping_add(7), ..valid_ack.clone() });
    script.inject(&Segment { seq: valid_ack.seq.wrapping_sub(7_000), ..valid_ack.clone() });
    let is_established = |script: &Script| {
        let is_second_subflow = |notice: &StackNotice| {
            matches!(notice, StackNotice::SubflowEstablished { number: 1, .. })
        };
        script.notices.iter().any(is_second_subflow)
    };
    assert!(!is_established(&script));
    script.inject(&valid_ack);
    assert!(is_established(&script));
}

#[test]
fn a_joining_syn_is_matched_by_token_for_any_port() {
    let mut script = Script::accepted(config());
    let subflow = script.add_subflow(
        SocketAddr::new(host_address(1), 4_711),
        SocketAddr::new(peer_address(1), 6_000),
    );
    script.send(subflow, SYN, mptcp(script.join_syn(2)), b"");
    assert!(join_of(&script.expect_on(subflow)).is_some());
    script.send(subflow, ACK, mptcp(script.join_ack()), b"");
    // From here on, the five-tuple identifies it.
    script.send_data(subflow, 1, b"over there");
    assert_eq!(script.read(), b"over there");
}

#[test]
fn no_data_is_sent_on_a_subflow_requested_as_backup() {
    let mut script = Script::accepted(config());
    let subflow = script.add_subflow(
        SocketAddr::new(host_address(1), PORT),
        SocketAddr::new(peer_address(1), 6_000),
    );
    let token = keys::token(script.host_key);
    let syn = MpJoin::Syn { backup: true, address_id: 2, token, nonce: PEER_NONCE };
    script.send(subflow, SYN, mptcp(MptcpOption::Join(syn)), b"");
    script.send(subflow, ACK, mptcp(script.join_ack()), b"");
    let _ = script.drain();
    script.write(&vec![1; 60_000]);
    let segments = script.drain();
    assert!(segments.len() > 5 && segments.iter().all(|(index, _)| *index == 0));
    // MP_PRIO revokes it, for this direction and this subflow.
    script.send(subflow, ACK, mptcp(MptcpOption::Priority { backup: false }), b"");
    assert!(
        script
            .drain()
            .iter()
            .any(|(index, segment)| *index == subflow && !segment.payload.is_empty())
    );
    script.send(subflow, ACK, mptcp(MptcpOption::Priority { backup: true }), b"");
    let backup_flags: Vec<bool> = script.status().subflows.iter().map(|flow| flow.backup).collect();
    assert_eq!(backup_flags, [false, true]);
}

#[test]
fn a_cautious_host_sends_one_packet_until_the_subflow_answers() {
    for (cautious_joins, peer_sends) in [(false, false), (true, false), (true, true)] {
        let mut script = Script::accepted(ConnectionConfig { cautious_joins, ..config() });
        let subflow = script.join(1);
        let _ = script.drain();
        script.write(&vec![1; 200_000]);
        let data_on_new_subflow = |segments: Vec<(usize, Segment)>| -> Vec<Segment> {
            let data = segments
                .into_iter()
                .filter(|(index, segment)| *index == subflow && !segment.payload.is_empty());
            data.map(|(_, segment)| segment).collect()
        };
        let first_burst = data_on_new_subflow(script.drain());
        assert_eq!(first_burst.len() == 1, cautious_joins, "{} packets", first_burst.len());
        assert!(!first_burst.is_empty());
        if peer_sends {
            script.send_data(subflow, 0, b"the peer sends: it has got the fourth packet");
            assert!(data_on_new_subflow(script.drain()).len() > 1);
        }
    }
}
