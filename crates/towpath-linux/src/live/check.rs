//! `towpath check`: which ways to a server are open, and what keeps the others shut.

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
use super::dial::Dialer;
use super::socket::{self, LocalBind};
use super::speaker::ControlChannel;
use crate::clock::Clock;

/// For a connection, and for an answer on it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Questions over UDP, as some may be lost, and the time for each answer.
const UDP_PROBES: u32 = 4;
const REPLY_TIMEOUT: Duration = Duration::from_millis(700);

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ProbeKind {
    /// A connection over plain TCP.
    Tcp,
    /// A connection over Multipath TCP.
    Mptcp,
    /// A datagram and its answer, which is what QUIC needs.
    Udp,
    /// A connection over QUIC.
    Quic,
    /// A connection over Multipath QUIC.
    Mpquic,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum ProbeOutcome {
    /// It works.
    Works,
    /// It works as plain TCP: something on the way there takes the options of Multipath TCP away.
    #[serde(rename = "stripped-there")]
    StrippedForward,
    /// It works as plain TCP: something on the way back takes the options of Multipath TCP away.
    #[serde(rename = "stripped-back")]
    StrippedReverse,
    /// It works as plain TCP, because this host or the server does not speak Multipath TCP, or for a
    /// reason that nobody tells.
    Plain {
        /// Why.
        why: String,
    },
    /// The host is there and says that nobody listens.
    Refused,
    /// No answer at all.
    Silent,
    /// TCP reaches the server, which speaks UDP; nothing of that came back.
    Blocked,
    /// Datagrams reach the server, which speaks QUIC; packets of QUIC do not, or not back.
    Filtered,
    /// The server does not speak QUIC on this port.
    #[serde(rename = "without")]
    NoQuic,
    /// Somebody speaks QUIC, in no version that this host speaks.
    #[serde(rename = "version")]
    VersionMismatch,
    /// It works with one path: the server does not speak this draft of Multipath QUIC.
    SinglePath,
    /// There is no way.
    Unreachable {
        /// What the system says.
        why: String,
    },
    /// Somebody accepts connections, but no server of this kind.
    NotTowpath {
        /// What it said, or did not.
        why: String,
    },
}

/// One way to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ProbeResult {
    /// Address and port.
    pub target: SocketAddr,
    /// What was tried.
    pub probe: ProbeKind,
    /// What came of it.
    #[serde(flatten)]
    pub finding: ProbeOutcome,
    /// How long it took to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_ns: Option<u64>,
    /// How long the first answer took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_ns: Option<u64>,
}

/// Tries everything towards each target, at the same time; in order of targets and probes.
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

/// Nobody answers over UDP for many reasons: what the server says over TCP, and what else came
/// back, tells which.
fn conclude(word: Option<ServerHello>, over_udp: &mut [ProbeResult; 3]) {
    let [udp, quic, mpquic] = over_udp;
    let silent = |tried: &ProbeResult| tried.finding == ProbeOutcome::Silent;
    let speaks = |tried: &ProbeResult| {
        matches!(tried.finding, ProbeOutcome::Works | ProbeOutcome::SinglePath)
    };
    if silent(udp) && (speaks(quic) || speaks(mpquic)) {
        // A server with a secret does not answer strangers' datagrams, but these were some, too.
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

/// What a server says of itself and the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServerHello {
    seen: Option<ObservedProtocol>,
    quic: bool,
}

/// Connects, and says hello.
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
                fallback(word.seen)
            };
            (tried, Some(word))
        }
        Err(error) => {
            tried.finding = ProbeOutcome::NotTowpath { why: without_number(&error) };
            (tried, None)
        }
    }
}

/// Says hello and hears what the server has to say; a secret is asked for only after that.
fn exchange_hello(mut speaker: ControlChannel) -> io::Result<ServerHello> {
    let preamble =
        Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE };
    speaker.send_raw(&preamble.to_bytes())?;
    speaker.send(&ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    match speaker.recv::<ServerMessage>(CONNECT_TIMEOUT)? {
        Some(ServerMessage::Welcome { seen, quic, .. }) => Ok(ServerHello { seen, quic }),
        Some(ServerMessage::Refused { why, .. }) => {
            Err(io::Error::other(format!("it refuses: {}", sanitize(&why))))
        }
        Some(_) => Err(io::Error::other("it says something else than a towpath server")),
        None => Err(io::Error::other("it accepts connections and says nothing")),
    }
}

/// Why Multipath TCP became plain TCP.
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
    // It may have what the other host said in it.
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

/// Asks until there is an answer, which may be to an earlier question.
fn ping_udp(target: SocketAddr, clock: Clock) -> io::Result<Option<Duration>> {
    let any: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    // Only a connected socket is told that nobody listens.
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
