//! A duplex link: two independent directions that go up and down together.

use crate::config::{Delay, DirectionConfig, Loss, Shaper};
use crate::random::stream_seed;
use crate::{Direction, Instant, Packet};

/// A duplex link between two hosts.
#[derive(Debug, Clone)]
pub struct Link<P> {
    /// From the first host to the second.
    pub forward: Direction<P>,
    /// From the second host to the first.
    pub backward: Direction<P>,
}

impl<P: Packet> Link<P> {
    /// Creates a link whose directions draw independent random numbers.
    pub fn new(forward: DirectionConfig, backward: DirectionConfig, seed: u64) -> Self {
        Self {
            forward: Direction::new(forward, stream_seed(seed, "", "forward")),
            backward: Direction::new(backward, stream_seed(seed, "", "backward")),
        }
    }

    /// Takes both directions down or up.
    pub fn set_up(&mut self, now: Instant, up: bool) {
        self.forward.set_up(now, up);
        self.backward.set_up(now, up);
    }

    /// Returns true if both directions are up.
    pub fn is_up(&self) -> bool {
        self.forward.is_up() && self.backward.is_up()
    }

    /// Changes the shaper of both directions.
    pub fn set_shaper(&mut self, now: Instant, shaper: &Shaper) {
        self.forward.set_shaper(now, shaper.clone());
        self.backward.set_shaper(now, shaper.clone());
    }

    /// Changes the delay of both directions.
    pub fn set_delay(&mut self, now: Instant, delay: Delay) {
        self.forward.set_delay(now, delay);
        self.backward.set_delay(now, delay);
    }

    /// Changes the loss of both directions.
    pub fn set_loss(&mut self, loss: Loss) {
        self.forward.set_loss(loss);
        self.backward.set_loss(loss);
    }

    /// Returns the earliest [`Direction::next_due`] of both directions.
    pub fn next_due(&self) -> Option<Instant> {
        [self.forward.next_due(), self.backward.next_due()].into_iter().flatten().min()
    }
}
