//! What everybody who moves bytes at planned times shares, in every world of this crate: the clock,
//! where its time begins, and whether all of it is to end early.

use std::sync::atomic::{AtomicBool, Ordering};

use towpath_net::Instant;

use crate::clock::Clock;

/// The time of some traffic.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: Clock,
    zero: Instant,
    interrupted: AtomicBool,
}

impl Pace {
    /// Traffic that starts at `zero` on `clock`.
    pub(crate) fn new(clock: Clock, zero: Instant) -> Self {
        Self { clock, zero, interrupted: AtomicBool::new(false) }
    }

    /// What it is counted on.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Start of the traffic on the clock.
    pub(crate) fn zero(&self) -> Instant {
        self.zero
    }

    /// Now, counted from the start of the traffic.
    pub(crate) fn now(&self) -> Instant {
        Instant::ZERO + self.clock.now().saturating_since(self.zero)
    }

    /// Blocks until `at`, counted from the start of the traffic.
    pub(crate) fn sleep_until(&self, at: Instant) {
        self.clock.sleep_until(self.zero + at.saturating_since(Instant::ZERO));
    }

    /// Ends everything as soon as it is noticed.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    /// Whether it was interrupted.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether nothing is to be done any more that was to be done before `deadline`.
    pub(crate) fn is_over(&self, deadline: Instant) -> bool {
        self.is_interrupted() || self.now() >= deadline
    }
}
