//! §3.3: mappings, data acknowledgements and windows.

use std::collections::BTreeMap;

use towpath_mptcp::connection::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
use towpath_mptcp::stack::StackNotice;
use towpath_mptcp::subflow::CloseReason;
use towpath_wire::keys;
use towpath_wire::{DataAck, Dss, DssMapping, Flags, MpCapable, MptcpOption, Options, Segment};

use crate::script::*;

/// Returns data offset, subflow offset and length of a mapping of the host.
fn mapping_of(script: &Script, segment: &Segment) -> Option<(u64, u32, u16)> {
    let DssMapping { dsn, ssn, len, .. } = segment.options.dss?.mapping?;
    let DataAck::Long(dsn) = dsn else { panic!("32 bits") };
    Some((dsn.wrapping_sub(keys::initial_dsn(script.host_key)), ssn, len))
}

fn has_data(segment: &Segment) -> bool {
    !segment.payload.is_empty()
}

/// Returns the right edge of the window that the host offers, in data offsets. The window scale is
/// 4 for a buffer of 1 MB.
fn window_edge(segment: &Segment) -> u64 {
    data_acked(segment).unwrap() + (u64::from(segment.window) << 4)
}

#[test]
fn every_segment_with_data_has_a_mapping_that_covers_it() {
    let mut script = Script::accepted(config());
    script.write(&vec![7; 10_000]);
    let segments = script.drain();
    assert!(segments.len() >= 7);
    for (subflow, segment) in &segments {
        let (dsn, ssn, len) = mapping_of(&script, segment).unwrap();
        assert_eq!(u64::from(ssn), dsn, "on the first subflow they count alike");
        let start = segment.seq.wrapping_sub(script.subflows[*subflow].host_isn);
        let end = start + u32::try_from(segment.payload.len()).unwrap();
        assert!(ssn < end && start < ssn + u32::from(len));
    }
}

#[test]
fn a_mapping_is_unchanged_on_retransmission() {
    let mut script = Script::accepted(config());
    let mut mappings_by_ssn = BTreeMap::new();
    script.write(&[7; 2_000]);
    script.wait(millis(50));
    script.write(&[8; 2_000]);
    script.wait(seconds(20));
    let segments = script.drain();
    assert!(segments.len() > 8, "it is repeated");
    for (_, segment) in segments.iter().filter(|(_, segment)| has_data(segment)) {
        let (dsn, ssn, len) = mapping_of(&script, segment).unwrap();
        let first_mapping = *mappings_by_ssn.entry(ssn).or_insert((dsn, len));
        assert_eq!(first_mapping, (dsn, len));
    }
}

#[test]
fn short_numbers_are_understood_and_answered_by_long_ones() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    let data_ack = Some(DataAck::Short(script.host_dsn(6) as u32));
    let mapping =
        DssMapping { dsn: DataAck::Short(peer_dsn(1) as u32), ssn: 1, len: 3, checksum: None };
    script.send(0, ACK, dss(Dss { data_fin: false, data_ack, mapping: Some(mapping) }), b"abc");
    assert_eq!(data_acked(&script.expect()), Some(4));
    assert_eq!(script.read(), b"abc");
    assert_eq!(script.status().acked_bytes, 5);
}

#[test]
fn the_first_copy_of_overlapping_data_is_delivered() {
    let mut script = Script::accepted(config());
    script.send_data(0, 1, b"AAAA");
    script.send_data(0, 3, b"BBBB");
    script.send_data(0, 1, b"CC");
    assert_eq!(script.read(), b"AAAABB");
}

#[test]
fn data_without_a_mapping_is_acknowledged_on_its_subflow_alone() {
    let mut script = Script::accepted(config());
    let start_seq = script.subflows[0].seq;
    script.send(0, ACK, script.data_ack(1), b"hello");
    let ack = script.expect();
    assert_eq!((ack.ack, data_acked(&ack)), (start_seq.wrapping_add(5), Some(1)));
    assert_eq!(script.read(), b"");
    script.send(0, ACK, script.dss_mapping_at(1, 1, 5), b"");
    assert_eq!(script.read(), b"hello");
}

#[test]
fn a_subflow_on_which_mappings_stop_coming_is_reset() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    let mut reset = None;
    for _ in 0..300 {
        script.send(subflow, ACK, script.data_ack(1), &[1; 1_400]);
        let segments = script.drain();
        reset = segments.into_iter().find(|(_, segment)| segment.flags.contains(RST));
        if reset.is_some() {
            break;
        }
    }
    let (index, reset) = reset.unwrap();
    assert_eq!((index, reset_of(&reset)), (subflow, Some(MIDDLEBOX)));
    script.send_data(0, 1, b"the other lives");
    assert_eq!(script.read(), b"the other lives");
}

#[test]
fn data_outside_the_window_is_dropped_and_not_acknowledged() {
    let mut script = Script::accepted(config());
    script.send_data(0, 80_000, &[1; 1_000]);
    assert_eq!(data_acked(&script.expect()), Some(1));
    assert_eq!(script.status().reorder_bytes, 0, "nothing is kept");
    // The subflow is far ahead of its data; only the data number decides.
    script.send_data(0, 1, b"inside");
    assert_eq!(script.read(), b"inside");
}

#[test]
fn data_beyond_the_subflow_window_is_dropped_for_any_dsn() {
    let mut script = Script::accepted(config());
    let start_seq = script.subflows[0].seq;
    script.subflows[0].seq = start_seq.wrapping_add(70_000);
    script.send_data(0, 1, b"far ahead");
    let ack = script.expect();
    assert_eq!((ack.ack, data_acked(&ack)), (start_seq, Some(1)));
    assert_eq!(script.status().reorder_bytes, 0);
}

#[test]
fn an_acknowledgement_of_unsent_data_is_ignored() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.drain();
    for offset in [7, 100, 1 << 40, u64::MAX - 5] {
        script.send(0, ACK, script.data_ack(offset), b"");
        assert_eq!(script.status().acked_bytes, 0);
    }
    script.send(0, ACK, script.data_ack(6), b"");
    assert_eq!(script.status().acked_bytes, 5);
}

#[test]
fn a_window_without_a_data_ack_does_not_count_for_the_connection() {
    let mut script = Script::server(config());
    script.subflows[0].window = 50;
    script.send(0, SYN, mptcp(capable_syn()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    script.send(0, ACK, mptcp(script.capable_ack()), b"");
    // One DATA_ACK for data is required: before it, an acknowledgement of data without one means
    // plain TCP (§3.7).
    script.write(b"hello");
    let _ = script.drain();
    script.send(0, ACK, script.data_ack(6), b"");
    script.write(&vec![1; 50_000]);
    let bytes = |segments: &[(usize, Segment)]| -> usize {
        segments.iter().map(|(_, segment)| segment.payload.len()).sum()
    };
    let mut segments = script.drain();
    script.subflows[0].window = 1_000;
    script.send(0, ACK, mptcp(MptcpOption::Priority { backup: false }), b"");
    script.send(0, ACK, Options::default(), b"");
    segments.extend(script.drain());
    assert!((5_000..=6_400).contains(&bytes(&segments)), "{}", bytes(&segments));
    script.send(0, ACK, script.data_ack(6), b"");
    assert!(bytes(&script.drain()) > 0);
}

#[test]
fn segments_without_a_data_ack_are_accepted() {
    let mut script = Script::accepted(config());
    let DssMapping { .. } = script.dss_mapping(0, 1, 5).dss.unwrap().mapping.unwrap();
    let mapping = script.dss_mapping(0, 1, 5).dss.unwrap().mapping;
    script.send(0, ACK, dss(Dss { data_fin: false, data_ack: None, mapping }), b"hello");
    assert_eq!(script.read(), b"hello");
}

#[test]
fn a_data_ack_names_the_first_missing_byte() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    script.send_data(subflow, 6, b"second");
    assert_eq!(data_acked(&script.expect()), Some(1));
    script.send_data(0, 1, b"first");
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
    let second = script.join(1);
    let (mut offset, mut max_edge) = (1, 0);
    for step in 0..400_u64 {
        let subflow = if step % 3 == 0 { second } else { 0 };
        let bytes = 1 + step * 37 % 1_400;
        script.send_data(subflow, offset, &vec![1; usize::try_from(bytes).unwrap()]);
        offset += bytes;
        for (_, segment) in script.drain() {
            assert!(
                window_edge(&segment) >= max_edge,
                "step {step}: {} < {max_edge}",
                window_edge(&segment)
            );
            max_edge = window_edge(&segment);
        }
        if step % 50 == 49 {
            let _ = script.read();
        }
    }
    assert!(max_edge < offset + 1_000_000 + 400 * 1_024);
}

#[test]
fn the_largest_window_counts_for_the_connection_and_each_for_its_subflow() {
    let mut script = Script::accepted(config());
    let narrow = script.add_subflow(
        std::net::SocketAddr::new(host_address(1), PORT),
        std::net::SocketAddr::new(peer_address(1), 6_000),
    );
    script.subflows[narrow].window = 25;
    script.send(narrow, SYN, mptcp(script.join_syn(2)), b"");
    let _ = script.expect_on(narrow);
    script.send(narrow, ACK, mptcp(script.join_ack()), b"");
    script.send(narrow, ACK, script.data_ack(1), b"");
    let _ = script.drain();
    script.write(&vec![1; 100_000]);
    let segments = script.drain();
    let bytes = |subflow: usize| -> usize {
        let sent_on_subflow = segments.iter().filter(|(index, _)| *index == subflow);
        sent_on_subflow.map(|(_, segment)| segment.payload.len()).sum()
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
        script.subflows[0].window = 32;
        script.send(0, SYN, mptcp(capable_syn()), b"");
        script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
        script.send(0, ACK, mptcp(script.capable_ack()), b"");
        script.send(0, ACK, script.data_ack(1), b"");
        let acknowledge =
            |script: &mut Script, ack_offset: u32, window: u16, data_ack_offset: u64| {
                script.subflows[0].ack = script.subflows[0].host_isn.wrapping_add(ack_offset);
                script.subflows[0].window = window;
                script.send(0, ACK, script.data_ack(data_ack_offset), b"");
            };
        script.write(&[1; 1_024]);
        let _ = script.expect();
        acknowledge(&mut script, 1_025, 8, 1);
        // The connection's window ends at 4097, the subflow's at 2049: it is raised to 24 units.
        script.write(&[1; 1_024]);
        let _ = script.expect();
        acknowledge(&mut script, 1_025, 8, 2_049);
        acknowledge(&mut script, 2_049, 8, 2_049);
        script.write(&[1; 8_000]);
        let segments = script.drain();
        assert_eq!(segments.iter().map(|(_, segment)| segment.payload.len()).sum::<usize>(), bytes);
    }
}

#[test]
fn data_acked_data_is_still_retransmitted_on_its_subflow() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let lost_segment = script.expect();
    script.subflows[0].ack = lost_segment.seq;
    script.send(0, ACK, script.data_ack(6), b"");
    assert_eq!(script.status().acked_bytes, 5);
    script.wait(seconds(3));
    let retransmission = script.expect();
    assert_eq!(
        (retransmission.seq, payload(&retransmission)),
        (lost_segment.seq, b"hello".to_vec())
    );
    assert_eq!(mapping_of(&script, &retransmission), Some((1, 1, 5)));
}

#[test]
fn data_acknowledged_only_by_its_subflow_is_reinjected() {
    let mut script = Script::accepted(config());
    script.write(b"hello");
    let _ = script.expect();
    script.send(0, ACK, script.data_ack(1), b"");
    assert_eq!(script.status().acked_bytes, 0);
    script.wait(seconds(3));
    let reinjection = script.expect();
    assert_eq!(
        (mapping_of(&script, &reinjection), payload(&reinjection)),
        (Some((1, 6, 5)), b"hello".to_vec())
    );
}

#[test]
fn a_reset_ends_only_its_subflow_and_its_data_is_reinjected() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    script.write(&vec![1; 40_000]);
    let lost_bytes: u64 = script
        .drain()
        .iter()
        .filter(|(index, _)| *index == 0)
        .filter_map(|(_, segment)| mapping_of(&script, segment))
        .map(|(_, _, len)| u64::from(len))
        .sum();
    assert!(lost_bytes > 0);
    let ack = script.subflows[subflow].ack;
    script.send(0, RST.with(ACK), Options::default(), b"");
    assert_eq!(script.closed, None);
    let closed = StackNotice::SubflowClosed {
        path: towpath_multipath::PathId(0),
        number: 0,
        reason: CloseReason::Reset,
    };
    assert!(script.notices.contains(&closed), "{:?}", script.notices);
    script.subflows[subflow].ack = ack;
    script.send(subflow, ACK, script.data_ack(1), b"");
    let reinjections = script.drain();
    assert!(reinjections.iter().any(|(index, segment)| *index == subflow
        && mapping_of(&script, segment).is_some_and(|(dsn, _, _)| dsn == 1)));
    assert_eq!(script.status().local, script.subflows[0].host, "what the application sees stays");
}

#[test]
fn urgent_data_is_data() {
    let mut script = Script::accepted(config());
    let mapping = script.dss_mapping(0, 1, 6);
    script.send(0, ACK.with(Flags::URG), mapping, b"urgent");
    assert_eq!(script.read(), b"urgent");
    script.write(b"hello");
    assert!(script.drain().iter().all(|(_, segment)| !segment.flags.contains(Flags::URG)));
}

#[test]
fn a_checksum_that_was_not_agreed_on_or_is_missing_resets_the_subflow() {
    for negotiated in [false, true] {
        let mut script = Script::accepted(ConnectionConfig { checksum: negotiated, ..config() });
        let subflow = script.join(1);
        let mut options = script.dss_mapping(subflow, 1, 5);
        let payload = towpath_wire::Payload::from(bytes::Bytes::from_static(b"hello"));
        let checksum = keys::dss_checksum(peer_dsn(1), 1, 5, &payload);
        options.dss.as_mut().unwrap().mapping.as_mut().unwrap().checksum =
            (!negotiated).then_some(checksum);
        script.send(subflow, ACK, options, b"hello");
        assert_eq!(reset_of(&script.expect_on(subflow)), Some(MPTCP_ERROR), "agreed: {negotiated}");
        assert_eq!(script.read(), b"");
    }
    // The same for a mapping under MP_CAPABLE.
    let mut script = Script::server(config());
    script.send(0, SYN, mptcp(capable_syn()), b"");
    script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
    let keys = MpCapable {
        receiver_key: Some(script.host_key),
        data: Some((5, Some(1))),
        ..mp_capable_with_key()
    };
    script.send(0, ACK, mptcp(MptcpOption::Capable(keys)), b"hello");
    assert_eq!(reset_of(&script.expect()), Some(MPTCP_ERROR));
}

#[test]
fn duplicate_acks_with_options_do_not_signal_congestion() {
    let mut script = Script::accepted(config());
    script.write(&vec![1; 10_000]);
    let segments = script.drain();
    script.subflows[0].ack = segments[0].1.seq;
    for backup in [true, false, true, false, true, false] {
        let mut options = script.data_ack(1);
        options.mptcp.push(MptcpOption::Priority { backup });
        script.send(0, ACK, options, b"");
    }
    script.expect_silence();
    assert_eq!(script.status().subflows[0].tcp.retransmissions, 0);
    // Without options they are.
    for _ in 0..4 {
        script.send(0, ACK, script.data_ack(1), b"");
    }
    assert_eq!(script.expect().seq, segments[0].1.seq);
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
