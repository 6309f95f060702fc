//! Flows over our own stack: connect and accept. Bytes are moved in the stack's own thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use towpath_measure::scenario::Flow;
use towpath_mptcp::connection;
use towpath_mptcp::stack::ConnectionId;
use towpath_net::Instant;

use super::stream_app::{DrivenEndpoint, StreamAppConfig, StreamEvent, make};
use super::{IO_POLL_INTERVAL, StreamEndpoint, TrafficContext};
use crate::stack::status::StackConnection;
use crate::stack::{StackHandle, plan};

/// Listener of our own stack for one flow.
#[derive(Debug)]
pub(super) struct StackFlowListener {
    host: Arc<StackHandle>,
    accepted: Mutex<mpsc::Receiver<ConnectionId>>,
}

pub(super) fn listen(
    stage: &TrafficContext,
    flow: &Flow,
    stack: &Arc<StackHandle>,
    port: u16,
) -> io::Result<StackFlowListener> {
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
    Ok(StackFlowListener { host: Arc::clone(stack), accepted: Mutex::new(accepted) })
}

/// Returns the configuration of the flow's connection on one of its hosts.
fn config(
    stage: &TrafficContext,
    flow: &Flow,
    host: usize,
) -> io::Result<connection::ConnectionConfig> {
    let transport = flow.transport_in(stage.transport);
    plan::connection(&stage.network.scenario, host, transport).map_err(io::Error::other)
}

impl StackFlowListener {
    pub(super) fn accept(
        &self,
        stage: &TrafficContext,
        app_config: StreamAppConfig,
        deadline: Instant,
    ) -> io::Result<DrivenEndpoint> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let id = loop {
            match accepted.recv_timeout(IO_POLL_INTERVAL) {
                Ok(id) => break id,
                Err(RecvTimeoutError::Timeout) if !stage.pace.is_over(deadline) => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        };
        let (end, ears) = make(stage.pace.zero(), app_config, true);
        self.host.call(move |turn| turn.attach(id, Box::new(end)))?;
        let connection = StackConnection { host: Arc::clone(&self.host), id };
        Ok(ears.of(StreamEndpoint::Own(connection)))
    }
}

/// Opens a connection and waits until it is established.
pub(super) fn connect(
    stage: &TrafficContext,
    (flow, stack): (&Flow, &Arc<StackHandle>),
    (local, remote): (Option<IpAddr>, SocketAddr),
    app_config: StreamAppConfig,
    timeout: Duration,
) -> io::Result<DrivenEndpoint> {
    let config = config(stage, flow, flow.from)?;
    let (end, ears) = make(stage.pace.zero(), app_config, false);
    let connected = stack.call(move |turn| {
        let id = turn.stack.connect(turn.now, local, remote, config)?;
        turn.attach(id, Box::new(end));
        Ok(id)
    })?;
    let wrong = |error: towpath_mptcp::stack::ConnectError| io::Error::other(error);
    let id = connected.map_err(wrong)?;
    match ears.events.recv_timeout(timeout) {
        Ok(StreamEvent::Connected | StreamEvent::Ended | StreamEvent::Arrived) => {}
        Ok(StreamEvent::Closed(Some(error))) => return Err(io::Error::other(error)),
        Ok(StreamEvent::Closed(None)) => return Err(io::ErrorKind::ConnectionReset.into()),
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    let connection = StackConnection { host: Arc::clone(stack), id };
    Ok(ears.of(StreamEndpoint::Own(connection)))
}
