//! Setup before the traffic: connections, agreement on the plan, clock offset.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::live::message::sanitize;
use towpath_measure::live::{
    AdmissionError, ClientMessage, ClockEstimator, ClockOffset, ServerMessage, TestToken,
};
use towpath_net::Instant;
use towpath_quic::tls::TlsError;
use towpath_quic::{ConnectionError as QuicError, Qlog, Trust};

use super::MeasureRequest;
use crate::clock::Clock;
use crate::files::Dir;
use crate::interrupt;
use crate::live::LiveError;
use crate::live::authenticator::{self, Authenticator};
use crate::live::control_channel::ControlChannel;
use crate::live::dial::Dialer;
use crate::live::fetch::Reconnector;
use crate::live::flow_runner::{FlowStream, expected_streams};
use crate::quic::wait_interruptibly;
use crate::traffic::is_quic;

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
pub(super) fn open(order: &MeasureRequest, clock: Clock) -> Result<PreparedTest, LiveError> {
    let trust = order.server.map_or(Trust::Any, |one| Trust::Pinned(vec![one]));
    let plain_data = !is_quic(order.plan.transport) && !order.plan.settings.tls;
    if order.server.is_some() && plain_data {
        return Err(LiveError::Unprotected { transport: order.plan.transport });
    }
    let mut way = Reconnector {
        dialer: Dialer::new(clock, trust).with_tls(order.secret.is_some()),
        token: TestToken::NONE,
        transport: order.plan.transport,
        source: order.source.clone(),
        targets: order.targets.clone(),
        clock,
    };
    let (speaker, target) = first_connection(order, &way)?;
    let mut talk = SetupSession { channel: speaker, clock, deadline: clock.now() + SETUP_TIMEOUT };
    way.token = negotiate(order, &mut talk)?;
    if order.secret.is_some() {
        // The server authenticated on this connection; on others, its certificate must match.
        way.dialer.pin_identity();
    }
    // Reconnection tries the address that replied first.
    way.targets.sort_by_key(|other| *other != target);
    let mut streams = Vec::new();
    let mut connect: Vec<(u32, Duration)> = Vec::new();
    let mut flows: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for (flow, number) in expected_streams(&order.scenario) {
        flows.entry(flow).or_default().push(number);
    }
    for (flow, numbers) in flows {
        let Some(described) = order.scenario.flows.get(usize::from(flow)) else { continue };
        let (what, ends) = ((&order.plan, &order.scenario), (&order.source, target));
        let qlog = qlog(order, flow)?;
        let place = (flow, &*numbers);
        let dialed = way.dialer.flow(what, ends, place, (way.token, qlog), talk.time_left());
        let (lines, took) = dialed.map_err(|error| refused(order, target, &error))?;
        connect.push((flow.into(), took));
        let lines = numbers.into_iter().zip(lines);
        streams
            .extend(lines.map(|(number, line)| {
                FlowStream::new(flow.into(), number.into(), described, line)
            }));
    }
    let said = talk.recv("that all connections are there")?;
    let ready = said == ServerMessage::Ready;
    if ready {
        Ok(PreparedTest { session: talk, streams, reconnector: way, connect })
    } else {
        Err(unexpected(&said))
    }
}

/// Returns the qlog of a flow's connection; `None` if logging is off or the transport is not QUIC.
fn qlog(order: &MeasureRequest, flow: u16) -> Result<Option<Qlog>, LiveError> {
    let Some(folder) = order.qlog.as_ref().filter(|_| is_quic(order.plan.transport)) else {
        return Ok(None);
    };
    // `.sqlog` is the extension of qlogs with one record per line.
    let name = format!("live-{}-{}-flow{flow}.sqlog", order.plan.transport, order.repeat);
    let file = Dir::make(folder).and_then(|folder| folder.create(name));
    let file = file.map_err(LiveError::system("write the log of QUIC"))?;
    Ok(Some(Qlog::new(io::BufWriter::new(file))))
}

fn first_connection(
    order: &MeasureRequest,
    reconnector: &Reconnector,
) -> Result<(ControlChannel, SocketAddr), LiveError> {
    let mut last = None;
    for target in &order.targets {
        match reconnector.connect(order.plan.transport, &order.source, *target, STEP_TIMEOUT) {
            Ok(speaker) => return Ok((speaker, *target)),
            Err(error) => last = Some(refused(order, *target, &error)),
        }
    }
    Err(last.unwrap_or_else(|| LiveError::Connect {
        target: order.name.clone(),
        transport: order.plan.transport,
        reason: "it has no address".to_owned(),
    }))
}

fn refused(order: &MeasureRequest, target: SocketAddr, error: &io::Error) -> LiveError {
    let transport = order.plan.transport;
    let same = target.ip().to_string() == order.name;
    let target = if same { target.to_string() } else { format!("{} ({target})", order.name) };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let over_tls = matches!(inner, Some(TlsError::Untrusted(_)));
    if over_tls || matches!(quic_error(error), Some(QuicError::Untrusted(_))) {
        return LiveError::Untrusted { target, reason: error.to_string() };
    }
    let reason = if is_quic(transport) && error.kind() == io::ErrorKind::TimedOut {
        format!("no answer within {} s", STEP_TIMEOUT.as_secs())
    } else {
        crate::traffic::explain(error, transport, "this host")
    };
    let reason = reason.split(" (os error").next().unwrap_or_default().to_lowercase();
    LiveError::Connect { target, transport, reason }
}

/// Returns the QUIC error inside an I/O error, if any.
pub(in crate::live) fn quic_error(error: &io::Error) -> Option<&QuicError> {
    error.get_ref()?.downcast_ref()
}

/// Exchanges hellos, authenticates both sides and agrees on the plan; returns the test's token.
fn negotiate(order: &MeasureRequest, session: &mut SetupSession) -> Result<TestToken, LiveError> {
    session.send(&ClientMessage::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    let said = session.recv("a greeting")?;
    let ServerMessage::Welcome { challenge, .. } = said else {
        return Err(unexpected(&said));
    };
    match (challenge, &order.secret) {
        (None, None) => {}
        (None, Some(_)) => return Err(LiveError::Refused(authenticator::secret_not_required())),
        (Some(_), None) => {
            let hint = "give it with --secret-file";
            return Err(LiveError::Refused(AdmissionError::new("it wants a secret", hint)));
        }
        (Some(challenge), Some(secret)) => {
            let introduction = Authenticator::new(secret, challenge, &session.channel)
                .map_err(LiveError::system("prove the secret"))?;
            let word =
                introduction.proof_message().map_err(LiveError::system("prove the secret"))?;
            session.send(&word)?;
            let said = session.recv("what the secret is")?;
            if !introduction.verify_reply(&said) {
                let lies = matches!(said, ServerMessage::Proved { .. });
                let nobody = LiveError::Refused(authenticator::server_unproven());
                return Err(if lies { nobody } else { unexpected(&said) });
            }
        }
    }
    session.send(&ClientMessage::Plan(Box::new(order.plan.clone())))?;
    let said = session.recv("an answer to the plan")?;
    if let ServerMessage::Accepted { token } = said { Ok(token) } else { Err(unexpected(&said)) }
}

impl SetupSession {
    /// Returns the timeout of the next connection attempt or reply.
    fn time_left(&self) -> Duration {
        STEP_TIMEOUT.min(self.deadline.saturating_since(self.clock.now()))
    }

    fn send(&mut self, word: &ClientMessage) -> Result<(), LiveError> {
        self.channel.send(word).map_err(LiveError::system("talk to the server"))
    }

    /// Receives the next message. Fails on timeout and on an interrupt.
    fn recv(&mut self, what: &str) -> Result<ServerMessage, LiveError> {
        let timeout = self.time_left();
        let heard = wait_interruptibly(timeout, |step| {
            self.channel.recv::<ServerMessage>(step)?.ok_or_else(|| io::ErrorKind::TimedOut.into())
        });
        heard.map_err(|error| {
            let kind = error.kind();
            LiveError::Protocol(if interrupt::is_interrupted() {
                format!("it was interrupted before the server said {what}")
            } else if kind == io::ErrorKind::TimedOut {
                format!("the server did not say {what} within {:.0} s", timeout.as_secs_f64())
            } else if kind == io::ErrorKind::UnexpectedEof {
                format!(
                    "the server closed the connection before it said {what}: it is no towpath \
                     server of this version, or it is too busy"
                )
            } else {
                format!("the server did not say {what}: {}", sanitize(&error.to_string()))
            })
        })
    }
}

/// Returns the error for an unexpected message; the reason of a refusal is kept.
fn unexpected(said: &ServerMessage) -> LiveError {
    if let ServerMessage::Refused { reason: why, hint } = said {
        let (why, hint) = (sanitize(why), hint.as_deref().map(sanitize));
        return LiveError::Refused(AdmissionError { reason: why, hint });
    }
    LiveError::Protocol(format!("the server said `{}` out of turn", said.name()))
}

/// Estimates the offset of the server's clock.
pub(super) fn probe(session: &mut SetupSession, clock: Clock) -> Result<ClockOffset, LiveError> {
    let mut probes = ClockEstimator::default();
    while probes.count() < CLOCK_PROBES {
        let asked = clock.now();
        session.send(&ClientMessage::Probe { client_ns: asked.as_nanos() })?;
        let said = session.recv("what time it is")?;
        let ServerMessage::Clock { client_ns, server_ns } = said else {
            return Err(unexpected(&said));
        };
        if client_ns != asked.as_nanos() {
            let why = "the server said what time it was when nobody asked";
            return Err(LiveError::Protocol(why.to_owned()));
        }
        probes.add_sample(asked, clock.now(), Instant::from_nanos(server_ns));
    }
    probes.best().ok_or_else(|| LiveError::Protocol("the server has no clock".to_owned()))
}
