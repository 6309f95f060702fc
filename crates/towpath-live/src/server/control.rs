//! Control connection of a server, from start to end.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use towpath_net::{Instant, SourcePrefix};
use towpath_os::clock::Clock;
use towpath_run::token::TestToken;
use towpath_scenario::Scenario;
use towpath_sockets::run_clock::RunClock;
use towpath_sockets::traffic_budget::TrafficDirection;

use super::test_run::TestRun;
use super::{ControlConnection, POLL_INTERVAL, ServerEvent, ServerState};
use crate::admission;
use crate::admission::{ConnectionPermit, SourceQuota};
use crate::control_channel::ControlChannel;
use crate::protocol::secret::Challenge;
use crate::protocol::{
    AdmissionError, ClientMessage, ControlAction, ControlSession, ServerMessage, TestPlan,
};
use crate::random;
use crate::server_test::{ClientGuard, ServerTest};
use crate::socket;

/// Bytes of a result in one message, small enough even if JSON escapes all of them.
const CHUNK_BYTES: usize = 24 * 1024;
/// Longest delay of the reply to a client that requests a result before it exists.
const LONG_POLL_TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum delay from agreement on the plan to the start of the traffic.
const MAX_START_DELAY: Duration = Duration::from_secs(30);
/// Idle time after which a client must reconnect to fetch its result.
const FETCH_IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum delay of `begin` with which a test still starts at the agreed time.
const MAX_LATENESS: Duration = Duration::from_secs(2);
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
    pub(super) fn serve_control(
        self: &Arc<Self>,
        (mut channel, origin): ControlConnection,
        (permit, client_guard): (&ConnectionPermit, Option<ClientGuard>),
        token: Option<TestToken>,
    ) -> io::Result<()> {
        let secret = self.config.secret.clone();
        let quic = self.has_udp(origin.port);
        let datagrams = quic && !self.requires_proof();
        let session = ControlSession::new(token, secret, Challenge(random()?));
        let session = session
            .with_greeting(origin.observed, datagrams, quic)
            .with_binding(channel.binding())
            .with_grants(self.grant_policy())
            .with_public_diagnostics(self.config.public_diagnostics);
        let source = socket::source_of(origin.peer);
        let quota = self.budget.quota(source);
        let mut context = ControlContext {
            session,
            permit,
            client_guard,
            source,
            quota,
            peer: origin.peer,
            charged: (0, 0),
        };
        let result = self.run_control_loop(&mut context, &mut channel);
        // A running test continues without its client, which may reconnect for the result.
        if let Some(token) = context.session.pending_test() {
            self.tests.forget(token);
        }
        if let Some(client_guard) = &mut context.client_guard
            && result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut)
        {
            client_guard.mark_lost();
        }
        drop(context);
        channel.close();
        result
    }

    fn run_control_loop(
        self: &Arc<Self>,
        context: &mut ControlContext<'_>,
        channel: &mut ControlChannel,
    ) -> io::Result<()> {
        let limits = &self.config.limits;
        let connected_at = self.clock.now();
        let mut last_message_at = connected_at;
        // True once the client was told that all its connections have arrived.
        let mut ready_sent = false;
        loop {
            context.charge(self.clock, channel);
            let pending_test = context.session.pending_test().filter(|_| !ready_sent);
            let message = channel.recv::<ClientMessage>(if pending_test.is_some() {
                POLL_INTERVAL
            } else {
                LONG_POLL_TIMEOUT
            });
            let message = message?;
            let now = self.clock.now();
            let has_no_test = context.client_guard.is_none();
            if has_no_test && now.saturating_since(connected_at) > NO_TEST_TIMEOUT {
                return Ok(());
            }
            let Some(message) = message else {
                if let Some(test) = pending_test.and_then(|token| self.tests.find(token))
                    && test.is_complete(Duration::ZERO)
                {
                    ready_sent = true;
                    channel.send(&ServerMessage::Ready)?;
                }
                let silence = now.saturating_since(last_message_at);
                let idle = context.session.running_test().is_some_and(|token| self.is_idle(token));
                if silence > context.session.idle_timeout(limits)
                    || (idle && silence > FETCH_IDLE_TIMEOUT)
                    || self.closing.load(Ordering::Acquire)
                {
                    return Ok(());
                }
                continue;
            };
            last_message_at = now;
            for action in self.actions_for(&mut context.session, message, context.peer) {
                if let ControlAction::Close = action {
                    return Ok(());
                }
                self.perform_action(action, context, channel)?;
            }
        }
    }

    fn perform_action(
        self: &Arc<Self>,
        action: ControlAction,
        context: &mut ControlContext<'_>,
        channel: &mut ControlChannel,
    ) -> io::Result<()> {
        match action {
            ControlAction::Send(message) => channel.send(&message)?,
            ControlAction::SendClock { client_ns } => {
                let server_ns = self.clock.now().as_nanos();
                channel.send(&ServerMessage::Clock { client_ns, server_ns })?;
            }
            ControlAction::Admit(plan) => self.admit_plan(context, channel, *plan)?,
            ControlAction::Snapshot { port, complete } => {
                let peer = context.peer.map(|peer| peer.ip());
                channel.send(&self.snapshot(port, complete, peer))?;
            }
            // Handled by `Self::actions_for`.
            ControlAction::AuthFailed => {}
            ControlAction::Begin(token, at_ns) => self.begin_test(token, at_ns, context.peer),
            ControlAction::Stop(token) => {
                self.tests.find(token).iter().for_each(|test| test.stop());
            }
            ControlAction::End(token, at_ns) => {
                let at = Instant::from_nanos(at_ns);
                self.tests.find(token).iter().for_each(|test| test.end_by(at));
            }
            ControlAction::Deliver(token, offset) => {
                self.deliver_result(context, channel, (token, offset))?;
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

    fn admit_plan(
        &self,
        context: &mut ControlContext<'_>,
        channel: &mut ControlChannel,
        (plan, scenario): (TestPlan, Scenario),
    ) -> io::Result<()> {
        if plan.transport.is_quic() && self.udp.get().is_none_or(BTreeSet::is_empty) {
            let refusal = AdmissionError::new(
                format!("it does not offer {}, because its UDP port was in use", plan.transport),
                "use --transport tcp,mptcp",
            );
            channel.send(&ServerMessage::from(refusal))?;
            return Err(io::ErrorKind::Unsupported.into());
        }
        let token = TestToken(random()?);
        match self.admit_test(token.public_id(), (plan, scenario), context) {
            Ok(test) => {
                let (client_guard, _) = test.attach_control(self.clock);
                context.client_guard = Some(client_guard);
                context.permit.pin();
                channel.send(&context.session.on_admitted(token))
            }
            Err(refusal) => {
                channel.send(&ServerMessage::from(refusal))?;
                Err(io::ErrorKind::ConnectionRefused.into())
            }
        }
    }

    /// Admits a test; waits if another test must give up its slot first.
    fn admit_test(
        &self,
        token: TestToken,
        (mut plan, scenario): (TestPlan, Scenario),
        context: &ControlContext<'_>,
    ) -> Result<Arc<ServerTest>, AdmissionError> {
        let reservation = self.reserve(context.session.proved_grant(), (&plan, &scenario))?;
        let mut limits = self.config.limits.clone();
        if let Some(reservation) = &reservation {
            let max_bytes = limits.bytes.unwrap_or(u64::MAX);
            limits.bytes = Some(max_bytes.min(reservation.bytes()));
        }
        if let Some(rate) = limits.rate {
            // Data that the kernel buffers beyond what is read would also exceed the rate.
            let max_bytes =
                rate.bytes_in(MAX_BUFFER_TIME).clamp(MIN_BUFFER_BYTES, u32::MAX.into()) as u32;
            let requested = plan.settings.window_bytes.unwrap_or(max_bytes);
            plan.settings.window_bytes = Some(requested.min(max_bytes));
        }
        let deadline = self.clock.now() + EVICTION_TIMEOUT;
        loop {
            let now = self.clock.now();
            let plan_and_scenario = (plan.clone(), scenario.clone());
            let owner = (context.source, context.quota.total_rates.clone());
            let admitted = self.tests.admit(token, plan_and_scenario, owner, (&limits, now))?;
            if let Some(test) = admitted {
                test.hold(reservation);
                return Ok(test);
            }
            if now > deadline {
                return Err(AdmissionError::busy("it is busy", EVICTION_TIMEOUT));
            }
            self.clock.sleep_until(now + POLL_INTERVAL);
        }
    }

    fn begin_test(self: &Arc<Self>, token: TestToken, at_ns: u64, client: Option<SocketAddr>) {
        let Some(test) = self.tests.find(token) else { return };
        let now = self.clock.now();
        let start = start_time(Instant::from_nanos(at_ns), now);
        let run_clock =
            Arc::new(RunClock::new(self.clock, start).with_budget(Arc::clone(&test.budget)));
        let Some(streams) = test.start(&run_clock) else { return };
        let flows = test.scenario.flows.iter();
        let patterns = flows.map(|flow| flow.pattern.name()).collect();
        self.emit(ServerEvent::Begun { client, transport: test.plan.transport, patterns });
        let test_run = TestRun::new(self, test, client);
        // Without a thread the test ends at once, and its result contains the reason.
        let _ = admission::spawn_thread("test", move || test_run.run(&run_clock, streams));
    }

    fn deliver_result(
        &self,
        context: &mut ControlContext<'_>,
        channel: &mut ControlChannel,
        (token, offset): (TestToken, u64),
    ) -> io::Result<()> {
        let Some(test) = self.tests.find(token) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        if test.result(LONG_POLL_TIMEOUT).is_none() {
            return channel.send(&ServerMessage::Pending);
        }
        let mut offset = offset;
        // An empty part means that the result is complete.
        loop {
            // Looked up again for each part, so that a slow client does not keep a removed result.
            let result = test.result(Duration::ZERO).ok_or(io::ErrorKind::NotFound)?;
            let total = result.len();
            let part = result.part(offset, CHUNK_BYTES).ok_or(io::ErrorKind::InvalidInput)?;
            let part = part.to_owned();
            drop(result);
            let length = part.len() as u64;
            if !test.account_result(length, total) {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            channel.send(&ServerMessage::Part { offset, total, text: part })?;
            context.charge(self.clock, channel);
            offset += length;
            if offset >= total {
                return Ok(());
            }
        }
    }
}

/// Returns the start of the traffic for a `begin` that arrives at `now`.
///
/// After a slightly late `begin`, the client sends already. Both hosts then still count time from
/// the agreed start, so that early data does not arrive before the first interval.
fn start_time(agreed: Instant, now: Instant) -> Instant {
    let is_outdated = now.saturating_since(agreed) > MAX_LATENESS;
    if is_outdated { now } else { agreed.min(now + MAX_START_DELAY) }
}

/// State of a control connection.
struct ControlContext<'a> {
    session: ControlSession,
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
    fn charge(&mut self, clock: Clock, channel: &ControlChannel) {
        let (read, written) = channel.transferred_bytes();
        let (read_before, written_before) = self.charged;
        self.charged = (read, written);
        self.quota.consume_blocking(clock, TrafficDirection::Inbound, read - read_before);
        self.quota.consume_blocking(clock, TrafficDirection::Outbound, written - written_before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_begin_does_not_move_the_agreed_start() {
        let now = Instant::ZERO + Duration::from_secs(100);
        let ms = Duration::from_millis;
        let agreed = Instant::ZERO + Duration::from_secs(99);
        assert_eq!(start_time(agreed, now), agreed);
        assert_eq!(start_time(now + ms(20), now), now + ms(20));
        assert_eq!(start_time(Instant::ZERO, now), now, "it is not of this test");
        let far = now + MAX_START_DELAY * 2;
        assert_eq!(start_time(far, now), now + MAX_START_DELAY);
    }
}
