//! ICMP errors about TCP (RFC 792, RFC 1191, RFC 4443): parsing, and messages of emulated routers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use arrayvec::ArrayVec;
use bytes::Bytes;

use super::checksum::PartialChecksum;
use super::ip::{self, IpHeader};
use super::{Ecn, Packet, ParseError, Payload};

/// `ICMPv4` type "destination unreachable".
const V4_UNREACHABLE: u8 = 3;
/// Code of a router's "fragmentation needed" message (RFC 792).
const V4_TOO_BIG: u8 = 4;
const V6_UNREACHABLE: u8 = 1;
const V6_TOO_BIG: u8 = 2;

/// ICMP error about a segment of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IcmpMessage {
    /// Sender of the segment: our address.
    pub local: SocketAddr,
    /// Receiver of the segment: the peer.
    pub remote: SocketAddr,
    /// Sequence number of the segment; an off-path attacker must guess it (RFC 5927 §4.1).
    pub seq: u32,
    /// Error that the message reports.
    pub kind: IcmpKind,
}

/// Error that ICMP reports about a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpKind {
    /// The packet was too large for the next link.
    TooBig {
        /// MTU of the next link; 0 from a router older than RFC 1191, which does not report it.
        mtu: u32,
    },
    /// The segment did not arrive.
    Unreachable {
        /// True if the error is permanent (the port or protocol is closed, or prohibited).
        /// Otherwise the network may recover, and a connection must not end (RFC 9293 §3.9.2.2).
        hard: bool,
    },
}

impl IcmpMessage {
    /// Parses an ICMP or `ICMPv6` error that quotes TCP.
    pub fn parse(packet: &Packet) -> Result<Self, ParseError> {
        let ip = packet.ip()?;
        // The relevant fields are at the front: type, a 32-bit field, the quoted IP header and 8
        // bytes of TCP.
        let message = packet.payload.to_bytes();
        let Some((&[kind, code, _, _, m0, m1, m2, m3], quoted)) = message.split_first_chunk()
        else {
            return Err(ParseError::Truncated("ICMP header"));
        };
        let sum = match ip.protocol {
            ip::ICMP => PartialChecksum::default(),
            ip::ICMP_V6 => ip.pseudo_header(ip::ICMP_V6, message.len()),
            other => return Err(ParseError::NotTcp(other)),
        };
        if sum.bytes(&message).folded() != 0xffff {
            return Err(ParseError::Checksum("ICMP"));
        }
        let kind = match (ip.protocol, kind, code) {
            (ip::ICMP, V4_UNREACHABLE, V4_TOO_BIG) => {
                IcmpKind::TooBig { mtu: u16::from_be_bytes([m2, m3]).into() }
            }
            (ip::ICMP, V4_UNREACHABLE, code) => IcmpKind::Unreachable { hard: is_hard_v4(code) },
            (ip::ICMP_V6, V6_TOO_BIG, _) => {
                IcmpKind::TooBig { mtu: u32::from_be_bytes([m0, m1, m2, m3]) }
            }
            (ip::ICMP_V6, V6_UNREACHABLE, code) => IcmpKind::Unreachable { hard: is_hard_v6(code) },
            _ => return Err(ParseError::Malformed("ICMP type")),
        };
        Self::from_quote(quoted, kind)
    }

    fn from_quote(quoted: &[u8], kind: IcmpKind) -> Result<Self, ParseError> {
        let ip = IpHeader::parse_quoted(quoted)?;
        if ip.protocol != ip::TCP {
            return Err(ParseError::NotTcp(ip.protocol));
        }
        let tcp = quoted.get(ip.header_bytes..).unwrap_or_default();
        let [s0, s1, d0, d1, q0, q1, q2, q3, ..] = *tcp else {
            return Err(ParseError::Truncated("quoted TCP header"));
        };
        Ok(Self {
            local: SocketAddr::new(ip.source, u16::from_be_bytes([s0, s1])),
            remote: SocketAddr::new(ip.destination, u16::from_be_bytes([d0, d1])),
            seq: u32::from_be_bytes([q0, q1, q2, q3]),
            kind,
        })
    }
}

impl IcmpKind {
    /// Returns the error that `router` sends about `packet`, or `None` for other protocols than TCP
    /// or another address family. Quotes the packet's headers, not its data.
    pub fn emit(self, router: IpAddr, packet: &Packet) -> Option<Packet> {
        let ip = packet.ip().ok().filter(|ip| ip.protocol == ip::TCP)?;
        router_error(router, ip.source, self.header(ip.source), &packet.header)
    }

    /// Returns type, code, an empty checksum, and the 32-bit field after it. Hard errors have the
    /// code of a closed port.
    fn header(self, destination: IpAddr) -> [u8; 8] {
        let (kind, code, mtu) = match (destination, self) {
            // The field has 16 bits (RFC 1191 §4).
            (IpAddr::V4(_), Self::TooBig { mtu }) => {
                (V4_UNREACHABLE, V4_TOO_BIG, mtu.min(u16::MAX.into()))
            }
            (IpAddr::V4(_), Self::Unreachable { hard }) => {
                (V4_UNREACHABLE, if hard { 3 } else { 1 }, 0)
            }
            (IpAddr::V6(_), Self::TooBig { mtu }) => (V6_TOO_BIG, 0, mtu),
            (IpAddr::V6(_), Self::Unreachable { hard }) => {
                (V6_UNREACHABLE, if hard { 4 } else { 0 }, 0)
            }
        };
        let [m0, m1, m2, m3] = mtu.to_be_bytes();
        [kind, code, 0, 0, m0, m1, m2, m3]
    }
}

/// Returns the ICMP message from `router` to `destination`. `icmp_header` is type, code, an empty
/// checksum and a 32-bit field; `quote` is the beginning of the packet that caused the error.
/// `None` if the address families differ.
pub fn router_error(
    router: IpAddr,
    destination: IpAddr,
    icmp_header: [u8; 8],
    quote: &[u8],
) -> Option<Packet> {
    let mut message = Vec::with_capacity(icmp_header.len() + quote.len());
    message.extend(icmp_header);
    message.extend_from_slice(quote);
    let mut header = ArrayVec::new();
    match (router, destination) {
        (IpAddr::V4(router), IpAddr::V4(destination)) => {
            let total = u16::try_from(ip::V4_BYTES + message.len()).ok()?;
            let ip = ip::emit_v4((router, destination), ip::ICMP, Ecn::NotCapable, 0, total);
            header.try_extend_from_slice(&ip).ok()?;
            complete_checksum(&mut message, PartialChecksum::default());
        }
        (IpAddr::V6(_), IpAddr::V6(_)) => {
            let len = u16::try_from(message.len()).ok()?;
            let ip = ip::emit_v6(ip::ICMP_V6, Ecn::NotCapable, len);
            header.try_extend_from_slice(&ip).ok()?;
            let addresses = ip::v6_addresses(router, destination);
            header.try_extend_from_slice(addresses.as_flattened()).ok()?;
            let sum = ip::pseudo_header(router, destination, ip::ICMP_V6, message.len());
            complete_checksum(&mut message, sum);
        }
        (IpAddr::V4(Ipv4Addr { .. }), IpAddr::V6(Ipv6Addr { .. }))
        | (IpAddr::V6(Ipv6Addr { .. }), IpAddr::V4(Ipv4Addr { .. })) => return None,
    }
    let payload = Payload::from(Bytes::from(message));
    Some(Packet { header, payload, ..Packet::default() })
}

/// Fills in the checksum of an ICMP message.
fn complete_checksum(message: &mut [u8], pseudo_header: PartialChecksum) {
    let checksum = pseudo_header.bytes(message).finish();
    if let [_, _, c0, c1, ..] = message {
        [*c0, *c1] = checksum.to_be_bytes();
    }
}

/// Returns true for hard errors, as in Linux: no protocol, no port, or prohibited by an
/// administrator or the host.
fn is_hard_v4(code: u8) -> bool {
    matches!(code, 2 | 3 | 6..=10 | 13..=15)
}

/// Returns true for hard errors, as in Linux: prohibited, no port, policy, reject route.
fn is_hard_v6(code: u8) -> bool {
    matches!(code, 1 | 4..=6)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{Flags, Options, ParsedPacket, Segment, parse};

    fn tcp_packet(v6: bool) -> Packet {
        let (source, destination) =
            if v6 { ("[fd00::1]:4", "[fd00::2]:5") } else { ("10.0.0.1:4", "10.0.0.2:5") };
        let segment = Segment {
            source: source.parse().unwrap(),
            destination: destination.parse().unwrap(),
            seq: 0xdead_beef,
            ack: 1,
            flags: Flags::ACK,
            window: 2,
            ecn: Ecn::NotCapable,
            options: Options::default(),
            payload: Bytes::from_static(b"data").into(),
            segment_bytes: 0,
        };
        Packet::emit(&segment, 6)
    }

    fn router_address(v6: bool) -> IpAddr {
        if v6 { "fd00::ff" } else { "10.0.0.255" }.parse().unwrap()
    }

    #[test]
    fn icmp_messages_are_parsed() {
        for v6 in [false, true] {
            for kind in [
                IcmpKind::TooBig { mtu: 1_400 },
                IcmpKind::Unreachable { hard: false },
                IcmpKind::Unreachable { hard: true },
            ] {
                let error = kind.emit(router_address(v6), &tcp_packet(v6)).unwrap();
                let segment = tcp_packet(v6).parse().unwrap();
                let expected = IcmpMessage {
                    local: segment.source,
                    remote: segment.destination,
                    seq: 0xdead_beef,
                    kind,
                };
                assert_eq!(parse(&error), Ok(ParsedPacket::Icmp(expected)));
                let bytes = Bytes::from(error.to_vec());
                assert_eq!(Packet::from_bytes(&bytes, false, 0), Ok(error));
            }
        }
    }

    #[test]
    fn source_quench_and_other_messages_are_discarded() {
        let error =
            IcmpKind::TooBig { mtu: 576 }.emit(router_address(false), &tcp_packet(false)).unwrap();
        for kind in [0, 4, 8, 11, 12] {
            let mut message = error.payload.to_bytes().to_vec();
            (message[0], message[2], message[3]) = (kind, 0, 0);
            complete_checksum(&mut message, PartialChecksum::default());
            let changed_packet = Packet { payload: Bytes::from(message).into(), ..error.clone() };
            assert_eq!(
                parse(&changed_packet),
                Err(ParseError::Malformed("ICMP type")),
                "type {kind}"
            );
        }
    }

    /// A router that lowers the time to live may leave the quoted checksum unchanged.
    #[test]
    fn a_quoted_header_may_have_another_checksum() {
        let error =
            IcmpKind::TooBig { mtu: 576 }.emit(router_address(false), &tcp_packet(false)).unwrap();
        let mut message = error.payload.to_bytes().to_vec();
        // The ninth octet after the message's own header.
        message[8 + 8] -= 1;
        (message[2], message[3]) = (0, 0);
        complete_checksum(&mut message, PartialChecksum::default());
        let changed_packet = Packet { payload: Bytes::from(message).into(), ..error };
        let Ok(ParsedPacket::Icmp(message)) = parse(&changed_packet) else {
            panic!("{:?}", parse(&changed_packet))
        };
        assert_eq!((message.seq, message.kind), (0xdead_beef, IcmpKind::TooBig { mtu: 576 }));
    }

    #[test]
    fn a_message_of_the_other_address_family_is_ignored() {
        assert_eq!(
            IcmpKind::TooBig { mtu: 1_400 }.emit(router_address(true), &tcp_packet(false)),
            None
        );
    }

    #[test]
    fn eight_bytes_of_tcp_are_enough() {
        let error =
            IcmpKind::TooBig { mtu: 576 }.emit(router_address(false), &tcp_packet(false)).unwrap();
        let mut message = error.payload.to_bytes().get(..8 + 28).unwrap().to_vec();
        message[2] = 0;
        message[3] = 0;
        complete_checksum(&mut message, PartialChecksum::default());
        let mut short_packet = Packet { payload: Bytes::from(message).into(), ..error };
        let total_bytes = short_packet.len();
        ip::set_length_and_advance_id(&mut short_packet.header, total_bytes, 0);
        assert_eq!(IcmpMessage::parse(&short_packet).unwrap().seq, 0xdead_beef);
        short_packet.payload.truncate(8 + 27);
        let total_bytes = short_packet.len();
        ip::set_length_and_advance_id(&mut short_packet.header, total_bytes, 0);
        assert_eq!(IcmpMessage::parse(&short_packet), Err(ParseError::Checksum("ICMP")));
    }

    proptest! {
        #[test]
        fn a_flipped_bit_is_noticed(v6: bool, random: u32) {
            let mut error = IcmpKind::TooBig { mtu: 1_400 }.emit(router_address(v6), &tcp_packet(v6)).unwrap();
            let original = IcmpMessage::parse(&error);
            towpath_net::Packet::corrupt(&mut error, random);
            // No checksum covers flow label and hop limit of IPv6.
            prop_assert!(parse(&error).is_err() || v6 && IcmpMessage::parse(&error) == original);
        }
    }
}
