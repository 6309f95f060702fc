//! Test of a client on a server, from admission to the expiry of its result.

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::Socket;
use towpath_net::{Instant, SourcePrefix};
use towpath_os::clock::Clock;
use towpath_quic::tls::TlsSession;
use towpath_run::stamp::DatagramHeader;
use towpath_run::token::TestToken;
use towpath_scenario::Scenario;
use towpath_sockets::memory_account::MemoryCharge;
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::stream::socket_stream::SocketStream;
use towpath_sockets::traffic_budget::TrafficBudget;

use super::data_stream::DataStream;
use super::flow_runner::{FlowStream, expected_streams};
use super::mobile::max_reply_delay;
use super::report_text::ReportText;
use super::reservation::GrantReservation;
use super::socket;
use super::udp_flows::UdpServerFlow;
use crate::protocol::{TestPlan, max_duration};

mod demand;
mod table;

pub(super) use table::TestTable;

/// Timeout of the TLS handshake.
const TLS_HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Time within which a client may reconnect after it closed its last control connection.
const RETURN_TIMEOUT: Duration = Duration::from_secs(8);
/// Longest absence of a silent client; a broken path may recover.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Usual time from admission to the start of the traffic.
const EXPECTED_SETUP_TIME: Duration = Duration::from_secs(2);
/// Time limit from admission to the start of the traffic.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
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
    threads: u64,
    /// Charge of the plan, which lives as long as the test.
    _plan_charge: MemoryCharge,
    state: Mutex<TestState>,
    changed: Condvar,
    liveness: ClientLiveness,
    /// Bytes of the result that were sent to its client.
    fetched_bytes: AtomicU64,
    /// Bytes reserved from the client's grant, until the traffic begins.
    reservation: Mutex<Option<GrantReservation>>,
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
        result: Arc<ReportText>,
        at: Instant,
    },
    /// Removed from the table; a control connection may still refer to the test.
    Removed,
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

    /// Keeps a reservation, which ends with the test unless the traffic begins.
    pub(super) fn hold(&self, reservation: Option<GrantReservation>) {
        *self.reservation.lock().unwrap_or_else(PoisonError::into_inner) = reservation;
    }

    /// Returns the estimated time until the test releases its slot.
    fn remaining_time(&self, now: Instant) -> Duration {
        let duration = max_duration(&self.scenario);
        match &*self.lock() {
            TestState::Gathering(_) => {
                (self.liveness.admitted_at + EXPECTED_SETUP_TIME + duration).saturating_since(now)
            }
            TestState::Running(run_clock) => {
                (Instant::ZERO + duration).saturating_since(run_clock.now())
            }
            TestState::Ended { .. } | TestState::Removed => Duration::ZERO,
        }
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

    /// Returns the reason to consider the client absent; `None` while it may return.
    fn absence(&self, now: Instant) -> Option<&'static str> {
        if self.liveness.control_connections.load(Ordering::Acquire) > 0 {
            return None;
        }
        let idle_time = now.saturating_since(self.idle_since(now));
        if self.liveness.disconnected.load(Ordering::Acquire) && idle_time > RETURN_TIMEOUT {
            return Some("its client has left");
        }
        (idle_time > CLIENT_TIMEOUT).then_some("nothing is seen of its client")
    }

    /// Returns the reason to end the test now, if any.
    fn end_reason(&self, now: Instant) -> Option<&'static str> {
        let absence = self.absence(now);
        if absence.is_some() {
            return absence;
        }
        match &*self.lock() {
            TestState::Gathering(_) => (now.saturating_since(self.liveness.admitted_at)
                > SETUP_TIMEOUT)
                .then_some("its traffic has not begun"),
            TestState::Running(run_clock) => (run_clock.now()
                > Instant::ZERO + max_duration(&self.scenario) + RETURN_TIMEOUT)
                .then_some("it takes longer than planned"),
            TestState::Ended { .. } | TestState::Removed => None,
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
            TestState::Ended { result, .. } => result.len(),
            TestState::Gathering(_) | TestState::Running(_) => self.budget.memory_bytes(),
            TestState::Removed => 0,
        }
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
            TestState::Running(_) | TestState::Ended { .. } | TestState::Removed => false,
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
        let reservation = self.reservation.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(reservation) = reservation {
            reservation.consume();
        }
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
            TestState::Gathering(_) | TestState::Ended { .. } | TestState::Removed => return,
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

    fn end(&self, result: ReportText, at: Instant) {
        // Before the result can be found: it would be removed if its memory counted twice.
        self.budget.release_memory();
        *self.lock() = TestState::Ended { result: Arc::new(result), at };
        self.changed.notify_all();
    }

    /// Frees what the test holds, except for traffic that still runs.
    fn remove(&self) {
        let mut state = self.lock();
        if !matches!(*state, TestState::Running(_)) {
            *state = TestState::Removed;
            self.budget.release_memory();
            self.udp_flows.values().for_each(|flow| flow.release());
            self.changed.notify_all();
        }
    }

    /// Returns true if `bytes` of a result of `total` bytes may be sent. The bytes count towards
    /// the budget. With the budget exhausted, the result may still be sent twice, since paths may
    /// fail.
    pub(super) fn account_result(&self, bytes: u64, total: u64) -> bool {
        let before = self.fetched_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.budget.consume_bytes(bytes) || before < total.saturating_mul(2)
    }

    /// Waits for the result; `None` after `timeout`.
    pub(super) fn result(&self, timeout: Duration) -> Option<Arc<ReportText>> {
        let is_unfinished = |state: &mut TestState| {
            matches!(state, TestState::Gathering(_) | TestState::Running(_))
        };
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, is_unfinished);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        match &*state {
            TestState::Ended { result, .. } => Some(Arc::clone(result)),
            TestState::Gathering(_) | TestState::Running(_) | TestState::Removed => None,
        }
    }

    /// Returns end time and result size of an ended test.
    fn ended(&self) -> Option<(Instant, u64)> {
        match &*self.lock() {
            TestState::Ended { result, at } => Some((*at, result.len())),
            TestState::Gathering(_) | TestState::Running(_) | TestState::Removed => None,
        }
    }
}
