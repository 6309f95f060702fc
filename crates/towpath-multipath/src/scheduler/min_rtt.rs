//! The path with the lowest srtt that has room (mptcp.org's default scheduler).

use crate::path::{ConnectionView, PathId, PathView, Phase};

use super::{Decision, Scheduler};

/// See the module.
#[derive(Debug, Clone, Copy, Default)]
pub struct MinRtt;

impl Scheduler for MinRtt {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        match lowest_srtt(view, |_| true).and_then(|id| view.path(id)) {
            Some(path) => Decision::Send { path: path.id, max_bytes: path.room_bytes },
            None => Decision::Idle,
        }
    }
}

/// The path with room and the lowest srtt among those that `wanted` admits; backups only if no
/// regular path is alive; none that is stale or in timeout recovery while another is alive.
pub fn lowest_srtt(
    view: &ConnectionView<'_>,
    wanted: impl Fn(&PathView) -> bool,
) -> Option<PathId> {
    let alive = |path: &&PathView| !path.stale && path.phase != Phase::Loss;
    let regular = view.paths.iter().filter(alive).any(|path| !path.backup);
    let paths = view.paths.iter().filter(alive).filter(|path| path.room_bytes > 0);
    let paths = paths.filter(|path| path.backup != regular && wanted(path));
    paths.min_by_key(|path| (path.srtt, path.id)).map(|path| path.id)
}
