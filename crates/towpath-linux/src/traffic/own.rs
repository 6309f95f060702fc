//! Flows over our own stack: opening and accepting, and waiting for what arrives. The bytes are moved
//! in the stack's own thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use towpath_measure::metrics::DeliveryLog;
use towpath_measure::scenario::Flow;
use towpath_measure::traffic::{Receiver, Sender};
use towpath_mptcp::connection;
use towpath_mptcp::stack::ConnectionId;
use towpath_net::Instant;

use super::end::{FlowEnd, Said, Sink};
use super::talk::SharedTalk;
use super::{PATIENCE, Stage};
use crate::stack::status::Connection;
use crate::stack::{Host, plan};

/// Things that can be said before anybody listens.
const WORDS: usize = 8;

/// What one end shall do.
#[derive(Debug)]
pub(super) struct Halves {
    pub(super) sender: Option<Sender>,
    /// Start of the flow, and where the received bytes are counted.
    pub(super) receiver: Option<(Instant, Arc<AtomicU64>)>,
    /// The end's talk and which of its streams it is, where messages are exchanged.
    pub(super) talk: Option<(SharedTalk, u32)>,
}

/// A connection whose end was made in the stack's thread.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) connection: Connection,
    heard: mpsc::Receiver<Said>,
    sink: Option<Sink>,
}

/// A listener of our own stack.
#[derive(Debug)]
pub(super) struct OwnListener {
    host: Arc<Host>,
    accepted: Mutex<mpsc::Receiver<ConnectionId>>,
}

pub(super) fn listen(
    stage: &Stage,
    flow: &Flow,
    stack: &Arc<Host>,
    port: u16,
) -> io::Result<OwnListener> {
    let config = config(stage, flow, flow.to)?;
    let (tell, accepted) = mpsc::channel();
    let listening = stack.call(move |turn| {
        let listener = turn.stack.listen(port, config)?;
        turn.on_accept(listener, move |connection| {
            let _nobody_accepts = tell.send(connection);
            None
        });
        Ok(())
    })?;
    let wrong = |error: towpath_mptcp::stack::ConfigError| io::Error::other(error);
    listening.map_err(wrong)?;
    Ok(OwnListener { host: Arc::clone(stack), accepted: Mutex::new(accepted) })
}

/// How the flow's connection behaves on one of its hosts.
fn config(stage: &Stage, flow: &Flow, host: usize) -> io::Result<connection::Config> {
    let transport = flow.transport_in(stage.transport);
    plan::connection(&stage.network.scenario, host, transport).map_err(io::Error::other)
}

impl OwnListener {
    pub(super) fn accept(
        &self,
        stage: &Stage,
        halves: Halves,
        deadline: Instant,
    ) -> io::Result<Opened> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let id = loop {
            match accepted.recv_timeout(PATIENCE) {
                Ok(id) => break id,
                Err(RecvTimeoutError::Timeout) if !stage.is_over(deadline) => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        };
        let (end, heard, sink) = make(stage, halves, true);
        self.host.call(move |turn| turn.attach(id, Box::new(end)))?;
        let connection = Connection { host: Arc::clone(&self.host), id };
        Ok(Opened { connection, heard, sink })
    }
}

/// Opens a connection and waits until it is established.
pub(super) fn connect(
    stage: &Stage,
    (flow, stack): (&Flow, &Arc<Host>),
    (local, remote): (Option<IpAddr>, SocketAddr),
    halves: Halves,
    patience: Duration,
) -> io::Result<Opened> {
    let config = config(stage, flow, flow.from)?;
    let (end, heard, sink) = make(stage, halves, false);
    let connected = stack.call(move |turn| {
        let id = turn.stack.connect(turn.now, local, remote, config)?;
        turn.attach(id, Box::new(end));
        Ok(id)
    })?;
    let wrong = |error: towpath_mptcp::stack::ConnectError| io::Error::other(error);
    let id = connected.map_err(wrong)?;
    match heard.recv_timeout(patience) {
        Ok(Said::Connected | Said::Ended) => {}
        Ok(Said::Closed(Some(error))) => return Err(io::Error::other(error)),
        Ok(Said::Closed(None)) => return Err(io::ErrorKind::ConnectionReset.into()),
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    let connection = Connection { host: Arc::clone(stack), id };
    Ok(Opened { connection, heard, sink })
}

fn make(
    stage: &Stage,
    halves: Halves,
    open: bool,
) -> (FlowEnd, mpsc::Receiver<Said>, Option<Sink>) {
    let (told, heard) = mpsc::sync_channel(WORDS);
    let sink = halves.receiver.map(|(start, received)| Sink {
        meter: Arc::new(Mutex::new(Some(Receiver::new(start)))),
        received,
    });
    let end = FlowEnd::new(stage.zero, open, halves.sender, sink.clone(), told);
    (end.talking(halves.talk), heard, sink)
}

/// Waits for the end of the data, or of the flow, and takes the log.
pub(super) fn receive(
    stage: &Stage,
    opened: &Opened,
    start: Instant,
    deadline: Instant,
) -> DeliveryLog {
    while !stage.is_over(deadline) {
        match opened.heard.recv_timeout(PATIENCE) {
            Ok(Said::Connected) | Err(RecvTimeoutError::Timeout) => {}
            Ok(Said::Ended | Said::Closed(_)) | Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let meter = opened
        .sink
        .as_ref()
        .and_then(|sink| sink.meter.lock().unwrap_or_else(PoisonError::into_inner).take());
    meter.map_or_else(|| DeliveryLog::new(start), |meter| meter.finish(stage.now().min(deadline)))
}
