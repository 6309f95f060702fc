//! Simulated applications: the traffic patterns of `towpath-run` over the stacks' connections.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_result::metrics::DeliveryLog;
use towpath_run::traffic::{
    FlowRole, MessageSession, SendAllowance, StreamAction, TransferReceiver, TransferSender,
};
use towpath_scenario::flow_plan::{directions, request_directions, streams};
use towpath_scenario::{DataDirection, Flow, Scenario, Transport};

use crate::components::Components;
use crate::host::SimHost;
use crate::ping::FlowPinger;
use crate::socket::StreamSocket;
use crate::test_pattern::TestPattern;
use crate::udp::ConstantRateFlow;

/// Port of flow 0; flow *n* uses the *n*-th after it, as in the emulated world.
const FIRST_PORT: u16 = 5_201;

/// Returns the port of a flow's listener.
pub(crate) fn port(flow: usize) -> u16 {
    FIRST_PORT.wrapping_add(u16::try_from(flow).unwrap_or(u16::MAX))
}

/// Write state of one end of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Open,
    /// The stack took only part of a message and will signal when it has room again.
    Blocked,
    Closed,
}

/// One end of a stream: an application and its connection.
#[derive(Debug)]
pub(crate) struct AppEnd {
    pub(crate) host: usize,
    pub(crate) socket: Option<StreamSocket>,
    pub(crate) open: bool,
    sender: Option<TransferSender>,
    receiver: Option<TransferReceiver>,
    /// Data offered to the stack and not accepted yet.
    offered: Bytes,
    /// Bytes written so far: the position in the test pattern.
    sent_bytes: u64,
    /// Bytes read so far.
    pub(crate) received_bytes: u64,
    /// First position at which the received data differs from the pattern.
    pub(crate) damaged_at: Option<u64>,
    /// Set when the peer's data has ended.
    receive_ended: bool,
    writing: WriteState,
}

/// One end's message session and the number of the stream that it uses now.
#[derive(Debug)]
pub(crate) struct SessionStream<'a> {
    pub(crate) session: &'a mut MessageSession,
    pub(crate) stream: u32,
}

impl AppEnd {
    fn new(
        host: usize,
        sender: Option<TransferSender>,
        receiver: Option<TransferReceiver>,
    ) -> Self {
        Self {
            host,
            socket: None,
            open: false,
            sender,
            receiver,
            offered: Bytes::new(),
            sent_bytes: 0,
            received_bytes: 0,
            damaged_at: None,
            receive_ended: false,
            writing: WriteState::Open,
        }
    }

    fn is_closed(&self) -> bool {
        self.writing == WriteState::Closed
    }

    /// Returns true if the end still waits for data.
    pub(crate) fn is_receiving(&self) -> bool {
        self.receiver.is_some() && !self.receive_ended
    }

    /// Writes as much as the pattern and the stack allow. Returns true if anything was done.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        sim_host: &mut SimHost,
        pattern: &TestPattern,
        session: Option<SessionStream<'_>>,
    ) -> bool {
        let (Some(socket), true, false) = (self.socket, self.open, self.is_closed()) else {
            return false;
        };
        if let Some(session_stream) = session {
            return self.write_messages(now, sim_host, socket, session_stream);
        }
        let Some(sender) = &mut self.sender else { return false };
        let mut active = false;
        while let SendAllowance::Send(max_bytes) = sender.allowance(now) {
            if self.offered.is_empty() {
                self.offered = pattern.slice_from(self.sent_bytes, max_bytes);
            }
            let offered_bytes = self.offered.len();
            let accepted_bytes = sim_host.write(now, socket, &mut self.offered);
            sender.on_sent(now, accepted_bytes as u64);
            self.sent_bytes += accepted_bytes as u64;
            active |= accepted_bytes > 0;
            if accepted_bytes < offered_bytes {
                return active;
            }
        }
        self.writing = WriteState::Closed;
        sim_host.shutdown(now, socket);
        true
    }

    /// Writes what the flow's session has for this stream.
    fn write_messages(
        &mut self,
        now: Instant,
        sim_host: &mut SimHost,
        socket: StreamSocket,
        SessionStream { session, stream }: SessionStream<'_>,
    ) -> bool {
        let mut active = false;
        self.writing = WriteState::Open;
        loop {
            match session.poll_output(now, stream) {
                StreamAction::Write(mut data) => {
                    let offered_bytes = data.len();
                    let accepted_bytes = sim_host.write(now, socket, &mut data);
                    session.on_written(now, stream, accepted_bytes);
                    active |= accepted_bytes > 0;
                    if accepted_bytes < offered_bytes {
                        self.writing = WriteState::Blocked;
                        return active;
                    }
                }
                StreamAction::Close => {
                    self.writing = WriteState::Closed;
                    sim_host.shutdown(now, socket);
                    return true;
                }
                StreamAction::Nothing => return active,
            }
        }
    }

    /// Reads all available data; returns true if there was any.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        sim_host: &mut SimHost,
        pattern: &TestPattern,
        mut session_stream: Option<SessionStream<'_>>,
    ) -> bool {
        let Some(socket) = self.socket else { return false };
        let mut active = false;
        while !self.receive_ended
            && let Some(data) = sim_host.read(now, socket)
        {
            active = true;
            if data.is_empty() {
                self.end(now);
                if let Some(SessionStream { session, stream }) = &mut session_stream {
                    session.on_end(*stream);
                } else {
                    // A pure receiver closes once the sender has ended.
                    self.close_if_receive_only(now, sim_host);
                }
                break;
            }
            let matches = match &mut session_stream {
                Some(SessionStream { session, stream }) => {
                    session.on_bytes(now, *stream, &data);
                    session.broken().is_none()
                }
                None => pattern.matches(self.received_bytes, &data),
            };
            if self.damaged_at.is_none() && !matches {
                self.damaged_at = Some(self.received_bytes);
            }
            self.received_bytes += data.len() as u64;
            if let Some(receiver) = &mut self.receiver {
                receiver.on_bytes(now, data.len() as u64);
            }
        }
        active
    }

    /// Closes the sending direction if this end only receives.
    pub(crate) fn close_if_receive_only(&mut self, now: Instant, sim_host: &mut SimHost) {
        let Some(socket) = self.socket.filter(|_| self.sender.is_none() && !self.is_closed())
        else {
            return;
        };
        self.writing = WriteState::Closed;
        sim_host.shutdown(now, socket);
    }

    /// Marks the end of received data.
    pub(crate) fn end(&mut self, now: Instant) {
        if let (Some(receiver), false) = (&mut self.receiver, self.receive_ended) {
            receiver.on_end(now);
        }
        self.receive_ended = true;
    }

    /// Returns the time at which the sender must be called even without an event.
    fn deadline(&self, session_stream: Option<(&MessageSession, u32)>) -> Option<Instant> {
        if !self.open || self.is_closed() {
            return None;
        }
        match session_stream {
            // The stack signals when it has room again.
            Some((session, _)) if self.writing == WriteState::Blocked => Some(session.limit()),
            Some((session, stream)) => session.next_due(stream),
            None => self.sender.as_ref().and_then(TransferSender::deadline),
        }
    }
}

/// One connection of a flow, with the applications at both ends.
#[derive(Debug)]
pub(crate) struct SimStream {
    pub(crate) flow: usize,
    pub(crate) number: u32,
    /// Ends of the stream: the opener's, the acceptor's.
    pub(crate) ends: [AppEnd; 2],
    /// Opener's untranslated address; identifies the stream when its connection is accepted.
    pub(crate) opener: Option<SocketAddr>,
    pub(crate) transport: Transport,
}

/// Progress of a flow in the run.
#[derive(Debug)]
pub(crate) struct FlowRun {
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
    pub(crate) streams_wanted: u32,
    pub(crate) streams_opened: u32,
    /// Set when the next connection is to be opened.
    pub(crate) opening: bool,
    /// Time until the first connection was established.
    pub(crate) connect: Option<Duration>,
    pub(crate) failure: Option<String>,
    pub(crate) over: bool,
    /// Message sessions of client and server; `None` if the flow exchanges no messages.
    pub(crate) sessions: Option<[MessageSession; 2]>,
    /// Request-reply datagrams; `None` if the pattern is another one.
    pub(crate) pings: Option<FlowPinger>,
    /// Datagrams at a constant rate; `None` if the pattern is another one.
    pub(crate) constant_rate: Option<ConstantRateFlow>,
}

impl FlowRun {
    pub(crate) fn new(
        scenario: &Scenario,
        (index, flow): (usize, &Flow),
        components: &Components,
    ) -> Self {
        let start = Instant::ZERO + flow.start;
        let session = |role: FlowRole| match components.requests.get(&index) {
            Some(requests) => {
                let generator = request_directions(&flow.pattern)
                    .contains(&role.direction())
                    .then(|| requests.make(role));
                Some(MessageSession::with_generator(&flow.pattern, role, start, generator))
            }
            None => MessageSession::new(&flow.pattern, role, start),
        };
        Self {
            start,
            deadline: start + flow.pattern.limit(),
            streams_wanted: streams(&flow.pattern),
            streams_opened: 0,
            opening: false,
            connect: None,
            failure: None,
            over: false,
            sessions: session(FlowRole::Client)
                .zip(session(FlowRole::Server))
                .map(|(client, server)| [client, server]),
            pings: FlowPinger::new(scenario, (index, flow)),
            constant_rate: ConstantRateFlow::new(scenario, (index, flow)),
        }
    }

    /// Returns one side's message session for a stream; `None` without messages.
    pub(crate) fn session_stream(&mut self, side: usize, stream: u32) -> Option<SessionStream<'_>> {
        self.sessions.as_mut()?.get_mut(side).map(|session| SessionStream { session, stream })
    }

    /// Returns the time of the flow's next action without a packet, such as its start or end.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        match self {
            Self { over: true, .. } => None,
            Self { pings: Some(pings), deadline, .. } => {
                Some(pings.next_due().map_or(*deadline, |due| due.min(*deadline)))
            }
            Self { constant_rate: Some(constant_rate), deadline, .. } => {
                Some(constant_rate.next_due().map_or(*deadline, |due| due.min(*deadline)))
            }
            Self { opening: false, streams_opened: 0, failure: None, .. } => Some(self.start),
            _ => Some(self.deadline),
        }
    }
}

impl SimStream {
    pub(crate) fn new(flow: (usize, &Flow), number: u32, transport: Transport) -> Self {
        let (index, flow) = flow;
        let start = Instant::ZERO + flow.start;
        let end = |host: usize, sends: DataDirection, receives: DataDirection| {
            let has_direction = |direction| directions(&flow.pattern).contains(&direction);
            let sender =
                if has_direction(sends) { TransferSender::new(&flow.pattern, start) } else { None };
            AppEnd::new(host, sender, has_direction(receives).then(|| TransferReceiver::new(start)))
        };
        let (up, down) = (DataDirection::Up, DataDirection::Down);
        Self {
            flow: index,
            number,
            ends: [end(flow.from, up, down), end(flow.to, down, up)],
            opener: None,
            transport,
        }
    }

    /// Returns the receiving end of this direction.
    pub(crate) fn receiver(&self, direction: DataDirection) -> &AppEnd {
        let [opener, acceptor] = &self.ends;
        if direction == DataDirection::Down { opener } else { acceptor }
    }

    /// Returns the deliveries at the receiver of this direction until `now`.
    pub(crate) fn log(&self, direction: DataDirection, now: Instant) -> Option<DeliveryLog> {
        self.receiver(direction).receiver.clone().map(|receiver| receiver.finish(now))
    }

    /// Returns true if an end still waits for data.
    pub(crate) fn is_busy(&self) -> bool {
        self.ends.iter().any(AppEnd::is_receiving)
    }

    /// Returns the time at which a sender needs a call.
    pub(crate) fn next_due(&self, flows: &[FlowRun]) -> Option<Instant> {
        let sessions = flows.get(self.flow).and_then(|flow| flow.sessions.as_ref());
        let session_of = |side| Some((sessions?.get(side)?, self.number));
        self.ends.iter().enumerate().filter_map(|(side, end)| end.deadline(session_of(side))).min()
    }
}

/// Returns the reason why a connection was not opened, worded as in the emulated world.
pub(crate) fn refusal(from: &str, to: &str, error: Option<String>) -> String {
    let reason = error.unwrap_or_else(|| "connection timed out".to_owned());
    format!("`{from}` cannot connect to `{to}`: {reason}")
}
