//! TCP requirements on a whole host, beyond the tests of `subflow`.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_mptcp::stack::{ConnectionError, InterfaceId};
use towpath_mptcp::subflow::TcpState;
use towpath_wire::{IcmpKind, Options, Packet, Segment};

use crate::script::*;

/// Returns plain TCP without timestamps: full packets have 1,460 bytes.
fn plain_tcp() -> ConnectionConfig {
    let mut config = ConnectionConfig { multipath: false, ..config() };
    config.subflow.timestamps = false;
    config
}

/// Opens a plain TCP connection; the peer's window field is not scaled.
fn open_plain_tcp(config: ConnectionConfig) -> Script {
    let mut script = Script::client(config);
    let _ = script.expect();
    script.send(0, SYN.with(ACK), Options::default(), b"");
    script.send(0, ACK, Options::default(), b"");
    let _ = script.drain();
    script
}

/// Returns the payload lengths of the segments that the host sends now.
fn sent_payload_lengths(script: &mut Script) -> Vec<usize> {
    let segments = script.drain();
    segments.iter().map(|(_, segment)| segment.payload.len()).filter(|bytes| *bytes > 0).collect()
}

/// Waits for the next segments of the host, and returns them.
fn wait_for_packets(script: &mut Script) -> Vec<Segment> {
    loop {
        let (deadline, _) = script.stack.poll_timeout().expect("a deadline");
        script.now = script.now.max(deadline);
        script.stack.handle_timeout(script.now);
        let segments = script.drain();
        if !segments.is_empty() || script.closed.is_some() {
            return segments.into_iter().map(|(_, segment)| segment).collect();
        }
    }
}

#[test]
fn a_peer_that_names_no_size_gets_536_bytes() {
    let mut script = Script::client(plain_tcp());
    let _ = script.expect();
    let syn_ack = script.segment(0, SYN.with(ACK), Options::default(), b"");
    let options = Options { mss: None, ..syn_ack.options.clone() };
    script.inject(&Segment { options, ..syn_ack });
    script.subflows[0].seq = script.subflows[0].seq.wrapping_add(1);
    let _ = script.drain();
    script.write(&[1; 1_000]);
    assert_eq!(sent_payload_lengths(&mut script), [536, 464]);
}

#[test]
fn a_closed_window_is_probed_ever_more_rarely_and_for_ever() {
    let mut script = open_plain_tcp(plain_tcp());
    script.subflows[0].window = 0;
    script.send(0, ACK, Options::default(), b"");
    script.write(&[1; 100]);
    script.expect_silence();
    let (mut last_probe_at, mut interval) = (script.now, Duration::ZERO);
    for _ in 0..20 {
        let probes = wait_for_packets(&mut script);
        assert!(probes.iter().all(|probe| probe.payload.is_empty()), "{probes:?}");
        let elapsed = script.now.saturating_since(last_probe_at);
        assert!(elapsed >= (2 * interval).min(seconds(60)), "{elapsed:?} after {interval:?}");
        (last_probe_at, interval) = (script.now, elapsed);
        script.send(0, ACK, Options::default(), b"");
        let _ = script.drain();
    }
    assert_eq!(script.closed, None);
    script.subflows[0].window = 100;
    script.send(0, ACK, Options::default(), b"");
    assert_eq!(sent_payload_lengths(&mut script), [100]);
}

#[test]
fn a_shrunken_window_delays_new_data_until_it_opens() {
    let mut script = open_plain_tcp(plain_tcp());
    script.write(&[1; 5_840]);
    assert_eq!(sent_payload_lengths(&mut script).len(), 4);
    // One packet arrived, and the right edge is below the sent data.
    script.subflows[0].ack = script.subflows[0].host_isn.wrapping_add(1 + 1_460);
    script.subflows[0].window = 12;
    script.send(0, ACK, Options::default(), b"");
    script.write(&[2; 1_460]);
    assert_eq!(sent_payload_lengths(&mut script), [0_usize; 0]);
    script.subflows[0].ack = script.subflows[0].host_isn.wrapping_add(1 + 5_840);
    script.subflows[0].window = 1_000;
    script.send(0, ACK, Options::default(), b"");
    assert_eq!(sent_payload_lengths(&mut script), [1_460]);
}

#[test]
fn unacked_data_is_retransmitted_with_backoff_then_abandoned() {
    let mut settings = plain_tcp();
    settings.subflow.retries = 5;
    let mut script = open_plain_tcp(settings);
    script.write(&[1; 100]);
    assert_eq!(sent_payload_lengths(&mut script), [100]);
    let (mut last_sent_at, mut interval, mut retransmissions) = (script.now, Duration::ZERO, 0);
    while script.closed.is_none() {
        let segments = wait_for_packets(&mut script);
        let elapsed = script.now.saturating_since(last_sent_at);
        if !segments.is_empty() && script.closed.is_none() {
            retransmissions += 1;
            assert!(elapsed >= 2 * interval, "{elapsed:?} after {interval:?}");
            (last_sent_at, interval) = (script.now, elapsed);
        }
    }
    assert_eq!((retransmissions, script.closed), (5, Some(Err(ConnectionError::TimedOut))));
}

#[test]
fn an_unanswered_syn_is_retransmitted_and_abandoned() {
    let mut script = Script::client(plain_tcp());
    let first_syn = script.expect();
    let mut retransmissions = 0;
    while script.closed.is_none() {
        let segments = wait_for_packets(&mut script);
        assert!(segments.iter().all(|syn| syn.flags.contains(SYN) && syn.seq == first_syn.seq));
        retransmissions += segments.len();
    }
    assert_eq!(retransmissions, 6);
    assert!(
        script.closed.is_some_and(|result| result.is_err())
            && script.now > after_start(seconds(60))
    );
}

fn after_start(time: Duration) -> towpath_net::Instant {
    towpath_net::Instant::ZERO + time
}

#[test]
fn only_the_exact_number_resets_and_a_syn_is_challenged() {
    let mut script = open_plain_tcp(plain_tcp());
    let rst = script.segment(0, RST, Options::default(), b"");
    script.inject(&Segment { seq: rst.seq.wrapping_add(10), ..rst.clone() });
    assert_eq!(script.expect().flags, ACK);
    script.inject(&Segment { seq: rst.seq.wrapping_sub(10), ..rst.clone() });
    script.expect_silence();
    let syn = script.segment(0, SYN, Options::default(), b"");
    script.inject(&Segment { seq: syn.seq.wrapping_add(100_000), ..syn });
    assert_eq!(script.expect().flags, ACK);
    assert_eq!(script.closed, None);
    script.inject(&rst);
    assert_eq!(script.closed, Some(Err(ConnectionError::Reset)));
}

#[test]
fn an_ack_of_unsent_data_is_challenged_and_its_payload_dropped() {
    let mut script = open_plain_tcp(plain_tcp());
    let data = script.segment(0, ACK, Options::default(), b"injected");
    script.inject(&Segment { ack: data.ack.wrapping_add(1_000), ..data.clone() });
    assert_eq!((script.expect().ack, script.read()), (data.seq, vec![]));
    script.inject(&data);
    assert_eq!(script.read(), b"injected");
}

#[test]
fn every_second_packet_is_acknowledged_and_a_single_one_in_time() {
    let mut settings = plain_tcp();
    settings.subflow.delayed_ack = millis(40);
    settings.subflow.quick_acks = 0;
    let mut script = open_plain_tcp(settings);
    script.send(0, ACK, Options::default(), &[1; 1_460]);
    script.expect_silence();
    script.send(0, ACK, Options::default(), &[1; 1_460]);
    let ack = script.expect();
    assert_eq!(ack.ack, script.subflows[0].seq);
    script.send(0, ACK, Options::default(), &[1; 1_460]);
    script.expect_silence();
    script.wait(millis(500));
    assert_eq!(script.expect().ack, script.subflows[0].seq);
    // A gap is reported immediately.
    script.subflows[0].seq = script.subflows[0].seq.wrapping_add(1_460);
    script.send(0, ACK, Options::default(), &[1; 1_460]);
    assert_eq!(script.expect().ack, script.subflows[0].seq.wrapping_sub(2 * 1_460));
}

#[test]
fn a_router_with_a_small_link_makes_packets_smaller() {
    let mut script = open_plain_tcp(plain_tcp());
    script.write(&[1; 1_460]);
    let packet = script.expect();
    let router = "10.0.0.254".parse().unwrap();
    let packet_too_big = |seq: u32| {
        let packet = Packet::emit(&Segment { seq, ..packet.clone() }, 1);
        IcmpKind::TooBig { mtu: 1_000 }.emit(router, &packet).unwrap()
    };
    // An error with a wrong sequence number is ignored.
    script.stack.handle_packet(
        script.now,
        InterfaceId(0),
        packet_too_big(packet.seq.wrapping_sub(9_999)),
    );
    script.expect_silence();
    script.stack.handle_packet(script.now, InterfaceId(0), packet_too_big(packet.seq));
    assert_eq!(sent_payload_lengths(&mut script), [960, 500], "it goes again at once");
}

#[test]
fn time_wait_answers_a_retransmitted_fin() {
    let mut script = open_plain_tcp(plain_tcp());
    script.shutdown();
    assert!(script.expect().flags.contains(FIN));
    script.send(0, ACK, Options::default(), b"");
    let fin = script.segment(0, FIN.with(ACK), Options::default(), b"");
    script.inject(&fin);
    assert_eq!(script.expect().ack, fin.seq.wrapping_add(1));
    script.wait(seconds(30));
    script.inject(&fin);
    assert_eq!(script.expect().ack, fin.seq.wrapping_add(1));
    assert_eq!(script.status().subflows[0].state, TcpState::TimeWait);
    script.wait(seconds(61));
    assert!(script.stack.is_idle() || script.status().subflows[0].state == TcpState::Closed);
}

#[test]
fn keep_alives_are_sent_when_asked_for_and_end_a_dead_connection() {
    let mut settings = plain_tcp();
    settings.subflow.keepalive = Some((seconds(10), seconds(2), 3));
    let mut script = open_plain_tcp(settings);
    assert!(
        open_plain_tcp(plain_tcp()).stack.poll_timeout().is_none(),
        "not without being asked for"
    );
    let probes = wait_for_packets(&mut script);
    assert_eq!((script.now, probes.len()), (after_start(seconds(10)), 1));
    assert_eq!(probes[0].seq, script.subflows[0].ack.wrapping_sub(1));
    script.send(0, ACK, Options::default(), b"");
    let mut unanswered_probes = 0;
    while script.closed.is_none() {
        unanswered_probes +=
            wait_for_packets(&mut script).iter().filter(|s| !s.flags.contains(RST)).count();
    }
    assert_eq!((unanswered_probes, script.closed), (3, Some(Err(ConnectionError::TimedOut))));
}
