//! Everything on every path (mptcp.org's `redundant`): each path sends all data that it has not
//! sent yet and the peer has not acknowledged. The fastest path determines latency; loss on a
//! single path does not matter.

use super::eligible::eligible;
use super::{Decision, Scheduler};
use crate::path::{ConnectionView, DataRange, PathView};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Redundant;

impl Scheduler for Redundant {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let mut paths: Vec<_> = eligible(view).filter(|path| path.room_bytes > 0).collect();
        paths.sort_by_key(|path| (path.srtt, path.id));
        let decide_for = |path: &PathView| {
            view.unsent.first_unsent_on(path.id).map(|range| decide(path, range, view))
        };
        paths.into_iter().find_map(decide_for).unwrap_or(Decision::Idle)
    }

    fn duplicates_data(&self) -> bool {
        true
    }
}

/// Sends new data, or reinjects the part of `range` that another path has already sent.
fn decide(path: &PathView, range: DataRange, view: &ConnectionView<'_>) -> Decision {
    let already_sent_bytes = view.head.map_or(0, |(head, _)| {
        view.unacked_bytes.saturating_sub(range.start.wrapping_sub(head.start))
    });
    if already_sent_bytes == 0 {
        return Decision::Send { path: path.id, max_bytes: path.room_bytes };
    }
    let bytes = range.bytes.min(already_sent_bytes).min(path.room_bytes);
    Decision::Reinject { path: path.id, range: DataRange { bytes, ..range } }
}
