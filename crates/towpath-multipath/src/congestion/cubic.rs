//! CUBIC (RFC 9438), with Linux's constants: the window grows with the cube of the time since the
//! last loss. The curve is flat around the window at which the loss occurred.
//!
//! `W_cubic(t) = C · (t - K)³ + W_max`, `K = ∛((W_max - cwnd_epoch) / C)` (RFC 9438 §4.2), in
//! packets and seconds. If Reno would be faster, Reno's window with the same average applies
//! (§4.3). Fast convergence gives way to new flows (§4.7).

use std::time::Duration;

use towpath_net::Instant;

use super::AckSample;
use super::window::{CoupledPaths, Coupling};

/// Share of the window that is left after loss (RFC 9438 §4.6).
const BETA: f64 = 0.7;
/// Steepness of the curve, in packets per second cubed (RFC 9438 §5).
const C: f64 = 0.4;
/// Reno's additive increase for a decrease by β (RFC 9438 §4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// One epoch of congestion avoidance.
#[derive(Debug, Clone, Copy)]
struct Epoch {
    /// Start of the epoch, shifted by the time during which the window was not fully used.
    start: Instant,
    /// Top of the curve, in packets.
    origin: f64,
    /// Time at which the curve reaches `origin`, in seconds.
    k: f64,
    /// Reno's window, in packets.
    w_est: f64,
}

/// Minimum window growth in Linux, as a share of the acknowledged bytes, before the first loss
/// reveals the path's capacity.
const MIN_GROWTH_BEFORE_LOSS: f64 = 1.0 / 20.0;

/// State of CUBIC for one path.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Cubic {
    /// Follows Linux (`net/ipv4/tcp_cubic.c`) in its deviations from RFC 9438.
    ///
    /// The curve uses the smallest round-trip time, Reno's part keeps its slope, and growth is at
    /// least [`MIN_GROWTH_BEFORE_LOSS`]. Only time with nothing in flight is excluded
    /// (`cubictcp_cwnd_event`). A spurious loss restores the window, but not the state of the path
    /// (`tcp_undo_cwnd_reduction`).
    as_linux: bool,
    /// `W_max` in packets; `None` at first and after a timeout (RFC 9438 §4.8).
    w_max: Option<f64>,
    /// Window before the last reduction, in packets.
    cwnd_prior: f64,
    epoch: Option<Epoch>,
    /// Time since which the application has left part of the window unused.
    unused_since: Option<Instant>,
}

impl Cubic {
    pub(super) fn new(as_linux: bool) -> Self {
        Self { as_linux, ..Self::default() }
    }

    /// Returns the current epoch, or a new one, without the time in which the window was unused.
    fn update_epoch(&mut self, now: Instant, cwnd: f64) -> Epoch {
        let mut epoch = self.epoch.unwrap_or_else(|| {
            let origin = self.w_max.unwrap_or(cwnd).max(cwnd);
            Epoch { start: now, origin, k: cube_root((origin - cwnd) / C), w_est: cwnd }
        });
        // RFC 9438 §5.8: time in which the application left the window unused does not count.
        if let Some(since) = self.unused_since.take() {
            epoch.start += now.saturating_since(since);
        }
        epoch
    }
}

impl Coupling for Cubic {
    const NAME: &'static str = "cubic";
    const LINUX_HYSTART: bool = true;

    fn increase(&mut self, group: CoupledPaths<'_>, ack: &AckSample) -> f64 {
        let packet = group.own.packet();
        let cwnd_packets = group.own.window() / packet;
        let acked_packets = ack.acked_bytes as f64 / packet;
        let mut epoch = self.update_epoch(ack.now, cwnd_packets);

        // RFC 9438 §4.4: the curve's window one round trip ahead, at most 1.5 windows.
        let rtt = if self.as_linux { ack.min_rtt.as_secs_f64() } else { group.own.rtt() };
        let t = ack.now.saturating_since(epoch.start).as_secs_f64() + rtt - epoch.k;
        let target = (C * t * t * t + epoch.origin).clamp(cwnd_packets, cwnd_packets * 1.5);
        let cubic_growth = acked_packets * (target - cwnd_packets) / cwnd_packets;

        // RFC 9438 §4.3: Reno's own growth once the window is back where the loss occurred.
        let past_prior_window = epoch.w_est >= self.cwnd_prior && !self.as_linux;
        let alpha = if past_prior_window { 1.0 } else { ALPHA };
        epoch.w_est += alpha * acked_packets / cwnd_packets;
        let reno_growth = (epoch.w_est - cwnd_packets).min(acked_packets / 2.0);

        self.epoch = Some(epoch);
        let min_growth = if self.as_linux && self.w_max.is_none() {
            acked_packets * MIN_GROWTH_BEFORE_LOSS
        } else {
            0.0
        };
        cubic_growth.max(reno_growth).max(min_growth) * packet
    }

    fn decrease(&mut self, _: Instant, group: CoupledPaths<'_>) -> f64 {
        let cwnd = group.own.window() / group.own.packet();
        // RFC 9438 §4.7: a flow that did not return to its top leaves room for another.
        let converges = self.w_max.is_some_and(|w_max| cwnd < w_max);
        self.w_max = Some(if converges { cwnd * (1.0 + BETA) / 2.0 } else { cwnd });
        self.cwnd_prior = cwnd;
        self.epoch = None;
        group.own.window() * BETA
    }

    fn reset(&mut self) {
        *self = Self::new(self.as_linux);
    }

    fn on_unused(&mut self, now: Instant) {
        if !self.as_linux {
            self.unused_since.get_or_insert(now);
        }
    }

    fn on_idle(&mut self, idle: Duration) {
        if let (Some(epoch), None) = (&mut self.epoch, self.unused_since) {
            epoch.start += idle;
        }
    }

    fn on_start(&mut self, idle: Duration) {
        if let (Some(epoch), true) = (&mut self.epoch, self.as_linux) {
            epoch.start += idle;
        }
    }

    fn undo(&mut self, before: Self) {
        if !self.as_linux {
            *self = before;
        }
    }
}

/// Computes the cube root to a millionth in integers: `f64::cbrt` may differ between machines.
fn cube_root(value: f64) -> f64 {
    // A window of 2^64 bytes of one byte each would still fit.
    let scaled = (value.max(0.0) * 1e6) as u128 * 1_000_000_000_000;
    let mut root: u128 = 0;
    for bit in (0..42).rev() {
        let next = root | 1 << bit;
        if next * next * next <= scaled {
            root = next;
        }
    }
    root as f64 / 1e6
}
