//! Packets and options there and back.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;

use super::*;

fn number() -> impl Strategy<Value = DataAck> {
    prop_oneof![any::<u32>().prop_map(DataAck::Short), any::<u64>().prop_map(DataAck::Long)]
}

fn mapping() -> impl Strategy<Value = DssMapping> {
    (number(), any::<u32>(), any::<u16>(), of(any::<u16>()))
        .prop_map(|(dsn, ssn, len, checksum)| DssMapping { dsn, ssn, len, checksum })
}

fn dss() -> impl Strategy<Value = Dss> {
    (any::<bool>(), of(number()), of(mapping())).prop_map(|(data_fin, data_ack, mapping)| Dss {
        data_fin,
        data_ack,
        mapping,
    })
}

fn capable() -> impl Strategy<Value = Capable> {
    let data = of((any::<u16>(), of(any::<u16>())));
    let keys = of((any::<u64>(), of((any::<u64>(), data))));
    (0..16_u8, any::<[bool; 4]>(), keys).prop_map(|(version, [a, b, c, h], keys)| Capable {
        version,
        checksum: a,
        extensibility: b,
        no_join_to_source: c,
        hmac_sha256: h,
        sender_key: keys.map(|(sender, _)| sender),
        receiver_key: keys.and_then(|(_, rest)| rest).map(|(receiver, _)| receiver),
        data: keys.and_then(|(_, rest)| rest).and_then(|(_, data)| data),
    })
}

fn join() -> impl Strategy<Value = Join> {
    prop_oneof![
        any::<(bool, u8, u32, u32)>().prop_map(|(backup, address_id, token, nonce)| Join::Syn {
            backup,
            address_id,
            token,
            nonce
        }),
        any::<(bool, u8, u64, u32)>().prop_map(|(backup, address_id, hmac, nonce)| Join::SynAck {
            backup,
            address_id,
            hmac,
            nonce
        }),
        any::<[u8; 20]>().prop_map(|hmac| Join::Ack { hmac }),
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
            |(address_id, address, port, hmac)| MptcpOption::AddAddress(AddAddress {
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
            MptcpOption::Reset(Reset { transient, reason, reserved })
        }),
        (9..16_u8, 0..16_u8, vec(any::<u8>(), 0..=37)).prop_map(|(subtype, low, rest)| {
            let body = std::iter::once(low).chain(rest).collect();
            MptcpOption::Unknown { subtype, body }
        }),
    ]
}

/// Any, also such as do not fit into a header together.
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

/// `options` without what does not fit: Multipath TCP options that do not fit even without SACK, and
/// SACK blocks that do not fit beside them.
fn fitting(mut options: Options) -> Options {
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
            options: fitting(options),
            payload: payload(pieces),
            segment_bytes,
        }
    }
}

proptest! {
    #[test]
    fn options_survive_a_round_trip(options in options()) {
        let options = fitting(options);
        let bytes = options.emit();
        prop_assert_eq!(bytes.len(), options.encoded_len());
        prop_assert_eq!(bytes.len() % 4, 0);
        prop_assert_eq!(Options::parse(&bytes), options);
    }

    #[test]
    fn options_that_do_not_fit_lose_sack_blocks_first_and_stay_valid(options in options()) {
        let bytes = options.emit();
        prop_assert_eq!(Options::parse(&bytes), fitting(options));
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
}
