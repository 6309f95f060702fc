//! The path with the lowest srtt that has room (mptcp.org's default scheduler; Paasch et al., CSWS
//! 2014).

use crate::path::{ConnectionView, PathId, PathView};

use super::eligible::{eligible, fastest};
use super::{Decision, Scheduler};

/// Scheduler `min-rtt`, the default.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        Decision::send_or_idle(fastest(eligible(view).filter(|path| path.room_bytes > 0)))
    }

    fn needs_room(&self) -> bool {
        true
    }
}

/// Returns the path with room and the lowest srtt among those that `is_candidate` admits.
///
/// Backups count only if no regular path is alive. Stale paths and those in timeout recovery count
/// only if no path is alive.
pub fn lowest_srtt(
    view: &ConnectionView<'_>,
    is_candidate: impl Fn(&PathView) -> bool,
) -> Option<PathId> {
    let with_room = eligible(view).filter(|path| path.room_bytes > 0);
    fastest(with_room.filter(|path| is_candidate(path))).map(|path| path.id)
}
