//! Before the traffic: the connections, what both hosts agree on, and their clocks.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_measure::live::{FromClient, FromServer, Offset, Probes, Refusal, Token};
use towpath_net::Instant;
use towpath_quic::tls::TlsError;
use towpath_quic::{ConnectionError as QuicError, Qlog, Trust};

use super::Order;
use crate::clock::Clock;
use crate::files::Folder;
use crate::live::LiveError;
use crate::live::dial::Dialer;
use crate::live::end::{Stream, wanted};
use crate::live::fetch::Way;
use crate::live::speaker::Speaker;
use crate::traffic::is_quic;

/// For each connection, and for each answer before the traffic.
const PATIENCE: Duration = Duration::from_secs(10);
/// Questions about the server's clock, before and after the traffic.
const PROBES: u32 = 12;

/// Everything that is open before the traffic.
pub(super) struct Opened {
    pub(super) speaker: Speaker,
    pub(super) streams: Vec<Stream>,
    pub(super) way: Way,
    /// How long each flow took to connect.
    pub(super) connect: Vec<(u32, Duration)>,
}

/// Connects, agrees on the plan, and opens every connection of it.
pub(super) fn open(order: &Order, clock: Clock) -> Result<Opened, LiveError> {
    let trust = order.server.map_or(Trust::Anybody, |one| Trust::Pinned(vec![one]));
    let mut way = Way {
        dialer: Dialer::new(clock, trust),
        token: Token::NONE,
        transport: order.plan.transport,
        source: order.source.clone(),
        targets: order.targets.clone(),
        clock,
    };
    let (mut speaker, target) = first_connection(order, &way)?;
    way.token = agree(order, &mut speaker)?;
    // The address that answered is the one to come back to first.
    way.targets.sort_by_key(|other| *other != target);
    let mut streams = Vec::new();
    let mut connect: Vec<(u32, Duration)> = Vec::new();
    let mut flows: BTreeMap<u16, Vec<u16>> = BTreeMap::new();
    for (flow, number) in wanted(&order.scenario) {
        flows.entry(flow).or_default().push(number);
    }
    for (flow, numbers) in flows {
        let Some(described) = order.scenario.flows.get(usize::from(flow)) else { continue };
        let (what, ends) = ((&order.plan, &order.scenario), (&order.source, target));
        let qlog = qlog(order, flow)?;
        let dialed = way.dialer.flow(what, ends, (flow, &numbers), (way.token, qlog), PATIENCE);
        let (lines, took) = dialed.map_err(|error| refused(order, target, &error))?;
        connect.push((flow.into(), took));
        let lines = numbers.into_iter().zip(lines);
        streams.extend(
            lines.map(|(number, line)| Stream::new(flow.into(), number.into(), described, line)),
        );
    }
    let said = hear(&mut speaker, "that all connections are there")?;
    let ready = said == FromServer::Ready;
    if ready { Ok(Opened { speaker, streams, way, connect }) } else { Err(unexpected(said)) }
}

/// Where a flow's connection is logged, if it is.
fn qlog(order: &Order, flow: u16) -> Result<Option<Qlog>, LiveError> {
    let Some(folder) = order.qlog.as_ref().filter(|_| is_quic(order.plan.transport)) else {
        return Ok(None);
    };
    // The ending of logs with one record a line.
    let name = format!("live-{}-{}-flow{flow}.sqlog", order.plan.transport, order.repeat);
    let file = Folder::make(folder).and_then(|folder| folder.create(name));
    let file = file.map_err(LiveError::system("write the log of QUIC"))?;
    Ok(Some(Qlog::new(io::BufWriter::new(file))))
}

fn first_connection(order: &Order, way: &Way) -> Result<(Speaker, SocketAddr), LiveError> {
    let mut last = None;
    for target in &order.targets {
        match way.connect(order.plan.transport, &order.source, *target, PATIENCE) {
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

fn refused(order: &Order, target: SocketAddr, error: &io::Error) -> LiveError {
    let transport = order.plan.transport;
    let same = target.ip().to_string() == order.name;
    let target = if same { target.to_string() } else { format!("{} ({target})", order.name) };
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    let over_tls = matches!(inner, Some(TlsError::Untrusted(_)));
    if over_tls || matches!(quic_error(error), Some(QuicError::Untrusted(_))) {
        return LiveError::Untrusted { target, reason: error.to_string() };
    }
    let reason = if is_quic(transport) && error.kind() == io::ErrorKind::TimedOut {
        format!("no answer within {} s", PATIENCE.as_secs())
    } else {
        crate::traffic::explain(error, transport, "this host")
    };
    let reason = reason.split(" (os error").next().unwrap_or_default().to_lowercase();
    LiveError::Connect { target, transport, reason }
}

/// What QUIC says of the end of a connection.
pub(in crate::live) fn quic_error(error: &io::Error) -> Option<&QuicError> {
    error.get_ref()?.downcast_ref()
}

/// Says hello, proves the secret, and agrees on the plan.
fn agree(order: &Order, speaker: &mut Speaker) -> Result<Token, LiveError> {
    let say = |speaker: &mut Speaker, word: &FromClient| {
        speaker.say(word).map_err(LiveError::system("talk to the server"))
    };
    say(speaker, &FromClient::Hello { towpath: env!("CARGO_PKG_VERSION").to_owned() })?;
    let said = hear(speaker, "a greeting")?;
    let FromServer::Welcome { challenge, .. } = said else {
        return Err(unexpected(said));
    };
    if let Some(challenge) = challenge {
        let Some(secret) = &order.secret else {
            let hint = "give it with --secret-file";
            return Err(LiveError::Refused(Refusal::new("it wants a secret", hint)));
        };
        let proof = secret.prove(challenge);
        let proof = proof.ok_or_else(|| LiveError::Protocol("the secret is no key".to_owned()))?;
        say(speaker, &FromClient::Proof { proof })?;
    }
    say(speaker, &FromClient::Plan(Box::new(order.plan.clone())))?;
    let said = hear(speaker, "an answer to the plan")?;
    if let FromServer::Accepted { token } = said { Ok(token) } else { Err(unexpected(said)) }
}

fn hear(speaker: &mut Speaker, what: &str) -> Result<FromServer, LiveError> {
    match speaker.hear::<FromServer>(PATIENCE) {
        Ok(Some(said)) => Ok(said),
        Ok(None) => Err(LiveError::Protocol(format!(
            "the server did not say {what} within {} s",
            PATIENCE.as_secs()
        ))),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(LiveError::Protocol(format!(
                "the server closed the connection before it said {what}: it is no towpath server \
                 of this version, or it is too busy"
            )))
        }
        Err(error) => Err(LiveError::Protocol(format!("the server did not say {what}: {error}"))),
    }
}

/// What the server said in place of what it should: its reason, if it refuses.
fn unexpected(said: FromServer) -> LiveError {
    if let FromServer::Refused { why, hint } = said {
        return LiveError::Refused(Refusal { why, hint });
    }
    let text = format!("{said:?}");
    let word = text.split([' ', '{']).next().unwrap_or_default().to_lowercase();
    LiveError::Protocol(format!("the server said `{word}` out of turn"))
}

/// Asks for the server's clock.
pub(super) fn probe(speaker: &mut Speaker, clock: Clock) -> Result<Offset, LiveError> {
    let mut probes = Probes::default();
    while probes.count() < PROBES {
        let asked = clock.now();
        speaker
            .say(&FromClient::Probe { client_ns: asked.as_nanos() })
            .map_err(LiveError::system("ask for the server's clock"))?;
        let said = hear(speaker, "what time it is")?;
        let FromServer::Clock { client_ns, server_ns } = said else {
            return Err(unexpected(said));
        };
        // Nobody answers before the question, whatever the answer says.
        let asked = Instant::from_nanos(client_ns).max(asked);
        probes.answered(asked, clock.now(), Instant::from_nanos(server_ns));
    }
    probes.best().ok_or_else(|| LiveError::Protocol("the server has no clock".to_owned()))
}
