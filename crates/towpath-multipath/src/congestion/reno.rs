//! Reno (RFC 5681): one packet more in each round trip, half the window after loss.
//!
//! RFC 5681 §3.1, equation 3, by acknowledged bytes (RFC 3465):
//! `cwnd += acked · mss / cwnd`.

use super::window::{CoupledPaths, Coupling};
use super::{AckSample, Sibling};

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Reno;

impl Coupling for Reno {
    const NAME: &'static str = "reno";

    fn increase(&mut self, group: CoupledPaths<'_>, ack: &AckSample) -> f64 {
        growth(&group.own, ack.acked_bytes)
    }
}

/// Returns Reno's increase; the coupled controls never add more ("do no harm", RFC 6356 §2).
pub(super) fn growth(own: &Sibling, acked_bytes: u64) -> f64 {
    acked_bytes as f64 * own.packet() / own.window()
}
