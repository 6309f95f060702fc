//! §3.3.3, §3.5, §3.6: closing of a connection and its subflows.

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::ConnectionError;
use towpath_wire::keys;
use towpath_wire::{DataAck, DssMapping, MpCapable, MptcpOption, Options, Payload, Segment};

use crate::script::*;

/// Returns the data offset of a DATA_FIN of the host, and true if it has no data.
fn data_fin_of(script: &Script, segment: &Segment) -> Option<(u64, bool)> {
    let dss = segment.options.dss.filter(|dss| dss.data_fin)?;
    let DssMapping { dsn: DataAck::Long(dsn), ssn, len, .. } = dss.mapping? else { panic!() };
    let fin_offset = dsn.wrapping_sub(script.host_dsn(0)) + u64::from(len) - 1;
    Some((fin_offset, ssn == 0 && len == 1 && segment.payload.is_empty()))
}

fn fast_close_key(segment: &Segment) -> Option<u64> {
    segment.options.mptcp.iter().find_map(|option| match option {
        MptcpOption::FastClose { key } => Some(*key),
        _ => None,
    })
}

fn subflows_with_fin(segments: &[(usize, Segment)]) -> Vec<usize> {
    let mut subflows: Vec<usize> = segments
        .iter()
        .filter(|(_, segment)| segment.flags.contains(FIN))
        .map(|(index, _)| *index)
        .collect();
    subflows.sort_unstable();
    subflows.dedup();
    subflows
}

#[test]
fn a_data_fin_without_data_has_ssn_0_length_1_and_its_own_dsn() {
    for checksum in [false, true] {
        let mut script = Script::accepted(ConnectionConfig { checksum, ..config() });
        script.write(b"hello");
        let _ = script.drain();
        script.shutdown();
        let segment = script.expect();
        assert_eq!(data_fin_of(&script, &segment), Some((6, true)));
        assert!(!segment.flags.contains(FIN), "the subflow stays open");
        let expected = keys::dss_checksum(script.host_dsn(6), 0, 1, &Payload::EMPTY);
        let mapping = segment.options.dss.unwrap().mapping.unwrap();
        assert_eq!(mapping.checksum, checksum.then_some(expected));
    }
}

#[test]
fn a_data_fin_is_retransmitted_until_it_is_acknowledged() {
    let mut script = Script::accepted(config());
    script.shutdown();
    let segment = script.expect();
    assert_eq!(data_fin_of(&script, &segment), Some((1, true)));
    script.wait(seconds(2));
    let retransmissions = script.drain();
    assert!(
        retransmissions.iter().any(|(_, segment)| data_fin_of(&script, segment) == Some((1, true)))
    );
    script.send(0, ACK, script.data_ack(2), b"");
    script.wait(seconds(30));
    assert!(script.drain().iter().all(|(_, segment)| data_fin_of(&script, segment).is_none()));
}

#[test]
fn a_data_fin_is_acknowledged_after_all_data_before_it() {
    let mut script = Script::accepted(config());
    script.send(0, ACK, script.data_fin(6, 1), b"");
    assert_eq!(data_acked(&script.expect()), Some(1));
    script.send_data(0, 1, b"hello");
    assert_eq!(data_acked(&script.expect()), Some(7));
    assert_eq!(script.read(), b"hello");
    // A DATA_FIN may also come with data; the last number of the mapping is that of DATA_FIN.
    let mut script = Script::accepted(config());
    let mut options = script.dss_mapping(0, 1, 6);
    options.dss.as_mut().unwrap().data_fin = true;
    script.send(0, ACK, options, b"hello");
    let segment = script.expect();
    assert_eq!((data_acked(&segment), segment.ack), (Some(7), script.subflows[0].seq));
    assert_eq!(script.read(), b"hello");
}

#[test]
fn when_both_data_fins_are_acknowledged_all_subflows_are_closed_by_fin() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    script.shutdown();
    script.send(0, ACK, script.data_ack(2), b"");
    assert_eq!(subflows_with_fin(&script.drain()), [0_usize; 0], "the peer may still send");
    assert_eq!(script.closed, None);
    script.send_data(subflow, 1, b"late");
    script.send(0, ACK, script.data_fin(5, 2), b"");
    let segments = script.drain();
    assert_eq!(subflows_with_fin(&segments), [0, subflow]);
    assert!(segments.iter().all(|(_, segment)| !segment.flags.contains(RST)));
    let withdraws = |option: &MptcpOption| matches!(option, MptcpOption::RemoveAddress(_));
    assert!(!segments.iter().any(|(_, segment)| segment.options.mptcp.iter().any(withdraws)));
    for subflow in [0, subflow] {
        script.send(subflow, FIN.with(ACK), script.data_ack(2), b"");
    }
    assert_eq!(script.closed, Some(Ok(())));
    assert_eq!(script.read(), b"late");
}

#[test]
fn both_ends_may_end_at_once() {
    let mut script = Script::accepted(config());
    script.shutdown();
    let _ = script.drain();
    // The peer's DATA_FIN crosses ours.
    script.send(0, ACK, script.data_fin(1, 1), b"");
    let segments = script.drain();
    assert_eq!(segments.iter().filter_map(|(_, segment)| data_acked(segment)).max(), Some(2));
    assert_eq!(subflows_with_fin(&segments), [0_usize; 0]);
    let ack = script.subflows[0].ack;
    script.send(0, ACK, script.data_ack(2), b"");
    assert_eq!(subflows_with_fin(&script.drain()), [0]);
    // So do the FINs of the subflow.
    let seq = script.subflows[0].seq;
    script.subflows[0].ack = ack;
    script.send(0, FIN.with(ACK), script.data_ack(2), b"");
    script.subflows[0].ack = ack.wrapping_add(1);
    assert_eq!(script.subflows[0].seq, seq.wrapping_add(1));
    script.send(0, ACK, script.data_ack(2), b"");
    assert_eq!(script.closed, Some(Ok(())));
}

#[test]
fn a_fin_ends_its_subflow_alone() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    script.send(0, FIN.with(ACK), script.data_ack(1), b"");
    assert_eq!(subflows_with_fin(&script.drain()), [0], "it is answered");
    script.send_data(subflow, 1, b"more");
    assert_eq!(script.read(), b"more");
    assert_eq!(script.closed, None);
}

#[test]
fn a_connection_outlives_its_last_subflow_for_a_while() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    script.send(0, RST.with(ACK), Options::default(), b"");
    assert_eq!(script.closed, None);
    script.wait(seconds(30));
    // Break before make: data in flight is reinjected on the new one.
    let subflow = script.begin_join(1);
    script.send(subflow, ACK, mptcp(script.join_ack()), b"");
    script.send(subflow, ACK, script.data_ack(1), b"");
    script.wait(seconds(1));
    assert!(
        script
            .drain()
            .iter()
            .any(|(index, segment)| *index == subflow && payload(segment) == b"hello")
    );
    script.send_data(subflow, 1, b"world");
    assert_eq!(script.read(), b"world");

    let mut script = Script::accepted(config());
    script.send(0, RST.with(ACK), Options::default(), b"");
    script.wait(seconds(61));
    assert_eq!(script.closed, Some(Err(ConnectionError::NoPath)));
}

#[test]
fn an_abort_puts_the_peers_key_on_a_rst_of_every_subflow() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    script.abort();
    let segments = script.drain();
    for expected in [0, subflow] {
        let (_, reset) = segments.iter().find(|(index, _)| *index == expected).unwrap();
        assert!(reset.flags.contains(RST));
        assert_eq!(fast_close_key(reset), Some(PEER_KEY));
    }
    assert_eq!(script.closed, Some(Err(ConnectionError::Aborted)));
    // The connection is forgotten: any segment gets RST, including MP_FASTCLOSE.
    let mut options = Options::default();
    options.mptcp.push(MptcpOption::FastClose { key: script.host_key });
    script.send(0, ACK, options, b"");
    assert!(script.expect_on(0).flags.contains(RST));
}

#[test]
fn mp_fastclose_with_our_key_ends_everything_and_with_another_nothing() {
    for (flags, wrong_key) in
        [(ACK, false), (ACK, true), (RST.with(ACK), false), (RST.with(ACK), true)]
    {
        let mut script = Script::accepted(config());
        let subflow = script.join(1);
        let key = script.host_key ^ u64::from(wrong_key);
        script.send(0, flags, mptcp(MptcpOption::FastClose { key }), b"");
        let segments = script.drain();
        if wrong_key {
            assert_eq!(script.closed, None);
            script.send_data(subflow, 1, b"alive");
            assert_eq!(script.read(), b"alive");
            continue;
        }
        assert_eq!(script.closed, Some(Err(ConnectionError::Reset)));
        assert!(
            segments
                .iter()
                .any(|(index, segment)| *index == subflow && segment.flags.contains(RST))
        );
        let was_reset =
            segments.iter().any(|(index, segment)| *index == 0 && segment.flags.contains(RST));
        assert_eq!(was_reset, flags == ACK);
    }
}

#[test]
fn mp_fastclose_counts_only_where_tcp_agrees() {
    let mut script = Script::accepted(config());
    let key = script.host_key;
    for flags in [ACK, RST] {
        let segment = script.segment(0, flags, mptcp(MptcpOption::FastClose { key }), b"");
        script.inject(&Segment { seq: segment.seq.wrapping_add(100_000), ..segment });
    }
    assert_eq!(script.closed, None);
}

#[test]
fn data_for_a_plain_connection_that_was_closed_in_both_directions_is_answered_by_rst() {
    for released in [false, true] {
        let mut script = Script::server(ConnectionConfig { multipath: false, ..config() });
        script.send(0, SYN, Options::default(), b"");
        let _ = script.expect();
        script.send(0, ACK, Options::default(), b"");
        script.write(b"last words");
        if released {
            script.stack.release(script.now, script.id.unwrap());
        } else {
            script.shutdown();
        }
        let segments = script.drain();
        assert_eq!(subflows_with_fin(&segments), [0]);
        // A pure acknowledgement is accepted.
        script.send(0, ACK, Options::default(), b"");
        script.expect_silence();
        script.send(0, ACK, Options::default(), b"who reads this?");
        let reply = script.expect();
        assert_eq!(reply.flags.contains(RST), released, "{reply:?}");
        assert_eq!(script.stack.is_idle(), released);
    }
}

#[test]
fn a_close_that_loses_unread_data_sends_a_rst() {
    for (multipath, was_read) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut script;
        if multipath {
            script = Script::accepted(config());
            script.send_data(0, 1, b"unread");
        } else {
            script = Script::server(ConnectionConfig { multipath, ..config() });
            script.send(0, SYN, Options::default(), b"");
            let _ = script.expect();
            script.send(0, ACK, Options::default(), b"");
            script.send(0, ACK, Options::default(), b"unread");
        }
        if was_read {
            assert_eq!(script.read(), b"unread");
        }
        let _ = script.drain();
        script.stack.release(script.now, script.id.unwrap());
        script.collect_output();
        let segments = script.drain();
        let rst = segments.iter().find(|(_, segment)| segment.flags.contains(RST));
        assert_eq!(rst.is_some(), !was_read, "{segments:?}");
        assert_eq!(
            rst.is_some_and(|(_, rst)| fast_close_key(rst).is_some()),
            multipath && !was_read
        );
        assert_eq!(script.stack.is_idle(), !was_read);
    }
}

#[test]
fn keys_are_sent_in_handshakes_and_aborts_only() {
    let mut script = Script::connected(config());
    script.write(b"hello");
    script.send(0, ACK, script.data_ack(6), b"");
    script.shutdown();
    script.send(0, ACK, script.data_fin(1, 7), b"");
    script.wait(seconds(5));
    let has_key = |option: &MptcpOption| {
        matches!(option, MptcpOption::FastClose { .. } | MptcpOption::Capable(MpCapable { .. }))
    };
    let segments = script.drain();
    assert!(!segments.is_empty());
    assert!(!segments.iter().any(|(_, segment)| segment.options.mptcp.iter().any(has_key)));
}

#[test]
fn mp_tcprst_without_a_rst_resets_nothing() {
    let mut script = Script::accepted(config());
    let mut options = script.data_ack(1);
    options.mptcp.push(MptcpOption::Reset(MPTCP_ERROR));
    script.send(0, ACK, options, b"");
    script.send_data(0, 1, b"alive");
    assert_eq!(script.read(), b"alive");
}
