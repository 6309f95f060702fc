//! Schedule for polling the sockets: often while they are young, less often later.
//!
//! Polling costs at most a third of a processor at first, and a fiftieth in the long run.

use std::time::Duration;

use super::record::ExecRecorder;
use super::socket_tracker::{SocketSnapshot, SocketTracker};
use super::summary::SocketSummary;
use crate::netlink::{DestroyedSockets, MibCounters, SocketDiag, StateFilter};
use crate::sys;

/// Delay of the first poll after a socket was made; each further delay is twice as long.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
pub(super) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a poll, as a multiple of the poll's duration: for young and for old sockets.
const YOUNG_REST_FACTOR: u32 = 2;
const OLD_REST_FACTOR: u32 = 50;
/// Interval from which on sockets count as old.
const OLD_INTERVAL: Duration = Duration::from_millis(32);

/// Observer of the program's connections.
#[derive(Debug)]
pub(super) struct Observer {
    /// Socket for listings; `None` where the kernel gives none.
    diag: Option<SocketDiag>,
    connections: SocketTracker,
    counters: MibCounters,
    pace: PollSchedule,
    recorder: Option<ExecRecorder>,
    /// Source of the final counters of closed subflows; open while there is something to record.
    destroyed: Option<DestroyedSockets>,
}

/// Schedule of polls; times are those of the monotonic clock.
#[derive(Debug, Default)]
struct PollSchedule {
    step: Duration,
    due: Option<Duration>,
}

impl PollSchedule {
    fn made(&mut self, now: Duration) {
        self.step = MIN_POLL_INTERVAL;
        let due = now + MIN_POLL_INTERVAL;
        // New sockets must not postpone a poll that is due earlier.
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    fn on_polled(&mut self, now: Duration, cost: Duration, worth_more: bool) {
        let rest = if self.step < OLD_INTERVAL { YOUNG_REST_FACTOR } else { OLD_REST_FACTOR };
        self.due = worth_more.then(|| now + self.step.max(cost * rest));
        self.step = (self.step * 2).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
    }
}

impl Observer {
    /// Opens the observer, which records into `recorder` if there is one.
    pub(super) fn open(recorder: Option<ExecRecorder>) -> Self {
        Self {
            destroyed: recorder.as_ref().and_then(|_| DestroyedSockets::open().ok()),
            recorder,
            diag: SocketDiag::open().ok(),
            connections: SocketTracker::default(),
            counters: MibCounters::read().unwrap_or_default(),
            pace: PollSchedule::default(),
        }
    }

    /// Adds a socket that was made for the program.
    pub(super) fn made(&mut self, inode: u32, now: Duration) {
        self.connections.on_socket_created(inode);
        self.pace.made(now);
    }

    /// Returns the time until the next poll; `None` while there is nothing to observe.
    pub(super) fn next_poll(&self, now: Duration) -> Option<Duration> {
        self.pace.due.map(|due| due.saturating_sub(now))
    }

    pub(super) fn poll_if_due(&mut self, clock: &dyn Fn() -> Duration) {
        if self.next_poll(clock()) == Some(Duration::ZERO) {
            self.poll(clock);
        }
    }

    pub(super) fn poll(&mut self, clock: &dyn Fn() -> Duration) {
        // Not the wall clock: on a busy machine, other processes take most of that time.
        let began = sys::thread_cpu_time();
        let snapshot = self.diag.as_mut().and_then(|diag| {
            let tcp = diag.tcp(StateFilter::ALL).ok()?;
            Some(SocketSnapshot { mptcp: diag.mptcp(StateFilter::ALL).ok()?, tcp })
        });
        let now = clock();
        if let Some(look) = snapshot {
            self.connections.update(&look);
            if let Some(recorder) = &mut self.recorder {
                let gone = self.destroyed.as_mut().and_then(|sockets| sockets.drain().ok());
                let gone = gone.map(|received| received.events).unwrap_or_default();
                recorder.take(&self.connections, &look, &gone, now);
            }
        }
        let cost = sys::thread_cpu_time().saturating_sub(began);
        self.pace.on_polled(now, cost, self.connections.needs_polling());
    }

    /// Returns the final summary, and completes the record.
    pub(super) fn conclude(&mut self, sockets: &SocketSummary, now: Duration) -> SocketSummary {
        let mut tally = sockets.clone();
        tally.add_up(self.connections.all());
        let counters = MibCounters::read().unwrap_or_default();
        tally.add_counters(&counters.since(&self.counters));
        let written = self.recorder.take().map(|recorder| recorder.finish(&tally, now));
        tally.record_error = written.and_then(Result::err).map(|error| error.to_string());
        tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn polls_become_rarer_and_stop_without_connections() {
        let mut pace = PollSchedule::default();
        pace.made(MS * 10);
        let (mut now, mut waits) = (pace.due.unwrap(), Vec::new());
        for _ in 0..10 {
            pace.on_polled(now, Duration::ZERO, true);
            waits.push(pace.due.unwrap().saturating_sub(now).as_millis());
            now = pace.due.unwrap();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]);
        pace.on_polled(now, MS, false);
        assert_eq!(pace.due, None);
    }

    #[test]
    fn a_long_poll_is_followed_by_a_long_pause() {
        let mut pace = PollSchedule::default();
        pace.made(MS);
        pace.on_polled(MS * 9, MS * 8, true);
        assert_eq!(pace.due, Some(MS * 9 + MS * 16));
        pace.step = MAX_POLL_INTERVAL;
        pace.on_polled(MS * 9, MS * 8, true);
        assert_eq!(pace.due, Some(MS * 9 + MS * 400));
        // A new socket brings the next poll forward; a second one does not postpone it.
        pace.made(MS * 20);
        pace.made(MS * 21);
        assert_eq!(pace.due, Some(MS * 21));
    }
}
