//! Packets as they are on the wire: IPv4 and IPv6, TCP, and every TCP and Multipath TCP option.
//!
//! [`Packet`] is what travels: real header bytes and a payload by reference. [`Segment`] is what it
//! means. `parse` turns one into the other, `emit` back.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use arrayvec::ArrayVec;

pub(crate) mod checksum;
pub mod icmp;
pub(crate) mod ip;
mod mptcp;
pub mod option;
pub mod packet;
pub mod payload;
#[cfg(test)]
mod tests;
pub mod udp;

pub use icmp::{IcmpKind, IcmpMessage};
pub use option::{
    AddAddr, DataAck, Dss, DssMapping, MpCapable, MpJoin, MpTcpRst, MptcpOption, Options,
    Timestamps,
};
pub use packet::{DataTag, Packet, Segmenter};
pub use payload::Payload;

/// Control bits of a TCP segment (RFC 9293 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// No more data from the sender.
    pub const FIN: Self = Self(0x01);
    /// Synchronise sequence numbers.
    pub const SYN: Self = Self(0x02);
    /// Reset.
    pub const RST: Self = Self(0x04);
    /// Push.
    pub const PSH: Self = Self(0x08);
    /// The acknowledgement number counts.
    pub const ACK: Self = Self(0x10);
    /// The urgent pointer counts.
    pub const URG: Self = Self(0x20);
    /// ECN echo (RFC 3168).
    pub const ECE: Self = Self(0x40);
    /// Congestion window reduced (RFC 3168).
    pub const CWR: Self = Self(0x80);

    /// Whether all of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

/// The ECN field of the IP header (RFC 3168 §5).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ecn {
    /// Not ECN-capable.
    #[default]
    NotCapable,
    /// ECT(1).
    Capable1,
    /// ECT(0).
    Capable0,
    /// Congestion experienced.
    Marked,
}

const UNSPECIFIED: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

/// A TCP segment, taken apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Segment {
    /// Sender.
    pub source: SocketAddr,
    /// Receiver.
    pub destination: SocketAddr,
    /// Sequence number of the first byte (or of the SYN).
    pub seq: u32,
    /// Acknowledgement number, if [`Flags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: Flags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// ECN field of the IP header.
    pub ecn: Ecn,
    /// Options.
    pub options: Options,
    /// Data.
    pub payload: Payload,
    /// Payload bytes of each packet when this is a super-segment; 0 when it is one packet.
    pub segment_bytes: u16,
}

impl Segment {
    /// Nothing from nobody, to be filled in.
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

    /// Sequence numbers that it takes: data, and one each for SYN and FIN.
    pub fn sequence_bytes(&self) -> u32 {
        let control =
            u32::from(self.flags.contains(Flags::SYN)) + u32::from(self.flags.contains(Flags::FIN));
        u32::try_from(self.payload.len()).unwrap_or(u32::MAX).wrapping_add(control)
    }
}

/// What a packet for us may be.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "nearly all are TCP, and none is kept")]
pub enum ParsedPacket {
    /// TCP.
    Tcp(Segment),
    /// An ICMP error about a TCP segment of ours.
    Icmp(IcmpMessage),
}

/// Takes `packet` apart, whichever it is.
pub fn parse(packet: &Packet) -> Result<ParsedPacket, ParseError> {
    match packet.parse() {
        Err(ParseError::NotTcp(ip::ICMP | ip::ICMP_V6)) => {
            IcmpMessage::parse(packet).map(ParsedPacket::Icmp)
        }
        segment => segment.map(ParsedPacket::Tcp),
    }
}

/// SACK blocks: first sequence number, and the one behind the last (RFC 2018 §3).
pub type SackBlocks = ArrayVec<(u32, u32), 4>;

/// Why bytes are no TCP packet that we can use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Too short for what its headers say.
    #[error("cut off in the {0}")]
    Truncated(&'static str),
    /// A field has an impossible value.
    #[error("bad {0}")]
    Malformed(&'static str),
    /// Not IPv4 or IPv6.
    #[error("not an IP packet")]
    NotIp,
    /// An IP packet, but not TCP (its protocol number).
    #[error("protocol {0} is not TCP")]
    NotTcp(u8),
    /// A fragment; fragments are not reassembled.
    #[error("a fragment")]
    Fragment,
    /// The checksum is wrong.
    #[error("wrong {0} checksum")]
    Checksum(&'static str),
}
