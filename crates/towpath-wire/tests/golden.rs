//! Packets of Linux 6.18 (see `golden/README.md`): parsed and encoded again without change.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::wildcard_enum_match_arm, reason = "tests look for one option among many")]

use std::collections::BTreeSet;

use towpath_wire::keys;
use towpath_wire::{AddAddr, DataAck, Dss, MpCapable, MpJoin, MptcpOption, Packet, Segment};

const LISTENER_PORT: u16 = 5001;

const FILES: [&str; 4] = [
    include_str!("golden/v4.hex"),
    include_str!("golden/v4_checksum.hex"),
    include_str!("golden/v6.hex"),
    include_str!("golden/v6_checksum.hex"),
];

fn packets(file: &str) -> impl Iterator<Item = Packet> {
    file.lines().map(|line| {
        let bytes = line
            .as_bytes()
            .chunks(2)
            .map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap());
        Packet::from_bytes(&bytes.collect(), true, 0).unwrap()
    })
}

/// Returns the keys of the initiator and of the listener, from the third packet of a connection.
fn connection_keys(segments: &[Segment]) -> (u64, u64) {
    let options = segments.iter().flat_map(|segment| &segment.options.mptcp);
    let mut keys = options.filter_map(|option| match option {
        MptcpOption::Capable(MpCapable {
            sender_key: Some(sender),
            receiver_key: Some(receiver),
            ..
        }) => Some((*sender, *receiver)),
        _ => None,
    });
    keys.next().unwrap()
}

fn segments_of(file: &str) -> Vec<Segment> {
    packets(file).map(|packet| packet.parse().unwrap()).collect()
}

#[test]
fn linux_computes_the_same_token_and_hmacs_of_mp_join() {
    let mut verified = (0, 0, 0);
    for file in FILES {
        let segments = segments_of(file);
        let (initiator, listener) = connection_keys(&segments);
        // Keys of the joining host and its peer, and their nonces, from the latest MP_JOIN.
        let (mut join_keys, mut nonces) = ((0, 0), (0, 0));
        for option in segments.iter().flat_map(|segment| &segment.options.mptcp) {
            match option {
                MptcpOption::Join(MpJoin::Syn { token, nonce, .. }) => {
                    join_keys = if *token == keys::token(listener) {
                        (initiator, listener)
                    } else {
                        (listener, initiator)
                    };
                    assert_eq!(*token, keys::token(join_keys.1));
                    nonces.0 = *nonce;
                    verified.0 += 1;
                }
                MptcpOption::Join(MpJoin::SynAck { hmac, nonce, .. }) => {
                    nonces.1 = *nonce;
                    let expected = keys::join_hmac(join_keys.1, join_keys.0, nonces.1, nonces.0);
                    assert_eq!(hmac.to_be_bytes(), expected[..8]);
                    verified.1 += 1;
                }
                MptcpOption::Join(MpJoin::Ack { hmac }) => {
                    let expected = keys::join_hmac(join_keys.0, join_keys.1, nonces.0, nonces.1);
                    assert_eq!(hmac[..], expected[..20]);
                    verified.2 += 1;
                }
                _ => {}
            }
        }
    }
    assert!(verified.0 > 0 && verified.1 > 0 && verified.2 > 0, "{verified:?}");
}

#[test]
fn linux_computes_the_same_hmac_of_add_addr() {
    let (mut without_port, mut with_port) = (0, 0);
    for file in FILES {
        let segments = segments_of(file);
        let (initiator, listener) = connection_keys(&segments);
        for segment in &segments {
            for option in &segment.options.mptcp {
                let MptcpOption::AddAddress(add_addr) = option else { continue };
                let &AddAddr { address_id, address, port, hmac: Some(hmac) } = add_addr else {
                    continue;
                };
                let from_listener = segment.source.port() == LISTENER_PORT;
                let (own_key, peer_key) =
                    if from_listener { (listener, initiator) } else { (initiator, listener) };
                assert_eq!(
                    keys::add_address_hmac(own_key, peer_key, address_id, address, port),
                    hmac
                );
                *if port.is_some() { &mut with_port } else { &mut without_port } += 1;
            }
        }
    }
    assert!(without_port > 0 && with_port > 0, "{without_port} {with_port}");
}

#[test]
fn linux_computes_the_same_data_sequence_numbers_and_dss_checksums() {
    for (file, checksums) in FILES.into_iter().zip([false, true, false, true]) {
        let segments = segments_of(file);
        let (initiator, listener) = connection_keys(&segments);
        let first_dsn = keys::initial_dsn(initiator).wrapping_add(1);
        let mut verified = 0;
        for segment in segments.iter().filter(|segment| !segment.payload.is_empty()).take(3) {
            let (dsn, ssn, len, checksum) = match (segment.options.dss, &segment.options.mptcp[..])
            {
                (Some(Dss { mapping: Some(mapping), .. }), _) => {
                    let DataAck::Long(dsn) = mapping.dsn else { panic!("a short number") };
                    (dsn, mapping.ssn, mapping.len, mapping.checksum)
                }
                (_, [MptcpOption::Capable(MpCapable { data: Some((len, checksum)), .. })]) => {
                    (first_dsn, 1, *len, *checksum)
                }
                _ => panic!("data without mapping"),
            };
            let sender_key =
                if segment.source.port() == LISTENER_PORT { listener } else { initiator };
            assert!(dsn.wrapping_sub(keys::initial_dsn(sender_key).wrapping_add(1)) < 1_000);
            let expected = keys::dss_checksum(dsn, ssn, len, &segment.payload);
            assert_eq!(checksum, checksums.then_some(expected));
            verified += 1;
        }
        assert_eq!(verified, 3);
    }
}

fn segments() -> impl Iterator<Item = Segment> {
    FILES.into_iter().flat_map(packets).map(|packet| packet.parse().unwrap())
}

#[test]
fn parsed_packets_are_emitted_byte_for_byte() {
    for mut packet in FILES.into_iter().flat_map(packets) {
        let identification = u16::from_be_bytes([packet.header[4], packet.header[5]]);
        if packet.header[0] >> 4 == 6 {
            // We set the flow label to 0.
            packet.header[1] &= 0xf0;
            packet.header[2] = 0;
            packet.header[3] = 0;
        }
        let mut encoded = Packet::emit(&packet.parse().unwrap(), identification);
        // Linux completes the checksum of a RST that belongs to no socket.
        packet.checksum_offloaded = false;
        if packet.parse().is_ok() {
            encoded.complete_checksum();
        }
        assert_eq!(encoded.header, packet.header);
        assert_eq!(encoded.payload, packet.payload);
    }
}

#[test]
fn every_option_that_linux_sends_is_covered() {
    let mut option_names = BTreeSet::new();
    for segment in segments() {
        option_names.extend(segment.options.dss.map(|_| "DSS"));
        option_names.extend(segment.options.mptcp.iter().map(|option| match option {
            MptcpOption::Capable(MpCapable { sender_key: None, .. }) => "MP_CAPABLE 4",
            MptcpOption::Capable(MpCapable { receiver_key: None, .. }) => "MP_CAPABLE 12",
            MptcpOption::Capable(MpCapable { data: None, .. }) => "MP_CAPABLE 20",
            MptcpOption::Capable(MpCapable { data: Some((_, None)), .. }) => "MP_CAPABLE 22",
            MptcpOption::Capable(MpCapable { data: Some((_, Some(_))), .. }) => "MP_CAPABLE 24",
            MptcpOption::Join(MpJoin::Syn { .. }) => "MP_JOIN 12",
            MptcpOption::Join(MpJoin::SynAck { .. }) => "MP_JOIN 16",
            MptcpOption::Join(MpJoin::Ack { .. }) => "MP_JOIN 24",
            MptcpOption::AddAddress(AddAddr { hmac: None, port: None, .. }) => "echo",
            MptcpOption::AddAddress(AddAddr { hmac: None, port: Some(_), .. }) => "echo, port",
            MptcpOption::AddAddress(AddAddr { port: None, .. }) => "ADD_ADDR",
            MptcpOption::AddAddress(AddAddr { port: Some(_), .. }) => "ADD_ADDR, port",
            MptcpOption::RemoveAddress(_) => "REMOVE_ADDR",
            MptcpOption::Priority { .. } => "MP_PRIO",
            MptcpOption::Fail { .. } => "MP_FAIL",
            MptcpOption::FastClose { .. } => "MP_FASTCLOSE",
            MptcpOption::Reset(_) => "MP_TCPRST",
            MptcpOption::Unknown { .. } => "unknown",
        }));
    }
    // All except MP_FAIL, which requires a middlebox that changes data.
    let expected = [
        "ADD_ADDR",
        "ADD_ADDR, port",
        "DSS",
        "MP_CAPABLE 12",
        "MP_CAPABLE 20",
        "MP_CAPABLE 22",
        "MP_CAPABLE 24",
        "MP_CAPABLE 4",
        "MP_FASTCLOSE",
        "MP_JOIN 12",
        "MP_JOIN 16",
        "MP_JOIN 24",
        "MP_PRIO",
        "MP_TCPRST",
        "REMOVE_ADDR",
        "echo",
        "echo, port",
    ];
    assert_eq!(option_names, BTreeSet::from(expected));
}
