//! A server that follows the protocol up to a chosen phase.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towpath_linux::live::{Fingerprint, Identity};
use towpath_measure::live::secret::{AuthProof, Challenge};
use towpath_measure::live::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, ServerMessage, TestToken, frame,
};
use towpath_quic::identity::PemIdentity;
use towpath_quic::tls::TlsSession;

/// Last step of the client before the trick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// None: the connection was just accepted.
    Connection,
    Hello,
    Plan,
    /// The plan was accepted and all connections exist.
    Ready,
    Probe,
    Fetch,
}

/// Action of the server after that phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Trick {
    Silence,
    /// One byte of a frame at a time, slowly.
    Trickle,
    /// The same message endlessly.
    Ready,
    Welcome,
    Pending,
    EmptyParts,
    WrongOffset,
    /// One character of a result at a time, slowly.
    SlowParts,
    HugeTotal,
    Garbage,
    Close,
    /// A refusal that controls terminals.
    Refusal,
}

pub(crate) const ALL: [Trick; 12] = [
    Trick::Silence,
    Trick::Trickle,
    Trick::Ready,
    Trick::Welcome,
    Trick::Pending,
    Trick::EmptyParts,
    Trick::WrongOffset,
    Trick::SlowParts,
    Trick::HugeTotal,
    Trick::Garbage,
    Trick::Close,
    Trick::Refusal,
];

/// Misbehaviour of the server.
#[derive(Clone)]
pub(crate) enum Misbehaviour {
    Trick(Phase, Trick),
    /// Sends this text as its report.
    Report(Arc<str>),
    /// Requests a secret and claims to know it.
    Liar,
}

/// Server in a thread, which lives until the test process ends.
pub(crate) struct Hostile {
    pub(crate) port: u16,
    /// Fingerprint of its certificate, for TLS.
    pub(crate) fingerprint: Fingerprint,
    shared: Arc<HostileState>,
}

struct HostileState {
    misbehaviour: Misbehaviour,
    identity: Identity,
    /// Set when the trick has begun.
    begun: AtomicBool,
    /// Kinds of accepted connections and received messages.
    received: Mutex<Vec<String>>,
}

impl Hostile {
    pub(crate) fn start(manner: Misbehaviour) -> Self {
        Self::at(TcpListener::bind("127.0.0.1:0").unwrap(), manner)
    }

    pub(crate) fn at(listener: TcpListener, manner: Misbehaviour) -> Self {
        let pem = PemIdentity::make(&["hostile".to_owned()]).unwrap();
        let identity = Identity::from_pem(&pem.certificate, &pem.key).unwrap();
        let fingerprint = identity.fingerprint();
        let (begun, heard) = (AtomicBool::new(false), Mutex::default());
        let shared =
            Arc::new(HostileState { misbehaviour: manner, identity, begun, received: heard });
        let port = listener.local_addr().unwrap().port();
        let of_thread = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&of_thread);
                thread::spawn(move || shared.serve(stream));
            }
        });
        Self { port, fingerprint, shared }
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.shared.begun.load(Ordering::Acquire)
    }

    pub(crate) fn received(&self) -> Vec<String> {
        self.shared.received.lock().unwrap().clone()
    }
}

/// Connection with or without TLS.
pub(crate) struct TestConnection {
    stream: TcpStream,
    session: Option<TlsSession>,
}

impl TestConnection {
    /// Completes the handshake on either side.
    pub(crate) fn secure(stream: TcpStream, session: TlsSession) -> io::Result<Self> {
        let mut wire = Self { stream, session: Some(session) };
        loop {
            wire.flush()?;
            let session = wire.session.as_mut().unwrap();
            if !session.is_handshaking() {
                return Ok(wire);
            }
            let mut room = [0; 4_096];
            let length = wire.stream.read(&mut room)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            session.feed(&room[..length]).map_err(io::Error::other)?;
        }
    }

    /// Returns the channel binding, which only both ends know.
    pub(crate) fn binding(&self) -> [u8; 32] {
        self.session.as_ref().unwrap().binding().unwrap()
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        if let Some(session) = &mut self.session {
            session.take_outgoing(&mut out);
        }
        self.stream.write_all(&out)
    }

    pub(crate) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(session) = &mut self.session else { return self.stream.write_all(bytes) };
        assert_eq!(session.write(bytes), bytes.len());
        self.flush()
    }

    pub(crate) fn send<T: serde::Serialize>(&mut self, word: &T) -> io::Result<()> {
        self.send_raw(&frame::to_bytes(word).unwrap())
    }

    /// Reads some bytes; 0 at the end.
    pub(crate) fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(session) = &mut self.session
                && let Some(length) = session.read(Some(room)).map_err(io::Error::other)?
            {
                return Ok(length);
            }
            let Some(session) = &mut self.session else { return self.stream.read(room) };
            let mut sealed = [0; 4_096];
            let length = self.stream.read(&mut sealed)?;
            if length == 0 {
                return Ok(0);
            }
            session.feed(&sealed[..length]).map_err(io::Error::other)?;
        }
    }

    fn preamble(&mut self) -> io::Result<Preamble> {
        let mut said = Vec::new();
        loop {
            let mut one = [0];
            if self.read(&mut one)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            said.extend(one);
            if let Some(preamble) = Preamble::read(&said).map_err(io::Error::other)? {
                return Ok(preamble);
            }
        }
    }

    /// Returns the next message; `None` when the peer has closed.
    pub(crate) fn recv<T: serde::de::DeserializeOwned>(
        &mut self,
        frames: &mut FrameDecoder,
    ) -> io::Result<Option<T>> {
        let mut room = [0; 4_096];
        loop {
            if let Some(word) = frames.take().map_err(io::Error::other)? {
                return Ok(Some(word));
            }
            let length = self.read(&mut room)?;
            if length == 0 {
                return Ok(None);
            }
            frames.push(&room[..length]);
        }
    }
}

/// Connects as a client of a real server.
pub(crate) fn connect(port: u16, preamble: Preamble, tls: bool) -> io::Result<TestConnection> {
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut wire = TestConnection { stream, session: None };
    if tls {
        let first =
            Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
        wire.send_raw(&first.to_bytes())?;
        let session = TlsSession::client(&towpath_quic::Trust::Any).unwrap();
        wire = TestConnection::secure(wire.stream, session)?;
    }
    wire.send_raw(&preamble.to_bytes())?;
    Ok(wire)
}

impl HostileState {
    fn note(&self, what: &str) {
        self.received.lock().unwrap().push(what.to_owned());
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        // A timeout ends connections that are left behind.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let mut wire = TestConnection { stream, session: None };
        if let Misbehaviour::Trick(Phase::Connection, trick) = self.misbehaviour {
            return self.play(trick, &mut wire);
        }
        let mut preamble = wire.preamble()?;
        if preamble.kind == ConnectionKind::Tls {
            self.note("tls");
            wire =
                TestConnection::secure(wire.stream, TlsSession::server(&self.identity).unwrap())?;
            preamble = wire.preamble()?;
        }
        if preamble.kind == ConnectionKind::Control {
            self.note("control");
            return self.serve_control(&mut wire);
        }
        self.note("data");
        if let Ok(session) = TlsSession::server(&self.identity)
            && wire.session.is_none()
            && self.received().contains(&"tls".to_owned())
        {
            wire = TestConnection::secure(wire.stream, session)?;
        }
        let mut room = vec![0; 65_536];
        while wire.read(&mut room)? > 0 {}
        Ok(())
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    fn serve_control(&self, wire: &mut TestConnection) -> io::Result<()> {
        let trick = |phase| match self.misbehaviour {
            Misbehaviour::Trick(of, trick) => (of == phase).then_some(trick),
            Misbehaviour::Report(_) | Misbehaviour::Liar => None,
        };
        let mut frames = FrameDecoder::default();
        while let Some(word) = wire.recv::<ClientMessage>(&mut frames)? {
            let (phase, answer) = match word {
                ClientMessage::Hello { .. } => (Phase::Hello, vec![self.welcome()]),
                ClientMessage::Proof { .. } => {
                    let proved = ServerMessage::Proved { proof: AuthProof([7; 32]) };
                    wire.send(&proved)?;
                    continue;
                }
                ClientMessage::Plan(_) => {
                    let accepted = ServerMessage::Accepted { token: TestToken([7; 16]) };
                    if let Some(trick) = trick(Phase::Ready) {
                        wire.send(&accepted)?;
                        return self.play(trick, wire);
                    }
                    (Phase::Plan, vec![accepted, ServerMessage::Ready])
                }
                ClientMessage::Probe { client_ns } => {
                    let clock = ServerMessage::Clock { client_ns, server_ns: client_ns };
                    (Phase::Probe, vec![clock])
                }
                ClientMessage::Fetch { offset } => (Phase::Fetch, self.parts(offset as usize)),
                ClientMessage::Bye => return Ok(()),
                ClientMessage::Snapshot { .. }
                | ClientMessage::Begin { .. }
                | ClientMessage::Stop
                | ClientMessage::End { .. } => continue,
            };
            self.note(&format!("{phase:?}"));
            if let Some(trick) = trick(phase) {
                return self.play(trick, wire);
            }
            answer.iter().try_for_each(|word| wire.send(word))?;
        }
        Ok(())
    }

    fn welcome(&self) -> ServerMessage {
        let asks = matches!(self.misbehaviour, Misbehaviour::Liar);
        welcome(asks.then_some(Challenge([7; 32])))
    }

    fn parts(&self, offset: usize) -> Vec<ServerMessage> {
        let Misbehaviour::Report(half) = &self.misbehaviour else {
            return vec![ServerMessage::Pending];
        };
        let total = half.len() as u64;
        let places = (offset..half.len()).step_by(24 * 1_024);
        let part = |place: usize| ServerMessage::Part {
            offset: place as u64,
            total,
            text: half[place..half.len().min(place + 24 * 1_024)].to_owned(),
        };
        places.map(part).collect()
    }

    fn play(&self, trick: Trick, wire: &mut TestConnection) -> io::Result<()> {
        self.begun.store(true, Ordering::Release);
        let part = |offset, total, text: &str| ServerMessage::Part {
            offset,
            total,
            text: text.to_owned(),
        };
        let escapes = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nerror: \u{9b}31mforged \u{202e}".repeat(9);
        let refusal = ServerMessage::Refused { reason: escapes.clone(), hint: Some(escapes) };
        let word = match trick {
            Trick::Silence => {
                while wire.read(&mut [0; 1_024])? > 0 {}
                return Ok(());
            }
            Trick::Trickle => {
                wire.send_raw(&60_000_u32.to_be_bytes())?;
                loop {
                    wire.send_raw(b"a")?;
                    thread::sleep(Duration::from_millis(250));
                }
            }
            Trick::SlowParts => {
                for offset in 0.. {
                    wire.send(&part(offset, 1_000_000, "x"))?;
                    thread::sleep(Duration::from_millis(250));
                }
                return Ok(());
            }
            Trick::Garbage => {
                let garbage = b"{\"say\":\"\x1b[2J\",\"\xff\":[[[[[[[[[[";
                wire.send_raw(&(garbage.len() as u32).to_be_bytes())?;
                wire.send_raw(garbage)?;
                while wire.read(&mut [0; 1_024])? > 0 {}
                return Ok(());
            }
            Trick::Close => return Ok(()),
            Trick::Ready => ServerMessage::Ready,
            Trick::Welcome => welcome(None),
            Trick::Pending => ServerMessage::Pending,
            Trick::EmptyParts => part(0, 10, ""),
            Trick::WrongOffset => part(7, 10, "abc"),
            Trick::HugeTotal => part(0, u64::MAX, "abc"),
            Trick::Refusal => refusal,
        };
        loop {
            wire.send(&word)?;
        }
    }
}

fn welcome(challenge: Option<Challenge>) -> ServerMessage {
    let towpath = env!("CARGO_PKG_VERSION").to_owned();
    let seen = None;
    ServerMessage::Welcome { towpath, challenge, observed: seen, datagrams: false, quic: false }
}
