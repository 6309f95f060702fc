//! Message session: one end of a request-reply flow.
//!
//! A flow has a [`MessageSession`] at each end. On each stream one end sends requests and the other
//! replies, so no end-of-session message is needed. The requester closes the stream when all its
//! replies have arrived, and the responder closes it then.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_result::Message;
use towpath_scenario::flow_plan::{request_directions, streams};
use towpath_scenario::{DataDirection, Pattern};

use super::exchange::ScheduledRequests;
use super::frame::{FrameReader, FramingError, MessageFrame};
use super::outbox::Outbox;
use super::video::VideoPlayer;
use super::web::Browser;

pub mod report;

pub use report::ExchangeReport;

/// Request that a [`RequestGenerator`] wants to send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// Time at which the request was due. Its delay counts from then, even if it is written later.
    pub due: Instant,
    /// Size of the request.
    pub request_bytes: u32,
    /// Size of the reply; 0 if none is requested.
    pub reply_bytes: u32,
    /// True if the request is acknowledged before the reply.
    pub ack: bool,
    /// True if the request belongs to the warm-up and does not count.
    pub warm_up: bool,
}

/// Schedule of a pattern's requests. One generator serves one end of a flow, over all streams on
/// which that end sends requests.
pub trait RequestGenerator: fmt::Debug + Send {
    /// Starts the schedule; all connections are open.
    fn begin(&mut self, now: Instant);

    /// Returns the next request of a stream, if one is due. The caller repeats the call until it
    /// returns `None`.
    fn poll(&mut self, now: Instant, stream: u32) -> Option<Request>;

    /// Records that a request of this stream got its complete reply.
    fn on_reply(&mut self, now: Instant, stream: u32);

    /// Returns the time at which [`Self::poll`] has a request for this stream, if known already.
    fn next_due(&self, stream: u32) -> Option<Instant>;

    /// Returns true if this stream will carry no more requests.
    fn is_done(&self, stream: u32) -> bool;
}

/// End of a flow, by its role in opening connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowRole {
    /// End that opens the connections.
    Client,
    /// End that accepts the connections.
    Server,
}

impl FlowRole {
    /// Returns the direction of the requests that this end sends.
    pub fn direction(self) -> DataDirection {
        match self {
            Self::Client => DataDirection::Up,
            Self::Server => DataDirection::Down,
        }
    }
}

/// Action that the caller must take on a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamAction {
    /// Write these bytes, then report the number taken with [`MessageSession::on_written`].
    Write(Bytes),
    /// Close the sending direction: the end of the data.
    Close,
    /// Do nothing for now.
    Nothing,
}

/// State of a request at the end that sent it.
#[derive(Debug, Clone, Copy)]
struct PendingRequest {
    request: Request,
    sent: Option<Instant>,
    acked: Option<Instant>,
    replied: Option<Instant>,
}

impl PendingRequest {
    /// Returns the time of the reply, or of the acknowledgement for a request without a reply.
    fn finished(&self) -> Option<Instant> {
        if self.request.reply_bytes > 0 { self.replied } else { self.acked }
    }
}

/// Memory of a request at its sender. Includes spare capacity of the list, the copy in an
/// [`ExchangeReport`] and its serialised text.
pub const SENT_REQUEST_BYTES: u64 = size_of::<PendingRequest>() as u64 * 5 / 2 + 200;
/// Memory of a request at its receiver, computed likewise.
pub const RECEIVED_REQUEST_BYTES: u64 = 16 * 3 + 24;

/// Phase of a stream at this end: `Opening` ─open▶ `Open` ─nothing more to send▶ `Closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum StreamPhase {
    #[default]
    Opening,
    Open,
    Closed,
}

/// State of one stream at this end.
#[derive(Debug, Default)]
struct MessageStream {
    /// True if this end sends the requests on the stream; otherwise it replies.
    is_requester: bool,
    /// True if this end opened the stream but the other sends the requests.
    sends_hello: bool,
    phase: StreamPhase,
    /// True if the other end has closed its direction.
    is_peer_closed: bool,
    outbox: Outbox,
    reader: FrameReader,
    requests: Vec<PendingRequest>,
    /// Number of requests without a complete reply.
    waiting: u32,
    /// Number of each request from the other end, and the time at which it was fully read.
    received_requests: Vec<(u32, Instant)>,
    broken: Option<FramingError>,
}

/// One end of a request-reply flow.
#[derive(Debug)]
pub struct MessageSession {
    streams: Vec<MessageStream>,
    generator: Option<Box<dyn RequestGenerator>>,
    limit: Instant,
    /// Time for which replies are awaited after the last request.
    reply_timeout: Duration,
    /// Requests due at this time or later are not sent.
    until: Instant,
    has_begun: bool,
}

impl MessageSession {
    /// Creates an end of a flow that starts at `start`; `None` for a pattern without messages.
    pub fn new(pattern: &Pattern, role: FlowRole, start: Instant) -> Option<Self> {
        let own_direction = role.direction();
        let generator: Option<Box<dyn RequestGenerator>> = match pattern {
            Pattern::Exchange(exchange) => {
                Some(Box::new(ScheduledRequests::new(exchange, own_direction)))
            }
            Pattern::Video(video) => Some(Box::new(VideoPlayer::new(video))),
            Pattern::Web(web) => Some(Box::new(Browser::new(web))),
            Pattern::Bulk { .. }
            | Pattern::Iperf { .. }
            | Pattern::Udping(_)
            | Pattern::Udp(_)
            | Pattern::Run { .. } => return None,
        };
        Some(Self::with_generator(pattern, role, start, generator))
    }

    /// Creates an end of a flow whose requests another generator schedules. The pattern only
    /// determines streams, directions and times.
    pub fn with_generator(
        pattern: &Pattern,
        role: FlowRole,
        start: Instant,
        generator: Option<Box<dyn RequestGenerator>>,
    ) -> Self {
        let directions = request_directions(pattern);
        let own_direction = role.direction();
        let new_stream = |stream: u32| {
            let is_requester = direction_of(pattern, stream) == own_direction;
            MessageStream {
                is_requester,
                sends_hello: !is_requester && role == FlowRole::Client,
                ..MessageStream::default()
            }
        };
        Self {
            streams: (0..streams(pattern)).map(new_stream).collect(),
            generator: generator.filter(|_| directions.contains(&own_direction)),
            limit: start + pattern.limit(),
            reply_timeout: pattern.limit().saturating_sub(pattern.duration()),
            until: start + pattern.limit(),
            has_begun: false,
        }
    }

    /// Ends early: requests due at `end` or later are not sent. Replies are awaited for the planned
    /// time after `end`.
    pub fn end_at(&mut self, end: Instant) {
        self.until = self.until.min(end);
        self.limit = self.limit.min(end + self.reply_timeout);
    }

    /// Records that a stream is open.
    pub fn on_open(&mut self, now: Instant, stream: u32) {
        if let Some(stream_state) = self
            .stream_mut(stream)
            .filter(|stream_state| stream_state.phase == StreamPhase::Opening)
        {
            stream_state.phase = StreamPhase::Open;
            if stream_state.sends_hello {
                stream_state.outbox.push(MessageFrame::Hello);
            }
        }
        if !self.has_begun
            && self.streams.iter().all(|stream_state| stream_state.phase != StreamPhase::Opening)
        {
            self.has_begun = true;
            if let Some(generator) = &mut self.generator {
                generator.begin(now);
            }
        }
    }

    /// Processes bytes read from a stream.
    pub fn on_bytes(&mut self, now: Instant, stream: u32, mut data: &[u8]) {
        let Self { streams, generator, .. } = self;
        let Some(stream_state) =
            streams.get_mut(stream as usize).filter(|stream_state| stream_state.broken.is_none())
        else {
            return;
        };
        loop {
            match stream_state.reader.push(data) {
                Ok(Some((frame, unread))) => {
                    data = unread;
                    if stream_state.on_frame(now, frame)
                        && let Some(generator) = generator
                    {
                        generator.on_reply(now, stream);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    stream_state.broken = Some(error);
                    return;
                }
            }
        }
    }

    /// Records the end of the data on a stream.
    pub fn on_end(&mut self, stream: u32) {
        if let Some(stream_state) = self.stream_mut(stream) {
            stream_state.is_peer_closed = true;
        }
    }

    /// Returns the action for a stream that is open and has room. Call again after each
    /// [`StreamAction::Write`] that was taken in full.
    pub fn poll_output(&mut self, now: Instant, stream: u32) -> StreamAction {
        let (limit, until) = (self.limit, self.until);
        let Self { streams, generator, has_begun, .. } = self;
        let Some(stream_state) = streams
            .get_mut(stream as usize)
            .filter(|stream_state| stream_state.phase == StreamPhase::Open)
        else {
            return StreamAction::Nothing;
        };
        if now >= limit {
            stream_state.phase = StreamPhase::Closed;
            return StreamAction::Close;
        }
        if let (Some(generator), true, true) =
            (generator.as_mut(), *has_begun, stream_state.is_requester)
        {
            while !is_over(generator.as_ref(), stream, until)
                && let Some(request) = generator.poll(now, stream)
            {
                stream_state.queue_request(request);
            }
        }
        if stream_state.may_close(generator.as_deref(), stream, until) {
            stream_state.phase = StreamPhase::Closed;
            return StreamAction::Close;
        }
        if stream_state.outbox.is_empty() {
            StreamAction::Nothing
        } else {
            StreamAction::Write(stream_state.outbox.chunk())
        }
    }

    /// Records that the stream took `bytes`.
    pub fn on_written(&mut self, now: Instant, stream: u32, bytes: usize) {
        let Some(stream_state) = self.stream_mut(stream) else { return };
        for frame in stream_state.outbox.advance(bytes) {
            if let MessageFrame::Request { number, .. } = frame
                && let Some(pending) = stream_state.requests.get_mut(number as usize)
            {
                pending.sent = Some(now);
            }
        }
    }

    /// Returns the time at which [`Self::poll_output`] must be called, even if nothing was read.
    /// Pending output is always due; a caller whose stream is blocked waits for the stream instead.
    pub fn next_due(&self, stream: u32) -> Option<Instant> {
        let stream_state = self
            .streams
            .get(stream as usize)
            .filter(|stream_state| stream_state.phase == StreamPhase::Open)?;
        if !stream_state.outbox.is_empty()
            || stream_state.may_close(self.generator.as_deref(), stream, self.until)
        {
            return Some(Instant::ZERO);
        }
        let generator =
            self.generator.as_ref().filter(|_| self.has_begun && stream_state.is_requester);
        let request_due = generator.and_then(|generator| generator.next_due(stream));
        Some(request_due.map_or(self.limit, |due| due.min(self.limit)))
    }

    /// Returns the time at which the session ends, even with replies missing.
    pub fn limit(&self) -> Instant {
        self.limit
    }

    /// Returns the memory of all requests, sent and received, and of pending output.
    pub fn memory_bytes(&self) -> u64 {
        const SENT_REQUEST_SIZE: usize = SENT_REQUEST_BYTES as usize;
        const RECEIVED_REQUEST_SIZE: usize = RECEIVED_REQUEST_BYTES as usize;
        let stream_memory = |stream: &MessageStream| {
            stream.requests.len() * SENT_REQUEST_SIZE
                + stream.received_requests.len() * RECEIVED_REQUEST_SIZE
                + stream.outbox.memory_bytes()
        };
        self.streams.iter().map(stream_memory).sum::<usize>() as u64
    }

    /// Returns the first framing error: the other end sent something unexpected.
    pub fn broken(&self) -> Option<FramingError> {
        self.streams.iter().find_map(|stream| stream.broken)
    }

    fn stream_mut(&mut self, stream: u32) -> Option<&mut MessageStream> {
        self.streams.get_mut(stream as usize)
    }
}

impl MessageStream {
    fn queue_request(&mut self, request: Request) {
        let number = self.requests.len() as u32;
        let Request { request_bytes, reply_bytes, ack, .. } = request;
        self.outbox.push(MessageFrame::Request { number, bytes: request_bytes, reply_bytes, ack });
        self.requests.push(PendingRequest { request, sent: None, acked: None, replied: None });
        self.waiting += 1;
    }

    /// Processes a message. Returns true if it completes a request of this end.
    fn on_frame(&mut self, now: Instant, frame: MessageFrame) -> bool {
        let (number, is_reply) = match frame {
            MessageFrame::Request { number, reply_bytes, ack, bytes: _ } => {
                self.received_requests.push((number, now));
                if ack {
                    self.outbox.push(MessageFrame::Ack { number });
                }
                if reply_bytes > 0 {
                    self.outbox.push(MessageFrame::Reply { number, bytes: reply_bytes });
                }
                return false;
            }
            MessageFrame::Hello => return false,
            MessageFrame::Ack { number } => (number, false),
            MessageFrame::Reply { number, bytes: _ } => (number, true),
        };
        // The number belongs to no request, so the peer does not follow the protocol.
        let Some(pending) = self.requests.get_mut(number as usize) else { return false };
        let finished_before = pending.finished();
        let reply_time = if is_reply { &mut pending.replied } else { &mut pending.acked };
        reply_time.get_or_insert(now);
        let is_finished = finished_before.is_none() && pending.finished().is_some();
        if is_finished {
            self.waiting = self.waiting.saturating_sub(1);
        }
        is_finished
    }

    fn may_close(
        &self,
        generator: Option<&dyn RequestGenerator>,
        stream: u32,
        until: Instant,
    ) -> bool {
        let is_done = if self.is_requester {
            let all_requested = generator.is_none_or(|generator| {
                generator.is_done(stream) || is_over(generator, stream, until)
            });
            let all_answered = self.waiting == 0 && all_requested;
            // No more replies can arrive after the end of data.
            all_answered || self.is_peer_closed
        } else {
            self.is_peer_closed
        };
        is_done && self.outbox.is_empty() || self.broken.is_some()
    }
}

/// Returns true if the next request is due too late to be sent.
fn is_over(generator: &dyn RequestGenerator, stream: u32, until: Instant) -> bool {
    generator.next_due(stream).is_some_and(|due| due >= until)
}

/// Returns the direction of the requests on a stream.
fn direction_of(pattern: &Pattern, stream: u32) -> DataDirection {
    let directions = request_directions(pattern);
    let direction = directions.get(stream as usize).or(directions.first());
    direction.copied().unwrap_or(DataDirection::Up)
}

/// Returns the records of a flow's messages by due time, from both ends. Both must share one clock.
pub fn messages(flow: u32, client: &MessageSession, server: &MessageSession) -> Vec<Message> {
    report::merge_reports(flow, &ExchangeReport::of(client), Some(&ExchangeReport::of(server)))
}

#[cfg(test)]
mod tests;
