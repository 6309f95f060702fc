//! `towpath server`: who listens, and one thread for each control connection.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::secret::Challenge;
use towpath_measure::live::{
    Act, Control, FromClient, FromServer, Kind, Limits, Plan, Preamble, Refusal, Secret, Seen,
    Token,
};
use towpath_measure::scenario::{Scenario, Transport};
use towpath_net::Instant;
use towpath_quic::tls::Session;
use towpath_quic::{Fingerprint, Identity};

use super::budget::{self, Allowed, Budget, Close, Seat, Source};
use super::door::Door;
use super::reception::{Admits, LetIn, Reception};
use super::speaker::Speaker;
use super::test::{Attendance, Test, Tests};
use super::{LiveError, random, socket};
use crate::clock::Clock;
use crate::pace::Pace;
use crate::purse::Way;
use crate::traffic::is_quic;
use crate::{doctor, interrupt, sys};

mod course;
mod over_quic;

use course::Course;

/// Bytes of a result in one message: they fit however many of them JSON escapes.
const PART_BYTES: usize = 24 * 1024;
/// A client that asks for a result before it is there waits so long for an answer.
const LONG_POLL: Duration = Duration::from_millis(500);
/// Longest time from a plan's last word to its traffic.
const LATEST_BEGIN: Duration = Duration::from_secs(30);
/// A client that does not fetch its result for so long must connect again.
const IDLE: Duration = Duration::from_secs(30);
/// Sockets hold no more than of so long, where a rate is limited, but at least so many bytes.
const BUFFERED: Duration = Duration::from_millis(250);
const LEAST_BUFFER: u64 = 64 * 1024;
/// Who has no test after so long must connect again.
const NEWCOMER: Duration = Duration::from_secs(30);
/// How often it is looked what tests take, and who attends them.
const ROUND: Duration = Duration::from_millis(20);
/// How long a place may take to become free that somebody loses.
const CLEARING: Duration = Duration::from_secs(3);
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
    budget: Arc<Budget>,
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
            budget: Budget::new(&config.limits, clock),
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
        let (mut tidied, mut watched) = (Instant::ZERO, Instant::ZERO);
        loop {
            let shared = &self.shared;
            self.door.round(&shared.config.limits, &mut |socket, preamble| {
                shared.let_in(socket, preamble);
            })?;
            let now = shared.clock.now();
            if now.saturating_since(watched) > ROUND {
                watched = now;
                shared.tests.tidy(now, &shared.config.limits);
            }
            if now.saturating_since(tidied) > Duration::from_secs(1) {
                tidied = now;
                shared.budget.tidy(now);
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
            let admits: Admits = Arc::new(move |token, peer| asked.admits(token, peer));
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
        while self.budget.taken() > 0 && self.clock.now() < deadline {
            self.clock.sleep_until(self.clock.now() + NAP);
        }
    }

    /// Takes a connection that has said what it is for; whatever is not right is closed without a
    /// word.
    fn let_in(self: &Arc<Self>, socket: Socket, preamble: Preamble) {
        let known = self.tests.find(preamble.token);
        match (preamble.kind, known) {
            (Kind::Data, Some(test)) => {
                self.attach(test, (preamble.flow, preamble.stream), socket);
            }
            (Kind::Control, Some(test)) => {
                self.control_over_tcp(socket, Some((preamble.token, test)));
            }
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

    /// Whether a datagram comes back: where a secret is needed, nobody's without a test.
    fn admits(&self, token: Token, peer: SocketAddr) -> bool {
        let now = self.clock.now();
        let known = self.tests.find(token);
        if let Some(test) = &known {
            test.sign(now);
        }
        let open = token == Token::NONE && self.config.secret.is_none();
        let bytes = towpath_measure::live::datagram::Datagram::BYTES as u64;
        (open || known.is_some())
            && self.budget.allowed(Source::of_peer(Some(peer))).may_answer(now, bytes)
    }

    /// What the client of a connection cannot see itself.
    fn seen(&self, socket: &Socket) -> Seen {
        match (socket::is_multipath(socket), self.multipath) {
            (true, _) => Seen::Multipath,
            (false, true) => Seen::Plain,
            (false, false) => Seen::Without,
        }
    }

    /// A seat for a connection of the kernel, which is closed if it is needed by others.
    fn enter(&self, socket: &Socket, kept: bool) -> Option<Seat> {
        let other = socket.try_clone().ok()?;
        let close: Close = Box::new(move || {
            let _gone = other.shutdown(std::net::Shutdown::Both);
        });
        self.budget.enter(Source::of_peer(socket::peer(socket)), kept, close)
    }

    fn control_over_tcp(self: &Arc<Self>, socket: Socket, known: Option<(Token, Arc<Test>)>) {
        socket::notice_absence(&socket);
        let attending = known.as_ref().map(|(_, test)| test.attend(self.clock));
        let kept = attending.as_ref().is_some_and(|(_, kept)| *kept);
        let Some(seat) = self.enter(&socket, kept) else { return };
        let open = move |shared: &Self| {
            let port = socket.local_addr().ok().and_then(|own| own.as_socket());
            let port = port.map(|own| own.port());
            let origin =
                Origin { peer: socket::peer(&socket), seen: Some(shared.seen(&socket)), port };
            Ok((Speaker::new(socket, shared.clock)?, origin))
        };
        let token = known.map(|(token, _)| token);
        self.in_a_thread((seat, attending.map(|(attending, _)| attending)), open, token);
    }

    /// Gives a control connection a thread; without one it is closed.
    fn in_a_thread(
        self: &Arc<Self>,
        (seat, attending): (Seat, Option<Attendance>),
        open: impl FnOnce(&Self) -> io::Result<(Speaker, Origin)> + Send + 'static,
        token: Option<Token>,
    ) {
        let shared = Arc::clone(self);
        let _closed_without = budget::start("control", move || {
            if let Ok(opened) = open(&shared) {
                let _connection_lost = shared.control(opened, (&seat, attending), token);
            }
        });
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
        let (Some(Ok(session)), Some(seat)) = (session, self.enter(&socket, false)) else {
            return;
        };
        let clock = self.clock;
        let _closed_without = budget::start("tls", move || {
            test.attach_with_tls(place, socket, session, clock);
            drop(seat);
        });
    }

    /// Gives back what comes, for as long as a test may take.
    fn echo(self: &Arc<Self>, socket: Socket) {
        let Some(seat) = self.enter(&socket, false) else { return };
        let allowed = self.budget.allowed(Source::of_peer(socket::peer(&socket)));
        let shared = Arc::clone(self);
        let _closed_without = budget::start("echo", move || {
            let _connection_lost = shared.echo_all(&socket, &allowed);
            drop(seat);
        });
    }

    fn echo_all(&self, socket: &Socket, allowed: &Allowed) -> io::Result<()> {
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
            allowed.pay(self.clock, Way::In, length as u64);
            io::Write::write_all(&mut plain, room.get(..length).unwrap_or_default())?;
            allowed.pay(self.clock, Way::Out, length as u64);
        }
        Ok(())
    }

    /// One control connection to its end.
    fn control(
        self: &Arc<Self>,
        (mut speaker, origin): (Speaker, Origin),
        (seat, attending): (&Seat, Option<Attendance>),
        token: Option<Token>,
    ) -> io::Result<()> {
        let secret = self.config.secret.clone();
        let quic = self.has_udp(origin.port);
        let datagrams = quic && secret.is_none();
        let control = Control::new(token, secret, Challenge(random()?));
        let control = control.telling(origin.seen, datagrams, quic);
        let source = Source::of_peer(origin.peer);
        let allowed = self.budget.allowed(source);
        let mut visit =
            Visit { control, seat, attending, source, allowed, peer: origin.peer, paid: (0, 0) };
        let result = self.converse(&mut visit, &mut speaker);
        // A test that has begun goes on without its client, who may come back for the result.
        if let Some(token) = visit.control.unbegun() {
            self.tests.forget(token);
        } else if let Some(test) = visit.control.running().and_then(|token| self.tests.find(token))
            && !result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            test.leave();
        }
        drop(visit);
        speaker.close();
        result
    }

    fn converse(self: &Arc<Self>, visit: &mut Visit<'_>, speaker: &mut Speaker) -> io::Result<()> {
        let limits = &self.config.limits;
        let came = self.clock.now();
        let mut heard = came;
        // Whether the client still has to be told that its connections are there.
        let mut announced = false;
        loop {
            visit.pay(self.clock, speaker);
            let waiting = visit.control.unbegun().filter(|_| !announced);
            let message =
                speaker.hear::<FromClient>(if waiting.is_some() { NAP } else { LONG_POLL });
            let message = message?;
            let now = self.clock.now();
            let has_none = visit.attending.is_none();
            if has_none && now.saturating_since(came) > NEWCOMER {
                return Ok(());
            }
            let Some(message) = message else {
                if let Some(test) = waiting.and_then(|token| self.tests.find(token))
                    && test.is_complete(Duration::ZERO)
                {
                    announced = true;
                    speaker.say(&FromServer::Ready)?;
                }
                let silent = now.saturating_since(heard);
                let idle = visit.control.running().is_some_and(|token| self.is_idle(token));
                if silent > visit.control.patience(limits)
                    || (idle && silent > IDLE)
                    || self.closing.load(Ordering::Acquire)
                {
                    return Ok(());
                }
                continue;
            };
            heard = now;
            for act in visit.control.on_message(message, limits) {
                if let Act::Close = act {
                    return Ok(());
                }
                self.act(act, visit, speaker)?;
            }
        }
    }

    fn act(
        self: &Arc<Self>,
        act: Act,
        visit: &mut Visit<'_>,
        speaker: &mut Speaker,
    ) -> io::Result<()> {
        match act {
            Act::Say(message) => speaker.say(&message)?,
            Act::TellTime { client_ns } => {
                let server_ns = self.clock.now().as_nanos();
                speaker.say(&FromServer::Clock { client_ns, server_ns })?;
            }
            Act::Admit(plan) => self.admit(visit, speaker, *plan)?,
            Act::Look(port) => {
                let asker = visit.peer.map(|peer| peer.ip());
                let look = doctor::look(Some(doctor::Question { port, asker }));
                speaker.say(&FromServer::Looked(Box::new(look)))?;
            }
            Act::Begin(token, at_ns) => self.begin(token, at_ns, visit.peer),
            Act::Stop(token) => self.tests.find(token).iter().for_each(|test| test.stop()),
            Act::End(token, at_ns) => {
                let at = Instant::from_nanos(at_ns);
                self.tests.find(token).iter().for_each(|test| test.end_by(at));
            }
            Act::Deliver(token, offset) => self.deliver(visit, speaker, (token, offset))?,
            Act::Forget(token) => {
                self.tests.forget(token);
                self.fetched.store(true, Ordering::Release);
            }
            Act::Close => {}
        }
        Ok(())
    }

    /// Whether nothing happens any more for which a client would keep a connection.
    fn is_idle(&self, token: Token) -> bool {
        self.tests.find(token).is_none_or(|test| test.result(Duration::ZERO).is_some())
    }

    fn admit(
        &self,
        visit: &mut Visit<'_>,
        speaker: &mut Speaker,
        (plan, scenario): (Plan, Scenario),
    ) -> io::Result<()> {
        if is_quic(plan.transport) && self.udp.get().is_none_or(BTreeSet::is_empty) {
            let refusal = Refusal::new(
                format!("it does not speak {}, UDP was not free", plan.transport),
                "use --transport tcp,mptcp",
            );
            speaker.say(&FromServer::from(refusal))?;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let token = Token(random()?);
        match self.place(token, (plan, scenario), visit) {
            Ok(test) => {
                let (attending, _) = test.attend(self.clock);
                visit.attending = Some(attending);
                visit.seat.keep();
                speaker.say(&visit.control.admitted(token))
            }
            Err(refusal) => {
                speaker.say(&FromServer::from(refusal))?;
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    /// A place for a test; one that somebody has to give up first is waited for.
    fn place(
        &self,
        token: Token,
        (mut plan, scenario): (Plan, Scenario),
        visit: &Visit<'_>,
    ) -> Result<Arc<Test>, Refusal> {
        let limits = &self.config.limits;
        if let Some(rate) = limits.rate {
            // What the kernel takes in beyond what is read would have moved, too.
            let most = rate.bytes_in(BUFFERED).clamp(LEAST_BUFFER, u32::MAX.into()) as u32;
            let asked = plan.settings.window_bytes.unwrap_or(most);
            plan.settings.window_bytes = Some(asked.min(most));
        }
        let deadline = self.clock.now() + CLEARING;
        loop {
            let now = self.clock.now();
            let whole = (plan.clone(), scenario.clone());
            let owner = (visit.source, visit.allowed.all.clone());
            if let Some(test) = self.tests.admit(token, whole, owner, (limits, now))? {
                return Ok(test);
            }
            if now > deadline {
                return Err(Refusal::new("it is busy", "try again later"));
            }
            self.clock.sleep_until(now + NAP);
        }
    }

    fn begin(self: &Arc<Self>, token: Token, at_ns: u64, client: Option<SocketAddr>) {
        let Some(test) = self.tests.find(token) else { return };
        let now = self.clock.now();
        let zero = Instant::from_nanos(at_ns).max(now).min(now + LATEST_BEGIN);
        let pace = Arc::new(Pace::new(self.clock, zero).paid(Arc::clone(&test.purse)));
        let Some(streams) = test.start(&pace) else { return };
        let flows = test.scenario.flows.iter();
        let patterns = flows.map(|flow| flow.pattern.name()).collect();
        self.tell(ServerSaid::Begun { client, transport: test.plan.transport, patterns });
        let course = Course::new(self, test, client);
        // Without a thread it ends at once, and the client hears why.
        let _ended_without = budget::start("test", move || course.run(&pace, streams));
    }

    fn deliver(
        &self,
        visit: &mut Visit<'_>,
        speaker: &mut Speaker,
        (token, offset): (Token, u64),
    ) -> io::Result<()> {
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
            visit.pay(self.clock, speaker);
            place += length;
            if place >= result.len() {
                return Ok(());
            }
        }
    }
}

/// A control connection while it is there.
struct Visit<'a> {
    control: Control,
    seat: &'a Seat,
    /// Of which test it is, once it has one.
    attending: Option<Attendance>,
    source: Source,
    allowed: Arc<Allowed>,
    peer: Option<SocketAddr>,
    /// Bytes that were read and written before.
    paid: (u64, u64),
}

impl Visit<'_> {
    /// Pays for what was said since the last time.
    fn pay(&mut self, clock: Clock, speaker: &Speaker) {
        let (read, written) = speaker.moved_bytes();
        let (read_before, written_before) = self.paid;
        self.paid = (read, written);
        self.allowed.pay(clock, Way::In, read - read_before);
        self.allowed.pay(clock, Way::Out, written - written_before);
    }
}
