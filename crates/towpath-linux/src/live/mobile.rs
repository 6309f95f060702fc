//! Concurrent tests of a mobile host, which end together after it has lost its first network.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towpath_measure::live::{ClientMessage, ClockOffset};
use towpath_measure::scenario::Scenario;
use towpath_net::Instant;

use super::control_channel::ControlChannel;
use super::host_info::interfaces;
use super::network_loss::NetworkLossDetector;
use super::network_watch::NetworkWatch;
use crate::clock::Clock;
use crate::run_clock::RunClock;

/// Time of measurement after a network loss.
const POST_LOSS_TIME: Duration = Duration::from_secs(3);
/// Interval between two checks.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// State that concurrent tests share, so that they end together.
#[derive(Debug, Clone)]
pub struct MobileSession {
    clock: Clock,
    /// Longest wait for late replies after the end.
    reply_timeout: Duration,
    ending: Arc<Mutex<Option<SessionEnd>>>,
}

/// Time and reason of the early end.
#[derive(Debug, Clone)]
struct SessionEnd {
    /// Time of the network loss and of the end, on the session's clock.
    since: Instant,
    at: Instant,
    why: String,
}

/// Returns the longest time that replies may be late in a scenario.
pub(super) fn max_reply_delay(scenario: &Scenario) -> Duration {
    let flows = scenario.flows.iter().map(|flow| &flow.pattern);
    let each = flows.map(|pattern| pattern.limit().saturating_sub(pattern.duration()));
    each.max().unwrap_or_default()
}

pub(super) type SharedDetector = Arc<Mutex<NetworkLossDetector>>;

pub(super) fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MobileSession {
    /// Creates a session for tests of `scenario` over any transports.
    pub fn new(scenario: &Scenario) -> Self {
        Self {
            clock: Clock::start(),
            reply_timeout: max_reply_delay(scenario),
            ending: Arc::default(),
        }
    }

    /// Returns the clock that all its tests share.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    fn end(&self, ending: SessionEnd) {
        lock(&self.ending).get_or_insert(ending);
    }

    /// Returns time and reason of the network loss, on the time scale of `pace`; `None` if no
    /// network was lost.
    pub(super) fn network_lost(&self, pace: &RunClock) -> Option<(Instant, String)> {
        let ending = lock(&self.ending).clone()?;
        Some((in_traffic(pace, ending.since), ending.why))
    }

    /// Polls until `done` for a network loss, then ends both endpoints of this test. Only the test
    /// with probes detects every kind of loss.
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
                // A server that misses the message is ended by the data streams.
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

/// Sends the end time to the server, converted to its clock.
pub(super) fn send_end(
    speaker: &mut ControlChannel,
    offset: ClockOffset,
    at: Instant,
) -> io::Result<()> {
    let at_ns = offset.to_server_time(at).as_nanos();
    speaker.send(&ClientMessage::End { at_ns })
}

/// Creates the detector for a test of `scenario` from the host's present networks.
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
