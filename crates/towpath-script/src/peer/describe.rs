//! Packets in the language of scripts, for traces and error messages.

use std::fmt::Write as _;

use towpath_wire::{DataAck, Dss, Ecn, Flags, MpCapable, MpJoin, MptcpOption, Segment};

use super::Peer;

impl Peer {
    /// Formats a packet of the host as the script line that would expect it.
    pub fn describe(&self, number: usize, segment: &Segment) -> String {
        let Ok(subflow) = self.subflow(number) else { return format!("{segment:?}") };
        let mut text = if number == 0 { "> ".to_owned() } else { format!("{number}> ") };
        for (flag, name) in [
            (Flags::SYN, "SYN "),
            (Flags::FIN, "FIN "),
            (Flags::RST, "RST "),
            (Flags::ACK, "ACK "),
            (Flags::PSH, "PSH "),
            (Flags::URG, "URG "),
            (Flags::ECE, "ECE "),
            (Flags::CWR, "CWR "),
        ] {
            if segment.flags.contains(flag) {
                text.push_str(name);
            }
        }
        let seq = segment.seq.wrapping_sub(subflow.host_isn);
        let len = segment.payload.len();
        let signed = |number: u32| i64::from(number.cast_signed());
        let _ = if len > 0 {
            write!(text, "{}:{}", signed(seq), signed(seq) + i64::try_from(len).unwrap_or(0))
        } else {
            write!(text, "{}", signed(seq))
        };
        if segment.flags.contains(Flags::ACK) {
            let _ = write!(text, " ack {}", signed(segment.ack.wrapping_sub(subflow.peer_isn)));
        }
        let shift = if segment.flags.contains(Flags::SYN) { 0 } else { subflow.scales().1 };
        let _ = write!(text, " win {}", u32::from(segment.window) << shift);
        match segment.ecn {
            Ecn::NotCapable => {}
            Ecn::Capable0 => text.push_str(" ect0"),
            Ecn::Capable1 => text.push_str(" ect1"),
            Ecn::Marked => text.push_str(" ce"),
        }
        let options = self.options(segment, subflow.peer_isn);
        if !options.is_empty() {
            let _ = write!(text, " <{}>", options.join(", "));
        }
        text
    }

    fn options(&self, segment: &Segment, peer_isn: u32) -> Vec<String> {
        let mut texts = Vec::new();
        let options = &segment.options;
        texts.extend(options.mss.map(|mss| format!("mss {mss}")));
        texts.extend(options.sack_permitted.then(|| "sackok".to_owned()));
        texts.extend(options.timestamps.map(|ts| format!("ts {} {}", ts.value, ts.echo)));
        texts.extend(options.window_scale.map(|shift| format!("wscale {shift}")));
        if !options.sack.is_empty() {
            let block = |(start, end): &(u32, u32)| {
                let signed = |number: &u32| number.wrapping_sub(peer_isn).cast_signed();
                format!(" {}:{}", signed(start), signed(end))
            };
            texts.push(format!("sack{}", options.sack.iter().map(block).collect::<String>()));
        }
        texts.extend(options.dss.map(|dss| self.dss_text(&dss)));
        texts.extend(options.mptcp.iter().map(Self::option_text));
        texts
    }

    fn dss_text(&self, dss: &Dss) -> String {
        let mut text = "dss".to_owned();
        if let Some(ack) = dss.data_ack {
            let octets = if matches!(ack, DataAck::Short(_)) { "ack4" } else { "ack8" };
            let _ = write!(text, " ack {} {octets}", Self::peer_data_offset(ack));
        }
        if let Some(map) = dss.mapping {
            let octets = if matches!(map.dsn, DataAck::Short(_)) { "dsn4" } else { "dsn8" };
            let dsn = self.host_data_offset(map.dsn);
            let _ = write!(text, " dsn {dsn} {octets} ssn {} len {}", map.ssn, map.len);
            if map.checksum.is_some() {
                text.push_str(" csum");
            }
        }
        if dss.data_fin {
            text.push_str(" fin");
        }
        text
    }

    fn option_text(option: &MptcpOption) -> String {
        match option {
            MptcpOption::Capable(capable) => capable_text(capable),
            MptcpOption::Join(
                MpJoin::Syn { backup, address_id, .. } | MpJoin::SynAck { backup, address_id, .. },
            ) => {
                format!("mp_join id {address_id} {}", if *backup { "backup" } else { "regular" })
            }
            MptcpOption::Join(MpJoin::Ack { .. }) => "mp_join".to_owned(),
            MptcpOption::AddAddress(add_addr) => {
                let port = add_addr.port.map(|port| format!(":{port}")).unwrap_or_default();
                let echo = if add_addr.hmac.is_none() { " echo" } else { "" };
                format!("add_addr {}{port} id {}{echo}", add_addr.address, add_addr.address_id)
            }
            MptcpOption::RemoveAddress(ids) => {
                ids.iter().fold("remove_addr".to_owned(), |text, id| format!("{text} {id}"))
            }
            MptcpOption::Priority { backup } => {
                format!("mp_prio {}", if *backup { "backup" } else { "regular" })
            }
            MptcpOption::Fail { dsn } => {
                format!("mp_fail {}", Self::peer_data_offset(DataAck::Long(*dsn)))
            }
            MptcpOption::FastClose { key } => {
                format!("mp_fastclose{}", if *key == super::PEER_KEY { "" } else { " bad" })
            }
            MptcpOption::Reset(reset) => {
                let transient = if reset.transient { "transient" } else { "final" };
                format!("mp_tcprst {} {transient}", reset.reason)
            }
            MptcpOption::Unknown { subtype, body } => format!("unknown {subtype} {body:?}"),
        }
    }
}

fn capable_text(capable: &MpCapable) -> String {
    let mut text = format!("mp_capable version {}", capable.version);
    let keys = match (capable.sender_key, capable.receiver_key) {
        (None, _) => "none",
        (Some(_), None) => "one",
        (Some(_), Some(super::PEER_KEY)) => "both",
        (Some(_), Some(_)) => "wrong",
    };
    let _ = write!(text, " keys {keys} flags ");
    for (is_set, letter) in [
        (capable.checksum, 'A'),
        (capable.extensibility, 'B'),
        (capable.no_join_to_source, 'C'),
        (capable.hmac_sha256, 'H'),
    ] {
        if is_set {
            text.push(letter);
        }
    }
    if let Some((len, checksum)) = capable.data {
        let _ = write!(text, " len {len}{}", if checksum.is_some() { " csum" } else { "" });
    }
    text
}
