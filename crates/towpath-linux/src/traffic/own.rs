//! Flows over our own stack: opening and accepting. The bytes are moved in the stack's own thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use towpath_measure::scenario::Flow;
use towpath_mptcp::connection;
use towpath_mptcp::stack::ConnectionId;
use towpath_net::Instant;

use super::end::{Halves, Opened, Said, make};
use super::{PATIENCE, Stage, StreamEnd};
use crate::stack::status::Connection;
use crate::stack::{Host, plan};

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
            let _ = tell.send(connection); // the receiver may be gone
            None
        });
        Ok(())
    })?;
    let wrong = |error: towpath_mptcp::stack::ConfigError| io::Error::other(error);
    listening.map_err(wrong)?;
    Ok(OwnListener { host: Arc::clone(stack), accepted: Mutex::new(accepted) })
}

/// How the flow's connection behaves on one of its hosts.
fn config(stage: &Stage, flow: &Flow, host: usize) -> io::Result<connection::ConnectionConfig> {
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
                Err(RecvTimeoutError::Timeout) if !stage.pace.is_over(deadline) => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        };
        let (end, ears) = make(stage.pace.zero(), halves, true);
        self.host.call(move |turn| turn.attach(id, Box::new(end)))?;
        let connection = Connection { host: Arc::clone(&self.host), id };
        Ok(ears.of(StreamEnd::Own(connection)))
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
    let (end, ears) = make(stage.pace.zero(), halves, false);
    let connected = stack.call(move |turn| {
        let id = turn.stack.connect(turn.now, local, remote, config)?;
        turn.attach(id, Box::new(end));
        Ok(id)
    })?;
    let wrong = |error: towpath_mptcp::stack::ConnectError| io::Error::other(error);
    let id = connected.map_err(wrong)?;
    match ears.heard.recv_timeout(patience) {
        Ok(Said::Connected | Said::Ended | Said::Arrived) => {}
        Ok(Said::Closed(Some(error))) => return Err(io::Error::other(error)),
        Ok(Said::Closed(None)) => return Err(io::ErrorKind::ConnectionReset.into()),
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    let connection = Connection { host: Arc::clone(stack), id };
    Ok(ears.of(StreamEnd::Own(connection)))
}
