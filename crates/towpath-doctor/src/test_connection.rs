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
use towpath_kernel::sample;
use towpath_kernel::sample::ConnectionSample;
use towpath_kernel::sample::is_multipath;
use towpath_live::protocol::Secret;
use towpath_net::Instant;
use towpath_netlink::MptcpEvents;
use towpath_os::clock::Clock;

use super::attempt::{self, CONNECT_TIMEOUT, ConnectOptions};
use super::connection_watch::ConnectionWatch;
use super::echo::EchoTest;
use super::observation::ServerKind;
use super::observation::{ConnectAttempt, ConnectOutcome, TestConnection};
use super::server_kind;
use super::server_session::{self, PeerKind, ServerSession};

/// Time that plain TCP is tested alone, long enough for its second SYN, which leaves after 1 s.
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
/// Time between two polls without path manager events: short-lived subflows are visible only in a
/// poll.
const FAST_POLL_INTERVAL: Duration = Duration::from_millis(4);

/// Result of the test connection.
#[derive(Debug)]
pub(super) struct TestOutcome {
    pub(super) trial: TestConnection,
    /// Control session with the server, if it is a towpath server.
    pub(super) session: Option<ServerSession>,
    /// Reason for the missing session.
    pub(super) other_server_reason: Option<String>,
    /// Multipath TCP connection, which stays open until the server's last snapshot.
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

/// Connects, sends and monitors until about `deadline`. If plain TCP connects in time, calls
/// `on_session` before any data are sent over Multipath TCP.
pub(super) fn run(
    test_target: TestTarget<'_>,
    (clock, deadline): (Clock, Instant),
    on_session: impl FnOnce(&mut ServerSession),
) -> TestOutcome {
    let target = test_target.target;
    let events = MptcpEvents::open().ok();
    let mut outcome = TestOutcome {
        trial: TestConnection::new(target),
        session: None,
        other_server_reason: None,
        socket: None,
    };
    let multipath = thread::scope(|scope| {
        let connect = |options: ConnectOptions, results_tx: mpsc::Sender<AttemptResult>| {
            scope.spawn(move || {
                // The receiver may be gone.
                let _ = results_tx.send(attempt::connect(target, &options, clock));
            });
        };
        let (results_tx, results_rx) = mpsc::channel();
        let mut attempts = AttemptSet::default();
        connect(ConnectOptions::tcp(), results_tx.clone());
        attempts.collect(&results_rx, TCP_HEAD_START, true);
        if let Some(plain) = attempts.plain.take() {
            identify_server(&mut outcome, &plain, test_target, clock, on_session);
        }
        connect(ConnectOptions::mptcp(), results_tx.clone());
        attempts.collect(&results_rx, RETRY_AFTER, true);
        if attempts.is_doubtful() {
            let timeout = CONNECT_TIMEOUT.saturating_sub(RETRY_AFTER);
            for options in [
                ConnectOptions::tcp(),
                ConnectOptions::mptcp(),
                ConnectOptions::tcp(),
                ConnectOptions::mptcp(),
            ] {
                connect(ConnectOptions { timeout, ..options }, results_tx.clone());
            }
        }
        drop(results_tx);
        attempts.collect(&results_rx, CONNECT_TIMEOUT.saturating_add(RETRY_AFTER), false);
        outcome.trial.attempts = attempts.attempts;
        attempts.multipath
    });
    if let Some(socket) = multipath {
        monitor(&mut outcome.trial, &socket, (events, test_target.server_name), (clock, deadline));
        outcome.socket = Some(socket);
    }
    outcome
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
    /// Collects results of attempts until the time is over or all have ended; with `only_next`,
    /// one result.
    fn collect(
        &mut self,
        results: &mpsc::Receiver<AttemptResult>,
        timeout: Duration,
        only_next: bool,
    ) {
        let clock = Clock::start();
        let deadline = clock.now() + timeout;
        loop {
            let remaining = deadline.saturating_since(clock.now());
            let Ok((attempt, socket)) = results.recv_timeout(remaining) else { return };
            let slot = if attempt.multipath { &mut self.multipath } else { &mut self.plain };
            if slot.is_none() {
                *slot = socket;
            }
            self.attempts.push(attempt);
            if only_next {
                return;
            }
        }
    }

    /// Returns true if plain TCP has connected and no Multipath TCP attempt has ended.
    fn is_doubtful(&self) -> bool {
        let is_plain_success = |attempt: &ConnectAttempt| {
            !attempt.multipath && attempt.outcome == ConnectOutcome::Connected
        };
        self.attempts.iter().any(is_plain_success)
            && !self.attempts.iter().any(|attempt| attempt.multipath)
    }
}

/// Identifies the server over the plain TCP connection.
fn identify_server(
    outcome: &mut TestOutcome,
    socket: &Socket,
    test_target: TestTarget<'_>,
    clock: Clock,
    on_session: impl FnOnce(&mut ServerSession),
) {
    match server_session::identify_peer(
        socket,
        test_target.target.port(),
        test_target.secret,
        clock,
    ) {
        PeerKind::Server(mut session) => {
            on_session(&mut session);
            outcome.trial.server = ServerKind::Towpath;
            (outcome.trial.is_towpath, outcome.trial.echoes) = (true, session.echoes);
            outcome.session = Some(session);
        }
        PeerKind::Echo { changed_at } => {
            (outcome.trial.echoes, outcome.trial.plain_changed_at) = (true, changed_at);
            outcome.trial.server = ServerKind::Echo;
        }
        PeerKind::Other { reason, first_bytes } => {
            outcome.trial.server = match first_bytes {
                Some(first_bytes) => server_kind::identify(
                    &first_bytes,
                    test_target.target,
                    test_target.server_name,
                    clock,
                ),
                None => ServerKind::Towpath,
            };
            outcome.other_server_reason = Some(match outcome.trial.server {
                ServerKind::Towpath | ServerKind::Echo | ServerKind::Unknown => reason,
                ServerKind::Web
                | ServerKind::Tls
                | ServerKind::Ssh
                | ServerKind::Mail
                | ServerKind::ClosesOnData => format!("it is {}", outcome.trial.server.name()),
            });
        }
    }
}

/// Monitors the connection while data go over it.
fn monitor(
    trial: &mut TestConnection,
    socket: &Socket,
    (events, server_name): (Option<MptcpEvents>, &str),
    (clock, deadline): (Clock, Instant),
) {
    trial.multipath = is_multipath(socket);
    let token = match sample::connection(socket, true) {
        Ok(ConnectionSample::Multipath(info, _)) => info.token,
        Ok(ConnectionSample::Single(..)) | Err(_) => 0,
    };
    let mut watch = ConnectionWatch::new(token, events, clock);
    let mut echo_test = EchoTest::new(clock);
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    let _ = socket.set_tcp_nodelay(true); // best effort
    if trial.is_towpath || !trial.echoes {
        let message = if trial.echoes {
            server_session::echo_preamble().to_vec()
        } else {
            trial.server.hello(server_name)
        };
        let mut writer = socket;
        let _ = std::io::Write::write(&mut writer, &message); // an error also ends the echo test
    }
    wait_for_subflows(trial, socket, &mut watch, &mut echo_test, (clock, deadline));
    if trial.echoes && !echo_test.has_ended() {
        let data_deadline =
            deadline.min(clock.now() + DATA_TIMEOUT).max(clock.now() + MIN_DATA_TIME);
        while clock.now() < data_deadline && !echo_test.has_ended() {
            poll_once(&mut watch, &mut echo_test, socket, DATA_BYTES, clock);
            if echo_test.sent() >= DATA_BYTES && echo_test.all_echoed() {
                break;
            }
        }
        let ack_deadline = deadline.max(clock.now()).min(clock.now() + ACK_TIMEOUT);
        while clock.now() < ack_deadline && watch.has_unacked_data() && !echo_test.has_ended() {
            let sent = echo_test.sent();
            poll_once(&mut watch, &mut echo_test, socket, sent, clock);
        }
    }
    let subflow_count = match sample::connection(socket, true) {
        Ok(ConnectionSample::Multipath(_, subflows)) => subflows.len(),
        Ok(ConnectionSample::Single(..)) | Err(_) => 1,
    };
    let burst =
        if trial.echoes { Vec::new() } else { trial.server.burst(server_name, subflow_count) };
    if !burst.is_empty() {
        send_data(&burst, socket, &mut watch, &mut echo_test, (clock, deadline));
    }
    trial.multipath_at_end = is_multipath(socket);
    trial.closed_by_peer = echo_test.has_ended();
    let exchange = echo_test.result();
    trial.exchange = trial.echoes.then_some(exchange);
    (trial.subflows, trial.events) = watch.finish();
}

/// Waits until no more subflows are expected. Linux opens them only after an acknowledgement of
/// data, so every server gets a few bytes. A server other than towpath recognises the first bytes
/// as foreign.
fn wait_for_subflows(
    trial: &TestConnection,
    socket: &Socket,
    watch: &mut ConnectionWatch,
    echo_test: &mut EchoTest,
    (clock, deadline): (Clock, Instant),
) {
    const FIRST_BYTES: u64 = 64;
    let started = clock.now();
    let echo_bytes = if trial.echoes { FIRST_BYTES } else { 0 };
    loop {
        poll_once(watch, echo_test, socket, echo_bytes, clock);
        let now = clock.now();
        let quiet_period = QUIET_PERIOD.max(Duration::from_micros(u64::from(watch.srtt_us()) * 4));
        let settled =
            now.saturating_since(watch.last_change()) > quiet_period && !watch.is_connecting();
        let timed_out = now >= deadline || now.saturating_since(started) > SUBFLOW_SETUP_TIMEOUT;
        if timed_out || echo_test.has_ended() || (settled && echo_test.all_echoed()) {
            return;
        }
    }
}

/// Sends data to a server that does not echo them, until they are acknowledged; discards its
/// replies.
fn send_data(
    mut data: &[u8],
    mut socket: &Socket,
    watch: &mut ConnectionWatch,
    echo_test: &mut EchoTest,
    (clock, end): (Clock, Instant),
) {
    let deadline = end.max(clock.now()).min(clock.now() + DATA_TIMEOUT);
    while clock.now() < deadline && !echo_test.has_ended() {
        let written = std::io::Write::write(&mut socket, data).unwrap_or(0);
        data = data.get(written..).unwrap_or_default();
        poll_once(watch, echo_test, socket, 0, clock);
        if data.is_empty() && !watch.has_unacked_data() {
            return;
        }
    }
}

/// Exchanges data for one interval, up to `max_sent_bytes` in all, then polls the subflows.
fn poll_once(
    watch: &mut ConnectionWatch,
    echo_test: &mut EchoTest,
    socket: &Socket,
    max_sent_bytes: u64,
    clock: Clock,
) {
    let end = clock.now() + if watch.has_events() { POLL_INTERVAL } else { FAST_POLL_INTERVAL };
    loop {
        echo_test.step(socket, max_sent_bytes);
        let remaining = end.saturating_since(clock.now());
        if remaining.is_zero() || echo_test.has_ended() {
            break;
        }
        let wants_write = echo_test.sent() < max_sent_bytes;
        if echo_test.all_echoed() && !wants_write {
            clock.sleep_until(end);
            break;
        }
        let _ = attempt::wait_until_ready(socket, wants_write, remaining); // the loop checks again
    }
    watch.poll();
}
