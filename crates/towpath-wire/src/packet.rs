//! IP packet with a TCP segment: real header bytes, payload by reference.

use std::net::{IpAddr, SocketAddr};

use arrayvec::ArrayVec;
use bytes::Bytes;

use super::ip::{self, IpHeader};
use super::{Flags, ParseError, Payload, Segment};

/// Maximum length of all headers: IPv6 and 60 bytes of TCP. Also sufficient for IPv4 options, or
/// for IPv6 extension headers with a shorter TCP header. Longer headers are rejected.
pub const HEADER_BYTES: usize = 100;

const TCP_BYTES: usize = 20;

/// Packet in flight: an IP packet, or a super-segment that represents several.
///
/// As a whole, a super-segment is one IP packet: at most 65,535 bytes (IPv6: behind the header).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Packet {
    /// IP and TCP header with options. With ICMP: only the IP header, the payload is the message.
    pub header: ArrayVec<u8, HEADER_BYTES>,
    /// Payload after the headers.
    pub payload: Payload,
    /// Payload bytes of each packet on the wire for a super-segment; 0 for a single packet.
    pub segment_bytes: u16,
    /// The TCP checksum field holds only the sum of the pseudo header, as with checksum offload. A
    /// middlebox that changes the packet must call [`Packet::complete_checksum`] first.
    pub checksum_offloaded: bool,
    /// Connection data in the packet, as known to the sender; never on the wire. Only our own stack
    /// sets it, for traffic accounting.
    pub data_tag: Option<DataTag>,
}

/// Handle of a connection; not reused within a stack (before 2³² others).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// Range of a connection's data in a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataTag {
    /// Connection of the sender.
    pub connection: ConnectionId,
    /// Offset of the first byte in the connection's data.
    pub start: u64,
    /// True if the data was sent before on the same subflow.
    pub retransmitted: bool,
    /// True if the connection's scheduler sends copies.
    pub redundant: bool,
}

impl Packet {
    /// Returns the length of the IP packet (of the super-segment as a whole).
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Returns true if the packet has no header, which never occurs.
    pub fn is_empty(&self) -> bool {
        self.header.is_empty()
    }

    /// Returns the sender, if this is an IP packet.
    pub fn source(&self) -> Option<IpAddr> {
        IpHeader::parse(&self.header).ok().map(|ip| ip.source)
    }

    /// Returns the receiver, if this is an IP packet.
    pub fn destination(&self) -> Option<IpAddr> {
        IpHeader::parse(&self.header).ok().map(|ip| ip.destination)
    }

    /// Returns sender and receiver, if this is an IP packet.
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        IpHeader::parse(&self.header).ok().map(|ip| (ip.source, ip.destination))
    }

    /// Parses `bytes` from a device: TCP, or ICMP. The payload is not copied. `offloaded`: the
    /// device has verified the checksum, or has yet to compute it.
    pub fn from_bytes(
        bytes: &Bytes,
        offloaded: bool,
        segment_bytes: u16,
    ) -> Result<Self, ParseError> {
        let ip = IpHeader::parse(bytes)?;
        let header_bytes = match ip.protocol {
            ip::TCP => {
                // The data offset is in the upper four bits of byte 12 (RFC 9293 §3.1).
                let offset = bytes
                    .get(ip.header_bytes.saturating_add(12))
                    .ok_or(ParseError::Truncated("TCP header"))?;
                let tcp_bytes = usize::from(offset >> 4) * 4;
                if tcp_bytes < TCP_BYTES {
                    return Err(ParseError::Malformed("TCP data offset"));
                }
                ip.header_bytes.saturating_add(tcp_bytes)
            }
            ip::ICMP | ip::ICMP_V6 => ip.header_bytes,
            other => return Err(ParseError::NotTcp(other)),
        };
        if bytes.len() < ip.total_bytes {
            return Err(ParseError::Truncated("IP packet"));
        }
        if ip.total_bytes < header_bytes {
            return Err(ParseError::Truncated("TCP header"));
        }
        let (header, _) =
            bytes.split_at_checked(header_bytes).ok_or(ParseError::Truncated("TCP header"))?;
        let header =
            ArrayVec::try_from(header).map_err(|_| ParseError::Malformed("header length"))?;
        // A device may have padded the packet; bytes after its end are ignored.
        let payload = Payload::from(bytes.slice(header_bytes..ip.total_bytes));
        Ok(Self { header, payload, segment_bytes, checksum_offloaded: offloaded, data_tag: None })
    }

    /// Returns IP and TCP headers with their options; a device may have to complete the checksum.
    pub fn headers(&self) -> &[u8] {
        &self.header
    }

    /// Returns the packet in one piece, with the complete checksum.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.len());
        out.extend_from_slice(&self.header);
        if self.checksum_offloaded
            && let Some((offset, checksum)) = self.checksum()
            && let Some(field) = out.get_mut(offset..).and_then(<[u8]>::first_chunk_mut)
        {
            *field = checksum.to_be_bytes();
        }
        for chunk in self.payload.chunks() {
            out.extend_from_slice(chunk);
        }
        out
    }

    /// Encodes `segment` (checksum offloaded). `identification` is the IPv4 header's.
    ///
    /// Addresses must be of one family, and the payload must fit into one IP packet (see
    /// [`Packet`]).
    pub fn emit(segment: &Segment, identification: u16) -> Self {
        let mut packet = Self::default();
        packet.write(segment, segment.payload.clone(), identification);
        packet
    }

    /// Encodes `segment` into this packet, with `payload` instead of the segment's payload.
    pub fn write(&mut self, segment: &Segment, payload: Payload, identification: u16) {
        let options = segment.options.emit();
        let tcp_bytes = TCP_BYTES + options.len();
        let upper_bytes = tcp_bytes + payload.len();
        let (source, destination) = (segment.source.ip(), segment.destination.ip());
        let header = &mut self.header;
        header.clear();
        match (source, destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let total = length_field(ip::V4_BYTES + upper_bytes);
                let addresses = (source, destination);
                append(
                    header,
                    &ip::emit_v4(addresses, ip::TCP, segment.ecn, identification, total),
                );
            }
            (source, destination) => {
                append(header, &ip::emit_v6(ip::TCP, segment.ecn, length_field(upper_bytes)));
                append(header, ip::v6_addresses(source, destination).as_flattened());
            }
        }
        let sum = ip::pseudo_header(source, destination, ip::TCP, upper_bytes).folded();
        append(header, &tcp_header(segment, tcp_bytes, sum));
        append(header, &options);
        self.payload = payload;
        (self.segment_bytes, self.checksum_offloaded) = (segment.segment_bytes, true);
        self.data_tag = None;
    }

    /// Parses the packet; verifies the checksum unless it is offloaded.
    pub fn parse(&self) -> Result<Segment, ParseError> {
        let mut segment = Segment::EMPTY;
        self.parse_headers(&mut segment)?;
        segment.payload = self.payload.clone();
        Ok(segment)
    }

    /// As [`Packet::parse`], into existing memory; the payload leaves the packet.
    pub fn parse_into(&mut self, segment: &mut Segment) -> Result<(), ParseError> {
        self.parse_headers(segment)?;
        segment.payload = std::mem::take(&mut self.payload);
        Ok(())
    }

    /// Parses everything except the payload.
    #[inline]
    fn parse_headers(&self, segment: &mut Segment) -> Result<(), ParseError> {
        let ip = self.ip()?;
        if ip.protocol != ip::TCP {
            return Err(ParseError::NotTcp(ip.protocol));
        }
        if !self.checksum_offloaded && !self.verify_checksum(&ip) {
            return Err(ParseError::Checksum("TCP"));
        }
        let tcp = self.header.get(ip.header_bytes..).unwrap_or_default();
        let Some((fixed, options)) = tcp.split_first_chunk::<TCP_BYTES>() else {
            return Err(ParseError::Truncated("TCP header"));
        };
        let &[s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, _, _, _, _] =
            fixed;
        if usize::from(offset >> 4) * 4 != tcp.len() {
            return Err(ParseError::Malformed("TCP data offset"));
        }
        segment.source = SocketAddr::new(ip.source, u16::from_be_bytes([s0, s1]));
        segment.destination = SocketAddr::new(ip.destination, u16::from_be_bytes([d0, d1]));
        segment.seq = u32::from_be_bytes([q0, q1, q2, q3]);
        segment.ack = u32::from_be_bytes([a0, a1, a2, a3]);
        segment.flags = Flags(flags);
        segment.window = u16::from_be_bytes([w0, w1]);
        segment.ecn = ip.ecn;
        segment.segment_bytes = self.segment_bytes;
        segment.options.clear();
        segment.options.parse_all(options);
        Ok(())
    }

    /// Fills in the TCP checksum.
    pub fn complete_checksum(&mut self) {
        if self.checksum_offloaded
            && let Some((offset, checksum)) = self.checksum()
        {
            self.set_checksum(offset, checksum);
        }
        self.checksum_offloaded = false;
    }

    /// Splits a super-segment into its packets, in order; returns a single packet unchanged.
    pub fn split(mut self) -> impl Iterator<Item = Self> {
        let mut segmenter = Segmenter::new(&self);
        let mut is_single = segmenter.is_none();
        std::iter::from_fn(move || match &mut segmenter {
            Some(segmenter) => {
                let mut part = Self::default();
                segmenter.next(&self, &mut part).then_some(part)
            }
            None => std::mem::take(&mut is_single)
                .then(|| Self { segment_bytes: 0, ..std::mem::take(&mut self) }),
        })
    }

    /// Returns the IP header, if it agrees with the packet's length.
    #[inline]
    pub(crate) fn ip(&self) -> Result<IpHeader, ParseError> {
        let ip = IpHeader::parse(&self.header)?;
        if ip.total_bytes != self.len() {
            return Err(ParseError::Malformed("IP length"));
        }
        Ok(ip)
    }

    /// Returns true if the sum over TCP, including the checksum, is correct.
    fn verify_checksum(&self, ip: &IpHeader) -> bool {
        let tcp = self.header.get(ip.header_bytes..).unwrap_or_default();
        let sum = ip.pseudo_header(ip::TCP, tcp.len() + self.payload.len()).bytes(tcp);
        self.payload.chunks().fold(sum, |sum, chunk| sum.bytes(chunk)).folded() == 0xffff
    }

    /// Returns the position of the TCP checksum in the header and its correct value; `None` without
    /// TCP.
    fn checksum(&self) -> Option<(usize, u16)> {
        let ip = IpHeader::parse(&self.header).ok().filter(|ip| ip.protocol == ip::TCP)?;
        let tcp = self.header.get(ip.header_bytes..)?;
        let (fixed, options) = tcp.split_first_chunk::<TCP_BYTES>()?;
        let [fields @ .., _, _, u0, u1] = fixed;
        let sum = ip
            .pseudo_header(ip::TCP, tcp.len() + self.payload.len())
            .bytes(fields)
            .bytes(&[*u0, *u1])
            .bytes(options);
        let sum = self.payload.chunks().fold(sum, |sum, chunk| sum.bytes(chunk));
        Some((ip.header_bytes + 16, sum.finish()))
    }

    fn set_checksum(&mut self, offset: usize, checksum: u16) {
        if let Some(field) = self.header.get_mut(offset..).and_then(<[u8]>::first_chunk_mut) {
            *field = checksum.to_be_bytes();
        }
    }
}

impl towpath_net::Packet for Packet {
    /// Returns the IP bytes on the wire: the headers of a super-segment count once for each packet.
    fn len_bytes(&self) -> u32 {
        let headers = self.header.len() * self.packets() as usize;
        (headers + self.payload.len()) as u32
    }

    fn packets(&self) -> u32 {
        match usize::from(self.segment_bytes) {
            0 => 1,
            segment_bytes => self.payload.len().div_ceil(segment_bytes).max(1) as u32,
        }
    }

    fn corrupt(&mut self, random: u32) {
        self.complete_checksum();
        let bit = random as usize % (self.len() * 8).max(1);
        let (byte, mask) = (bit / 8, 1 << (bit % 8));
        match self.header.get_mut(byte) {
            Some(byte) => *byte ^= mask,
            None => self.payload.flip(byte - self.header.len(), mask),
        }
    }
}

/// Returns a length for the header's field; longer packets violate the contract of [`Packet`].
pub(super) fn length_field(bytes: usize) -> u16 {
    let field = u16::try_from(bytes);
    debug_assert!(field.is_ok(), "{bytes} bytes are no IP packet");
    field.unwrap_or(u16::MAX)
}

/// Appends bytes that always fit: 40 + 20 + 40 bytes at most.
pub(super) fn append(header: &mut ArrayVec<u8, HEADER_BYTES>, bytes: &[u8]) {
    let fits = header.try_extend_from_slice(bytes).is_ok();
    debug_assert!(fits, "a header is too long");
}

fn tcp_header(segment: &Segment, tcp_bytes: usize, checksum: u16) -> [u8; TCP_BYTES] {
    let [s0, s1] = segment.source.port().to_be_bytes();
    let [d0, d1] = segment.destination.port().to_be_bytes();
    let [q0, q1, q2, q3] = segment.seq.to_be_bytes();
    let [a0, a1, a2, a3] = segment.ack.to_be_bytes();
    let [w0, w1] = segment.window.to_be_bytes();
    let [c0, c1] = checksum.to_be_bytes();
    let offset = (tcp_bytes as u8 / 4) << 4;
    let flags = segment.flags.0;
    [s0, s1, d0, d1, q0, q1, q2, q3, a0, a1, a2, a3, offset, flags, w0, w1, c0, c1, 0, 0]
}

/// Cutter of super-segments, as in segmentation offload.
#[derive(Debug)]
pub struct Segmenter {
    /// IP header of the super-segment; `None` after its last packet.
    ip: Option<IpHeader>,
    /// Payload bytes cut off so far.
    cut_bytes: usize,
    /// Packets cut off so far. Each has an IPv4 identification one above its predecessor's.
    cut_packets: u16,
    /// Set when the checksum of the super-segment was present and wrong: the checksum of each part
    /// must then also be wrong.
    bad_checksum: bool,
}

impl Segmenter {
    /// Prepares to cut `super_segment`; `None` if it is one packet.
    pub fn new(super_segment: &Packet) -> Option<Self> {
        let is_super_segment = super_segment.segment_bytes != 0
            && super_segment.payload.len() > usize::from(super_segment.segment_bytes);
        if !is_super_segment {
            return None;
        }
        let ip = IpHeader::parse(&super_segment.header).ok().filter(|ip| ip.protocol == ip::TCP)?;
        let bad_checksum = !super_segment.checksum_offloaded && !super_segment.verify_checksum(&ip);
        Some(Self { ip: Some(ip), cut_bytes: 0, cut_packets: 0, bad_checksum })
    }

    /// Makes `part` the next packet of `super_segment`; returns false after the last one.
    pub fn next(&mut self, super_segment: &Packet, part: &mut Packet) -> bool {
        let Some(ip) = self.ip else { return false };
        let next_offset = self.cut_bytes + usize::from(super_segment.segment_bytes);
        let last = next_offset >= super_segment.payload.len();
        self.cut(super_segment, &ip, last, part);
        self.cut_bytes = next_offset;
        self.cut_packets = self.cut_packets.wrapping_add(1);
        if last {
            self.ip = None;
        }
        true
    }

    /// Cuts the payload from `cut_bytes` on; `last` is the part that may have FIN and PSH.
    fn cut(&self, super_segment: &Packet, ip: &IpHeader, last: bool, part: &mut Packet) {
        let end = self.cut_bytes + usize::from(super_segment.segment_bytes);
        part.header.clear();
        append(&mut part.header, &super_segment.header);
        part.payload = super_segment.payload.slice(self.cut_bytes, end);
        (part.segment_bytes, part.checksum_offloaded) = (0, true);
        part.data_tag = super_segment
            .data_tag
            .map(|tag| DataTag { start: tag.start + self.cut_bytes as u64, ..tag });
        let total_bytes = part.len();
        ip::set_length_and_advance_id(&mut part.header, total_bytes, self.cut_packets);
        let sum = ip.pseudo_header(ip::TCP, total_bytes.saturating_sub(ip.header_bytes)).folded();
        let tcp = part.header.get_mut(ip.header_bytes..).unwrap_or_default();
        if let [_, _, _, _, q0, q1, q2, q3, _, _, _, _, _, flags, _, _, c0, c1, ..] = tcp {
            let seq = u32::from_be_bytes([*q0, *q1, *q2, *q3]).wrapping_add(self.cut_bytes as u32);
            [*q0, *q1, *q2, *q3] = seq.to_be_bytes();
            let mut part_flags = Flags(*flags);
            if !last {
                part_flags = part_flags.without(Flags::FIN).without(Flags::PSH);
            }
            // The peer must see one window reduction, not several (RFC 3168 §6.1.2).
            if self.cut_packets > 0 {
                part_flags = part_flags.without(Flags::CWR);
            }
            *flags = part_flags.0;
            [*c0, *c1] = sum.to_be_bytes();
        }
        if !super_segment.checksum_offloaded {
            part.complete_checksum();
        }
        if self.bad_checksum
            && let Some(checksum_low) = part.header.get_mut(ip.header_bytes + 17)
        {
            *checksum_low ^= 1;
        }
    }
}
