//! Arbitrary segments cause no panic, and the counters stay consistent.

use std::time::Duration;

use arrayvec::ArrayVec;
use proptest::prelude::*;
use towpath_multipath::path::PathId;
use towpath_wire::{Ecn, Flags, Options, Segment, Timestamps};

use super::link::{address, at_ms, payload};
use crate::subflow::{DataMapping, IcmpError, Subflow, SubflowConfig};

#[derive(Debug, Clone)]
struct Arrival {
    seq: i64,
    ack: i64,
    flags: u8,
    window: u16,
    len: u32,
    sack: Vec<(i64, i64)>,
    timestamps: Option<(i64, i64)>,
    packet: u16,
}

#[derive(Debug, Clone)]
enum Operation {
    Arrive(Arrival),
    Push(u32),
    Wait(u64),
    Send,
    Close,
    Window(u64, bool),
    Icmp(u32, i64, bool),
    OptionBytes(u16),
    Abort,
}

/// Distance from an expected number: mostly small, sometimes any.
fn small_distance() -> impl Strategy<Value = i64> {
    prop_oneof![
        6 => Just(0i64),
        4 => -3i64..4,
        4 => -100i64..20_000,
        1 => any::<u32>().prop_map(i64::from),
    ]
}

fn any_arrival() -> impl Strategy<Value = Operation> {
    let flags = prop_oneof![
        8 => Just(Flags::ACK.0),
        2 => Just(Flags::ACK.with(Flags::FIN).0),
        1 => Just(Flags::SYN.0),
        1 => Just(Flags::SYN.with(Flags::ACK).0),
        2 => any::<u8>(),
    ];
    let timestamps = prop::option::of((small_distance(), small_distance()));
    let sack = prop::collection::vec((small_distance(), small_distance()), 0..4);
    let len = prop_oneof![3 => Just(0u32), 2 => 1u32..3000, 1 => 0u32..66_000];
    let fields = (
        small_distance(),
        small_distance(),
        flags,
        any::<u16>(),
        len,
        sack,
        timestamps,
        0u16..1500,
    );
    fields.prop_map(|(seq, ack, flags, window, len, sack, timestamps, packet)| {
        Operation::Arrive(Arrival { seq, ack, flags, window, len, sack, timestamps, packet })
    })
}

fn any_operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        12 => any_arrival(),
        4 => (1u32..70_000).prop_map(Operation::Push),
        4 => (0u64..3000).prop_map(Operation::Wait),
        8 => Just(Operation::Send),
        1 => Just(Operation::Close),
        1 => (any::<u32>(), any::<bool>()).prop_map(|(b, s)| Operation::Window(u64::from(b), s)),
        1 => (0u32..2000, small_distance(), any::<bool>()).prop_map(|(m, s, h)| Operation::Icmp(m, s, h)),
        1 => (0u16..41).prop_map(Operation::OptionBytes),
        1 => prop_oneof![9 => Just(Operation::Send), 1 => Just(Operation::Abort)],
    ]
}

fn compose_segment(subflow: &Subflow, arrival: &Arrival) -> Segment {
    let Arrival { seq, ack, flags, window, len, sack, timestamps, packet } = arrival;
    let add = |base: u32, distance: i64| base.wrapping_add(distance as u32);
    let acked = subflow.wire_seq(subflow.send.acked_until());
    let clock = subflow.timestamps.option(at_ms(1000)).value;
    let sack = sack.iter().map(|(s, e)| (add(acked, *s), add(acked, *s + *e)));
    let absolute_timestamps = |(value, echo): (i64, i64)| Timestamps {
        value: add(subflow.timestamps.recent, value),
        echo: add(clock, echo),
    };
    Segment {
        source: address(2),
        destination: address(1),
        seq: add(subflow.wire_ack(), *seq),
        ack: add(acked, *ack),
        flags: Flags(*flags),
        window: *window,
        ecn: Ecn::Marked,
        options: Options {
            sack: sack.collect::<ArrayVec<_, 4>>(),
            timestamps: timestamps.map(absolute_timestamps),
            mss: Some(*packet),
            window_scale: Some((*packet % 20) as u8),
            sack_permitted: !packet.is_multiple_of(3),
            ..Options::default()
        },
        payload: payload(0, 0, *len),
        segment_bytes: *packet,
    }
}

fn config_from_bits(bits: u8) -> SubflowConfig {
    let mut config = if bits & 1 == 0 { SubflowConfig::linux() } else { SubflowConfig::ideal() };
    (config.rack, config.undo, config.ecn) = (bits & 2 == 0, bits & 4 == 0, bits & 8 == 0);
    (config.sack, config.timestamps, config.pacing) =
        (bits & 16 == 0, bits & 32 == 0, bits & 64 != 0);
    config.keepalive = Some((Duration::from_secs(10), Duration::from_secs(1), 3));
    config.user_timeout = (bits & 128 != 0).then(|| Duration::from_secs(60));
    config
}

/// Returns a subflow whose handshake is complete, opened passively or actively.
fn open_subflow(config: SubflowConfig, isn: u32, passive: bool) -> Subflow {
    let now = at_ms(1000);
    let make_arrival = |flags: Flags, ack: i64| Arrival {
        seq: 0,
        ack,
        flags: flags.0,
        window: 60_000,
        len: 0,
        sack: vec![],
        timestamps: Some((1, 0)),
        packet: 1460,
    };
    let mut subflow = Subflow::connect(config.clone(), isn, now);
    if passive {
        let mut syn = compose_segment(&subflow, &make_arrival(Flags::SYN, 0));
        syn.options.sack_permitted = true;
        subflow = Subflow::accept(config, isn, &syn, now);
        let _ = subflow.poll_transmit(now, 0);
        let mut ack = compose_segment(&subflow, &make_arrival(Flags::ACK, 0));
        subflow.on_segment(now, &mut ack, PathId(0), &[]);
    } else {
        let _ = subflow.poll_transmit(now, 0);
        let mut syn_ack = compose_segment(&subflow, &make_arrival(Flags::SYN.with(Flags::ACK), 0));
        syn_ack.options.sack_permitted = true;
        subflow.on_segment(now, &mut syn_ack, PathId(0), &[]);
    }
    subflow
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn no_segment_causes_a_panic_or_inconsistent_counters(
        bits: u8,
        isn: u32,
        start in 0u8..4,
        operations in prop::collection::vec(any_operation(), 1..60),
    ) {
        let mut now = at_ms(1000);
        let mut subflow = match start {
            0 => Subflow::connect(config_from_bits(bits), isn, now),
            passive => open_subflow(config_from_bits(bits), isn, passive == 1),
        };
        for operation in operations {
            match operation {
                Operation::Arrive(arrival) => {
                    let mut segment = compose_segment(&subflow, &arrival);
                    let outcome = subflow.on_segment(now, &mut segment, PathId(0), &[]);
                    let mut next_ssn = None;
                    for (start, payload) in &outcome.data {
                        prop_assert!(next_ssn.is_none_or(|next_ssn| next_ssn == *start));
                        next_ssn = Some(start + payload.len() as u64);
                    }
                    if let Some(next_ssn) = next_ssn {
                        prop_assert_eq!(next_ssn, subflow.received_until());
                    }
                }
                Operation::Push(len) => {
                    let mapping = DataMapping { dsn: 1, len: len.min(65_535), checksum: None };
                    subflow.push(now, mapping, len % 2 == 0);
                }
                Operation::Wait(ms) => {
                    now += Duration::from_millis(ms);
                    let _ = subflow.on_timeout(now);
                }
                Operation::Send => {
                    let mut count = 0;
                    while let Some(transmit) = subflow.poll_transmit(now, 12) {
                        count += 1;
                        prop_assert!(count < 100_000, "sends without end: {transmit:?}");
                    }
                }
                Operation::Close => subflow.close(now),
                Operation::Window(bytes, shared) => subflow.set_receive_window(bytes, shared),
                Operation::Icmp(mtu_bytes, distance, hard) => {
                    let acked = subflow.wire_seq(subflow.send.acked_until());
                    let seq = acked.wrapping_add(distance as u32);
                    subflow.on_icmp(now, IcmpError::TooBig { mtu_bytes, seq });
                    subflow.on_icmp(now, IcmpError::Unreachable { seq, hard });
                }
                Operation::OptionBytes(bytes) => subflow.set_data_option_bytes(bytes),
                Operation::Abort => subflow.abort(now),
            }
            subflow.send.verify_counters();
            prop_assert!(subflow.room_bytes(now) <= subflow.cwnd());
            let _ = (subflow.statistics(), subflow.poll_timeout(), subflow.window_update_due());
            prop_assert!(subflow.unacked().all(|sent| sent.len > 0));
        }
    }

    #[test]
    fn data_in_any_order_comes_out_once_and_in_order(
        pieces in prop::collection::vec((0u64..300, 1u32..80), 1..60),
    ) {
        let mut reassembly = crate::subflow::reassembly::Reassembly::new();
        let mut received = std::collections::BTreeSet::new();
        let (mut out, mut next) = (Vec::new(), 1u64);
        for (start, len) in pieces {
            let start = 1 + start;
            let new_bytes = (start..start + u64::from(len)).filter(|o| received.insert(*o)).count() as u64;
            let outcome = reassembly.insert(start, payload(5, start, len), &mut out);
            prop_assert_eq!(outcome.duplicate, u64::from(len) - new_bytes);
            for (offset, bytes) in out.drain(..) {
                prop_assert_eq!(offset, next);
                prop_assert_eq!(&bytes, &payload(5, offset, bytes.len() as u32));
                next += bytes.len() as u64;
            }
            prop_assert_eq!(next, reassembly.next());
            prop_assert!(!received.contains(&next) && (1..next).all(|o| received.contains(&o)));
            prop_assert_eq!(reassembly.out_of_order_bytes(), received.range(next..).count() as u64);
            let blocks = reassembly.take_sack_blocks(4);
            for (start, end) in blocks.iter().copied() {
                prop_assert!((start..end).all(|offset| received.contains(&offset)));
            }
            // The block with the newest data is first, or second after a duplicate.
            let all_new = start + u64::from(len) > next && outcome.duplicate == 0;
            if all_new {
                prop_assert!(blocks[0].0 <= start && blocks[0].1 >= start + u64::from(len));
            }
        }
    }
}
