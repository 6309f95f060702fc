//! A flow's end as an application inside a protocol's thread: our own stack's, or QUIC's.

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
use super::talk::{SharedSession, lock};
use super::{IO_POLL_INTERVAL, StreamEndpoint};
use crate::pace::RunClock;
use crate::pipe::ByteStream;
use crate::purse::{TrafficBudget, TrafficDirection};
use crate::{quic, stack};

/// What the flow's thread is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StreamEvent {
    /// The connection is open.
    Connected,
    /// All data has been read, or nothing more will come.
    Ended,
    /// All that was written has arrived, its end too.
    Arrived,
    /// The connection is gone, and why, if that was not its ordinary end.
    Closed(Option<String>),
}

/// The receiving half: shared with the thread that waits for its log, and takes it when it has waited
/// long enough.
#[derive(Debug, Clone)]
struct ReceiveSink {
    pub(crate) meter: Arc<Mutex<Option<TransferReceiver>>>,
    pub(crate) received: Arc<AtomicU64>,
}

/// Both halves of one end of a stream.
#[derive(Debug)]
pub(crate) struct StreamApp {
    /// Start of the traffic on the host's clock.
    pub(crate) zero: Instant,
    pub(crate) sender: Option<TransferSender>,
    sink: Option<ReceiveSink>,
    /// Whether data may be written; for a connection that we open, when it is established.
    pub(crate) open: bool,
    pub(crate) events: SyncSender<StreamEvent>,
    data: Bytes,
    speech: Option<MessageStreamState>,
    /// Limits of a transfer's rate.
    reading: RateThrottle,
    writing: RateThrottle,
    /// What it is paid from, where somebody limits that.
    budget: Option<Arc<TrafficBudget>>,
}

/// A limit of a rate, and when it lets something pass again.
#[derive(Debug)]
struct RateThrottle {
    pacer: Option<TransferPacer>,
    until: Option<Instant>,
}

impl RateThrottle {
    fn new(rate: Option<Rate>) -> Self {
        Self { pacer: rate.map(|rate| TransferPacer::new(rate, Instant::ZERO)), until: None }
    }

    /// Whether nothing may move now: of this end alone, or of all that `others` limits until then.
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

/// What is said and heard where messages are exchanged.
#[derive(Debug)]
struct MessageStreamState {
    /// The end's talk, and which of its streams this is.
    session: SharedSession,
    stream: u32,
    /// The talk knows that the stream is open.
    begun: bool,
    /// The talk has closed the stream.
    closed: bool,
    /// The stack did not take all of what the talk had.
    full: bool,
}

impl StreamApp {
    fn new(
        zero: Instant,
        open: bool,
        sender: Option<TransferSender>,
        sink: Option<ReceiveSink>,
        events: SyncSender<StreamEvent>,
        manner: TransferOptions,
    ) -> Self {
        let block = if sender.is_some() { manner.first_block().max(1) } else { 0 };
        let data = Bytes::from(vec![0x74; block]);
        let (reading, writing) = (RateThrottle::new(manner.rate), RateThrottle::new(manner.rate));
        Self {
            zero,
            sender,
            sink,
            open,
            events,
            data,
            speech: None,
            reading,
            writing,
            budget: None,
        }
    }

    /// The same, for a flow that exchanges messages.
    fn with_session(self, talk: Option<(SharedSession, u32)>) -> Self {
        let speech = talk.map(|(talk, stream)| {
            let (begun, closed, full) = (false, false, false);
            MessageStreamState { session: talk, stream, begun, closed, full }
        });
        Self { speech, ..self }
    }

    /// Until when the purse lets nothing pass, in the traffic's time.
    fn blocked_until(&self, now: Instant, way: TrafficDirection) -> Option<Instant> {
        let purse = self.budget.as_ref()?;
        let due = purse.next_allowed(now, way)?;
        purse.end_if_exhausted();
        Some(self.traffic_time(due))
    }

    /// How many of `most` bytes may be written now; or until when none.
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
        // There is room for everything that is ever said once; nobody has to listen.
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
            if let Some(MessageStreamState { session: talk, stream, .. }) = &self.speech {
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

    /// Writes what the talk has for this stream.
    fn write_messages(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        let at = self.traffic_time(now);
        self.writing.until = None;
        let Some(mut speech) = self.speech.take() else { return };
        self.writing.until = self.write_on_stream(&mut speech, (now, at), pipe);
        self.speech = Some(speech);
    }

    /// The same on a stream that says something; until when it must not go on.
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

/// Things that can be said before anybody listens.
const EVENT_QUEUE: usize = 8;

/// What one end shall do.
#[derive(Debug, Default)]
pub(crate) struct StreamAppConfig {
    pub(crate) sender: Option<TransferSender>,
    /// Start of the flow, and where the received bytes are counted.
    pub(crate) receiver: Option<(Instant, Arc<AtomicU64>)>,
    /// The end's talk and which of its streams it is, where messages are exchanged.
    pub(crate) session: Option<(SharedSession, u32)>,
    /// How a transfer's bytes are moved.
    pub(crate) manner: TransferOptions,
    /// What they are paid from, where somebody limits that.
    pub(crate) budget: Option<Arc<TrafficBudget>>,
}

/// What a thread outside knows of an end.
#[derive(Debug)]
pub(crate) struct EventReceiver {
    pub(super) events: mpsc::Receiver<StreamEvent>,
    sink: Option<ReceiveSink>,
}

/// An end inside a protocol's thread.
#[derive(Debug)]
pub(super) struct DrivenEndpoint {
    pub(super) end: StreamEndpoint,
    ears: EventReceiver,
}

/// Makes an end for a protocol's thread, of traffic that begins at `zero` of its clock; `open` says
/// that data may be written at once.
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
    let manner = if halves.session.is_some() { TransferOptions::default() } else { halves.manner };
    let end = StreamApp::new(zero, open, halves.sender, sink.clone(), told, manner);
    let end = StreamApp { budget: halves.budget, ..end };
    (end.with_session(halves.session), EventReceiver { events: heard, sink })
}

impl EventReceiver {
    pub(super) fn of(self, end: StreamEndpoint) -> DrivenEndpoint {
        DrivenEndpoint { end, ears: self }
    }

    /// Waits for the end of the data, or of the flow, and takes the log; where the other end is in
    /// another program, also until it has got all that was written here. Now and then `meanwhile` is
    /// done.
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

/// Waits for the end of the data, or of the flow, and takes the log.
pub(super) fn receive(
    pace: &RunClock,
    opened: &DrivenEndpoint,
    start: Instant,
    deadline: Instant,
) -> DeliveryLog {
    opened.ears.receive(pace, (start, deadline), (true, false), &|| {})
}

/// What both kinds of threads call.
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
        if let Some(MessageStreamState { session: talk, stream, .. }) = &self.speech {
            lock(talk).on_end(*stream);
        }
        self.emit(StreamEvent::Closed(error));
    }

    fn next_time(&self) -> Option<Instant> {
        if let Some(speech) = self.speech.as_ref().filter(|speech| self.open && !speech.closed) {
            let talk = lock(&speech.session);
            let at = match self.writing.until {
                Some(until) => Some(until),
                // The protocol says when it has room again.
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

/// A connection of our own stack.
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
        if self.sender.is_none() && self.speech.is_none() {
            // A stream that nothing was sent on does not exist for the peer, which may have to send.
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
