//! Which paths a scheduler may consider: the rule that most of them share.

use crate::path::{ConnectionView, PathView, RecoveryPhase};

/// Regular paths; backups only if no regular path is alive (RFC 8684 §3.3.8). A path is not alive
/// when it is stale or in timeout recovery, as mptcp.org has it; if none is, everything is tried.
/// Whether a path has room plays no part: a full regular path is no reason to use a backup.
pub(super) fn eligible<'a>(
    view: &ConnectionView<'a>,
) -> impl Iterator<Item = &'a PathView> + Clone + use<'a> {
    let regular = view.paths.iter().any(|path| is_alive(path) && !path.backup);
    let any = view.paths.iter().any(is_alive);
    let admits = move |path: &&PathView| !any || (is_alive(path) && path.backup != regular);
    view.paths.iter().filter(admits)
}

/// Whether a path is of use for new data.
pub(super) fn is_alive(path: &PathView) -> bool {
    !path.stale && path.phase != RecoveryPhase::Loss
}

/// The first of these paths by srtt, and by slot among equals.
pub(super) fn fastest<'a>(paths: impl Iterator<Item = &'a PathView>) -> Option<&'a PathView> {
    paths.min_by_key(|path| (path.srtt, path.id))
}
