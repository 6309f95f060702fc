//! OLIA, opportunistic linked increases (Khalili et al., `CoNEXT` 2012;
//! draft-khalili-mptcp-congestion-control-05): Pareto-optimal, unlike LIA, by moving window from
//! the largest paths to the best ones.
//!
//! For `acked` bytes on path r, with windows in bytes: `cwnd_r += (cwnd_r / rtt_r² / (Σ cwnd_p /
//! rtt_p)² + α_r / cwnd_r) · mss_r · acked`.
//!
//! The best paths have the largest `ℓ / rtt²`. ℓ is the larger of the bytes acknowledged since the
//! last loss and between the last two. If some best paths do not have the largest window, α is `1 /
//! (N · number of those)` for them and `-1 / (N · number of the largest)` for the largest.
//! Otherwise α is 0. A negative α can shrink a window. Half after loss.

use super::window::{CoupledPaths, Coupling};
use super::{AckSample, Sibling};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Olia;

impl Coupling for Olia {
    const NAME: &'static str = "olia";
    const COUPLED: bool = true;

    fn increase(&mut self, group: CoupledPaths<'_>, ack: &AckSample) -> f64 {
        let own = group.own;
        // Scaled by the path's own rate, so that the quotient of a lone path is exactly 1.
        let own_rate = own.window() / own.rtt();
        let relative_rates: f64 =
            group.iter().map(|path| path.window() / path.rtt() / own_rate).sum();
        let linked = 1.0 / (own.window() * relative_rates * relative_rates);
        (linked + alpha(group) / own.window()) * own.packet() * ack.acked_bytes as f64
    }
}

/// Returns the quality of a path: about the square of its throughput, if it used Reno.
fn quality(path: &Sibling) -> f64 {
    let (since_last, between_last_two) = path.between_losses;
    since_last.max(between_last_two) as f64 / (path.rtt() * path.rtt())
}

/// Returns α of the formula in the module's header.
fn alpha(group: CoupledPaths<'_>) -> f64 {
    let best_quality = group.iter().map(|path| quality(&path)).fold(0.0, f64::max);
    let largest_cwnd = group.iter().map(|path| path.cwnd_bytes).max().unwrap_or(0);
    let is_largest = |path: &Sibling| path.cwnd_bytes == largest_cwnd;
    let is_best_but_not_largest =
        |path: &Sibling| quality(path) >= best_quality && !is_largest(path);
    let best_count = group.iter().filter(is_best_but_not_largest).count();
    let path_count = group.iter().count() as f64;
    if best_count == 0 {
        0.0
    } else if is_best_but_not_largest(&group.own) {
        1.0 / (path_count * best_count as f64)
    } else if is_largest(&group.own) {
        -1.0 / (path_count * group.iter().filter(is_largest).count() as f64)
    } else {
        0.0
    }
}
