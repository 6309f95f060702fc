//! Concurrent tests of a mobile host, which end together after it has lost its first network.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_scenario::Scenario;
use towpath_sockets::run_clock::RunClock;

use super::control_channel::ControlChannel;
use super::host_info::interfaces;
use super::network_loss::NetworkLossDetector;
use super::network_watch::NetworkWatch;
use crate::protocol::{ClientMessage, ClockOffset};

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
    end: Arc<Mutex<Option<SessionEnd>>>,
}

/// Time and reason of the early end.
#[derive(Debug, Clone)]
struct SessionEnd {
    /// Time of the network loss, on the session's clock.
    lost_at: Instant,
    /// Time at which all tests end, on the session's clock.
    end_at: Instant,
    reason: String,
}

/// Returns the longest time that replies may be late in a scenario.
pub(super) fn max_reply_delay(scenario: &Scenario) -> Duration {
    let flows = scenario.flows.iter().map(|flow| &flow.pattern);
    let delays = flows.map(|pattern| pattern.limit().saturating_sub(pattern.duration()));
    delays.max().unwrap_or_default()
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
            end: Arc::default(),
        }
    }

    /// Returns the clock that all its tests share.
    pub(super) fn clock(&self) -> Clock {
        self.clock
    }

    fn set_end(&self, end: SessionEnd) {
        lock(&self.end).get_or_insert(end);
    }

    /// Returns time and reason of the network loss, on the time scale of `run_clock`; `None` if no
    /// network was lost.
    pub(super) fn network_lost(&self, run_clock: &RunClock) -> Option<(Instant, String)> {
        let end = lock(&self.end).clone()?;
        Some((to_run_time(run_clock, end.lost_at), end.reason))
    }

    /// Polls until `done` for a network loss, then ends both endpoints of this test. Only the test
    /// with probes detects every kind of loss.
    pub(super) fn follow(
        &self,
        run_clock: &RunClock,
        loss_detector: &SharedDetector,
        done: &AtomicBool,
        notify_server: impl FnOnce(Instant) -> io::Result<()>,
    ) {
        while !done.load(Ordering::Acquire) {
            let now = run_clock.now();
            if let Some((lost_at, reason)) = lock(loss_detector).lost_since(now) {
                let end_at =
                    run_clock.start_time() + (now + POST_LOSS_TIME).saturating_since(Instant::ZERO);
                let lost_at = run_clock.start_time() + lost_at.saturating_since(Instant::ZERO);
                self.set_end(SessionEnd { lost_at, end_at, reason });
            }
            let end = lock(&self.end).clone();
            if let Some(SessionEnd { end_at, .. }) = end {
                run_clock.end_at(to_run_time(run_clock, end_at), self.reply_timeout);
                // A server that misses the message is ended by the data streams.
                let _ = notify_server(end_at);
                return;
            }
            run_clock.sleep_until(now + POLL_INTERVAL);
        }
    }
}

fn to_run_time(run_clock: &RunClock, at: Instant) -> Instant {
    Instant::ZERO + at.saturating_since(run_clock.start_time())
}

/// Sends the end time to the server, converted to its clock.
pub(super) fn send_end(
    channel: &mut ControlChannel,
    offset: ClockOffset,
    at: Instant,
) -> io::Result<()> {
    let at_ns = offset.to_server_time(at).as_nanos();
    channel.send(&ClientMessage::End { at_ns })
}

/// Creates the detector for a test of `scenario` from the host's present networks.
pub(super) fn loss_detector(
    scenario: &Scenario,
    watch: Option<&NetworkWatch>,
) -> NetworkLossDetector {
    let paths = scenario.paths.iter().map(|path| path.name.clone()).collect();
    let local_interfaces = interfaces().unwrap_or_default();
    let addresses = local_interfaces
        .into_iter()
        .map(|interface| -> (String, IpAddr) { (interface.name, interface.address) });
    let default_interface = |v6| watch.and_then(|watch| watch.default_interface(v6));
    NetworkLossDetector::new(paths, addresses, [default_interface(false), default_interface(true)])
}
