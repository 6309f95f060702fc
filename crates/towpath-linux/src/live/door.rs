//! Who gets in: accepts connections and reads what they are for, all in one thread.
//!
//! A connection that has not said it yet costs a descriptor and 32 bytes. When there are too many,
//! the oldest one of whoever has most of them goes: who is honest says it at once.

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

/// How often the door looks whether it shall be closed, and at its clock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A connection that has not said what it is for.
#[derive(Debug)]
struct PendingConnection {
    socket: Socket,
    from: Option<IpAddr>,
    since: Instant,
    said: [u8; Preamble::BYTES],
    length: usize,
}

/// What became of a waiting connection.
enum PendingState {
    Waits,
    Gone,
    In(Preamble),
}

/// All listening sockets of a server and who waits at them.
#[derive(Debug)]
pub(super) struct Acceptor {
    listeners: Vec<Socket>,
    waiting: Vec<PendingConnection>,
    clock: Clock,
    /// Descriptors have run out; the next try is a little later.
    exhausted: bool,
}

impl Acceptor {
    pub(super) fn new(listeners: Vec<Socket>, clock: Clock) -> Self {
        Self { listeners, waiting: Vec::new(), clock, exhausted: false }
    }

    /// Waits for connections and hands over those that have said what they are for; returns after a
    /// while at the latest.
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
            // Not for ever, or those who wait would.
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
                    // Who has said it by now is not among those that are in the way.
                    read_preambles(waiting, now, limits, let_in);
                }
                while waiting.len() >= limits.max_pending.max(1) {
                    evict_oldest(waiting);
                }
                let said = [0; Preamble::BYTES];
                waiting.push(PendingConnection { socket, from, since: now, said, length: 0 });
            }
        }
    }
}

impl PendingConnection {
    fn step(&mut self) -> PendingState {
        let Some(room) = self.said.get_mut(self.length..) else { return PendingState::Gone };
        let mut plain = &self.socket;
        match io::Read::read(&mut plain, room) {
            Ok(read) if read > 0 => {
                self.length = self.length.saturating_add(read);
                match Preamble::read(self.said.get(..self.length).unwrap_or_default()) {
                    Ok(Some(preamble)) => PendingState::In(preamble),
                    Ok(None) => PendingState::Waits,
                    Err(_) => PendingState::Gone,
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) =>
            {
                PendingState::Waits
            }
            Ok(_) | Err(_) => PendingState::Gone,
        }
    }
}

/// Hears who has said what they are for, and forgets those who took too long.
fn read_preambles(
    waiting: &mut Vec<PendingConnection>,
    now: Instant,
    limits: &ServerLimits,
    let_in: &mut dyn FnMut(Socket, Preamble),
) {
    for mut one in std::mem::take(waiting) {
        match one.step() {
            PendingState::Waits if now.saturating_since(one.since) < limits.preamble_timeout => {
                waiting.push(one)
            }
            PendingState::Waits | PendingState::Gone => {}
            PendingState::In(preamble) => let_in(one.socket, preamble),
        }
    }
}

/// Lets the oldest connection go of the address that has most of them; they are in order of age.
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
