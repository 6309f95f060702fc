//! Regression tests for defects found by driving whole hosts packet by packet, which tests of
//! single parts had missed. Small windows are in `windows`.

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::ConnectionError;
use towpath_wire::{Ecn, Flags, MpCapable, MpTcpRst, MptcpOption, Options, SackBlocks, Segment};

use crate::script::*;

/// Returns plain TCP without timestamps: full packets have 1,460 bytes.
fn plain_tcp() -> ConnectionConfig {
    let mut config = ConnectionConfig { multipath: false, ..config() };
    config.subflow.timestamps = false;
    config
}

/// Returns a host that opened a connection; the peer's SYN/ACK has these flags and options.
fn connected_client(config: ConnectionConfig, flags: Flags, options: Options) -> Script {
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

fn sack_permitted() -> Options {
    Options { sack_permitted: true, ..Options::default() }
}

/// Acknowledges the first `bytes` bytes.
fn acknowledge(script: &mut Script, bytes: u32, flags: Flags) {
    script.subflows[0].ack = script.subflows[0].host_isn.wrapping_add(1 + bytes);
    script.send(0, flags, Options::default(), b"");
}

#[test]
fn an_unusable_mp_capable_in_the_third_packet_means_plain_tcp() {
    let changes = [
        |option: &mut MpCapable| option.hmac_sha256 = false,
        |option: &mut MpCapable| option.extensibility = true,
        |option: &mut MpCapable| option.version = 0,
    ];
    for change in changes {
        let mut script = Script::server(config());
        script.send(0, SYN, mptcp(capable_syn()), b"");
        script.host_key = capable_of(&script.expect()).unwrap().sender_key.unwrap();
        let MptcpOption::Capable(mut ack_capable) = script.capable_ack() else { panic!() };
        change(&mut ack_capable);
        script.send(0, ACK, mptcp(MptcpOption::Capable(ack_capable)), b"");
        assert!(!script.status().multipath, "{ack_capable:?}");
        script.send(0, ACK, Options::default(), b"plain");
        let reply = script.expect();
        assert_eq!((reply.options.dss, capable_of(&reply)), (None, None));
        assert_eq!(script.read(), b"plain");
    }
}

#[test]
fn mp_prio_of_the_old_version_is_ignored() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    // Our encoder cannot write it: subtype and flag, then the identifier of the first address.
    let mut segment = script.segment(subflow, ACK, script.data_ack(1), b"");
    segment.options = Options::parse(&[30, 4, 0x51, 0]);
    script.inject(&segment);
    assert!(script.status().subflows.iter().all(|subflow| !subflow.backup));
    script.send(subflow, ACK, mptcp(MptcpOption::Priority { backup: true }), b"");
    let backups: Vec<bool> = script.status().subflows.iter().map(|flow| flow.backup).collect();
    assert_eq!(backups, [false, true]);
}

#[test]
fn a_segment_covering_several_duplicates_reports_only_the_first() {
    let mut script = connected_client(plain_tcp(), SYN.with(ACK), sack_permitted());
    let start = script.subflows[0].seq;
    let mut send_range = |start_offset: u32, end_offset: u32| {
        script.subflows[0].seq = start.wrapping_add(start_offset - 1);
        let data = vec![9; (end_offset - start_offset) as usize];
        script.send(0, ACK, Options::default(), &data);
        script.drain().pop().unwrap().1
    };
    for (start_offset, end_offset) in [(1_001, 3_001), (4_001, 5_001), (7_001, 8_001)] {
        let _ = send_range(start_offset, end_offset);
    }
    let ack = send_range(1, 6_001);
    let relative = |wire: u32| wire.wrapping_sub(start) + 1;
    let blocks = |sack: &SackBlocks| {
        sack.iter()
            .map(|(start_offset, end_offset)| (relative(*start_offset), relative(*end_offset)))
            .collect::<Vec<_>>()
    };
    assert_eq!(relative(ack.ack), 6_001);
    assert_eq!(blocks(&ack.options.sack), [(1_001, 3_001), (7_001, 8_001)]);
}

#[test]
fn an_ecn_echo_on_the_last_acknowledgement_reduces_the_window() {
    let mut settings = plain_tcp();
    settings.subflow.ecn = true;
    let mut script = connected_client(settings, SYN.with(ACK).with(Flags::ECE), sack_permitted());
    script.write(&[1; 14_600]);
    assert_eq!(script.drain().len(), 10);
    script.now += millis(50);
    let cwnd_before = script.status().subflows[0].tcp.cwnd_bytes;
    acknowledge(&mut script, 14_600, ACK.with(Flags::ECE));
    let after = script.status().subflows[0].tcp;
    assert!(after.ssthresh_bytes < cwnd_before && after.cwnd_bytes < cwnd_before, "{after:?}");
    script.write(&[1; 1_460]);
    let next = script.expect();
    assert!(next.flags.contains(Flags::CWR) && next.ecn != Ecn::NotCapable, "{next:?}");
}

#[test]
fn an_acknowledgement_with_an_ecn_echo_releases_data() {
    let mut settings = plain_tcp();
    settings.subflow.ecn = true;
    let mut script = connected_client(settings, SYN.with(ACK).with(Flags::ECE), sack_permitted());
    script.write(&vec![1; 30 * 1_460]);
    assert_eq!(script.drain().len(), 10);
    script.now += millis(50);
    acknowledge(&mut script, 4 * 1_460, ACK.with(Flags::ECE));
    // The threshold is seven tenths of the window (CUBIC), of which six are in flight.
    let segments = script.drain();
    assert!((1..=4).contains(&segments.len()), "{}", segments.len());
    assert!(segments[0].1.flags.contains(Flags::CWR));
}

#[test]
fn a_tail_loss_probe_is_data_that_the_connection_has_not_sent_yet() {
    for multipath in [false, true] {
        let capable = multipath.then(capable_syn_ack).into_iter().collect();
        let options = Options { mptcp: capable, ..sack_permitted() };
        let mut script =
            connected_client(ConnectionConfig { multipath, ..plain_tcp() }, SYN.with(ACK), options);
        // A round-trip time has been measured.
        script.write(b"hello");
        script.now += millis(50);
        let options = if multipath { script.data_ack(6) } else { Options::default() };
        script.send(0, ACK, options, b"");
        let _ = script.drain();
        script.write(&vec![1; 40_000]);
        let segments = script.drain();
        let end = segments.iter().map(|(_, segment)| segment.seq + segment.sequence_bytes()).max();
        script.wait(millis(150));
        let probe = script.expect();
        assert_eq!(Some(probe.seq), end, "new data, Multipath TCP: {multipath}");
        assert!(!probe.payload.is_empty());
        script.expect_silence();
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
            script.expect_silence();
            assert!(script.stack.is_idle());
            let options = if multipath { mptcp(capable_syn_ack()) } else { Options::default() };
            script.send(0, SYN.with(ACK), options, b"");
            let reset = script.expect();
            assert!(reset.flags.contains(RST), "{reset:?}");
            assert_eq!(reset.seq, syn.seq.wrapping_add(1));
            assert!(reset.options.mptcp.is_empty(), "no key");
            script.wait(seconds(300));
            script.expect_silence();
        }
    }
}

#[test]
fn a_rst_with_mp_fastclose_needs_the_exact_number() {
    let mut script = Script::accepted(config());
    let key = script.host_key;
    let exact = script.segment(0, RST.with(ACK), mptcp(MptcpOption::FastClose { key }), b"");
    script.inject(&Segment { seq: exact.seq.wrapping_add(1_000), ..exact.clone() });
    assert_eq!(script.closed, None);
    let challenge = script.expect();
    assert_eq!((challenge.flags, challenge.ack), (ACK, exact.seq));
    // A closed connection replies without options.
    script.inject(&Segment { options: Options::default(), ..exact });
    assert_eq!(script.closed, Some(Err(ConnectionError::Reset)));
}

#[test]
fn the_answer_to_mp_fastclose_gives_no_reason() {
    let mut script = Script::accepted(config());
    let subflow = script.join(1);
    let key = script.host_key;
    script.send(0, ACK, mptcp(MptcpOption::FastClose { key }), b"");
    let no_reason = MpTcpRst { transient: false, reason: 0, reserved: 0 };
    for _ in 0..2 {
        assert_eq!(reset_of(&script.expect()), Some(no_reason), "{subflow}");
    }
}
