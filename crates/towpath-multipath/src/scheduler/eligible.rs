//! Paths that a scheduler may consider: the rule shared by most of them.

use crate::path::{ConnectionView, PathView, RecoveryPhase};

/// Returns the regular paths; backups only if no regular path is alive (RFC 8684 §3.3.8).
///
/// A path is not alive when it is stale or in timeout recovery, as in mptcp.org; if all are dead,
/// every path is tried. Room does not matter: a full regular path does not justify a backup.
pub(super) fn eligible<'a>(
    view: &ConnectionView<'a>,
) -> impl Iterator<Item = &'a PathView> + Clone + use<'a> {
    let regular_alive = view.paths.iter().any(|path| is_alive(path) && !path.backup);
    let any_alive = view.paths.iter().any(is_alive);
    let admits =
        move |path: &&PathView| !any_alive || (is_alive(path) && path.backup != regular_alive);
    view.paths.iter().filter(admits)
}

/// Returns true if a path is usable for new data: neither stale nor in timeout recovery.
pub(super) fn is_alive(path: &PathView) -> bool {
    !path.stale && path.phase != RecoveryPhase::Loss
}

/// Returns the path with the lowest srtt; among equals, the lowest slot.
pub(super) fn fastest<'a>(paths: impl Iterator<Item = &'a PathView>) -> Option<&'a PathView> {
    paths.min_by_key(|path| (path.srtt, path.id))
}
