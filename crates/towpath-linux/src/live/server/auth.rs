//! Authentication on a server: control over TLS, the secret, and diagnostics for unauthenticated
//! clients.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::Socket;
use towpath_measure::live::{
    AdmissionError, AuthRateLimiter, ClientMessage, ConnectionKind, ControlAction, ControlSession,
    HostSnapshot, Preamble, ServerMessage, TestToken,
};
use towpath_quic::tls::TlsSession;

use super::{ConnectionOrigin, ControlConnection, NamedTest, ServerState};
use crate::doctor;
use crate::live::ServerEvent;
use crate::live::admission;
use crate::live::control_channel::ControlChannel;
use crate::live::socket;
use crate::traffic::socket_stream::SocketStream;

impl ServerState {
    /// Serves control over TLS. The preamble inside TLS hides the test's token from eavesdroppers.
    pub(super) fn control_over_tls(self: &Arc<Self>, socket: Socket) {
        socket::enable_keepalive(&socket);
        let session = self.config.identity.as_ref().map(TlsSession::server);
        let (Some(Ok(session)), Some(permit)) = (session, self.acquire_permit(&socket, false))
        else {
            return;
        };
        let shared = Arc::clone(self);
        // Without a thread, the connection is closed.
        let _ = admission::spawn_thread("control", move || {
            let Ok((opened, known)) = shared.authenticate(socket, session) else { return };
            let attending = known.as_ref().map(|(_, test)| test.attach_control(shared.clock));
            if attending.as_ref().is_some_and(|(_, kept)| *kept) {
                permit.pin();
            }
            let attending = attending.map(|(attending, _)| attending);
            let token = known.map(|(token, _)| token);
            let _ = shared.control(opened, (&permit, attending), token); // ends with the connection
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
        let port = socket.local_addr().ok().and_then(|own| own.as_socket()).map(|own| own.port());
        let (peer, seen) = (socket::peer(&socket), Some(self.observed_protocol(&socket)));
        let deadline = self.clock.now() + timeout;
        let (wire, _) = SocketStream::handshake(socket, session, (self.clock, deadline))?;
        let mut speaker = ControlChannel::over_socket(wire, self.clock)?;
        let said = speaker.recv_raw::<{ Preamble::BYTES }>(timeout)?;
        let preamble = Preamble::read(&said).ok().flatten();
        let preamble = preamble.filter(|preamble| preamble.kind == ConnectionKind::Control);
        let token = preamble.ok_or(io::ErrorKind::InvalidData)?.test();
        let known = self.tests.find(token).map(|test| (token, test));
        if token != TestToken::NONE && known.is_none() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(((speaker, ConnectionOrigin { peer, observed: seen, port }), known))
    }

    /// Returns the actions for a client's message. A source with failed proofs must wait before its
    /// next proof is verified.
    pub(super) fn actions_for(
        &self,
        control: &mut ControlSession,
        said: ClientMessage,
        client: Option<std::net::SocketAddr>,
    ) -> Vec<ControlAction> {
        let limits = &self.config.limits;
        let from = client.map(|client| client.ip());
        let (ClientMessage::Proof { .. }, Some(from)) = (&said, from) else {
            return control.on_message(said, limits);
        };
        // Held during verification, so that concurrent proofs from a source are serialized.
        let mut guesses = self.auth_limiter.lock();
        let now = self.clock.now();
        let (acts, others) = if let Err(left) = guesses.check(from, now) {
            let seconds = left.as_secs().saturating_add(1);
            let why = "too many wrong secrets came from this address";
            let refusal = AdmissionError::new(why, format!("try again in {seconds} s"));
            (control.refuse(refusal), guesses.record_rejected(now))
        } else {
            let mut acts = control.on_message(said, limits);
            if acts.contains(&ControlAction::AuthFailed) {
                acts.retain(|act| *act != ControlAction::AuthFailed);
                (acts, guesses.record_failure(from, now))
            } else {
                if acts
                    .iter()
                    .any(|act| matches!(act, ControlAction::Send(ServerMessage::Proved { .. })))
                {
                    guesses.record_success(from);
                }
                (acts, None)
            }
        };
        drop(guesses);
        if let Some(others) = others {
            self.emit(ServerEvent::WrongSecret { client, others });
        }
        acts
    }

    /// Returns a snapshot of this host. Unauthenticated clients learn no more than a port scan
    /// reveals.
    pub(super) fn snapshot(&self, port: u16, whole: bool, asker: Option<IpAddr>) -> ServerMessage {
        let ours = self.config.ports.contains(&port) || self.has_udp(Some(port));
        let look = if whole {
            doctor::snapshot(Some(doctor::SnapshotQuery { port, peer: asker }))
        } else if ours {
            doctor::snapshot_port(doctor::SnapshotQuery { port, peer: asker })
        } else {
            HostSnapshot::default().redacted()
        };
        ServerMessage::Snapshot(Box::new(look))
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
