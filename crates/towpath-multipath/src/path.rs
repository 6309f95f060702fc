//! Read-only views: what a scheduler or a coupled congestion control may know.

use std::time::Duration;

use towpath_net::Instant;

/// A path (a subflow) within its connection: a slot from 0 to 63. A slot is used again only when
/// nothing in the connection remembers its earlier path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PathId(pub u8);

impl PathId {
    /// Slots that a connection has.
    pub const SLOTS: u8 = 64;
}

/// A set of paths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct PathSet(u64);

impl PathSet {
    /// No path.
    pub const EMPTY: Self = Self(0);

    /// Only `path`.
    pub const fn only(path: PathId) -> Self {
        Self(1 << (path.0 % PathId::SLOTS))
    }

    /// Whether `path` is in it.
    pub const fn contains(self, path: PathId) -> bool {
        self.0 & Self::only(path).0 != 0
    }

    /// With `path` in it.
    #[must_use]
    pub const fn with(self, path: PathId) -> Self {
        Self(self.0 | Self::only(path).0)
    }

    /// Without `path`.
    #[must_use]
    pub const fn without(self, path: PathId) -> Self {
        Self(self.0 & !Self::only(path).0)
    }

    /// Those in either.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether there is none.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// All of them, in order.
    pub fn iter(self) -> impl Iterator<Item = PathId> {
        (0..PathId::SLOTS).map(PathId).filter(move |path| self.contains(*path))
    }
}

impl FromIterator<PathId> for PathSet {
    fn from_iter<I: IntoIterator<Item = PathId>>(paths: I) -> Self {
        paths.into_iter().fold(Self::EMPTY, Self::with)
    }
}

/// Bytes of the connection's data, by data sequence number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataRange {
    /// First byte.
    pub start: u64,
    /// Number of bytes.
    pub bytes: u64,
}

impl DataRange {
    /// The first byte behind it.
    pub const fn end(self) -> u64 {
        self.start.wrapping_add(self.bytes)
    }
}

/// What a path's loss recovery is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RecoveryPhase {
    /// No loss is known (Linux: `CA_Open`, `CA_Disorder`).
    #[default]
    Open,
    /// Lost data is being repaired (`CA_Recovery`, `CA_CWR`).
    Recovery,
    /// A retransmission timeout has fired and what was in flight is not yet repaired (`CA_Loss`).
    Loss,
}

/// One path, as a scheduler sees it. Only paths that may carry data are shown.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathView {
    /// Which.
    pub id: PathId,
    /// Whether either end asked to use it only when nothing else works (RFC 8684 §3.3.8).
    pub backup: bool,
    /// Nothing that was sent on it has been acknowledged for several timeouts.
    pub stale: bool,
    /// Rounds of the connection's own timer in a row in which nothing was heard on it while it had
    /// something to tell; more of them make it stale.
    pub silent_rounds: u32,
    /// Loss recovery.
    pub phase: RecoveryPhase,
    /// Whether the congestion window is below the slow start threshold.
    pub slow_start: bool,
    /// Smoothed round-trip time; the handshake's until data was acknowledged.
    pub srtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// Smallest round-trip time seen.
    pub min_rtt: Duration,
    /// Retransmission timeout, without back-off.
    pub rto: Duration,
    /// Timeouts in a row, 0 when the last thing that happened was an acknowledgement.
    pub timeouts: u32,
    /// Payload bytes of a full packet.
    pub mss_bytes: u32,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Sent and neither acknowledged nor lost.
    pub in_flight_bytes: u64,
    /// Assigned to the path and not yet sent (Linux: write queue of the subflow).
    pub queued_bytes: u64,
    /// Memory that all of this takes at the sender, what is sent and not acknowledged and what waits
    /// (Linux: `sk_wmem_queued` of the subflow).
    pub memory_bytes: u64,
    /// Rate at which the path paces or would pace: about `cwnd` per `srtt`. Bytes a second.
    pub pacing_rate: u64,
    /// Bytes of new data that the path would take now: congestion window, its own peer window, pacing
    /// and the interface's queue considered.
    pub room_bytes: u64,
}

/// A connection, as a scheduler sees it.
#[derive(Debug, Clone, Copy)]
pub struct ConnectionView<'a> {
    /// Now.
    pub now: Instant,
    /// Paths that may carry data, by id.
    pub paths: &'a [PathView],
    /// Bytes in the send buffer that were never sent on any path.
    pub unsent_bytes: u64,
    /// Where in the connection's data they begin.
    pub unsent_from: u64,
    /// How much more the peer's connection-level window admits; may be more than is unsent (BLEST
    /// needs to know how much).
    pub window_bytes: u64,
    /// Sent, not yet acknowledged at connection level.
    pub unacked_bytes: u64,
    /// Whether the application waits for room in the send buffer.
    pub send_buffer_full: bool,
    /// The oldest data that the peer has not acknowledged at connection level, with the paths on
    /// which it was sent.
    pub head: Option<(DataRange, PathSet)>,
    /// What of the send buffer each path has not had.
    pub store: &'a dyn Unsent,
}

impl ConnectionView<'_> {
    /// The path with this id, if it may carry data.
    pub fn path(&self, id: PathId) -> Option<&PathView> {
        self.paths.iter().find(|path| path.id == id)
    }
}

/// Answers what a path has not sent yet.
pub trait Unsent: std::fmt::Debug {
    /// The first bytes, not acknowledged at connection level and admitted by the peer's window, that
    /// were never sent on `path` (they may have been sent on others, or on none).
    fn first_unsent_on(&self, path: PathId) -> Option<DataRange>;
}
