//! Datagrams over single paths (`udping`): each path has a socket that is bound to its interface.
//!
//! Common to emulated networks and real hosts, which open their sockets differently.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_net::Instant;
use towpath_os::sys;
use towpath_result::Probe;
use towpath_run::datagram;
use towpath_run::datagram::EchoDatagram;
use towpath_run::token::TestToken;
use towpath_run::traffic::Pinger;

use crate::run_clock::RunClock;

/// Longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Path to the other end.
pub trait PingPath: Send {
    /// Opens a socket that sends and receives over this path only, with its current address.
    fn open(&self) -> io::Result<UdpSocket>;
    /// Returns the current address of the other end.
    fn target(&self) -> io::Result<SocketAddr>;
    /// Called when a reply has arrived.
    fn on_answer(&self, _at: Instant) {}
}

/// A path, from the requesting end.
#[derive(Debug)]
pub struct PathPinger<P> {
    name: String,
    path: P,
    pinger: Pinger,
    socket: Option<UdpSocket>,
    token: TestToken,
}

impl<P: PingPath> PathPinger<P> {
    /// Creates a ping of the path `name`; `token` marks its datagrams.
    pub fn new(name: String, path: P, pinger: Pinger, token: TestToken) -> Self {
        Self { name, path, pinger, socket: None, token }
    }

    /// Sends due requests. Without interface or address, nothing is sent.
    fn send_due(&mut self, run_clock: &RunClock) {
        while let Some(number) = self.pinger.poll(run_clock.now()) {
            // The time is read before sending: a delay in between would otherwise shorten the
            // round-trip time.
            let sent_at = run_clock.now();
            let sent_ns = sent_at.as_nanos();
            let request = EchoDatagram { token: self.token, number, sent_ns }.to_bytes();
            let had_socket = self.socket.is_some();
            // The address may have changed since the socket was opened.
            if self
                .send(&request)
                .or_else(|error| self.retry_send(&request, had_socket, error))
                .is_ok()
            {
                self.pinger.on_sent(sent_at, number);
            }
        }
    }

    fn retry_send(&mut self, request: &[u8], had_socket: bool, error: io::Error) -> io::Result<()> {
        self.socket = None;
        if had_socket { self.send(request) } else { Err(error) }
    }

    fn send(&mut self, request: &[u8]) -> io::Result<()> {
        let target = self.path.target()?;
        let socket = match self.socket.take() {
            Some(socket) => socket,
            None => self.path.open()?,
        };
        let sent = socket.send_to(request, target);
        self.socket = Some(socket);
        sent.map(|_| ())
    }

    /// Receives all replies that have arrived.
    fn receive_replies(&mut self, run_clock: &RunClock) {
        let Some(socket) = &self.socket else { return };
        // One byte more detects datagrams that are too long.
        let mut buffer = [0; EchoDatagram::BYTES + 1];
        loop {
            match socket.recv_from(&mut buffer) {
                Ok((length, _)) => {
                    let reply = EchoDatagram::parse_reply(buffer.get(..length).unwrap_or_default());
                    if let Some(reply) = reply.filter(|reply| reply.token == self.token) {
                        let now = run_clock.now();
                        self.pinger.on_reply(now, reply.number);
                        self.path.on_answer(now);
                    }
                }
                // The system reports the ICMP error of an earlier request here.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(_) => return,
            }
        }
    }
}

/// Sends requests over all paths and waits for their replies or timeouts; returns the results.
///
/// Sends nothing more once `is_enough` returns true.
pub fn run<P: PingPath>(
    run_clock: &RunClock,
    flow: u32,
    mut pingers: Vec<PathPinger<P>>,
    deadline: Instant,
    is_enough: &dyn Fn() -> bool,
) -> Vec<Probe> {
    sys::set_minimal_timer_slack();
    while !run_clock.is_over(deadline) {
        if is_enough() {
            for p in &mut pingers {
                p.pinger.stop();
            }
        }
        for p in &mut pingers {
            p.send_due(run_clock);
        }
        let now = run_clock.now();
        if pingers.iter().all(|p| p.pinger.is_over(now)) {
            break;
        }
        let due = pingers.iter().filter_map(|p| p.pinger.next_due()).min().unwrap_or(deadline);
        let sockets = pingers.iter().filter_map(|p| p.socket.as_ref());
        let mut fds: Vec<_> = sockets.map(|socket| sys::input_pollfd(&socket.as_fd())).collect();
        if sys::poll(&mut fds, Some(due.saturating_since(now).min(POLL_INTERVAL))).is_err() {
            break;
        }
        for p in &mut pingers {
            p.receive_replies(run_clock);
        }
    }
    let now = run_clock.now();
    pingers.iter().flat_map(|p| p.pinger.finish(now, flow, &p.name)).collect()
}

/// Echoes every datagram that arrives on `sockets` until `done`.
pub fn echo_loop(sockets: &[UdpSocket], done: &AtomicBool) {
    let mut buffer = [0; EchoDatagram::BYTES + 1];
    while !done.load(Ordering::Acquire) {
        let mut fds: Vec<_> =
            sockets.iter().map(|socket| sys::input_pollfd(&socket.as_fd())).collect();
        if sys::poll(&mut fds, Some(POLL_INTERVAL)).is_err() {
            return;
        }
        for socket in sockets {
            while let Ok((length, sender)) = socket.recv_from(&mut buffer) {
                let request = buffer.get(..length).unwrap_or_default();
                if let Some(reply) = datagram::reply(request, |_| true) {
                    let _ = socket.send_to(&reply, sender); // a failed send counts as loss
                }
            }
        }
    }
}

/// Opens a socket bound to one interface, in the calling thread's namespace.
pub fn bind(interface: &str, address: SocketAddr) -> io::Result<UdpSocket> {
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(true)?;
    }
    socket.bind_device(Some(interface.as_bytes()))?;
    socket.bind(&SockAddr::from(address))?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}
