//! States, windows and timers, packet by packet.

use std::time::Duration;

use super::link::{Pair, at};
use super::script::{ISN, MSS, PEER, Script, after, plain};
use crate::subflow::{CloseReason, IcmpError, Subflow, SubflowConfig, TcpState, Timer};
use crate::wire::{Flags, Timestamps};

#[test]
fn an_unanswered_syn_is_retransmitted_and_abandoned() {
    let config = SubflowConfig { syn_retries: 2, linear_syns: 0, ..plain() };
    let mut script = Script { subflow: Subflow::connect(config, ISN, at(0)), now: at(0) };
    assert_eq!(script.sent(), ["syn"]);
    for (ms, repeated) in [(1000, 1), (3000, 2)] {
        assert_eq!(script.subflow.poll_timeout(), Some((at(ms), Timer::Retransmission)));
        script.wait(ms);
        assert_eq!(script.sent(), ["syn"]);
        assert_eq!(script.subflow.syn_retransmissions(), repeated);
    }
    assert_eq!(script.wait(7000).closed, Some(CloseReason::TimedOut));
}

#[test]
fn linear_syns_come_more_often_and_take_no_longer() {
    let config = SubflowConfig { syn_retries: 2, linear_syns: 4, ..plain() };
    let mut script = Script { subflow: Subflow::connect(config, ISN, at(0)), now: at(0) };
    assert_eq!(script.sent(), ["syn"]);
    for ms in [1000, 2000, 3000, 4000, 5000] {
        assert_eq!(script.wait(ms).closed, None);
        assert_eq!(script.sent(), ["syn"]);
    }
    assert_eq!(script.subflow.poll_timeout(), Some((at(7000), Timer::Retransmission)));
    assert_eq!(script.wait(7000).closed, Some(CloseReason::TimedOut));
}

#[test]
fn a_syn_is_refused_by_a_reset_or_by_the_network() {
    let new = || {
        let mut script = Script { subflow: Subflow::connect(plain(), ISN, at(0)), now: at(0) };
        script.sent();
        script
    };
    let mut script = new();
    let stale = script.segment(Flags::RST.with(Flags::ACK), 0, 2);
    assert_eq!(script.arrive(stale).closed, None, "it acknowledges something else");
    let refused = script.segment(Flags::RST.with(Flags::ACK), 0, 1);
    assert_eq!(script.arrive(refused).closed, Some(CloseReason::Refused));
    let mut script = new();
    script.subflow.on_icmp(at(1), IcmpError::Unreachable { seq: ISN, hard: true });
    assert_eq!(script.subflow.close_reason(), Some(CloseReason::Unreachable));
    assert!(script.subflow.poll_timeout().is_some(), "the owner is called to be told");
    assert_eq!(script.wait(1).closed, Some(CloseReason::Unreachable));
}

#[test]
fn both_may_open_at_once() {
    let mut pair = Pair::new(plain(), plain(), 1);
    pair.connect();
    pair.b.subflow = Some(Subflow::connect(plain(), pair.b.isn, pair.now));
    (pair.a.to_send, pair.b.to_send) = (10_000, 20_000);
    pair.run_until(Duration::from_secs(5), |p| p.a.received == 20_000 && p.b.received == 10_000);
    assert_eq!((pair.a.state(), pair.b.state()), (TcpState::Established, TcpState::Established));
}

#[test]
fn both_may_close_at_once() {
    let mut script = Script::open(plain());
    script.subflow.close(at(1000));
    assert_eq!(script.sent(), ["fin"]);
    let fin = script.segment(Flags::FIN.with(Flags::ACK), 1, 1);
    assert!(script.arrive(fin).fin);
    assert_eq!(script.subflow.state(), TcpState::Closing);
    assert_eq!(script.sent(), ["ack 2"]);
    script.ack(1100, 2, &[]);
    assert_eq!(script.subflow.state(), TcpState::TimeWait);
    let repeated = script.segment(Flags::FIN.with(Flags::ACK), 1, 2);
    script.arrive(repeated);
    assert_eq!(script.sent(), ["ack 2 1-2"].map(|s| s.split(" 1-").next().unwrap()));
    assert_eq!(script.wait(61_100).closed, Some(CloseReason::Finished));
}

#[test]
fn a_half_closed_connection_still_receives() {
    let mut pair = Pair::new(plain(), plain(), 1);
    (pair.a.to_send, pair.a.close_when_sent) = (5000, true);
    pair.connect();
    pair.run_until(Duration::from_secs(5), |p| p.b.fin);
    pair.run_for(Duration::from_secs(100));
    pair.b.to_send = 100_000;
    pair.run_until(Duration::from_secs(5), |p| p.a.received == 100_000);
    assert_eq!((pair.a.state(), pair.b.state()), (TcpState::FinWait2, TcpState::CloseWait));
}

#[test]
fn a_fin_before_its_data_waits() {
    let mut script = Script::open(plain());
    let fin = script.segment(Flags::FIN.with(Flags::ACK), 101, 1);
    assert!(!script.arrive(fin).fin);
    assert_eq!(script.subflow.state(), TcpState::Established);
    let received = script.data(1001, 1, 100);
    assert!(received.fin);
    assert_eq!(
        (script.subflow.state(), script.subflow.received_until()),
        (TcpState::CloseWait, 101)
    );
    assert_eq!(script.sent(), ["ack 102"]);
}

#[test]
fn only_the_exact_number_resets() {
    let mut script = Script::open(plain());
    let near = script.segment(Flags::RST, 100, 1);
    assert_eq!(script.arrive(near).closed, None);
    assert_eq!(script.sent(), ["challenge 1"]);
    let far = script.segment(Flags::RST, 3_000_000_000, 1);
    assert_eq!(script.arrive(far).closed, None);
    assert!(script.sent().is_empty());
    let exact = script.segment(Flags::RST, 1, 1);
    assert_eq!(script.arrive(exact).closed, Some(CloseReason::Reset));
    assert_eq!(script.subflow.state(), TcpState::Closed);
}

#[test]
fn challenges_are_limited() {
    let mut script = Script::open(plain());
    let mut answers = 0;
    for _ in 0..50 {
        let syn = script.segment(Flags::SYN, 77, 1);
        assert!(!script.arrive(syn).acceptable);
        answers += script.sent().len();
    }
    assert_eq!(answers, 10);
    script.now = at(7000);
    let syn = script.segment(Flags::SYN, 77, 1);
    script.arrive(syn);
    assert_eq!(script.sent(), ["challenge 1"]);
}

#[test]
fn an_acknowledgement_of_unsent_data_is_answered_and_ignored() {
    let mut script = Script::open(plain());
    assert!(!script.ack(1000, 2, &[]).acceptable);
    assert_eq!(script.sent(), ["challenge 1"]);
}

#[test]
fn old_timestamps_are_not_accepted() {
    let mut script = Script::open(SubflowConfig { timestamps: true, ..plain() });
    let stamped = |script: &Script, seq: u64, value: u32| {
        let mut segment = script.segment(Flags::ACK, seq, 1);
        segment.payload = super::link::payload(2, seq, 100);
        segment.options.timestamps = Some(Timestamps { value, echo: 0 });
        segment
    };
    let segment = stamped(&script, 1, 100);
    assert_eq!(script.arrive(segment).data.len(), 1);
    script.sent();
    let segment = stamped(&script, 101, 99);
    let received = script.arrive(segment);
    assert!(received.data.is_empty() && !received.acceptable);
    assert_eq!(script.sent(), ["challenge 101"]);
    let segment = stamped(&script, 101, 100);
    assert_eq!(script.arrive(segment).data.len(), 1);
}

#[test]
fn data_is_acknowledged_late_every_second_packet_or_at_once() {
    let mut script = Script::open(SubflowConfig { quick_acks: 0, ..plain() });
    let mut next = 1;
    let mut data = |script: &mut Script, ms: u64| {
        script.data(ms, next, 1460);
        next += MSS;
    };
    data(&mut script, 1000);
    data(&mut script, 1000);
    assert_eq!(script.sent(), [format!("ack {}", after(2))]);
    data(&mut script, 1001);
    assert!(script.sent().is_empty());
    assert_eq!(script.subflow.poll_timeout(), Some((at(1041), Timer::DelayedAck)));
    data(&mut script, 1002);
    assert_eq!(script.sent(), [format!("ack {}", after(4))]);
    data(&mut script, 1003);
    script.wait(1043);
    assert_eq!(script.sent(), [format!("ack {}", after(5))]);
    // Behind a hole, and the hole filled: acknowledged immediately.
    script.data(1050, after(6), 1460);
    assert_eq!(script.sent(), [format!("ack {} {}-{}", after(5), after(6), after(7))]);
    script.data(1051, after(5), 1460);
    assert_eq!(script.sent(), [format!("ack {}", after(7))]);
    // Twice: reported (RFC 2883).
    script.data(1052, after(5), 1460);
    assert_eq!(script.sent(), [format!("ack {} {}-{}", after(7), after(5), after(6))]);
}

#[test]
fn the_latest_block_is_reported_first() {
    let mut script = Script::open(plain());
    for packet in [2, 4, 6, 8, 4] {
        script.data(1000, after(packet), 1460);
    }
    let block = |packet: u64| format!("{}-{}", after(packet), after(packet + 1));
    let expected = format!("ack 1 {} {} {} {}", block(4), block(4), block(8), block(6));
    assert_eq!(script.sent(), [expected]);
    script.data(1001, after(5), 1460);
    let merged = format!("{}-{}", after(4), after(7));
    assert_eq!(script.sent(), [format!("ack 1 {merged} {} {}", block(8), block(2))]);
}

#[test]
fn a_closed_window_is_probed_ever_more_rarely() {
    let mut script = Script::open(plain());
    script.now = at(1000);
    let mut closed = script.segment(Flags::ACK, 1, 1);
    closed.window = 0;
    script.arrive(closed);
    script.push(1000, 1);
    assert_eq!(script.subflow.room_bytes(at(1000)), 0);
    assert!(script.sent().is_empty());
    let mut time = 1300;
    for step in 1..=4u32 {
        assert_eq!(script.subflow.poll_timeout(), Some((at(time), Timer::WindowProbe)));
        script.wait(time);
        assert_eq!(script.sent(), ["window probe"]);
        time += 300 << step;
    }
    script.now = at(time - 1);
    let open = script.segment(Flags::ACK, 1, 1);
    script.arrive(open);
    assert_eq!(script.sent(), ["data 1"]);
    assert!(script.subflow.poll_timeout().is_some_and(|(_, timer)| timer != Timer::WindowProbe));
}

#[test]
fn a_full_buffer_stops_the_peer_and_reading_starts_it_again() {
    let mut pair = Pair::new(SubflowConfig::linux(), SubflowConfig::linux(), 3);
    pair.b.buffer = Some(50_000);
    pair.a.to_send = 120_000;
    pair.connect();
    pair.run_for(Duration::from_secs(30));
    // Rounding to the window scale adds up to 1023 bytes an acknowledgement, as in Linux.
    assert!(pair.b.received <= 75_000 && pair.b.received > 40_000, "{}", pair.describe());
    assert!(pair.packets < 200, "{} packets", pair.packets);
    while pair.b.received < 120_000 {
        let before = pair.b.received;
        pair.b.buffer = Some(50_000);
        pair.run_for(Duration::from_secs(2));
        assert!(pair.b.received > before, "{}", pair.describe());
    }
    let statistics = pair.a.subflow().statistics();
    assert_eq!((statistics.retransmissions, statistics.timeouts_total), (0, 0));
}

#[test]
fn an_idle_peer_is_probed_and_given_up() {
    let seconds = Duration::from_secs;
    let keepalive = Some((seconds(10), seconds(2), 2));
    let mut script = Script::open(SubflowConfig { keepalive, ..plain() });
    assert_eq!(script.subflow.poll_timeout(), Some((at(11_000), Timer::KeepAlive)));
    script.wait(11_000);
    assert_eq!(script.sent(), ["keep alive"]);
    script.ack(11_100, 1, &[]);
    script.wait(13_000);
    assert!(script.sent().is_empty(), "the peer has answered");
    for ms in [21_100, 23_100] {
        script.wait(ms);
        assert_eq!(script.sent(), ["keep alive"], "at {ms}");
    }
    assert_eq!(script.wait(25_100).closed, Some(CloseReason::TimedOut));
    assert_eq!(script.sent(), ["reset"]);
}

#[test]
fn the_user_timeout_ends_a_connection_that_gets_no_answer() {
    let user_timeout = Some(Duration::from_secs(5));
    let mut script = Script::open(SubflowConfig { user_timeout, ..plain() });
    script.push(2000, 1);
    script.sent();
    let mut closed = None;
    while closed.is_none() {
        let (due, _) = script.subflow.poll_timeout().unwrap();
        assert!(due <= at(7000));
        script.now = due;
        closed = script.subflow.on_timeout(due).closed;
        let _ = script.transmits();
    }
    assert_eq!((closed, script.now), (Some(CloseReason::TimedOut), at(7000)));
}

#[test]
fn an_abort_sends_one_reset() {
    let mut script = Script::open(plain());
    script.subflow.abort(at(1000));
    assert_eq!(script.sent(), ["reset"]);
    assert_eq!(script.subflow.state(), TcpState::Closed);
    assert_eq!(script.subflow.poll_timeout(), None);
    assert!(script.sent().is_empty());
}

#[test]
fn marks_reduce_the_window_without_loss() {
    let config = SubflowConfig { ecn: true, ..SubflowConfig::linux() };
    let mut pair = Pair::new(config.clone(), config, 4);
    pair.faults.mark = 2;
    pair.a.to_send = 2_000_000;
    pair.connect();
    pair.run_until(Duration::from_secs(60), |p| p.b.received == 2_000_000);
    let statistics = pair.a.subflow().statistics();
    assert!(statistics.ssthresh_bytes < u64::MAX, "{statistics:?}");
    assert_eq!((statistics.retransmissions, statistics.timeouts_total), (0, 0));
    assert!(pair.a.log.iter().any(|(_, t)| t.flags.contains(Flags::CWR) && t.data.is_some()));
    assert!(pair.b.log.iter().any(|(_, t)| t.flags.contains(Flags::ECE)));
}

#[test]
fn an_idle_subflow_is_small() {
    let script = Script::open(SubflowConfig::linux());
    let inline = size_of_val(&script.subflow);
    assert!(inline <= 1344, "{inline} bytes");
    assert_eq!(script.subflow.offset_of(PEER.wrapping_add(5)), 5);
}
