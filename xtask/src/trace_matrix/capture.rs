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
        ])
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
        }
    }
}

/// IP packets of a capture with their times.
#[derive(Debug)]
pub(super) struct CapturedFrames {
    packets: Vec<(u64, Vec<u8>)>,
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
        packets.sort_by_key(|(at_ns, _)| *at_ns);
        Ok(Self { packets })
    }

    /// Returns a pcap file with an Ethernet header before each packet.
    pub(super) fn pcap(&self, damage: Damage, seed: u64) -> Vec<u8> {
        const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
        let snap_length = match damage {
            Damage::SnapLength(bytes) => bytes,
            Damage::None | Damage::Late(_) | Damage::Early(_) | Damage::Lost(_) => usize::MAX,
        };
        let mut out = Vec::new();
        for word in [NANOSECOND_MAGIC, 0x0004_0002, 0, 0, 0xffff, 1] {
            out.extend(word.to_le_bytes());
        }
        let count = self.packets.len();
        let mut random = seed;
        for (index, (at_ns, packet)) in self.packets.iter().enumerate() {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let is_missing = match damage {
                Damage::Late(percent) => index < count * percent / 100,
                Damage::Early(percent) => index >= count * percent / 100,
                Damage::Lost(percent) => (random >> 33) % 100 < percent,
                Damage::None | Damage::SnapLength(_) => false,
            };
            if is_missing {
                continue;
            }
            let ethertype = if packet.first().is_some_and(|byte| byte >> 4 == 6) {
                [0x86, 0xdd]
            } else {
                [8, 0]
            };
            let frame = [&[2; 12][..], &ethertype, packet].concat();
            let captured = frame.get(..snap_length.min(frame.len())).unwrap_or(&frame);
            let seconds = (at_ns / 1_000_000_000) as u32;
            let nanoseconds = (at_ns % 1_000_000_000) as u32;
            for word in [seconds, nanoseconds, captured.len() as u32, frame.len() as u32] {
                out.extend(word.to_le_bytes());
            }
            out.extend(captured);
        }
        out
    }
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
fn enhanced_packet(block: &[u8], header_bytes: usize) -> Option<(u64, Vec<u8>)> {
    let word = |offset: usize| {
        block.get(offset..)?.first_chunk::<4>().map(|bytes| u32::from_le_bytes(*bytes))
    };
    let at_ns = u64::from(word(12)?) << 32 | u64::from(word(16)?);
    let len = word(20)? as usize;
    Some((at_ns, block.get(28 + header_bytes..28 + len)?.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> CapturedFrames {
        let packets = (0..100_u64).map(|n| (n * 1_000, vec![0x45; 60])).collect();
        CapturedFrames { packets }
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
    }
}
