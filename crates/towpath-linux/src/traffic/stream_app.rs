//! Application at one end of a flow, in the thread of our own stack or of QUIC.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::traffic::{
    SendAllowance, StreamAction, TransferPacer, TransferReceiver, TransferSender,
};
use towpath_mptcp::stack::{ConnectionError, ConnectionId, Stack};
use towpath_net::{Instant, Rate};

use super::kernel::{SLOT_BYTES, TransferOptions};
use super::messages::{SharedSession, lock};
use super::{IO_POLL_INTERVAL, StreamEndpoint};
use crate::byte_stream::ByteStream;
use crate::run_clock::RunClock;
use crate::traffic_budget::{TrafficBudget, TrafficDirection};
use crate::{quic, stack};

/// Event for the flow's thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEvent {
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
pub(crate) struct StreamApp {
    /// Start of the traffic, on the host's clock.
    pub(crate) zero: Instant,
    pub(crate) sender: Option<TransferSender>,
    sink: Option<ReceiveSink>,
    /// True if data may be written; for a connection that we open, once it is established.
    pub(crate) open: bool,
    pub(crate) events: SyncSender<StreamEvent>,
    data: Bytes,
    messages: Option<MessageStreamState>,
    /// Rate limits of a transfer.
    reading: RateThrottle,
    writing: RateThrottle,
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

    /// Returns true if no data may move now, due to this limit or to `others`.
    fn holds(&mut self, at: Instant, others: Option<Instant>) -> bool {
        let own = self.pacer.as_ref().map(TransferPacer::due).filter(|due| *due > at);
        self.until = own.max(others);
        self.until.is_some()
    }

    fn moved(&mut self, at: Instant, bytes: usize) {
        if let Some(pacer) = &mut self.pacer {
            pacer.on_sent(at, bytes as u64);
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
    begun: bool,
    /// Set when the session has closed the stream.
    closed: bool,
    /// Set when the stack accepted only a part of the session's output.
    full: bool,
}

impl StreamApp {
    fn new(
        zero: Instant,
        open: bool,
        sender: Option<TransferSender>,
        sink: Option<ReceiveSink>,
        events: SyncSender<StreamEvent>,
        options: TransferOptions,
    ) -> Self {
        let block = if sender.is_some() { options.first_block().max(1) } else { 0 };
        let data = Bytes::from(vec![0x74; block]);
        let (reading, writing) = (RateThrottle::new(options.rate), RateThrottle::new(options.rate));
        Self {
            zero,
            sender,
            sink,
            open,
            events,
            data,
            messages: None,
            reading,
            writing,
            budget: None,
        }
    }

    /// Adds the session of a flow that exchanges messages.
    fn with_session(self, session_stream: Option<(SharedSession, u32)>) -> Self {
        let speech = session_stream.map(|(talk, stream)| {
            let (begun, closed, full) = (false, false, false);
            MessageStreamState { session: talk, stream, begun, closed, full }
        });
        Self { messages: speech, ..self }
    }

    /// Returns the time until which the budget blocks; `None` if data may move.
    fn blocked_until(&self, now: Instant, direction: TrafficDirection) -> Option<Instant> {
        let purse = self.budget.as_ref()?;
        let due = purse.next_allowed(now, direction)?;
        purse.end_if_exhausted();
        Some(self.traffic_time(due))
    }

    /// Reserves up to `most` bytes for writing; an error holds the time of the next attempt.
    fn reserve(&self, now: Instant, most: usize) -> Result<usize, Instant> {
        let Some(purse) = &self.budget else { return Ok(most) };
        let granted = purse.reserve(now, TrafficDirection::Outbound, most as u64);
        granted.map(|bytes| bytes as usize).map_err(|due| {
            purse.end_if_exhausted();
            self.traffic_time(due)
        })
    }

    fn settle(&self, granted: usize, moved: usize) {
        if let Some(purse) = &self.budget {
            purse.settle(TrafficDirection::Outbound, granted as u64, moved as u64);
        }
    }

    fn traffic_time(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.zero)
    }

    fn emit(&self, said: StreamEvent) {
        // The queue holds every event that occurs once; the receiver may be gone.
        let _ = self.events.try_send(said);
    }

    fn read(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        let at = self.traffic_time(now);
        loop {
            let others = self.blocked_until(now, TrafficDirection::Inbound);
            if self.reading.holds(at, others) {
                return;
            }
            let Some(data) = pipe.read(now) else { return };
            let ended = data.is_empty();
            self.reading.moved(at, data.len());
            if let Some(purse) = &self.budget {
                purse.consume(now, TrafficDirection::Inbound, data.len() as u64);
            }
            if let Some(MessageStreamState { session: talk, stream, .. }) = &self.messages {
                let mut talk = lock(talk);
                if ended { talk.on_end(*stream) } else { talk.on_bytes(at, *stream, &data) }
            }
            if let Some(sink) = &self.sink {
                let mut meter = sink.meter.lock().unwrap_or_else(PoisonError::into_inner);
                match meter.as_mut() {
                    Some(meter) if ended => meter.on_end(at),
                    Some(meter) => {
                        let grown = meter.on_bytes(at, data.len() as u64);
                        self.budget
                            .iter()
                            .filter(|_| grown)
                            .for_each(|purse| purse.add_memory(SLOT_BYTES));
                    }
                    None => {}
                }
                sink.received.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            if ended {
                self.emit(StreamEvent::Ended);
                return;
            }
        }
    }

    /// Writes the session's output for this stream.
    fn write_messages(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        let at = self.traffic_time(now);
        self.writing.until = None;
        let Some(mut speech) = self.messages.take() else { return };
        self.writing.until = self.write_on_stream(&mut speech, (now, at), pipe);
        self.messages = Some(speech);
    }

    /// Writes a stream's output; returns the time until which the budget blocks it.
    fn write_on_stream(
        &self,
        speech: &mut MessageStreamState,
        (now, at): (Instant, Instant),
        pipe: &mut dyn ByteStream,
    ) -> Option<Instant> {
        let MessageStreamState { session: talk, stream, begun, closed, full } = speech;
        let mut talk = lock(talk);
        if !*begun {
            *begun = true;
            talk.on_open(at, *stream);
        }
        *full = false;
        while !*closed {
            match talk.poll_output(at, *stream) {
                StreamAction::Write(mut chunk) => {
                    let length = match self.reserve(now, chunk.len()) {
                        Ok(granted) => granted,
                        Err(until) => return Some(until),
                    };
                    chunk.truncate(length);
                    let taken = pipe.write(now, &mut chunk);
                    self.settle(length, taken);
                    talk.on_written(at, *stream, taken);
                    if taken < length {
                        *full = true;
                        return None;
                    }
                }
                StreamAction::Close => {
                    *closed = true;
                    pipe.shutdown(now);
                }
                StreamAction::Nothing => return None,
            }
        }
        None
    }

    fn write(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        let at = self.traffic_time(now);
        while let Some(sender) = &mut self.sender {
            let SendAllowance::Send(most) = sender.allowance(at) else {
                self.sender = None;
                pipe.shutdown(now);
                return;
            };
            if self.writing.holds(at, None) {
                return;
            }
            let length = usize::try_from(most).unwrap_or(usize::MAX).min(self.data.len());
            let length = match self.reserve(now, length) {
                Ok(granted) => granted,
                Err(until) => {
                    self.writing.until = Some(until);
                    return;
                }
            };
            let mut chunk = self.data.slice(..length);
            let taken = pipe.write(now, &mut chunk);
            self.settle(length, taken);
            let Some(sender) = &mut self.sender else { return };
            sender.on_sent(at, taken as u64);
            self.writing.moved(at, taken);
            if taken < length {
                return;
            }
        }
    }
}

/// Capacity of the event queue: events before the receiver reads.
const EVENT_QUEUE: usize = 8;

/// Configuration of the application at one end.
#[derive(Debug, Default)]
pub(crate) struct StreamAppConfig {
    pub(crate) sender: Option<TransferSender>,
    /// Start of the flow, and the counter of received bytes.
    pub(crate) receiver: Option<(Instant, Arc<AtomicU64>)>,
    /// Session of the end and the stream's number in it, if the flow exchanges messages.
    pub(crate) session: Option<(SharedSession, u32)>,
    /// Block size, rate and other options of a transfer.
    pub(crate) options: TransferOptions,
    /// Traffic budget of the client, if there is one.
    pub(crate) budget: Option<Arc<TrafficBudget>>,
}

/// Receiver of an end's events, for a thread outside.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    pub(super) events: mpsc::Receiver<StreamEvent>,
    sink: Option<ReceiveSink>,
}

/// End that a protocol's thread drives, and its events.
#[derive(Debug)]
pub(super) struct DrivenEndpoint {
    pub(super) end: StreamEndpoint,
    events: EventReceiver,
}

/// Creates an end for a protocol's thread. Traffic begins at `zero` of its clock; with `open`,
/// data may be written at once.
pub(crate) fn make(
    zero: Instant,
    halves: StreamAppConfig,
    open: bool,
) -> (StreamApp, EventReceiver) {
    let (told, heard) = mpsc::sync_channel(EVENT_QUEUE);
    let sink = halves.receiver.map(|(start, received)| ReceiveSink {
        meter: Arc::new(Mutex::new(Some(TransferReceiver::new(start)))),
        received,
    });
    let manner = if halves.session.is_some() { TransferOptions::default() } else { halves.options };
    let end = StreamApp::new(zero, open, halves.sender, sink.clone(), told, manner);
    let end = StreamApp { budget: halves.budget, ..end };
    (end.with_session(halves.session), EventReceiver { events: heard, sink })
}

impl EventReceiver {
    pub(super) fn of(self, end: StreamEndpoint) -> DrivenEndpoint {
        DrivenEndpoint { end, events: self }
    }

    /// Waits for the end of the data or of the flow, and takes the log.
    ///
    /// If `outgoing` is set, also waits until the peer has received all data written here. Calls
    /// `meanwhile` regularly.
    pub(crate) fn receive(
        &self,
        pace: &RunClock,
        (start, deadline): (Instant, Instant),
        (incoming, outgoing): (bool, bool),
        meanwhile: &dyn Fn(),
    ) -> DeliveryLog {
        let (mut incoming, mut outgoing) = (incoming, outgoing);
        while (incoming || outgoing) && !pace.is_over(deadline) {
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
        let end = pace.now().min(deadline);
        meter.map_or_else(|| DeliveryLog::new(start), |meter| meter.finish(end))
    }
}

/// Waits for the end of the data or of the flow, and takes the log.
pub(super) fn receive(
    pace: &RunClock,
    opened: &DrivenEndpoint,
    start: Instant,
    deadline: Instant,
) -> DeliveryLog {
    opened.events.receive(pace, (start, deadline), (true, false), &|| {})
}

/// Functions for the threads of both protocols.
impl StreamApp {
    fn begin(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        self.open = true;
        self.emit(StreamEvent::Connected);
        self.move_bytes(now, pipe);
    }

    fn move_bytes(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        self.read(now, pipe);
        if self.open {
            self.write_messages(now, pipe);
            self.write(now, pipe);
        }
    }

    fn end(&self, now: Instant, error: Option<String>) {
        let at = self.traffic_time(now);
        if let Some(sink) = &self.sink
            && let Some(meter) = sink.meter.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            meter.on_end(at);
        }
        if let Some(MessageStreamState { session: talk, stream, .. }) = &self.messages {
            lock(talk).on_end(*stream);
        }
        self.emit(StreamEvent::Closed(error));
    }

    fn next_time(&self) -> Option<Instant> {
        if let Some(speech) = self.messages.as_ref().filter(|speech| self.open && !speech.closed) {
            let talk = lock(&speech.session);
            let at = match self.writing.until {
                Some(until) => Some(until),
                // The protocol reports when it has room again.
                None if speech.full => Some(talk.limit()),
                None => talk.next_due(speech.stream),
            };
            let at = at.into_iter().chain(self.reading.until).min();
            return at.map(|at| self.zero + at.saturating_since(Instant::ZERO));
        }
        let sending = self.sender.as_ref().filter(|_| self.open).and_then(TransferSender::deadline);
        let held = [sending, self.reading.until, self.writing.until];
        let at = held.into_iter().flatten().min()?;
        Some(self.zero + at.saturating_since(Instant::ZERO))
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
        self.begin(now, &mut StackByteStream(stack, connection));
    }

    fn progress(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        self.move_bytes(now, &mut StackByteStream(stack, connection));
    }

    fn closed(&mut self, now: Instant, _: &Stack, _: ConnectionId, error: Option<ConnectionError>) {
        self.end(now, error.map(|error| error.to_string()));
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_time()
    }
}

impl quic::StreamHandler for StreamApp {
    fn progress(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        if self.open {
            return self.move_bytes(now, pipe);
        }
        if self.sender.is_none() && self.messages.is_none() {
            // QUIC announces a stream only with its first frame, and the peer may have to send on
            // it.
            pipe.shutdown(now);
        }
        self.begin(now, pipe);
    }

    fn finished(&mut self, _now: Instant) {
        self.emit(StreamEvent::Arrived);
    }

    fn closed(&mut self, now: Instant, error: Option<&towpath_quic::ConnectionError>) {
        self.end(now, error.map(ToString::to_string));
    }

    fn deadline(&self) -> Option<Instant> {
        self.next_time()
    }
}
