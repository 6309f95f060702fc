//! Captures that contain packets twice.

use towpath_result::{CapturePoint, Record};
use towpath_trace as trace;
use towpath_trace::CaptureAnalysis;
use towpath_wire::{Flags, Timestamps};

use crate::cut_options::{Family, flow_of};
use crate::packets::*;

/// Time between a packet at its sender and at its receiver.
const ONE_WAY_NS: u64 = 40 * MS;

/// Field that tells copies and retransmissions apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    Identification,
    Timestamps,
    Nothing,
}

/// Returns a TCP connection with 10 packets of data, of which the network loses the fourth and its
/// first retransmission, as captured at the client or at the server.
fn transfer(identity: Identity, family: Family, at_server: bool) -> Capture {
    let flow = flow_of(family, 0);
    let mut capture = Capture::default();
    let mut number = 0;
    let mut add = |at_ms: u64, segment: towpath_wire::Segment, is_lost: bool| {
        let mut segment = segment;
        number += 1;
        if identity == Identity::Timestamps {
            segment.options.timestamps = Some(Timestamps { value: at_ms as u32, echo: 1 });
        }
        let id = if identity == Identity::Identification { number } else { 0 };
        let is_sent_here = (segment.source == flow.server) == at_server;
        if is_sent_here || !is_lost {
            let delay_ns = if is_sent_here { 0 } else { ONE_WAY_NS };
            capture.add_with_id(at_ms * MS + delay_ns, &segment, id);
        }
    };
    let none = towpath_wire::Options::default;
    add(1_000, flow.up(0, 0, Flags::SYN, 0, none()), false);
    add(1_040, flow.down(0, 1, SYN_ACK, 0, none()), false);
    add(1_080, flow.up(1, 1, Flags::ACK, 0, none()), false);
    for index in 0..10 {
        let segment = flow.up(1 + index * 1_000, 1, Flags::ACK, 1_000, none());
        add(1_100 + u64::from(index), segment, index == 3);
    }
    add(1_300, flow.up(3_001, 1, Flags::ACK, 1_000, none()), true);
    add(1_600, flow.up(3_001, 1, Flags::ACK, 1_000, none()), false);
    add(1_640, flow.down(1, 10_001, Flags::ACK, 0, none()), false);
    capture
}

fn merged(identity: Identity, family: Family) -> Capture {
    let mut merged = transfer(identity, family, false);
    merged.packets.extend(transfer(identity, family, true).packets);
    merged.packets.sort_by_key(|(at_ns, _)| *at_ns);
    merged
}

fn warning_texts(trace: &CaptureAnalysis) -> Vec<String> {
    trace.warnings().into_iter().map(|warning| warning.text).collect()
}

#[test]
fn merged_captures_of_both_hosts_count_each_packet_once() {
    let cases = [
        (Identity::Identification, Family::Ipv4),
        (Identity::Timestamps, Family::Ipv4),
        (Identity::Timestamps, Family::Ipv6),
    ];
    for (identity, family) in cases {
        let trace = merged(identity, family).trace();
        let connection = only_connection(&trace);
        let up = &connection.directions[0];
        let case = format!("{identity:?} {family:?} {up:?}");
        assert_eq!(up.bytes, 10_000, "{case}");
        assert_eq!(up.retransmitted_bytes, 2_000, "{case}");
        assert_eq!((up.rtt, up.capture_point), (None, CapturePoint::Between), "{case}");
        let subflow = &connection.subflows[0];
        assert_eq!(subflow.directions[0].retransmitted_packets, 2, "{case}");
        assert_eq!(subflow.directions[0].packets, 14, "{case}");
        assert_eq!((subflow.syns, subflow.directions[0].rtt), (1, None), "{case}");
        assert_eq!(connection.copied_packets, 14, "{case}");
        assert!(connection.leaves_undecided("rtt"), "{case}");
        // A page draws no round-trip times either.
        let records = trace.run("capture", 10).records;
        let srtts: Vec<u32> = { records.iter() }
            .filter_map(|record| {
                let Record::Subflow(subflow) = record else { return None };
                Some(subflow.srtt_us)
            })
            .collect();
        assert!(!srtts.is_empty() && srtts.iter().all(|srtt_us| *srtt_us == 0), "{srtts:?}");
        let warnings = warning_texts(&trace);
        assert!(warnings[0].starts_with("14 packets are in the capture twice"), "{warnings:?}");
        assert_eq!(warnings.iter().filter(|text| text.contains("twice")).count(), 1);
    }
}

#[test]
fn copies_that_look_like_retransmissions_are_not_decidable() {
    let trace = merged(Identity::Nothing, Family::Ipv6).trace();
    let connection = only_connection(&trace);
    assert!(connection.leaves_undecided("retransmitted_bytes"));
    assert_eq!(connection.copied_packets, 2, "the SYNs and nothing else: {connection:?}");
    let table = trace.table(&[], 300, 10);
    assert!(!table.contains("retransmitted 1"), "{table}");
}

#[test]
fn retransmissions_of_one_capture_are_no_copies() {
    let cases = [
        (Identity::Identification, Family::Ipv4),
        (Identity::Timestamps, Family::Ipv6),
        (Identity::Nothing, Family::Ipv4),
        (Identity::Nothing, Family::Ipv6),
    ];
    for (identity, family) in cases {
        let trace = transfer(identity, family, false).trace();
        let connection = only_connection(&trace);
        assert_eq!(connection.directions[0].retransmitted_bytes, 2_000, "{identity:?}");
        assert_eq!(connection.copied_packets, 0, "{identity:?}");
        assert_eq!(warning_texts(&trace).len(), 0, "{:?}", warning_texts(&trace));
    }
}

#[test]
fn equal_identifications_tell_nothing() {
    let mut capture = two_subflow_capture();
    capture.packets.truncate(9);
    let trace = two_subflow_capture().trace();
    assert_eq!(only_connection(&trace).directions[0].retransmitted_bytes, 1_000);
    assert_eq!(only_connection(&trace).copied_packets, 0);
}

#[test]
fn a_packet_that_the_network_duplicates_is_no_retransmission() {
    let mut capture = transfer(Identity::Identification, Family::Ipv4, true);
    let duplicate = capture.packets[5].clone();
    capture.packets.insert(6, (duplicate.0 + 1_000, duplicate.1));
    let trace = trace::read(capture.file(RAW).as_slice(), Some(trace::TakenAt::Acceptor)).unwrap();
    let up = &only_connection(&trace).directions[0];
    assert_eq!((up.retransmitted_bytes, up.discarded_bytes), (0, Some(1_000)));
    let warnings = warning_texts(&trace);
    assert!(warnings[0].starts_with("1 packet was duplicated"), "{warnings:?}");
}

/// A router that is captured on all interfaces sees each packet with two TTLs.
#[test]
fn forwarded_packets_count_once_and_keep_their_delays() {
    let mut capture = Capture::default();
    for (at_ns, packet) in transfer(Identity::Nothing, Family::Ipv4, false).packets {
        let mut forwarded = packet.clone();
        forwarded[8] -= 1;
        capture.packets.extend([(at_ns, packet), (at_ns + 20_000, forwarded)]);
    }
    let trace = capture.trace();
    let connection = only_connection(&trace);
    let up = &connection.directions[0];
    assert_eq!((up.bytes, up.retransmitted_bytes), (10_000, 2_000));
    assert!(up.rtt.is_some() && connection.undecided.is_empty(), "{connection:?}");
    assert_eq!(connection.copied_packets, capture.packets.len() as u64 / 2);
}
