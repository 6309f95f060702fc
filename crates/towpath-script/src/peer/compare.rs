//! Comparison of a host's packet with the expected one.

use towpath_mptcp::keys;
use towpath_mptcp::wire::{AddAddr, DataAck, Dss, Flags, MpCapable, MpJoin, MptcpOption, Segment};

use super::{KEY, Peer, PeerSubflow};
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
        let line = self.subflow(number)?;
        let flags = segment.flags.without(Flags::PSH);
        expect("the flags", flags == expected.flags)?;
        if let Some(push) = expected.push {
            expect("PSH", segment.flags.contains(Flags::PSH) == push)?;
        }
        let seq = segment.seq.wrapping_sub(line.host_isn);
        expect("the sequence number", expected.seq.is_none_or(|wanted| wanted == seq))?;
        expect("the length", expected.len.contains(segment.payload.len() as u64))?;
        let ack = segment.ack.wrapping_sub(line.peer_isn);
        expect("the acknowledgement number", expected.ack.is_none_or(|wanted| wanted == ack))?;
        let shift = if segment.flags.contains(Flags::SYN) { 0 } else { line.scales().1 };
        let window = u64::from(segment.window) << shift;
        expect("the window", expected.window.is_none_or(|wanted| wanted.contains(window)))?;
        expect("the ECN field", expected.ecn.is_none_or(|wanted| wanted == segment.ecn))?;
        for option in &expected.options {
            self.option_is_there(line, segment, option)?;
        }
        for name in &expected.without {
            expect("an option that must not be there", !has(segment, *name))?;
        }
        self.signatures(line, segment)
    }

    fn option_is_there(
        &self,
        line: &PeerSubflow,
        segment: &Segment,
        expected: &OptionPattern,
    ) -> CompareResult {
        let options = &segment.options;
        let is = |wanted: bool, what: &str| expect(what, wanted);
        match expected {
            OptionPattern::Mss(mss) => {
                is(options.mss.is_some() && (mss.is_none() || *mss == options.mss), "MSS")
            }
            OptionPattern::WindowScale(shift) => {
                let same = shift.is_none() || *shift == options.window_scale;
                is(options.window_scale.is_some() && same, "window scale")
            }
            OptionPattern::SackPermitted => is(options.sack_permitted, "SACK permitted"),
            OptionPattern::Sack(blocks) => {
                let relative = |(first, end): &(u32, u32)| {
                    (first.wrapping_sub(line.peer_isn), end.wrapping_sub(line.peer_isn))
                };
                is(options.sack.iter().map(relative).eq(blocks.iter().copied()), "SACK blocks")
            }
            OptionPattern::Timestamps(stamps) => {
                let Some(found) = options.timestamps else { return Err("timestamps".to_owned()) };
                let right = match stamps.echo {
                    None => true,
                    Some(TsEcho::Number(number)) => found.echo == number,
                    Some(TsEcho::Older(less)) => {
                        found.echo == line.last_own_timestamp.wrapping_sub(less)
                    }
                };
                is(right, "TSecr")
            }
            OptionPattern::Dss(dss) => {
                let Some(found) = options.dss else { return Err("DSS".to_owned()) };
                self.dss_is(&found, dss)
            }
            _ => {
                let fits = |option: &MptcpOption| mptcp_is(option, expected);
                is(options.mptcp.iter().any(fits), "a Multipath TCP option")
            }
        }
    }

    fn dss_is(&self, found: &Dss, expected: &DssPattern) -> CompareResult {
        let ack = found.data_ack.map(Self::own_data_offset);
        match expected.ack {
            Presence::Default => {}
            Presence::Absent => expect("no DATA_ACK", ack.is_none())?,
            Presence::Given(offset) => expect("DATA_ACK", ack == Some(offset))?,
        }
        let octets = |number: Option<DataAck>| match number {
            None => None,
            Some(DataAck::Short(_)) => Some(4),
            Some(DataAck::Long(_)) => Some(8),
        };
        let wanted = expected.ack_octets;
        expect("DATA_ACK's size", wanted.is_none() || wanted == octets(found.data_ack))?;
        expect("DATA_FIN", found.data_fin == expected.fin)?;
        let MapPattern { dsn, ssn, len, octets: wanted, checksum } = match expected.map {
            Presence::Default => return Ok(()),
            Presence::Absent => return expect("no mapping", found.mapping.is_none()),
            Presence::Given(map) => map,
        };
        let Some(map) = found.mapping else { return Err("a mapping".to_owned()) };
        let found_dsn = self.host_data_offset(map.dsn);
        expect("the data sequence number", dsn.is_none_or(|dsn| dsn == found_dsn))?;
        expect("the subflow sequence number", ssn.is_none_or(|ssn| ssn == map.ssn))?;
        expect("the mapping's length", len.is_none_or(|len| len == map.len))?;
        expect("the size of the number", wanted.is_none() || wanted == octets(Some(map.dsn)))?;
        expect("a checksum", checksum != Checksum::Valid || map.checksum.is_some())
    }

    /// Checks the tokens and HMACs, which must always be valid.
    fn signatures(&self, line: &PeerSubflow, segment: &Segment) -> CompareResult {
        let host_key = self.host_key.unwrap_or_default();
        let hmac = keys::join_hmac(host_key, KEY, line.host_nonce, line.own_nonce);
        for option in &segment.options.mptcp {
            match option {
                MptcpOption::Join(MpJoin::Syn { token, .. }) => {
                    expect("the token", *token == keys::token(KEY))?;
                }
                MptcpOption::Join(MpJoin::SynAck { hmac: found, .. }) => {
                    expect("the HMAC", hmac.starts_with(&found.to_be_bytes()))?;
                }
                MptcpOption::Join(MpJoin::Ack { hmac: found }) => {
                    expect("the HMAC", hmac.starts_with(found))?;
                }
                MptcpOption::AddAddress(AddAddr { address_id, address, port, hmac }) => {
                    let right = keys::add_address_hmac(host_key, KEY, *address_id, *address, *port);
                    expect("the HMAC of ADD_ADDR", hmac.is_none_or(|hmac| hmac == right))?;
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

fn expect(what: &str, right: bool) -> CompareResult {
    if right { Ok(()) } else { Err(what.to_owned()) }
}

fn has(segment: &Segment, name: OptionName) -> bool {
    let options = &segment.options;
    let any = |is: fn(&MptcpOption) -> bool| options.mptcp.iter().any(is);
    match name {
        OptionName::Mss => options.mss.is_some(),
        OptionName::WindowScale => options.window_scale.is_some(),
        OptionName::SackPermitted => options.sack_permitted,
        OptionName::Sack => !options.sack.is_empty(),
        OptionName::Timestamps => options.timestamps.is_some(),
        OptionName::Mptcp => options.dss.is_some() || !options.mptcp.is_empty(),
        OptionName::Dss => options.dss.is_some(),
        OptionName::Capable => any(|option| matches!(option, MptcpOption::Capable(_))),
        OptionName::Reset => any(|option| matches!(option, MptcpOption::Reset(_))),
        OptionName::AddAddress => any(|option| matches!(option, MptcpOption::AddAddress(_))),
        OptionName::Fail => any(|option| matches!(option, MptcpOption::Fail { .. })),
        OptionName::FastClose => any(|option| matches!(option, MptcpOption::FastClose { .. })),
    }
}

fn mptcp_is(found: &MptcpOption, expected: &OptionPattern) -> bool {
    match (found, expected) {
        (MptcpOption::Capable(found), OptionPattern::Capable(wanted)) => capable_is(found, wanted),
        (MptcpOption::Join(found), OptionPattern::Join(wanted)) => join_is(found, *wanted),
        (MptcpOption::AddAddress(found), OptionPattern::AddAddress(wanted)) => {
            (found.address_id, found.address, found.port, found.hmac.is_none())
                == (wanted.address_id, wanted.address, wanted.port, wanted.echo)
        }
        (MptcpOption::RemoveAddress(found), OptionPattern::RemoveAddress(wanted)) => {
            found.as_slice() == wanted
        }
        (MptcpOption::Priority { backup: found }, OptionPattern::Priority { backup }) => {
            found == backup
        }
        (MptcpOption::Fail { dsn }, OptionPattern::Fail(wanted)) => {
            wanted.is_none_or(|offset| offset == Peer::own_data_offset(DataAck::Long(*dsn)))
        }
        (MptcpOption::FastClose { key }, OptionPattern::FastClose { valid: right }) => {
            (*key == KEY) == *right
        }
        (MptcpOption::Reset(found), OptionPattern::Reset { reason, transient }) => {
            reason.is_none_or(|reason| reason == found.reason)
                && transient.is_none_or(|transient| transient == found.transient)
        }
        _ => false,
    }
}

fn capable_is(found: &MpCapable, wanted: &CapablePattern) -> bool {
    let bits = [
        (found.checksum, 0x80),
        (found.extensibility, 0x40),
        (found.no_join_to_source, 0x20),
        (found.hmac_sha256, 0x01),
    ];
    let bits = bits.iter().filter(|(set, _)| *set).fold(0, |all, (_, bit)| all | bit);
    let keys = match (found.sender_key, found.receiver_key) {
        (None, _) => CapableKeys::None,
        (Some(_), None) => CapableKeys::Sender,
        (Some(_), Some(KEY)) => CapableKeys::Both,
        (Some(_), Some(_)) => CapableKeys::Wrong,
    };
    wanted.version.is_none_or(|version| version == found.version)
        && wanted.flags.is_none_or(|flags| flags == bits)
        && wanted.keys.is_none_or(|wanted| wanted == keys)
        && wanted.len.is_none_or(|len| found.data.is_some_and(|(found, _)| found == len))
        && (!wanted.checksum || found.data.is_some_and(|(_, checksum)| checksum.is_some()))
}

fn join_is(found: &MpJoin, wanted: JoinPattern) -> bool {
    match found {
        MpJoin::Syn { backup, address_id, .. } | MpJoin::SynAck { backup, address_id, .. } => {
            wanted.backup.is_none_or(|wanted| wanted == *backup)
                && wanted.address_id.is_none_or(|wanted| wanted == *address_id)
        }
        MpJoin::Ack { .. } => true,
    }
}
