//! §3.1: connection establishment.

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::keys;
use towpath_mptcp::stack::{FallbackReason, LocalAddress};
use towpath_mptcp::wire::{DataAck, MpCapable, MptcpOption, Options, Segment};

use crate::script::*;

fn plain(segment: &Segment) -> bool {
    segment.options.mptcp.is_empty() && segment.options.dss.is_none()
}

/// Checks that both directions work, without any Multipath TCP options.
fn carries_plain_data(script: &mut Script) {
    assert!(script.drain().iter().all(|(_, segment)| plain(segment)));
    script.write(b"to the peer");
    let sent = script.expect();
    assert!(plain(&sent) && payload(&sent) == b"to the peer", "{sent:?}");
    script.send(0, ACK, bare(), b"to the host");
    let sent = script.drain();
    assert!(!sent.is_empty() && sent.iter().all(|(_, segment)| plain(segment)), "{sent:?}");
    assert_eq!(script.read(), b"to the host");
    assert!(!script.status().multipath);
}

fn bare() -> Options {
    Options::default()
}

fn with(change: impl FnOnce(&mut MpCapable), mut capable: MpCapable) -> MptcpOption {
    change(&mut capable);
    MptcpOption::Capable(capable)
}

#[test]
fn a_client_offers_version_1_with_hmac_sha256_and_nothing_else() {
    let mut script = Script::client(config());
    let syn = script.expect();
    assert_eq!(capable_of(&syn), Some(offered()));
    let mut script = Script::client(ConnectionConfig { checksum: true, ..config() });
    assert!(capable_of(&script.expect()).unwrap().checksum, "flag A");
}

#[test]
fn a_server_answers_version_1_with_version_1() {
    for (version, multipath) in [(0, false), (1, true), (2, true), (15, true)] {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(with(|own| own.version = version, offered())), b"");
        let answer = capable_of(&script.expect());
        assert_eq!(answer.map(|answer| answer.version), multipath.then_some(1), "{version}");
    }
}

#[test]
fn the_third_packet_has_both_keys_and_no_length() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(answer()), b"");
    let third = script.expect();
    let capable = capable_of(&third).unwrap();
    assert_eq!((capable.receiver_key, capable.data), (Some(KEY), None));
    assert!(capable.sender_key.is_some() && third.payload.is_empty());
}

#[test]
fn the_first_data_carries_keys_and_length_until_acknowledged() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(answer()), b"");
    let third = script.expect();
    script.host_key = capable_of(&third).unwrap().sender_key.unwrap();
    script.write(b"hello");
    let first = script.expect();
    assert_eq!(capable_of(&first).unwrap().data, Some((5, None)));
    assert_eq!(first.options.dss, None);
    script.wait(seconds(3));
    let again = script.drain();
    assert!(!again.is_empty());
    assert!(again.iter().all(|(_, segment)| capable_of(segment).unwrap().data == Some((5, None))));
    script.send(0, ACK, script.data_ack(6), b"");
    script.write(b"more");
    let next = script.expect();
    assert_eq!(capable_of(&next), None, "keys are sent no longer than needed");
    assert!(next.options.dss.unwrap().mapping.is_some());
}

#[test]
fn data_with_mp_capable_is_valid_even_after_data_in_reverse() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(offer()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    script.send(0, ACK, mptcp(script.third()), b"");
    script.write(b"server first");
    assert_eq!(payload(&script.expect()), b"server first");
    let keys =
        MpCapable { receiver_key: Some(script.host_key), data: Some((5, None)), ..answered() };
    let first = script.lines[0].seq;
    script.send(0, ACK, mptcp(MptcpOption::Capable(keys)), b"hello");
    assert_eq!(data_acked(&script.expect()), Some(6));
    // The same mapping once more, in both forms.
    script.lines[0].seq = first;
    script.send(0, ACK, mptcp(MptcpOption::Capable(keys)), b"hello");
    script.lines[0].seq = first;
    script.data(0, 1, b"hello");
    script.data(0, 6, b", world");
    assert_eq!(script.read(), b"hello, world");
    assert!(script.status().multipath);
}

#[test]
fn no_subflow_is_opened_before_a_dss_has_arrived() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local(1) });
    script.send(0, SYN.with(ACK), mptcp(answer()), b"");
    let third = script.expect();
    script.host_key = capable_of(&third).unwrap().sender_key.unwrap();
    script.silence();
    script.send(0, ACK, script.data_ack(1), b"");
    assert!(join_of(&script.expect()).is_some());
}

#[test]
fn flag_b_or_a_missing_algorithm_means_plain_tcp() {
    let strange: [fn(&mut MpCapable); 2] =
        [|own| own.extensibility = true, |own| own.hmac_sha256 = false];
    for change in strange {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(with(change, offered())), b"");
        assert!(plain(&script.expect()));
        script.send(0, ACK, bare(), b"");
        carries_plain_data(&mut script);

        plain_when_answered(with(change, answered()));
    }
}

/// Checks that a client falls back to plain TCP after this reply.
fn plain_when_answered(answer: MptcpOption) {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(answer), b"");
    assert!(plain(&script.expect()));
    carries_plain_data(&mut script);
}

#[test]
fn an_answer_that_was_tampered_with_means_plain_tcp() {
    let strange: [fn(&mut MpCapable); 3] =
        [|own| own.version = 0, |own| own.version = 2, |own| own.sender_key = None];
    for change in strange {
        plain_when_answered(with(change, answered()));
    }
}

#[test]
fn a_syn_with_a_key_is_not_version_1() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(answer()), b"");
    assert!(plain(&script.expect()));
}

#[test]
fn a_third_packet_with_another_key_than_ours_means_plain_tcp() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(offer()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap() ^ 1;
    script.send(0, ACK, mptcp(script.third()), b"");
    carries_plain_data(&mut script);
}

#[test]
fn a_third_packet_that_tcp_would_not_accept_changes_nothing() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(offer()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    let good = script.segment(0, ACK, mptcp(script.third()), b"");
    // An off-path attacker guesses numbers.
    for wrong in [good.ack.wrapping_add(1), good.ack.wrapping_sub(9)] {
        let blind = Segment { ack: wrong, options: bare(), ..good.clone() };
        script.inject(&blind);
        assert!(script.expect().flags.contains(RST));
    }
    script.inject(&good);
    script.send(0, ACK, script.data_ack(1), b"");
    assert!(script.status().multipath);
}

#[test]
fn a_syn_ack_without_mp_capable_means_plain_tcp() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), bare(), b"");
    assert!(plain(&script.expect()));
    carries_plain_data(&mut script);
    assert_eq!(script.status().fallback, Some(FallbackReason::NoCapableInSynAck));
    // The fallback is permanent.
    script.send(0, ACK, mptcp(answer()), b"");
    script.send(0, ACK, script.data_ack(1), b"");
    carries_plain_again(&mut script);
}

fn carries_plain_again(script: &mut Script) {
    let _ = script.drain();
    script.write(b"still");
    assert!(plain(&script.expect()));
    assert!(!script.status().multipath);
}

#[test]
fn a_syn_without_mp_capable_is_answered_without() {
    let mut script = Script::server(config());
    script.send(0, SYN, bare(), b"");
    assert!(plain(&script.expect()));
    script.send(0, ACK, bare(), b"");
    carries_plain_data(&mut script);
    assert_eq!(script.status().fallback, None);
}

#[test]
fn a_third_packet_without_mp_capable_means_plain_tcp() {
    // Also when a second SYN, without it, was overtaken by the first.
    for crossed in [false, true] {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(offer()), b"");
        assert!(capable_of(&script.expect()).is_some());
        if crossed {
            script.lines[0].seq = script.lines[0].peer_isn;
            script.send(0, SYN, bare(), b"");
            let _ = script.drain();
        }
        script.send(0, ACK, bare(), b"");
        carries_plain_data(&mut script);
        assert_eq!(script.status().fallback, Some(FallbackReason::NoCapableInAck));
    }
}

#[test]
fn after_lost_syns_one_without_mp_capable_is_tried() {
    let mut script = Script::client(config());
    script.wait(seconds(40));
    let syns: Vec<bool> = script.drain().iter().map(|(_, syn)| capable_of(syn).is_some()).collect();
    assert_eq!(syns.get(..4), Some(&[true, true, true, false][..]), "{syns:?}");
    script.send(0, SYN.with(ACK), bare(), b"");
    let _ = script.drain();
    carries_plain_data(&mut script);
    assert_eq!(script.status().fallback, Some(FallbackReason::SynLost));
}

#[test]
fn checksums_that_the_responder_asks_for_are_confirmed_and_used() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(with(|own| own.checksum = true, answered())), b"");
    let third = script.expect();
    assert!(capable_of(&third).unwrap().checksum);
    script.host_key = capable_of(&third).unwrap().sender_key.unwrap();
    script.write(b"hello");
    let first = script.expect();
    let sum = keys::dss_checksum(script.host_dsn(1), 1, 5, &first.payload);
    assert_eq!(capable_of(&first).unwrap().data, Some((5, Some(sum))));
}

#[test]
fn no_join_goes_to_an_address_with_flag_c_set() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local(1) });
    script.send(0, SYN.with(ACK), mptcp(with(|own| own.no_join_to_source = true, answered())), b"");
    let third = script.expect();
    script.host_key = capable_of(&third).unwrap().sender_key.unwrap();
    script.send(0, ACK, script.data_ack(1), b"");
    script.wait(seconds(60));
    script.silence();
}

#[test]
fn data_sequence_numbers_start_after_the_idsn_of_each_key() {
    let mut script = Script::accepted(config());
    script.data(0, 1, b"first");
    let _ = script.drain();
    script.write(b"first");
    let sent = script.expect();
    let mapping = sent.options.dss.unwrap().mapping.unwrap();
    let first = keys::initial_dsn(script.host_key).wrapping_add(1);
    assert_eq!(mapping.dsn, DataAck::Long(first));
    assert_eq!((mapping.ssn, mapping.len), (1, 5));
    assert_eq!(script.read(), b"first");
}
