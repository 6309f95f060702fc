//! Tests of a host that moves: several at the same time, until it has left its first network.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towpath_measure::live::{ClientMessage, ClockOffset};
use towpath_measure::scenario::Scenario;
use towpath_net::Instant;

use super::departure::NetworkLossDetector;
use super::host::interfaces;
use super::speaker::ControlChannel;
use super::watch::NetworkWatch;
use crate::clock::Clock;
use crate::pace::RunClock;

/// For how long is measured on when a network is gone.
const POST_LOSS_TIME: Duration = Duration::from_secs(3);
/// How often it is looked.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What tests that run at the same time share: they end together.
#[derive(Debug, Clone)]
pub struct MobileSession {
    clock: Clock,
    /// How long late answers are waited for.
    reply_timeout: Duration,
    ending: Arc<Mutex<Option<SessionEnd>>>,
}

/// Why they end, and when.
#[derive(Debug, Clone)]
struct SessionEnd {
    /// Since when the network is gone, and when all of it ends; on the session's clock.
    since: Instant,
    at: Instant,
    why: String,
}

/// How long answers may be late in a scenario.
pub(super) fn patience(scenario: &Scenario) -> Duration {
    let flows = scenario.flows.iter().map(|flow| &flow.pattern);
    let each = flows.map(|pattern| pattern.limit().saturating_sub(pattern.duration()));
    each.max().unwrap_or_default()
}

pub(super) type SharedDetector = Arc<Mutex<NetworkLossDetector>>;

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MobileSession {
    /// Tests of `scenario`, over whatever transports.
    pub fn new(scenario: &Scenario) -> Self {
        Self { clock: Clock::start(), reply_timeout: patience(scenario), ending: Arc::default() }
    }

    /// The clock of all its tests.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    fn end(&self, ending: SessionEnd) {
        lock(&self.ending).get_or_insert(ending);
    }

    /// Since when the first network was gone, in the time of `pace`, and why it is; `None` where all of
    /// them were there to the end.
    pub(super) fn network_lost(&self, pace: &RunClock) -> Option<(Instant, String)> {
        let ending = lock(&self.ending).clone()?;
        Some((in_traffic(pace, ending.since), ending.why))
    }

    /// Looks until `done` whether a network is gone, and then tells both ends of this test when it
    /// ends. Only the test with datagrams sees all that there is to see.
    pub(super) fn follow(
        &self,
        pace: &RunClock,
        departure: &SharedDetector,
        done: &AtomicBool,
        tell: impl FnOnce(Instant) -> io::Result<()>,
    ) {
        while !done.load(Ordering::Acquire) {
            let now = pace.now();
            if let Some((since, why)) = lock(departure).lost_since(now) {
                let at = pace.zero() + (now + POST_LOSS_TIME).saturating_since(Instant::ZERO);
                let since = pace.zero() + since.saturating_since(Instant::ZERO);
                self.end(SessionEnd { since, at, why });
            }
            let ending = lock(&self.ending).clone();
            if let Some(SessionEnd { at, .. }) = ending {
                pace.end_at(in_traffic(pace, at), self.reply_timeout);
                // A server that does not hear it is ended by the data streams.
                let _ = tell(at);
                return;
            }
            pace.sleep_until(now + POLL_INTERVAL);
        }
    }
}

fn in_traffic(pace: &RunClock, at: Instant) -> Instant {
    Instant::ZERO + at.saturating_since(pace.zero())
}

/// Tells the server when it ends.
pub(super) fn send_end(
    speaker: &mut ControlChannel,
    offset: ClockOffset,
    at: Instant,
) -> io::Result<()> {
    let at_ns = offset.to_server_time(at).as_nanos();
    speaker.send(&ClientMessage::End { at_ns })
}

/// What is followed in a test of `scenario`, as the host is now.
pub(super) fn loss_detector(
    scenario: &Scenario,
    watch: Option<&NetworkWatch>,
) -> NetworkLossDetector {
    let paths = scenario.paths.iter().map(|path| path.name.clone()).collect();
    let known = interfaces().unwrap_or_default();
    let addresses = known.into_iter().map(|one| -> (String, IpAddr) { (one.name, one.address) });
    let default = |v6| watch.and_then(|watch| watch.default_interface(v6));
    NetworkLossDetector::new(paths, addresses, [default(false), default(true)])
}
