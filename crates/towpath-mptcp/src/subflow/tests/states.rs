//! States, windows and timers, packet by packet.

use std::time::Duration;

use towpath_wire::{Flags, Timestamps};

use super::link::{Pair, at_ms};
use super::script::{ISN, MSS, PEER_ISN, Script, plain_config, ssn_after};
use crate::subflow::{CloseReason, IcmpError, Subflow, SubflowConfig, TcpState, Timer};

#[test]
fn an_unanswered_syn_is_retransmitted_and_abandoned() {
    let config = SubflowConfig { syn_retries: 2, linear_syns: 0, ..plain_config() };
    let mut script = Script { subflow: Subflow::connect(config, ISN, at_ms(0)), now: at_ms(0) };
    assert_eq!(script.emit(), ["syn"]);
    for (ms, retransmissions) in [(1000, 1), (3000, 2)] {
        assert_eq!(script.subflow.poll_timeout(), Some((at_ms(ms), Timer::Retransmission)));
        script.run_timers_at(ms);
        assert_eq!(script.emit(), ["syn"]);
        assert_eq!(script.subflow.syn_retransmissions(), retransmissions);
    }
    assert_eq!(script.run_timers_at(7000).closed, Some(CloseReason::TimedOut));
}

#[test]
fn linear_syns_come_more_often_and_take_no_longer() {
    let config = SubflowConfig { syn_retries: 2, linear_syns: 4, ..plain_config() };
    let mut script = Script { subflow: Subflow::connect(config, ISN, at_ms(0)), now: at_ms(0) };
    assert_eq!(script.emit(), ["syn"]);
    for ms in [1000, 2000, 3000, 4000, 5000] {
        assert_eq!(script.run_timers_at(ms).closed, None);
        assert_eq!(script.emit(), ["syn"]);
    }
    assert_eq!(script.subflow.poll_timeout(), Some((at_ms(7000), Timer::Retransmission)));
    assert_eq!(script.run_timers_at(7000).closed, Some(CloseReason::TimedOut));
}

#[test]
fn a_syn_is_refused_by_a_reset_or_by_the_network() {
    let script_after_syn = || {
        let mut script =
            Script { subflow: Subflow::connect(plain_config(), ISN, at_ms(0)), now: at_ms(0) };
        script.emit();
        script
    };
    let mut script = script_after_syn();
    let stale_reset = script.peer_segment(Flags::RST.with(Flags::ACK), 0, 2);
    assert_eq!(script.recv(stale_reset).closed, None, "it acknowledges something else");
    let exact_reset = script.peer_segment(Flags::RST.with(Flags::ACK), 0, 1);
    assert_eq!(script.recv(exact_reset).closed, Some(CloseReason::Refused));
    let mut script = script_after_syn();
    script.subflow.on_icmp(at_ms(1), IcmpError::Unreachable { seq: ISN, hard: true });
    assert_eq!(script.subflow.close_reason(), Some(CloseReason::Unreachable));
    assert!(script.subflow.poll_timeout().is_some(), "the owner is called to be told");
    assert_eq!(script.run_timers_at(1).closed, Some(CloseReason::Unreachable));
}

#[test]
fn both_may_open_at_once() {
    let mut pair = Pair::new(plain_config(), plain_config(), 1);
    pair.connect();
    pair.b.subflow = Some(Subflow::connect(plain_config(), pair.b.isn, pair.now));
    (pair.a.to_send, pair.b.to_send) = (10_000, 20_000);
    pair.run_until(Duration::from_secs(5), |p| p.a.received == 20_000 && p.b.received == 10_000);
    assert_eq!((pair.a.state(), pair.b.state()), (TcpState::Established, TcpState::Established));
}

#[test]
fn both_may_close_at_once() {
    let mut script = Script::open(plain_config());
    script.subflow.close(at_ms(1000));
    assert_eq!(script.emit(), ["fin"]);
    let fin = script.peer_segment(Flags::FIN.with(Flags::ACK), 1, 1);
    assert!(script.recv(fin).fin);
    assert_eq!(script.subflow.state(), TcpState::Closing);
    assert_eq!(script.emit(), ["ack 2"]);
    script.recv_ack(1100, 2, &[]);
    assert_eq!(script.subflow.state(), TcpState::TimeWait);
    let repeated_fin = script.peer_segment(Flags::FIN.with(Flags::ACK), 1, 2);
    script.recv(repeated_fin);
    assert_eq!(script.emit(), ["ack 2 1-2"].map(|s| s.split(" 1-").next().unwrap()));
    assert_eq!(script.run_timers_at(61_100).closed, Some(CloseReason::Finished));
}

#[test]
fn a_half_closed_connection_still_receives() {
    let mut pair = Pair::new(plain_config(), plain_config(), 1);
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
    let mut script = Script::open(plain_config());
    let fin = script.peer_segment(Flags::FIN.with(Flags::ACK), 101, 1);
    assert!(!script.recv(fin).fin);
    assert_eq!(script.subflow.state(), TcpState::Established);
    let outcome = script.recv_data(1001, 1, 100);
    assert!(outcome.fin);
    assert_eq!(
        (script.subflow.state(), script.subflow.received_until()),
        (TcpState::CloseWait, 101)
    );
    assert_eq!(script.emit(), ["ack 102"]);
}

#[test]
fn only_the_exact_number_resets() {
    let mut script = Script::open(plain_config());
    let in_window = script.peer_segment(Flags::RST, 100, 1);
    assert_eq!(script.recv(in_window).closed, None);
    assert_eq!(script.emit(), ["challenge 1"]);
    let out_of_window = script.peer_segment(Flags::RST, 3_000_000_000, 1);
    assert_eq!(script.recv(out_of_window).closed, None);
    assert!(script.emit().is_empty());
    let exact_reset = script.peer_segment(Flags::RST, 1, 1);
    assert_eq!(script.recv(exact_reset).closed, Some(CloseReason::Reset));
    assert_eq!(script.subflow.state(), TcpState::Closed);
}

#[test]
fn challenges_are_limited() {
    let mut script = Script::open(plain_config());
    let mut challenge_acks = 0;
    for _ in 0..50 {
        let syn = script.peer_segment(Flags::SYN, 77, 1);
        assert!(!script.recv(syn).acceptable);
        challenge_acks += script.emit().len();
    }
    assert_eq!(challenge_acks, 10);
    script.now = at_ms(7000);
    let syn = script.peer_segment(Flags::SYN, 77, 1);
    script.recv(syn);
    assert_eq!(script.emit(), ["challenge 1"]);
}

#[test]
fn an_acknowledgement_of_unsent_data_is_answered_and_ignored() {
    let mut script = Script::open(plain_config());
    assert!(!script.recv_ack(1000, 2, &[]).acceptable);
    assert_eq!(script.emit(), ["challenge 1"]);
}

#[test]
fn old_timestamps_are_not_accepted() {
    let mut script = Script::open(SubflowConfig { timestamps: true, ..plain_config() });
    let timestamped = |script: &Script, seq: u64, value: u32| {
        let mut segment = script.peer_segment(Flags::ACK, seq, 1);
        segment.payload = super::link::payload(2, seq, 100);
        segment.options.timestamps = Some(Timestamps { value, echo: 0 });
        segment
    };
    let segment = timestamped(&script, 1, 100);
    assert_eq!(script.recv(segment).data.len(), 1);
    script.emit();
    let segment = timestamped(&script, 101, 99);
    let outcome = script.recv(segment);
    assert!(outcome.data.is_empty() && !outcome.acceptable);
    assert_eq!(script.emit(), ["challenge 101"]);
    let segment = timestamped(&script, 101, 100);
    assert_eq!(script.recv(segment).data.len(), 1);
}

#[test]
fn data_is_acknowledged_late_every_second_packet_or_at_once() {
    let mut script = Script::open(SubflowConfig { quick_acks: 0, ..plain_config() });
    let mut next_ssn = 1;
    let mut recv_next_packet = |script: &mut Script, ms: u64| {
        script.recv_data(ms, next_ssn, 1460);
        next_ssn += MSS;
    };
    recv_next_packet(&mut script, 1000);
    recv_next_packet(&mut script, 1000);
    assert_eq!(script.emit(), [format!("ack {}", ssn_after(2))]);
    recv_next_packet(&mut script, 1001);
    assert!(script.emit().is_empty());
    assert_eq!(script.subflow.poll_timeout(), Some((at_ms(1041), Timer::DelayedAck)));
    recv_next_packet(&mut script, 1002);
    assert_eq!(script.emit(), [format!("ack {}", ssn_after(4))]);
    recv_next_packet(&mut script, 1003);
    script.run_timers_at(1043);
    assert_eq!(script.emit(), [format!("ack {}", ssn_after(5))]);
    // Behind a hole, and the hole filled: acknowledged immediately.
    script.recv_data(1050, ssn_after(6), 1460);
    assert_eq!(script.emit(), [format!("ack {} {}-{}", ssn_after(5), ssn_after(6), ssn_after(7))]);
    script.recv_data(1051, ssn_after(5), 1460);
    assert_eq!(script.emit(), [format!("ack {}", ssn_after(7))]);
    // A duplicate is reported (RFC 2883).
    script.recv_data(1052, ssn_after(5), 1460);
    assert_eq!(script.emit(), [format!("ack {} {}-{}", ssn_after(7), ssn_after(5), ssn_after(6))]);
}

#[test]
fn the_latest_block_is_reported_first() {
    let mut script = Script::open(plain_config());
    for packet in [2, 4, 6, 8, 4] {
        script.recv_data(1000, ssn_after(packet), 1460);
    }
    let block_text = |packet: u64| format!("{}-{}", ssn_after(packet), ssn_after(packet + 1));
    let expected =
        format!("ack 1 {} {} {} {}", block_text(4), block_text(4), block_text(8), block_text(6));
    assert_eq!(script.emit(), [expected]);
    script.recv_data(1001, ssn_after(5), 1460);
    let merged_block = format!("{}-{}", ssn_after(4), ssn_after(7));
    assert_eq!(
        script.emit(),
        [format!("ack 1 {merged_block} {} {}", block_text(8), block_text(2))]
    );
}

#[test]
fn a_closed_window_is_probed_ever_more_rarely() {
    let mut script = Script::open(plain_config());
    script.now = at_ms(1000);
    let mut zero_window = script.peer_segment(Flags::ACK, 1, 1);
    zero_window.window = 0;
    script.recv(zero_window);
    script.push(1000, 1);
    assert_eq!(script.subflow.room_bytes(at_ms(1000)), 0);
    assert!(script.emit().is_empty());
    let mut probe_at = 1300;
    for step in 1..=4u32 {
        assert_eq!(script.subflow.poll_timeout(), Some((at_ms(probe_at), Timer::WindowProbe)));
        script.run_timers_at(probe_at);
        assert_eq!(script.emit(), ["window probe"]);
        probe_at += 300 << step;
    }
    script.now = at_ms(probe_at - 1);
    let open_window = script.peer_segment(Flags::ACK, 1, 1);
    script.recv(open_window);
    assert_eq!(script.emit(), ["data 1"]);
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
        let received_before = pair.b.received;
        pair.b.buffer = Some(50_000);
        pair.run_for(Duration::from_secs(2));
        assert!(pair.b.received > received_before, "{}", pair.describe());
    }
    let statistics = pair.a.subflow().statistics();
    assert_eq!((statistics.retransmissions, statistics.timeouts_total), (0, 0));
}

#[test]
fn an_idle_peer_is_probed_and_given_up() {
    let seconds = Duration::from_secs;
    let keepalive = Some((seconds(10), seconds(2), 2));
    let mut script = Script::open(SubflowConfig { keepalive, ..plain_config() });
    assert_eq!(script.subflow.poll_timeout(), Some((at_ms(11_000), Timer::KeepAlive)));
    script.run_timers_at(11_000);
    assert_eq!(script.emit(), ["keep alive"]);
    script.recv_ack(11_100, 1, &[]);
    script.run_timers_at(13_000);
    assert!(script.emit().is_empty(), "the peer has answered");
    for ms in [21_100, 23_100] {
        script.run_timers_at(ms);
        assert_eq!(script.emit(), ["keep alive"], "at {ms}");
    }
    assert_eq!(script.run_timers_at(25_100).closed, Some(CloseReason::TimedOut));
    assert_eq!(script.emit(), ["reset"]);
}

#[test]
fn the_user_timeout_ends_a_connection_that_gets_no_answer() {
    let user_timeout = Some(Duration::from_secs(5));
    let mut script = Script::open(SubflowConfig { user_timeout, ..plain_config() });
    script.push(2000, 1);
    script.emit();
    let mut closed = None;
    while closed.is_none() {
        let (deadline, _) = script.subflow.poll_timeout().unwrap();
        assert!(deadline <= at_ms(7000));
        script.now = deadline;
        closed = script.subflow.on_timeout(deadline).closed;
        let _ = script.emit_transmits();
    }
    assert_eq!((closed, script.now), (Some(CloseReason::TimedOut), at_ms(7000)));
}

#[test]
fn an_abort_sends_one_reset() {
    let mut script = Script::open(plain_config());
    script.subflow.abort(at_ms(1000));
    assert_eq!(script.emit(), ["reset"]);
    assert_eq!(script.subflow.state(), TcpState::Closed);
    assert_eq!(script.subflow.poll_timeout(), None);
    assert!(script.emit().is_empty());
}

#[test]
fn marks_reduce_the_window_without_loss() {
    let config = SubflowConfig { ecn: true, ..SubflowConfig::linux() };
    let mut pair = Pair::new(config.clone(), config, 4);
    pair.faults.ce_mark = 2;
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
    assert_eq!(script.subflow.offset_of(PEER_ISN.wrapping_add(5)), 5);
}
