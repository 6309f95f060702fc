//! Acceptor: accepts TCP connections and reads their preambles in one thread.
//!
//! A pending connection costs a descriptor and 32 bytes. When too many are pending, the source
//! with the most of them loses its oldest one. An honest client sends its preamble at once.

use std::io;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_net::{Instant, SourcePrefix};
use towpath_os::clock::Clock;
use towpath_os::sys;

use super::eviction::EvictionPolicy;
use super::socket;
use crate::protocol::{Preamble, ServerLimits};

/// Longest time between two checks of the clock and of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Connection whose preamble is incomplete.
#[derive(Debug)]
struct PendingConnection {
    socket: Socket,
    source: SourcePrefix,
    accepted_at: Instant,
    received: [u8; Preamble::BYTES],
    received_len: usize,
}

/// State of a pending connection after a read.
enum PendingState {
    Waiting,
    Closed,
    Complete(Preamble),
}

/// Listening TCP sockets of a server and their pending connections.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Socket>,
    pending: Vec<PendingConnection>,
    eviction: EvictionPolicy,
    clock: Clock,
    /// Set when descriptors or memory ran out; accepting pauses briefly then.
    exhausted: bool,
}

impl Acceptor {
    pub(super) fn new(listeners: Vec<Socket>, clock: Clock) -> Self {
        let eviction = EvictionPolicy::unpredictable();
        Self { listeners, pending: Vec::new(), eviction, clock, exhausted: false }
    }

    /// Waits for connections and passes those with a complete preamble to `on_preamble`. Returns
    /// after `POLL_INTERVAL` at the latest.
    pub(super) fn poll(
        &mut self,
        limits: &ServerLimits,
        on_preamble: &mut dyn FnMut(Socket, Preamble),
    ) -> io::Result<()> {
        let poll_input = |socket: &Socket| libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds: Vec<_> = self.listeners.iter().map(poll_input).collect();
        fds.extend(self.pending.iter().map(|connection| poll_input(&connection.socket)));
        if std::mem::take(&mut self.exhausted) {
            thread::sleep(POLL_INTERVAL);
        }
        sys::poll(&mut fds, Some(POLL_INTERVAL))?;
        let now = self.clock.now();
        read_preambles(&mut self.pending, now, limits, on_preamble);
        self.accept(limits, now, on_preamble);
        Ok(())
    }

    fn accept(
        &mut self,
        limits: &ServerLimits,
        now: Instant,
        on_preamble: &mut dyn FnMut(Socket, Preamble),
    ) {
        let Self { listeners, pending, eviction, exhausted, .. } = self;
        for listener in listeners {
            // Bounded, so that pending connections are not starved.
            for _ in 0..limits.max_pending.max(1) {
                let socket = match listener.accept() {
                    Ok((socket, _)) => socket,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => {
                        let codes = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM];
                        let code = error.raw_os_error();
                        *exhausted |= code.is_some_and(|code| codes.contains(&code));
                        break;
                    }
                };
                if socket.set_nonblocking(true).is_err() {
                    continue;
                }
                let source = socket::source(&socket);
                if pending.len() >= limits.max_pending.max(1) {
                    // Connections whose preamble has arrived are dispatched before any is evicted.
                    read_preambles(pending, now, limits, on_preamble);
                }
                while pending.len() >= limits.max_pending.max(1) {
                    evict_oldest(pending, eviction);
                }
                let received = [0; Preamble::BYTES];
                pending.push(PendingConnection {
                    socket,
                    source,
                    accepted_at: now,
                    received,
                    received_len: 0,
                });
            }
        }
    }
}

impl PendingConnection {
    fn read_preamble(&mut self) -> PendingState {
        let Some(buffer) = self.received.get_mut(self.received_len..) else {
            return PendingState::Closed;
        };
        let mut reader = &self.socket;
        match io::Read::read(&mut reader, buffer) {
            Ok(read_len) if read_len > 0 => {
                self.received_len = self.received_len.saturating_add(read_len);
                match Preamble::read(self.received.get(..self.received_len).unwrap_or_default()) {
                    Ok(Some(preamble)) => PendingState::Complete(preamble),
                    Ok(None) => PendingState::Waiting,
                    Err(_) => PendingState::Closed,
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                PendingState::Waiting
            }
            Ok(_) | Err(_) => PendingState::Closed,
        }
    }
}

/// Reads preambles, dispatches complete ones and drops connections after a timeout or an error.
fn read_preambles(
    pending: &mut Vec<PendingConnection>,
    now: Instant,
    limits: &ServerLimits,
    on_preamble: &mut dyn FnMut(Socket, Preamble),
) {
    for mut connection in std::mem::take(pending) {
        match connection.read_preamble() {
            PendingState::Waiting
                if now.saturating_since(connection.accepted_at) < limits.preamble_timeout =>
            {
                pending.push(connection);
            }
            PendingState::Waiting | PendingState::Closed => {}
            PendingState::Complete(preamble) => on_preamble(connection.socket, preamble),
        }
    }
}

/// Evicts the oldest connection of the busiest source; `pending` is in order of age.
fn evict_oldest(pending: &mut Vec<PendingConnection>, eviction: &mut EvictionPolicy) {
    let sources = pending.iter().map(|connection| connection.source);
    let oldest = eviction.choose(sources.enumerate());
    if let Some(oldest) = oldest {
        pending.remove(oldest);
    }
}
