//! Multipath TCP options on the wire (RFC 8684 §8).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arrayvec::ArrayVec;

use super::option::{
    AddAddr, DataAck, Dss, DssMapping, EncodedOptions, MpCapable, MpJoin, MpTcpRst, MptcpOption,
    Options, put, put_slice,
};

/// TCP option kind of Multipath TCP.
pub(super) const KIND: u8 = 30;

const NOP: u8 = 1;

const MP_CAPABLE: u8 = 0;
const MP_JOIN: u8 = 1;
const DSS: u8 = 2;
const ADD_ADDR: u8 = 3;
const REMOVE_ADDR: u8 = 4;
const MP_PRIO: u8 = 5;
const MP_FAIL: u8 = 6;
const MP_FASTCLOSE: u8 = 7;
const MP_TCPRST: u8 = 8;

/// Flag A of MP_CAPABLE, §3.1.
const CHECKSUM_REQUIRED: u8 = 0x80;
const EXTENSIBILITY: u8 = 0x40;
const NO_JOIN_TO_SOURCE: u8 = 0x20;
const HMAC_SHA256: u8 = 0x01;

/// Flags of DSS, §3.3.
const DATA_FIN: u8 = 0x10;
const LONG_DSN: u8 = 0x08;
const MAPPING: u8 = 0x04;
const LONG_DATA_ACK: u8 = 0x02;
const HAS_DATA_ACK: u8 = 0x01;

/// Flag B of MP_JOIN and MP_PRIO, §3.2 and §3.3.8.
const BACKUP: u8 = 0x01;
/// Flag E of ADD_ADDR, §3.4.1.
const ECHO: u8 = 0x01;
/// Flag T of MP_TCPRST, §3.6.
const TRANSIENT: u8 = 0x01;

/// Parses one option; `body` is the part after kind and length. A malformed option is ignored.
#[inline]
pub(super) fn parse(body: &[u8], options: &mut Options) {
    match *body {
        [subtype_byte, ref rest @ ..] if subtype_byte >> 4 == DSS => {
            if let Some(dss) = parse_dss(rest) {
                options.dss = Some(dss);
            }
        }
        [subtype_byte, ref rest @ ..] => {
            parse_other(subtype_byte >> 4, subtype_byte & 0xf, rest, options);
        }
        [] => {}
    }
}

/// Parses all options except DSS. `low_nibble`: the four bits after the subtype.
fn parse_other(subtype: u8, low_nibble: u8, rest: &[u8], options: &mut Options) {
    let option = match subtype {
        MP_CAPABLE => parse_capable(low_nibble, rest).map(MptcpOption::Capable),
        MP_JOIN => parse_join(low_nibble, rest).map(MptcpOption::Join),
        ADD_ADDR => parse_add_address(low_nibble, rest).map(MptcpOption::AddAddress),
        REMOVE_ADDR if rest.is_empty() => None,
        REMOVE_ADDR => ArrayVec::try_from(rest).ok().map(MptcpOption::RemoveAddress),
        // The variant of RFC 6824, which is followed by an address identifier, is ignored.
        MP_PRIO if rest.is_empty() => {
            Some(MptcpOption::Priority { backup: low_nibble & BACKUP != 0 })
        }
        MP_PRIO => None,
        MP_FAIL => parse_reserved_then_u64(rest).map(|dsn| MptcpOption::Fail { dsn }),
        MP_FASTCLOSE => parse_reserved_then_u64(rest).map(|key| MptcpOption::FastClose { key }),
        MP_TCPRST => match *rest {
            [reason] => Some(MptcpOption::Reset(MpTcpRst {
                transient: low_nibble & TRANSIENT != 0,
                reason,
                reserved: low_nibble >> 1,
            })),
            _ => None,
        },
        _ => {
            let mut bytes = ArrayVec::new();
            let has_room =
                bytes.try_push(low_nibble).is_ok() && bytes.try_extend_from_slice(rest).is_ok();
            has_room.then_some(MptcpOption::Unknown { subtype, body: bytes })
        }
    };
    if let Some(option) = option {
        // More than three are never valid together. They are rare and therefore on the heap: a
        // segment is moved often.
        if options.mptcp.len() < super::option::MAX_MPTCP_OPTIONS {
            options.mptcp.push(option);
        }
    }
}

fn parse_capable(version: u8, rest: &[u8]) -> Option<MpCapable> {
    let (&flags, rest) = rest.split_first()?;
    // The length alone determines the fields (§3.1).
    let (has_sender, has_receiver, has_data) = match rest.len() {
        0 => (false, false, false),
        8 => (true, false, false),
        16 => (true, true, false),
        18 | 20 => (true, true, true),
        _ => return None,
    };
    let mut fields = FieldReader(rest);
    let sender_key = if has_sender { fields.u64() } else { None };
    let receiver_key = if has_receiver { fields.u64() } else { None };
    let data = if has_data { Some((fields.u16()?, fields.u16())) } else { None };
    Some(MpCapable {
        version,
        checksum: flags & CHECKSUM_REQUIRED != 0,
        extensibility: flags & EXTENSIBILITY != 0,
        no_join_to_source: flags & NO_JOIN_TO_SOURCE != 0,
        hmac_sha256: flags & HMAC_SHA256 != 0,
        sender_key,
        receiver_key,
        data,
    })
}

fn parse_join(low_nibble: u8, rest: &[u8]) -> Option<MpJoin> {
    let backup = low_nibble & BACKUP != 0;
    let (&address_id, rest) = rest.split_first()?;
    let mut fields = FieldReader(rest);
    match rest.len() {
        8 => Some(MpJoin::Syn { backup, address_id, token: fields.u32()?, nonce: fields.u32()? }),
        12 => {
            Some(MpJoin::SynAck { backup, address_id, hmac: fields.u64()?, nonce: fields.u32()? })
        }
        20 => Some(MpJoin::Ack { hmac: rest.try_into().ok()? }),
        _ => None,
    }
}

#[inline]
fn parse_dss(rest: &[u8]) -> Option<Dss> {
    let (&flags, rest) = rest.split_first()?;
    let mut fields = FieldReader(rest);
    let data_ack = match flags & HAS_DATA_ACK {
        0 => None,
        _ => Some(fields.number(flags & LONG_DATA_ACK != 0)?),
    };
    let mapping = match flags & MAPPING {
        0 => None,
        _ => Some(DssMapping {
            dsn: fields.number(flags & LONG_DSN != 0)?,
            ssn: fields.u32()?,
            len: fields.u16()?,
            checksum: fields.u16(),
        }),
    };
    // As Linux: two extra bytes are accepted if no mapping exists that they could be the checksum
    // of.
    if mapping.is_none() {
        let _ = fields.u16();
    }
    fields.is_empty().then_some(Dss { data_fin: flags & DATA_FIN != 0, data_ack, mapping })
}

fn parse_add_address(low_nibble: u8, rest: &[u8]) -> Option<AddAddr> {
    let (&address_id, rest) = rest.split_first()?;
    let echo = low_nibble & ECHO != 0;
    // The length alone determines the address family (§3.4.1).
    let hmac_bytes = if echo { 0 } else { 8 };
    let (is_v6, has_port) = match rest.len().checked_sub(hmac_bytes)? {
        4 => (false, false),
        6 => (false, true),
        16 => (true, false),
        18 => (true, true),
        _ => return None,
    };
    let mut fields = FieldReader(rest);
    let address = if is_v6 {
        Ipv6Addr::from(fields.take::<16>()?).into()
    } else {
        Ipv4Addr::from(fields.take::<4>()?).into()
    };
    let port = if has_port { Some(fields.u16()?) } else { None };
    let hmac = if echo { None } else { Some(fields.u64()?) };
    Some(AddAddr { address_id, address, port, hmac })
}

/// Parses the body of MP_FAIL and MP_FASTCLOSE: a reserved byte, and 8 bytes.
fn parse_reserved_then_u64(rest: &[u8]) -> Option<u64> {
    let (_, bytes) = rest.split_first()?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

/// Reader of fields in order; a field that is cut off is `None`, and stays unread.
struct FieldReader<'a>(&'a [u8]);

impl FieldReader<'_> {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*field)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn number(&mut self, long: bool) -> Option<DataAck> {
        if long { self.u64().map(DataAck::Long) } else { self.u32().map(DataAck::Short) }
    }
}

/// Returns the bytes of the option for its length field; 0 if there is nothing to write.
fn unpadded_len(option: &MptcpOption) -> usize {
    match option {
        MptcpOption::Capable(MpCapable { sender_key: None, .. }) => 4,
        MptcpOption::Capable(MpCapable { receiver_key: None, .. }) => 12,
        MptcpOption::Capable(MpCapable { data: None, .. }) => 20,
        MptcpOption::Capable(MpCapable { data: Some((_, None)), .. }) => 22,
        MptcpOption::Capable(MpCapable { data: Some((_, Some(_))), .. }) => 24,
        MptcpOption::Join(MpJoin::Syn { .. }) => 12,
        MptcpOption::Join(MpJoin::SynAck { .. }) => 16,
        MptcpOption::Join(MpJoin::Ack { .. }) => 24,
        MptcpOption::AddAddress(AddAddr { address_id: _, address, port, hmac }) => {
            4 + if address.is_ipv6() { 16 } else { 4 }
                + if port.is_some() { 2 } else { 0 }
                + if hmac.is_some() { 8 } else { 0 }
        }
        MptcpOption::RemoveAddress(ids) if ids.is_empty() => 0,
        MptcpOption::RemoveAddress(ids) => 3 + ids.len(),
        MptcpOption::Priority { backup: _ } => 3,
        MptcpOption::Fail { .. } | MptcpOption::FastClose { .. } => 12,
        MptcpOption::Reset(_) => 4,
        MptcpOption::Unknown { subtype: _, body } => 2 + body.len().max(1),
    }
}

/// Returns the bytes of the option, including padding.
pub(super) fn option_len(option: &MptcpOption) -> usize {
    unpadded_len(option).next_multiple_of(4)
}

fn unpadded_dss_len(dss: &Dss) -> usize {
    let mapping = match &dss.mapping {
        None => 0,
        Some(mapping) => {
            number_len(mapping.dsn) + 6 + if mapping.checksum.is_some() { 2 } else { 0 }
        }
    };
    4 + dss.data_ack.map_or(0, number_len) + mapping
}

/// Returns the bytes of DSS, including padding.
pub(super) fn dss_len(dss: &Dss) -> usize {
    unpadded_dss_len(dss).next_multiple_of(4)
}

fn number_len(number: DataAck) -> usize {
    match number {
        DataAck::Short(_) => 4,
        DataAck::Long(_) => 8,
    }
}

/// Appends DSS; there must be room.
pub(super) fn emit_dss(dss: &Dss, out: &mut EncodedOptions) {
    let Dss { data_fin, data_ack, mapping } = dss;
    let mut flags = if *data_fin { DATA_FIN } else { 0 };
    match data_ack {
        None => {}
        Some(DataAck::Short(_)) => flags |= HAS_DATA_ACK,
        Some(DataAck::Long(_)) => flags |= HAS_DATA_ACK | LONG_DATA_ACK,
    }
    match mapping {
        None => {}
        Some(DssMapping { dsn: DataAck::Short(_), .. }) => flags |= MAPPING,
        Some(DssMapping { dsn: DataAck::Long(_), .. }) => flags |= MAPPING | LONG_DSN,
    }
    put(out, [KIND, unpadded_dss_len(dss) as u8, DSS << 4, flags]);
    if let Some(data_ack) = data_ack {
        put_number(out, *data_ack);
    }
    if let Some(DssMapping { dsn, ssn, len, checksum }) = mapping {
        put_number(out, *dsn);
        put(out, ssn.to_be_bytes());
        put_len(out, *len, *checksum);
    }
}

/// Appends an option, padded to a multiple of 4 bytes; there must be room.
pub(super) fn emit(option: &MptcpOption, out: &mut EncodedOptions) {
    let len = unpadded_len(option) as u8;
    match option {
        MptcpOption::Capable(capable) => emit_capable(capable, len, out),
        MptcpOption::Join(join) => emit_join(join, len, out),
        MptcpOption::AddAddress(AddAddr { address_id, address, port, hmac }) => {
            let echo = if hmac.is_some() { 0 } else { ECHO };
            put(out, [KIND, len, (ADD_ADDR << 4) | echo, *address_id]);
            match address {
                IpAddr::V4(address) => put(out, address.octets()),
                IpAddr::V6(address) => put(out, address.octets()),
            }
            if let Some(port) = port {
                put(out, port.to_be_bytes());
            }
            if let Some(hmac) = hmac {
                put(out, hmac.to_be_bytes());
            }
        }
        MptcpOption::RemoveAddress(ids) if ids.is_empty() => {}
        MptcpOption::RemoveAddress(ids) => {
            put(out, [KIND, len, REMOVE_ADDR << 4]);
            put_slice(out, ids);
        }
        MptcpOption::Priority { backup } => {
            put(out, [KIND, len, (MP_PRIO << 4) | flag(*backup, BACKUP)]);
        }
        MptcpOption::Fail { dsn } => {
            put(out, [KIND, len, MP_FAIL << 4, 0]);
            put(out, dsn.to_be_bytes());
        }
        MptcpOption::FastClose { key } => {
            put(out, [KIND, len, MP_FASTCLOSE << 4, 0]);
            put(out, key.to_be_bytes());
        }
        MptcpOption::Reset(MpTcpRst { transient, reason, reserved }) => {
            let flags = ((reserved << 1) & 0xe) | flag(*transient, TRANSIENT);
            put(out, [KIND, len, (MP_TCPRST << 4) | flags, *reason]);
        }
        MptcpOption::Unknown { subtype, body } => {
            let (low_nibble, rest) = body.split_first().unwrap_or((&0, &[]));
            put(out, [KIND, len, (subtype << 4) | (low_nibble & 0xf)]);
            put_slice(out, rest);
        }
    }
    pad(out);
}

fn emit_capable(capable: &MpCapable, len: u8, out: &mut EncodedOptions) {
    let MpCapable {
        version,
        checksum,
        extensibility,
        no_join_to_source,
        hmac_sha256,
        sender_key,
        receiver_key,
        data,
    } = *capable;
    let flags = flag(checksum, CHECKSUM_REQUIRED)
        | flag(extensibility, EXTENSIBILITY)
        | flag(no_join_to_source, NO_JOIN_TO_SOURCE)
        | flag(hmac_sha256, HMAC_SHA256);
    put(out, [KIND, len, (MP_CAPABLE << 4) | (version & 0xf), flags]);
    let Some(sender_key) = sender_key else { return };
    put(out, sender_key.to_be_bytes());
    let Some(receiver_key) = receiver_key else { return };
    put(out, receiver_key.to_be_bytes());
    let Some((len, checksum)) = data else { return };
    put_len(out, len, checksum);
}

fn emit_join(join: &MpJoin, len: u8, out: &mut EncodedOptions) {
    match *join {
        MpJoin::Syn { backup, address_id, token, nonce } => {
            put(out, [KIND, len, (MP_JOIN << 4) | flag(backup, BACKUP), address_id]);
            put(out, token.to_be_bytes());
            put(out, nonce.to_be_bytes());
        }
        MpJoin::SynAck { backup, address_id, hmac, nonce } => {
            put(out, [KIND, len, (MP_JOIN << 4) | flag(backup, BACKUP), address_id]);
            put(out, hmac.to_be_bytes());
            put(out, nonce.to_be_bytes());
        }
        MpJoin::Ack { hmac } => {
            put(out, [KIND, len, MP_JOIN << 4, 0]);
            put(out, hmac);
        }
    }
}

const fn flag(set: bool, mask: u8) -> u8 {
    if set { mask } else { 0 }
}

fn put_number(out: &mut EncodedOptions, number: DataAck) {
    match number {
        DataAck::Short(number) => put(out, number.to_be_bytes()),
        DataAck::Long(number) => put(out, number.to_be_bytes()),
    }
}

/// Appends the end of a mapping: length, and the checksum or padding.
fn put_len(out: &mut EncodedOptions, len: u16, checksum: Option<u16>) {
    let [a, b] = len.to_be_bytes();
    let [c, d] = checksum.map_or([NOP, NOP], u16::to_be_bytes);
    put(out, [a, b, c, d]);
}

fn pad(out: &mut EncodedOptions) {
    while out.len() % 4 != 0 {
        put(out, [NOP]);
    }
}
