//! How often tests repeat what they draw at random: `cargo xtask test` says so.

/// The number for `--quick`, for neither option, and for `--all`.
pub(crate) fn repeat<T>([quick, usual, long]: [T; 3]) -> T {
    match std::env::var("TOWPATH_REPEAT").as_deref() {
        Ok("quick") => quick,
        Ok("long") => long,
        _ => usual,
    }
}
