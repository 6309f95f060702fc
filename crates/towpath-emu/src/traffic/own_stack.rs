//! Flows over our own stack: connect and accept. Bytes are moved in the stack's own thread.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use towpath_mptcp::connection;
use towpath_net::Instant;
use towpath_scenario::Flow;
use towpath_sockets::stack::StackHandle;
use towpath_sockets::stack::status::StackConnection;
use towpath_sockets::stream::IO_POLL_INTERVAL;
use towpath_sockets::stream::app::{StreamAppConfig, StreamEvent, create_app};
use towpath_wire::ConnectionId;

use super::{StreamEndpoint, TrafficContext};
use crate::network::stack_plan as plan;
use crate::traffic::DrivenEndpoint;

/// Listener of our own stack for one flow.
#[derive(Debug)]
pub(super) struct StackFlowListener {
    host: Arc<StackHandle>,
    accepted: Mutex<mpsc::Receiver<ConnectionId>>,
}

pub(super) fn listen(
    context: &TrafficContext,
    flow: &Flow,
    stack: &Arc<StackHandle>,
    port: u16,
) -> io::Result<StackFlowListener> {
    let config = config(context, flow, flow.to)?;
    let (connection_sender, accepted) = mpsc::channel();
    let result = stack.call(move |driver| {
        let listener = driver.stack.listen(port, config)?;
        driver.on_accept(listener, move |connection| {
            let _ = connection_sender.send(connection); // the receiver may be gone
            None
        });
        Ok(())
    })?;
    let to_io_error = |error: towpath_mptcp::stack::ConfigError| io::Error::other(error);
    result.map_err(to_io_error)?;
    Ok(StackFlowListener { host: Arc::clone(stack), accepted: Mutex::new(accepted) })
}

/// Returns the configuration of the flow's connection on one of its hosts.
fn config(
    context: &TrafficContext,
    flow: &Flow,
    host: usize,
) -> io::Result<connection::ConnectionConfig> {
    let transport = flow.transport_in(context.transport);
    plan::flow_connection(&context.network.scenario, flow, host, transport)
        .map_err(io::Error::other)
}

impl StackFlowListener {
    pub(super) fn accept(
        &self,
        context: &TrafficContext,
        app_config: StreamAppConfig,
        deadline: Instant,
    ) -> io::Result<DrivenEndpoint> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        let id = loop {
            match accepted.recv_timeout(IO_POLL_INTERVAL) {
                Ok(id) => break id,
                Err(RecvTimeoutError::Timeout) if !context.run_clock.is_over(deadline) => {}
                Err(_) => return Err(io::ErrorKind::TimedOut.into()),
            }
        };
        let (app, events) = create_app(context.run_clock.start_time(), app_config, true);
        self.host.call(move |driver| driver.attach(id, Box::new(app)))?;
        let connection = StackConnection { host: Arc::clone(&self.host), id };
        Ok(DrivenEndpoint { end: StreamEndpoint::Own(connection), events })
    }
}

/// Opens a connection and waits until it is established.
pub(super) fn connect(
    context: &TrafficContext,
    (flow, stack): (&Flow, &Arc<StackHandle>),
    (local, remote): (Option<IpAddr>, SocketAddr),
    app_config: StreamAppConfig,
    timeout: Duration,
) -> io::Result<DrivenEndpoint> {
    let config = config(context, flow, flow.from)?;
    let (app, events) = create_app(context.run_clock.start_time(), app_config, false);
    let result = stack.call(move |driver| {
        let id = driver.stack.connect(driver.now, local, remote, config)?;
        driver.attach(id, Box::new(app));
        Ok(id)
    })?;
    let to_io_error = |error: towpath_mptcp::stack::ConnectError| io::Error::other(error);
    let id = result.map_err(to_io_error)?;
    match events.events.recv_timeout(timeout) {
        Ok(StreamEvent::Connected | StreamEvent::Ended | StreamEvent::Arrived) => {}
        Ok(StreamEvent::Closed(Some(error))) => return Err(io::Error::other(error)),
        Ok(StreamEvent::Closed(None)) => return Err(io::ErrorKind::ConnectionReset.into()),
        Err(_) => return Err(io::ErrorKind::TimedOut.into()),
    }
    let connection = StackConnection { host: Arc::clone(stack), id };
    Ok(DrivenEndpoint { end: StreamEndpoint::Own(connection), events })
}
