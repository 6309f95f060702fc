//! A flow's end as an application of our stack.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use towpath_measure::traffic::{Allowance, Output, Receiver, Sender};
use towpath_mptcp::stack::{ConnectionError, ConnectionId, Stack};
use towpath_net::Instant;

use super::End;
use crate::traffic::talk::{SharedTalk, lock};

/// Bytes offered at once: what the flows over the kernel's sockets write.
const CHUNK: usize = 128 * 1024;

/// What the flow's thread is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// The connection is open.
    Connected,
    /// All data has been read, or nothing more will come.
    Ended,
    /// The connection is gone.
    Closed(Option<ConnectionError>),
}

/// The receiving half: shared with the thread that waits for its log, and takes it when it has waited
/// long enough.
#[derive(Debug, Clone)]
pub(crate) struct Sink {
    pub(crate) meter: Arc<Mutex<Option<Receiver>>>,
    pub(crate) received: Arc<AtomicU64>,
}

/// Both halves of one end of a stream.
#[derive(Debug)]
pub(crate) struct FlowEnd {
    /// Start of the traffic on the host's clock.
    pub(crate) zero: Instant,
    pub(crate) sender: Option<Sender>,
    pub(crate) sink: Option<Sink>,
    /// Whether data may be written; for a connection that we open, when it is established.
    pub(crate) open: bool,
    pub(crate) told: SyncSender<Said>,
    data: Bytes,
    speech: Option<Speech>,
}

/// What is said and heard where messages are exchanged.
#[derive(Debug)]
struct Speech {
    /// The end's talk, and which of its streams this is.
    talk: SharedTalk,
    stream: u32,
    /// The talk knows that the stream is open.
    begun: bool,
    /// The talk has closed the stream.
    closed: bool,
    /// The stack did not take all of what the talk had.
    full: bool,
}

impl FlowEnd {
    pub(crate) fn new(
        zero: Instant,
        open: bool,
        sender: Option<Sender>,
        sink: Option<Sink>,
        told: SyncSender<Said>,
    ) -> Self {
        let data = Bytes::from(vec![0x74; CHUNK]);
        Self { zero, sender, sink, open, told, data, speech: None }
    }

    /// The same, for a flow that exchanges messages.
    pub(crate) fn talking(self, talk: Option<(SharedTalk, u32)>) -> Self {
        let speech = talk.map(|(talk, stream)| {
            let (begun, closed, full) = (false, false, false);
            Speech { talk, stream, begun, closed, full }
        });
        Self { speech, ..self }
    }

    fn traffic_time(&self, now: Instant) -> Instant {
        Instant::ZERO + now.saturating_since(self.zero)
    }

    fn say(&self, said: Said) {
        // There is room for everything that is ever said once; nobody has to listen.
        let _nobody_listens = self.told.try_send(said);
    }

    fn read(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        let at = self.traffic_time(now);
        while let Some(data) = stack.read(now, connection) {
            let ended = data.is_empty();
            if let Some(Speech { talk, stream, .. }) = &self.speech {
                let mut talk = lock(talk);
                if ended { talk.on_end(*stream) } else { talk.on_bytes(at, *stream, &data) }
            }
            if let Some(sink) = &self.sink {
                let mut meter = sink.meter.lock().unwrap_or_else(PoisonError::into_inner);
                match meter.as_mut() {
                    Some(meter) if ended => meter.on_end(at),
                    Some(meter) => meter.on_bytes(at, data.len() as u64),
                    None => {}
                }
                sink.received.fetch_add(data.len() as u64, Ordering::Relaxed);
            }
            if ended {
                self.say(Said::Ended);
                return;
            }
        }
    }

    /// Writes what the talk has for this stream.
    fn speak(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        let at = self.traffic_time(now);
        let Some(Speech { talk, stream, begun, closed, full }) = &mut self.speech else { return };
        let mut talk = lock(talk);
        if !*begun {
            *begun = true;
            talk.on_open(at, *stream);
        }
        *full = false;
        while !*closed {
            match talk.poll_output(at, *stream) {
                Output::Write(mut chunk) => {
                    let length = chunk.len();
                    let taken = stack.write(now, connection, &mut chunk);
                    talk.on_written(at, *stream, taken);
                    if taken < length {
                        *full = true;
                        return;
                    }
                }
                Output::Close => {
                    *closed = true;
                    stack.shutdown(now, connection);
                }
                Output::Nothing => return,
            }
        }
    }

    fn write(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        let at = self.traffic_time(now);
        while let Some(sender) = &mut self.sender {
            let Allowance::Send(most) = sender.allowance(at) else {
                self.sender = None;
                stack.shutdown(now, connection);
                return;
            };
            let length = usize::try_from(most).unwrap_or(CHUNK).min(CHUNK);
            let mut chunk = self.data.slice(..length);
            let taken = stack.write(now, connection, &mut chunk);
            sender.on_sent(at, taken as u64);
            if taken < length {
                return;
            }
        }
    }
}

impl End for FlowEnd {
    fn connected(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        self.open = true;
        self.say(Said::Connected);
        self.progress(now, stack, connection);
    }

    fn progress(&mut self, now: Instant, stack: &mut Stack, connection: ConnectionId) {
        self.read(now, stack, connection);
        if self.open {
            self.speak(now, stack, connection);
            self.write(now, stack, connection);
        }
    }

    fn closed(&mut self, now: Instant, _: &Stack, _: ConnectionId, error: Option<ConnectionError>) {
        let at = self.traffic_time(now);
        if let Some(sink) = &self.sink
            && let Some(meter) = sink.meter.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
        {
            meter.on_end(at);
        }
        if let Some(Speech { talk, stream, .. }) = &self.speech {
            lock(talk).on_end(*stream);
        }
        self.say(Said::Closed(error));
    }

    fn deadline(&self) -> Option<Instant> {
        if let Some(speech) = self.speech.as_ref().filter(|speech| self.open && !speech.closed) {
            let talk = lock(&speech.talk);
            // The stack says when it has room again.
            let at = if speech.full { Some(talk.limit()) } else { talk.next_due(speech.stream) };
            return at.map(|at| self.zero + at.saturating_since(Instant::ZERO));
        }
        let at = self.sender.as_ref().filter(|_| self.open)?.deadline()?;
        Some(self.zero + at.saturating_since(Instant::ZERO))
    }
}
