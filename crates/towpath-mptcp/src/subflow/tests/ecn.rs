//! Explicit congestion notification (RFC 3168), segment by segment.

use towpath_wire::{Ecn, Flags, Options, Segment};

use super::link::{at_ms, payload};
use super::script::{ISN, MSS, Script, plain_config, ssn_after};
use crate::subflow::{Subflow, SubflowConfig, Timer, Transmit, TransmitReason};

fn ecn_config() -> SubflowConfig {
    SubflowConfig { ecn: true, quick_acks: 0, ..plain_config() }
}

fn ece_and_cwr() -> Flags {
    Flags::ECE.with(Flags::CWR)
}

/// Opens a connection on which both sides agreed on ECN.
fn open_with_ecn() -> Script {
    Script::open_with(ecn_config(), |syn_ack| syn_ack.flags = syn_ack.flags.with(Flags::ECE))
}

/// Receives an acknowledgement with ECE.
fn recv_ece(script: &mut Script, ms: u64, ack: u64) {
    script.now = at_ms(ms);
    let segment = script.peer_segment(Flags::ACK.with(Flags::ECE), 1, ack);
    script.recv(segment);
}

/// Receives a data packet with the CE mark.
fn recv_ce_data(script: &mut Script, ms: u64, seq: u64, flags: Flags) {
    script.now = at_ms(ms);
    let mut segment = script.peer_segment(flags.with(Flags::ACK), seq, 1);
    segment.payload = payload(2, seq, 1460);
    segment.ecn = Ecn::Marked;
    script.recv(segment);
}

fn ece_flags(sent: &[Transmit]) -> Vec<bool> {
    sent.iter().map(|transmit| transmit.flags.contains(Flags::ECE)).collect()
}

#[test]
fn the_first_syn_offers_ecn_and_a_retransmitted_one_does_not() {
    let mut script =
        Script { subflow: Subflow::connect(ecn_config(), ISN, at_ms(0)), now: at_ms(0) };
    let first_syn = script.emit_transmits().remove(0);
    assert_eq!((first_syn.flags, first_syn.ecn), (Flags::SYN.with(ece_and_cwr()), Ecn::NotCapable));
    script.run_timers_at(1000);
    assert_eq!(script.emit_transmits().remove(0).flags, Flags::SYN);
    let mut without_ecn =
        Script { subflow: Subflow::connect(plain_config(), ISN, at_ms(0)), now: at_ms(0) };
    assert_eq!(without_ecn.emit_transmits().remove(0).flags, Flags::SYN);
}

#[test]
fn a_syn_ack_accepts_an_offer_only() {
    for (syn_flags, config, accepted) in [
        (ece_and_cwr(), ecn_config(), true),
        (ece_and_cwr(), plain_config(), false),
        (Flags::default(), ecn_config(), false),
        (Flags::ECE, ecn_config(), false),
        (Flags::CWR, ecn_config(), false),
    ] {
        let mut script = Script::open(plain_config());
        let mut syn = script.peer_segment(Flags::SYN.with(syn_flags), 0, 0);
        syn.options = Options { mss: Some(1460), ..Options::default() };
        script.subflow = Subflow::accept(config, ISN, &syn, at_ms(1000));
        let syn_ack = script.emit_transmits().remove(0);
        assert_eq!(syn_ack.flags.contains(Flags::ECE), accepted, "{syn_flags:?}");
        assert!(!syn_ack.flags.contains(Flags::CWR) && syn_ack.ecn == Ecn::NotCapable);
        let ack = script.peer_segment(Flags::ACK, 1, 1);
        script.recv(ack);
        script.push(1000, 1);
        assert_eq!(script.emit_transmits()[0].ecn == Ecn::Capable0, accepted, "{syn_flags:?}");
    }
}

#[test]
fn a_syn_ack_that_mirrors_the_offer_or_has_no_flags_refuses_ecn() {
    for (flags, agreed) in [(Flags::ECE, true), (ece_and_cwr(), false), (Flags::default(), false)] {
        let change = |syn_ack: &mut Segment| syn_ack.flags = syn_ack.flags.with(flags);
        let mut script = Script::open_with(ecn_config(), change);
        script.push(1000, 1);
        let data = script.emit_transmits().remove(0);
        assert_eq!(data.ecn == Ecn::Capable0, agreed, "{flags:?}");
        recv_ce_data(&mut script, 1010, 1, Flags::default());
        recv_ce_data(&mut script, 1010, ssn_after(1), Flags::default());
        assert_eq!(ece_flags(&script.emit_transmits()), [agreed], "{flags:?}");
    }
}

#[test]
fn only_new_data_is_marked_as_capable() {
    let mut script = open_with_ecn();
    script.push(1000, 10);
    let sent = script.emit_transmits();
    assert!(sent.iter().all(|transmit| transmit.ecn == Ecn::Capable0));
    script.recv_ack(1100, ssn_after(0), &[(ssn_after(1), ssn_after(4))]);
    script.recv_data(1100, 101, 100);
    let sent = script.emit_transmits();
    let reasons: Vec<TransmitReason> = sent.iter().map(|transmit| transmit.reason).collect();
    assert_eq!(reasons, [TransmitReason::Retransmit, TransmitReason::Ack]);
    for transmit in sent {
        assert_eq!((transmit.ecn, transmit.flags.contains(Flags::CWR)), (Ecn::NotCapable, false));
    }
}

#[test]
fn a_window_probe_is_not_capable() {
    let mut script = open_with_ecn();
    script.push(1000, 1);
    script.emit();
    script.now = at_ms(1100);
    let mut zero_window = script.peer_segment(Flags::ACK.with(Flags::ECE), 1, ssn_after(1));
    zero_window.window = 0;
    script.recv(zero_window);
    script.push(1100, 1);
    script.run_timers_at(1500);
    let probe = script.emit_transmits().remove(0);
    assert_eq!((probe.reason, probe.ecn), (TransmitReason::WindowProbe, Ecn::NotCapable));
    assert!(!probe.flags.contains(Flags::CWR));
}

#[test]
fn an_ecn_echo_reduces_the_window_and_sends_cwr_once_per_rtt() {
    let mut script = open_with_ecn();
    script.push(1000, 10);
    script.emit();
    recv_ece(&mut script, 1100, ssn_after(1));
    let statistics = script.subflow.statistics();
    assert_eq!((statistics.ssthresh_bytes, statistics.retransmissions), (7300, 0));
    assert!(statistics.cwnd_bytes <= 14_600, "no growth by an acknowledgement with ECE");
    for packet in 2..=9 {
        recv_ece(&mut script, 1100 + packet, ssn_after(packet));
    }
    assert_eq!(script.subflow.statistics().ssthresh_bytes, 7300, "the same window");
    script.push(1110, 3);
    let cwr_flags: Vec<bool> =
        script.emit_transmits().iter().map(|t| t.flags.contains(Flags::CWR)).collect();
    assert_eq!(
        (cwr_flags.len(), cwr_flags.iter().filter(|cwr| **cwr).count(), cwr_flags[0]),
        (3, 1, true)
    );
    recv_ece(&mut script, 1120, ssn_after(10));
    assert_eq!(script.subflow.statistics().cwnd_bytes, 7300);
    recv_ece(&mut script, 1211, ssn_after(11));
    assert!(script.subflow.statistics().ssthresh_bytes < 7300, "the next window");
}

#[test]
fn a_timeout_also_sends_cwr() {
    let mut script =
        Script::open_with(SubflowConfig { rack: false, undo: false, ..ecn_config() }, |syn_ack| {
            syn_ack.flags = syn_ack.flags.with(Flags::ECE);
        });
    script.push(1000, 1);
    script.emit();
    script.run_timers_at(1300);
    assert!(!script.emit_transmits()[0].flags.contains(Flags::CWR), "not on repeated data");
    script.recv_ack(1400, ssn_after(1), &[]);
    script.push(1400, 1);
    assert!(script.emit_transmits()[0].flags.contains(Flags::CWR));
}

#[test]
fn with_the_smallest_window_an_echo_restarts_the_timer() {
    let mut script =
        Script::open_with(SubflowConfig { rack: false, undo: false, ..ecn_config() }, |syn_ack| {
            syn_ack.flags = syn_ack.flags.with(Flags::ECE);
        });
    script.push(1000, 3);
    script.emit();
    script.run_timers_at(1300);
    script.emit();
    assert_eq!(script.subflow.statistics().cwnd_bytes, MSS);
    recv_ece(&mut script, 1500, ssn_after(0));
    assert_eq!(script.subflow.timers.get(Timer::Retransmission), Some(at_ms(1500 + 600)));
}

#[test]
fn a_mark_is_echoed_until_the_peer_has_reacted() {
    let mut script = open_with_ecn();
    recv_ce_data(&mut script, 1000, 1, Flags::default());
    assert_eq!(ece_flags(&script.emit_transmits()), [true], "at once");
    script.recv_data(1001, ssn_after(1), 1460);
    script.recv_data(1001, ssn_after(2), 1460);
    assert_eq!(ece_flags(&script.emit_transmits()), [true], "until CWR comes");
    script.now = at_ms(1002);
    for (packet, flags) in [(3, Flags::CWR.with(Flags::ACK)), (4, Flags::ACK)] {
        let mut segment = script.peer_segment(flags, ssn_after(packet), 1);
        segment.payload = payload(2, ssn_after(packet), 1460);
        script.recv(segment);
    }
    assert_eq!(ece_flags(&script.emit_transmits()), [false]);
    // One of two is marked, and so is their common acknowledgement.
    recv_ce_data(&mut script, 1003, ssn_after(5), Flags::default());
    script.recv_data(1003, ssn_after(6), 1460);
    assert_eq!(ece_flags(&script.emit_transmits()), [true]);
}

#[test]
fn marks_count_only_within_the_window_and_on_window_probes() {
    let mut script = open_with_ecn();
    recv_ce_data(&mut script, 1000, 10_000_000, Flags::default());
    recv_ce_data(&mut script, 1000, 4_000_000_000, Flags::default());
    script.subflow.set_ack_due();
    assert_eq!(ece_flags(&script.emit_transmits()), [false]);
    // The window is full, then its edge is probed.
    let limit = script.subflow.receive_window.limit(1);
    script.recv_data(1001, 1, u32::try_from(limit - 1).unwrap());
    script.subflow.set_receive_window(0, false);
    script.emit_transmits();
    recv_ce_data(&mut script, 1002, limit, Flags::default());
    assert_eq!(ece_flags(&script.emit_transmits()), [true]);
    assert_eq!(script.subflow.received_until(), limit, "the data did not fit");
}
