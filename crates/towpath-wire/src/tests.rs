//! Encoding and parsing of packets and options.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

fn data_number() -> impl Strategy<Value = DataAck> {
    prop_oneof![any::<u32>().prop_map(DataAck::Short), any::<u64>().prop_map(DataAck::Long)]
}

fn mapping() -> impl Strategy<Value = DssMapping> {
    (data_number(), any::<u32>(), any::<u16>(), of(any::<u16>()))
        .prop_map(|(dsn, ssn, len, checksum)| DssMapping { dsn, ssn, len, checksum })
}

fn dss() -> impl Strategy<Value = Dss> {
    (any::<bool>(), of(data_number()), of(mapping()))
        .prop_map(|(data_fin, data_ack, mapping)| Dss { data_fin, data_ack, mapping })
}

fn capable() -> impl Strategy<Value = MpCapable> {
    let data = of((any::<u16>(), of(any::<u16>())));
    let keys = of((any::<u64>(), of((any::<u64>(), data))));
    (0..16_u8, any::<[bool; 4]>(), keys).prop_map(|(version, [a, b, c, h], keys)| MpCapable {
        version,
        checksum: a,
        extensibility: b,
        no_join_to_source: c,
        hmac_sha256: h,
        sender_key: keys.map(|(sender, _)| sender),
        receiver_key: keys
            .and_then(|(_, receiver_key_and_data)| receiver_key_and_data)
            .map(|(receiver, _)| receiver),
        data: keys
            .and_then(|(_, receiver_key_and_data)| receiver_key_and_data)
            .and_then(|(_, data)| data),
    })
}

fn join() -> impl Strategy<Value = MpJoin> {
    prop_oneof![
        any::<(bool, u8, u32, u32)>().prop_map(|(backup, address_id, token, nonce)| MpJoin::Syn {
            backup,
            address_id,
            token,
            nonce
        }),
        any::<(bool, u8, u64, u32)>().prop_map(|(backup, address_id, hmac, nonce)| {
            MpJoin::SynAck { backup, address_id, hmac, nonce }
        }),
        any::<[u8; 20]>().prop_map(|hmac| MpJoin::Ack { hmac }),
    ]
}

fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from)]
}

fn mptcp_option() -> impl Strategy<Value = MptcpOption> {
    prop_oneof![
        capable().prop_map(MptcpOption::Capable),
        join().prop_map(MptcpOption::Join),
        (any::<u8>(), address(), of(any::<u16>()), of(any::<u64>())).prop_map(
            |(address_id, address, port, hmac)| MptcpOption::AddAddress(AddAddr {
                address_id,
                address,
                port,
                hmac
            })
        ),
        vec(any::<u8>(), 1..=8)
            .prop_map(|ids| MptcpOption::RemoveAddress(ids.into_iter().collect())),
        any::<bool>().prop_map(|backup| MptcpOption::Priority { backup }),
        any::<u64>().prop_map(|dsn| MptcpOption::Fail { dsn }),
        any::<u64>().prop_map(|key| MptcpOption::FastClose { key }),
        (any::<bool>(), any::<u8>(), 0..8_u8).prop_map(|(transient, reason, reserved)| {
            MptcpOption::Reset(MpTcpRst { transient, reason, reserved })
        }),
        (9..16_u8, 0..16_u8, vec(any::<u8>(), 0..=37)).prop_map(|(subtype, low_nibble, rest)| {
            let body = std::iter::once(low_nibble).chain(rest).collect();
            MptcpOption::Unknown { subtype, body }
        }),
    ]
}

/// Any options, including combinations that do not fit into a header.
fn options() -> impl Strategy<Value = Options> {
    (
        of(1..=u16::MAX),
        of(0..=14_u8),
        any::<bool>(),
        vec(any::<(u32, u32)>(), 0..=4),
        of(any::<(u32, u32)>()),
        of(dss()),
        vec(mptcp_option(), 0..=3),
    )
        .prop_map(|(mss, window_scale, sack_permitted, sack, timestamps, dss, mptcp)| {
            Options {
                mss,
                window_scale,
                sack_permitted,
                sack: sack.into_iter().collect(),
                timestamps: timestamps.map(|(value, echo)| Timestamps { value, echo }),
                dss,
                mptcp: mptcp.into_iter().collect(),
            }
        })
}

/// Removes Multipath TCP options that do not fit even without SACK, and then the SACK blocks that
/// exceed the remaining space.
fn truncate_to_fit(mut options: Options) -> Options {
    let sack = std::mem::take(&mut options.sack);
    while options.encoded_len() > option::OPTION_BYTES {
        if options.mptcp.pop().is_none() {
            options.dss = None;
        }
    }
    options.sack = sack;
    while options.encoded_len() > option::OPTION_BYTES {
        options.sack.pop();
    }
    options
}

fn endpoints() -> impl Strategy<Value = (SocketAddr, SocketAddr)> {
    prop_oneof![
        any::<([u8; 4], [u8; 4], u16, u16)>()
            .prop_map(|(a, b, p, q)| (SocketAddr::from((a, p)), SocketAddr::from((b, q)))),
        any::<([u8; 16], [u8; 16], u16, u16)>()
            .prop_map(|(a, b, p, q)| (SocketAddr::from((a, p)), SocketAddr::from((b, q)))),
    ]
}

fn payload(pieces: Vec<Vec<u8>>) -> Payload {
    let mut payload = Payload::EMPTY;
    for piece in pieces {
        payload.push(piece.into());
    }
    payload
}

prop_compose! {
    fn segment()(
        (source, destination) in endpoints(),
        (seq, ack, flags, window) in any::<(u32, u32, u8, u16)>(),
        ecn in 0..4_u8,
        options in options(),
        pieces in vec(vec(any::<u8>(), 0..400), 0..4),
        segment_bytes in 0..300_u16,
    ) -> Segment {
        Segment {
            source,
            destination,
            seq,
            ack,
            flags: Flags(flags),
            window,
            ecn: Ecn::from_bits(ecn),
            options: truncate_to_fit(options),
            payload: payload(pieces),
            segment_bytes,
        }
    }
}

proptest! {
    #[test]
    fn options_survive_a_round_trip(options in options()) {
        let options = truncate_to_fit(options);
        let bytes = options.emit();
        prop_assert_eq!(bytes.len(), options.encoded_len());
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Options::parse(&bytes), options);
    }

    #[test]
    fn options_that_do_not_fit_lose_sack_blocks_first_and_stay_valid(options in options()) {
        let bytes = options.emit();
        prop_assert_eq!(Options::parse(&bytes), truncate_to_fit(options));
    }

    #[test]
    fn any_bytes_are_some_options_which_survive_a_round_trip(bytes in vec(any::<u8>(), 0..=40)) {
        let options = Options::parse(&bytes);
        if options.encoded_len() <= option::OPTION_BYTES {
            prop_assert_eq!(Options::parse(&options.emit()), options);
        }
    }

    #[test]
    fn a_segment_survives_a_round_trip_with_and_without_its_checksum(
        segment in segment(), identification: u16,
    ) {
        let mut packet = Packet::emit(&segment, identification);
        prop_assert_eq!(packet.parse(), Ok(segment.clone()));
        let bytes = Bytes::from(packet.to_vec());
        packet.complete_checksum();
        prop_assert_eq!(&bytes[..], &packet.to_vec()[..]);
        prop_assert_eq!(packet.parse(), Ok(segment.clone()));
        let received = Packet::from_bytes(&bytes, false, segment.segment_bytes);
        prop_assert_eq!(received, Ok(packet));
    }

    #[test]
    fn the_parts_of_a_super_segment_are_valid_and_have_all_of_its_data(
        segment in segment(), identification: u16, complete: bool,
    ) {
        let mut super_segment = Packet::emit(&segment, identification);
        if complete {
            super_segment.complete_checksum();
        }
        let parts: Vec<Packet> = super_segment.clone().split().collect();
        let is_super_segment = segment.segment_bytes > 0;
        let packets = if is_super_segment { segment.payload.len().div_ceil(segment.segment_bytes.into()) } else { 1 };
        prop_assert_eq!(parts.len(), packets.max(1));
        let wire_bytes: usize = parts.iter().map(Packet::len).sum();
        prop_assert_eq!(towpath_net::Packet::len_bytes(&super_segment) as usize, wire_bytes);

        let mut expected = segment.clone();
        let mut rest = segment.payload.clone();
        for (index, part) in parts.iter().enumerate() {
            let (first, last) = (index == 0, index + 1 == parts.len());
            expected.flags = segment.flags;
            if !first {
                expected.flags = expected.flags.without(Flags::CWR);
            }
            if !last {
                expected.flags = expected.flags.without(Flags::PSH).without(Flags::FIN);
            }
            expected.segment_bytes = 0;
            expected.payload = rest.clone();
            if is_super_segment {
                expected.payload.truncate(segment.segment_bytes.into());
            }
            rest.advance(expected.payload.len());
            prop_assert_eq!(part.checksum_offloaded, !complete);
            prop_assert_eq!(part.parse(), Ok(expected.clone()));
            if part.header[0] >> 4 == 4 {
                let id = u16::from_be_bytes([part.header[4], part.header[5]]);
                prop_assert_eq!(id, identification.wrapping_add(index as u16));
            }
            // With offload, the field holds the start value from which the checksum is completed.
            let expected_part = Packet::emit(&expected, identification.wrapping_add(index as u16));
            prop_assert!(complete || expected_part == *part);
            expected.seq = expected.seq.wrapping_add(expected.payload.len() as u32);
        }
        prop_assert!(rest.is_empty());
    }

    #[test]
    fn a_flipped_bit_never_gets_past_the_checksums(segment in segment(), random: u32) {
        let mut packet = Packet::emit(&segment, 0);
        towpath_net::Packet::corrupt(&mut packet, random);
        prop_assert!(!packet.checksum_offloaded);
        prop_assert_eq!(packet.len(), Packet::emit(&segment, 0).len());
        // No checksum covers flow label and hop limit of IPv6, and they are harmless.
        let harmless = segment.source.is_ipv6() && random as usize % (packet.len() * 8) < 64;
        prop_assert!(packet.parse().is_err() || harmless);
        for part in packet.split() {
            prop_assert!(part.parse().is_err() || harmless);
        }
    }

    #[test]
    fn any_bytes_with_any_layout_are_refused_or_understood(
        bytes in vec(any::<u8>(), 0..200), version in prop_oneof![Just(0x45_u8), Just(0x60), any::<u8>()],
        protocol in prop_oneof![Just(6_u8), Just(1), Just(58), Just(0), Just(60), any::<u8>()],
        cut in 0..=100_usize, offloaded: bool, segment_bytes in 0..20_u16,
    ) {
        let mut bytes = bytes;
        for (offset, value) in [(0, version), (if version == 0x60 { 6 } else { 9 }, protocol)] {
            if let Some(byte) = bytes.get_mut(offset) {
                *byte = value;
            }
        }
        let bytes = Bytes::from(bytes);
        // One packet as from a device, and one with a header that ends anywhere.
        let cut = cut.min(bytes.len());
        let header = bytes[..cut].iter().copied().collect();
        let payload = bytes.slice(cut..).into();
        let arbitrary = Packet { header, payload, segment_bytes, checksum_offloaded: offloaded, data_tag: None };
        let parsed = Packet::from_bytes(&bytes, offloaded, segment_bytes);
        for mut packet in std::iter::once(arbitrary).chain(parsed) {
            let _ = (parse(&packet), packet.source(), packet.to_vec());
            packet.clone().split().for_each(drop);
            packet.complete_checksum();
            towpath_net::Packet::corrupt(&mut packet, u32::from(segment_bytes) * 77);
        }
    }

    #[test]
    fn slices_of_a_payload_are_those_of_its_bytes(
        pieces in vec(vec(any::<u8>(), 0..20), 0..4), start in 0..70_usize, end in 0..70_usize,
    ) {
        let payload = payload(pieces.clone());
        let bytes = pieces.concat();
        let clamped_end = end.min(bytes.len());
        prop_assert_eq!(payload.slice(start, end).to_bytes(), bytes[start.min(clamped_end)..clamped_end].to_vec());
        let (mut prefix, mut suffix) = (payload.clone(), payload.clone());
        prefix.truncate(end);
        prop_assert_eq!(prefix, payload.slice(0, end));
        suffix.advance(start);
        prop_assert_eq!(suffix.len(), bytes.len().saturating_sub(start));
        prop_assert_eq!(suffix.to_bytes(), bytes[start.min(bytes.len())..].to_vec());
    }
}

/// Returns a segment from 10.0.0.1:40000 to 10.0.0.2:443, sequence 1, acknowledgement 2, window
/// 64240.
fn segment_with(flags: Flags, options: Options, data: &'static [u8]) -> Segment {
    Segment {
        source: ([10, 0, 0, 1], 40_000).into(),
        destination: ([10, 0, 0, 2], 443).into(),
        seq: 1,
        ack: 2,
        flags,
        window: 64_240,
        ecn: Ecn::Capable0,
        options,
        payload: Bytes::from_static(data).into(),
        segment_bytes: 0,
    }
}

#[test]
fn a_syn_with_mp_capable_has_these_bytes() {
    let capable = MpCapable {
        version: 1,
        checksum: true,
        extensibility: false,
        no_join_to_source: true,
        hmac_sha256: true,
        sender_key: None,
        receiver_key: None,
        data: None,
    };
    let options = Options {
        mss: Some(1_460),
        window_scale: Some(7),
        sack_permitted: true,
        timestamps: Some(Timestamps { value: 0x0102_0304, echo: 0 }),
        mptcp: [MptcpOption::Capable(capable)].into_iter().collect(),
        ..Options::default()
    };
    let packet = Packet::emit(&segment_with(Flags::SYN, options, b""), 0x1234);
    #[rustfmt::skip]
    let expected = [
        // IPv4: ECT(0), 64 bytes, identification, do not fragment, 64 hops, TCP, checksum.
        0x45, 0x02, 0, 64, 0x12, 0x34, 0x40, 0, 64, 6, 0x14, 0x80, 10, 0, 0, 1, 10, 0, 0, 2,
        // Ports, numbers, 11 words, SYN, window, checksum, urgent pointer.
        0x9c, 0x40, 0x01, 0xbb, 0, 0, 0, 1, 0, 0, 0, 2, 0xb0, 0x02, 0xfa, 0xf0, 0x67, 0x5f, 0, 0,
        // MSS; SACK permitted and timestamps; NOP and window scale; MP_CAPABLE with A, C and H.
        2, 4, 0x05, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 7, 30, 4, 0x01, 0xa1,
    ];
    assert_eq!(packet.to_vec(), expected);
}

#[test]
fn data_with_dss_has_these_options() {
    let mapping = DssMapping {
        dsn: DataAck::Long(0x1112_1314_1516_1718),
        ssn: 0x2122_2324,
        len: 0x0005,
        checksum: None,
    };
    let dss =
        Dss { data_fin: true, data_ack: Some(DataAck::Short(0x0102_0304)), mapping: Some(mapping) };
    let options = Options {
        timestamps: Some(Timestamps { value: 5, echo: 6 }),
        sack: [(7, 8)].into_iter().collect(),
        dss: Some(dss),
        ..Options::default()
    };
    // 12 + 12 + 24 bytes: no room for the SACK block.
    assert_eq!(options.encoded_len(), 48);
    #[rustfmt::skip]
    let expected = [
        1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6,
        // M, m, A and F, then the data sequence number, the subflow's, the length, and padding.
        30, 22, 0x20, 0x1d, 1, 2, 3, 4, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
        0x21, 0x22, 0x23, 0x24, 0, 5, 1, 1,
    ];
    assert_eq!(&options.emit()[..], &expected[..]);

    let acknowledgement = Options {
        dss: Some(Dss { data_fin: false, data_ack: Some(DataAck::Long(9)), mapping: None }),
        ..options
    };
    #[rustfmt::skip]
    let expected = [
        1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6, 1, 1, 5, 10, 0, 0, 0, 7, 0, 0, 0, 8,
        30, 12, 0x20, 0x03, 0, 0, 0, 0, 0, 0, 0, 9,
    ];
    assert_eq!(&acknowledgement.emit()[..], &expected[..]);
}

#[test]
fn a_broken_length_hides_only_what_follows() {
    let mss = [2, 4, 5, 0xb4];
    let expected = Options { mss: Some(0x05b4), ..Options::default() };
    for broken in [&[8_u8, 1, 3, 3, 7][..], &[8, 0], &[30, 200, 0], &[8], &[0, 3, 3, 7]] {
        assert_eq!(Options::parse(&[&mss[..], broken].concat()), expected, "{broken:?}");
    }
    // Unknown, and known with a wrong length: ignored.
    for skipped in [
        &[254_u8, 4, 1, 2][..],
        &[3, 4, 7, 7],
        &[30, 2],
        &[30, 5, 0x20, 0, 1],
        &[30, 7, 0, 1, 2, 3, 4],
    ] {
        assert_eq!(Options::parse(&[skipped, &mss].concat()), expected, "{skipped:?}");
    }
}

#[test]
fn mp_prio_with_an_address_id_is_the_rfc_6824_form_and_ignored() {
    let expected = [MptcpOption::Priority { backup: true }];
    assert_eq!(Options::parse(&[30, 4, 0x51, 9]).mptcp[..], []);
    assert_eq!(Options::parse(&[30, 3, 0x51, 1]).mptcp[..], expected);
}

#[test]
fn fragments_and_other_protocols_are_distinguished() {
    let parse_changed = |change: fn(&mut Vec<u8>)| {
        let mut bytes =
            Packet::emit(&segment_with(Flags::ACK, Options::default(), b"data"), 1).to_vec();
        change(&mut bytes);
        let total_bytes = bytes.len();
        ip::set_length_and_advance_id(&mut bytes, total_bytes, 0);
        Packet::from_bytes(&bytes.into(), false, 0).and_then(|packet| packet.parse())
    };
    assert_eq!(parse_changed(|bytes| bytes[6] |= 0x20), Err(ParseError::Fragment));
    assert_eq!(parse_changed(|bytes| bytes[7] = 1), Err(ParseError::Fragment));
    assert_eq!(parse_changed(|bytes| bytes[9] = 17), Err(ParseError::NotTcp(17)));
    assert_eq!(
        parse_changed(|bytes| bytes[32] = 0x40),
        Err(ParseError::Malformed("TCP data offset"))
    );
    assert_eq!(parse_changed(|bytes| bytes[40] ^= 1), Err(ParseError::Checksum("TCP")));
    assert_eq!(parse_changed(|bytes| bytes.truncate(39)), Err(ParseError::Truncated("TCP header")));
    assert!(parse_changed(|_| {}).is_ok());
}

#[test]
fn ipv6_extension_headers_are_skipped() {
    let mut segment = segment_with(Flags::ACK, Options::default(), b"data");
    segment.source = "[fd00::1]:40000".parse().unwrap();
    segment.destination = "[fd00::2]:443".parse().unwrap();
    let bytes = Packet::emit(&segment, 1).to_vec();
    let (ip, tcp) = bytes.split_at(40);
    let parse_with_extensions = |next_header: u8, extensions: &[u8]| {
        let mut bytes = [ip, extensions, tcp].concat();
        bytes[6] = next_header;
        let total_bytes = bytes.len();
        ip::set_length_and_advance_id(&mut bytes, total_bytes, 0);
        Packet::from_bytes(&bytes.into(), false, 0).and_then(|packet| packet.parse())
    };
    // Hop-by-hop with padding of 6 bytes, then destination options of 16 bytes.
    let mut extensions = vec![60, 0, 1, 4, 0, 0, 0, 0];
    extensions.extend([6, 1, 1, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(parse_with_extensions(0, &extensions), Ok(segment));
    assert_eq!(parse_with_extensions(44, &[6, 0, 0, 0, 0, 0, 0, 1]), Err(ParseError::Fragment));
    assert_eq!(parse_with_extensions(51, &[6, 1, 0, 0, 0, 0, 0, 1]), Err(ParseError::NotTcp(51)));
}
