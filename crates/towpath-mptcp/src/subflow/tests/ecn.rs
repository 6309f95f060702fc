//! Explicit congestion notification (RFC 3168), segment by segment.

use super::link::{at, payload};
use super::script::{ISN, MSS, Script, after, plain};
use crate::subflow::{Subflow, SubflowConfig, Timer, Transmit, TransmitReason};
use crate::wire::{Ecn, Flags, Options, Segment};

fn config() -> SubflowConfig {
    SubflowConfig { ecn: true, quick_acks: 0, ..plain() }
}

fn both() -> Flags {
    Flags::ECE.with(Flags::CWR)
}

/// Opens a connection on which both sides agreed on ECN.
fn open() -> Script {
    Script::open_with(config(), |answer| answer.flags = answer.flags.with(Flags::ECE))
}

/// Sends an acknowledgement with ECE.
fn echo(script: &mut Script, ms: u64, ack: u64) {
    script.now = at(ms);
    let segment = script.segment(Flags::ACK.with(Flags::ECE), 1, ack);
    script.arrive(segment);
}

fn marked(script: &mut Script, ms: u64, seq: u64, flags: Flags) {
    script.now = at(ms);
    let mut segment = script.segment(flags.with(Flags::ACK), seq, 1);
    segment.payload = payload(2, seq, 1460);
    segment.ecn = Ecn::Marked;
    script.arrive(segment);
}

fn echoes(sent: &[Transmit]) -> Vec<bool> {
    sent.iter().map(|transmit| transmit.flags.contains(Flags::ECE)).collect()
}

#[test]
fn the_first_syn_offers_ecn_and_a_retransmitted_one_does_not() {
    let mut script = Script { subflow: Subflow::connect(config(), ISN, at(0)), now: at(0) };
    let first = script.transmits().remove(0);
    assert_eq!((first.flags, first.ecn), (Flags::SYN.with(both()), Ecn::NotCapable));
    script.wait(1000);
    assert_eq!(script.transmits().remove(0).flags, Flags::SYN);
    let mut without = Script { subflow: Subflow::connect(plain(), ISN, at(0)), now: at(0) };
    assert_eq!(without.transmits().remove(0).flags, Flags::SYN);
}

#[test]
fn a_syn_ack_accepts_an_offer_only() {
    for (offer, config, accepted) in [
        (both(), config(), true),
        (both(), plain(), false),
        (Flags::default(), config(), false),
        (Flags::ECE, config(), false),
        (Flags::CWR, config(), false),
    ] {
        let mut script = Script::open(plain());
        let mut syn = script.segment(Flags::SYN.with(offer), 0, 0);
        syn.options = Options { mss: Some(1460), ..Options::default() };
        script.subflow = Subflow::accept(config, ISN, &syn, at(1000));
        let answer = script.transmits().remove(0);
        assert_eq!(answer.flags.contains(Flags::ECE), accepted, "{offer:?}");
        assert!(!answer.flags.contains(Flags::CWR) && answer.ecn == Ecn::NotCapable);
        let ack = script.segment(Flags::ACK, 1, 1);
        script.arrive(ack);
        script.push(1000, 1);
        assert_eq!(script.transmits()[0].ecn == Ecn::Capable0, accepted, "{offer:?}");
    }
}

#[test]
fn a_syn_ack_that_mirrors_the_offer_or_has_no_flags_refuses_ecn() {
    for (flags, agreed) in [(Flags::ECE, true), (both(), false), (Flags::default(), false)] {
        let change = |answer: &mut Segment| answer.flags = answer.flags.with(flags);
        let mut script = Script::open_with(config(), change);
        script.push(1000, 1);
        let data = script.transmits().remove(0);
        assert_eq!(data.ecn == Ecn::Capable0, agreed, "{flags:?}");
        marked(&mut script, 1010, 1, Flags::default());
        marked(&mut script, 1010, after(1), Flags::default());
        assert_eq!(echoes(&script.transmits()), [agreed], "{flags:?}");
    }
}

#[test]
fn only_new_data_is_marked_as_capable() {
    let mut script = open();
    script.push(1000, 10);
    let sent = script.transmits();
    assert!(sent.iter().all(|transmit| transmit.ecn == Ecn::Capable0));
    script.ack(1100, after(0), &[(after(1), after(4))]);
    script.data(1100, 101, 100);
    let sent = script.transmits();
    let reasons: Vec<TransmitReason> = sent.iter().map(|transmit| transmit.reason).collect();
    assert_eq!(reasons, [TransmitReason::Retransmit, TransmitReason::Ack]);
    for transmit in sent {
        assert_eq!((transmit.ecn, transmit.flags.contains(Flags::CWR)), (Ecn::NotCapable, false));
    }
}

#[test]
fn a_window_probe_is_not_capable() {
    let mut script = open();
    script.push(1000, 1);
    script.sent();
    script.now = at(1100);
    let mut closed = script.segment(Flags::ACK.with(Flags::ECE), 1, after(1));
    closed.window = 0;
    script.arrive(closed);
    script.push(1100, 1);
    script.wait(1500);
    let probe = script.transmits().remove(0);
    assert_eq!((probe.reason, probe.ecn), (TransmitReason::WindowProbe, Ecn::NotCapable));
    assert!(!probe.flags.contains(Flags::CWR));
}

#[test]
fn an_ecn_echo_reduces_the_window_and_sends_cwr_once_per_rtt() {
    let mut script = open();
    script.push(1000, 10);
    script.sent();
    echo(&mut script, 1100, after(1));
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.ssthresh_bytes, statistics.retransmissions), (7300, 0));
    assert!(statistics.cwnd_bytes <= 14_600, "no growth by an acknowledgement with ECE");
    for packet in 2..=9 {
        echo(&mut script, 1100 + packet, after(packet));
    }
    assert_eq!(script.subflow.statistics().ssthresh_bytes, 7300, "the same window");
    script.push(1110, 3);
    let cwr_flags: Vec<bool> =
        script.transmits().iter().map(|t| t.flags.contains(Flags::CWR)).collect();
    assert_eq!(
        (cwr_flags.len(), cwr_flags.iter().filter(|told| **told).count(), cwr_flags[0]),
        (3, 1, true)
    );
    echo(&mut script, 1120, after(10));
    assert_eq!(script.subflow.statistics().cwnd_bytes, 7300);
    echo(&mut script, 1211, after(11));
    assert!(script.subflow.statistics().ssthresh_bytes < 7300, "the next window");
}

#[test]
fn a_timeout_also_sends_cwr() {
    let mut script =
        Script::open_with(SubflowConfig { rack: false, undo: false, ..config() }, |answer| {
            answer.flags = answer.flags.with(Flags::ECE);
        });
    script.push(1000, 1);
    script.sent();
    script.wait(1300);
    assert!(!script.transmits()[0].flags.contains(Flags::CWR), "not on repeated data");
    script.ack(1400, after(1), &[]);
    script.push(1400, 1);
    assert!(script.transmits()[0].flags.contains(Flags::CWR));
}

#[test]
fn with_the_smallest_window_an_echo_restarts_the_timer() {
    let mut script =
        Script::open_with(SubflowConfig { rack: false, undo: false, ..config() }, |answer| {
            answer.flags = answer.flags.with(Flags::ECE);
        });
    script.push(1000, 3);
    script.sent();
    script.wait(1300);
    script.sent();
    assert_eq!(script.subflow.statistics().cwnd_bytes, MSS);
    echo(&mut script, 1500, after(0));
    assert_eq!(script.subflow.timers.get(Timer::Retransmission), Some(at(1500 + 600)));
}

#[test]
fn a_mark_is_echoed_until_the_peer_has_reacted() {
    let mut script = open();
    marked(&mut script, 1000, 1, Flags::default());
    assert_eq!(echoes(&script.transmits()), [true], "at once");
    script.data(1001, after(1), 1460);
    script.data(1001, after(2), 1460);
    assert_eq!(echoes(&script.transmits()), [true], "until CWR comes");
    script.now = at(1002);
    for (packet, flags) in [(3, Flags::CWR.with(Flags::ACK)), (4, Flags::ACK)] {
        let mut segment = script.segment(flags, after(packet), 1);
        segment.payload = payload(2, after(packet), 1460);
        script.arrive(segment);
    }
    assert_eq!(echoes(&script.transmits()), [false]);
    // One of two is marked, and so is their common acknowledgement.
    marked(&mut script, 1003, after(5), Flags::default());
    script.data(1003, after(6), 1460);
    assert_eq!(echoes(&script.transmits()), [true]);
}

#[test]
fn marks_count_only_within_the_window_and_on_window_probes() {
    let mut script = open();
    marked(&mut script, 1000, 10_000_000, Flags::default());
    marked(&mut script, 1000, 4_000_000_000, Flags::default());
    script.subflow.want_ack();
    assert_eq!(echoes(&script.transmits()), [false]);
    // The window is full, then its edge is probed.
    let limit = script.subflow.own_window.limit(1);
    script.data(1001, 1, u32::try_from(limit - 1).unwrap());
    script.subflow.set_receive_window(0, false);
    script.transmits();
    marked(&mut script, 1002, limit, Flags::default());
    assert_eq!(echoes(&script.transmits()), [true]);
    assert_eq!(script.subflow.received_until(), limit, "the data did not fit");
}
