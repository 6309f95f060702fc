//! UDP (RFC 768) in the same packets, for traffic other than TCP.

use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use bytes::Bytes;

use super::packet::{append, length_field};
use super::{Ecn, Packet, ParseError, Payload, ip};

/// Length of a UDP header.
const UDP_BYTES: usize = 8;

/// Parsed UDP datagram with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpDatagram {
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Payload of the datagram.
    pub payload: Bytes,
}

impl UdpDatagram {
    /// Returns true if `packet` carries UDP.
    pub fn is_in(packet: &Packet) -> bool {
        packet.ip().is_ok_and(|ip| ip.protocol == ip::UDP)
    }

    /// Parses `packet`; verifies the checksum, which is optional only in IPv4.
    pub fn parse(packet: &Packet) -> Result<Self, ParseError> {
        let ip = packet.ip()?;
        if ip.protocol != ip::UDP {
            return Err(ParseError::NotTcp(ip.protocol));
        }
        let udp = packet.header.get(ip.header_bytes..).unwrap_or_default();
        let &[s0, s1, d0, d1, l0, l1, c0, c1] = udp else {
            return Err(ParseError::Truncated("UDP header"));
        };
        let upper_bytes = UDP_BYTES + packet.payload.len();
        if usize::from(u16::from_be_bytes([l0, l1])) != upper_bytes {
            return Err(ParseError::Malformed("UDP length"));
        }
        let sum = ip.pseudo_header(ip::UDP, upper_bytes).bytes(udp);
        let sum = packet.payload.chunks().fold(sum, |sum, chunk| sum.bytes(chunk));
        let no_checksum = [c0, c1] == [0, 0];
        // RFC 8200 §8.1: IPv6 requires a checksum.
        if (no_checksum && ip.source.is_ipv6()) || (!no_checksum && sum.folded() != 0xffff) {
            return Err(ParseError::Checksum("UDP"));
        }
        Ok(Self {
            source: SocketAddr::new(ip.source, u16::from_be_bytes([s0, s1])),
            destination: SocketAddr::new(ip.destination, u16::from_be_bytes([d0, d1])),
            ecn: ip.ecn,
            payload: packet.payload.to_bytes(),
        })
    }

    /// Encodes the packet, with its checksum. `identification` is the IPv4 header's. Addresses must
    /// be of one family, and the payload must fit into one IP packet.
    pub fn emit(self, identification: u16) -> Packet {
        let upper_bytes = UDP_BYTES + self.payload.len();
        let (source, destination) = (self.source.ip(), self.destination.ip());
        let mut header = ArrayVec::new();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = length_field(ip::V4_BYTES + upper_bytes);
                let addresses = (source, destination);
                append(
                    &mut header,
                    &ip::emit_v4(addresses, ip::UDP, self.ecn, identification, total),
                );
            }
            (source, destination) => {
                let length = length_field(upper_bytes);
                append(&mut header, &ip::emit_v6(ip::UDP, self.ecn, length));
                append(&mut header, ip::v6_addresses(source, destination).as_flattened());
            }
        }
        let [s0, s1] = self.source.port().to_be_bytes();
        let [d0, d1] = self.destination.port().to_be_bytes();
        let [l0, l1] = length_field(upper_bytes).to_be_bytes();
        let ports_and_length = [s0, s1, d0, d1, l0, l1];
        let sum =
            ip::pseudo_header(source, destination, ip::UDP, upper_bytes).bytes(&ports_and_length);
        // RFC 768: a sum of zero is sent as 0xffff, since zero means no checksum.
        let checksum = match sum.bytes(&self.payload).finish() {
            0 => 0xffff,
            checksum => checksum,
        };
        append(&mut header, &ports_and_length);
        append(&mut header, &checksum.to_be_bytes());
        let payload = Payload::from(self.payload);
        Packet { header, payload, ..Packet::default() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address(v6: bool, last: u8, port: u16) -> SocketAddr {
        let ip = if v6 { format!("fd00::{last:x}") } else { format!("10.0.0.{last}") };
        SocketAddr::new(ip.parse().unwrap(), port)
    }

    proptest! {
        #[test]
        fn a_datagram_survives_a_round_trip_and_no_flipped_bit(
            v6: bool,
            ports: (u16, u16),
            payload in proptest::collection::vec(any::<u8>(), 0..1_472),
            flip: u32,
        ) {
            let datagram = UdpDatagram {
                source: address(v6, 1, ports.0),
                destination: address(v6, 2, ports.1),
                ecn: Ecn::Capable0,
                payload: payload.into(),
            };
            let mut packet = datagram.clone().emit(7);
            prop_assert!(UdpDatagram::is_in(&packet));
            prop_assert_eq!(UdpDatagram::parse(&packet), Ok(datagram.clone()));
            towpath_net::Packet::corrupt(&mut packet, flip);
            if let Ok(corrupted) = UdpDatagram::parse(&packet) {
                // IPv6 does not protect all of its header: class and hop limit may change.
                let unchanged = corrupted.payload == datagram.payload && corrupted.source == datagram.source;
                prop_assert!(v6 && unchanged && corrupted.destination == datagram.destination);
            }
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(
            header in proptest::collection::vec(any::<u8>(), 0..60),
            payload in proptest::collection::vec(any::<u8>(), 0..60),
        ) {
            let packet = Packet {
                header: header.iter().copied().collect(),
                payload: Bytes::from(payload).into(),
                segment_bytes: 0,
                checksum_offloaded: false,
                data_tag: None,
            };
            let _ = UdpDatagram::parse(&packet);
        }
    }

    #[test]
    fn ipv4_may_leave_the_checksum_out_and_ipv6_may_not() {
        for v6 in [false, true] {
            let datagram = UdpDatagram {
                source: address(v6, 1, 1),
                destination: address(v6, 2, 2),
                ecn: Ecn::NotCapable,
                payload: Bytes::from_static(b"payload"),
            };
            let mut packet = datagram.clone().emit(0);
            let end = packet.header.len();
            packet.header[end - 2..].fill(0);
            let parsed = UdpDatagram::parse(&packet);
            let expected = if v6 { Err(ParseError::Checksum("UDP")) } else { Ok(datagram) };
            assert_eq!(parsed, expected);
        }
    }
}
