//! One attempt to connect.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_os::clock::Clock;
use towpath_os::sys::error_queue;

use super::observation::{ConnectAttempt, ConnectOutcome, IcmpRefusal};

/// Timeout that allows two SYN packets, at 0 and at 1 s. After a third one, Linux turns Multipath
/// TCP off for the whole host if only plain TCP is answered.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(1_450);

/// Options of one attempt to connect.
#[derive(Debug, Clone)]
pub(super) struct ConnectOptions {
    pub(super) multipath: bool,
    /// Local address to bind to; `None` lets the kernel choose.
    pub(super) source: Option<IpAddr>,
    /// Interface to bind to (`SO_BINDTODEVICE`).
    pub(super) device: Option<String>,
    pub(super) timeout: Duration,
}

impl ConnectOptions {
    pub(super) fn tcp() -> Self {
        Self { multipath: false, source: None, device: None, timeout: CONNECT_TIMEOUT }
    }

    pub(super) fn mptcp() -> Self {
        Self { multipath: true, ..Self::tcp() }
    }
}

/// Connects; returns the socket if that succeeded.
pub(super) fn connect(
    target: SocketAddr,
    options: &ConnectOptions,
    clock: Clock,
) -> (ConnectAttempt, Option<Socket>) {
    let started = clock.now();
    let mut refusal = None;
    let result = open_and_connect(target, options, &mut refusal);
    let took_ms = clock.now().saturating_since(started).as_millis() as u64;
    let outcome = match &result {
        Ok(_) => ConnectOutcome::Connected,
        Err(error) => connect_outcome(error),
    };
    (
        ConnectAttempt { multipath: options.multipath, outcome, took_ms, refused: refusal },
        result.ok(),
    )
}

/// Opens a socket and connects it. Sets `refusal` if a router rejected the SYN.
fn open_and_connect(
    target: SocketAddr,
    options: &ConnectOptions,
    refusal: &mut Option<IcmpRefusal>,
) -> io::Result<Socket> {
    let protocol = if options.multipath { Protocol::MPTCP } else { Protocol::TCP };
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(protocol))?;
    if let Some(device) = &options.device {
        socket.bind_device(Some(device.as_bytes()))?;
    }
    if let Some(source) = options.source {
        socket.bind(&SockAddr::from(SocketAddr::new(source, 0)))?;
    }
    let _ = error_queue::enable(socket.as_fd(), target.is_ipv4()); // not supported on MPTCP sockets
    let result = socket.connect_timeout(&SockAddr::from(target), options.timeout);
    if result.is_err() {
        *refusal = error_queue::first(socket.as_fd()).map(|error| IcmpRefusal {
            router: error.router.to_canonical(),
            kind: error.kind,
            code: error.code,
        });
    }
    result.map(|()| socket)
}

fn connect_outcome(error: &io::Error) -> ConnectOutcome {
    match (error.kind(), error.raw_os_error()) {
        (io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset, _) => {
            ConnectOutcome::Refused
        }
        (io::ErrorKind::TimedOut, _) => ConnectOutcome::Silent,
        (_, errno) => ConnectOutcome::Failed(errno.unwrap_or(-1)),
    }
}

/// Waits until the socket is readable, or writable if `write` is set.
pub(super) fn wait_until_ready(socket: &Socket, write: bool, timeout: Duration) -> io::Result<()> {
    let mut fds = [towpath_os::sys::input_pollfd(&socket.as_fd())];
    if let [fd] = &mut fds
        && write
    {
        fd.events |= libc::POLLOUT;
    }
    towpath_os::sys::poll(&mut fds, Some(timeout)).map(drop)
}
