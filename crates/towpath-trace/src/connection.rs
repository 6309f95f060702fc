//! State of a captured subflow and of a captured connection.

use std::collections::BTreeMap;
use std::net::IpAddr;

use towpath_result::CutEvidence;
use towpath_wire::MpTcpRst;

use super::copies::SubflowCopies;
use super::data_stream::DataStreamTracker;
use super::direction::DirectionTracker;
use super::layers::SocketKey;
use super::ranges::SeqRange;
use super::send_limits::SubflowSendState;

/// End of an infinite mapping.
pub(super) const INFINITE_MAPPING_END: i64 = i64::MAX / 4;

/// Marks a subflow that was removed from its connection.
pub(super) const REMOVED_SUBFLOW: u32 = u32::MAX;

/// Maximum number of notes of a subflow without a connection.
pub(super) const MAX_EARLY_NOTES: usize = 16;

/// Maximum number of notes of one connection.
const MAX_NOTES: usize = 2_000;

/// One TCP connection: a subflow, or a whole plain connection.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct TracedSubflow {
    /// Sockets of the connection's opener and of the other end.
    pub(super) ends: [SocketKey; 2],
    /// Data from the first end, and from the second.
    pub(super) directions: [DirectionTracker; 2],
    /// Index of the end that opened it, 0 or 1.
    pub(super) opened_by: usize,
    pub(super) saw_syn: bool,
    pub(super) connection: Option<u32>,
    /// Number of the subflow in its connection.
    pub(super) number: u16,
    /// First interface of the capture on which it was seen, and a flag for further ones.
    pub(super) interface: Option<u32>,
    pub(super) several_interfaces: bool,
    pub(super) copies: SubflowCopies,
    pub(super) first_ns: u64,
    pub(super) syn_ns: Option<u64>,
    pub(super) syns: u32,
    /// SYNs that offered Multipath TCP.
    pub(super) capable_syns: u32,
    pub(super) answered_ns: Option<u64>,
    pub(super) established_ns: Option<u64>,
    pub(super) fin_ns: Option<u64>,
    pub(super) reset_ns: Option<u64>,
    /// Reason code of MP_TCPRST, if the RST had it.
    pub(super) reset_reason: Option<MpTcpRst>,
    /// MP_JOIN: the token, and a flag for the option in the reply.
    pub(super) token: Option<u32>,
    pub(super) join_answered: bool,
    pub(super) is_join: bool,
    pub(super) backup: bool,
    /// Address identifiers, by end.
    pub(super) address_ids: [Option<u8>; 2],
    /// Notes and options from before its connection was known, at most [`MAX_EARLY_NOTES`].
    pub(super) early_notes: Vec<(NoteContext, String)>,
    pub(super) early_options: BTreeMap<&'static str, u64>,
    /// First packet that was seen, if it was not a SYN: sending end and sequence number.
    pub(super) first_packet: Option<(usize, u32)>,
    /// Set if its ADD_ADDR must be read according to RFC 6824.
    pub(super) is_v0: bool,
}

impl TracedSubflow {
    pub(super) fn new(ends: [SocketKey; 2], saw_syn: bool, now_ns: u64) -> Self {
        Self {
            ends,
            directions: [DirectionTracker::default(), DirectionTracker::default()],
            opened_by: 0,
            saw_syn,
            connection: None,
            number: 0,
            interface: None,
            several_interfaces: false,
            copies: SubflowCopies::default(),
            first_ns: now_ns,
            syn_ns: None,
            syns: 0,
            capable_syns: 0,
            answered_ns: None,
            established_ns: None,
            fin_ns: None,
            reset_ns: None,
            reset_reason: None,
            token: None,
            join_answered: false,
            is_join: false,
            backup: false,
            address_ids: [None; 2],
            early_notes: Vec::new(),
            early_options: BTreeMap::new(),
            first_packet: None,
            is_v0: false,
        }
    }

    /// Records the window scale that an end offers, which limits the other end. Without the option
    /// in its SYN, windows are not scaled (RFC 7323 §2.2).
    pub(super) fn on_window_scale(&mut self, side: usize, scale: Option<u8>) {
        if let Some(other) = self.directions.get_mut(1 - side.min(1)) {
            other.sender.window_scale = Some(scale.unwrap_or(0));
        }
    }

    /// Returns what is known about the sender of one direction.
    pub(super) fn send_state(&self, side: usize) -> Option<SubflowSendState> {
        let state = SubflowSendState {
            number: self.number,
            is_backup: self.backup,
            is_established: self.established_ns.is_some() || !self.saw_syn,
            handshake_rtt_ns: self
                .established_ns
                .zip(self.syn_ns)
                .map_or(0, |(end, syn)| end.saturating_sub(syn)),
            srtt_ns: 0,
            highest: 0,
            acked: 0,
            mss_bytes: 0,
        };
        Some(self.directions.get(side)?.send_state(state))
    }

    /// Returns true if its packets belong to a connection before the one that a SYN with this
    /// number begins.
    pub(super) fn is_before_syn(&self, side: usize, seq: u32) -> bool {
        if self.saw_syn {
            return false;
        }
        let has_ended = self.reset_ns.is_some() || self.fin_ns.is_some();
        let has_payload = self.directions.iter().any(|direction| direction.payload_bytes > 0);
        let has_other_number = self.first_packet.is_some_and(|(first_side, first_seq)| {
            first_side == side && first_seq != seq.wrapping_add(1)
        });
        has_ended || has_payload || has_other_number
    }

    /// Makes the sender of the first SYN the opener, if packets before it suggested the other end.
    pub(super) fn on_first_syn(&mut self, side: usize, now_ns: u64) {
        if self.saw_syn {
            return;
        }
        self.saw_syn = true;
        self.first_ns = now_ns;
        self.established_ns = None;
        if side == 1 && self.connection.is_none() {
            self.ends.reverse();
            self.directions.reverse();
            for (note, _) in &mut self.early_notes {
                note.side = 1 - note.side.min(1);
            }
        }
    }

    /// Maps all bytes of the subflow to data one to one.
    pub(super) fn map_all(&mut self) {
        for direction in &mut self.directions {
            if direction.maps.is_empty() {
                direction.maps.add(SeqRange::new(0, INFINITE_MAPPING_END), 0);
            }
        }
    }
}

/// Reason for a connection's fallback to plain TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FallbackReason {
    /// The SYN/ACK had no MP_CAPABLE.
    NotAnswered,
    /// SYNs with the option had no reply, one without it had.
    SynsUnanswered,
    /// No Multipath TCP option after the handshake.
    OptionsGone,
    /// An infinite mapping (RFC 8684 §3.7).
    InfiniteMapping,
    /// MP_FAIL after a checksum error.
    Checksum,
    /// Data without options, after a handshake whose options were not captured.
    PlainData,
}

impl FallbackReason {
    /// Returns one sentence without a full stop.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::NotAnswered => {
                "the SYN/ACK has no MP_CAPABLE: the other host does not support Multipath TCP, or a middlebox removed the option"
            }
            Self::SynsUnanswered => {
                "SYNs with MP_CAPABLE got no reply, but one without it did: something drops them"
            }
            Self::OptionsGone => {
                "data without Multipath TCP options after a complete handshake: a middlebox removes options"
            }
            Self::InfiniteMapping => "an infinite mapping: one host fell back to TCP",
            Self::PlainData => {
                "data without Multipath TCP options, although the SYN had one: the other host does not support Multipath TCP, or a middlebox removes options"
            }
            Self::Checksum => "MP_FAIL: wrong checksum, so a middlebox changes data",
        }
    }
}

/// Subject of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoteKind {
    PathManager,
    Subflow,
    Fallback,
}

/// Time and place of an observation.
#[derive(Debug, Clone, Copy)]
pub(super) struct NoteContext {
    pub(super) now_ns: u64,
    pub(super) subflow: u16,
    /// Index of the sending end, 0 or 1.
    pub(super) side: usize,
    pub(super) kind: NoteKind,
}

/// One connection: its subflows, and both directions of its data.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub(super) struct TracedConnection {
    /// Index of each subflow at the position of its number; [`REMOVED_SUBFLOW`] for a removed one.
    pub(super) subflows: Vec<u32>,
    pub(super) data: [DataStreamTracker; 2],
    pub(super) keys: [Option<u64>; 2],
    /// Multipath TCP version that was offered or agreed on.
    pub(super) version: Option<u8>,
    pub(super) checksum: bool,
    /// True if it used Multipath TCP, or tried to.
    pub(super) multipath: bool,
    /// True after a fallback: subflow bytes are the data.
    pub(super) infinite: bool,
    /// True if the capture does not contain its beginning.
    pub(super) late: bool,
    pub(super) fallback: Option<FallbackReason>,
    /// Reason from MP_FAIL, if seen.
    pub(super) failed: Option<FallbackReason>,
    pub(super) first_ns: u64,
    pub(super) last_data_ns: u64,
    pub(super) notes: Vec<(NoteContext, String)>,
    pub(super) notes_lost: u64,
    /// Time of the last poll of all subflows.
    pub(super) last_poll_ns: u64,
    /// Number of Multipath TCP options seen, by name.
    pub(super) options: BTreeMap<&'static str, u64>,
    /// Payload packets by what their options show; present if options were cut.
    pub(super) cut: Option<CutCounts>,
    /// Addresses of both ends by identifier, as announced and as used by joins.
    pub(super) addresses: [AddressIds; 2],
}

/// Addresses of one end of a connection, by identifier (RFC 8684 §3.4).
#[derive(Debug, Clone, Default)]
pub(super) struct AddressIds {
    pub(super) announced: BTreeMap<u8, IpAddr>,
    pub(super) joined: BTreeMap<u8, IpAddr>,
}

/// Packets of a connection whose options were not all captured.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CutCounts {
    /// Packets after the SYNs with a Multipath TCP option.
    pub(super) multipath: u64,
    /// Packets with payload and with all options, none of them of Multipath TCP.
    pub(super) plain: u64,
    /// Packets with payload whose options are unknown.
    pub(super) unknown: u64,
}

impl CutCounts {
    /// Returns what the captured parts show.
    pub(super) fn evidence(self) -> CutEvidence {
        match self {
            Self { multipath: 1.., .. } => CutEvidence::Multipath,
            Self { plain: 1.., unknown: 0, .. } => CutEvidence::Tcp,
            _ => CutEvidence::Unknown,
        }
    }
}

impl TracedConnection {
    pub(super) fn new(now_ns: u64) -> Self {
        Self {
            subflows: Vec::new(),
            data: [DataStreamTracker::default(), DataStreamTracker::default()],
            keys: [None; 2],
            version: None,
            checksum: false,
            multipath: false,
            infinite: false,
            late: false,
            fallback: None,
            failed: None,
            first_ns: now_ns,
            last_data_ns: now_ns,
            notes: Vec::new(),
            notes_lost: 0,
            last_poll_ns: now_ns,
            options: BTreeMap::new(),
            cut: None,
            addresses: Default::default(),
        }
    }

    /// Returns true if the connection has data sequence numbers that were captured.
    pub(super) fn is_multipath(&self) -> bool {
        self.multipath && !self.infinite
    }

    pub(super) fn add_note(&mut self, note: NoteContext, text: String) {
        if self.notes.len() < MAX_NOTES {
            self.notes.push((note, text));
        } else {
            self.notes_lost += 1;
        }
    }
}
