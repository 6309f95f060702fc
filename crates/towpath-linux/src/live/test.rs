//! The server's tests: those that run, and the results of those that have ended.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::stamp::DatagramHeader;
use towpath_measure::live::{AdmissionError, ServerLimits, TestPlan, TestToken, length};
use towpath_measure::scenario::{DataDirection, Pattern, Scenario};
use towpath_measure::traffic::talk::{RECEIVED_REQUEST_BYTES, SENT_REQUEST_BYTES};
use towpath_measure::traffic::udp::{RECEIVER_MEMORY_BYTES, ROW_MEMORY_BYTES, planned_rows};
use towpath_measure::traffic::{directions, planned_requests, streams};
use towpath_net::Instant;
use towpath_quic::tls::TlsSession;

use super::budget::{ResourceDemand, SourcePrefix, mib};
use super::end::{FlowStream, expected_streams};
use super::line::DataStream;
use super::session::patience;
use super::socket;
use super::steady::UdpServerFlow;
use crate::clock::Clock;
use crate::pace::RunClock;
use crate::purse::{RateLimiter, TrafficBudget};
use crate::traffic::is_quic;
use crate::traffic::kernel::BLOCK_BYTES;
use crate::traffic::wire::SocketStream;

/// How long the handshake of TLS may take.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// A client that has taken its leave may come back within so long.
const RETURN_TIMEOUT: Duration = Duration::from_secs(8);
/// One of which nothing is heard or seen: a path that is gone says nothing, and may come back.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// From being admitted to the traffic.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// A test that has moved nothing for so long may lose its place to a client that has none.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// With fewer places nothing is kept for newcomers.
const MIN_SHARED_SLOTS: usize = 4;
/// Control connections that keep their seats for a test: a client that comes back may have several
/// old ones of which it is not known yet that they are dead.
const MAX_CONTROL_CONNECTIONS: usize = 8;

/// One test.
#[derive(Debug)]
pub(super) struct ServerTest {
    pub(super) plan: TestPlan,
    pub(super) scenario: Scenario,
    pub(super) budget: Arc<TrafficBudget>,
    /// What its data and datagrams name it by.
    pub(super) token: TestToken,
    /// Its flows of datagrams at a constant rate.
    pub(super) udp_flows: BTreeMap<u32, Arc<UdpServerFlow>>,
    owner: SourcePrefix,
    demand: ResourceDemand,
    state: Mutex<TestState>,
    changed: Condvar,
    signs: ClientLiveness,
    /// Bytes of its result that its client was sent.
    handed_over: AtomicU64,
}

/// What is seen of a test's client.
#[derive(Debug)]
struct ClientLiveness {
    admitted: Instant,
    /// Its control connections.
    attending: AtomicUsize,
    /// It has closed the last one.
    left: AtomicBool,
    /// It does not want the result.
    unwanted: AtomicBool,
    /// Latest sign of it, and what had been moved then.
    latest_ns: AtomicU64,
    moved: AtomicU64,
}

/// Held by a control connection of a test. However that ends, its client has left, unless it was
/// lost.
#[derive(Debug)]
pub(super) struct ClientGuard {
    test: Arc<ServerTest>,
    clock: Clock,
    lost: bool,
}

impl ClientGuard {
    /// Its connection was not closed: nothing comes over it any more.
    pub(super) fn mark_lost(&mut self) {
        self.lost = true;
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.test.touch(self.clock.now());
        if !self.lost {
            self.test.signs.left.store(true, Ordering::Release);
        }
        self.test.signs.attending.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
enum TestState {
    /// Connections come in.
    Gathering(BTreeMap<(u16, u16), DataStream>),
    Running(Arc<RunClock>),
    Ended {
        result: Arc<String>,
        at: Instant,
    },
}

impl ServerTest {
    /// Notes that its client has a control connection; whether it belongs to those that keep theirs.
    pub(super) fn attach_control(self: &Arc<Self>, clock: Clock) -> (ClientGuard, bool) {
        let before = self.signs.attending.fetch_add(1, Ordering::AcqRel);
        self.signs.left.store(false, Ordering::Release);
        (
            ClientGuard { test: Arc::clone(self), clock, lost: false },
            before < MAX_CONTROL_CONNECTIONS,
        )
    }

    /// Notes that something of its client was seen.
    pub(super) fn touch(&self, now: Instant) {
        self.signs.latest_ns.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Since when there is no sign of its client; at most now.
    fn idle_since(&self, now: Instant) -> Instant {
        let moved = self.budget.moved_bytes();
        if self.signs.moved.swap(moved, Ordering::AcqRel) != moved {
            self.touch(now);
        }
        Instant::from_nanos(self.signs.latest_ns.load(Ordering::Acquire)).min(now)
    }

    /// Why it must end now, if it must.
    fn end_reason(&self, now: Instant) -> Option<&'static str> {
        let quiet = now.saturating_since(self.idle_since(now));
        let left = self.signs.left.load(Ordering::Acquire);
        if self.signs.attending.load(Ordering::Acquire) == 0 {
            if left && quiet > RETURN_TIMEOUT {
                return Some("its client has left");
            }
            if quiet > CLIENT_TIMEOUT {
                return Some("nothing is seen of its client");
            }
        }
        match &*self.lock() {
            TestState::Gathering(_) => (now.saturating_since(self.signs.admitted) > SETUP_TIMEOUT)
                .then_some("its traffic has not begun"),
            TestState::Running(pace) => (pace.now()
                > Instant::ZERO + length(&self.scenario) + RETURN_TIMEOUT)
                .then_some("it takes longer than planned"),
            TestState::Ended { .. } => None,
        }
    }

    /// Ends it before its time.
    fn end_early(&self, why: &str) {
        self.budget.end(why);
        self.stop();
    }

    /// Memory that it takes.
    fn bytes(&self) -> u64 {
        match &*self.lock() {
            TestState::Ended { result, .. } => return result.len() as u64,
            TestState::Gathering(_) | TestState::Running(_) => {}
        }
        self.demand.bytes.max(self.budget.memory_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, TestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a connection of the kernel.
    pub(super) fn attach(&self, place: (u16, u16), data: Socket) {
        if self.set_up(&data).is_ok() {
            self.add(place, DataStream::Socket(SocketStream::Plain(Arc::new(data))));
        }
    }

    /// Adds a connection of the kernel after a few words with its client, for which it waits.
    pub(super) fn attach_with_tls(
        &self,
        place: (u16, u16),
        data: Socket,
        session: TlsSession,
        clock: Clock,
    ) {
        let deadline = clock.now() + TLS_HANDSHAKE_TIMEOUT;
        if self.set_up(&data).is_ok()
            && let Ok((wire, _)) = SocketStream::handshake(data, session, (clock, deadline))
        {
            self.add(place, DataStream::Socket(wire));
        }
    }

    fn set_up(&self, data: &Socket) -> io::Result<()> {
        data.set_nonblocking(false)?;
        let _ = data.set_tcp_nodelay(true); // best effort
        socket::configure(data, &self.plan.settings);
        Ok(())
    }

    /// Whether a connection of the kernel is missing.
    pub(super) fn is_missing(&self, place: (u16, u16)) -> bool {
        let TestState::Gathering(found) = &*self.lock() else { return false };
        !is_quic(self.plan.transport)
            && expected_streams(&self.scenario).contains(&place)
            && !found.contains_key(&place)
    }

    /// Adds a line; whether it is one of those that are needed.
    pub(super) fn add(&self, place: (u16, u16), line: DataStream) -> bool {
        let fits = match &line {
            DataStream::Quic(_) => is_quic(self.plan.transport),
            DataStream::Socket(wire) => {
                let has_tls = matches!(wire, SocketStream::Tls(_));
                !is_quic(self.plan.transport) && has_tls == self.plan.settings.tls
            }
        };
        let TestState::Gathering(found) = &mut *self.lock() else { return false };
        if !fits || !expected_streams(&self.scenario).contains(&place) || found.contains_key(&place)
        {
            return false;
        }
        found.insert(place, line);
        self.changed.notify_all();
        true
    }

    /// Waits for all connections; whether they are there.
    pub(super) fn is_complete(&self, patience: Duration) -> bool {
        let count = expected_streams(&self.scenario).len();
        let missing = |state: &mut TestState| match state {
            TestState::Gathering(found) => found.len() < count,
            TestState::Running(_) | TestState::Ended { .. } => false,
        };
        let waited = self.changed.wait_timeout_while(self.lock(), patience, missing);
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    /// Takes the connections for the traffic, once.
    pub(super) fn start(&self, pace: &Arc<RunClock>) -> Option<Vec<FlowStream>> {
        let mut state = self.lock();
        let TestState::Gathering(found) = &mut *state else { return None };
        let found = std::mem::take(found);
        *state = TestState::Running(Arc::clone(pace));
        let streams = found.into_iter().filter_map(|((flow, number), line)| {
            let described = self.scenario.flows.get(usize::from(flow))?;
            Some(FlowStream::new(flow.into(), number.into(), described, line))
        });
        Some(streams.collect())
    }

    /// Takes a datagram of its traffic.
    pub(super) fn on_datagram(&self, stamp: &DatagramHeader, length: usize) {
        let pace = match &*self.lock() {
            TestState::Running(pace) => Arc::clone(pace),
            TestState::Gathering(_) | TestState::Ended { .. } => return,
        };
        if let Some(own) = self.udp_flows.get(&stamp.flow) {
            own.receive(&pace, stamp, length);
        }
    }

    /// Ends the traffic early.
    pub(super) fn stop(&self) {
        if let TestState::Running(pace) = &*self.lock() {
            pace.interrupt();
        }
    }

    /// Ends the traffic early; what was begun before `at`, on the server's clock, is brought to its
    /// end.
    pub(super) fn end_by(&self, at: Instant) {
        if let TestState::Running(pace) = &*self.lock() {
            let at = Instant::ZERO + at.saturating_since(pace.zero());
            pace.end_at(at, patience(&self.scenario));
        }
    }

    fn end(&self, result: String, at: Instant) {
        *self.lock() = TestState::Ended { result: Arc::new(result), at };
        self.budget.clear_gauges();
        self.changed.notify_all();
    }

    /// Whether so much of a result of `total` bytes may be sent. It counts as what a test moves; where
    /// that is spent, it may be sent twice all the same, since paths get lost.
    pub(super) fn account_result(&self, bytes: u64, total: u64) -> bool {
        let before = self.handed_over.fetch_add(bytes, Ordering::Relaxed);
        self.budget.consume_bytes(bytes) || before < total.saturating_mul(2)
    }

    /// The result, if it is there before `patience` is over.
    pub(super) fn result(&self, patience: Duration) -> Option<Arc<String>> {
        let not_yet = |state: &mut TestState| !matches!(state, TestState::Ended { .. });
        let waited = self.changed.wait_timeout_while(self.lock(), patience, not_yet);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            TestState::Ended { result, .. } => Some(Arc::clone(result)),
            TestState::Gathering(_) | TestState::Running(_) => None,
        }
    }

    /// When it ended and how large its result is.
    fn finished(&self) -> Option<(Instant, usize)> {
        match &*self.lock() {
            TestState::Ended { result, at } => Some((*at, result.len())),
            TestState::Gathering(_) | TestState::Running(_) => None,
        }
    }
}

/// All tests of a server.
#[derive(Debug, Default)]
pub(super) struct TestTable {
    all: Mutex<BTreeMap<TestToken, Arc<ServerTest>>>,
}

impl TestTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TestToken, Arc<ServerTest>>> {
        self.all.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes room for a test of `owner`; `None` if that takes another moment.
    pub(super) fn admit(
        &self,
        token: TestToken,
        (plan, scenario): (TestPlan, Scenario),
        (owner, rates): (SourcePrefix, Option<Arc<RateLimiter>>),
        (limits, now): (&ServerLimits, Instant),
    ) -> Result<Option<Arc<ServerTest>>, AdmissionError> {
        let mut all = self.lock();
        let demand = resource_demand(&plan, &scenario);
        demand.check(ResourceDemand::sum(alive(&all).map(|(_, test)| test.demand)), limits)?;
        if let AdmissionResult::Soon = make_room(&mut all, owner, limits, now)? {
            return Ok(None);
        }
        let steady = UdpServerFlow::from_scenario(&scenario)
            .map_err(|_| AdmissionError::new("it has no randomness", "try again later"))?;
        let test = Arc::new(ServerTest {
            token,
            udp_flows: steady,
            plan,
            scenario,
            budget: Arc::new(TrafficBudget::new(limits.bytes, rates)),
            owner,
            demand,
            state: Mutex::new(TestState::Gathering(BTreeMap::new())),
            changed: Condvar::new(),
            signs: ClientLiveness {
                admitted: now,
                attending: AtomicUsize::new(0),
                left: AtomicBool::new(false),
                unwanted: AtomicBool::new(false),
                latest_ns: AtomicU64::new(now.as_nanos()),
                moved: AtomicU64::new(0),
            },
            handed_over: AtomicU64::new(0),
        });
        all.insert(token, Arc::clone(&test));
        Ok(Some(test))
    }

    pub(super) fn find(&self, token: TestToken) -> Option<Arc<ServerTest>> {
        self.lock().get(&token).cloned()
    }

    /// A test whose client wants nothing of it any more. While its traffic runs it keeps its place.
    pub(super) fn forget(&self, token: TestToken) {
        let mut all = self.lock();
        let Some(test) = all.get(&token) else { return };
        let runs = matches!(&*test.lock(), TestState::Running(_));
        if runs {
            test.signs.unwanted.store(true, Ordering::Release);
            test.end_early("its client has taken its leave");
        } else {
            all.remove(&token);
        }
    }

    /// Keeps the result of a test for its client, if that wants it.
    pub(super) fn end(
        &self,
        test: &Arc<ServerTest>,
        result: String,
        now: Instant,
        limits: &ServerLimits,
    ) {
        test.end(result, now);
        if test.signs.unwanted.load(Ordering::Acquire) {
            self.lock().retain(|_, other| !Arc::ptr_eq(other, test));
        }
        self.expire(now, limits);
    }

    /// Results that nobody has fetched go: those that are too old, and the oldest when memory is
    /// short. What runs ends when nobody attends it, when it takes too long, and when it is what
    /// takes most of the memory.
    pub(super) fn expire(&self, now: Instant, limits: &ServerLimits) {
        let mut all = self.lock();
        all.retain(|_, test| {
            test.finished().is_none_or(|(at, _)| now.saturating_since(at) < limits.result_retention)
        });
        all.retain(|_, test| {
            let why = test.end_reason(now);
            if let Some(why) = why {
                test.end_early(why);
            }
            // Its traffic has not begun: nobody would miss it.
            why.is_none() || !matches!(&*test.lock(), TestState::Gathering(_))
        });
        let mut taken: u64 = all.values().map(|test| test.bytes()).sum();
        while taken > limits.memory {
            let kept = all.iter().filter_map(|(token, test)| Some((test.finished()?, *token)));
            let Some(((_, bytes), oldest)) = kept.min() else { break };
            all.remove(&oldest);
            taken = taken.saturating_sub(bytes as u64);
        }
        // Those that end already will give theirs back.
        let over = |test: &&Arc<ServerTest>| test.budget.end_reason().is_some();
        taken = taken.saturating_sub(all.values().filter(over).map(|test| test.bytes()).sum());
        let mut rest: Vec<_> = all.values().filter(|test| !over(test)).collect();
        // Cached: running tests grow while this sorts, and a key that changes is not a total order.
        rest.sort_by_cached_key(|test| test.bytes());
        while taken > limits.memory {
            let Some(largest) = rest.pop() else { break };
            let (its, most) = (mib(largest.bytes()), mib(limits.memory));
            largest.end_early(&format!(
                "what is noted of it takes {its} MiB, and the server has {most} for all tests: see \
                 its --max-memory"
            ));
            taken = taken.saturating_sub(largest.bytes());
        }
    }

    /// Ends all traffic.
    pub(super) fn stop_all(&self) {
        self.lock().values().for_each(|test| test.stop());
    }
}

/// Those that have not ended.
fn alive(
    all: &BTreeMap<TestToken, Arc<ServerTest>>,
) -> impl Iterator<Item = (&TestToken, &Arc<ServerTest>)> {
    all.iter().filter(|(_, test)| test.finished().is_none())
}

/// Whether there is a place now, or will be.
enum AdmissionResult {
    Free,
    /// Somebody who does nothing with his loses it: in a moment.
    Soon,
}

/// Sees to it that `owner` may have one more test, if it may.
fn make_room(
    all: &mut BTreeMap<TestToken, Arc<ServerTest>>,
    owner: SourcePrefix,
    limits: &ServerLimits,
    now: Instant,
) -> Result<AdmissionResult, AdmissionError> {
    let count = alive(all).count();
    let own = alive(all).filter(|(_, test)| test.owner == owner).count();
    // The last half is for those who have none, where there are enough to share.
    let shared = limits.tests < MIN_SHARED_SLOTS || own == 0;
    let most = if shared { limits.tests } else { limits.tests.div_ceil(2) };
    if count < most {
        return Ok(AdmissionResult::Free);
    }
    let busy = || {
        let others = if own > 0 { format!(", {own} of them yours") } else { String::new() };
        AdmissionError::new(format!("it is busy with {count} tests{others}"), "try again later")
    };
    if own > 0 {
        return Err(busy());
    }
    if alive(all).any(|(_, test)| test.budget.end_reason().is_some()) {
        return Ok(AdmissionResult::Soon);
    }
    // Whoever has most gives up what has been idle for longest.
    let mut counts: BTreeMap<SourcePrefix, usize> = BTreeMap::new();
    alive(all).for_each(|(_, test)| *counts.entry(test.owner).or_default() += 1);
    let idle = alive(all).filter_map(|(token, test)| {
        let since = test.idle_since(now);
        let idle = now.saturating_since(since) > IDLE_TIMEOUT && test.budget.end_reason().is_none();
        idle.then(|| (Reverse(counts.get(&test.owner).copied()), since, *token))
    });
    let (_, _, token) = idle.min().ok_or_else(busy)?;
    let Some(test) = all.get(&token) else { return Err(busy()) };
    test.end_early("its place was needed by somebody who had none, and it did nothing");
    if matches!(&*test.lock(), TestState::Running(_)) {
        return Ok(AdmissionResult::Soon);
    }
    all.remove(&token);
    Ok(AdmissionResult::Free)
}

/// Memory of a thread, as far as it is used.
const THREAD_BYTES: u64 = 32 * 1024;
/// Memory of a connection of QUIC: what it may have received that nobody has read yet.
const CONNECTION_BYTES: u64 = towpath_quic::config::MAX_WINDOW_BYTES;

/// What a test needs from the beginning.
fn resource_demand(plan: &TestPlan, scenario: &Scenario) -> ResourceDemand {
    let block =
        plan.settings.block_bytes.map_or(BLOCK_BYTES as u64, u64::from).max(BLOCK_BYTES as u64);
    let mut all = ResourceDemand { threads: 2, bytes: 0 };
    for flow in &scenario.flows {
        let halves = u64::from(streams(&flow.pattern)) * directions(&flow.pattern).len() as u64;
        let talks = matches!(
            flow.pattern,
            Pattern::Exchange(_) | Pattern::Video(_) | Pattern::Web(_) | Pattern::Udping(_)
        );
        all.threads += 1;
        let asked = planned_requests(&flow.pattern, DataDirection::Down);
        let heard = planned_requests(&flow.pattern, DataDirection::Up);
        all.bytes += asked * SENT_REQUEST_BYTES + heard * RECEIVED_REQUEST_BYTES;
        if let Pattern::Udp(udp) = &flow.pattern {
            let rows = planned_rows(udp, scenario.run.sample) * ROW_MEMORY_BYTES;
            let ways = directions(&flow.pattern).len() as u64;
            all.bytes += ways * (RECEIVER_MEMORY_BYTES + rows) + u64::from(udp.bytes);
        } else if is_quic(plan.transport) {
            all.bytes += CONNECTION_BYTES + halves * block;
        } else if talks {
            all.bytes += BLOCK_BYTES as u64;
        } else {
            all.threads += halves;
            all.bytes += halves * block;
        }
    }
    ResourceDemand { bytes: all.bytes + all.threads * THREAD_BYTES, ..all }
}
