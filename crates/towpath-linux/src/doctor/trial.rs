//! A connection of our own: what really happens.
//!
//! Plain TCP and Multipath TCP begin at the same time, so that the one is the control of the other.
//! What the server gives back is sent over the Multipath TCP connection; then, where a path has
//! trouble, plain TCP is tried over that path alone.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::Secret;
use towpath_net::Instant;

use super::attempt::{self, CONNECT_TIMEOUT, ConnectOptions};
use super::exchange::EchoTest;
use super::observation::{ConnectAttempt, ConnectOutcome, TestConnection};
use super::server::{self, ServerKind};
use super::session::{self, PeerKind, ServerSession};
use super::watch::ConnectionWatch;
use crate::clock::Clock;
use crate::live::socket::is_multipath;
use crate::netlink::MptcpEvents;
use crate::sample::{self, ConnectionSample};

/// So long plain TCP has the word alone: a second SYN leaves after a second.
const TCP_HEAD_START: Duration = Duration::from_millis(1_150);
/// A SYN that is not answered by then is in doubt, and others are sent.
const RETRY_AFTER: Duration = Duration::from_millis(450);
/// How long subflows may take to be set up: longer than the first repetition of a SYN, and than a
/// router takes to say that it does not find the next one.
const SUBFLOW_SETUP_TIMEOUT: Duration = Duration::from_millis(1_350);
/// Nothing new for so long means that nothing more comes, if nothing is under way.
const QUIET_PERIOD: Duration = Duration::from_millis(250);
/// Data, and the time for it.
const DATA_BYTES: u64 = 1 << 20;
const DATA_TIMEOUT: Duration = Duration::from_millis(700);
const MIN_DATA_TIME: Duration = Duration::from_millis(300);
/// Longer than a retransmission timeout: what is not acknowledged by then is lost.
const ACK_TIMEOUT: Duration = Duration::from_millis(550);
/// How often subflows are looked at.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// Where no event tells of a subflow that is closed at once, it has to be seen.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(4);

/// What came of it.
#[derive(Debug)]
pub(super) struct TestOutcome {
    pub(super) trial: TestConnection,
    /// The conversation with the server, if it is one of ours.
    pub(super) session: Option<ServerSession>,
    /// Why it is not.
    pub(super) other_server_reason: Option<String>,
    /// The connection itself, which stays open for as long as the server is asked about it.
    pub(super) socket: Option<Socket>,
}

/// To whom the connection goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestTarget<'a> {
    pub(super) target: SocketAddr,
    /// How it is called; servers of several names want to hear it.
    pub(super) server_name: &'a str,
    pub(super) secret: Option<&'a Secret>,
}

/// Connects, sends, watches, until about `until`. `on_session` is called before anything is sent over
/// Multipath TCP, if plain TCP gets through in time.
pub(super) fn run(
    whom: TestTarget<'_>,
    (clock, until): (Clock, Instant),
    on_session: impl FnOnce(&mut ServerSession),
) -> TestOutcome {
    let target = whom.target;
    let events = MptcpEvents::open().ok();
    let mut done = TestOutcome {
        trial: TestConnection::new(target),
        session: None,
        other_server_reason: None,
        socket: None,
    };
    let multipath = thread::scope(|scope| {
        let connect = |manner: ConnectOptions, tell: mpsc::Sender<AttemptResult>| {
            scope.spawn(move || {
                // The receiver may be gone.
                let _ = tell.send(attempt::connect(target, &manner, clock));
            });
        };
        let (tell, told) = mpsc::channel();
        let mut met = AttemptSet::default();
        connect(ConnectOptions::tcp(), tell.clone());
        met.collect(&told, TCP_HEAD_START, true);
        if let Some(plain) = met.plain.take() {
            identify_server(&mut done, &plain, whom, clock, on_session);
        }
        connect(ConnectOptions::mptcp(), tell.clone());
        met.collect(&told, RETRY_AFTER, true);
        if met.is_doubtful() {
            let patience = CONNECT_TIMEOUT.saturating_sub(RETRY_AFTER);
            for manner in [
                ConnectOptions::tcp(),
                ConnectOptions::mptcp(),
                ConnectOptions::tcp(),
                ConnectOptions::mptcp(),
            ] {
                connect(ConnectOptions { timeout: patience, ..manner }, tell.clone());
            }
        }
        drop(tell);
        met.collect(&told, CONNECT_TIMEOUT.saturating_add(RETRY_AFTER), false);
        done.trial.attempts = met.attempts;
        met.multipath
    });
    if let Some(socket) = multipath {
        monitor(&mut done.trial, &socket, (events, whom.server_name), (clock, until));
        done.socket = Some(socket);
    }
    done
}

/// An attempt, and the connection if it became one.
type AttemptResult = (ConnectAttempt, Option<Socket>);

/// Attempts that have come to an end.
#[derive(Debug, Default)]
struct AttemptSet {
    attempts: Vec<ConnectAttempt>,
    plain: Option<Socket>,
    multipath: Option<Socket>,
}

impl AttemptSet {
    /// Hears of attempts until the time is over and all have ended, or only the next one.
    fn collect(&mut self, told: &mpsc::Receiver<AttemptResult>, patience: Duration, next: bool) {
        let clock = Clock::start();
        let deadline = clock.now() + patience;
        loop {
            let left = deadline.saturating_since(clock.now());
            let Ok((attempt, socket)) = told.recv_timeout(left) else { return };
            let slot = if attempt.multipath { &mut self.multipath } else { &mut self.plain };
            if slot.is_none() {
                *slot = socket;
            }
            self.attempts.push(attempt);
            if next {
                return;
            }
        }
    }

    /// Whether plain TCP was answered and Multipath TCP was not, yet.
    fn is_doubtful(&self) -> bool {
        let plain =
            |one: &ConnectAttempt| !one.multipath && one.outcome == ConnectOutcome::Connected;
        self.attempts.iter().any(plain) && !self.attempts.iter().any(|one| one.multipath)
    }
}

/// Finds out who answers.
fn identify_server(
    done: &mut TestOutcome,
    plain: &Socket,
    whom: TestTarget<'_>,
    clock: Clock,
    on_session: impl FnOnce(&mut ServerSession),
) {
    match session::identify_peer(plain, whom.target.port(), whom.secret, clock) {
        PeerKind::Server(mut session) => {
            on_session(&mut session);
            done.trial.server = ServerKind::Towpath;
            (done.trial.is_towpath, done.trial.echoes) = (true, session.echoes);
            done.session = Some(session);
        }
        PeerKind::Echo { changed_at } => {
            (done.trial.echoes, done.trial.plain_changed_at) = (true, changed_at);
            done.trial.server = ServerKind::Echo;
        }
        PeerKind::Other { why, first_bytes: came } => {
            done.trial.server = match came {
                Some(came) => server::identify(&came, whom.target, whom.server_name, clock),
                None => ServerKind::Towpath,
            };
            done.other_server_reason = Some(match done.trial.server {
                ServerKind::Towpath | ServerKind::Echo | ServerKind::Unknown => why,
                ServerKind::Web
                | ServerKind::Tls
                | ServerKind::Ssh
                | ServerKind::Mail
                | ServerKind::ClosesOnData => format!("it is {}", done.trial.server.name()),
            });
        }
    }
}

/// Watches the connection while data goes over it.
fn monitor(
    trial: &mut TestConnection,
    socket: &Socket,
    (events, name): (Option<MptcpEvents>, &str),
    (clock, until): (Clock, Instant),
) {
    trial.multipath = is_multipath(socket);
    let token = match sample::connection(socket, true) {
        Ok(ConnectionSample::Multipath(info, _)) => info.token,
        Ok(ConnectionSample::Single(..)) | Err(_) => 0,
    };
    let mut watch = ConnectionWatch::new(token, events, clock);
    let mut exchanging = EchoTest::new(clock);
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    let _ = socket.set_tcp_nodelay(true); // best effort
    if trial.is_towpath || !trial.echoes {
        let word = if trial.echoes { session::echo().to_vec() } else { trial.server.hello(name) };
        let mut writer = socket;
        let _ = std::io::Write::write(&mut writer, &word); // errors show up below
    }
    wait_for_subflows(trial, socket, &mut watch, &mut exchanging, (clock, until));
    if trial.echoes && !exchanging.has_ended() {
        let deadline = until.min(clock.now() + DATA_TIMEOUT).max(clock.now() + MIN_DATA_TIME);
        while clock.now() < deadline && !exchanging.has_ended() {
            poll_once(&mut watch, &mut exchanging, socket, DATA_BYTES, clock);
            if exchanging.sent() >= DATA_BYTES && exchanging.all_echoed() {
                break;
            }
        }
        let deadline = until.max(clock.now()).min(clock.now() + ACK_TIMEOUT);
        while clock.now() < deadline && watch.is_waiting() && !exchanging.has_ended() {
            let sent = exchanging.sent();
            poll_once(&mut watch, &mut exchanging, socket, sent, clock);
        }
    }
    let burst = if trial.echoes { Vec::new() } else { trial.server.burst(name) };
    if !burst.is_empty() {
        send(&burst, socket, &mut watch, &mut exchanging, (clock, until));
    }
    trial.multipath_at_end = is_multipath(socket);
    trial.closed_by_peer = exchanging.has_ended();
    let exchange = exchanging.result();
    trial.exchange = trial.echoes.then_some(exchange);
    (trial.subflows, trial.events) = watch.end();
}

/// Waits until no more subflows are to be expected. Linux opens them only after data was
/// acknowledged, so some is sent to everybody; whoever is no towpath server sees at the first bytes
/// that they are not for it.
fn wait_for_subflows(
    trial: &TestConnection,
    socket: &Socket,
    watch: &mut ConnectionWatch,
    exchanging: &mut EchoTest,
    (clock, until): (Clock, Instant),
) {
    const FIRST_BYTES: u64 = 64;
    let began = clock.now();
    let limit = if trial.echoes { FIRST_BYTES } else { 0 };
    loop {
        poll_once(watch, exchanging, socket, limit, clock);
        let now = clock.now();
        let quiet = QUIET_PERIOD.max(Duration::from_micros(u64::from(watch.srtt_us()) * 4));
        let settled = now.saturating_since(watch.changed()) > quiet && !watch.is_trying();
        let over = now >= until || now.saturating_since(began) > SUBFLOW_SETUP_TIMEOUT;
        if over || exchanging.has_ended() || (settled && exchanging.all_echoed()) {
            return;
        }
    }
}

/// Sends words to a server that does not give them back, until they have arrived; what it answers is
/// thrown away.
fn send(
    mut words: &[u8],
    mut socket: &Socket,
    watch: &mut ConnectionWatch,
    exchanging: &mut EchoTest,
    (clock, until): (Clock, Instant),
) {
    let deadline = until.max(clock.now()).min(clock.now() + DATA_TIMEOUT);
    while clock.now() < deadline && !exchanging.has_ended() {
        let written = std::io::Write::write(&mut socket, words).unwrap_or(0);
        words = words.get(written..).unwrap_or_default();
        poll_once(watch, exchanging, socket, 0, clock);
        if words.is_empty() && !watch.is_waiting() {
            return;
        }
    }
}

/// Moves data and looks, once in a step.
fn poll_once(
    watch: &mut ConnectionWatch,
    exchanging: &mut EchoTest,
    socket: &Socket,
    limit: u64,
    clock: Clock,
) {
    let end = clock.now() + if watch.has_events() { POLL_INTERVAL } else { FAST_POLL_INTERVAL };
    loop {
        exchanging.step(socket, limit);
        let left = end.saturating_since(clock.now());
        if left.is_zero() || exchanging.has_ended() {
            break;
        }
        let writing = exchanging.sent() < limit;
        if exchanging.all_echoed() && !writing {
            clock.sleep_until(end);
            break;
        }
        let _ = attempt::wait(socket, writing, left); // the loop checks again
    }
    watch.poll();
}
