//! Run clock: state shared by all threads that transfer data on a schedule. Contains the clock, the
//! start of the traffic, an early end, and the traffic budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::interrupt;

use crate::traffic_budget::{TrafficBudget, TrafficDirection};

/// Longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Clock of some traffic, with its start, early end and budget.
#[derive(Debug)]
pub struct RunClock {
    clock: Clock,
    start_time: Instant,
    interrupted: AtomicBool,
    /// Traffic time after which nothing new begins; `u64::MAX` without an early end.
    end_ns: AtomicU64,
    /// Traffic time at which also the exchanges in progress must stop; `u64::MAX` without an early
    /// end.
    limit_ns: AtomicU64,
    /// Traffic budget; `None` without limits.
    budget: Option<Arc<TrafficBudget>>,
}

impl RunClock {
    /// Creates the clock of traffic that starts at `start_time` on `clock`.
    pub fn new(clock: Clock, start_time: Instant) -> Self {
        let unlimited = || AtomicU64::new(u64::MAX);
        let (end_ns, limit_ns) = (unlimited(), unlimited());
        Self {
            clock,
            start_time,
            interrupted: AtomicBool::new(false),
            end_ns,
            limit_ns,
            budget: None,
        }
    }

    /// Sets the traffic budget.
    #[must_use]
    pub fn with_budget(self, traffic_budget: Arc<TrafficBudget>) -> Self {
        Self { budget: Some(traffic_budget), ..self }
    }

    /// Returns the traffic budget; `None` without limits.
    pub fn budget(&self) -> Option<&Arc<TrafficBudget>> {
        self.budget.as_ref()
    }

    /// Reserves up to `max_bytes`. An error is the time of the next attempt, relative to the start
    /// of the traffic. A reservation must be [settled](Self::settle).
    pub(crate) fn reserve(
        &self,
        direction: TrafficDirection,
        max_bytes: usize,
    ) -> Result<usize, Instant> {
        let Some(budget) = &self.budget else { return Ok(max_bytes) };
        match budget.reserve(self.clock.now(), direction, max_bytes as u64) {
            Ok(granted) => Ok(usize::try_from(granted).unwrap_or(max_bytes)),
            Err(due) => {
                budget.end_if_exhausted();
                Err(Instant::ZERO + due.saturating_since(self.start_time))
            }
        }
    }

    /// Reports how many of the granted bytes were transferred.
    pub(crate) fn settle(&self, direction: TrafficDirection, granted: usize, moved: usize) {
        if let Some(budget) = &self.budget {
            budget.settle(direction, granted as u64, moved as u64);
        }
    }

    /// Returns true if a datagram of any length may be transferred now.
    pub fn can_consume(&self, direction: TrafficDirection) -> bool {
        let Some(budget) = &self.budget else { return true };
        let is_allowed = budget.next_allowed(self.clock.now(), direction).is_none();
        if !is_allowed {
            budget.end_if_exhausted();
        }
        is_allowed
    }

    /// Consumes the bytes of a transferred datagram.
    pub fn consume(&self, direction: TrafficDirection, bytes: usize) {
        if let Some(budget) = &self.budget {
            budget.consume(self.clock.now(), direction, bytes as u64);
        }
    }

    /// Reserves memory for a larger buffer; returns false if the budget has too little.
    pub(crate) fn try_add_buffer(&self, bytes: usize) -> bool {
        self.budget.as_ref().is_none_or(|budget| budget.try_add_buffer(bytes as u64))
    }

    /// Adds memory that records of the traffic occupy.
    pub fn add_memory(&self, bytes: u64) {
        if let Some(budget) = &self.budget {
            budget.add_memory(bytes);
        }
    }

    /// Returns the underlying clock.
    pub fn clock(&self) -> Clock {
        self.clock
    }

    /// Returns the start of the traffic on the clock.
    pub fn start_time(&self) -> Instant {
        self.start_time
    }

    /// Returns the time since the start of the traffic.
    pub fn now(&self) -> Instant {
        Instant::ZERO + self.clock.now().saturating_since(self.start_time)
    }

    /// Blocks until `time`, relative to the start of the traffic, or until an interrupt.
    pub fn sleep_until(&self, time: Instant) {
        const MAX_SLEEP: Duration = Duration::from_millis(100);
        let end = self.start_time + time.saturating_since(Instant::ZERO);
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

    /// Blocks until `time`, and checks for interrupts at [`POLL_INTERVAL`]. Also waits for the
    /// start of the traffic itself.
    pub fn wait_until(&self, time: Instant) {
        // [`Self::now`] is zero before the start, so that it cannot tell whether zero is reached.
        let end = self.start_time + time.saturating_since(Instant::ZERO);
        loop {
            let now = self.clock.now();
            if now >= end || self.is_interrupted() {
                return;
            }
            self.clock.sleep_until(end.min(now + POLL_INTERVAL));
        }
    }

    /// Requests an immediate end of the traffic.
    pub fn interrupt(&self) {
        self.interrupted.store(true, Ordering::Relaxed);
    }

    /// Ends the traffic at `time`: nothing due later begins. Exchanges begun before may take up to
    /// `timeout` longer.
    pub fn end_at(&self, time: Instant, timeout: Duration) {
        self.end_ns.fetch_min(time.as_nanos(), Ordering::AcqRel);
        self.limit_ns.fetch_min((time + timeout).as_nanos(), Ordering::AcqRel);
    }

    /// Returns the time of the early end, if set.
    pub fn end(&self) -> Option<Instant> {
        let end_ns = self.end_ns.load(Ordering::Acquire);
        (end_ns < u64::MAX).then(|| Instant::from_nanos(end_ns))
    }

    /// Returns true after an interrupt, or if the budget ended the traffic.
    pub fn is_interrupted(&self) -> bool {
        let is_exhausted =
            |traffic_budget: &Arc<TrafficBudget>| traffic_budget.end_reason().is_some();
        self.interrupted.load(Ordering::Relaxed) || self.budget.as_ref().is_some_and(is_exhausted)
    }

    /// Returns true if work due by `deadline` must stop.
    pub fn is_over(&self, deadline: Instant) -> bool {
        let limit = Instant::from_nanos(self.limit_ns.load(Ordering::Acquire));
        self.is_interrupted() || self.now() >= deadline.min(limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: flows at time zero began as soon as their threads did, before the agreed start,
    /// and their early data made the first interval too fast.
    #[test]
    fn a_flow_at_time_zero_does_not_begin_before_the_start_of_the_traffic() {
        let clock = Clock::start();
        let start_time = clock.now() + Duration::from_millis(20);
        let run_clock = RunClock::new(clock, start_time);
        run_clock.wait_until(Instant::ZERO);
        assert!(clock.now() >= start_time);
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_the_start() {
        let clock = Clock::start();
        let run_clock = RunClock::new(clock, clock.now() + Duration::from_secs(3_600));
        run_clock.interrupt();
        run_clock.wait_until(Instant::ZERO);
        assert_eq!(run_clock.now(), Instant::ZERO);
    }
}
