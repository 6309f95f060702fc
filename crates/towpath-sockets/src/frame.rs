//! Packets as the kernel passes them: super-segments of up to 64 KiB with a virtio header, split
//! into MTU packets for the link model without a copy of the payload.

use std::rc::Rc;

use towpath_net::Packet;

use super::headers::{self, Headers};

/// `struct virtio_net_hdr` (virtio 1.2 §5.1.6), with offsets relative to the IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VirtioHeader {
    pub(crate) flags: u8,
    pub(crate) gso_type: u8,
    pub(crate) header_bytes: u16,
    pub(crate) gso_bytes: u16,
    pub(crate) checksum_start: u16,
    pub(crate) checksum_offset: u16,
}

impl VirtioHeader {
    /// Size of the header, in bytes.
    pub(crate) const BYTES: usize = 10;
    /// The checksum is not complete yet.
    pub(crate) const NEEDS_CSUM: u8 = 1;
    /// The kernel has verified the checksum.
    pub(crate) const DATA_VALID: u8 = 2;
    const GSO_TCPV4: u8 = 1;
    const GSO_TCPV6: u8 = 4;
    const GSO_ECN: u8 = 0x80;

    /// Parses the kernel's header; `shift` is the length of a link-layer header that only the
    /// kernel's offsets include.
    pub(crate) fn parse(bytes: [u8; Self::BYTES], shift: u16) -> Self {
        let [flags, gso_type, h0, h1, g0, g1, s0, s1, o0, o1] = bytes;
        let read = |a, b| u16::from_ne_bytes([a, b]);
        Self {
            flags,
            gso_type,
            header_bytes: read(h0, h1).saturating_sub(shift),
            gso_bytes: read(g0, g1),
            checksum_start: read(s0, s1).saturating_sub(shift),
            checksum_offset: read(o0, o1),
        }
    }

    /// Builds the header for the kernel; adds `shift` to its offsets.
    pub(crate) fn emit(self, shift: u16) -> [u8; Self::BYTES] {
        let shifted =
            |value: u16, in_use: bool| if in_use { value + shift } else { 0 }.to_ne_bytes();
        let needs_checksum = self.flags & Self::NEEDS_CSUM != 0;
        let [h0, h1] = shifted(self.header_bytes, self.gso_type != 0);
        let [g0, g1] = self.gso_bytes.to_ne_bytes();
        let [s0, s1] = shifted(self.checksum_start, needs_checksum);
        let [o0, o1] = self.checksum_offset.to_ne_bytes();
        [self.flags, self.gso_type, h0, h1, g0, g1, s0, s1, o0, o1]
    }

    /// Returns the GSO type of a TCP super-segment; `cwr_on_first_only` if only its first packet
    /// carries CWR.
    pub(crate) fn tcp_gso_type(v4: bool, cwr_on_first_only: bool) -> u8 {
        let kind = if v4 { Self::GSO_TCPV4 } else { Self::GSO_TCPV6 };
        if cwr_on_first_only { kind | Self::GSO_ECN } else { kind }
    }

    /// Returns true if the header describes several TCP packets.
    pub(crate) fn is_super_segment(self) -> bool {
        matches!(self.gso_type & !Self::GSO_ECN, Self::GSO_TCPV4 | Self::GSO_TCPV6)
            && self.gso_bytes > 0
    }
}

/// Result of one read: one IP packet or one TCP super-segment.
#[derive(Debug)]
pub struct GsoFrame {
    virtio: VirtioHeader,
    bytes: Vec<u8>,
    /// Headers of a TCP super-segment that can be split.
    headers: Option<Headers>,
}

impl GsoFrame {
    /// Creates a frame; a super-segment with invalid headers stays whole.
    pub fn new(virtio: VirtioHeader, bytes: Vec<u8>) -> Self {
        let headers = if virtio.is_super_segment() { Headers::parse(&bytes) } else { None };
        Self { virtio, bytes, headers }
    }

    /// Returns the virtio header and the packet.
    pub(crate) fn into_parts(self) -> (VirtioHeader, Vec<u8>) {
        (self.virtio, self.bytes)
    }

    /// Returns the buffer, for reuse.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn segments(&self) -> u16 {
        self.headers.map_or(1, |headers| {
            let payload = self.bytes.len().saturating_sub(headers.bytes());
            payload.div_ceil(usize::from(self.virtio.gso_bytes)).clamp(1, 0xffff) as u16
        })
    }
}

/// One or several consecutive packets of a frame; a clone copies no payload.
#[derive(Debug, Clone)]
pub struct GsoSegment {
    frame: Rc<GsoFrame>,
    /// Index of the first packet within the frame.
    first: u16,
    /// Number of packets.
    count: u16,
    /// Random number that selects the bit to flip; `None` for an intact segment.
    corrupt: Option<u32>,
}

impl GsoSegment {
    /// Returns the whole frame as one unit.
    pub fn whole(frame: GsoFrame) -> Self {
        let count = frame.segments();
        Self { frame: Rc::new(frame), first: 0, count, corrupt: None }
    }

    /// Splits the frame into packets.
    pub fn split(frame: GsoFrame) -> impl Iterator<Item = Self> {
        let count = frame.segments();
        let frame = Rc::new(frame);
        (0..count).map(move |first| Self {
            frame: Rc::clone(&frame),
            first,
            count: 1,
            corrupt: None,
        })
    }

    /// Returns the payload bytes of TCP and of UDP, in this order.
    pub fn payload_bytes(&self) -> [u64; 2] {
        match self.frame.headers {
            Some(headers) => [self.payload(headers).len() as u64, 0],
            None => Headers::payload_bytes(&self.frame.bytes),
        }
    }

    /// Joins `next` if it directly follows in the same frame. Packets that leave the link at the
    /// same time return to the kernel as one super-segment.
    pub fn join(&mut self, next: &Self) -> bool {
        let follows = Rc::ptr_eq(&self.frame, &next.frame)
            && self.corrupt.is_none()
            && next.corrupt.is_none()
            && self.first + self.count == next.first;
        if follows {
            self.count += next.count;
        }
        follows
    }

    /// Returns the frame's buffer if this is its last user.
    pub fn reclaim(self) -> Option<Vec<u8>> {
        Rc::into_inner(self.frame).map(GsoFrame::into_bytes)
    }

    /// Calls `write` with the virtio header and the packet in two parts: new headers (empty if the
    /// frame's own are valid) and a slice of the frame.
    pub(crate) fn emit<T>(&self, write: impl FnOnce(VirtioHeader, &[u8], &[u8]) -> T) -> T {
        let frame = &*self.frame;
        if let Some(random) = self.corrupt {
            let (virtio, packet) = self.to_corrupted(random);
            return write(virtio, &[], &packet);
        }
        match frame.headers {
            Some(headers) if self.count < frame.segments() => {
                let mut buffer = [0; headers::MAX_BYTES];
                let (virtio, new_headers) = self.build_headers(headers, &mut buffer);
                write(virtio, new_headers, self.payload(headers))
            }
            Some(_) | None => write(frame.virtio, &[], &frame.bytes),
        }
    }

    fn payload(&self, headers: Headers) -> &[u8] {
        let size = usize::from(self.frame.virtio.gso_bytes);
        let start = headers.bytes() + usize::from(self.first) * size;
        let end = (start + usize::from(self.count) * size).min(self.frame.bytes.len());
        self.frame.bytes.get(start..end).unwrap_or(&[])
    }

    /// Builds the headers of this part of a super-segment in `buffer`.
    fn build_headers<'room>(
        &self,
        headers: Headers,
        buffer: &'room mut [u8; headers::MAX_BYTES],
    ) -> (VirtioHeader, &'room [u8]) {
        let frame = &*self.frame;
        let original = frame.bytes.get(..headers.bytes()).unwrap_or(&[]);
        let part = headers::SegmentPart {
            index: self.first,
            offset_bytes: u32::from(self.first) * u32::from(frame.virtio.gso_bytes),
            payload_bytes: self.payload(headers).len(),
            is_first: self.first == 0,
            is_last: self.first + self.count >= frame.segments(),
        };
        let built = headers.patch(original, part, buffer);
        let mut virtio = frame.virtio;
        virtio.flags |= VirtioHeader::NEEDS_CSUM;
        virtio.checksum_start = headers.ip_bytes();
        virtio.checksum_offset = headers::TCP_CHECKSUM_OFFSET;
        virtio.header_bytes = headers.bytes() as u16;
        if self.count == 1 {
            (virtio.gso_type, virtio.gso_bytes, virtio.header_bytes) = (0, 0, 0);
        } else if self.first > 0 {
            virtio.gso_type &= !VirtioHeader::GSO_ECN;
        }
        (virtio, built)
    }

    /// Returns the packet as on the wire: contiguous, with its checksum. A super-segment still
    /// lacks its checksums.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.emit(complete_packet)
    }

    /// Splits the segment into its single packets.
    pub fn single_packets(&self) -> impl Iterator<Item = Self> {
        (self.first..self.first + self.count).map(|first| Self { first, count: 1, ..self.clone() })
    }

    /// Returns the first bytes of the packet; its checksum may be incomplete.
    pub fn to_truncated_bytes(&self, bytes: usize) -> Vec<u8> {
        self.emit(|_, head, tail| head.iter().chain(tail).take(bytes).copied().collect())
    }

    /// Completes the checksum of the packet and flips one bit, so that the receiver's kernel can
    /// detect the error, as on a real wire.
    fn to_corrupted(&self, random: u32) -> (VirtioHeader, Vec<u8>) {
        let clean = Self { corrupt: None, ..self.clone() };
        clean.emit(|virtio, head, tail| {
            let mut packet = complete_packet(virtio, head, tail);
            let bits = (packet.len() * 8).max(1);
            let bit = random as usize % bits;
            if let Some(byte) = packet.get_mut(bit / 8) {
                *byte ^= 1 << (bit % 8);
            }
            let virtio = if virtio.gso_type == 0 { VirtioHeader::default() } else { virtio };
            (virtio, packet)
        })
    }
}

fn complete_packet(virtio: VirtioHeader, head: &[u8], tail: &[u8]) -> Vec<u8> {
    let mut packet = [head, tail].concat();
    if virtio.flags & VirtioHeader::NEEDS_CSUM != 0 && virtio.gso_type == 0 {
        headers::complete_checksum(
            &mut packet,
            usize::from(virtio.checksum_start),
            usize::from(virtio.checksum_offset),
        );
    }
    packet
}

impl Packet for GsoSegment {
    /// Returns the IP bytes on the wire: headers of a super-segment count once per packet.
    fn len_bytes(&self) -> u32 {
        let frame = &*self.frame;
        match frame.headers {
            Some(headers) => {
                let payload = self.payload(headers).len();
                (headers.bytes() * usize::from(self.count) + payload) as u32
            }
            None => frame.bytes.len() as u32,
        }
    }

    fn packets(&self) -> u32 {
        self.count.max(1).into()
    }

    fn corrupt(&mut self, random: u32) {
        self.corrupt = Some(random);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::headers::tests::{tcp_v4, tcp_v6, verify_checksum};

    fn super_segment(packet: Vec<u8>, v6: bool, gso_bytes: u16) -> GsoFrame {
        let ip_bytes = if v6 { 40 } else { 20 };
        let virtio = VirtioHeader {
            flags: VirtioHeader::NEEDS_CSUM,
            gso_type: if v6 { VirtioHeader::GSO_TCPV6 } else { VirtioHeader::GSO_TCPV4 },
            header_bytes: ip_bytes + 32,
            gso_bytes,
            checksum_start: ip_bytes,
            checksum_offset: 16,
        };
        GsoFrame::new(virtio, packet)
    }

    fn emit_bytes(segment: &GsoSegment) -> (VirtioHeader, Vec<u8>) {
        segment.emit(|virtio, head, tail| (virtio, [head, tail].concat()))
    }

    proptest! {
        #[test]
        fn the_parts_of_a_super_segment_are_whole_valid_packets(
            payload in 1usize..65_000, gso in 200u16..9_000, v6: bool, seq: u32,
        ) {
            let body: Vec<u8> = (0..payload).map(|i| i as u8).collect();
            let packet = if v6 { tcp_v6(seq, &body) } else { tcp_v4(seq, &body) };
            let header = packet.len() - payload;
            let frame = super_segment(packet, v6, gso);
            let mut payload_sent = Vec::new();
            let mut wire_bytes = 0;
            for segment in GsoSegment::split(frame) {
                let (virtio, mut part) = emit_bytes(&segment);
                prop_assert_eq!(part.len() as u32, segment.len_bytes());
                wire_bytes += part.len();
                if virtio.flags & VirtioHeader::NEEDS_CSUM != 0 {
                    headers::complete_checksum(&mut part, usize::from(virtio.checksum_start), 16);
                }
                if payload > usize::from(gso) {
                    prop_assert!(verify_checksum(&part));
                }
                payload_sent.extend_from_slice(&part[header..]);
            }
            prop_assert_eq!(payload_sent, body);
            prop_assert_eq!(wire_bytes, payload + header * payload.div_ceil(usize::from(gso)));
        }

        #[test]
        fn adjacent_packets_merge_to_the_same_bytes(payload in 3_000usize..60_000, split_index in 1usize..40) {
            let body: Vec<u8> = (0..payload).map(|i| (i * 7) as u8).collect();
            let parts: Vec<GsoSegment> =
                GsoSegment::split(super_segment(tcp_v4(1, &body), false, 1_400)).collect();
            let split_index = split_index.min(parts.len() - 1);
            let (head, tail) = parts.split_at(split_index);
            let mut payload_sent = Vec::new();
            for group in [head, tail] {
                let mut joined = group[0].clone();
                for next in &group[1..] {
                    prop_assert!(joined.join(next));
                }
                let (virtio, packet) = emit_bytes(&joined);
                prop_assert_eq!(virtio.gso_type != 0, group.len() > 1);
                payload_sent.extend_from_slice(&packet[52..]);
            }
            prop_assert_eq!(payload_sent, body);
            prop_assert!(!head[0].clone().join(&tail[tail.len() - 1]) || parts.len() == 2);
        }

        #[test]
        fn a_corrupted_packet_differs_in_one_bit(random: u32) {
            let body = vec![0x5a; 3_000];
            let mut part =
                GsoSegment::split(super_segment(tcp_v4(9, &body), false, 1_448)).nth(1).unwrap();
            let (_, mut clean) = emit_bytes(&part);
            headers::complete_checksum(&mut clean, 20, 16);
            part.corrupt(random);
            let (virtio, dirty) = emit_bytes(&part);
            prop_assert_eq!(virtio, VirtioHeader::default());
            let bits: u32 =
                clean.iter().zip(&dirty).map(|(a, b)| (a ^ b).count_ones()).sum();
            prop_assert_eq!(bits, 1);
        }

        #[test]
        fn no_bytes_from_the_kernel_can_panic(
            header: [u8; 10], bytes in proptest::collection::vec(any::<u8>(), 0..400), random: u32,
        ) {
            let frame = GsoFrame::new(VirtioHeader::parse(header, 14), bytes.clone());
            for mut segment in GsoSegment::split(frame).take(50) {
                let _ = (segment.len_bytes(), emit_bytes(&segment));
                segment.corrupt(random);
                let _ = emit_bytes(&segment);
            }
            let _ = emit_bytes(&GsoSegment::whole(GsoFrame::new(VirtioHeader::parse(header, 0), bytes)));
        }
    }

    #[test]
    fn the_virtio_header_survives_a_round_trip_with_a_link_layer_header() {
        let sent = VirtioHeader {
            flags: 1,
            gso_type: 1,
            header_bytes: 52,
            gso_bytes: 1_448,
            checksum_start: 20,
            checksum_offset: 16,
        };
        assert_eq!(VirtioHeader::parse(sent.emit(14), 14), sent);
        assert_eq!(VirtioHeader::parse(sent.emit(0), 0), sent);
    }
}
