//! A subflow within its connection: TCP and its Multipath TCP state.

use std::collections::VecDeque;
use std::net::SocketAddr;

use towpath_multipath::{PathId, PathView};
use towpath_net::Instant;
use towpath_wire::{MpTcpRst, Payload};

use super::join::JoinHandshake;
use super::mapping::ReceiveMappings;
use crate::path_manager::{InterfaceId, SubflowView};
use crate::stack::SubflowStatus;
use crate::subflow::{CloseReason, DataMapping, SentData, Subflow, TcpState};

/// One subflow with its connection-level state (Linux `mptcp_subflow_context`).
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts and pending options")]
pub(crate) struct SubflowContext {
    /// Path slot, reused after the subflow is removed.
    pub(super) path: PathId,
    /// Number within the connection, never reused.
    pub(super) number: u32,
    pub(super) interface: InterfaceId,
    pub(super) local: SocketAddr,
    pub(super) remote: SocketAddr,
    pub(super) local_id: u8,
    pub(super) remote_id: u8,
    /// Set when we requested backup; the peer's request is separate. Either makes the subflow a
    /// backup.
    pub(super) local_backup: bool,
    pub(super) remote_backup: bool,
    pub(super) stale: bool,
    /// Rounds of the connection's timer without a packet from the peer, and the time of the last
    /// packet.
    pub(super) silent_rounds: u32,
    pub(super) last_received_at: Instant,
    pub(super) tcp: Subflow,
    /// State of the MP_JOIN handshake, or `None` for the first subflow.
    pub(super) join: Option<JoinHandshake>,
    /// Mappings received from the peer.
    pub(super) mappings: ReceiveMappings,
    /// Payload by subflow offset, kept until it is acknowledged here. The same offset always
    /// carries the same bytes, even if the connection's store changes.
    pub(super) payloads: VecDeque<(u64, Payload)>,
    /// Set when MP_PRIO must be sent.
    pub(super) priority_due: bool,
    /// Data offset for an MP_FAIL that must be sent.
    pub(super) fail_due: Option<u64>,
    /// Consecutive acknowledgements that only carried an option.
    pub(super) option_acks: u8,
    /// Set after the first DATA_ACK on the subflow: options pass.
    pub(super) data_ack_seen: bool,
    /// Set when a DATA_ACK came with an acknowledgement of data: options pass in both directions
    /// (RFC 8684 §3.7).
    pub(super) data_ack_confirmed: bool,
    /// Set when the last segment that should have carried a DATA_ACK had none.
    pub(super) without_data_ack: bool,
    /// Reason for MP_TCPRST in our RST.
    pub(super) reset_reason: Option<MpTcpRst>,
    /// Set when the RST must carry MP_FASTCLOSE.
    pub(super) fast_close: bool,
    /// Set when the peer has sent MP_FASTCLOSE with our key in a RST: the next RST that TCP accepts
    /// ends the connection.
    pub(super) fast_closed: bool,
    /// MP_TCPRST of the peer, when it reset the subflow.
    pub(super) peer_reset: Option<MpTcpRst>,
    /// Set when a notice has reported the subflow as usable.
    pub(super) announced: bool,
    /// Time when data last arrived on the subflow.
    pub(super) last_data_at: Instant,
    /// Limit of the window offered here: Linux raises it with the data that arrives
    /// (`rcv_ssthresh`).
    pub(super) window_limit: u64,
    /// Close reason; `Some` until the subflow is removed at the next opportunity.
    pub(super) closed: Option<CloseReason>,
    /// Set when we closed the subflow on purpose: its end does not count as a failure.
    pub(super) closed_locally: bool,
    /// Set when the peer's address has answered, on this subflow or an earlier one.
    pub(super) answered: bool,
}

impl SubflowContext {
    pub(super) fn backup(&self) -> bool {
        self.local_backup || self.remote_backup
    }

    /// Returns true if the subflow may carry data of the connection.
    pub(super) fn usable(&self) -> bool {
        let is_joined = self.join.as_ref().is_none_or(JoinHandshake::is_established);
        let is_open = matches!(self.tcp.state(), TcpState::Established | TcpState::CloseWait);
        is_joined && is_open && !self.closed_locally && self.closed.is_none()
    }

    /// Closes the subflow while the connection continues or is over. Data that the peer still sends
    /// here is not awaited.
    pub(super) fn close(&mut self, now: Instant) {
        self.closed_locally = true;
        self.tcp.close(now);
        self.tcp.set_orphaned(now);
    }

    /// Passes data to TCP and keeps it until it is acknowledged here.
    pub(super) fn push(&mut self, now: Instant, mapping: DataMapping, payload: Payload, psh: bool) {
        let ssn = self.tcp.push(now, mapping, psh);
        self.payloads.push_back((ssn, payload));
    }

    /// Extends the mapping pushed last; `payload` is then everything that it maps.
    pub(super) fn lengthen(&mut self, bytes: u32, payload: Payload, psh: bool) {
        if let Some((_, last_payload)) = self.payloads.back_mut() {
            *last_payload = payload;
            self.tcp.lengthen(bytes, psh);
        }
    }

    /// Drops the payload that the peer has acknowledged on this subflow.
    pub(super) fn drop_acked(&mut self) {
        let acked = self.tcp.acked_until();
        while let Some((ssn, payload)) = self.payloads.front() {
            if ssn + payload.len() as u64 > acked {
                break;
            }
            self.payloads.pop_front();
        }
        if self.payloads.is_empty() {
            self.payloads.shrink_to_fit();
        }
    }

    /// Returns the payload bytes of a transmission.
    pub(super) fn payload_of(&self, sent: &SentData) -> Payload {
        let index = match self.payloads.back() {
            Some((ssn, _)) if *ssn <= sent.ssn => self.payloads.len() - 1,
            Some(_) | None => {
                self.payloads.partition_point(|(ssn, _)| *ssn <= sent.ssn).saturating_sub(1)
            }
        };
        let Some((ssn, payload)) = self.payloads.get(index) else { return Payload::EMPTY };
        let from = sent.ssn.saturating_sub(*ssn) as usize;
        let to = from + sent.len as usize;
        if from == 0 && to == payload.len() { payload.clone() } else { payload.slice(from, to) }
    }

    /// Returns true if the peer may still wait for the fourth packet of the handshake (RFC 8684
    /// §3.2). We have sent it, and no later packet confirms its arrival.
    pub(super) fn is_unconfirmed(&self) -> bool {
        self.join.as_ref().is_some_and(|join| join.is_responder) && self.tcp.is_unused()
    }

    /// Returns the scheduler's view. `is_ready` is true if the interface takes packets. `cautious`
    /// permits a single packet until the peer has replied.
    pub(super) fn view(&self, now: Instant, is_ready: bool, cautious: bool) -> PathView {
        let tcp = self.tcp.path_view();
        let mut room_bytes = if is_ready { self.tcp.room_bytes(now) } else { 0 };
        if cautious && self.is_unconfirmed() {
            let one_packet = u64::from(tcp.mss_bytes);
            let pending = tcp.in_flight_bytes.saturating_add(tcp.queued_bytes);
            room_bytes = if pending == 0 { room_bytes.min(one_packet) } else { 0 };
        }
        let (id, backup) = (self.path, self.backup());
        let (stale, silent_rounds) = (self.stale, self.silent_rounds);
        PathView { id, backup, stale, silent_rounds, room_bytes, ..tcp }
    }

    /// Returns the path manager's view.
    pub(super) fn path_manager_view(&self) -> SubflowView {
        SubflowView {
            id: self.path,
            local: self.local,
            remote: self.remote,
            local_id: self.local_id,
            remote_id: self.remote_id,
            established: self.usable(),
            backup: self.backup(),
        }
    }

    pub(super) fn status(&self) -> SubflowStatus {
        SubflowStatus {
            number: self.number,
            path: self.path,
            interface: self.interface,
            local: self.local,
            remote: self.remote,
            address_ids: (self.local_id, self.remote_id),
            state: self.tcp.state(),
            backup: self.backup(),
            stale: self.stale,
            congestion_control: self.tcp.congestion_control(),
            tcp: self.tcp.statistics(),
        }
    }
}
