//! Flows that exchange messages over the kernel's sockets: one thread for each end of a flow waits
//! for whatever comes first on any of its streams: data, room, or the time of the next request.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::scenario::{DataDirection, Flow};
use towpath_measure::traffic::{Output, Receiver, Role, Talk, messages};
use towpath_net::Instant;

use super::wire::Wire;
use super::{Outcome, Stream, kernel, sends};
use crate::pace::Pace;
use crate::sys;

/// The longest sleep of a thread that must notice an interrupt.
const NAP: Duration = Duration::from_millis(50);

/// A talk, shared by the streams of one end.
pub(crate) type SharedTalk = Arc<Mutex<Talk>>;

pub(crate) fn lock(talk: &SharedTalk) -> MutexGuard<'_, Talk> {
    talk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Both ends of a flow that exchanges messages: the client's and the server's.
#[derive(Debug)]
pub(super) struct Talks {
    ends: [SharedTalk; 2],
    /// Their streams over sockets of the kernel.
    lines: [Vec<Line>; 2],
}

impl Talks {
    /// `None` for a flow that exchanges no messages.
    pub(super) fn new(flow: &Flow) -> Option<Self> {
        let start = Instant::ZERO + flow.start;
        let talk = |role| Some(Arc::new(Mutex::new(Talk::new(&flow.pattern, role, start)?)));
        let ends = [talk(Role::Client)?, talk(Role::Server)?];
        Some(Self { ends, lines: [Vec::new(), Vec::new()] })
    }

    /// An end's talk.
    pub(super) fn end(&self, is_client: bool) -> SharedTalk {
        let [client, server] = &self.ends;
        Arc::clone(if is_client { client } else { server })
    }

    /// Adds a stream over a socket of the kernel.
    pub(super) fn keep(&mut self, stream: &Stream, socket: &Arc<Socket>, is_client: bool) {
        let [client, server] = &mut self.lines;
        let incoming = stream.received.iter().find(|(way, _)| !sends(*way, is_client));
        let line = incoming.map(|(_, received)| Line {
            number: stream.number,
            wire: Wire::Plain(Arc::clone(socket)),
            received: Arc::clone(received),
        });
        (if is_client { client } else { server }).extend(line);
    }

    /// What the ends over the kernel's sockets have to do, each in a thread of its own.
    pub(super) fn parts(&mut self) -> Vec<Part> {
        let incoming = [DataDirection::Down, DataDirection::Up];
        let ends = self.ends.iter().zip(&mut self.lines).zip(incoming);
        let parts = ends.map(|((talk, lines), incoming)| Part {
            talk: Arc::clone(talk),
            lines: std::mem::take(lines),
            incoming,
        });
        parts.filter(|part| !part.lines.is_empty()).collect()
    }

    /// What became of the requests.
    pub(super) fn conclude(&self, flow: u32, outcome: &mut Outcome) {
        let [client, server] = self.ends.each_ref().map(lock);
        outcome.messages = messages(flow, &client, &server);
        if let (Some(broken), None) = (client.broken().or(server.broken()), &outcome.failure) {
            outcome.failure = Some(format!("something else arrived than was sent: {broken}"));
        }
    }
}

/// One end over sockets of the kernel.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) talk: SharedTalk,
    pub(crate) lines: Vec<Line>,
    pub(crate) incoming: DataDirection,
}

/// One stream of an end.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) number: u32,
    pub(crate) wire: Wire,
    pub(crate) received: Arc<AtomicU64>,
}

/// How far a stream is.
#[derive(Debug)]
struct Progress {
    meter: Receiver,
    /// The other end has said everything, or is gone.
    ended: bool,
    closed: bool,
    /// The socket takes nothing more for now.
    full: bool,
}

impl Part {
    /// Whether it is the end that opened the connections.
    pub(crate) fn is_client(&self) -> bool {
        self.incoming == DataDirection::Down
    }

    /// Talks on all streams until they have ended, or the flow's time is over; returns what was read
    /// on each.
    pub(crate) fn run(
        self,
        pace: &Pace,
        flow: &Flow,
        deadline: Instant,
    ) -> Vec<(DataDirection, DeliveryLog)> {
        let Self { talk, lines, incoming } = self;
        sys::minimal_timer_slack();
        let start = Instant::ZERO + flow.start;
        let mut all = Vec::new();
        for line in &lines {
            lock(&talk).on_open(pace.now(), line.number);
            let meter = Receiver::new(start);
            all.push((line, Progress { meter, ended: false, closed: false, full: false }));
        }
        let mut buffer = vec![0; kernel::BLOCK];
        while !pace.is_over(deadline) && all.iter().any(|(_, p)| !p.ended || !p.closed) {
            if let Some(end) = pace.end() {
                lock(&talk).end_at(end);
            }
            for (line, progress) in &mut all {
                read((pace, deadline), &talk, line, progress, &mut buffer);
            }
            // Only now: what was read on one stream may have something to say on another.
            for (line, progress) in &mut all {
                write(pace, &talk, line, progress);
            }
            if wait(pace, &talk, &all, deadline).is_err() {
                break;
            }
        }
        let end = pace.now().min(deadline);
        all.into_iter().map(|(_, progress)| (incoming, progress.meter.finish(end))).collect()
    }
}

/// Reads what there is; whoever sends without end is not listened to for longer than the flow lasts.
fn read(
    (pace, deadline): (&Pace, Instant),
    talk: &SharedTalk,
    line: &Line,
    progress: &mut Progress,
    buffer: &mut [u8],
) {
    while !progress.ended && !pace.is_over(deadline) {
        match line.wire.read(buffer) {
            Ok(length) if length > 0 => {
                let now = pace.now();
                progress.meter.on_bytes(now, length as u64);
                line.received.fetch_add(length as u64, Ordering::Relaxed);
                lock(talk).on_bytes(now, line.number, buffer.get(..length).unwrap_or_default());
            }
            Err(error) if is_waiting(&error) => return,
            Ok(_) | Err(_) => {
                progress.meter.on_end(pace.now());
                progress.ended = true;
                lock(talk).on_end(line.number);
            }
        }
    }
}

fn write(pace: &Pace, talk: &SharedTalk, line: &Line, progress: &mut Progress) {
    // Of what was taken, some may still wait to be encrypted and sent.
    progress.full = !line.wire.is_flushed().unwrap_or(true);
    while !progress.closed {
        let output = lock(talk).poll_output(pace.now(), line.number);
        match output {
            Output::Write(data) => match line.wire.send(&data) {
                Ok(taken) => lock(talk).on_written(pace.now(), line.number, taken),
                Err(error) if is_waiting(&error) => {
                    progress.full = true;
                    return;
                }
                Err(_) => close(pace, line, progress),
            },
            Output::Close => close(pace, line, progress),
            Output::Nothing => return,
        }
    }
}

fn close(pace: &Pace, line: &Line, progress: &mut Progress) {
    progress.closed = true;
    line.wire.close(pace.clock());
}

/// Waits until a stream has data or room, or something is due.
fn wait(
    pace: &Pace,
    talk: &SharedTalk,
    all: &[(&Line, Progress)],
    deadline: Instant,
) -> io::Result<()> {
    let mut fds = Vec::new();
    let mut next = deadline;
    for (line, progress) in all {
        let mut events = if progress.ended { 0 } else { libc::POLLIN };
        if progress.full {
            events |= libc::POLLOUT;
        } else if let (Some(due), false) = (lock(talk).next_due(line.number), progress.closed) {
            next = next.min(due);
        }
        if events != 0 {
            fds.push(libc::pollfd {
                fd: line.wire.socket().as_fd().as_raw_fd(),
                events,
                revents: 0,
            });
        }
    }
    sys::poll(&mut fds, Some(next.saturating_since(pace.now()).min(NAP)))?;
    Ok(())
}

fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
