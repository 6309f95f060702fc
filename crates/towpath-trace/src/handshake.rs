//! SYNs, keys and joins, and the options of path managers (RFC 8684 §3.1, §3.2, §3.4 to §3.7).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use sha1::{Digest, Sha1};
use towpath_wire::keys;
use towpath_wire::{AddAddr, Flags, MpCapable, MpJoin, MpTcpRst, MptcpOption};

use super::connection::{FallbackReason, MAX_EARLY_NOTES, NoteContext, NoteKind, TracedSubflow};
use super::data_stream::SendContext;
use super::direction::WindowScale;
use super::layers::CutOptions;
use super::ranges::SeqRange;
use super::tracker::{LocatedSegment, Tracker};

impl Tracker {
    /// Processes the parts of a segment that concern connections and subflows themselves.
    pub(super) fn on_handshake_options(&mut self, located: &LocatedSegment<'_>) {
        let flags = located.segment.flags;
        if flags.contains(Flags::SYN)
            && let Some(subflow) = self.subflows.get_mut(located.subflow)
        {
            let opener = located.side ^ usize::from(flags.contains(Flags::ACK));
            subflow.on_first_syn(opener, located.now_ns);
        }
        // The ends may have been swapped.
        let side = self.side(located.subflow, located.segment.source).unwrap_or(located.side);
        let located = &LocatedSegment { side, ..*located };
        match (flags.contains(Flags::SYN), flags.contains(Flags::ACK)) {
            (true, false) => self.on_syn(located),
            (true, true) => self.on_syn_ack(located),
            (false, _) => self.on_segment_after_syn(located),
        }
        for option in &located.options.mptcp {
            self.on_option(located, option);
        }
        if self.subflows.get(located.subflow).is_some_and(|s| s.is_v0) {
            self.add_addr_v0(located);
        }
        if flags.contains(Flags::RST) {
            self.on_reset(located);
        }
    }

    fn on_syn(&mut self, located: &LocatedSegment<'_>) {
        let capable = find_mp_capable(located);
        let join = located.options.mptcp.iter().find_map(|option| {
            let MptcpOption::Join(MpJoin::Syn { backup, address_id, token, .. }) = option else {
                return None;
            };
            Some((*backup, *address_id, *token))
        });
        let Some(subflow) = self.subflows.get_mut(located.subflow) else { return };
        subflow.syn_ns.get_or_insert(located.now_ns);
        subflow.syns += 1;
        let cut_subtype = cut_subtype(located.cut);
        subflow.capable_syns += u32::from(capable.is_some() || cut_subtype == Some(MP_CAPABLE));
        subflow.is_join |= cut_subtype == Some(MP_JOIN);
        let is_retry_without_option = subflow.capable_syns > 0
            && capable.is_none()
            && join.is_none()
            && located.cut.is_none();
        on_syn_options(subflow, located);
        let is_known = subflow.connection.is_some();
        if let Some((backup, address_id, token)) = join {
            subflow.is_join = true;
            subflow.backup = backup;
            subflow.token = Some(token);
            if let Some(id) = subflow.address_ids.get_mut(located.side) {
                *id = Some(address_id);
            }
            if let (false, Some(&(connection, end))) = (is_known, self.tokens.get(&token)) {
                // The token is the receiver's, so the sender is the other end.
                self.attach(located.subflow, connection as usize, end == located.side);
            }
            self.on_joined_address(located, address_id);
            return;
        }
        if !is_known {
            self.connect_first(located, capable);
        } else if is_retry_without_option {
            self.fall_back_subflow(located.subflow, FallbackReason::SynsUnanswered, located.now_ns);
        }
    }

    /// Creates a connection whose first subflow sent a SYN or SYN/ACK.
    fn connect_first(&mut self, located: &LocatedSegment<'_>, capable: Option<MpCapable>) {
        let connection = self.connect(located.subflow, located.now_ns);
        match capable {
            Some(capable) => self.on_offer(connection, &capable),
            None => self.fall_back(connection, located.subflow, None, located.now_ns),
        }
    }

    fn on_offer(&mut self, connection: usize, capable: &MpCapable) {
        if let Some(state) = self.connections.get_mut(connection) {
            state.multipath = true;
            state.version = Some(capable.version);
        }
    }

    fn on_syn_ack(&mut self, located: &LocatedSegment<'_>) {
        let capable = find_mp_capable(located);
        let join = located.options.mptcp.iter().find_map(|option| {
            let MptcpOption::Join(MpJoin::SynAck { address_id, backup, .. }) = option else {
                return None;
            };
            Some((*address_id, *backup))
        });
        let Some(subflow) = self.subflows.get_mut(located.subflow) else { return };
        subflow.answered_ns.get_or_insert(located.now_ns);
        on_syn_options(subflow, located);
        if located.cut.is_some() {
            // The option may be in the part that was not captured.
            subflow.join_answered = true;
        }
        if let Some((address_id, backup)) = join {
            subflow.join_answered = true;
            subflow.is_join = true;
            subflow.backup |= backup;
            if let Some(id) = subflow.address_ids.get_mut(located.side) {
                *id = Some(address_id);
            }
            self.on_joined_address(located, address_id);
            return;
        }
        if subflow.is_join {
            return;
        }
        let was_offered = subflow.capable_syns > 0;
        if subflow.connection.is_none() {
            self.connect_first(located, capable);
        } else if was_offered && capable.is_none() && located.cut.is_none() {
            self.fall_back_subflow(located.subflow, FallbackReason::NotAnswered, located.now_ns);
        }
    }

    /// Processes a segment after the SYNs.
    fn on_segment_after_syn(&mut self, located: &LocatedSegment<'_>) {
        let Some(subflow) = self.subflows.get_mut(located.subflow) else { return };
        if subflow.established_ns.is_none() && !located.segment.flags.contains(Flags::RST) {
            subflow.established_ns = Some(located.now_ns);
            let is_unanswered_join =
                subflow.is_join && subflow.answered_ns.is_some() && !subflow.join_answered;
            if is_unanswered_join {
                let text = "its SYN/ACK has no MP_JOIN".to_owned();
                self.add_note(located, NoteKind::Subflow, text);
            }
        }
    }

    fn on_option(&mut self, located: &LocatedSegment<'_>, option: &MptcpOption) {
        let name = match option {
            MptcpOption::Capable(_) => "MP_CAPABLE",
            MptcpOption::Join(_) => "MP_JOIN",
            MptcpOption::AddAddress(_) => "ADD_ADDR",
            MptcpOption::RemoveAddress(_) => "REMOVE_ADDR",
            MptcpOption::Priority { .. } => "MP_PRIO",
            MptcpOption::Fail { .. } => "MP_FAIL",
            MptcpOption::FastClose { .. } => "MP_FASTCLOSE",
            MptcpOption::Reset(_) => "MP_TCPRST",
            MptcpOption::Unknown { .. } => "unknown",
        };
        let text = match option {
            MptcpOption::Capable(capable) => {
                self.on_mp_capable(located, capable);
                None
            }
            MptcpOption::Join(_) => None,
            MptcpOption::AddAddress(add) => {
                self.on_announced_address(located, add);
                Some(add_addr_text(add))
            }
            MptcpOption::RemoveAddress(ids) => {
                self.on_removed_addresses(located, ids);
                let ids: Vec<_> = ids.iter().map(u8::to_string).collect();
                Some(format!("REMOVE_ADDR of {}", ids.join(", ")))
            }
            MptcpOption::Priority { backup } => {
                if let Some(subflow) = self.subflows.get_mut(located.subflow) {
                    subflow.backup = *backup;
                }
                let priority = if *backup { "a backup" } else { "not a backup any more" };
                Some(format!("MP_PRIO: the subflow is {priority}"))
            }
            MptcpOption::Fail { .. } => {
                if let Some((_, connection)) = self.subflow_and_connection(located.subflow) {
                    connection.failed = Some(FallbackReason::Checksum);
                }
                Some("MP_FAIL: wrong checksum".to_owned())
            }
            MptcpOption::FastClose { .. } => {
                Some("MP_FASTCLOSE: the connection is aborted".to_owned())
            }
            MptcpOption::Reset(reset) => {
                if let Some(subflow) = self.subflows.get_mut(located.subflow) {
                    subflow.reset_reason = Some(*reset);
                }
                None
            }
            MptcpOption::Unknown { subtype, .. } => Some(format!("an option of subtype {subtype}")),
        };
        if let Some((_, connection)) = self.subflow_and_connection(located.subflow) {
            *connection.options.entry(name).or_default() += 1;
        } else if let Some(subflow) = self.subflows.get_mut(located.subflow) {
            *subflow.early_options.entry(name).or_default() += 1;
        }
        if let Some(text) = text {
            self.add_note(located, NoteKind::PathManager, text);
        }
    }

    /// Processes keys and tokens, and the mapping that MP_CAPABLE may contain (RFC 8684 §3.1).
    fn on_mp_capable(&mut self, located: &LocatedSegment<'_>, capable: &MpCapable) {
        let (side, now_ns) = (located.side, located.now_ns);
        if self.subflows.get(located.subflow).is_some_and(|s| s.connection.is_none()) {
            let connection = self.connect(located.subflow, now_ns);
            self.on_offer(connection, capable);
            if let Some(state) = self.connections.get_mut(connection) {
                state.late = true;
            }
        }
        let Some((subflow, connection)) = self.subflow_and_connection(located.subflow) else {
            return;
        };
        let index = subflow.connection.unwrap_or(0);
        connection.checksum |= capable.checksum;
        if located.segment.flags.contains(Flags::ACK) {
            // A server that receives a higher version replies with its own.
            connection.version = Some(capable.version);
        }
        subflow.is_v0 = connection.version == Some(0);
        let keys_by_end = [(side, capable.sender_key), (1 - side, capable.receiver_key)];
        let (mut tokens, mut changed_keys) = (Vec::new(), Vec::new());
        for (end, key) in keys_by_end {
            let (Some(key), Some(stored)) = (key, connection.keys.get_mut(end)) else { continue };
            match stored.replace(key) {
                Some(previous) if previous == key => continue,
                Some(_) => changed_keys.push(end),
                None => {}
            }
            let (token, first) = token_and_first_dsn(key, capable.version);
            if let Some(data) = connection.data.get_mut(end) {
                data.begin(first);
            }
            tokens.push((token, (index, end)));
        }
        if let Some((len, _)) = capable.data
            && let Some(direction) = subflow.directions.get_mut(side)
        {
            direction.maps.add(SeqRange::new(0, i64::from(len)), 0);
            let context = SendContext { now_ns, subflow: subflow.number };
            if let Some(data) = connection.data.get_mut(side) {
                direction.map_earlier_payload(data, context);
            }
        }
        self.tokens.extend(tokens);
        for end in changed_keys {
            let name = if end == 0 { "opener" } else { "other end" };
            let text = format!(
                "the key of the {name} has changed: a middlebox or a second connection wrote it"
            );
            self.add_note(located, NoteKind::Subflow, text);
        }
    }

    fn on_reset(&mut self, located: &LocatedSegment<'_>) {
        let Some(subflow) = self.subflows.get_mut(located.subflow) else { return };
        if subflow.reset_ns.is_some() {
            return;
        }
        subflow.reset_ns = Some(located.now_ns);
        let text = match subflow.reset_reason {
            Some(reset) => format!("RST: {}", reset_text(reset)),
            None => "RST".to_owned(),
        };
        self.add_note(located, NoteKind::Subflow, text);
    }

    /// Parses ADD_ADDR of RFC 6824 §3.4.1, without HMAC and echo; the other parser does not know
    /// the version.
    fn add_addr_v0(&mut self, located: &LocatedSegment<'_>) {
        let mut remaining = located.segment.options;
        loop {
            let option = match *remaining {
                [] | [0, ..] | [_] => return,
                [1, ref tail @ ..] => {
                    remaining = tail;
                    continue;
                }
                [_, len, ..] => match remaining.split_at_checked(usize::from(len.max(2))) {
                    Some((option, tail)) => {
                        remaining = tail;
                        option
                    }
                    None => return,
                },
            };
            let &[30, _, first, id, ref body @ ..] = option else { continue };
            if first >> 4 != 3 {
                continue;
            }
            let address = match (first & 0xf, body) {
                (4, [a, b, c, d, ..]) => IpAddr::V4(Ipv4Addr::new(*a, *b, *c, *d)),
                (6, body) => match body.first_chunk::<16>() {
                    Some(octets) => IpAddr::V6(Ipv6Addr::from(*octets)),
                    None => continue,
                },
                _ => continue,
            };
            let text = format!("ADD_ADDR {id}: {address}");
            if let Some((_, connection)) = self.subflow_and_connection(located.subflow) {
                *connection.options.entry("ADD_ADDR").or_default() += 1;
            }
            self.add_note(located, NoteKind::PathManager, text);
        }
    }

    pub(super) fn add_note(&mut self, located: &LocatedSegment<'_>, kind: NoteKind, text: String) {
        let LocatedSegment { now_ns, side, .. } = *located;
        if let Some((subflow, connection)) = self.subflow_and_connection(located.subflow) {
            connection.add_note(NoteContext { now_ns, subflow: subflow.number, side, kind }, text);
        } else if let Some(subflow) = self.subflows.get_mut(located.subflow)
            && subflow.early_notes.len() < MAX_EARLY_NOTES
        {
            subflow.early_notes.push((NoteContext { now_ns, subflow: 0, side, kind }, text));
        }
    }
}

/// Subtypes of Multipath TCP options (RFC 8684 §3.1, §3.2).
const MP_CAPABLE: u8 = 0;
const MP_JOIN: u8 = 1;

/// Returns the subtype of a Multipath TCP option that was captured only in part.
fn cut_subtype(cut: Option<CutOptions>) -> Option<u8> {
    let Some(CutOptions::Multipath(subtype)) = cut else { return None };
    subtype
}

/// Records the sequence number and the TCP options of a SYN. Options that were not captured stay
/// unknown.
fn on_syn_options(subflow: &mut TracedSubflow, located: &LocatedSegment<'_>) {
    let scale = located.options.window_scale;
    let is_scale_known = scale.is_some() || located.cut.is_none();
    if let Some(direction) = subflow.directions.get_mut(located.side) {
        direction.begin(located.segment.seq);
        direction.mss_bytes = located.options.mss;
        if is_scale_known {
            direction.window_scale = scale.map_or(WindowScale::Absent, WindowScale::Bits);
        }
    }
    if is_scale_known {
        subflow.on_window_scale(located.side, scale);
    }
}

fn find_mp_capable(located: &LocatedSegment<'_>) -> Option<MpCapable> {
    located.options.mptcp.iter().find_map(|option| {
        let MptcpOption::Capable(capable) = option else { return None };
        Some(*capable)
    })
}

/// Returns the token, and the number of the first data byte. Version 0 hashes with SHA-1 (RFC 6824
/// §3.2).
fn token_and_first_dsn(key: u64, version: u8) -> (u32, u64) {
    if version > 0 {
        return (keys::token(key), keys::initial_dsn(key).wrapping_add(1));
    }
    let hash: [u8; 20] = Sha1::digest(key.to_be_bytes()).into();
    let token = hash.first_chunk().copied().unwrap_or_default();
    let initial = hash.last_chunk().copied().unwrap_or_default();
    (u32::from_be_bytes(token), u64::from_be_bytes(initial).wrapping_add(1))
}

fn add_addr_text(add: &AddAddr) -> String {
    let address = match add.port {
        Some(port) => std::net::SocketAddr::new(add.address, port).to_string(),
        None => add.address.to_string(),
    };
    let echo = if add.hmac.is_none() { " (echo)" } else { "" };
    format!("ADD_ADDR {}: {address}{echo}", add.address_id)
}

/// Returns the text of an MP_TCPRST option (RFC 8684 §3.6).
pub(super) fn reset_text(reset: MpTcpRst) -> String {
    let transient = if reset.transient { " (transient)" } else { "" };
    format!("{}{transient}", reset_reason(reset.reason))
}

fn reset_reason(reason: u8) -> &'static str {
    match reason {
        0 => "no reason given",
        1 => "a Multipath TCP error",
        2 => "lack of resources",
        3 => "administratively prohibited",
        4 => "too much outstanding data",
        5 => "unacceptable performance",
        6 => "middlebox interference",
        _ => "an unknown reason",
    }
}
