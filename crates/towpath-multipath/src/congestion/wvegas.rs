//! wVegas, weighted Vegas (Cao et al., ICNP 2012), as in mptcp.org: delay, not loss, is the signal.
//! Each path keeps about α packets of its own queued. α is its share, by rate, of ten packets for
//! the connection, so traffic moves to paths with shorter queues.
//!
//! Once per round trip, with the round's mean `rtt` and the smallest `base` ever seen: `queued =
//! cwnd · (rtt - base) / rtt`; a packet less if that is more than α, one more if it is less. When
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
/// A round with at most this number of samples is ignored.
const MIN_SAMPLES: u32 = 2;

/// State of wVegas for one path. Times are seconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wvegas {
    base: Option<f64>,
    sum: f64,
    samples: u32,
    alpha: f64,
    min_queueing_delay: Option<f64>,
}

impl Default for Wvegas {
    fn default() -> Self {
        Self { base: None, sum: 0.0, samples: 0, alpha: MIN_ALPHA, min_queueing_delay: None }
    }
}

impl Wvegas {
    fn new_round(&mut self) {
        (self.sum, self.samples) = (0.0, 0);
    }

    /// Sets the path's share of the connection's α, by its share of the rate.
    fn share(&mut self, group: CoupledPaths<'_>) {
        let rate = group.own.window() / group.own.rtt();
        let total: f64 = group.iter().map(|path| path.window() / path.rtt()).sum();
        self.alpha = (TOTAL_ALPHA * rate / total).max(MIN_ALPHA);
    }

    /// Adjusts the windows after a round with mean `rtt`.
    fn on_round_end(
        &mut self,
        windows: CwndState,
        group: CoupledPaths<'_>,
        rtt: f64,
        limited: bool,
    ) -> CwndState {
        let packet = group.own.packet();
        let base = self.base.unwrap_or(rtt);
        let CwndState { mut cwnd, mut ssthresh } = windows;
        let queued = cwnd * (rtt - base) / rtt / packet;
        if cwnd < ssthresh {
            if queued > GAMMA {
                cwnd = cwnd.min(cwnd * base / rtt + packet);
                ssthresh = ssthresh.min(cwnd - packet);
            }
        } else {
            if queued >= self.alpha {
                self.share(group);
            }
            if queued > self.alpha {
                cwnd -= packet;
                ssthresh = ssthresh.min(cwnd - packet);
            } else if queued < self.alpha && limited {
                cwnd += packet;
            }
            cwnd = self.drain(cwnd, rtt, base);
        }
        cwnd = cwnd.max(2.0 * packet);
        CwndState { cwnd, ssthresh: ssthresh.max(cwnd * 0.75) }
    }

    fn drain(&mut self, cwnd: f64, rtt: f64, base: f64) -> f64 {
        let queueing = rtt - base;
        let min_delay = self.min_queueing_delay.map_or(queueing, |least| least.min(queueing));
        self.min_queueing_delay = (min_delay > 0.0).then_some(min_delay);
        if min_delay > 0.0 && queueing >= 2.0 * min_delay {
            self.min_queueing_delay = None;
            cwnd * base / (2.0 * rtt)
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
            self.base = Some(self.base.map_or(rtt, |base| base.min(rtt)));
            self.sum += rtt;
            self.samples = self.samples.saturating_add(1);
        }
        if !ack.round_ended {
            return windows;
        }
        let (sum, samples) = (self.sum, self.samples);
        self.new_round();
        if samples > MIN_SAMPLES {
            self.on_round_end(windows, group, sum / f64::from(samples), ack.cwnd_limited)
        } else if ack.cwnd_limited && windows.cwnd >= windows.ssthresh {
            let growth = reno::growth(&group.own, ack.acked_bytes);
            CwndState { cwnd: windows.cwnd + growth, ..windows }
        } else {
            windows
        }
    }

    fn decrease(&mut self, _: Instant, group: CoupledPaths<'_>) -> f64 {
        *self = Self { base: self.base, ..Self::default() };
        group.own.window() / 2.0
    }

    fn on_idle(&mut self, _: Duration) {
        // The path may have changed by now.
        *self = Self::default();
    }
}
