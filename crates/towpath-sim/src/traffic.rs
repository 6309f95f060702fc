//! The applications: what `towpath-measure` says of a pattern, over connections of the stacks.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::scenario::{DataDirection, Flow, Scenario, Transport};
use towpath_measure::traffic::{
    FlowRole, MessageSession, SendAllowance, StreamAction, TransferReceiver, TransferSender,
    directions, streams,
};
use towpath_net::Instant;

use crate::content::TestPattern;
use crate::host::SimHost;
use crate::ping::FlowPinger;
use crate::socket::StreamSocket;
use crate::udp::ConstantRateFlow;

/// Port of flow 0; flow *n* uses the *n*-th after it, as in the emulated world.
const FIRST_PORT: u16 = 5_201;

/// The port of a flow's listener.
pub(crate) fn port(flow: usize) -> u16 {
    FIRST_PORT.wrapping_add(u16::try_from(flow).unwrap_or(u16::MAX))
}

/// How far an end is with what it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteState {
    Open,
    /// The stack did not take all of what a talk had, and will say when it has room again.
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
    /// What was offered to the stack, and not taken so far.
    offered: Bytes,
    /// Bytes written and read so far: positions in the content.
    sent_bytes: u64,
    pub(crate) received_bytes: u64,
    /// The first position at which something else arrived than was sent.
    pub(crate) damaged_at: Option<u64>,
    ended: bool,
    writing: WriteState,
}

/// What an end says and hears when its flow exchanges messages: its talk, and which of its streams.
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
            ended: false,
            writing: WriteState::Open,
        }
    }

    fn is_shut(&self) -> bool {
        self.writing == WriteState::Closed
    }

    /// Whether it still waits for data.
    pub(crate) fn is_listening(&self) -> bool {
        self.receiver.is_some() && !self.ended
    }

    /// Writes as much as the pattern and the stack allow. Returns whether anything was done.
    pub(crate) fn write(
        &mut self,
        now: Instant,
        own: &mut SimHost,
        content: &TestPattern,
        talk: Option<SessionStream<'_>>,
    ) -> bool {
        let (Some(socket), true, false) = (self.socket, self.open, self.is_shut()) else {
            return false;
        };
        if let Some(speech) = talk {
            return self.write_messages(now, own, socket, speech);
        }
        let Some(sender) = &mut self.sender else { return false };
        let mut did = false;
        while let SendAllowance::Send(most) = sender.allowance(now) {
            if self.offered.is_empty() {
                self.offered = content.from(self.sent_bytes, most);
            }
            let offered = self.offered.len();
            let taken = own.write(now, socket, &mut self.offered);
            sender.on_sent(now, taken as u64);
            self.sent_bytes += taken as u64;
            did |= taken > 0;
            if taken < offered {
                return did;
            }
        }
        self.writing = WriteState::Closed;
        own.shutdown(now, socket);
        true
    }

    /// Writes what the flow's talk has for this stream.
    fn write_messages(
        &mut self,
        now: Instant,
        own: &mut SimHost,
        socket: StreamSocket,
        SessionStream { session: talk, stream }: SessionStream<'_>,
    ) -> bool {
        let mut did = false;
        self.writing = WriteState::Open;
        loop {
            match talk.poll_output(now, stream) {
                StreamAction::Write(mut data) => {
                    let offered = data.len();
                    let taken = own.write(now, socket, &mut data);
                    talk.on_written(now, stream, taken);
                    did |= taken > 0;
                    if taken < offered {
                        self.writing = WriteState::Blocked;
                        return did;
                    }
                }
                StreamAction::Close => {
                    self.writing = WriteState::Closed;
                    own.shutdown(now, socket);
                    return true;
                }
                StreamAction::Nothing => return did,
            }
        }
    }

    /// Reads everything that is there.
    pub(crate) fn read(
        &mut self,
        now: Instant,
        own: &mut SimHost,
        content: &TestPattern,
        mut talk: Option<SessionStream<'_>>,
    ) -> bool {
        let Some(socket) = self.socket else { return false };
        let mut did = false;
        while !self.ended
            && let Some(data) = own.read(now, socket)
        {
            did = true;
            if data.is_empty() {
                self.end(now);
                if let Some(SessionStream { session: talk, stream }) = &mut talk {
                    talk.on_end(*stream);
                } else {
                    // Who only receives has nothing more to say.
                    self.close_if_receive_only(now, own);
                }
                break;
            }
            let whole = match &mut talk {
                Some(SessionStream { session: talk, stream }) => {
                    talk.on_bytes(now, *stream, &data);
                    talk.broken().is_none()
                }
                None => content.matches(self.received_bytes, &data),
            };
            if self.damaged_at.is_none() && !whole {
                self.damaged_at = Some(self.received_bytes);
            }
            self.received_bytes += data.len() as u64;
            if let Some(receiver) = &mut self.receiver {
                receiver.on_bytes(now, data.len() as u64);
            }
        }
        did
    }

    /// Ends the direction in which it has nothing to send.
    pub(crate) fn close_if_receive_only(&mut self, now: Instant, own: &mut SimHost) {
        let Some(socket) = self.socket.filter(|_| self.sender.is_none() && !self.is_shut()) else {
            return;
        };
        self.writing = WriteState::Closed;
        own.shutdown(now, socket);
    }

    /// No data comes any more.
    pub(crate) fn end(&mut self, now: Instant) {
        if let (Some(receiver), false) = (&mut self.receiver, self.ended) {
            receiver.on_end(now);
        }
        self.ended = true;
    }

    /// When the sender must look at the clock again, though nothing else happens.
    fn deadline(&self, talk: Option<(&MessageSession, u32)>) -> Option<Instant> {
        if !self.open || self.is_shut() {
            return None;
        }
        match talk {
            // The stack says when it has room again.
            Some((talk, _)) if self.writing == WriteState::Blocked => Some(talk.limit()),
            Some((talk, stream)) => talk.next_due(stream),
            None => self.sender.as_ref().and_then(TransferSender::deadline),
        }
    }
}

/// One connection of a flow, with both its applications.
#[derive(Debug)]
pub(crate) struct SimStream {
    pub(crate) flow: usize,
    pub(crate) number: u32,
    /// The opener's end, the acceptor's end.
    pub(crate) ends: [AppEnd; 2],
    /// The opener's address, by which the acceptor knows it (before any translation).
    pub(crate) opener: Option<SocketAddr>,
    pub(crate) transport: Transport,
}

/// A flow and how far it is.
#[derive(Debug)]
pub(crate) struct FlowRun {
    pub(crate) start: Instant,
    pub(crate) deadline: Instant,
    pub(crate) streams_wanted: u32,
    pub(crate) streams_opened: u32,
    /// The next connection is to be opened.
    pub(crate) opening: bool,
    pub(crate) connect: Option<Duration>,
    pub(crate) failure: Option<String>,
    pub(crate) over: bool,
    /// Both ends' talks, where messages are exchanged.
    pub(crate) talks: Option<[MessageSession; 2]>,
    /// Its datagrams, where it sends such.
    pub(crate) pings: Option<FlowPinger>,
    /// The same, at a constant rate.
    pub(crate) constant_rate: Option<ConstantRateFlow>,
}

impl FlowRun {
    pub(crate) fn new(scenario: &Scenario, (index, flow): (usize, &Flow)) -> Self {
        let start = Instant::ZERO + flow.start;
        Self {
            start,
            deadline: start + flow.pattern.limit(),
            streams_wanted: streams(&flow.pattern),
            streams_opened: 0,
            opening: false,
            connect: None,
            failure: None,
            over: false,
            talks: MessageSession::new(&flow.pattern, FlowRole::Client, start)
                .zip(MessageSession::new(&flow.pattern, FlowRole::Server, start))
                .map(|(client, server)| [client, server]),
            pings: FlowPinger::new(scenario, (index, flow)),
            constant_rate: ConstantRateFlow::new(scenario, (index, flow)),
        }
    }

    /// What an end says and hears on a stream.
    pub(crate) fn speech(&mut self, side: usize, stream: u32) -> Option<SessionStream<'_>> {
        self.talks.as_mut()?.get_mut(side).map(|talk| SessionStream { session: talk, stream })
    }

    /// When something happens to it without a packet: its start, its end.
    pub(crate) fn next_due(&self) -> Option<Instant> {
        match self {
            Self { over: true, .. } => None,
            Self { pings: Some(pings), deadline, .. } => {
                Some(pings.next_due().map_or(*deadline, |due| due.min(*deadline)))
            }
            Self { constant_rate: Some(steady), deadline, .. } => {
                Some(steady.next_due().map_or(*deadline, |due| due.min(*deadline)))
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
        let end = |host: usize, sends: DataDirection, hears: DataDirection| {
            let has = |direction| directions(&flow.pattern).contains(&direction);
            let sender = if has(sends) { TransferSender::new(&flow.pattern, start) } else { None };
            AppEnd::new(host, sender, has(hears).then(|| TransferReceiver::new(start)))
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

    /// The end that receives in this direction.
    pub(crate) fn receiver(&self, direction: DataDirection) -> &AppEnd {
        let [opener, acceptor] = &self.ends;
        if direction == DataDirection::Down { opener } else { acceptor }
    }

    /// What the receiver in this direction saw until `now`.
    pub(crate) fn log(&self, direction: DataDirection, now: Instant) -> Option<DeliveryLog> {
        self.receiver(direction).receiver.clone().map(|receiver| receiver.finish(now))
    }

    /// Whether an end still waits for data.
    pub(crate) fn is_busy(&self) -> bool {
        self.ends.iter().any(AppEnd::is_listening)
    }

    /// When a sender must look at the clock.
    pub(crate) fn next_due(&self, flows: &[FlowRun]) -> Option<Instant> {
        let talks = flows.get(self.flow).and_then(|flow| flow.talks.as_ref());
        let talk = |side| Some((talks?.get(side)?, self.number));
        self.ends.iter().enumerate().filter_map(|(side, end)| end.deadline(talk(side))).min()
    }
}

/// Why a connection was not opened, in the words of the emulated world.
pub(crate) fn refusal(from: &str, to: &str, error: Option<String>) -> String {
    let reason = error.unwrap_or_else(|| "connection timed out".to_owned());
    format!("`{from}` cannot connect to `{to}`: {reason}")
}
