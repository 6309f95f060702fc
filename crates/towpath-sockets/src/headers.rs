//! IP and TCP headers of a super-segment: the minimum for splitting (like the kernel's GSO).

/// Maximum size of IP and TCP header together: IPv4 with options (60) or IPv6 (40), and TCP (60).
pub(crate) const MAX_BYTES: usize = 120;
/// Offset of the checksum in a TCP header.
pub(crate) const TCP_CHECKSUM_OFFSET: u16 = 16;

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN_OR_PSH: u8 = 0x01 | 0x08;
const CWR: u8 = 0x80;

/// Layout of the headers of a TCP packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    version: IpVersion,
    ip_bytes: u16,
    tcp_bytes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IpVersion {
    V4,
    V6,
}

/// Position of a packet within a super-segment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentPart {
    pub(crate) index: u16,
    pub(crate) offset_bytes: u32,
    pub(crate) payload_bytes: usize,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

impl Headers {
    /// Parses the header lengths; `None` unless TCP directly follows IP.
    pub fn parse(packet: &[u8]) -> Option<Self> {
        let (version, ip_bytes) = match packet {
            [first, _, _, _, _, _, _, _, _, TCP, ..] if first >> 4 == 4 => {
                (IpVersion::V4, usize::from(first & 0x0f) * 4)
            }
            [first, _, _, _, _, _, TCP, ..] if first >> 4 == 6 => (IpVersion::V6, 40),
            _ => return None,
        };
        let offset = packet.get(ip_bytes + 12)?;
        let tcp_bytes = usize::from(offset >> 4) * 4;
        let valid = ip_bytes >= 20 && tcp_bytes >= 20 && ip_bytes + tcp_bytes <= packet.len();
        valid.then_some(Self { version, ip_bytes: ip_bytes as u16, tcp_bytes: tcp_bytes as u16 })
    }

    /// Returns the payload bytes of TCP and of UDP, in this order; zero for other protocols.
    pub(crate) fn payload_bytes(packet: &[u8]) -> [u64; 2] {
        if let Some(headers) = Self::parse(packet) {
            // A short packet may have padding after its end.
            let total = match (headers.version, packet) {
                (IpVersion::V4, [_, _, high, low, ..]) => {
                    usize::from(u16::from_be_bytes([*high, *low]))
                }
                (IpVersion::V4 | IpVersion::V6, _) => packet.len(),
            };
            return [total.min(packet.len()).saturating_sub(headers.bytes()) as u64, 0];
        }
        let udp_offset = match packet {
            [first, _, _, _, _, _, _, _, _, UDP, ..] if first >> 4 == 4 => {
                usize::from(first & 0x0f) * 4
            }
            [first, _, _, _, _, _, UDP, ..] if first >> 4 == 6 => 40,
            _ => return [0, 0],
        };
        [0, packet.len().saturating_sub(udp_offset + 8) as u64]
    }

    /// Returns the size of both headers, in bytes.
    pub fn bytes(self) -> usize {
        usize::from(self.ip_bytes + self.tcp_bytes)
    }

    /// Returns true for an IPv4 packet.
    pub(crate) fn is_v4(self) -> bool {
        self.version == IpVersion::V4
    }

    /// Returns the size of the IP header, in bytes.
    pub fn ip_bytes(self) -> u16 {
        self.ip_bytes
    }

    /// Writes the headers of one part into `buffer`. The TCP checksum holds the pseudo-header sum;
    /// the kernel completes it.
    pub(crate) fn patch<'room>(
        self,
        original: &[u8],
        part: SegmentPart,
        buffer: &'room mut [u8; MAX_BYTES],
    ) -> &'room [u8] {
        let length = self.bytes().min(MAX_BYTES).min(original.len());
        let (Some(target), Some(source)) = (buffer.get_mut(..length), original.get(..length))
        else {
            return &[];
        };
        target.copy_from_slice(source);
        let (ip, tcp) = target.split_at_mut(usize::from(self.ip_bytes).min(length));
        let total = self.bytes() + part.payload_bytes;
        match self.version {
            IpVersion::V4 => patch_v4(ip, total, part.index),
            IpVersion::V6 => set_u16(ip, 4, (total - 40) as u16),
        }
        if let Some([a, b, c, d]) = tcp.get_mut(4..8) {
            let sequence = u32::from_be_bytes([*a, *b, *c, *d]).wrapping_add(part.offset_bytes);
            [*a, *b, *c, *d] = sequence.to_be_bytes();
        }
        if let Some(flags) = tcp.get_mut(13) {
            if !part.is_last {
                *flags &= !FIN_OR_PSH;
            }
            if !part.is_first {
                *flags &= !CWR;
            }
        }
        let segment_bytes = usize::from(self.tcp_bytes) + part.payload_bytes;
        set_u16(tcp, usize::from(TCP_CHECKSUM_OFFSET), fold(self.pseudo_sum(ip, segment_bytes)));
        target
    }

    /// Computes the sum over the pseudo header (RFC 9293 §3.1).
    fn pseudo_sum(self, ip: &[u8], segment_bytes: usize) -> u64 {
        let addresses = match self.version {
            IpVersion::V4 => ip.get(12..20),
            IpVersion::V6 => ip.get(8..40),
        };
        sum(addresses.unwrap_or(&[])) + u64::from(TCP) + segment_bytes as u64
    }
}

fn patch_v4(ip: &mut [u8], total: usize, index: u16) {
    set_u16(ip, 2, total as u16);
    if let Some([a, b]) = ip.get_mut(4..6) {
        [*a, *b] = u16::from_be_bytes([*a, *b]).wrapping_add(index).to_be_bytes();
    }
    update_ipv4_checksum(ip);
}

/// Updates the header checksum of an IPv4 packet.
pub fn update_ipv4_checksum(packet: &mut [u8]) {
    let bytes = packet.first().map_or(0, |first| usize::from(first & 0x0f) * 4);
    let Some(ip) = packet.get_mut(..bytes) else { return };
    set_u16(ip, 10, 0);
    let checksum = !fold(sum(ip));
    set_u16(ip, 10, checksum);
}

/// Updates the TCP checksum of a whole packet.
pub fn update_tcp_checksum(packet: &mut [u8]) {
    let Some(headers) = Headers::parse(packet) else { return };
    let Some((ip, tcp)) = packet.split_at_mut_checked(usize::from(headers.ip_bytes)) else {
        return;
    };
    let offset = usize::from(TCP_CHECKSUM_OFFSET);
    set_u16(tcp, offset, fold(headers.pseudo_sum(ip, tcp.len())));
    complete_checksum(tcp, 0, offset);
}

/// Reverses the direction of a TCP packet's IP header; updates lengths and checksums.
pub fn swap_src_dst(packet: &mut [u8]) {
    let total = packet.len();
    let Some(headers) = Headers::parse(packet) else { return };
    let addresses = match headers.version {
        IpVersion::V4 => packet.get_mut(12..20),
        IpVersion::V6 => packet.get_mut(8..40),
    };
    if let Some(addresses) = addresses {
        addresses.rotate_left(addresses.len() / 2);
    }
    let ttl_offset = if headers.is_v4() { 8 } else { 7 };
    if let Some(ttl) = packet.get_mut(ttl_offset) {
        *ttl = 64;
    }
    match headers.version {
        IpVersion::V4 => patch_v4(packet, total, 0),
        IpVersion::V6 => set_u16(packet, 4, (total - 40) as u16),
    }
    update_tcp_checksum(packet);
}

fn set_u16(bytes: &mut [u8], offset: usize, value: u16) {
    if let Some(slot) = bytes.get_mut(offset..offset + 2) {
        slot.copy_from_slice(&value.to_be_bytes());
    }
}

/// Completes a checksum field that holds the sum of the pseudo header (RFC 1071).
pub fn complete_checksum(packet: &mut [u8], start: usize, offset: usize) {
    let Some(covered) = packet.get_mut(start..) else { return };
    let checksum = !fold(sum(covered));
    set_u16(covered, offset, if checksum == 0 { 0xffff } else { checksum });
}

fn sum(bytes: &[u8]) -> u64 {
    let (pairs, rest) = bytes.as_chunks::<2>();
    let pair_sum: u64 = pairs.iter().map(|pair| u64::from(u16::from_be_bytes(*pair))).sum();
    pair_sum + rest.first().map_or(0, |byte| u64::from(*byte) << 8)
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn tcp_segment(sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut segment = vec![0x14, 0x51, 0xc0, 0x01];
        segment.extend(sequence.to_be_bytes());
        segment.extend([0, 0, 0, 1, 0x80, 0x19, 2, 0, 0, 0, 0, 0]);
        segment.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        segment.extend(payload);
        segment
    }

    pub(crate) fn tcp_v4(sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x45, 0];
        packet.extend(((52 + payload.len()) as u16).to_be_bytes());
        packet.extend([0, 7, 0x40, 0, 64, TCP, 0, 0, 10, 64, 0, 1, 10, 64, 0, 2]);
        let checksum = !fold(sum(&packet));
        set_u16(&mut packet, 10, checksum);
        packet.extend(tcp_segment(sequence, payload));
        let pseudo = Headers::parse(&packet).unwrap().pseudo_sum(&packet, 32 + payload.len());
        set_u16(&mut packet, 36, fold(pseudo));
        packet
    }

    pub(crate) fn tcp_v6(sequence: u32, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend(((32 + payload.len()) as u16).to_be_bytes());
        packet.extend([TCP, 64]);
        packet.extend([0xfd; 16]);
        packet.extend([0xfe; 16]);
        packet.extend(tcp_segment(sequence, payload));
        let pseudo = Headers::parse(&packet).unwrap().pseudo_sum(&packet, 32 + payload.len());
        set_u16(&mut packet, 56, fold(pseudo));
        packet
    }

    /// Returns true if IP length, IP checksum and the completed TCP checksum are valid.
    pub(crate) fn verify_checksum(packet: &[u8]) -> bool {
        let headers = Headers::parse(packet).unwrap();
        let (ip, tcp) = packet.split_at(usize::from(headers.ip_bytes));
        let length_valid = match headers.version {
            IpVersion::V4 => {
                usize::from(u16::from_be_bytes([ip[2], ip[3]])) == packet.len()
                    && fold(sum(ip)) == 0xffff
            }
            IpVersion::V6 => usize::from(u16::from_be_bytes([ip[4], ip[5]])) + 40 == packet.len(),
        };
        length_valid && fold(headers.pseudo_sum(ip, tcp.len()) + sum(tcp)) == 0xffff
    }

    #[test]
    fn payload_starts_after_the_tcp_or_udp_header() {
        for packet in [tcp_v4(1, &[7; 100]), tcp_v6(1, &[7; 100])] {
            assert_eq!(Headers::payload_bytes(&packet), [100, 0]);
        }
        // An acknowledgement padded by a link layer has no payload.
        let mut padded = tcp_v4(1, &[]);
        padded.extend([0; 9]);
        assert_eq!(Headers::payload_bytes(&padded), [0, 0]);
        let mut datagram = tcp_v4(1, &[7; 100]);
        datagram[9] = UDP;
        assert_eq!(Headers::payload_bytes(&datagram), [0, 124], "the TCP header is payload then");
        datagram[9] = 1;
        assert_eq!(
            (Headers::payload_bytes(&datagram), Headers::payload_bytes(&[])),
            ([0, 0], [0, 0])
        );
    }

    #[test]
    fn only_the_last_part_keeps_fin_and_push() {
        let packet = tcp_v4(100, &[0; 3_000]);
        let headers = Headers::parse(&packet).unwrap();
        let mut buffer = [0; MAX_BYTES];
        let part = SegmentPart {
            index: 1,
            offset_bytes: 1_448,
            payload_bytes: 1_448,
            is_first: false,
            is_last: false,
        };
        let patched = headers.patch(&packet[..52], part, &mut buffer);
        assert_eq!(patched[33], 0x10, "flags: only ACK is left");
        assert_eq!(patched[24..28], 1_548u32.to_be_bytes(), "sequence number");
        assert_eq!(patched[4..6], 8u16.to_be_bytes(), "IP identification");
    }

    #[test]
    fn only_a_tcp_packet_has_headers_to_split() {
        let mut packet = tcp_v4(1, &[0; 100]);
        packet[9] = 17;
        assert_eq!(Headers::parse(&packet), None);
        assert_eq!(Headers::parse(&[0x45]), None);
        assert_eq!(Headers::parse(&[]), None);
    }
}
