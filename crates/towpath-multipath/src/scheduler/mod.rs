//! Schedulers: which path carries the next bytes.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;

use towpath_net::Instant;

use crate::path::{ConnectionView, DataRange, PathId, PathSet};

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
    /// `view.window_bytes` above 0), and, when [`Scheduler::repeats`], also without. Asked again
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

    /// Notes what happened.
    fn on_event(&mut self, event: SchedulerEvent, view: &ConnectionView<'_>) {
        let _ = (event, view);
    }

    /// Whether it wants to be asked even when there is no new data, because it sends data again on
    /// its own (as `redundant` does).
    fn repeats(&self) -> bool {
        false
    }
}

/// One scheduler for users to choose.
#[derive(Debug, Clone, Copy)]
pub struct Entry {
    /// Name in scenarios.
    pub name: &'static str,
    /// One line for people, with its source.
    pub about: &'static str,
    /// Makes one for a connection.
    pub make: fn() -> Box<dyn Scheduler>,
}

/// Every scheduler, the default first.
pub const ALL: &[Entry] = &[Entry {
    name: "min-rtt",
    about: "the lowest srtt with room in its window (mptcp.org's default)",
    make: || Box::new(min_rtt::MinRtt),
}];

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

pub mod min_rtt;
