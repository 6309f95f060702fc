//! A conversation with a towpath server about how it looks from inside.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::message::sanitize;
use towpath_measure::live::{
    ClientMessage, ConnectionKind, HostSnapshot, Preamble, Secret, ServerMessage, TestToken,
};
use towpath_quic::{Trust, tls};

use super::attempt::{self, Manner};
use crate::clock::Clock;
use crate::live::introduction::{self, Introduction};
use crate::live::speaker::Speaker;
use crate::setup::is_interface_name;
use crate::traffic::wire::Wire;

/// Whoever is a towpath server answers at once.
const PATIENCE: Duration = Duration::from_millis(500);

/// Long enough for a second SYN.
const CONNECTING: Duration = Duration::from_millis(1_150);

/// What a server without a secret lets everybody know is too little to conclude from.
const STRANGER: &str = "it tells strangers nothing of its host: give it, and this command, the same \
    --secret-file (or start it with --tell-strangers, where nobody else can reach it)";

/// A server that has let us in.
#[derive(Debug)]
pub(super) struct Session {
    speaker: Speaker,
    /// The port that it is asked about.
    port: u16,
    /// Whether it gives back what it gets, without a secret.
    pub(super) echoes: bool,
}

/// Who answers at a port.
#[derive(Debug)]
pub(super) enum Greeted {
    /// A towpath server.
    Server(Session),
    /// Somebody who gives back what he gets; changed, if he or somebody on the way changes it.
    Echo {
        /// The first byte that came back as another one, counted from 0.
        changed_at: Changed,
    },
    /// Somebody who cannot be asked.
    Stranger {
        /// In words.
        why: String,
        /// What he said first; none if he is a towpath server that does not let us in.
        came: Option<Vec<u8>>,
    },
}

/// The first answer.
enum Heard {
    Word(Box<Speaker>, Option<ServerMessage>),
    Echo(Changed),
    /// None of our words.
    Foreign(String),
}

/// The first byte that came back as another one, counted from 0.
type Changed = Option<u64>;

/// Says hello and hears who is there.
pub(super) fn greet(socket: &Socket, port: u16, secret: Option<&Secret>, clock: Clock) -> Greeted {
    let say = |error: &io::Error| {
        let gone = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
        if gone.contains(&error.kind()) {
            return "it closes the connection".to_owned();
        }
        sanitize(error.to_string().split(" (os error").next().unwrap_or_default()).to_lowercase()
    };
    let mut first_words = Vec::new();
    let mut hear = || -> io::Result<Heard> {
        let hello = ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() };
        let words = towpath_measure::live::frame::to_bytes(&hello).unwrap_or_default();
        let words = [&greeting()[..], &words].concat();
        let peeking = TcpStream::from(socket.try_clone()?);
        let mut speaker = Speaker::new(socket.try_clone()?, clock)?;
        speaker.send_raw(&words)?;
        peeking.set_read_timeout(Some(PATIENCE))?;
        let mut came = vec![0; words.len()];
        let length = peeking.peek(&mut came)?;
        let came = came.get(..length).unwrap_or_default();
        if is_echo(&words, came) {
            let changed = words.iter().zip(came).position(|(sent, came)| sent != came);
            return Ok(Heard::Echo(changed.map(|at| at as u64)));
        }
        first_words = came.to_vec();
        match speaker.hear(PATIENCE) {
            Ok(word) => Ok(Heard::Word(Box::new(speaker), word)),
            Err(error) => Ok(Heard::Foreign(say(&error))),
        }
    };
    let heard = hear();
    let (speaker, word) = match heard {
        Ok(Heard::Word(speaker, word)) => (*speaker, word),
        Ok(Heard::Echo(changed_at)) => return Greeted::Echo { changed_at },
        Ok(Heard::Foreign(why)) => return Greeted::Stranger { why, came: Some(first_words) },
        Err(error) => {
            return Greeted::Stranger { why: say(&error), came: Some(first_words) };
        }
    };
    let Some(ServerMessage::Welcome { challenge, .. }) = word else {
        let what = "it accepts connections and is no towpath server";
        return Greeted::Stranger { why: what.to_owned(), came: Some(first_words) };
    };
    let stranger = |why: String| Greeted::Stranger { why, came: None };
    match (challenge, secret) {
        (None, None) => Greeted::Server(Session { speaker, port, echoes: true }),
        (Some(_), None) => stranger("it wants a secret: give it with --secret-file".to_owned()),
        (None, Some(_)) => stranger(introduction::asks_for_nothing().why),
        // What is said about a secret is said on an encrypted connection, which this one is not.
        (Some(_), Some(secret)) => match known(socket, secret, clock) {
            Ok(Ok(speaker)) => Greeted::Server(Session { speaker, port, echoes: false }),
            Ok(Err(why)) => stranger(why),
            Err(error) => stranger(say(&error)),
        },
    }
}

/// Another connection to the same server, on which both have proved the secret; or why there is none.
fn known(other: &Socket, secret: &Secret, clock: Clock) -> io::Result<Result<Speaker, String>> {
    let target = other.peer_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
    let manner = Manner { patience: CONNECTING, ..Manner::tcp() };
    let (attempt, socket) = attempt::connect(target, &manner, clock);
    let Some(socket) = socket else { return Ok(Err(super::words::outcome(attempt.outcome))) };
    let first = Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
    io::Write::write_all(&mut &socket, &first.to_bytes())?;
    // Who it is shows the secret.
    let session = tls::TlsSession::client(&Trust::Any).map_err(io::Error::other)?;
    let (wire, _) = Wire::secure(socket, session, (clock, clock.now() + CONNECTING))?;
    let mut speaker = Speaker::through(wire, clock)?;
    let hello = ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() };
    speaker.send_raw(&greeting())?;
    speaker.say(&hello)?;
    let Some(ServerMessage::Welcome { challenge: Some(challenge), .. }) = speaker.hear(PATIENCE)?
    else {
        return Ok(Err(introduction::asks_for_nothing().why));
    };
    let introduction = Introduction::new(secret, challenge, &speaker)?;
    speaker.say(&introduction.word()?)?;
    Ok(match speaker.hear(PATIENCE)? {
        Some(said) if introduction.is_answered_by(&said) => Ok(speaker),
        Some(ServerMessage::Refused { why, .. }) => Err(sanitize(&why)),
        Some(_) | None => Err(introduction::knows_nothing().why),
    })
}

/// Whether an answer is nothing but what was sent, though some of it may have been changed.
fn is_echo(sent: &[u8], came: &[u8]) -> bool {
    const FEWEST: usize = 16;
    let same = sent.iter().zip(came).filter(|(sent, came)| sent == came).count();
    came.len() >= FEWEST && same * 2 > came.len()
}

impl Session {
    /// How it looks now.
    pub(super) fn look(&mut self) -> Result<HostSnapshot, String> {
        let mut ask = || {
            self.speaker.say(&ClientMessage::Snapshot { port: self.port })?;
            self.speaker.hear(PATIENCE)
        };
        match ask() {
            Ok(Some(ServerMessage::Snapshot(look))) if look.partial => Err(STRANGER.to_owned()),
            Ok(Some(ServerMessage::Snapshot(look))) => Ok(plausible(*look)),
            Ok(Some(ServerMessage::Refused { why, .. })) => Err(sanitize(&why)),
            Ok(_) => Err("it does not say how it looks".to_owned()),
            Err(_) => Err("it is too old to say how it looks".to_owned()),
        }
    }
}

/// The same without what no kernel would say: names of interfaces become part of commands that people
/// paste.
fn plausible(look: HostSnapshot) -> HostSnapshot {
    let mut look = look.truncated();
    for link in look.links.iter_mut().filter(|link| !is_interface_name(&link.name)) {
        link.name = format!("interface-{}", link.index);
    }
    look
}

/// The first bytes of a conversation.
pub(super) fn greeting() -> [u8; Preamble::BYTES] {
    Preamble { kind: ConnectionKind::Control, flow: 0, stream: 0, token: TestToken::NONE }
        .to_bytes()
}

/// The first bytes of a connection that gives everything back.
pub(super) fn echo() -> [u8; Preamble::BYTES] {
    Preamble { kind: ConnectionKind::Echo, flow: 0, stream: 0, token: TestToken::NONE }.to_bytes()
}

/// Asks a server once more where it was asked before.
pub(super) fn connect_and_open(
    address: SocketAddr,
    port: u16,
    secret: Option<&Secret>,
    clock: Clock,
) -> Result<Session, String> {
    let manner = Manner { patience: CONNECTING, ..Manner::tcp() };
    let (attempt, socket) = attempt::connect(address, &manner, clock);
    let Some(socket) = socket else {
        return Err(super::words::outcome(attempt.outcome));
    };
    match greet(&socket, port, secret, clock) {
        Greeted::Server(session) => Ok(session),
        Greeted::Echo { .. } => Err("it accepts connections and is no towpath server".to_owned()),
        Greeted::Stranger { why, .. } => Err(why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_modified_echo_is_still_recognised() {
        let sent = greeting();
        assert!(is_echo(&sent, &sent));
        let mut changed = sent;
        changed[9] ^= 1;
        assert!(is_echo(&sent, &changed));
        assert!(!is_echo(&sent, b"SSH-2.0-OpenSSH_9.2p1 Debian-2"));
        assert!(!is_echo(&sent, &sent[..4]), "too short to tell");
    }
}
