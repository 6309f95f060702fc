//! §3.1: connection establishment.

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{FallbackReason, LocalAddress};
use towpath_wire::keys;
use towpath_wire::{DataAck, MpCapable, MptcpOption, Options, Segment};

use crate::script::*;

fn is_plain_tcp(segment: &Segment) -> bool {
    segment.options.mptcp.is_empty() && segment.options.dss.is_none()
}

/// Checks that both directions work, without any Multipath TCP options.
fn assert_plain_data_flows(script: &mut Script) {
    assert!(script.drain().iter().all(|(_, segment)| is_plain_tcp(segment)));
    script.write(b"to the peer");
    let segment = script.expect();
    assert!(is_plain_tcp(&segment) && payload(&segment) == b"to the peer", "{segment:?}");
    script.send(0, ACK, no_options(), b"to the host");
    let segments = script.drain();
    assert!(
        !segments.is_empty() && segments.iter().all(|(_, segment)| is_plain_tcp(segment)),
        "{segments:?}"
    );
    assert_eq!(script.read(), b"to the host");
    assert!(!script.status().multipath);
}

fn no_options() -> Options {
    Options::default()
}

fn changed_capable(change: impl FnOnce(&mut MpCapable), mut capable: MpCapable) -> MptcpOption {
    change(&mut capable);
    MptcpOption::Capable(capable)
}

#[test]
fn a_client_offers_version_1_with_hmac_sha256_and_nothing_else() {
    let mut script = Script::client(config());
    let syn = script.expect();
    assert_eq!(capable_of(&syn), Some(mp_capable_without_key()));
    let mut script = Script::client(ConnectionConfig { checksum: true, ..config() });
    assert!(capable_of(&script.expect()).unwrap().checksum, "flag A");
}

#[test]
fn a_server_answers_version_1_with_version_1() {
    for (version, multipath) in [(0, false), (1, true), (2, true), (15, true)] {
        let mut script = Script::server(config());
        script.send(
            0,
            SYN,
            mptcp(changed_capable(|capable| capable.version = version, mp_capable_without_key())),
            b"",
        );
        let syn_ack_capable = capable_of(&script.expect());
        assert_eq!(
            syn_ack_capable.map(|syn_ack_capable| syn_ack_capable.version),
            multipath.then_some(1),
            "{version}"
        );
    }
}

#[test]
fn the_third_packet_has_both_keys_and_no_length() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(capable_syn_ack()), b"");
    let third_packet = script.expect();
    let capable = capable_of(&third_packet).unwrap();
    assert_eq!((capable.receiver_key, capable.data), (Some(PEER_KEY), None));
    assert!(capable.sender_key.is_some() && third_packet.payload.is_empty());
}

#[test]
fn the_first_data_carries_keys_and_length_until_acknowledged() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(capable_syn_ack()), b"");
    let third_packet = script.expect();
    script.host_key = capable_of(&third_packet).unwrap().sender_key.unwrap();
    script.write(b"hello");
    let first_data = script.expect();
    assert_eq!(capable_of(&first_data).unwrap().data, Some((5, None)));
    assert_eq!(first_data.options.dss, None);
    script.wait(seconds(3));
    let retransmissions = script.drain();
    assert!(!retransmissions.is_empty());
    assert!(
        retransmissions
            .iter()
            .all(|(_, segment)| capable_of(segment).unwrap().data == Some((5, None)))
    );
    script.send(0, ACK, script.data_ack(6), b"");
    script.write(b"more");
    let next_data = script.expect();
    assert_eq!(capable_of(&next_data), None, "keys are sent no longer than needed");
    assert!(next_data.options.dss.unwrap().mapping.is_some());
}

#[test]
fn data_with_mp_capable_is_valid_even_after_data_in_reverse() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(capable_syn()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    script.send(0, ACK, mptcp(script.capable_ack()), b"");
    script.write(b"server first");
    assert_eq!(payload(&script.expect()), b"server first");
    let keys = MpCapable {
        receiver_key: Some(script.host_key),
        data: Some((5, None)),
        ..mp_capable_with_key()
    };
    let data_seq = script.subflows[0].seq;
    script.send(0, ACK, mptcp(MptcpOption::Capable(keys)), b"hello");
    assert_eq!(data_acked(&script.expect()), Some(6));
    // The same mapping once more, in both forms.
    script.subflows[0].seq = data_seq;
    script.send(0, ACK, mptcp(MptcpOption::Capable(keys)), b"hello");
    script.subflows[0].seq = data_seq;
    script.send_data(0, 1, b"hello");
    script.send_data(0, 6, b", world");
    assert_eq!(script.read(), b"hello, world");
    assert!(script.status().multipath);
}

#[test]
fn no_subflow_is_opened_before_a_dss_has_arrived() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local_address(1) });
    script.send(0, SYN.with(ACK), mptcp(capable_syn_ack()), b"");
    let third_packet = script.expect();
    script.host_key = capable_of(&third_packet).unwrap().sender_key.unwrap();
    script.expect_silence();
    script.send(0, ACK, script.data_ack(1), b"");
    assert!(join_of(&script.expect()).is_some());
}

#[test]
fn flag_b_or_a_missing_algorithm_means_plain_tcp() {
    let changes: [fn(&mut MpCapable); 2] =
        [|capable| capable.extensibility = true, |capable| capable.hmac_sha256 = false];
    for change in changes {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(changed_capable(change, mp_capable_without_key())), b"");
        assert!(is_plain_tcp(&script.expect()));
        script.send(0, ACK, no_options(), b"");
        assert_plain_data_flows(&mut script);

        assert_client_falls_back(changed_capable(change, mp_capable_with_key()));
    }
}

/// Checks that a client falls back to plain TCP after this reply.
fn assert_client_falls_back(syn_ack_option: MptcpOption) {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), mptcp(syn_ack_option), b"");
    assert!(is_plain_tcp(&script.expect()));
    assert_plain_data_flows(&mut script);
}

#[test]
fn an_answer_that_was_tampered_with_means_plain_tcp() {
    let changes: [fn(&mut MpCapable); 3] = [
        |capable| capable.version = 0,
        |capable| capable.version = 2,
        |capable| capable.sender_key = None,
    ];
    for change in changes {
        assert_client_falls_back(changed_capable(change, mp_capable_with_key()));
    }
}

#[test]
fn a_syn_with_a_key_is_not_version_1() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(capable_syn_ack()), b"");
    assert!(is_plain_tcp(&script.expect()));
}

#[test]
fn a_third_packet_with_another_key_than_ours_means_plain_tcp() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(capable_syn()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap() ^ 1;
    script.send(0, ACK, mptcp(script.capable_ack()), b"");
    assert_plain_data_flows(&mut script);
}

#[test]
fn a_third_packet_that_tcp_would_not_accept_changes_nothing() {
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(capable_syn()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    let third_packet = script.segment(0, ACK, mptcp(script.capable_ack()), b"");
    // An off-path attacker guesses numbers.
    for wrong_ack in [third_packet.ack.wrapping_add(1), third_packet.ack.wrapping_sub(9)] {
        let forged = Segment { ack: wrong_ack, options: no_options(), ..third_packet.clone() };
        script.inject(&forged);
        assert!(script.expect().flags.contains(RST));
    }
    script.inject(&third_packet);
    script.send(0, ACK, script.data_ack(1), b"");
    assert!(script.status().multipath);
}

#[test]
fn a_syn_ack_without_mp_capable_means_plain_tcp() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(0, SYN.with(ACK), no_options(), b"");
    assert!(is_plain_tcp(&script.expect()));
    assert_plain_data_flows(&mut script);
    assert_eq!(script.status().fallback, Some(FallbackReason::NoCapableInSynAck));
    // The fallback is permanent.
    script.send(0, ACK, mptcp(capable_syn_ack()), b"");
    script.send(0, ACK, script.data_ack(1), b"");
    assert_plain_tcp_remains(&mut script);
}

fn assert_plain_tcp_remains(script: &mut Script) {
    let _ = script.drain();
    script.write(b"still");
    assert!(is_plain_tcp(&script.expect()));
    assert!(!script.status().multipath);
}

#[test]
fn a_syn_without_mp_capable_is_answered_without() {
    let mut script = Script::server(config());
    script.send(0, SYN, no_options(), b"");
    assert!(is_plain_tcp(&script.expect()));
    script.send(0, ACK, no_options(), b"");
    assert_plain_data_flows(&mut script);
    assert_eq!(script.status().fallback, None);
}

#[test]
fn a_third_packet_without_mp_capable_means_plain_tcp() {
    // Also when the server has received a second SYN, without it, after the first.
    for with_second_syn in [false, true] {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(capable_syn()), b"");
        assert!(capable_of(&script.expect()).is_some());
        if with_second_syn {
            script.subflows[0].seq = script.subflows[0].peer_isn;
            script.send(0, SYN, no_options(), b"");
            let _ = script.drain();
        }
        script.send(0, ACK, no_options(), b"");
        assert_plain_data_flows(&mut script);
        assert_eq!(script.status().fallback, Some(FallbackReason::NoCapableInAck));
    }
}

#[test]
fn after_lost_syns_one_without_mp_capable_is_tried() {
    let mut script = Script::client(config());
    script.wait(seconds(40));
    let syns: Vec<bool> = script.drain().iter().map(|(_, syn)| capable_of(syn).is_some()).collect();
    assert_eq!(syns.get(..4), Some(&[true, true, true, false][..]), "{syns:?}");
    script.send(0, SYN.with(ACK), no_options(), b"");
    let _ = script.drain();
    assert_plain_data_flows(&mut script);
    assert_eq!(script.status().fallback, Some(FallbackReason::SynLost));
}

#[test]
fn checksums_that_the_responder_asks_for_are_confirmed_and_used() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.send(
        0,
        SYN.with(ACK),
        mptcp(changed_capable(|capable| capable.checksum = true, mp_capable_with_key())),
        b"",
    );
    let third_packet = script.expect();
    assert!(capable_of(&third_packet).unwrap().checksum);
    script.host_key = capable_of(&third_packet).unwrap().sender_key.unwrap();
    script.write(b"hello");
    let first_data = script.expect();
    let checksum = keys::dss_checksum(script.host_dsn(1), 1, 5, &first_data.payload);
    assert_eq!(capable_of(&first_data).unwrap().data, Some((5, Some(checksum))));
}

#[test]
fn no_join_goes_to_an_address_with_flag_c_set() {
    let mut script = Script::client(config());
    let _ = script.expect();
    script.stack.set_address(script.now, LocalAddress { subflow: true, ..local_address(1) });
    script.send(
        0,
        SYN.with(ACK),
        mptcp(changed_capable(|capable| capable.no_join_to_source = true, mp_capable_with_key())),
        b"",
    );
    let third_packet = script.expect();
    script.host_key = capable_of(&third_packet).unwrap().sender_key.unwrap();
    script.send(0, ACK, script.data_ack(1), b"");
    script.wait(seconds(60));
    script.expect_silence();
}

#[test]
fn data_sequence_numbers_start_after_the_idsn_of_each_key() {
    let mut script = Script::accepted(config());
    script.send_data(0, 1, b"first");
    let _ = script.drain();
    script.write(b"first");
    let segment = script.expect();
    let mapping = segment.options.dss.unwrap().mapping.unwrap();
    let first_dsn = keys::initial_dsn(script.host_key).wrapping_add(1);
    assert_eq!(mapping.dsn, DataAck::Long(first_dsn));
    assert_eq!((mapping.ssn, mapping.len), (1, 5));
    assert_eq!(script.read(), b"first");
}
