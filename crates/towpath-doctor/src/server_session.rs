//! Control session with a towpath server, for snapshots of its host.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::Socket;
use towpath_host::setup::is_interface_name;
use towpath_host::snapshot::HostSnapshot;
use towpath_live::authenticator;
use towpath_live::authenticator::Authenticator;
use towpath_live::control_channel::ControlChannel;
use towpath_live::protocol::message::sanitize;
use towpath_live::protocol::{ClientMessage, ConnectionKind, Preamble, Secret, ServerMessage};
use towpath_os::clock::Clock;
use towpath_quic::{Trust, tls};
use towpath_run::token::TestToken;
use towpath_sockets::stream::socket_stream::SocketStream;

use super::attempt::{self, ConnectOptions};

/// Timeout of a reply; a towpath server replies at once.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);

/// Timeout of a connection, long enough for a second SYN.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_150);

/// Reason and remedy for a redacted snapshot, which is too little for a diagnosis.
const REDACTED_HINT: &str = "it does not describe its host to unauthenticated clients: use the same --secret-file on both (or start it with --public-diagnostics, if every client is trusted)";

/// Control session with a server that has accepted us.
#[derive(Debug)]
pub(super) struct ServerSession {
    channel: ControlChannel,
    /// Port whose listener and connections the server's snapshots describe.
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
        reason: String,
        /// First bytes that it sent; `None` for a towpath server that refuses us.
        first_bytes: Option<Vec<u8>>,
    },
}

/// First reply to a hello.
enum FirstReply {
    /// Towpath message; `None` if none arrived in time.
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
    let describe_error = |error: &io::Error| {
        let close_kinds = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        if close_kinds.contains(&error.kind()) {
            return "it closes the connection".to_owned();
        }
        sanitize(error.to_string().split(" (os error").next().unwrap_or_default()).to_lowercase()
    };
    let mut first_bytes = Vec::new();
    let mut exchange_hello = || -> io::Result<FirstReply> {
        let hello = ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() };
        let frame = towpath_live::protocol::frame::to_bytes(&hello).unwrap_or_default();
        let request = [&hello_preamble()[..], &frame].concat();
        // Peeking leaves the reply in the socket for `channel`.
        let peek_socket = TcpStream::from(socket.try_clone()?);
        let mut channel = ControlChannel::new(socket.try_clone()?, clock)?;
        channel.send_raw(&request)?;
        peek_socket.set_read_timeout(Some(REPLY_TIMEOUT))?;
        let mut reply = vec![0; request.len()];
        let length = peek_socket.peek(&mut reply)?;
        let reply = reply.get(..length).unwrap_or_default();
        if is_echo(&request, reply) {
            let changed_at =
                request.iter().zip(reply).position(|(sent, received)| sent != received);
            return Ok(FirstReply::Echo(changed_at.map(|offset| offset as u64)));
        }
        first_bytes = reply.to_vec();
        match channel.recv(REPLY_TIMEOUT) {
            Ok(message) => Ok(FirstReply::Message(Box::new(channel), message)),
            Err(error) => Ok(FirstReply::NotTowpath(describe_error(&error))),
        }
    };
    let reply = exchange_hello();
    let (channel, message) = match reply {
        Ok(FirstReply::Message(channel, message)) => (*channel, message),
        Ok(FirstReply::Echo(changed_at)) => return PeerKind::Echo { changed_at },
        Ok(FirstReply::NotTowpath(reason)) => {
            return PeerKind::Other { reason, first_bytes: Some(first_bytes) };
        }
        Err(error) => {
            return PeerKind::Other {
                reason: describe_error(&error),
                first_bytes: Some(first_bytes),
            };
        }
    };
    let Some(ServerMessage::Welcome { challenge, .. }) = message else {
        let reason = "it accepts connections but is not a towpath server";
        return PeerKind::Other { reason: reason.to_owned(), first_bytes: Some(first_bytes) };
    };
    let other_peer = |reason: String| PeerKind::Other { reason, first_bytes: None };
    match (challenge, secret) {
        (None, None) => PeerKind::Server(ServerSession { channel, port, echoes: true }),
        (Some(_), None) => other_peer("it requires a secret: add --secret-file".to_owned()),
        (None, Some(_)) => other_peer(authenticator::secret_not_required().reason),
        // The proof of a secret needs an encrypted connection, which this one is not.
        (Some(_), Some(secret)) => match authenticated_connection(socket, secret, clock) {
            Ok(Ok(channel)) => PeerKind::Server(ServerSession { channel, port, echoes: false }),
            Ok(Err(reason)) => other_peer(reason),
            Err(error) => other_peer(describe_error(&error)),
        },
    }
}

/// Opens another connection to the same server and proves the secret in both directions. Returns
/// the reason if the server refuses.
fn authenticated_connection(
    first_socket: &Socket,
    secret: &Secret,
    clock: Clock,
) -> io::Result<Result<ControlChannel, String>> {
    let target = first_socket.peer_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    let options = ConnectOptions { timeout: CONNECT_TIMEOUT, ..ConnectOptions::tcp() };
    let (attempt, socket) = attempt::connect(target, &options, clock);
    let Some(socket) = socket else { return Ok(Err(super::text::outcome(attempt.outcome))) };
    let preamble =
        Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
    io::Write::write_all(&mut &socket, &preamble.to_bytes())?;
    // The secret authenticates the server, not its certificate.
    let session = tls::TlsSession::client(&Trust::Any).map_err(io::Error::other)?;
    let (stream, _) =
        SocketStream::handshake(socket, session, (clock, clock.now() + CONNECT_TIMEOUT))?;
    let mut channel = ControlChannel::over_socket(stream, clock)?;
    let hello = ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() };
    channel.send_raw(&hello_preamble())?;
    channel.send(&hello)?;
    let Some(ServerMessage::Welcome { challenge: Some(challenge), .. }) =
        channel.recv(REPLY_TIMEOUT)?
    else {
        return Ok(Err(authenticator::secret_not_required().reason));
    };
    let authenticator = Authenticator::new(secret, challenge, &channel)?;
    channel.send(&authenticator.proof_message()?)?;
    Ok(match channel.recv(REPLY_TIMEOUT)? {
        Some(message) if authenticator.verify_reply(&message) => Ok(channel),
        Some(ServerMessage::Refused { reason, .. }) => Err(sanitize(&reason)),
        Some(_) | None => Err(authenticator::server_unproven().reason),
    })
}

/// Returns true if more than half of the reply equals the sent bytes at the same offset.
fn is_echo(sent: &[u8], received: &[u8]) -> bool {
    const MIN_MATCH_BYTES: usize = 16;
    let matching = sent.iter().zip(received).filter(|(sent, received)| sent == received).count();
    received.len() >= MIN_MATCH_BYTES && matching * 2 > received.len()
}

impl ServerSession {
    /// Requests a snapshot of the server's host.
    pub(super) fn snapshot(&mut self) -> Result<HostSnapshot, String> {
        let mut request = || {
            self.channel.send(&ClientMessage::Snapshot { port: self.port })?;
            self.channel.recv(REPLY_TIMEOUT)
        };
        match request() {
            Ok(Some(ServerMessage::Snapshot(snapshot))) if snapshot.partial => {
                Err(REDACTED_HINT.to_owned())
            }
            Ok(Some(ServerMessage::Snapshot(snapshot))) => Ok(sanitize_snapshot(*snapshot)),
            Ok(Some(ServerMessage::Refused { reason, .. })) => Err(sanitize(&reason)),
            Ok(_) => Err("it does not return host diagnostics".to_owned()),
            Err(_) => Err("it is too old to return host diagnostics".to_owned()),
        }
    }
}

/// Removes values that no kernel would report: names of interfaces become part of commands that
/// people paste.
fn sanitize_snapshot(snapshot: HostSnapshot) -> HostSnapshot {
    let mut snapshot = snapshot.truncated();
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
pub(super) fn echo_preamble() -> [u8; Preamble::BYTES] {
    Preamble { kind: ConnectionKind::Echo, flow: 0, stream: 0, token: TestToken::NONE }.to_bytes()
}

/// Connects to a server and opens a control session.
pub(super) fn connect_and_open(
    address: SocketAddr,
    port: u16,
    secret: Option<&Secret>,
    clock: Clock,
) -> Result<ServerSession, String> {
    let options = ConnectOptions { timeout: CONNECT_TIMEOUT, ..ConnectOptions::tcp() };
    let (attempt, socket) = attempt::connect(address, &options, clock);
    let Some(socket) = socket else {
        return Err(super::text::outcome(attempt.outcome));
    };
    match identify_peer(&socket, port, secret, clock) {
        PeerKind::Server(session) => Ok(session),
        PeerKind::Echo { .. } => {
            Err("it accepts connections but is not a towpath server".to_owned())
        }
        PeerKind::Other { reason, .. } => Err(reason),
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
