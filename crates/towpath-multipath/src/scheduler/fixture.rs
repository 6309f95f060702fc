//! A test connection for schedulers.

use std::time::Duration;

use towpath_net::Instant;

use crate::path::{ConnectionView, DataRange, PathId, PathSet, PathView, RecoveryPhase, Unsent};

/// Data that each path has not sent, by slot.
#[derive(Debug, Clone, Default)]
pub(crate) struct UnsentStub(pub(crate) Vec<(PathId, DataRange)>);

impl Unsent for UnsentStub {
    fn first_unsent_on(&self, path: PathId) -> Option<DataRange> {
        self.0.iter().find(|(id, _)| *id == path).map(|(_, range)| *range)
    }
}

/// Owned copy of everything that a [`ConnectionView`] contains; tests change its fields.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionFixture {
    pub(crate) now: Instant,
    pub(crate) paths: Vec<PathView>,
    pub(crate) unsent_bytes: u64,
    pub(crate) unsent_from: u64,
    pub(crate) window_bytes: u64,
    pub(crate) unacked_bytes: u64,
    pub(crate) send_buffer_full: bool,
    pub(crate) head: Option<(DataRange, PathSet)>,
    pub(crate) store: UnsentStub,
}

impl ConnectionFixture {
    pub(crate) fn new(paths: impl IntoIterator<Item = PathView>) -> Self {
        Self {
            now: Instant::ZERO,
            paths: paths.into_iter().collect(),
            unsent_bytes: 1_000_000,
            unsent_from: 0,
            window_bytes: 1_000_000,
            unacked_bytes: 0,
            send_buffer_full: false,
            head: None,
            store: UnsentStub::default(),
        }
    }

    pub(crate) fn view(&self) -> ConnectionView<'_> {
        ConnectionView {
            now: self.now,
            paths: &self.paths,
            unsent_bytes: self.unsent_bytes,
            unsent_from: self.unsent_from,
            window_bytes: self.window_bytes,
            unacked_bytes: self.unacked_bytes,
            send_buffer_full: self.send_buffer_full,
            head: self.head,
            unsent: &self.store,
        }
    }
}

/// A healthy path: a window of ten packets of 1000 bytes, none of it used.
pub(crate) fn path(id: u8, srtt_ms: u64) -> PathView {
    let srtt = Duration::from_millis(srtt_ms);
    PathView {
        id: PathId(id),
        backup: false,
        stale: false,
        silent_rounds: 0,
        phase: RecoveryPhase::Open,
        slow_start: false,
        srtt,
        rttvar: srtt / 10,
        min_rtt: srtt,
        rto: srtt + Duration::from_millis(200),
        timeouts: 0,
        mss_bytes: 1_000,
        cwnd_bytes: 10_000,
        in_flight_bytes: 0,
        queued_bytes: 0,
        memory_bytes: 0,
        pacing_rate: 10_000_000 / srtt_ms.max(1),
        room_bytes: 10_000,
    }
}

/// The same path with its window in use.
pub(crate) fn full(path: PathView) -> PathView {
    PathView { room_bytes: 0, in_flight_bytes: path.cwnd_bytes, ..path }
}
