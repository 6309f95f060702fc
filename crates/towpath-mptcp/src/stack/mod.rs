//! One host: interfaces, listeners, connections, and their packets and timers.
//!
//! Reading order: [`event`], [`error`] and [`status`] (what comes out), this file (the host's own
//! state, and what an application does), `input` (packets that arrive), `secrets`; [`strangers`] and
//! `pressure` (what anybody may send), with `half_open`, `offer`, `cookies` and `half_joins`.

mod cookies;
mod counters;
mod demultiplexer;
pub mod error;
pub mod event;
mod half_joins;
mod half_open;
mod input;
mod offer;
mod pressure;
mod secrets;
pub mod status;
pub mod strangers;
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
use crate::wire::{Packet, Segment};

pub use counters::StackCounters;
pub use error::{ConfigError, ConnectError, ConnectionError};
pub use event::{FallbackReason, ReinjectionCause, StackDecision, StackEvent, StackNotice};
pub use status::{ConnectionStatus, SubflowStatus};
pub use strangers::SynFloodProtection;

use demultiplexer::Demultiplexer;
use half_open::HalfOpen;
use secrets::SecretGenerator;
use strangers::SynFloodState;

/// A host's own settings.
#[derive(Debug, Clone)]
pub struct StackConfig {
    /// Seed of keys, nonces and initial sequence numbers, so that equal seeds give equal runs: who sees some
    /// of them may find the others. [`Stack::with_syn_flood_protection`] does without.
    pub seed: u64,
    /// Most half-open connections of a listener, of about 4 KiB each.
    pub syn_backlog: usize,
    /// Most connections in TIME-WAIT, of who faces strangers.
    pub time_wait_limit: usize,
    /// Report [`Event::StackDecision`]s.
    pub report_decisions: bool,
}

impl Default for StackConfig {
    fn default() -> Self {
        Self { seed: 1, syn_backlog: 128, time_wait_limit: 16_384, report_decisions: false }
    }
}

/// Names a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// Names a connection; not used again within a stack (before four thousand million others).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u32);

/// What a deadline is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TimeoutReason {
    /// A subflow's timer.
    Subflow(subflow::Timer),
    /// The connection's own: retransmission, ADD_ADDR, closing.
    Connection,
    /// The path manager's.
    PathManager,
}

/// First and last port for connections that we open (RFC 6335 §6: the dynamic ports).
const EPHEMERAL_PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;

/// An interface of the host.
#[derive(Debug, Clone, Copy)]
struct InterfaceState {
    mtu_bytes: u32,
    up: bool,
    room: bool,
}

#[derive(Debug)]
struct ListenerState {
    id: ListenerId,
    config: Arc<connection::ConnectionConfig>,
    /// Cookies may come back until then.
    cookies_until: Instant,
}

/// One host's TCP and Multipath TCP.
#[derive(Debug)]
pub struct Stack {
    config: StackConfig,
    secrets: SecretGenerator,
    /// Few, and looked up all the time.
    interfaces: Vec<(InterfaceId, InterfaceState)>,
    addresses: Vec<LocalAddress>,
    listeners: BTreeMap<u16, ListenerState>,
    connections: BTreeMap<ConnectionId, Box<Connection>>,
    next_id: u32,
    subflows: Demultiplexer,
    /// Looked up only, never walked through.
    tokens: HashMap<u32, ConnectionId>,
    half_open: HalfOpen,
    /// What else is kept by who faces strangers.
    guard: Option<Box<SynFloodState>>,
    timeouts: BTreeSet<(Instant, ConnectionId)>,
    /// Connections that may have something to send.
    ready: VecDeque<ConnectionId>,
    /// Packets that belong to no connection: resets.
    stray: VecDeque<(InterfaceId, Packet)>,
    events: VecDeque<StackEvent>,
    scratch: ScratchBuffers,
    /// Reused for each packet that arrives.
    segment: Option<Box<Segment>>,
    next_port: u16,
    identification: u16,
    counters: StackCounters,
    /// When packets were last asked for, and how often a connection had none (any more).
    last_poll_at: Instant,
    drain_count: u64,
}

impl Stack {
    /// A host without interfaces.
    pub fn new(config: StackConfig) -> Self {
        let secrets = SecretGenerator::from_seed(config.seed);
        Self::from_parts(config, secrets, None)
    }

    /// A host without interfaces whose peers may be anybody: every stack that is to be reached from a
    /// real network. [`StackConfig::seed`] is not used; for what else changes, see [`strangers`].
    pub fn with_syn_flood_protection(config: StackConfig, strangers: &SynFloodProtection) -> Self {
        let secrets = SecretGenerator::from_secret(&strangers.secret);
        Self::from_parts(config, secrets, Some(Box::new(SynFloodState::new(strangers))))
    }

    fn from_parts(
        config: StackConfig,
        secrets: SecretGenerator,
        guard: Option<Box<SynFloodState>>,
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
            guard,
            timeouts: BTreeSet::new(),
            ready: VecDeque::new(),
            stray: VecDeque::new(),
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

    /// Adds an interface, up, with its MTU (or gives it another one).
    pub fn add_interface(&mut self, interface: InterfaceId, mtu_bytes: u32) {
        let fresh = InterfaceState { mtu_bytes, up: true, room: true };
        match self.interface_mut(interface) {
            Some(known) => *known = fresh,
            None => self.interfaces.push((interface, fresh)),
        }
    }

    /// Gives an interface an address (or changes what it may be used for). `up` is the interface's.
    pub fn set_address(&mut self, now: Instant, mut address: LocalAddress) {
        address.up = find(&self.interfaces, address.interface).is_some_and(|known| known.up);
        match self.addresses.iter_mut().find(|known| known.address == address.address) {
            Some(known) => *known = address,
            None => self.addresses.push(address),
        }
        self.for_each(now, Connection::on_local_changed);
    }

    /// Takes an address away: its subflows end, and peers are told (REMOVE_ADDR).
    pub fn remove_address(&mut self, now: Instant, address: IpAddr) {
        let Some(index) = self.addresses.iter().position(|known| known.address == address) else {
            return;
        };
        let gone = self.addresses.remove(index);
        self.for_each(now, |connection, host| {
            connection.on_local_address_removed(host, address, gone.address_id);
        });
    }

    /// The interface is switched on or off. Off: its subflows stay but send nothing there, and path
    /// managers may replace them.
    pub fn set_up(&mut self, now: Instant, interface: InterfaceId, up: bool) {
        let Some(known) = self.interface_mut(interface) else { return };
        if known.up == up {
            return;
        }
        known.up = up;
        for address in self.addresses.iter_mut().filter(|known| known.interface == interface) {
            address.up = up;
        }
        self.for_each(now, Connection::on_local_changed);
    }

    /// Back-pressure: while `false`, nothing is taken from [`Stack::poll_transmit`] for this
    /// interface, and schedulers see its subflows without room (as TCP small queues do).
    pub fn set_tx_ready(&mut self, _now: Instant, interface: InterfaceId, room: bool) {
        let Some(known) = self.interface_mut(interface) else { return };
        let opened = room && !known.room;
        known.room = room;
        if opened {
            for (id, known) in &mut self.connections {
                if !std::mem::replace(&mut known.queued, true) {
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
        // Cookies of an earlier listener say nothing of this one's settings.
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
            .filter(|known| known.up && known.address.is_ipv4() == remote.is_ipv4())
            .find(|known| local.is_none_or(|local| known.address == local));
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
        let known = self.interfaces.iter_mut().find(|(id, _)| *id == interface);
        known.map(|(_, known)| known)
    }

    fn mtu_bytes(&self, interface: InterfaceId) -> u32 {
        find(&self.interfaces, interface).map_or(1_500, |known| known.mtu_bytes)
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

    /// The next number that no connection has.
    fn fresh_id(&mut self) -> ConnectionId {
        loop {
            let id = ConnectionId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            if !self.connections.contains_key(&id) {
                return id;
            }
        }
    }

    /// A key whose token is not in use (RFC 8684 §3.1).
    fn fresh_key(&mut self) -> u64 {
        loop {
            let key = self.secrets.next();
            if !self.tokens.contains_key(&crate::keys::token(key)) {
                return key;
            }
        }
    }

    fn free_port(&mut self, local: IpAddr, remote: SocketAddr) -> Option<u16> {
        if self.guard.is_some() {
            // RFC 6056 §3.3.1: what nobody can guess.
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

    /// Gives data to send; takes as much of the front as fits and leaves the rest. No copy is made.
    pub fn write(&mut self, now: Instant, connection: ConnectionId, data: &mut Bytes) -> usize {
        let Some(known) = self.get_mut(connection) else { return 0 };
        let taken = known.write(now, data);
        self.reschedule(now, connection);
        taken
    }

    /// Room in the send buffer, bytes; where plain TCP is written as in Linux, of the packet that is being
    /// filled or of the next one: [`Stack::write`] may take more.
    pub fn writable_bytes(&self, connection: ConnectionId) -> u64 {
        self.get(connection).map_or(0, Connection::writable_bytes)
    }

    /// Takes the next data in order: `None` when there is none now, empty at its end.
    pub fn read(&mut self, now: Instant, connection: ConnectionId) -> Option<Bytes> {
        let bytes = self.get_mut(connection)?.read(now)?;
        self.make_ready(connection);
        Some(bytes)
    }

    /// No more data will be written; what was written is still delivered.
    pub fn shutdown(&mut self, now: Instant, connection: ConnectionId) {
        self.with(now, connection, Connection::shutdown);
    }

    /// Ends the connection at once (MP_FASTCLOSE, RST).
    pub fn abort(&mut self, now: Instant, connection: ConnectionId) {
        self.with(now, connection, Connection::abort);
    }

    /// Drops what is known of a closed connection. An open one is first shut down, read no more, and
    /// forgotten when it ends; with data that nobody has read it is aborted.
    pub fn forget(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(known) = self.get_mut(connection) {
            known.read_closed = true;
        }
        self.with(now, connection, Connection::close);
    }

    /// State of a connection.
    pub fn status(&self, connection: ConnectionId) -> Option<ConnectionStatus> {
        self.get(connection)?.status()
    }

    /// What became of packets that no connection took.
    pub fn counters(&self) -> StackCounters {
        self.counters
    }

    /// How often a connection has come to have nothing more to send: what holds its subflows back is as
    /// before where this is.
    #[inline]
    pub fn drain_count(&self) -> u64 {
        self.drain_count
    }

    /// A connection's subflows and what holds them back, as of when packets were last asked for.
    pub fn subflow_limits(
        &self,
        connection: ConnectionId,
    ) -> impl Iterator<Item = SubflowLimit> + '_ {
        let room = |id| tx_readiness(&self.interfaces, id);
        let known = self.get(connection).into_iter();
        known.flat_map(move |known| known.subflow_limits(self.last_poll_at, room))
    }

    /// Whether the application has given nothing to a connection that is not sent.
    pub fn has_nothing_to_send(&self, connection: ConnectionId) -> bool {
        self.get(connection).is_none_or(Connection::has_nothing_to_send)
    }

    /// The largest window that a connection's peer has offered so far.
    pub fn max_peer_window_bytes(&self, connection: ConnectionId) -> u64 {
        self.get(connection).map_or(0, Connection::max_peer_window_bytes)
    }

    /// Time has passed.
    pub fn handle_timeout(&mut self, now: Instant) {
        while let Some((_, id)) = self.timeouts.first().copied().filter(|(at, _)| *at <= now) {
            let before = self.get(id).and_then(|known| known.registered_timeout);
            self.with(now, id, Connection::on_timeout);
            self.settle(now, id);
            let after = self.get(id).and_then(|known| known.registered_timeout);
            if before == after && after.is_some_and(|at| at <= now) {
                // Waits for something else than time, such as room: not due again before that.
                if let Some(at) = after {
                    self.timeouts.remove(&(at, id));
                }
                if let Some(known) = self.get_mut(id) {
                    known.registered_timeout = None;
                }
            }
        }
    }

    /// The next packet to send, for an interface that is up and has room.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<(InterfaceId, Packet)> {
        let mut packet = Packet::default();
        self.transmit(now, &mut packet).map(|interface| (interface, packet))
    }

    /// As [`Stack::poll_transmit`], into the memory of a packet of before.
    pub fn transmit(&mut self, now: Instant, packet: &mut Packet) -> Option<InterfaceId> {
        self.last_poll_at = now;
        if let Some((interface, stray)) = self.stray.pop_front() {
            *packet = stray;
            return Some(interface);
        }
        while let Some(id) = self.ready.front().copied() {
            let identification = self.identification;
            let host =
                HostContext { now, local: &self.addresses, trace: self.config.report_decisions };
            let interfaces = &self.interfaces;
            let room = |id| tx_readiness(interfaces, id);
            let known = self.connections.get_mut(&id);
            let interface = known.and_then(|known| {
                known.with_views(&mut self.scratch, |known| {
                    known.poll_transmit(&host, &room, identification, packet)
                })
            });
            if let Some(interface) = interface {
                let segments = packet.payload.len() / usize::from(packet.segment_bytes.max(1));
                self.identification = identification.wrapping_add(segments.clamp(1, 64) as u16);
                if !self.scratch.out.is_empty() {
                    self.carry_out_all(now, id);
                }
                return Some(interface);
            }
            self.ready.pop_front();
            if let Some(known) = self.get_mut(id) {
                known.queued = false;
            }
            self.drain_count += 1;
            self.settle(now, id);
        }
        None
    }

    /// When [`Stack::handle_timeout`] must be called, and what for.
    pub fn poll_timeout(&self) -> Option<(Instant, TimeoutReason)> {
        let known = self.timeouts.first().map(|(at, id)| {
            let reason = self.get(*id).and_then(Connection::poll_timeout);
            (*at, reason.map_or(TimeoutReason::Connection, |(_, reason)| reason))
        });
        // Deadlines of connections that are about to send are kept when they have sent.
        let ready = self.ready.iter().filter_map(|id| self.get(*id)?.poll_timeout());
        known.into_iter().chain(ready).min()
    }

    /// As [`Stack::poll_timeout`], without the reason, which takes longer to find.
    pub fn next_deadline(&self) -> Option<Instant> {
        let known = self.timeouts.first().map(|(at, _)| *at);
        let ready = self.ready.iter().filter_map(|id| self.get(*id)?.next_deadline());
        known.into_iter().chain(ready).min()
    }

    /// Whether every connection is over and leaves nothing on the host: no subflow (in TIME-WAIT
    /// neither), no token, no timer.
    pub fn is_idle(&self) -> bool {
        self.subflows.is_empty()
            && self.tokens.is_empty()
            && self.timeouts.is_empty()
            && self.half_open.is_empty()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<StackEvent> {
        self.events.pop_front()
    }

    fn get(&self, id: ConnectionId) -> Option<&Connection> {
        self.connections.get(&id).map(Box::as_ref)
    }

    fn get_mut(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        self.connections.get_mut(&id).map(Box::as_mut)
    }

    /// Does something to a connection, and what follows from it.
    fn with(
        &mut self,
        now: Instant,
        id: ConnectionId,
        what: impl FnOnce(&mut Connection, &HostContext<'_>),
    ) {
        let host = HostContext { now, local: &self.addresses, trace: self.config.report_decisions };
        let Some(known) = self.connections.get_mut(&id) else { return };
        known.with_scratch(&mut self.scratch, |known| what(known, &host));
        if !std::mem::replace(&mut known.queued, true) {
            self.ready.push_back(id);
        }
        // It has handed over everything.
        if !self.scratch.out.is_empty() {
            self.carry_out_all(now, id);
        }
    }

    fn for_each(&mut self, now: Instant, what: impl Fn(&mut Connection, &HostContext<'_>)) {
        let open = self.connections.iter().filter(|(_, known)| !known.is_closed());
        let open: Vec<ConnectionId> = open.map(|(id, _)| *id).collect();
        for id in open {
            self.with(now, id, &what);
        }
    }

    /// A connection may have something to send, and its timers may have changed.
    fn reschedule(&mut self, now: Instant, id: ConnectionId) {
        self.make_ready(id);
        self.carry_out_all(now, id);
    }

    fn make_ready(&mut self, id: ConnectionId) {
        let Some(known) = self.get_mut(id) else { return };
        if !known.queued {
            known.queued = true;
            self.ready.push_back(id);
        }
    }

    /// Carries out what a connection asked for.
    fn carry_out_all(&mut self, now: Instant, id: ConnectionId) {
        if !self.scratch.out.is_empty() {
            let mut output = std::mem::take(&mut self.scratch.out);
            for item in output.drain(..) {
                self.apply_output(now, id, item);
            }
            self.scratch.out = output;
        }
        // What it asked for outside of packets and timers.
        while self.get(id).is_some_and(Connection::has_output) {
            for item in self.get_mut(id).map(Connection::take_output).unwrap_or_default() {
                self.apply_output(now, id, item);
            }
        }
    }

    /// Carries out what a connection has just asked for, and keeps its deadline.
    fn settle(&mut self, now: Instant, id: ConnectionId) {
        if !self.scratch.out.is_empty() {
            self.carry_out_all(now, id);
        }
        let Some(known) = self.get_mut(id) else { return };
        let timeout = known.next_deadline();
        let before = std::mem::replace(&mut known.registered_timeout, timeout);
        let gone = known.is_fully_closed();
        if before != timeout {
            if let Some(at) = before {
                self.timeouts.remove(&(at, id));
            }
            if let Some(at) = timeout {
                self.timeouts.insert((at, id));
            }
        }
        if gone {
            self.remove(id);
        } else if self.guard.is_some() {
            self.track_time_wait(now, id);
        }
    }

    /// A connection without subflows needs no timers and no token; its state stays until it is
    /// forgotten.
    fn remove(&mut self, id: ConnectionId) {
        let Some(known) = self.get_mut(id) else { return };
        let (token, forgotten) = (known.token(), known.read_closed);
        if let Some(at) = known.registered_timeout.take() {
            self.timeouts.remove(&(at, id));
        }
        self.tokens.remove(&token);
        let early = self.half_open.remove(id).is_some();
        if forgotten || early {
            self.connections.remove(&id);
        }
    }

    fn apply_output(&mut self, now: Instant, id: ConnectionId, output: ConnectionOutput) {
        match output {
            ConnectionOutput::Event(event) => {
                // Nobody was told of a connection that fails before it is accepted.
                let early = self.half_open.contains(id);
                let silent = early || self.get(id).is_some_and(|known| known.read_closed);
                if !silent {
                    self.events.push_back(event);
                }
            }
            ConnectionOutput::Accepted => self.note_established(id),
            ConnectionOutput::Open(action) => self.open_subflow(now, id, action),
            ConnectionOutput::Gone(local, remote) => {
                // Another connection may have its place already.
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
        let known = self.addresses.iter().find(|known| known.address == local && known.up);
        let Some(interface) = known.map(|known| known.interface) else { return };
        let Some(port) = self.free_port(local, remote) else { return };
        let local = SocketAddr::new(local, port);
        let mtu_bytes = self.mtu_bytes(interface);
        let tuple =
            SubflowParams { interface, mtu_bytes, local, remote, local_id, remote_id, backup };
        let isn = self.secrets.isn(now, local, remote);
        let nonce = self.secrets.next() as u32;
        if self.get_mut(id).is_some_and(|known| known.open(&tuple, isn, nonce, now)) {
            self.subflows.insert((local, remote), id);
            self.make_ready(id);
        }
    }
}

fn tx_readiness(interfaces: &[(InterfaceId, InterfaceState)], id: InterfaceId) -> TxReadiness {
    match find(interfaces, id) {
        Some(InterfaceState { up: true, room: true, .. }) => TxReadiness::Ready,
        Some(InterfaceState { up: true, room: false, .. }) => TxReadiness::Blocked,
        Some(InterfaceState { up: false, .. }) | None => TxReadiness::Down,
    }
}

fn find(
    interfaces: &[(InterfaceId, InterfaceState)],
    wanted: InterfaceId,
) -> Option<&InterfaceState> {
    interfaces.iter().find(|(id, _)| *id == wanted).map(|(_, known)| known)
}
