//! Timestamps (RFC 7323), segment by segment.

use std::time::Duration;

use towpath_wire::{Flags, Segment, Timestamps};

use super::link::{at_ms, payload};
use super::script::{Script, plain_config, ssn_after};
use crate::subflow::{CloseReason, Subflow, SubflowConfig};

fn open_with_timestamps() -> Script {
    Script::open(SubflowConfig { timestamps: true, quick_acks: 0, ..plain_config() })
}

/// Receives data of the peer with this timestamp.
fn recv_timestamped_data(
    script: &mut Script,
    seq: u64,
    value: u32,
) -> crate::subflow::SegmentOutcome {
    let mut segment = timestamped_segment(script, Flags::ACK, seq, value);
    segment.payload = payload(2, seq, 100);
    script.recv(segment)
}

fn timestamped_segment(script: &Script, flags: Flags, seq: u64, value: u32) -> Segment {
    let mut segment = script.peer_segment(flags, seq, script.subflow.send.acked_until());
    segment.options.timestamps = Some(Timestamps { value, echo: 0 });
    segment
}

/// Returns the timestamp that the next acknowledgement echoes.
fn echoed_timestamp(script: &mut Script) -> u32 {
    script.subflow.set_ack_due();
    script.emit_transmits()[0].options.timestamps.unwrap().echo
}

#[test]
fn every_segment_has_timestamps_once_they_are_agreed_on() {
    let mut script = open_with_timestamps();
    script.push(1000, 1);
    script.subflow.close(at_ms(1000));
    recv_timestamped_data(&mut script, 201, 80);
    let mut sent = script.emit_transmits();
    script.run_timers_at(2000);
    sent.extend(script.emit_transmits());
    script.subflow.abort(at_ms(2000));
    sent.extend(script.emit_transmits());
    let reasons: std::collections::BTreeSet<_> = sent.iter().map(|t| t.reason).collect();
    assert!(reasons.len() >= 4, "{reasons:?}");
    assert!(sent.iter().any(|t| t.flags.contains(Flags::RST)));
    for transmit in sent {
        assert_eq!(transmit.options.timestamps.unwrap().echo, 77, "{:?}", transmit.reason);
    }
}

#[test]
fn the_clock_counts_milliseconds() {
    let mut script = open_with_timestamps();
    script.push(1000, 1);
    let first_timestamp = script.emit_transmits()[0].options.timestamps.unwrap().value;
    script.push(8500, 1);
    let later_timestamp = script.emit_transmits().last().unwrap().options.timestamps.unwrap().value;
    assert_eq!(later_timestamp.wrapping_sub(first_timestamp), 7500);
}

#[test]
fn a_segment_without_timestamps_is_accepted() {
    let mut script = open_with_timestamps();
    let outcome = script.recv_data(1000, 1, 100);
    assert!(outcome.acceptable && outcome.closed.is_none());
    assert_eq!(script.subflow.received_until(), 101);
}

#[test]
fn timestamps_that_were_not_agreed_on_are_ignored() {
    let mut script = Script::open(plain_config());
    for (seq, value) in [(1, 1000), (101, 5)] {
        assert_eq!(recv_timestamped_data(&mut script, seq, value).data.len(), 1);
    }
    assert!(script.emit_transmits().iter().all(|t| t.options.timestamps.is_none()));
}

#[test]
fn a_delayed_acknowledgement_echoes_the_earliest_segment() {
    let mut script = open_with_timestamps();
    recv_timestamped_data(&mut script, 1, 100);
    recv_timestamped_data(&mut script, 101, 105);
    assert_eq!(echoed_timestamp(&mut script), 100);
    recv_timestamped_data(&mut script, 201, 107);
    assert_eq!(echoed_timestamp(&mut script), 107);
}

#[test]
fn over_a_gap_the_last_in_order_timestamp_is_echoed() {
    let mut script = open_with_timestamps();
    recv_timestamped_data(&mut script, 1, 100);
    assert_eq!(echoed_timestamp(&mut script), 100);
    recv_timestamped_data(&mut script, 201, 110);
    assert_eq!(echoed_timestamp(&mut script), 100, "beyond the gap");
    recv_timestamped_data(&mut script, 101, 108);
    assert_eq!(echoed_timestamp(&mut script), 108, "it fills the gap");
    assert_eq!(script.subflow.received_until(), 301, "what waited was judged when it came");
}

#[test]
fn the_recent_timestamp_never_goes_back() {
    let mut script = open_with_timestamps();
    recv_timestamped_data(&mut script, 1, 100);
    echoed_timestamp(&mut script);
    let overtaken = timestamped_segment(&script, Flags::ACK, 101, 99);
    assert!(script.recv(overtaken).acceptable);
    assert_eq!(echoed_timestamp(&mut script), 100);
}

#[test]
fn resets_ignore_timestamps_and_do_not_update_them() {
    let mut script = open_with_timestamps();
    recv_timestamped_data(&mut script, 1, 100);
    echoed_timestamp(&mut script);
    let inexact_reset = timestamped_segment(&script, Flags::RST, 102, 200);
    script.recv(inexact_reset);
    assert_eq!(echoed_timestamp(&mut script), 100);
    let exact_reset = timestamped_segment(&script, Flags::RST, 101, 5);
    assert_eq!(script.recv(exact_reset).closed, Some(CloseReason::Reset));
}

#[test]
fn after_24_days_of_silence_any_timestamp_is_new() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let mut script = open_with_timestamps();
    recv_timestamped_data(&mut script, 1, 100);
    echoed_timestamp(&mut script);
    script.now = at_ms(23 * DAY_MS);
    assert!(!recv_timestamped_data(&mut script, 101, 99).acceptable);
    script.now = at_ms(25 * DAY_MS);
    assert!(recv_timestamped_data(&mut script, 101, 99).acceptable);
}

#[test]
fn an_old_acknowledgement_counts_only_if_it_was_just_reordered() {
    let mut script = open_with_timestamps();
    recv_timestamped_data(&mut script, 1, 100_000);
    echoed_timestamp(&mut script);
    for (seq, value, accepted) in [(101, 99_800, true), (101, 99_000, false), (102, 99_999, false)]
    {
        let ack = timestamped_segment(&script, Flags::ACK, seq, value);
        assert_eq!(script.recv(ack).acceptable, accepted, "{value}");
        assert_eq!(script.emit().is_empty(), accepted);
    }
    // An acknowledgement of new data was not overtaken.
    script.push(1000, 1);
    script.emit();
    let mut ack = timestamped_segment(&script, Flags::ACK, 101, 99_999);
    ack.ack = ack.ack.wrapping_add(1460);
    assert!(!script.recv(ack).acceptable);
}

#[test]
fn only_acks_that_advance_the_window_are_rtt_samples() {
    let mut script = open_with_timestamps();
    script.push(1000, 4);
    let sent_timestamp = script.emit_transmits()[0].options.timestamps.unwrap().value;
    let srtt_before = script.subflow.statistics().srtt;
    let recv_echo = |script: &mut Script, ms: u64, ack: u64| {
        script.now = at_ms(ms);
        let mut segment = script.peer_segment(Flags::ACK, 1, ack);
        segment.options.timestamps = Some(Timestamps { value: 77, echo: sent_timestamp });
        script.recv(segment);
    };
    recv_echo(&mut script, 1900, 1);
    assert_eq!(script.subflow.statistics().srtt, srtt_before);
    recv_echo(&mut script, 1900, ssn_after(1));
    assert!(script.subflow.statistics().srtt > srtt_before + Duration::from_millis(50));
}

#[test]
fn the_echo_of_a_segment_without_acknowledgement_means_nothing() {
    let config = SubflowConfig { timestamps: true, ..plain_config() };
    let mut script = Script { subflow: Subflow::connect(config, 7, at_ms(900)), now: at_ms(900) };
    let sent_timestamp = script.emit_transmits()[0].options.timestamps.unwrap().value;
    script.now = at_ms(1000);
    let mut crossing_syn = script.peer_segment(Flags::SYN, 0, 0);
    crossing_syn.options.timestamps = Some(Timestamps { value: 5, echo: sent_timestamp });
    script.recv(crossing_syn);
    assert_eq!(script.subflow.statistics().srtt, Duration::ZERO);
}
