//! The peer's window, silly windows, probes, giving up (RFC 9293 §3.8.3 to §3.8.6).

use std::time::Duration;

use towpath_wire::Flags;

use super::link::{Pair, at_ms};
use super::script::{MSS, Script, plain_config, ssn_after};
use crate::subflow::{
    CloseReason, IcmpError, Subflow, SubflowConfig, TcpState, Timer, TransmitReason,
};

/// Receives an acknowledgement with this window field, in units of 16 bytes.
fn recv_window(script: &mut Script, ms: u64, ack: u64, field: u16) {
    script.now = at_ms(ms);
    let mut segment = script.peer_segment(Flags::ACK, 1, ack);
    segment.window = field;
    script.recv(segment);
}

fn plain_without_rack() -> SubflowConfig {
    SubflowConfig { rack: false, undo: false, black_hole_detection: false, ..plain_config() }
}

#[test]
fn a_window_of_any_size_is_a_positive_number() {
    let mut script = Script::open_with(plain_config(), |a| a.options.window_scale = Some(14));
    recv_window(&mut script, 1000, 1, 0xffff);
    assert_eq!(script.subflow.peer_window_bytes(), 0xffff << 14);
    script.push(1000, 3);
    assert_eq!(script.emit().len(), 3);
}

#[test]
fn with_a_shrunken_window_only_old_data_is_retransmitted() {
    let mut script = Script::open(plain_without_rack());
    script.push(1000, 6);
    assert_eq!(script.emit().len(), 6);
    // Two packets of six fit now; the others were sent before.
    recv_window(&mut script, 1050, ssn_after(0), 183);
    script.push(1050, 2);
    assert!(script.emit().is_empty());
    assert_eq!(script.subflow.room_bytes(at_ms(1050)), 0);
    script.run_timers_at(1300);
    assert_eq!(script.emit(), ["timeout 1"]);
    recv_window(&mut script, 1400, ssn_after(1), 183);
    let sent = script.emit();
    assert!(sent.contains(&"again 2".to_owned()), "{sent:?}");
    assert!(!sent.iter().any(|line| line.starts_with("data")), "{sent:?}");
    recv_window(&mut script, 1500, ssn_after(6), 65_535);
    assert_eq!(script.emit(), ["data 7", "data 8"]);
}

/// Regression: a program sent all before it read, and both sides waited for acknowledgements that
/// the other ignored.
#[test]
fn an_acknowledgement_lies_within_a_window_that_has_shrunk() {
    let mut script = Script::open(plain_without_rack());
    script.push(1000, 6);
    let first_seq = script.emit_transmits().first().map(|sent| sent.seq).unwrap();
    recv_window(&mut script, 1050, ssn_after(0), 183);
    script.subflow.set_ack_due();
    let acks: Vec<u32> =
        script.emit_transmits().iter().map(|sent| sent.seq.wrapping_sub(first_seq)).collect();
    assert_eq!(acks, [183 * 16], "two packets of six fit");
}

#[test]
fn a_peer_that_answers_with_a_closed_window_is_never_given_up() {
    for outstanding in [true, false] {
        let mut script = Script::open(SubflowConfig { retries: 3, ..plain_without_rack() });
        let mut acked = ssn_after(0);
        script.push(1000, 2);
        script.emit();
        if !outstanding {
            acked = ssn_after(2);
        }
        recv_window(&mut script, 1050, acked, 0);
        if !outstanding {
            script.push(1050, 1);
        }
        let (mut probes, mut last_probe_at, mut last_interval) = (0, at_ms(1050), Duration::ZERO);
        while probes < 15 {
            let (deadline, _) = script.subflow.poll_timeout().unwrap();
            script.now = deadline;
            assert_eq!(script.subflow.on_timeout(deadline).closed, None, "after {probes}");
            if !script.emit_transmits().is_empty() {
                probes += 1;
                let interval = deadline.saturating_since(last_probe_at);
                let min_interval = (2 * last_interval).min(Duration::from_secs(60));
                assert!(interval >= min_interval, "{interval:?} after {last_interval:?}");
                (last_probe_at, last_interval) = (deadline, interval);
                let ms = deadline.as_nanos() / 1_000_000;
                recv_window(&mut script, ms, acked, 0);
            }
        }
        recv_window(&mut script, last_probe_at.as_nanos() / 1_000_000 + 1, acked, 65_535);
        assert_eq!(script.subflow.state(), TcpState::Established);
    }
}

#[test]
fn a_first_probe_comes_after_one_timeout() {
    let mut script = Script::open(plain_without_rack());
    recv_window(&mut script, 1000, 1, 0);
    assert_eq!(script.subflow.poll_timeout(), Some((at_ms(1300), Timer::WindowProbe)));
}

#[test]
fn a_small_window_is_not_filled_with_small_packets() {
    let mut script = Script::open(plain_without_rack());
    recv_window(&mut script, 1000, 1, 20);
    script.push(1000, 1);
    assert!(script.emit().is_empty(), "320 bytes of a peer that has offered a mebibyte");
    // The delay is limited (RFC 9293 §3.8.6.2.1 (4)).
    script.run_timers_at(1300);
    let sent = script.emit_transmits();
    assert_eq!(sent[0].data.unwrap().len, 320);
}

#[test]
fn data_is_not_given_up_before_a_hundred_seconds() {
    let mut script = Script::open(SubflowConfig { rack: false, ..SubflowConfig::linux() });
    script.push(1000, 1);
    script.emit();
    let (mut closed, mut timeouts) = (None, 0);
    while closed.is_none() {
        let (deadline, _) = script.subflow.poll_timeout().unwrap();
        script.now = deadline;
        closed = script.subflow.on_timeout(deadline).closed;
        timeouts +=
            script.emit_transmits().iter().filter(|t| t.reason == TransmitReason::Timeout).count();
    }
    assert_eq!((closed, timeouts), (Some(CloseReason::TimedOut), 15));
    assert!(script.now > at_ms(101_000));
}

#[test]
fn keepalives_are_off_unless_asked_for_and_wait_for_silence() {
    let script = Script::open(SubflowConfig::linux());
    assert!(!script.subflow.timers.is_set(Timer::KeepAlive));
    let seconds = Duration::from_secs;
    let keepalive = Some((seconds(10), seconds(2), 2));
    let mut script =
        Script::open(SubflowConfig { keepalive, retries: 100, ..plain_without_rack() });
    // Data is outstanding: its retransmission probes the peer.
    script.push(1000, 1);
    script.emit();
    for ms in (1300..30_000).step_by(100) {
        script.run_timers_at(ms);
        assert!(
            script.emit_transmits().iter().all(|t| t.reason != TransmitReason::KeepAlive),
            "at {ms}"
        );
    }
    script.recv_ack(30_000, ssn_after(1), &[]);
    script.run_timers_at(39_000);
    assert!(script.emit().is_empty());
    script.run_timers_at(42_000);
    let sent = script.emit_transmits();
    assert_eq!((sent.len(), sent[0].reason, sent[0].data), (1, TransmitReason::KeepAlive, None));
}

#[test]
fn errors_of_the_network_end_only_what_is_not_open_yet() {
    for hard in [false, true] {
        let mut script = Script::open(plain_without_rack());
        script.push(1000, 1);
        script.emit();
        let seq = super::script::ISN.wrapping_add(1);
        script.subflow.on_icmp(at_ms(1001), IcmpError::Unreachable { seq, hard });
        assert_eq!(script.subflow.state(), TcpState::Established);
        script.recv_ack(1100, ssn_after(1), &[]);
        assert_eq!(script.subflow.statistics().acked_bytes, MSS);
    }
    let mut opening = Subflow::connect(plain_config(), super::script::ISN, at_ms(0));
    opening.poll_transmit(at_ms(0), 0);
    let seq = super::script::ISN;
    opening.on_icmp(at_ms(1), IcmpError::Unreachable { seq, hard: false });
    assert_eq!(opening.state(), TcpState::SynSent);
}

#[test]
fn a_user_timeout_does_not_run_while_nothing_is_outstanding() {
    let user_timeout = Some(Duration::from_secs(5));
    let mut script = Script::open(SubflowConfig { user_timeout, ..plain_config() });
    script.push(1000, 1);
    script.emit();
    script.recv_ack(1100, ssn_after(1), &[]);
    assert!(!script.subflow.timers.is_set(Timer::UserTimeout));
    script.run_timers_at(60_000);
    assert_eq!(script.subflow.state(), TcpState::Established);
}

#[test]
fn an_unknown_option_of_the_peer_changes_no_timeout() {
    let mut script = Script::open(plain_config());
    let deadline_before = script.subflow.timers.get(Timer::UserTimeout);
    // Kind 28, the user timeout option, as the codec sees it.
    let options = towpath_wire::Options::parse(&[28, 4, 0, 1]);
    assert_eq!(options, towpath_wire::Options::default());
    let mut segment = script.peer_segment(Flags::ACK, 1, 1);
    segment.options = options;
    assert!(script.recv(segment).acceptable);
    assert_eq!(script.subflow.timers.get(Timer::UserTimeout), deadline_before);
}

#[test]
fn a_receiver_opens_its_window_in_steps() {
    let mut pair = Pair::new(SubflowConfig::ideal(), SubflowConfig::ideal(), 5);
    pair.b.buffer = Some(20_000);
    pair.a.to_send = 100_000;
    pair.connect();
    pair.run_for(Duration::from_secs(2));
    let sent_before = pair.a.log.len();
    // The application reads ten bytes at a time: no window update is sent for ten bytes of room.
    for _ in 0..50 {
        pair.b.buffer = pair.b.buffer.map(|free| free + 10);
        pair.run_for(Duration::from_millis(1));
    }
    let new_packets = pair.a.log.get(sent_before..).unwrap_or_default();
    assert!(
        new_packets.iter().all(|(_, t)| t.data.is_none_or(|data| data.len >= 500)),
        "{new_packets:?}"
    );
}
