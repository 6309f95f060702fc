//! `towpath check`: which ways to a server are open, and what keeps the others shut.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use socket2::Socket;
use towpath_measure::live::datagram::Datagram;
use towpath_measure::live::{FromClient, FromServer, Kind, Preamble, Seen, Settings, Token};
use towpath_measure::scenario::Transport;

use super::socket::{self, Source};
use super::speaker::Speaker;
use crate::clock::Clock;

/// For a connection, and for an answer on it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Questions over UDP, as some may be lost, and the time for each answer.
const QUESTIONS: u32 = 4;
const ANSWER_PATIENCE: Duration = Duration::from_millis(700);

/// What is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Probe {
    /// A connection over plain TCP.
    Tcp,
    /// A connection over Multipath TCP.
    Mptcp,
    /// A datagram and its answer, which is what QUIC needs.
    Udp,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "finding", rename_all = "kebab-case")]
pub enum Finding {
    /// It works.
    Works,
    /// It works as plain TCP: something on the way there takes the options of Multipath TCP away.
    StrippedThere,
    /// It works as plain TCP: something on the way back takes the options of Multipath TCP away.
    StrippedBack,
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
    /// TCP reaches the server, which answers datagrams; none of them came back.
    Blocked,
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
pub struct Tried {
    /// Address and port.
    pub target: SocketAddr,
    /// What was tried.
    pub probe: Probe,
    /// What came of it.
    #[serde(flatten)]
    pub finding: Finding,
    /// How long it took to connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect_ns: Option<u64>,
    /// How long the first answer took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer_ns: Option<u64>,
}

/// Tries everything towards each target, at the same time; in order of targets and probes.
pub fn check(targets: &[SocketAddr]) -> Vec<Tried> {
    let clock = Clock::start();
    thread::scope(|scope| {
        let tried = targets.iter().map(|target| {
            let over = |transport| move || over_tcp(*target, transport, clock);
            let tcp = scope.spawn(over(Transport::Tcp));
            let mptcp = scope.spawn(over(Transport::Mptcp));
            let udp = scope.spawn(move || over_udp(*target, clock));
            (tcp, mptcp, udp)
        });
        let tried: Vec<_> = tried.collect();
        let mut all = Vec::new();
        for (tcp, mptcp, udp) in tried {
            let (Ok((tcp, word)), Ok((mptcp, _)), Ok(mut udp)) =
                (tcp.join(), mptcp.join(), udp.join())
            else {
                continue;
            };
            if udp.finding == Finding::Silent && word.is_some_and(|word| word.datagrams) {
                udp.finding = Finding::Blocked;
            }
            all.extend([tcp, mptcp, udp]);
        }
        all
    })
}

/// What a server says of itself and the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct Word {
    seen: Option<Seen>,
    datagrams: bool,
}

/// Connects, and says hello.
pub(super) fn over_tcp(
    target: SocketAddr,
    transport: Transport,
    clock: Clock,
) -> (Tried, Option<Word>) {
    let probe = if transport == Transport::Mptcp { Probe::Mptcp } else { Probe::Tcp };
    let finding = Finding::Silent;
    let mut tried = Tried { target, probe, finding, connect_ns: None, answer_ns: None };
    let began = clock.now();
    let settings = Settings::default();
    let connected = socket::connect(transport, &Source::default(), target, &settings, PATIENCE);
    let socket = match connected {
        Ok(socket) => socket,
        Err(error) => {
            tried.finding = failure(&error, transport);
            return (tried, None);
        }
    };
    let connected = clock.now();
    tried.connect_ns = Some(connected.saturating_since(began).as_nanos() as u64);
    match greet(&socket, clock) {
        Ok(word) => {
            tried.answer_ns = Some(clock.now().saturating_since(connected).as_nanos() as u64);
            tried.finding = if probe == Probe::Tcp || socket::is_multipath(&socket) {
                Finding::Works
            } else {
                plain(word.seen)
            };
            (tried, Some(word))
        }
        Err(error) => {
            tried.finding = Finding::NotTowpath { why: without_number(&error) };
            (tried, None)
        }
    }
}

/// Says hello and hears what the server has to say; a secret is asked for only after that.
fn greet(socket: &Socket, clock: Clock) -> io::Result<Word> {
    let mut speaker = Speaker::new(socket.try_clone()?, clock)?;
    let preamble = Preamble { kind: Kind::Control, flow: 0, stream: 0, token: Token::NONE };
    speaker.send_raw(&preamble.to_bytes())?;
    speaker.say(&FromClient::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    match speaker.hear::<FromServer>(PATIENCE)? {
        Some(FromServer::Welcome { seen, datagrams, .. }) => Ok(Word { seen, datagrams }),
        Some(_) => Err(io::Error::other("it says something else than a towpath server")),
        None => Err(io::Error::other("it accepts connections and says nothing")),
    }
}

/// Why Multipath TCP became plain TCP.
fn plain(seen: Option<Seen>) -> Finding {
    match seen {
        Some(Seen::Plain) => Finding::StrippedThere,
        Some(Seen::Multipath) => Finding::StrippedBack,
        Some(Seen::Without) => {
            Finding::Plain { why: "the server's kernel has no Multipath TCP".to_owned() }
        }
        None => Finding::Plain { why: "the server does not say what it saw".to_owned() },
    }
}

fn failure(error: &io::Error, transport: Transport) -> Finding {
    let why = || {
        let text = crate::traffic::explain(error, transport, "this host");
        text.split(" (os error").next().unwrap_or_default().to_lowercase()
    };
    if error.kind() == io::ErrorKind::ConnectionRefused {
        Finding::Refused
    } else if error.kind() == io::ErrorKind::TimedOut {
        Finding::Silent
    } else {
        Finding::Unreachable { why: why() }
    }
}

fn without_number(error: &io::Error) -> String {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return "it closes the connection".to_owned();
    }
    error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase()
}

fn over_udp(target: SocketAddr, clock: Clock) -> Tried {
    let (probe, finding) = (Probe::Udp, Finding::Silent);
    let mut tried = Tried { target, probe, finding, connect_ns: None, answer_ns: None };
    match ask(target, clock) {
        Ok(Some(took)) => {
            tried.answer_ns = Some(took.as_nanos() as u64);
            tried.finding = Finding::Works;
        }
        Ok(None) => {}
        Err(error) => tried.finding = failure(&error, Transport::Quic),
    }
    tried
}

/// Asks until there is an answer, which may be to an earlier question.
fn ask(target: SocketAddr, clock: Clock) -> io::Result<Option<Duration>> {
    let any: SocketAddr = if target.is_ipv4() {
        (Ipv4Addr::UNSPECIFIED, 0).into()
    } else {
        (Ipv6Addr::UNSPECIFIED, 0).into()
    };
    let socket = UdpSocket::bind(any)?;
    // Only a connected socket is told that nobody listens.
    socket.connect(target)?;
    let began = clock.now();
    for number in 0..QUESTIONS {
        let sent_ns = clock.now().saturating_since(began).as_nanos() as u64;
        socket.send(&Datagram { token: Token::NONE, number, sent_ns }.to_bytes())?;
        let deadline = clock.now() + ANSWER_PATIENCE;
        let mut room = [0; 2 * Datagram::BYTES];
        loop {
            let left = deadline.saturating_since(clock.now());
            if left.is_zero() {
                break;
            }
            socket.set_read_timeout(Some(left))?;
            match socket.recv(&mut room) {
                Ok(length) => {
                    let bytes = room.get(..length).unwrap_or_default();
                    if let Some(answer) = Datagram::of_answer(bytes) {
                        let asked = began + Duration::from_nanos(answer.sent_ns);
                        return Ok(Some(clock.now().saturating_since(asked)));
                    }
                }
                Err(error) if crate::traffic::kernel::is_impatient(&error) => break,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}
