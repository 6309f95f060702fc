//! Control session with a towpath server, for snapshots of its host.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::message::sanitize;
use towpath_measure::live::{
    ClientMessage, ConnectionKind, HostSnapshot, Preamble, Secret, ServerMessage, TestToken,
};
use towpath_quic::{Trust, tls};

use super::attempt::{self, ConnectOptions};
use crate::clock::Clock;
use crate::live::authenticator::{self, Authenticator};
use crate::live::control_channel::ControlChannel;
use crate::setup::is_interface_name;
use crate::traffic::socket_stream::SocketStream;

/// Timeout of a reply; a towpath server replies at once.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of a connection, long enough for a second SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_150);

/// Reason and remedy for a redacted snapshot, which is too little for a diagnosis.
const REDACTED_HINT: &str = "it tells strangers nothing of its host: give it, and this command, the same \
    --secret-file (or start it with --public-diagnostics, where nobody else can reach it)";

/// Control session with a server that has accepted us.
#[derive(Debug)]
pub(super) struct ServerSession {
    channel: ControlChannel,
    /// Port for the snapshots of the server.
    port: u16,
    /// Set when the server echoes data, as it does without a secret.
    pub(super) echoes: bool,
}

/// Kind of peer at a port.
#[derive(Debug)]
pub(super) enum PeerKind {
    /// A towpath server that has accepted us.
    Server(ServerSession),
    /// A server that echoes data; something on the path may change them.
    Echo {
        /// Offset of the first changed byte, from 0.
        changed_at: ChangedOffset,
    },
    /// A peer that sends no snapshots.
    Other {
        /// Reason as a clause for people.
        why: String,
        /// First bytes that it sent; `None` for a towpath server that refuses us.
        first_bytes: Option<Vec<u8>>,
    },
}

/// First reply to a hello.
enum FirstReply {
    Message(Box<ControlChannel>, Option<ServerMessage>),
    Echo(ChangedOffset),
    /// Not a towpath message; reason as a clause for people.
    NotTowpath(String),
}

/// Offset of the first changed byte, from 0.
type ChangedOffset = Option<u64>;

/// Sends a hello and identifies the peer by its reply.
pub(super) fn identify_peer(
    socket: &Socket,
    port: u16,
    secret: Option<&Secret>,
    clock: Clock,
) -> PeerKind {
    let say = |error: &io::Error| {
        let gone = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        if gone.contains(&error.kind()) {
            return "it closes the connection".to_owned();
        }
        sanitize(error.to_string().split(" (os error").next().unwrap_or_default()).to_lowercase()
    };
    let mut first_words = Vec::new();
    let mut hear = || -> io::Result<FirstReply> {
        let hello = ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() };
        let words = towpath_measure::live::frame::to_bytes(&hello).unwrap_or_default();
        let words = [&hello_preamble()[..], &words].concat();
        let peeking = TcpStream::from(socket.try_clone()?);
        let mut speaker = ControlChannel::new(socket.try_clone()?, clock)?;
        speaker.send_raw(&words)?;
        peeking.set_read_timeout(Some(REPLY_TIMEOUT))?;
        let mut came = vec![0; words.len()];
        let length = peeking.peek(&mut came)?;
        let came = came.get(..length).unwrap_or_default();
        if is_echo(&words, came) {
            let changed = words.iter().zip(came).position(|(sent, came)| sent != came);
            return Ok(FirstReply::Echo(changed.map(|at| at as u64)));
        }
        first_words = came.to_vec();
        match speaker.recv(REPLY_TIMEOUT) {
            Ok(word) => Ok(FirstReply::Message(Box::new(speaker), word)),
            Err(error) => Ok(FirstReply::NotTowpath(say(&error))),
        }
    };
    let heard = hear();
    let (speaker, word) = match heard {
        Ok(FirstReply::Message(speaker, word)) => (*speaker, word),
        Ok(FirstReply::Echo(changed_at)) => return PeerKind::Echo { changed_at },
        Ok(FirstReply::NotTowpath(why)) => {
            return PeerKind::Other { why, first_bytes: Some(first_words) };
        }
        Err(error) => {
            return PeerKind::Other { why: say(&error), first_bytes: Some(first_words) };
        }
    };
    let Some(ServerMessage::Welcome { challenge, .. }) = word else {
        let what = "it accepts connections and is no towpath server";
        return PeerKind::Other { why: what.to_owned(), first_bytes: Some(first_words) };
    };
    let other_peer = |why: String| PeerKind::Other { why, first_bytes: None };
    match (challenge, secret) {
        (None, None) => PeerKind::Server(ServerSession { channel: speaker, port, echoes: true }),
        (Some(_), None) => other_peer("it wants a secret: give it with --secret-file".to_owned()),
        (None, Some(_)) => other_peer(authenticator::secret_not_required().reason),
        // The proof of a secret needs an encrypted connection, which this one is not.
        (Some(_), Some(secret)) => match authenticated_connection(socket, secret, clock) {
            Ok(Ok(speaker)) => {
                PeerKind::Server(ServerSession { channel: speaker, port, echoes: false })
            }
            Ok(Err(why)) => other_peer(why),
            Err(error) => other_peer(say(&error)),
        },
    }
}

/// Opens another connection to the same server and proves the secret in both directions. Returns
/// the reason if the server refuses.
fn authenticated_connection(
    other: &Socket,
    secret: &Secret,
    clock: Clock,
) -> io::Result<Result<ControlChannel, String>> {
    let target = other.peer_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    let manner = ConnectOptions { timeout: CONNECT_TIMEOUT, ..ConnectOptions::tcp() };
    let (attempt, socket) = attempt::connect(target, &manner, clock);
    let Some(socket) = socket else { return Ok(Err(super::text::outcome(attempt.outcome))) };
    let first = Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
    io::Write::write_all(&mut &socket, &first.to_bytes())?;
    // The secret authenticates the server, not its certificate.
    let session = tls::TlsSession::client(&Trust::Any).map_err(io::Error::other)?;
    let (wire, _) =
        SocketStream::handshake(socket, session, (clock, clock.now() + CONNECT_TIMEOUT))?;
    let mut speaker = ControlChannel::over_socket(wire, clock)?;
    let hello = ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() };
    speaker.send_raw(&hello_preamble())?;
    speaker.send(&hello)?;
    let Some(ServerMessage::Welcome { challenge: Some(challenge), .. }) =
        speaker.recv(REPLY_TIMEOUT)?
    else {
        return Ok(Err(authenticator::secret_not_required().reason));
    };
    let introduction = Authenticator::new(secret, challenge, &speaker)?;
    speaker.send(&introduction.proof_message()?)?;
    Ok(match speaker.recv(REPLY_TIMEOUT)? {
        Some(said) if introduction.verify_reply(&said) => Ok(speaker),
        Some(ServerMessage::Refused { reason: why, .. }) => Err(sanitize(&why)),
        Some(_) | None => Err(authenticator::server_unproven().reason),
    })
}

/// Returns true if more than half of the reply equals the sent bytes at the same offset.
fn is_echo(sent: &[u8], came: &[u8]) -> bool {
    const MIN_MATCH_BYTES: usize = 16;
    let same = sent.iter().zip(came).filter(|(sent, came)| sent == came).count();
    came.len() >= MIN_MATCH_BYTES && same * 2 > came.len()
}

impl ServerSession {
    /// Requests a snapshot of the server's host.
    pub(super) fn snapshot(&mut self) -> Result<HostSnapshot, String> {
        let mut ask = || {
            self.channel.send(&ClientMessage::Snapshot { port: self.port })?;
            self.channel.recv(REPLY_TIMEOUT)
        };
        match ask() {
            Ok(Some(ServerMessage::Snapshot(look))) if look.partial => {
                Err(REDACTED_HINT.to_owned())
            }
            Ok(Some(ServerMessage::Snapshot(look))) => Ok(sanitize_snapshot(*look)),
            Ok(Some(ServerMessage::Refused { reason: why, .. })) => Err(sanitize(&why)),
            Ok(_) => Err("it does not say how it looks".to_owned()),
            Err(_) => Err("it is too old to say how it looks".to_owned()),
        }
    }
}

/// Removes values that no kernel would report: names of interfaces become part of commands that
/// people paste.
fn sanitize_snapshot(look: HostSnapshot) -> HostSnapshot {
    let mut snapshot = look.truncated();
    for link in snapshot.links.iter_mut().filter(|link| !is_interface_name(&link.name)) {
        link.name = format!("interface-{}", link.index);
    }
    snapshot
}

/// Returns the preamble of a control connection.
pub(super) fn hello_preamble() -> [u8; Preamble::BYTES] {
    Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE }
        .to_bytes()
}

/// Returns the preamble of an echo connection.
pub(super) fn echo() -> [u8; Preamble::BYTES] {
    Preamble { kind: ConnectionKind::Echo, flow: 0, stream: 0, token: TestToken::NONE }.to_bytes()
}

/// Connects to a server and opens a control session.
pub(super) fn connect_and_open(
    address: SocketAddr,
    port: u16,
    secret: Option<&Secret>,
    clock: Clock,
) -> Result<ServerSession, String> {
    let manner = ConnectOptions { timeout: CONNECT_TIMEOUT, ..ConnectOptions::tcp() };
    let (attempt, socket) = attempt::connect(address, &manner, clock);
    let Some(socket) = socket else {
        return Err(super::text::outcome(attempt.outcome));
    };
    match identify_peer(&socket, port, secret, clock) {
        PeerKind::Server(session) => Ok(session),
        PeerKind::Echo { .. } => Err("it accepts connections and is no towpath server".to_owned()),
        PeerKind::Other { why, .. } => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modified_echo_is_still_recognised() {
        let sent = hello_preamble();
        assert!(is_echo(&sent, &sent));
        let mut changed = sent;
        changed[9] ^= 1;
        assert!(is_echo(&sent, &changed));
        assert!(!is_echo(&sent, b"SSH-2.0-OpenSSH_9.2p1 Debian-2"));
        assert!(!is_echo(&sent, &sent[..4]), "too short to tell");
    }
}
