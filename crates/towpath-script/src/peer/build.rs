//! Packets that the peer sends.

use bytes::Bytes;
use towpath_mptcp::keys;
use towpath_mptcp::wire::{
    AddAddr, DataAck, Dss, DssMapping, Ecn, Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption,
    Options, Payload, Segment, Timestamps,
};

use super::encode::{RawExtras, encode};
use super::{FIRST_TIMESTAMP, KEY, Peer, PeerSubflow};
use crate::script::{
    AddAddressPattern, CapableKeys, CapablePattern, Checksum, DssPattern, JoinPattern, MapPattern,
    OptionName, OptionPattern, PacketPattern, Presence, TimestampPattern, TsEcho,
};

/// Returns the byte at this offset of either stream.
pub fn pattern(offset: u64) -> u8 {
    // No short period, so that misplaced bytes are noticed.
    (offset ^ (offset >> 8).wrapping_mul(31) ^ (offset >> 16).wrapping_mul(17)) as u8
}

impl Peer {
    /// Builds the bytes of a packet and advances the peer's sequence numbers.
    pub fn send(&mut self, number: usize, packet: &PacketPattern) -> Result<Vec<u8>, String> {
        let now_ms = self.now.as_millis() as u32;
        let subflow = self.subflow_mut(number)?;
        if let Some(window) = packet.window {
            subflow.window = window.from as u32;
        }
        let (flags, is_syn) = (packet.flags, packet.flags.contains(Flags::SYN));
        if is_syn {
            subflow.on_own_syn(packet);
        }
        let seq = packet.seq.unwrap_or(subflow.next);
        let len = packet.len.from as usize;
        let stamps = subflow.stamps(packet, now_ms);
        subflow.last_own_timestamp =
            stamps.map_or(subflow.last_own_timestamp, |stamps| stamps.value);
        let line = subflow.clone();

        let mut options = Options { timestamps: stamps, ..Options::default() };
        let mut raw = Vec::new();
        for option in &packet.options {
            self.option(number, option, (flags, seq, len), &mut options, &mut raw)?;
        }
        let payload = self.payload(number, seq, len)?;
        let shift = if is_syn { 0 } else { line.scales().0 };
        let segment = Segment {
            source: line.peer,
            destination: line.host,
            seq: line.peer_isn.wrapping_add(seq),
            ack: if flags.contains(Flags::ACK) {
                line.host_isn.wrapping_add(packet.ack.unwrap_or(line.ack))
            } else {
                0
            },
            flags: if packet.push == Some(true) { flags.with(Flags::PSH) } else { flags },
            window: u16::try_from(line.window >> shift).unwrap_or(u16::MAX),
            ecn: packet.ecn.unwrap_or(Ecn::NotCapable),
            options,
            payload,
            segment_bytes: 0,
        };
        let end = seq.wrapping_add(segment.sequence_bytes());
        let line = self.subflow_mut(number)?;
        if is_syn || end.wrapping_sub(line.next) < 1 << 30 {
            line.next = end;
        }
        let urgent = packet.urgent.unwrap_or(0);
        encode(&segment, RawExtras { raw: &raw, urgent, bad_checksum: packet.bad_checksum })
    }

    fn payload(&self, number: usize, seq: u32, len: usize) -> Result<Payload, String> {
        let (ssn, dsn) = self.subflow(number)?.mapped.unwrap_or((1, 1));
        let first = dsn.wrapping_add(u64::from(seq.wrapping_sub(ssn))).wrapping_sub(1);
        Ok(data(first, len))
    }

    fn option(
        &mut self,
        number: usize,
        option: &OptionPattern,
        place: (Flags, u32, usize),
        out: &mut Options,
        raw: &mut Vec<u8>,
    ) -> Result<(), String> {
        let (flags, _, len) = place;
        let host_key = self.host_key.unwrap_or_default();
        let made = match option {
            OptionPattern::Sack(blocks) => {
                let isn = self.subflow(number)?.host_isn;
                let absolute =
                    |(first, end): &(u32, u32)| (isn.wrapping_add(*first), isn.wrapping_add(*end));
                out.sack.extend(blocks.iter().take(4).map(absolute));
                return Ok(());
            }
            OptionPattern::Mss(_)
            | OptionPattern::WindowScale(_)
            | OptionPattern::SackPermitted
            | OptionPattern::Timestamps(_) => {
                syn_option(option, out);
                return Ok(());
            }
            OptionPattern::Dss(dss) => {
                out.dss = Some(self.dss(number, dss, place)?);
                return Ok(());
            }
            OptionPattern::Raw(bytes) => {
                raw.extend_from_slice(bytes);
                return Ok(());
            }
            OptionPattern::Capable(capable) => {
                let (capable, mapped) = capable_option(capable, flags, len, host_key);
                if mapped {
                    self.subflow_mut(number)?.mapped = Some((1, 1));
                    self.data_next = self.data_next.max(1 + len as u64);
                }
                MptcpOption::Capable(capable)
            }
            OptionPattern::Join(join) => {
                MptcpOption::Join(join_option(*join, flags, self.subflow(number)?, host_key))
            }
            OptionPattern::AddAddress(add) => MptcpOption::AddAddress(add_option(add, host_key)),
            OptionPattern::RemoveAddress(ids) => {
                MptcpOption::RemoveAddress(ids.iter().copied().take(8).collect())
            }
            OptionPattern::Priority { backup } => MptcpOption::Priority { backup: *backup },
            OptionPattern::Fail(dsn) => {
                let offset = dsn.unwrap_or(self.data_ack);
                MptcpOption::Fail { dsn: keys::initial_dsn(host_key).wrapping_add(offset) }
            }
            OptionPattern::FastClose { valid: right } => {
                MptcpOption::FastClose { key: host_key ^ u64::from(!*right) }
            }
            OptionPattern::Reset { reason, transient } => MptcpOption::Reset(MpTcpRst {
                transient: transient.unwrap_or(false),
                reason: reason.unwrap_or(0),
                reserved: 0,
            }),
        };
        out.mptcp.push(made);
        Ok(())
    }

    fn dss(
        &mut self,
        number: usize,
        dss: &DssPattern,
        (_, seq, len): (Flags, u32, usize),
    ) -> Result<Dss, String> {
        let ack = match dss.ack {
            Presence::Default => Some(self.data_ack),
            Presence::Absent => None,
            Presence::Given(offset) => Some(offset),
        };
        let initial = keys::initial_dsn(self.host_key.unwrap_or_default());
        let data_ack = ack.map(|offset| octets(initial.wrapping_add(offset), dss.ack_octets));
        let map = match dss.map {
            Presence::Default if len == 0 && !dss.fin => None,
            Presence::Default => Some(MapPattern::default()),
            Presence::Absent => None,
            Presence::Given(map) => Some(map),
        };
        let Some(map) = map else {
            return Ok(Dss { data_fin: dss.fin, data_ack, mapping: None });
        };
        let dsn = map.dsn.unwrap_or(self.data_next);
        let ssn = map.ssn.unwrap_or(if len == 0 { 0 } else { seq });
        let map_len = map.len.unwrap_or(len as u16 + u16::from(dss.fin));
        if map_len > 0 {
            self.data_next = self.data_next.max(dsn.wrapping_add(map_len.into()));
        }
        if len > 0 {
            self.subflow_mut(number)?.mapped = Some((ssn, dsn));
        }
        let absolute = keys::initial_dsn(KEY).wrapping_add(dsn);
        let wanted = match map.checksum {
            Checksum::None if self.checksums => Checksum::Valid,
            other => other,
        };
        let bytes = data(dsn.wrapping_sub(1), usize::from(map_len) - usize::from(dss.fin));
        let right = keys::dss_checksum(absolute, ssn, map_len, &bytes);
        let checksum = match wanted {
            Checksum::None => None,
            Checksum::Valid => Some(right),
            Checksum::Invalid => Some(right ^ 0x0101),
        };
        let dsn = octets(absolute, map.octets);
        let mapping = Some(DssMapping { dsn, ssn, len: map_len, checksum });
        Ok(Dss { data_fin: dss.fin, data_ack, mapping })
    }
}

/// Adds an option of a SYN; timestamps are already set.
fn syn_option(option: &OptionPattern, out: &mut Options) {
    match option {
        OptionPattern::Mss(mss) => out.mss = Some(mss.unwrap_or(1_460)),
        OptionPattern::WindowScale(shift) => out.window_scale = Some(shift.unwrap_or(0)),
        OptionPattern::SackPermitted => out.sack_permitted = true,
        _ => {}
    }
}

/// Returns bytes of the peer's stream.
fn data(first: u64, len: usize) -> Payload {
    let bytes: Vec<u8> = (first..).take(len).map(pattern).collect();
    Bytes::from(bytes).into()
}

fn octets(number: u64, octets: Option<u8>) -> DataAck {
    match octets {
        Some(4) => DataAck::Short(number as u32),
        Some(_) | None => DataAck::Long(number),
    }
}

impl PeerSubflow {
    fn on_own_syn(&mut self, packet: &PacketPattern) {
        self.own_scale = None;
        self.own_timestamps = false;
        for option in &packet.options {
            match option {
                // Larger shifts than 14 count as 14 (RFC 7323 §2.3).
                OptionPattern::WindowScale(shift) => {
                    self.own_scale = Some(shift.unwrap_or(0).min(14));
                }
                OptionPattern::Timestamps(_) => self.own_timestamps = true,
                _ => {}
            }
        }
        if !packet.flags.contains(Flags::ACK) {
            self.host_timestamps = true;
        }
    }

    /// Returns the timestamps of a packet: from the script, or automatic once both ends have
    /// offered them.
    fn stamps(&self, packet: &PacketPattern, now_ms: u32) -> Option<Timestamps> {
        let given = packet.options.iter().find_map(|option| match option {
            OptionPattern::Timestamps(stamps) => Some(*stamps),
            _ => None,
        });
        let by_itself = self.own_timestamps
            && self.host_timestamps
            && !packet.without.contains(&OptionName::Timestamps);
        let TimestampPattern { value, echo } =
            given.or(by_itself.then_some(TimestampPattern::default()))?;
        let echo = match echo {
            Some(TsEcho::Number(number)) => number,
            Some(TsEcho::Older(less)) => self.last_host_timestamp.wrapping_sub(less),
            None => self.last_host_timestamp,
        };
        Some(Timestamps { value: value.unwrap_or(FIRST_TIMESTAMP.wrapping_add(now_ms)), echo })
    }
}

/// Returns the option, and true if it maps the packet's data.
fn capable_option(
    pattern: &CapablePattern,
    flags: Flags,
    len: usize,
    host_key: u64,
) -> (MpCapable, bool) {
    let usual = match (flags.contains(Flags::SYN), flags.contains(Flags::ACK)) {
        (true, false) => CapableKeys::None,
        (true, true) => CapableKeys::Sender,
        (false, _) => CapableKeys::Both,
    };
    let (sender_key, receiver_key) = match pattern.keys.unwrap_or(usual) {
        CapableKeys::None => (None, None),
        CapableKeys::Sender => (Some(KEY), None),
        CapableKeys::Both => (Some(KEY), Some(host_key)),
        CapableKeys::Wrong => (Some(KEY), Some(host_key ^ 1)),
    };
    let bits = pattern.flags.unwrap_or(1);
    let data_len = pattern.len.or((len > 0 && receiver_key.is_some()).then_some(len as u16));
    let checksum = |len: u16| {
        let right = keys::dss_checksum(
            keys::initial_dsn(KEY).wrapping_add(1),
            1,
            len,
            &data(0, len.into()),
        );
        pattern.checksum.then_some(right)
    };
    let capable = MpCapable {
        version: pattern.version.unwrap_or(1),
        checksum: bits & 0x80 != 0,
        extensibility: bits & 0x40 != 0,
        no_join_to_source: bits & 0x20 != 0,
        hmac_sha256: bits & 0x01 != 0,
        sender_key,
        receiver_key,
        data: data_len.map(|len| (len, checksum(len))),
    };
    (capable, data_len.is_some() && len > 0)
}

fn join_option(pattern: JoinPattern, flags: Flags, line: &PeerSubflow, host_key: u64) -> MpJoin {
    let backup = pattern.backup.unwrap_or(false);
    let address_id = pattern.address_id.unwrap_or(line.path + 1);
    let wrong = !pattern.valid;
    let hmac = keys::join_hmac(KEY, host_key, line.own_nonce, line.host_nonce);
    match (flags.contains(Flags::SYN), flags.contains(Flags::ACK)) {
        (true, false) => {
            let token = keys::token(host_key) ^ u32::from(wrong);
            MpJoin::Syn { backup, address_id, token, nonce: line.own_nonce }
        }
        (true, true) => {
            let hmac = u64::from_be_bytes(hmac.first_chunk().copied().unwrap_or_default());
            let hmac = hmac ^ u64::from(wrong);
            MpJoin::SynAck { backup, address_id, hmac, nonce: line.own_nonce }
        }
        (false, _) => {
            let mut hmac: [u8; 20] = hmac.first_chunk().copied().unwrap_or_default();
            let [first, ..] = &mut hmac;
            *first ^= u8::from(wrong);
            MpJoin::Ack { hmac }
        }
    }
}

fn add_option(pattern: &AddAddressPattern, host_key: u64) -> AddAddr {
    let AddAddressPattern { address_id, address, port, echo, valid: right } = *pattern;
    let hmac = keys::add_address_hmac(KEY, host_key, address_id, address, port);
    let hmac = (!echo).then_some(hmac ^ u64::from(!right));
    AddAddr { address_id, address, port, hmac }
}
