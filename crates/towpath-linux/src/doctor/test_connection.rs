//! Test connection: opens our own connection and records its behaviour.
//!
//! Plain TCP connects first, and then Multipath TCP, so that one is the control of the other. If
//! the server echoes data, they are sent over the Multipath TCP connection. Then plain TCP is
//! tested over each single path.

use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::Secret;
use towpath_net::Instant;

use super::attempt::{self, CONNECT_TIMEOUT, ConnectOptions};
use super::connection_watch::ConnectionWatch;
use super::echo::EchoTest;
use super::observation::{ConnectAttempt, ConnectOutcome, TestConnection};
use super::server_kind::{self, ServerKind};
use super::server_session::{self, PeerKind, ServerSession};
use crate::clock::Clock;
use crate::live::socket::is_multipath;
use crate::netlink::MptcpEvents;
use crate::sample::{self, ConnectionSample};

/// Time that plain TCP is tested alone; its second SYN leaves after a second.
const TCP_HEAD_START: Duration = Duration::from_millis(1_150);
/// Delay before the extra attempts, if a SYN is not answered.
const RETRY_AFTER: Duration = Duration::from_millis(450);
/// Time limit for the setup of subflows. Longer than the first SYN retransmission, and than a
/// router needs to report a failed neighbour lookup.
const SUBFLOW_SETUP_TIMEOUT: Duration = Duration::from_millis(1_350);
/// Time without changes after which no more subflows are expected, if none is being set up.
const QUIET_PERIOD: Duration = Duration::from_millis(250);
/// Bytes of the echo test, and its time limits.
const DATA_BYTES: u64 = 1 << 20;
const DATA_TIMEOUT: Duration = Duration::from_millis(700);
const MIN_DATA_TIME: Duration = Duration::from_millis(300);
/// Timeout of the last acknowledgements: longer than a retransmission timeout.
const ACK_TIMEOUT: Duration = Duration::from_millis(550);
/// Time between two polls of the subflows.
const POLL_INTERVAL: Duration = Duration::from_millis(40);
/// The same without path manager events: short-lived subflows are visible only in a poll.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(4);

/// Result of the test connection.
#[derive(Debug)]
pub(super) struct TestOutcome {
    pub(super) trial: TestConnection,
    /// Control session with the server, if it is a towpath server.
    pub(super) session: Option<ServerSession>,
    /// Reason for the missing session.
    pub(super) other_server_reason: Option<String>,
    /// Multipath TCP connection, which stays open until the last snapshot of the server.
    pub(super) socket: Option<Socket>,
}

/// Target of the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct TestTarget<'a> {
    pub(super) target: SocketAddr,
    /// Host name of the server; sent to virtual hosts.
    pub(super) server_name: &'a str,
    pub(super) secret: Option<&'a Secret>,
}

/// Connects, sends and monitors until about `until`. If plain TCP connects in time, calls
/// `on_session` before any data are sent over Multipath TCP.
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

/// Result of an attempt, with its socket if it connected.
type AttemptResult = (ConnectAttempt, Option<Socket>);

/// Completed attempts and their connections.
#[derive(Debug, Default)]
struct AttemptSet {
    attempts: Vec<ConnectAttempt>,
    plain: Option<Socket>,
    multipath: Option<Socket>,
}

impl AttemptSet {
    /// Collects results of attempts until the time is over or all have ended; with `next`, only
    /// one.
    fn collect(&mut self, results: &mpsc::Receiver<AttemptResult>, timeout: Duration, next: bool) {
        let clock = Clock::start();
        let deadline = clock.now() + timeout;
        loop {
            let left = deadline.saturating_since(clock.now());
            let Ok((attempt, socket)) = results.recv_timeout(left) else { return };
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

    /// Returns true if plain TCP has connected and no Multipath TCP attempt has ended.
    fn is_doubtful(&self) -> bool {
        let plain =
            |one: &ConnectAttempt| !one.multipath && one.outcome == ConnectOutcome::Connected;
        self.attempts.iter().any(plain) && !self.attempts.iter().any(|one| one.multipath)
    }
}

/// Identifies the server over the plain TCP connection.
fn identify_server(
    done: &mut TestOutcome,
    plain: &Socket,
    whom: TestTarget<'_>,
    clock: Clock,
    on_session: impl FnOnce(&mut ServerSession),
) {
    match server_session::identify_peer(plain, whom.target.port(), whom.secret, clock) {
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
                Some(came) => server_kind::identify(&came, whom.target, whom.server_name, clock),
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

/// Monitors the connection while data go over it.
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
        let word =
            if trial.echoes { server_session::echo().to_vec() } else { trial.server.hello(name) };
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

/// Waits until no more subflows are expected. Linux opens them only after an acknowledgement of
/// data, so every server gets a few bytes. A server other than towpath recognises the first bytes
/// as foreign.
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

/// Sends data to a server that does not echo them, until they are acknowledged; discards its
/// replies.
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

/// Exchanges data for one interval, then polls the subflows.
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
