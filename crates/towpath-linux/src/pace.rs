//! What everybody who moves bytes at planned times shares, in every world of this crate: the clock,
//! where its time begins, and whether all of it is to end early.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use towpath_net::Instant;

use crate::clock::Clock;
use crate::interrupt;

/// The time of some traffic.
#[derive(Debug)]
pub(crate) struct Pace {
    clock: Clock,
    zero: Instant,
    interrupted: AtomicBool,
    /// Nanoseconds of the traffic from which on nothing more is begun, and when all of it is given up.
    end_ns: AtomicU64,
    limit_ns: AtomicU64,
}

impl Pace {
    /// Traffic that starts at `zero` on `clock`.
    pub(crate) fn new(clock: Clock, zero: Instant) -> Self {
        let never = || AtomicU64::new(u64::MAX);
        let (end_ns, limit_ns) = (never(), never());
        Self { clock, zero, interrupted: AtomicBool::new(false), end_ns, limit_ns }
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

    /// Blocks until `at`, counted from the start of the traffic, or until nobody waits any more.
    pub(crate) fn sleep_until(&self, at: Instant) {
        const STEP: Duration = Duration::from_millis(100);
        let end = self.zero + at.saturating_since(Instant::ZERO);
        loop {
            let now = self.clock.now();
            if end.saturating_since(now) <= STEP {
                return self.clock.sleep_until(end);
            }
            if self.is_interrupted() || interrupt::seen() {
                return;
            }
            self.clock.sleep_until(now + STEP);
        }
    }

    /// Ends everything as soon as it is noticed.
    pub(crate) fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    /// Nothing is begun that is due at `at` or later; what was begun goes on to its end, but no longer
    /// than `patience`.
    pub(crate) fn end_at(&self, at: Instant, patience: Duration) {
        self.end_ns.fetch_min(at.as_nanos(), Ordering::AcqRel);
        self.limit_ns.fetch_min((at + patience).as_nanos(), Ordering::AcqRel);
    }

    /// From when on nothing is begun any more, if it ends before its time.
    pub(crate) fn end(&self) -> Option<Instant> {
        let end_ns = self.end_ns.load(Ordering::Acquire);
        (end_ns < u64::MAX).then(|| Instant::from_nanos(end_ns))
    }

    /// Whether it was interrupted.
    pub(crate) fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Whether nothing is to be done any more that was to be done before `deadline`.
    pub(crate) fn is_over(&self, deadline: Instant) -> bool {
        let limit = Instant::from_nanos(self.limit_ns.load(Ordering::Acquire));
        self.is_interrupted() || self.now() >= deadline.min(limit)
    }
}
