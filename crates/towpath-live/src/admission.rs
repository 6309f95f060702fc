//! Admission control of a server: connection permits, tests, threads, memory and rates.
//!
//! Three rules protect [sources](SourcePrefix) from each other. When all permits are in use, the
//! source with the most permits loses its oldest one. The last half of the test slots is reserved
//! for sources without a test. A test gets at most half of the free threads and of the free memory.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use towpath_net::{Instant, Rate, SourcePrefix};
use towpath_os::clock::Clock;
use towpath_sockets::test_memory::MemoryDemand;
use towpath_sockets::traffic_budget::{RateLimiter, TrafficDirection};

use crate::eviction::EvictionPolicy;
use crate::protocol::{AdmissionError, ServerLimits};

/// Rate of a source's echo streams, control messages and results. More is never needed, and
/// limiting it does not distort a test.
const CONTROL_RATE: Option<Rate> = Rate::from_bps(200_000_000);
/// Longest single sleep while a source is throttled.
const MAX_WAIT: Duration = Duration::from_millis(100);
/// Idle time after which a source is removed.
const SOURCE_EXPIRY: Duration = Duration::from_secs(2);
/// Maximum number of tracked sources; all further ones share one quota.
const MAX_SOURCES: usize = 16 * 1024;

/// Quota of a source for each direction.
#[derive(Debug)]
pub(super) struct SourceQuota {
    /// Limit of all traffic of the source; `None` if the server has no rate limit.
    pub(super) total_rates: Option<Arc<RateLimiter>>,
    control_rates: Option<RateLimiter>,
}

impl SourceQuota {
    fn new(rate: Option<Rate>) -> Self {
        Self {
            total_rates: rate.map(|rate| Arc::new(RateLimiter::new(rate))),
            control_rates: CONTROL_RATE.map(RateLimiter::new),
        }
    }

    /// Consumes the rate of transferred control bytes and sleeps until more may follow. Stops
    /// waiting on an interrupt.
    pub(super) fn consume_blocking(&self, clock: Clock, direction: TrafficDirection, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let due = self.consume(clock.now(), direction, bytes);
        while clock.now() < due && !towpath_os::interrupt::is_interrupted() {
            clock.sleep_until(due.min(clock.now() + MAX_WAIT));
        }
    }

    /// Consumes the rate of transferred control bytes; returns when more may follow.
    pub(super) fn consume(&self, now: Instant, direction: TrafficDirection, bytes: u64) -> Instant {
        let rates = self.control_rates.iter().chain(self.total_rates.as_deref());
        rates.map(|rates| rates.consume(now, direction, bytes)).fold(now, Instant::max)
    }

    /// Returns true and consumes the rate if the limit permits a reply of `bytes` bytes to a
    /// datagram.
    pub(super) fn try_consume_reply(&self, now: Instant, bytes: u64) -> bool {
        self.total_rates.as_ref().is_none_or(|limiter| limiter.try_consume_both(now, bytes))
    }
}

/// Callback that closes a connection from outside.
pub(super) type CloseFn = Box<dyn FnOnce() + Send>;

/// Connection permit that is in use.
struct PermitEntry {
    source: SourcePrefix,
    /// True if the permit belongs to a test and cannot be revoked.
    pinned: bool,
    close: Option<CloseFn>,
}

impl PermitEntry {
    fn is_revocable(&self) -> bool {
        !self.pinned && self.close.is_some()
    }
}

struct ConnectionTable {
    /// Permits by number, so in order of age.
    permits: BTreeMap<u64, PermitEntry>,
    next_number: u64,
    /// Quota of each source, and time of its last use.
    sources: BTreeMap<SourcePrefix, (Arc<SourceQuota>, Instant)>,
    eviction: EvictionPolicy,
}

/// Permits and rate quotas of a server.
pub(super) struct AdmissionControl {
    max_connections: usize,
    rate: Option<Rate>,
    clock: Clock,
    table: Mutex<ConnectionTable>,
    /// Shared quota of the sources beyond `MAX_SOURCES`.
    shared_quota: Arc<SourceQuota>,
}

/// Permit for a connection with a thread or of comparable cost; released on drop.
pub(super) struct ConnectionPermit {
    budget: Arc<AdmissionControl>,
    number: u64,
}

impl ConnectionPermit {
    /// Pins the permit to a test, so that it cannot be revoked.
    pub(super) fn pin(&self) {
        if let Some(entry) = self.budget.lock().permits.get_mut(&self.number) {
            entry.pinned = true;
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.budget.lock().permits.remove(&self.number);
    }
}

impl AdmissionControl {
    pub(super) fn new(limits: &ServerLimits, clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            max_connections: limits
                .max_pending
                .saturating_add(limits.tests.saturating_mul(2))
                .max(1),
            rate: limits.rate,
            clock,
            table: Mutex::new(ConnectionTable {
                permits: BTreeMap::new(),
                next_number: 0,
                sources: BTreeMap::new(),
                eviction: EvictionPolicy::unpredictable(),
            }),
            shared_quota: Arc::new(SourceQuota::new(limits.rate)),
        })
    }

    fn lock(&self) -> MutexGuard<'_, ConnectionTable> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires a permit. If all are in use, the source with the most unpinned permits loses its
    /// oldest one. Returns `None` if all belong to tests, or if too many revoked permits are still
    /// in use. The limit of revoked permits is lower for a source that owns some of them. Otherwise
    /// a source that reconnects again and again would block all others.
    pub(super) fn acquire(
        self: &Arc<Self>,
        source: SourcePrefix,
        pinned: bool,
        close: CloseFn,
    ) -> Option<ConnectionPermit> {
        let mut table = self.lock();
        let revoked = || table.permits.values().filter(|entry| entry.close.is_none());
        let divisor = if revoked().any(|entry| entry.source == source) { 4 } else { 2 };
        let revoked = revoked().count();
        if revoked > self.max_connections / divisor {
            return None;
        }
        let evicted = if table.permits.len() - revoked >= self.max_connections {
            Some(table.evict()?)
        } else {
            None
        };
        let number = table.next_number;
        table.next_number += 1;
        table.permits.insert(number, PermitEntry { source, pinned, close: Some(close) });
        drop(table);
        // Called without the lock, since closing may drop a permit.
        if let Some(close_evicted) = evicted {
            close_evicted();
        }
        Some(ConnectionPermit { budget: Arc::clone(self), number })
    }

    /// Returns the number of permits in use, including revoked ones.
    pub(super) fn in_use(&self) -> usize {
        self.lock().permits.len()
    }

    /// Returns the quota of a source.
    pub(super) fn quota(&self, source: SourcePrefix) -> Arc<SourceQuota> {
        let now = self.clock.now();
        let mut table = self.lock();
        let source_count = table.sources.len();
        if let Some((quota, last_used)) = table.sources.get_mut(&source) {
            *last_used = now;
            return Arc::clone(quota);
        }
        if source_count >= MAX_SOURCES {
            return Arc::clone(&self.shared_quota);
        }
        let quota = Arc::new(SourceQuota::new(self.rate));
        table.sources.insert(source, (Arc::clone(&quota), now));
        quota
    }

    /// Removes the quotas of idle sources.
    pub(super) fn expire(&self, now: Instant) {
        self.lock().sources.retain(|_, (quota, last_used)| {
            Arc::strong_count(quota) > 1 || now.saturating_since(*last_used) < SOURCE_EXPIRY
        });
    }
}

impl ConnectionTable {
    /// Revokes the oldest unpinned permit of the source with the most permits; returns the callback
    /// that closes its connection.
    fn evict(&mut self) -> Option<CloseFn> {
        let revocable = self.permits.iter().filter(|(_, entry)| entry.is_revocable());
        let chosen =
            self.eviction.choose(revocable.map(|(number, entry)| (*number, entry.source)))?;
        self.permits.get_mut(&chosen)?.close.take()
    }
}

/// Spawns a thread for a connection with a permit; returns an error if the system refuses.
pub(super) fn spawn_thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// Resources that a test requires from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ResourceDemand {
    pub(super) threads: u64,
    pub(super) memory: MemoryDemand,
}

/// Resources of a server that are in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ResourceUse {
    pub(super) threads: u64,
    /// Memory of all tests in bytes.
    pub(super) bytes: u64,
}

/// Maximum number of threads of all tests together.
pub(super) const MAX_THREADS: u64 = 1_536;

impl ResourceDemand {
    /// Checks that the demand is at most half of what remains beyond `used`.
    pub(super) fn check(
        self,
        used: ResourceUse,
        limits: &ServerLimits,
    ) -> Result<(), AdmissionError> {
        let half_of_remaining = |total: u64, used: u64| total.saturating_sub(used) / 2;
        let memory = half_of_remaining(limits.memory, used.bytes);
        let needed_bytes = self.memory.total_bytes();
        if needed_bytes > memory {
            let (needed_mib, max_mib) = (mib(needed_bytes), mib(memory));
            let reason = format!(
                "it needs {needed_mib} MiB of memory, but this server allows {max_mib} MiB"
            );
            let hint = "use fewer streams (-P) or smaller blocks (-l), or start the server with a \
                        larger --max-memory";
            return Err(AdmissionError::new(reason, hint));
        }
        let threads = half_of_remaining(MAX_THREADS, used.threads);
        if self.threads > threads {
            let needed = self.threads;
            let reason = format!("it needs {needed} threads, but this server allows {threads}");
            return Err(AdmissionError::new(reason, "use fewer streams (-P), or try again later"));
        }
        Ok(())
    }
}

pub(super) fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use proptest::prelude::*;

    use super::*;

    fn source(last: u8) -> SourcePrefix {
        SourcePrefix::of(IpAddr::from([10, 0, 0, last]))
    }

    fn limits() -> ServerLimits {
        ServerLimits { max_pending: 8, tests: 1, ..ServerLimits::default() }
    }

    fn close() -> CloseFn {
        Box::new(|| ())
    }

    #[test]
    fn a_new_source_evicts_the_oldest_slot_of_the_largest_source() {
        let budget = AdmissionControl::new(&limits(), Clock::start());
        let closed = Arc::new(AtomicUsize::new(0));
        let on_close = |number: usize| -> CloseFn {
            let closed = Arc::clone(&closed);
            Box::new(move || closed.store(number, Ordering::Relaxed))
        };
        let first_permit = budget.acquire(source(2), false, on_close(100)).unwrap();
        let crowd_permits: Vec<_> = (1..10)
            .map(|number| budget.acquire(source(1), false, on_close(number)).unwrap())
            .collect();
        assert_eq!(closed.load(Ordering::Relaxed), 0);
        let new_permit = budget.acquire(source(3), false, close()).unwrap();
        assert_eq!(closed.load(Ordering::Relaxed), 1, "the crowd's oldest");
        let crowd_permit = budget.acquire(source(1), false, close()).unwrap();
        assert_eq!(closed.load(Ordering::Relaxed), 2, "the crowd pays itself");
        drop((first_permit, crowd_permits, new_permit, crowd_permit));
        assert_eq!(budget.in_use(), 0);
    }

    #[test]
    fn permits_of_tests_and_of_running_threads_are_not_reassigned() {
        let budget = AdmissionControl::new(&limits(), Clock::start());
        let pinned: Vec<_> =
            (0..10).map(|_| budget.acquire(source(1), false, close()).unwrap()).collect();
        pinned.iter().for_each(ConnectionPermit::pin);
        assert!(budget.acquire(source(2), false, close()).is_none());
        drop(pinned);
        let running: Vec<_> =
            (0..10).map(|_| budget.acquire(source(1), false, close()).unwrap()).collect();
        // The connections are closed, but their threads still run.
        let new_permits: Vec<_> =
            (0..10).map_while(|_| budget.acquire(source(2), false, close())).collect();
        // Half of the permits, and one more.
        assert_eq!(new_permits.len(), 6);
        // The limit is lower for the source that owns revoked permits.
        assert!(budget.acquire(source(1), false, close()).is_none());
        drop((running, new_permits));
        assert!(budget.acquire(source(2), false, close()).is_some());
    }

    #[test]
    fn a_test_may_take_half_of_the_remaining_budget() {
        let limits = ServerLimits { memory: 100 << 20, ..ServerLimits::default() };
        let demand = |threads, mib: u64| {
            let memory = MemoryDemand { setup_bytes: mib << 19, planned_bytes: mib << 19 };
            ResourceDemand { threads, memory }
        };
        let unused = ResourceUse::default();
        assert!(demand(2, 50).check(unused, &limits).is_ok());
        let refused = demand(2, 51).check(unused, &limits).unwrap_err();
        assert!(
            refused.reason.contains("51 MiB") && refused.reason.contains("allows 50"),
            "{refused:?}"
        );
        let half_used = ResourceUse { threads: 2, bytes: 50 << 20 };
        assert!(demand(2, 25).check(half_used, &limits).is_ok());
        assert!(demand(2, 26).check(half_used, &limits).is_err());
        let many_threads = demand(MAX_THREADS / 2 + 1, 0);
        assert!(many_threads.check(unused, &limits).unwrap_err().reason.contains("threads"));
    }

    proptest! {
        /// For any order of arrivals and departures, a source without a permit gets one while
        /// another source has two unpinned permits. The number of permits never exceeds the limit.
        #[test]
        fn a_source_without_a_permit_gets_one(steps in proptest::collection::vec((0_u8..4, 0_u8..3), 1..200)) {
            let budget = AdmissionControl::new(&limits(), Clock::start());
            let mut permits: Vec<(u8, ConnectionPermit)> = Vec::new();
            for (source_number, step) in steps {
                match step {
                    0 if !permits.is_empty() => {
                        let index = usize::from(source_number) % permits.len();
                        permits.remove(index);
                    }
                    _ => {
                        // Revoked connections end at once.
                        let numbers: Vec<u64> = permits.iter().map(|(_, permit)| permit.number).collect();
                        let permit = budget.acquire(source(source_number), false, close());
                        prop_assert!(permit.is_some());
                        permits.extend(permit.map(|permit| (source_number, permit)));
                        let is_revoked = |number: u64| {
                            budget.lock().permits.get(&number).is_some_and(|entry| entry.close.is_none())
                        };
                        let revoked: Vec<u64> = numbers.into_iter().filter(|number| is_revoked(*number)).collect();
                        permits.retain(|(_, permit)| !revoked.contains(&permit.number));
                    }
                }
                prop_assert_eq!(budget.in_use(), permits.len());
                prop_assert!(permits.len() <= 10);
            }
        }
    }
}
