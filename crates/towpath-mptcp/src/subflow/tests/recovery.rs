//! Loss recovery, packet by packet.

use std::time::Duration;

use towpath_multipath::path::RecoveryPhase;

use super::link::at_ms;
use super::script::{Script, plain_config, ssn_after};
use crate::subflow::{IcmpError, SubflowConfig, Timer};

fn data_packets(range: std::ops::RangeInclusive<u64>) -> Vec<String> {
    range.map(|packet| format!("data {packet}")).collect()
}

#[test]
fn three_packets_after_a_hole_repair_it_at_once_and_reduce_the_window() {
    let mut script = Script::open(plain_config());
    script.push(1000, 10);
    assert_eq!(script.emit(), data_packets(1..=10));
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(2))]);
    assert!(script.emit().is_empty(), "one packet may be reordered");
    script.recv_ack(1101, ssn_after(0), &[(ssn_after(1), ssn_after(3))]);
    assert!(script.emit().is_empty());
    assert!(script.recv_ack(1102, ssn_after(0), &[(ssn_after(1), ssn_after(4))]).lost);
    assert_eq!(script.emit(), ["again 1"]);
    assert_eq!(script.subflow.statistics().phase, RecoveryPhase::Recovery);
    // RFC 9937: half of the window, so one packet for two delivered; in flight 7 of 10 now.
    script.push(1102, 5);
    script.recv_ack(1103, ssn_after(0), &[(ssn_after(1), ssn_after(5))]);
    script.recv_ack(1104, ssn_after(0), &[(ssn_after(1), ssn_after(6))]);
    let sent = script.emit();
    assert!(sent.len() <= 1, "{sent:?}");
    script.recv_ack(1210, ssn_after(10), &[]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.phase, statistics.retransmissions), (RecoveryPhase::Open, 1));
    assert_eq!(statistics.cwnd_bytes, statistics.ssthresh_bytes);
}

#[test]
fn without_sack_each_partial_ack_repairs_the_next_hole() {
    let mut script = Script::open(SubflowConfig { sack: false, ..plain_config() });
    script.recv_ack(1000, ssn_after(0), &[]);
    script.push(1000, 10);
    assert_eq!(script.emit(), data_packets(1..=10));
    for ms in 0..2 {
        script.recv_ack(1100 + ms, ssn_after(0), &[]);
        assert!(script.emit().is_empty());
    }
    script.recv_ack(1102, ssn_after(0), &[]);
    assert_eq!(script.emit(), ["again 1"]);
    script.recv_ack(1200, ssn_after(4), &[]);
    assert_eq!(script.emit(), ["again 5"]);
    script.recv_ack(1300, ssn_after(10), &[]);
    assert_eq!(script.subflow.statistics().phase, RecoveryPhase::Open);
    assert_eq!(script.subflow.statistics().retransmissions, 2);
}

#[test]
fn a_lost_tail_is_probed_after_two_round_trips() {
    let mut script = Script::open(plain_config());
    script.push(1000, 4);
    assert_eq!(script.emit(), data_packets(1..=4));
    script.recv_ack(1100, ssn_after(2), &[]);
    let (deadline, timer) = script.subflow.poll_timeout().unwrap();
    assert_eq!((deadline, timer), (at_ms(1300), Timer::TailProbe));
    script.run_timers_at(1300);
    assert_eq!(script.emit(), ["probe 4"]);
    // The acknowledgement shows that 3 is also missing, which was sent long before.
    script.recv_ack(1400, ssn_after(2), &[(ssn_after(3), ssn_after(4))]);
    assert_eq!(script.emit(), ["again 3"]);
    script.recv_ack(1500, ssn_after(4), &[]);
    assert_eq!(script.subflow.statistics().timeouts_total, 0);
}

#[test]
fn a_probe_that_repaired_the_loss_reduces_the_window() {
    let mut script = Script::open(plain_config());
    script.push(1000, 4);
    script.emit();
    script.recv_ack(1100, ssn_after(3), &[]);
    let cwnd_before = script.subflow.statistics().cwnd_bytes;
    script.run_timers_at(1500);
    assert_eq!(script.emit(), ["probe 4"]);
    // The probe may have been needless: a DSACK may follow.
    script.recv_ack(1600, ssn_after(4), &[]);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX);
    script.push(1600, 1);
    script.emit();
    script.recv_ack(1700, ssn_after(5), &[]);
    assert!(script.subflow.statistics().ssthresh_bytes < cwnd_before);
}

#[test]
fn a_needless_probe_is_forgiven() {
    let mut script = Script::open(plain_config());
    script.push(1000, 4);
    script.emit();
    script.recv_ack(1100, ssn_after(3), &[]);
    script.run_timers_at(1500);
    assert_eq!(script.emit(), ["probe 4"]);
    script.recv_ack(1600, ssn_after(4), &[(ssn_after(3), ssn_after(4))]);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX);
}

#[test]
fn timeouts_back_off_until_the_peer_is_given_up() {
    let mut script = Script::open(SubflowConfig {
        retries: 3,
        rack: false,
        black_hole_detection: false,
        ..plain_config()
    });
    script.push(1000, 3);
    assert_eq!(script.emit(), data_packets(1..=3));
    // The handshake took 100 ms: 100 + max(4 · 50, 200).
    let mut timeout_at = 1300;
    for count in 1..=3u32 {
        assert_eq!(script.subflow.poll_timeout(), Some((at_ms(timeout_at), Timer::Retransmission)));
        assert!(script.run_timers_at(timeout_at).retransmission);
        assert_eq!(script.emit(), ["timeout 1"]);
        assert_eq!(script.subflow.statistics().cwnd_bytes, 1460);
        timeout_at += 300 << count;
    }
    assert!(script.run_timers_at(timeout_at).closed.is_some());
}

#[test]
fn after_a_timeout_slow_start_retransmits_lost_data() {
    let mut script = Script::open(SubflowConfig { rack: false, undo: false, ..plain_config() });
    script.push(1000, 6);
    script.emit();
    script.run_timers_at(1300);
    assert_eq!(script.emit(), ["timeout 1"]);
    script.recv_ack(1400, ssn_after(1), &[]);
    assert_eq!(script.emit(), ["again 2", "again 3"]);
    script.recv_ack(1500, ssn_after(3), &[]);
    assert_eq!(script.emit(), ["again 4", "again 5", "again 6"]);
    script.recv_ack(1600, ssn_after(6), &[]);
    assert_eq!(script.subflow.statistics().phase, RecoveryPhase::Open);
}

#[test]
fn a_spurious_timeout_is_found_by_new_data_and_undone() {
    let config = SubflowConfig { sack: false, rack: false, ..plain_config() };
    let mut script = Script::open(config);
    script.push(1000, 6);
    script.emit();
    let cwnd_before = script.subflow.statistics().cwnd_bytes;
    script.run_timers_at(1300);
    assert_eq!(script.emit(), ["timeout 1"]);
    script.push(1301, 4);
    // The original is acknowledged: new data is sent instead of 2 (RFC 5682 §2.1 step 2b).
    script.recv_ack(1310, ssn_after(1), &[]);
    assert_eq!(script.emit(), ["data 7", "data 8"]);
    script.recv_ack(1311, ssn_after(3), &[]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.phase, statistics.undone), (RecoveryPhase::Open, 1));
    assert!(statistics.cwnd_bytes >= cwnd_before);
}

#[test]
fn a_retransmission_of_a_reordered_packet_is_undone_by_dsack() {
    let mut script = Script::open(plain_config());
    script.push(1000, 10);
    script.emit();
    let cwnd_before = script.subflow.statistics().cwnd_bytes;
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
    assert_eq!(script.emit(), ["again 1"]);
    // The original was only late; then its retransmission arrives.
    script.recv_ack(1105, ssn_after(10), &[]);
    script.recv_ack(1205, ssn_after(10), &[(ssn_after(0), ssn_after(1))]);
    let statistics = script.subflow.statistics();
    assert_eq!(statistics.undone, 1);
    assert!(statistics.cwnd_bytes >= cwnd_before);
}

#[test]
fn a_router_with_a_small_link_makes_packets_smaller() {
    let mut script = Script::open(plain_config());
    script.push(1000, 2);
    assert_eq!(script.emit(), data_packets(1..=2));
    let seq = super::script::ISN.wrapping_add(1);
    script.subflow.on_icmp(at_ms(1010), IcmpError::TooBig { mtu_bytes: 1000, seq: seq - 2 });
    assert!(script.emit().is_empty(), "a forged message does nothing");
    script.now = at_ms(1010);
    script.subflow.on_icmp(at_ms(1010), IcmpError::TooBig { mtu_bytes: 1000, seq });
    let sent = script.emit_transmits();
    let lens: Vec<u32> = sent.iter().filter_map(|t| t.data).map(|sent| sent.len).collect();
    assert_eq!(lens, [960, 500, 960, 500]);
    let ssthresh = script.subflow.statistics().ssthresh_bytes;
    assert_eq!(ssthresh, u64::MAX, "that was no congestion");
}

#[test]
fn an_icmpv6_packet_too_big_reduces_the_packet_size() {
    let mut script = Script::open(plain_config());
    script.subflow.set_ipv6(true);
    script.push(1000, 2);
    let sent_lens = |script: &mut Script| -> Vec<u32> {
        script.emit_transmits().iter().filter_map(|t| t.data).map(|sent| sent.len).collect()
    };
    assert_eq!(sent_lens(&mut script), [1440, 1440]);
    let seq = super::script::ISN.wrapping_add(1);
    script.now = at_ms(1010);
    script.subflow.on_icmp(at_ms(1010), IcmpError::TooBig { mtu_bytes: 1300, seq: seq - 2 });
    assert!(sent_lens(&mut script).is_empty(), "it answers no packet of ours");
    script.subflow.on_icmp(at_ms(1010), IcmpError::TooBig { mtu_bytes: 1279, seq });
    assert!(sent_lens(&mut script).is_empty(), "every link carries more");
    script.subflow.on_icmp(at_ms(1010), IcmpError::TooBig { mtu_bytes: 1300, seq });
    assert_eq!(sent_lens(&mut script), [1240, 200, 1240, 200]);
    script.push(1011, 1);
    assert_eq!(sent_lens(&mut script), [1240]);
}

#[test]
fn full_packets_that_vanish_get_smaller() {
    let config = SubflowConfig { rack: false, black_hole_detection: true, ..plain_config() };
    let mut script = Script::open(config);
    script.push(1000, 3);
    script.emit();
    script.run_timers_at(1300);
    assert_eq!(script.emit_transmits()[0].data.unwrap().len, 1460);
    script.run_timers_at(1900);
    assert_eq!(script.emit_transmits()[0].data.unwrap().len, 730 + 40);
}

#[test]
fn an_idle_connection_restarts_from_the_initial_window() {
    let mut script = Script::open(plain_config());
    for round in 0..4u64 {
        let now = 1000 + round * 100;
        while script.subflow.room_bytes(at_ms(now)) > 0 {
            script.push(now, 1);
        }
        script.emit();
        let sent = script.subflow.pushed_until();
        script.recv_ack(now + 100, sent, &[]);
    }
    assert!(script.subflow.statistics().cwnd_bytes > 100_000);
    assert_eq!(script.subflow.room_bytes(at_ms(60_000)), 14_600);
    script.push(60_000, 1);
    assert!(script.subflow.statistics().cwnd_bytes < 100_000);
}

#[test]
fn a_super_segment_is_split_only_where_packets_are_lost() {
    let mut script = Script::open(SubflowConfig { super_segment_bytes: 65_400, ..plain_config() });
    let len = 10 * 1460;
    let mapping = crate::subflow::DataMapping { dsn: 1, len, checksum: Some(7) };
    script.subflow.push(at_ms(1000), mapping, true);
    let sent = script.emit_transmits();
    assert_eq!((sent.len(), sent[0].segment_bytes), (1, 1460));
    script.recv_ack(1100, ssn_after(2), &[(ssn_after(4), ssn_after(7))]);
    let sent = script.emit_transmits();
    assert_eq!(sent.len(), 1);
    let retransmitted = sent[0].data.unwrap();
    assert_eq!(
        (retransmitted.ssn, retransmitted.len, retransmitted.mapping_ssn),
        (ssn_after(2), 2 * 1460, 1)
    );
    assert_eq!((retransmitted.mapping, sent[0].segment_bytes), (mapping, 1460));
    let unacked: Vec<_> = script.subflow.unacked().collect();
    assert_eq!((unacked.len(), unacked[0].ssn, unacked[0].len), (1, 1, len));
    assert!(script.subflow.oldest_unacked_sent_at() == Some(at_ms(1000)));
    assert!(Duration::ZERO < script.subflow.statistics().srtt);
}

/// Returns the threshold in recovery, and after the timeout that follows.
fn ssthresh_before_and_after_timeout(recovers_as_linux: bool) -> (u64, u64) {
    let mut script = Script::open(SubflowConfig { recovers_as_linux, ..plain_config() });
    script.push(1000, 10);
    script.emit();
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(4), ssn_after(9))]);
    assert_eq!(script.subflow.phase(), RecoveryPhase::Recovery);
    let in_recovery = script.subflow.statistics().ssthresh_bytes;
    script.emit();
    for _ in 0..10 {
        if script.subflow.phase() == RecoveryPhase::Loss {
            break;
        }
        let (deadline, _) = script.subflow.poll_timeout().unwrap();
        script.run_timers_at(deadline.as_nanos().div_ceil(1_000_000));
        script.emit();
    }
    assert_eq!(script.subflow.phase(), RecoveryPhase::Loss);
    (in_recovery, script.subflow.statistics().ssthresh_bytes)
}

#[test]
fn as_linux_a_timeout_in_recovery_reduces_no_further() {
    let (in_recovery, after_timeout) = ssthresh_before_and_after_timeout(true);
    assert_eq!(in_recovery, after_timeout);
    let (in_recovery, after_timeout) = ssthresh_before_and_after_timeout(false);
    assert!(after_timeout < in_recovery);
}
