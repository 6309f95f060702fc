//! Flows that exchange messages over the kernel's sockets.
//!
//! One thread for each end waits for the first event on any of its streams: data, buffer space, or
//! the time of the next request.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use towpath_net::Instant;
use towpath_os::sys;
use towpath_result::metrics::DeliveryLog;
use towpath_run::traffic::{MessageSession, StreamAction, TransferReceiver};
use towpath_scenario::{DataDirection, Flow};

use super::kernel;
use super::socket_stream::SocketStream;
use crate::run_clock::RunClock;
use crate::traffic_budget::TrafficDirection;

/// Maximum sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Maximum reads or writes of a stream per turn, so that a busy peer cannot block other streams
/// and the clock check.
const MAX_IO_PER_TURN: usize = 16;

/// Message session, shared by the streams of one end.
pub type SharedSession = Arc<Mutex<MessageSession>>;

/// Locks a session, also after a panic of another thread.
pub fn lock(session: &SharedSession) -> MutexGuard<'_, MessageSession> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One end of a flow over sockets of the kernel.
#[derive(Debug)]
pub struct KernelMessageEnd {
    /// Message session of this end.
    pub session: SharedSession,
    /// Open streams of this end.
    pub streams: Vec<KernelStream>,
    /// Data direction that this end receives.
    pub incoming: DataDirection,
}

/// One stream of an end.
#[derive(Debug)]
pub struct KernelStream {
    /// Number of the stream within the flow.
    pub number: u32,
    /// Socket of the stream.
    pub socket: SocketStream,
    /// Number of received bytes, for the sampler.
    pub received: Arc<AtomicU64>,
}

/// Progress of one stream.
#[derive(Debug)]
struct StreamProgress {
    meter: TransferReceiver,
    /// Set when the peer has sent everything, or is gone.
    ended: bool,
    closed: bool,
    /// Set while the socket accepts no more data.
    full: bool,
    /// Times until which the traffic budget blocks reading and writing.
    read_blocked_until: Option<Instant>,
    write_blocked_until: Option<Instant>,
}

impl KernelMessageEnd {
    /// Returns true for the end that opened the connections.
    pub fn is_client(&self) -> bool {
        self.incoming == DataDirection::Down
    }

    /// Exchanges messages on all streams until they end or the flow's time is over. Returns the
    /// log of each stream.
    pub fn run(
        self,
        run_clock: &RunClock,
        flow: &Flow,
        deadline: Instant,
    ) -> Vec<(DataDirection, DeliveryLog)> {
        let Self { session, streams, incoming } = self;
        sys::set_minimal_timer_slack();
        let start = Instant::ZERO + flow.start;
        let mut active = Vec::new();
        for stream in &streams {
            lock(&session).on_open(run_clock.now(), stream.number);
            let meter = TransferReceiver::new(start);
            let (ended, closed, full) = (false, false, false);
            let (read_blocked_until, write_blocked_until) = (None, None);
            let progress = StreamProgress {
                meter,
                ended,
                closed,
                full,
                read_blocked_until,
                write_blocked_until,
            };
            active.push((stream, progress));
        }
        let mut buffer = vec![0; kernel::BLOCK_BYTES];
        while !run_clock.is_over(deadline) && active.iter().any(|(_, p)| !p.ended || !p.closed) {
            if let Some(end) = run_clock.end() {
                lock(&session).end_at(end);
            }
            for (stream, progress) in &mut active {
                read(run_clock, &session, stream, progress, &mut buffer);
            }
            // After all reads: data from one stream may trigger output on another.
            for (stream, progress) in &mut active {
                write(run_clock, &session, stream, progress);
            }
            if wait(run_clock, &session, &active, deadline).is_err() {
                break;
            }
        }
        let end = run_clock.now().min(deadline);
        active.into_iter().map(|(_, progress)| (incoming, progress.meter.finish(end))).collect()
    }
}

fn read(
    run_clock: &RunClock,
    session: &SharedSession,
    stream: &KernelStream,
    progress: &mut StreamProgress,
    buffer: &mut [u8],
) {
    progress.read_blocked_until = None;
    for _ in 0..MAX_IO_PER_TURN {
        if progress.ended {
            return;
        }
        let granted = match run_clock.reserve(TrafficDirection::Inbound, buffer.len()) {
            Ok(granted) => granted,
            Err(due) => {
                progress.read_blocked_until = Some(due);
                return;
            }
        };
        let read = stream.socket.read(buffer.get_mut(..granted).unwrap_or_default());
        run_clock.settle(TrafficDirection::Inbound, granted, *read.as_ref().unwrap_or(&0));
        match read {
            Ok(length) if length > 0 => {
                let now = run_clock.now();
                if progress.meter.on_bytes(now, length as u64) {
                    run_clock.add_memory(kernel::SLOT_BYTES);
                }
                stream.received.fetch_add(length as u64, Ordering::Relaxed);
                lock(session).on_bytes(
                    now,
                    stream.number,
                    buffer.get(..length).unwrap_or_default(),
                );
            }
            Err(error) if is_waiting(&error) => return,
            Ok(_) | Err(_) => {
                progress.meter.on_end(run_clock.now());
                progress.ended = true;
                lock(session).on_end(stream.number);
            }
        }
    }
    // More data may already be decrypted, and the socket does not signal that.
    progress.read_blocked_until = Some(Instant::ZERO);
}

fn write(
    run_clock: &RunClock,
    session: &SharedSession,
    stream: &KernelStream,
    progress: &mut StreamProgress,
) {
    // Accepted data may still wait to be encrypted and sent.
    progress.full = !stream.socket.is_flushed().unwrap_or(true);
    progress.write_blocked_until = None;
    for _ in 0..MAX_IO_PER_TURN {
        if progress.closed {
            return;
        }
        let output = lock(session).poll_output(run_clock.now(), stream.number);
        match output {
            StreamAction::Write(data) => {
                let granted = match run_clock.reserve(TrafficDirection::Outbound, data.len()) {
                    Ok(granted) => granted,
                    Err(due) => {
                        progress.write_blocked_until = Some(due);
                        return;
                    }
                };
                let sent = stream.socket.send(data.get(..granted).unwrap_or(&data));
                run_clock.settle(TrafficDirection::Outbound, granted, *sent.as_ref().unwrap_or(&0));
                match sent {
                    Ok(accepted) => {
                        lock(session).on_written(run_clock.now(), stream.number, accepted);
                    }
                    Err(error) if is_waiting(&error) => {
                        progress.full = true;
                        return;
                    }
                    Err(_) => close(run_clock, stream, progress),
                }
            }
            StreamAction::Close => close(run_clock, stream, progress),
            StreamAction::Nothing => return,
        }
    }
}

fn close(run_clock: &RunClock, stream: &KernelStream, progress: &mut StreamProgress) {
    progress.closed = true;
    stream.socket.close(run_clock.clock());
}

/// Waits until a stream has data or buffer space, or a deadline is reached.
fn wait(
    run_clock: &RunClock,
    session: &SharedSession,
    active: &[(&KernelStream, StreamProgress)],
    deadline: Instant,
) -> io::Result<()> {
    let mut fds = Vec::new();
    let mut next = deadline;
    for (stream, progress) in active {
        let wants_input = !progress.ended && progress.read_blocked_until.is_none();
        let mut events = if wants_input { libc::POLLIN } else { 0 };
        next = progress
            .read_blocked_until
            .into_iter()
            .chain(progress.write_blocked_until)
            .fold(next, Instant::min);
        if progress.full {
            events |= libc::POLLOUT;
        } else if progress.write_blocked_until.is_some() {
            // The traffic budget blocks this stream, not the session.
        } else if let (Some(due), false) = (lock(session).next_due(stream.number), progress.closed)
        {
            next = next.min(due);
        }
        if events != 0 {
            fds.push(libc::pollfd {
                fd: stream.socket.socket().as_fd().as_raw_fd(),
                events,
                revents: 0,
            });
        }
    }
    sys::poll(&mut fds, Some(next.saturating_since(run_clock.now()).min(POLL_INTERVAL)))?;
    Ok(())
}

fn is_waiting(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}
