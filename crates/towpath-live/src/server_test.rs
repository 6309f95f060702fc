//! Tests of a server: running ones, and the results of ended ones.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::Socket;
use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_quic::tls::TlsSession;
use towpath_run::stamp::DatagramHeader;
use towpath_run::token::TestToken;
use towpath_run::traffic::session::{RECEIVED_REQUEST_BYTES, SENT_REQUEST_BYTES};
use towpath_run::traffic::udp::{RECEIVER_MEMORY_BYTES, ROW_MEMORY_BYTES, planned_rows};
use towpath_scenario::flow_plan::{directions, planned_requests, streams};
use towpath_scenario::{DataDirection, Pattern, Scenario};
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::stream::kernel::BLOCK_BYTES;
use towpath_sockets::stream::socket_stream::SocketStream;
use towpath_sockets::traffic_budget::{RateLimiter, TrafficBudget};

use super::admission::{ResourceDemand, SourcePrefix, mib};
use super::data_stream::DataStream;
use super::flow_runner::{FlowStream, expected_streams};
use super::mobile::max_reply_delay;
use super::socket;
use super::udp_flows::UdpServerFlow;
use crate::protocol::{AdmissionError, ServerLimits, TestPlan, max_duration};

/// Timeout of the TLS handshake.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time within which a client may reconnect after it closed its last control connection.
const RETURN_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest absence of a silent client; a broken path may recover.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit from admission to the start of the traffic.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Idle time after which a test may lose its slot to a client without a test.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);
/// Minimum number of test slots for which half are reserved for new clients.
const MIN_SHARED_SLOTS: usize = 4;
/// Maximum number of control connections of a test with pinned permits. A client that reconnects
/// may have several dead connections that the server has not detected yet.
const MAX_CONTROL_CONNECTIONS: usize = 8;

/// Test of a client, from admission to the expiry of its result.
#[derive(Debug)]
pub(super) struct ServerTest {
    pub(super) plan: TestPlan,
    pub(super) scenario: Scenario,
    pub(super) budget: Arc<TrafficBudget>,
    /// Token that data connections and datagrams carry.
    pub(super) token: TestToken,
    /// UDP flows by flow index.
    pub(super) udp_flows: BTreeMap<u32, Arc<UdpServerFlow>>,
    owner: SourcePrefix,
    demand: ResourceDemand,
    state: Mutex<TestState>,
    changed: Condvar,
    liveness: ClientLiveness,
    /// Bytes of the result that were sent to its client.
    fetched_bytes: AtomicU64,
}

/// Signs of life of a test's client.
#[derive(Debug)]
struct ClientLiveness {
    admitted_at: Instant,
    /// Number of control connections of the client.
    control_connections: AtomicUsize,
    /// Set after the client closed its last control connection.
    disconnected: AtomicBool,
    /// Set if the client does not want the result.
    unwanted: AtomicBool,
    /// Time of the latest sign of life.
    last_seen_ns: AtomicU64,
    /// Bytes that the test had transferred then.
    transferred_bytes: AtomicU64,
}

/// Guard of a test's control connection. On drop, the client counts as having left, unless the
/// connection was lost.
#[derive(Debug)]
pub(super) struct ClientGuard {
    test: Arc<ServerTest>,
    clock: Clock,
    lost: bool,
}

impl ClientGuard {
    /// Marks the connection as lost rather than closed by the client.
    pub(super) fn mark_lost(&mut self) {
        self.lost = true;
    }
}

impl Drop for ClientGuard {
    fn drop(&mut self) {
        self.test.touch(self.clock.now());
        if !self.lost {
            self.test.liveness.disconnected.store(true, Ordering::Release);
        }
        self.test.liveness.control_connections.fetch_sub(1, Ordering::AcqRel);
    }
}

#[derive(Debug)]
enum TestState {
    /// Waiting for data connections.
    Gathering(BTreeMap<(u16, u16), DataStream>),
    Running(Arc<RunClock>),
    Ended {
        result: Arc<String>,
        at: Instant,
    },
}

impl ServerTest {
    /// Registers a control connection. The flag is true if its permit may be pinned.
    pub(super) fn attach_control(self: &Arc<Self>, clock: Clock) -> (ClientGuard, bool) {
        let before = self.liveness.control_connections.fetch_add(1, Ordering::AcqRel);
        self.liveness.disconnected.store(false, Ordering::Release);
        (
            ClientGuard { test: Arc::clone(self), clock, lost: false },
            before < MAX_CONTROL_CONNECTIONS,
        )
    }

    /// Records a sign of life of the client.
    pub(super) fn touch(&self, now: Instant) {
        self.liveness.last_seen_ns.fetch_max(now.as_nanos(), Ordering::AcqRel);
    }

    /// Returns the time of the client's latest sign of life, at most `now`.
    fn idle_since(&self, now: Instant) -> Instant {
        let transferred_bytes = self.budget.transferred_bytes();
        if self.liveness.transferred_bytes.swap(transferred_bytes, Ordering::AcqRel)
            != transferred_bytes
        {
            self.touch(now);
        }
        Instant::from_nanos(self.liveness.last_seen_ns.load(Ordering::Acquire)).min(now)
    }

    /// Returns the reason to end the test now, if any.
    fn end_reason(&self, now: Instant) -> Option<&'static str> {
        let idle_time = now.saturating_since(self.idle_since(now));
        let has_left = self.liveness.disconnected.load(Ordering::Acquire);
        if self.liveness.control_connections.load(Ordering::Acquire) == 0 {
            if has_left && idle_time > RETURN_TIMEOUT {
                return Some("its client has left");
            }
            if idle_time > CLIENT_TIMEOUT {
                return Some("nothing is seen of its client");
            }
        }
        match &*self.lock() {
            TestState::Gathering(_) => (now.saturating_since(self.liveness.admitted_at)
                > SETUP_TIMEOUT)
                .then_some("its traffic has not begun"),
            TestState::Running(run_clock) => (run_clock.now()
                > Instant::ZERO + max_duration(&self.scenario) + RETURN_TIMEOUT)
                .then_some("it takes longer than planned"),
            TestState::Ended { .. } => None,
        }
    }

    /// Ends the test early with a reason.
    fn end_early(&self, reason: &str) {
        self.budget.end(reason);
        self.stop();
    }

    /// Returns the memory of the test in bytes.
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

    /// Adds a kernel connection without TLS.
    pub(super) fn attach(&self, stream_key: (u16, u16), data: Socket) {
        if self.configure_socket(&data).is_ok() {
            self.add(stream_key, DataStream::Socket(SocketStream::Plain(Arc::new(data))));
        }
    }

    /// Adds a kernel connection after a TLS handshake, which blocks.
    pub(super) fn attach_with_tls(
        &self,
        stream_key: (u16, u16),
        data: Socket,
        session: TlsSession,
        clock: Clock,
    ) {
        let deadline = clock.now() + TLS_HANDSHAKE_TIMEOUT;
        if self.configure_socket(&data).is_ok()
            && let Ok((stream, _)) = SocketStream::handshake(data, session, (clock, deadline))
        {
            self.add(stream_key, DataStream::Socket(stream));
        }
    }

    fn configure_socket(&self, data: &Socket) -> io::Result<()> {
        data.set_nonblocking(false)?;
        let _ = data.set_tcp_nodelay(true); // best effort
        socket::configure(data, &self.plan.settings);
        Ok(())
    }

    /// Returns true if this kernel connection is still missing.
    pub(super) fn is_missing(&self, stream_key: (u16, u16)) -> bool {
        let TestState::Gathering(streams) = &*self.lock() else { return false };
        !self.plan.transport.is_quic()
            && expected_streams(&self.scenario).contains(&stream_key)
            && !streams.contains_key(&stream_key)
    }

    /// Adds a data stream; returns true if it was missing.
    pub(super) fn add(&self, stream_key: (u16, u16), stream: DataStream) -> bool {
        let fits = match &stream {
            DataStream::Quic(_) => self.plan.transport.is_quic(),
            DataStream::Socket(socket_stream) => {
                let has_tls = matches!(socket_stream, SocketStream::Tls(_));
                !self.plan.transport.is_quic() && has_tls == self.plan.settings.tls
            }
        };
        let TestState::Gathering(streams) = &mut *self.lock() else { return false };
        if !fits
            || !expected_streams(&self.scenario).contains(&stream_key)
            || streams.contains_key(&stream_key)
        {
            return false;
        }
        streams.insert(stream_key, stream);
        self.changed.notify_all();
        true
    }

    /// Waits for all data connections; returns true if they have arrived.
    pub(super) fn is_complete(&self, reply_timeout: Duration) -> bool {
        let count = expected_streams(&self.scenario).len();
        let is_incomplete = |state: &mut TestState| match state {
            TestState::Gathering(streams) => streams.len() < count,
            TestState::Running(_) | TestState::Ended { .. } => false,
        };
        let waited = self.changed.wait_timeout_while(self.lock(), reply_timeout, is_incomplete);
        let (_state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        !timeout.timed_out()
    }

    /// Starts the traffic and returns its streams; `None` if it was started before.
    pub(super) fn start(&self, run_clock: &Arc<RunClock>) -> Option<Vec<FlowStream>> {
        let mut state = self.lock();
        let TestState::Gathering(gathered) = &mut *state else { return None };
        let gathered = std::mem::take(gathered);
        *state = TestState::Running(Arc::clone(run_clock));
        let streams = gathered.into_iter().filter_map(|((flow, number), stream)| {
            let config = self.scenario.flows.get(usize::from(flow))?;
            Some(FlowStream::new(flow.into(), number.into(), config, stream))
        });
        Some(streams.collect())
    }

    /// Passes a datagram to its UDP flow.
    pub(super) fn on_datagram(&self, header: &DatagramHeader, length: usize) {
        let run_clock = match &*self.lock() {
            TestState::Running(run_clock) => Arc::clone(run_clock),
            TestState::Gathering(_) | TestState::Ended { .. } => return,
        };
        if let Some(flow) = self.udp_flows.get(&header.flow) {
            flow.receive(&run_clock, header, length);
        }
    }

    /// Stops the traffic immediately.
    pub(super) fn stop(&self) {
        if let TestState::Running(run_clock) = &*self.lock() {
            run_clock.interrupt();
        }
    }

    /// Ends the traffic early at `at`, on the server's clock; exchanges begun before may finish.
    pub(super) fn end_by(&self, at: Instant) {
        if let TestState::Running(run_clock) = &*self.lock() {
            let at = Instant::ZERO + at.saturating_since(run_clock.start_time());
            run_clock.end_at(at, max_reply_delay(&self.scenario));
        }
    }

    fn end(&self, result: String, at: Instant) {
        *self.lock() = TestState::Ended { result: Arc::new(result), at };
        self.budget.clear_gauges();
        self.changed.notify_all();
    }

    /// Returns true if `bytes` of a result of `total` bytes may be sent. The bytes count towards
    /// the budget. With the budget exhausted, the result may still be sent twice, since paths may
    /// fail.
    pub(super) fn account_result(&self, bytes: u64, total: u64) -> bool {
        let before = self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.budget.consume_bytes(bytes) || before < total.saturating_mul(2)
    }

    /// Waits for the result; `None` after `timeout`.
    pub(super) fn result(&self, timeout: Duration) -> Option<Arc<String>> {
        let is_unfinished = |state: &mut TestState| !matches!(state, TestState::Ended { .. });
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, is_unfinished);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            TestState::Ended { result, .. } => Some(Arc::clone(result)),
            TestState::Gathering(_) | TestState::Running(_) => None,
        }
    }

    /// Returns end time and result size of an ended test.
    fn ended(&self) -> Option<(Instant, usize)> {
        match &*self.lock() {
            TestState::Ended { result, at } => Some((*at, result.len())),
            TestState::Gathering(_) | TestState::Running(_) => None,
        }
    }
}

/// Tests of a server by token.
#[derive(Debug, Default)]
pub(super) struct TestTable {
    tests: Mutex<BTreeMap<TestToken, Arc<ServerTest>>>,
}

impl TestTable {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<TestToken, Arc<ServerTest>>> {
        self.tests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a test of `owner`; `None` if another test is about to give up its slot.
    pub(super) fn admit(
        &self,
        token: TestToken,
        (plan, scenario): (TestPlan, Scenario),
        (owner, rates): (SourcePrefix, Option<Arc<RateLimiter>>),
        (limits, now): (&ServerLimits, Instant),
    ) -> Result<Option<Arc<ServerTest>>, AdmissionError> {
        let mut tests = self.lock();
        let demand = resource_demand(&plan, &scenario);
        demand
            .check(ResourceDemand::sum(unfinished(&tests).map(|(_, test)| test.demand)), limits)?;
        if let AdmissionResult::Pending = make_room(&mut tests, owner, limits, now)? {
            return Ok(None);
        }
        let udp_flows = UdpServerFlow::from_scenario(&scenario)
            .map_err(|_| AdmissionError::new("it has no randomness", "try again later"))?;
        let test = Arc::new(ServerTest {
            token,
            udp_flows,
            plan,
            scenario,
            budget: Arc::new(TrafficBudget::new(limits.bytes, rates)),
            owner,
            demand,
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
        });
        tests.insert(token, Arc::clone(&test));
        Ok(Some(test))
    }

    pub(super) fn find(&self, token: TestToken) -> Option<Arc<ServerTest>> {
        self.lock().get(&token).cloned()
    }

    /// Removes a test that its client has abandoned. A running test keeps its slot until its
    /// traffic ends.
    pub(super) fn forget(&self, token: TestToken) {
        let mut tests = self.lock();
        let Some(test) = tests.get(&token) else { return };
        let runs = matches!(&*test.lock(), TestState::Running(_));
        if runs {
            test.liveness.unwanted.store(true, Ordering::Release);
            test.end_early("its client has taken its leave");
        } else {
            tests.remove(&token);
        }
    }

    /// Stores the result of a test, unless its client does not want it.
    pub(super) fn end(
        &self,
        test: &Arc<ServerTest>,
        result: String,
        now: Instant,
        limits: &ServerLimits,
    ) {
        test.end(result, now);
        if test.liveness.unwanted.load(Ordering::Acquire) {
            self.lock().retain(|_, other| !Arc::ptr_eq(other, test));
        }
        self.expire(now, limits);
    }

    /// Removes expired results, and the oldest results if memory is short. Ends tests that are
    /// abandoned, take too long, or use the most memory when it is short.
    pub(super) fn expire(&self, now: Instant, limits: &ServerLimits) {
        let mut tests = self.lock();
        tests.retain(|_, test| {
            test.ended().is_none_or(|(at, _)| now.saturating_since(at) < limits.result_retention)
        });
        tests.retain(|_, test| {
            let reason = test.end_reason(now);
            if let Some(reason) = reason {
                test.end_early(reason);
            }
            // Without traffic yet, removal loses no data.
            reason.is_none() || !matches!(&*test.lock(), TestState::Gathering(_))
        });
        let mut used_bytes: u64 = tests.values().map(|test| test.bytes()).sum();
        while used_bytes > limits.memory {
            let ended = tests.iter().filter_map(|(token, test)| Some((test.ended()?, *token)));
            let Some(((_, bytes), oldest)) = ended.min() else { break };
            tests.remove(&oldest);
            used_bytes = used_bytes.saturating_sub(bytes as u64);
        }
        // Tests that are ending will release their memory.
        let is_ending = |test: &&Arc<ServerTest>| test.budget.end_reason().is_some();
        used_bytes = used_bytes
            .saturating_sub(tests.values().filter(is_ending).map(|test| test.bytes()).sum());
        let mut remaining: Vec<_> = tests.values().filter(|test| !is_ending(test)).collect();
        // Cached: running tests grow while this sorts, and a key that changes is not a total order.
        remaining.sort_by_cached_key(|test| test.bytes());
        while used_bytes > limits.memory {
            let Some(largest) = remaining.pop() else { break };
            let (test_mib, max_mib) = (mib(largest.bytes()), mib(limits.memory));
            largest.end_early(&format!(
                "what is noted of it takes {test_mib} MiB, and the server has {max_mib} for all tests: see \
                 its --max-memory"
            ));
            used_bytes = used_bytes.saturating_sub(largest.bytes());
        }
    }

    /// Stops the traffic of all tests.
    pub(super) fn stop_all(&self) {
        self.lock().values().for_each(|test| test.stop());
    }
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
        AdmissionError::new(format!("it is busy with {count} tests{others}"), "try again later")
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
    tests.remove(&token);
    Ok(AdmissionResult::Admitted)
}

/// Memory that a thread uses, in bytes.
const THREAD_BYTES: u64 = 32 * 1024;
/// Memory of a QUIC connection: its receive window, filled with unread data.
const CONNECTION_BYTES: u64 = towpath_quic::config::MAX_WINDOW_BYTES;

/// Returns the threads and memory that a test requires from its start.
fn resource_demand(plan: &TestPlan, scenario: &Scenario) -> ResourceDemand {
    let block =
        plan.settings.block_bytes.map_or(BLOCK_BYTES as u64, u64::from).max(BLOCK_BYTES as u64);
    let mut total = ResourceDemand { threads: 2, bytes: 0 };
    for flow in &scenario.flows {
        let transfer_count =
            u64::from(streams(&flow.pattern)) * directions(&flow.pattern).len() as u64;
        let is_exchange = matches!(
            flow.pattern,
            Pattern::Exchange(_) | Pattern::Video(_) | Pattern::Web(_) | Pattern::Udping(_)
        );
        total.threads += 1;
        let sent_requests = planned_requests(&flow.pattern, DataDirection::Down);
        let received_requests = planned_requests(&flow.pattern, DataDirection::Up);
        total.bytes +=
            sent_requests * SENT_REQUEST_BYTES + received_requests * RECEIVED_REQUEST_BYTES;
        if let Pattern::Udp(udp) = &flow.pattern {
            let rows = planned_rows(udp, scenario.run.sample) * ROW_MEMORY_BYTES;
            let direction_count = directions(&flow.pattern).len() as u64;
            total.bytes += direction_count * (RECEIVER_MEMORY_BYTES + rows) + u64::from(udp.bytes);
        } else if plan.transport.is_quic() {
            total.bytes += CONNECTION_BYTES + transfer_count * block;
        } else if is_exchange {
            total.bytes += BLOCK_BYTES as u64;
        } else {
            total.threads += transfer_count;
            total.bytes += transfer_count * block;
        }
    }
    ResourceDemand { bytes: total.bytes + total.threads * THREAD_BYTES, ..total }
}
