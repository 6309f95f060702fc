//! Regression tests for defects found by driving whole hosts packet by packet, which tests of
//! single parts had missed. Small windows are in `windows`.

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::ConnectionError;
use towpath_mptcp::wire::{
    Ecn, Flags, MpCapable, MpTcpRst, MptcpOption, Options, SackBlocks, Segment,
};

use crate::script::*;

/// Returns plain TCP without timestamps: full packets have 1,460 bytes.
fn plain() -> ConnectionConfig {
    let mut config = ConnectionConfig { multipath: false, ..config() };
    config.subflow.timestamps = false;
    config
}

/// Returns a host that opened a connection; the peer's SYN/ACK has these flags and options.
fn open(config: ConnectionConfig, flags: Flags, options: Options) -> Script {
    let mut script = Script::client(config);
    let _ = script.expect();
    script.send(0, flags, options, b"");
    // The window is only scaled from now on.
    let mut options = Options::default();
    if let Some(capable) = capable_of(&script.expect()) {
        script.host_key = capable.sender_key.unwrap();
        options = script.data_ack(1);
    }
    script.send(0, ACK, options, b"");
    let _ = script.drain();
    script
}

fn sack() -> Options {
    Options { sack_permitted: true, ..Options::default() }
}

/// Acknowledges the first `bytes` bytes.
fn acknowledge(script: &mut Script, bytes: u32, flags: Flags) {
    script.lines[0].ack = script.lines[0].host_isn.wrapping_add(1 + bytes);
    script.send(0, flags, Options::default(), b"");
}

#[test]
fn an_unusable_mp_capable_in_the_third_packet_means_plain_tcp() {
    let wrong = [
        |option: &mut MpCapable| option.hmac_sha256 = false,
        |option: &mut MpCapable| option.extensibility = true,
        |option: &mut MpCapable| option.version = 0,
    ];
    for change in wrong {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(offer()), b"");
        script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
        let MptcpOption::Capable(mut third) = script.third() else { panic!() };
        change(&mut third);
        script.send(0, ACK, mptcp(MptcpOption::Capable(third)), b"");
        assert!(!script.status().multipath, "{third:?}");
        script.send(0, ACK, Options::default(), b"plain");
        let answer = script.expect();
        assert_eq!((answer.options.dss, capable_of(&answer)), (None, None));
        assert_eq!(script.read(), b"plain");
    }
}

#[test]
fn mp_prio_of_the_old_version_is_ignored() {
    let mut script = Script::accepted(config());
    let line = script.join(1);
    // Our encoder cannot write it: subtype and flag, then the identifier of the first address.
    let mut segment = script.segment(line, ACK, script.data_ack(1), b"");
    segment.options = Options::parse(&[30, 4, 0x51, 0]);
    script.inject(&segment);
    assert!(script.status().subflows.iter().all(|subflow| !subflow.backup));
    script.send(line, ACK, mptcp(MptcpOption::Priority { backup: true }), b"");
    let backups: Vec<bool> = script.status().subflows.iter().map(|flow| flow.backup).collect();
    assert_eq!(backups, [false, true]);
}

#[test]
fn a_segment_covering_several_duplicates_reports_only_the_first() {
    let mut script = open(plain(), SYN.with(ACK), sack());
    let first = script.lines[0].seq;
    let mut at = |from: u32, to: u32| {
        script.lines[0].seq = first.wrapping_add(from - 1);
        let data = vec![9; (to - from) as usize];
        script.send(0, ACK, Options::default(), &data);
        script.drain().pop().unwrap().1
    };
    for (from, to) in [(1_001, 3_001), (4_001, 5_001), (7_001, 8_001)] {
        let _ = at(from, to);
    }
    let answer = at(1, 6_001);
    let relative = |wire: u32| wire.wrapping_sub(first) + 1;
    let blocks = |sack: &SackBlocks| {
        sack.iter().map(|(from, to)| (relative(*from), relative(*to))).collect::<Vec<_>>()
    };
    assert_eq!(relative(answer.ack), 6_001);
    assert_eq!(blocks(&answer.options.sack), [(1_001, 3_001), (7_001, 8_001)]);
}

#[test]
fn an_ecn_echo_on_the_last_acknowledgement_reduces_the_window() {
    let mut settings = plain();
    settings.subflow.ecn = true;
    let mut script = open(settings, SYN.with(ACK).with(Flags::ECE), sack());
    script.write(&[1; 14_600]);
    assert_eq!(script.drain().len(), 10);
    script.now += millis(50);
    let before = script.status().subflows[0].tcp.cwnd_bytes;
    acknowledge(&mut script, 14_600, ACK.with(Flags::ECE));
    let after = script.status().subflows[0].tcp;
    assert!(after.ssthresh_bytes < before && after.cwnd_bytes < before, "{after:?}");
    script.write(&[1; 1_460]);
    let next = script.expect();
    assert!(next.flags.contains(Flags::CWR) && next.ecn != Ecn::NotCapable, "{next:?}");
}

#[test]
fn an_acknowledgement_with_an_ecn_echo_releases_data() {
    let mut settings = plain();
    settings.subflow.ecn = true;
    let mut script = open(settings, SYN.with(ACK).with(Flags::ECE), sack());
    script.write(&vec![1; 30 * 1_460]);
    assert_eq!(script.drain().len(), 10);
    script.now += millis(50);
    acknowledge(&mut script, 4 * 1_460, ACK.with(Flags::ECE));
    // The threshold is seven tenths of the window (CUBIC), of which six are in flight.
    let sent = script.drain();
    assert!((1..=4).contains(&sent.len()), "{}", sent.len());
    assert!(sent[0].1.flags.contains(Flags::CWR));
}

#[test]
fn a_tail_loss_probe_is_data_that_the_connection_has_not_sent_yet() {
    for multipath in [false, true] {
        let capable = multipath.then(answer).into_iter().collect();
        let options = Options { mptcp: capable, ..sack() };
        let mut script = open(ConnectionConfig { multipath, ..plain() }, SYN.with(ACK), options);
        // A round-trip time has been measured.
        script.write(b"hello");
        script.now += millis(50);
        let options = if multipath { script.data_ack(6) } else { Options::default() };
        script.send(0, ACK, options, b"");
        let _ = script.drain();
        script.write(&vec![1; 40_000]);
        let sent = script.drain();
        let end = sent.iter().map(|(_, segment)| segment.seq + segment.sequence_bytes()).max();
        script.wait(millis(150));
        let probe = script.expect();
        assert_eq!(Some(probe.seq), end, "new data, Multipath TCP: {multipath}");
        assert!(!probe.payload.is_empty());
        script.silence();
    }
}

#[test]
fn a_connection_that_is_closed_before_it_is_open_is_forgotten() {
    for multipath in [false, true] {
        for written in [0, 100] {
            let mut script = Script::client(ConnectionConfig { multipath, ..config() });
            let syn = script.expect();
            script.write(&vec![1; written]);
            script.stack.release(script.now, script.id.unwrap());
            script.silence();
            assert!(script.stack.is_idle());
            let options = if multipath { mptcp(answer()) } else { Options::default() };
            script.send(0, SYN.with(ACK), options, b"");
            let reset = script.expect();
            assert!(reset.flags.contains(RST), "{reset:?}");
            assert_eq!(reset.seq, syn.seq.wrapping_add(1));
            assert!(reset.options.mptcp.is_empty(), "no key");
            script.wait(seconds(300));
            script.silence();
        }
    }
}

#[test]
fn a_rst_with_mp_fastclose_needs_the_exact_number() {
    let mut script = Script::accepted(config());
    let key = script.host_key;
    let good = script.segment(0, RST.with(ACK), mptcp(MptcpOption::FastClose { key }), b"");
    script.inject(&Segment { seq: good.seq.wrapping_add(1_000), ..good.clone() });
    assert_eq!(script.closed, None);
    let challenge = script.expect();
    assert_eq!((challenge.flags, challenge.ack), (ACK, good.seq));
    // A closed connection replies without options.
    script.inject(&Segment { options: Options::default(), ..good });
    assert_eq!(script.closed, Some(Err(ConnectionError::Reset)));
}

#[test]
fn the_answer_to_mp_fastclose_gives_no_reason() {
    let mut script = Script::accepted(config());
    let line = script.join(1);
    let key = script.host_key;
    script.send(0, ACK, mptcp(MptcpOption::FastClose { key }), b"");
    let none = MpTcpRst { transient: false, reason: 0, reserved: 0 };
    for _ in 0..2 {
        assert_eq!(reset_of(&script.expect()), Some(none), "{line}");
    }
}
