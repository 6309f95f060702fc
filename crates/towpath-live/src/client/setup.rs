//! Setup before the traffic: connections, agreement on the plan, clock offset.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::files::Dir;
use towpath_os::interrupt;
use towpath_quic::tls::TlsError;
use towpath_quic::{ConnectionError as QuicError, Qlog, Trust};
use towpath_run::token::TestToken;
use towpath_sockets::quic::wait_interruptibly;

use super::MeasureRequest;
use crate::LiveError;
use crate::authenticator;
use crate::authenticator::Authenticator;
use crate::control_channel::ControlChannel;
use crate::dial::Dialer;
use crate::fetch::Reconnector;
use crate::first_path;
use crate::flow_runner::{FlowStream, expected_streams};
use crate::protocol::message::sanitize;
use crate::protocol::{AdmissionError, ClientMessage, ClockEstimator, ClockOffset, ServerMessage};
use crate::socket::LocalBind;

/// Timeout of each connection attempt and of each reply before the traffic.
const STEP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of the whole setup, however many messages the server sends.
const SETUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Clock requests before the traffic.
const CLOCK_PROBES: u32 = 12;

/// Setup session with its overall deadline.
pub(super) struct SetupSession {
    pub(super) channel: ControlChannel,
    clock: Clock,
    deadline: Instant,
}

/// Connections and state of a test that is ready to start.
pub(super) struct PreparedTest {
    pub(super) session: SetupSession,
    pub(super) streams: Vec<FlowStream>,
    pub(super) reconnector: Reconnector,
    /// Connect time of each flow, by flow index.
    pub(super) connect: Vec<(u32, Duration)>,
}

/// Connects, agrees on the plan and opens all data connections of it.
pub(super) fn prepare_test(
    request: &MeasureRequest,
    clock: Clock,
) -> Result<PreparedTest, LiveError> {
    let trust = request.server.map_or(Trust::Any, |fingerprint| Trust::Pinned(vec![fingerprint]));
    let plain_data = !request.plan.transport.is_quic() && !request.plan.settings.tls;
    if request.server.is_some() && plain_data {
        return Err(LiveError::Unprotected { transport: request.plan.transport });
    }
    let mut reconnector = Reconnector {
        dialer: Dialer::new(clock, trust).with_tls(request.secret.is_some()),
        token: TestToken::NONE,
        transport: request.plan.transport,
        source: request.source.clone(),
        targets: request.targets.clone(),
        clock,
    };
    let (channel, target) = connect_first(request, &reconnector)?;
    let mut session = SetupSession { channel, clock, deadline: clock.now() + SETUP_TIMEOUT };
    reconnector.token = negotiate(request, &mut session)?;
    if request.secret.is_some() {
        // The server authenticated on this connection; on others, its certificate must match.
        reconnector.dialer.pin_identity();
    }
    // Reconnection tries the address that replied first.
    reconnector.targets.sort_by_key(|address| *address != target);
    let mut streams = Vec::new();
    let mut connect: Vec<(u32, Duration)> = Vec::new();
    let mut flows: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for (flow, number) in expected_streams(&request.scenario) {
        flows.entry(flow).or_default().push(number);
    }
    for (flow, numbers) in flows {
        let Some(config) = request.scenario.flows.get(usize::from(flow)) else { continue };
        let (plan, addresses) = ((&request.plan, &request.scenario), (&request.source, target));
        let qlog = qlog(request, flow)?;
        let flow_streams = (flow, &*numbers);
        let result = reconnector.dialer.connect_flow(
            plan,
            addresses,
            flow_streams,
            (reconnector.token, qlog),
            session.time_left(),
        );
        let (data_streams, connect_time) =
            result.map_err(|error| connect_error(request, target, &error))?;
        connect.push((flow.into(), connect_time));
        let data_streams = numbers.into_iter().zip(data_streams);
        streams.extend(
            data_streams.map(|(number, stream)| {
                FlowStream::new(flow.into(), number.into(), config, stream)
            }),
        );
    }
    let message = session.recv("confirmation of all connections")?;
    let is_ready = message == ServerMessage::Ready;
    if is_ready {
        Ok(PreparedTest { session, streams, reconnector, connect })
    } else {
        Err(unexpected_message(&message))
    }
}

/// Returns the qlog of a flow's connection; `None` if logging is off or the transport is not QUIC.
fn qlog(request: &MeasureRequest, flow: u16) -> Result<Option<Qlog>, LiveError> {
    let Some(folder) = request.qlog.as_ref().filter(|_| request.plan.transport.is_quic()) else {
        return Ok(None);
    };
    // `.sqlog` is the extension of qlogs with one record per line.
    let name = format!("live-{}-{}-flow{flow}.sqlog", request.plan.transport, request.repeat);
    let file = Dir::make(folder).and_then(|folder| folder.create(name));
    let file = file.map_err(LiveError::system("write the QUIC log"))?;
    Ok(Some(Qlog::new(io::BufWriter::new(file))))
}

fn connect_first(
    request: &MeasureRequest,
    reconnector: &Reconnector,
) -> Result<(ControlChannel, SocketAddr), LiveError> {
    let mut last_error = None;
    let mut is_path_failure = false;
    for target in &request.targets {
        match reconnector.connect(request.plan.transport, &request.source, *target, STEP_TIMEOUT) {
            Ok(channel) => return Ok((channel, *target)),
            Err(error) => {
                is_path_failure |= first_path::is_path_failure(&error) || is_quic_timeout(&error);
                last_error = Some(connect_error(request, *target, &error));
            }
        }
    }
    // With a chosen source, the first route does not matter.
    let is_unbound = request.source == LocalBind::default();
    if is_path_failure
        && is_unbound
        && let Some((target, path)) = request
            .targets
            .iter()
            .find_map(|target| Some((target, first_path::find_unusable_first_path(*target)?)))
    {
        let (target, transport) = (target_text(request, *target), request.plan.transport);
        return Err(LiveError::FirstPath { target, transport, path });
    }
    Err(last_error.unwrap_or_else(|| LiveError::Connect {
        target: request.name.clone(),
        transport: request.plan.transport,
        reason: "it has no address".to_owned(),
    }))
}

fn connect_error(request: &MeasureRequest, target: SocketAddr, error: &io::Error) -> LiveError {
    let transport = request.plan.transport;
    if let Some(code @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::ENOBUFS)) =
        error.raw_os_error()
    {
        return LiveError::Exhausted { transport, source: io::Error::from_raw_os_error(code) };
    }
    let target = target_text(request, target);
    let tls_error = error.get_ref().and_then(|inner| inner.downcast_ref());
    let is_untrusted = matches!(tls_error, Some(TlsError::Untrusted(_)));
    if is_untrusted || matches!(quic_error(error), Some(QuicError::Untrusted(_))) {
        return LiveError::Untrusted { target, reason: error.to_string() };
    }
    let reason = if transport.is_quic() && error.kind() == io::ErrorKind::TimedOut {
        format!("no answer within {} s", STEP_TIMEOUT.as_secs())
    } else {
        towpath_sockets::stream::explain(error, transport, "this host")
    };
    let reason = reason.split(" (os error").next().unwrap_or_default().to_lowercase();
    LiveError::Connect { target, transport, reason }
}

/// Returns the server's name and address for messages.
fn target_text(request: &MeasureRequest, target: SocketAddr) -> String {
    let name_is_address = target.ip().to_string() == request.name;
    if name_is_address { target.to_string() } else { format!("{} ({target})", request.name) }
}

/// Returns true if QUIC got no answer.
fn is_quic_timeout(error: &io::Error) -> bool {
    matches!(quic_error(error), Some(QuicError::TimedOut))
}

/// Returns the QUIC error inside an I/O error, if any.
pub(crate) fn quic_error(error: &io::Error) -> Option<&QuicError> {
    error.get_ref()?.downcast_ref()
}

/// Exchanges hellos, authenticates both sides and agrees on the plan; returns the test's token.
fn negotiate(request: &MeasureRequest, session: &mut SetupSession) -> Result<TestToken, LiveError> {
    session.send(&ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    let message = session.recv("a greeting")?;
    let ServerMessage::Welcome { challenge, grant_challenge, .. } = message else {
        return Err(unexpected_message(&message));
    };
    let challenge = if request.grant.is_some() { grant_challenge } else { challenge };
    match (challenge, &request.secret) {
        (None, None) => {}
        // The refusal of the plan says what the server requires.
        (Some(_), None) if grant_challenge.is_some() => {}
        (None, Some(_)) if request.grant.is_some() => {
            return Err(LiveError::Refused(authenticator::grant_not_accepted()));
        }
        (None, Some(_)) => return Err(LiveError::Refused(authenticator::secret_not_required())),
        (Some(_), None) => {
            let hint = "add --secret-file FILE";
            return Err(LiveError::Refused(AdmissionError::new("it requires a secret", hint)));
        }
        (Some(challenge), Some(secret)) => {
            let authenticator = Authenticator::new(secret, challenge, &session.channel)
                .map_err(LiveError::system("prove the secret"))?
                .with_grant(request.grant.as_deref());
            let proof =
                authenticator.proof_message().map_err(LiveError::system("prove the secret"))?;
            session.send(&proof)?;
            let message = session.recv("the secret")?;
            if !authenticator.verify_reply(&message) {
                let proof_is_wrong = matches!(message, ServerMessage::Proved { .. });
                let error = LiveError::Refused(authenticator::server_unproven());
                return Err(if proof_is_wrong { error } else { unexpected_message(&message) });
            }
        }
    }
    session.send(&ClientMessage::Plan(Box::new(request.plan.clone())))?;
    let message = session.recv("the reply to the plan")?;
    if let ServerMessage::Accepted { token } = message {
        Ok(token)
    } else {
        Err(unexpected_message(&message))
    }
}

impl SetupSession {
    /// Returns the timeout of the next connection attempt or reply.
    fn time_left(&self) -> Duration {
        STEP_TIMEOUT.min(self.deadline.saturating_since(self.clock.now()))
    }

    fn send(&mut self, message: &ClientMessage) -> Result<(), LiveError> {
        self.channel.send(message).map_err(LiveError::system("communicate with the server"))
    }

    /// Receives the next message. Fails on timeout and on an interrupt.
    fn recv(&mut self, expected: &str) -> Result<ServerMessage, LiveError> {
        let timeout = self.time_left();
        let received = wait_interruptibly(timeout, |step| {
            self.channel.recv::<ServerMessage>(step)?.ok_or_else(|| io::ErrorKind::TimedOut.into())
        });
        received.map_err(|error| {
            let kind = error.kind();
            LiveError::Protocol(if interrupt::is_interrupted() {
                format!("interrupted while waiting for {expected} from the server")
            } else if kind == io::ErrorKind::TimedOut {
                format!("the server did not send {expected} within {:.0} s", timeout.as_secs_f64())
            } else if kind == io::ErrorKind::UnexpectedEof {
                format!(
                    "the server closed the connection before it sent {expected}: it is not a towpath server of this version, or it is overloaded"
                )
            } else {
                format!("the server did not send {expected}: {}", sanitize(&error.to_string()))
            })
        })
    }
}

/// Returns the error for an unexpected message; the reason of a refusal is kept.
fn unexpected_message(message: &ServerMessage) -> LiveError {
    if let ServerMessage::Refused { reason, hint, retry_after_s } = message {
        let (reason, hint) = (sanitize(reason), hint.as_deref().map(sanitize));
        let retry_after_s = *retry_after_s;
        return LiveError::Refused(AdmissionError { reason, hint, retry_after_s });
    }
    LiveError::Protocol(format!("the server sent an unexpected `{}`", message.name()))
}

/// Estimates the offset of the server's clock.
pub(super) fn estimate_clock_offset(
    session: &mut SetupSession,
    clock: Clock,
) -> Result<ClockOffset, LiveError> {
    let mut probes = ClockEstimator::default();
    while probes.count() < CLOCK_PROBES {
        let sent_at = clock.now();
        session.send(&ClientMessage::Probe { client_ns: sent_at.as_nanos() })?;
        let message = session.recv("its clock")?;
        let ServerMessage::Clock { client_ns, server_ns } = message else {
            return Err(unexpected_message(&message));
        };
        if client_ns != sent_at.as_nanos() {
            let reason = "the server sent its clock without a request";
            return Err(LiveError::Protocol(reason.to_owned()));
        }
        probes.add_sample(sent_at, clock.now(), Instant::from_nanos(server_ns));
    }
    probes.best().ok_or_else(|| LiveError::Protocol("the server has no clock".to_owned()))
}
