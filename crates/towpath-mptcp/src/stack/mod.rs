//! One host: interfaces, listeners, connections, and their packets and timers.
//!
//! Reading order: [`event`], [`error`] and [`status`] (output), this file (the host's own state,
//! and the application's calls), `input` (received packets), `secrets`. Then SYN flood protection:
//! [`syn_flood`] and `stateless`, with `half_open`, `syn_options`, `cookies`, `pending_joins` and
//! `join_syns`.

mod cookies;
mod counters;
mod demultiplexer;
pub mod error;
pub mod event;
mod half_open;
mod input;
mod join_syns;
mod pending_joins;
mod secrets;
mod stateless;
pub mod status;
pub mod syn_flood;
mod syn_options;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use towpath_net::Instant;

use crate::connection::{
    self, Connection, ConnectionOutput, HostContext, ScratchBuffers, SubflowLimit, SubflowParams,
    TxReadiness,
};
use crate::path_manager::PathManagerAction;
pub use crate::path_manager::{InterfaceId, LocalAddress};
use crate::subflow;
pub use towpath_wire::ConnectionId;
use towpath_wire::{Packet, Segment};

pub use counters::StackCounters;
pub use error::{ConfigError, ConnectError, ConnectionError};
pub use event::{FallbackReason, ReinjectionCause, StackDecision, StackEvent, StackNotice};
pub use status::{ConnectionStatus, SubflowStatus};
pub use syn_flood::SynFloodProtection;

use demultiplexer::Demultiplexer;
use half_open::HalfOpen;
use secrets::SecretGenerator;
use syn_flood::SynFloodState;

/// Configuration of a stack.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Seed of keys, nonces and initial sequence numbers, so that equal seeds give equal runs. A
    /// peer that sees some of them may compute the others. Not used by
    /// [`Stack::with_syn_flood_protection`].
    pub seed: u64,
    /// Maximum number of half-open connections of a listener, of about 4 KiB each.
    pub syn_backlog: usize,
    /// Maximum number of connections in TIME-WAIT, with SYN flood protection.
    pub time_wait_limit: usize,
    /// Set to report [`StackEvent::Trace`] events, for marks in reports.
    pub report_decisions: bool,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self { seed: 1, syn_backlog: 128, time_wait_limit: 16_384, report_decisions: false }
    }
}

/// Handle of a listener, unique within the stack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// Purpose of a deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeoutReason {
    /// One of the timers of a subflow.
    Subflow(subflow::Timer),
    /// Connection-level timer: retransmission, ADD_ADDR, closing.
    Connection,
    /// The path manager's own timer.
    PathManager,
}

/// First and last port for connections that we open (RFC 6335 §6: the dynamic ports).
const EPHEMERAL_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// State of an interface of the host.
#[derive(Debug, Clone, Copy)]
struct InterfaceState {
    mtu_bytes: u32,
    up: bool,
    tx_ready: bool,
}

#[derive(Debug)]
struct ListenerState {
    id: ListenerId,
    config: Arc<connection::ConnectionConfig>,
    /// Time until which cookies may be returned.
    cookies_until: Instant,
}

/// TCP and Multipath TCP of one host.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    secrets: SecretGenerator,
    /// Interfaces: few, and looked up constantly.
    interfaces: Vec<(InterfaceId, InterfaceState)>,
    addresses: Vec<LocalAddress>,
    listeners: BTreeMap<u16, ListenerState>,
    connections: BTreeMap<ConnectionId, Box<Connection>>,
    next_id: u32,
    subflows: Demultiplexer,
    /// Connections by token. Only used for lookups, never iterated.
    tokens: HashMap<u32, ConnectionId>,
    half_open: HalfOpen,
    /// State of the SYN flood protection; `None` without it.
    syn_flood_state: Option<Box<SynFloodState>>,
    timeouts: BTreeSet<(Instant, ConnectionId)>,
    /// Connections that may have packets to send.
    ready: VecDeque<ConnectionId>,
    /// Packets that belong to no connection: resets and stateless replies.
    stray_packets: VecDeque<(InterfaceId, Packet)>,
    events: VecDeque<StackEvent>,
    scratch: ScratchBuffers,
    /// Memory reused for each received packet.
    segment: Option<Box<Segment>>,
    next_port: u16,
    identification: u16,
    counters: StackCounters,
    /// Time of the last poll for packets.
    last_poll_at: Instant,
    /// Number of times that a connection had no packets left.
    drain_count: u64,
}

impl Stack {
    /// Creates a host without interfaces.
    pub fn new(config: StackConfig) -> Self {
        let secrets = SecretGenerator::from_seed(config.seed);
        Self::from_parts(config, secrets, None)
    }

    /// Creates a host without interfaces that accepts unauthenticated clients. Every stack that is
    /// reachable from a real network needs this. [`StackConfig::seed`] is not used; for the other
    /// differences, see [`syn_flood`].
    pub fn with_syn_flood_protection(config: StackConfig, protection: &SynFloodProtection) -> Self {
        let secrets = SecretGenerator::from_secret(&protection.secret);
        Self::from_parts(config, secrets, Some(Box::new(SynFloodState::new(protection))))
    }

    fn from_parts(
        config: StackConfig,
        secrets: SecretGenerator,
        syn_flood_state: Option<Box<SynFloodState>>,
    ) -> Self {
        Self {
            secrets,
            config,
            interfaces: Vec::new(),
            addresses: Vec::new(),
            listeners: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_id: 0,
            subflows: Demultiplexer::new(),
            tokens: HashMap::new(),
            half_open: HalfOpen::default(),
            syn_flood_state,
            timeouts: BTreeSet::new(),
            ready: VecDeque::new(),
            stray_packets: VecDeque::new(),
            events: VecDeque::new(),
            scratch: ScratchBuffers::default(),
            segment: None,
            next_port: *EPHEMERAL_PORTS.start(),
            identification: 0,
            counters: StackCounters::default(),
            last_poll_at: Instant::ZERO,
            drain_count: 0,
        }
    }

    /// Adds an interface, up, with its MTU (or changes its MTU).
    pub fn add_interface(&mut self, interface: InterfaceId, mtu_bytes: u32) {
        let initial_state = InterfaceState { mtu_bytes, up: true, tx_ready: true };
        match self.interface_mut(interface) {
            Some(state) => *state = initial_state,
            None => self.interfaces.push((interface, initial_state)),
        }
    }

    /// Adds an address to an interface (or changes its permitted uses). `up` is set to
    /// the interface's state.
    pub fn set_address(&mut self, now: Instant, mut address: LocalAddress) {
        address.up =
            interface_state(&self.interfaces, address.interface).is_some_and(|state| state.up);
        match self.addresses.iter_mut().find(|existing| existing.address == address.address) {
            Some(existing) => *existing = address,
            None => self.addresses.push(address),
        }
        self.update_open_connections(now, Connection::on_local_changed);
    }

    /// Removes an address: its subflows end, and peers are notified (REMOVE_ADDR).
    pub fn remove_address(&mut self, now: Instant, address: IpAddr) {
        let Some(index) = self.addresses.iter().position(|local| local.address == address) else {
            return;
        };
        let removed = self.addresses.remove(index);
        self.update_open_connections(now, |connection, host| {
            connection.on_local_address_removed(host, address, removed.address_id);
        });
    }

    /// Switches an interface on or off. While it is off, its subflows stay but send nothing, and
    /// path managers may replace them.
    pub fn set_up(&mut self, now: Instant, interface: InterfaceId, up: bool) {
        let Some(state) = self.interface_mut(interface) else { return };
        if state.up == up {
            return;
        }
        state.up = up;
        for address in self.addresses.iter_mut().filter(|local| local.interface == interface) {
            address.up = up;
        }
        self.update_open_connections(now, Connection::on_local_changed);
    }

    /// Back-pressure: while `false`, [`Stack::poll_transmit`] takes nothing for this interface.
    /// Schedulers see its subflows without room (as TCP small queues do).
    pub fn set_tx_ready(&mut self, _now: Instant, interface: InterfaceId, tx_ready: bool) {
        let Some(state) = self.interface_mut(interface) else { return };
        let became_ready = tx_ready && !state.tx_ready;
        state.tx_ready = tx_ready;
        if became_ready {
            for (id, connection) in &mut self.connections {
                if !std::mem::replace(&mut connection.queued, true) {
                    self.ready.push_back(*id);
                }
            }
        }
    }

    /// Accepts connections to `port` on every address.
    pub fn listen(
        &mut self,
        port: u16,
        config: connection::ConnectionConfig,
    ) -> Result<ListenerId, ConfigError> {
        config.check()?;
        let id = ListenerId(u32::from(port));
        let config = Arc::new(config);
        // Cookies of an earlier listener do not match this one's settings.
        let cookies_until = Instant::ZERO;
        self.listeners.insert(port, ListenerState { id, config, cookies_until });
        Ok(id)
    }

    /// Opens a connection from `local` (or the first address of the family).
    pub fn connect(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: impl Into<Arc<connection::ConnectionConfig>>,
    ) -> Result<ConnectionId, ConnectError> {
        let config = config.into();
        config.check()?;
        if !input::is_unicast(remote.ip()) {
            return Err(ConnectError::NotUnicast(remote));
        }
        let address = self
            .addresses
            .iter()
            .filter(|candidate| candidate.up && candidate.address.is_ipv4() == remote.is_ipv4())
            .find(|candidate| local.is_none_or(|local| candidate.address == local));
        let address = *address.ok_or(ConnectError::NoAddress(remote))?;
        let port = self.free_port(address.address, remote).ok_or(ConnectError::NoPort(remote))?;
        let local = SocketAddr::new(address.address, port);
        let tuple = SubflowParams {
            interface: address.interface,
            mtu_bytes: self.mtu_bytes(address.interface),
            local,
            remote,
            local_id: 0,
            remote_id: 0,
            backup: false,
        };
        let id = self.fresh_id();
        let isn = self.secrets.isn(now, local, remote);
        let key = self.fresh_key();
        let connection = Connection::connect(id, config, &tuple, isn, key, now)?;
        self.insert(id, connection, (local, remote));
        self.reschedule(now, id);
        Ok(id)
    }

    fn interface_mut(&mut self, interface: InterfaceId) -> Option<&mut InterfaceState> {
        let entry = self.interfaces.iter_mut().find(|(id, _)| *id == interface);
        entry.map(|(_, state)| state)
    }

    fn mtu_bytes(&self, interface: InterfaceId) -> u32 {
        interface_state(&self.interfaces, interface).map_or(1_500, |state| state.mtu_bytes)
    }

    fn insert(
        &mut self,
        id: ConnectionId,
        connection: Connection,
        tuple: (SocketAddr, SocketAddr),
    ) {
        self.tokens.insert(connection.token(), id);
        self.subflows.insert(tuple, id);
        self.connections.insert(id, Box::new(connection));
    }

    /// Returns the next unused identifier.
    fn fresh_id(&mut self) -> ConnectionId {
        loop {
            let id = ConnectionId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            if !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    /// Returns a key whose token is not in use (RFC 8684 §3.1).
    fn fresh_key(&mut self) -> u64 {
        loop {
            let key = self.secrets.next();
            if !self.tokens.contains_key(&towpath_wire::keys::token(key)) {
                return key;
            }
        }
    }

    fn free_port(&mut self, local: IpAddr, remote: SocketAddr) -> Option<u16> {
        if self.syn_flood_state.is_some() {
            // RFC 6056 §3.3.1: the first port must be unpredictable.
            let ports = u64::from(EPHEMERAL_PORTS.end() - EPHEMERAL_PORTS.start()) + 1;
            self.next_port = EPHEMERAL_PORTS.start() + (self.secrets.next() % ports) as u16;
        }
        for _ in EPHEMERAL_PORTS {
            let port = self.next_port;
            self.next_port =
                if port == *EPHEMERAL_PORTS.end() { *EPHEMERAL_PORTS.start() } else { port + 1 };
            if !self.subflows.contains(&(SocketAddr::new(local, port), remote)) {
                return Some(port);
            }
        }
        None
    }

    /// Queues data to send. Takes as much of the front as fits and leaves the rest, without a copy.
    pub fn write(&mut self, now: Instant, id: ConnectionId, data: &mut Bytes) -> usize {
        let Some(connection) = self.connection_mut(id) else { return 0 };
        let taken = connection.write(now, data);
        self.reschedule(now, id);
        taken
    }

    /// Returns the room in the send buffer in bytes. For plain TCP as in Linux, this is the room in
    /// the last packet or the next one: [`Stack::write`] may take more.
    pub fn writable_bytes(&self, id: ConnectionId) -> u64 {
        self.connection(id).map_or(0, Connection::writable_bytes)
    }

    /// Takes the next data in order: `None` when nothing is readable yet, empty at the end.
    pub fn read(&mut self, now: Instant, id: ConnectionId) -> Option<Bytes> {
        let bytes = self.connection_mut(id)?.read(now)?;
        self.make_ready(id);
        Some(bytes)
    }

    /// Ends our data: written data is still delivered.
    pub fn shutdown(&mut self, now: Instant, id: ConnectionId) {
        self.update_connection(now, id, Connection::shutdown);
    }

    /// Aborts the connection immediately (MP_FASTCLOSE, RST).
    pub fn abort(&mut self, now: Instant, id: ConnectionId) {
        self.update_connection(now, id, Connection::abort);
    }

    /// Forgets a closed connection. An open one is first shut down and forgotten when it ends; with
    /// unread data it is aborted.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {
        if let Some(connection) = self.connection_mut(id) {
            connection.read_closed = true;
        }
        self.update_connection(now, id, Connection::close);
    }

    /// Returns the state of a connection; `None` if it is unknown.
    pub fn status(&self, id: ConnectionId) -> Option<ConnectionStatus> {
        self.connection(id)?.status()
    }

    /// Returns the counters of packets that belong to no connection.
    pub fn counters(&self) -> StackCounters {
        self.counters
    }

    /// Returns how often any connection has run out of data to send. While this count is unchanged,
    /// the limits of its subflows are also unchanged.
    #[inline]
    pub fn drain_count(&self) -> u64 {
        self.drain_count
    }

    /// Returns a connection's subflows and their limits, as of the last poll for packets.
    pub fn subflow_limits(&self, id: ConnectionId) -> impl Iterator<Item = SubflowLimit> + '_ {
        let readiness = |id| tx_readiness(&self.interfaces, id);
        let connection = self.connection(id).into_iter();
        connection
            .flat_map(move |connection| connection.subflow_limits(self.last_poll_at, readiness))
    }

    /// Returns true if all data that the application wrote to a connection was sent.
    pub fn has_nothing_to_send(&self, id: ConnectionId) -> bool {
        self.connection(id).is_none_or(Connection::has_nothing_to_send)
    }

    /// Returns the largest window that a connection's peer has offered so far.
    pub fn max_peer_window_bytes(&self, id: ConnectionId) -> u64 {
        self.connection(id).map_or(0, Connection::max_peer_window_bytes)
    }

    /// Runs all timers that are due at `now`.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) =
            self.timeouts.first().copied().filter(|(deadline, _)| *deadline <= now)
        {
            let registered_before =
                self.connection(id).and_then(|connection| connection.registered_timeout);
            self.update_connection(now, id, Connection::on_timeout);
            self.apply_outputs_and_store_deadline(now, id);
            let registered_after =
                self.connection(id).and_then(|connection| connection.registered_timeout);
            if registered_before == registered_after
                && registered_after.is_some_and(|deadline| deadline <= now)
            {
                // Waits for another condition than time, such as room: not due again before that.
                if let Some(deadline) = registered_after {
                    self.timeouts.remove(&(deadline, id));
                }
                if let Some(connection) = self.connection_mut(id) {
                    connection.registered_timeout = None;
                }
            }
        }
    }

    /// Returns the next packet to send, with its interface, which is up and has room.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(InterfaceId, Packet)> {
        let mut packet = Packet::default();
        self.transmit(now, &mut packet).map(|interface| (interface, packet))
    }

    /// As [`Stack::poll_transmit`], into the memory of an earlier packet.
    pub fn transmit(&mut self, now: Instant, packet: &mut Packet) -> Option<InterfaceId> {
        self.last_poll_at = now;
        if let Some((interface, stray)) = self.stray_packets.pop_front() {
            *packet = stray;
            return Some(interface);
        }
        while let Some(id) = self.ready.front().copied() {
            let identification = self.identification;
            let host =
                HostContext { now, local: &self.addresses, trace: self.config.report_decisions };
            let interfaces = &self.interfaces;
            let readiness = |id| tx_readiness(interfaces, id);
            let connection = self.connections.get_mut(&id);
            let interface = connection.and_then(|connection| {
                connection.with_views(&mut self.scratch, |connection| {
                    connection.poll_transmit(&host, &readiness, identification, packet)
                })
            });
            if let Some(interface) = interface {
                let segments = packet.payload.len() / usize::from(packet.segment_bytes.max(1));
                self.identification = identification.wrapping_add(segments.clamp(1, 64) as u16);
                if !self.scratch.out.is_empty() {
                    self.apply_outputs(now, id);
                }
                if self.syn_flood_state.is_some() && !self.may_transmit(now, id, packet.len()) {
                    continue;
                }
                return Some(interface);
            }
            self.ready.pop_front();
            if let Some(connection) = self.connection_mut(id) {
                connection.queued = false;
            }
            self.drain_count += 1;
            self.apply_outputs_and_store_deadline(now, id);
        }
        None
    }

    /// Returns the time when [`Stack::handle_timeout`] must be called, with its purpose.
    pub fn poll_timeout(&self) -> Option<(Instant, TimeoutReason)> {
        let registered = self.timeouts.first().map(|(deadline, id)| {
            let reason = self.connection(*id).and_then(Connection::poll_timeout);
            (*deadline, reason.map_or(TimeoutReason::Connection, |(_, reason)| reason))
        });
        // Deadlines of connections that are about to send are only stored after sending.
        let ready = self.ready.iter().filter_map(|id| self.connection(*id)?.poll_timeout());
        registered.into_iter().chain(ready).min()
    }

    /// As [`Stack::poll_timeout`], without the reason, whose search is slower.
    pub fn next_deadline(&self) -> Option<Instant> {
        let registered = self.timeouts.first().map(|(deadline, _)| *deadline);
        let ready = self.ready.iter().filter_map(|id| self.connection(*id)?.next_deadline());
        registered.into_iter().chain(ready).min()
    }

    /// Returns true if every connection is over and leaves nothing on the host: no subflow (not
    /// even in TIME-WAIT), no token, no timer.
    pub fn is_idle(&self) -> bool {
        self.subflows.is_empty()
            && self.tokens.is_empty()
            && self.timeouts.is_empty()
            && self.half_open.is_empty()
    }

    /// Takes the next event, or `None` if the queue is empty.
    pub fn poll_event(&mut self) -> Option<StackEvent> {
        self.events.pop_front()
    }

    fn connection(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id).map(Box::as_ref)
    }

    fn connection_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id).map(Box::as_mut)
    }

    /// Applies `update` to a connection, and then its output; nothing for an unknown connection.
    fn update_connection(
        &mut self,
        now: Instant,
        id: ConnectionId,
        update: impl FnOnce(&mut Connection, &HostContext<'_>),
    ) {
        let host = HostContext { now, local: &self.addresses, trace: self.config.report_decisions };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.with_scratch(&mut self.scratch, |connection| update(connection, &host));
        if !std::mem::replace(&mut connection.queued, true) {
            self.ready.push_back(id);
        }
        // All output of the connection is in the scratch buffers.
        if !self.scratch.out.is_empty() {
            self.apply_outputs(now, id);
        }
    }

    fn update_open_connections(
        &mut self,
        now: Instant,
        update: impl Fn(&mut Connection, &HostContext<'_>),
    ) {
        let open = self.connections.iter().filter(|(_, connection)| !connection.is_closed());
        let open: Vec<ConnectionId> = open.map(|(id, _)| *id).collect();
        for id in open {
            self.update_connection(now, id, &update);
        }
    }

    /// Queues a connection for sending and updates its timers.
    fn reschedule(&mut self, now: Instant, id: ConnectionId) {
        self.make_ready(id);
        self.apply_outputs(now, id);
    }

    fn make_ready(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection_mut(id) else { return };
        if !connection.queued {
            connection.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Applies all output of a connection.
    fn apply_outputs(&mut self, now: Instant, id: ConnectionId) {
        if !self.scratch.out.is_empty() {
            let mut output = std::mem::take(&mut self.scratch.out);
            for item in output.drain(..) {
                self.apply_output(now, id, item);
            }
            self.scratch.out = output;
        }
        // Outputs may cause further ones, which the connection stores itself.
        while self.connection(id).is_some_and(Connection::has_output) {
            for item in self.connection_mut(id).map(Connection::take_output).unwrap_or_default() {
                self.apply_output(now, id, item);
            }
        }
    }

    /// Applies the latest output of a connection, and stores its deadline.
    fn apply_outputs_and_store_deadline(&mut self, now: Instant, id: ConnectionId) {
        if !self.scratch.out.is_empty() {
            self.apply_outputs(now, id);
        }
        let Some(connection) = self.connection_mut(id) else { return };
        let timeout = connection.next_deadline();
        let previous = std::mem::replace(&mut connection.registered_timeout, timeout);
        let fully_closed = connection.is_fully_closed();
        if previous != timeout {
            if let Some(deadline) = previous {
                self.timeouts.remove(&(deadline, id));
            }
            if let Some(deadline) = timeout {
                self.timeouts.insert((deadline, id));
            }
        }
        if fully_closed {
            self.remove(id);
        } else if self.syn_flood_state.is_some() {
            self.track_time_wait(now, id);
        }
    }

    /// Removes the timers and the token of a connection without subflows. Its status stays readable
    /// until [`Stack::release`].
    fn remove(&mut self, id: ConnectionId) {
        let Some(connection) = self.connection_mut(id) else { return };
        let (token, released) = (connection.token(), connection.read_closed);
        if let Some(deadline) = connection.registered_timeout.take() {
            self.timeouts.remove(&(deadline, id));
        }
        self.tokens.remove(&token);
        let was_half_open = self.half_open.remove(id).is_some();
        if released || was_half_open {
            self.connections.remove(&id);
        }
    }

    fn apply_output(&mut self, now: Instant, id: ConnectionId, output: ConnectionOutput) {
        match output {
            ConnectionOutput::Event(event) => {
                // A connection that fails before it is accepted was never reported.
                let is_half_open = self.half_open.contains(id);
                let silent = is_half_open
                    || self.connection(id).is_some_and(|connection| connection.read_closed);
                if !silent {
                    self.events.push_back(event);
                }
            }
            ConnectionOutput::Accepted => self.report_established(id),
            ConnectionOutput::Open(action) => self.open_subflow(now, id, action),
            ConnectionOutput::Answered(remote) => {
                if let Some(syn_flood) = &mut self.syn_flood_state {
                    syn_flood.join_syns.on_answered(remote);
                }
            }
            ConnectionOutput::SubflowRemoved(local, remote) => {
                // Another connection may already use the four-tuple.
                if self.subflows.get(&(local, remote)) == Some(id) {
                    self.subflows.remove(&(local, remote));
                }
            }
        }
    }

    fn open_subflow(&mut self, now: Instant, id: ConnectionId, action: PathManagerAction) {
        let PathManagerAction::Open { local_id, local, remote_id, remote, backup } = action else {
            return;
        };
        let local_address = self
            .addresses
            .iter()
            .find(|local_address| local_address.address == local && local_address.up);
        let Some(interface) = local_address.map(|local_address| local_address.interface) else {
            return;
        };
        let Some(port) = self.free_port(local, remote) else { return };
        let local = SocketAddr::new(local, port);
        let mtu_bytes = self.mtu_bytes(interface);
        let tuple =
            SubflowParams { interface, mtu_bytes, local, remote, local_id, remote_id, backup };
        let isn = self.secrets.isn(now, local, remote);
        let nonce = self.secrets.next() as u32;
        if self
            .connection_mut(id)
            .is_some_and(|connection| connection.open(&tuple, isn, nonce, now))
        {
            self.subflows.insert((local, remote), id);
            self.make_ready(id);
        }
    }
}

fn tx_readiness(interfaces: &[(InterfaceId, InterfaceState)], id: InterfaceId) -> TxReadiness {
    match interface_state(interfaces, id) {
        Some(InterfaceState { up: true, tx_ready: true, .. }) => TxReadiness::Ready,
        Some(InterfaceState { up: true, tx_ready: false, .. }) => TxReadiness::Blocked,
        Some(InterfaceState { up: false, .. }) | None => TxReadiness::Down,
    }
}

fn interface_state(
    interfaces: &[(InterfaceId, InterfaceState)],
    interface: InterfaceId,
) -> Option<&InterfaceState> {
    interfaces.iter().find(|(id, _)| *id == interface).map(|(_, state)| state)
}
