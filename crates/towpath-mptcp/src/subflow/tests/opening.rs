//! TCP handshake, option by option.

use std::time::Duration;

use towpath_wire::{Flags, Options, Segment, Timestamps};

use super::link::{address, at_ms};
use super::script::{ISN, Script, plain_config};
use crate::subflow::{CloseReason, Subflow, SubflowConfig, TcpState, Timer};

fn all_options() -> Options {
    Options {
        mss: Some(1460),
        window_scale: Some(4),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 77, echo: 0 }),
        ..Options::default()
    }
}

fn peer_syn(script: &Script, options: Options) -> Segment {
    Segment { options, ..script.peer_segment(Flags::SYN, 0, 0) }
}

/// Returns a subflow that accepts a SYN, which `change` modifies.
fn accept_syn(config: SubflowConfig, change: impl FnOnce(&mut Segment)) -> Script {
    let mut script =
        Script { subflow: Subflow::connect(plain_config(), ISN, at_ms(900)), now: at_ms(900) };
    let mut segment = peer_syn(&script, all_options());
    change(&mut segment);
    script.subflow = Subflow::accept(config, ISN, &segment, at_ms(900));
    script
}

#[test]
fn a_syn_offers_everything_and_no_later_segment_does() {
    let mut script =
        Script { subflow: Subflow::connect(SubflowConfig::linux(), ISN, at_ms(0)), now: at_ms(0) };
    let [syn] = &script.emit_transmits()[..] else { panic!("one SYN") };
    let options = &syn.options;
    assert_eq!((options.mss, options.window_scale), (Some(1460), Some(10)));
    assert!(options.sack_permitted);
    assert_eq!(options.timestamps.map(|t| t.echo), Some(0), "there is nothing to echo");
    // Unscaled (RFC 7323 §2.2), and enough for ten packets (RFC 6928 §3).
    assert_eq!(syn.window, 65_535);

    let mut script = Script::open(SubflowConfig { quick_acks: 0, ..SubflowConfig::linux() });
    script.push(1000, 2);
    script.subflow.close(at_ms(1000));
    script.recv_data(1000, 3, 10);
    let sent = script.emit_transmits();
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
    let mut with_options = accept_syn(SubflowConfig::linux(), |_| {});
    let options = with_options.emit_transmits().remove(0).options;
    assert_eq!((options.window_scale, options.sack_permitted), (Some(10), true));
    assert_eq!(options.timestamps.map(|t| t.echo), Some(77));
    let mut without_options =
        accept_syn(SubflowConfig::linux(), |syn| syn.options = Options::default());
    let options = without_options.emit_transmits().remove(0).options;
    assert_eq!((options.window_scale, options.sack_permitted), (None, false));
    assert_eq!((options.timestamps, options.mss), (None, Some(1460)));

    for (script, peer_window, own_field) in
        [(&mut with_options, 16_000, 1024), (&mut without_options, 1000, 65_535)]
    {
        let mut ack = script.peer_segment(Flags::ACK, 1, 1);
        ack.window = 1000;
        assert!(script.recv(ack).established);
        assert_eq!(script.subflow.peer_window_bytes(), peer_window);
        script.subflow.set_receive_window(1 << 20, false);
        script.recv_data(1000, 1, 10);
        script.recv_data(1000, 101, 10);
        let reply = script.emit_transmits().remove(0);
        let field = reply.window;
        assert!(field.abs_diff(own_field) <= 1, "{field} for {own_field}");
        // SACK only for peers that permitted it (RFC 2018 §4).
        assert_eq!(reply.options.sack.is_empty(), peer_window == 1000);
    }
}

#[test]
fn a_scale_above_14_means_14() {
    let mut script =
        accept_syn(SubflowConfig { window_scale: Some(20), ..plain_config() }, |syn| {
            syn.options.window_scale = Some(15);
        });
    assert_eq!(script.emit_transmits()[0].options.window_scale, Some(14));
    let mut ack = script.peer_segment(Flags::ACK, 1, 1);
    ack.window = 3;
    script.recv(ack);
    assert_eq!(script.subflow.peer_window_bytes(), 3 << 14);
}

#[test]
fn a_scale_on_a_later_segment_means_nothing() {
    let mut script = Script::open(plain_config());
    let mut ack = script.peer_segment(Flags::ACK, 1, 1);
    ack.options.window_scale = Some(9);
    ack.window = 100;
    script.recv(ack);
    assert_eq!(script.subflow.peer_window_bytes(), 100 << 4);
}

#[test]
fn a_subflow_records_its_initiator() {
    let mut passive = accept_syn(plain_config(), |_| {});
    passive.emit();
    let reset = passive.peer_segment(Flags::RST, 1, 0);
    assert_eq!(passive.recv(reset).closed, Some(CloseReason::Reset));

    let mut active =
        Script { subflow: Subflow::connect(plain_config(), ISN, at_ms(0)), now: at_ms(0) };
    active.emit();
    let crossing_syn = peer_syn(&active, all_options());
    active.recv(crossing_syn);
    assert_eq!(active.subflow.state(), TcpState::SynReceived);
    assert_eq!(active.emit(), ["syn ack"]);
    let reset = active.peer_segment(Flags::RST, 1, 0);
    assert_eq!(active.recv(reset).closed, Some(CloseReason::Refused));
}

#[test]
fn after_a_lost_syn_without_timestamps_the_rto_is_three_seconds() {
    for (rack, timer, delay) in
        [(false, Timer::Retransmission, 3000), (true, Timer::TailProbe, 1000)]
    {
        let mut script = Script {
            subflow: Subflow::connect(SubflowConfig { rack, ..plain_config() }, ISN, at_ms(0)),
            now: at_ms(0),
        };
        script.emit();
        script.run_timers_at(1000);
        assert_eq!(script.emit(), ["syn"]);
        let syn_ack = Segment {
            options: all_options(),
            ..script.peer_segment(Flags::SYN.with(Flags::ACK), 0, 1)
        };
        script.now = at_ms(1100);
        script.recv(syn_ack);
        script.push(1100, 2);
        // RFC 6928 §2: one lost SYN does not indicate congestion.
        assert_eq!(script.subflow.statistics().cwnd_bytes, 14_600);
        script.emit();
        assert_eq!(script.subflow.poll_timeout(), Some((at_ms(1100 + delay), timer)));
    }
}

#[test]
fn the_first_window_is_ten_packets_of_the_size_agreed_on() {
    let mut script = Script::open(plain_config());
    script.push(1000, 20);
    assert_eq!(script.emit().len(), 10, "the handshake adds nothing");
    let mut small_mss = Script::open_with(plain_config(), |syn_ack| syn_ack.options.mss = None);
    assert_eq!(small_mss.subflow.statistics().mss_bytes, 536, "RFC 9293 §3.7.1");
    small_mss.push(1000, 20);
    assert_eq!(small_mss.emit_transmits().len(), 10);
}

#[test]
fn over_ipv6_a_packet_carries_twenty_bytes_less() {
    let mut subflow = Subflow::connect(plain_config(), ISN, at_ms(0));
    subflow.set_ipv6(true);
    let syn = subflow.poll_transmit(at_ms(0), 0).unwrap();
    assert_eq!(syn.options.mss, Some(1440));
    let mut script = Script::open(plain_config());
    assert!(address(1).is_ipv4());
    script.subflow.set_ipv6(true);
    assert_eq!(script.subflow.statistics().mss_bytes, 1440);
}

#[test]
fn a_syn_ack_is_retransmitted_for_at_least_a_minute() {
    let mut script = accept_syn(SubflowConfig::linux(), |_| {});
    script.emit();
    let mut closed = None;
    while closed.is_none() {
        let (deadline, _) = script.subflow.poll_timeout().unwrap();
        script.now = deadline;
        closed = script.subflow.on_timeout(deadline).closed;
        script.emit_transmits();
    }
    assert_eq!(closed, Some(CloseReason::TimedOut));
    assert!(script.now.saturating_since(at_ms(900)) > Duration::from_secs(100), "{}", script.now);
    assert_eq!(script.subflow.syn_retransmissions(), 6);
}
