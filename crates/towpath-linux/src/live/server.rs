//! `towpath server`: who listens, and one thread for each control connection.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::stamp::{DatagramHeader, DatagramKind};
use towpath_measure::live::{
    ConnectionKind, ObservedProtocol, Preamble, Secret, ServerLimits, TestToken,
};
use towpath_measure::scenario::Transport;
use towpath_net::Instant;
use towpath_quic::tls::TlsSession;
use towpath_quic::{Fingerprint, Identity};

use super::budget::{self, AdmissionControl, CloseFn, ConnectionPermit, SourcePrefix, SourceQuota};
use super::door::Acceptor;
use super::reception::{EchoFilter, OnDatagram, OnStream, QuicAcceptor};
use super::speaker::ControlChannel;
use super::steady::{ListenerSockets, UdpServerContext};
use super::test::{ClientGuard, ServerTest, TestTable};
use super::{LiveError, socket};
use crate::clock::Clock;
use crate::purse::TrafficDirection;
use crate::{interrupt, sys};

mod control;
mod course;
mod identity;
mod over_quic;

/// How often it is looked what tests take, and who attends them.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(20);
/// How often a control thread looks whether the connections are there.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Bytes that one echo connection gets back at once.
const ECHO_BYTES: usize = 4_096;
/// Port numbers that are tried, where any will do, until one is free for TCP and UDP.
const MAX_PORT_ATTEMPTS: usize = 16;
/// What a server that ends lets last words take: QUIC's are ours to deliver.
const LINGER_TIMEOUT: Duration = Duration::from_millis(600);

/// How a server is started.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Ports.
    pub ports: Vec<u16>,
    /// Address; all of the host when `None`.
    pub bind: Option<IpAddr>,
    /// Clients must know it.
    pub secret: Option<Secret>,
    /// What they may do.
    pub limits: ServerLimits,
    /// It ends after one test.
    pub once: bool,
    /// Everybody who asks is told how this host looks, not only those who know the secret.
    pub public_diagnostics: bool,
    /// Certificate and key for QUIC; made for this once when there is none.
    pub identity: Option<Identity>,
}

/// What a server has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// A test's traffic begins.
    Begun {
        /// Who asked for it.
        client: Option<SocketAddr>,
        /// Over which transport.
        transport: Transport,
        /// Patterns of its flows.
        patterns: Vec<&'static str>,
    },
    /// It has ended.
    Ended {
        /// Who asked for it.
        client: Option<SocketAddr>,
    },
    /// Somebody does not know the secret.
    WrongSecret {
        /// Who.
        client: Option<SocketAddr>,
        /// Others since this was last told.
        others: u64,
    },
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    door: Acceptor,
    reception: Option<QuicAcceptor>,
    shared: Arc<ServerState>,
    addresses: Vec<SocketAddr>,
    fingerprint: Option<Fingerprint>,
    warnings: Vec<String>,
}

type EventCallback = Box<dyn Fn(ServerEvent) + Send + Sync>;

struct ServerState {
    config: ServerConfig,
    clock: Clock,
    tests: TestTable,
    budget: Arc<AdmissionControl>,
    guesses: identity::SharedAuthLimiter,
    /// Somebody has fetched a result.
    fetched: AtomicBool,
    closing: AtomicBool,
    /// Its kernel accepts Multipath TCP.
    multipath: bool,
    /// Ports on which QUIC is spoken and datagrams are sent back.
    udp: OnceLock<BTreeSet<u16>>,
    tell: OnceLock<EventCallback>,
    /// From where datagrams are sent.
    listener_sockets: OnceLock<ListenerSockets>,
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// A control connection, and where it has come in.
type ControlConnection = (ControlChannel, ConnectionOrigin);
/// A test that somebody has named, and by what.
type NamedTest = (TestToken, Arc<ServerTest>);

/// Where a connection has come in.
#[derive(Debug, Clone, Copy)]
struct ConnectionOrigin {
    peer: Option<SocketAddr>,
    /// What is known of it that its client cannot see.
    seen: Option<ObservedProtocol>,
    port: Option<u16>,
}

impl Server {
    /// Listens.
    pub fn open(mut config: ServerConfig) -> Result<Self, LiveError> {
        // Many connections need many descriptors; with fewer it works, too, for fewer clients.
        if let Ok(descriptors) = sys::raise_open_files() {
            config.limits.max_pending = max_pending(descriptors, &config.limits);
        }
        config.identity = config.identity.or_else(|| super::identity::ephemeral_identity().ok());
        let clock = Clock::start();
        let shared = Arc::new(ServerState {
            clock,
            tests: TestTable::default(),
            budget: AdmissionControl::new(&config.limits, clock),
            guesses: identity::SharedAuthLimiter::default(),
            fetched: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            multipath: socket::kernel_has_mptcp(),
            udp: OnceLock::new(),
            tell: OnceLock::new(),
            listener_sockets: OnceLock::new(),
            config,
        });
        let mut warnings = Vec::new();
        let opened = shared.quic_acceptor();
        let (reception, fingerprint) = match opened {
            Ok((reception, fingerprint)) => (Some(reception), Some(fingerprint)),
            Err(error) => {
                warnings.push(format!("no QUIC: {error}"));
                (None, None)
            }
        };
        let mut listeners = Vec::new();
        let mut udp = BTreeSet::new();
        for port in &shared.config.ports {
            let (listener, without) = shared.listen(*port, reception.as_ref())?;
            let bound = listener.local_addr().ok().and_then(|address| address.as_socket());
            match without {
                None => udp.extend(bound.map(|bound| bound.port()).filter(|_| reception.is_some())),
                Some(error) => {
                    let port = bound.map_or(*port, |bound| bound.port());
                    warnings.push(format!("no QUIC on port {port}, UDP is not free: {error}"));
                }
            }
            listeners.push(listener);
        }
        let outlets = reception.as_ref().map(QuicAcceptor::listener_sockets).transpose();
        let _ = shared.listener_sockets.set(outlets.ok().flatten().unwrap_or_default()); // set only here
        let _ = shared.udp.set(udp);
        let addresses = listeners.iter().filter_map(|one| one.local_addr().ok()?.as_socket());
        let addresses = addresses.collect();
        let door = Acceptor::new(listeners, clock);
        Ok(Self { door, reception, shared, addresses, fingerprint, warnings })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What clients can know it by over QUIC, if it speaks that.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// Whether QUIC is spoken on a port.
    pub fn has_quic(&self, port: u16) -> bool {
        self.shared.has_udp(Some(port))
    }

    /// What it does without, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Serves until an interrupt, or until one test has been fetched if that is all.
    pub fn run(mut self, tell: impl Fn(ServerEvent) + Send + Sync + 'static) -> io::Result<()> {
        let _ = self.shared.tell.set(Box::new(tell)); // set only here
        let (mut tidied, mut watched) = (Instant::ZERO, Instant::ZERO);
        loop {
            let shared = &self.shared;
            self.door.poll(&shared.config.limits, &mut |socket, preamble| {
                shared.dispatch(socket, preamble);
            })?;
            let now = shared.clock.now();
            if now.saturating_since(watched) > HOUSEKEEPING_INTERVAL {
                watched = now;
                shared.tests.expire(now, &shared.config.limits);
            }
            if now.saturating_since(tidied) > Duration::from_secs(1) {
                tidied = now;
                shared.budget.expire(now);
                self.reception.iter().for_each(QuicAcceptor::expire);
            }
            let done = shared.config.once && shared.fetched.load(Ordering::Acquire);
            if interrupt::is_interrupted() || done {
                shared.closing.store(true, Ordering::Release);
                shared.tests.stop_all();
                shared.wait_for_linger(now + LINGER_TIMEOUT);
                return Ok(());
            }
        }
    }
}

/// How many may wait without having said what for: where seats are more than there are descriptors
/// for, nobody would ever have to give one up, and a crowd of one source would keep out all others.
/// A seat takes two, whoever waits one; the last quarter is for the data of tests.
fn max_pending(descriptors: u64, limits: &ServerLimits) -> usize {
    const MIN_PENDING: usize = 8;
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let others = limits.tests.saturating_mul(4).saturating_add(8);
    let room = (descriptors / 4).saturating_mul(3).saturating_sub(others) / 3;
    limits.max_pending.min(room.max(MIN_PENDING))
}

impl ServerState {
    /// Takes a port for TCP and UDP; or for TCP alone, and why.
    fn listen(
        self: &Arc<Self>,
        port: u16,
        reception: Option<&QuicAcceptor>,
    ) -> Result<(Socket, Option<io::Error>), LiveError> {
        let bind = self.config.bind;
        let refused = |source| {
            let host = bind.map_or_else(|| "*".to_owned(), |ip| ip.to_string());
            LiveError::Listen { address: format!("{host}, port {port}"), source }
        };
        let mut attempts = if port == 0 { MAX_PORT_ATTEMPTS } else { 1 };
        loop {
            let listener = socket::listen(bind, port).map_err(refused)?;
            let bound = listener.local_addr().map_err(refused)?;
            let (Some(bound), Some(reception)) = (bound.as_socket(), reception) else {
                return Ok((listener, None));
            };
            let (inside, asked) = (Arc::clone(self), Arc::clone(self));
            let let_in: OnStream = Arc::new(move |turn, guest| inside.dispatch_quic(turn, guest));
            let admits: EchoFilter = Arc::new(move |token, peer| asked.allows_echo(token, peer));
            let told = Arc::clone(self);
            let hears: OnDatagram =
                Arc::new(move |stamp, length, ends| told.on_datagram(stamp, length, ends));
            attempts -= 1;
            match reception.listen(bind, bound.port(), (let_in, admits, hears)) {
                Ok(()) => return Ok((listener, None)),
                Err(error) if attempts == 0 => return Ok((listener, Some(error))),
                Err(_) => {}
            }
        }
    }

    fn has_udp(&self, port: Option<u16>) -> bool {
        self.udp.get().zip(port).is_some_and(|(ports, port)| ports.contains(&port))
    }

    fn emit(&self, said: ServerEvent) {
        if let Some(tell) = self.tell.get() {
            tell(said);
        }
    }

    fn wait_for_linger(&self, deadline: Instant) {
        while self.budget.in_use() > 0 && self.clock.now() < deadline {
            self.clock.sleep_until(self.clock.now() + POLL_INTERVAL);
        }
    }

    /// Takes a connection that has said what it is for; whatever is not right is closed without a
    /// word.
    fn dispatch(self: &Arc<Self>, socket: Socket, preamble: Preamble) {
        let known = self.tests.find(preamble.test());
        match (preamble.kind, known) {
            (ConnectionKind::Tls, _) => self.control_over_tls(socket),
            (ConnectionKind::Data, Some(test)) => {
                self.attach(test, (preamble.flow, preamble.stream), socket);
            }
            (ConnectionKind::Control, Some(test)) => {
                self.control_over_tcp(socket, Some((preamble.test(), test)));
            }
            (ConnectionKind::Control, None) if preamble.token == TestToken::NONE => {
                self.control_over_tcp(socket, None);
            }
            // Where a secret is needed, nobody gets an answer without a test.
            (ConnectionKind::Echo, known) if known.is_some() || self.config.secret.is_none() => {
                self.echo(socket);
            }
            (ConnectionKind::Control | ConnectionKind::Data | ConnectionKind::Echo, _) => {}
        }
    }

    /// Whether a datagram comes back: where a secret is needed, nobody's without a test.
    fn allows_echo(&self, token: TestToken, peer: SocketAddr) -> bool {
        let now = self.clock.now();
        let known = self.tests.find(token);
        if let Some(test) = &known {
            test.touch(now);
        }
        let open = token == TestToken::NONE && self.config.secret.is_none();
        let bytes = towpath_measure::live::datagram::EchoDatagram::BYTES as u64;
        (open || known.is_some())
            && self.budget.quota(SourcePrefix::of_peer(Some(peer))).may_answer(now, bytes)
    }

    /// A datagram of a flow that sends them at a constant rate; what is answered is as long as what was
    /// said.
    fn on_datagram(
        &self,
        stamp: &DatagramHeader,
        length: usize,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> Option<DatagramHeader> {
        let test = self.tests.find(stamp.token)?;
        match stamp.kind {
            DatagramKind::Data => {
                test.on_datagram(stamp, length);
                None
            }
            DatagramKind::Subscribe => {
                let now = self.clock.now();
                test.touch(now);
                let own = test.udp_flows.get(&stamp.flow)?;
                let allowed = self.budget.quota(SourcePrefix::of_peer(Some(peer)));
                let may = allowed.may_answer(now, length as u64);
                if may { own.on_subscribe(now, stamp, (peer, local)) } else { None }
            }
            DatagramKind::Challenge => None,
        }
    }

    /// What a test's datagrams at a constant rate need here.
    fn udp_context<'a>(&'a self, test: &'a ServerTest) -> UdpServerContext<'a> {
        static NO_SOCKETS: ListenerSockets = ListenerSockets::new();
        let outlets = self.listener_sockets.get().unwrap_or(&NO_SOCKETS);
        UdpServerContext { flows: &test.udp_flows, listener_sockets: outlets, token: test.token }
    }

    /// What the client of a connection cannot see itself.
    fn observed_protocol(&self, socket: &Socket) -> ObservedProtocol {
        match (socket::is_multipath(socket), self.multipath) {
            (true, _) => ObservedProtocol::Multipath,
            (false, true) => ObservedProtocol::Plain,
            (false, false) => ObservedProtocol::Unsupported,
        }
    }

    /// A seat for a connection of the kernel, which is closed if it is needed by others.
    fn acquire_permit(&self, socket: &Socket, kept: bool) -> Option<ConnectionPermit> {
        let other = socket.try_clone().ok()?;
        let close: CloseFn = Box::new(move || {
            let _ = other.shutdown(std::net::Shutdown::Both); // may be closed already
        });
        self.budget.acquire(SourcePrefix::of_peer(socket::peer(socket)), kept, close)
    }

    fn control_over_tcp(self: &Arc<Self>, socket: Socket, known: Option<NamedTest>) {
        socket::enable_keepalive(&socket);
        let attending = known.as_ref().map(|(_, test)| test.attach_control(self.clock));
        let kept = attending.as_ref().is_some_and(|(_, kept)| *kept);
        let Some(seat) = self.acquire_permit(&socket, kept) else { return };
        let open = move |shared: &Self| {
            let port = socket.local_addr().ok().and_then(|own| own.as_socket());
            let port = port.map(|own| own.port());
            let origin = ConnectionOrigin {
                peer: socket::peer(&socket),
                seen: Some(shared.observed_protocol(&socket)),
                port,
            };
            Ok((ControlChannel::new(socket, shared.clock)?, origin))
        };
        let token = known.map(|(token, _)| token);
        self.in_a_thread((seat, attending.map(|(attending, _)| attending)), open, token);
    }

    /// Gives a control connection a thread; without one it is closed.
    fn in_a_thread(
        self: &Arc<Self>,
        (seat, attending): (ConnectionPermit, Option<ClientGuard>),
        open: impl FnOnce(&Self) -> io::Result<ControlConnection> + Send + 'static,
        token: Option<TestToken>,
    ) {
        let shared = Arc::clone(self);
        // Without a thread, the connection is closed.
        let _ = budget::spawn_thread("control", move || {
            if let Ok(opened) = open(&shared) {
                // Ends with the connection.
                let _ = shared.control(opened, (&seat, attending), token);
            }
        });
    }

    /// Gives a test one of its connections.
    fn attach(self: &Arc<Self>, test: Arc<ServerTest>, place: (u16, u16), socket: Socket) {
        if !test.is_missing(place) {
            return;
        }
        if !test.plan.settings.tls {
            return test.attach(place, socket);
        }
        let session = self.config.identity.as_ref().map(TlsSession::server);
        let (Some(Ok(session)), Some(seat)) = (session, self.acquire_permit(&socket, false)) else {
            return;
        };
        let clock = self.clock;
        // Without a thread, the connection is closed.
        let _ = budget::spawn_thread("tls", move || {
            test.attach_with_tls(place, socket, session, clock);
            drop(seat);
        });
    }

    /// Gives back what comes, for as long as a test may take.
    fn echo(self: &Arc<Self>, socket: Socket) {
        let Some(seat) = self.acquire_permit(&socket, false) else { return };
        let allowed = self.budget.quota(SourcePrefix::of_peer(socket::peer(&socket)));
        let shared = Arc::clone(self);
        // Without a thread, the connection is closed.
        let _ = budget::spawn_thread("echo", move || {
            let _ = shared.echo_all(&socket, &allowed); // ends with the connection
            drop(seat);
        });
    }

    fn echo_all(&self, socket: &Socket, allowed: &SourceQuota) -> io::Result<()> {
        let limits = &self.config.limits;
        let deadline = self.clock.now() + limits.duration;
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(limits.preamble_timeout))?;
        socket.set_write_timeout(Some(limits.preamble_timeout))?;
        let mut room = [0; ECHO_BYTES];
        while self.clock.now() < deadline && !self.closing.load(Ordering::Acquire) {
            let mut plain = socket;
            let length = io::Read::read(&mut plain, &mut room)?;
            if length == 0 {
                break;
            }
            allowed.consume_blocking(self.clock, TrafficDirection::Inbound, length as u64);
            io::Write::write_all(&mut plain, room.get(..length).unwrap_or_default())?;
            allowed.consume_blocking(self.clock, TrafficDirection::Outbound, length as u64);
        }
        Ok(())
    }
}
