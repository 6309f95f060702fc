//! Dispatch of connections that arrive over QUIC.

use std::sync::Arc;

use towpath_net::SourcePrefix;
use towpath_quic::{Fingerprint, QuicConfig};
use towpath_run::token::TestToken;
use towpath_scenario::flow_plan::streams;
use towpath_sockets::quic::{BlockingStream, DriverContext};
use towpath_sockets::stream::quic::QuicConnection;

use super::{ConnectionOrigin, NamedTest, ServerState};
use crate::admission::{CloseFn, ConnectionPermit};
use crate::control_channel::ControlChannel;
use crate::data_stream::{DataStream, QuicDataStream};
use crate::dial;
use crate::echo::EchoStream;
use crate::protocol::ConnectionKind;
use crate::quic_acceptor::{IdentifiedStream, QuicAcceptor};
use crate::server_test::ServerTest;

impl ServerState {
    /// Creates the QUIC acceptor, without ports yet, and the fingerprint of its certificate.
    pub(super) fn quic_acceptor(&self) -> Result<(QuicAcceptor, Fingerprint), String> {
        let identity = self.config.identity.clone();
        let identity = identity.ok_or("cannot create a certificate")?;
        let fingerprint = identity.fingerprint();
        let acceptor = QuicAcceptor::open(
            identity,
            &self.config.limits,
            self.config.quic_migration,
            self.clock,
        );
        Ok((acceptor.map_err(|error| error.to_string())?, fingerprint))
    }

    /// Dispatches a QUIC stream, as [`Self::dispatch`] does for TCP. Runs in the QUIC driver
    /// thread, so it must not block. Dropping the stream also releases its connection.
    pub(super) fn dispatch_quic(
        self: &Arc<Self>,
        driver: &mut DriverContext<'_>,
        identified: IdentifiedStream,
    ) {
        let preamble = identified.preamble;
        let test = self.tests.find(preamble.test());
        match (preamble.kind, test) {
            (ConnectionKind::Data, Some(test)) => attach_over_quic(driver, identified, &test),
            (ConnectionKind::Control, Some(test)) => {
                self.serve_control_over_quic(driver, identified, Some((preamble.test(), test)));
            }
            (ConnectionKind::Control, None) if preamble.token == TestToken::NONE => {
                self.serve_control_over_quic(driver, identified, None);
            }
            (ConnectionKind::Echo, test) if test.is_some() || !self.requires_proof() => {
                if let Some(permit) = self.acquire_quic_permit(&identified, false) {
                    let IdentifiedStream { connection, stream, guard, peer, .. } = identified;
                    let deadline = driver.now + self.config.limits.duration;
                    let quota = self.budget.quota(SourcePrefix::of(peer.ip()));
                    let echo = EchoStream::new(deadline, quota, (permit, guard));
                    driver.attach(connection, stream, Box::new(echo));
                }
            }
            // QUIC already includes TLS.
            (
                ConnectionKind::Control
                | ConnectionKind::Data
                | ConnectionKind::Echo
                | ConnectionKind::Tls,
                _,
            ) => {}
        }
    }

    fn serve_control_over_quic(
        self: &Arc<Self>,
        driver: &mut DriverContext<'_>,
        identified: IdentifiedStream,
        named_test: Option<NamedTest>,
    ) {
        let client_guard = named_test.as_ref().map(|(_, test)| test.attach_control(self.clock));
        let may_pin = client_guard.as_ref().is_some_and(|(_, may_pin)| *may_pin);
        let Some(permit) = self.acquire_quic_permit(&identified, may_pin) else { return };
        let IdentifiedStream { host, connection, stream, guard, peer, port, .. } = identified;
        let stream = BlockingStream::attach(&host, driver, connection, stream);
        let channel = ControlChannel::over_quic(stream, guard, self.clock);
        let origin = ConnectionOrigin { peer: Some(peer), observed: None, port: Some(port) };
        let token = named_test.map(|(token, _)| token);
        let client_guard = client_guard.map(|(client_guard, _)| client_guard);
        self.spawn_control_thread((permit, client_guard), move |_| Ok((channel, origin)), token);
    }

    /// Acquires a permit for a QUIC connection; revoking the permit closes the connection.
    fn acquire_quic_permit(
        &self,
        stream: &IdentifiedStream,
        pinned: bool,
    ) -> Option<ConnectionPermit> {
        let (host, connection) = (Arc::downgrade(&stream.host), stream.connection);
        let close: CloseFn = Box::new(move || {
            if let Some(host) = host.upgrade() {
                host.post(move |driver| driver.close(connection));
            }
        });
        self.budget.acquire(SourcePrefix::of(stream.peer.ip()), pinned, close)
    }
}

/// Attaches a stream to its test and configures the connection by the plan.
fn attach_over_quic(
    driver: &mut DriverContext<'_>,
    identified: IdentifiedStream,
    test: &ServerTest,
) {
    let IdentifiedStream { host, connection, stream, guard, log, preamble, .. } = identified;
    let stream_key = (preamble.flow, preamble.stream);
    let quic = QuicConnection::accepted(host, connection, log);
    let data_stream = QuicDataStream::new(quic, (stream, preamble.stream == 0), guard);
    if test.add(stream_key, DataStream::Quic(data_stream)) {
        let flow = test.scenario.flows.get(usize::from(preamble.flow));
        let max_streams = flow.map_or(1, |flow| streams(&flow.pattern));
        let config = QuicConfig { max_streams, ..dial::flow_config(&test.scenario, 1, &test.plan) };
        // Cannot fail, as unknown names were replaced.
        let _ = driver.host.configure(driver.now, connection, &config);
    }
}
