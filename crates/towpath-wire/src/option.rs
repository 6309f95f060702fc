//! Parsing and encoding of TCP options.
//!
//! Invalid options are ignored, as Linux does: unknown options, options with a wrong length for
//! their kind, and everything after an impossible length. The segment is still accepted.
//!
//! On the wire, options have Linux's order and padding: MSS, SACK permitted and timestamps, window
//! scale, SACK, and then Multipath TCP, DSS first; each option ends on a multiple of 4 bytes.

use std::net::IpAddr;

use arrayvec::ArrayVec;

use super::SackBlocks;
use super::mptcp;

/// Maximum bytes of options in a TCP header (RFC 9293 §3.1).
pub const OPTION_BYTES: usize = 40;

/// Encoded options as on the wire.
pub type EncodedOptions = ArrayVec<u8, OPTION_BYTES>;

const EOL: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// Maximum window scale; a larger one counts as this (RFC 7323 §2.3).
const MAX_WINDOW_SCALE: u8 = 14;

/// Maximum Multipath TCP options in a segment, excluding DSS; more are ignored.
pub(super) const MAX_MPTCP_OPTIONS: usize = 3;

/// Options of one segment, at most 40 bytes on the wire.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Options {
    /// Maximum segment size (RFC 9293 §3.7.1).
    pub mss: Option<u16>,
    /// Window scale (RFC 7323 §2.2).
    pub window_scale: Option<u8>,
    /// SACK permitted (RFC 2018 §2).
    pub sack_permitted: bool,
    /// Selective acknowledgement blocks (RFC 2018).
    pub sack: SackBlocks,
    /// Timestamps (RFC 7323 §3.2).
    pub timestamps: Option<Timestamps>,
    /// Data sequence signal (RFC 8684 §3.3).
    pub dss: Option<Dss>,
    /// Other Multipath TCP options, in order.
    pub mptcp: Vec<MptcpOption>,
}

impl Options {
    /// Parses the options of a header. MSS, window scale and SACK permitted count only in a SYN,
    /// which the caller must check.
    #[inline]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut options = Self::default();
        options.parse_all(bytes);
        options
    }

    /// Clears all options for reuse.
    pub(super) fn clear(&mut self) {
        let Self { mss, window_scale, sack_permitted, sack, timestamps, dss, mptcp } = self;
        (*mss, *window_scale, *sack_permitted) = (None, None, false);
        (*timestamps, *dss) = (None, None);
        sack.clear();
        mptcp.clear();
    }

    /// Parses all options of a header.
    pub(super) fn parse_all(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        loop {
            match *rest {
                [] | [EOL, ..] | [_] => break,
                [NOP, ref tail @ ..] => rest = tail,
                [kind, len, ..] => {
                    let Some((option, tail)) = rest.split_at_checked(usize::from(len)) else {
                        break;
                    };
                    let [_, _, body @ ..] = option else { break };
                    self.parse_option(kind, body);
                    rest = tail;
                }
            }
        }
    }

    /// Parses one option; `body` is the part after kind and length.
    #[inline]
    fn parse_option(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (mptcp::KIND, _) => mptcp::parse(body, self),
            (TIMESTAMPS, value_and_echo) => {
                if let Ok(value_and_echo) = value_and_echo.try_into() {
                    let (value, echo) = split_u64(value_and_echo);
                    self.timestamps = Some(Timestamps { value, echo });
                }
            }
            (SACK, blocks) if !blocks.is_empty() && blocks.len() % 8 == 0 => {
                self.sack.clear();
                for block in blocks.as_chunks().0.iter().take(4) {
                    let _ = self.sack.try_push(split_u64(*block));
                }
            }
            // An MSS of 0 is invalid.
            (MSS, &[a, b]) if [a, b] != [0, 0] => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            _ => {}
        }
    }

    /// Returns the bytes on the wire, including padding. More than [`OPTION_BYTES`] do not fit into
    /// a segment: [`Options::emit`] then drops some.
    pub fn encoded_len(&self) -> usize {
        let sack = match self.sack.len() {
            0 => 0,
            blocks => 4 + 8 * blocks,
        };
        self.handshake_len() + sack + self.mptcp_len(usize::MAX)
    }

    /// Encodes the options. If they do not fit, SACK blocks are dropped first, from the last, then
    /// Multipath TCP options, from the last. The result is always valid.
    pub fn emit(&self) -> EncodedOptions {
        let mut out = EncodedOptions::new();
        if let Some(mss) = self.mss {
            let [a, b] = mss.to_be_bytes();
            put(&mut out, [MSS, 4, a, b]);
        }
        let sack_permitted = if self.sack_permitted { [SACK_PERMITTED, 2] } else { [NOP, NOP] };
        if let Some(timestamps) = self.timestamps {
            let [a, b] = sack_permitted;
            put(&mut out, [a, b, TIMESTAMPS, 10]);
            put(&mut out, timestamps.value.to_be_bytes());
            put(&mut out, timestamps.echo.to_be_bytes());
        } else if self.sack_permitted {
            put(&mut out, [NOP, NOP, SACK_PERMITTED, 2]);
        }
        if let Some(shift) = self.window_scale {
            put(&mut out, [NOP, WINDOW_SCALE, 3, shift]);
        }
        if !self.sack.is_empty() {
            let room = out.remaining_capacity();
            self.emit_sack(&mut out, room - self.mptcp_len(room));
        }
        self.emit_mptcp(&mut out);
        out
    }

    /// Returns the bytes of MSS, SACK permitted, timestamps and window scale; at most 20.
    fn handshake_len(&self) -> usize {
        let timestamps = match (self.timestamps, self.sack_permitted) {
            (Some(_), _) => 12,
            (None, true) => 4,
            (None, false) => 0,
        };
        4 * (usize::from(self.mss.is_some()) + usize::from(self.window_scale.is_some()))
            + timestamps
    }

    /// Returns the bytes of the Multipath TCP options that fit into `room`, up to the first that
    /// does not.
    fn mptcp_len(&self, room: usize) -> usize {
        let dss = self.dss.iter().map(mptcp::dss_len);
        let mptcp = self.mptcp.iter().map(mptcp::option_len);
        dss.chain(mptcp)
            .try_fold(0, |sum: usize, len| {
                let sum = sum + len;
                if sum <= room { Ok(sum) } else { Err(sum - len) }
            })
            .unwrap_or_else(|sum| sum)
    }

    fn emit_sack(&self, out: &mut EncodedOptions, room: usize) {
        let blocks = self.sack.len().min(room.saturating_sub(4) / 8);
        if blocks == 0 {
            return;
        }
        put(out, [NOP, NOP, SACK, 2 + 8 * blocks as u8]);
        for (start, end) in self.sack.iter().take(blocks) {
            put(out, start.to_be_bytes());
            put(out, end.to_be_bytes());
        }
    }

    fn emit_mptcp(&self, out: &mut EncodedOptions) {
        if let Some(dss) = &self.dss {
            if mptcp::dss_len(dss) > out.remaining_capacity() {
                return;
            }
            mptcp::emit_dss(dss, out);
        }
        for option in &self.mptcp {
            if mptcp::option_len(option) > out.remaining_capacity() {
                return;
            }
            mptcp::emit(option, out);
        }
    }
}

fn split_u64(bytes: [u8; 8]) -> (u32, u32) {
    let number = u64::from_be_bytes(bytes);
    ((number >> 32) as u32, number as u32)
}

/// Appends bytes; the caller has checked that there is room.
pub(super) fn put<const N: usize>(out: &mut EncodedOptions, bytes: [u8; N]) {
    put_slice(out, &bytes);
}

pub(super) fn put_slice(out: &mut EncodedOptions, bytes: &[u8]) {
    let has_room = out.try_extend_from_slice(bytes).is_ok();
    debug_assert!(has_room, "an option is longer than computed");
}

/// Timestamps option (RFC 7323 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamps {
    /// Sender's timestamp value, `TSval`.
    pub value: u32,
    /// Echoed timestamp of the receiver, `TSecr`.
    pub echo: u32,
}

/// A Multipath TCP option (RFC 8684 §8), except DSS, which is in [`Options::dss`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MptcpOption {
    /// MP_CAPABLE of the handshake, §3.1.
    Capable(MpCapable),
    /// MP_JOIN of the handshake, §3.2.
    Join(MpJoin),
    /// ADD_ADDR or its echo, §3.4.1.
    AddAddress(AddAddr),
    /// REMOVE_ADDR, §3.4.2: address identifiers.
    RemoveAddress(ArrayVec<u8, 8>),
    /// MP_PRIO, §3.3.8: new priority of this subflow.
    Priority {
        /// B flag: the subflow becomes a backup.
        backup: bool,
    },
    /// MP_FAIL, §3.7: the peer dropped data from this number on.
    Fail {
        /// Data sequence number of the failure.
        dsn: u64,
    },
    /// MP_FASTCLOSE, §3.5: the key of the receiver of the option.
    FastClose {
        /// Key of the receiver, as proof of identity.
        key: u64,
    },
    /// MP_TCPRST of a reset, §3.6.
    Reset(MpTcpRst),
    /// Unknown subtype, or MP_EXPERIMENTAL: subtype and the data after its four bits.
    Unknown {
        /// Subtype of the option, 4 bits.
        subtype: u8,
        /// The lower four bits of the subtype's byte, then the rest.
        body: ArrayVec<u8, 38>,
    },
}

/// MP_CAPABLE (RFC 8684 §3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of the option, each on its own")]
pub struct MpCapable {
    /// Protocol version; 1 in this stack.
    pub version: u8,
    /// A flag: checksums are required.
    pub checksum: bool,
    /// B flag: unknown extension; the receiver must fall back.
    pub extensibility: bool,
    /// C flag: do not open subflows to this address and port.
    pub no_join_to_source: bool,
    /// H flag: HMAC-SHA256. Without it, no common algorithm exists.
    pub hmac_sha256: bool,
    /// Key of the sender: in all but the SYN.
    pub sender_key: Option<u64>,
    /// Key of the receiver: in the third packet and the first data.
    pub receiver_key: Option<u64>,
    /// Length (and checksum) of the data that starts at the initial data sequence number + 1.
    pub data: Option<(u16, Option<u16>)>,
}

/// MP_JOIN (RFC 8684 §3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MpJoin {
    /// MP_JOIN of the SYN.
    Syn {
        /// True if the subflow is a backup.
        backup: bool,
        /// Identifier of the sender's address.
        address_id: u8,
        /// Token of the receiver's connection.
        token: u32,
        /// Nonce of the sender, for the HMAC.
        nonce: u32,
    },
    /// MP_JOIN of the SYN/ACK.
    SynAck {
        /// True if the subflow is a backup.
        backup: bool,
        /// Identifier of the sender's address.
        address_id: u8,
        /// Leftmost 64 bits of the sender's HMAC.
        hmac: u64,
        /// Nonce of the sender, for the HMAC.
        nonce: u32,
    },
    /// MP_JOIN of the third packet.
    Ack {
        /// Leftmost 160 bits of the sender's HMAC.
        hmac: [u8; 20],
    },
}

/// Data sequence signal (RFC 8684 §3.3.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Dss {
    /// F flag: the mapping ends with DATA_FIN, which has the last data sequence number.
    pub data_fin: bool,
    /// DATA_ACK, or `None` without one.
    pub data_ack: Option<DataAck>,
    /// Mapping of the payload, or `None` without one.
    pub mapping: Option<DssMapping>,
}

/// A data-level number of 4 or 8 bytes, as it was on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataAck {
    /// The lower 32 bits of the number.
    Short(u32),
    /// All 64 bits of the number.
    Long(u64),
}

/// Mapping from subflow bytes to connection data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DssMapping {
    /// Data sequence number of the first byte.
    pub dsn: DataAck,
    /// Subflow sequence number of the first byte, relative to the initial one.
    pub ssn: u32,
    /// Length in bytes; 0 for an infinite mapping (§3.7).
    pub len: u16,
    /// DSS checksum as on the wire.
    pub checksum: Option<u16>,
}

/// ADD_ADDR (RFC 8684 §3.4.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddAddr {
    /// Identifier of the announced address.
    pub address_id: u8,
    /// Announced address without a port.
    pub address: IpAddr,
    /// Port, if not that of the connection.
    pub port: Option<u16>,
    /// Rightmost 64 bits of the HMAC; `None` in an echo (E flag).
    pub hmac: Option<u64>,
}

/// MP_TCPRST (RFC 8684 §3.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MpTcpRst {
    /// T flag: the condition is transient.
    pub transient: bool,
    /// Reason: 0 unspecified, 1 Multipath TCP error, 2 lack of resources, 3 administratively
    /// prohibited, 4 too much outstanding data, 5 unacceptable performance, 6 middlebox.
    pub reason: u8,
    /// U, V and W: reserved bits, as received; 0 when sent.
    pub reserved: u8,
}
