//! An IP packet with a TCP segment: real header bytes, payload by reference.

use arrayvec::ArrayVec;

use super::{ParseError, Payload, Segment};

/// Longest header: IPv6 and 60 bytes of TCP.
pub const HEADER_BYTES: usize = 100;

/// What travels: an IP packet, or a super-segment that stands for several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packet {
    /// IP and TCP header with options.
    pub header: ArrayVec<u8, HEADER_BYTES>,
    /// Data.
    pub payload: Payload,
    /// Payload bytes of each packet on the wire when this stands for several; 0 when it is one.
    pub segment_bytes: u16,
    /// The TCP checksum field holds only the sum of the pseudo header, as with checksum offload:
    /// nothing on the way has changed the packet, or who changes it must call
    /// [`Packet::complete_checksum`] first.
    pub checksum_offloaded: bool,
}

impl Packet {
    /// Length of the IP packet (of the super-segment as a whole).
    pub fn len(&self) -> usize {
        self.header.len() + self.payload.len()
    }

    /// Never.
    pub fn is_empty(&self) -> bool {
        self.header.is_empty()
    }

    /// Writes `segment` (checksum offloaded). `identification` is the IPv4 header's.
    pub fn emit(segment: &Segment, identification: u16) -> Self {
        let _ = (segment, identification);
        todo!()
    }

    /// Takes it apart; verifies the checksum unless it is offloaded.
    pub fn parse(&self) -> Result<Segment, ParseError> {
        todo!()
    }

    /// Fills in the TCP checksum.
    pub fn complete_checksum(&mut self) {
        todo!()
    }

    /// The packets that it stands for, in order; itself if it is one.
    pub fn split(self) -> impl Iterator<Item = Self> {
        std::iter::once(self)
    }
}
