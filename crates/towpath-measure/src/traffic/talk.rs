//! One end of a flow that exchanges messages: what it writes, what it makes of what it reads.
//!
//! A flow has a [`MessageSession`] at each end. On each of its streams one end asks and the other answers, so
//! neither needs to know when the other has nothing more to say: who asks closes the stream when all
//! its answers are there, and who answers closes it then.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;

use super::exchange::ScheduledRequests;
use super::frame::{FrameReader, FramingError, MessageFrame};
use super::outbox::Outbox;
use super::video::VideoPlayer;
use super::web::Browser;
use super::{request_directions, streams};
use crate::result::Message;
use crate::scenario::{DataDirection, Pattern};

pub mod half;

pub use half::ExchangeReport;

/// A request, as an [`RequestGenerator`] wants it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it was due: its delay counts from then, whenever it is really written.
    pub due: Instant,
    /// Bytes of the request.
    pub request_bytes: u32,
    /// Bytes of the reply; 0 for none.
    pub reply_bytes: u32,
    /// Whether it is acknowledged before the reply.
    pub ack: bool,
    /// Whether it does not count.
    pub warm_up: bool,
}

/// What a pattern is: when it asks for what. One for the end of a flow, over all streams on which
/// this end asks.
pub trait RequestGenerator: fmt::Debug + Send {
    /// All connections are open.
    fn begin(&mut self, now: Instant);

    /// The next request of a stream, if one is due. Asked again until there is none.
    fn poll(&mut self, now: Instant, stream: u32) -> Option<Request>;

    /// A request of this stream was answered in full.
    fn on_reply(&mut self, now: Instant, stream: u32);

    /// When [`Self::poll`] has something for this stream, as far as that is known now.
    fn next_due(&self, stream: u32) -> Option<Instant>;

    /// Whether nothing more will be asked on this stream.
    fn is_done(&self, stream: u32) -> bool;
}

/// Which end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowRole {
    /// Opens the connections.
    Client,
    /// Accepts them.
    Server,
}

/// What a stream is to be given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamAction {
    /// These bytes; [`MessageSession::on_written`] says how many it took.
    Write(Bytes),
    /// Nothing more, ever: the end of the data.
    Close,
    /// Nothing now.
    Nothing,
}

/// What is known of a request at the end that asked.
#[derive(Debug, Clone, Copy)]
struct PendingRequest {
    ask: Request,
    sent: Option<Instant>,
    acked: Option<Instant>,
    replied: Option<Instant>,
}

impl PendingRequest {
    /// When the last thing came that it waits for.
    fn finished(&self) -> Option<Instant> {
        if self.ask.reply_bytes > 0 { self.replied } else { self.acked }
    }
}

/// Memory of a request where it is asked and where it is heard, with room that a list keeps free,
/// its copy in a [`ExchangeReport`] and the text that it becomes.
pub const SENT_REQUEST_BYTES: u64 = size_of::<PendingRequest>() as u64 * 5 / 2 + 200;
/// The same where it is heard.
pub const RECEIVED_REQUEST_BYTES: u64 = 16 * 3 + 24;

/// How far this end is with a stream: `Opening` ─open▶ `Open` ─nothing more to say▶ `Closed`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum StreamPhase {
    #[default]
    Opening,
    Open,
    Closed,
}

/// One stream.
#[derive(Debug, Default)]
struct MessageStream {
    /// Whether this end asks on it; else it answers.
    is_requester: bool,
    /// It opened the stream, on which the other end asks.
    sends_hello: bool,
    phase: StreamPhase,
    /// The other end has said everything.
    ended: bool,
    outbox: Outbox,
    reader: FrameReader,
    requests: Vec<PendingRequest>,
    /// Requests that are not answered in full yet.
    waiting: u32,
    /// When each request of the other end was read whole.
    received_requests: Vec<(u32, Instant)>,
    broken: Option<FramingError>,
}

/// One end of a flow that exchanges messages.
#[derive(Debug)]
pub struct MessageSession {
    lines: Vec<MessageStream>,
    asker: Option<Box<dyn RequestGenerator>>,
    limit: Instant,
    /// How long answers are waited for behind the last request.
    reply_timeout: Duration,
    /// Nothing is asked that is due then or later.
    until: Instant,
    begun: bool,
}

impl MessageSession {
    /// An end of a flow that starts at `start`; `None` for a pattern that exchanges no messages.
    pub fn new(pattern: &Pattern, role: FlowRole, start: Instant) -> Option<Self> {
        let asks = request_directions(pattern);
        let own = match role {
            FlowRole::Client => DataDirection::Up,
            FlowRole::Server => DataDirection::Down,
        };
        let asker: Option<Box<dyn RequestGenerator>> = match pattern {
            Pattern::Exchange(exchange) => Some(Box::new(ScheduledRequests::new(exchange, own))),
            Pattern::Video(video) => Some(Box::new(VideoPlayer::new(video))),
            Pattern::Web(web) => Some(Box::new(Browser::new(web))),
            Pattern::Bulk { .. }
            | Pattern::Iperf { .. }
            | Pattern::Udping(_)
            | Pattern::Udp(_)
            | Pattern::Run { .. } => return None,
        };
        let line = |stream: u32| {
            let asks = direction_of(pattern, stream) == own;
            MessageStream {
                is_requester: asks,
                sends_hello: !asks && role == FlowRole::Client,
                ..MessageStream::default()
            }
        };
        Some(Self {
            lines: (0..streams(pattern)).map(line).collect(),
            asker: asker.filter(|_| asks.contains(&own)),
            limit: start + pattern.limit(),
            reply_timeout: pattern.limit().saturating_sub(pattern.duration()),
            until: start + pattern.limit(),
            begun: false,
        })
    }

    /// Ends early: nothing is asked that is due at `at` or later, and answers are waited for as long
    /// as planned.
    pub fn end_at(&mut self, at: Instant) {
        self.until = self.until.min(at);
        self.limit = self.limit.min(at + self.reply_timeout);
    }

    /// A stream is open.
    pub fn on_open(&mut self, now: Instant, stream: u32) {
        if let Some(line) = self.line_mut(stream).filter(|line| line.phase == StreamPhase::Opening)
        {
            line.phase = StreamPhase::Open;
            if line.sends_hello {
                line.outbox.push(MessageFrame::Hello);
            }
        }
        if !self.begun && self.lines.iter().all(|line| line.phase != StreamPhase::Opening) {
            self.begun = true;
            if let Some(asker) = &mut self.asker {
                asker.begin(now);
            }
        }
    }

    /// Bytes were read.
    pub fn on_bytes(&mut self, now: Instant, stream: u32, mut data: &[u8]) {
        let Self { lines, asker, .. } = self;
        let Some(line) = lines.get_mut(stream as usize).filter(|line| line.broken.is_none()) else {
            return;
        };
        loop {
            match line.reader.push(data) {
                Ok(Some((frame, behind))) => {
                    data = behind;
                    if line.on_frame(now, frame)
                        && let Some(asker) = asker
                    {
                        asker.on_reply(now, stream);
                    }
                }
                Ok(None) => return,
                Err(broken) => {
                    line.broken = Some(broken);
                    return;
                }
            }
        }
    }

    /// Nothing more will be read.
    pub fn on_end(&mut self, stream: u32) {
        if let Some(line) = self.line_mut(stream) {
            line.ended = true;
        }
    }

    /// What to do with a stream that is open and has room. Called again after each
    /// [`StreamAction::Write`] that was taken in full.
    pub fn poll_output(&mut self, now: Instant, stream: u32) -> StreamAction {
        let (limit, until) = (self.limit, self.until);
        let Self { lines, asker, begun, .. } = self;
        let Some(line) =
            lines.get_mut(stream as usize).filter(|line| line.phase == StreamPhase::Open)
        else {
            return StreamAction::Nothing;
        };
        if now >= limit {
            line.phase = StreamPhase::Closed;
            return StreamAction::Close;
        }
        if let (Some(asker), true, true) = (asker.as_mut(), *begun, line.is_requester) {
            while !is_over(asker.as_ref(), stream, until)
                && let Some(ask) = asker.poll(now, stream)
            {
                line.queue_request(ask);
            }
        }
        if line.may_close(asker.as_deref(), stream, until) {
            line.phase = StreamPhase::Closed;
            return StreamAction::Close;
        }
        if line.outbox.is_empty() {
            StreamAction::Nothing
        } else {
            StreamAction::Write(line.outbox.chunk())
        }
    }

    /// The stream took so many bytes.
    pub fn on_written(&mut self, now: Instant, stream: u32, bytes: usize) {
        let Some(line) = self.line_mut(stream) else { return };
        for frame in line.outbox.advance(bytes) {
            if let MessageFrame::Request { number, .. } = frame
                && let Some(asked) = line.requests.get_mut(number as usize)
            {
                asked.sent = Some(now);
            }
        }
    }

    /// When [`Self::poll_output`] must be called, though nothing was read. What waits to be written
    /// is always due: who drives a stream that takes nothing waits for it instead.
    pub fn next_due(&self, stream: u32) -> Option<Instant> {
        let line =
            self.lines.get(stream as usize).filter(|line| line.phase == StreamPhase::Open)?;
        if !line.outbox.is_empty() || line.may_close(self.asker.as_deref(), stream, self.until) {
            return Some(Instant::ZERO);
        }
        let asker = self.asker.as_ref().filter(|_| self.begun && line.is_requester);
        let asks = asker.and_then(|asker| asker.next_due(stream));
        Some(asks.map_or(self.limit, |due| due.min(self.limit)))
    }

    /// When it ends, whatever is still missing.
    pub fn limit(&self) -> Instant {
        self.limit
    }

    /// Memory of what was asked and heard and of what waits to be said.
    pub fn memory_bytes(&self) -> u64 {
        const SENT_REQUEST_SIZE: usize = SENT_REQUEST_BYTES as usize;
        const RECEIVED_REQUEST_SIZE: usize = RECEIVED_REQUEST_BYTES as usize;
        let line = |line: &MessageStream| {
            line.requests.len() * SENT_REQUEST_SIZE
                + line.received_requests.len() * RECEIVED_REQUEST_SIZE
                + line.outbox.memory_bytes()
        };
        self.lines.iter().map(line).sum::<usize>() as u64
    }

    /// Something else was read than was sent.
    pub fn broken(&self) -> Option<FramingError> {
        self.lines.iter().find_map(|line| line.broken)
    }

    fn line_mut(&mut self, stream: u32) -> Option<&mut MessageStream> {
        self.lines.get_mut(stream as usize)
    }
}

impl MessageStream {
    fn queue_request(&mut self, ask: Request) {
        let number = self.requests.len() as u32;
        let Request { request_bytes, reply_bytes, ack, .. } = ask;
        self.outbox.push(MessageFrame::Request { number, bytes: request_bytes, reply_bytes, ack });
        self.requests.push(PendingRequest { ask, sent: None, acked: None, replied: None });
        self.waiting += 1;
    }

    /// Understands a message; whether it was the last thing that a request of this end waits for.
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
        // An answer to nothing: a peer that does not speak our language.
        let Some(asked) = self.requests.get_mut(number as usize) else { return false };
        let before = asked.finished();
        let place = if is_reply { &mut asked.replied } else { &mut asked.acked };
        place.get_or_insert(now);
        let finished = before.is_none() && asked.finished().is_some();
        if finished {
            self.waiting = self.waiting.saturating_sub(1);
        }
        finished
    }

    fn may_close(&self, asker: Option<&dyn RequestGenerator>, stream: u32, until: Instant) -> bool {
        let done = if self.is_requester {
            let everything =
                asker.is_none_or(|asker| asker.is_done(stream) || is_over(asker, stream, until));
            let answered = self.waiting == 0 && everything;
            // Nobody will answer any more.
            answered || self.ended
        } else {
            self.ended
        };
        done && self.outbox.is_empty() || self.broken.is_some()
    }
}

/// Whether what would be asked next is due too late.
fn is_over(asker: &dyn RequestGenerator, stream: u32, until: Instant) -> bool {
    asker.next_due(stream).is_some_and(|due| due >= until)
}

/// The direction of the requests on a stream.
fn direction_of(pattern: &Pattern, stream: u32) -> DataDirection {
    let asks = request_directions(pattern);
    let direction = asks.get(stream as usize).or(asks.first());
    direction.copied().unwrap_or(DataDirection::Up)
}

/// The records of a flow's messages in order of when they were due, from what both its ends know;
/// times are on the clock that both share.
pub fn messages(flow: u32, client: &MessageSession, server: &MessageSession) -> Vec<Message> {
    half::join(flow, &ExchangeReport::of(client), Some(&ExchangeReport::of(server)))
}

#[cfg(test)]
mod tests;
