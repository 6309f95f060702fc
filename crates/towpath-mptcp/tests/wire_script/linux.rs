//! What Linux does and no RFC asks for, and what it forgives.

use towpath_mptcp::wire::{DataAck, Dss, DssMapping};

use crate::script::*;

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
