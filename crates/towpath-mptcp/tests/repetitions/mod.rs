//! Repetitions of randomised tests, as set by `cargo xtask test`.

/// Returns the number for `--quick`, for neither option, or for `--all`.
pub(crate) fn repeat<T>([quick, usual, long]: [T; 3]) -> T {
    match std::env::var("TOWPATH_REPEAT").as_deref() {
        Ok("quick") => quick,
        Ok("long") => long,
        _ => usual,
    }
}
