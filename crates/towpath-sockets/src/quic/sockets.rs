//! UDP sockets with batched input and output.
//!
//! A listener has one socket for each family, on all addresses, and replies from the address of the
//! request. A connection has one for each interface, all with the same port. Packets from an
//! interface's address leave by that interface, regardless of the routing table.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use noq_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_net::Instant;
use towpath_os::sys;
use towpath_quic::{IncomingDatagrams, OutgoingDatagrams};

use super::addresses::AddressTracker;

/// Maximum bytes of one read: the longest IP packet, with many datagrams.
const MAX_READ_BYTES: usize = 65_536;
/// Requested size of socket buffers in bytes, within the system's limits.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;
/// Time after which a blocked socket drops datagrams, so that the others proceed.
const BLOCKED_DROP_AFTER: Duration = Duration::from_millis(100);
/// Attempts to find a port that is free on all interfaces.
const MAX_PORT_ATTEMPTS: usize = 16;

/// Binding of a socket, apart from its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BindTarget {
    AllAddresses,
    Interface(u32),
    /// Address of an interface, if binding to the interface is not permitted.
    Address(IpAddr),
    /// Address of a listener, independent of interfaces.
    ListenerAddress(IpAddr),
}

/// UDP socket with its binding.
#[derive(Debug)]
struct BoundSocket {
    port: u16,
    v4: bool,
    bind_target: BindTarget,
    socket: Socket,
    state: UdpSocketState,
    /// Time of the first send that failed because the send buffer was full.
    blocked_since: Option<Instant>,
}

impl BoundSocket {
    fn open(v4: bool, bind_target: BindTarget, port: u16) -> io::Result<Self> {
        let domain = if v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        let unspecified: IpAddr =
            if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if !v4 {
            socket.set_only_v6(true)?;
        }
        let address = match bind_target {
            BindTarget::AllAddresses => unspecified,
            BindTarget::Interface(index) => {
                // Like SO_BINDTODEVICE, requires no privilege since Linux 5.7.
                let option = (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
                sys::set_option(socket.as_fd(), option.0, option.1, &index.to_ne_bytes())?;
                unspecified
            }
            BindTarget::Address(address) | BindTarget::ListenerAddress(address) => address,
        };
        socket.bind(&SockAddr::from(SocketAddr::new(address, port)))?;
        let state = UdpSocketState::new((&socket).into())?;
        // Beyond the system's limit the call fails, and the buffer stays smaller.
        let _ = state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER_BYTES);
        let _ = state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER_BYTES);
        let port = socket.local_addr()?.as_socket().map_or(port, |address| address.port());
        Ok(Self { port, v4, bind_target, socket, state, blocked_since: None })
    }

    fn send(&self, outgoing: &OutgoingDatagrams, payload: &[u8]) -> io::Result<()> {
        let source = match self.bind_target {
            BindTarget::Address(_) | BindTarget::ListenerAddress(_) => None,
            BindTarget::AllAddresses | BindTarget::Interface(_) => Some(outgoing.local.ip()),
        };
        let segment_bytes = outgoing.segment_bytes.unwrap_or(payload.len()).max(1);
        let max_chunk_bytes = segment_bytes.saturating_mul(self.state.max_gso_segments().get());
        for contents in payload.chunks(max_chunk_bytes) {
            let transmit = Transmit {
                destination: outgoing.remote,
                ecn: EcnCodepoint::from_bits(outgoing.ecn),
                contents,
                segment_size: outgoing.segment_bytes,
                src_ip: source,
            };
            self.state.try_send((&self.socket).into(), &transmit)?;
        }
        Ok(())
    }
}

/// Copy of a listening socket, for sending datagrams outside QUIC from another thread.
#[derive(Debug)]
pub struct ListenerSocket {
    /// Local UDP port.
    pub port: u16,
    /// True for an IPv4 socket.
    pub v4: bool,
    bind_target: BindTarget,
    socket: Socket,
    state: UdpSocketState,
}

impl ListenerSocket {
    /// Sends a datagram without blocking.
    pub fn send(&self, local: IpAddr, destination: SocketAddr, contents: &[u8]) -> io::Result<()> {
        let source = match self.bind_target {
            BindTarget::Address(_) | BindTarget::ListenerAddress(_) => None,
            BindTarget::AllAddresses | BindTarget::Interface(_) => Some(local),
        };
        let src_ip = source.filter(|ip| !ip.is_unspecified());
        let (ecn, segment_size) = (None, None);
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip };
        self.state.try_send((&self.socket).into(), &transmit)
    }
}

/// Scope of a port: a listener's or a connection's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortScope {
    AllAddresses,
    ByInterface,
}

/// UDP sockets of a host.
pub(super) struct SocketSet {
    sockets: Vec<BoundSocket>,
    ports: BTreeMap<u16, PortScope>,
    /// Counter that increases with every change of `sockets`.
    pub(super) generation: u64,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for SocketSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").field("all", &self.sockets).finish_non_exhaustive()
    }
}

/// Outcome of sending datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendOutcome {
    /// The datagrams were sent or lost.
    Sent,
    /// The send buffer is full.
    Full,
}

impl SocketSet {
    pub(super) fn new() -> Self {
        let buffer = vec![0; MAX_READ_BYTES * BATCH_SIZE];
        Self { sockets: Vec::new(), ports: BTreeMap::new(), generation: 0, buffer }
    }

    /// Opens sockets on all addresses; port 0 chooses a free one. Returns the port.
    pub(super) fn open_on_all_addresses(&mut self, port: u16) -> io::Result<u16> {
        let mut last_error = io::ErrorKind::AddrInUse.into();
        for _ in 0..if port == 0 { MAX_PORT_ATTEMPTS } else { 1 } {
            let v4 = BoundSocket::open(true, BindTarget::AllAddresses, port)?;
            let bound_port = v4.port;
            match BoundSocket::open(false, BindTarget::AllAddresses, bound_port) {
                Ok(v6) => self.sockets.extend([v4, v6]),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    last_error = error;
                    continue;
                }
                // The system has no IPv6.
                Err(_) => self.sockets.push(v4),
            }
            self.ports.insert(bound_port, PortScope::AllAddresses);
            self.generation += 1;
            return Ok(bound_port);
        }
        Err(last_error)
    }

    /// Opens a listener's socket on one address; an unspecified address means all of its family.
    /// Returns the port.
    pub(super) fn open_at(&mut self, address: IpAddr, port: u16) -> io::Result<u16> {
        let is_any = address.is_unspecified();
        let bind_target =
            if is_any { BindTarget::AllAddresses } else { BindTarget::ListenerAddress(address) };
        let socket = BoundSocket::open(address.is_ipv4(), bind_target, port)?;
        let bound_port = socket.port;
        self.sockets.push(socket);
        self.ports.insert(bound_port, PortScope::AllAddresses);
        self.generation += 1;
        Ok(bound_port)
    }

    /// Opens a socket on every interface for a connection of one family; returns the port.
    pub(super) fn open_by_interface(
        &mut self,
        addresses: &AddressTracker,
        local: IpAddr,
    ) -> io::Result<u16> {
        let mut last_error = io::ErrorKind::AddrNotAvailable.into();
        for _ in 0..MAX_PORT_ATTEMPTS {
            let interface = addresses.interface_of(local).ok_or(io::ErrorKind::AddrNotAvailable)?;
            let first = open_on_interface(local.is_ipv4(), (interface, local), 0)?;
            let port = first.port;
            let mut opened = vec![first];
            match open_missing(&mut opened, addresses, (port, local.is_ipv4())) {
                Ok(()) => {
                    self.sockets.extend(opened);
                    self.ports.insert(port, PortScope::ByInterface);
                    self.generation += 1;
                    return Ok(port);
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// Opens sockets on new interfaces and closes those of removed ones.
    pub(super) fn update_interfaces(&mut self, addresses: &AddressTracker) {
        let previous_count = self.sockets.len();
        let interfaces = [true, false].map(|v4| addresses.interfaces(v4));
        let [v4_interfaces, v6_interfaces] = &interfaces;
        self.sockets.retain(|udp| {
            let interfaces = if udp.v4 { v4_interfaces } else { v6_interfaces };
            match udp.bind_target {
                BindTarget::AllAddresses | BindTarget::ListenerAddress(_) => true,
                // An interface without an address may get one again soon.
                BindTarget::Interface(index) => addresses.has_interface(index),
                BindTarget::Address(address) => {
                    interfaces.iter().any(|(_, local)| *local == address)
                }
            }
        });
        let mut changed = previous_count != self.sockets.len();
        let by_interface = self.ports.iter().filter(|(_, scope)| **scope == PortScope::ByInterface);
        let ports: Vec<u16> = by_interface.map(|(port, _)| *port).collect();
        for port in ports {
            let Some(v4) = self.sockets.iter().find(|udp| udp.port == port).map(|udp| udp.v4)
            else {
                continue;
            };
            let previous_count = self.sockets.len();
            // Interfaces on which another program uses the port are skipped.
            let _ = open_missing(&mut self.sockets, addresses, (port, v4));
            changed |= previous_count != self.sockets.len();
        }
        if changed {
            self.generation += 1;
        }
    }

    /// Returns copies of the sockets.
    pub(super) fn listener_sockets(&self) -> Vec<ListenerSocket> {
        let copies = self.sockets.iter().filter_map(|udp| {
            let socket = udp.socket.try_clone().ok()?;
            let state = UdpSocketState::new((&socket).into()).ok()?;
            Some(ListenerSocket {
                port: udp.port,
                v4: udp.v4,
                bind_target: udp.bind_target,
                socket,
                state,
            })
        });
        copies.collect()
    }

    /// Returns the number of ports in use.
    pub(super) fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Closes the sockets of unused ports.
    pub(super) fn retain_ports(&mut self, used: impl Fn(u16) -> bool) {
        let previous_count = self.sockets.len();
        self.sockets.retain(|udp| used(udp.port));
        self.ports.retain(|port, _| used(*port));
        if previous_count != self.sockets.len() {
            self.generation += 1;
        }
    }

    /// Returns the descriptors; true if the socket is blocked.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.sockets.iter().map(|udp| (udp.socket.as_fd(), udp.blocked_since.is_some()))
    }

    /// Reads one batch from socket `index`; returns true if there may be more.
    pub(super) fn receive(
        &mut self,
        index: usize,
        mut on_datagrams: impl FnMut(IncomingDatagrams, BytesMut),
    ) -> bool {
        let Some(udp) = self.sockets.get(index) else { return false };
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut buffers = self.buffer.chunks_mut(MAX_READ_BYTES);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
        // Errors of earlier datagrams, such as an unreachable port, are irrelevant.
        let received = udp.state.recv((&udp.socket).into(), &mut slices, &mut metas);
        let Ok(count) = received else { return false };
        for (meta, slice) in metas.iter().zip(&slices).take(count) {
            let Some(bytes) = slice.get(..meta.len) else { continue };
            let ip = meta.dst_ip.unwrap_or(match udp.bind_target {
                BindTarget::Address(address) | BindTarget::ListenerAddress(address) => address,
                BindTarget::AllAddresses | BindTarget::Interface(_) => Ipv4Addr::UNSPECIFIED.into(),
            });
            let incoming = IncomingDatagrams {
                local: SocketAddr::new(ip, udp.port),
                remote: meta.addr,
                ecn: meta.ecn.map_or(0, |ecn| ecn as u8),
                segment_bytes: meta.stride,
            };
            on_datagrams(incoming, BytesMut::from(bytes));
        }
        count == BATCH_SIZE
    }

    /// Sends datagrams; those that no socket can send are lost, as on a network.
    pub(super) fn send(
        &mut self,
        now: Instant,
        addresses: &AddressTracker,
        outgoing: &OutgoingDatagrams,
        payload: &[u8],
    ) -> SendOutcome {
        let interface = addresses.interface_of(outgoing.local.ip());
        let socket = self.sockets.iter_mut().find(|udp| {
            udp.port == outgoing.local.port()
                && udp.v4 == outgoing.remote.is_ipv4()
                && match udp.bind_target {
                    BindTarget::AllAddresses => true,
                    BindTarget::Interface(index) => Some(index) == interface,
                    BindTarget::Address(address) | BindTarget::ListenerAddress(address) => {
                        address == outgoing.local.ip()
                    }
                }
        });
        let Some(udp) = socket else { return SendOutcome::Sent };
        match udp.send(outgoing, payload) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let blocked_since = *udp.blocked_since.get_or_insert(now);
                if now.saturating_since(blocked_since) < BLOCKED_DROP_AFTER {
                    SendOutcome::Full
                } else {
                    SendOutcome::Sent
                }
            }
            Ok(()) | Err(_) => {
                udp.blocked_since = None;
                SendOutcome::Sent
            }
        }
    }
}

/// Opens a socket bound to the interface, or to its address if that is not permitted.
fn open_on_interface(
    v4: bool,
    (interface, address): (u32, IpAddr),
    port: u16,
) -> io::Result<BoundSocket> {
    match BoundSocket::open(v4, BindTarget::Interface(interface), port) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            BoundSocket::open(v4, BindTarget::Address(address), port)
        }
        other => other,
    }
}

/// Opens the missing sockets of a connection's port.
fn open_missing(
    sockets: &mut Vec<BoundSocket>,
    addresses: &AddressTracker,
    (port, v4): (u16, bool),
) -> io::Result<()> {
    for (interface, address) in addresses.interfaces(v4) {
        let covers_interface = |udp: &BoundSocket| {
            udp.port == port
                && match udp.bind_target {
                    BindTarget::AllAddresses | BindTarget::ListenerAddress(_) => true,
                    BindTarget::Interface(index) => index == interface,
                    BindTarget::Address(local) => local == address,
                }
        };
        if !sockets.iter().any(covers_interface) {
            sockets.push(open_on_interface(v4, (interface, address), port)?);
        }
    }
    Ok(())
}

/// Returns the source address that the kernel chooses for `remote`.
pub(super) fn source_for(remote: SocketAddr) -> io::Result<IpAddr> {
    let unspecified: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(unspecified, 0))?;
    // Only looks up the route; sends nothing.
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
