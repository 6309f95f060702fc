//! Congestion control: pacing, super-segments, recovery's rate, coupled controls, the end of slow
//! start.

use std::time::Duration;

use towpath_multipath::congestion::HyStartRule;
use towpath_multipath::path::{PathId, RecoveryPhase};
use towpath_wire::Flags;

use super::link::{Pair, at_ms};
use super::script::{MSS, Script, plain_config, ssn_after};
use crate::subflow::SubflowConfig;

#[test]
fn pacing_spreads_the_window_over_a_round_trip() {
    let mut script = Script::open(SubflowConfig { pacing: true, ..plain_config() });
    // Slow start: twice the window of 14600 bytes in 100 ms.
    assert_eq!(script.subflow.statistics().pacing_rate, 292_000);
    script.push(1000, 10);
    assert_eq!(script.emit().len(), 10, "the first window is not paced");
    script.recv_ack(1100, ssn_after(10), &[]);
    let rate = script.subflow.statistics().pacing_rate;
    assert_eq!(rate, 2 * 29_200 * 10);
    script.push(1100, 20);
    assert_eq!(script.emit().len(), 1);
    let (mut sent, mut last_sent_at) = (1, at_ms(1100));
    while sent < 20 {
        let (deadline, _) = script.subflow.poll_timeout().unwrap();
        assert!(deadline > last_sent_at);
        last_sent_at = deadline;
        script.now = deadline;
        script.subflow.on_timeout(deadline);
        sent += script.emit_transmits().len();
    }
    // 19 gaps of 1460 bytes at 584 000 bytes a second.
    let duration = last_sent_at.saturating_since(at_ms(1100));
    assert!(
        duration.abs_diff(Duration::from_micros(47_500)) < Duration::from_millis(1),
        "{duration:?}"
    );
}

#[test]
fn a_super_segment_is_a_millisecond_long_and_longer_to_a_near_peer() {
    let config =
        SubflowConfig { tso_autosizing: true, super_segment_bytes: 65_400, ..plain_config() };
    let script = Script::open(config.clone());
    // 292 kB a second: the minimum of two packets.
    assert_eq!(script.subflow.quantum_bytes(), 2 * 1460);
    let mut script = Script::open(config);
    for round in 0..6u64 {
        let now = 1000 + round * 100;
        while script.subflow.room_bytes(at_ms(now)) > 0 {
            script.push(now, 1);
        }
        script.emit_transmits();
        let sent = script.subflow.pushed_until();
        script.recv_ack(now + 100, sent, &[]);
    }
    let rate = script.subflow.statistics().pacing_rate;
    assert_eq!(u64::from(script.subflow.quantum_bytes()), rate / 1024 / MSS * MSS);
    assert!(script.subflow.quantum_bytes() > 8 * 1460, "{rate}");
}

#[test]
fn recovery_sends_in_proportion_and_ends_at_the_threshold() {
    let mut script =
        Script::open(SubflowConfig { congestion_control: "reno".to_owned(), ..plain_config() });
    for round in 0..2u64 {
        script.push(1000 + 100 * round, 10 << round);
        script.emit();
        script.recv_ack(1100 + 100 * round, script.subflow.pushed_until(), &[]);
    }
    // Forty packets are in flight, and the first is lost.
    let acked_packets = 30;
    script.push(1200, 40);
    assert_eq!(script.emit().len(), 40);
    script.push(1250, 40);
    let mut sent = 0;
    for packet in 1..40 {
        script.recv_ack(
            1300 + packet,
            ssn_after(acked_packets),
            &[(ssn_after(acked_packets + 1), ssn_after(acked_packets + 1 + packet))],
        );
        let burst = script.emit().len();
        assert!(burst <= 2, "no burst: {burst}");
        sent += burst;
        let (delivered, allowed) = (packet as usize, (packet as usize).div_ceil(2) + 2);
        assert!(sent <= allowed, "{sent} sent for {delivered} delivered");
    }
    assert!(sent >= 18, "{sent} of half of forty");
    assert_eq!(script.subflow.phase(), RecoveryPhase::Recovery);
    let sent_until = script.subflow.send.sent_until();
    script.recv_ack(1500, sent_until, &[]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.phase, statistics.cwnd_bytes), (RecoveryPhase::Open, 20 * MSS));
}

#[test]
fn many_losses_of_one_window_are_one_congestion() {
    let mut script = Script::open(plain_config());
    script.push(1000, 10);
    script.emit();
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
    let threshold = script.subflow.statistics().ssthresh_bytes;
    script.emit();
    script.recv_ack(
        1101,
        ssn_after(0),
        &[(ssn_after(5), ssn_after(8)), (ssn_after(1), ssn_after(4))],
    );
    script.recv_ack(
        1102,
        ssn_after(0),
        &[
            (ssn_after(9), ssn_after(10)),
            (ssn_after(5), ssn_after(8)),
            (ssn_after(1), ssn_after(4)),
        ],
    );
    let mut retransmitted = script.emit();
    script.recv_ack(
        1205,
        ssn_after(4),
        &[(ssn_after(9), ssn_after(10)), (ssn_after(5), ssn_after(8))],
    );
    retransmitted.extend(script.emit());
    script.recv_ack(1305, ssn_after(10), &[]);
    assert!(retransmitted.iter().all(|line| line.starts_with("again")), "{retransmitted:?}");
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.ssthresh_bytes, statistics.phase), (threshold, RecoveryPhase::Open));
    assert_eq!(statistics.timeouts_total, 0);
}

#[test]
fn a_second_timeout_of_the_same_data_keeps_the_threshold() {
    let config =
        SubflowConfig { rack: false, undo: false, black_hole_detection: false, ..plain_config() };
    let mut script = Script::open(config);
    script.push(1000, 10);
    script.emit();
    script.run_timers_at(1300);
    script.emit();
    assert_eq!(script.subflow.statistics().ssthresh_bytes, 5 * MSS);
    script.run_timers_at(1900);
    script.emit();
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.ssthresh_bytes, statistics.cwnd_bytes), (5 * MSS, MSS));
}

#[test]
fn packet_too_big_keeps_the_number_of_packets_in_the_window() {
    let mut script = Script::open(plain_config());
    script.push(1000, 10);
    script.emit();
    let seq = super::script::ISN.wrapping_add(1);
    let error = crate::subflow::IcmpError::TooBig { mtu_bytes: 770, seq };
    script.subflow.on_icmp(at_ms(1010), error);
    // The initial window still has ten packets, now of 730 bytes.
    assert_eq!(script.subflow.statistics().cwnd_bytes, 7300);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX);
}

/// Returns the bytes by which the window grows in ten round trips of congestion avoidance. The
/// siblings have the windows `sibling_cwnds`.
fn window_growth(name: &str, sibling_cwnds: &[u64]) -> u64 {
    let config = SubflowConfig {
        congestion_control: name.to_owned(),
        sack: false,
        rack: false,
        ..plain_config()
    };
    let mut script = Script::open(config);
    let siblings_of = |script: &Script| {
        let own_view = script.subflow.sibling(PathId(0));
        let sibling = |(index, cwnd): (usize, &u64)| towpath_multipath::congestion::Sibling {
            id: PathId(1 + index as u8),
            cwnd_bytes: *cwnd,
            slow_start: false,
            ..own_view
        };
        let mut siblings: Vec<_> = sibling_cwnds.iter().enumerate().map(sibling).collect();
        siblings.push(own_view);
        siblings
    };
    let mut now_ms = 1000;
    let mut run_round = |script: &mut Script, with_loss: bool| {
        while script.subflow.room_bytes(at_ms(now_ms)) > 0 {
            script.push(now_ms, 1);
        }
        script.emit_transmits();
        now_ms += 100;
        script.now = at_ms(now_ms);
        let (acked, pushed) = (script.subflow.acked_until(), script.subflow.pushed_until());
        let acks = if with_loss { vec![acked; 4] } else { vec![] };
        for ack in acks.into_iter().chain([pushed]) {
            let mut segment = script.peer_segment(Flags::ACK, 1, ack);
            let siblings = siblings_of(script);
            script.subflow.on_segment(script.now, &mut segment, PathId(0), &siblings);
            script.emit_transmits();
        }
    };
    for _ in 0..3 {
        run_round(&mut script, false);
    }
    run_round(&mut script, true);
    let cwnd_before = script.subflow.statistics().cwnd_bytes;
    for _ in 0..10 {
        run_round(&mut script, false);
    }
    script.subflow.statistics().cwnd_bytes - cwnd_before
}

#[test]
fn a_coupled_controller_is_updated_by_its_siblings() {
    let reno = window_growth("reno", &[1_000_000]);
    assert!(reno >= 9 * MSS, "{reno}");
    for name in ["lia", "olia", "balia"] {
        let (alone, with_sibling) = (window_growth(name, &[]), window_growth(name, &[1_000_000]));
        assert!(alone >= 9 * MSS, "{name}: {alone} alone");
        assert!(
            with_sibling * 3 < alone * 2,
            "{name}: {with_sibling} with a large sibling, {alone} alone"
        );
    }
}

#[test]
fn slow_start_ends_before_a_deep_queue_is_full() {
    let transfer_with = |hystart: HyStartRule| {
        let config = SubflowConfig { hystart, ..SubflowConfig::ideal() };
        let mut pair = Pair::new(config.clone(), config, 6);
        pair.a.to_send = 20_000_000;
        pair.connect();
        pair.run_until(Duration::from_secs(60), |p| p.b.received == 20_000_000);
        pair.a.subflow().statistics()
    };
    let (with_hystart, without_hystart) =
        (transfer_with(HyStartRule::Rfc9406), transfer_with(HyStartRule::Off));
    assert_eq!(without_hystart.ssthresh_bytes, u64::MAX);
    assert!(
        with_hystart.ssthresh_bytes < without_hystart.cwnd_bytes / 2,
        "{with_hystart:?} {without_hystart:?}"
    );
    assert_eq!(with_hystart.retransmissions, 0);
}
