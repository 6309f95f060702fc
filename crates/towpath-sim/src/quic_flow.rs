//! Flows over QUIC: one connection for each flow, with a QUIC stream for each of the flow's
//! streams.

use std::net::{IpAddr, SocketAddr};

use towpath_net::Instant;
use towpath_quic::{ConnectionError, ConnectionId, QuicEvent, StreamId};
use towpath_result::EventKind;
use towpath_scenario::Flow;

use crate::record::event;
use crate::simulation::Simulation;
use crate::socket::StreamSocket;
use crate::traffic::SimStream;

impl Simulation<'_> {
    /// Opens the connection of a flow and prepares all its streams.
    pub(crate) fn open_quic(
        &mut self,
        (index, flow): (usize, &Flow),
        local: Option<IpAddr>,
        remote: SocketAddr,
    ) {
        let transport = flow.transport_in(self.transport);
        let (Some(host), Some(run)) = (self.hosts.get_mut(flow.from), self.flows.get_mut(index))
        else {
            return;
        };
        host.may_have_output = true;
        let config = host.quic_connection(transport);
        match host.quic.host.connect(self.now, local, remote, config) {
            Ok(connection) => {
                host.quic.flows.insert(connection, index);
                run.streams_opened = run.streams_wanted;
                let numbers = 0..run.streams_wanted;
                self.streams
                    .extend(numbers.map(|number| SimStream::new((index, flow), number, transport)));
            }
            Err(error) => {
                run.failure = Some(format!("`{}` cannot connect: {error}", host.name));
                run.opening = false;
                run.over = true;
            }
        }
    }

    pub(crate) fn on_quic_event(&mut self, index: usize, event: QuicEvent) {
        match event {
            QuicEvent::Accepted { listener, connection } => {
                let Some(host) = self.hosts.get_mut(index) else { return };
                let flow = host.quic.listeners.get(&listener).copied();
                host.quic.flows.extend(flow.map(|flow| (connection, flow)));
            }
            QuicEvent::Connected(connection) => self.on_quic_connected(index, connection),
            QuicEvent::StreamOpened(connection, stream) => {
                self.begin_stream(index, connection, stream, 1);
            }
            QuicEvent::Readable(connection, stream) | QuicEvent::Writable(connection, stream) => {
                self.serve_application(index, StreamSocket::Quic(connection, stream));
            }
            QuicEvent::Finished(..) => {}
            QuicEvent::Closed { connection, error } => {
                self.on_quic_closed(index, connection, error);
            }
            QuicEvent::Notice { connection, notice } => {
                let Some(host) = self.hosts.get_mut(index) else { return };
                host.quic.poll_status();
                let (host_name, status) =
                    (host.name.as_str(), host.quic.last_status.get(&connection));
                self.recorder.quic_notice(self.now, host_name, status, &notice);
            }
        }
    }

    fn on_quic_connected(&mut self, index: usize, connection: ConnectionId) {
        let host = self.hosts.get_mut(index);
        let Some(flow) = host.and_then(|host| host.quic.flows.get(&connection)).copied() else {
            return;
        };
        if let Some(run) = self.flows.get_mut(flow) {
            run.opening = false;
            run.connect.get_or_insert(self.now.saturating_since(run.start));
        }
        let count = self.streams.iter().filter(|stream| stream.flow == flow).count();
        for _ in 0..count {
            let host = self.hosts.get_mut(index);
            let Some(stream) = host.and_then(|host| host.quic.host.open_stream(connection)) else {
                break;
            };
            self.begin_stream(index, connection, stream, 0);
        }
    }

    /// Connects one end of a stream to its application; `side` 0 is the opener's end.
    fn begin_stream(
        &mut self,
        index: usize,
        connection: ConnectionId,
        stream: StreamId,
        side: usize,
    ) {
        let Some(host) = self.hosts.get_mut(index) else { return };
        let Some(flow) = host.quic.flows.get(&connection).copied() else { return };
        let is_stream = |s: &SimStream| s.flow == flow && u64::from(s.number) == stream.0;
        let Some(stream_index) = self.streams.iter().position(is_stream) else { return };
        let socket = StreamSocket::Quic(connection, stream);
        host.ends.insert(socket, (stream_index, side));
        host.may_have_output = true;
        let end = self.streams.get_mut(stream_index).and_then(|stream| stream.ends.get_mut(side));
        let Some(end) = end else { return };
        end.socket = Some(socket);
        end.open = true;
        let has_session = self.flows.get(flow).is_some_and(|flow| flow.sessions.is_some());
        if has_session {
            self.notify_open(stream_index, side);
        } else if side == 0 {
            // The peer learns of a stream only when something is sent on it, and may have data to
            // send.
            end.close_if_receive_only(self.now, host);
        }
        self.serve_application(index, socket);
    }

    fn on_quic_closed(
        &mut self,
        index: usize,
        connection: ConnectionId,
        error: Option<ConnectionError>,
    ) {
        let Some(host) = self.hosts.get(index) else { return };
        let Some(flow) = host.quic.flows.get(&connection).copied() else { return };
        let name = host.name.clone();
        let sockets: Vec<StreamSocket> = host
            .ends
            .keys()
            .filter(|socket| matches!(socket, StreamSocket::Quic(id, _) if *id == connection))
            .copied()
            .collect();
        for socket in sockets {
            self.serve_application(index, socket);
        }
        let is_opener = self.scenario.flows.get(flow).is_some_and(|flow| flow.from == index);
        let run = self.flows.get(flow);
        let refused = is_opener && run.is_some_and(|run| run.opening);
        let (now, side) = (self.now, usize::from(!is_opener));
        for stream in self.streams.iter_mut().filter(|stream| stream.flow == flow) {
            for (end, end_side) in stream.ends.iter_mut().zip(0..) {
                // The other end is never notified of a connection that was not established.
                if refused || end_side == side {
                    end.end(now);
                }
            }
        }
        if refused {
            let failure = self.refusal(flow, error.map(|error| error.to_string()));
            if let Some(run) = self.flows.get_mut(flow) {
                run.failure = Some(failure);
                run.opening = false;
            }
        } else if let Some(error) = error {
            let text = format!("connection of flow {flow} ended on {name}: {error}");
            self.recorder.add_event(now, None, event(EventKind::Flow, text));
        }
    }

    /// Polls the status of the QUIC connections on all hosts.
    pub(crate) fn poll_quic(&mut self) {
        for host in &mut self.hosts {
            host.quic.poll_status();
        }
    }
}

/// Returns the earlier of two times; `None` if both are.
pub(crate) fn earliest(a: Option<Instant>, b: Option<Instant>) -> Option<Instant> {
    [a, b].into_iter().flatten().min()
}
