//! Packets that the peer sends.

use bytes::Bytes;
use towpath_wire::keys;
use towpath_wire::{
    AddAddr, DataAck, Dss, DssMapping, Ecn, Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption,
    Options, Payload, Segment, Timestamps,
};

use super::encode::{RawExtras, encode};
use super::{FIRST_TIMESTAMP, PEER_KEY, Peer, PeerSubflow};
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
    /// Builds the bytes of a packet on subflow `number`, and advances the peer's sequence numbers.
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
        let seq = packet.seq.unwrap_or(subflow.next_seq);
        let len = packet.len.from as usize;
        let timestamps = subflow.timestamps(packet, now_ms);
        subflow.last_peer_timestamp =
            timestamps.map_or(subflow.last_peer_timestamp, |timestamps| timestamps.value);
        let subflow = subflow.clone();

        let mut options = Options { timestamps, ..Options::default() };
        let mut raw = Vec::new();
        for option in &packet.options {
            self.add_option(number, option, (flags, seq, len), &mut options, &mut raw)?;
        }
        let payload = self.payload(number, seq, len)?;
        let shift = if is_syn { 0 } else { subflow.scales().0 };
        let segment = Segment {
            source: subflow.peer,
            destination: subflow.host,
            seq: subflow.peer_isn.wrapping_add(seq),
            ack: if flags.contains(Flags::ACK) {
                subflow.host_isn.wrapping_add(packet.ack.unwrap_or(subflow.ack))
            } else {
                0
            },
            flags: if packet.push == Some(true) { flags.with(Flags::PSH) } else { flags },
            window: u16::try_from(subflow.window >> shift).unwrap_or(u16::MAX),
            ecn: packet.ecn.unwrap_or(Ecn::NotCapable),
            options,
            payload,
            segment_bytes: 0,
        };
        let end = seq.wrapping_add(segment.sequence_bytes());
        let subflow = self.subflow_mut(number)?;
        if is_syn || end.wrapping_sub(subflow.next_seq) < 1 << 30 {
            subflow.next_seq = end;
        }
        let urgent = packet.urgent.unwrap_or(0);
        encode(&segment, RawExtras { raw: &raw, urgent, bad_checksum: packet.bad_checksum })
    }

    fn payload(&self, number: usize, seq: u32, len: usize) -> Result<Payload, String> {
        let (ssn, dsn) = self.subflow(number)?.last_mapping.unwrap_or((1, 1));
        let offset = dsn.wrapping_add(u64::from(seq.wrapping_sub(ssn))).wrapping_sub(1);
        Ok(stream_data(offset, len))
    }

    fn add_option(
        &mut self,
        number: usize,
        option: &OptionPattern,
        packet_fields: (Flags, u32, usize),
        out: &mut Options,
        raw: &mut Vec<u8>,
    ) -> Result<(), String> {
        let (flags, _, len) = packet_fields;
        let host_key = self.host_key.unwrap_or_default();
        let mptcp_option = match option {
            OptionPattern::Sack(blocks) => {
                let isn = self.subflow(number)?.host_isn;
                let absolute =
                    |(start, end): &(u32, u32)| (isn.wrapping_add(*start), isn.wrapping_add(*end));
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
                out.dss = Some(self.dss(number, dss, packet_fields)?);
                return Ok(());
            }
            OptionPattern::Raw(bytes) => {
                raw.extend_from_slice(bytes);
                return Ok(());
            }
            OptionPattern::Capable(capable) => {
                let (capable, maps_data) = build_capable(capable, flags, len, host_key);
                if maps_data {
                    self.subflow_mut(number)?.last_mapping = Some((1, 1));
                    self.data_next = self.data_next.max(1 + len as u64);
                }
                MptcpOption::Capable(capable)
            }
            OptionPattern::Join(join) => {
                MptcpOption::Join(build_join(*join, flags, self.subflow(number)?, host_key))
            }
            OptionPattern::AddAddress(add) => {
                MptcpOption::AddAddress(build_add_addr(add, host_key))
            }
            OptionPattern::RemoveAddress(ids) => {
                MptcpOption::RemoveAddress(ids.iter().copied().take(8).collect())
            }
            OptionPattern::Priority { backup } => MptcpOption::Priority { backup: *backup },
            OptionPattern::Fail(dsn) => {
                let offset = dsn.unwrap_or(self.data_ack);
                MptcpOption::Fail { dsn: keys::initial_dsn(host_key).wrapping_add(offset) }
            }
            OptionPattern::FastClose { valid } => {
                MptcpOption::FastClose { key: host_key ^ u64::from(!*valid) }
            }
            OptionPattern::Reset { reason, transient } => MptcpOption::Reset(MpTcpRst {
                transient: transient.unwrap_or(false),
                reason: reason.unwrap_or(0),
                reserved: 0,
            }),
        };
        out.mptcp.push(mptcp_option);
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
        let data_ack = ack.map(|offset| data_number(initial.wrapping_add(offset), dss.ack_octets));
        let mapping_pattern = match dss.map {
            Presence::Default if len == 0 && !dss.fin => None,
            Presence::Default => Some(MapPattern::default()),
            Presence::Absent => None,
            Presence::Given(mapping_pattern) => Some(mapping_pattern),
        };
        let Some(mapping_pattern) = mapping_pattern else {
            return Ok(Dss { data_fin: dss.fin, data_ack, mapping: None });
        };
        let dsn = mapping_pattern.dsn.unwrap_or(self.data_next);
        let ssn = mapping_pattern.ssn.unwrap_or(if len == 0 { 0 } else { seq });
        let map_len = mapping_pattern.len.unwrap_or(len as u16 + u16::from(dss.fin));
        if map_len > 0 {
            self.data_next = self.data_next.max(dsn.wrapping_add(map_len.into()));
        }
        if len > 0 {
            self.subflow_mut(number)?.last_mapping = Some((ssn, dsn));
        }
        let absolute = keys::initial_dsn(PEER_KEY).wrapping_add(dsn);
        let checksum_kind = match mapping_pattern.checksum {
            Checksum::None if self.checksums => Checksum::Valid,
            other => other,
        };
        let bytes = stream_data(dsn.wrapping_sub(1), usize::from(map_len) - usize::from(dss.fin));
        let correct = keys::dss_checksum(absolute, ssn, map_len, &bytes);
        let checksum = match checksum_kind {
            Checksum::None => None,
            Checksum::Valid => Some(correct),
            Checksum::Invalid => Some(correct ^ 0x0101),
        };
        let dsn = data_number(absolute, mapping_pattern.octets);
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
fn stream_data(offset: u64, len: usize) -> Payload {
    let bytes: Vec<u8> = (offset..).take(len).map(pattern).collect();
    Bytes::from(bytes).into()
}

fn data_number(number: u64, octets: Option<u8>) -> DataAck {
    match octets {
        Some(4) => DataAck::Short(number as u32),
        Some(_) | None => DataAck::Long(number),
    }
}

impl PeerSubflow {
    fn on_own_syn(&mut self, packet: &PacketPattern) {
        self.peer_scale = None;
        self.peer_timestamps = false;
        for option in &packet.options {
            match option {
                // Larger shifts than 14 count as 14 (RFC 7323 §2.3).
                OptionPattern::WindowScale(shift) => {
                    self.peer_scale = Some(shift.unwrap_or(0).min(14));
                }
                OptionPattern::Timestamps(_) => self.peer_timestamps = true,
                _ => {}
            }
        }
        if !packet.flags.contains(Flags::ACK) {
            self.host_timestamps = true;
        }
    }

    /// Returns the timestamps of a packet: from the script, or automatic once both ends have
    /// offered them.
    fn timestamps(&self, packet: &PacketPattern, now_ms: u32) -> Option<Timestamps> {
        let scripted = packet.options.iter().find_map(|option| match option {
            OptionPattern::Timestamps(pattern) => Some(*pattern),
            _ => None,
        });
        let automatic = self.peer_timestamps
            && self.host_timestamps
            && !packet.without.contains(&OptionName::Timestamps);
        let TimestampPattern { value, echo } =
            scripted.or(automatic.then_some(TimestampPattern::default()))?;
        let echo = match echo {
            Some(TsEcho::Number(number)) => number,
            Some(TsEcho::Older(difference)) => self.last_host_timestamp.wrapping_sub(difference),
            None => self.last_host_timestamp,
        };
        Some(Timestamps { value: value.unwrap_or(FIRST_TIMESTAMP.wrapping_add(now_ms)), echo })
    }
}

/// Returns the option, and true if it maps the packet's data.
fn build_capable(
    pattern: &CapablePattern,
    flags: Flags,
    len: usize,
    host_key: u64,
) -> (MpCapable, bool) {
    let default_keys = match (flags.contains(Flags::SYN), flags.contains(Flags::ACK)) {
        (true, false) => CapableKeys::None,
        (true, true) => CapableKeys::Sender,
        (false, _) => CapableKeys::Both,
    };
    let (sender_key, receiver_key) = match pattern.keys.unwrap_or(default_keys) {
        CapableKeys::None => (None, None),
        CapableKeys::Sender => (Some(PEER_KEY), None),
        CapableKeys::Both => (Some(PEER_KEY), Some(host_key)),
        CapableKeys::Wrong => (Some(PEER_KEY), Some(host_key ^ 1)),
    };
    let flag_bits = pattern.flags.unwrap_or(1);
    let data_len = pattern.len.or((len > 0 && receiver_key.is_some()).then_some(len as u16));
    let checksum = |len: u16| {
        let correct = keys::dss_checksum(
            keys::initial_dsn(PEER_KEY).wrapping_add(1),
            1,
            len,
            &stream_data(0, len.into()),
        );
        pattern.checksum.then_some(correct)
    };
    let capable = MpCapable {
        version: pattern.version.unwrap_or(1),
        checksum: flag_bits & 0x80 != 0,
        extensibility: flag_bits & 0x40 != 0,
        no_join_to_source: flag_bits & 0x20 != 0,
        hmac_sha256: flag_bits & 0x01 != 0,
        sender_key,
        receiver_key,
        data: data_len.map(|len| (len, checksum(len))),
    };
    (capable, data_len.is_some() && len > 0)
}

fn build_join(pattern: JoinPattern, flags: Flags, subflow: &PeerSubflow, host_key: u64) -> MpJoin {
    let backup = pattern.backup.unwrap_or(false);
    let address_id = pattern.address_id.unwrap_or(subflow.path + 1);
    let invalid = !pattern.valid;
    let hmac = keys::join_hmac(PEER_KEY, host_key, subflow.peer_nonce, subflow.host_nonce);
    match (flags.contains(Flags::SYN), flags.contains(Flags::ACK)) {
        (true, false) => {
            let token = keys::token(host_key) ^ u32::from(invalid);
            MpJoin::Syn { backup, address_id, token, nonce: subflow.peer_nonce }
        }
        (true, true) => {
            let hmac = u64::from_be_bytes(hmac.first_chunk().copied().unwrap_or_default());
            let hmac = hmac ^ u64::from(invalid);
            MpJoin::SynAck { backup, address_id, hmac, nonce: subflow.peer_nonce }
        }
        (false, _) => {
            let mut hmac: [u8; 20] = hmac.first_chunk().copied().unwrap_or_default();
            let [first_byte, ..] = &mut hmac;
            *first_byte ^= u8::from(invalid);
            MpJoin::Ack { hmac }
        }
    }
}

fn build_add_addr(pattern: &AddAddressPattern, host_key: u64) -> AddAddr {
    let AddAddressPattern { address_id, address, port, echo, valid } = *pattern;
    let hmac = keys::add_address_hmac(PEER_KEY, host_key, address_id, address, port);
    let hmac = (!echo).then_some(hmac ^ u64::from(!valid));
    AddAddr { address_id, address, port, hmac }
}
