//! `towpath server`: who listens, and one thread for each control connection.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::secret::Challenge;
use towpath_measure::live::{
    Act, Control, FromClient, FromServer, Kind, Limits, Plan, Preamble, Secret, Seen, Token,
};
use towpath_measure::scenario::{Scenario, Transport};
use towpath_net::Instant;

use super::door::Door;
use super::end::End;
use super::host::Before;
use super::speaker::Speaker;
use super::test::{Test, Tests};
use super::{LiveError, random, socket, udp};
use crate::clock::Clock;
use crate::pace::Pace;
use crate::{interrupt, sys};

/// Bytes of a result in one message: they fit however many of them JSON escapes.
const PART_BYTES: usize = 24 * 1024;
/// A client that asks for a result before it is there waits so long for an answer.
const LONG_POLL: Duration = Duration::from_millis(500);
/// Longest time from a plan's last word to its traffic.
const LATEST_BEGIN: Duration = Duration::from_secs(30);
/// A client that does not fetch its result for so long must connect again.
const IDLE: Duration = Duration::from_secs(30);
/// How often a control thread looks whether the connections are there.
const NAP: Duration = Duration::from_millis(10);
/// Bytes that one echo connection gets back at once.
const ECHO_BYTES: usize = 4_096;

/// How a server is started.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Ports.
    pub ports: Vec<u16>,
    /// Address; all of the host when `None`.
    pub bind: Option<IpAddr>,
    /// Clients must know it.
    pub secret: Option<Secret>,
    /// What they may do.
    pub limits: Limits,
    /// It ends after one test.
    pub once: bool,
}

/// What a server has to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ServerSaid {
    /// A test's traffic begins.
    Begun {
        /// Who asked for it.
        client: Option<SocketAddr>,
        /// Over which transport.
        transport: Transport,
        /// Patterns of its flows.
        patterns: Vec<&'static str>,
    },
    /// It has ended.
    Ended {
        /// Who asked for it.
        client: Option<SocketAddr>,
    },
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    door: Door,
    datagrams: Vec<UdpSocket>,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
}

#[derive(Debug)]
struct Shared {
    config: ServerConfig,
    clock: Clock,
    tests: Tests,
    /// Control and echo connections that have a thread.
    threads: AtomicUsize,
    /// Somebody has fetched a result.
    fetched: AtomicBool,
    closing: AtomicBool,
    /// Its kernel accepts Multipath TCP.
    multipath: bool,
    /// Datagrams are sent back on all ports.
    datagrams: bool,
}

impl Server {
    /// Listens.
    pub fn open(config: ServerConfig) -> Result<Self, LiveError> {
        // Many connections need many descriptors; with fewer it works, too, for fewer clients.
        let _fewer = sys::raise_open_files();
        let mut listeners = Vec::new();
        for port in &config.ports {
            let listener = socket::listen(config.bind, *port).map_err(|source| {
                let host = config.bind.map_or_else(|| "*".to_owned(), |ip| ip.to_string());
                LiveError::Listen { address: format!("{host}, port {port}"), source }
            })?;
            listeners.push(listener);
        }
        // Where QUIC has the port, or something else, there are none.
        let datagrams = config.ports.iter().map(|port| udp::bind(config.bind, *port).ok());
        let datagrams: Vec<_> = datagrams.flatten().collect();
        let addresses = listeners.iter().filter_map(|one| one.local_addr().ok()?.as_socket());
        let addresses = addresses.collect();
        let clock = Clock::start();
        let shared = Arc::new(Shared {
            config,
            clock,
            tests: Tests::default(),
            threads: AtomicUsize::new(0),
            fetched: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            multipath: socket::speaks_multipath(),
            datagrams: datagrams.len() == listeners.len(),
        });
        Ok(Self { door: Door::new(listeners, clock), datagrams, shared, addresses })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Serves until an interrupt, or until one test has been fetched if that is all.
    pub fn run(mut self, tell: impl Fn(ServerSaid) + Send + Sync + 'static) -> io::Result<()> {
        let tell: Tell = Arc::new(tell);
        for socket in std::mem::take(&mut self.datagrams) {
            let shared = Arc::clone(&self.shared);
            thread::Builder::new().name("datagrams".into()).spawn(move || {
                udp::answer_all(
                    &socket,
                    |token| shared.admits(token),
                    || shared.closing.load(Ordering::Acquire),
                );
            })?;
        }
        let mut tidied = Instant::ZERO;
        loop {
            let shared = &self.shared;
            self.door.round(&shared.config.limits, &mut |socket, preamble| {
                shared.let_in(socket, preamble, &tell);
            })?;
            let now = shared.clock.now();
            if now.saturating_since(tidied) > Duration::from_secs(1) {
                tidied = now;
                shared.tests.tidy(now, &shared.config.limits);
            }
            let done = shared.config.once && shared.fetched.load(Ordering::Acquire);
            if interrupt::seen() || done {
                shared.closing.store(true, Ordering::Release);
                shared.tests.stop_all();
                return Ok(());
            }
        }
    }
}

type Tell = Arc<dyn Fn(ServerSaid) + Send + Sync>;

impl Shared {
    /// Takes a connection that has said what it is for; whatever is not right is closed without a
    /// word.
    fn let_in(self: &Arc<Self>, socket: Socket, preamble: Preamble, tell: &Tell) {
        let known = self.tests.find(preamble.token);
        match (preamble.kind, known) {
            (Kind::Data, Some(test)) => {
                let _not_needed = test.attach(preamble.flow, preamble.stream, socket);
            }
            (Kind::Control, Some(_)) => self.in_a_thread(socket, Some(preamble.token), tell),
            (Kind::Control, None) if preamble.token == Token::NONE => {
                self.in_a_thread(socket, None, tell);
            }
            // Where a secret is needed, nobody gets an answer without a test.
            (Kind::Echo, known) if known.is_some() || self.config.secret.is_none() => {
                self.echo(socket);
            }
            (Kind::Control | Kind::Data | Kind::Echo, _) => {}
        }
    }

    /// Whose datagrams come back: where a secret is needed, nobody's without a test.
    fn admits(&self, token: Token) -> bool {
        (token == Token::NONE && self.config.secret.is_none()) || self.tests.find(token).is_some()
    }

    /// What the client of a connection cannot see itself.
    fn seen(&self, socket: &Socket) -> Seen {
        match (socket::is_multipath(socket), self.multipath) {
            (true, _) => Seen::Multipath,
            (false, true) => Seen::Plain,
            (false, false) => Seen::Without,
        }
    }

    /// Whether there may be one more thread.
    fn enter(&self) -> bool {
        let most = self.config.limits.waiting.saturating_add(self.config.limits.tests * 2);
        let enter = |count: usize| (count < most).then_some(count + 1);
        self.threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter).is_ok()
    }

    fn leave(&self) {
        self.threads.fetch_sub(1, Ordering::AcqRel);
    }

    fn in_a_thread(self: &Arc<Self>, socket: Socket, token: Option<Token>, tell: &Tell) {
        if !self.enter() {
            return;
        }
        let (shared, tell) = (Arc::clone(self), Arc::clone(tell));
        let spawned = thread::Builder::new().name("control".into()).spawn(move || {
            let (peer, seen) = (socket::peer(&socket), shared.seen(&socket));
            if let Ok(speaker) = Speaker::new(socket, shared.clock) {
                let _connection_lost = shared.control((speaker, seen), token, peer, &tell);
            }
            shared.leave();
        });
        if spawned.is_err() {
            self.leave();
        }
    }

    /// Gives back what comes, for as long as a test may take.
    fn echo(self: &Arc<Self>, socket: Socket) {
        if !self.enter() {
            return;
        }
        let shared = Arc::clone(self);
        let spawned = thread::Builder::new().name("echo".into()).spawn(move || {
            let _connection_lost = shared.echo_all(&socket);
            shared.leave();
        });
        if spawned.is_err() {
            self.leave();
        }
    }

    fn echo_all(&self, socket: &Socket) -> io::Result<()> {
        let limits = &self.config.limits;
        let deadline = self.clock.now() + limits.duration;
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_read_timeout(Some(limits.patience))?;
        socket.set_write_timeout(Some(limits.patience))?;
        let mut room = [0; ECHO_BYTES];
        while self.clock.now() < deadline && !self.closing.load(Ordering::Acquire) {
            let mut plain = socket;
            let length = io::Read::read(&mut plain, &mut room)?;
            if length == 0 {
                break;
            }
            io::Write::write_all(&mut plain, room.get(..length).unwrap_or_default())?;
        }
        Ok(())
    }

    /// One control connection to its end.
    fn control(
        self: &Arc<Self>,
        (mut speaker, seen): (Speaker, Seen),
        token: Option<Token>,
        peer: Option<SocketAddr>,
        tell: &Tell,
    ) -> io::Result<()> {
        let limits = &self.config.limits;
        let secret = self.config.secret.clone();
        let datagrams = self.datagrams && secret.is_none();
        let control = Control::new(token, secret, Challenge(random()?));
        let mut control = control.telling(Some(seen), datagrams);
        let result = self.converse(&mut control, &mut speaker, limits, (peer, tell));
        // A test that has begun goes on without its client, who may come back for the result.
        if let Some(token) = control.unbegun() {
            self.tests.forget(token);
        }
        speaker.close();
        result
    }

    fn converse(
        self: &Arc<Self>,
        control: &mut Control,
        speaker: &mut Speaker,
        limits: &Limits,
        (peer, tell): (Option<SocketAddr>, &Tell),
    ) -> io::Result<()> {
        let mut heard = self.clock.now();
        // Whether the client still has to be told that its connections are there.
        let mut announced = false;
        loop {
            let waiting = control.unbegun().filter(|_| !announced);
            let message =
                speaker.hear::<FromClient>(if waiting.is_some() { NAP } else { LONG_POLL });
            let Some(message) = message? else {
                if let Some(test) = waiting.and_then(|token| self.tests.find(token))
                    && test.is_complete(Duration::ZERO)
                {
                    announced = true;
                    speaker.say(&FromServer::Ready)?;
                }
                let silent = self.clock.now().saturating_since(heard);
                let idle = control.running().is_some_and(|token| self.is_idle(token));
                if silent > control.patience(limits)
                    || (idle && silent > IDLE)
                    || self.closing.load(Ordering::Acquire)
                {
                    return Ok(());
                }
                continue;
            };
            heard = self.clock.now();
            for act in control.on_message(message, limits) {
                match act {
                    Act::Say(message) => speaker.say(&message)?,
                    Act::TellTime { client_ns } => {
                        let server_ns = self.clock.now().as_nanos();
                        speaker.say(&FromServer::Clock { client_ns, server_ns })?;
                    }
                    Act::Admit(plan) => self.admit(control, speaker, *plan)?,
                    Act::Begin(token, at_ns) => self.begin(token, at_ns, peer, tell)?,
                    Act::Stop(token) => self.tests.find(token).iter().for_each(|test| test.stop()),
                    Act::Deliver(token, offset) => self.deliver(speaker, token, offset)?,
                    Act::Forget(token) => {
                        self.tests.forget(token);
                        self.fetched.store(true, Ordering::Release);
                    }
                    Act::Close => return Ok(()),
                }
            }
        }
    }

    /// Whether nothing happens any more for which a client would keep a connection.
    fn is_idle(&self, token: Token) -> bool {
        self.tests.find(token).is_none_or(|test| test.result(Duration::ZERO).is_some())
    }

    fn admit(
        &self,
        control: &mut Control,
        speaker: &mut Speaker,
        (plan, scenario): (Plan, Scenario),
    ) -> io::Result<()> {
        if socket::protocol(plan.transport).is_none() {
            let refusal = towpath_measure::live::Refusal::new(
                format!("it does not speak {} yet", plan.transport),
                "use --transport tcp,mptcp",
            );
            speaker.say(&FromServer::from(refusal))?;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let token = Token(random()?);
        match self.tests.admit(token, (plan, scenario), &self.config.limits) {
            Ok(_) => speaker.say(&control.admitted(token)),
            Err(refusal) => {
                speaker.say(&FromServer::from(refusal))?;
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    fn begin(
        self: &Arc<Self>,
        token: Token,
        at_ns: u64,
        client: Option<SocketAddr>,
        tell: &Tell,
    ) -> io::Result<()> {
        let Some(test) = self.tests.find(token) else { return Ok(()) };
        let now = self.clock.now();
        let zero = Instant::from_nanos(at_ns).max(now).min(now + LATEST_BEGIN);
        let pace = Arc::new(Pace::new(self.clock, zero));
        let Some(streams) = test.start(&pace) else { return Ok(()) };
        let flows = test.scenario.flows.iter();
        let patterns = flows.map(|flow| flow.pattern.name()).collect();
        tell(ServerSaid::Begun { client, transport: test.plan.transport, patterns });
        let (shared, tell) = (Arc::clone(self), Arc::clone(tell));
        thread::Builder::new().name("test".into()).spawn(move || {
            let half = shared.run_test(&test, &pace, &streams);
            drop(streams);
            let now = shared.clock.now();
            shared.tests.end(&test, half, now, &shared.config.limits);
            tell(ServerSaid::Ended { client });
        })?;
        Ok(())
    }

    fn run_test(&self, test: &Test, pace: &Pace, streams: &[super::end::Stream]) -> String {
        let limits = &self.config.limits;
        let end = End {
            pace,
            scenario: &test.scenario,
            transport: test.plan.transport,
            settings: &test.plan.settings,
            is_client: false,
            aim: None,
            rate: limits.rate,
            bytes: limits.bytes,
        };
        let before = Before::read();
        let mut half = end.play(streams, &before, &mut |_| {});
        if limits.bytes.is_some() && pace.is_interrupted() {
            half.host
                .warnings
                .push("the server has ended the test: see its --max-bytes".to_owned());
        }
        half.to_text()
    }

    fn deliver(&self, speaker: &mut Speaker, token: Token, offset: u64) -> io::Result<()> {
        let Some(test) = self.tests.find(token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let Some(result) = test.result(LONG_POLL) else {
            return speaker.say(&FromServer::Pending);
        };
        let total = result.len() as u64;
        let mut place = usize::try_from(offset).unwrap_or(usize::MAX);
        // A length of nothing says that all is there.
        loop {
            let Some(rest) = result.get(place..) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let mut length = rest.len().min(PART_BYTES);
            while !rest.is_char_boundary(length) {
                length -= 1;
            }
            let part = rest.get(..length).unwrap_or_default().to_owned();
            speaker.say(&FromServer::Part { offset: place as u64, total, text: part })?;
            place += length;
            if place >= result.len() {
                return Ok(());
            }
        }
    }
}
