//! Timeouts, their timer, and the detection of spurious ones (RFC 6298, RFC 5682, RFC 3522).

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;

use super::link::at;
use super::script::{MSS, Script, after, plain};
use crate::subflow::{SubflowConfig, Timer};
use crate::wire::{Flags, Timestamps};

fn config() -> SubflowConfig {
    SubflowConfig { rack: false, ..plain() }
}

fn timer(script: &Script) -> Option<towpath_net::Instant> {
    script.subflow.timers.get(Timer::Retransmission)
}

#[test]
fn the_timer_starts_with_data_and_stops_when_all_is_acked() {
    let mut script = Script::open(config());
    assert_eq!(timer(&script), None);
    script.push(1000, 2);
    script.sent();
    assert_eq!(timer(&script), Some(at(1300)));
    script.push(1050, 1);
    script.sent();
    assert_eq!(timer(&script), Some(at(1300)), "it runs");
    script.ack(1060, after(0), &[]);
    assert_eq!(timer(&script), Some(at(1300)), "no news");
    script.ack(1100, after(1), &[]);
    assert!(timer(&script) > Some(at(1380)), "{:?}", timer(&script));
    script.ack(1150, after(3), &[]);
    assert_eq!(timer(&script), None);
}

#[test]
fn retransmissions_without_timestamps_give_no_rtt_sample() {
    let mut script = Script::open(config());
    script.push(1000, 1);
    script.sent();
    let before = script.subflow.statistics().srtt;
    script.wait(1300);
    assert_eq!(script.sent(), ["timeout 1"]);
    script.ack(1900, after(1), &[]);
    assert_eq!(script.subflow.statistics().srtt, before);
    script.push(2000, 1);
    script.sent();
    script.ack(2900, after(2), &[]);
    assert_eq!(
        script.subflow.statistics().srtt,
        Duration::from_millis(200),
        "7/8 · 100 + 1/8 · 900"
    );
}

/// Returns six packets sent, a timeout at 1300 ms, and four new packets waiting.
fn timed_out(sack: bool) -> Script {
    let mut script = Script::open(SubflowConfig { sack, ..config() });
    script.push(1000, 6);
    script.sent();
    script.wait(1300);
    assert_eq!(script.sent(), ["timeout 1"]);
    script.push(1301, 4);
    script
}

#[test]
fn a_second_acknowledgement_without_progress_shows_a_real_timeout() {
    let mut script = timed_out(false);
    script.ack(1310, after(1), &[]);
    assert_eq!(script.sent(), ["data 7", "data 8"], "two new packets");
    script.ack(1311, after(1), &[]);
    assert_eq!(script.subflow.statistics().undone, 0);
    let sent = script.sent();
    assert!(sent.contains(&"again 2".to_owned()), "{sent:?}");
    assert_eq!(script.subflow.phase(), RecoveryPhase::Loss);
}

#[test]
fn a_first_acknowledgement_of_everything_decides_nothing() {
    let mut script = timed_out(false);
    script.ack(1310, after(6), &[]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.undone, statistics.phase), (0, RecoveryPhase::Open));
    assert!(statistics.cwnd_bytes < 7 * MSS, "slow start from one packet");
}

#[test]
fn segments_without_news_do_not_disturb_the_decision() {
    let mut script = timed_out(false);
    script.data(1305, 1, 10);
    script.ack(1310, after(1), &[]);
    script.sent();
    script.ack(1312, after(3), &[]);
    assert_eq!(script.subflow.statistics().undone, 1);
}

#[test]
fn a_second_timeout_restarts_the_detection() {
    let mut script = timed_out(false);
    script.wait(1900);
    assert_eq!(script.sent(), ["timeout 1"]);
    script.ack(1910, after(1), &[]);
    script.sent();
    script.ack(1911, after(3), &[]);
    assert_eq!(script.subflow.statistics().undone, 0);
}

#[test]
fn with_sack_a_block_of_original_data_shows_a_spurious_timeout() {
    let mut script = timed_out(true);
    script.ack(1310, after(1), &[]);
    assert_eq!(script.sent(), ["data 7", "data 8"]);
    script.ack(1320, after(1), &[(after(2), after(3))]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.undone, statistics.phase), (1, RecoveryPhase::Open));
    // Data first sent after the timeout proves nothing.
    let mut script = timed_out(true);
    script.ack(1310, after(1), &[]);
    script.sent();
    script.ack(1320, after(1), &[(after(6), after(7))]);
    assert_eq!(script.subflow.statistics().undone, 0);
}

#[test]
fn a_timeout_after_one_that_was_called_spurious_is_a_loss_again() {
    let mut script = timed_out(true);
    script.ack(1310, after(0), &[(after(2), after(3))]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.undone, statistics.phase), (1, RecoveryPhase::Open));
    script.wait(1900);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.timeouts, statistics.phase), (2, RecoveryPhase::Loss));
}

#[test]
fn retransmissions_in_recovery_do_not_make_a_timeout_spurious() {
    let mut script = Script::open(config());
    script.push(1000, 10);
    script.sent();
    script.ack(1100, after(0), &[(after(1), after(4))]);
    assert_eq!(script.sent(), ["again 1"]);
    script.wait(1400);
    assert_eq!(script.sent().len(), 1);
    script.ack(1410, after(4), &[]);
    script.ack(1411, after(6), &[]);
    assert_eq!(script.subflow.statistics().undone, 0);
}

#[test]
fn an_echo_older_than_the_retransmission_undoes_the_timeout() {
    for (late, undone) in [(false, 1), (true, 0)] {
        let mut script = Script::open(SubflowConfig { timestamps: true, ..config() });
        script.push(1000, 6);
        let first = script.transmits()[0].options.timestamps.unwrap().value;
        let before = script.subflow.statistics().cwnd_bytes;
        script.wait(1300);
        let again = script.transmits()[0].options.timestamps.unwrap().value;
        script.now = at(1320);
        let mut answer = script.segment(Flags::ACK, 1, 1 + u64::from(script.subflow.mss()));
        let echo = if late { again } else { first };
        answer.options.timestamps = Some(Timestamps { value: 80, echo });
        script.arrive(answer);
        let statistics = script.subflow.statistics();
        assert_eq!(statistics.undone, undone);
        assert_eq!(statistics.cwnd_bytes >= before, undone == 1, "{statistics:?}");
    }
}

#[test]
fn a_peer_that_takes_back_its_blocks_gets_the_data_again() {
    let mut script = Script::open(config());
    script.push(1000, 5);
    script.sent();
    script.ack(1100, after(0), &[(after(0), after(3))]);
    assert!(script.sent().is_empty());
    script.wait(1300);
    // The first is selectively acknowledged, but not cumulatively: the peer has reneged.
    assert_eq!(script.sent(), ["timeout 1"]);
    script.ack(1400, after(1), &[]);
    assert_eq!(script.sent(), ["again 2", "again 3"]);
}

#[test]
fn data_is_kept_until_it_is_cumulatively_acknowledged() {
    let mut script = Script::open(plain());
    script.push(1000, 5);
    script.sent();
    script.ack(1100, after(0), &[(after(1), after(5))]);
    assert_eq!(script.subflow.unacked().count(), 5);
    script.ack(1200, after(5), &[]);
    assert_eq!(script.subflow.unacked().count(), 0);
}
