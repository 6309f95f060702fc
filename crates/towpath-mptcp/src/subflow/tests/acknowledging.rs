//! Acknowledgements: content, timing and SACK blocks (RFC 5681 §4.2, RFC 2018, RFC 2883, RFC 5961).

use super::link::at;
use super::script::{MSS, Script, after, plain};
use crate::subflow::{CloseReason, SubflowConfig, TcpState, TransmitReason};
use crate::wire::Flags;

fn script() -> Script {
    Script::open(SubflowConfig { quick_acks: 0, ..plain() })
}

fn block(from: u64, to: u64) -> String {
    format!(" {}-{}", after(from), after(to))
}

#[test]
fn every_segment_beyond_a_gap_is_acknowledged_at_once_with_blocks() {
    let mut script = script();
    for packet in 1..=4 {
        script.data(1000, after(packet), 1460);
        assert_eq!(script.sent(), [format!("ack 1{}", block(1, packet + 1))]);
    }
    script.data(1001, after(6), 1460);
    assert_eq!(script.sent(), [format!("ack 1{}{}", block(6, 7), block(1, 5))]);
    // A part of the gap: the new data is in order, the rest is still reported.
    script.data(1002, after(0), 1460);
    assert_eq!(script.sent(), [format!("ack {}{}", after(5), block(6, 7))]);
    script.data(1003, after(5), 1460);
    assert_eq!(script.sent(), [format!("ack {}", after(7))]);
}

#[test]
fn one_acknowledgement_covers_all_segments_received_together() {
    let mut script = script();
    for packet in 0..6 {
        script.data(1000, after(packet), 1460);
    }
    assert_eq!(script.sent(), [format!("ack {}", after(6))]);
    assert!(script.sent().is_empty());
}

#[test]
fn as_many_blocks_are_reported_as_fit() {
    for (timestamps, count) in [(false, 4), (true, 3)] {
        let mut script = Script::open(SubflowConfig { timestamps, ..plain() });
        for packet in [1, 3, 5, 7, 9] {
            script.data(1000, after(packet), 1460);
        }
        let blocks: Vec<u64> =
            script.transmits()[0].options.sack.iter().map(|b| b.0.into()).collect();
        let expected: Vec<u64> =
            [9, 7, 5, 3].iter().take(count).map(|p| 5000 + after(*p)).collect();
        assert_eq!(blocks, expected);
    }
}

#[test]
fn a_duplicate_is_reported_first_exactly_and_once() {
    let mut script = script();
    script.data(1000, after(0), 1460);
    script.data(1000, after(0), 1460);
    assert_eq!(script.sent(), [format!("ack {}{}", after(1), block(0, 1))]);
    script.data(1001, after(2), 1460);
    assert_eq!(script.sent(), [format!("ack {}{}", after(1), block(2, 3))], "reported once");
    // Within a block beyond the gap: that block follows.
    script.data(1002, after(3), 1460);
    script.sent();
    script.data(1003, after(3), 1460);
    assert_eq!(script.sent(), [format!("ack {}{}{}", after(1), block(3, 4), block(2, 4))]);
}

#[test]
fn of_a_partial_duplicate_the_first_part_is_reported() {
    let mut script = script();
    script.data(1000, 1, 100);
    script.sent();
    script.data(1001, 51, 100);
    assert_eq!(script.sent(), ["ack 151 51-101"]);
    // 201..251 and 301..351 have arrived; 201..351 is retransmitted.
    script.data(1002, 201, 50);
    script.data(1002, 301, 50);
    script.sent();
    script.data(1003, 201, 150);
    assert_eq!(script.sent(), ["ack 151 201-251 201-351"]);
}

#[test]
fn the_sender_recognises_a_dsack_block_by_its_position() {
    // Below the acknowledgement, or within the second block (RFC 2883 §5); otherwise a normal
    // block.
    for (ack, blocks, undone) in [
        (1, &[(0, 1), (1, 6)][..], 1),
        (0, &[(1, 2), (1, 6)][..], 1),
        (0, &[(1, 6), (8, 9)][..], 0),
        (0, &[(8, 9), (1, 6)][..], 0),
    ] {
        let mut script = Script::open(plain());
        script.push(1000, 10);
        script.sent();
        script.ack(1100, after(0), &[(after(1), after(4))]);
        assert_eq!(script.sent(), ["again 1"]);
        let blocks: Vec<_> = blocks.iter().map(|(s, e)| (after(*s), after(*e))).collect();
        script.ack(1150, after(ack), &blocks);
        assert_eq!(script.subflow.statistics().undone, undone, "{blocks:?}");
    }
}

#[test]
fn a_syn_with_any_number_is_challenged_and_the_rst_reply_counts() {
    for seq in [0, 1, 1000, 3_000_000_000] {
        let mut script = script();
        let syn = script.segment(Flags::SYN, seq, 1);
        let received = script.arrive(syn);
        assert!(!received.acceptable && received.closed.is_none());
        assert_eq!(script.sent(), ["challenge 1"], "at {seq}");
        assert_eq!(script.subflow.state(), TcpState::Established);
        let reset = script.segment(Flags::RST, 1, 0);
        assert_eq!(script.arrive(reset).closed, Some(CloseReason::Reset));
    }
}

#[test]
fn acks_far_below_the_window_are_challenged_and_data_is_dropped() {
    let mut script = script();
    for round in 0..100 {
        script.push(1000 + round, 10);
        script.sent();
        script.ack(1000 + round, after(10 * (round + 1)), &[]);
    }
    // The largest window was 1 MiB.
    let acked = after(1000);
    assert_eq!(script.subflow.acked_until(), acked);
    for (ack, heard) in [(acked - (1 << 20) + 16, true), (acked - (1 << 20) - 16, false)] {
        let next = script.subflow.received_until();
        let mut segment = script.segment(Flags::ACK, next, ack);
        segment.payload = super::link::payload(2, next, 10);
        assert_eq!(script.arrive(segment).acceptable, heard);
        let challenged =
            script.transmits().iter().any(|t| t.reason == TransmitReason::ChallengeAck);
        assert_eq!(challenged, !heard);
    }
}

#[test]
fn a_reset_counts_with_data_and_while_the_window_is_closed() {
    let mut script = script();
    script.data(1000, 1, 65_535);
    script.subflow.set_receive_window(0, false);
    script.now = at(1000);
    script.sent();
    let limit = script.subflow.own_window.limit(65_536);
    script.data(1000, 65_536, u32::try_from(limit - 65_536).unwrap());
    let mut reset = script.segment(Flags::RST, limit, 0);
    reset.payload = super::link::payload(2, 1, 20);
    assert_eq!(script.arrive(reset).closed, Some(CloseReason::Reset));
}

#[test]
fn only_the_last_pushed_segment_has_the_push_flag() {
    let mut script = script();
    script.push(1000, 2);
    let len = u32::try_from(MSS).unwrap();
    let mapping = crate::subflow::DataMapping { dsn: 9000, len, checksum: None };
    script.subflow.push(at(1000), mapping, true);
    let pushed: Vec<bool> =
        script.transmits().iter().map(|t| t.flags.contains(Flags::PSH)).collect();
    assert_eq!(pushed, [false, false, true]);
}
