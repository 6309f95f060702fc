//! BALIA, balanced linked adaptation (Peng et al., `ToN` 2016;
//! draft-walid-mptcp-congestion-control-04): between LIA's responsiveness and OLIA's friendliness.
//!
//! With `x = cwnd / rtt` and `α = max(x_k) / x_r`, for `acked` bytes on path r:
//! `cwnd_r += acked · mss_r · x_r / rtt_r / (Σ x_k)² · (1 + α) / 2 · (4 + α) / 5`;
//! loss takes `cwnd_r / 2 · min(α, 1.5)`. A lone path is Reno.

use towpath_net::Instant;

use super::AckSample;
use super::window::{CoupledPaths, Coupling};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Balia;

/// Ratio of the fastest path's rate to the path's own, at least 1.
fn alpha(group: CoupledPaths<'_>) -> f64 {
    let own_rate = group.own.window() / group.own.rtt();
    group.iter().map(|path| path.window() / path.rtt() / own_rate).fold(1.0, f64::max)
}

impl Coupling for Balia {
    const NAME: &'static str = "balia";
    const COUPLED: bool = true;

    fn increase(&mut self, group: CoupledPaths<'_>, ack: &AckSample) -> f64 {
        let own = group.own;
        let own_rate = own.window() / own.rtt();
        let relative_rates: f64 =
            group.iter().map(|path| path.window() / path.rtt() / own_rate).sum();
        let alpha = alpha(group);
        let balance = f64::midpoint(1.0, alpha) * ((4.0 + alpha) / 5.0);
        ack.acked_bytes as f64 * own.packet() / (own.window() * relative_rates * relative_rates)
            * balance
    }

    fn decrease(&mut self, _: Instant, group: CoupledPaths<'_>) -> f64 {
        let window = group.own.window();
        window - window / 2.0 * alpha(group).min(1.5)
    }
}
