//! `towpath check`: which transports reach a server, and what blocks the others.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use towpath_measure::live::datagram::EchoDatagram;
use towpath_measure::live::message::sanitize;
use towpath_measure::live::{
    ClientMessage, ConnectionKind, ObservedProtocol, Preamble, ServerMessage, TestToken,
    TransferSettings,
};
use towpath_measure::scenario::Transport;
use towpath_quic::{ConnectionError, Trust};

use super::client::quic_error;
use super::control_channel::ControlChannel;
use super::dial::Dialer;
use super::socket::{self, LocalBind};
use crate::clock::Clock;

/// Timeout of a connection attempt and of the first reply on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// UDP requests, since some may be lost, and the timeout of each reply.
const UDP_PROBES: u32 = 4;
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
        let tried = targets.iter().map(|target| {
            let over = |transport| move || over_tcp(*target, transport, clock);
            let over_quic = |transport| move || over_quic(*target, transport, dialer, clock);
            let tcp = scope.spawn(over(Transport::Tcp));
            let mptcp = scope.spawn(over(Transport::Mptcp));
            let udp = scope.spawn(move || over_udp(*target, clock));
            let quic = scope.spawn(over_quic(Transport::Quic));
            let mpquic = scope.spawn(over_quic(Transport::Mpquic));
            (tcp, mptcp, udp, quic, mpquic)
        });
        let tried: Vec<_> = tried.collect();
        let mut all = Vec::new();
        for (tcp, mptcp, udp, quic, mpquic) in tried {
            let (Ok((tcp, word)), Ok((mptcp, _))) = (tcp.join(), mptcp.join()) else { continue };
            let (Ok(udp), Ok(quic), Ok(mpquic)) = (udp.join(), quic.join(), mpquic.join()) else {
                continue;
            };
            let mut over_udp = [udp, quic, mpquic];
            conclude(word, &mut over_udp);
            all.extend([tcp, mptcp]);
            all.extend(over_udp);
        }
        all
    })
}

/// Refines the UDP results. Silence over UDP has several causes; the server's hello over TCP and
/// the other UDP results distinguish them.
fn conclude(word: Option<ServerHello>, over_udp: &mut [ProbeResult; 3]) {
    let [udp, quic, mpquic] = over_udp;
    let silent = |tried: &ProbeResult| tried.finding == ProbeOutcome::Silent;
    let speaks = |tried: &ProbeResult| {
        matches!(tried.finding, ProbeOutcome::Works | ProbeOutcome::SinglePath)
    };
    if silent(udp) && (speaks(quic) || speaks(mpquic)) {
        // A server with a secret ignores datagrams of unauthenticated clients, but QUIC shows that
        // UDP works.
        udp.finding = ProbeOutcome::Works;
    }
    if silent(udp) && word.is_some_and(|word| word.quic) {
        udp.finding = ProbeOutcome::Blocked;
    }
    for tried in [quic, mpquic].into_iter().filter(|tried| silent(tried)) {
        tried.finding = match (word, &udp.finding) {
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
pub(super) fn over_tcp(
    target: SocketAddr,
    transport: Transport,
    clock: Clock,
) -> (ProbeResult, Option<ServerHello>) {
    let probe = if transport == Transport::Mptcp { ProbeKind::Mptcp } else { ProbeKind::Tcp };
    let finding = ProbeOutcome::Silent;
    let mut tried = ProbeResult { target, probe, finding, connect_ns: None, answer_ns: None };
    let began = clock.now();
    let settings = TransferSettings::default();
    let connected =
        socket::connect(transport, &LocalBind::default(), target, &settings, CONNECT_TIMEOUT);
    let socket = match connected {
        Ok(socket) => socket,
        Err(error) => {
            tried.finding = failure(&error, transport);
            return (tried, None);
        }
    };
    let connected = clock.now();
    tried.connect_ns = Some(connected.saturating_since(began).as_nanos() as u64);
    let speaker = socket.try_clone().and_then(|socket| ControlChannel::new(socket, clock));
    match speaker.and_then(exchange_hello) {
        Ok(word) => {
            tried.answer_ns = Some(clock.now().saturating_since(connected).as_nanos() as u64);
            tried.finding = if probe == ProbeKind::Tcp || socket::is_multipath(&socket) {
                ProbeOutcome::Works
            } else {
                fallback(word.observed)
            };
            (tried, Some(word))
        }
        Err(error) => {
            tried.finding = ProbeOutcome::NotTowpath { why: without_number(&error) };
            (tried, None)
        }
    }
}

/// Exchanges hello messages. The server requires a secret only afterwards.
fn exchange_hello(mut speaker: ControlChannel) -> io::Result<ServerHello> {
    let preamble =
        Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };
    speaker.send_raw(&preamble.to_bytes())?;
    speaker.send(&ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    match speaker.recv::<ServerMessage>(CONNECT_TIMEOUT)? {
        Some(ServerMessage::Welcome { observed: seen, quic, .. }) => {
            Ok(ServerHello { observed: seen, quic })
        }
        Some(ServerMessage::Refused { reason: why, .. }) => {
            Err(io::Error::other(format!("it refuses: {}", sanitize(&why))))
        }
        Some(_) => Err(io::Error::other("it says something else than a towpath server")),
        None => Err(io::Error::other("it accepts connections and says nothing")),
    }
}

/// Returns why Multipath TCP fell back to plain TCP.
fn fallback(seen: Option<ObservedProtocol>) -> ProbeOutcome {
    match seen {
        Some(ObservedProtocol::Plain) => ProbeOutcome::StrippedForward,
        Some(ObservedProtocol::Multipath) => ProbeOutcome::StrippedReverse,
        Some(ObservedProtocol::Unsupported) => {
            ProbeOutcome::Plain { why: "the server's kernel has no Multipath TCP".to_owned() }
        }
        None => ProbeOutcome::Plain { why: "the server does not say what it saw".to_owned() },
    }
}

fn over_quic(
    target: SocketAddr,
    transport: Transport,
    dialer: &Dialer,
    clock: Clock,
) -> ProbeResult {
    let probe = if transport == Transport::Mpquic { ProbeKind::Mpquic } else { ProbeKind::Quic };
    let finding = ProbeOutcome::Silent;
    let mut tried = ProbeResult { target, probe, finding, connect_ns: None, answer_ns: None };
    let began = clock.now();
    let connected = dialer.quic(transport, (&LocalBind::default(), target), CONNECT_TIMEOUT);
    let (connection, hold) = match connected {
        Ok(connected) => connected,
        Err(error) => {
            tried.finding = match quic_error(&error) {
                None => failure(&error, transport),
                Some(ConnectionError::Version) => ProbeOutcome::VersionMismatch,
                Some(ConnectionError::TimedOut) => ProbeOutcome::Silent,
                Some(other) => ProbeOutcome::NotTowpath { why: other.to_string() },
            };
            return tried;
        }
    };
    let connected = clock.now();
    tried.connect_ns = Some(connected.saturating_since(began).as_nanos() as u64);
    let multipath = connection.status().is_some_and(|status| status.multipath);
    let speaker =
        connection.open_stream().map(|stream| ControlChannel::over_quic(stream, hold, clock));
    tried.finding = match speaker.and_then(exchange_hello) {
        Err(error) => ProbeOutcome::NotTowpath { why: without_number(&error) },
        Ok(_) if probe == ProbeKind::Mpquic && !multipath => ProbeOutcome::SinglePath,
        Ok(_) => ProbeOutcome::Works,
    };
    let spoken = matches!(tried.finding, ProbeOutcome::Works | ProbeOutcome::SinglePath);
    tried.answer_ns = spoken.then(|| clock.now().saturating_since(connected).as_nanos() as u64);
    tried
}

fn failure(error: &io::Error, transport: Transport) -> ProbeOutcome {
    let why = || {
        let text = crate::traffic::explain(error, transport, "this host");
        text.split(" (os error").next().unwrap_or_default().to_lowercase()
    };
    if error.kind() == io::ErrorKind::ConnectionRefused {
        ProbeOutcome::Refused
    } else if error.kind() == io::ErrorKind::TimedOut {
        ProbeOutcome::Silent
    } else {
        ProbeOutcome::Unreachable { why: why() }
    }
}

fn without_number(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "it closes the connection".to_owned();
    }
    // The text may contain a message of the other host.
    sanitize(error.to_string().split(" (os error").next().unwrap_or_default()).to_lowercase()
}

fn over_udp(target: SocketAddr, clock: Clock) -> ProbeResult {
    let (probe, finding) = (ProbeKind::Udp, ProbeOutcome::Silent);
    let mut tried = ProbeResult { target, probe, finding, connect_ns: None, answer_ns: None };
    match ping_udp(target, clock) {
        Ok(Some(took)) => {
            tried.answer_ns = Some(took.as_nanos() as u64);
            tried.finding = ProbeOutcome::Works;
        }
        Ok(None) => {}
        Err(error) => tried.finding = failure(&error, Transport::Quic),
    }
    tried
}

/// Sends echo requests until a reply arrives, which may belong to an earlier request. Returns its
/// round-trip time; `None` without a reply.
fn ping_udp(target: SocketAddr, clock: Clock) -> io::Result<Option<Duration>> {
    let any: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    // Only a connected UDP socket reports `ECONNREFUSED`.
    socket.connect(target)?;
    let began = clock.now();
    for number in 0..UDP_PROBES {
        let sent_ns = clock.now().saturating_since(began).as_nanos() as u64;
        socket.send(&EchoDatagram { token: TestToken::NONE, number, sent_ns }.to_bytes())?;
        let deadline = clock.now() + REPLY_TIMEOUT;
        let mut room = [0; 2 * EchoDatagram::BYTES];
        loop {
            let left = deadline.saturating_since(clock.now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut room) {
                Ok(length) => {
                    let bytes = room.get(..length).unwrap_or_default();
                    if let Some(answer) = EchoDatagram::parse_reply(bytes) {
                        let asked = began + Duration::from_nanos(answer.sent_ns);
                        return Ok(Some(clock.now().saturating_since(asked)));
                    }
                }
                Err(error) if crate::traffic::kernel::is_timeout(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}
