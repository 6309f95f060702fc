//! Kernel TCP and Multipath TCP sockets of clients and servers.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use towpath_kernel::sample;
use towpath_net::SourcePrefix;
use towpath_os::sys;
use towpath_scenario::Transport;
use towpath_sockets::quic::wait_interruptibly;

use crate::protocol::TransferSettings;

/// Length of the listen queue.
const BACKLOG: i32 = 512;

/// Local address and interface of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalBind {
    /// Address to bind; `None` leaves the choice to the system.
    pub address: Option<IpAddr>,
    /// Interface to bind, regardless of routes; `None` leaves the choice to routing.
    pub interface: Option<String>,
}

/// Returns the protocol of a kernel transport; `None` for QUIC.
pub(super) fn protocol(transport: Transport) -> Option<Protocol> {
    match transport {
        Transport::Tcp => Some(Protocol::TCP),
        Transport::Mptcp => Some(Protocol::MPTCP),
        Transport::Quic | Transport::Mpquic => None,
    }
}

/// Opens a listening socket for TCP and, if the kernel supports it, Multipath TCP. Without an
/// address it accepts IPv4 and IPv6.
pub(super) fn listen(address: Option<IpAddr>, port: u16) -> io::Result<Socket> {
    let address_and_port = SocketAddr::new(address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let listener = bind_listener(address_and_port, address.is_none());
    match listener {
        // The host has no IPv6.
        Err(error) if address.is_none() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            bind_listener(SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), port), false)
        }
        listener => listener,
    }
}

fn bind_listener(address: SocketAddr, dual_stack: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    // A Multipath TCP listener accepts both protocols, and each connection reports which one it
    // uses.
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))
        .or_else(|_| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)))?;
    socket.set_reuse_address(true)?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(!dual_stack)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects a configured socket; fails after `timeout` or on an interrupt.
pub(super) fn connect(
    transport: Transport,
    source: &LocalBind,
    target: SocketAddr,
    settings: &TransferSettings,
    timeout: Duration,
) -> io::Result<Socket> {
    let protocol = protocol(transport).ok_or(io::ErrorKind::Unsupported)?;
    let socket = Socket::new(Domain::for_address(target), Type::STREAM, Some(protocol))?;
    if let Some(interface) = &source.interface {
        socket.bind_device(Some(interface.as_bytes()))?;
    }
    if let Some(address) = source.address {
        socket.bind(&SockAddr::from(SocketAddr::new(address, 0)))?;
    }
    configure(&socket, settings);
    connect_in_time(&socket, target, timeout)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Connects within `timeout`; stops on an interrupt.
fn connect_in_time(socket: &Socket, target: SocketAddr, timeout: Duration) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(target)) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            wait_interruptibly(timeout, |step| {
                let mut fds = [sys::input_pollfd(socket)];
                let [fd] = &mut fds;
                fd.events = libc::POLLOUT;
                let ready = sys::poll(&mut fds, Some(step))?;
                if ready == 0 { Err(io::ErrorKind::TimedOut.into()) } else { Ok(()) }
            })?;
            socket.take_error()?.map_or(Ok(()), Err)?;
        }
        connected => connected?,
    }
    socket.set_nonblocking(false)
}

/// Applies the requested settings. Failures are ignored, as the effective values are read back
/// later.
pub(super) fn configure(socket: &Socket, settings: &TransferSettings) {
    if let Some(name) = &settings.congestion_control {
        let _ = sample::set_congestion_control(socket.as_fd(), name);
    }
    if let Some(bytes) = settings.window_bytes {
        let _ = socket.set_send_buffer_size(bytes as usize); // capped by the system
        let _ = socket.set_recv_buffer_size(bytes as usize);
    }
}

/// Returns true if this host's kernel supports Multipath TCP.
pub(super) fn kernel_has_mptcp() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_ok()
}

/// Enables TCP keep-alive, which detects a silently vanished peer within half a minute.
pub(super) fn enable_keepalive(socket: &Socket) {
    const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
    const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(3);
    // Older kernels do not support keep-alive times for Multipath TCP and probe after two hours.
    let _ = socket.set_tcp_keepalive(&keepalive).or_else(|_| socket.set_keepalive(true));
}

/// Returns the peer's address; IPv4-mapped addresses become IPv4.
pub(super) fn peer(socket: &Socket) -> Option<SocketAddr> {
    let address = socket.peer_addr().ok()?.as_socket()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

/// Returns the source of a connection; the default if its peer is unknown.
pub(super) fn source(socket: &Socket) -> SourcePrefix {
    source_of(peer(socket))
}

/// Returns the source of a peer; the default if it is unknown.
pub(super) fn source_of(peer: Option<SocketAddr>) -> SourcePrefix {
    peer.map(|peer| SourcePrefix::of(peer.ip())).unwrap_or_default()
}
