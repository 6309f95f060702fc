//! A conversation with a towpath server about how it looks from inside.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::{FromClient, FromServer, Kind, Look, Preamble, Secret, Token};

use crate::clock::Clock;
use crate::live::speaker::Speaker;

/// Whoever is a towpath server answers at once.
const PATIENCE: Duration = Duration::from_millis(800);

/// A server that has let us in.
#[derive(Debug)]
pub(super) struct Session {
    speaker: Speaker,
    /// The port that it is asked about.
    port: u16,
    /// Whether it gives back what it gets, without a secret.
    pub(super) echoes: bool,
}

impl Session {
    /// Greets; the error says in words why there is no conversation.
    pub(super) fn open(
        socket: Socket,
        port: u16,
        secret: Option<&Secret>,
        clock: Clock,
    ) -> Result<Self, String> {
        let say = |error: &io::Error| {
            let gone = [io::ErrorKind::UnexpectedEof, io::ErrorKind::ConnectionReset];
            if gone.contains(&error.kind()) {
                return "it closes the connection".to_owned();
            }
            error.to_string().split(" (os error").next().unwrap_or_default().to_lowercase()
        };
        let greet = || -> io::Result<(Speaker, Option<FromServer>)> {
            let mut speaker = Speaker::new(socket, clock)?;
            speaker.send_raw(&greeting())?;
            speaker.say(&FromClient::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
            let word = speaker.hear(PATIENCE)?;
            Ok((speaker, word))
        };
        let (mut speaker, word) = greet().map_err(|error| say(&error))?;
        let Some(FromServer::Welcome { challenge, .. }) = word else {
            return Err("it accepts connections and is no towpath server".to_owned());
        };
        let echoes = challenge.is_none();
        if let Some(challenge) = challenge {
            let secret = secret.ok_or("it wants a secret: give it with --secret-file")?;
            let proof = secret.prove(challenge).ok_or("the secret cannot be used")?;
            speaker.say(&FromClient::Proof { proof }).map_err(|error| say(&error))?;
        }
        Ok(Self { speaker, port, echoes })
    }

    /// How it looks now.
    pub(super) fn look(&mut self) -> Result<Look, String> {
        let mut ask = || {
            self.speaker.say(&FromClient::Look { port: self.port })?;
            self.speaker.hear(PATIENCE)
        };
        match ask() {
            Ok(Some(FromServer::Looked(look))) => Ok(*look),
            Ok(Some(FromServer::Refused { why, .. })) => Err(why),
            Ok(_) => Err("it does not say how it looks".to_owned()),
            Err(_) => Err("it is too old to say how it looks".to_owned()),
        }
    }
}

/// The first bytes of a conversation.
pub(super) fn greeting() -> [u8; Preamble::BYTES] {
    Preamble { kind: Kind::Control, flow: 0, stream: 0, token: Token::NONE }.to_bytes()
}

/// The first bytes of a connection that gives everything back.
pub(super) fn echo() -> [u8; Preamble::BYTES] {
    Preamble { kind: Kind::Echo, flow: 0, stream: 0, token: Token::NONE }.to_bytes()
}

/// Asks a server once more where it was asked before.
pub(super) fn connect_and_open(
    address: SocketAddr,
    port: u16,
    secret: Option<&Secret>,
    clock: Clock,
) -> Result<Session, String> {
    let (attempt, socket) = super::attempt::connect(address, &super::attempt::Manner::tcp(), clock);
    let Some(socket) = socket else {
        return Err(super::words::outcome(attempt.outcome));
    };
    Session::open(socket, port, secret, clock)
}
