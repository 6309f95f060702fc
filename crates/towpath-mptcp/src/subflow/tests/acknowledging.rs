//! Acknowledgements: content, timing and SACK blocks (RFC 5681 §4.2, RFC 2018, RFC 2883, RFC 5961).

use towpath_wire::Flags;

use super::link::at_ms;
use super::script::{MSS, Script, plain_config, ssn_after};
use crate::subflow::{CloseReason, SubflowConfig, TcpState, TransmitReason};

fn open_script() -> Script {
    Script::open(SubflowConfig { quick_acks: 0, ..plain_config() })
}

fn sack_text(from: u64, to: u64) -> String {
    format!(" {}-{}", ssn_after(from), ssn_after(to))
}

#[test]
fn every_segment_beyond_a_gap_is_acknowledged_at_once_with_blocks() {
    let mut script = open_script();
    for packet in 1..=4 {
        script.recv_data(1000, ssn_after(packet), 1460);
        assert_eq!(script.emit(), [format!("ack 1{}", sack_text(1, packet + 1))]);
    }
    script.recv_data(1001, ssn_after(6), 1460);
    assert_eq!(script.emit(), [format!("ack 1{}{}", sack_text(6, 7), sack_text(1, 5))]);
    // A part of the gap: the new data is in order, the rest is still reported.
    script.recv_data(1002, ssn_after(0), 1460);
    assert_eq!(script.emit(), [format!("ack {}{}", ssn_after(5), sack_text(6, 7))]);
    script.recv_data(1003, ssn_after(5), 1460);
    assert_eq!(script.emit(), [format!("ack {}", ssn_after(7))]);
}

#[test]
fn one_acknowledgement_covers_all_segments_received_together() {
    let mut script = open_script();
    for packet in 0..6 {
        script.recv_data(1000, ssn_after(packet), 1460);
    }
    assert_eq!(script.emit(), [format!("ack {}", ssn_after(6))]);
    assert!(script.emit().is_empty());
}

#[test]
fn as_many_blocks_are_reported_as_fit() {
    for (timestamps, count) in [(false, 4), (true, 3)] {
        let mut script = Script::open(SubflowConfig { timestamps, ..plain_config() });
        for packet in [1, 3, 5, 7, 9] {
            script.recv_data(1000, ssn_after(packet), 1460);
        }
        let blocks: Vec<u64> =
            script.emit_transmits()[0].options.sack.iter().map(|b| b.0.into()).collect();
        let expected: Vec<u64> =
            [9, 7, 5, 3].iter().take(count).map(|p| 5000 + ssn_after(*p)).collect();
        assert_eq!(blocks, expected);
    }
}

#[test]
fn a_duplicate_is_reported_first_exactly_and_once() {
    let mut script = open_script();
    script.recv_data(1000, ssn_after(0), 1460);
    script.recv_data(1000, ssn_after(0), 1460);
    assert_eq!(script.emit(), [format!("ack {}{}", ssn_after(1), sack_text(0, 1))]);
    script.recv_data(1001, ssn_after(2), 1460);
    assert_eq!(
        script.emit(),
        [format!("ack {}{}", ssn_after(1), sack_text(2, 3))],
        "reported once"
    );
    // Within a block beyond the gap: that block follows.
    script.recv_data(1002, ssn_after(3), 1460);
    script.emit();
    script.recv_data(1003, ssn_after(3), 1460);
    assert_eq!(
        script.emit(),
        [format!("ack {}{}{}", ssn_after(1), sack_text(3, 4), sack_text(2, 4))]
    );
}

#[test]
fn of_a_partial_duplicate_the_first_part_is_reported() {
    let mut script = open_script();
    script.recv_data(1000, 1, 100);
    script.emit();
    script.recv_data(1001, 51, 100);
    assert_eq!(script.emit(), ["ack 151 51-101"]);
    // 201..251 and 301..351 have arrived; 201..351 is retransmitted.
    script.recv_data(1002, 201, 50);
    script.recv_data(1002, 301, 50);
    script.emit();
    script.recv_data(1003, 201, 150);
    assert_eq!(script.emit(), ["ack 151 201-251 201-351"]);
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
        let mut script = Script::open(plain_config());
        script.push(1000, 10);
        script.emit();
        script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
        assert_eq!(script.emit(), ["again 1"]);
        let blocks: Vec<_> = blocks.iter().map(|(s, e)| (ssn_after(*s), ssn_after(*e))).collect();
        script.recv_ack(1150, ssn_after(ack), &blocks);
        assert_eq!(script.subflow.statistics().undone, undone, "{blocks:?}");
    }
}

#[test]
fn a_syn_with_any_number_is_challenged_and_the_rst_reply_counts() {
    for seq in [0, 1, 1000, 3_000_000_000] {
        let mut script = open_script();
        let syn = script.peer_segment(Flags::SYN, seq, 1);
        let outcome = script.recv(syn);
        assert!(!outcome.acceptable && outcome.closed.is_none());
        assert_eq!(script.emit(), ["challenge 1"], "at {seq}");
        assert_eq!(script.subflow.state(), TcpState::Established);
        let reset = script.peer_segment(Flags::RST, 1, 0);
        assert_eq!(script.recv(reset).closed, Some(CloseReason::Reset));
    }
}

#[test]
fn acks_far_below_the_window_are_challenged_and_data_is_dropped() {
    let mut script = open_script();
    for round in 0..100 {
        script.push(1000 + round, 10);
        script.emit();
        script.recv_ack(1000 + round, ssn_after(10 * (round + 1)), &[]);
    }
    // The largest window was 1 MiB.
    let acked = ssn_after(1000);
    assert_eq!(script.subflow.acked_until(), acked);
    for (ack, accepted) in [(acked - (1 << 20) + 16, true), (acked - (1 << 20) - 16, false)] {
        let next_ssn = script.subflow.received_until();
        let mut segment = script.peer_segment(Flags::ACK, next_ssn, ack);
        segment.payload = super::link::payload(2, next_ssn, 10);
        assert_eq!(script.recv(segment).acceptable, accepted);
        let challenged =
            script.emit_transmits().iter().any(|t| t.reason == TransmitReason::ChallengeAck);
        assert_eq!(challenged, !accepted);
    }
}

#[test]
fn a_reset_counts_with_data_and_while_the_window_is_closed() {
    let mut script = open_script();
    script.recv_data(1000, 1, 65_535);
    script.subflow.set_receive_window(0, false);
    script.now = at_ms(1000);
    script.emit();
    let limit = script.subflow.receive_window.limit(65_536);
    script.recv_data(1000, 65_536, u32::try_from(limit - 65_536).unwrap());
    let mut reset = script.peer_segment(Flags::RST, limit, 0);
    reset.payload = super::link::payload(2, 1, 20);
    assert_eq!(script.recv(reset).closed, Some(CloseReason::Reset));
}

#[test]
fn only_the_last_pushed_segment_has_the_push_flag() {
    let mut script = open_script();
    script.push(1000, 2);
    let len = u32::try_from(MSS).unwrap();
    let mapping = crate::subflow::DataMapping { dsn: 9000, len, checksum: None };
    script.subflow.push(at_ms(1000), mapping, true);
    let psh_flags: Vec<bool> =
        script.emit_transmits().iter().map(|t| t.flags.contains(Flags::PSH)).collect();
    assert_eq!(psh_flags, [false, false, true]);
}
