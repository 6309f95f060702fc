//! Acceptor: accepts TCP connections and reads their preambles in one thread.
//!
//! A pending connection costs a descriptor and 32 bytes. When too many are pending, the address
//! with the most of them loses its oldest one. An honest client sends its preamble at once.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::{Preamble, ServerLimits};
use towpath_net::Instant;

use super::socket;
use crate::clock::Clock;
use crate::sys;

/// Longest time between two checks of the clock and of the stop flag.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Connection whose preamble is incomplete.
#[derive(Debug)]
struct PendingConnection {
    socket: Socket,
    from: Option<IpAddr>,
    since: Instant,
    received: [u8; Preamble::BYTES],
    length: usize,
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
    waiting: Vec<PendingConnection>,
    clock: Clock,
    /// Set when descriptors or memory ran out; accepting pauses briefly then.
    exhausted: bool,
}

impl Acceptor {
    pub(super) fn new(listeners: Vec<Socket>, clock: Clock) -> Self {
        Self { listeners, waiting: Vec::new(), clock, exhausted: false }
    }

    /// Waits for connections and passes those with a complete preamble to `let_in`. Returns after
    /// `POLL_INTERVAL` at the latest.
    pub(super) fn poll(
        &mut self,
        limits: &ServerLimits,
        let_in: &mut dyn FnMut(Socket, Preamble),
    ) -> io::Result<()> {
        let input = |socket: &Socket| libc::pollfd {
            fd: socket.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut fds: Vec<_> = self.listeners.iter().map(input).collect();
        fds.extend(self.waiting.iter().map(|waiting| input(&waiting.socket)));
        if std::mem::take(&mut self.exhausted) {
            thread::sleep(POLL_INTERVAL);
        }
        sys::poll(&mut fds, Some(POLL_INTERVAL))?;
        let now = self.clock.now();
        read_preambles(&mut self.waiting, now, limits, let_in);
        self.accept(limits, now, let_in);
        Ok(())
    }

    fn accept(
        &mut self,
        limits: &ServerLimits,
        now: Instant,
        let_in: &mut dyn FnMut(Socket, Preamble),
    ) {
        let Self { listeners, waiting, exhausted, .. } = self;
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
                let from = socket::peer(&socket).map(|peer| peer.ip());
                if waiting.len() >= limits.max_pending.max(1) {
                    // Connections whose preamble has arrived are dispatched before any is evicted.
                    read_preambles(waiting, now, limits, let_in);
                }
                while waiting.len() >= limits.max_pending.max(1) {
                    evict_oldest(waiting);
                }
                let said = [0; Preamble::BYTES];
                waiting.push(PendingConnection {
                    socket,
                    from,
                    since: now,
                    received: said,
                    length: 0,
                });
            }
        }
    }
}

impl PendingConnection {
    fn step(&mut self) -> PendingState {
        let Some(room) = self.received.get_mut(self.length..) else { return PendingState::Closed };
        let mut plain = &self.socket;
        match io::Read::read(&mut plain, room) {
            Ok(read) if read > 0 => {
                self.length = self.length.saturating_add(read);
                match Preamble::read(self.received.get(..self.length).unwrap_or_default()) {
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
    waiting: &mut Vec<PendingConnection>,
    now: Instant,
    limits: &ServerLimits,
    let_in: &mut dyn FnMut(Socket, Preamble),
) {
    for mut one in std::mem::take(waiting) {
        match one.step() {
            PendingState::Waiting if now.saturating_since(one.since) < limits.preamble_timeout => {
                waiting.push(one);
            }
            PendingState::Waiting | PendingState::Closed => {}
            PendingState::Complete(preamble) => let_in(one.socket, preamble),
        }
    }
}

/// Evicts the oldest connection of the address with the most of them; `waiting` is in order of age.
fn evict_oldest(waiting: &mut Vec<PendingConnection>) {
    let mut counts: BTreeMap<Option<IpAddr>, usize> = BTreeMap::new();
    for one in waiting.iter() {
        *counts.entry(one.from).or_default() += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(from, _)| from);
    let oldest = waiting.iter().position(|one| Some(one.from) == most);
    if let Some(oldest) = oldest {
        waiting.remove(oldest);
    }
}
