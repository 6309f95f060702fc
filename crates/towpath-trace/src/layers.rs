//! Parsing of a frame down to its TCP segment: IPv4 or IPv6, TCP header.
//!
//! The stack's own parser does not fit, because a capture contains packets that a host never
//! receives. Examples are a total length of 0 (offloaded super-segments above 64 KiB), unset IPv4
//! checksums, which the card fills in, and truncated frames. Lengths come from the headers, bytes
//! from the captured part.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use towpath_wire::{Flags, Options};

use super::file::CapturedFrame;
use super::link::{SkipReason, find_ip_packet, host_interface};

const TCP: u8 = 6;
/// Kind of all Multipath TCP options (RFC 8684 §3).
const MULTIPATH_KIND: u8 = 30;
const UDP: u8 = 17;

/// Address and port. IPv4 is stored as a mapped address, so both forms compare equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SocketKey {
    address: u128,
    port: u16,
}

/// Prefix of IPv4-mapped IPv6 addresses, `::ffff:0:0/96` (RFC 4291 §2.5.5.2).
const IPV4_MAPPED_PREFIX: u128 = 0xffff_0000_0000;

impl SocketKey {
    /// Returns the socket address, with IPv4 in its usual form.
    pub(super) fn socket(self) -> SocketAddr {
        SocketAddr::new(self.ip(), self.port)
    }

    /// Returns the IP address without the port.
    pub(super) fn ip(self) -> IpAddr {
        if self.address >> 32 == IPV4_MAPPED_PREFIX >> 32 {
            IpAddr::V4(Ipv4Addr::from_bits(self.address as u32))
        } else {
            IpAddr::V6(Ipv6Addr::from_bits(self.address))
        }
    }

    /// Returns a word for hashes, in which most of the address and the port are visible.
    pub(super) fn hash_word(self) -> u64 {
        let folded = (self.address >> 64) as u64 ^ self.address as u64;
        folded.rotate_left(16) ^ u64::from(self.port)
    }

    /// Returns the port in host byte order.
    pub(super) fn port(self) -> u16 {
        self.port
    }
}

/// TCP segment of a captured frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct CapturedSegment<'a> {
    /// Address and port of the sender.
    pub(super) source: SocketKey,
    /// Address and port of the receiver.
    pub(super) destination: SocketKey,
    /// Sequence number, 32 bits as in the header.
    pub(super) seq: u32,
    /// Acknowledgement number, valid if ACK is set.
    pub(super) ack: u32,
    /// Window field of the header, not scaled.
    pub(super) window: u16,
    /// Control bits of the header.
    pub(super) flags: Flags,
    /// Captured part of the options.
    pub(super) options: &'a [u8],
    /// True if some of the options were not captured.
    pub(super) options_cut: bool,
    /// Payload bytes on the wire, captured or not.
    pub(super) payload_bytes: u32,
    /// Length of the IP packet on the wire.
    pub(super) ip_bytes: u32,
    /// True if the capturing host sent it; `None` if the capture does not contain the direction.
    pub(super) outbound: Option<bool>,
    /// Number of the interface that saw it: of the file, or of the capturing host.
    pub(super) interface: u32,
    /// TTL or hop limit.
    pub(super) hop_limit: u8,
    /// Identification of IPv4; `None` for IPv6 and for 0, which many packets share (RFC 6864).
    pub(super) identification: Option<u16>,
}

/// Knowledge about a segment's Multipath TCP options if some of its options were not captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutOptions {
    /// The captured part has none, but the rest may have.
    Unknown,
    /// An option of kind 30 begins in the captured part; with its subtype, if that was captured.
    Multipath(Option<u8>),
}

impl CapturedSegment<'_> {
    /// Returns true if the captured options contain timestamps (RFC 7323 §3).
    pub(super) fn has_timestamps(&self) -> bool {
        Options::parse(self.options).timestamps.is_some()
    }

    /// Returns what is known about options that were not captured; `None` if all were.
    pub(super) fn cut_options(&self) -> Option<CutOptions> {
        const END: u8 = 0;
        const NO_OPERATION: u8 = 1;
        if !self.options_cut {
            return None;
        }
        let mut remaining = self.options;
        loop {
            match *remaining {
                [] => return Some(CutOptions::Unknown),
                // Padding follows.
                [END, ..] => return None,
                [NO_OPERATION, ref tail @ ..] => remaining = tail,
                [kind, ref body @ ..] => {
                    let len = body.first().copied().unwrap_or(u8::MAX);
                    match remaining.split_at_checked(usize::from(len.max(2))) {
                        Some((_, tail)) => remaining = tail,
                        None if kind == MULTIPATH_KIND => {
                            let subtype = body.get(1).map(|byte| byte >> 4);
                            return Some(CutOptions::Multipath(subtype));
                        }
                        None => return Some(CutOptions::Unknown),
                    }
                }
            }
        }
    }
}

/// Parses a frame; the error is the reason to skip it.
pub(super) fn segment<'a>(frame: &CapturedFrame<'a>) -> Result<CapturedSegment<'a>, SkipReason> {
    let (ip, outbound) = find_ip_packet(frame)?;
    // Everything before IP was captured, because the parser found IP.
    let link_bytes = frame.bytes.len() - ip.len();
    let wire_bytes = (frame.wire_bytes as usize).saturating_sub(link_bytes).max(ip.len());
    let outbound = frame.outbound.or(outbound);
    let mut segment = match ip.first().map(|first_byte| first_byte >> 4) {
        Some(4) => parse_ipv4(ip, wire_bytes, outbound),
        Some(6) => parse_ipv6(ip, wire_bytes, outbound),
        Some(_) => Err(SkipReason::NotIp),
        None => Err(SkipReason::Cut),
    }?;
    segment.interface = host_interface(frame).unwrap_or(frame.interface);
    Ok(segment)
}

fn parse_ipv4(
    ip: &[u8],
    wire_bytes: usize,
    outbound: Option<bool>,
) -> Result<CapturedSegment<'_>, SkipReason> {
    let Some(header) = ip.first_chunk::<20>() else { return Err(SkipReason::Cut) };
    let &[first, _, l0, l1, i0, i1, f0, f1, hop_limit, protocol, _, _, ref ends @ ..] = header;
    let header_bytes = usize::from(first & 0xf) * 4;
    let total_bytes = usize::from(u16::from_be_bytes([l0, l1]));
    // 0 means that the length does not fit into the field: the network card splits or has joined
    // the packet (segmentation offload, BIG TCP).
    let total_bytes = if total_bytes == 0 { wire_bytes } else { total_bytes };
    if header_bytes < 20 || total_bytes < header_bytes {
        return Err(SkipReason::Malformed);
    }
    if u16::from_be_bytes([f0, f1]) & 0x3fff != 0 {
        return Err(SkipReason::Fragment);
    }
    match protocol {
        TCP => {}
        UDP => return Err(SkipReason::Udp),
        _ => return Err(SkipReason::NotTcp),
    }
    let addresses = u64::from_be_bytes(*ends);
    let mapped_address = |address: u64| IPV4_MAPPED_PREFIX | u128::from(address);
    let ends = (mapped_address(addresses >> 32), mapped_address(addresses & 0xffff_ffff));
    let segment = parse_tcp(
        ip.get(header_bytes..).ok_or(SkipReason::Cut)?,
        ends,
        total_bytes,
        total_bytes - header_bytes,
        outbound,
    )?;
    let identification = Some(u16::from_be_bytes([i0, i1])).filter(|number| *number != 0);
    Ok(CapturedSegment { hop_limit, identification, ..segment })
}

fn parse_ipv6(
    ip: &[u8],
    wire_bytes: usize,
    outbound: Option<bool>,
) -> Result<CapturedSegment<'_>, SkipReason> {
    let Some((&[_, _, _, _, l0, l1, next, hop_limit], remaining)) = ip.split_first_chunk::<8>()
    else {
        return Err(SkipReason::Cut);
    };
    let Some((&source, remaining)) = remaining.split_first_chunk::<16>() else {
        return Err(SkipReason::Cut);
    };
    let Some((&destination, remaining)) = remaining.split_first_chunk::<16>() else {
        return Err(SkipReason::Cut);
    };
    let payload_field = usize::from(u16::from_be_bytes([l0, l1]));
    let payload = if payload_field == 0 { wire_bytes.saturating_sub(40) } else { payload_field };
    let (mut protocol, mut remaining, mut remaining_bytes) = (next, remaining, payload);
    // Skips hop-by-hop options, routing, destination options (RFC 8200 §4.3, §4.4, §4.6), and
    // authentication headers (RFC 4302), whose payload is readable.
    while matches!(protocol, 0 | 43 | 51 | 60) {
        let &[next, length_units, ..] = remaining else { return Err(SkipReason::Cut) };
        let extension_bytes = match protocol {
            51 => (usize::from(length_units) + 2) * 4,
            _ => (usize::from(length_units) + 1) * 8,
        };
        remaining_bytes =
            remaining_bytes.checked_sub(extension_bytes).ok_or(SkipReason::Malformed)?;
        remaining = remaining.get(extension_bytes..).ok_or(SkipReason::Cut)?;
        protocol = next;
    }
    match protocol {
        TCP => {}
        UDP => return Err(SkipReason::Udp),
        44 => return Err(SkipReason::Fragment),
        _ => return Err(SkipReason::NotTcp),
    }
    let ends = (u128::from_be_bytes(source), u128::from_be_bytes(destination));
    let segment = parse_tcp(remaining, ends, payload + 40, remaining_bytes, outbound)?;
    Ok(CapturedSegment { hop_limit, ..segment })
}

/// Parses the TCP header; `tcp_bytes` is the length of the segment on the wire.
fn parse_tcp(
    bytes: &[u8],
    (source, destination): (u128, u128),
    ip_bytes: usize,
    tcp_bytes: usize,
    outbound: Option<bool>,
) -> Result<CapturedSegment<'_>, SkipReason> {
    let Some(header) = bytes.first_chunk::<20>() else { return Err(SkipReason::Cut) };
    let &[s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, ..] = header;
    let header_bytes = usize::from(offset >> 4) * 4;
    if header_bytes < 20 || tcp_bytes < header_bytes {
        return Err(SkipReason::Malformed);
    }
    Ok(CapturedSegment {
        source: SocketKey { address: source, port: u16::from_be_bytes([s0, s1]) },
        destination: SocketKey { address: destination, port: u16::from_be_bytes([d0, d1]) },
        seq: u32::from_be_bytes([q0, q1, q2, q3]),
        ack: u32::from_be_bytes([a0, a1, a2, a3]),
        window: u16::from_be_bytes([w0, w1]),
        flags: Flags(flags),
        options: bytes.get(20..header_bytes.min(bytes.len())).unwrap_or_default(),
        options_cut: bytes.len() < header_bytes,
        payload_bytes: (tcp_bytes - header_bytes) as u32,
        ip_bytes: ip_bytes as u32,
        outbound,
        interface: 0,
        hop_limit: 0,
        identification: None,
    })
}

/// UDP datagram of a captured frame.
#[derive(Debug, Clone, Copy)]
pub(super) struct CapturedDatagram<'a> {
    /// Sockets of both ends, in a fixed order.
    pub(super) ends: (SocketKey, SocketKey),
    /// Captured part of the payload.
    pub(super) payload: &'a [u8],
}

impl CapturedDatagram<'_> {
    /// Returns true if the payload begins with a long header of a known QUIC version (RFC 9000
    /// §17.2, RFC 9369) or with version negotiation.
    pub(super) fn has_quic_long_header(&self) -> bool {
        let Some(&[first, v0, v1, v2, v3]) = self.payload.first_chunk::<5>() else { return false };
        let version = u32::from_be_bytes([v0, v1, v2, v3]);
        let is_known = matches!(version, 1 | 0x6b33_43cf) || version >> 8 == 0x00ff_0000;
        match version {
            0 => first & 0x80 != 0 && self.payload.len() > 7,
            _ => first & 0xc0 == 0xc0 && is_known,
        }
    }
}

/// Parses a frame for which [`segment`] returned [`SkipReason::Udp`].
pub(super) fn datagram<'a>(frame: &CapturedFrame<'a>) -> Option<CapturedDatagram<'a>> {
    let (ip, _) = find_ip_packet(frame).ok()?;
    let first = *ip.first()?;
    let (source, destination, udp) = if first >> 4 == 4 {
        let address = |start: usize| {
            let octets = *ip.get(start..)?.first_chunk::<4>()?;
            Some(IPV4_MAPPED_PREFIX | u128::from(u32::from_be_bytes(octets)))
        };
        (address(12)?, address(16)?, ip.get(usize::from(first & 0xf) * 4..)?)
    } else {
        let address =
            |start: usize| Some(u128::from_be_bytes(*ip.get(start..)?.first_chunk::<16>()?));
        // Extension headers before UDP are rare, and then nothing is claimed.
        (address(8)?, address(24)?, ip.get(40..).filter(|_| ip.get(6) == Some(&UDP))?)
    };
    let &[s0, s1, d0, d1, _, _, _, _, ref payload @ ..] = udp else { return None };
    let source = SocketKey { address: source, port: u16::from_be_bytes([s0, s1]) };
    let destination = SocketKey { address: destination, port: u16::from_be_bytes([d0, d1]) };
    Some(CapturedDatagram { ends: (source.min(destination), source.max(destination)), payload })
}
