//! wVegas, weighted Vegas (Cao et al., ICNP 2012), as in mptcp.org: delay, not loss, is the signal.
//! Each path keeps about α packets of its own queued. α is its share, by rate, of ten packets for
//! the connection, so traffic moves to paths with shorter queues.
//!
//! Once per round trip, with the round's mean `rtt` and the smallest `base` ever seen: `queued =
//! cwnd · (rtt - base) / rtt`. The window falls by a packet if `queued` is above α, and grows by
//! one if it is below. When
//! the queueing delay has doubled over its minimum, the window is cut to `cwnd · base / (2 rtt)` to
//! measure `base` again. Half after loss.
//!
//! Deviation: a sibling's rate is its current `cwnd / srtt`, not that of its own last adjustment.

use std::time::Duration;

use towpath_net::Instant;

use super::window::{CoupledPaths, Coupling, CwndState};
use super::{AckSample, reno};

/// Packets that the connection aims to keep queued.
const TOTAL_ALPHA: f64 = 10.0;
/// Packets that every path may have queued.
const MIN_ALPHA: f64 = 2.0;
/// Queued packets that end slow start.
const GAMMA: f64 = 1.0;
/// A round needs more samples than this to count.
const MIN_SAMPLES: u32 = 2;

/// State of wVegas for one path. Times are seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wvegas {
    /// Smallest round-trip time ever seen.
    base_rtt: Option<f64>,
    /// Sum of this round's round-trip times.
    rtt_sum: f64,
    rtt_samples: u32,
    /// Packets that the path aims to keep queued.
    alpha: f64,
    min_queueing_delay: Option<f64>,
}

impl Default for Wvegas {
    fn default() -> Self {
        Self {
            base_rtt: None,
            rtt_sum: 0.0,
            rtt_samples: 0,
            alpha: MIN_ALPHA,
            min_queueing_delay: None,
        }
    }
}

impl Wvegas {
    fn new_round(&mut self) {
        (self.rtt_sum, self.rtt_samples) = (0.0, 0);
    }

    /// Sets the path's share of the connection's α, by its share of the rate.
    fn update_alpha(&mut self, group: CoupledPaths<'_>) {
        let rate = group.own.window() / group.own.rtt();
        let total_rate: f64 = group.iter().map(|path| path.window() / path.rtt()).sum();
        self.alpha = (TOTAL_ALPHA * rate / total_rate).max(MIN_ALPHA);
    }

    /// Adjusts the windows after a round with mean `rtt`.
    fn on_round_end(
        &mut self,
        windows: CwndState,
        group: CoupledPaths<'_>,
        rtt: f64,
        cwnd_limited: bool,
    ) -> CwndState {
        let packet = group.own.packet();
        let base_rtt = self.base_rtt.unwrap_or(rtt);
        let CwndState { mut cwnd, mut ssthresh } = windows;
        let queued = cwnd * (rtt - base_rtt) / rtt / packet;
        if cwnd < ssthresh {
            if queued > GAMMA {
                cwnd = cwnd.min(cwnd * base_rtt / rtt + packet);
                ssthresh = ssthresh.min(cwnd - packet);
            }
        } else {
            if queued >= self.alpha {
                self.update_alpha(group);
            }
            if queued > self.alpha {
                cwnd -= packet;
                ssthresh = ssthresh.min(cwnd - packet);
            } else if queued < self.alpha && cwnd_limited {
                cwnd += packet;
            }
            cwnd = self.drain_queue(cwnd, rtt, base_rtt);
        }
        cwnd = cwnd.max(2.0 * packet);
        CwndState { cwnd, ssthresh: ssthresh.max(cwnd * 0.75) }
    }

    /// Cuts the window if the queueing delay has doubled over its minimum.
    fn drain_queue(&mut self, cwnd: f64, rtt: f64, base_rtt: f64) -> f64 {
        let queueing_delay = rtt - base_rtt;
        let min_delay =
            self.min_queueing_delay.map_or(queueing_delay, |least| least.min(queueing_delay));
        self.min_queueing_delay = (min_delay > 0.0).then_some(min_delay);
        if min_delay > 0.0 && queueing_delay >= 2.0 * min_delay {
            self.min_queueing_delay = None;
            cwnd * base_rtt / (2.0 * rtt)
        } else {
            cwnd
        }
    }
}

impl Coupling for Wvegas {
    const NAME: &'static str = "wvegas";
    const COUPLED: bool = true;

    fn increase(&mut self, _: CoupledPaths<'_>, _: &AckSample) -> f64 {
        0.0
    }

    fn on_delay(
        &mut self,
        windows: CwndState,
        group: CoupledPaths<'_>,
        ack: &AckSample,
    ) -> CwndState {
        if let Some(rtt) = ack.rtt.map(|rtt| rtt.as_secs_f64().max(1e-6)) {
            self.base_rtt = Some(self.base_rtt.map_or(rtt, |base_rtt| base_rtt.min(rtt)));
            self.rtt_sum += rtt;
            self.rtt_samples = self.rtt_samples.saturating_add(1);
        }
        if !ack.round_ended {
            return windows;
        }
        let (rtt_sum, rtt_samples) = (self.rtt_sum, self.rtt_samples);
        self.new_round();
        if rtt_samples > MIN_SAMPLES {
            self.on_round_end(windows, group, rtt_sum / f64::from(rtt_samples), ack.cwnd_limited)
        } else if ack.cwnd_limited && windows.cwnd >= windows.ssthresh {
            let growth = reno::growth(&group.own, ack.acked_bytes);
            CwndState { cwnd: windows.cwnd + growth, ..windows }
        } else {
            windows
        }
    }

    fn decrease(&mut self, _: Instant, group: CoupledPaths<'_>) -> f64 {
        *self = Self { base_rtt: self.base_rtt, ..Self::default() };
        group.own.window() / 2.0
    }

    fn on_idle(&mut self, _: Duration) {
        // The path may have changed by now.
        *self = Self::default();
    }
}
