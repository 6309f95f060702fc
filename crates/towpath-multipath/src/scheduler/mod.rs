//! Schedulers: the choice of the path for the next bytes.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;
use std::sync::Arc;

use towpath_net::Instant;

use crate::path::{ConnectionView, DataRange, PathId, PathSet, PathView};

mod aggregate;
mod apple;
mod backup_aware;
mod blest;
mod ecf;
mod eligible;
#[cfg(test)]
pub(crate) mod fixture;
mod linux;
pub mod min_rtt;
mod pushing;
mod redundant;
mod round_robin;
#[cfg(test)]
mod tests;

/// Decision of a scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send new data, at most `max_bytes`, on this path.
    Send {
        /// Path that sends the data.
        path: PathId,
        /// Limit of new bytes.
        max_bytes: u64,
    },
    /// Send new data on several paths at once.
    Duplicate {
        /// Paths that each send the same data.
        paths: PathSet,
        /// Limit of new bytes.
        max_bytes: u64,
    },
    /// Reinject data that was sent on another path.
    Reinject {
        /// Path that sends the data again.
        path: PathId,
        /// Data that another path has already sent.
        range: DataRange,
    },
    /// A better path will have room soon. The scheduler is called again after an acknowledgement,
    /// at the latest at `until`.
    Wait {
        /// Latest time of the next call; `None` waits for an acknowledgement.
        until: Option<Instant>,
    },
    /// Nothing can be sent now.
    Idle,
}

impl Decision {
    /// Sends new data on `path`, as much as it has room for; idle without a path.
    pub fn send_or_idle(path: Option<&PathView>) -> Self {
        path.map_or(Self::Idle, |path| Self::Send { path: path.id, max_bytes: path.room_bytes })
    }
}

/// Reason why a scheduler with a preferred path gave new data to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwitchReason {
    /// The preferred path's round-trip time is too long.
    SlowRoundTrip,
    /// The preferred path's retransmission timer has fired, with nothing received since.
    Timeout,
    /// The preferred path's retransmission timeout is too long.
    LongTimeout,
    /// The preferred path is gone or no longer carries data.
    Gone,
}

impl SwitchReason {
    /// Returns a short name, as used in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowRoundTrip => "rtt-threshold",
            Self::Timeout => "rto",
            Self::LongTimeout => "rto-threshold",
            Self::Gone => "gone",
        }
    }
}

/// Event that a scheduler is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// Bytes were put on a path.
    Sent {
        /// Path that sent the bytes.
        path: PathId,
        /// Number of bytes sent.
        bytes: u64,
    },
    /// Bytes were acknowledged on a path.
    Acked {
        /// Path whose data was acknowledged.
        path: PathId,
        /// Number of bytes acknowledged.
        bytes: u64,
    },
    /// Loss was detected on a path.
    Lost {
        /// Path that lost data.
        path: PathId,
    },
    /// A path's retransmission timer fired.
    Timeout {
        /// Path whose timer fired.
        path: PathId,
    },
    /// There is data and room on a path, but the peer's connection-level window is full.
    WindowBlocked,
    /// A path may carry data from now on.
    Opened {
        /// Path that is now usable.
        path: PathId,
    },
    /// A path is gone; its slot may be reused.
    Closed {
        /// Path that is gone.
        path: PathId,
    },
}

/// Chooses the path for the next bytes.
pub trait Scheduler: fmt::Debug + Send {
    /// Decides what to send next. Called while the peer's window admits new data
    /// (`view.unsent_bytes` and `view.window_bytes` above 0), with [`Scheduler::duplicates_data`]
    /// also without. Called again after each `Send`, `Duplicate` or `Reinject`.
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision;

    /// Chooses the path for data whose path may have failed; `sent_on` holds the paths that sent it
    /// so far.
    ///
    /// The default is the lowest srtt among paths with room that have not sent it. Regular paths
    /// come before backups; stale paths and those in timeout recovery are excluded.
    fn reinject(
        &mut self,
        view: &ConnectionView<'_>,
        range: DataRange,
        sent_on: PathSet,
    ) -> Option<PathId> {
        let _ = range;
        min_rtt::lowest_srtt(view, |path| !sent_on.contains(path.id))
    }

    /// Records an event, without a view, which would have to be built for every acknowledgement.
    /// The next decision sees the current state.
    fn on_event(&mut self, event: SchedulerEvent) {
        let _ = event;
    }

    /// Returns the reason why the last decision left the preferred path; `None` if it did not.
    fn switch_reason(&self) -> Option<SwitchReason> {
        None
    }

    /// Returns true if the scheduler must also be called without new data, because it duplicates
    /// data itself (as `redundant` does).
    fn duplicates_data(&self) -> bool {
        false
    }

    /// Returns true if a call without room on any path has no effect. The connection then omits
    /// such calls, and with them the construction of the view.
    fn needs_room(&self) -> bool {
        false
    }

    /// Returns true if the scheduler gives paths more than their windows have room for.
    /// [`Scheduler::next`] then sees the room in the path's own queue in [`PathView::room_bytes`].
    fn fills_subflow_queues(&self) -> bool {
        false
    }
}

/// Constructor of a scheduler that is not in [`ALL`].
#[derive(Clone)]
pub struct SchedulerFactory(Arc<dyn Fn() -> Box<dyn Scheduler> + Send + Sync>);

impl SchedulerFactory {
    /// Creates a factory that calls `make` for each connection.
    pub fn new(make: impl Fn() -> Box<dyn Scheduler> + Send + Sync + 'static) -> Self {
        Self(Arc::new(make))
    }

    /// Creates a scheduler for one connection.
    pub fn make(&self) -> Box<dyn Scheduler> {
        (self.0)()
    }
}

impl fmt::Debug for SchedulerFactory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SchedulerFactory")
    }
}

/// Registry entry of one scheduler.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerEntry {
    /// Name used in scenarios.
    pub name: &'static str,
    /// One-line description for users, with its source.
    pub about: &'static str,
    /// Creates a scheduler for one connection.
    pub make: fn() -> Box<dyn Scheduler>,
}

/// Every scheduler, the default first.
pub const ALL: &[SchedulerEntry] = &[
    SchedulerEntry {
        name: "min-rtt",
        about: "the lowest srtt with room in its window (mptcp.org's default)",
        make: || Box::new(min_rtt::MinRtt),
    },
    SchedulerEntry {
        name: "linux",
        about: "the shortest wait for what is queued, in bursts (Linux since 5.15)",
        make: || Box::new(linux::Linux::default()),
    },
    SchedulerEntry {
        name: "round-robin",
        about: "a packet on each path in turn (mptcp.org)",
        make: || Box::new(round_robin::RoundRobin::default()),
    },
    SchedulerEntry {
        name: "redundant",
        about: "everything on every path (mptcp.org)",
        make: || Box::new(redundant::Redundant),
    },
    SchedulerEntry {
        name: "blest",
        about: "leaves a slow path alone that would block the window (Ferlin et al. 2016)",
        make: || Box::new(blest::Blest::default()),
    },
    SchedulerEntry {
        name: "ecf",
        about: "waits for the fast path if it completes earlier (Lim et al. 2017)",
        make: || Box::new(ecf::Ecf::default()),
    },
    SchedulerEntry {
        name: "pushing",
        about: "min-rtt, but as soon as data is written (Barré et al. 2011, first design)",
        make: || Box::new(pushing::Pushing),
    },
    SchedulerEntry {
        name: "backup-aware",
        about: "lowest srtt, and backups as soon as all regular paths have trouble",
        make: || Box::new(backup_aware::BackupAware),
    },
    SchedulerEntry {
        name: "apple-interactive",
        about: "the first path, others when it is slow or silent (Apple)",
        make: || Box::new(apple::Interactive::default()),
    },
    SchedulerEntry {
        name: "apple-interactive-assist",
        about: "the same while WifiAssist calls Wi-Fi bad: half the limits (Apple)",
        make: || Box::new(apple::Interactive::wifi_assist()),
    },
    SchedulerEntry {
        name: "apple-handover",
        about: "the first path, others when it has failed (Apple)",
        make: || Box::new(apple::Handover::default()),
    },
    SchedulerEntry {
        name: "aggregate",
        about: "the lowest srtt with room, backups too (Apple)",
        make: || Box::new(aggregate::Aggregate),
    },
];

/// Error: no scheduler has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheduler `{name}`, expected one of: {}", scheduler_names())]
pub struct UnknownScheduler {
    name: String,
}

fn scheduler_names() -> String {
    ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// Creates the scheduler of this name.
pub fn by_name(name: &str) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    let entry = ALL.iter().find(|entry| entry.name == name);
    entry.map(|entry| (entry.make)()).ok_or_else(|| UnknownScheduler { name: name.to_owned() })
}
