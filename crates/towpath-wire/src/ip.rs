//! IPv4 and IPv6 headers (RFC 791, RFC 8200), as far as TCP needs them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::checksum::PartialChecksum;
use super::{Ecn, ParseError};

/// IP protocol numbers (IANA).
pub(crate) const TCP: u8 = 6;
pub(crate) const UDP: u8 = 17;
pub(crate) const ICMP: u8 = 1;
pub(crate) const ICMP_V6: u8 = 58;

/// Length of an IPv4 header without options.
pub(crate) const V4_BYTES: usize = 20;
/// Length of an IPv6 header without extension headers.
pub(crate) const V6_BYTES: usize = 40;

/// Default TTL or hop limit of Linux.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Parsed header of an IP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IpHeader {
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    pub(crate) protocol: u8,
    pub(crate) ecn: Ecn,
    /// Offset of the transport header, after IPv4 options or IPv6 extension headers.
    pub(crate) header_bytes: usize,
    /// Length of the whole packet.
    pub(crate) total_bytes: usize,
}

impl IpHeader {
    /// Parses the header at the start of `bytes`; the payload may be missing.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "the result need not go through memory, see benches/wire"
    )]
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|version_byte| version_byte >> 4) {
            Some(4) => parse_v4(bytes).and_then(|header| verify_v4_checksum(bytes, header)),
            Some(6) => parse_v6(bytes),
            Some(_) | None => Err(ParseError::NotIp),
        }
    }

    /// Parses a quoted header, as [`IpHeader::parse`] does, without its checksum. Routers may have
    /// changed the header without updating its checksum.
    pub(crate) fn parse_quoted(bytes: &[u8]) -> Result<Self, ParseError> {
        match bytes.first().map(|version_byte| version_byte >> 4) {
            Some(4) => parse_v4(bytes),
            Some(_) | None => Self::parse(bytes),
        }
    }

    /// Returns the sum of the pseudo header (RFC 9293 §3.1, RFC 8200 §8.1).
    pub(crate) fn pseudo_header(&self, protocol: u8, upper_bytes: usize) -> PartialChecksum {
        pseudo_header(self.source, self.destination, protocol, upper_bytes)
    }
}

pub(crate) fn pseudo_header(
    source: IpAddr,
    destination: IpAddr,
    protocol: u8,
    upper_bytes: usize,
) -> PartialChecksum {
    let sum = match (source, destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            PartialChecksum::default().words32(&source.octets()).words32(&destination.octets())
        }
        (source, destination) => PartialChecksum::default()
            .words32(&to_v6(source).octets())
            .words32(&to_v6(destination).octets()),
    };
    sum.word(u16::from(protocol)).word((upper_bytes >> 16) as u16).word(upper_bytes as u16)
}

/// Returns an IPv4 address as a mapped address. Two families in one packet are invalid, but must
/// not panic.
fn to_v6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

#[inline]
fn verify_v4_checksum(bytes: &[u8], header: IpHeader) -> Result<IpHeader, ParseError> {
    let sum =
        PartialChecksum::default().words32(bytes.get(..header.header_bytes).unwrap_or_default());
    if sum.folded() == 0xffff { Ok(header) } else { Err(ParseError::Checksum("IPv4 header")) }
}

#[inline]
fn parse_v4(bytes: &[u8]) -> Result<IpHeader, ParseError> {
    let Some((fixed, _)) = bytes.split_first_chunk::<V4_BYTES>() else {
        return Err(ParseError::Truncated("IPv4 header"));
    };
    let &[
        version_and_length,
        tos,
        l0,
        l1,
        _,
        _,
        f0,
        f1,
        _,
        protocol,
        _,
        _,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ] = fixed;
    let header_bytes = usize::from(version_and_length & 0xf) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([l0, l1]));
    if header_bytes < V4_BYTES {
        return Err(ParseError::Malformed("IPv4 header length"));
    }
    if total_bytes < header_bytes {
        return Err(ParseError::Malformed("IPv4 total length"));
    }
    if bytes.len() < header_bytes {
        return Err(ParseError::Truncated("IPv4 header"));
    }
    // More fragments, or not the first one.
    if u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
        return Err(ParseError::Fragment);
    }
    Ok(IpHeader {
        source: Ipv4Addr::new(s0, s1, s2, s3).into(),
        destination: Ipv4Addr::new(d0, d1, d2, d3).into(),
        protocol,
        ecn: Ecn::from_bits(tos),
        header_bytes,
        total_bytes,
    })
}

fn parse_v6(bytes: &[u8]) -> Result<IpHeader, ParseError> {
    let truncated = ParseError::Truncated("IPv6 header");
    let (&[c0, c1, _, _, l0, l1, next_header, _], rest) =
        bytes.split_first_chunk().ok_or(truncated)?;
    let (source, rest) = rest.split_first_chunk::<16>().ok_or(truncated)?;
    let (destination, mut rest) = rest.split_first_chunk::<16>().ok_or(truncated)?;
    let total_bytes = V6_BYTES + usize::from(u16::from_be_bytes([l0, l1]));
    let mut header_bytes = V6_BYTES;
    let mut protocol = next_header;
    loop {
        match protocol {
            // Hop-by-hop options, routing, destination options (RFC 8200 §4.3, §4.4, §4.6).
            0 | 43 | 60 => {
                let [next_header, extension_len, ..] = *rest else {
                    return Err(ParseError::Truncated("IPv6 extension header"));
                };
                let extension_bytes = (usize::from(extension_len) + 1) * 8;
                rest = rest
                    .get(extension_bytes..)
                    .ok_or(ParseError::Truncated("IPv6 extension header"))?;
                header_bytes += extension_bytes;
                protocol = next_header;
            }
            44 => return Err(ParseError::Fragment),
            _ => break,
        }
    }
    if header_bytes > total_bytes {
        return Err(ParseError::Malformed("IPv6 payload length"));
    }
    Ok(IpHeader {
        source: Ipv6Addr::from(*source).into(),
        destination: Ipv6Addr::from(*destination).into(),
        protocol,
        ecn: Ecn::from_bits((c0 << 4) | (c1 >> 4)),
        header_bytes,
        total_bytes,
    })
}

/// Returns an IPv4 header without options, do-not-fragment set, with its checksum.
pub(crate) fn emit_v4(
    addresses: (Ipv4Addr, Ipv4Addr),
    protocol: u8,
    ecn: Ecn,
    identification: u16,
    total_bytes: u16,
) -> [u8; V4_BYTES] {
    let [s0, s1, s2, s3] = addresses.0.octets();
    let [d0, d1, d2, d3] = addresses.1.octets();
    let [l0, l1] = total_bytes.to_be_bytes();
    let [i0, i1] = identification.to_be_bytes();
    let ecn = ecn.bits();
    let sum = PartialChecksum::default()
        .word(0x4500 | u16::from(ecn))
        .word(total_bytes)
        .word(identification)
        .word(0x4000)
        .word(u16::from_be_bytes([DEFAULT_HOP_LIMIT, protocol]))
        .words32(&[s0, s1, s2, s3, d0, d1, d2, d3]);
    let [c0, c1] = sum.finish().to_be_bytes();
    [
        0x45,
        ecn,
        l0,
        l1,
        i0,
        i1,
        0x40,
        0,
        DEFAULT_HOP_LIMIT,
        protocol,
        c0,
        c1,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ]
}

/// Returns an IPv6 header without extensions, flow label 0: the first 8 bytes; the addresses
/// follow.
pub(crate) fn emit_v6(protocol: u8, ecn: Ecn, payload_bytes: u16) -> [u8; 8] {
    let [l0, l1] = payload_bytes.to_be_bytes();
    [0x60, ecn.bits() << 4, 0, 0, l0, l1, protocol, DEFAULT_HOP_LIMIT]
}

/// Returns both addresses as IPv6 addresses, as in the header.
pub(crate) fn v6_addresses(source: IpAddr, destination: IpAddr) -> [[u8; 16]; 2] {
    [to_v6(source).octets(), to_v6(destination).octets()]
}

/// Sets the length field of the IP header at the front of `header`. For IPv4, also adds
/// `id_increment` to the identification and updates the header checksum.
pub(crate) fn set_length_and_advance_id(header: &mut [u8], total_bytes: usize, id_increment: u16) {
    match header {
        [version_and_length, _, l0, l1, i0, i1, ..] if *version_and_length >> 4 == 4 => {
            [*l0, *l1] = (total_bytes as u16).to_be_bytes();
            [*i0, *i1] = u16::from_be_bytes([*i0, *i1]).wrapping_add(id_increment).to_be_bytes();
            let header_bytes = usize::from(*version_and_length & 0xf) * 4;
            let Some(header) = header.get_mut(..header_bytes) else { return };
            if let [_, _, _, _, _, _, _, _, _, _, c0, c1, ..] = header {
                [*c0, *c1] = [0, 0];
            }
            let checksum = PartialChecksum::default().words32(header).finish();
            if let [_, _, _, _, _, _, _, _, _, _, c0, c1, ..] = header {
                [*c0, *c1] = checksum.to_be_bytes();
            }
        }
        [_, _, _, _, l0, l1, ..] => {
            [*l0, *l1] = (total_bytes.saturating_sub(V6_BYTES) as u16).to_be_bytes();
        }
        _ => {}
    }
}

impl Ecn {
    /// Returns the ECN field from the lower two bits of the traffic class.
    pub(crate) const fn from_bits(traffic_class: u8) -> Self {
        match traffic_class & 3 {
            0 => Self::NotCapable,
            1 => Self::Capable1,
            2 => Self::Capable0,
            _ => Self::Marked,
        }
    }

    /// Returns the two bits of the field.
    pub(crate) const fn bits(self) -> u8 {
        match self {
            Self::NotCapable => 0,
            Self::Capable1 => 1,
            Self::Capable0 => 2,
            Self::Marked => 3,
        }
    }
}
