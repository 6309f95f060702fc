//! Traffic budget of a server's test: bytes, rate, and memory for records.
//!
//! A [`RateLimiter`] limits the throughput of one client in each direction. A [`TrafficBudget`]
//! limits one test. A thread reserves bytes before a transfer and reports afterwards how many were
//! transferred. Concurrent threads therefore never exceed the budget.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use towpath_net::{Instant, Rate};

use crate::memory_account::MemoryAccount;
use crate::test_memory::{MemoryDemand, TestMemory};

/// Duration of one grant at the configured rate; short, so that all waiting threads make progress.
const QUANTUM: Duration = Duration::from_millis(5);
/// Minimum and maximum bytes of one grant.
const MIN_GRANT_BYTES: u64 = 1_500;
const MAX_GRANT_BYTES: u64 = 128 * 1024;
/// Maximum unused time of a rate that may be caught up later.
const MAX_CATCH_UP: Duration = Duration::from_millis(20);

/// Token bucket of one direction.
#[derive(Debug)]
struct RateBucket {
    rate: Rate,
    /// Time until which the granted bytes occupy the rate.
    busy_until: Instant,
}

impl RateBucket {
    fn new(rate: Rate) -> Self {
        Self { rate, busy_until: Instant::ZERO }
    }

    /// Grants up to `most` bytes; an error is the time of the next attempt.
    fn take(&mut self, now: Instant, max_bytes: u64) -> Result<u64, Instant> {
        if self.busy_until > now {
            return Err(self.busy_until);
        }
        let quantum = self.rate.bytes_in(QUANTUM).clamp(MIN_GRANT_BYTES, MAX_GRANT_BYTES);
        let granted = max_bytes.min(quantum);
        self.consume(now, granted);
        Ok(granted)
    }

    fn consume(&mut self, now: Instant, bytes: u64) {
        let earliest = Instant::ZERO + now.saturating_since(Instant::ZERO + MAX_CATCH_UP);
        self.busy_until = self.busy_until.max(earliest) + self.rate.time_for(bytes);
    }

    fn refund(&mut self, bytes: u64) {
        let span = self.rate.time_for(bytes);
        self.busy_until = Instant::ZERO + self.busy_until.saturating_since(Instant::ZERO + span);
    }
}

/// Direction of data, seen from this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrafficDirection {
    /// From the peer to this host.
    Inbound,
    /// From this host to the peer.
    Outbound,
}

/// Rate limiter of one client, for each direction.
#[derive(Debug)]
pub struct RateLimiter {
    inbound: Mutex<RateBucket>,
    outbound: Mutex<RateBucket>,
}

impl RateLimiter {
    /// Creates a token bucket of this rate in each direction.
    pub fn new(rate: Rate) -> Self {
        Self {
            inbound: Mutex::new(RateBucket::new(rate)),
            outbound: Mutex::new(RateBucket::new(rate)),
        }
    }

    fn bucket(&self, direction: TrafficDirection) -> MutexGuard<'_, RateBucket> {
        let bucket = match direction {
            TrafficDirection::Inbound => &self.inbound,
            TrafficDirection::Outbound => &self.outbound,
        };
        bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Grants up to `most` bytes; an error is the time of the next attempt. Unused bytes are
    /// [refunded](Self::refund).
    pub(crate) fn reserve(
        &self,
        now: Instant,
        direction: TrafficDirection,
        max_bytes: u64,
    ) -> Result<u64, Instant> {
        self.bucket(direction).take(now, max_bytes)
    }

    /// Consumes bytes that were transferred without a grant; returns when more may follow.
    pub fn consume(&self, now: Instant, direction: TrafficDirection, bytes: u64) -> Instant {
        let mut bucket = self.bucket(direction);
        bucket.consume(now, bytes);
        bucket.busy_until
    }

    pub(crate) fn refund(&self, direction: TrafficDirection, bytes: u64) {
        self.bucket(direction).refund(bytes);
    }

    /// Consumes `bytes` in both directions and returns true, if both permit a transfer now.
    pub fn try_consume_both(&self, now: Instant, bytes: u64) -> bool {
        let (mut inbound, mut outbound) =
            (self.bucket(TrafficDirection::Inbound), self.bucket(TrafficDirection::Outbound));
        let is_allowed = inbound.busy_until <= now && outbound.busy_until <= now;
        if is_allowed {
            inbound.consume(now, bytes);
            outbound.consume(now, bytes);
        }
        is_allowed
    }
}

/// Budget of one test.
#[derive(Default)]
pub struct TrafficBudget {
    /// Remaining bytes of both directions together; `None` without a limit.
    bytes: Option<AtomicU64>,
    rates: Option<Arc<RateLimiter>>,
    /// Total bytes transferred in both directions.
    transferred_bytes: AtomicU64,
    /// Memory of the test; `None` without an account.
    memory: Option<TestMemory>,
    /// Reason of the early end.
    end_reason: OnceLock<String>,
}

impl fmt::Debug for TrafficBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("TrafficBudget");
        f.field("transferred_bytes", &self.transferred_bytes())
            .field("memory_bytes", &self.memory_bytes())
            .finish_non_exhaustive()
    }
}

impl TrafficBudget {
    /// Creates a budget of `bytes` and shared rate limits; `None` means no limit.
    pub fn new(bytes: Option<u64>, rates: Option<Arc<RateLimiter>>) -> Self {
        Self { bytes: bytes.map(AtomicU64::new), rates, ..Self::default() }
    }

    /// Charges the test's memory to an account: `demand` at once, and all further growth.
    #[must_use]
    pub fn with_memory(self, account: &Arc<MemoryAccount>, demand: MemoryDemand) -> Self {
        Self { memory: Some(TestMemory::new(account, demand)), ..self }
    }

    /// Grants up to `most` bytes; an error is the time of the next attempt. With an exhausted
    /// budget, every attempt fails. A grant must be [settled](Self::settle).
    pub(crate) fn reserve(
        &self,
        now: Instant,
        direction: TrafficDirection,
        max_bytes: u64,
    ) -> Result<u64, Instant> {
        let granted = match &self.rates {
            Some(rates) => rates.reserve(now, direction, max_bytes)?,
            None => max_bytes,
        };
        let Some(bytes) = &self.bytes else { return Ok(granted) };
        let subtract = |remaining: u64| (remaining > 0).then(|| remaining - granted.min(remaining));
        let remaining =
            bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, subtract).unwrap_or(0);
        let reserved = granted.min(remaining);
        self.refund_rate(direction, granted - reserved);
        if reserved > 0 { Ok(reserved) } else { Err(now + MAX_CATCH_UP) }
    }

    /// Records how many of the granted bytes were transferred, and refunds the rest.
    pub(crate) fn settle(&self, direction: TrafficDirection, granted: u64, transferred: u64) {
        self.transferred_bytes.fetch_add(transferred, Ordering::Relaxed);
        let unused = granted.saturating_sub(transferred);
        if unused > 0 {
            self.refund_rate(direction, unused);
            if let Some(bytes) = &self.bytes {
                bytes.fetch_add(unused, Ordering::AcqRel);
            }
        }
    }

    /// Returns the earliest time of a transfer of unknown size; `None` if one is permitted now.
    pub(crate) fn next_allowed(
        &self,
        now: Instant,
        direction: TrafficDirection,
    ) -> Option<Instant> {
        if self.is_exhausted() {
            return Some(now + MAX_CATCH_UP);
        }
        let due = self.rates.as_ref()?.bucket(direction).busy_until;
        (due > now).then_some(due)
    }

    /// Consumes bytes that were transferred without a grant.
    pub(crate) fn consume(&self, now: Instant, direction: TrafficDirection, transferred: u64) {
        self.transferred_bytes.fetch_add(transferred, Ordering::Relaxed);
        if let Some(rates) = &self.rates {
            rates.consume(now, direction, transferred);
        }
        if let Some(bytes) = &self.bytes {
            let subtract = |remaining: u64| Some(remaining.saturating_sub(transferred));
            // The closure always returns Some.
            let _ = bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, subtract);
        }
    }

    /// Consumes bytes that were transferred outside the traffic, without the rate limit. Returns
    /// false if the budget was exhausted.
    pub fn consume_bytes(&self, transferred: u64) -> bool {
        let Some(bytes) = &self.bytes else { return true };
        let subtract = |remaining: u64| Some(remaining.saturating_sub(transferred));
        bytes
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, subtract)
            .is_ok_and(|remaining| remaining > 0)
    }

    fn refund_rate(&self, direction: TrafficDirection, bytes: u64) {
        if let Some(rates) = self.rates.as_ref().filter(|_| bytes > 0) {
            rates.refund(direction, bytes);
        }
    }

    /// Returns true if all bytes are consumed.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.bytes.as_ref().is_some_and(|remaining| remaining.load(Ordering::Acquire) == 0)
    }

    /// Adds memory of records, which remains in use during the traffic. Ends the traffic if the
    /// server's memory is exhausted.
    pub fn add_memory(&self, bytes: u64) {
        if self.memory.as_ref().is_some_and(|memory| !memory.add_records(bytes)) {
            self.end_for_memory();
        }
    }

    /// Reserves memory for a larger buffer; returns false if the server has too little.
    pub(crate) fn try_add_buffer(&self, bytes: u64) -> bool {
        self.memory.as_ref().is_none_or(|memory| memory.try_add_buffer(bytes))
    }

    /// Adds a gauge of memory in use.
    pub fn add_gauge(&self, gauge: impl Fn() -> u64 + Send + Sync + 'static) {
        if let Some(memory) = &self.memory {
            memory.add_gauge(Box::new(gauge));
        }
    }

    /// Reads all gauges. Ends the traffic if the server's memory is exhausted.
    pub fn read_gauges(&self) {
        if self.memory.as_ref().is_some_and(|memory| !memory.read_gauges()) {
            self.end_for_memory();
        }
    }

    /// Returns the memory charged to the test, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, TestMemory::bytes)
    }

    /// Releases the charge and all gauges, after the memory was freed.
    pub fn release_memory(&self) {
        self.memory.iter().for_each(TestMemory::release);
    }

    fn end_for_memory(&self) {
        self.end("the server's memory for tests is exhausted (--max-memory)");
    }

    /// Returns the total bytes transferred in both directions.
    pub fn transferred_bytes(&self) -> u64 {
        self.transferred_bytes.load(Ordering::Relaxed)
    }

    /// Ends the traffic early; only the first reason is kept.
    pub fn end(&self, reason: impl Into<String>) {
        let _ = self.end_reason.set(reason.into()); // fails if a reason is set
    }

    /// Ends the traffic if the budget is exhausted. Called after a failed reservation.
    pub(crate) fn end_if_exhausted(&self) {
        if self.is_exhausted() {
            self.end("the test reached the server's limit of bytes (--max-bytes)");
        }
    }

    /// Returns the reason of an early end, if any.
    pub fn end_reason(&self) -> Option<&str> {
        self.end_reason.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    proptest! {
        /// Holds for any number of reservations and any refunds.
        #[test]
        fn concurrent_users_of_a_quota_do_not_exceed_the_rate(
            requests in proptest::collection::vec((0_u64..3_000, 1_u64..200_000, 0_u64..200_000), 1..300),
        ) {
            let rate = Rate::from_bps(8_000_000).unwrap();
            let rates = RateLimiter::new(rate);
            let (mut now, mut transferred) = (ms(1_000), 0_u64);
            for (wait_us, requested, refunded) in requests {
                now += Duration::from_micros(wait_us);
                if let Ok(granted) = rates.reserve(now, TrafficDirection::Outbound, requested) {
                    prop_assert!(granted <= requested);
                    let used = granted - refunded.min(granted);
                    rates.refund(TrafficDirection::Outbound, granted - used);
                    transferred += used;
                }
            }
            let span = now.saturating_since(ms(1_000)) + MAX_CATCH_UP + QUANTUM;
            prop_assert!(transferred <= rate.bytes_in(span) + MIN_GRANT_BYTES, "{} in {:?}", transferred, span);
        }

        #[test]
        fn no_more_bytes_are_transferred_than_the_budget_holds(
            max_bytes in 0_u64..100_000, requests in proptest::collection::vec((1_u64..20_000, 0_u64..3), 1..100),
        ) {
            let budget = TrafficBudget::new(Some(max_bytes), None);
            for (requested, half_parts) in requests {
                if let Ok(granted) = budget.reserve(ms(0), TrafficDirection::Inbound, requested) {
                    budget.settle(TrafficDirection::Inbound, granted, granted * half_parts / 2);
                }
                prop_assert!(budget.transferred_bytes() <= max_bytes);
                prop_assert_eq!(budget.is_exhausted(), budget.transferred_bytes() == max_bytes);
            }
        }
    }

    #[test]
    fn a_waiting_sender_gets_the_rate() {
        let rate = Rate::from_bps(8_000_000).unwrap();
        let rates = RateLimiter::new(rate);
        let (mut now, mut granted_bytes) = (ms(1_000), 0);
        while now < ms(3_000) {
            match rates.reserve(now, TrafficDirection::Inbound, 1 << 20) {
                Ok(granted) => granted_bytes += granted,
                Err(due) => now = due,
            }
        }
        assert!((2_000_000..2_100_000).contains(&granted_bytes), "{granted_bytes}");
        assert!(
            rates.reserve(now + MAX_CATCH_UP, TrafficDirection::Outbound, 1).is_ok(),
            "the other way is free"
        );
    }

    #[test]
    fn the_first_end_reason_is_kept() {
        let budget = TrafficBudget::default();
        assert_eq!(budget.end_reason(), None);
        budget.end("first");
        budget.end("second");
        assert_eq!(budget.end_reason(), Some("first"));
    }
}
