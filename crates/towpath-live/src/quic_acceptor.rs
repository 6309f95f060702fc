//! Acceptor of a server over UDP: one QUIC host for all ports, and datagrams outside QUIC.
//!
//! As with TCP, a connection without a preamble gets few resources and a short timeout. When too
//! many are pending, the source with the most of them loses its oldest one silently.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use towpath_net::{Instant, SourcePrefix};
use towpath_os::clock::Clock;
use towpath_quic::{AddressValidation, ConnectionId, Identity, QuicConfig, StreamId};
use towpath_run::datagram;
use towpath_run::stamp::DatagramHeader;
use towpath_run::token::TestToken;
use towpath_sockets::quic::{
    ConnectionEvent, DriverContext, HostConfig, InterfacePolicy, QuicHandle,
};
use towpath_sockets::stream::quic::QuicEventLog;

use super::data_stream::ConnectionGuard;
use super::dial::IDLE_TIMEOUT;
use super::eviction::EvictionPolicy;
use super::udp_flows::ListenerSockets;
use crate::protocol::{Preamble, ServerLimits};

/// Initial receive window of a connection in bytes, for all streams, before its preamble.
const INITIAL_WINDOW_BYTES: u64 = 64 * 1024;
/// Streams that a connection may have open, before it belongs to a test. Each can make the library
/// hold [`STREAM_GAP_BYTES`].
const INITIAL_STREAMS: u32 = 2;
/// Memory of a stream whose data has gaps: the library keeps whole packets for single bytes.
pub(super) const STREAM_GAP_BYTES: u64 = 32 * 1024;
/// Maximum total number of streams of one connection.
const MAX_STREAMS: usize = 4_096;

/// Stream whose preamble has arrived.
pub(super) struct IdentifiedStream {
    pub(super) host: Arc<QuicHandle>,
    pub(super) connection: ConnectionId,
    pub(super) stream: StreamId,
    /// Guard that keeps the connection open.
    pub(super) guard: Arc<ConnectionGuard>,
    /// Log of the connection's path events.
    pub(super) log: Arc<Mutex<QuicEventLog>>,
    pub(super) peer: SocketAddr,
    pub(super) port: u16,
    pub(super) preamble: Preamble,
}

/// Callback for an identified stream; runs in the QUIC driver thread.
pub(super) type OnStream = Arc<dyn Fn(&mut DriverContext<'_>, IdentifiedStream) + Send + Sync>;
/// Handler of a UDP flow datagram: takes header, length, and peer and local address; returns the
/// reply.
pub(super) type OnDatagram = Arc<
    dyn Fn(&DatagramHeader, usize, (SocketAddr, SocketAddr)) -> Option<DatagramHeader>
        + Send
        + Sync,
>;
/// Filter of echo datagrams by token and source; returns true to reply.
pub(super) type EchoFilter = Arc<dyn Fn(TestToken, SocketAddr) -> bool + Send + Sync>;

/// Progress of a stream's preamble.
#[derive(Debug)]
enum PreambleState {
    Partial(Vec<u8>),
    Complete,
}

/// QUIC connection and the preambles of its streams.
#[derive(Debug)]
struct PendingQuicConnection {
    source: SourcePrefix,
    accepted_at: Instant,
    log: Option<Arc<Mutex<QuicEventLog>>>,
    streams: BTreeMap<StreamId, PreambleState>,
    /// Guard of the connection; dead until an identified stream needs it.
    guard: Weak<ConnectionGuard>,
}

impl PendingQuicConnection {
    fn is_pending(&self) -> bool {
        self.guard.strong_count() == 0
    }
}

/// Connections of a server by ID.
#[derive(Debug)]
struct QuicConnectionTable {
    by_id: BTreeMap<ConnectionId, PendingQuicConnection>,
    eviction: EvictionPolicy,
}

impl QuicConnectionTable {
    fn new(eviction: EvictionPolicy) -> Self {
        Self { by_id: BTreeMap::new(), eviction }
    }

    /// Inserts a connection; returns a pending one to evict if there are too many.
    fn insert(
        &mut self,
        id: ConnectionId,
        connection: PendingQuicConnection,
        max_pending: usize,
    ) -> Option<ConnectionId> {
        self.by_id.insert(id, connection);
        let pending = || self.by_id.iter().filter(|(_, connection)| connection.is_pending());
        if pending().count() <= max_pending {
            return None;
        }
        // IDs are in order of age.
        let oldest =
            self.eviction.choose(pending().map(|(id, connection)| (*id, connection.source)))?;
        self.by_id.remove(&oldest);
        Some(oldest)
    }

    /// Returns the pending connections whose preamble timed out.
    fn expired(&self, now: Instant, limits: &ServerLimits) -> Vec<ConnectionId> {
        let expired = self.by_id.iter().filter(|(_, connection)| {
            connection.is_pending()
                && now.saturating_since(connection.accepted_at) > limits.preamble_timeout
        });
        expired.map(|(id, _)| *id).collect()
    }
}

/// QUIC acceptor of all ports of a server.
#[derive(Debug)]
pub(super) struct QuicAcceptor {
    host: Arc<QuicHandle>,
    connections: Arc<Mutex<QuicConnectionTable>>,
    config: QuicConfig,
    limits: ServerLimits,
}

fn lock(table: &Mutex<QuicConnectionTable>) -> MutexGuard<'_, QuicConnectionTable> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the QUIC settings of accepted connections before their purpose is known.
fn config(identity: Identity, limits: &ServerLimits, migration: bool) -> QuicConfig {
    let max_pending = limits.max_pending.max(1);
    QuicConfig {
        multipath: true,
        identity: Some(identity),
        idle_timeout: IDLE_TIMEOUT,
        initial_window_bytes: Some(INITIAL_WINDOW_BYTES),
        max_streams: INITIAL_STREAMS,
        validation: AddressValidation {
            // Handshakes from spoofed addresses must not exhaust the limits.
            retry_from: max_pending / 4,
            max_handshakes: max_pending.saturating_mul(2),
            max_connections: max_pending.saturating_mul(4).saturating_add(limits.tests * 20),
            migration,
        },
        ..QuicConfig::default()
    }
}

impl QuicAcceptor {
    pub(super) fn open(
        identity: Identity,
        limits: &ServerLimits,
        migration: bool,
        clock: Clock,
    ) -> io::Result<Self> {
        let (name, interfaces) = ("server".to_owned(), InterfacePolicy::all());
        let host =
            QuicHandle::start(HostConfig { name, clock, seed: None, namespace: None, interfaces })?;
        let config = config(identity, limits, migration);
        let limits = limits.clone();
        let connections =
            Arc::new(Mutex::new(QuicConnectionTable::new(EvictionPolicy::unpredictable())));
        Ok(Self { host: Arc::new(host), connections, config, limits })
    }

    /// Listens on a UDP port and handles QUIC and other datagrams on it.
    pub(super) fn listen(
        &self,
        address: Option<IpAddr>,
        port: u16,
        (on_stream, echo_filter, on_datagram): (OnStream, EchoFilter, OnDatagram),
    ) -> io::Result<()> {
        // A weak reference, since the thread must not keep itself alive.
        let host = Arc::downgrade(&self.host);
        let table = Arc::clone(&self.connections);
        let max_pending = self.limits.max_pending.max(1);
        let config = self.config.clone();
        self.host.call(move |driver| {
            driver.listen_at(address, port, config, move |driver, id| {
                let reader = PreambleReader {
                    host: Weak::clone(&host),
                    connections: Arc::clone(&table),
                    port,
                    id,
                };
                reader.accept(driver, max_pending, &on_stream);
            })?;
            driver.on_non_quic_datagram(port, move |request, (peer, local)| {
                if let Some(header) = DatagramHeader::parse(request) {
                    let reply = on_datagram(&header, request.len(), (peer, local));
                    return reply.map(|reply| Bytes::copy_from_slice(&reply.to_bytes()));
                }
                let reply = datagram::reply(request, |token| echo_filter(token, peer));
                reply.map(|reply| Bytes::copy_from_slice(&reply))
            });
            Ok(())
        })?
    }

    /// Returns the listening sockets of all ports, for sending datagrams outside QUIC.
    pub(super) fn listener_sockets(&self) -> io::Result<ListenerSockets> {
        self.host.call(|driver| {
            let sockets = driver.listener_sockets().into_iter();
            sockets.map(|socket| Ok(((socket.port, socket.v4), socket))).collect()
        })?
    }

    /// Closes pending connections whose preamble timed out.
    pub(super) fn expire(&self) {
        let (table, limits) = (Arc::clone(&self.connections), self.limits.clone());
        self.host.post(move |driver| {
            let expired = lock(&table).expired(driver.now, &limits);
            for id in expired {
                lock(&table).by_id.remove(&id);
                driver.close(id);
            }
        });
    }
}

/// Reader of the preambles of a connection's streams.
#[derive(Clone)]
struct PreambleReader {
    host: Weak<QuicHandle>,
    connections: Arc<Mutex<QuicConnectionTable>>,
    port: u16,
    id: ConnectionId,
}

impl PreambleReader {
    fn accept(self, driver: &mut DriverContext<'_>, max_pending: usize, on_stream: &OnStream) {
        let Some(status) = driver.host.status(self.id) else { return };
        let source = SourcePrefix::of(status.remote.ip());
        let (accepted_at, streams, guard) = (driver.now, BTreeMap::new(), Weak::new());
        let connection = PendingQuicConnection { source, accepted_at, log: None, streams, guard };
        if let Some(evicted) = lock(&self.connections).insert(self.id, connection, max_pending) {
            driver.abandon(evicted);
        }
        let (reader, on_stream) = (self.clone(), Arc::clone(on_stream));
        let log = QuicEventLog::attach(driver, self.id, move |driver, event| match event {
            ConnectionEvent::StreamOpened(stream) | ConnectionEvent::Readable(stream) => {
                reader.read_preamble(driver, *stream, &on_stream);
            }
            ConnectionEvent::Closed(_) => {
                lock(&reader.connections).by_id.remove(&reader.id);
            }
            ConnectionEvent::Connected | ConnectionEvent::Notice(_) => {}
        });
        if let Some(connection) = lock(&self.connections).by_id.get_mut(&self.id) {
            connection.log = Some(log);
        }
    }

    /// Reads the preamble of a readable stream and dispatches the stream.
    fn read_preamble(
        &self,
        driver: &mut DriverContext<'_>,
        stream: StreamId,
        on_stream: &OnStream,
    ) {
        match self.preamble(driver, stream) {
            Ok(None) => {}
            Ok(Some(preamble)) => {
                // A stream that is not dispatched is dropped.
                if let Some(identified) = self.identify(driver, stream, preamble) {
                    on_stream(driver, identified);
                }
            }
            Err(BadPreamble) => {
                lock(&self.connections).by_id.remove(&self.id);
                driver.close(self.id);
            }
        }
    }

    /// Reads exactly one preamble; later data belongs to the stream's handler.
    fn preamble(
        &self,
        driver: &mut DriverContext<'_>,
        stream: StreamId,
    ) -> Result<Option<Preamble>, BadPreamble> {
        let mut table = lock(&self.connections);
        let Some(connection) = table.by_id.get_mut(&self.id) else { return Ok(None) };
        if connection.streams.len() >= MAX_STREAMS {
            return Err(BadPreamble);
        }
        let state =
            connection.streams.entry(stream).or_insert_with(|| PreambleState::Partial(Vec::new()));
        loop {
            let PreambleState::Partial(bytes) = state else { return Ok(None) };
            let missing = Preamble::BYTES.saturating_sub(bytes.len());
            match driver.host.read_chunk(driver.now, self.id, stream, missing) {
                Ok(Some(chunk)) if !chunk.is_empty() => bytes.extend_from_slice(&chunk),
                Ok(None) => return Ok(None),
                Ok(Some(_)) | Err(_) => return Err(BadPreamble),
            }
            if let Some(preamble) = Preamble::read(bytes).map_err(|_| BadPreamble)? {
                *state = PreambleState::Complete;
                return Ok(Some(preamble));
            }
        }
    }

    fn identify(
        &self,
        driver: &mut DriverContext<'_>,
        stream: StreamId,
        preamble: Preamble,
    ) -> Option<IdentifiedStream> {
        let host = self.host.upgrade()?;
        let peer = driver.host.status(self.id)?.remote;
        let mut table = lock(&self.connections);
        let connection = table.by_id.get_mut(&self.id)?;
        let guard =
            connection.guard.upgrade().unwrap_or_else(|| ConnectionGuard::new(&host, self.id));
        connection.guard = Arc::downgrade(&guard);
        let log = connection.log.clone()?;
        Some(IdentifiedStream {
            host,
            connection: self.id,
            stream,
            guard,
            log,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            port: self.port,
            preamble,
        })
    }
}

/// Marker of an invalid preamble or too many streams.
struct BadPreamble;
