//! Lowest srtt, with backups as soon as every regular path has trouble: loss under repair, a
//! timeout, or silence. The default rule waits for a timeout first.

use super::eligible::{fastest, is_alive};
use super::{Decision, Scheduler};
use crate::path::{ConnectionView, PathView, RecoveryPhase};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct BackupAware;

fn is_healthy(path: &PathView) -> bool {
    !path.stale && path.phase == RecoveryPhase::Open && path.timeouts == 0
}

impl Scheduler for BackupAware {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        let regular_paths = || view.paths.iter().filter(|path| !path.backup);
        let with_room = |path: &&PathView| path.room_bytes > 0;
        if regular_paths().any(is_healthy) {
            return Decision::send_or_idle(fastest(
                regular_paths().filter(|path| is_healthy(path)).filter(with_room),
            ));
        }
        let paths_with_room = || view.paths.iter().filter(with_room);
        let alive = fastest(paths_with_room().filter(|path| is_alive(path)));
        // When all paths are dead, none is preferable.
        let any_if_all_dead =
            || fastest(paths_with_room().filter(|_| !view.paths.iter().any(is_alive)));
        Decision::send_or_idle(alive.or_else(any_if_all_dead))
    }
}
