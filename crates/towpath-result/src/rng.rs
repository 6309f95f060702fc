//! Random numbers, derived from a seed and a purpose.

use rand_core::Rng;
use rand_pcg::Pcg32;
use towpath_net::stream_seed;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct RngStream(Pcg32);

impl RngStream {
    pub(crate) fn new(seed: u64, purpose: &str) -> Self {
        let seed = stream_seed(seed, "", purpose);
        Self(Pcg32::new(seed, seed))
    }

    /// Returns a uniform number below `count`, with a bias of at most `count` × 2⁻³², which is
    /// negligible.
    pub(crate) fn below(&mut self, count: usize) -> usize {
        let wide = u64::from(self.0.next_u32()) * (count as u64);
        (wide >> 32) as usize
    }

    /// Returns a uniform number between 0 and 1, both excluded.
    #[cfg(test)]
    pub(crate) fn uniform(&mut self) -> f64 {
        (f64::from(self.0.next_u32()) + 0.5) / 4_294_967_296.0
    }
}
