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

use super::attempt::{self, Manner, PATIENCE};
use super::exchange::Exchanging;
use super::observation::{Attempt, Outcome, Trial};
use super::server::{self, ServerKind};
use super::session::{self, Greeted, Session};
use super::watch::Watch;
use crate::clock::Clock;
use crate::live::socket::is_multipath;
use crate::netlink::MptcpEvents;
use crate::sample::{self, Connection};

/// So long plain TCP has the word alone: a second SYN leaves after a second.
const FIRST: Duration = Duration::from_millis(1_150);
/// A SYN that is not answered by then is in doubt, and others are sent.
const DOUBT: Duration = Duration::from_millis(450);
/// How long subflows may take to be set up: longer than the first repetition of a SYN, and than a
/// router takes to say that it does not find the next one.
const SETTLING: Duration = Duration::from_millis(1_350);
/// Nothing new for so long means that nothing more comes, if nothing is under way.
const QUIET: Duration = Duration::from_millis(250);
/// Data, and the time for it.
const DATA_BYTES: u64 = 1 << 20;
const DATA_TIME: Duration = Duration::from_millis(700);
const DATA_TIME_AT_LEAST: Duration = Duration::from_millis(300);
/// Longer than a retransmission timeout: what is not acknowledged by then is lost.
const ACKNOWLEDGING: Duration = Duration::from_millis(550);
/// How often subflows are looked at.
const STEP: Duration = Duration::from_millis(40);
/// Where no event tells of a subflow that is closed at once, it has to be seen.
const SHORT_STEP: Duration = Duration::from_millis(4);

/// What came of it.
#[derive(Debug)]
pub(super) struct Done {
    pub(super) trial: Trial,
    /// The conversation with the server, if it is one of ours.
    pub(super) session: Option<Session>,
    /// Why it is not.
    pub(super) stranger: Option<String>,
    /// The connection itself, which stays open for as long as the server is asked about it.
    pub(super) socket: Option<Socket>,
}

/// To whom the connection goes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Whom<'a> {
    pub(super) target: SocketAddr,
    /// How it is called; servers of several names want to hear it.
    pub(super) name: &'a str,
    pub(super) secret: Option<&'a Secret>,
}

/// Connects, sends, watches, until about `until`. `on_session` is called before anything is sent over
/// Multipath TCP, if plain TCP gets through in time.
pub(super) fn run(
    whom: Whom<'_>,
    (clock, until): (Clock, Instant),
    on_session: impl FnOnce(&mut Session),
) -> Done {
    let target = whom.target;
    let events = MptcpEvents::open().ok();
    let mut done = Done { trial: Trial::new(target), session: None, stranger: None, socket: None };
    let multipath = thread::scope(|scope| {
        let connect = |manner: Manner, tell: mpsc::Sender<Tried>| {
            scope.spawn(move || {
                // The receiver may be gone.
                let _ = tell.send(attempt::connect(target, &manner, clock));
            });
        };
        let (tell, told) = mpsc::channel();
        let mut met = Met::default();
        connect(Manner::tcp(), tell.clone());
        met.hear(&told, FIRST, true);
        if let Some(plain) = met.plain.take() {
            greet(&mut done, &plain, whom, clock, on_session);
        }
        connect(Manner::mptcp(), tell.clone());
        met.hear(&told, DOUBT, true);
        if met.is_doubtful() {
            let patience = PATIENCE.saturating_sub(DOUBT);
            for manner in [Manner::tcp(), Manner::mptcp(), Manner::tcp(), Manner::mptcp()] {
                connect(Manner { patience, ..manner }, tell.clone());
            }
        }
        drop(tell);
        met.hear(&told, PATIENCE.saturating_add(DOUBT), false);
        done.trial.attempts = met.attempts;
        met.multipath
    });
    if let Some(socket) = multipath {
        follow(&mut done.trial, &socket, (events, whom.name), (clock, until));
        done.socket = Some(socket);
    }
    done
}

/// An attempt, and the connection if it became one.
type Tried = (Attempt, Option<Socket>);

/// Attempts that have come to an end.
#[derive(Debug, Default)]
struct Met {
    attempts: Vec<Attempt>,
    plain: Option<Socket>,
    multipath: Option<Socket>,
}

impl Met {
    /// Hears of attempts until the time is over and all have ended, or only the next one.
    fn hear(&mut self, told: &mpsc::Receiver<Tried>, patience: Duration, next: bool) {
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
        let plain = |one: &Attempt| !one.multipath && one.outcome == Outcome::Connected;
        self.attempts.iter().any(plain) && !self.attempts.iter().any(|one| one.multipath)
    }
}

/// Finds out who answers.
fn greet(
    done: &mut Done,
    plain: &Socket,
    whom: Whom<'_>,
    clock: Clock,
    on_session: impl FnOnce(&mut Session),
) {
    match session::greet(plain, whom.target.port(), whom.secret, clock) {
        Greeted::Server(mut session) => {
            on_session(&mut session);
            done.trial.server = ServerKind::Towpath;
            (done.trial.is_towpath, done.trial.echoes) = (true, session.echoes);
            done.session = Some(session);
        }
        Greeted::Echo { changed_at } => {
            (done.trial.echoes, done.trial.plain_changed_at) = (true, changed_at);
            done.trial.server = ServerKind::Echo;
        }
        Greeted::Stranger { why, came } => {
            done.trial.server = match came {
                Some(came) => server::identify(&came, whom.target, whom.name, clock),
                None => ServerKind::Towpath,
            };
            done.stranger = Some(match done.trial.server {
                ServerKind::Towpath | ServerKind::Echo | ServerKind::Unknown => why,
                ServerKind::Web
                | ServerKind::Tls
                | ServerKind::Ssh
                | ServerKind::Mail
                | ServerKind::HangsUp => format!("it is {}", done.trial.server.name()),
            });
        }
    }
}

/// Watches the connection while data goes over it.
fn follow(
    trial: &mut Trial,
    socket: &Socket,
    (events, name): (Option<MptcpEvents>, &str),
    (clock, until): (Clock, Instant),
) {
    trial.multipath = is_multipath(socket);
    let token = match sample::connection(socket, true) {
        Ok(Connection::Multipath(info, _)) => info.token,
        Ok(Connection::Single(..)) | Err(_) => 0,
    };
    let mut watch = Watch::new(token, events, clock);
    let mut exchanging = Exchanging::new(clock);
    if socket.set_nonblocking(true).is_err() {
        return;
    }
    let _ = socket.set_tcp_nodelay(true); // best effort
    if trial.is_towpath || !trial.echoes {
        let word = if trial.echoes { session::echo().to_vec() } else { trial.server.hello(name) };
        let mut writer = socket;
        let _ = std::io::Write::write(&mut writer, &word); // errors show up below
    }
    settle(trial, socket, &mut watch, &mut exchanging, (clock, until));
    if trial.echoes && !exchanging.has_ended() {
        let deadline = until.min(clock.now() + DATA_TIME).max(clock.now() + DATA_TIME_AT_LEAST);
        while clock.now() < deadline && !exchanging.has_ended() {
            turn(&mut watch, &mut exchanging, socket, DATA_BYTES, clock);
            if exchanging.sent() >= DATA_BYTES && exchanging.is_even() {
                break;
            }
        }
        let deadline = until.max(clock.now()).min(clock.now() + ACKNOWLEDGING);
        while clock.now() < deadline && watch.is_waiting() && !exchanging.has_ended() {
            let sent = exchanging.sent();
            turn(&mut watch, &mut exchanging, socket, sent, clock);
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
fn settle(
    trial: &Trial,
    socket: &Socket,
    watch: &mut Watch,
    exchanging: &mut Exchanging,
    (clock, until): (Clock, Instant),
) {
    const FIRST_BYTES: u64 = 64;
    let began = clock.now();
    let limit = if trial.echoes { FIRST_BYTES } else { 0 };
    loop {
        turn(watch, exchanging, socket, limit, clock);
        let now = clock.now();
        let quiet = QUIET.max(Duration::from_micros(u64::from(watch.srtt_us()) * 4));
        let settled = now.saturating_since(watch.changed()) > quiet && !watch.is_trying();
        let over = now >= until || now.saturating_since(began) > SETTLING;
        if over || exchanging.has_ended() || (settled && exchanging.is_even()) {
            return;
        }
    }
}

/// Sends words to a server that does not give them back, until they have arrived; what it answers is
/// thrown away.
fn send(
    mut words: &[u8],
    mut socket: &Socket,
    watch: &mut Watch,
    exchanging: &mut Exchanging,
    (clock, until): (Clock, Instant),
) {
    let deadline = until.max(clock.now()).min(clock.now() + DATA_TIME);
    while clock.now() < deadline && !exchanging.has_ended() {
        let written = std::io::Write::write(&mut socket, words).unwrap_or(0);
        words = words.get(written..).unwrap_or_default();
        turn(watch, exchanging, socket, 0, clock);
        if words.is_empty() && !watch.is_waiting() {
            return;
        }
    }
}

/// Moves data and looks, once in a step.
fn turn(watch: &mut Watch, exchanging: &mut Exchanging, socket: &Socket, limit: u64, clock: Clock) {
    let end = clock.now() + if watch.hears() { STEP } else { SHORT_STEP };
    loop {
        exchanging.step(socket, limit);
        let left = end.saturating_since(clock.now());
        if left.is_zero() || exchanging.has_ended() {
            break;
        }
        let writing = exchanging.sent() < limit;
        if exchanging.is_even() && !writing {
            clock.sleep_until(end);
            break;
        }
        let _ = attempt::wait(socket, writing, left); // the loop checks again
    }
    watch.look();
}
