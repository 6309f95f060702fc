//! `towpath check`: which transports reach a server, and what blocks the others.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use towpath_kernel::sample;
use towpath_os::clock::Clock;
use towpath_quic::{ConnectionError, Trust};
use towpath_run::datagram::EchoDatagram;
use towpath_run::token::TestToken;
use towpath_scenario::Transport;

use super::client::quic_error;
use super::control_channel::ControlChannel;
use super::dial::Dialer;
use super::first_path::{UnusableFirstPath, find_unusable_first_path};
use super::socket::{self, LocalBind};
use crate::protocol::message::sanitize;
use crate::protocol::{
    ClientMessage, ConnectionKind, ObservedProtocol, Preamble, ServerMessage, TransferSettings,
};

/// Timeout of a connection attempt and of the first reply on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Number of UDP requests, since some may be lost.
const UDP_PROBES: u32 = 4;
/// Timeout of each UDP reply.
const REPLY_TIMEOUT: Duration = Duration::from_millis(700);

/// Protocol that a probe tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// A connection over plain TCP.
    Tcp,
    /// A connection over Multipath TCP.
    Mptcp,
    /// A datagram and its reply, which QUIC requires.
    Udp,
    /// A connection over QUIC.
    Quic,
    /// A connection over Multipath QUIC.
    Mpquic,
}

/// Outcome of a probe.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum ProbeOutcome {
    /// The protocol works to this target.
    Works,
    /// Plain TCP works; a middlebox on the forward path strips the options of Multipath TCP.
    StrippedForward,
    /// Plain TCP works; a middlebox on the reverse path strips the options of Multipath TCP.
    StrippedReverse,
    /// Plain TCP works; a host does not support Multipath TCP, or the reason is unknown.
    Plain {
        /// Reason as a clause in plain English.
        why: String,
    },
    /// The host replied that no socket listens on the port.
    Refused,
    /// No reply before the timeout.
    Silent,
    /// No reply over the first route, although the server answers on another interface.
    FirstPathUnusable(Box<UnusableFirstPath>),
    /// TCP reaches the server, which uses UDP, but no UDP reply arrived.
    Blocked,
    /// Datagrams reach the server, which supports QUIC, but QUIC packets or their replies are lost.
    Filtered,
    /// The server does not speak QUIC on this port.
    NoQuic,
    /// A QUIC server replied, but supports no QUIC version of this host.
    VersionMismatch,
    /// QUIC works with one path; the server does not support this draft of Multipath QUIC.
    SinglePath,
    /// The target cannot be reached from this host.
    Unreachable {
        /// Error text of the operating system.
        why: String,
    },
    /// A server accepts connections, but is not a towpath server.
    NotTowpath {
        /// The unexpected reply, or its absence, as a clause.
        why: String,
    },
}

/// Result of one probe to one target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeResult {
    /// Address and port of the server.
    pub target: SocketAddr,
    /// Protocol that was tested.
    pub probe: ProbeKind,
    /// Outcome of the probe.
    #[serde(flatten)]
    pub finding: ProbeOutcome,
    /// Time to connect in nanoseconds; `None` without a connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_ns: Option<u64>,
    /// Time from request to first reply in nanoseconds; `None` without a reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_ns: Option<u64>,
}

/// Runs all probes to all targets concurrently; returns results in order of targets and probes.
pub fn check(targets: &[SocketAddr]) -> Vec<ProbeResult> {
    let clock = Clock::start();
    let dialer = &Dialer::new(clock, Trust::Any);
    thread::scope(|scope| {
        let probes = targets.iter().map(|target| {
            let quic_probe = |transport| move || probe_quic(*target, transport, dialer, clock);
            let tcp = scope.spawn(move || {
                let (result, hello) = probe_tcp(*target, Transport::Tcp, clock);
                let path = is_path_failure(&result.finding)
                    .then(|| find_unusable_first_path(*target))
                    .flatten();
                (result, hello, path)
            });
            let mptcp = scope.spawn(move || probe_tcp(*target, Transport::Mptcp, clock));
            let udp = scope.spawn(move || probe_udp(*target, clock));
            let quic = scope.spawn(quic_probe(Transport::Quic));
            let mpquic = scope.spawn(quic_probe(Transport::Mpquic));
            (tcp, mptcp, udp, quic, mpquic)
        });
        let probes: Vec<_> = probes.collect();
        let mut results = Vec::new();
        for (tcp, mptcp, udp, quic, mpquic) in probes {
            let (Ok((mut tcp, hello, path)), Ok((mut mptcp, _))) = (tcp.join(), mptcp.join())
            else {
                continue;
            };
            for result in [&mut tcp, &mut mptcp] {
                if let Some(path) = path.clone().filter(|_| is_path_failure(&result.finding)) {
                    result.finding = ProbeOutcome::FirstPathUnusable(Box::new(path));
                }
            }
            let (Ok(udp), Ok(quic), Ok(mpquic)) = (udp.join(), quic.join(), mpquic.join()) else {
                continue;
            };
            let mut udp_results = [udp, quic, mpquic];
            refine_udp_results(hello, &mut udp_results);
            results.extend([tcp, mptcp]);
            results.extend(udp_results);
        }
        results
    })
}

/// Returns true if the server may be reachable over another interface.
fn is_path_failure(finding: &ProbeOutcome) -> bool {
    matches!(finding, ProbeOutcome::Silent | ProbeOutcome::Unreachable { .. })
}

/// Refines the UDP results. Silence over UDP has several causes; the server's hello over TCP and
/// the other UDP results distinguish them.
fn refine_udp_results(hello: Option<ServerHello>, udp_results: &mut [ProbeResult; 3]) {
    let [udp, quic, mpquic] = udp_results;
    let silent = |result: &ProbeResult| result.finding == ProbeOutcome::Silent;
    let works = |result: &ProbeResult| {
        matches!(result.finding, ProbeOutcome::Works | ProbeOutcome::SinglePath)
    };
    if silent(udp) && (works(quic) || works(mpquic)) {
        // A server with a secret ignores datagrams of unauthenticated clients, but QUIC shows that
        // UDP works.
        udp.finding = ProbeOutcome::Works;
    }
    if silent(udp) && hello.is_some_and(|hello| hello.quic) {
        udp.finding = ProbeOutcome::Blocked;
    }
    for result in [quic, mpquic].into_iter().filter(|result| silent(result)) {
        result.finding = match (hello, &udp.finding) {
            (Some(ServerHello { quic: false, .. }), _) => ProbeOutcome::NoQuic,
            (_, ProbeOutcome::Works) => ProbeOutcome::Filtered,
            (_, same) => same.clone(),
        };
    }
}

/// Server's hello: observed protocol and QUIC support.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerHello {
    observed: Option<ObservedProtocol>,
    quic: bool,
}

/// Connects over TCP or Multipath TCP and exchanges hello messages.
pub(super) fn probe_tcp(
    target: SocketAddr,
    transport: Transport,
    clock: Clock,
) -> (ProbeResult, Option<ServerHello>) {
    let probe = if transport == Transport::Mptcp { ProbeKind::Mptcp } else { ProbeKind::Tcp };
    let finding = ProbeOutcome::Silent;
    let mut result = ProbeResult { target, probe, finding, connect_ns: None, answer_ns: None };
    let started = clock.now();
    let settings = TransferSettings::default();
    let connect_result =
        socket::connect(transport, &LocalBind::default(), target, &settings, CONNECT_TIMEOUT);
    let socket = match connect_result {
        Ok(socket) => socket,
        Err(error) => {
            result.finding = failure_outcome(&error, transport);
            return (result, None);
        }
    };
    let connected_at = clock.now();
    result.connect_ns = Some(connected_at.saturating_since(started).as_nanos() as u64);
    let channel = socket.try_clone().and_then(|socket| ControlChannel::new(socket, clock));
    match channel.and_then(exchange_hello) {
        Ok(hello) => {
            result.answer_ns = Some(clock.now().saturating_since(connected_at).as_nanos() as u64);
            result.finding = if probe == ProbeKind::Tcp || sample::is_multipath(&socket) {
                ProbeOutcome::Works
            } else {
                fallback_outcome(hello.observed)
            };
            (result, Some(hello))
        }
        Err(error) => {
            result.finding = ProbeOutcome::NotTowpath { why: error_text(&error) };
            (result, None)
        }
    }
}

/// Exchanges hello messages. The server requires a secret only afterwards.
fn exchange_hello(mut channel: ControlChannel) -> io::Result<ServerHello> {
    let preamble =
        Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };
    channel.send_raw(&preamble.to_bytes())?;
    channel.send(&ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    match channel.recv::<ServerMessage>(CONNECT_TIMEOUT)? {
        Some(ServerMessage::Welcome { observed, quic, .. }) => Ok(ServerHello { observed, quic }),
        Some(ServerMessage::Refused { reason, .. }) => {
            Err(io::Error::other(format!("it refuses: {}", sanitize(&reason))))
        }
        Some(_) => Err(io::Error::other("it does not answer like a towpath server")),
        None => Err(io::Error::other("it accepts connections but sends nothing")),
    }
}

/// Returns why Multipath TCP fell back to plain TCP.
fn fallback_outcome(observed: Option<ObservedProtocol>) -> ProbeOutcome {
    match observed {
        Some(ObservedProtocol::Plain) => ProbeOutcome::StrippedForward,
        Some(ObservedProtocol::Multipath) => ProbeOutcome::StrippedReverse,
        Some(ObservedProtocol::Unsupported) => ProbeOutcome::Plain {
            why: "the server's kernel does not support Multipath TCP".to_owned(),
        },
        None => {
            ProbeOutcome::Plain { why: "the server does not report its observations".to_owned() }
        }
    }
}

fn probe_quic(
    target: SocketAddr,
    transport: Transport,
    dialer: &Dialer,
    clock: Clock,
) -> ProbeResult {
    let probe = if transport == Transport::Mpquic { ProbeKind::Mpquic } else { ProbeKind::Quic };
    let finding = ProbeOutcome::Silent;
    let mut result = ProbeResult { target, probe, finding, connect_ns: None, answer_ns: None };
    let started = clock.now();
    let connect_result =
        dialer.connect_quic(transport, (&LocalBind::default(), target), CONNECT_TIMEOUT);
    let (connection, guard) = match connect_result {
        Ok(connected) => connected,
        Err(error) => {
            result.finding = match quic_error(&error) {
                None => failure_outcome(&error, transport),
                Some(ConnectionError::Version) => ProbeOutcome::VersionMismatch,
                Some(ConnectionError::TimedOut) => ProbeOutcome::Silent,
                Some(other) => ProbeOutcome::NotTowpath { why: other.to_string() },
            };
            return result;
        }
    };
    let connected_at = clock.now();
    result.connect_ns = Some(connected_at.saturating_since(started).as_nanos() as u64);
    let multipath = connection.status().is_some_and(|status| status.multipath);
    let channel =
        connection.open_stream().map(|stream| ControlChannel::over_quic(stream, guard, clock));
    result.finding = match channel.and_then(exchange_hello) {
        Err(error) => ProbeOutcome::NotTowpath { why: error_text(&error) },
        Ok(_) if probe == ProbeKind::Mpquic && !multipath => ProbeOutcome::SinglePath,
        Ok(_) => ProbeOutcome::Works,
    };
    let has_reply = matches!(result.finding, ProbeOutcome::Works | ProbeOutcome::SinglePath);
    result.answer_ns =
        has_reply.then(|| clock.now().saturating_since(connected_at).as_nanos() as u64);
    result
}

fn failure_outcome(error: &io::Error, transport: Transport) -> ProbeOutcome {
    let reason = || {
        let text = towpath_sockets::stream::explain(error, transport, "this host");
        text.split(" (os error").next().unwrap_or_default().to_lowercase()
    };
    if error.kind() == io::ErrorKind::ConnectionRefused {
        ProbeOutcome::Refused
    } else if error.kind() == io::ErrorKind::TimedOut {
        ProbeOutcome::Silent
    } else {
        ProbeOutcome::Unreachable { why: reason() }
    }
}

fn error_text(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "it closes the connection".to_owned();
    }
    // The text may contain a message of the other host.
    sanitize(error.to_string().split(" (os error").next().unwrap_or_default()).to_lowercase()
}

fn probe_udp(target: SocketAddr, clock: Clock) -> ProbeResult {
    let (probe, finding) = (ProbeKind::Udp, ProbeOutcome::Silent);
    let mut result = ProbeResult { target, probe, finding, connect_ns: None, answer_ns: None };
    match ping_udp(target, clock) {
        Ok(Some(round_trip)) => {
            result.answer_ns = Some(round_trip.as_nanos() as u64);
            result.finding = ProbeOutcome::Works;
        }
        Ok(None) => {}
        Err(error) => result.finding = failure_outcome(&error, Transport::Quic),
    }
    result
}

/// Sends echo requests until a reply arrives, which may belong to an earlier request. Returns its
/// round-trip time; `None` without a reply.
fn ping_udp(target: SocketAddr, clock: Clock) -> io::Result<Option<Duration>> {
    let unspecified: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(unspecified)?;
    // Only a connected UDP socket reports `ECONNREFUSED`.
    socket.connect(target)?;
    let started = clock.now();
    for number in 0..UDP_PROBES {
        let sent_ns = clock.now().saturating_since(started).as_nanos() as u64;
        socket.send(&EchoDatagram { token: TestToken::NONE, number, sent_ns }.to_bytes())?;
        let deadline = clock.now() + REPLY_TIMEOUT;
        let mut buffer = [0; 2 * EchoDatagram::BYTES];
        loop {
            let remaining = deadline.saturating_since(clock.now());
            if remaining.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(remaining))?;
            match socket.recv(&mut buffer) {
                Ok(length) => {
                    let bytes = buffer.get(..length).unwrap_or_default();
                    if let Some(reply) = EchoDatagram::parse_reply(bytes) {
                        let sent_at = started + Duration::from_nanos(reply.sent_ns);
                        return Ok(Some(clock.now().saturating_since(sent_at)));
                    }
                }
                Err(error) if towpath_sockets::stream::kernel::is_timeout(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}
