//! Tests of a server: admission, slots, memory and removal.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towpath_net::{Instant, SourcePrefix};
use towpath_run::token::TestToken;
use towpath_scenario::Scenario;
use towpath_sockets::memory_account::MemoryAccount;
use towpath_sockets::traffic_budget::{RateLimiter, TrafficBudget};

use super::demand::{plan_bytes, resource_demand};
use super::{ClientLiveness, ServerTest, TestState};
use crate::admission::{ResourceUse, mib};
use crate::protocol::{AdmissionError, ServerLimits, TestPlan};
use crate::report_text::ReportText;
use crate::udp_flows::UdpServerFlow;

/// Idle time after which a test may lose its slot to a client without a test.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Share of the memory that results of absent clients may take: one part of this many.
const ABSENT_SHARE: u64 = 8;
/// Minimum number of test slots for which half are reserved for new clients.
const MIN_SHARED_SLOTS: usize = 4;

/// Tests of a server by token.
#[derive(Debug)]
pub(crate) struct TestTable {
    tests: Mutex<BTreeMap<TestToken, Arc<ServerTest>>>,
    memory: Arc<MemoryAccount>,
}

impl TestTable {
    pub(crate) fn new(limits: &ServerLimits) -> Self {
        // While the largest test is being ended, others grow. An eighth more is room for them.
        let max_bytes = limits.memory.saturating_add(limits.memory / 8);
        Self { tests: Mutex::default(), memory: MemoryAccount::new(max_bytes) }
    }

    /// Returns the account of the memory of all tests.
    pub(crate) fn memory(&self) -> &Arc<MemoryAccount> {
        &self.memory
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<TestToken, Arc<ServerTest>>> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a test of `owner`; `None` if another test is about to give up its slot.
    pub(crate) fn admit(
        &self,
        token: TestToken,
        (plan, scenario): (TestPlan, Scenario),
        (owner, rates): (SourcePrefix, Option<Arc<RateLimiter>>),
        (limits, now): (&ServerLimits, Instant),
    ) -> Result<Option<Arc<ServerTest>>, AdmissionError> {
        let mut tests = self.lock();
        let demand = resource_demand(&plan, &scenario);
        demand.check(self.used(&tests), limits)?;
        if let AdmissionResult::Pending = make_room(&mut tests, owner, limits, now)? {
            return Ok(None);
        }
        let udp_flows = UdpServerFlow::from_scenario(&scenario)
            .map_err(|_| AdmissionError::new("it has no randomness", "try again later"))?;
        let budget = TrafficBudget::new(limits.bytes, rates);
        let plan_bytes = plan_bytes(&plan);
        let test = Arc::new(ServerTest {
            token,
            udp_flows,
            plan,
            scenario,
            budget: Arc::new(budget.with_memory(&self.memory, demand.memory)),
            owner,
            threads: demand.threads,
            _plan_charge: self.memory.charge(plan_bytes),
            state: Mutex::new(TestState::Gathering(BTreeMap::new())),
            changed: Condvar::new(),
            liveness: ClientLiveness {
                admitted_at: now,
                control_connections: AtomicUsize::new(0),
                disconnected: AtomicBool::new(false),
                unwanted: AtomicBool::new(false),
                last_seen_ns: AtomicU64::new(now.as_nanos()),
                transferred_bytes: AtomicU64::new(0),
            },
            fetched_bytes: AtomicU64::new(0),
            reservation: Mutex::default(),
        });
        tests.insert(token, Arc::clone(&test));
        Ok(Some(test))
    }

    pub(crate) fn find(&self, token: TestToken) -> Option<Arc<ServerTest>> {
        self.lock().get(&token).cloned()
    }

    /// Removes a test that its client has abandoned. A running test keeps its slot until its
    /// traffic ends.
    pub(crate) fn forget(&self, token: TestToken) {
        let mut tests = self.lock();
        let Some(test) = tests.get(&token) else { return };
        let runs = matches!(&*test.lock(), TestState::Running(_));
        if runs {
            test.liveness.unwanted.store(true, Ordering::Release);
            test.end_early("its client has taken its leave");
        } else {
            remove(&mut tests, token);
        }
    }

    /// Stores the result of a test, unless its client does not want it.
    pub(crate) fn end(
        &self,
        test: &Arc<ServerTest>,
        result: ReportText,
        now: Instant,
        limits: &ServerLimits,
    ) {
        test.end(result, now);
        if test.liveness.unwanted.load(Ordering::Acquire) {
            remove_if(&mut self.lock(), |other| Arc::ptr_eq(other, test));
        }
        self.expire(now, limits);
    }

    /// Removes expired results, and the oldest results if memory is short. Ends tests that are
    /// abandoned, take too long, or use the most memory when it is short.
    pub(crate) fn expire(&self, now: Instant, limits: &ServerLimits) {
        let mut tests = self.lock();
        remove_if(&mut tests, |test| {
            test.ended().is_some_and(|(at, _)| now.saturating_since(at) >= limits.result_retention)
        });
        remove_if(&mut tests, |test| {
            let reason = test.end_reason(now);
            if let Some(reason) = reason {
                test.end_early(reason);
            }
            // Without traffic yet, removal loses no data.
            reason.is_some() && matches!(&*test.lock(), TestState::Gathering(_))
        });
        tests.values().for_each(|test| test.budget.read_gauges());
        self.remove_oldest_results(&mut tests, now, limits);
        // Tests that are ending will soon free their memory.
        let is_ending = |test: &&Arc<ServerTest>| test.budget.end_reason().is_some();
        let ending_bytes: u64 = tests.values().filter(is_ending).map(|test| test.bytes()).sum();
        let mut used_bytes = self.memory.held_bytes().saturating_sub(ending_bytes);
        let mut remaining: Vec<_> = tests.values().filter(|test| !is_ending(test)).collect();
        // Cached: running tests grow while this sorts, and a key that changes is not a total order.
        remaining.sort_by_cached_key(|test| test.bytes());
        while used_bytes > limits.memory {
            let Some(largest) = remaining.pop() else { break };
            let (test_mib, max_mib) = (mib(largest.bytes()), mib(limits.memory));
            largest.end_early(&format!(
                "it needs {test_mib} MiB of memory, and the server has {max_mib} MiB for all tests: see its --max-memory"
            ));
            used_bytes = used_bytes.saturating_sub(largest.bytes());
        }
    }

    /// Removes the oldest results while memory is short, or while those of absent clients take more
    /// than their share.
    fn remove_oldest_results(
        &self,
        tests: &mut BTreeMap<TestToken, Arc<ServerTest>>,
        now: Instant,
        limits: &ServerLimits,
    ) {
        let ended = tests.iter().filter_map(|(token, test)| {
            let (at, bytes) = test.ended()?;
            Some((at, *token, bytes, test.absence(now).is_some()))
        });
        let mut results: Vec<_> = ended.collect();
        results.sort_unstable();
        let is_absent = |result: &&(Instant, TestToken, u64, bool)| result.3;
        let mut absent_bytes: u64 = results.iter().filter(is_absent).map(|result| result.2).sum();
        for (_, token, bytes, is_absent) in results {
            let is_over_share = is_absent && absent_bytes > limits.memory / ABSENT_SHARE;
            if is_over_share || self.memory.held_bytes() > limits.memory {
                remove(tests, token);
                absent_bytes = absent_bytes.saturating_sub(if is_absent { bytes } else { 0 });
            }
        }
    }

    /// Returns the threads and memory in use, except for results, which can be removed.
    fn used(&self, tests: &BTreeMap<TestToken, Arc<ServerTest>>) -> ResourceUse {
        let result_bytes: u64 =
            tests.values().filter_map(|test| test.ended()).map(|(_, bytes)| bytes).sum();
        ResourceUse {
            threads: unfinished(tests).map(|(_, test)| test.threads).sum(),
            bytes: self.memory.held_bytes().saturating_sub(result_bytes),
        }
    }

    /// Returns true if no test is set up or running.
    pub(crate) fn is_idle(&self) -> bool {
        unfinished(&self.lock()).next().is_none()
    }

    /// Stops the traffic of all tests.
    pub(crate) fn stop_all(&self) {
        self.lock().values().for_each(|test| test.stop());
    }
}

/// Removes a test and frees what it holds.
fn remove(tests: &mut BTreeMap<TestToken, Arc<ServerTest>>, token: TestToken) {
    tests.remove(&token).iter().for_each(|test| test.remove());
}

/// Removes all tests that match and frees what they hold.
fn remove_if(
    tests: &mut BTreeMap<TestToken, Arc<ServerTest>>,
    matches: impl Fn(&Arc<ServerTest>) -> bool,
) {
    tests.retain(|_, test| {
        let is_removed = matches(test);
        if is_removed {
            test.remove();
        }
        !is_removed
    });
}

/// Returns the tests that have not ended.
fn unfinished(
    tests: &BTreeMap<TestToken, Arc<ServerTest>>,
) -> impl Iterator<Item = (&TestToken, &Arc<ServerTest>)> {
    tests.iter().filter(|(_, test)| test.ended().is_none())
}

/// Outcome of a request for a test slot.
enum AdmissionResult {
    Admitted,
    /// An idle test was ended and will release its slot soon.
    Pending,
}

/// Frees a slot for a test of `owner` if the limits permit one.
fn make_room(
    tests: &mut BTreeMap<TestToken, Arc<ServerTest>>,
    owner: SourcePrefix,
    limits: &ServerLimits,
    now: Instant,
) -> Result<AdmissionResult, AdmissionError> {
    let count = unfinished(tests).count();
    let own_count = unfinished(tests).filter(|(_, test)| test.owner == owner).count();
    // With enough slots, the last half is reserved for sources without a test.
    let may_use_all = limits.tests < MIN_SHARED_SLOTS || own_count == 0;
    let max_tests = if may_use_all { limits.tests } else { limits.tests.div_ceil(2) };
    if count < max_tests {
        return Ok(AdmissionResult::Admitted);
    }
    let busy_error = || {
        let others =
            if own_count > 0 { format!(", {own_count} of them yours") } else { String::new() };
        let earliest = unfinished(tests).map(|(_, test)| test.remaining_time(now)).min();
        let reason = format!("it is busy with {count} tests{others}");
        AdmissionError::busy(reason, earliest.unwrap_or_default())
    };
    if own_count > 0 {
        return Err(busy_error());
    }
    if unfinished(tests).any(|(_, test)| test.budget.end_reason().is_some()) {
        return Ok(AdmissionResult::Pending);
    }
    // The source with the most tests loses the one that was idle longest.
    let mut counts: BTreeMap<SourcePrefix, usize> = BTreeMap::new();
    unfinished(tests).for_each(|(_, test)| *counts.entry(test.owner).or_default() += 1);
    let idle = unfinished(tests).filter_map(|(token, test)| {
        let idle_since = test.idle_since(now);
        let idle =
            now.saturating_since(idle_since) > IDLE_TIMEOUT && test.budget.end_reason().is_none();
        idle.then(|| (Reverse(counts.get(&test.owner).copied()), idle_since, *token))
    });
    let (_, _, token) = idle.min().ok_or_else(busy_error)?;
    let Some(test) = tests.get(&token) else { return Err(busy_error()) };
    test.end_early("the test was idle, and another client needed its slot");
    if matches!(&*test.lock(), TestState::Running(_)) {
        return Ok(AdmissionResult::Pending);
    }
    remove(tests, token);
    Ok(AdmissionResult::Admitted)
}

#[cfg(test)]
mod tests;
