//! `towpath server`: who listens, and one thread for each control connection.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::secret::Challenge;
use towpath_measure::live::{
    Act, Control, FromClient, FromServer, Kind, Limits, Plan, Preamble, Secret, Seen, Token,
};
use towpath_measure::scenario::{Scenario, Transport};
use towpath_net::Instant;
use towpath_quic::tls::Session;
use towpath_quic::{Fingerprint, Identity};

use super::door::Door;
use super::end::End;
use super::host::Before;
use super::reception::{Admits, LetIn, Reception};
use super::speaker::Speaker;
use super::test::{Test, Tests};
use super::{LiveError, random, socket};
use crate::clock::Clock;
use crate::pace::Pace;
use crate::traffic::is_quic;
use crate::{interrupt, sys};

mod identity;
mod over_quic;

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
/// Port numbers that are tried, where any will do, until one is free for TCP and UDP.
const ATTEMPTS: usize = 16;
/// What a server that ends lets last words take: QUIC's are ours to deliver.
const FAREWELL: Duration = Duration::from_millis(600);

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
    /// Everybody who asks is told how this host looks, not only those who know the secret.
    pub tells_strangers: bool,
    /// Certificate and key for QUIC; made for this once when there is none.
    pub identity: Option<Identity>,
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
    /// Somebody does not know the secret.
    WrongSecret {
        /// Who.
        client: Option<SocketAddr>,
        /// Others since this was last told.
        others: u64,
    },
}

/// A server that listens.
#[derive(Debug)]
pub struct Server {
    door: Door,
    reception: Option<Reception>,
    shared: Arc<Shared>,
    addresses: Vec<SocketAddr>,
    fingerprint: Option<Fingerprint>,
    warnings: Vec<String>,
}

type Tell = Box<dyn Fn(ServerSaid) + Send + Sync>;

struct Shared {
    config: ServerConfig,
    clock: Clock,
    tests: Tests,
    guesses: identity::Guessers,
    /// Control and echo connections that have a thread.
    threads: AtomicUsize,
    /// Somebody has fetched a result.
    fetched: AtomicBool,
    closing: AtomicBool,
    /// Its kernel accepts Multipath TCP.
    multipath: bool,
    /// Ports on which QUIC is spoken and datagrams are sent back.
    udp: OnceLock<BTreeSet<u16>>,
    tell: OnceLock<Tell>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Where a connection has come in.
#[derive(Debug, Clone, Copy)]
struct Origin {
    peer: Option<SocketAddr>,
    /// What is known of it that its client cannot see.
    seen: Option<Seen>,
    port: Option<u16>,
}

/// A place among the connections that have a thread, or cost as much.
struct Seat(Arc<Shared>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Server {
    /// Listens.
    pub fn open(mut config: ServerConfig) -> Result<Self, LiveError> {
        // Many connections need many descriptors; with fewer it works, too, for fewer clients.
        let _fewer = sys::raise_open_files();
        config.identity = config.identity.or_else(|| super::identity::make().ok());
        let clock = Clock::start();
        let shared = Arc::new(Shared {
            clock,
            tests: Tests::default(),
            guesses: identity::Guessers::default(),
            threads: AtomicUsize::new(0),
            fetched: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            multipath: socket::speaks_multipath(),
            udp: OnceLock::new(),
            tell: OnceLock::new(),
            config,
        });
        let mut warnings = Vec::new();
        let opened = shared.reception();
        let (reception, fingerprint) = match opened {
            Ok((reception, fingerprint)) => (Some(reception), Some(fingerprint)),
            Err(error) => {
                warnings.push(format!("no QUIC: {error}"));
                (None, None)
            }
        };
        let mut listeners = Vec::new();
        let mut udp = BTreeSet::new();
        for port in &shared.config.ports {
            let (listener, without) = shared.listen(*port, reception.as_ref())?;
            let bound = listener.local_addr().ok().and_then(|address| address.as_socket());
            match without {
                None => udp.extend(bound.map(|bound| bound.port()).filter(|_| reception.is_some())),
                Some(error) => {
                    let port = bound.map_or(*port, |bound| bound.port());
                    warnings.push(format!("no QUIC on port {port}, UDP is not free: {error}"));
                }
            }
            listeners.push(listener);
        }
        let _only_here = shared.udp.set(udp);
        let addresses = listeners.iter().filter_map(|one| one.local_addr().ok()?.as_socket());
        let addresses = addresses.collect();
        let door = Door::new(listeners, clock);
        Ok(Self { door, reception, shared, addresses, fingerprint, warnings })
    }

    /// Where it listens.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// What clients can know it by over QUIC, if it speaks that.
    pub fn fingerprint(&self) -> Option<Fingerprint> {
        self.fingerprint
    }

    /// Whether QUIC is spoken on a port.
    pub fn speaks_quic(&self, port: u16) -> bool {
        self.shared.has_udp(Some(port))
    }

    /// What it does without, and why.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Serves until an interrupt, or until one test has been fetched if that is all.
    pub fn run(mut self, tell: impl Fn(ServerSaid) + Send + Sync + 'static) -> io::Result<()> {
        let _only_here = self.shared.tell.set(Box::new(tell));
        let mut tidied = Instant::ZERO;
        loop {
            let shared = &self.shared;
            self.door.round(&shared.config.limits, &mut |socket, preamble| {
                shared.let_in(socket, preamble);
            })?;
            let now = shared.clock.now();
            if now.saturating_since(tidied) > Duration::from_secs(1) {
                tidied = now;
                shared.tests.tidy(now, &shared.config.limits);
                self.reception.iter().for_each(Reception::tidy);
            }
            let done = shared.config.once && shared.fetched.load(Ordering::Acquire);
            if interrupt::seen() || done {
                shared.closing.store(true, Ordering::Release);
                shared.tests.stop_all();
                shared.wait_for_last_words(now + FAREWELL);
                return Ok(());
            }
        }
    }
}

impl Shared {
    /// Takes a port for TCP and UDP; or for TCP alone, and why.
    fn listen(
        self: &Arc<Self>,
        port: u16,
        reception: Option<&Reception>,
    ) -> Result<(Socket, Option<io::Error>), LiveError> {
        let bind = self.config.bind;
        let refused = |source| {
            let host = bind.map_or_else(|| "*".to_owned(), |ip| ip.to_string());
            LiveError::Listen { address: format!("{host}, port {port}"), source }
        };
        let mut attempts = if port == 0 { ATTEMPTS } else { 1 };
        loop {
            let listener = socket::listen(bind, port).map_err(refused)?;
            let bound = listener.local_addr().map_err(refused)?;
            let (Some(bound), Some(reception)) = (bound.as_socket(), reception) else {
                return Ok((listener, None));
            };
            let (inside, asked) = (Arc::clone(self), Arc::clone(self));
            let let_in: LetIn = Arc::new(move |turn, guest| inside.let_in_over_quic(turn, guest));
            let admits: Admits = Arc::new(move |token| asked.admits(token));
            attempts -= 1;
            match reception.listen(bind, bound.port(), (let_in, admits)) {
                Ok(()) => return Ok((listener, None)),
                Err(error) if attempts == 0 => return Ok((listener, Some(error))),
                Err(_) => {}
            }
        }
    }

    fn has_udp(&self, port: Option<u16>) -> bool {
        self.udp.get().zip(port).is_some_and(|(ports, port)| ports.contains(&port))
    }

    fn tell(&self, said: ServerSaid) {
        if let Some(tell) = self.tell.get() {
            tell(said);
        }
    }

    fn wait_for_last_words(&self, deadline: Instant) {
        while self.threads.load(Ordering::Acquire) > 0 && self.clock.now() < deadline {
            self.clock.sleep_until(self.clock.now() + NAP);
        }
    }

    /// Takes a connection that has said what it is for; whatever is not right is closed without a
    /// word.
    fn let_in(self: &Arc<Self>, socket: Socket, preamble: Preamble) {
        let known = self.tests.find(preamble.test());
        match (preamble.kind, known) {
            (Kind::Tls, _) => self.control_over_tls(socket),
            (Kind::Data, Some(test)) => {
                self.attach(test, (preamble.flow, preamble.stream), socket);
            }
            (Kind::Control, Some(_)) => self.control_over_tcp(socket, Some(preamble.test())),
            (Kind::Control, None) if preamble.token == Token::NONE => {
                self.control_over_tcp(socket, None);
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

    /// A place for one more thread, if there is one.
    fn enter(self: &Arc<Self>) -> Option<Seat> {
        let most = self.config.limits.waiting.saturating_add(self.config.limits.tests * 2);
        let enter = |count: usize| (count < most).then_some(count + 1);
        let entered = self.threads.fetch_update(Ordering::AcqRel, Ordering::Acquire, enter);
        entered.is_ok().then(|| Seat(Arc::clone(self)))
    }

    fn control_over_tcp(self: &Arc<Self>, socket: Socket, token: Option<Token>) {
        let Some(seat) = self.enter() else { return };
        let open = move |shared: &Self| {
            let port = socket.local_addr().ok().and_then(|own| own.as_socket());
            let port = port.map(|own| own.port());
            let origin =
                Origin { peer: socket::peer(&socket), seen: Some(shared.seen(&socket)), port };
            Ok((Speaker::new(socket, shared.clock)?, origin))
        };
        in_a_thread(seat, open, token);
    }

    /// Gives a test one of its connections.
    fn attach(self: &Arc<Self>, test: Arc<Test>, place: (u16, u16), socket: Socket) {
        if !test.wants(place) {
            return;
        }
        if !test.plan.settings.tls {
            return test.attach(place, socket);
        }
        let session = self.config.identity.as_ref().map(Session::server);
        let (Some(Ok(session)), Some(seat)) = (session, self.enter()) else { return };
        // Without a thread it is closed.
        let _spawned = thread::Builder::new().name("tls".into()).spawn(move || {
            test.attach_with_tls(place, socket, session, seat.0.clock);
        });
    }

    /// Gives back what comes, for as long as a test may take.
    fn echo(self: &Arc<Self>, socket: Socket) {
        let Some(seat) = self.enter() else { return };
        // Without a thread it is closed.
        let _spawned = thread::Builder::new().name("echo".into()).spawn(move || {
            let _connection_lost = seat.0.echo_all(&socket);
        });
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
        (mut speaker, origin): (Speaker, Origin),
        token: Option<Token>,
    ) -> io::Result<()> {
        let limits = &self.config.limits;
        let secret = self.config.secret.clone();
        let quic = self.has_udp(origin.port);
        let datagrams = quic && secret.is_none();
        let control = Control::new(token, secret, Challenge(random()?));
        let mut control = control
            .telling(origin.seen, datagrams, quic)
            .bound_to(speaker.binding())
            .open_to_strangers(self.config.tells_strangers);
        let result = self.converse(&mut control, &mut speaker, limits, origin.peer);
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
        peer: Option<SocketAddr>,
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
            for act in self.acts(control, message, peer) {
                match act {
                    Act::Say(message) => speaker.say(&message)?,
                    Act::TellTime { client_ns } => {
                        let server_ns = self.clock.now().as_nanos();
                        speaker.say(&FromServer::Clock { client_ns, server_ns })?;
                    }
                    Act::Admit(plan) => self.admit(control, speaker, *plan)?,
                    Act::Look { port, whole } => {
                        speaker.say(&self.look(port, whole, peer.map(|peer| peer.ip())))?;
                    }
                    // Taken care of by then.
                    Act::WrongSecret => {}
                    Act::Begin(token, at_ns) => self.begin(token, at_ns, peer)?,
                    Act::Stop(token) => self.tests.find(token).iter().for_each(|test| test.stop()),
                    Act::End(token, at_ns) => {
                        let at = Instant::from_nanos(at_ns);
                        self.tests.find(token).iter().for_each(|test| test.end_by(at));
                    }
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
        if is_quic(plan.transport) && self.udp.get().is_none_or(BTreeSet::is_empty) {
            let refusal = towpath_measure::live::Refusal::new(
                format!("it does not speak {}, UDP was not free", plan.transport),
                "use --transport tcp,mptcp",
            );
            speaker.say(&FromServer::from(refusal))?;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let token = Token(random()?);
        match self.tests.admit(token.name(), (plan, scenario), &self.config.limits) {
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
    ) -> io::Result<()> {
        let Some(test) = self.tests.find(token) else { return Ok(()) };
        let now = self.clock.now();
        let zero = Instant::from_nanos(at_ns).max(now).min(now + LATEST_BEGIN);
        let pace = Arc::new(Pace::new(self.clock, zero));
        let Some(streams) = test.start(&pace) else { return Ok(()) };
        let flows = test.scenario.flows.iter();
        let patterns = flows.map(|flow| flow.pattern.name()).collect();
        self.tell(ServerSaid::Begun { client, transport: test.plan.transport, patterns });
        let shared = Arc::clone(self);
        thread::Builder::new().name("test".into()).spawn(move || {
            let half = shared.run_test(&test, &pace, &streams);
            drop(streams);
            let now = shared.clock.now();
            shared.tests.end(&test, half, now, &shared.config.limits);
            shared.tell(ServerSaid::Ended { client });
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

/// Gives a control connection a thread; without one it is closed.
fn in_a_thread(
    seat: Seat,
    open: impl FnOnce(&Shared) -> io::Result<(Speaker, Origin)> + Send + 'static,
    token: Option<Token>,
) {
    let _spawned = thread::Builder::new().name("control".into()).spawn(move || {
        if let Ok(opened) = open(&seat.0) {
            let _connection_lost = seat.0.control(opened, token);
        }
    });
}
