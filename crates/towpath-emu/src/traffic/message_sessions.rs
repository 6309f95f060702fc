//! Message sessions of a flow in the emulated network: both ends are in this process.

use std::sync::{Arc, Mutex};

use socket2::Socket;
use towpath_net::Instant;
use towpath_run::traffic::{FlowRole, MessageSession, messages};
use towpath_scenario::{DataDirection, Flow};
use towpath_sockets::stream::messages::{KernelMessageEnd, KernelStream, SharedSession, lock};
use towpath_sockets::stream::sends;
use towpath_sockets::stream::socket_stream::SocketStream;

use super::{FlowOutcome, SampledStream};

/// Message sessions of a flow: the client's and the server's.
#[derive(Debug)]
pub(super) struct MessageSessions {
    sessions: [SharedSession; 2],
    /// Streams of both ends over sockets of the kernel.
    streams: [Vec<KernelStream>; 2],
}

impl MessageSessions {
    /// Creates the sessions; `None` if the flow exchanges no messages.
    pub(super) fn new(flow: &Flow) -> Option<Self> {
        let start = Instant::ZERO + flow.start;
        let session =
            |role| Some(Arc::new(Mutex::new(MessageSession::new(&flow.pattern, role, start)?)));
        let sessions = [session(FlowRole::Client)?, session(FlowRole::Server)?];
        Some(Self { sessions, streams: [Vec::new(), Vec::new()] })
    }

    /// Returns the session of one end.
    pub(super) fn session(&self, is_client: bool) -> SharedSession {
        let [client, server] = &self.sessions;
        Arc::clone(if is_client { client } else { server })
    }

    /// Adds a stream over a socket of the kernel.
    pub(super) fn add_stream(
        &mut self,
        stream: &SampledStream,
        socket: &Arc<Socket>,
        is_client: bool,
    ) {
        let [client, server] = &mut self.streams;
        let incoming = stream.received.iter().find(|(direction, _)| !sends(*direction, is_client));
        let kernel_stream = incoming.map(|(_, received)| KernelStream {
            number: stream.number,
            socket: SocketStream::Plain(Arc::clone(socket)),
            received: Arc::clone(received),
        });
        (if is_client { client } else { server }).extend(kernel_stream);
    }

    /// Returns the ends over the kernel's sockets; each runs in its own thread.
    pub(super) fn kernel_ends(&mut self) -> Vec<KernelMessageEnd> {
        let incoming = [DataDirection::Down, DataDirection::Up];
        let ends = self.sessions.iter().zip(&mut self.streams).zip(incoming);
        let kernel_ends = ends.map(|((session, streams), incoming)| KernelMessageEnd {
            session: Arc::clone(session),
            streams: std::mem::take(streams),
            incoming,
        });
        kernel_ends.filter(|end| !end.streams.is_empty()).collect()
    }

    /// Adds the results of the requests to `outcome`.
    pub(super) fn finish(&self, flow: u32, outcome: &mut FlowOutcome) {
        let [client, server] = self.sessions.each_ref().map(lock);
        outcome.messages = messages(flow, &client, &server);
        if let (Some(mismatch), None) = (client.broken().or(server.broken()), &outcome.failure) {
            outcome.failure =
                Some(format!("the received data differs from the sent data: {mismatch}"));
        }
    }
}
