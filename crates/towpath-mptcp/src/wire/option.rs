//! TCP options, taken apart.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::SackBlocks;

/// The options of one segment. At most 40 bytes on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Maximum segment size (RFC 9293 §3.7.1).
    pub mss: Option<u16>,
    /// Window scale (RFC 7323 §2.2).
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 §2).
    pub sack_permitted: bool,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Timestamps (RFC 7323 §3.2).
    pub timestamps: Option<Timestamps>,
    /// Data sequence signal (RFC 8684 §3.3).
    pub dss: Option<Dss>,
    /// All other Multipath TCP options, in order.
    pub mptcp: ArrayVec<MptcpOption, 3>,
}

/// RFC 7323 §3.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// `TSval`.
    pub value: u32,
    /// `TSecr`.
    pub echo: u32,
}

/// A Multipath TCP option (RFC 8684 §8), except DSS, which is in [`Options::dss`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MptcpOption {
    /// MP_CAPABLE, §3.1.
    Capable(Capable),
    /// MP_JOIN, §3.2.
    Join(Join),
    /// ADD_ADDR, §3.4.1.
    AddAddress(AddAddress),
    /// REMOVE_ADDR, §3.4.2: address identifiers.
    RemoveAddress(ArrayVec<u8, 8>),
    /// MP_PRIO, §3.3.8: whether the sender wants this subflow to be a backup.
    Priority {
        /// B flag.
        backup: bool,
    },
    /// MP_FAIL, §3.7: the data sequence number from which on data was lost.
    Fail {
        /// Data sequence number.
        dsn: u64,
    },
    /// MP_FASTCLOSE, §3.5: the key of the receiver of the option.
    FastClose {
        /// Key.
        key: u64,
    },
    /// MP_TCPRST, §3.6.
    Reset(Reset),
    /// A subtype that we do not know, or MP_EXPERIMENTAL: subtype and what follows its four bits.
    Unknown {
        /// Subtype, 4 bits.
        subtype: u8,
        /// The lower four bits of the subtype's byte, then the rest.
        body: ArrayVec<u8, 38>,
    },
}

/// MP_CAPABLE (RFC 8684 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capable {
    /// Version, 1 here.
    pub version: u8,
    /// A: checksums are required.
    pub checksum: bool,
    /// B: an extension that we do not know; the receiver must fall back.
    pub extensibility: bool,
    /// C: do not open subflows to this address and port.
    pub no_join_to_source: bool,
    /// H: HMAC-SHA256; without it there is no algorithm in common.
    pub hmac_sha256: bool,
    /// Key of the sender: in all but the SYN.
    pub sender_key: Option<u64>,
    /// Key of the receiver: in the third packet and the first data.
    pub receiver_key: Option<u64>,
    /// Length (and checksum) of the data that begins at the initial data sequence number + 1.
    pub data: Option<(u16, Option<u16>)>,
}

/// MP_JOIN (RFC 8684 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// In the SYN.
    Syn {
        /// Whether the subflow is a backup.
        backup: bool,
        /// Identifier of the sender's address.
        address_id: u8,
        /// The receiver's token.
        token: u32,
        /// The sender's random number.
        nonce: u32,
    },
    /// In the SYN/ACK.
    SynAck {
        /// Whether the subflow is a backup.
        backup: bool,
        /// Identifier of the sender's address.
        address_id: u8,
        /// Leftmost 64 bits of the sender's HMAC.
        hmac: u64,
        /// The sender's random number.
        nonce: u32,
    },
    /// In the third packet.
    Ack {
        /// Leftmost 160 bits of the sender's HMAC.
        hmac: [u8; 20],
    },
}

/// DSS (RFC 8684 §3.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dss {
    /// F: the mapping ends with DATA_FIN, which takes the last data sequence number.
    pub data_fin: bool,
    /// DATA_ACK.
    pub data_ack: Option<DataAck>,
    /// The mapping.
    pub mapping: Option<DssMapping>,
}

/// A data-level number of 4 or 8 bytes, as it was on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataAck {
    /// The lower 32 bits.
    Short(u32),
    /// All 64 bits.
    Long(u64),
}

/// Which data a subflow's bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DssMapping {
    /// Data sequence number of the first byte.
    pub dsn: DataAck,
    /// Subflow sequence number of the first byte, relative to the initial one.
    pub ssn: u32,
    /// Bytes; 0 is an infinite mapping (§3.7).
    pub len: u16,
    /// Checksum as on the wire.
    pub checksum: Option<u16>,
}

/// ADD_ADDR (RFC 8684 §3.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddress {
    /// Identifier.
    pub address_id: u8,
    /// Address.
    pub address: IpAddr,
    /// Port, if not that of the connection.
    pub port: Option<u16>,
    /// Rightmost 64 bits of the HMAC; `None` in an echo (E flag).
    pub hmac: Option<u64>,
}

/// MP_TCPRST (RFC 8684 §3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reset {
    /// T: the condition is transient.
    pub transient: bool,
    /// Reason: 0 unspecified, 1 Multipath TCP error, 2 lack of resources, 3 administratively
    /// prohibited, 4 too much outstanding data, 5 unacceptable performance, 6 middlebox.
    pub reason: u8,
    /// U, V and W: reserved bits, as received; 0 when sent.
    pub reserved: u8,
}
