//! Application at one end of a flow, in the thread of our own stack or of QUIC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use towpath_mptcp::stack::{ConnectionError, Stack};
use towpath_net::{Instant, Rate};
use towpath_result::metrics::DeliveryLog;
use towpath_run::traffic::{
    SendAllowance, StreamAction, TransferPacer, TransferReceiver, TransferSender,
};
use towpath_wire::ConnectionId;

use super::IO_POLL_INTERVAL;
use super::kernel::{SLOT_BYTES, TransferOptions};
use super::messages::{SharedSession, lock};
use crate::byte_stream::ByteStream;
use crate::run_clock::RunClock;
use crate::traffic_budget::{TrafficBudget, TrafficDirection};
use crate::{quic, stack};

/// Event for the flow's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamEvent {
    /// The connection is established.
    Connected,
    /// All data has been read, or no more can arrive.
    Ended,
    /// All written data has arrived at the peer, including the end of the stream.
    Arrived,
    /// The connection is closed; the text is the error, `None` for a normal end.
    Closed(Option<String>),
}

/// Receiver of a stream, shared with the thread that collects its log and may take it early.
#[derive(Debug, Clone)]
struct ReceiveSink {
    pub(crate) meter: Arc<Mutex<Option<TransferReceiver>>>,
    pub(crate) received: Arc<AtomicU64>,
}

/// Sender and receiver at one end of a stream.
#[derive(Debug)]
pub struct StreamApp {
    /// Start of the traffic, on the host's clock.
    pub(crate) start: Instant,
    pub(crate) sender: Option<TransferSender>,
    sink: Option<ReceiveSink>,
    /// True if data may be written; for a connection that we open, once it is established.
    pub(crate) can_write: bool,
    pub(crate) events: SyncSender<StreamEvent>,
    data: Bytes,
    messages: Option<MessageStreamState>,
    /// Rate limits of a transfer.
    read_throttle: RateThrottle,
    write_throttle: RateThrottle,
    /// Traffic budget of the client, if there is one.
    budget: Option<Arc<TrafficBudget>>,
}

/// Rate limit, and the time until which it blocks.
#[derive(Debug)]
struct RateThrottle {
    pacer: Option<TransferPacer>,
    until: Option<Instant>,
}

impl RateThrottle {
    fn new(rate: Option<Rate>) -> Self {
        Self { pacer: rate.map(|rate| TransferPacer::new(rate, Instant::ZERO)), until: None }
    }

    /// Returns true if no data may move now, due to this limit or to the budget.
    fn is_blocked(&mut self, time: Instant, budget_due: Option<Instant>) -> bool {
        let rate_due = self.pacer.as_ref().map(TransferPacer::due).filter(|due| *due > time);
        self.until = rate_due.max(budget_due);
        self.until.is_some()
    }

    fn on_moved(&mut self, time: Instant, bytes: usize) {
        if let Some(pacer) = &mut self.pacer {
            pacer.on_sent(time, bytes as u64);
        }
    }
}

/// State of a stream that exchanges messages.
#[derive(Debug)]
struct MessageStreamState {
    /// Session of this end, and the stream's number in it.
    session: SharedSession,
    stream: u32,
    /// Set when the session knows that the stream is open.
    is_open: bool,
    /// Set when this end has sent all output and closed its direction.
    closed: bool,
    /// Set when the stack accepted only a part of the session's output.
    full: bool,
}

impl StreamApp {
    fn new(
        start: Instant,
        can_write: bool,
        sender: Option<TransferSender>,
        sink: Option<ReceiveSink>,
        events: SyncSender<StreamEvent>,
        options: TransferOptions,
    ) -> Self {
        let block = if sender.is_some() { options.first_block().max(1) } else { 0 };
        let data = Bytes::from(vec![0x74; block]);
        let (read_throttle, write_throttle) =
            (RateThrottle::new(options.rate), RateThrottle::new(options.rate));
        Self {
            start,
            sender,
            sink,
            can_write,
            events,
            data,
            messages: None,
            read_throttle,
            write_throttle,
            budget: None,
        }
    }

    /// Adds the session of a flow that exchanges messages.
    fn with_session(self, session_stream: Option<(SharedSession, u32)>) -> Self {
        let message_state = session_stream.map(|(session, stream)| {
            let (is_open, closed, full) = (false, false, false);
            MessageStreamState { session, stream, is_open, closed, full }
        });
        Self { messages: message_state, ..self }
    }

    /// Returns the time until which the budget blocks; `None` if data may move.
    fn blocked_until(&self, now: Instant, direction: TrafficDirection) -> Option<Instant> {
        let budget = self.budget.as_ref()?;
        let due = budget.next_allowed(now, direction)?;
        budget.end_if_exhausted();
        Some(self.traffic_time(due))
    }

    /// Reserves up to `max_bytes` for writing; an error holds the time of the next attempt.
    fn reserve(&self, now: Instant, max_bytes: usize) -> Result<usize, Instant> {
        let Some(budget) = &self.budget else { return Ok(max_bytes) };
        let granted = budget.reserve(now, TrafficDirection::Outbound, max_bytes as u64);
        granted.map(|bytes| bytes as usize).map_err(|due| {
            budget.end_if_exhausted();
            self.traffic_time(due)
        })
    }

    fn settle(&self, granted: usize, moved: usize) {
        if let Some(budget) = &self.budget {
            budget.settle(TrafficDirection::Outbound, granted as u64, moved as u64);
        }
    }

    fn traffic_time(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.start)
    }

    fn emit(&self, event: StreamEvent) {
        // The queue holds every event that occurs once; the receiver may be gone.
        let _ = self.events.try_send(event);
    }

    fn read(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        let time = self.traffic_time(now);
        loop {
            let budget_due = self.blocked_until(now, TrafficDirection::Inbound);
            if self.read_throttle.is_blocked(time, budget_due) {
                return;
            }
            let Some(data) = stream.read(now) else { return };
            let ended = data.is_empty();
            self.read_throttle.on_moved(time, data.len());
            if let Some(budget) = &self.budget {
                budget.consume(now, TrafficDirection::Inbound, data.len() as u64);
            }
            if let Some(MessageStreamState { session, stream: number, .. }) = &self.messages {
                let mut session = lock(session);
                if ended { session.on_end(*number) } else { session.on_bytes(time, *number, &data) }
            }
            if let Some(sink) = &self.sink {
                let mut meter = sink.meter.lock().unwrap_or_else(PoisonError::into_inner);
                match meter.as_mut() {
                    Some(meter) if ended => meter.on_end(time),
                    Some(meter) => {
                        let is_new_slot = meter.on_bytes(time, data.len() as u64);
                        self.budget
                            .iter()
                            .filter(|_| is_new_slot)
                            .for_each(|budget| budget.add_memory(SLOT_BYTES));
                        sink.received.fetch_add(data.len() as u64, Ordering::Relaxed);
                    }
                    // The log is complete: later data is part of neither the log nor the count.
                    None => {}
                }
            }
            if ended {
                self.emit(StreamEvent::Ended);
                return;
            }
        }
    }

    /// Writes the session's output for this stream.
    fn write_messages(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        let time = self.traffic_time(now);
        self.write_throttle.until = None;
        let Some(mut message_state) = self.messages.take() else { return };
        self.write_throttle.until = self.write_on_stream(&mut message_state, (now, time), stream);
        self.messages = Some(message_state);
    }

    /// Writes a stream's output; returns the time until which the budget blocks it.
    fn write_on_stream(
        &self,
        message_state: &mut MessageStreamState,
        (now, time): (Instant, Instant),
        stream: &mut dyn ByteStream,
    ) -> Option<Instant> {
        let MessageStreamState { session, stream: number, is_open, closed, full } = message_state;
        let mut session = lock(session);
        if !*is_open {
            *is_open = true;
            session.on_open(time, *number);
        }
        *full = false;
        while !*closed {
            match session.poll_output(time, *number) {
                StreamAction::Write(mut chunk) => {
                    let length = match self.reserve(now, chunk.len()) {
                        Ok(granted) => granted,
                        Err(until) => return Some(until),
                    };
                    chunk.truncate(length);
                    let written = stream.write(now, &mut chunk);
                    self.settle(length, written);
                    session.on_written(time, *number, written);
                    if written < length {
                        *full = true;
                        return None;
                    }
                }
                StreamAction::Close => {
                    *closed = true;
                    stream.shutdown(now);
                }
                StreamAction::Nothing => return None,
            }
        }
        None
    }

    fn write(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        let time = self.traffic_time(now);
        while let Some(sender) = &mut self.sender {
            let SendAllowance::Send(max_bytes) = sender.allowance(time) else {
                self.sender = None;
                stream.shutdown(now);
                return;
            };
            if self.write_throttle.is_blocked(time, None) {
                return;
            }
            let length = usize::try_from(max_bytes).unwrap_or(usize::MAX).min(self.data.len());
            let length = match self.reserve(now, length) {
                Ok(granted) => granted,
                Err(until) => {
                    self.write_throttle.until = Some(until);
                    return;
                }
            };
            let mut chunk = self.data.slice(..length);
            let written = stream.write(now, &mut chunk);
            self.settle(length, written);
            let Some(sender) = &mut self.sender else { return };
            sender.on_sent(time, written as u64);
            self.write_throttle.on_moved(time, written);
            if written < length {
                return;
            }
        }
    }
}

/// Capacity of the event queue: events before the receiver reads.
const EVENT_QUEUE: usize = 8;

/// Configuration of the application at one end.
#[derive(Debug, Default)]
pub struct StreamAppConfig {
    /// Sender of a transfer, if this end sends one.
    pub sender: Option<TransferSender>,
    /// Start of the flow, and the counter of received bytes.
    pub receiver: Option<(Instant, Arc<AtomicU64>)>,
    /// Session of the end and the stream's number in it, if the flow exchanges messages.
    pub session: Option<(SharedSession, u32)>,
    /// Block size, rate and other options of a transfer.
    pub options: TransferOptions,
    /// Traffic budget of the client, if there is one.
    pub budget: Option<Arc<TrafficBudget>>,
}

/// Receiver of an end's events, for the flow's thread.
#[derive(Debug)]
pub struct EventReceiver {
    /// Events of the end, from the protocol's thread.
    pub events: mpsc::Receiver<StreamEvent>,
    sink: Option<ReceiveSink>,
}

/// Creates an end for a protocol's thread. Traffic begins at `start` of its clock; with
/// `can_write`, data may be written at once.
pub fn create_app(
    start: Instant,
    config: StreamAppConfig,
    can_write: bool,
) -> (StreamApp, EventReceiver) {
    let (event_sender, event_receiver) = mpsc::sync_channel(EVENT_QUEUE);
    let sink = config.receiver.map(|(start, received)| ReceiveSink {
        meter: Arc::new(Mutex::new(Some(TransferReceiver::new(start)))),
        received,
    });
    let options =
        if config.session.is_some() { TransferOptions::default() } else { config.options };
    let app = StreamApp::new(start, can_write, config.sender, sink.clone(), event_sender, options);
    let app = StreamApp { budget: config.budget, ..app };
    (app.with_session(config.session), EventReceiver { events: event_receiver, sink })
}

impl EventReceiver {
    /// Waits for the end of the data or of the flow, and takes the log.
    ///
    /// If `outgoing` is set, also waits until the peer has received all data written here. Calls
    /// `meanwhile` regularly.
    pub fn receive(
        &self,
        run_clock: &RunClock,
        (start, deadline): (Instant, Instant),
        (incoming, outgoing): (bool, bool),
        meanwhile: &dyn Fn(),
    ) -> DeliveryLog {
        let (mut incoming, mut outgoing) = (incoming, outgoing);
        while (incoming || outgoing) && !run_clock.is_over(deadline) {
            meanwhile();
            match self.events.recv_timeout(IO_POLL_INTERVAL) {
                Ok(StreamEvent::Connected) | Err(RecvTimeoutError::Timeout) => {}
                Ok(StreamEvent::Ended) => incoming = false,
                Ok(StreamEvent::Arrived) => outgoing = false,
                Ok(StreamEvent::Closed(_)) | Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        let sink = self.sink.as_ref();
        let meter =
            sink.and_then(|sink| sink.meter.lock().unwrap_or_else(PoisonError::into_inner).take());
        let end = run_clock.now().min(deadline);
        meter.map_or_else(|| DeliveryLog::new(start), |meter| meter.finish(end))
    }
}

/// Calls from the threads of both protocols.
impl StreamApp {
    fn on_established(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        self.can_write = true;
        self.emit(StreamEvent::Connected);
        self.move_bytes(now, stream);
    }

    fn move_bytes(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        self.read(now, stream);
        if self.can_write {
            self.write_messages(now, stream);
            self.write(now, stream);
        }
    }

    fn on_closed(&self, now: Instant, error: Option<String>) {
        let time = self.traffic_time(now);
        if let Some(sink) = &self.sink
            && let Some(meter) = sink.meter.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            meter.on_end(time);
        }
        if let Some(MessageStreamState { session, stream, .. }) = &self.messages {
            lock(session).on_end(*stream);
        }
        self.emit(StreamEvent::Closed(error));
    }

    fn next_deadline(&self) -> Option<Instant> {
        if let Some(message_state) =
            self.messages.as_ref().filter(|message_state| self.can_write && !message_state.closed)
        {
            let session = lock(&message_state.session);
            let time = match self.write_throttle.until {
                Some(until) => Some(until),
                // The protocol reports when it has room again.
                None if message_state.full => Some(session.limit()),
                None => session.next_due(message_state.stream),
            };
            let time = time.into_iter().chain(self.read_throttle.until).min();
            return time.map(|time| self.start + time.saturating_since(Instant::ZERO));
        }
        let send_deadline =
            self.sender.as_ref().filter(|_| self.can_write).and_then(TransferSender::deadline);
        let deadlines = [send_deadline, self.read_throttle.until, self.write_throttle.until];
        let time = deadlines.into_iter().flatten().min()?;
        Some(self.start + time.saturating_since(Instant::ZERO))
    }
}

/// Byte stream of a connection of our own stack.
struct StackByteStream<'a>(&'a mut Stack, ConnectionId);

impl ByteStream for StackByteStream<'_> {
    fn read(&mut self, now: Instant) -> Option<Bytes> {
        self.0.read(now, self.1)
    }

    fn write(&mut self, now: Instant, data: &mut Bytes) -> usize {
        self.0.write(now, self.1, data)
    }

    fn shutdown(&mut self, now: Instant) {
        self.0.shutdown(now, self.1);
    }
}

impl stack::ConnectionHandler for StreamApp {
    fn connected(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        self.on_established(now, &mut StackByteStream(stack, connection));
    }

    fn progress(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        self.move_bytes(now, &mut StackByteStream(stack, connection));
    }

    fn closed(&mut self, now: Instant, _: &Stack, _: ConnectionId, error: Option<ConnectionError>) {
        self.on_closed(now, error.map(|error| error.to_string()));
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }
}

impl quic::StreamHandler for StreamApp {
    fn progress(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        if self.can_write {
            return self.move_bytes(now, stream);
        }
        if self.sender.is_none() && self.messages.is_none() {
            // QUIC announces a stream only with its first frame, and the peer may have to send on
            // it.
            stream.shutdown(now);
        }
        self.on_established(now, stream);
    }

    fn finished(&mut self, _now: Instant) {
        self.emit(StreamEvent::Arrived);
    }

    fn closed(&mut self, now: Instant, error: Option<&towpath_quic::ConnectionError>) {
        self.on_closed(now, error.map(ToString::to_string));
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_deadline()
    }
}
