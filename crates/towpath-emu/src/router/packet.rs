//! Packets as a middlebox sees them: parsed and changed in place.

use std::net::IpAddr;
use std::ops::Range;

use towpath_sockets::headers;
use towpath_sockets::headers::Headers;
use towpath_wire::Flags;

/// Type and code of `Time exceeded`, in IPv4 and IPv6.
pub(crate) const TIME_EXCEEDED: [(u8, u8); 2] = [(11, 0), (3, 0)];
/// Type and code of `Packet too big`, in IPv4 and IPv6.
pub(crate) const TOO_BIG: [(u8, u8); 2] = [(3, 4), (2, 0)];
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;
/// Header lengths in bytes: IPv4 without options, and IPv6.
const V4_BYTES: usize = 20;
const V6_BYTES: usize = 40;
/// Number of the Multipath TCP option (RFC 8684 §3).
const TCPOPT_MPTCP: u8 = 30;
const TCPOPT_EOL: u8 = 0;
const TCPOPT_NOP: u8 = 1;

/// A kind of Multipath TCP option (RFC 8684 §3, the subtypes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MptcpOptionKind {
    Every,
    Capable,
    Join,
    Dss,
    AddAddress,
}

impl MptcpOptionKind {
    /// Returns true if an option with this subtype matches.
    pub(crate) const fn matches(self, subtype: u8) -> bool {
        match self {
            Self::Every => true,
            Self::Capable => subtype == 0,
            Self::Join => subtype == 1,
            Self::Dss => subtype == 2,
            Self::AddAddress => subtype == 3,
        }
    }
}

/// Offsets and flags of a TCP packet's headers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TcpHeader {
    ip_bytes: usize,
    header_bytes: usize,
    flags: Flags,
}

impl TcpHeader {
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let headers = Headers::parse(packet)?;
        let ip_bytes = usize::from(headers.ip_bytes());
        let flags = Flags(*packet.get(ip_bytes + 13)?);
        Some(Self { ip_bytes, header_bytes: headers.bytes(), flags })
    }

    pub(crate) const fn has(self, flags: Flags) -> bool {
        self.flags.contains(flags)
    }

    /// Returns the source and destination ports.
    pub(crate) fn ports(self, packet: &[u8]) -> Option<[u16; 2]> {
        let [s0, s1, d0, d1] = *packet.get(self.ip_bytes..)?.first_chunk()?;
        Some([u16::from_be_bytes([s0, s1]), u16::from_be_bytes([d0, d1])])
    }

    pub(crate) fn payload(self, packet: &[u8]) -> &[u8] {
        packet.get(self.header_bytes..).unwrap_or(&[])
    }

    /// Returns the byte ranges and subtypes of the Multipath TCP options.
    pub(crate) fn options(self, packet: &[u8]) -> impl Iterator<Item = (Range<usize>, u8)> {
        let mut offset = self.ip_bytes + 20;
        let end = self.header_bytes;
        let next = move || {
            while let Some(&kind) = packet.get(offset).filter(|_| offset < end) {
                if kind == TCPOPT_EOL {
                    return None;
                }
                if kind == TCPOPT_NOP {
                    offset += 1;
                    continue;
                }
                let length = usize::from(*packet.get(offset + 1)?);
                let range = offset..offset.checked_add(length.max(2))?;
                offset = range.end;
                if kind == TCPOPT_MPTCP && range.end <= end {
                    let subtype = *packet.get(range.start + 2)? >> 4;
                    return Some((range, subtype));
                }
            }
            None
        };
        std::iter::from_fn(next)
    }
}

/// Returns the source and destination addresses.
pub(crate) fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    match packet.first()? >> 4 {
        4 => {
            let [source, destination] = packet.get(12..V4_BYTES)?.as_chunks::<4>().0 else {
                return None;
            };
            Some((IpAddr::from(*source), IpAddr::from(*destination)))
        }
        6 => {
            let [source, destination] = packet.get(8..V6_BYTES)?.as_chunks::<16>().0 else {
                return None;
            };
            Some((IpAddr::from(*source), IpAddr::from(*destination)))
        }
        _ => None,
    }
}

/// Decrements the time to live; returns false if it has expired.
pub(crate) fn decrement_ttl(packet: &mut [u8]) -> bool {
    let v4 = packet.first().is_some_and(|first| first >> 4 == 4);
    let Some(ttl) = packet.get_mut(if v4 { 8 } else { 7 }) else { return false };
    if *ttl <= 1 {
        return false;
    }
    *ttl -= 1;
    if v4 {
        headers::update_ipv4_checksum(packet);
    }
    true
}

/// Returns true for an ICMP error, which must not cause another error (RFC 1812 §4.3.2.7).
pub(crate) fn is_icmp_error(packet: &[u8]) -> bool {
    match find_icmp(packet) {
        Some((true, body)) => matches!(packet.get(body), Some(3..=5 | 11 | 12)),
        Some((false, body)) => packet.get(body).is_some_and(|kind| *kind < 128),
        None => false,
    }
}

/// Locates an ICMP message: true for IPv4 and false for IPv6, and the offset of the message.
pub(crate) fn find_icmp(packet: &[u8]) -> Option<(bool, usize)> {
    let first = *packet.first()?;
    match first >> 4 {
        4 if packet.get(9) == Some(&ICMP) => Some((true, usize::from(first & 0x0f) * 4)),
        6 if packet.get(6) == Some(&ICMP_V6) => Some((false, V6_BYTES)),
        _ => None,
    }
}

/// Overwrites options with padding, which leaves every other byte in its place.
pub(crate) fn strip(packet: &mut [u8], kind: MptcpOptionKind) {
    let Some(tcp) = TcpHeader::parse(packet) else { return };
    let ranges: Vec<_> = tcp
        .options(packet)
        .filter(|(_, subtype)| kind.matches(*subtype))
        .map(|(range, _)| range)
        .collect();
    for range in ranges {
        packet.get_mut(range).unwrap_or_default().fill(TCPOPT_NOP);
    }
    headers::update_tcp_checksum(packet);
}

/// Clears the backup flag B of MP_JOIN, the last bit before the address ID.
pub(crate) fn clear_backup(packet: &mut [u8]) {
    let Some(tcp) = TcpHeader::parse(packet) else { return };
    let joins: Vec<_> = tcp
        .options(packet)
        .filter(|(_, subtype)| MptcpOptionKind::Join.matches(*subtype))
        .map(|(range, _)| range.start + 2)
        .collect();
    for offset in joins {
        if let Some(byte) = packet.get_mut(offset) {
            *byte &= !1;
        }
    }
    headers::update_tcp_checksum(packet);
}

/// Changes one byte in the middle of the payload.
pub(crate) fn rewrite_payload(packet: &mut [u8]) {
    let Some(tcp) = TcpHeader::parse(packet) else { return };
    let payload = packet.get_mut(tcp.header_bytes..).unwrap_or_default();
    let middle = payload.len() / 2;
    if let Some(byte) = payload.get_mut(middle) {
        *byte = byte.wrapping_add(1);
    }
    headers::update_tcp_checksum(packet);
}

/// Builds the reset with which a firewall replies in the receiver's name (RFC 9293 §3.10.7.1).
pub(crate) fn build_reset(packet: &[u8]) -> Option<Vec<u8>> {
    let tcp = TcpHeader::parse(packet)?;
    if tcp.has(Flags::RST) {
        return None;
    }
    let (ip, rest) = packet.split_at_checked(tcp.ip_bytes)?;
    let [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, ..] = *rest else { return None };
    let length = tcp.payload(packet).len()
        + usize::from(tcp.has(Flags::SYN))
        + usize::from(tcp.has(Flags::FIN));
    let next_seq = u32::from_be_bytes([q0, q1, q2, q3]).wrapping_add(length as u32).to_be_bytes();
    let (seq, ack, flags) = if tcp.has(Flags::ACK) {
        ([a0, a1, a2, a3], [0; 4], Flags::RST)
    } else {
        ([0; 4], next_seq, Flags::RST.with(Flags::ACK))
    };
    let mut reset_packet = ip.to_vec();
    reset_packet.extend([d0, d1, s0, s1]);
    reset_packet.extend(seq);
    reset_packet.extend(ack);
    reset_packet.extend([5 << 4, flags.0, 0, 0, 0, 0, 0, 0]);
    headers::swap_src_dst(&mut reset_packet);
    Some(reset_packet)
}
