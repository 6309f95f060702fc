//! Mappings that cover several segments and arrive after some of their data (RFC 8684 §3.3.1).

use towpath_trace::TakenAt;
use towpath_wire::{Flags, Options};

use crate::cut_options::{Family, flow_of};
use crate::packets::*;

/// Packet of a transfer: subflow, first byte on it, and the length of the mapping that it carries.
type Sent = (u8, u32, Option<(u64, u16)>);

/// Three segments of 500 bytes under one mapping, which the first one carries.
const LONG: [Sent; 3] = [(0, 0, Some((0, 1_500))), (0, 500, None), (0, 1_000, None)];

/// Returns a capture of segments with 500 bytes in this order, 10 ms apart; the receiver
/// acknowledges all of `bytes` on each subflow at the end.
fn capture_of(family: Family, down: bool, packets: &[Sent], acked: &[(u8, u32, u64)]) -> Capture {
    let mut capture = Capture::default();
    for number in 0..2 {
        let flow = flow_of(family, number);
        let at = u64::from(number) * 40 * MS;
        let [syn, reply, ack] = handshake_options(number);
        capture.add(at, &flow.up(0, 0, Flags::SYN, 0, syn));
        capture.add(at + 20 * MS, &flow.down(0, 1, SYN_ACK, 0, reply));
        capture.add(at + 20 * MS, &flow.up(1, 1, Flags::ACK, 0, ack));
    }
    let dsn = if down { server_dsn() } else { client_dsn() };
    for (index, (subflow, start, mapping)) in packets.iter().enumerate() {
        let flow = flow_of(family, *subflow);
        let at = 100 * MS + index as u64 * 10 * MS;
        let options = match mapping {
            Some((offset, len)) => map(dsn, *offset, 1 + start, *len),
            None => Options::default(),
        };
        let segment = if down {
            flow.down(1 + start, 1, Flags::ACK, 500, options)
        } else {
            flow.up(1 + start, 1, Flags::ACK, 500, options)
        };
        capture.add(at, &segment);
    }
    for (subflow, bytes, data) in acked {
        let flow = flow_of(family, *subflow);
        let options = data_ack(dsn, *data);
        let segment = if down {
            flow.up(1, 1 + bytes, Flags::ACK, 0, options)
        } else {
            flow.down(1, 1 + bytes, Flags::ACK, 0, options)
        };
        capture.add(500 * MS, &segment);
    }
    capture
}

fn cases() -> impl Iterator<Item = (Family, bool, TakenAt)> {
    [Family::Ipv4, Family::Ipv6].into_iter().flat_map(|family| {
        [false, true].into_iter().flat_map(move |down| {
            [TakenAt::Opener, TakenAt::Acceptor].map(|taken_at| (family, down, taken_at))
        })
    })
}

/// The segment with the mapping arrives last, also as the first one of the connection.
#[test]
fn data_that_precedes_its_mapping_belongs_to_the_connection() {
    for (family, down, taken_at) in cases() {
        for order in [[1, 2, 0], [2, 1, 0], [1, 0, 2], [0, 1, 2]] {
            let packets = order.map(|index: usize| LONG[index]);
            let capture = capture_of(family, down, &packets, &[(0, 1_500, 1_500)]);
            let trace = towpath_trace::read(capture.file(RAW).as_slice(), Some(taken_at)).unwrap();
            let connection = only_connection(&trace);
            assert_eq!(connection.fallback, None, "{order:?}");
            let direction = &connection.directions[usize::from(down)];
            assert_eq!(direction.bytes, 1_500, "{order:?} {taken_at:?}");
            assert_eq!(direction.unmapped_bytes, 0, "{order:?}");
            assert_eq!(direction.reinjected_bytes, 0, "{order:?}");
            assert_eq!(direction.unseen_bytes, 0, "{order:?}");
        }
    }
}

/// The rest of a mapping is reinjected on the second subflow before its mapping is seen.
#[test]
fn reinjected_data_is_counted_when_its_mapping_arrives_late() {
    for (family, down, taken_at) in cases() {
        let packets = [
            (0, 0, Some((0, 500))),
            (0, 1_000, None),
            (0, 1_500, None),
            (1, 0, Some((1_000, 500))),
            (1, 500, Some((1_500, 500))),
            (0, 500, Some((500, 1_500))),
        ];
        let acked = [(0, 2_000, 2_000), (1, 1_000, 2_000)];
        let capture = capture_of(family, down, &packets, &acked);
        let trace = towpath_trace::read(capture.file(RAW).as_slice(), Some(taken_at)).unwrap();
        let connection = only_connection(&trace);
        let direction = &connection.directions[usize::from(down)];
        assert_eq!((direction.bytes, direction.unmapped_bytes), (2_000, 0), "{taken_at:?}");
        assert_eq!(direction.reinjected_bytes, 1_000, "two copies of 1000 bytes on two subflows");
        assert!(direction.goodput_bps > 0.0);
    }
}

/// The capture lost the segment with the mapping: its data stays unmapped, without a fallback.
#[test]
fn data_without_a_captured_mapping_stays_unmapped() {
    for (family, down, taken_at) in cases() {
        let first = (0, 0, Some((0, 500)));
        let packets = [first, (0, 1_000, None), (0, 1_500, None)];
        let capture = capture_of(family, down, &packets, &[(0, 2_000, 2_000)]);
        let trace = towpath_trace::read(capture.file(RAW).as_slice(), Some(taken_at)).unwrap();
        let connection = only_connection(&trace);
        assert!(connection.multipath && connection.fallback.is_none());
        let direction = &connection.directions[usize::from(down)];
        assert_eq!(direction.unmapped_bytes, 1_000);
    }
}

/// Without the handshake, the packets of a long mapping together show where it begins.
#[test]
fn long_mappings_without_a_handshake_are_mapped_once_all_their_packets_were_seen() {
    for order in [[0, 1, 2], [0, 2, 1]] {
        let flow = flow(0);
        let dsn = client_dsn();
        let mut capture = Capture::default();
        // Each packet carries the whole mapping, as segmentation offload copies it.
        for mapping in 0..4_u32 {
            let options = || map(dsn, u64::from(mapping) * 1_500, 1 + mapping * 1_500, 1_500);
            for (index, packet) in order.into_iter().enumerate() {
                let at = (u64::from(mapping) * 30 + index as u64 * 10) * MS;
                let seq = 1 + mapping * 1_500 + packet * 500;
                capture.add(at, &flow.up(seq, 1, Flags::ACK, 500, options()));
            }
        }
        capture.add(200 * MS, &flow.down(1, 6_001, Flags::ACK, 0, data_ack(dsn, 6_000)));
        let trace = capture.trace();
        let up = &only_connection(&trace).directions[0];
        assert_eq!((up.bytes, up.unmapped_bytes), (6_000, 0), "{order:?}");
        assert_eq!(up.unseen_bytes, 0, "{order:?}");
    }
}
