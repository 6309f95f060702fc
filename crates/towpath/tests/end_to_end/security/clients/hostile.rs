//! A server that follows the protocol up to a chosen phase.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use towpath_live::protocol::secret::{AuthProof, Challenge};
use towpath_live::protocol::{
    ClientMessage, ConnectionKind, FrameDecoder, Preamble, ServerMessage, frame,
};
use towpath_live::{Fingerprint, Identity};
use towpath_quic::identity::PemIdentity;
use towpath_quic::tls::TlsSession;
use towpath_run::token::TestToken;

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

pub(crate) const ALL_TRICKS: [Trick; 12] = [
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
    pub(crate) fn start(misbehaviour: Misbehaviour) -> Self {
        Self::start_on(TcpListener::bind("127.0.0.1:0").unwrap(), misbehaviour)
    }

    pub(crate) fn start_on(listener: TcpListener, misbehaviour: Misbehaviour) -> Self {
        let pem = PemIdentity::make(&["hostile".to_owned()]).unwrap();
        let identity = Identity::from_pem(&pem.certificate, &pem.key).unwrap();
        let fingerprint = identity.fingerprint();
        let (begun, received) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(HostileState { misbehaviour, identity, begun, received });
        let port = listener.local_addr().unwrap().port();
        let thread_state = Arc::clone(&shared);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let shared = Arc::clone(&thread_state);
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
        let mut connection = Self { stream, session: Some(session) };
        loop {
            connection.flush()?;
            let session = connection.session.as_mut().unwrap();
            if !session.is_handshaking() {
                return Ok(connection);
            }
            let mut buffer = [0; 4_096];
            let length = connection.stream.read(&mut buffer)?;
            if length == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            session.feed(&buffer[..length]).map_err(io::Error::other)?;
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

    pub(crate) fn send<T: serde::Serialize>(&mut self, message: &T) -> io::Result<()> {
        self.send_raw(&frame::to_bytes(message).unwrap())
    }

    /// Reads some bytes; 0 at the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(session) = &mut self.session
                && let Some(length) = session.read(Some(buffer)).map_err(io::Error::other)?
            {
                return Ok(length);
            }
            let Some(session) = &mut self.session else { return self.stream.read(buffer) };
            let mut sealed = [0; 4_096];
            let length = self.stream.read(&mut sealed)?;
            if length == 0 {
                return Ok(0);
            }
            session.feed(&sealed[..length]).map_err(io::Error::other)?;
        }
    }

    fn read_preamble(&mut self) -> io::Result<Preamble> {
        let mut bytes = Vec::new();
        loop {
            let mut byte = [0];
            if self.read(&mut byte)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            bytes.extend(byte);
            if let Some(preamble) = Preamble::read(&bytes).map_err(io::Error::other)? {
                return Ok(preamble);
            }
        }
    }

    /// Returns the next message; `None` when the peer has closed.
    pub(crate) fn recv<T: serde::de::DeserializeOwned>(
        &mut self,
        frames: &mut FrameDecoder,
    ) -> io::Result<Option<T>> {
        let mut buffer = [0; 4_096];
        loop {
            if let Some(message) = frames.take().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            let length = self.read(&mut buffer)?;
            if length == 0 {
                return Ok(None);
            }
            frames.push(&buffer[..length]);
        }
    }
}

/// Connects as a client of a real server.
pub(crate) fn connect(port: u16, preamble: Preamble, tls: bool) -> io::Result<TestConnection> {
    let stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port)))?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut connection = TestConnection { stream, session: None };
    if tls {
        let tls_preamble =
            Preamble { kind: ConnectionKind::Tls, flow: 0, stream: 0, token: TestToken::NONE };
        connection.send_raw(&tls_preamble.to_bytes())?;
        let session = TlsSession::client(&towpath_quic::Trust::Any).unwrap();
        connection = TestConnection::secure(connection.stream, session)?;
    }
    connection.send_raw(&preamble.to_bytes())?;
    Ok(connection)
}

impl HostileState {
    fn record(&self, case: &str) {
        self.received.lock().unwrap().push(case.to_owned());
    }

    fn serve(&self, stream: TcpStream) -> io::Result<()> {
        // A timeout ends connections that are left behind.
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        stream.set_write_timeout(Some(Duration::from_secs(60)))?;
        let mut connection = TestConnection { stream, session: None };
        if let Misbehaviour::Trick(Phase::Connection, trick) = self.misbehaviour {
            return self.play_trick(trick, &mut connection);
        }
        let mut preamble = connection.read_preamble()?;
        if preamble.kind == ConnectionKind::Tls {
            self.record("tls");
            connection = TestConnection::secure(
                connection.stream,
                TlsSession::server(&self.identity).unwrap(),
            )?;
            preamble = connection.read_preamble()?;
        }
        if preamble.kind == ConnectionKind::Control {
            self.record("control");
            return self.serve_control(&mut connection);
        }
        self.record("data");
        if let Ok(session) = TlsSession::server(&self.identity)
            && connection.session.is_none()
            && self.received().contains(&"tls".to_owned())
        {
            connection = TestConnection::secure(connection.stream, session)?;
        }
        let mut buffer = vec![0; 65_536];
        while connection.read(&mut buffer)? > 0 {}
        Ok(())
    }

    fn received(&self) -> Vec<String> {
        self.received.lock().unwrap().clone()
    }

    fn serve_control(&self, connection: &mut TestConnection) -> io::Result<()> {
        let trick = |phase| match self.misbehaviour {
            Misbehaviour::Trick(trick_phase, trick) => (trick_phase == phase).then_some(trick),
            Misbehaviour::Report(_) | Misbehaviour::Liar => None,
        };
        let mut frames = FrameDecoder::default();
        while let Some(message) = connection.recv::<ClientMessage>(&mut frames)? {
            let (phase, replies) = match message {
                ClientMessage::Hello { .. } => (Phase::Hello, vec![self.welcome()]),
                ClientMessage::Proof { .. } => {
                    let proof_reply = ServerMessage::Proved { proof: AuthProof([7; 32]) };
                    connection.send(&proof_reply)?;
                    continue;
                }
                ClientMessage::Plan(_) => {
                    let accepted = ServerMessage::Accepted { token: TestToken([7; 16]) };
                    if let Some(trick) = trick(Phase::Ready) {
                        connection.send(&accepted)?;
                        return self.play_trick(trick, connection);
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
            self.record(&format!("{phase:?}"));
            if let Some(trick) = trick(phase) {
                return self.play_trick(trick, connection);
            }
            replies.iter().try_for_each(|message| connection.send(message))?;
        }
        Ok(())
    }

    fn welcome(&self) -> ServerMessage {
        let requires_secret = matches!(self.misbehaviour, Misbehaviour::Liar);
        welcome(requires_secret.then_some(Challenge([7; 32])))
    }

    fn parts(&self, offset: usize) -> Vec<ServerMessage> {
        let Misbehaviour::Report(report) = &self.misbehaviour else {
            return vec![ServerMessage::Pending];
        };
        let total = report.len() as u64;
        let offsets = (offset..report.len()).step_by(24 * 1_024);
        let part = |offset_in_report: usize| ServerMessage::Part {
            offset: offset_in_report as u64,
            total,
            text: report[offset_in_report..report.len().min(offset_in_report + 24 * 1_024)]
                .to_owned(),
        };
        offsets.map(part).collect()
    }

    fn play_trick(&self, trick: Trick, connection: &mut TestConnection) -> io::Result<()> {
        self.begun.store(true, Ordering::Release);
        let part = |offset, total, text: &str| ServerMessage::Part {
            offset,
            total,
            text: text.to_owned(),
        };
        let escapes = "\u{1b}]0;owned\u{7}\u{1b}[2J\r\nerror: \u{9b}31mforged \u{202e}".repeat(9);
        let refusal = ServerMessage::Refused {
            reason: escapes.clone(),
            hint: Some(escapes),
            retry_after_s: None,
        };
        let message = match trick {
            Trick::Silence => {
                while connection.read(&mut [0; 1_024])? > 0 {}
                return Ok(());
            }
            Trick::Trickle => {
                connection.send_raw(&60_000_u32.to_be_bytes())?;
                loop {
                    connection.send_raw(b"a")?;
                    thread::sleep(Duration::from_millis(250));
                }
            }
            Trick::SlowParts => {
                for offset in 0.. {
                    connection.send(&part(offset, 1_000_000, "x"))?;
                    thread::sleep(Duration::from_millis(250));
                }
                return Ok(());
            }
            Trick::Garbage => {
                let garbage = b"{\"type\":\"\x1b[2J\",\"\xff\":[[[[[[[[[[";
                connection.send_raw(&(garbage.len() as u32).to_be_bytes())?;
                connection.send_raw(garbage)?;
                while connection.read(&mut [0; 1_024])? > 0 {}
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
            connection.send(&message)?;
        }
    }
}

fn welcome(challenge: Option<Challenge>) -> ServerMessage {
    let towpath = env!("CARGO_PKG_VERSION").to_owned();
    ServerMessage::Welcome {
        towpath,
        challenge,
        grant_challenge: None,
        observed: None,
        datagrams: false,
        quic: false,
    }
}
