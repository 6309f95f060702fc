//! Several subflows as one connection (RFC 8684), or one subflow as plain TCP.
//!
//! Reading order: [`config`], `send` and `receive` (the two queues, in data offsets),
//! `subflow_context` (a subflow within its connection), `handshake` and `join` (establishment),
//! `stateless` and `amplification` (establishment under attack). Then `input` (a received segment),
//! `write` and `read` (the application's side), `schedule` (choice of path and data), `push` (into
//! a subflow's queue), `emit` (the packet). Finally `addresses`, `fallback` (options vanish),
//! `failure` (MP_FAIL, reinjection), `timers`, `close`.
//!
//! Numbers of the connection's data are offsets: 0 is the initial data sequence number, 1 the first
//! byte, in both directions. On the first subflow, before anything was reinjected, they equal its
//! subflow offsets. Fallback to plain TCP depends on this equality.

mod addresses;
mod amplification;
mod close;
pub mod config;
mod emit;
mod failure;
mod fallback;
mod handshake;
mod input;
mod join;
mod limit;
mod mapping;
mod out_of_order;
mod push;
mod read;
mod receive;
mod receive_buffer;
mod schedule;
mod send;
mod stateless;
mod status;
mod subflow_context;
mod timers;
mod write;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use towpath_multipath::opportunistic::Opportunistic;
use towpath_multipath::scheduler::Scheduler;
use towpath_multipath::{DataRange, PathId, PathView};
use towpath_net::Instant;
use towpath_wire::AddAddr;
use towpath_wire::ConnectionId;
use towpath_wire::keys;

use crate::path_manager::{self, LocalAddress, PathManager, PathManagerAction, RemoteAddress};
use crate::stack::{
    ConfigError, ConnectionError, FallbackReason, InterfaceId, ReinjectionCause, StackDecision,
    StackEvent, StackNotice, SubflowStatus,
};
use crate::subflow::{self, Subflow};

pub use config::{ConnectionConfig, ReceiveBuffer, ReceiveBufferMode, WindowShare};
pub use limit::{SendLimit, SubflowLimit};

use addresses::PendingAddAddr;
use amplification::AmplificationLimit;
use fallback::FallbackState;
pub(crate) use handshake::{capable, join_syn};
use join::JoinHandshake;
use receive::ReceiveQueue;
use receive_buffer::ReceiveBufferTuner;
use send::SendStore;
use subflow_context::SubflowContext;

/// Protocol of a connection: TCP, Multipath TCP, or a state between them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ConnectionMode {
    /// Plain TCP: from the start, or fallen back before anything depended on Multipath TCP.
    Plain,
    /// MP_CAPABLE was sent, and no reply has arrived.
    Offered,
    /// Both keys are known. `confirmed`: the peer has shown that options pass in both directions.
    /// From then on, a fallback to plain TCP requires MP_FAIL (RFC 8684 §3.7).
    Multipath { confirmed: bool },
    /// Fallen back during the connection: the remaining data is mapped one to one (RFC 8684 §3.7).
    Infinite,
}

/// Request of a connection to the stack.
#[derive(Debug)]
pub(crate) enum ConnectionOutput {
    Event(StackEvent),
    /// The handshake of a connection that we accepted is complete.
    Accepted,
    /// Open a subflow: it needs a port and an initial sequence number.
    Open(PathManagerAction),
    /// An announced address has answered an MP_JOIN of ours.
    Answered(IpAddr),
    /// A subflow was removed: its addresses are free.
    SubflowRemoved(SocketAddr, SocketAddr),
}

/// First window that Linux offers: whole packets within the maximum of an unscaled field.
const INITIAL_WINDOW_BYTES: u64 = 64_088;

/// Memory that all connections of a host share. Neither scheduling nor a segment allocates any, and
/// idle connections have none of it.
#[derive(Debug, Default)]
pub(crate) struct ScratchBuffers {
    pub(crate) out: Vec<ConnectionOutput>,
    views: Vec<PathView>,
    received: subflow::SegmentOutcome,
    mapped: Vec<mapping::MappingOutcome>,
}

/// The host's state as a connection sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HostContext<'a> {
    pub(crate) now: Instant,
    pub(crate) local: &'a [LocalAddress],
    pub(crate) trace: bool,
}

/// Readiness of an interface for a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TxReadiness {
    /// The interface takes a packet now.
    Ready,
    /// The interface takes a packet later.
    Blocked,
    /// The interface is off: packets are lost.
    Down,
}

/// Addresses of a new subflow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SubflowParams {
    pub(crate) interface: InterfaceId,
    pub(crate) mtu_bytes: u32,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    pub(crate) local_id: u8,
    pub(crate) remote_id: u8,
    pub(crate) backup: bool,
}

/// One connection, Multipath TCP or plain TCP.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about both directions")]
pub(crate) struct Connection {
    id: ConnectionId,
    config: Arc<ConnectionConfig>,
    client: bool,
    mode: ConnectionMode,
    local_key: u64,
    remote_key: Option<u64>,
    local_idsn: u64,
    remote_idsn: u64,
    /// Set when DSS checksums are in use.
    checksum: bool,
    flows: Vec<SubflowContext>,
    /// Last state of the closed subflows.
    closed_subflows: Vec<SubflowStatus>,
    /// Number of the next subflow.
    next_number: u32,
    send: SendStore,
    receive: ReceiveQueue,
    buffer_tuner: ReceiveBufferTuner,
    scheduler: Box<dyn Scheduler>,
    opportunistic: Opportunistic,
    path_manager: Box<dyn PathManager>,
    /// Data that must be reinjected.
    reinjections: VecDeque<PendingReinjection>,
    /// Addresses of the first subflow, ours first: their identifier is 0, even after it is closed.
    initial_addresses: Option<(SocketAddr, SocketAddr)>,
    remote_addresses: Vec<RemoteAddress>,
    /// Set when the peer sent the C flag.
    no_join_to_initial: bool,
    announcements: Vec<PendingAddAddr>,
    /// Echoes of the peer's ADD_ADDR that must be sent.
    pending_echoes: Vec<AddAddr>,
    /// Address identifiers for a REMOVE_ADDR that must be sent.
    pending_withdrawals: Vec<u8>,
    /// Deadline of the connection's own retransmission timer; `backoff` counts its doublings.
    retransmit_at: Option<Instant>,
    /// Timeout of the retransmission timer before back-off.
    retransmit_after: Duration,
    backoff: u32,
    /// Time when the timer first fired since the last acknowledgement.
    unacked_since: Option<Instant>,
    /// Deadline of a connection that has no subflows or no reader.
    close_deadline: Option<Instant>,
    established: bool,
    fallback: Option<FallbackReason>,
    /// After a fallback during the connection: data offset minus subflow offset of our data, from
    /// that subflow offset on.
    infinite_shift: Option<(u64, u64)>,
    fallback_state: FallbackState,
    /// Result of the connection; `Some` after the application was notified of its end.
    closed: Option<Result<(), ConnectionError>>,
    /// Set when DATA_FIN was sent at least once.
    data_fin_sent: bool,
    /// Set when both sides have ended their data; subflows are being closed.
    finishing: bool,
    /// Set when the stack knows that it is in TIME-WAIT.
    time_wait_reported: bool,
    /// Set when the keys were just sent, and DATA_FIN must follow them.
    fin_after_keys: bool,
    /// Set when the application reads no more data.
    pub(crate) read_closed: bool,
    writer: WriterState,
    /// Set when the application was notified of readable data and has not read since.
    readable_notified: bool,
    /// Unsent bytes, as last reported to the subflows.
    waiting_bytes: u64,
    scheduling: SchedulerState,
    /// Set when options wait, because too many consecutive acknowledgements would carry one (RFC
    /// 8684 §3).
    option_acks_held: bool,
    option_acks_resume_at: Option<Instant>,
    /// Set when the application has read the end of the data.
    end_was_read: bool,
    advertisement: WindowAdvertisement,
    out: Vec<ConnectionOutput>,
    /// Scratch memory, lent by the stack; see [`ScratchBuffers`].
    views: Vec<PathView>,
    received: subflow::SegmentOutcome,
    mapped: Vec<mapping::MappingOutcome>,
    /// Path of the last scheduled data, and the bytes of its current run.
    last_scheduled: Option<(PathId, u64)>,
    window_blocked_since: Option<Instant>,
    counters: ConnectionCounters,
    /// Limit for addresses that have not answered; `None` without SYN flood protection.
    amplification: Option<Box<AmplificationLimit>>,
    /// Deadline that the stack has registered for the connection.
    pub(crate) registered_timeout: Option<Instant>,
    /// Set while the connection is in the stack's queue of connections that may send.
    pub(crate) queued: bool,
}

/// Data that must be reinjected, with the cause.
#[derive(Debug, Clone, Copy)]
struct PendingReinjection {
    range: DataRange,
    cause: ReinjectionCause,
    /// Path that has begun to send the data.
    path: Option<PathId>,
}

/// Counters for [`crate::stack::ConnectionStatus`], over the connection's lifetime.
#[derive(Debug, Clone, Copy, Default)]
struct ConnectionCounters {
    written_bytes: u64,
    reorder_peak_bytes: u64,
    reinjected_bytes: [u64; 5],
    discarded_bytes: u64,
    penalisations: u64,
    window_blocked: Duration,
}

/// State of the writing application.
#[derive(Debug, Clone, Copy, Default)]
struct WriterState {
    /// Set when not all of the written data was taken.
    blocked: bool,
    /// Time of the next attempt without a notification.
    retry_at: Option<Instant>,
    /// Bytes written into the last packet, see [`Connection::writable_bytes`].
    packet_bytes: u16,
    /// Bytes written since everything was pushed.
    unpushed_bytes: u32,
    /// Set when the last packet is sent while more is being written to it.
    packet_leaves: bool,
}

/// Scheduler's waiting state and the subflow being filled.
#[derive(Debug, Clone, Copy, Default)]
struct SchedulerState {
    /// Latest time to query the scheduler again while it waits for a better path.
    query_at: Option<Instant>,
    /// Consecutive waits that ended without a better path.
    expired_waits: u32,
    /// The subflow whose queue is being filled.
    filling: Option<PathId>,
}

/// Window and mapping format that acknowledgements carry to the peer.
#[derive(Debug, Clone, Copy)]
struct WindowAdvertisement {
    /// Set when the window may have changed since it was last advertised.
    changed: bool,
    /// Set when the application has read since the last advertisement.
    was_read: bool,
    /// Window in the last segment sent, on any subflow.
    advertised_bytes: u64,
    /// Set when the peer's last mapping has a number of 8 octets.
    peer_maps_long: bool,
}

impl WindowAdvertisement {
    fn new() -> Self {
        Self { changed: true, was_read: false, advertised_bytes: 0, peer_maps_long: false }
    }
}

impl Connection {
    fn new(
        id: ConnectionId,
        config: Arc<ConnectionConfig>,
        client: bool,
        local_key: u64,
        now: Instant,
    ) -> Result<Self, ConfigError> {
        Ok(Self {
            id,
            client,
            mode: if config.multipath { ConnectionMode::Offered } else { ConnectionMode::Plain },
            local_key,
            remote_key: None,
            local_idsn: keys::initial_dsn(local_key),
            remote_idsn: 0,
            checksum: config.checksum,
            flows: Vec::with_capacity(1),
            closed_subflows: Vec::new(),
            next_number: 0,
            send: SendStore::new(),
            receive: ReceiveQueue::new(),
            buffer_tuner: ReceiveBufferTuner::new(config.receive_buffer, now),
            scheduler: config.new_scheduler()?,
            opportunistic: Opportunistic::new(config.opportunistic),
            path_manager: path_manager::by_name(&config.path_manager)?,
            reinjections: VecDeque::new(),
            initial_addresses: None,
            remote_addresses: Vec::with_capacity(1),
            no_join_to_initial: false,
            announcements: Vec::new(),
            pending_echoes: Vec::new(),
            pending_withdrawals: Vec::new(),
            retransmit_at: None,
            retransmit_after: timers::MIN_RTO,
            backoff: 0,
            unacked_since: None,
            close_deadline: None,
            established: false,
            fallback: None,
            infinite_shift: None,
            fallback_state: FallbackState::new(),
            closed: None,
            data_fin_sent: false,
            finishing: false,
            time_wait_reported: false,
            fin_after_keys: false,
            read_closed: false,
            writer: WriterState::default(),
            readable_notified: false,
            waiting_bytes: u64::MAX,
            scheduling: SchedulerState::default(),
            option_acks_held: false,
            option_acks_resume_at: None,
            end_was_read: false,
            advertisement: WindowAdvertisement::new(),
            out: Vec::new(),
            views: Vec::new(),
            received: subflow::SegmentOutcome::default(),
            mapped: Vec::new(),
            last_scheduled: None,
            window_blocked_since: None,
            counters: ConnectionCounters::default(),
            amplification: None,
            registered_timeout: None,
            queued: false,
            config,
        })
    }

    pub(crate) fn token(&self) -> u32 {
        keys::token(self.local_key)
    }

    /// Runs a function with the host's scratch memory. Requests to the stack are then in
    /// [`ScratchBuffers::out`], after earlier ones that are still pending.
    pub(crate) fn with_scratch<T>(
        &mut self,
        scratch: &mut ScratchBuffers,
        f: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let swap = |connection: &mut Self, scratch: &mut ScratchBuffers| {
            std::mem::swap(&mut connection.received, &mut scratch.received);
            std::mem::swap(&mut connection.mapped, &mut scratch.mapped);
        };
        self.lend(scratch, swap, f)
    }

    /// As [`Connection::with_scratch`], for functions that schedule and process no segment.
    pub(crate) fn with_views<T>(
        &mut self,
        scratch: &mut ScratchBuffers,
        f: impl FnOnce(&mut Self) -> T,
    ) -> T {
        let swap = |connection: &mut Self, scratch: &mut ScratchBuffers| {
            std::mem::swap(&mut connection.views, &mut scratch.views);
        };
        self.lend(scratch, swap, f)
    }

    /// Lends memory to a function; `swap` exchanges all parts except [`ScratchBuffers::out`].
    fn lend<T>(
        &mut self,
        scratch: &mut ScratchBuffers,
        swap: impl Fn(&mut Self, &mut ScratchBuffers),
        f: impl FnOnce(&mut Self) -> T,
    ) -> T {
        scratch.out.append(&mut self.out);
        std::mem::swap(&mut self.out, &mut scratch.out);
        swap(self, scratch);
        let result = f(self);
        std::mem::swap(&mut self.out, &mut scratch.out);
        swap(self, scratch);
        result
    }

    /// Takes the requests to the stack.
    pub(crate) fn take_output(&mut self) -> Vec<ConnectionOutput> {
        std::mem::take(&mut self.out)
    }

    pub(crate) fn has_output(&self) -> bool {
        !self.out.is_empty()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Returns true if the connection is over and has no subflow left.
    pub(crate) fn is_fully_closed(&self) -> bool {
        self.closed.is_some() && self.flows.is_empty()
    }

    /// Returns the identifier of our address on the wire: 0 is the one on which the connection
    /// began.
    pub(crate) fn local_id_of(&self, address: IpAddr) -> Option<u8> {
        if self.initial_addresses.is_some_and(|(local, _)| local.ip() == address) {
            return Some(0);
        }
        self.flows.iter().find(|flow| flow.local.ip() == address).map(|flow| flow.local_id)
    }

    pub(crate) fn subflow_index(&self, local: SocketAddr, remote: SocketAddr) -> Option<usize> {
        self.flows.iter().position(|flow| flow.local == local && flow.remote == remote)
    }

    fn is_multipath(&self) -> bool {
        matches!(self.mode, ConnectionMode::Multipath { .. })
    }

    fn is_confirmed(&self) -> bool {
        self.mode == ConnectionMode::Multipath { confirmed: true }
    }

    /// Returns true if the connection's data is the byte stream of its only subflow: plain TCP, or
    /// an infinite mapping.
    fn is_single_stream(&self) -> bool {
        matches!(self.mode, ConnectionMode::Plain | ConnectionMode::Infinite)
    }

    fn push_event(&mut self, event: StackEvent) {
        self.out.push(ConnectionOutput::Event(event));
    }

    fn push_notice(&mut self, notice: StackNotice) {
        let connection = self.id;
        self.push_event(StackEvent::Notice { connection, notice });
    }

    fn trace(&mut self, host: &HostContext<'_>, trace: StackDecision) {
        if host.trace {
            let connection = self.id;
            self.push_event(StackEvent::Trace { connection, decision: trace });
        }
    }

    /// Returns the configuration of a subflow with these parameters.
    fn subflow_config(&self, params: &SubflowParams) -> subflow::SubflowConfig {
        let (mtu_bytes, window_scale) = (params.mtu_bytes, self.window_scale());
        subflow::SubflowConfig { mtu_bytes, window_scale, ..self.config.subflow.clone() }
    }

    /// Returns the window scale, no larger than the buffer needs (RFC 7323 §2.3): a small window
    /// would round to zero.
    fn window_scale(&self) -> Option<u8> {
        let max_bytes = self.config.receive_buffer.max_bytes();
        let needed = (0..14).find(|scale| u64::from(u16::MAX) << scale >= max_bytes).unwrap_or(14);
        self.config.subflow.window_scale.map(|scale| scale.min(needed))
    }

    /// Adds a subflow and returns its index; packets leave room for the options of the connection.
    fn new_subflow(
        &mut self,
        params: &SubflowParams,
        mut tcp: Subflow,
        join: Option<JoinHandshake>,
        now: Instant,
    ) -> usize {
        tcp.set_ipv6(params.local.is_ipv6());
        if let Some(factory) = &self.config.custom_congestion_control {
            tcp.set_congestion_control(factory);
        }
        tcp.set_waiting_bytes(now, self.waiting_bytes);
        let number = self.next_number;
        self.next_number += 1;
        let is_taken = |slot: &u8| self.flows.iter().any(|flow| flow.path.0 == *slot);
        let slot = (0..PathId::SLOTS).find(|slot| !is_taken(slot)).unwrap_or(PathId::SLOTS - 1);
        let answered = self.begins_answered(params.remote.ip(), join.as_ref());
        self.flows.push(SubflowContext {
            path: PathId(slot),
            number,
            interface: params.interface,
            local: params.local,
            remote: params.remote,
            local_id: params.local_id,
            remote_id: params.remote_id,
            local_backup: params.backup,
            remote_backup: false,
            stale: false,
            silent_rounds: 0,
            last_received_at: now,
            tcp,
            join,
            mappings: mapping::ReceiveMappings::default(),
            payloads: VecDeque::new(),
            priority_due: false,
            fail_due: None,
            option_acks: 0,
            data_ack_seen: false,
            data_ack_confirmed: false,
            without_data_ack: false,
            reset_reason: None,
            fast_close: false,
            fast_closed: false,
            peer_reset: None,
            announced: false,
            last_data_at: now,
            window_limit: INITIAL_WINDOW_BYTES,
            closed: None,
            closed_locally: false,
            answered,
        });
        self.advertisement.changed = true;
        self.update_data_options();
        self.flows.len() - 1
    }

    /// Updates TCP's option bytes of data packets.
    fn update_data_options(&mut self) {
        let bytes = if self.mode == ConnectionMode::Plain { 0 } else { self.data_option_bytes() };
        for flow in &mut self.flows {
            flow.tcp.set_data_option_bytes(bytes);
        }
        if self.config.smallest_mss {
            let usable = self.flows.iter().filter(|flow| flow.usable());
            let smallest = usable.map(|flow| flow.tcp.mss_bytes()).min();
            for flow in &mut self.flows {
                flow.tcp.set_mss_cap(smallest);
            }
        }
    }

    /// Fills the views with the subflows that may carry data, as the scheduler sees them.
    fn fill_views(&mut self, now: Instant, tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness) {
        self.views.clear();
        let cautious = self.config.cautious_joins;
        // A path whose interface is off is skipped, unless all paths are off. Then TCP tries, and
        // gives up after its timeout.
        let is_up = |flow: &SubflowContext| {
            flow.usable() && tx_readiness(flow.interface) != TxReadiness::Down
        };
        let any_up = self.flows.iter().any(is_up);
        for flow in self.flows.iter().filter(|flow| flow.usable()) {
            let readiness = if any_up { tx_readiness(flow.interface) } else { TxReadiness::Ready };
            if readiness != TxReadiness::Down {
                self.views.push(flow.view(now, readiness == TxReadiness::Ready, cautious));
            }
        }
        if !self.views.is_sorted_by_key(|view| view.id) {
            self.views.sort_unstable_by_key(|view| view.id);
        }
    }
}
