//! Control connection of a server, from start to end.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_measure::live::secret::Challenge;
use towpath_measure::live::{
    AdmissionError, ClientMessage, ControlAction, ControlSession, ServerMessage, TestPlan,
    TestToken,
};
use towpath_measure::scenario::Scenario;
use towpath_net::Instant;

use super::test_run::TestRun;
use super::{ControlConnection, POLL_INTERVAL, ServerEvent, ServerState};
use crate::clock::Clock;
use crate::live::admission::{self, ConnectionPermit, SourcePrefix, SourceQuota};
use crate::live::control_channel::ControlChannel;
use crate::live::random;
use crate::live::server_test::{ClientGuard, ServerTest};
use crate::run_clock::RunClock;
use crate::traffic::is_quic;
use crate::traffic_budget::TrafficDirection;

/// Bytes of a result in one message, small enough even if JSON escapes all of them.
const CHUNK_BYTES: usize = 24 * 1024;
/// Longest delay of the reply to a client that requests a result before it exists.
const LONG_POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum delay from agreement on the plan to the start of the traffic.
const MAX_START_DELAY: Duration = Duration::from_secs(30);
/// Idle time after which a client must reconnect to fetch its result.
const FETCH_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Socket buffers under a rate limit hold at most the data of this time, but at least
/// `MIN_BUFFER_BYTES` bytes.
const MAX_BUFFER_TIME: Duration = Duration::from_millis(250);
const MIN_BUFFER_BYTES: u64 = 64 * 1024;
/// Time after which a client without a test must reconnect.
const NO_TEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest wait for a test slot that another test is giving up.
const EVICTION_TIMEOUT: Duration = Duration::from_secs(3);

impl ServerState {
    /// Serves one control connection to its end.
    pub(super) fn control(
        self: &Arc<Self>,
        (mut speaker, origin): ControlConnection,
        (seat, attending): (&ConnectionPermit, Option<ClientGuard>),
        token: Option<TestToken>,
    ) -> io::Result<()> {
        let secret = self.config.secret.clone();
        let quic = self.has_udp(origin.port);
        let datagrams = quic && secret.is_none();
        let control = ControlSession::new(token, secret, Challenge(random()?));
        let control = control
            .with_greeting(origin.observed, datagrams, quic)
            .with_binding(speaker.binding())
            .with_public_diagnostics(self.config.public_diagnostics);
        let source = SourcePrefix::of_peer(origin.peer);
        let allowed = self.budget.quota(source);
        let mut visit = ControlContext {
            control,
            permit: seat,
            client_guard: attending,
            source,
            quota: allowed,
            peer: origin.peer,
            charged: (0, 0),
        };
        let result = self.serve(&mut visit, &mut speaker);
        // A running test continues without its client, which may reconnect for the result.
        if let Some(token) = visit.control.pending_test() {
            self.tests.forget(token);
        }
        if let Some(attending) = &mut visit.client_guard
            && result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            attending.mark_lost();
        }
        drop(visit);
        speaker.close();
        result
    }

    fn serve(
        self: &Arc<Self>,
        visit: &mut ControlContext<'_>,
        speaker: &mut ControlChannel,
    ) -> io::Result<()> {
        let limits = &self.config.limits;
        let came = self.clock.now();
        let mut heard = came;
        // True once the client knows that all its connections have arrived.
        let mut announced = false;
        loop {
            visit.charge(self.clock, speaker);
            let waiting = visit.control.pending_test().filter(|_| !announced);
            let message = speaker.recv::<ClientMessage>(if waiting.is_some() {
                POLL_INTERVAL
            } else {
                LONG_POLL_TIMEOUT
            });
            let message = message?;
            let now = self.clock.now();
            let has_none = visit.client_guard.is_none();
            if has_none && now.saturating_since(came) > NO_TEST_TIMEOUT {
                return Ok(());
            }
            let Some(message) = message else {
                if let Some(test) = waiting.and_then(|token| self.tests.find(token))
                    && test.is_complete(Duration::ZERO)
                {
                    announced = true;
                    speaker.send(&ServerMessage::Ready)?;
                }
                let silent = now.saturating_since(heard);
                let idle = visit.control.running_test().is_some_and(|token| self.is_idle(token));
                if silent > visit.control.idle_timeout(limits)
                    || (idle && silent > FETCH_IDLE_TIMEOUT)
                    || self.closing.load(Ordering::Acquire)
                {
                    return Ok(());
                }
                continue;
            };
            heard = now;
            for act in self.actions_for(&mut visit.control, message, visit.peer) {
                if let ControlAction::Close = act {
                    return Ok(());
                }
                self.perform(act, visit, speaker)?;
            }
        }
    }

    fn perform(
        self: &Arc<Self>,
        act: ControlAction,
        visit: &mut ControlContext<'_>,
        speaker: &mut ControlChannel,
    ) -> io::Result<()> {
        match act {
            ControlAction::Send(message) => speaker.send(&message)?,
            ControlAction::SendClock { client_ns } => {
                let server_ns = self.clock.now().as_nanos();
                speaker.send(&ServerMessage::Clock { client_ns, server_ns })?;
            }
            ControlAction::Admit(plan) => self.admit(visit, speaker, *plan)?,
            ControlAction::Snapshot { port, complete: whole } => {
                let asker = visit.peer.map(|peer| peer.ip());
                speaker.send(&self.snapshot(port, whole, asker))?;
            }
            // Handled by `Self::acts`.
            ControlAction::AuthFailed => {}
            ControlAction::Begin(token, at_ns) => self.begin(token, at_ns, visit.peer),
            ControlAction::Stop(token) => {
                self.tests.find(token).iter().for_each(|test| test.stop());
            }
            ControlAction::End(token, at_ns) => {
                let at = Instant::from_nanos(at_ns);
                self.tests.find(token).iter().for_each(|test| test.end_by(at));
            }
            ControlAction::Deliver(token, offset) => {
                self.deliver(visit, speaker, (token, offset))?;
            }
            ControlAction::Forget(token) => {
                self.tests.forget(token);
                self.fetched.store(true, Ordering::Release);
            }
            ControlAction::Close => {}
        }
        Ok(())
    }

    /// Returns true if the test's result exists or the test is gone.
    fn is_idle(&self, token: TestToken) -> bool {
        self.tests.find(token).is_none_or(|test| test.result(Duration::ZERO).is_some())
    }

    fn admit(
        &self,
        visit: &mut ControlContext<'_>,
        speaker: &mut ControlChannel,
        (plan, scenario): (TestPlan, Scenario),
    ) -> io::Result<()> {
        if is_quic(plan.transport) && self.udp.get().is_none_or(BTreeSet::is_empty) {
            let refusal = AdmissionError::new(
                format!("it does not speak {}, UDP was not free", plan.transport),
                "use --transport tcp,mptcp",
            );
            speaker.send(&ServerMessage::from(refusal))?;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let token = TestToken(random()?);
        match self.admit_test(token.public_id(), (plan, scenario), visit) {
            Ok(test) => {
                let (attending, _) = test.attach_control(self.clock);
                visit.client_guard = Some(attending);
                visit.permit.pin();
                speaker.send(&visit.control.on_admitted(token))
            }
            Err(refusal) => {
                speaker.send(&ServerMessage::from(refusal))?;
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    /// Admits a test; waits if another test must give up its slot first.
    fn admit_test(
        &self,
        token: TestToken,
        (mut plan, scenario): (TestPlan, Scenario),
        visit: &ControlContext<'_>,
    ) -> Result<Arc<ServerTest>, AdmissionError> {
        let limits = &self.config.limits;
        if let Some(rate) = limits.rate {
            // Data that the kernel buffers beyond what is read would also exceed the rate.
            let most =
                rate.bytes_in(MAX_BUFFER_TIME).clamp(MIN_BUFFER_BYTES, u32::MAX.into()) as u32;
            let asked = plan.settings.window_bytes.unwrap_or(most);
            plan.settings.window_bytes = Some(asked.min(most));
        }
        let deadline = self.clock.now() + EVICTION_TIMEOUT;
        loop {
            let now = self.clock.now();
            let whole = (plan.clone(), scenario.clone());
            let owner = (visit.source, visit.quota.total_rates.clone());
            if let Some(test) = self.tests.admit(token, whole, owner, (limits, now))? {
                return Ok(test);
            }
            if now > deadline {
                return Err(AdmissionError::new("it is busy", "try again later"));
            }
            self.clock.sleep_until(now + POLL_INTERVAL);
        }
    }

    fn begin(self: &Arc<Self>, token: TestToken, at_ns: u64, client: Option<SocketAddr>) {
        let Some(test) = self.tests.find(token) else { return };
        let now = self.clock.now();
        let zero = Instant::from_nanos(at_ns).max(now).min(now + MAX_START_DELAY);
        let pace = Arc::new(RunClock::new(self.clock, zero).with_budget(Arc::clone(&test.budget)));
        let Some(streams) = test.start(&pace) else { return };
        let flows = test.scenario.flows.iter();
        let patterns = flows.map(|flow| flow.pattern.name()).collect();
        self.emit(ServerEvent::Begun { client, transport: test.plan.transport, patterns });
        let course = TestRun::new(self, test, client);
        // Without a thread the test ends at once, and its result contains the reason.
        let _ = admission::spawn_thread("test", move || course.run(&pace, streams));
    }

    fn deliver(
        &self,
        visit: &mut ControlContext<'_>,
        speaker: &mut ControlChannel,
        (token, offset): (TestToken, u64),
    ) -> io::Result<()> {
        let Some(test) = self.tests.find(token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let Some(result) = test.result(LONG_POLL_TIMEOUT) else {
            return speaker.send(&ServerMessage::Pending);
        };
        let total = result.len() as u64;
        let mut place = usize::try_from(offset).unwrap_or(usize::MAX);
        // An empty part means that the result is complete.
        loop {
            let Some(rest) = result.get(place..) else {
                return Err(io::ErrorKind::InvalidInput.into());
            };
            let mut length = rest.len().min(CHUNK_BYTES);
            while !rest.is_char_boundary(length) {
                length -= 1;
            }
            if !test.account_result(length as u64, total) {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            let part = rest.get(..length).unwrap_or_default().to_owned();
            speaker.send(&ServerMessage::Part { offset: place as u64, total, text: part })?;
            visit.charge(self.clock, speaker);
            place += length;
            if place >= result.len() {
                return Ok(());
            }
        }
    }
}

/// State of a control connection.
struct ControlContext<'a> {
    control: ControlSession,
    permit: &'a ConnectionPermit,
    /// Guard of the connection's test, once it has one.
    client_guard: Option<ClientGuard>,
    source: SourcePrefix,
    quota: Arc<SourceQuota>,
    peer: Option<SocketAddr>,
    /// Bytes read and written that are already charged.
    charged: (u64, u64),
}

impl ControlContext<'_> {
    /// Charges the bytes since the last call.
    fn charge(&mut self, clock: Clock, speaker: &ControlChannel) {
        let (read, written) = speaker.transferred_bytes();
        let (read_before, written_before) = self.charged;
        self.charged = (read, written);
        self.quota.consume_blocking(clock, TrafficDirection::Inbound, read - read_before);
        self.quota.consume_blocking(clock, TrafficDirection::Outbound, written - written_before);
    }
}
