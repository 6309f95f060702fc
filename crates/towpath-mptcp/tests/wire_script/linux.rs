//! Behaviour of Linux beyond the RFCs, including its tolerances.

use std::time::Duration;

use towpath_mptcp::connection::ConnectionConfig;
use towpath_wire::{DataAck, Dss, DssMapping, Options, Segment};

use crate::script::*;

fn data_ack(segment: &Segment) -> DataAck {
    segment.options.dss.unwrap().data_ack.unwrap()
}

#[test]
fn a_data_ack_has_as_many_octets_as_the_peers_mappings() {
    let mut script = Script::accepted(ConnectionConfig { short_data_acks: true, ..config() });
    script.write(&vec![1; 4_000]);
    let segments = script.drain();
    assert!(segments.iter().all(|(_, segment)| matches!(data_ack(segment), DataAck::Short(_))));
    let full_payload_bytes = segments[0].1.payload.len();
    script.send_data(0, 1, b"hello");
    assert!(matches!(data_ack(&script.expect()), DataAck::Long(_)));
    script.send(0, ACK, script.data_ack(4_001), b"");
    script.write(&vec![1; 4_000]);
    let segments = script.drain();
    assert!(segments.iter().all(|(_, segment)| matches!(data_ack(segment), DataAck::Long(_))));
    assert_eq!(
        segments[0].1.payload.len() + 4,
        full_payload_bytes,
        "the option takes what it needs"
    );
}

#[test]
fn an_empty_infinite_mapping_is_ignored() {
    let mut script = Script::accepted(config());
    let mapping = DssMapping { dsn: DataAck::Long(peer_dsn(1)), ssn: 1, len: 0, checksum: None };
    let data_ack = script.data_ack(1).dss.unwrap().data_ack;
    script.send(0, ACK, dss(Dss { data_fin: false, data_ack, mapping: Some(mapping) }), b"");
    assert!(script.status().multipath && script.status().fallback.is_none());
    script.send_data(0, 1, b"hello");
    assert_eq!(script.read(), b"hello");
    assert_eq!(data_acked(&script.expect()), Some(6));
}

/// Opens plain TCP with a round-trip time of 100 ms; the first `quick_acks` packets are
/// acknowledged immediately.
fn server_with_rtt_100_ms(quick_acks: u16) -> Script {
    let mut settings = ConnectionConfig { multipath: false, ..ConnectionConfig::linux_6_18() };
    settings.subflow.quick_acks = quick_acks;
    let mut script = Script::server(settings);
    script.send(0, SYN, Options::default(), b"");
    let _ = script.expect();
    script.wait(millis(100));
    script.send(0, ACK, Options::default(), b"");
    let _ = script.drain();
    script
}

/// Returns the time until a segment that the peer sends now is acknowledged.
fn ack_delay(script: &mut Script) -> Duration {
    let sent_at = script.now;
    script.send(0, ACK, Options::default(), &[1; 100]);
    while script.drain().is_empty() {
        let (deadline, _) = script.stack.poll_timeout().expect("an acknowledgement that waits");
        script.wait(deadline.saturating_since(script.now));
    }
    script.now.saturating_since(sent_at)
}

#[test]
fn delayed_acks_grow_up_to_a_round_trip() {
    let mut script = server_with_rtt_100_ms(0);
    let delays = [(); 4].map(|()| ack_delay(&mut script));
    assert_eq!(delays, [40, 80, 100, 100].map(millis));
}

#[test]
fn a_reply_delays_acks_and_a_retransmission_speeds_them_up() {
    let mut script = server_with_rtt_100_ms(16);
    script.send(0, ACK, Options::default(), &[1; 100]);
    assert_eq!(script.expect().ack, script.subflows[0].seq);
    script.write(&[2; 100]);
    let _ = script.expect();
    let data = script.segment(0, ACK, Options::default(), &[1; 100]);
    script.send(0, ACK, Options::default(), &[1; 100]);
    script.expect_silence();
    assert_eq!(script.read().len(), 200);
    script.expect_silence();
    script.inject(&data);
    assert_eq!(script.expect().ack, script.subflows[0].seq);
    script.send(0, ACK, Options::default(), &[1; 100]);
    assert_eq!(script.expect().ack, script.subflows[0].seq);
}
