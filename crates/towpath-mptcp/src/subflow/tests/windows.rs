//! The peer's window, silly windows, probes, giving up (RFC 9293 §3.8.3 to §3.8.6).

use std::time::Duration;

use super::link::{Pair, at};
use super::script::{MSS, Script, after, plain};
use crate::subflow::{
    CloseReason, IcmpError, Subflow, SubflowConfig, TcpState, Timer, TransmitReason,
};
use crate::wire::Flags;

/// Sends an acknowledgement with this window, in units of 16 bytes.
fn window(script: &mut Script, ms: u64, ack: u64, field: u16) {
    script.now = at(ms);
    let mut segment = script.segment(Flags::ACK, 1, ack);
    segment.window = field;
    script.arrive(segment);
}

fn config() -> SubflowConfig {
    SubflowConfig { rack: false, undo: false, black_hole_detection: false, ..plain() }
}

#[test]
fn a_window_of_any_size_is_a_positive_number() {
    let mut script = Script::open_with(plain(), |a| a.options.window_scale = Some(14));
    window(&mut script, 1000, 1, 0xffff);
    assert_eq!(script.subflow.peer_window_bytes(), 0xffff << 14);
    script.push(1000, 3);
    assert_eq!(script.sent().len(), 3);
}

#[test]
fn with_a_shrunken_window_only_old_data_is_retransmitted() {
    let mut script = Script::open(config());
    script.push(1000, 6);
    assert_eq!(script.sent().len(), 6);
    // Two packets of six fit now; the others were sent before.
    window(&mut script, 1050, after(0), 183);
    script.push(1050, 2);
    assert!(script.sent().is_empty());
    assert_eq!(script.subflow.room_bytes(at(1050)), 0);
    script.wait(1300);
    assert_eq!(script.sent(), ["timeout 1"]);
    window(&mut script, 1400, after(1), 183);
    let sent = script.sent();
    assert!(sent.contains(&"again 2".to_owned()), "{sent:?}");
    assert!(!sent.iter().any(|line| line.starts_with("data")), "{sent:?}");
    window(&mut script, 1500, after(6), 65_535);
    assert_eq!(script.sent(), ["data 7", "data 8"]);
}

/// Regression: a program sent all before it read, and both sides waited for acknowledgements that
/// the other ignored.
#[test]
fn an_acknowledgement_lies_within_a_window_that_has_shrunk() {
    let mut script = Script::open(config());
    script.push(1000, 6);
    let begin = script.transmits().first().map(|sent| sent.seq).unwrap();
    window(&mut script, 1050, after(0), 183);
    script.subflow.want_ack();
    let acks: Vec<u32> =
        script.transmits().iter().map(|sent| sent.seq.wrapping_sub(begin)).collect();
    assert_eq!(acks, [183 * 16], "two packets of six fit");
}

#[test]
fn a_peer_that_answers_with_a_closed_window_is_never_given_up() {
    for outstanding in [true, false] {
        let mut script = Script::open(SubflowConfig { retries: 3, ..config() });
        let mut acked = after(0);
        script.push(1000, 2);
        script.sent();
        if !outstanding {
            acked = after(2);
        }
        window(&mut script, 1050, acked, 0);
        if !outstanding {
            script.push(1050, 1);
        }
        let (mut probes, mut last, mut gap) = (0, at(1050), Duration::ZERO);
        while probes < 15 {
            let (due, _) = script.subflow.poll_timeout().unwrap();
            script.now = due;
            assert_eq!(script.subflow.on_timeout(due).closed, None, "after {probes}");
            if !script.transmits().is_empty() {
                probes += 1;
                let waited = due.saturating_since(last);
                let doubled = (2 * gap).min(Duration::from_secs(60));
                assert!(waited >= doubled, "{waited:?} after {gap:?}");
                (last, gap) = (due, waited);
                let ms = due.as_nanos() / 1_000_000;
                window(&mut script, ms, acked, 0);
            }
        }
        window(&mut script, last.as_nanos() / 1_000_000 + 1, acked, 65_535);
        assert_eq!(script.subflow.state(), TcpState::Established);
    }
}

#[test]
fn a_first_probe_comes_after_one_timeout() {
    let mut script = Script::open(config());
    window(&mut script, 1000, 1, 0);
    assert_eq!(script.subflow.poll_timeout(), Some((at(1300), Timer::WindowProbe)));
}

#[test]
fn a_small_window_is_not_filled_with_small_packets() {
    let mut script = Script::open(config());
    window(&mut script, 1000, 1, 20);
    script.push(1000, 1);
    assert!(script.sent().is_empty(), "320 bytes of a peer that has offered a mebibyte");
    // The delay is limited (RFC 9293 §3.8.6.2.1 (4)).
    script.wait(1300);
    let sent = script.transmits();
    assert_eq!(sent[0].data.unwrap().len, 320);
}

#[test]
fn data_is_not_given_up_before_a_hundred_seconds() {
    let mut script = Script::open(SubflowConfig { rack: false, ..SubflowConfig::linux() });
    script.push(1000, 1);
    script.sent();
    let (mut closed, mut repeated) = (None, 0);
    while closed.is_none() {
        let (due, _) = script.subflow.poll_timeout().unwrap();
        script.now = due;
        closed = script.subflow.on_timeout(due).closed;
        repeated +=
            script.transmits().iter().filter(|t| t.reason == TransmitReason::Timeout).count();
    }
    assert_eq!((closed, repeated), (Some(CloseReason::TimedOut), 15));
    assert!(script.now > at(101_000));
}

#[test]
fn keepalives_are_off_unless_asked_for_and_wait_for_silence() {
    let script = Script::open(SubflowConfig::linux());
    assert!(!script.subflow.timers.is_set(Timer::KeepAlive));
    let seconds = Duration::from_secs;
    let keepalive = Some((seconds(10), seconds(2), 2));
    let mut script = Script::open(SubflowConfig { keepalive, retries: 100, ..config() });
    // Data is outstanding: its retransmission probes the peer.
    script.push(1000, 1);
    script.sent();
    for ms in (1300..30_000).step_by(100) {
        script.wait(ms);
        assert!(
            script.transmits().iter().all(|t| t.reason != TransmitReason::KeepAlive),
            "at {ms}"
        );
    }
    script.ack(30_000, after(1), &[]);
    script.wait(39_000);
    assert!(script.sent().is_empty());
    script.wait(42_000);
    let sent = script.transmits();
    assert_eq!((sent.len(), sent[0].reason, sent[0].data), (1, TransmitReason::KeepAlive, None));
}

#[test]
fn errors_of_the_network_end_only_what_is_not_open_yet() {
    for hard in [false, true] {
        let mut script = Script::open(config());
        script.push(1000, 1);
        script.sent();
        let seq = super::script::ISN.wrapping_add(1);
        script.subflow.on_icmp(at(1001), IcmpError::Unreachable { seq, hard });
        assert_eq!(script.subflow.state(), TcpState::Established);
        script.ack(1100, after(1), &[]);
        assert_eq!(script.subflow.statistics().acked_bytes, MSS);
    }
    let mut soft = Subflow::connect(plain(), super::script::ISN, at(0));
    soft.poll_transmit(at(0), 0);
    let seq = super::script::ISN;
    soft.on_icmp(at(1), IcmpError::Unreachable { seq, hard: false });
    assert_eq!(soft.state(), TcpState::SynSent);
}

#[test]
fn a_user_timeout_does_not_run_while_nothing_is_outstanding() {
    let user_timeout = Some(Duration::from_secs(5));
    let mut script = Script::open(SubflowConfig { user_timeout, ..plain() });
    script.push(1000, 1);
    script.sent();
    script.ack(1100, after(1), &[]);
    assert!(!script.subflow.timers.is_set(Timer::UserTimeout));
    script.wait(60_000);
    assert_eq!(script.subflow.state(), TcpState::Established);
}

#[test]
fn an_unknown_option_of_the_peer_changes_no_timeout() {
    let mut script = Script::open(plain());
    let before = script.subflow.timers.get(Timer::UserTimeout);
    // Kind 28, the user timeout option, as the codec sees it.
    let options = crate::wire::Options::parse(&[28, 4, 0, 1]);
    assert_eq!(options, crate::wire::Options::default());
    let mut segment = script.segment(Flags::ACK, 1, 1);
    segment.options = options;
    assert!(script.arrive(segment).acceptable);
    assert_eq!(script.subflow.timers.get(Timer::UserTimeout), before);
}

#[test]
fn a_receiver_opens_its_window_in_steps() {
    let mut pair = Pair::new(SubflowConfig::ideal(), SubflowConfig::ideal(), 5);
    pair.b.buffer = Some(20_000);
    pair.a.to_send = 100_000;
    pair.connect();
    pair.run_for(Duration::from_secs(2));
    let sent = pair.a.log.len();
    // The application reads ten bytes at a time: no window update is sent for ten bytes of room.
    for _ in 0..50 {
        pair.b.buffer = pair.b.buffer.map(|free| free + 10);
        pair.run_for(Duration::from_millis(1));
    }
    let new = pair.a.log.get(sent..).unwrap_or_default();
    assert!(new.iter().all(|(_, t)| t.data.is_none_or(|data| data.len >= 500)), "{new:?}");
}
