//! §3.7: middleboxes that change data or strip options.

use bytes::Bytes;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{ConnectionError, FallbackReason};
use towpath_wire::keys;
use towpath_wire::{DataAck, Dss, DssMapping, MptcpOption, Options, Payload, Segment};

use crate::script::*;

fn config_with_checksums() -> ConnectionConfig {
    ConnectionConfig { checksum: true, ..config() }
}

/// Returns a mapping of the peer's data with its checksum plus `checksum_error`.
fn mapping_with_checksum(
    script: &Script,
    subflow: usize,
    offset: u64,
    data: &[u8],
    checksum_error: u16,
) -> Options {
    let mut options = script.dss_mapping(subflow, offset, u16::try_from(data.len()).unwrap());
    let mapping = options.dss.as_mut().unwrap().mapping.as_mut().unwrap();
    let payload = Payload::from(Bytes::copy_from_slice(data));
    let checksum = keys::dss_checksum(peer_dsn(offset), mapping.ssn, mapping.len, &payload);
    mapping.checksum = Some(checksum.wrapping_add(checksum_error));
    options
}

fn send_checked(script: &mut Script, subflow: usize, offset: u64, data: &[u8]) {
    let options = mapping_with_checksum(script, subflow, offset, data, 0);
    script.send(subflow, ACK, options, data);
}

fn send_damaged(script: &mut Script, subflow: usize, offset: u64, data: &[u8]) {
    let options = mapping_with_checksum(script, subflow, offset, data, 1);
    script.send(subflow, ACK, options, data);
}

/// Returns the offset in the peer's data that an MP_FAIL of the host names.
fn mp_fail_offset(segment: &Segment) -> Option<u64> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::Fail { dsn } => Some(dsn.wrapping_sub(peer_dsn(0))),
        _ => None,
    })
}

/// Returns an infinite mapping from the next byte of this subflow on to an offset in the peer's
/// data.
fn infinite_mapping(script: &Script, subflow: usize, offset: u64) -> Options {
    let mut options = script.dss_mapping(subflow, offset, 0);
    options.dss.as_mut().unwrap().data_ack = None;
    options
}

/// Returns subflow and data offset of an infinite mapping of the host.
fn infinite_mapping_of(script: &Script, segment: &Segment) -> Option<(u32, u64)> {
    let DssMapping { dsn: DataAck::Long(dsn), ssn, len: 0, .. } = segment.options.dss?.mapping?
    else {
        return None;
    };
    Some((ssn, dsn.wrapping_sub(script.host_dsn(0))))
}

fn is_plain_tcp(segment: &Segment) -> bool {
    segment.options.mptcp.is_empty() && segment.options.dss.is_none()
}

/// Returns a host that opened a connection, before options are confirmed.
fn unconfirmed_client(config: ConnectionConfig) -> Script {
    let mut script = Script::client(config);
    let _ = script.expect();
    script.subflows[0].window = 60_000; // a SYN's window is not scaled
    script.send(0, SYN.with(ACK), mptcp(capable_syn_ack()), b"");
    script.subflows[0].window = 1_000;
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    script
}

#[test]
fn first_data_without_dss_means_plain_tcp() {
    let mut script = unconfirmed_client(config());
    script.send(0, ACK, Options::default(), b"from a server that knows no more");
    assert!(script.drain().iter().all(|(_, segment)| is_plain_tcp(segment)));
    assert_eq!(script.read(), b"from a server that knows no more");
    assert_eq!(script.status().fallback, Some(FallbackReason::NoDss));
    // If options pass in our direction, the peer is notified.
    script.write(b"infinite");
    let segment = script.expect();
    assert_eq!(infinite_mapping_of(&script, &segment), Some((1, 1)));
    script.send(0, ACK, Options::default(), b"");
    script.write(b"plain");
    assert!(is_plain_tcp(&script.expect()));
}

#[test]
fn data_that_is_acknowledged_without_dss_means_plain_tcp_on_the_only_subflow() {
    let mut script = unconfirmed_client(config());
    script.write(b"hello");
    let _ = script.expect();
    script.send(0, ACK, Options::default(), b"");
    assert!(!script.status().multipath);
    assert_eq!(script.status().acked_bytes, 5);
    script.write(b" again");
    let segment = script.expect();
    assert_eq!(
        (infinite_mapping_of(&script, &segment), payload(&segment)),
        (Some((6, 6)), b" again".to_vec())
    );
    // A later DSS changes nothing.
    script.send(0, ACK, script.data_ack(12), b"");
    script.write(b" and again");
    assert!(is_plain_tcp(&script.expect()));
}

#[test]
fn after_the_fallback_acknowledgements_count_also_for_data_that_was_sent_before() {
    let mut script = unconfirmed_client(config());
    script.write(&[1; 3_000]);
    let first_segment = script.expect();
    let len = u32::try_from(first_segment.payload.len()).unwrap();
    assert!(script.drain().len() > 1);
    script.subflows[0].ack = first_segment.seq.wrapping_add(len);
    script.send(0, ACK, Options::default(), b"");
    assert_eq!(script.status().acked_bytes, u64::from(len));
}

#[test]
fn the_acceptor_falls_back_if_its_data_is_acked_without_dss() {
    // The peer's DATA_ACK without data shows that options pass to us, but not that ours pass.
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.expect();
    script.send(0, ACK, Options::default(), b"");
    assert_eq!(script.status().fallback, Some(FallbackReason::NoDss));
    assert_eq!(script.status().acked_bytes, 5);
    script.write(b" again");
    let segment = script.expect();
    assert_eq!(infinite_mapping_of(&script, &segment), Some((6, 6)));
}

#[test]
fn data_whose_options_vanish_midway_continues_as_plain_tcp() {
    let mut script = Script::accepted(config());
    script.send_data(0, 1, b"mapped, ");
    script.send(0, ACK, Options::default(), b"plain");
    assert_eq!(script.read(), b"mapped, plain");
    assert_eq!(script.status().fallback, Some(FallbackReason::NoDss));
    assert!(script.drain().iter().skip(1).all(|(_, segment)| is_plain_tcp(segment)));
}

#[test]
fn data_with_its_own_mapping_prevents_the_receivers_fallback() {
    let mut script = Script::accepted(config());
    script.send_data(0, 1, b"once ");
    script.send_data(0, 1, b"once ");
    script.send(0, ACK, Options::default(), b"again?");
    assert_eq!(script.read(), b"once ");
    assert!(script.status().multipath);
}

#[test]
fn data_acknowledged_without_a_data_ack_is_not_retransmitted() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    script.send(0, ACK, script.data_ack(6), b"");
    script.write(b" again");
    let _ = script.drain();
    // Later segments may lack a DSS (§3.3.2), so this does not cause a fallback yet.
    script.send(0, ACK, Options::default(), b"");
    assert!(script.status().multipath);
    script.wait(seconds(3));
    script.expect_silence();
    assert_eq!(script.status().fallback, Some(FallbackReason::NoDss));
    assert_eq!(script.status().acked_bytes, 11);
}

#[test]
fn a_sender_that_retransmitted_resets_if_options_vanish() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    script.send(0, ACK, script.data_ack(1), b"");
    script.wait(seconds(3));
    let retransmissions = script.drain();
    assert!(
        retransmissions.iter().any(|(_, segment)| !segment.payload.is_empty()),
        "{retransmissions:?}"
    );
    script.send(0, ACK, Options::default(), b"");
    script.wait(seconds(60));
    let segments = script.drain();
    assert!(segments.iter().all(|(_, segment)| segment.payload.is_empty()), "{segments:?}");
    assert_eq!(reset_of(&segments.last().unwrap().1), Some(MIDDLEBOX));
}

#[test]
fn a_joined_subflow_that_acknowledges_data_without_dss_is_reset() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    // Only MP_JOIN has passed on it.
    script.write(&vec![1; 60_000]);
    let segments = script.drain();
    assert!(
        segments.iter().any(|(index, segment)| *index == subflow && !segment.payload.is_empty())
    );
    script.send(subflow, ACK, Options::default(), b"");
    let (_, reset) = script.drain().into_iter().find(|(index, _)| *index == subflow).unwrap();
    assert_eq!(reset_of(&reset), Some(MIDDLEBOX));
    assert!(script.status().multipath);
}

#[test]
fn mappings_are_sent_on_every_segment_until_a_data_ack_has_come() {
    let mut script = Script::accepted(config());
    script.write(&vec![1; 14_000]);
    script.wait(seconds(2));
    let segments = script.drain();
    let data = segments.iter().filter(|(_, segment)| !segment.payload.is_empty());
    assert!(data.clone().count() > 10);
    assert!(data.map(|(_, segment)| segment.options.dss).all(|dss| dss.unwrap().mapping.is_some()));
}

#[test]
fn with_several_subflows_the_one_with_a_wrong_checksum_is_reset_with_mp_fail() {
    let mut script = Script::accepted(config_with_checksums());
    let subflow = script.join(1);
    send_checked(&mut script, 0, 1, b"good ");
    let _ = script.drain();
    send_damaged(&mut script, subflow, 6, b"bad");
    let reset = script.expect_on(subflow);
    assert_eq!((reset_of(&reset), mp_fail_offset(&reset)), (Some(MIDDLEBOX), Some(6)));
    // None of it was acknowledged; it is reinjected on another subflow.
    send_checked(&mut script, 0, 6, b"again");
    assert_eq!(data_acked(&script.expect_on(0)), Some(11));
    assert_eq!(script.read(), b"good again");
    assert!(script.status().multipath);
}

#[test]
fn a_wrong_checksum_on_the_only_subflow_causes_fallback() {
    let mut script = Script::accepted(config_with_checksums());
    send_checked(&mut script, 0, 1, b"good ");
    let _ = script.drain();
    script.write(b"ours ");
    let _ = script.drain();
    script.send(0, ACK, script.data_ack(6), b"");
    let start_seq = script.subflows[0].seq;
    send_damaged(&mut script, 0, 6, b"bad");
    let fail = script.expect();
    assert_eq!((mp_fail_offset(&fail), data_acked(&fail)), (Some(6), Some(6)));
    assert!(!fail.flags.contains(RST));
    // Later data is discarded until the infinite mapping.
    send_checked(&mut script, 0, 9, b"lost, and much more");
    assert!(
        script
            .drain()
            .iter()
            .all(|(_, segment)| data_acked(segment).is_none_or(|offset| offset == 6))
    );
    // The peer replies, and continues after the failed data.
    let mut mp_fail = Options::default();
    mp_fail.mptcp.push(MptcpOption::Fail { dsn: script.host_dsn(6) });
    script.send(0, ACK, mp_fail, b"");
    assert_eq!(script.subflows[0].seq, start_seq.wrapping_add(22));
    let mapping = infinite_mapping(&script, 0, 6);
    script.send(0, ACK, mapping, b"again, ");
    script.send(0, ACK, Options::default(), b"plain");
    assert!(script.drain().iter().all(|(_, segment)| data_acked(segment).is_none()));
    assert_eq!(script.read(), b"good again, plain");
    assert_eq!(script.status().fallback, Some(FallbackReason::Checksum));
    // The same applies to our own direction: one infinite mapping, and then none.
    script.write(b"infinite");
    let segment = script.expect();
    assert_eq!(infinite_mapping_of(&script, &segment), Some((6, 6)));
    assert_eq!(segment.options.dss.unwrap().mapping.unwrap().checksum, Some(0));
    script.send(0, ACK, Options::default(), b"");
    assert_eq!(script.status().acked_bytes, 13, "the subflow's acknowledgement is enough");
    script.write(b"plain");
    assert!(is_plain_tcp(&script.expect()));
    // The fallback is permanent.
    script.send(0, ACK, script.dss_mapping(0, 18, 4), b"more");
    assert_eq!(script.read(), b"more");
    assert!(script.drain().iter().all(|(_, segment)| is_plain_tcp(segment)));
    let join_option = script.join_syn(2);
    let subflow = script.add_subflow(
        std::net::SocketAddr::new(host_address(1), PORT),
        std::net::SocketAddr::new(peer_address(1), 6_000),
    );
    script.send(subflow, SYN, mptcp(join_option), b"");
    assert!(script.expect_on(subflow).flags.contains(RST));
}

#[test]
fn mp_fail_triggers_mp_fail_and_an_infinite_mapping() {
    let mut script = Script::accepted(config_with_checksums());
    script.write(b"good ");
    let _ = script.drain();
    script.send(0, ACK, script.data_ack(6), b"");
    script.write(b"damaged");
    let _ = script.drain();
    let mut options = script.data_ack(6);
    options.mptcp.push(MptcpOption::Fail { dsn: script.host_dsn(6) });
    script.send(0, ACK, options, b"");
    let segments: Vec<Segment> = script.drain().into_iter().map(|(_, segment)| segment).collect();
    assert!(segments.iter().any(|segment| mp_fail_offset(segment) == Some(1)), "{segments:?}");
    let retransmission = segments.iter().find(|segment| !segment.payload.is_empty()).unwrap();
    assert_eq!(infinite_mapping_of(&script, retransmission), Some((13, 6)));
    assert_eq!(payload(retransmission), b"damaged");
    assert_eq!(script.status().fallback, Some(FallbackReason::Peer));
    // The other direction falls back with the peer's infinite mapping.
    let mapping = infinite_mapping(&script, 0, 1);
    script.send(0, ACK, mapping, b"one to one");
    script.send(0, ACK, Options::default(), b" from here");
    assert_eq!(script.read(), b"one to one from here");
}

#[test]
fn mp_fail_is_retransmitted_until_the_infinite_mapping_arrives() {
    let mut script = Script::accepted(config_with_checksums());
    send_damaged(&mut script, 0, 1, b"bad");
    let sent_mp_fail = |script: &mut Script| {
        script.drain().iter().any(|(_, segment)| mp_fail_offset(segment) == Some(1))
    };
    assert!(sent_mp_fail(&mut script));
    send_checked(&mut script, 0, 4, b"behind it");
    assert!(sent_mp_fail(&mut script), "the first may be lost");
    // With another subflow, an infinite mapping cannot be the reply.
    let subflow = script.add_subflow(
        std::net::SocketAddr::new(host_address(1), PORT),
        std::net::SocketAddr::new(peer_address(1), 6_000),
    );
    script.send(subflow, SYN, mptcp(script.join_syn(2)), b"");
    assert!(script.expect_on(subflow).flags.contains(RST));
    let mapping = infinite_mapping(&script, 0, 1);
    script.send(0, ACK, mapping, b"good, behind it");
    assert_eq!(script.read(), b"good, behind it");
    assert_eq!(script.status().fallback, Some(FallbackReason::Checksum));
}

#[test]
fn data_in_flight_when_the_other_direction_fails_is_not_lost() {
    let mut script = Script::accepted(config_with_checksums());
    script.write(b"damaged");
    let _ = script.drain();
    let mut options = script.data_ack(1);
    options.mptcp.push(MptcpOption::Fail { dsn: script.host_dsn(1) });
    script.send(0, ACK, options, b"");
    // Sent before the host's MP_FAIL arrived. The peer learns of the fallback from the infinite
    // mapping alone, and continues after it.
    send_checked(&mut script, 0, 1, b"mapped, ");
    let mapping = infinite_mapping(&script, 0, 9);
    script.send(0, ACK, mapping, b"infinite");
    assert_eq!(script.read(), b"mapped, infinite");
}

#[test]
fn data_never_retransmitted_is_missing_at_the_end() {
    let mut script = Script::accepted(config_with_checksums());
    send_damaged(&mut script, 0, 1, b"bad");
    // The peer continues after the failed data.
    let mapping = infinite_mapping(&script, 0, 4);
    script.send(0, ACK, mapping, b"good");
    script.shutdown();
    let _ = script.drain();
    script.send(0, FIN.with(ACK), Options::default(), b"");
    assert!(
        matches!(script.closed, Some(Err(ConnectionError::Protocol(_)))),
        "{:?}",
        script.closed
    );
    assert_eq!(script.read(), b"");
}

#[test]
fn an_infinite_mapping_maps_all_later_data_and_ends_data_acks() {
    let mut script = Script::accepted(config());
    script.send_data(0, 1, b"mapped, ");
    let _ = script.drain();
    let mapping = infinite_mapping(&script, 0, 9);
    script.send(0, ACK, mapping, b"infinite, ");
    script.send(0, ACK, Options::default(), b"plain");
    assert_eq!(script.read(), b"mapped, infinite, plain");
    assert!(script.drain().iter().all(|(_, segment)| data_acked(segment).is_none()));
    assert!(!script.status().multipath);
}

#[test]
fn an_infinite_mapping_is_refused_while_other_subflows_exist() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    let mapping = infinite_mapping(&script, subflow, 1);
    script.send(subflow, ACK, mapping, b"infinite");
    assert!(script.expect_on(subflow).flags.contains(RST));
    script.send_data(0, 1, b"mapped");
    assert_eq!(script.read(), b"mapped");
}

#[test]
fn with_one_subflow_but_gaps_in_the_data_the_subflow_is_reset_with_mp_fail() {
    let mut script = Script::accepted(config_with_checksums());
    let subflow = script.join(1);
    send_checked(&mut script, subflow, 4, b"later");
    script.send(subflow, RST.with(ACK), Options::default(), b"");
    let _ = script.drain();
    send_damaged(&mut script, 0, 1, b"bad");
    let reset = script.expect_on(0);
    assert_eq!((reset_of(&reset), mp_fail_offset(&reset)), (Some(MIDDLEBOX), Some(1)));
    assert_eq!(script.closed, None, "a new subflow may come");
    assert_eq!(script.read(), b"");
    // Data behind the gap was discarded and never acknowledged.
    let subflow = script.join(2);
    send_checked(&mut script, subflow, 1, b"all");
    assert_eq!(data_acked(&script.expect_on(subflow)), Some(4));
    send_checked(&mut script, subflow, 4, b" again");
    assert_eq!(script.read(), b"all again");
}

#[test]
fn a_damaged_data_fin_ends_nothing() {
    let mut script = Script::accepted(config_with_checksums());
    let dsn = DataAck::Long(peer_dsn(1));
    let checksum = keys::dss_checksum(peer_dsn(1), 0, 1, &Payload::EMPTY);
    let _ = script.drain();
    for (sent_checksum, is_accepted) in [(checksum ^ 1, false), (checksum, true)] {
        let mapping = DssMapping { dsn, ssn: 0, len: 1, checksum: Some(sent_checksum) };
        let fin = Dss { data_fin: true, data_ack: None, mapping: Some(mapping) };
        script.send(0, ACK, dss(fin), b"");
        let acked = script.drain().iter().filter_map(|(_, segment)| data_acked(segment)).max();
        assert_eq!(acked == Some(2), is_accepted);
    }
}

#[test]
fn data_that_was_lost_before_the_fallback_keeps_its_mapping() {
    let mut script = Script::accepted(config());
    script.write(b"lost ");
    let lost_segment = script.expect();
    script.subflows[0].ack = lost_segment.seq;
    let mut mapping = infinite_mapping(&script, 0, 1);
    mapping.dss.as_mut().unwrap().data_ack = Some(DataAck::Long(script.host_dsn(1)));
    script.send(0, ACK, mapping, b"infinite");
    script.write(b"infinite");
    script.wait(seconds(1));
    let segments: Vec<Segment> = script.drain().into_iter().map(|(_, segment)| segment).collect();
    let retransmission = segments.iter().find(|segment| segment.seq == lost_segment.seq).unwrap();
    let mapping = retransmission.options.dss.unwrap().mapping.unwrap();
    assert_eq!((mapping.ssn, mapping.len), (1, 5));
    assert!(segments.iter().any(|segment| infinite_mapping_of(&script, segment) == Some((6, 6))));
}

#[test]
fn a_data_fin_under_a_damaged_mapping_ends_nothing() {
    let mut script = Script::accepted(config_with_checksums());
    let subflow = script.join(1);
    let mut options = mapping_with_checksum(&script, subflow, 1, b"hello", 0);
    let dss = options.dss.as_mut().unwrap();
    dss.data_fin = true;
    dss.mapping.as_mut().unwrap().len = 6; // the checksum is that of another mapping
    script.send(subflow, ACK, options, b"hello");
    assert_eq!(reset_of(&script.expect_on(subflow)), Some(MIDDLEBOX));
    send_checked(&mut script, 0, 1, b"hello, world");
    assert_eq!(data_acked(&script.expect_on(0)), Some(13));
    assert_eq!(script.read(), b"hello, world");
}
