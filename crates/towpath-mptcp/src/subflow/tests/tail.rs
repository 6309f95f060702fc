//! Loss detection by time and tail loss probes (RFC 8985), limited transmit (RFC 3042).

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;

use super::link::at_ms;
use super::script::{MSS, Script, plain_config, ssn_after};
use crate::subflow::{SubflowConfig, Timer};

fn data_packets(range: std::ops::RangeInclusive<u64>) -> Vec<String> {
    range.map(|packet| format!("data {packet}")).collect()
}

fn script_with_in_flight(packets: usize) -> Script {
    let mut script = Script::open(plain_config());
    script.push(1000, packets);
    assert_eq!(script.emit().len(), packets);
    script
}

#[test]
fn a_hole_waits_a_quarter_of_the_round_trip() {
    let mut script = script_with_in_flight(5);
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(2))]);
    assert!(script.emit().is_empty());
    assert_eq!(script.subflow.poll_timeout(), Some((at_ms(1125), Timer::Reordering)));
    assert!(!script.subflow.timers.is_set(Timer::TailProbe), "not with blocks outstanding");
    script.run_timers_at(1125);
    assert_eq!(script.emit(), ["again 1"]);
    assert!(!script.subflow.timers.is_set(Timer::TailProbe), "not in recovery");
}

#[test]
fn after_reordering_the_number_of_sack_blocks_is_ignored() {
    let mut script = script_with_in_flight(10);
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(2))]);
    // The first was only late: reordering.
    script.recv_ack(1101, ssn_after(2), &[]);
    script.recv_ack(1102, ssn_after(2), &[(ssn_after(3), ssn_after(8))]);
    assert!(script.emit().is_empty(), "more than three, yet the window protects it");
    assert_eq!(script.subflow.phase(), RecoveryPhase::Open);
    script.run_timers_at(1130);
    assert_eq!(script.emit(), ["again 3"]);
}

/// Returns the reordering window in ms after `rounds` round trips with a DSACK each.
fn reordering_window_after(rounds: u64) -> u64 {
    let mut script =
        Script::open(SubflowConfig { rto_min: Duration::from_secs(5), ..plain_config() });
    let mut now = 1000;
    for round in 0..rounds {
        script.push(now, 2);
        script.emit();
        now += 100;
        let (start, end) = (ssn_after(2 * round), ssn_after(2 * round + 1));
        // The packet arrived twice: several reports in one round trip count once.
        script.recv_ack(now, end, &[(start, end)]);
        script.recv_ack(now, end, &[(start, end)]);
        script.recv_ack(now, ssn_after(2 * round + 2), &[]);
    }
    script.push(now, 2);
    script.emit();
    let next_packet = 2 * rounds;
    script.recv_ack(
        now + 100,
        ssn_after(next_packet),
        &[(ssn_after(next_packet + 1), ssn_after(next_packet + 2))],
    );
    let (deadline, timer) = script.subflow.poll_timeout().unwrap();
    assert_eq!(timer, Timer::Reordering);
    (deadline.as_nanos() / 1_000_000) - now - 100
}

#[test]
fn duplicates_widen_the_window_up_to_a_round_trip() {
    let windows: Vec<u64> = [0, 1, 2, 3, 9].into_iter().map(reordering_window_after).collect();
    assert_eq!(windows, [25, 50, 75, 100, 100]);
}

#[test]
fn after_sixteen_recoveries_without_duplicates_the_window_is_as_at_first() {
    let mut script =
        Script::open(SubflowConfig { rto_min: Duration::from_secs(5), ..plain_config() });
    script.push(1000, 1);
    script.emit();
    script.recv_ack(1100, ssn_after(1), &[(ssn_after(0), ssn_after(1))]);
    let (mut now, mut next_packet) = (1100, 1);
    let mut windows = Vec::new();
    for _ in 0..18 {
        script.push(now, 2);
        script.emit();
        script.recv_ack(
            now + 100,
            ssn_after(next_packet),
            &[(ssn_after(next_packet + 1), ssn_after(next_packet + 2))],
        );
        let (deadline, timer) = script.subflow.poll_timeout().unwrap();
        assert_eq!(timer, Timer::Reordering);
        let deadline_ms = deadline.as_nanos() / 1_000_000;
        windows.push(deadline_ms - now - 100);
        script.run_timers_at(deadline_ms);
        assert_eq!(script.emit().len(), 1);
        next_packet += 2;
        now = deadline_ms + 100;
        script.recv_ack(now, ssn_after(next_packet), &[]);
        assert_eq!(script.subflow.phase(), RecoveryPhase::Open);
    }
    assert_eq!((windows[0], windows[15], windows[17]), (50, 50, 25), "{windows:?}");
}

#[test]
fn an_ack_of_the_first_copy_is_no_evidence_of_later_losses() {
    let mut script = script_with_in_flight(5);
    script.push(1101, 2);
    script.emit();
    script.recv_ack(1102, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
    assert_eq!(script.emit(), ["again 1"]);
    // Three milliseconds later: the original was acknowledged. Otherwise 6 and 7 would count as
    // lost.
    script.recv_ack(1105, ssn_after(5), &[]);
    assert_eq!(script.subflow.send.lost_bytes(), 0);
    assert!(script.emit().is_empty());
}

#[test]
fn a_timeout_gives_up_the_first_packet_and_others_only_if_their_time_is_over() {
    let mut script = script_with_in_flight(2);
    script.recv_ack(1100, ssn_after(1), &[]);
    script.run_timers_at(1400);
    assert_eq!(script.emit(), ["probe 2"]);
    let (deadline, timer) = script.subflow.poll_timeout().unwrap();
    assert_eq!(timer, Timer::Retransmission);
    let deadline_ms = deadline.as_nanos() / 1_000_000;
    script.push(deadline_ms - 10, 1);
    assert_eq!(script.emit(), ["data 3"]);
    script.run_timers_at(deadline_ms);
    assert_eq!(script.emit(), ["timeout 2"]);
    assert_eq!(script.subflow.send.lost_bytes(), MSS);
}

#[test]
fn a_probe_waits_two_round_trips_more_for_one_packet_and_never_past_the_timeout() {
    for (packets, rto_min_ms, probe_at_ms) in [(1, 1000, 1400), (2, 1000, 1200), (1, 200, 1300)] {
        let config = SubflowConfig { rto_min: Duration::from_millis(rto_min_ms), ..plain_config() };
        let mut script = Script::open(config);
        script.push(1000, packets);
        script.emit();
        assert_eq!(
            script.subflow.timers.get(Timer::TailProbe),
            Some(at_ms(probe_at_ms)),
            "{packets} {rto_min_ms}"
        );
    }
}

#[test]
fn a_probe_is_new_data_if_there_is_some_though_the_window_is_full() {
    let mut script = Script::open(plain_config());
    script.push(1000, 12);
    assert_eq!(script.emit(), data_packets(1..=10));
    assert_eq!(script.run_timers_at(1200).closed, None);
    assert_eq!(script.emit(), ["probe 11"]);
    // Like any other packet, and the timeout follows it.
    assert_eq!(script.subflow.send.in_flight(), 11 * MSS);
    assert_eq!(script.subflow.poll_timeout(), Some((at_ms(1500), Timer::Retransmission)));
    script.recv_ack(1210, ssn_after(10), &[]);
    script.recv_ack(1300, ssn_after(11), &[]);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX, "nothing was lost");
}

#[test]
fn a_bare_duplicate_acknowledgement_excuses_a_probe() {
    let mut script = script_with_in_flight(4);
    script.recv_ack(1100, ssn_after(3), &[]);
    script.run_timers_at(1500);
    assert_eq!(script.emit(), ["probe 4"]);
    script.push(1501, 1);
    script.emit();
    script.recv_ack(1510, ssn_after(4), &[]);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX, "a DSACK may follow");
    script.recv_ack(1520, ssn_after(5), &[]);
    let reduced = script.subflow.statistics().ssthresh_bytes < u64::MAX;
    assert!(reduced, "one answer for two copies: taken for a loss");

    let mut script = script_with_in_flight(4);
    script.recv_ack(1100, ssn_after(3), &[]);
    script.run_timers_at(1500);
    script.emit();
    script.recv_ack(1510, ssn_after(4), &[(ssn_after(3), ssn_after(4))]);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX, "both are reported");
}

#[test]
fn the_next_probe_waits_until_the_last_one_was_measured() {
    let mut script = script_with_in_flight(4);
    script.recv_ack(1100, ssn_after(3), &[]);
    script.run_timers_at(1500);
    assert_eq!(script.emit(), ["probe 4"]);
    // Acknowledged, but it is unknown which copy.
    script.recv_ack(1600, ssn_after(4), &[(ssn_after(3), ssn_after(4))]);
    script.push(1600, 1);
    script.emit();
    assert!(!script.subflow.timers.is_set(Timer::TailProbe));
    assert!(script.subflow.timers.is_set(Timer::Retransmission));
    script.recv_ack(1700, ssn_after(5), &[]);
    script.push(1700, 1);
    script.emit();
    assert!(script.subflow.timers.is_set(Timer::TailProbe));
}

#[test]
fn without_sack_there_are_neither_probes_nor_reordering_timers() {
    let mut script = Script::open(SubflowConfig { sack: false, ..plain_config() });
    script.push(1000, 5);
    script.emit();
    assert!(!script.subflow.timers.is_set(Timer::TailProbe));
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(2))]);
    assert!(!script.subflow.timers.is_set(Timer::Reordering));
}

#[test]
fn without_rack_three_packets_of_blocks_make_a_loss() {
    let mut script = Script::open(SubflowConfig { rack: false, ..plain_config() });
    script.push(1000, 10);
    script.emit();
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(3))]);
    assert!(script.emit().is_empty());
    script.recv_ack(1101, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
    assert_eq!(script.emit(), ["again 1"]);
    // The next hole needs its own three, from data above it.
    script.recv_ack(1200, ssn_after(4), &[(ssn_after(5), ssn_after(7))]);
    assert!(script.emit().is_empty());
    script.recv_ack(1201, ssn_after(4), &[(ssn_after(5), ssn_after(8))]);
    assert_eq!(script.emit(), ["again 5"]);
    script.recv_ack(1300, ssn_after(10), &[]);
    assert_eq!(script.subflow.phase(), RecoveryPhase::Open);
}

#[test]
fn the_first_two_duplicates_let_a_new_packet_go_each() {
    for sack in [true, false] {
        let mut script = Script::open(SubflowConfig { sack, ..plain_config() });
        script.recv_ack(1000, ssn_after(0), &[]);
        script.push(1000, 10);
        assert_eq!(script.emit(), data_packets(1..=10));
        let window = script.subflow.statistics().cwnd_bytes;
        for packet in 1..=2 {
            let blocks = [(ssn_after(1), ssn_after(1 + packet))];
            script.recv_ack(1100 + packet, ssn_after(0), if sack { &blocks } else { &[] });
            assert_eq!(script.subflow.room_bytes(at_ms(1100 + packet)), MSS, "sack {sack}");
            script.push(1100 + packet, 1);
            assert_eq!(script.emit(), data_packets(10 + packet..=10 + packet));
        }
        assert_eq!(script.subflow.statistics().cwnd_bytes, window);
        script.recv_ack(1103, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
        assert_eq!(script.emit(), ["again 1"]);
        // Half of the window of ten, not of twelve in flight.
        assert_eq!(script.subflow.statistics().ssthresh_bytes, 5 * MSS);
    }
    let mut script = script_with_in_flight(10);
    script.push(1050, 1);
    for ms in 1100..1105 {
        script.recv_ack(ms, ssn_after(0), &[]);
        assert!(script.emit().is_empty(), "no block, no news");
    }
}

/// Returns the time in ms of the probe for a last packet that was sent half a round trip late.
fn probe_ms_after_late_ack(measures_as_linux: bool) -> u64 {
    let mut script = Script::open(SubflowConfig { measures_as_linux, ..plain_config() });
    script.push(1000, 10);
    script.emit();
    script.recv_ack(1150, ssn_after(2), &[]);
    script.push(1150, 2);
    assert_eq!(script.emit().len(), 2);
    let probe_at = script.subflow.timers.get(Timer::TailProbe);
    probe_at.map_or(0, |probe_at| probe_at.as_nanos() / 1_000_000)
}

#[test]
fn as_linux_new_data_lets_no_probe_wait_longer_than_the_oldest_data_may() {
    assert_eq!(probe_ms_after_late_ack(false), 1362, "two round trips");
    assert_eq!(probe_ms_after_late_ack(true), 1306, "the timeout of what was sent at 1000");
}
