//! TCP handshake, option by option.

use std::time::Duration;

use super::link::{address, at};
use super::script::{ISN, Script, plain};
use crate::subflow::{CloseReason, Subflow, SubflowConfig, TcpState, Timer};
use crate::wire::{Flags, Options, Segment, Timestamps};

fn everything() -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(4),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 77, echo: 0 }),
        ..Options::default()
    }
}

fn syn(script: &Script, options: Options) -> Segment {
    Segment { options, ..script.segment(Flags::SYN, 0, 0) }
}

/// Returns a subflow that accepts this SYN.
fn answering(config: SubflowConfig, change: impl FnOnce(&mut Segment)) -> Script {
    let mut script = Script { subflow: Subflow::connect(plain(), ISN, at(900)), now: at(900) };
    let mut segment = syn(&script, everything());
    change(&mut segment);
    script.subflow = Subflow::accept(config, ISN, &segment, at(900));
    script
}

#[test]
fn a_syn_offers_everything_and_no_later_segment_does() {
    let mut script =
        Script { subflow: Subflow::connect(SubflowConfig::linux(), ISN, at(0)), now: at(0) };
    let [syn] = &script.transmits()[..] else { panic!("one SYN") };
    let options = &syn.options;
    assert_eq!((options.mss, options.window_scale), (Some(1460), Some(10)));
    assert!(options.sack_permitted);
    assert_eq!(options.timestamps.map(|t| t.echo), Some(0), "there is nothing to echo");
    // Unscaled (RFC 7323 §2.2), and enough for ten packets (RFC 6928 §3).
    assert_eq!(syn.window, 65_535);

    let mut script = Script::open(SubflowConfig { quick_acks: 0, ..SubflowConfig::linux() });
    script.push(1000, 2);
    script.subflow.close(at(1000));
    script.data(1000, 3, 10);
    let sent = script.transmits();
    assert!(sent.len() >= 3, "{sent:?}");
    for transmit in sent {
        let options = transmit.options;
        assert_eq!(
            (options.mss, options.window_scale, options.sack_permitted),
            (None, None, false)
        );
    }
}

#[test]
fn a_syn_ack_accepts_what_was_offered_and_nothing_else() {
    let mut full = answering(SubflowConfig::linux(), |_| {});
    let options = full.transmits().remove(0).options;
    assert_eq!((options.window_scale, options.sack_permitted), (Some(10), true));
    assert_eq!(options.timestamps.map(|t| t.echo), Some(77));
    let mut bare = answering(SubflowConfig::linux(), |syn| syn.options = Options::default());
    let options = bare.transmits().remove(0).options;
    assert_eq!((options.window_scale, options.sack_permitted), (None, false));
    assert_eq!((options.timestamps, options.mss), (None, Some(1460)));

    for (script, theirs, ours) in [(&mut full, 16_000, 1024), (&mut bare, 1000, 65_535)] {
        let mut ack = script.segment(Flags::ACK, 1, 1);
        ack.window = 1000;
        assert!(script.arrive(ack).established);
        assert_eq!(script.subflow.peer_window_bytes(), theirs);
        script.subflow.set_receive_window(1 << 20, false);
        script.data(1000, 1, 10);
        script.data(1000, 101, 10);
        let answer = script.transmits().remove(0);
        let field = answer.window;
        assert!(field.abs_diff(ours) <= 1, "{field} for {ours}");
        // SACK only for peers that permitted it (RFC 2018 §4).
        assert_eq!(answer.options.sack.is_empty(), theirs == 1000);
    }
}

#[test]
fn a_scale_above_14_means_14() {
    let mut script = answering(SubflowConfig { window_scale: Some(20), ..plain() }, |syn| {
        syn.options.window_scale = Some(15);
    });
    assert_eq!(script.transmits()[0].options.window_scale, Some(14));
    let mut ack = script.segment(Flags::ACK, 1, 1);
    ack.window = 3;
    script.arrive(ack);
    assert_eq!(script.subflow.peer_window_bytes(), 3 << 14);
}

#[test]
fn a_scale_on_a_later_segment_means_nothing() {
    let mut script = Script::open(plain());
    let mut ack = script.segment(Flags::ACK, 1, 1);
    ack.options.window_scale = Some(9);
    ack.window = 100;
    script.arrive(ack);
    assert_eq!(script.subflow.peer_window_bytes(), 100 << 4);
}

#[test]
fn a_subflow_records_its_initiator() {
    let mut passive = answering(plain(), |_| {});
    passive.sent();
    let reset = passive.segment(Flags::RST, 1, 0);
    assert_eq!(passive.arrive(reset).closed, Some(CloseReason::Reset));

    let mut active = Script { subflow: Subflow::connect(plain(), ISN, at(0)), now: at(0) };
    active.sent();
    let crossing = syn(&active, everything());
    active.arrive(crossing);
    assert_eq!(active.subflow.state(), TcpState::SynReceived);
    assert_eq!(active.sent(), ["syn ack"]);
    let reset = active.segment(Flags::RST, 1, 0);
    assert_eq!(active.arrive(reset).closed, Some(CloseReason::Refused));
}

#[test]
fn after_a_lost_syn_without_timestamps_the_rto_is_three_seconds() {
    for (rack, timer, delay) in
        [(false, Timer::Retransmission, 3000), (true, Timer::TailProbe, 1000)]
    {
        let mut script = Script {
            subflow: Subflow::connect(SubflowConfig { rack, ..plain() }, ISN, at(0)),
            now: at(0),
        };
        script.sent();
        script.wait(1000);
        assert_eq!(script.sent(), ["syn"]);
        let answer =
            Segment { options: everything(), ..script.segment(Flags::SYN.with(Flags::ACK), 0, 1) };
        script.now = at(1100);
        script.arrive(answer);
        script.push(1100, 2);
        // RFC 6928 §2: one lost SYN does not indicate congestion.
        assert_eq!(script.subflow.statistics().cwnd_bytes, 14_600);
        script.sent();
        assert_eq!(script.subflow.poll_timeout(), Some((at(1100 + delay), timer)));
    }
}

#[test]
fn the_first_window_is_ten_packets_of_the_size_agreed_on() {
    let mut script = Script::open(plain());
    script.push(1000, 20);
    assert_eq!(script.sent().len(), 10, "the handshake adds nothing");
    let mut small = Script::open_with(plain(), |answer| answer.options.mss = None);
    assert_eq!(small.subflow.statistics().mss_bytes, 536, "RFC 9293 §3.7.1");
    small.push(1000, 20);
    assert_eq!(small.transmits().len(), 10);
}

#[test]
fn over_ipv6_a_packet_carries_twenty_bytes_less() {
    let mut subflow = Subflow::connect(plain(), ISN, at(0));
    subflow.set_ipv6(true);
    let syn = subflow.poll_transmit(at(0), 0).unwrap();
    assert_eq!(syn.options.mss, Some(1440));
    let mut script = Script::open(plain());
    assert!(address(1).is_ipv4());
    script.subflow.set_ipv6(true);
    assert_eq!(script.subflow.statistics().mss_bytes, 1440);
}

#[test]
fn a_syn_ack_is_retransmitted_for_at_least_a_minute() {
    let mut script = answering(SubflowConfig::linux(), |_| {});
    script.sent();
    let mut closed = None;
    while closed.is_none() {
        let (due, _) = script.subflow.poll_timeout().unwrap();
        script.now = due;
        closed = script.subflow.on_timeout(due).closed;
        script.transmits();
    }
    assert_eq!(closed, Some(CloseReason::TimedOut));
    assert!(script.now.saturating_since(at(900)) > Duration::from_secs(100), "{}", script.now);
    assert_eq!(script.subflow.syn_retransmissions(), 6);
}
