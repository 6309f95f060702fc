//! Acceptor of a server over UDP: one QUIC host for all ports, and datagrams outside QUIC.
//!
//! As with TCP, a connection without a preamble gets few resources and a short timeout. When too
//! many are pending, the address with the most of them loses its oldest one silently.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use towpath_measure::live::stamp::DatagramHeader;
use towpath_measure::live::{Preamble, ServerLimits, TestToken, datagram};
use towpath_net::Instant;
use towpath_quic::{AddressValidation, ConnectionId, Identity, QuicConfig, StreamId};

use super::data_stream::ConnectionGuard;
use super::dial::IDLE_TIMEOUT;
use super::udp_flows::ListenerSockets;
use crate::clock::Clock;
use crate::quic::{ConnectionEvent, DriverContext, HostConfig, InterfacePolicy, QuicHandle};
use crate::traffic::quic::QuicEventLog;

/// Initial receive window of a connection in bytes, for all streams, before its preamble.
const INITIAL_WINDOW_BYTES: u64 = 64 * 1024;
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
    from: IpAddr,
    since: Instant,
    log: Option<Arc<Mutex<QuicEventLog>>>,
    streams: BTreeMap<StreamId, PreambleState>,
    /// Guard of the connection; dead until an identified stream needs it.
    guard: Weak<ConnectionGuard>,
}

impl PendingQuicConnection {
    fn is_waiting(&self) -> bool {
        self.guard.strong_count() == 0
    }
}

/// Connections of a server by ID.
#[derive(Debug, Default)]
struct QuicConnectionTable {
    all: BTreeMap<ConnectionId, PendingQuicConnection>,
}

impl QuicConnectionTable {
    /// Inserts a connection; returns a pending one to evict if there are too many.
    fn insert(
        &mut self,
        id: ConnectionId,
        caller: PendingQuicConnection,
        most: usize,
    ) -> Option<ConnectionId> {
        self.all.insert(id, caller);
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        let mut count = 0;
        for (_, caller) in self.all.iter().filter(|(_, caller)| caller.is_waiting()) {
            *counts.entry(caller.from).or_default() += 1;
            count += 1;
        }
        if count <= most {
            return None;
        }
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(from, _)| from)?;
        let mut waiting = self.all.iter().filter(|(_, caller)| caller.is_waiting());
        // IDs are in order of age.
        let oldest = waiting.find(|(_, caller)| caller.from == most).map(|(id, _)| *id)?;
        self.all.remove(&oldest);
        Some(oldest)
    }

    /// Returns the pending connections whose preamble timed out.
    fn expired(&self, now: Instant, limits: &ServerLimits) -> Vec<ConnectionId> {
        let late = self.all.iter().filter(|(_, caller)| {
            caller.is_waiting() && now.saturating_since(caller.since) > limits.preamble_timeout
        });
        late.map(|(id, _)| *id).collect()
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

fn lock(callers: &Mutex<QuicConnectionTable>) -> MutexGuard<'_, QuicConnectionTable> {
    callers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the QUIC settings of accepted connections before their purpose is known.
fn config(identity: Identity, limits: &ServerLimits) -> QuicConfig {
    let waiting = limits.max_pending.max(1);
    QuicConfig {
        multipath: true,
        identity: Some(identity),
        idle_timeout: IDLE_TIMEOUT,
        initial_window_bytes: Some(INITIAL_WINDOW_BYTES),
        max_streams: limits.streams.max(1),
        validation: AddressValidation {
            // Handshakes from spoofed addresses must not exhaust the limits.
            retry_from: waiting / 4,
            max_handshakes: waiting.saturating_mul(2),
            max_connections: waiting.saturating_mul(4).saturating_add(limits.tests * 20),
        },
        ..QuicConfig::default()
    }
}

impl QuicAcceptor {
    pub(super) fn open(
        identity: Identity,
        limits: &ServerLimits,
        clock: Clock,
    ) -> io::Result<Self> {
        let (name, interfaces) = ("server".to_owned(), InterfacePolicy::all());
        let host =
            QuicHandle::start(HostConfig { name, clock, seed: None, namespace: None, interfaces })?;
        let config = config(identity, limits);
        let limits = limits.clone();
        Ok(Self { host: Arc::new(host), connections: Arc::default(), config, limits })
    }

    /// Listens on a UDP port and handles QUIC and other datagrams on it.
    pub(super) fn listen(
        &self,
        address: Option<IpAddr>,
        port: u16,
        (let_in, admits, hears): (OnStream, EchoFilter, OnDatagram),
    ) -> io::Result<()> {
        // A weak reference, since the thread must not keep itself alive.
        let host = Arc::downgrade(&self.host);
        let callers = Arc::clone(&self.connections);
        let most = self.limits.max_pending.max(1);
        let config = self.config.clone();
        self.host.call(move |turn| {
            turn.listen_at(address, port, config, move |turn, id| {
                let desk = PreambleReader {
                    host: Weak::clone(&host),
                    connections: Arc::clone(&callers),
                    port,
                    id,
                };
                desk.accept(turn, most, &let_in);
            })?;
            turn.on_non_quic_datagram(port, move |question, (peer, local)| {
                if let Some(stamp) = DatagramHeader::parse(question) {
                    let answer = hears(&stamp, question.len(), (peer, local));
                    return answer.map(|answer| Bytes::copy_from_slice(&answer.to_bytes()));
                }
                let answer = datagram::reply(question, |token| admits(token, peer));
                answer.map(|answer| Bytes::copy_from_slice(&answer))
            });
            Ok(())
        })?
    }

    /// Returns the listening sockets of all ports, for sending datagrams outside QUIC.
    pub(super) fn listener_sockets(&self) -> io::Result<ListenerSockets> {
        self.host.call(|turn| {
            let each = turn.listener_sockets().into_iter();
            each.map(|outlet| Ok(((outlet.port, outlet.v4), outlet))).collect()
        })?
    }

    /// Closes pending connections whose preamble timed out.
    pub(super) fn expire(&self) {
        let (callers, limits) = (Arc::clone(&self.connections), self.limits.clone());
        self.host.post(move |turn| {
            let late = lock(&callers).expired(turn.now, &limits);
            for id in late {
                lock(&callers).all.remove(&id);
                turn.close(id);
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
    fn accept(self, turn: &mut DriverContext<'_>, most: usize, let_in: &OnStream) {
        let Some(status) = turn.host.status(self.id) else { return };
        let from = status.remote.ip().to_canonical();
        let (since, streams, hold) = (turn.now, BTreeMap::new(), Weak::new());
        let caller = PendingQuicConnection { from, since, log: None, streams, guard: hold };
        if let Some(other) = lock(&self.connections).insert(self.id, caller, most) {
            turn.abandon(other);
        }
        let (desk, let_in) = (self.clone(), Arc::clone(let_in));
        let log = QuicEventLog::attach(turn, self.id, move |turn, happened| match happened {
            ConnectionEvent::StreamOpened(stream) | ConnectionEvent::Readable(stream) => {
                desk.read_preamble(turn, *stream, &let_in);
            }
            ConnectionEvent::Closed(_) => {
                lock(&desk.connections).all.remove(&desk.id);
            }
            ConnectionEvent::Connected | ConnectionEvent::Notice(_) => {}
        });
        if let Some(caller) = lock(&self.connections).all.get_mut(&self.id) {
            caller.log = Some(log);
        }
    }

    /// Reads the preamble of a readable stream and dispatches the stream.
    fn read_preamble(&self, turn: &mut DriverContext<'_>, stream: StreamId, let_in: &OnStream) {
        match self.preamble(turn, stream) {
            Ok(None) => {}
            Ok(Some(preamble)) => {
                // A stream that is not dispatched is dropped.
                if let Some(guest) = self.identify(turn, stream, preamble) {
                    let_in(turn, guest);
                }
            }
            Err(BadPreamble) => {
                lock(&self.connections).all.remove(&self.id);
                turn.close(self.id);
            }
        }
    }

    /// Reads exactly one preamble; later data belongs to the stream's handler.
    fn preamble(
        &self,
        turn: &mut DriverContext<'_>,
        stream: StreamId,
    ) -> Result<Option<Preamble>, BadPreamble> {
        let mut callers = lock(&self.connections);
        let Some(caller) = callers.all.get_mut(&self.id) else { return Ok(None) };
        if caller.streams.len() >= MAX_STREAMS {
            return Err(BadPreamble);
        }
        let said =
            caller.streams.entry(stream).or_insert_with(|| PreambleState::Partial(Vec::new()));
        loop {
            let PreambleState::Partial(part) = said else { return Ok(None) };
            let missing = Preamble::BYTES.saturating_sub(part.len());
            match turn.host.read_chunk(turn.now, self.id, stream, missing) {
                Ok(Some(more)) if !more.is_empty() => part.extend_from_slice(&more),
                Ok(None) => return Ok(None),
                Ok(Some(_)) | Err(_) => return Err(BadPreamble),
            }
            if let Some(preamble) = Preamble::read(part).map_err(|_| BadPreamble)? {
                *said = PreambleState::Complete;
                return Ok(Some(preamble));
            }
        }
    }

    fn identify(
        &self,
        turn: &mut DriverContext<'_>,
        stream: StreamId,
        preamble: Preamble,
    ) -> Option<IdentifiedStream> {
        let host = self.host.upgrade()?;
        let peer = turn.host.status(self.id)?.remote;
        let mut callers = lock(&self.connections);
        let caller = callers.all.get_mut(&self.id)?;
        let hold = caller.guard.upgrade().unwrap_or_else(|| ConnectionGuard::new(&host, self.id));
        caller.guard = Arc::downgrade(&hold);
        let log = caller.log.clone()?;
        Some(IdentifiedStream {
            host,
            connection: self.id,
            stream,
            guard: hold,
            log,
            peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
            port: self.port,
            preamble,
        })
    }
}

/// Marker of an invalid preamble or too many streams.
struct BadPreamble;
