//! §3.3: mappings, data acknowledgements and windows.

use std::collections::BTreeMap;

use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_mptcp::keys;
use towpath_mptcp::stack::StackNotice;
use towpath_mptcp::subflow::CloseReason;
use towpath_mptcp::wire::{
    DataAck, Dss, DssMapping, Flags, MpCapable, MptcpOption, Options, Segment,
};

use crate::script::*;

/// Returns data offset, subflow offset and length of a mapping of the host.
fn mapping(script: &Script, segment: &Segment) -> Option<(u64, u32, u16)> {
    let DssMapping { dsn, ssn, len, .. } = segment.options.dss?.mapping?;
    let DataAck::Long(dsn) = dsn else { panic!("32 bits") };
    Some((dsn.wrapping_sub(keys::initial_dsn(script.host_key)), ssn, len))
}

fn has_data(segment: &Segment) -> bool {
    !segment.payload.is_empty()
}

/// Returns the right edge of the window that the host offers, in data offsets; its scale is 4 for a
/// buffer of 1 MB.
fn edge(segment: &Segment) -> u64 {
    data_acked(segment).unwrap() + (u64::from(segment.window) << 4)
}

#[test]
fn every_segment_with_data_has_a_mapping_that_covers_it() {
    let mut script = Script::accepted(config());
    script.write(&vec![7; 10_000]);
    let sent = script.drain();
    assert!(sent.len() >= 7);
    for (line, segment) in &sent {
        let (dsn, ssn, len) = mapping(&script, segment).unwrap();
        assert_eq!(u64::from(ssn), dsn, "on the first subflow they count alike");
        let at = segment.seq.wrapping_sub(script.lines[*line].host_isn);
        let end = at + u32::try_from(segment.payload.len()).unwrap();
        assert!(ssn < end && at < ssn + u32::from(len));
    }
}

#[test]
fn a_mapping_is_unchanged_on_retransmission() {
    let mut script = Script::accepted(config());
    let mut seen = BTreeMap::new();
    script.write(&[7; 2_000]);
    script.wait(millis(50));
    script.write(&[8; 2_000]);
    script.wait(seconds(20));
    let sent = script.drain();
    assert!(sent.len() > 8, "it is repeated");
    for (_, segment) in sent.iter().filter(|(_, segment)| has_data(segment)) {
        let (dsn, ssn, len) = mapping(&script, segment).unwrap();
        let first = *seen.entry(ssn).or_insert((dsn, len));
        assert_eq!(first, (dsn, len));
    }
}

#[test]
fn short_numbers_are_understood_and_answered_by_long_ones() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    let ack = Some(DataAck::Short(script.host_dsn(6) as u32));
    let short =
        DssMapping { dsn: DataAck::Short(peer_dsn(1) as u32), ssn: 1, len: 3, checksum: None };
    script.send(0, ACK, dss(Dss { data_fin: false, data_ack: ack, mapping: Some(short) }), b"abc");
    assert_eq!(data_acked(&script.expect()), Some(4));
    assert_eq!(script.read(), b"abc");
    assert_eq!(script.status().acked_bytes, 5);
}

#[test]
fn the_first_copy_of_overlapping_data_is_delivered() {
    let mut script = Script::accepted(config());
    script.data(0, 1, b"AAAA");
    script.data(0, 3, b"BBBB");
    script.data(0, 1, b"CC");
    assert_eq!(script.read(), b"AAAABB");
}

#[test]
fn data_without_a_mapping_is_acknowledged_on_its_subflow_alone() {
    let mut script = Script::accepted(config());
    let start = script.lines[0].seq;
    script.send(0, ACK, script.data_ack(1), b"hello");
    let sent = script.expect();
    assert_eq!((sent.ack, data_acked(&sent)), (start.wrapping_add(5), Some(1)));
    assert_eq!(script.read(), b"");
    script.send(0, ACK, script.map_at(1, 1, 5), b"");
    assert_eq!(script.read(), b"hello");
}

#[test]
fn a_subflow_on_which_mappings_stop_coming_is_reset() {
    let mut script = Script::accepted(config());
    let line = script.join(1);
    let mut reset = None;
    for _ in 0..300 {
        script.send(line, ACK, script.data_ack(1), &[1; 1_400]);
        let sent = script.drain();
        reset = sent.into_iter().find(|(_, segment)| segment.flags.contains(RST));
        if reset.is_some() {
            break;
        }
    }
    let (on, reset) = reset.unwrap();
    assert_eq!((on, reset_of(&reset)), (line, Some(MIDDLEBOX)));
    script.data(0, 1, b"the other lives");
    assert_eq!(script.read(), b"the other lives");
}

#[test]
fn data_outside_the_window_is_dropped_and_not_acknowledged() {
    let mut script = Script::accepted(config());
    script.data(0, 80_000, &[1; 1_000]);
    assert_eq!(data_acked(&script.expect()), Some(1));
    assert_eq!(script.status().reorder_bytes, 0, "nothing is kept");
    // The subflow is far ahead of its data; only the data number decides.
    script.data(0, 1, b"inside");
    assert_eq!(script.read(), b"inside");
}

#[test]
fn data_beyond_the_subflow_window_is_dropped_for_any_dsn() {
    let mut script = Script::accepted(config());
    let at = script.lines[0].seq;
    script.lines[0].seq = at.wrapping_add(70_000);
    script.data(0, 1, b"far ahead");
    let answer = script.expect();
    assert_eq!((answer.ack, data_acked(&answer)), (at, Some(1)));
    assert_eq!(script.status().reorder_bytes, 0);
}

#[test]
fn an_acknowledgement_of_unsent_data_is_ignored() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    for until in [7, 100, 1 << 40, u64::MAX - 5] {
        script.send(0, ACK, script.data_ack(until), b"");
        assert_eq!(script.status().acked_bytes, 0);
    }
    script.send(0, ACK, script.data_ack(6), b"");
    assert_eq!(script.status().acked_bytes, 5);
}

#[test]
fn a_window_without_a_data_ack_does_not_count_for_the_connection() {
    let mut script = Script::server(config());
    script.lines[0].window = 50;
    script.send(0, SYN, mptcp(offer()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    script.send(0, ACK, mptcp(script.third()), b"");
    // One DATA_ACK for data is required: before it, an acknowledgement of data without one means
    // plain TCP (§3.7).
    script.write(b"hello");
    let _ = script.drain();
    script.send(0, ACK, script.data_ack(6), b"");
    script.write(&vec![1; 50_000]);
    let bytes = |sent: &[(usize, Segment)]| -> usize {
        sent.iter().map(|(_, segment)| segment.payload.len()).sum()
    };
    let mut sent = script.drain();
    script.lines[0].window = 1_000;
    script.send(0, ACK, mptcp(MptcpOption::Priority { backup: false }), b"");
    script.send(0, ACK, Options::default(), b"");
    sent.extend(script.drain());
    assert!((5_000..=6_400).contains(&bytes(&sent)), "{}", bytes(&sent));
    script.send(0, ACK, script.data_ack(6), b"");
    assert!(bytes(&script.drain()) > 0);
}

#[test]
fn segments_without_a_data_ack_are_accepted() {
    let mut script = Script::accepted(config());
    let DssMapping { .. } = script.map(0, 1, 5).dss.unwrap().mapping.unwrap();
    let mapping = script.map(0, 1, 5).dss.unwrap().mapping;
    script.send(0, ACK, dss(Dss { data_fin: false, data_ack: None, mapping }), b"hello");
    assert_eq!(script.read(), b"hello");
}

#[test]
fn a_data_ack_names_the_first_missing_byte() {
    let mut script = Script::accepted(config());
    let line = script.join(1);
    script.data(line, 6, b"second");
    assert_eq!(data_acked(&script.expect()), Some(1));
    script.data(0, 1, b"first");
    assert_eq!(data_acked(&script.expect()), Some(12));
}

#[test]
fn the_right_edge_of_the_shared_window_never_moves_back() {
    let receive_buffer = ReceiveBuffer {
        mode: ReceiveBufferMode::Fixed,
        initial_bytes: 1_000_000,
        max_bytes: 1_000_000,
        window_share: WindowShare::Percent(100),
    };
    let mut script = Script::accepted(ConnectionConfig { receive_buffer, ..config() });
    let other = script.join(1);
    let (mut offset, mut highest) = (1, 0);
    for step in 0..400_u64 {
        let line = if step % 3 == 0 { other } else { 0 };
        let bytes = 1 + step * 37 % 1_400;
        script.data(line, offset, &vec![1; usize::try_from(bytes).unwrap()]);
        offset += bytes;
        for (_, segment) in script.drain() {
            assert!(edge(&segment) >= highest, "step {step}: {} < {highest}", edge(&segment));
            highest = edge(&segment);
        }
        if step % 50 == 49 {
            let _ = script.read();
        }
    }
    assert!(highest < offset + 1_000_000 + 400 * 1_024);
}

#[test]
fn the_largest_window_counts_for_the_connection_and_each_for_its_subflow() {
    let mut script = Script::accepted(config());
    let narrow = script.add_line(
        std::net::SocketAddr::new(host(1), PORT),
        std::net::SocketAddr::new(peer(1), 6_000),
    );
    script.lines[narrow].window = 25;
    script.send(narrow, SYN, mptcp(script.join_syn(2)), b"");
    let _ = script.expect_on(narrow);
    script.send(narrow, ACK, mptcp(script.join_ack()), b"");
    script.send(narrow, ACK, script.data_ack(1), b"");
    let _ = script.drain();
    script.write(&vec![1; 100_000]);
    let sent = script.drain();
    let bytes = |line: usize| -> usize {
        let on = sent.iter().filter(|(on, _)| *on == line);
        on.map(|(_, segment)| segment.payload.len()).sum()
    };
    assert!((1..=3_200).contains(&bytes(narrow)), "{}", bytes(narrow));
    assert!(bytes(0) > 10_000, "{}", bytes(0));
}

/// The script `mptcp/window-overstepped`, with the switch.
#[test]
fn a_raised_window_is_used_only_if_oversteps_are_allowed() {
    for (oversteps_peer_window, bytes) in [(false, 16 << 7), (true, 24 << 7)] {
        let config = ConnectionConfig {
            exceeds_peer_window: oversteps_peer_window,
            ..ConnectionConfig::linux_6_18()
        };
        let mut script = Script::server(config);
        script.lines[0].window = 32;
        script.send(0, SYN, mptcp(offer()), b"");
        script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
        script.send(0, ACK, mptcp(script.third()), b"");
        script.send(0, ACK, script.data_ack(1), b"");
        let answer = |script: &mut Script, acked: u32, window: u16, data_acked: u64| {
            script.lines[0].ack = script.lines[0].host_isn.wrapping_add(acked);
            script.lines[0].window = window;
            script.send(0, ACK, script.data_ack(data_acked), b"");
        };
        script.write(&[1; 1_024]);
        let _ = script.expect();
        answer(&mut script, 1_025, 8, 1);
        // The connection's window ends at 4097, the subflow's at 2049: it is raised to 24 units.
        script.write(&[1; 1_024]);
        let _ = script.expect();
        answer(&mut script, 1_025, 8, 2_049);
        answer(&mut script, 2_049, 8, 2_049);
        script.write(&[1; 8_000]);
        let sent = script.drain();
        assert_eq!(sent.iter().map(|(_, segment)| segment.payload.len()).sum::<usize>(), bytes);
    }
}

#[test]
fn data_acked_data_is_still_retransmitted_on_its_subflow() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let first = script.expect();
    script.lines[0].ack = first.seq;
    script.send(0, ACK, script.data_ack(6), b"");
    assert_eq!(script.status().acked_bytes, 5);
    script.wait(seconds(3));
    let again = script.expect();
    assert_eq!((again.seq, payload(&again)), (first.seq, b"hello".to_vec()));
    assert_eq!(mapping(&script, &again), Some((1, 1, 5)));
}

#[test]
fn data_acknowledged_only_by_its_subflow_is_reinjected() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.expect();
    script.send(0, ACK, script.data_ack(1), b"");
    assert_eq!(script.status().acked_bytes, 0);
    script.wait(seconds(3));
    let again = script.expect();
    assert_eq!((mapping(&script, &again), payload(&again)), (Some((1, 6, 5)), b"hello".to_vec()));
}

#[test]
fn a_reset_ends_only_its_subflow_and_its_data_is_reinjected() {
    let mut script = Script::accepted(config());
    let line = script.join(1);
    script.write(&vec![1; 40_000]);
    let lost: u64 = script
        .drain()
        .iter()
        .filter(|(on, _)| *on == 0)
        .filter_map(|(_, segment)| mapping(&script, segment))
        .map(|(_, _, len)| u64::from(len))
        .sum();
    assert!(lost > 0);
    let ack = script.lines[line].ack;
    script.send(0, RST.with(ACK), Options::default(), b"");
    assert_eq!(script.closed, None);
    let closed = StackNotice::SubflowClosed {
        path: towpath_multipath::PathId(0),
        number: 0,
        reason: CloseReason::Reset,
    };
    assert!(script.notices.contains(&closed), "{:?}", script.notices);
    script.lines[line].ack = ack;
    script.send(line, ACK, script.data_ack(1), b"");
    let again = script.drain();
    assert!(again.iter().any(|(on, segment)| *on == line
        && mapping(&script, segment).is_some_and(|(dsn, _, _)| dsn == 1)));
    assert_eq!(script.status().local, script.lines[0].host, "what the application sees stays");
}

#[test]
fn urgent_data_is_data() {
    let mut script = Script::accepted(config());
    let map = script.map(0, 1, 6);
    script.send(0, ACK.with(Flags::URG), map, b"urgent");
    assert_eq!(script.read(), b"urgent");
    script.write(b"hello");
    assert!(script.drain().iter().all(|(_, segment)| !segment.flags.contains(Flags::URG)));
}

#[test]
fn a_checksum_that_was_not_agreed_on_or_is_missing_resets_the_subflow() {
    for agreed in [false, true] {
        let mut script = Script::accepted(ConnectionConfig { checksum: agreed, ..config() });
        let line = script.join(1);
        let mut options = script.map(line, 1, 5);
        let payload = towpath_mptcp::wire::Payload::from(bytes::Bytes::from_static(b"hello"));
        let right = keys::dss_checksum(peer_dsn(1), 1, 5, &payload);
        options.dss.as_mut().unwrap().mapping.as_mut().unwrap().checksum =
            (!agreed).then_some(right);
        script.send(line, ACK, options, b"hello");
        assert_eq!(reset_of(&script.expect_on(line)), Some(MPTCP_ERROR), "agreed: {agreed}");
        assert_eq!(script.read(), b"");
    }
    // The same for a mapping under MP_CAPABLE.
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(offer()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    let keys =
        MpCapable { receiver_key: Some(script.host_key), data: Some((5, Some(1))), ..answered() };
    script.send(0, ACK, mptcp(MptcpOption::Capable(keys)), b"hello");
    assert_eq!(reset_of(&script.expect()), Some(MPTCP_ERROR));
}

#[test]
fn duplicate_acks_with_options_do_not_signal_congestion() {
    let mut script = Script::accepted(config());
    script.write(&vec![1; 10_000]);
    let sent = script.drain();
    script.lines[0].ack = sent[0].1.seq;
    for backup in [true, false, true, false, true, false] {
        let mut options = script.data_ack(1);
        options.mptcp.push(MptcpOption::Priority { backup });
        script.send(0, ACK, options, b"");
    }
    script.silence();
    assert_eq!(script.status().subflows[0].tcp.retransmissions, 0);
    // Without options they are.
    for _ in 0..4 {
        script.send(0, ACK, script.data_ack(1), b"");
    }
    assert_eq!(script.expect().seq, sent[0].1.seq);
}

#[test]
fn a_subflow_that_never_answers_is_given_up_and_the_connection_lives() {
    let mut config = config();
    config.subflow.retries = 4;
    let mut script = Script::accepted(config);
    script.write(b"hello");
    script.wait(seconds(30));
    let given_up = |notice: &StackNotice| {
        matches!(notice, StackNotice::SubflowClosed { reason: CloseReason::TimedOut, .. })
    };
    assert!(script.notices.iter().any(given_up), "{:?}", script.notices);
    assert_eq!(script.closed, None);
}

#[test]
fn the_send_buffers_of_both_profiles_hold_a_full_receive_window() {
    for config in [ConnectionConfig::linux(), ConnectionConfig::ideal()] {
        let ReceiveBuffer { max_bytes, window_share, .. } = config.receive_buffer;
        let percent = match window_share {
            WindowShare::Percent(percent) => percent,
            WindowShare::LinuxPackets => 100,
        };
        let window = max_bytes * u64::from(percent) / 100;
        assert!(config.send_buffer_bytes >= window);
    }
}
