//! What a server does with those who come over QUIC.

use std::sync::Arc;

use towpath_measure::live::{ConnectionKind, TestToken};
use towpath_quic::Fingerprint;

use super::{Known, Origin, Shared};
use crate::live::budget::{Close, Seat, Source};
use crate::live::dial;
use crate::live::echo::Echo;
use crate::live::line::{Line, Strand};
use crate::live::reception::{Guest, Reception};
use crate::live::speaker::Speaker;
use crate::live::test::Test;
use crate::quic::{Stream, Turn};
use crate::traffic::quic::Connection;

impl Shared {
    /// QUIC without ports, and what it is known by.
    pub(super) fn reception(&self) -> Result<(Reception, Fingerprint), String> {
        let identity = self.config.identity.clone();
        let identity = identity.ok_or("no certificate could be made")?;
        let fingerprint = identity.fingerprint();
        let reception = Reception::open(identity, &self.config.limits, self.clock);
        Ok((reception.map_err(|error| error.to_string())?, fingerprint))
    }

    /// The same as [`Self::let_in`] for a stream of QUIC. Runs in the thread that speaks it, so
    /// nothing here may wait; a guest that is dropped is not kept.
    pub(super) fn let_in_over_quic(self: &Arc<Self>, turn: &mut Turn<'_>, guest: Guest) {
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
                if let Some(seat) = self.enter_over_quic(&guest, false) {
                    let Guest { connection, stream, hold, peer, .. } = guest;
                    let deadline = turn.now + self.config.limits.duration;
                    let allowed = self.budget.allowed(Source::of_peer(Some(peer)));
                    let echo = Echo::new(deadline, allowed, (seat, hold));
                    turn.attach(connection, stream, Box::new(echo));
                }
            }
            // QUIC has TLS of its own.
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
        turn: &mut Turn<'_>,
        guest: Guest,
        known: Option<Known>,
    ) {
        let attending = known.as_ref().map(|(_, test)| test.attend(self.clock));
        let kept = attending.as_ref().is_some_and(|(_, kept)| *kept);
        let Some(seat) = self.enter_over_quic(&guest, kept) else { return };
        let Guest { host, connection, stream, hold, peer, port, .. } = guest;
        let stream = Stream::attach(&host, turn, connection, stream);
        let speaker = Speaker::over(stream, hold, self.clock);
        let origin = Origin { peer: Some(peer), seen: None, port: Some(port) };
        let token = known.map(|(token, _)| token);
        let attending = attending.map(|(attending, _)| attending);
        self.in_a_thread((seat, attending), move |_| Ok((speaker, origin)), token);
    }

    /// A seat for a connection of QUIC, which is closed if it is needed by others.
    fn enter_over_quic(&self, guest: &Guest, kept: bool) -> Option<Seat> {
        let (host, connection) = (Arc::downgrade(&guest.host), guest.connection);
        let close: Close = Box::new(move || {
            if let Some(host) = host.upgrade() {
                host.tell(move |turn| turn.close(connection));
            }
        });
        self.budget.enter(Source::of_peer(Some(guest.peer)), kept, close)
    }
}

/// Gives a test a stream, and its connection what the plan says.
fn attach_over_quic(turn: &mut Turn<'_>, guest: Guest, test: &Test) {
    let Guest { host, connection, stream, hold, log, preamble, .. } = guest;
    let place = (preamble.flow, preamble.stream);
    let own = Connection::accepted(host, connection, log);
    let strand = Strand::new(own, (stream, preamble.stream == 0), hold);
    if test.add(place, Line::Quic(strand)) {
        let config = dial::config(&test.scenario, 1, &test.plan);
        // All names were replaced that are not known.
        let _ = turn.host.configure(turn.now, connection, &config);
    }
}
