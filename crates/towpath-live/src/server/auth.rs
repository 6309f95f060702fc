//! Authentication on a server: control over TLS, the secret, and diagnostics for unauthenticated
//! clients.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::Socket;
use towpath_host::snapshot::HostSnapshot;
use towpath_host::snapshot::take::{self, SnapshotQuery};
use towpath_quic::tls::TlsSession;
use towpath_run::token::TestToken;
use towpath_sockets::stream::socket_stream::SocketStream;

use super::{ConnectionOrigin, ControlConnection, NamedTest, ServerState};
use crate::ServerEvent;
use crate::admission;
use crate::control_channel::ControlChannel;
use crate::protocol::{
    AdmissionError, AuthRateLimiter, ClientMessage, ConnectionKind, ControlAction, ControlSession,
    Preamble, ServerMessage,
};
use crate::socket;

impl ServerState {
    /// Serves control over TLS. The preamble inside TLS hides the test's token from eavesdroppers.
    pub(super) fn serve_control_over_tls(self: &Arc<Self>, socket: Socket) {
        socket::enable_keepalive(&socket);
        let session = self.config.identity.as_ref().map(TlsSession::server);
        let (Some(Ok(session)), Some(permit)) = (session, self.acquire_permit(&socket, false))
        else {
            return;
        };
        let state = Arc::clone(self);
        // Without a thread, the connection is closed.
        let _ = admission::spawn_thread("control", move || {
            let Ok((connection, named_test)) = state.authenticate(socket, session) else { return };
            let client_guard =
                named_test.as_ref().map(|(_, test)| test.attach_control(state.clock));
            if client_guard.as_ref().is_some_and(|(_, may_pin)| *may_pin) {
                permit.pin();
            }
            let client_guard = client_guard.map(|(client_guard, _)| client_guard);
            let token = named_test.map(|(token, _)| token);
            let _ = state.serve_control(connection, (&permit, client_guard), token); // ends with the connection
        });
    }

    /// Performs the TLS handshake; returns the control connection and its test, if the preamble
    /// names one.
    fn authenticate(
        &self,
        socket: Socket,
        session: TlsSession,
    ) -> io::Result<(ControlConnection, Option<NamedTest>)> {
        let timeout = self.config.limits.preamble_timeout;
        let port = socket
            .local_addr()
            .ok()
            .and_then(|address| address.as_socket())
            .map(|address| address.port());
        let (peer, observed) = (socket::peer(&socket), Some(self.observed_protocol(&socket)));
        let deadline = self.clock.now() + timeout;
        let (stream, _) = SocketStream::handshake(socket, session, (self.clock, deadline))?;
        let mut channel = ControlChannel::over_socket(stream, self.clock)?;
        let bytes = channel.recv_raw::<{ Preamble::BYTES }>(timeout)?;
        let preamble = Preamble::read(&bytes).ok().flatten();
        let preamble = preamble.filter(|preamble| preamble.kind == ConnectionKind::Control);
        let token = preamble.ok_or(io::ErrorKind::InvalidData)?.test();
        let named_test = self.tests.find(token).map(|test| (token, test));
        if token != TestToken::NONE && named_test.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(((channel, ConnectionOrigin { peer, observed, port }), named_test))
    }

    /// Returns the actions for a client's message. A source with failed proofs must wait before its
    /// next proof is verified.
    pub(super) fn actions_for(
        &self,
        control: &mut ControlSession,
        message: ClientMessage,
        client: Option<std::net::SocketAddr>,
    ) -> Vec<ControlAction> {
        let limits = &self.config.limits;
        let source = client.map(|client| client.ip());
        let (ClientMessage::Proof { .. }, Some(source)) = (&message, source) else {
            return control.on_message(message, limits);
        };
        // Held during verification, so that concurrent proofs from a source are serialized.
        let mut limiter = self.auth_limiter.lock();
        let now = self.clock.now();
        let (actions, unreported) = if let Err(retry_after) = limiter.check(source, now) {
            let seconds = retry_after.as_secs().saturating_add(1);
            let reason = "too many wrong secrets from this address";
            let refusal = AdmissionError::new(reason, format!("try again in {seconds} s"));
            (control.refuse(refusal), limiter.record_rejected(now))
        } else {
            let mut actions = control.on_message(message, limits);
            if actions.contains(&ControlAction::AuthFailed) {
                actions.retain(|action| *action != ControlAction::AuthFailed);
                (actions, limiter.record_failure(source, now))
            } else {
                // A device could guess the server's secret if each proof of its grant started afresh.
                let has_secret = control.proved_grant().is_none();
                if actions.iter().any(|action| {
                    matches!(action, ControlAction::Send(ServerMessage::Proved { .. }))
                }) && has_secret
                {
                    limiter.record_success(source);
                }
                (actions, None)
            }
        };
        drop(limiter);
        if let Some(unreported) = unreported {
            self.emit(ServerEvent::WrongSecret { client, others: unreported });
        }
        actions
    }

    /// Returns a snapshot of this host. Unauthenticated clients learn no more than a port scan
    /// reveals.
    pub(super) fn snapshot(
        &self,
        port: u16,
        complete: bool,
        peer: Option<IpAddr>,
    ) -> ServerMessage {
        let is_own_port = self.config.ports.contains(&port) || self.has_udp(Some(port));
        let snapshot = if complete {
            take::snapshot(Some(SnapshotQuery { port, peer }))
        } else if is_own_port {
            take::snapshot_port(SnapshotQuery { port, peer })
        } else {
            HostSnapshot::default().redacted()
        };
        ServerMessage::Snapshot(Box::new(snapshot))
    }
}

/// Rate limiter of failed authentication by source.
#[derive(Debug, Default)]
pub(super) struct SharedAuthLimiter(Mutex<AuthRateLimiter>);

impl SharedAuthLimiter {
    fn lock(&self) -> MutexGuard<'_, AuthRateLimiter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
