//! The server's tests: those that run, and the results of those that have ended.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::{Limits, Plan, Refusal, Token};
use towpath_measure::scenario::Scenario;
use towpath_net::Instant;
use towpath_quic::tls::Session;

use super::end::{Stream, wanted};
use super::line::Line;
use super::session::patience;
use super::socket;
use crate::clock::Clock;
use crate::pace::Pace;
use crate::traffic::is_quic;
use crate::traffic::wire::Wire;

/// How long the handshake of TLS may take.
const INTRODUCTION: Duration = Duration::from_secs(5);

/// One test.
#[derive(Debug)]
pub(super) struct Test {
    pub(super) plan: Plan,
    pub(super) scenario: Scenario,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
enum State {
    /// Connections come in.
    Gathering(BTreeMap<(u16, u16), Line>),
    Running(Arc<Pace>),
    Ended {
        result: Arc<str>,
        at: Instant,
    },
}

impl Test {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection of the kernel.
    pub(super) fn attach(&self, place: (u16, u16), data: Socket) {
        if self.set_up(&data).is_ok() {
            self.add(place, Line::Socket(Wire::Plain(Arc::new(data))));
        }
    }

    /// Adds a connection of the kernel after a few words with its client, for which it waits.
    pub(super) fn attach_with_tls(
        &self,
        place: (u16, u16),
        data: Socket,
        session: Session,
        clock: Clock,
    ) {
        let deadline = clock.now() + INTRODUCTION;
        if self.set_up(&data).is_ok()
            && let Ok((wire, _)) = Wire::secure(data, session, (clock, deadline))
        {
            self.add(place, Line::Socket(wire));
        }
    }

    fn set_up(&self, data: &Socket) -> io::Result<()> {
        data.set_nonblocking(false)?;
        let _does_without = data.set_tcp_nodelay(true);
        socket::configure(data, &self.plan.settings);
        Ok(())
    }

    /// Whether a connection of the kernel is missing.
    pub(super) fn wants(&self, place: (u16, u16)) -> bool {
        let State::Gathering(found) = &*self.lock() else { return false };
        !is_quic(self.plan.transport)
            && wanted(&self.scenario).contains(&place)
            && !found.contains_key(&place)
    }

    /// Adds a line; whether it is one of those that are needed.
    pub(super) fn add(&self, place: (u16, u16), line: Line) -> bool {
        let fits = match &line {
            Line::Quic(_) => is_quic(self.plan.transport),
            Line::Socket(wire) => {
                let has_tls = matches!(wire, Wire::Tls(_));
                !is_quic(self.plan.transport) && has_tls == self.plan.settings.tls
            }
        };
        let State::Gathering(found) = &mut *self.lock() else { return false };
        if !fits || !wanted(&self.scenario).contains(&place) || found.contains_key(&place) {
            return false;
        }
        found.insert(place, line);
        self.changed.notify_all();
        true
    }

    /// Waits for all connections; whether they are there.
    pub(super) fn is_complete(&self, patience: Duration) -> bool {
        let count = wanted(&self.scenario).len();
        let missing = |state: &mut State| match state {
            State::Gathering(found) => found.len() < count,
            State::Running(_) | State::Ended { .. } => false,
        };
        let waited = self.changed.wait_timeout_while(self.lock(), patience, missing);
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    /// Takes the connections for the traffic, once.
    pub(super) fn start(&self, pace: &Arc<Pace>) -> Option<Vec<Stream>> {
        let mut state = self.lock();
        let State::Gathering(found) = &mut *state else { return None };
        let found = std::mem::take(found);
        *state = State::Running(Arc::clone(pace));
        let streams = found.into_iter().filter_map(|((flow, number), line)| {
            let described = self.scenario.flows.get(usize::from(flow))?;
            Some(Stream::new(flow.into(), number.into(), described, line))
        });
        Some(streams.collect())
    }

    /// Ends the traffic early.
    pub(super) fn stop(&self) {
        if let State::Running(pace) = &*self.lock() {
            pace.interrupt();
        }
    }

    /// Ends the traffic early; what was begun before `at`, on the server's clock, is brought to its
    /// end.
    pub(super) fn end_by(&self, at: Instant) {
        if let State::Running(pace) = &*self.lock() {
            let at = Instant::ZERO + at.saturating_since(pace.zero());
            pace.end_at(at, patience(&self.scenario));
        }
    }

    fn end(&self, result: String, at: Instant) {
        *self.lock() = State::Ended { result: result.into(), at };
        self.changed.notify_all();
    }

    /// The result, if it is there before `patience` is over.
    pub(super) fn result(&self, patience: Duration) -> Option<Arc<str>> {
        let not_yet = |state: &mut State| !matches!(state, State::Ended { .. });
        let waited = self.changed.wait_timeout_while(self.lock(), patience, not_yet);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            State::Ended { result, .. } => Some(Arc::clone(result)),
            State::Gathering(_) | State::Running(_) => None,
        }
    }

    /// When it ended and how large its result is.
    fn kept(&self) -> Option<(Instant, usize)> {
        match &*self.lock() {
            State::Ended { result, at } => Some((*at, result.len())),
            State::Gathering(_) | State::Running(_) => None,
        }
    }
}

/// All tests of a server.
#[derive(Debug, Default)]
pub(super) struct Tests {
    all: Mutex<BTreeMap<Token, Arc<Test>>>,
}

impl Tests {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Token, Arc<Test>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a test.
    pub(super) fn admit(
        &self,
        token: Token,
        (plan, scenario): (Plan, Scenario),
        limits: &Limits,
    ) -> Result<Arc<Test>, Refusal> {
        let mut all = self.lock();
        let running = all.values().filter(|test| test.kept().is_none()).count();
        if running >= limits.tests {
            let why = format!("it is busy with {running} tests");
            return Err(Refusal::new(why, "try again later"));
        }
        let test = Arc::new(Test {
            plan,
            scenario,
            state: Mutex::new(State::Gathering(BTreeMap::new())),
            changed: Condvar::new(),
        });
        all.insert(token, Arc::clone(&test));
        Ok(test)
    }

    pub(super) fn find(&self, token: Token) -> Option<Arc<Test>> {
        self.lock().get(&token).cloned()
    }

    pub(super) fn forget(&self, token: Token) {
        self.lock().remove(&token);
    }

    /// Keeps the result of a test for its client.
    pub(super) fn end(&self, test: &Test, result: String, now: Instant, limits: &Limits) {
        test.end(result, now);
        self.tidy(now, limits);
    }

    /// Results that nobody has fetched go: those that are too old, and the oldest when they are too
    /// many.
    pub(super) fn tidy(&self, now: Instant, limits: &Limits) {
        let mut all = self.lock();
        all.retain(|_, test| {
            test.kept().is_none_or(|(at, _)| now.saturating_since(at) < limits.keep)
        });
        loop {
            let kept = all.iter().filter_map(|(token, test)| Some((*token, test.kept()?)));
            let kept: Vec<_> = kept.collect();
            let bytes: usize = kept.iter().map(|(_, (_, bytes))| bytes).sum();
            let oldest = kept.iter().min_by_key(|(_, (at, _))| *at);
            match oldest {
                Some((token, _)) if bytes > limits.kept_bytes => all.remove(token),
                _ => return,
            };
        }
    }

    /// Ends all traffic.
    pub(super) fn stop_all(&self) {
        self.lock().values().for_each(|test| test.stop());
    }
}
