//! Captures of `towpath run --pcap`, and damaged copies of them as Ethernet pcap files.

use std::fmt;

use crate::Result;

/// Damage of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Damage {
    None,
    /// Only this many bytes of each frame.
    SnapLength(usize),
    /// Starts at this percentage of the packets.
    Late(usize),
    /// Ends at this percentage of the packets.
    Early(usize),
    /// Every packet is missing with this probability in percent.
    Lost(u64),
    /// Captures of both hosts in one pcap file, ordered by time.
    Merged,
    /// The same as pcapng, which says which of two interfaces saw a packet.
    MergedInterfaces,
    /// Both hosts' captures in one pcap file without this percentage of the packets.
    MergedLost(u64),
    /// Each packet twice, as a router sees it on all interfaces: pcap and pcapng.
    Routed,
    RoutedInterfaces,
}

impl Damage {
    /// Returns all kinds of damage, in the order of the table.
    pub(super) fn all() -> impl Iterator<Item = Self> {
        let snap_lengths = [54, 68, 96, 128, 192].map(Self::SnapLength);
        [Self::None].into_iter().chain(snap_lengths).chain([
            Self::Late(1),
            Self::Late(30),
            Self::Early(50),
            Self::Lost(2),
            Self::Merged,
            Self::MergedInterfaces,
            Self::MergedLost(2),
            Self::Routed,
            Self::RoutedInterfaces,
        ])
    }

    /// Returns true if the file has the packets of both hosts.
    pub(super) fn is_merged(self) -> bool {
        matches!(self, Self::Merged | Self::MergedInterfaces | Self::MergedLost(_))
    }

    /// Returns true if the file has all packets of a capture, and most of them twice.
    pub(super) fn is_doubled(self) -> bool {
        !self.is_of_one_host() && !self.lacks_packets()
    }

    /// Returns true if the file has packets of one host only, seen once.
    pub(super) fn is_of_one_host(self) -> bool {
        !self.is_merged() && !matches!(self, Self::Routed | Self::RoutedInterfaces)
    }

    /// Returns true if packets in the middle of the file are missing.
    pub(super) fn lacks_packets(self) -> bool {
        matches!(self, Self::Lost(_) | Self::MergedLost(_))
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => write!(f, "whole"),
            Self::SnapLength(bytes) => write!(f, "cut to {bytes} bytes"),
            Self::Late(percent) => write!(f, "without the first {percent} %"),
            Self::Early(percent) => write!(f, "only the first {percent} %"),
            Self::Lost(percent) => write!(f, "{percent} % of the packets missing"),
            Self::Merged => write!(f, "both hosts merged"),
            Self::MergedInterfaces => write!(f, "both hosts merged, two interfaces"),
            Self::MergedLost(percent) => write!(f, "both hosts merged, {percent} % missing"),
            Self::Routed => write!(f, "twice at a router"),
            Self::RoutedInterfaces => write!(f, "twice at a router, two interfaces"),
        }
    }
}

/// IP packet of a capture.
#[derive(Debug, Clone)]
struct CapturedPacket {
    at_ns: u64,
    /// Number of the interface, 0 or 1.
    interface: u32,
    bytes: Vec<u8>,
}

/// IP packets of a capture with their times.
#[derive(Debug)]
pub(super) struct CapturedFrames {
    packets: Vec<CapturedPacket>,
}

impl CapturedFrames {
    /// Reads a little-endian pcapng file with times in nanoseconds.
    pub(super) fn read(file: &[u8]) -> Result<Self> {
        const INTERFACE_DESCRIPTION: u32 = 1;
        const ENHANCED_PACKET: u32 = 6;
        let mut packets = Vec::new();
        let mut header_bytes = 0;
        let mut rest = file;
        while let [k0, k1, k2, k3, l0, l1, l2, l3, ..] = *rest {
            let kind = u32::from_le_bytes([k0, k1, k2, k3]);
            let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
            let block = rest.get(..len).filter(|_| len >= 12).ok_or("a truncated block")?;
            if kind == INTERFACE_DESCRIPTION {
                header_bytes = link_header_bytes(block)?;
            }
            if kind == ENHANCED_PACKET {
                packets.push(enhanced_packet(block, header_bytes).ok_or("a truncated packet")?);
            }
            rest = rest.get(len..).unwrap_or_default();
        }
        packets.sort_by_key(|packet| packet.at_ns);
        Ok(Self { packets })
    }

    /// Returns the first `count` packets.
    pub(super) fn first(mut self, count: usize) -> Self {
        self.packets.truncate(count);
        self
    }

    /// Returns the packets of this capture and of another one, ordered by time.
    pub(super) fn merge(&self, other: &Self) -> Self {
        let others = other.packets.iter().cloned();
        let others = others.map(|packet| CapturedPacket { interface: 1, ..packet });
        let mut packets: Vec<_> = self.packets.iter().cloned().chain(others).collect();
        packets.sort_by_key(|packet| packet.at_ns);
        Self { packets }
    }

    /// Returns each packet twice, as a router next to the capturing host sees it: on the interface
    /// by which it enters, and on that by which it leaves 20 µs later.
    pub(super) fn route(&self, is_opener: bool) -> Self {
        const FORWARDING_NS: u64 = 20_000;
        let mut packets = Vec::with_capacity(self.packets.len() * 2);
        let first_source = self.packets.first().map(|packet| source_of(&packet.bytes).to_vec());
        for packet in &self.packets {
            let is_from_opener = Some(source_of(&packet.bytes)) == first_source.as_deref();
            let entry = u32::from(!is_from_opener);
            let mut forwarded = packet.bytes.clone();
            let hop_limit = if is_ipv6(&forwarded) { 7 } else { 8 };
            if let Some(hop_limit) = forwarded.get_mut(hop_limit) {
                *hop_limit -= 1;
            }
            // The host answers at once, so what it receives must have left the router before.
            let is_sent = is_from_opener == is_opener;
            let entered_ns = packet.at_ns - if is_sent { 0 } else { FORWARDING_NS };
            let left_ns = entered_ns + FORWARDING_NS;
            packets.push(CapturedPacket { at_ns: entered_ns, interface: entry, ..packet.clone() });
            packets.push(CapturedPacket { at_ns: left_ns, interface: 1 - entry, bytes: forwarded });
        }
        packets.sort_by_key(|packet| packet.at_ns);
        Self { packets }
    }

    /// Returns a capture file with an Ethernet header before each packet; `other` is the capture of
    /// the other host.
    pub(super) fn damaged(
        &self,
        other: &Self,
        damage: Damage,
        (is_opener, seed): (bool, u64),
    ) -> Vec<u8> {
        match damage {
            Damage::Merged | Damage::MergedLost(_) => self.merge(other).pcap(damage, seed),
            Damage::MergedInterfaces => self.merge(other).pcapng(),
            Damage::Routed => self.route(is_opener).pcap(damage, seed),
            Damage::RoutedInterfaces => self.route(is_opener).pcapng(),
            Damage::None
            | Damage::SnapLength(_)
            | Damage::Late(_)
            | Damage::Early(_)
            | Damage::Lost(_) => self.pcap(damage, seed),
        }
    }

    /// Returns a pcap file with an Ethernet header before each packet.
    fn pcap(&self, damage: Damage, seed: u64) -> Vec<u8> {
        const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
        let snap_length = if let Damage::SnapLength(bytes) = damage { bytes } else { usize::MAX };
        let mut out = Vec::new();
        for word in [NANOSECOND_MAGIC, 0x0004_0002, 0, 0, 0xffff, 1] {
            out.extend(word.to_le_bytes());
        }
        let count = self.packets.len();
        let mut random = seed;
        for (index, packet) in self.packets.iter().enumerate() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let is_missing = match damage {
                Damage::Late(percent) => index < count * percent / 100,
                Damage::Early(percent) => index >= count * percent / 100,
                Damage::Lost(percent) | Damage::MergedLost(percent) => {
                    (random >> 33) % 100 < percent
                }
                Damage::None
                | Damage::SnapLength(_)
                | Damage::Merged
                | Damage::MergedInterfaces
                | Damage::Routed
                | Damage::RoutedInterfaces => false,
            };
            if is_missing {
                continue;
            }
            let frame = packet.frame();
            let captured = frame.get(..snap_length.min(frame.len())).unwrap_or(&frame);
            let seconds = (packet.at_ns / 1_000_000_000) as u32;
            let nanoseconds = (packet.at_ns % 1_000_000_000) as u32;
            for word in [seconds, nanoseconds, captured.len() as u32, frame.len() as u32] {
                out.extend(word.to_le_bytes());
            }
            out.extend(captured);
        }
        out
    }

    /// Returns a pcapng file with two Ethernet interfaces.
    fn pcapng(&self) -> Vec<u8> {
        const SECTION: [u32; 7] = [0x0a0d_0d0a, 28, 0x1a2b_3c4d, 1, u32::MAX, u32::MAX, 28];
        /// Interface of Ethernet, with times in nanoseconds: option 9, length 1, value 9.
        const INTERFACE: [u32; 8] = [1, 32, 1, 0, 0x0001_0009, 9, 0, 32];
        let mut out = Vec::new();
        for word in SECTION.into_iter().chain(INTERFACE).chain(INTERFACE) {
            out.extend(word.to_le_bytes());
        }
        for packet in &self.packets {
            let frame = packet.frame();
            let padded = frame.len().next_multiple_of(4);
            let (total, len) = ((32 + padded) as u32, frame.len() as u32);
            let (high, low) = ((packet.at_ns >> 32) as u32, packet.at_ns as u32);
            for word in [6, total, packet.interface, high, low, len, len] {
                out.extend(word.to_le_bytes());
            }
            out.extend(&frame);
            out.resize(out.len() + padded - frame.len(), 0);
            out.extend(total.to_le_bytes());
        }
        out
    }
}

impl CapturedPacket {
    /// Returns the packet behind an Ethernet header.
    fn frame(&self) -> Vec<u8> {
        let ethertype = if is_ipv6(&self.bytes) { [0x86, 0xdd] } else { [8, 0] };
        [&[2; 12][..], &ethertype, &self.bytes].concat()
    }
}

fn is_ipv6(packet: &[u8]) -> bool {
    packet.first().is_some_and(|byte| byte >> 4 == 6)
}

/// Returns the last part of the source address, which differs between the hosts.
fn source_of(packet: &[u8]) -> &[u8] {
    packet.get(if is_ipv6(packet) { 22..24 } else { 15..16 }).unwrap_or_default()
}

/// Returns the length of the link-layer header of an interface description block.
fn link_header_bytes(block: &[u8]) -> Result<usize> {
    match *block {
        [_, _, _, _, _, _, _, _, 0, 0, ..] => Ok(4),
        [_, _, _, _, _, _, _, _, 1, 0, ..] => Ok(14),
        [_, _, _, _, _, _, _, _, 101, 0, ..] => Ok(0),
        _ => Err("an unknown link type".into()),
    }
}

/// Returns the time and the IP packet of an enhanced packet block.
fn enhanced_packet(block: &[u8], header_bytes: usize) -> Option<CapturedPacket> {
    let word = |offset: usize| {
        block.get(offset..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
    };
    let at_ns = u64::from(word(12)?) << 32 | u64::from(word(16)?);
    let len = word(20)? as usize;
    let bytes = block.get(28 + header_bytes..28 + len)?.to_vec();
    Some(CapturedPacket { at_ns, interface: 0, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> CapturedFrames {
        let packet = |n: u64| CapturedPacket {
            at_ns: (n + 100) * 1_000,
            interface: 0,
            bytes: vec![0x45; 60],
        };
        CapturedFrames { packets: (0..100).map(packet).collect() }
    }

    /// Returns the captured lengths of the frames in a file.
    fn lengths(file: &[u8]) -> Vec<usize> {
        let mut rest = &file[24..];
        let mut lengths = Vec::new();
        while !rest.is_empty() {
            let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
            lengths.push(len);
            rest = &rest[16 + len..];
        }
        lengths
    }

    #[test]
    fn each_damage_leaves_the_packets_that_its_name_says() {
        assert_eq!(lengths(&frames().pcap(Damage::None, 1)), [74; 100]);
        assert_eq!(lengths(&frames().pcap(Damage::SnapLength(54), 1)), [54; 100]);
        assert_eq!(lengths(&frames().pcap(Damage::Late(30), 1)).len(), 70);
        assert_eq!(lengths(&frames().pcap(Damage::Early(50), 1)).len(), 50);
        let kept = lengths(&frames().pcap(Damage::Lost(20), 1)).len();
        assert!((60..100).contains(&kept), "{kept}");
        let merged = frames().damaged(&frames(), Damage::Merged, (true, 1));
        assert_eq!(lengths(&merged), [74; 200]);
        let routed = frames().damaged(&frames(), Damage::Routed, (true, 1));
        assert_eq!(lengths(&routed), [74; 200]);
        let of_interfaces =
            CapturedFrames::read(&frames().damaged(&frames(), Damage::MergedInterfaces, (true, 1)));
        assert_eq!(of_interfaces.unwrap().packets.len(), 200);
    }
}
