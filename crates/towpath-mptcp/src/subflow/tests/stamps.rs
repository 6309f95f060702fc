//! Timestamps (RFC 7323), segment by segment.

use std::time::Duration;

use super::link::{at, payload};
use super::script::{Script, after, plain};
use crate::subflow::{CloseReason, Subflow, SubflowConfig};
use crate::wire::{Flags, Segment, Timestamps};

fn open() -> Script {
    Script::open(SubflowConfig { timestamps: true, quick_acks: 0, ..plain() })
}

/// Sends data of the peer with this timestamp.
fn data(script: &mut Script, seq: u64, value: u32) -> crate::subflow::SegmentOutcome {
    let mut segment = stamped(script, Flags::ACK, seq, value);
    segment.payload = payload(2, seq, 100);
    script.arrive(segment)
}

fn stamped(script: &Script, flags: Flags, seq: u64, value: u32) -> Segment {
    let mut segment = script.segment(flags, seq, script.subflow.send.acked_until());
    segment.options.timestamps = Some(Timestamps { value, echo: 0 });
    segment
}

/// Returns the timestamp that the next acknowledgement echoes.
fn echo(script: &mut Script) -> u32 {
    script.subflow.want_ack();
    script.transmits()[0].options.timestamps.unwrap().echo
}

#[test]
fn every_segment_has_timestamps_once_they_are_agreed_on() {
    let mut script = open();
    script.push(1000, 1);
    script.subflow.close(at(1000));
    data(&mut script, 201, 80);
    let mut sent = script.transmits();
    script.wait(2000);
    sent.extend(script.transmits());
    script.subflow.abort(at(2000));
    sent.extend(script.transmits());
    let reasons: std::collections::BTreeSet<_> = sent.iter().map(|t| t.reason).collect();
    assert!(reasons.len() >= 4, "{reasons:?}");
    assert!(sent.iter().any(|t| t.flags.contains(Flags::RST)));
    for transmit in sent {
        assert_eq!(transmit.options.timestamps.unwrap().echo, 77, "{:?}", transmit.reason);
    }
}

#[test]
fn the_clock_counts_milliseconds() {
    let mut script = open();
    script.push(1000, 1);
    let first = script.transmits()[0].options.timestamps.unwrap().value;
    script.push(8500, 1);
    let later = script.transmits().last().unwrap().options.timestamps.unwrap().value;
    assert_eq!(later.wrapping_sub(first), 7500);
}

#[test]
fn a_segment_without_timestamps_is_accepted() {
    let mut script = open();
    let received = script.data(1000, 1, 100);
    assert!(received.acceptable && received.closed.is_none());
    assert_eq!(script.subflow.received_until(), 101);
}

#[test]
fn timestamps_that_were_not_agreed_on_are_ignored() {
    let mut script = Script::open(plain());
    for (seq, value) in [(1, 1000), (101, 5)] {
        assert_eq!(data(&mut script, seq, value).data.len(), 1);
    }
    assert!(script.transmits().iter().all(|t| t.options.timestamps.is_none()));
}

#[test]
fn a_delayed_acknowledgement_echoes_the_earliest_segment() {
    let mut script = open();
    data(&mut script, 1, 100);
    data(&mut script, 101, 105);
    assert_eq!(echo(&mut script), 100);
    data(&mut script, 201, 107);
    assert_eq!(echo(&mut script), 107);
}

#[test]
fn over_a_gap_the_last_in_order_timestamp_is_echoed() {
    let mut script = open();
    data(&mut script, 1, 100);
    assert_eq!(echo(&mut script), 100);
    data(&mut script, 201, 110);
    assert_eq!(echo(&mut script), 100, "beyond the gap");
    data(&mut script, 101, 108);
    assert_eq!(echo(&mut script), 108, "it fills the gap");
    assert_eq!(script.subflow.received_until(), 301, "what waited was judged when it came");
}

#[test]
fn the_recent_timestamp_never_goes_back() {
    let mut script = open();
    data(&mut script, 1, 100);
    echo(&mut script);
    let overtaken = stamped(&script, Flags::ACK, 101, 99);
    assert!(script.arrive(overtaken).acceptable);
    assert_eq!(echo(&mut script), 100);
}

#[test]
fn resets_ignore_timestamps_and_do_not_update_them() {
    let mut script = open();
    data(&mut script, 1, 100);
    echo(&mut script);
    let near = stamped(&script, Flags::RST, 102, 200);
    script.arrive(near);
    assert_eq!(echo(&mut script), 100);
    let exact = stamped(&script, Flags::RST, 101, 5);
    assert_eq!(script.arrive(exact).closed, Some(CloseReason::Reset));
}

#[test]
fn after_24_days_of_silence_any_timestamp_is_new() {
    const DAY_MS: u64 = 24 * 3600 * 1000;
    let mut script = open();
    data(&mut script, 1, 100);
    echo(&mut script);
    script.now = at(23 * DAY_MS);
    assert!(!data(&mut script, 101, 99).acceptable);
    script.now = at(25 * DAY_MS);
    assert!(data(&mut script, 101, 99).acceptable);
}

#[test]
fn an_old_acknowledgement_counts_only_if_it_was_just_reordered() {
    let mut script = open();
    data(&mut script, 1, 100_000);
    echo(&mut script);
    for (seq, value, accepted) in [(101, 99_800, true), (101, 99_000, false), (102, 99_999, false)]
    {
        let ack = stamped(&script, Flags::ACK, seq, value);
        assert_eq!(script.arrive(ack).acceptable, accepted, "{value}");
        assert_eq!(script.sent().is_empty(), accepted);
    }
    // It acknowledges new data, so it was not overtaken.
    script.push(1000, 1);
    script.sent();
    let mut ack = stamped(&script, Flags::ACK, 101, 99_999);
    ack.ack = ack.ack.wrapping_add(1460);
    assert!(!script.arrive(ack).acceptable);
}

#[test]
fn only_acks_that_advance_the_window_are_rtt_samples() {
    let mut script = open();
    script.push(1000, 4);
    let stamp = script.transmits()[0].options.timestamps.unwrap().value;
    let before = script.subflow.statistics().srtt;
    let answer = |script: &mut Script, ms: u64, ack: u64| {
        script.now = at(ms);
        let mut segment = script.segment(Flags::ACK, 1, ack);
        segment.options.timestamps = Some(Timestamps { value: 77, echo: stamp });
        script.arrive(segment);
    };
    answer(&mut script, 1900, 1);
    assert_eq!(script.subflow.statistics().srtt, before);
    answer(&mut script, 1900, after(1));
    assert!(script.subflow.statistics().srtt > before + Duration::from_millis(50));
}

#[test]
fn the_echo_of_a_segment_without_acknowledgement_means_nothing() {
    let config = SubflowConfig { timestamps: true, ..plain() };
    let mut script = Script { subflow: Subflow::connect(config, 7, at(900)), now: at(900) };
    let stamp = script.transmits()[0].options.timestamps.unwrap().value;
    script.now = at(1000);
    let mut crossing = script.segment(Flags::SYN, 0, 0);
    crossing.options.timestamps = Some(Timestamps { value: 5, echo: stamp });
    script.arrive(crossing);
    assert_eq!(script.subflow.statistics().srtt, Duration::ZERO);
}
