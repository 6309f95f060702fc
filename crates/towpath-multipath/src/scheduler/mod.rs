//! Schedulers: which path carries the next bytes.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;

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

/// What a scheduler wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Send new data, at most so many bytes, on this path.
    Send {
        /// Path.
        path: PathId,
        /// At most.
        max_bytes: u64,
    },
    /// Send new data on several paths at once.
    Duplicate {
        /// Paths.
        paths: PathSet,
        /// At most.
        max_bytes: u64,
    },
    /// Send data again that was sent on another path.
    Reinject {
        /// Path.
        path: PathId,
        /// What.
        range: DataRange,
    },
    /// A better path will have room soon: ask again when something was acknowledged, at the latest
    /// then.
    Wait {
        /// At the latest.
        until: Option<Instant>,
    },
    /// Nothing can be sent now.
    Idle,
}

impl Decision {
    /// New data on `path`, as much as it has room for; nothing without a path.
    pub fn send_or_idle(path: Option<&PathView>) -> Self {
        path.map_or(Self::Idle, |path| Self::Send { path: path.id, max_bytes: path.room_bytes })
    }
}

/// Why a scheduler that prefers one path gave new data to another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SwitchReason {
    /// Round trips of the preferred path take too long.
    SlowRoundTrip,
    /// Its retransmission timer has fired, and nothing came since.
    Timeout,
    /// Its retransmission timeout is too long.
    LongTimeout,
    /// It is gone, or carries nothing any more.
    Gone,
}

impl SwitchReason {
    /// A short name, as in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SlowRoundTrip => "rtt-threshold",
            Self::Timeout => "rto",
            Self::LongTimeout => "rto-threshold",
            Self::Gone => "gone",
        }
    }
}

/// What a scheduler is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SchedulerEvent {
    /// Bytes were put on a path.
    Sent {
        /// Path.
        path: PathId,
        /// Bytes.
        bytes: u64,
    },
    /// Bytes were acknowledged on a path.
    Acked {
        /// Path.
        path: PathId,
        /// Bytes.
        bytes: u64,
    },
    /// Loss was detected on a path.
    Lost {
        /// Path.
        path: PathId,
    },
    /// A path's retransmission timer fired.
    Timeout {
        /// Path.
        path: PathId,
    },
    /// There is data and room on a path, but the peer's connection-level window is full.
    WindowBlocked,
    /// A path may carry data from now on.
    Opened {
        /// Path.
        path: PathId,
    },
    /// A path is gone; its slot may be used again.
    Closed {
        /// Path.
        path: PathId,
    },
}

/// Decides which path carries the next bytes.
pub trait Scheduler: fmt::Debug + Send {
    /// Asked while there is new data that the peer's window admits (`view.unsent_bytes` and
    /// `view.window_bytes` above 0), and, when [`Scheduler::duplicates_data`], also without. Asked again
    /// after each `Send`, `Duplicate` or `Reinject`.
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision;

    /// Chooses the path for data whose path may have failed (`sent_on`: where it was sent so far).
    /// The default: the lowest srtt among paths with room that have not had it, regular ones before
    /// backups, none that is stale or in timeout recovery.
    fn reinject(
        &mut self,
        view: &ConnectionView<'_>,
        range: DataRange,
        sent_on: PathSet,
    ) -> Option<PathId> {
        let _ = range;
        min_rtt::lowest_srtt(view, |path| !sent_on.contains(path.id))
    }

    /// Notes what happened. It comes without a view, which would have to be made for every
    /// acknowledgement: the next decision sees how things are.
    fn on_event(&mut self, event: SchedulerEvent) {
        let _ = event;
    }

    /// Why the last decision left the path that it prefers, if it did and there is such a path.
    fn switch_reason(&self) -> Option<SwitchReason> {
        None
    }

    /// Whether it wants to be asked even when there is no new data, because it sends data again on
    /// its own (as `redundant` does).
    fn duplicates_data(&self) -> bool {
        false
    }

    /// Whether asking it is of no use, and changes nothing, while no path has room.
    fn needs_room(&self) -> bool {
        false
    }

    /// Whether it gives paths more than their windows have room for. [`Scheduler::next`] then sees
    /// in [`PathView::room_bytes`] what a path's own queue still takes.
    fn fills_subflow_queues(&self) -> bool {
        false
    }
}

/// One scheduler for users to choose.
#[derive(Debug, Clone, Copy)]
pub struct SchedulerEntry {
    /// Name in scenarios.
    pub name: &'static str,
    /// One line for people, with its source.
    pub about: &'static str,
    /// Makes one for a connection.
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

/// No scheduler has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown scheduler `{name}`, expected one of: {}", names())]
pub struct UnknownScheduler {
    name: String,
}

fn names() -> String {
    ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// The scheduler of this name.
pub fn by_name(name: &str) -> Result<Box<dyn Scheduler>, UnknownScheduler> {
    let found = ALL.iter().find(|entry| entry.name == name);
    found.map(|entry| (entry.make)()).ok_or_else(|| UnknownScheduler { name: name.to_owned() })
}
