//! Kernel sockets as the live world needs them.

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, Socket, TcpKeepalive, Type};
use towpath_measure::live::TransferSettings;
use towpath_measure::scenario::Transport;

use crate::quic::wait_interruptibly;
use crate::{sample, sys};

/// Connections that the kernel keeps for the server.
const BACKLOG: i32 = 512;

/// Where a connection starts.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LocalBind {
    /// Its address.
    pub address: Option<IpAddr>,
    /// Its interface, whatever the routes say.
    pub interface: Option<String>,
}

/// Whether a transport is one of the kernel's sockets; which protocol.
pub(super) fn protocol(transport: Transport) -> Option<Protocol> {
    match transport {
        Transport::Tcp => Some(Protocol::TCP),
        Transport::Mptcp => Some(Protocol::MPTCP),
        Transport::Quic | Transport::Mpquic => None,
    }
}

/// A listening socket for TCP and, where the kernel has it, Multipath TCP; without an address for
/// both families.
pub(super) fn listen(address: Option<IpAddr>, port: u16) -> io::Result<Socket> {
    let any = SocketAddr::new(address.unwrap_or(Ipv6Addr::UNSPECIFIED.into()), port);
    let bound = bind_listener(any, address.is_none());
    match bound {
        // A host without IPv6.
        Err(error) if address.is_none() && error.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            bind_listener(SocketAddr::new(std::net::Ipv4Addr::UNSPECIFIED.into(), port), false)
        }
        bound => bound,
    }
}

fn bind_listener(address: SocketAddr, both: bool) -> io::Result<Socket> {
    let domain = Domain::for_address(address);
    // A Multipath TCP listener accepts both, and says of each connection which it is.
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::MPTCP))
        .or_else(|_| Socket::new(domain, Type::STREAM, Some(Protocol::TCP)))?;
    socket.set_reuse_address(true)?;
    if domain == Domain::IPV6 {
        socket.set_only_v6(!both)?;
    }
    socket.bind(&SockAddr::from(address))?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects.
pub(super) fn connect(
    transport: Transport,
    source: &LocalBind,
    target: SocketAddr,
    settings: &TransferSettings,
    patience: Duration,
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
    connect_in_time(&socket, target, patience)?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket)
}

/// Waits for a connection as long as somebody wants it.
fn connect_in_time(socket: &Socket, target: SocketAddr, patience: Duration) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    match socket.connect(&SockAddr::from(target)) {
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            wait_interruptibly(patience, |step| {
                let mut fds = [sys::wait_for_input(socket)];
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

/// Sets what was asked for. What the kernel made of it is read back later; refusal is a warning.
pub(super) fn configure(socket: &Socket, settings: &TransferSettings) {
    if let Some(name) = &settings.congestion_control {
        let _ = sample::set_congestion_control(socket.as_fd(), name);
    }
    if let Some(bytes) = settings.window_bytes {
        let _ = socket.set_send_buffer_size(bytes as usize); // capped by the system
        let _ = socket.set_recv_buffer_size(bytes as usize);
    }
}

/// Whether a connection is one of Multipath TCP at this end: the kernel tells nothing of others, nor
/// of those that have fallen back.
pub(crate) fn is_multipath(socket: &Socket) -> bool {
    let mut info = [0; 128];
    sys::get_option(socket.as_fd(), sys::SOL_MPTCP, sys::MPTCP_INFO, &mut info).is_ok()
}

/// Whether this host's kernel speaks Multipath TCP.
pub(super) fn kernel_has_mptcp() -> bool {
    Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).is_ok()
}

/// Lets the kernel ask now and then whether the other end is still there: one that vanished without
/// a word is noticed within half a minute.
pub(super) fn enable_keepalive(socket: &Socket) {
    const KEEPALIVE_IDLE: Duration = Duration::from_secs(15);
    const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
    let often = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(3);
    // An older kernel knows no times for Multipath TCP, and asks after two hours.
    let _ = socket.set_tcp_keepalive(&often).or_else(|_| socket.set_keepalive(true));
}

/// The other end's address, IPv4 as IPv4.
pub(super) fn peer(socket: &Socket) -> Option<SocketAddr> {
    let address = socket.peer_addr().ok()?.as_socket()?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}
