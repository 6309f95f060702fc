//! What Linux does and no RFC asks for, and what it forgives.

use towpath_mptcp::connection::Config;
use towpath_mptcp::wire::{DataAck, Dss, DssMapping, Segment};

use crate::script::*;

fn data_ack(segment: &Segment) -> DataAck {
    segment.options.dss.unwrap().data_ack.unwrap()
}

#[test]
fn a_data_ack_has_as_many_octets_as_the_peers_mappings() {
    let mut script = Script::accepted(Config { short_data_acks: true, ..config() });
    script.write(&vec![1; 4_000]);
    let sent = script.drain();
    assert!(sent.iter().all(|(_, segment)| matches!(data_ack(segment), DataAck::Short(_))));
    let full = sent[0].1.payload.len();
    script.data(0, 1, b"hello");
    assert!(matches!(data_ack(&script.expect()), DataAck::Long(_)));
    script.send(0, ACK, script.data_ack(4_001), b"");
    script.write(&vec![1; 4_000]);
    let sent = script.drain();
    assert!(sent.iter().all(|(_, segment)| matches!(data_ack(segment), DataAck::Long(_))));
    assert_eq!(sent[0].1.payload.len() + 4, full, "the option takes what it needs");
}

#[test]
fn an_infinite_mapping_of_nothing_is_none() {
    let mut script = Script::accepted(config());
    let mapping = DssMapping { dsn: DataAck::Long(peer_dsn(1)), ssn: 1, len: 0, checksum: None };
    let data_ack = script.data_ack(1).dss.unwrap().data_ack;
    script.send(0, ACK, dss(Dss { data_fin: false, data_ack, mapping: Some(mapping) }), b"");
    assert!(script.status().multipath && script.status().fallback.is_none());
    script.data(0, 1, b"hello");
    assert_eq!(script.read(), b"hello");
    assert_eq!(data_acked(&script.expect()), Some(6));
}
