//! Congestion control: pacing, super-segments, recovery's rate, coupled controls, the end of slow
//! start.

use std::time::Duration;

use towpath_multipath::congestion::HyStartRule;
use towpath_multipath::path::{PathId, RecoveryPhase};

use super::link::{Pair, at};
use super::script::{MSS, Script, after, plain};
use crate::subflow::SubflowConfig;
use crate::wire::Flags;

#[test]
fn pacing_spreads_the_window_over_a_round_trip() {
    let mut script = Script::open(SubflowConfig { pacing: true, ..plain() });
    // Slow start: twice the window of 14600 bytes in 100 ms.
    assert_eq!(script.subflow.statistics().pacing_rate, 292_000);
    script.push(1000, 10);
    assert_eq!(script.sent().len(), 10, "the first window is not paced");
    script.ack(1100, after(10), &[]);
    let rate = script.subflow.statistics().pacing_rate;
    assert_eq!(rate, 2 * 29_200 * 10);
    script.push(1100, 20);
    assert_eq!(script.sent().len(), 1);
    let (mut sent, mut last) = (1, at(1100));
    while sent < 20 {
        let (due, _) = script.subflow.poll_timeout().unwrap();
        assert!(due > last);
        last = due;
        script.now = due;
        script.subflow.on_timeout(due);
        sent += script.transmits().len();
    }
    // 19 gaps of 1460 bytes at 584 000 bytes a second.
    let took = last.saturating_since(at(1100));
    assert!(took.abs_diff(Duration::from_micros(47_500)) < Duration::from_millis(1), "{took:?}");
}

#[test]
fn a_super_segment_is_a_millisecond_long_and_longer_to_a_near_peer() {
    let config = SubflowConfig { tso_autosizing: true, super_segment_bytes: 65_400, ..plain() };
    let script = Script::open(config.clone());
    // 292 kB a second: the minimum of two packets.
    assert_eq!(script.subflow.quantum_bytes(), 2 * 1460);
    let mut script = Script::open(config);
    for round in 0..6u64 {
        let now = 1000 + round * 100;
        while script.subflow.room_bytes(at(now)) > 0 {
            script.push(now, 1);
        }
        script.transmits();
        let sent = script.subflow.pushed_until();
        script.ack(now + 100, sent, &[]);
    }
    let rate = script.subflow.statistics().pacing_rate;
    assert_eq!(u64::from(script.subflow.quantum_bytes()), rate / 1024 / MSS * MSS);
    assert!(script.subflow.quantum_bytes() > 8 * 1460, "{rate}");
}

#[test]
fn recovery_sends_in_proportion_and_ends_at_the_threshold() {
    let mut script =
        Script::open(SubflowConfig { congestion_control: "reno".to_owned(), ..plain() });
    for round in 0..2u64 {
        script.push(1000 + 100 * round, 10 << round);
        script.sent();
        script.ack(1100 + 100 * round, script.subflow.pushed_until(), &[]);
    }
    // Forty packets are in flight, and the first is lost.
    let base = 30;
    script.push(1200, 40);
    assert_eq!(script.sent().len(), 40);
    script.push(1250, 40);
    let mut sent = 0;
    for packet in 1..40 {
        script.ack(1300 + packet, after(base), &[(after(base + 1), after(base + 1 + packet))]);
        let now = script.sent().len();
        assert!(now <= 2, "no burst: {now}");
        sent += now;
        let (delivered, allowed) = (packet as usize, (packet as usize).div_ceil(2) + 2);
        assert!(sent <= allowed, "{sent} sent for {delivered} delivered");
    }
    assert!(sent >= 18, "{sent} of half of forty");
    assert_eq!(script.subflow.phase(), RecoveryPhase::Recovery);
    let sent_until = script.subflow.send.sent_until();
    script.ack(1500, sent_until, &[]);
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.phase, statistics.cwnd_bytes), (RecoveryPhase::Open, 20 * MSS));
}

#[test]
fn many_losses_of_one_window_are_one_congestion() {
    let mut script = Script::open(plain());
    script.push(1000, 10);
    script.sent();
    script.ack(1100, after(0), &[(after(1), after(4))]);
    let threshold = script.subflow.statistics().ssthresh_bytes;
    script.sent();
    script.ack(1101, after(0), &[(after(5), after(8)), (after(1), after(4))]);
    script.ack(
        1102,
        after(0),
        &[(after(9), after(10)), (after(5), after(8)), (after(1), after(4))],
    );
    let mut again = script.sent();
    script.ack(1205, after(4), &[(after(9), after(10)), (after(5), after(8))]);
    again.extend(script.sent());
    script.ack(1305, after(10), &[]);
    assert!(again.iter().all(|line| line.starts_with("again")), "{again:?}");
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.ssthresh_bytes, statistics.phase), (threshold, RecoveryPhase::Open));
    assert_eq!(statistics.timeouts_total, 0);
}

#[test]
fn a_second_timeout_of_the_same_data_keeps_the_threshold() {
    let config = SubflowConfig { rack: false, undo: false, black_hole_detection: false, ..plain() };
    let mut script = Script::open(config);
    script.push(1000, 10);
    script.sent();
    script.wait(1300);
    script.sent();
    assert_eq!(script.subflow.statistics().ssthresh_bytes, 5 * MSS);
    script.wait(1900);
    script.sent();
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.ssthresh_bytes, statistics.cwnd_bytes), (5 * MSS, MSS));
}

#[test]
fn packet_too_big_keeps_the_number_of_packets_in_the_window() {
    let mut script = Script::open(plain());
    script.push(1000, 10);
    script.sent();
    let seq = super::script::ISN.wrapping_add(1);
    let error = crate::subflow::IcmpError::TooBig { mtu_bytes: 770, seq };
    script.subflow.on_icmp(at(1010), error);
    // As a path in its first window: ten packets, now of 730 bytes.
    assert_eq!(script.subflow.statistics().cwnd_bytes, 7300);
    assert_eq!(script.subflow.statistics().ssthresh_bytes, u64::MAX);
}

/// Returns the bytes that the window grows in ten round trips of congestion avoidance, with
/// `others` as siblings.
fn growth(name: &str, others: &[u64]) -> u64 {
    let config =
        SubflowConfig { congestion_control: name.to_owned(), sack: false, rack: false, ..plain() };
    let mut script = Script::open(config);
    let group = |script: &Script| {
        let own = script.subflow.sibling(PathId(0));
        let other = |(index, cwnd): (usize, &u64)| towpath_multipath::congestion::Sibling {
            id: PathId(1 + index as u8),
            cwnd_bytes: *cwnd,
            slow_start: false,
            ..own
        };
        let mut all: Vec<_> = others.iter().enumerate().map(other).collect();
        all.push(own);
        all
    };
    let mut now = 1000;
    let mut round = |script: &mut Script, lose: bool| {
        while script.subflow.room_bytes(at(now)) > 0 {
            script.push(now, 1);
        }
        script.transmits();
        now += 100;
        script.now = at(now);
        let (from, to) = (script.subflow.acked_until(), script.subflow.pushed_until());
        let acks = if lose { vec![from; 4] } else { vec![] };
        for ack in acks.into_iter().chain([to]) {
            let mut segment = script.segment(Flags::ACK, 1, ack);
            let siblings = group(script);
            script.subflow.on_segment(script.now, &mut segment, PathId(0), &siblings);
            script.transmits();
        }
    };
    for _ in 0..3 {
        round(&mut script, false);
    }
    round(&mut script, true);
    let before = script.subflow.statistics().cwnd_bytes;
    for _ in 0..10 {
        round(&mut script, false);
    }
    script.subflow.statistics().cwnd_bytes - before
}

#[test]
fn a_coupled_controller_is_updated_by_its_siblings() {
    let reno = growth("reno", &[1_000_000]);
    assert!(reno >= 9 * MSS, "{reno}");
    for name in ["lia", "olia", "balia"] {
        let (alone, beside) = (growth(name, &[]), growth(name, &[1_000_000]));
        assert!(alone >= 9 * MSS, "{name}: {alone} alone");
        assert!(beside * 3 < alone * 2, "{name}: {beside} beside a large one, {alone} alone");
    }
}

#[test]
fn slow_start_ends_before_a_deep_queue_is_full() {
    let run = |hystart: HyStartRule| {
        let config = SubflowConfig { hystart, ..SubflowConfig::ideal() };
        let mut pair = Pair::new(config.clone(), config, 6);
        pair.a.to_send = 20_000_000;
        pair.connect();
        pair.run_until(Duration::from_secs(60), |p| p.b.received == 20_000_000);
        pair.a.subflow().statistics()
    };
    let (with, without) = (run(HyStartRule::Rfc9406), run(HyStartRule::Off));
    assert_eq!(without.ssthresh_bytes, u64::MAX);
    assert!(with.ssthresh_bytes < without.cwnd_bytes / 2, "{with:?} {without:?}");
    assert_eq!(with.retransmissions, 0);
}
