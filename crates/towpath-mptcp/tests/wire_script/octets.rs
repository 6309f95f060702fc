//! Tests beyond scripts: raw octets of packets, and times longer than a kernel's test can wait.

use std::time::Duration;

use bytes::Bytes;
use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{ConnectionError, InterfaceId};
use towpath_wire::{Ecn, Flags, IcmpKind, Options, Packet, Segment, Timestamps};

use crate::script::*;

fn plain_tcp() -> ConnectionConfig {
    ConnectionConfig { multipath: false, ..config() }
}

fn timestamps(value: u32, echo: u32) -> Options {
    Options { timestamps: Some(Timestamps { value, echo }), ..Options::default() }
}

/// Opens plain TCP with timestamps; also returns the timestamp value of the host's SYN.
fn open_with_timestamps(config: ConnectionConfig) -> (Script, u32) {
    let mut script = Script::client(config);
    let host_timestamp = script.expect().options.timestamps.map_or(0, |option| option.value);
    script.send(0, SYN.with(ACK), timestamps(1_000_000, host_timestamp), b"");
    script.send(0, ACK, timestamps(1_000_000, host_timestamp), b"");
    let _ = script.drain();
    (script, host_timestamp)
}

/// Returns the sum of 16-bit words, which is all ones if a checksum is correct (RFC 1071).
fn ones_complement_sum(parts: &[&[u8]]) -> u16 {
    let bytes = parts.concat();
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
    }
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[test]
fn every_packet_has_right_checksums_and_is_not_to_be_fragmented() {
    let mut script = Script::accepted(ConnectionConfig { checksum: true, ..config() });
    let mut data = Bytes::from(vec![3; 9_999]);
    assert_eq!(script.stack.write(script.now, script.id.unwrap(), &mut data), 9_999);
    let mut packets = 0;
    while let Some((_, packet)) = script.stack.poll_transmit(script.now) {
        for packet in packet.split() {
            let bytes = packet.to_vec();
            let (ip, tcp) = bytes.split_at(20);
            let len = (tcp.len() as u16).to_be_bytes();
            assert_eq!(ones_complement_sum(&[ip]), 0xffff, "{packet:?}");
            assert_eq!(
                ones_complement_sum(&[&ip[12..20], &[0, 6], &len, tcp]),
                0xffff,
                "{packet:?}"
            );
            assert_eq!(ip[6] & 0x60, 0x40, "{packet:?}");
            packets += 1;
        }
    }
    assert!(packets >= 7, "{packets}");
}

#[test]
fn source_quench_is_discarded() {
    let (mut script, _) = open_with_timestamps(plain_tcp());
    script.write(&[1; 1_000]);
    let packet = Packet::emit(&script.expect(), 1);
    let router = "10.0.0.254".parse().unwrap();
    let mut quench = IcmpKind::TooBig { mtu: 576 }.emit(router, &packet).unwrap().to_vec();
    // Source quench: type 4 instead of 3, and no other field.
    quench[20..28].copy_from_slice(&[4, 0, 0, 0, 0, 0, 0, 0]);
    let checksum = !ones_complement_sum(&[&quench[20..]]);
    quench[22..24].copy_from_slice(&checksum.to_be_bytes());
    let status_before = format!("{:?}", script.status());
    if let Ok(packet) = Packet::from_bytes(&quench.into(), false, 0) {
        script.stack.handle_packet(script.now, InterfaceId(0), packet);
    }
    script.expect_silence();
    assert_eq!(format!("{:?}", script.status()), status_before);
}

#[test]
fn segments_received_together_are_acknowledged_once() {
    let (mut script, host_timestamp) = open_with_timestamps(plain_tcp());
    for part in 0..4 {
        let segment = script.segment(0, ACK, timestamps(1_000_001, host_timestamp), &[part; 700]);
        script.subflows[0].seq = script.subflows[0].seq.wrapping_add(700);
        script.stack.handle_packet(script.now, InterfaceId(0), Packet::emit(&segment, 0));
    }
    let acks = script.drain();
    assert_eq!(acks.len(), 1, "{acks:?}");
    assert_eq!(acks[0].1.ack, script.subflows[0].seq);
}

#[test]
fn the_right_edge_of_the_window_never_moves_back() {
    let mut script =
        Script::client(ConnectionConfig { multipath: false, ..ConnectionConfig::linux_6_18() });
    let syn = script.expect();
    let host_timestamp = syn.options.timestamps.unwrap().value;
    let scale = syn.options.window_scale.unwrap();
    script.send(0, SYN.with(ACK), timestamps(1_000_000, host_timestamp), b"");
    let _ = script.drain();
    let (mut edge, mut closed) = (0, false);
    for round in 0_u32..300 {
        let size = [1_448, 100, 700, 1][round as usize % 4];
        script.send(0, ACK, timestamps(1_000_000 + round, host_timestamp), &vec![1; size]);
        if round % 50 == 49 {
            let _ = script.read();
        }
        script.wait(millis(100));
        for (_, ack) in script.drain() {
            let acked = ack.ack.wrapping_sub(script.subflows[0].peer_isn);
            let new_edge = acked + (u32::from(ack.window) << scale);
            assert!(new_edge >= edge, "{round}: {new_edge} after {edge}");
            (edge, closed) = (new_edge, closed || ack.window == 0);
        }
    }
    assert!(edge > 200_000, "{edge}");
}

#[test]
fn the_clock_of_timestamps_counts_milliseconds() {
    let (mut script, host_timestamp) = open_with_timestamps(plain_tcp());
    let mut last_timestamp = host_timestamp;
    for pause in [1, 10, 1_000, 86_400_000_u64] {
        script.wait(Duration::from_millis(pause));
        script.write(&[1; 10]);
        let segment = script.expect();
        let timestamp = segment.options.timestamps.unwrap().value;
        assert_eq!(u64::from(timestamp.wrapping_sub(last_timestamp)), pause);
        script.send(0, ACK, timestamps(1_000_001, timestamp), b"");
        last_timestamp = timestamp;
    }
}

#[test]
fn after_24_days_of_silence_any_timestamp_is_new() {
    let (mut script, host_timestamp) = open_with_timestamps(plain_tcp());
    script.send(0, ACK, timestamps(2_000_000, host_timestamp), b"first");
    let old_segment = script.segment(0, ACK, timestamps(1_000_000, host_timestamp), b"second");
    script.inject(&old_segment);
    assert_eq!(script.read(), b"first");
    script.wait(seconds(25 * 86_400));
    script.inject(&old_segment);
    assert_eq!(script.read(), b"second");
}

#[test]
fn data_without_answer_is_not_given_up_before_a_hundred_seconds() {
    let (mut script, _) = open_with_timestamps(ConnectionConfig {
        multipath: false,
        ..ConnectionConfig::linux_6_18()
    });
    script.write(&[1; 100]);
    script.wait(seconds(100));
    assert_eq!(script.closed, None);
    script.wait(seconds(3_600));
    assert_eq!(script.closed, Some(Err(ConnectionError::TimedOut)));
}

#[test]
fn no_shift_above_14_is_offered() {
    let mut settings = plain_tcp();
    settings.subflow.window_scale = Some(20);
    settings.receive_buffer.max_bytes = 1 << 40;
    assert_eq!(Script::client(settings).expect().options.window_scale, Some(14));
}

#[test]
fn the_maximum_rto_is_between_one_and_two_minutes() {
    let (mut script, _) = open_with_timestamps(ConnectionConfig {
        multipath: false,
        ..ConnectionConfig::linux_6_18()
    });
    script.write(&[1; 100]);
    let _ = script.drain();
    let (mut last_sent_at, mut max_interval) = (script.now, Duration::ZERO);
    while script.closed.is_none() {
        script.wait(millis(4));
        if !script.drain().is_empty() && script.closed.is_none() {
            max_interval = max_interval.max(script.now.saturating_since(last_sent_at));
            last_sent_at = script.now;
        }
    }
    assert!((seconds(60)..=seconds(121)).contains(&max_interval), "{max_interval:?}");
}

#[test]
fn after_a_routers_message_nothing_larger_is_tried_for_five_minutes() {
    let (mut script, host_timestamp) = open_with_timestamps(plain_tcp());
    script.write(&[1; 1_448]);
    let packet = Packet::emit(&script.expect(), 1);
    let error = IcmpKind::TooBig { mtu: 1_000 }.emit("10.0.0.254".parse().unwrap(), &packet);
    script.stack.handle_packet(script.now, InterfaceId(0), error.unwrap());
    for _ in 0..60 {
        let segments = script.drain();
        assert!(segments.iter().all(|(_, segment)| segment.payload.len() <= 948), "{segments:?}");
        script.send(0, ACK, timestamps(1_000_001, host_timestamp), b"");
        script.wait(seconds(5));
        script.write(&[1; 4_000]);
    }
}

/// Opens a connection with ECN.
fn connected_with_ecn(config: ConnectionConfig) -> Script {
    let mut config = ConnectionConfig { multipath: false, ..config };
    (config.subflow.ecn, config.subflow.timestamps) = (true, false);
    let mut script = Script::client(config);
    let syn = script.expect().flags;
    assert!(syn.contains(Flags::ECE) && syn.contains(Flags::CWR));
    script.send(0, SYN.with(ACK).with(Flags::ECE), Options::default(), b"");
    script.send(0, ACK, Options::default(), b"");
    let _ = script.drain();
    script
}

#[test]
fn acknowledgements_with_ece_do_not_widen_the_window() {
    let mut script = connected_with_ecn(config());
    let window = |script: &Script| script.status().subflows[0].tcp.cwnd_bytes;
    let initial_window = window(&script);
    script.write(&vec![1; 14_600]);
    let start = script.subflows[0].ack.wrapping_sub(14_600);
    let _ = script.drain();
    let end = script.subflows[0].ack;
    for packet in 1..=10 {
        script.subflows[0].ack = start.wrapping_add(packet * 1_460);
        script.send(0, ACK.with(Flags::ECE), Options::default(), b"");
        assert!(window(&script) <= initial_window, "{packet}");
    }
    assert_eq!(script.subflows[0].ack, end);
    assert!(window(&script) < initial_window);
}

#[test]
fn the_mark_of_a_window_probe_is_echoed() {
    let mut settings = config();
    settings.receive_buffer.initial_bytes = 2_000;
    settings.receive_buffer.max_bytes = 2_000;
    let mut script = connected_with_ecn(settings);
    script.send(0, ACK, Options::default(), &[1; 2_000]);
    let ack = script.expect();
    assert!(ack.window == 0 && !ack.flags.contains(Flags::ECE));
    let probe = script.segment(0, ACK, Options::default(), &[1]);
    script.inject(&Segment { ecn: Ecn::Marked, ..probe });
    assert!(script.expect().flags.contains(Flags::ECE));
}
