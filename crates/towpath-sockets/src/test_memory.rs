//! Memory of one test on a server: reserved at its start, and grown by its records.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::memory_account::{MemoryAccount, MemoryCharge};

/// Memory that a test requires from its start, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryDemand {
    /// Threads, buffers and windows, in use for as long as the traffic lasts.
    pub setup_bytes: u64,
    /// Records that the plan makes certain.
    pub planned_bytes: u64,
}

impl MemoryDemand {
    /// Returns the whole demand.
    pub fn total_bytes(self) -> u64 {
        self.setup_bytes.saturating_add(self.planned_bytes)
    }
}

/// Gauge that returns the memory of some data in bytes.
type MemoryGauge = Box<dyn Fn() -> u64 + Send + Sync>;

/// Memory of one test, charged to an account.
pub(crate) struct TestMemory {
    charge: MemoryCharge,
    setup_bytes: AtomicU64,
    planned_bytes: u64,
    recorded_bytes: AtomicU64,
    /// Sum of the gauges when they were last read.
    gauge_bytes: AtomicU64,
    gauges: Mutex<Vec<MemoryGauge>>,
}

impl fmt::Debug for TestMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TestMemory").field("charge", &self.charge).finish_non_exhaustive()
    }
}

impl TestMemory {
    pub(crate) fn new(account: &Arc<MemoryAccount>, demand: MemoryDemand) -> Self {
        Self {
            charge: account.charge(demand.total_bytes()),
            setup_bytes: AtomicU64::new(demand.setup_bytes),
            planned_bytes: demand.planned_bytes,
            recorded_bytes: AtomicU64::new(0),
            gauge_bytes: AtomicU64::new(0),
            gauges: Mutex::default(),
        }
    }

    fn lock_gauges(&self) -> MutexGuard<'_, Vec<MemoryGauge>> {
        self.gauges.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Charges what is in use; returns false if the account is above its limit.
    fn update(&self) -> bool {
        let load = |bytes: &AtomicU64| bytes.load(Ordering::Acquire);
        let record_bytes = load(&self.recorded_bytes).saturating_add(load(&self.gauge_bytes));
        let used_bytes =
            record_bytes.max(self.planned_bytes).saturating_add(load(&self.setup_bytes));
        self.charge.raise_to(used_bytes)
    }

    /// Adds records; returns false if the account is above its limit.
    pub(crate) fn add_records(&self, bytes: u64) -> bool {
        self.recorded_bytes.fetch_add(bytes, Ordering::AcqRel);
        self.update()
    }

    /// Adds a buffer if the account has room for it.
    pub(crate) fn try_add_buffer(&self, bytes: u64) -> bool {
        let has_room = self.charge.try_grow(bytes);
        if has_room {
            self.setup_bytes.fetch_add(bytes, Ordering::AcqRel);
        }
        has_room
    }

    pub(crate) fn add_gauge(&self, gauge: MemoryGauge) {
        self.lock_gauges().push(gauge);
    }

    /// Reads all gauges; returns false if the account is above its limit.
    pub(crate) fn read_gauges(&self) -> bool {
        let gauge_bytes = self.lock_gauges().iter().map(|gauge| gauge()).sum();
        self.gauge_bytes.store(gauge_bytes, Ordering::Release);
        gauge_bytes == 0 || self.update()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.charge.bytes()
    }

    /// Releases the charge, after the memory was freed.
    pub(crate) fn release(&self) {
        self.lock_gauges().clear();
        self.charge.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEMAND: MemoryDemand = MemoryDemand { setup_bytes: 100, planned_bytes: 50 };

    #[test]
    fn records_use_up_the_plan_before_the_charge_grows() {
        let account = MemoryAccount::new(1_000);
        let memory = TestMemory::new(&account, DEMAND);
        assert_eq!(account.held_bytes(), 150);
        assert!(memory.add_records(50));
        assert_eq!(account.held_bytes(), 150);
        memory.add_gauge(Box::new(|| 30));
        assert!(memory.read_gauges());
        assert_eq!(account.held_bytes(), 180);
        assert!(!memory.add_records(1_000), "the account is full");
        assert!(!memory.try_add_buffer(1));
        memory.release();
        assert_eq!(account.held_bytes(), 0);
        assert!(memory.try_add_buffer(10));
    }
}
