//! Comparison of a host's packet with the expected one.

use towpath_wire::keys;
use towpath_wire::{AddAddr, DataAck, Dss, Flags, MpCapable, MpJoin, MptcpOption, Segment};

use super::{PEER_KEY, Peer, PeerSubflow};
use crate::script::{
    CapableKeys, CapablePattern, Checksum, DssPattern, JoinPattern, MapPattern, OptionName,
    OptionPattern, PacketPattern, Presence, TsEcho,
};

type CompareResult = Result<(), String>;

impl Peer {
    /// Returns the name of the first field that differs as an error.
    pub fn compare(
        &self,
        number: usize,
        segment: &Segment,
        expected: &PacketPattern,
    ) -> CompareResult {
        let subflow = self.subflow(number)?;
        let flags = segment.flags.without(Flags::PSH);
        check_field("the flags", flags == expected.flags)?;
        if let Some(push) = expected.push {
            check_field("PSH", segment.flags.contains(Flags::PSH) == push)?;
        }
        let seq = segment.seq.wrapping_sub(subflow.host_isn);
        check_field("the sequence number", expected.seq.is_none_or(|number| number == seq))?;
        check_field("the length", expected.len.contains(segment.payload.len() as u64))?;
        let ack = segment.ack.wrapping_sub(subflow.peer_isn);
        check_field("the acknowledgement number", expected.ack.is_none_or(|number| number == ack))?;
        let shift = if segment.flags.contains(Flags::SYN) { 0 } else { subflow.scales().1 };
        let window = u64::from(segment.window) << shift;
        check_field("the window", expected.window.is_none_or(|range| range.contains(window)))?;
        check_field("the ECN field", expected.ecn.is_none_or(|ecn| ecn == segment.ecn))?;
        for option in &expected.options {
            self.check_option(subflow, segment, option)?;
        }
        for name in &expected.without {
            check_field("an option that must not be there", !has_option(segment, *name))?;
        }
        self.check_tokens_and_hmacs(subflow, segment)
    }

    fn check_option(
        &self,
        subflow: &PeerSubflow,
        segment: &Segment,
        expected: &OptionPattern,
    ) -> CompareResult {
        let options = &segment.options;
        let check = |matches: bool, name: &str| check_field(name, matches);
        match expected {
            OptionPattern::Mss(mss) => {
                check(options.mss.is_some() && (mss.is_none() || *mss == options.mss), "MSS")
            }
            OptionPattern::WindowScale(shift) => {
                let matches = shift.is_none() || *shift == options.window_scale;
                check(options.window_scale.is_some() && matches, "window scale")
            }
            OptionPattern::SackPermitted => check(options.sack_permitted, "SACK permitted"),
            OptionPattern::Sack(blocks) => {
                let relative = |(start, end): &(u32, u32)| {
                    (start.wrapping_sub(subflow.peer_isn), end.wrapping_sub(subflow.peer_isn))
                };
                check(options.sack.iter().map(relative).eq(blocks.iter().copied()), "SACK blocks")
            }
            OptionPattern::Timestamps(stamps) => {
                let Some(actual) = options.timestamps else { return Err("timestamps".to_owned()) };
                let matches = match stamps.echo {
                    None => true,
                    Some(TsEcho::Number(number)) => actual.echo == number,
                    Some(TsEcho::Older(difference)) => {
                        actual.echo == subflow.last_peer_timestamp.wrapping_sub(difference)
                    }
                };
                check(matches, "TSecr")
            }
            OptionPattern::Dss(dss) => {
                let Some(actual) = options.dss else { return Err("DSS".to_owned()) };
                self.compare_dss(&actual, dss)
            }
            _ => {
                let matches = |option: &MptcpOption| mptcp_matches(option, expected);
                check(options.mptcp.iter().any(matches), "a Multipath TCP option")
            }
        }
    }

    fn compare_dss(&self, actual: &Dss, expected: &DssPattern) -> CompareResult {
        let ack = actual.data_ack.map(Self::peer_data_offset);
        match expected.ack {
            Presence::Default => {}
            Presence::Absent => check_field("no DATA_ACK", ack.is_none())?,
            Presence::Given(offset) => check_field("DATA_ACK", ack == Some(offset))?,
        }
        let octets = |number: Option<DataAck>| match number {
            None => None,
            Some(DataAck::Short(_)) => Some(4),
            Some(DataAck::Long(_)) => Some(8),
        };
        let ack_octets = expected.ack_octets;
        check_field(
            "DATA_ACK's size",
            ack_octets.is_none() || ack_octets == octets(actual.data_ack),
        )?;
        check_field("DATA_FIN", actual.data_fin == expected.fin)?;
        let MapPattern { dsn, ssn, len, octets: dsn_octets, checksum } = match expected.map {
            Presence::Default => return Ok(()),
            Presence::Absent => return check_field("no mapping", actual.mapping.is_none()),
            Presence::Given(map) => map,
        };
        let Some(mapping) = actual.mapping else { return Err("a mapping".to_owned()) };
        let actual_dsn = self.host_data_offset(mapping.dsn);
        check_field("the data sequence number", dsn.is_none_or(|dsn| dsn == actual_dsn))?;
        check_field("the subflow sequence number", ssn.is_none_or(|ssn| ssn == mapping.ssn))?;
        check_field("the mapping's length", len.is_none_or(|len| len == mapping.len))?;
        check_field(
            "the size of the number",
            dsn_octets.is_none() || dsn_octets == octets(Some(mapping.dsn)),
        )?;
        check_field("a checksum", checksum != Checksum::Valid || mapping.checksum.is_some())
    }

    /// Checks the tokens and HMACs, which must always be valid.
    fn check_tokens_and_hmacs(&self, subflow: &PeerSubflow, segment: &Segment) -> CompareResult {
        let host_key = self.host_key.unwrap_or_default();
        let hmac = keys::join_hmac(host_key, PEER_KEY, subflow.host_nonce, subflow.peer_nonce);
        for option in &segment.options.mptcp {
            match option {
                MptcpOption::Join(MpJoin::Syn { token, .. }) => {
                    check_field("the token", *token == keys::token(PEER_KEY))?;
                }
                MptcpOption::Join(MpJoin::SynAck { hmac: received, .. }) => {
                    check_field("the HMAC", hmac.starts_with(&received.to_be_bytes()))?;
                }
                MptcpOption::Join(MpJoin::Ack { hmac: received }) => {
                    check_field("the HMAC", hmac.starts_with(received))?;
                }
                MptcpOption::AddAddress(AddAddr { address_id, address, port, hmac }) => {
                    let expected =
                        keys::add_address_hmac(host_key, PEER_KEY, *address_id, *address, *port);
                    check_field("the HMAC of ADD_ADDR", hmac.is_none_or(|hmac| hmac == expected))?;
                }
                MptcpOption::Capable(_)
                | MptcpOption::RemoveAddress(_)
                | MptcpOption::Priority { .. }
                | MptcpOption::Fail { .. }
                | MptcpOption::FastClose { .. }
                | MptcpOption::Reset(_)
                | MptcpOption::Unknown { .. } => {}
            }
        }
        Ok(())
    }
}

fn check_field(field: &str, matches: bool) -> CompareResult {
    if matches { Ok(()) } else { Err(field.to_owned()) }
}

fn has_option(segment: &Segment, name: OptionName) -> bool {
    let options = &segment.options;
    let has_mptcp = |predicate: fn(&MptcpOption) -> bool| options.mptcp.iter().any(predicate);
    match name {
        OptionName::Mss => options.mss.is_some(),
        OptionName::WindowScale => options.window_scale.is_some(),
        OptionName::SackPermitted => options.sack_permitted,
        OptionName::Sack => !options.sack.is_empty(),
        OptionName::Timestamps => options.timestamps.is_some(),
        OptionName::Mptcp => options.dss.is_some() || !options.mptcp.is_empty(),
        OptionName::Dss => options.dss.is_some(),
        OptionName::Capable => has_mptcp(|option| matches!(option, MptcpOption::Capable(_))),
        OptionName::Reset => has_mptcp(|option| matches!(option, MptcpOption::Reset(_))),
        OptionName::AddAddress => has_mptcp(|option| matches!(option, MptcpOption::AddAddress(_))),
        OptionName::Fail => has_mptcp(|option| matches!(option, MptcpOption::Fail { .. })),
        OptionName::FastClose => {
            has_mptcp(|option| matches!(option, MptcpOption::FastClose { .. }))
        }
    }
}

fn mptcp_matches(actual: &MptcpOption, expected: &OptionPattern) -> bool {
    match (actual, expected) {
        (MptcpOption::Capable(actual), OptionPattern::Capable(pattern)) => {
            capable_matches(actual, pattern)
        }
        (MptcpOption::Join(actual), OptionPattern::Join(pattern)) => join_matches(actual, *pattern),
        (MptcpOption::AddAddress(actual), OptionPattern::AddAddress(pattern)) => {
            (actual.address_id, actual.address, actual.port, actual.hmac.is_none())
                == (pattern.address_id, pattern.address, pattern.port, pattern.echo)
        }
        (MptcpOption::RemoveAddress(actual), OptionPattern::RemoveAddress(pattern)) => {
            actual.as_slice() == pattern
        }
        (MptcpOption::Priority { backup: actual }, OptionPattern::Priority { backup }) => {
            actual == backup
        }
        (MptcpOption::Fail { dsn }, OptionPattern::Fail(pattern)) => {
            pattern.is_none_or(|offset| offset == Peer::peer_data_offset(DataAck::Long(*dsn)))
        }
        (MptcpOption::FastClose { key }, OptionPattern::FastClose { valid }) => {
            (*key == PEER_KEY) == *valid
        }
        (MptcpOption::Reset(actual), OptionPattern::Reset { reason, transient }) => {
            reason.is_none_or(|reason| reason == actual.reason)
                && transient.is_none_or(|transient| transient == actual.transient)
        }
        _ => false,
    }
}

fn capable_matches(actual: &MpCapable, pattern: &CapablePattern) -> bool {
    let flag_bits = [
        (actual.checksum, 0x80),
        (actual.extensibility, 0x40),
        (actual.no_join_to_source, 0x20),
        (actual.hmac_sha256, 0x01),
    ];
    let flag_bits = flag_bits.iter().filter(|(set, _)| *set).fold(0, |bits, (_, bit)| bits | bit);
    let keys = match (actual.sender_key, actual.receiver_key) {
        (None, _) => CapableKeys::None,
        (Some(_), None) => CapableKeys::Sender,
        (Some(_), Some(PEER_KEY)) => CapableKeys::Both,
        (Some(_), Some(_)) => CapableKeys::Wrong,
    };
    pattern.version.is_none_or(|version| version == actual.version)
        && pattern.flags.is_none_or(|flags| flags == flag_bits)
        && pattern.keys.is_none_or(|pattern| pattern == keys)
        && pattern.len.is_none_or(|len| actual.data.is_some_and(|(actual, _)| actual == len))
        && (!pattern.checksum || actual.data.is_some_and(|(_, checksum)| checksum.is_some()))
}

fn join_matches(actual: &MpJoin, pattern: JoinPattern) -> bool {
    match actual {
        MpJoin::Syn { backup, address_id, .. } | MpJoin::SynAck { backup, address_id, .. } => {
            pattern.backup.is_none_or(|pattern| pattern == *backup)
                && pattern.address_id.is_none_or(|pattern| pattern == *address_id)
        }
        MpJoin::Ack { .. } => true,
    }
}
