//! Flows over QUIC: one connection for each flow, with a QUIC stream for each of its streams.
//! Bytes are moved in the hosts' QUIC threads.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use towpath_quic::config::SettingError;
use towpath_quic::{QuicConfig, StreamId};
use towpath_scenario::{Family, Flow, Scenario, Transport};
use towpath_sockets::quic::{ConnectionEvent, QuicHandle};
use towpath_sockets::stream::app::{EventReceiver, StreamApp, StreamAppConfig, create_app};
use towpath_sockets::stream::quic::{QuicConnection, QuicEventLog, QuicStreamHandle, lock};

use super::{DrivenEndpoint, StreamEndpoint, TrafficContext};
use crate::network::EmulatedNetwork;

/// Acceptor of a flow's connection.
#[derive(Debug)]
pub(super) struct QuicFlowListener {
    server: Arc<QuicHandle>,
    /// Server ends of streams that the client is about to open.
    pending_apps: Arc<Mutex<BTreeMap<StreamId, StreamApp>>>,
    accepted: Mutex<mpsc::Receiver<QuicConnection>>,
    /// Client's and server's end of the flow's connection, once it is open.
    open: Mutex<Option<[QuicConnection; 2]>>,
}

fn quic_host(context: &TrafficContext, host: usize) -> io::Result<&Arc<QuicHandle>> {
    let namespace = context.network.hosts.get(host).ok_or(io::ErrorKind::NotFound)?;
    let no_quic = || {
        let text =
            format!("`{}` has towpath's own stack, which has no UDP sockets", namespace.name);
        io::Error::new(io::ErrorKind::Unsupported, text)
    };
    namespace.quic.as_ref().ok_or_else(no_quic)
}

/// Returns the configuration of a host's connections.
pub(crate) fn config(
    scenario: &Scenario,
    host: usize,
    transport: Transport,
) -> Result<QuicConfig, SettingError> {
    let host = scenario.hosts.get(host);
    let texts = host.map_or_else(Vec::new, |host| scenario.quic_settings(host));
    let config = QuicConfig::from_texts(texts.iter().map(|(name, value)| (*name, value.as_str())))?;
    let mtu_bytes = scenario.paths.iter().map(|path| path.mtu_bytes).max().unwrap_or(1_500);
    // Headers of IP and UDP; path MTU discovery then finds the limit of each path.
    let header_bytes =
        if EmulatedNetwork::families(scenario).contains(&Family::V4) { 28 } else { 48 };
    let max_datagram_bytes = u16::try_from(mtu_bytes - header_bytes).unwrap_or(u16::MAX);
    let multipath = transport == Transport::Mpquic;
    Ok(QuicConfig { multipath, max_datagram_bytes, ..config })
}

fn flow_config(context: &TrafficContext, flow: &Flow, host: usize) -> io::Result<QuicConfig> {
    let transport = flow.transport_in(context.transport);
    config(&context.network.scenario, host, transport).map_err(io::Error::other)
}

pub(super) fn listen(
    context: &TrafficContext,
    flow: &Flow,
    port: u16,
) -> io::Result<QuicFlowListener> {
    let server = Arc::clone(quic_host(context, flow.to)?);
    let config = flow_config(context, flow, flow.to)?;
    let (connection_sender, accepted) = mpsc::channel();
    let pending_apps: Arc<Mutex<BTreeMap<StreamId, StreamApp>>> = Arc::default();
    let (apps, host) = (Arc::clone(&pending_apps), Arc::downgrade(&server));
    let result = server.call(move |driver| {
        driver.listen(port, config, move |driver, id| {
            let Some(host) = host.upgrade() else { return };
            let apps = Arc::clone(&apps);
            let log = QuicEventLog::attach(driver, id, move |driver, event| {
                let ConnectionEvent::StreamOpened(stream) = event else { return };
                let app = lock(&apps).remove(stream);
                if let Some(app) = app {
                    driver.attach(id, *stream, Box::new(app));
                }
            });
            let _ = connection_sender.send(QuicConnection { host, id, log }); // may be gone
        })
    })?;
    result?;
    Ok(QuicFlowListener {
        server,
        pending_apps,
        accepted: Mutex::new(accepted),
        open: Mutex::new(None),
    })
}

impl QuicFlowListener {
    /// Opens stream `number` of the flow; for the first stream, also the connection.
    pub(super) fn open(
        &self,
        context: &TrafficContext,
        (flow, number): (&Flow, u32),
        ends: (Option<IpAddr>, SocketAddr),
        app_config: [StreamAppConfig; 2],
        timeout: Duration,
    ) -> io::Result<[DrivenEndpoint; 2]> {
        let mut open = lock(&self.open);
        let [client, server] = match open.take() {
            Some(connections) => connections,
            None => self.connect(context, flow, ends, timeout)?,
        };
        *open = Some([client.clone(), server.clone()]);
        let [client_app, server_app] =
            app_config.map(|config| create_app(context.run_clock.start_time(), config, false));
        let (server_app, server_events) = server_app;
        lock(&self.pending_apps).insert(StreamId(u64::from(number)), server_app);
        let client_events = client.open_app_stream(client_app)?;
        let first = number == 0;
        let endpoint = |events: EventReceiver, connection| DrivenEndpoint {
            end: StreamEndpoint::Quic(QuicStreamHandle { connection, first }),
            events,
        };
        Ok([endpoint(client_events, client), endpoint(server_events, server)])
    }

    fn connect(
        &self,
        context: &TrafficContext,
        flow: &Flow,
        (local, remote): (Option<IpAddr>, SocketAddr),
        timeout: Duration,
    ) -> io::Result<[QuicConnection; 2]> {
        let host = quic_host(context, flow.from)?;
        let config = flow_config(context, flow, flow.from)?;
        let client = QuicConnection::connect(host, (local, remote), config, timeout)?;
        let timeout_error = |_| io::Error::from(io::ErrorKind::TimedOut);
        let server = lock(&self.accepted).recv_timeout(timeout).map_err(timeout_error)?;
        Ok([client, server])
    }
}

impl Drop for QuicFlowListener {
    fn drop(&mut self) {
        // Unopened ends hold event senders for which their flows' threads wait.
        lock(&self.pending_apps).clear();
        let _ = &self.server;
    }
}
