//! LIA, the linked increases of RFC 6356. Over a shared bottleneck the paths together take the
//! share of one Reno flow; no path grows faster than Reno.
//!
//! RFC 6356 §3: for `acked` bytes, `cwnd_i += min(α · acked · mss_i / total, acked · mss_i /
//! cwnd_i)` with `α = total · max(cwnd_k / rtt_k²) / (Σ cwnd_k / rtt_k)²`; half after loss.
//!
//! The two fractions are one here: with the best path b, which has the largest `cwnd / rtt²`,
//! `total / α = cwnd_b · (Σ (cwnd_k / rtt_k) / (cwnd_b / rtt_b))²`. For a lone path the ratio is
//! exactly 1, so the result equals Reno to the last bit.

use super::AckSample;
use super::window::{CoupledPaths, Coupling};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lia;

impl Coupling for Lia {
    const NAME: &'static str = "lia";
    const COUPLED: bool = true;

    fn increase(&mut self, group: CoupledPaths<'_>, ack: &AckSample) -> f64 {
        let mut best = group.own;
        for path in group.iter() {
            let gain = |path: &super::Sibling| path.window() / (path.rtt() * path.rtt());
            if gain(&path) > gain(&best) {
                best = path;
            }
        }
        let best_rate = best.window() / best.rtt();
        let relative_rates: f64 =
            group.iter().map(|path| path.window() / path.rtt() / best_rate).sum();
        let coupled = best.window() * relative_rates * relative_rates;
        ack.acked_bytes as f64 * group.own.packet() / coupled.max(group.own.window())
    }
}
