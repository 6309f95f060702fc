//! Timeouts, their timer, and the detection of spurious ones (RFC 6298, RFC 5682, RFC 3522).

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;
use towpath_wire::{Flags, Timestamps};

use super::link::at_ms;
use super::script::{MSS, Script, plain_config, ssn_after};
use crate::subflow::{SubflowConfig, Timer};

fn without_rack() -> SubflowConfig {
    SubflowConfig { rack: false, ..plain_config() }
}

fn retransmission_deadline(script: &Script) -> Option<towpath_net::Instant> {
    script.subflow.timers.get(Timer::Retransmission)
}

#[test]
fn the_timer_starts_with_data_and_stops_when_all_is_acked() {
    let mut script = Script::open(without_rack());
    assert_eq!(retransmission_deadline(&script), None);
    script.push(1000, 2);
    script.emit();
    assert_eq!(retransmission_deadline(&script), Some(at_ms(1300)));
    script.push(1050, 1);
    script.emit();
    assert_eq!(retransmission_deadline(&script), Some(at_ms(1300)), "it runs");
    script.recv_ack(1060, ssn_after(0), &[]);
    assert_eq!(retransmission_deadline(&script), Some(at_ms(1300)), "no news");
    script.recv_ack(1100, ssn_after(1), &[]);
    assert!(
        retransmission_deadline(&script) > Some(at_ms(1380)),
        "{:?}",
        retransmission_deadline(&script)
    );
    script.recv_ack(1150, ssn_after(3), &[]);
    assert_eq!(retransmission_deadline(&script), None);
}

#[test]
fn retransmissions_without_timestamps_give_no_rtt_sample() {
    let mut script = Script::open(without_rack());
    script.push(1000, 1);
    script.emit();
    let srtt_before = script.subflow.statistics().srtt;
    script.run_timers_at(1300);
    assert_eq!(script.emit(), ["timeout 1"]);
    script.recv_ack(1900, ssn_after(1), &[]);
    assert_eq!(script.subflow.statistics().srtt, srtt_before);
    script.push(2000, 1);
    script.emit();
    script.recv_ack(2900, ssn_after(2), &[]);
    assert_eq!(
        script.subflow.statistics().srtt,
        Duration::from_millis(200),
        "7/8 · 100 + 1/8 · 900"
    );
}

/// Returns a script after six packets and a timeout at 1300 ms; four new packets wait to be sent.
fn script_after_timeout(sack: bool) -> Script {
    let mut script = Script::open(SubflowConfig { sack, ..without_rack() });
    script.push(1000, 6);
    script.emit();
    script.run_timers_at(1300);
    assert_eq!(script.emit(), ["timeout 1"]);
    script.push(1301, 4);
    script
}

#[test]
fn a_second_acknowledgement_without_progress_shows_a_real_timeout() {
    let mut script = script_after_timeout(false);
    script.recv_ack(1310, ssn_after(1), &[]);
    assert_eq!(script.emit(), ["data 7", "data 8"], "two new packets");
    script.recv_ack(1311, ssn_after(1), &[]);
    assert_eq!(script.subflow.statistics().undone, 0);
    let sent = script.emit();
    assert!(sent.contains(&"again 2".to_owned()), "{sent:?}");
    assert_eq!(script.subflow.phase(), RecoveryPhase::Loss);
}

#[test]
fn a_first_acknowledgement_of_everything_decides_nothing() {
    let mut script = script_after_timeout(false);
    script.recv_ack(1310, ssn_after(6), &[]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.undone, statistics.phase), (0, RecoveryPhase::Open));
    assert!(statistics.cwnd_bytes < 7 * MSS, "slow start from one packet");
}

#[test]
fn segments_without_news_do_not_disturb_the_decision() {
    let mut script = script_after_timeout(false);
    script.recv_data(1305, 1, 10);
    script.recv_ack(1310, ssn_after(1), &[]);
    script.emit();
    script.recv_ack(1312, ssn_after(3), &[]);
    assert_eq!(script.subflow.statistics().undone, 1);
}

#[test]
fn a_second_timeout_restarts_the_detection() {
    let mut script = script_after_timeout(false);
    script.run_timers_at(1900);
    assert_eq!(script.emit(), ["timeout 1"]);
    script.recv_ack(1910, ssn_after(1), &[]);
    script.emit();
    script.recv_ack(1911, ssn_after(3), &[]);
    assert_eq!(script.subflow.statistics().undone, 0);
}

#[test]
fn with_sack_a_block_of_original_data_shows_a_spurious_timeout() {
    let mut script = script_after_timeout(true);
    script.recv_ack(1310, ssn_after(1), &[]);
    assert_eq!(script.emit(), ["data 7", "data 8"]);
    script.recv_ack(1320, ssn_after(1), &[(ssn_after(2), ssn_after(3))]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.undone, statistics.phase), (1, RecoveryPhase::Open));
    // Data first sent after the timeout proves nothing.
    let mut script = script_after_timeout(true);
    script.recv_ack(1310, ssn_after(1), &[]);
    script.emit();
    script.recv_ack(1320, ssn_after(1), &[(ssn_after(6), ssn_after(7))]);
    assert_eq!(script.subflow.statistics().undone, 0);
}

#[test]
fn a_timeout_after_one_that_was_called_spurious_is_a_loss_again() {
    let mut script = script_after_timeout(true);
    script.recv_ack(1310, ssn_after(0), &[(ssn_after(2), ssn_after(3))]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.undone, statistics.phase), (1, RecoveryPhase::Open));
    script.run_timers_at(1900);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.timeouts, statistics.phase), (2, RecoveryPhase::Loss));
}

#[test]
fn retransmissions_in_recovery_do_not_make_a_timeout_spurious() {
    let mut script = Script::open(without_rack());
    script.push(1000, 10);
    script.emit();
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
    assert_eq!(script.emit(), ["again 1"]);
    script.run_timers_at(1400);
    assert_eq!(script.emit().len(), 1);
    script.recv_ack(1410, ssn_after(4), &[]);
    script.recv_ack(1411, ssn_after(6), &[]);
    assert_eq!(script.subflow.statistics().undone, 0);
}

#[test]
fn an_echo_older_than_the_retransmission_undoes_the_timeout() {
    for (echoes_retransmission, undone) in [(false, 1), (true, 0)] {
        let mut script = Script::open(SubflowConfig { timestamps: true, ..without_rack() });
        script.push(1000, 6);
        let original = script.emit_transmits()[0].options.timestamps.unwrap().value;
        let cwnd_before = script.subflow.statistics().cwnd_bytes;
        script.run_timers_at(1300);
        let retransmission = script.emit_transmits()[0].options.timestamps.unwrap().value;
        script.now = at_ms(1320);
        let mut ack = script.peer_segment(Flags::ACK, 1, 1 + u64::from(script.subflow.mss()));
        let echo = if echoes_retransmission { retransmission } else { original };
        ack.options.timestamps = Some(Timestamps { value: 80, echo });
        script.recv(ack);
        let statistics = script.subflow.statistics();
        assert_eq!(statistics.undone, undone);
        assert_eq!(statistics.cwnd_bytes >= cwnd_before, undone == 1, "{statistics:?}");
    }
}

#[test]
fn a_peer_that_takes_back_its_blocks_gets_the_data_again() {
    let mut script = Script::open(without_rack());
    script.push(1000, 5);
    script.emit();
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(0), ssn_after(3))]);
    assert!(script.emit().is_empty());
    script.run_timers_at(1300);
    // The first is selectively acknowledged, but not cumulatively: the peer has reneged.
    assert_eq!(script.emit(), ["timeout 1"]);
    script.recv_ack(1400, ssn_after(1), &[]);
    assert_eq!(script.emit(), ["again 2", "again 3"]);
}

#[test]
fn data_is_kept_until_it_is_cumulatively_acknowledged() {
    let mut script = Script::open(plain_config());
    script.push(1000, 5);
    script.emit();
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(5))]);
    assert_eq!(script.subflow.unacked().count(), 5);
    script.recv_ack(1200, ssn_after(5), &[]);
    assert_eq!(script.subflow.unacked().count(), 0);
}
