//! `towpath server`: listening sockets and one thread for each control connection.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use socket2::Socket;
use towpath_kernel::sample;
use towpath_net::{Instant, SourcePrefix};
use towpath_os::clock::Clock;
use towpath_os::{interrupt, sys};
use towpath_quic::tls::TlsSession;
use towpath_quic::{Fingerprint, Identity};
use towpath_run::stamp::{DatagramHeader, DatagramKind};
use towpath_run::token::TestToken;
use towpath_scenario::Transport;
use towpath_sockets::traffic_budget::TrafficDirection;

use super::acceptor::Acceptor;
use super::admission::{self, AdmissionControl, CloseFn, ConnectionPermit, SourceQuota};
use super::control_channel::ControlChannel;
use super::quic_acceptor::{EchoFilter, OnDatagram, OnStream, QuicAcceptor};
use super::reservation::SharedGrantAccounts;
use super::server_test::{ClientGuard, ServerTest, TestTable};
use super::udp_flows::{ListenerSockets, UdpServerContext};
use super::{LiveError, socket};
use crate::protocol::{ConnectionKind, ObservedProtocol, Preamble, Secret, ServerLimits};

pub use access::DeviceAccess;

mod access;
mod auth;
mod control;
mod over_quic;
mod test_run;

/// Interval at which tests are checked for exceeded limits and absent clients.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_millis(20);
/// Interval at which a control thread checks for the data connections.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Maximum bytes of one echo.
const ECHO_BYTES: usize = 4_096;
/// Freed memory of tests from which it is returned to the system during other tests.
const MIN_RELEASED_BYTES: u64 = 4 << 20;
/// Interval at which free memory is returned to the system while no test runs.
const RELEASE_INTERVAL: Duration = Duration::from_secs(5);
/// Attempts to find a port that is free for both TCP and UDP, if any port will do.
const MAX_PORT_ATTEMPTS: usize = 16;
/// Time that a terminating server gives its last messages; over QUIC this process delivers them.
const LINGER_TIMEOUT: Duration = Duration::from_millis(600);

/// Configuration of a server.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Ports to listen on, over TCP and UDP; 0 chooses a free one.
    pub ports: Vec<u16>,
    /// Address to bind; `None` binds all addresses of the host.
    pub bind: Option<IpAddr>,
    /// Secret that clients must prove; `None` disables authentication.
    pub secret: Option<Secret>,
    /// Resource limits of clients and tests.
    pub limits: ServerLimits,
    /// Set to terminate after one test.
    pub once: bool,
    /// Set to give diagnostics of this host also to unauthenticated clients.
    pub public_diagnostics: bool,
    /// Set to let QUIC clients move to another address, also to a forged one.
    pub quic_migration: bool,
    /// Certificate and key for QUIC and TLS; `None` generates one that is not stored.
    pub identity: Option<Identity>,
    /// Access for devices of a collector; `None` for a server without a collector.
    pub access: Option<DeviceAccess>,
}

/// Notification of a running server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerEvent {
    /// The traffic of a test begins.
    Begun {
        /// Address of the client that requested the test, if known.
        client: Option<SocketAddr>,
        /// Transport of the test's flows.
        transport: Transport,
        /// Patterns of its flows.
        patterns: Vec<&'static str>,
    },
    /// The traffic of a test has ended.
    Ended {
        /// Address of the client that requested the test, if known.
        client: Option<SocketAddr>,
    },
    /// A client failed to prove the secret.
    WrongSecret {
        /// Address of the client, if known.
        client: Option<SocketAddr>,
        /// Further failures since the last notification.
        others: u64,
    },
}

/// Server with open listening sockets.
#[derive(Debug)]
pub struct Server {
    acceptor: Acceptor,
    quic_acceptor: Option<QuicAcceptor>,
    state: Arc<ServerState>,
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
    auth_limiter: auth::SharedAuthLimiter,
    grant_accounts: SharedGrantAccounts,
    /// Set after a result was fetched.
    fetched: AtomicBool,
    closing: AtomicBool,
    /// True if the kernel accepts Multipath TCP.
    multipath: bool,
    /// Ports with QUIC and echo datagrams.
    udp: OnceLock<BTreeSet<u16>>,
    on_event: OnceLock<EventCallback>,
    /// Sockets from which UDP flows are sent.
    listener_sockets: OnceLock<ListenerSockets>,
}

impl std::fmt::Debug for ServerState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Control connection and its origin.
type ControlConnection = (ControlChannel, ConnectionOrigin);
/// Token and test that a preamble named.
type NamedTest = (TestToken, Arc<ServerTest>);

/// Origin of a connection.
#[derive(Debug, Clone, Copy)]
struct ConnectionOrigin {
    peer: Option<SocketAddr>,
    /// Protocol that the server observed, which the client cannot see.
    observed: Option<ObservedProtocol>,
    port: Option<u16>,
}

impl Server {
    /// Opens the listening sockets. A port without free UDP gets TCP only, with a warning.
    pub fn open(mut config: ServerConfig) -> Result<Self, LiveError> {
        // Many connections need many descriptors; with fewer, the limit of pending connections is
        // lower.
        if let Ok(descriptors) = sys::raise_open_files() {
            config.limits.max_pending = max_pending(descriptors, &config.limits);
        }
        config.identity = config.identity.or_else(|| super::identity::ephemeral_identity().ok());
        let clock = Clock::start();
        let state = Arc::new(ServerState {
            clock,
            tests: TestTable::new(&config.limits),
            budget: AdmissionControl::new(&config.limits, clock),
            auth_limiter: auth::SharedAuthLimiter::default(),
            grant_accounts: SharedGrantAccounts::default(),
            fetched: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            multipath: socket::kernel_has_mptcp(),
            udp: OnceLock::new(),
            on_event: OnceLock::new(),
            listener_sockets: OnceLock::new(),
            config,
        });
        let mut warnings = Vec::new();
        let result = state.quic_acceptor();
        let (quic_acceptor, fingerprint) = match result {
            Ok((quic_acceptor, fingerprint)) => (Some(quic_acceptor), Some(fingerprint)),
            Err(error) => {
                warnings.push(format!("QUIC is not available: {error}"));
                (None, None)
            }
        };
        let mut listeners = Vec::new();
        let mut udp = BTreeSet::new();
        for port in &state.config.ports {
            let (listener, udp_error) = state.listen(*port, quic_acceptor.as_ref())?;
            let address = listener.local_addr().ok().and_then(|address| address.as_socket());
            match udp_error {
                None => udp.extend(
                    address.map(|address| address.port()).filter(|_| quic_acceptor.is_some()),
                ),
                Some(error) => {
                    let port = address.map_or(*port, |address| address.port());
                    warnings.push(format!("QUIC is not available on port {port}, because the UDP port is in use: {error}"));
                }
            }
            listeners.push(listener);
        }
        let listener_sockets =
            quic_acceptor.as_ref().map(QuicAcceptor::listener_sockets).transpose();
        let _ = state.listener_sockets.set(listener_sockets.ok().flatten().unwrap_or_default()); // set only here
        let _ = state.udp.set(udp);
        let addresses =
            listeners.iter().filter_map(|listener| listener.local_addr().ok()?.as_socket());
        let addresses = addresses.collect();
        let acceptor = Acceptor::new(listeners, clock);
        Ok(Self { acceptor, quic_acceptor, state, addresses, fingerprint, warnings })
    }

    /// Returns the listening addresses, one for each port.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the fingerprint of the certificate; `None` without QUIC.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// Returns true if the server accepts QUIC on a port.
    pub fn has_quic(&self, port: u16) -> bool {
        self.state.has_udp(Some(port))
    }

    /// Returns true if the server accepts Multipath TCP.
    pub fn has_mptcp(&self) -> bool {
        self.state.multipath
    }

    /// Returns warnings about missing features, with reasons.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Serves until an interrupt, or until the first result was fetched if `once` is set.
    pub fn run(mut self, on_event: impl Fn(ServerEvent) + Send + Sync + 'static) -> io::Result<()> {
        let _ = self.state.on_event.set(Box::new(on_event)); // set only here
        let (mut last_source_expiry, mut last_test_expiry) = (Instant::ZERO, Instant::ZERO);
        let (mut max_held_bytes, mut last_release) = (0, Instant::ZERO);
        loop {
            let state = &self.state;
            self.acceptor.poll(&state.config.limits, &mut |socket, preamble| {
                state.dispatch(socket, preamble);
            })?;
            let now = state.clock.now();
            if now.saturating_since(last_test_expiry) > HOUSEKEEPING_INTERVAL {
                last_test_expiry = now;
                state.tests.expire(now, &state.config.limits);
                max_held_bytes = state.tests.memory().held_bytes().max(max_held_bytes);
            }
            if now.saturating_since(last_source_expiry) > Duration::from_secs(1) {
                last_source_expiry = now;
                state.budget.expire(now);
                self.quic_acceptor.iter().for_each(QuicAcceptor::expire);
                let held_bytes = state.tests.memory().held_bytes();
                let is_due = now.saturating_since(last_release) > RELEASE_INTERVAL;
                if max_held_bytes.saturating_sub(held_bytes) >= MIN_RELEASED_BYTES
                    || (is_due && state.tests.is_idle())
                {
                    (max_held_bytes, last_release) = (held_bytes, now);
                    sys::release_free_memory();
                }
            }
            let done = state.config.once && state.fetched.load(Ordering::Acquire);
            if interrupt::is_interrupted() || done {
                state.closing.store(true, Ordering::Release);
                state.tests.stop_all();
                state.wait_for_linger(now + LINGER_TIMEOUT);
                return Ok(());
            }
        }
    }
}

/// Returns how many connections may be pending within the descriptor limit. If descriptors ran out
/// before permits, eviction would never happen, and one source could exclude all others. A permit
/// takes two descriptors, a pending connection one. The last quarter is reserved for the data of
/// tests.
fn max_pending(descriptors: u64, limits: &ServerLimits) -> usize {
    const MIN_PENDING: usize = 8;
    let descriptors = usize::try_from(descriptors).unwrap_or(usize::MAX);
    let reserved = limits.tests.saturating_mul(4).saturating_add(8);
    let available = (descriptors / 4).saturating_mul(3).saturating_sub(reserved) / 3;
    limits.max_pending.min(available.max(MIN_PENDING))
}

impl ServerState {
    /// Listens on a port over TCP and UDP. If UDP fails, returns the TCP socket with the error.
    fn listen(
        self: &Arc<Self>,
        port: u16,
        quic_acceptor: Option<&QuicAcceptor>,
    ) -> Result<(Socket, Option<io::Error>), LiveError> {
        let bind = self.config.bind;
        let listen_error = |source| {
            let host = bind.map_or_else(|| "*".to_owned(), |ip| ip.to_string());
            LiveError::Listen { address: format!("{host}, port {port}"), source }
        };
        let mut attempts = if port == 0 { MAX_PORT_ATTEMPTS } else { 1 };
        loop {
            let listener = socket::listen(bind, port).map_err(listen_error)?;
            let address = listener.local_addr().map_err(listen_error)?;
            let (Some(address), Some(quic_acceptor)) = (address.as_socket(), quic_acceptor) else {
                return Ok((listener, None));
            };
            let (stream_state, echo_state) = (Arc::clone(self), Arc::clone(self));
            let on_stream: OnStream =
                Arc::new(move |driver, identified| stream_state.dispatch_quic(driver, identified));
            let echo_filter: EchoFilter =
                Arc::new(move |token, peer| echo_state.allows_echo(token, peer));
            let datagram_state = Arc::clone(self);
            let on_datagram: OnDatagram = Arc::new(move |header, length, ends| {
                datagram_state.on_datagram(header, length, ends)
            });
            attempts -= 1;
            match quic_acceptor.listen(bind, address.port(), (on_stream, echo_filter, on_datagram))
            {
                Ok(()) => return Ok((listener, None)),
                Err(error) if attempts == 0 => return Ok((listener, Some(error))),
                Err(_) => {}
            }
        }
    }

    fn has_udp(&self, port: Option<u16>) -> bool {
        self.udp.get().zip(port).is_some_and(|(ports, port)| ports.contains(&port))
    }

    fn emit(&self, event: ServerEvent) {
        if let Some(on_event) = self.on_event.get() {
            on_event(event);
        }
    }

    fn wait_for_linger(&self, deadline: Instant) {
        while self.budget.in_use() > 0 && self.clock.now() < deadline {
            self.clock.sleep_until(self.clock.now() + POLL_INTERVAL);
        }
    }

    /// Dispatches a connection by its preamble; closes it silently if it is not permitted.
    fn dispatch(self: &Arc<Self>, socket: Socket, preamble: Preamble) {
        let test = self.tests.find(preamble.test());
        match (preamble.kind, test) {
            (ConnectionKind::Tls, _) => self.serve_control_over_tls(socket),
            (ConnectionKind::Data, Some(test)) => {
                self.attach(test, (preamble.flow, preamble.stream), socket);
            }
            (ConnectionKind::Control, Some(test)) => {
                self.serve_control_over_tcp(socket, Some((preamble.test(), test)));
            }
            (ConnectionKind::Control, None) if preamble.token == TestToken::NONE => {
                self.serve_control_over_tcp(socket, None);
            }
            // A server that requires a proof replies to connections of known tests only.
            (ConnectionKind::Echo, test) if test.is_some() || !self.requires_proof() => {
                self.spawn_echo(socket);
            }
            (ConnectionKind::Control | ConnectionKind::Data | ConnectionKind::Echo, _) => {}
        }
    }

    /// Returns true if an echo datagram gets a reply. A server that requires a proof replies for
    /// known tests only.
    fn allows_echo(&self, token: TestToken, peer: SocketAddr) -> bool {
        let now = self.clock.now();
        let test = self.tests.find(token);
        if let Some(test) = &test {
            test.touch(now);
        }
        let open = token == TestToken::NONE && !self.requires_proof();
        let bytes = towpath_run::datagram::EchoDatagram::BYTES as u64;
        (open || test.is_some())
            && self.budget.quota(SourcePrefix::of(peer.ip())).try_consume_reply(now, bytes)
    }

    /// Handles a datagram of a UDP flow; a reply has the length of its request.
    fn on_datagram(
        &self,
        header: &DatagramHeader,
        length: usize,
        (peer, local): (SocketAddr, SocketAddr),
    ) -> Option<DatagramHeader> {
        let test = self.tests.find(header.token)?;
        match header.kind {
            DatagramKind::Data => {
                test.on_datagram(header, length);
                None
            }
            DatagramKind::Subscribe => {
                let now = self.clock.now();
                test.touch(now);
                let flow = test.udp_flows.get(&header.flow)?;
                let quota = self.budget.quota(SourcePrefix::of(peer.ip()));
                let is_allowed = quota.try_consume_reply(now, length as u64);
                if is_allowed { flow.on_subscribe(now, header, (peer, local)) } else { None }
            }
            DatagramKind::Challenge => None,
        }
    }

    /// Returns the server's context of a test's UDP flows.
    fn udp_context<'a>(&'a self, test: &'a ServerTest) -> UdpServerContext<'a> {
        static NO_SOCKETS: ListenerSockets = ListenerSockets::new();
        let listener_sockets = self.listener_sockets.get().unwrap_or(&NO_SOCKETS);
        UdpServerContext { flows: &test.udp_flows, listener_sockets, token: test.token }
    }

    /// Returns the protocol that the server observes, which the client cannot see.
    fn observed_protocol(&self, socket: &Socket) -> ObservedProtocol {
        match (sample::is_multipath(socket), self.multipath) {
            (true, _) => ObservedProtocol::Multipath,
            (false, true) => ObservedProtocol::Plain,
            (false, false) => ObservedProtocol::Unsupported,
        }
    }

    /// Acquires a permit for a kernel connection; revoking the permit closes the connection.
    fn acquire_permit(&self, socket: &Socket, pinned: bool) -> Option<ConnectionPermit> {
        let socket_clone = socket.try_clone().ok()?;
        let close: CloseFn = Box::new(move || {
            let _ = socket_clone.shutdown(std::net::Shutdown::Both); // may be closed already
        });
        self.budget.acquire(socket::source(socket), pinned, close)
    }

    fn serve_control_over_tcp(self: &Arc<Self>, socket: Socket, named_test: Option<NamedTest>) {
        socket::enable_keepalive(&socket);
        let client_guard = named_test.as_ref().map(|(_, test)| test.attach_control(self.clock));
        let may_pin = client_guard.as_ref().is_some_and(|(_, may_pin)| *may_pin);
        let Some(permit) = self.acquire_permit(&socket, may_pin) else { return };
        let open = move |state: &Self| {
            let port = socket.local_addr().ok().and_then(|address| address.as_socket());
            let port = port.map(|address| address.port());
            let origin = ConnectionOrigin {
                peer: socket::peer(&socket),
                observed: Some(state.observed_protocol(&socket)),
                port,
            };
            Ok((ControlChannel::new(socket, state.clock)?, origin))
        };
        let token = named_test.map(|(token, _)| token);
        self.spawn_control_thread(
            (permit, client_guard.map(|(client_guard, _)| client_guard)),
            open,
            token,
        );
    }

    /// Serves a control connection in a thread of its own.
    fn spawn_control_thread(
        self: &Arc<Self>,
        (permit, client_guard): (ConnectionPermit, Option<ClientGuard>),
        open: impl FnOnce(&Self) -> io::Result<ControlConnection> + Send + 'static,
        token: Option<TestToken>,
    ) {
        let state = Arc::clone(self);
        // Without a thread, the connection is closed.
        let _ = admission::spawn_thread("control", move || {
            if let Ok(connection) = open(&state) {
                // An error ends only this connection.
                let _ = state.serve_control(connection, (&permit, client_guard), token);
            }
        });
    }

    /// Attaches a data connection to its test.
    fn attach(self: &Arc<Self>, test: Arc<ServerTest>, stream_key: (u16, u16), socket: Socket) {
        if !test.is_missing(stream_key) {
            return;
        }
        if !test.plan.settings.tls {
            return test.attach(stream_key, socket);
        }
        let session = self.config.identity.as_ref().map(TlsSession::server);
        let (Some(Ok(session)), Some(permit)) = (session, self.acquire_permit(&socket, false))
        else {
            return;
        };
        let clock = self.clock;
        // Without a thread, the connection is closed.
        let _ = admission::spawn_thread("tls", move || {
            test.attach_with_tls(stream_key, socket, session, clock);
            drop(permit);
        });
    }

    /// Echoes data for at most the maximum duration of a test.
    fn spawn_echo(self: &Arc<Self>, socket: Socket) {
        let Some(permit) = self.acquire_permit(&socket, false) else { return };
        let quota = self.budget.quota(socket::source(&socket));
        let state = Arc::clone(self);
        // Without a thread, the connection is closed.
        let _ = admission::spawn_thread("echo", move || {
            let _ = state.run_echo(&socket, &quota); // ends with the connection
            drop(permit);
        });
    }

    fn run_echo(&self, socket: &Socket, quota: &SourceQuota) -> io::Result<()> {
        let limits = &self.config.limits;
        let deadline = self.clock.now() + limits.duration;
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(limits.preamble_timeout))?;
        socket.set_write_timeout(Some(limits.preamble_timeout))?;
        let mut buffer = [0; ECHO_BYTES];
        while self.clock.now() < deadline && !self.closing.load(Ordering::Acquire) {
            let mut stream = socket;
            let length = io::Read::read(&mut stream, &mut buffer)?;
            if length == 0 {
                break;
            }
            quota.consume_blocking(self.clock, TrafficDirection::Inbound, length as u64);
            io::Write::write_all(&mut stream, buffer.get(..length).unwrap_or_default())?;
            quota.consume_blocking(self.clock, TrafficDirection::Outbound, length as u64);
        }
        Ok(())
    }
}
