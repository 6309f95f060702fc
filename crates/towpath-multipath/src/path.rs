//! Read-only views of paths and connections for schedulers and coupled congestion controls.

use std::time::Duration;

use towpath_net::Instant;

/// A path (a subflow) within its connection: a slot from 0 to 63. A slot is reused only after every
/// trace of its earlier path is gone from the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl PathId {
    /// Number of slots of a connection.
    pub const SLOTS: u8 = 64;
}

/// A set of paths, as a bit mask of slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PathSet(u64);

impl PathSet {
    /// Set without any path.
    pub const EMPTY: Self = Self(0);

    /// Returns the set of `path` alone.
    pub const fn only(path: PathId) -> Self {
        Self(1 << (path.0 % PathId::SLOTS))
    }

    /// Returns true if the set contains `path`.
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & Self::only(path).0 != 0
    }

    /// Returns the set with `path` added.
    #[must_use]
    pub const fn with(self, path: PathId) -> Self {
        Self(self.0 | Self::only(path).0)
    }

    /// Returns the set with `path` removed.
    #[must_use]
    pub const fn without(self, path: PathId) -> Self {
        Self(self.0 & !Self::only(path).0)
    }

    /// Returns the paths that are in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns true if the set has no path.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns all paths in ascending order of slots.
    pub fn iter(self) -> impl Iterator<Item = PathId> {
        (0..PathId::SLOTS).map(PathId).filter(move |path| self.contains(*path))
    }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        paths.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// A range of the connection's data, by data sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRange {
    /// Data sequence number of the first byte.
    pub start: u64,
    /// Length of the range in bytes.
    pub bytes: u64,
}

impl DataRange {
    /// Returns the data sequence number after the last byte.
    pub const fn end(self) -> u64 {
        self.start.wrapping_add(self.bytes)
    }
}

/// State of a path's loss recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryPhase {
    /// No loss is known (Linux: `CA_Open`, `CA_Disorder`).
    #[default]
    Open,
    /// Lost data is being repaired (`CA_Recovery`, `CA_CWR`).
    Recovery,
    /// A retransmission timeout has fired and the data then in flight is not yet repaired
    /// (`CA_Loss`).
    Loss,
}

/// One path, as a scheduler sees it. Only paths that may carry data have a view.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathView {
    /// Slot of the path.
    pub id: PathId,
    /// True if either end set the backup flag: use only when no other path works (RFC 8684 §3.3.8).
    pub backup: bool,
    /// True if no data sent on the path has been acknowledged for several retransmission timeouts.
    pub stale: bool,
    /// Consecutive expiries of the connection's timer during which the path had data outstanding
    /// and received nothing. Too many of them make the path stale.
    pub silent_rounds: u32,
    /// Phase of the path's loss recovery.
    pub phase: RecoveryPhase,
    /// True if the congestion window is below the slow start threshold.
    pub slow_start: bool,
    /// Smoothed round-trip time; before the first acknowledgement of data, that of the handshake.
    pub srtt: Duration,
    /// Mean deviation of the round-trip time.
    pub rttvar: Duration,
    /// Smallest round-trip time seen.
    pub min_rtt: Duration,
    /// Retransmission timeout, without back-off.
    pub rto: Duration,
    /// Consecutive retransmission timeouts; 0 after an acknowledgement.
    pub timeouts: u32,
    /// Payload bytes of a full packet.
    pub mss_bytes: u32,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Bytes sent and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Bytes assigned to the path and not yet sent (Linux: write queue of the subflow).
    pub queued_bytes: u64,
    /// Sender memory of all data sent but not acknowledged and all data waiting (Linux:
    /// `sk_wmem_queued` of the subflow).
    pub memory_bytes: u64,
    /// Rate at which the path paces or would pace, about `cwnd` per `srtt`, in bytes per second.
    pub pacing_rate: u64,
    /// Bytes of new data that the path would take now, given congestion window, its own peer
    /// window, pacing and the interface's queue.
    pub room_bytes: u64,
}

/// A connection, as a scheduler sees it.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionView<'a> {
    /// Time at which the view was taken.
    pub now: Instant,
    /// Paths that may carry data, by id.
    pub paths: &'a [PathView],
    /// Bytes in the send buffer that were never sent on any path.
    pub unsent_bytes: u64,
    /// Data sequence number of the first unsent byte.
    pub unsent_from: u64,
    /// Remaining bytes in the peer's connection-level window; may exceed the unsent bytes (BLEST
    /// needs the full amount).
    pub window_bytes: u64,
    /// Bytes sent and not yet acknowledged at connection level.
    pub unacked_bytes: u64,
    /// True if the application waits for room in the send buffer.
    pub send_buffer_full: bool,
    /// The oldest data that the peer has not acknowledged at connection level, with the paths on
    /// which it was sent.
    pub head: Option<(DataRange, PathSet)>,
    /// Parts of the send buffer that each path has not sent.
    pub unsent: &'a dyn Unsent,
}

impl ConnectionView<'_> {
    /// Returns the path with this id, if it may carry data.
    pub fn path(&self, id: PathId) -> Option<&PathView> {
        self.paths.iter().find(|path| path.id == id)
    }
}

/// Source of the data that a path has not sent yet.
pub trait Unsent: std::fmt::Debug {
    /// Returns the first range never sent on `path`, not acknowledged at connection level and
    /// within the peer's window. Other paths may have sent it.
    fn first_unsent_on(&self, path: PathId) -> Option<DataRange>;
}
