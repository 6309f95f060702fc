//! Connection setup of clients over any transport.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use socket2::Socket;
use towpath_os::clock::Clock;
use towpath_quic::tls::TlsSession;
use towpath_quic::{Fingerprint, Qlog, QuicConfig, Trust, congestion};
use towpath_run::token::TestToken;
use towpath_scenario::{Scenario, Transport};
use towpath_sockets::quic;
use towpath_sockets::quic::{HostConfig, InterfacePolicy, QuicHandle};
use towpath_sockets::stream::quic::QuicConnection;
use towpath_sockets::stream::socket_stream::SocketStream;

use super::control_channel::ControlChannel;
use super::data_stream::{ConnectionGuard, DataStream, QuicDataStream};
use super::host_info::interfaces;
use super::socket::{self, LocalBind};
use crate::protocol::{ConnectionKind, Preamble, TestPlan, TransferSettings};

/// UDP payload of a full Ethernet frame for IPv4 and IPv6; path MTU discovery finds smaller ones.
const MAX_DATAGRAM_BYTES: [u16; 2] = [1_472, 1_452];
/// Idle timeout of a connection; the kernel's TCP waits much longer.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval of keep-alive packets on an idle connection.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);

/// Factory of client connections over TCP, Multipath TCP and QUIC.
#[derive(Debug)]
pub(super) struct Dialer {
    clock: Clock,
    trust: Trust,
    /// True if control over TCP requires TLS.
    secure: bool,
    /// Pinned certificate, set after the server authenticated; no other is accepted then.
    pinned: OnceLock<Trust>,
    /// QUIC host, started by the first connection that requires it.
    host: OnceLock<Arc<QuicHandle>>,
    /// Certificate fingerprint that the server presented first.
    server_fingerprint: OnceLock<Fingerprint>,
}

impl Dialer {
    pub(super) fn new(clock: Clock, trust: Trust) -> Self {
        // An expected certificate is checked on every connection.
        let secure = matches!(trust, Trust::Pinned(_));
        let (pinned, host, server_fingerprint) =
            (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { clock, trust, secure, pinned, host, server_fingerprint }
    }

    /// Requires TLS for control over TCP if `required`.
    #[must_use]
    pub(super) fn with_tls(self, required: bool) -> Self {
        Self { secure: self.secure || required, ..self }
    }

    /// Pins the certificate that the server has presented.
    pub(super) fn pin_identity(&self) {
        if let Some(fingerprint) = self.server_fingerprint() {
            self.pinned.get_or_init(|| Trust::Pinned(vec![fingerprint]));
        }
    }

    fn trust(&self) -> &Trust {
        self.pinned.get().unwrap_or(&self.trust)
    }

    /// Returns true if control over TCP uses TLS.
    pub(super) fn is_secure(&self) -> bool {
        self.secure
    }

    /// Returns the fingerprint of the server's certificate; `None` before a TLS or QUIC handshake.
    pub(super) fn server_fingerprint(&self) -> Option<Fingerprint> {
        self.server_fingerprint.get().copied()
    }

    fn host(&self) -> io::Result<&Arc<QuicHandle>> {
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        let name = "client".to_owned();
        let (clock, interfaces) = (self.clock, InterfacePolicy::all());
        let host =
            QuicHandle::start(HostConfig { name, clock, seed: None, namespace: None, interfaces })?;
        Ok(self.host.get_or_init(|| Arc::new(host)))
    }

    /// Opens a QUIC connection for control, not for traffic.
    pub(super) fn connect_quic(
        &self,
        transport: Transport,
        (source, target): (&LocalBind, SocketAddr),
        timeout: Duration,
    ) -> io::Result<(quic::BlockingConnection, Arc<ConnectionGuard>)> {
        let multipath = transport == Transport::Mpquic;
        let config = self.client_config(QuicConfig { multipath, ..QuicConfig::default() }, target);
        let host = self.host()?;
        let connection = host.connect(local_address(source, target), target, config, timeout)?;
        let guard = ConnectionGuard::new(host, connection.id());
        if let Some(fingerprint) = connection.status().and_then(|status| status.peer) {
            self.server_fingerprint.get_or_init(|| fingerprint);
        }
        Ok((connection, guard))
    }

    /// Opens a control connection and sends its preamble.
    pub(super) fn connect_control(
        &self,
        transport: Transport,
        (source, target): (&LocalBind, SocketAddr),
        token: TestToken,
        timeout: Duration,
    ) -> io::Result<ControlChannel> {
        let mut channel = if transport.is_quic() {
            let (connection, guard) = self.connect_quic(transport, (source, target), timeout)?;
            ControlChannel::over_quic(connection.open_stream()?, guard, self.clock)
        } else {
            let settings = TransferSettings::default();
            let socket = socket::connect(transport, source, target, &settings, timeout)?;
            if self.secure {
                let (kind, token) = (ConnectionKind::Tls, TestToken::NONE);
                let preamble = Preamble { kind, flow: 0, stream: 0, token }.to_bytes();
                io::Write::write_all(&mut &socket, &preamble)?;
            }
            ControlChannel::over_socket(
                self.wrap_socket(socket, self.secure, timeout)?,
                self.clock,
            )?
        };
        let preamble = Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token };
        channel.send_raw(&preamble.to_bytes())?;
        Ok(channel)
    }

    /// Opens the streams of a flow: one TCP connection each, or one QUIC connection for all. Also
    /// returns the connect time of the first connection.
    pub(super) fn connect_flow(
        &self,
        (plan, scenario): (&TestPlan, &Scenario),
        (source, target): (&LocalBind, SocketAddr),
        (flow, numbers): (u16, &[u16]),
        (token, qlog): (TestToken, Option<Qlog>),
        timeout: Duration,
    ) -> io::Result<(Vec<DataStream>, Duration)> {
        let started = self.clock.now();
        // Data preambles are not encrypted, so they carry the public ID.
        let token = token.public_id();
        let preamble =
            |stream: u16| Preamble { kind: ConnectionKind::Data, flow, stream, token }.to_bytes();
        let (transport, settings) = (plan.transport, &plan.settings);
        if transport.is_quic() {
            let config = QuicConfig { qlog, ..flow_config(scenario, 0, plan) };
            let config = self.client_config(config, target);
            let host = self.host()?;
            let connection = QuicConnection::connect(
                host,
                (local_address(source, target), target),
                config,
                timeout,
            )?;
            let guard = ConnectionGuard::new(host, connection.id());
            let open = |number: &u16| {
                let stream = connection.open_stream(&preamble(*number), timeout)?;
                let stream_role = (stream, *number == 0);
                Ok(DataStream::Quic(QuicDataStream::new(
                    connection.clone(),
                    stream_role,
                    Arc::clone(&guard),
                )))
            };
            let connect_time = self.clock.now().saturating_since(started);
            return Ok((numbers.iter().map(open).collect::<io::Result<_>>()?, connect_time));
        }
        let mut first_connect_time = None;
        let open = |number: &u16| {
            let socket = socket::connect(transport, source, target, settings, timeout)?;
            first_connect_time.get_or_insert_with(|| self.clock.now().saturating_since(started));
            io::Write::write_all(&mut &socket, &preamble(*number))?;
            self.wrap_socket(socket, settings.tls, timeout).map(DataStream::Socket)
        };
        let streams = numbers.iter().map(open).collect::<io::Result<_>>()?;
        Ok((streams, first_connect_time.unwrap_or_default()))
    }

    /// Wraps a socket, in TLS if `tls` is set.
    fn wrap_socket(
        &self,
        socket: Socket,
        tls: bool,
        timeout: Duration,
    ) -> io::Result<SocketStream> {
        if !tls {
            return Ok(SocketStream::Plain(Arc::new(socket)));
        }
        let session = TlsSession::client(self.trust()).map_err(io::Error::other)?;
        let deadline = self.clock.now() + timeout;
        let (stream, fingerprint) =
            SocketStream::handshake(socket, session, (self.clock, deadline))?;
        if let Some(fingerprint) = fingerprint {
            self.server_fingerprint.get_or_init(|| fingerprint);
        }
        Ok(stream)
    }

    fn client_config(&self, config: QuicConfig, target: SocketAddr) -> QuicConfig {
        let [v4, v6] = MAX_DATAGRAM_BYTES;
        QuicConfig {
            trust: self.trust().clone(),
            idle_timeout: IDLE_TIMEOUT,
            keep_alive: Some(KEEP_ALIVE_INTERVAL),
            max_datagram_bytes: if target.is_ipv4() { v4 } else { v6 },
            ..config
        }
    }
}

/// Returns the local address for `source`; `None` leaves the choice to routing.
fn local_address(source: &LocalBind, target: SocketAddr) -> Option<IpAddr> {
    source.address.or_else(|| {
        let name = source.interface.as_ref()?;
        let local_interfaces = interfaces().unwrap_or_default();
        let is_same_family = |address: IpAddr| address.is_ipv4() == target.is_ipv4();
        local_interfaces
            .into_iter()
            .find(|interface| interface.name == *name && is_same_family(interface.address))
            .map(|interface| interface.address)
    })
}

/// Returns the QUIC settings of a flow on one of the two hosts. Settings without meaning for QUIC
/// get its defaults; the result records what was used.
pub(super) fn flow_config(scenario: &Scenario, host: usize, plan: &TestPlan) -> QuicConfig {
    let texts = scenario.hosts.get(host).map(|host| scenario.quic_settings(host));
    let texts = texts.unwrap_or_default();
    let texts = texts.iter().map(|(name, value)| (*name, value.as_str()));
    let mut config = QuicConfig::from_texts(texts).unwrap_or_default();
    if let Some(name) = &plan.settings.congestion_control {
        config.congestion_control.clone_from(name);
    }
    if !congestion::names().any(|(name, _)| name == config.congestion_control) {
        config.congestion_control = QuicConfig::default().congestion_control;
    }
    if let Some(bytes) = plan.settings.window_bytes {
        config.receive_window_bytes = bytes.into();
        config.send_window_bytes = bytes.into();
    }
    config.multipath = plan.transport == Transport::Mpquic;
    config
}
