//! A host: its addresses, its UDP sockets, and the connections over them.
//!
//! Every listener has its own socket, and so has every connection that this host opens, as with
//! most programs. A datagram's port therefore identifies its owner.

mod amplification;
mod datagram;
mod socket;
mod transmit;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use noq_proto::{
    ClientConfig, ConnectionId as WireId, DatagramEvent, EcnCodepoint, Endpoint, EndpointEvent,
    FourTuple, Incoming, PathId, Transmit,
};
use towpath_net::{Instant, stream_seed};

use crate::certificate;
use crate::config::{MIN_DATAGRAM_BYTES, QuicConfig};
use crate::congestion::{CongestionFactory, UnknownCongestionControl};
use crate::connection::{Connection, ConnectionParams};
use crate::error::{OpenError, StreamError};
use crate::status::{ConnectionId, ConnectionStatus, ListenerId, QuicEvent, StreamId};
use crate::time::TimeConverter;
use amplification::AmplificationLimit;
use socket::{ListenerEntry, Socket, endpoint_config};

pub use datagram::{Datagram, IncomingDatagrams, OutgoingDatagrams};

/// First local port of connections that this host opens (RFC 6335 §6).
const FIRST_EPHEMERAL_PORT: u16 = 49_152;

/// An address of a host, with its state and flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LocalAddress {
    /// IP address of the host.
    pub address: IpAddr,
    /// Index of the interface that has the address.
    pub interface: u32,
    /// True if the address can be used now.
    pub up: bool,
    /// True to open additional paths from this address, after the one on which a connection begins.
    pub subflow: bool,
    /// True if paths from this address are backups, unless the path policy decides otherwise.
    pub backup: bool,
}

/// A QUIC endpoint with several addresses.
#[derive(Debug)]
pub struct QuicStack {
    /// Seed of all random numbers; `None` uses the system's.
    seed: Option<u64>,
    clock: TimeConverter,
    addresses: Vec<LocalAddress>,
    /// Sockets by local port.
    sockets: BTreeMap<u16, Socket>,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u32,
    next_listener: u32,
    next_port: u16,
    events: VecDeque<QuicEvent>,
    /// Replies of endpoints outside of connections.
    replies: VecDeque<Datagram>,
    /// Bytes that unvalidated addresses may still get.
    amplification: AmplificationLimit,
    /// Accepted connections whose handshake is not complete.
    handshaking: BTreeSet<ConnectionId>,
    /// Connections that may have something to send.
    ready: BTreeSet<ConnectionId>,
    /// Connections whose events the application no longer wants.
    released: BTreeSet<ConnectionId>,
    /// The connection that sends next.
    next_sender: ConnectionId,
    /// Reused buffer for packets that an endpoint writes.
    buffer: Vec<u8>,
    /// Reused buffer for the payload of [`QuicStack::poll_transmit`].
    outgoing: Vec<u8>,
}

impl QuicStack {
    /// Creates a host without addresses; equal seeds give equal behaviour.
    pub fn new(seed: u64) -> Self {
        Self::with_seed(Some(seed))
    }

    /// Creates a host without addresses whose identifiers and keys are unpredictable. For networks
    /// where others can also send packets.
    pub fn new_random() -> Self {
        Self::with_seed(None)
    }

    fn with_seed(seed: Option<u64>) -> Self {
        Self {
            seed,
            clock: TimeConverter::new(),
            addresses: Vec::new(),
            sockets: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_connection: 0,
            next_listener: 0,
            next_port: FIRST_EPHEMERAL_PORT,
            events: VecDeque::new(),
            replies: VecDeque::new(),
            amplification: AmplificationLimit::default(),
            handshaking: BTreeSet::new(),
            ready: BTreeSet::new(),
            released: BTreeSet::new(),
            next_sender: ConnectionId(0),
            buffer: Vec::new(),
            outgoing: Vec::new(),
        }
    }

    /// Adds an address, or updates an existing one.
    pub fn set_address(&mut self, now: Instant, address: LocalAddress) {
        match self.addresses.iter_mut().find(|a| a.address == address.address) {
            Some(existing) => *existing = address,
            None => self.addresses.push(address),
        }
        self.check_paths(now);
    }

    /// Removes an address; paths from it are closed.
    pub fn remove_address(&mut self, now: Instant, address: IpAddr) {
        self.addresses.retain(|a| a.address != address);
        self.check_paths(now);
    }

    /// Switches an interface and all its addresses on or off.
    pub fn set_up(&mut self, now: Instant, interface: u32, up: bool) {
        for address in self.addresses.iter_mut().filter(|a| a.interface == interface) {
            address.up = up;
        }
        self.check_paths(now);
    }

    fn check_paths(&mut self, now: Instant) {
        for connection in self.connections.values_mut() {
            connection.reopen_at.clear();
            connection.next_path_check = Some(now);
        }
        self.drive_all(now);
    }

    /// Accepts connections on a port.
    pub fn listen(&mut self, port: u16, config: QuicConfig) -> Result<ListenerId, OpenError> {
        if self.sockets.contains_key(&port) {
            return Err(OpenError::PortInUse(port));
        }
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        let tls = certificate::server(config.identity.as_ref())?;
        let listener = ListenerEntry { id, config, tls };
        let server = listener.server_config(self.clock)?;
        let endpoint = Endpoint::new(endpoint_config(self.seed, port), Some(server), true);
        let listener = Some(listener);
        self.sockets.insert(port, Socket { endpoint, listener, by_handle: BTreeMap::new() });
        Ok(id)
    }

    /// Stops accepting connections on a port; accepted ones continue.
    pub fn stop_listening(&mut self, listener: ListenerId) {
        let has_listener =
            |socket: &&mut Socket| socket.listener.as_ref().is_some_and(|l| l.id == listener);
        if let Some(socket) = self.sockets.values_mut().find(has_listener) {
            socket.listener = None;
            socket.endpoint.set_server_config(None);
        }
        self.sockets.retain(|_, socket| socket.is_used());
    }

    /// Opens a connection, from `local` if given.
    pub fn connect(
        &mut self,
        now: Instant,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: QuicConfig,
    ) -> Result<ConnectionId, OpenError> {
        let is_usable = |a: &&LocalAddress| match local {
            Some(local) => a.address == local,
            None => a.up && a.address.is_ipv4() == remote.is_ipv4(),
        };
        let source = self.addresses.iter().find(is_usable).copied();
        let source = source.ok_or_else(|| match local {
            Some(local) => OpenError::ForeignAddress(local),
            None => OpenError::NoAddress(remote),
        })?;
        let port = self.free_port()?;
        self.connect_from(now, SocketAddr::new(source.address, port), remote, config)
    }

    /// Opens a connection from an address of this host and a port that the caller has found free.
    pub fn connect_from(
        &mut self,
        now: Instant,
        local: SocketAddr,
        remote: SocketAddr,
        config: QuicConfig,
    ) -> Result<ConnectionId, OpenError> {
        let port = local.port();
        let source = self.addresses.iter().find(|a| a.address == local.ip());
        let interface = source.ok_or(OpenError::ForeignAddress(local.ip()))?.interface;
        if self.sockets.contains_key(&port) {
            return Err(OpenError::PortInUse(port));
        }
        let factory = CongestionFactory::new(&config.congestion_control, self.clock)?;
        let mut client = ClientConfig::new(certificate::client(&config.trust)?);
        client.transport_config(Arc::new(config.transport(factory)));
        if let Some(seed) = self.seed {
            let initial_cid = stream_seed(seed, &port.to_string(), "first destination");
            client.initial_dst_cid_provider(Arc::new(move || {
                WireId::new(&initial_cid.to_be_bytes())
            }));
        }
        let mut endpoint = Endpoint::new(endpoint_config(self.seed, port), None, true);
        let std_now = self.clock.to_std(now);
        let (handle, inner) =
            endpoint.connect(std_now, client, remote, certificate::SERVER_NAME)?;
        let id = self.next_connection_id();
        let (clock, socket) = (self.clock, port);
        let params =
            ConnectionParams { inner, id, handle, socket, config, clock, local, remote, interface };
        self.connections.insert(id, Connection::new(now, params));
        let by_handle = BTreeMap::from([(handle.0, id)]);
        self.sockets.insert(port, Socket { endpoint, listener: None, by_handle });
        self.drive(now, id);
        Ok(id)
    }

    fn next_connection_id(&mut self) -> ConnectionId {
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        id
    }

    fn free_port(&mut self) -> Result<u16, OpenError> {
        let is_used = |port: u16| self.sockets.contains_key(&port);
        let candidates = (self.next_port..=u16::MAX).chain(FIRST_EPHEMERAL_PORT..self.next_port);
        let port = { candidates }.find(|port| !is_used(*port)).ok_or(OpenError::NoPort)?;
        self.next_port = port.checked_add(1).unwrap_or(FIRST_EPHEMERAL_PORT);
        Ok(port)
    }

    /// Processes a received datagram (or several, with a segment size).
    pub fn handle_datagram(&mut self, now: Instant, datagram: &Datagram) {
        let arrival = IncomingDatagrams {
            local: datagram.local,
            remote: datagram.remote,
            ecn: datagram.ecn,
            segment_bytes: datagram.segment_bytes.unwrap_or(usize::MAX),
        };
        self.receive(now, arrival, BytesMut::from(&datagram.payload[..]));
    }

    /// Processes datagrams received at once; the bytes are decrypted in place.
    pub fn receive(&mut self, now: Instant, arrival: IncomingDatagrams, mut payload: BytesMut) {
        let mut pending_id = None;
        while !payload.is_empty() {
            let length = arrival.segment_bytes.clamp(1, payload.len());
            let id = self.handle_single(now, arrival, payload.split_to(length));
            if pending_id != id {
                // Usually all datagrams are for one connection, which is then driven only once.
                pending_id.inspect(|previous_id| self.drive(now, *previous_id));
                pending_id = id;
            }
        }
        pending_id.inspect(|last_id| self.drive(now, *last_id));
    }

    /// Processes one datagram and returns its connection, which the caller must drive.
    fn handle_single(
        &mut self,
        now: Instant,
        arrival: IncomingDatagrams,
        data: BytesMut,
    ) -> Option<ConnectionId> {
        let IncomingDatagrams { local, remote, ecn, segment_bytes: _ } = arrival;
        let socket = self.sockets.get_mut(&local.port())?;
        let tuple = FourTuple::new(remote, Some(local.ip()));
        let std_now = self.clock.to_std(now);
        self.buffer.clear();
        let ecn = EcnCodepoint::from_bits(ecn);
        // Such a datagram is too small to begin a connection of any version.
        let is_small_long_header = data.len() < usize::from(MIN_DATAGRAM_BYTES)
            && data.first().is_some_and(|first_byte| first_byte & 0x80 != 0);
        let (bytes, is_handshake) = (data.len(), datagram::is_handshake_packet(&data));
        match socket.endpoint.handle(std_now, tuple, ecn, data, &mut self.buffer)? {
            DatagramEvent::ConnectionEvent(handle, event) => {
                let id = socket.by_handle.get(&handle.0).copied()?;
                let connection = self.connections.get_mut(&id)?;
                if connection.has_validated(remote) {
                    connection.receive(now, (local, remote), event);
                } else if connection.admits_remote(now, remote) {
                    self.amplification.on_received(remote, bytes);
                    connection.receive_unvalidated(now, (local, remote), event, is_handshake);
                }
                Some(id)
            }
            DatagramEvent::NewConnection(incoming) => {
                self.amplification.on_received(remote, bytes);
                self.accept(now, local.port(), incoming, (local, remote));
                None
            }
            // RFC 9000 §5.2.2: no Version Negotiation for small datagrams, to which the reply would
            // be longer.
            DatagramEvent::Response(_) if is_small_long_header => None,
            DatagramEvent::Response(transmit) => {
                self.amplification.on_received(remote, bytes);
                self.queue_reply(&transmit, local);
                None
            }
        }
    }

    fn accept(
        &mut self,
        now: Instant,
        port: u16,
        incoming: Incoming,
        (local, remote): (SocketAddr, SocketAddr),
    ) {
        let listener = self.sockets.get(&port).and_then(|socket| socket.listener.clone());
        let server_config = listener.map(|listener| {
            listener.server_config(self.clock).map(|server_config| (listener, server_config))
        });
        let Some(socket) = self.sockets.get_mut(&port) else { return };
        self.buffer.clear();
        let Some(Ok((ListenerEntry { id: listener, config, .. }, server_config))) = server_config
        else {
            socket.endpoint.ignore(incoming);
            return;
        };
        let unfinished_handshakes = self.handshaking.len();
        if unfinished_handshakes >= config.validation.max_handshakes
            || self.connections.len() >= config.validation.max_connections
        {
            socket.endpoint.ignore(incoming);
            return;
        }
        let returned_token = incoming.remote_address_validated();
        let address_validated = returned_token || !incoming.may_retry();
        if unfinished_handshakes >= config.validation.retry_from && !address_validated {
            // Cannot fail: whether a Retry is possible was just checked.
            if let Ok(transmit) = socket.endpoint.retry(incoming, &mut self.buffer) {
                self.queue_reply(&transmit, local);
            }
            return;
        }
        let std_now = self.clock.to_std(now);
        let accepted =
            socket.endpoint.accept(incoming, std_now, &mut self.buffer, Some(server_config));
        let (handle, inner) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if let Some(transmit) = error.response {
                    self.queue_reply(&transmit, local);
                }
                return;
            }
        };
        let address = self.addresses.iter().find(|address| address.address == local.ip());
        let interface = address.map_or(0, |address| address.interface);
        let id = ConnectionId(self.next_connection);
        self.next_connection += 1;
        socket.by_handle.insert(handle.0, id);
        let (clock, socket) = (self.clock, port);
        let params =
            ConnectionParams { inner, id, handle, socket, config, clock, local, remote, interface };
        let mut connection = Connection::new(now, params);
        if returned_token {
            connection.on_path_validated(PathId::ZERO);
        }
        self.connections.insert(id, connection);
        self.handshaking.insert(id);
        self.events.push_back(QuicEvent::Accepted { listener, connection: id });
        self.drive(now, id);
    }

    /// Queues the packet that the endpoint has written to the buffer. Drops it if its address, which
    /// is not validated, may not get as much.
    fn queue_reply(&mut self, transmit: &Transmit, local: SocketAddr) {
        let (remote, bytes) = (transmit.destination, transmit.size);
        if self.amplification.take(remote, bytes, transmit.segment_size) < bytes {
            return;
        }
        let payload = self.buffer.get(..transmit.size).unwrap_or_default();
        self.replies.push_back(Datagram {
            local: SocketAddr::new(transmit.src_ip.unwrap_or(local.ip()), local.port()),
            remote: transmit.destination,
            ecn: transmit.ecn.map_or(0, |ecn| ecn as u8),
            payload: Bytes::copy_from_slice(payload),
            segment_bytes: transmit.segment_size,
        });
    }

    /// Exchanges a connection's events and marks it as ready to send.
    fn drive(&mut self, now: Instant, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if let Some(socket) = self.sockets.get_mut(&connection.socket) {
            connection.drive(now, &mut socket.endpoint, &self.addresses, &mut self.events);
        }
        self.ready.insert(id);
        if connection.established || connection.is_closed() {
            self.handshaking.remove(&id);
        }
        if connection.is_drained() && self.released.remove(&id) {
            self.remove(id);
        }
    }

    fn drive_all(&mut self, now: Instant) {
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.drive(now, id);
        }
    }

    /// Releases a connection that the application no longer needs. It is removed once its peer
    /// knows that it is closed, together with its own socket, if any.
    pub fn release(&mut self, now: Instant, id: ConnectionId) {
        if !self.connections.contains_key(&id) {
            return;
        }
        self.released.insert(id);
        self.close(now, id);
        self.drive(now, id);
    }

    fn remove(&mut self, id: ConnectionId) {
        self.ready.remove(&id);
        self.handshaking.remove(&id);
        let Some(connection) = self.connections.remove(&id) else { return };
        if let Some(socket) = self.sockets.get_mut(&connection.socket) {
            socket.by_handle.remove(&connection.handle.0);
            if !socket.is_used() {
                self.sockets.remove(&connection.socket);
            }
        }
    }

    /// Returns the local ports in use.
    pub fn ports(&self) -> impl Iterator<Item = u16> + '_ {
        self.sockets.keys().copied()
    }

    /// Returns the time at which [`QuicStack::handle_timeout`] must be called.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.connections.values().filter_map(Connection::next_due).min()
    }

    /// Runs the timers that are due.
    pub fn handle_timeout(&mut self, now: Instant) {
        let is_due = |connection: &Connection| connection.next_due().is_some_and(|due| due <= now);
        let ids: Vec<ConnectionId> = self
            .connections
            .iter()
            .filter(|(_, connection)| is_due(connection))
            .map(|(id, _)| *id)
            .collect();
        for id in ids {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.wake(now);
            }
            self.drive(now, id);
        }
    }

    /// Returns true if [`QuicStack::poll_event`] has an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<QuicEvent> {
        self.events.pop_front()
    }

    /// Opens a stream; `None` when the peer's limit is reached, or on an end that accepted.
    pub fn open_stream(&mut self, connection: ConnectionId) -> Option<StreamId> {
        self.connections.get_mut(&connection).filter(|c| c.opener)?.open_stream()
    }

    /// Writes as much of `data` as fits, cuts that off and returns its length.
    pub fn write(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        stream: StreamId,
        data: &mut Bytes,
    ) -> Result<usize, StreamError> {
        self.connection_mut(connection)?.write(now, stream, data)
    }

    /// Returns the next bytes; empty at the end of the data, `None` when nothing is readable now.
    pub fn read(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        stream: StreamId,
    ) -> Result<Option<Bytes>, StreamError> {
        self.read_chunk(now, connection, stream, usize::MAX)
    }

    /// Returns at most `max_bytes` of the next bytes, otherwise as [`QuicStack::read`]; the rest
    /// comes with the next call.
    pub fn read_chunk(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        stream: StreamId,
        max_bytes: usize,
    ) -> Result<Option<Bytes>, StreamError> {
        self.connection_mut(connection)?.read(now, stream, max_bytes)
    }

    /// Changes congestion control, path policy and windows of an accepted connection, once its
    /// purpose is known. Changes nothing if one of them is unknown.
    pub fn configure(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        config: &QuicConfig,
    ) -> Result<(), UnknownCongestionControl> {
        if let Ok(state) = self.connection_mut(connection) {
            state.configure(now, config)?;
            self.drive(now, connection);
        }
        Ok(())
    }

    /// Removes a connection and its state at once, without notifying the peer, which must detect
    /// that itself.
    pub fn drop_silently(&mut self, connection: ConnectionId) {
        if let Some(state) = self.connections.get(&connection)
            && let Some(socket) = self.sockets.get_mut(&state.socket)
            && !state.is_drained()
        {
            socket.endpoint.handle_event(state.handle, EndpointEvent::drained());
        }
        self.released.remove(&connection);
        self.remove(connection);
    }

    /// Ends a stream: no more data will be written.
    pub fn finish(
        &mut self,
        now: Instant,
        connection: ConnectionId,
        stream: StreamId,
    ) -> Result<(), StreamError> {
        self.connection_mut(connection)?.finish(now, stream)
    }

    fn connection_mut(&mut self, connection: ConnectionId) -> Result<&mut Connection, StreamError> {
        self.ready.insert(connection);
        self.connections.get_mut(&connection).ok_or(StreamError::NoConnection)
    }

    /// Closes a connection at once.
    pub fn close(&mut self, now: Instant, connection: ConnectionId) {
        if let Some(state) = self.connections.get_mut(&connection) {
            state.close(now);
            self.drive(now, connection);
        }
    }

    /// Returns a secret that only both ends of a connection can derive (RFC 8446 §7.5), once it is
    /// established.
    pub fn binding(&self, connection: ConnectionId) -> Option<[u8; 32]> {
        self.connections.get(&connection)?.binding()
    }

    /// Returns the current state of a connection.
    pub fn status(&mut self, connection: ConnectionId) -> Option<ConnectionStatus> {
        self.connections.get_mut(&connection).map(Connection::status)
    }
}
