//! Packets as they are on the wire: IPv4 and IPv6, TCP, and every TCP and Multipath TCP option.
//!
//! [`Packet`] is a packet in flight: real header bytes and a payload by reference. [`Segment`] is
//! its parsed form. `parse` converts a packet into a segment, `emit` converts it back.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use arrayvec::ArrayVec;

pub(crate) mod checksum;
pub mod icmp;
pub(crate) mod ip;
pub mod keys;
mod mptcp;
pub mod option;
pub mod packet;
pub mod payload;
pub mod pcapng;
#[cfg(test)]
mod tests;
pub mod udp;

pub use icmp::{IcmpKind, IcmpMessage};
pub use option::{
    AddAddr, DataAck, Dss, DssMapping, MpCapable, MpJoin, MpTcpRst, MptcpOption, Options,
    Timestamps,
};
pub use packet::{ConnectionId, DataTag, Packet, Segmenter};
pub use payload::Payload;

/// Control bits of a TCP segment (RFC 9293 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// FIN: no more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers (first segment).
    pub const SYN: Self = Self(0x02);
    /// Reset of the connection.
    pub const RST: Self = Self(0x04);
    /// Push: deliver the data immediately.
    pub const PSH: Self = Self(0x08);
    /// ACK: the acknowledgement number is valid.
    pub const ACK: Self = Self(0x10);
    /// URG: the urgent pointer is valid.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Returns true if all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the union of both flags.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these flags without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// ECN field of the IP header (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Transport that is not ECN-capable (Not-ECT).
    #[default]
    NotCapable,
    /// ECN-capable transport, codepoint ECT(1).
    Capable1,
    /// ECN-capable transport, codepoint ECT(0).
    Capable0,
    /// Congestion experienced (CE), set by a router.
    Marked,
}

const UNSPECIFIED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// Parsed TCP segment with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Address and port of the sender.
    pub source: SocketAddr,
    /// Address and port of the receiver.
    pub destination: SocketAddr,
    /// Sequence number of the first byte (or of the SYN).
    pub seq: u32,
    /// Acknowledgement number, valid with [`Flags::ACK`].
    pub ack: u32,
    /// Control bits of the TCP header.
    pub flags: Flags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// TCP options, including Multipath TCP.
    pub options: Options,
    /// Payload of the segment, empty for a pure acknowledgement.
    pub payload: Payload,
    /// Payload bytes of each packet for a super-segment; 0 for a single packet.
    pub segment_bytes: u16,
}

impl Segment {
    /// Empty segment with unspecified addresses, to be filled in.
    pub const EMPTY: Self = Self {
        source: UNSPECIFIED,
        destination: UNSPECIFIED,
        seq: 0,
        ack: 0,
        flags: Flags(0),
        window: 0,
        ecn: Ecn::NotCapable,
        options: Options {
            mss: None,
            window_scale: None,
            sack_permitted: false,
            sack: SackBlocks::new_const(),
            timestamps: None,
            dss: None,
            mptcp: Vec::new(),
        },
        payload: Payload::EMPTY,
        segment_bytes: 0,
    };

    /// Returns the length in sequence numbers: payload bytes, and one each for SYN and FIN.
    pub fn sequence_bytes(&self) -> u32 {
        let control =
            u32::from(self.flags.contains(Flags::SYN)) + u32::from(self.flags.contains(Flags::FIN));
        u32::try_from(self.payload.len()).unwrap_or(u32::MAX).wrapping_add(control)
    }
}

/// Parsed packet of a supported protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are TCP, and none is kept")]
pub enum ParsedPacket {
    /// TCP segment with its options.
    Tcp(Segment),
    /// ICMP error about a TCP segment of ours.
    Icmp(IcmpMessage),
}

/// Parses `packet` as TCP or ICMP.
pub fn parse(packet: &Packet) -> Result<ParsedPacket, ParseError> {
    match packet.parse() {
        Err(ParseError::NotTcp(ip::ICMP | ip::ICMP_V6)) => {
            IcmpMessage::parse(packet).map(ParsedPacket::Icmp)
        }
        segment => segment.map(ParsedPacket::Tcp),
    }
}

/// SACK blocks: first sequence number, and the one after the last (RFC 2018 §3).
pub type SackBlocks = ArrayVec<(u32, u32), 4>;

/// Reason why a packet cannot be parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Packet is shorter than its headers state.
    #[error("cut off in the {0}")]
    Truncated(&'static str),
    /// A field has an impossible value.
    #[error("bad {0}")]
    Malformed(&'static str),
    /// The packet is neither IPv4 nor IPv6.
    #[error("not an IP packet")]
    NotIp,
    /// The IP packet is not TCP (its protocol number).
    #[error("protocol {0} is not TCP")]
    NotTcp(u8),
    /// The packet is a fragment; fragments are not reassembled.
    #[error("a fragment")]
    Fragment,
    /// A checksum is wrong; names the header.
    #[error("wrong {0} checksum")]
    Checksum(&'static str),
}
