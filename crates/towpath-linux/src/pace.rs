//! What everybody who moves bytes at planned times shares, in every world of this crate: the clock,
//! where its time begins, and whether all of it is to end early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use towpath_net::Instant;

use crate::clock::Clock;
use crate::interrupt;
use crate::purse::{TrafficBudget, TrafficDirection};

/// The longest sleep of whoever must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The time of some traffic.
#[derive(Debug)]
pub(crate) struct RunClock {
    clock: Clock,
    zero: Instant,
    interrupted: AtomicBool,
    /// Nanoseconds of the traffic from which on nothing more is begun, and when all of it is given up.
    end_ns: AtomicU64,
    limit_ns: AtomicU64,
    /// What it may cost, where somebody limits it.
    budget: Option<Arc<TrafficBudget>>,
}

impl RunClock {
    /// Traffic that starts at `zero` on `clock`.
    pub(crate) fn new(clock: Clock, zero: Instant) -> Self {
        let never = || AtomicU64::new(u64::MAX);
        let (end_ns, limit_ns) = (never(), never());
        Self { clock, zero, interrupted: AtomicBool::new(false), end_ns, limit_ns, budget: None }
    }

    /// The same, paid from a purse.
    pub(crate) fn with_budget(self, purse: Arc<TrafficBudget>) -> Self {
        Self { budget: Some(purse), ..self }
    }

    /// What it is paid from.
    pub(crate) fn budget(&self) -> Option<&Arc<TrafficBudget>> {
        self.budget.as_ref()
    }

    /// How many of `most` bytes may be moved now; or when to ask again, counted from the start of the
    /// traffic. What is granted is [settled](Self::settle).
    pub(crate) fn reserve(&self, way: TrafficDirection, most: usize) -> Result<usize, Instant> {
        let Some(purse) = &self.budget else { return Ok(most) };
        match purse.reserve(self.clock.now(), way, most as u64) {
            Ok(granted) => Ok(usize::try_from(granted).unwrap_or(most)),
            Err(due) => {
                purse.end_if_exhausted();
                Err(Instant::ZERO + due.saturating_since(self.zero))
            }
        }
    }

    /// Says how many of the granted bytes were moved.
    pub(crate) fn settle(&self, way: TrafficDirection, granted: usize, moved: usize) {
        if let Some(purse) = &self.budget {
            purse.settle(way, granted as u64, moved as u64);
        }
    }

    /// Whether a datagram may be moved now, whatever its length.
    pub(crate) fn can_consume(&self, way: TrafficDirection) -> bool {
        let Some(purse) = &self.budget else { return true };
        let may = purse.next_allowed(self.clock.now(), way).is_none();
        if !may {
            purse.end_if_exhausted();
        }
        may
    }

    /// Says that it was.
    pub(crate) fn consume(&self, way: TrafficDirection, bytes: usize) {
        if let Some(purse) = &self.budget {
            purse.consume(self.clock.now(), way, bytes as u64);
        }
    }

    /// Notes that memory is kept for what was seen of the traffic.
    pub(crate) fn add_memory(&self, bytes: u64) {
        if let Some(purse) = &self.budget {
            purse.add_memory(bytes);
        }
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
        const MAX_SLEEP: Duration = Duration::from_millis(100);
        let end = self.zero + at.saturating_since(Instant::ZERO);
        loop {
            let now = self.clock.now();
            if end.saturating_since(now) <= MAX_SLEEP {
                return self.clock.sleep_until(end);
            }
            if self.is_interrupted() || interrupt::is_interrupted() {
                return;
            }
            self.clock.sleep_until(now + MAX_SLEEP);
        }
    }

    /// The same, but no longer than until an interrupt.
    pub(crate) fn wait_until(&self, at: Instant) {
        while self.now() < at && !self.is_interrupted() {
            self.sleep_until(at.min(self.now() + POLL_INTERVAL));
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

    /// Whether it was interrupted, or has cost all that it may.
    pub(crate) fn is_interrupted(&self) -> bool {
        let is_over = |purse: &Arc<TrafficBudget>| purse.end_reason().is_some();
        self.interrupted.load(Ordering::Relaxed) || self.budget.as_ref().is_some_and(is_over)
    }

    /// Whether nothing is to be done any more that was to be done before `deadline`.
    pub(crate) fn is_over(&self, deadline: Instant) -> bool {
        let limit = Instant::from_nanos(self.limit_ns.load(Ordering::Acquire));
        self.is_interrupted() || self.now() >= deadline.min(limit)
    }
}
