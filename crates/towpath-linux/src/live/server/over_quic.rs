//! Dispatch of connections that arrive over QUIC.

use std::sync::Arc;

use towpath_measure::live::{ConnectionKind, TestToken};
use towpath_quic::Fingerprint;

use super::{ConnectionOrigin, NamedTest, ServerState};
use crate::live::admission::{CloseFn, ConnectionPermit, SourcePrefix};
use crate::live::control_channel::ControlChannel;
use crate::live::data_stream::{DataStream, QuicDataStream};
use crate::live::dial;
use crate::live::echo::EchoStream;
use crate::live::quic_acceptor::{IdentifiedStream, QuicAcceptor};
use crate::live::server_test::ServerTest;
use crate::quic::{BlockingStream, DriverContext};
use crate::traffic::quic::QuicConnection;

impl ServerState {
    /// Creates the QUIC acceptor, without ports yet, and the fingerprint of its certificate.
    pub(super) fn quic_acceptor(&self) -> Result<(QuicAcceptor, Fingerprint), String> {
        let identity = self.config.identity.clone();
        let identity = identity.ok_or("no certificate could be made")?;
        let fingerprint = identity.fingerprint();
        let reception = QuicAcceptor::open(identity, &self.config.limits, self.clock);
        Ok((reception.map_err(|error| error.to_string())?, fingerprint))
    }

    /// Dispatches a QUIC stream, as [`Self::dispatch`] does for TCP. Runs in the QUIC driver
    /// thread, so it must not block. Dropping the stream also releases its connection.
    pub(super) fn dispatch_quic(
        self: &Arc<Self>,
        turn: &mut DriverContext<'_>,
        guest: IdentifiedStream,
    ) {
        let preamble = guest.preamble;
        let known = self.tests.find(preamble.test());
        match (preamble.kind, known) {
            (ConnectionKind::Data, Some(test)) => attach_over_quic(turn, guest, &test),
            (ConnectionKind::Control, Some(test)) => {
                self.control_over_quic(turn, guest, Some((preamble.test(), test)));
            }
            (ConnectionKind::Control, None) if preamble.token == TestToken::NONE => {
                self.control_over_quic(turn, guest, None);
            }
            (ConnectionKind::Echo, known) if known.is_some() || self.config.secret.is_none() => {
                if let Some(permit) = self.acquire_quic_permit(&guest, false) {
                    let IdentifiedStream { connection, stream, guard: hold, peer, .. } = guest;
                    let deadline = turn.now + self.config.limits.duration;
                    let allowed = self.budget.quota(SourcePrefix::of_peer(Some(peer)));
                    let echo = EchoStream::new(deadline, allowed, (permit, hold));
                    turn.attach(connection, stream, Box::new(echo));
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

    fn control_over_quic(
        self: &Arc<Self>,
        turn: &mut DriverContext<'_>,
        guest: IdentifiedStream,
        known: Option<NamedTest>,
    ) {
        let attending = known.as_ref().map(|(_, test)| test.attach_control(self.clock));
        let kept = attending.as_ref().is_some_and(|(_, kept)| *kept);
        let Some(permit) = self.acquire_quic_permit(&guest, kept) else { return };
        let IdentifiedStream { host, connection, stream, guard: hold, peer, port, .. } = guest;
        let stream = BlockingStream::attach(&host, turn, connection, stream);
        let speaker = ControlChannel::over_quic(stream, hold, self.clock);
        let origin = ConnectionOrigin { peer: Some(peer), observed: None, port: Some(port) };
        let token = known.map(|(token, _)| token);
        let attending = attending.map(|(attending, _)| attending);
        self.in_a_thread((permit, attending), move |_| Ok((speaker, origin)), token);
    }

    /// Acquires a permit for a QUIC connection; revoking the permit closes the connection.
    fn acquire_quic_permit(
        &self,
        stream: &IdentifiedStream,
        kept: bool,
    ) -> Option<ConnectionPermit> {
        let (host, connection) = (Arc::downgrade(&stream.host), stream.connection);
        let close: CloseFn = Box::new(move || {
            if let Some(host) = host.upgrade() {
                host.post(move |turn| turn.close(connection));
            }
        });
        self.budget.acquire(SourcePrefix::of_peer(Some(stream.peer)), kept, close)
    }
}

/// Attaches a stream to its test and configures the connection by the plan.
fn attach_over_quic(turn: &mut DriverContext<'_>, guest: IdentifiedStream, test: &ServerTest) {
    let IdentifiedStream { host, connection, stream, guard: hold, log, preamble, .. } = guest;
    let place = (preamble.flow, preamble.stream);
    let own = QuicConnection::accepted(host, connection, log);
    let strand = QuicDataStream::new(own, (stream, preamble.stream == 0), hold);
    if test.add(place, DataStream::Quic(strand)) {
        let config = dial::config(&test.scenario, 1, &test.plan);
        // Cannot fail, as unknown names were replaced.
        let _ = turn.host.configure(turn.now, connection, &config);
    }
}
