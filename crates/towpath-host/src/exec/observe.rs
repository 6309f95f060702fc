//! Schedule for polling the sockets: often while they are young, less often later.
//!
//! Polling costs at most a third of a processor at first, and a fiftieth in the long run.

use std::time::Duration;

use towpath_netlink::{DestroyedSockets, MibCounters, SocketDiag, StateFilter};
use towpath_os::sys;

use super::record::ExecRecorder;
use super::socket_tracker::{SocketSnapshot, SocketTracker};
use super::summary::SocketSummary;

/// Delay of the first poll after a socket was created; each further delay is twice as long.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Maximum delay between two polls.
pub(super) const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Pause after a poll, as a multiple of the poll's duration: for young and for old sockets.
const YOUNG_PAUSE_FACTOR: u32 = 2;
const OLD_PAUSE_FACTOR: u32 = 50;
/// Interval from which on sockets count as old.
const OLD_INTERVAL: Duration = Duration::from_millis(32);

/// Observer of the program's connections.
#[derive(Debug)]
pub(super) struct Observer {
    /// Socket for listings; `None` where the kernel gives none.
    diag: Option<SocketDiag>,
    connections: SocketTracker,
    counters: MibCounters,
    schedule: PollSchedule,
    recorder: Option<ExecRecorder>,
    /// Source of the final counters of closed subflows; open while there is something to record.
    destroyed: Option<DestroyedSockets>,
}

/// Schedule of polls; times are those of the monotonic clock.
#[derive(Debug, Default)]
struct PollSchedule {
    interval: Duration,
    due: Option<Duration>,
}

impl PollSchedule {
    fn on_socket_created(&mut self, now: Duration) {
        self.interval = MIN_POLL_INTERVAL;
        let due = now + MIN_POLL_INTERVAL;
        // New sockets must not postpone a poll that is due earlier.
        self.due = Some(self.due.map_or(due, |before| before.min(due)));
    }

    fn on_polled(&mut self, now: Duration, cost: Duration, keep_polling: bool) {
        let factor =
            if self.interval < OLD_INTERVAL { YOUNG_PAUSE_FACTOR } else { OLD_PAUSE_FACTOR };
        self.due = keep_polling.then(|| now + self.interval.max(cost * factor));
        self.interval = (self.interval * 2).clamp(MIN_POLL_INTERVAL, MAX_POLL_INTERVAL);
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
            schedule: PollSchedule::default(),
        }
    }

    /// Adds a socket that was made for the program.
    pub(super) fn on_socket_created(&mut self, inode: u32, now: Duration) {
        self.connections.on_socket_created(inode);
        self.schedule.on_socket_created(now);
    }

    /// Returns the time until the next poll; `None` while there is nothing to observe.
    pub(super) fn next_poll(&self, now: Duration) -> Option<Duration> {
        self.schedule.due.map(|due| due.saturating_sub(now))
    }

    pub(super) fn poll_if_due(&mut self, clock: &dyn Fn() -> Duration) {
        if self.next_poll(clock()) == Some(Duration::ZERO) {
            self.poll(clock);
        }
    }

    pub(super) fn poll(&mut self, clock: &dyn Fn() -> Duration) {
        // Not the wall clock: on a busy machine, other processes take most of that time.
        let cpu_start = sys::thread_cpu_time();
        let snapshot = self.diag.as_mut().and_then(|diag| {
            let tcp = diag.tcp(StateFilter::ALL).ok()?;
            Some(SocketSnapshot { mptcp: diag.mptcp(StateFilter::ALL).ok()?, tcp })
        });
        let now = clock();
        if let Some(snapshot) = snapshot {
            self.connections.update(&snapshot);
            if let Some(recorder) = &mut self.recorder {
                let closed = self.destroyed.as_mut().and_then(|sockets| sockets.drain().ok());
                let closed = closed.map(|received| received.events).unwrap_or_default();
                recorder.record_snapshot(&self.connections, &snapshot, &closed, now);
            }
        }
        let cost = sys::thread_cpu_time().saturating_sub(cpu_start);
        self.schedule.on_polled(now, cost, self.connections.needs_polling());
    }

    /// Returns the final summary, and completes the record.
    pub(super) fn conclude(&mut self, sockets: &SocketSummary, now: Duration) -> SocketSummary {
        let mut summary = sockets.clone();
        summary.add_up(self.connections.sockets());
        let counters = MibCounters::read().unwrap_or_default();
        summary.add_counters(&counters.since(&self.counters));
        let result = self.recorder.take().map(|recorder| recorder.finish(&summary, now));
        summary.record_error = result.and_then(Result::err).map(|error| error.to_string());
        summary
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn polls_become_rarer_and_stop_without_connections() {
        let mut schedule = PollSchedule::default();
        schedule.on_socket_created(MS * 10);
        let (mut now, mut waits) = (schedule.due.unwrap(), Vec::new());
        for _ in 0..10 {
            schedule.on_polled(now, Duration::ZERO, true);
            waits.push(schedule.due.unwrap().saturating_sub(now).as_millis());
            now = schedule.due.unwrap();
        }
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 64, 100, 100, 100]);
        schedule.on_polled(now, MS, false);
        assert_eq!(schedule.due, None);
    }

    #[test]
    fn a_long_poll_is_followed_by_a_long_pause() {
        let mut schedule = PollSchedule::default();
        schedule.on_socket_created(MS);
        schedule.on_polled(MS * 9, MS * 8, true);
        assert_eq!(schedule.due, Some(MS * 9 + MS * 16));
        schedule.interval = MAX_POLL_INTERVAL;
        schedule.on_polled(MS * 9, MS * 8, true);
        assert_eq!(schedule.due, Some(MS * 9 + MS * 400));
        // A new socket brings the next poll forward; a second one does not postpone it.
        schedule.on_socket_created(MS * 20);
        schedule.on_socket_created(MS * 21);
        assert_eq!(schedule.due, Some(MS * 21));
    }
}
