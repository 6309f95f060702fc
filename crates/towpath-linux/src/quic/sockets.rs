//! UDP sockets, and datagrams in and out, in batches.
//!
//! A listener has one socket for each family, on all addresses: it answers from the address that was
//! spoken to. A connection has one for each interface, all with the same port: what it sends from an
//! interface's address leaves by that interface, whatever the routing table thinks of it.

use std::collections::BTreeMap;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use bytes::BytesMut;
use noq_udp::{BATCH_SIZE, EcnCodepoint, RecvMeta, Transmit, UdpSocketState};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};
use towpath_net::Instant;
use towpath_quic::{IncomingDatagrams, OutgoingDatagrams};

use super::addresses::Addresses;
use crate::sys;

/// Bytes that the kernel gives at once: the longest IP packet, of many datagrams.
const LONGEST: usize = 65_536;
/// What a socket may hold, where the system's limits allow it.
const SOCKET_BUFFER: usize = 4 << 20;
/// A socket that has taken nothing for so long loses what it does not take: the others go on.
const STUCK: Duration = Duration::from_millis(100);
/// Ports that are tried for a connection, until one is free on all interfaces.
const ATTEMPTS: usize = 16;

/// What a socket is bound to, beside its port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Everywhere,
    Interface(u32),
    /// Where interfaces cannot be bound to.
    Address(IpAddr),
    /// A listener's only address, whatever interfaces there are.
    Only(IpAddr),
}

/// One UDP socket.
#[derive(Debug)]
struct Udp {
    port: u16,
    v4: bool,
    place: Place,
    socket: Socket,
    state: UdpSocketState,
    /// Since when it takes nothing.
    blocked: Option<Instant>,
}

impl Udp {
    fn open(v4: bool, place: Place, port: u16) -> io::Result<Self> {
        let domain = if v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        let any: IpAddr =
            if v4 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        if !v4 {
            socket.set_only_v6(true)?;
        }
        let address = match place {
            Place::Everywhere => any,
            Place::Interface(index) => {
                // Like SO_BINDTODEVICE: needs no privilege since Linux 5.7.
                let option = (libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX);
                sys::set_option(socket.as_fd(), option.0, option.1, &index.to_ne_bytes())?;
                any
            }
            Place::Address(address) | Place::Only(address) => address,
        };
        socket.bind(&SockAddr::from(SocketAddr::new(address, port)))?;
        let state = UdpSocketState::new((&socket).into())?;
        // Refused beyond the system's limit; then there is less room.
        let _ = state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER);
        let _ = state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER);
        let bound = socket.local_addr()?.as_socket().map_or(port, |bound| bound.port());
        Ok(Self { port: bound, v4, place, socket, state, blocked: None })
    }

    fn send(&self, departure: &OutgoingDatagrams, payload: &[u8]) -> io::Result<()> {
        let source = match self.place {
            Place::Address(_) | Place::Only(_) => None,
            Place::Everywhere | Place::Interface(_) => Some(departure.local.ip()),
        };
        let size = departure.segment_bytes.unwrap_or(payload.len()).max(1);
        let most = size.saturating_mul(self.state.max_gso_segments().get());
        for contents in payload.chunks(most) {
            let transmit = Transmit {
                destination: departure.remote,
                ecn: EcnCodepoint::from_bits(departure.ecn),
                contents,
                segment_size: departure.segment_bytes,
                src_ip: source,
            };
            self.state.try_send((&self.socket).into(), &transmit)?;
        }
        Ok(())
    }
}

/// A listener's socket for whoever sends datagrams of his own from it, in another thread.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) port: u16,
    pub(crate) v4: bool,
    place: Place,
    socket: Socket,
    state: UdpSocketState,
}

impl Outlet {
    /// Sends at once, or says why not.
    pub(crate) fn send(
        &self,
        local: IpAddr,
        destination: SocketAddr,
        contents: &[u8],
    ) -> io::Result<()> {
        let source = match self.place {
            Place::Address(_) | Place::Only(_) => None,
            Place::Everywhere | Place::Interface(_) => Some(local),
        };
        let src_ip = source.filter(|ip| !ip.is_unspecified());
        let (ecn, segment_size) = (None, None);
        let transmit = Transmit { destination, ecn, contents, segment_size, src_ip };
        self.state.try_send((&self.socket).into(), &transmit)
    }
}

/// Whether a port belongs to a listener or a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Spread {
    Everywhere,
    ByInterface,
}

/// All sockets of a host.
pub(super) struct Sockets {
    all: Vec<Udp>,
    ports: BTreeMap<u16, Spread>,
    /// Changes whenever `all` does.
    pub(super) generation: u64,
    room: Vec<u8>,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sockets").field("all", &self.all).finish_non_exhaustive()
    }
}

/// How sending went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    /// On its way, or lost.
    Gone,
    /// The socket has no room now.
    Full,
}

impl Sockets {
    pub(super) fn new() -> Self {
        let room = vec![0; LONGEST * BATCH_SIZE];
        Self { all: Vec::new(), ports: BTreeMap::new(), generation: 0, room }
    }

    /// Opens sockets on all addresses; port 0 is any. Returns the port.
    pub(super) fn open_everywhere(&mut self, port: u16) -> io::Result<u16> {
        let mut last = io::ErrorKind::AddrInUse.into();
        for _ in 0..if port == 0 { ATTEMPTS } else { 1 } {
            let v4 = Udp::open(true, Place::Everywhere, port)?;
            let bound = v4.port;
            match Udp::open(false, Place::Everywhere, bound) {
                Ok(v6) => self.all.extend([v4, v6]),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                    last = error;
                    continue;
                }
                // A system without IPv6.
                Err(_) => self.all.push(v4),
            }
            self.ports.insert(bound, Spread::Everywhere);
            self.generation += 1;
            return Ok(bound);
        }
        Err(last)
    }

    /// Opens a listener's socket on one address, or on all of a family if that is what it says.
    pub(super) fn open_at(&mut self, address: IpAddr, port: u16) -> io::Result<u16> {
        let everywhere = address.is_unspecified();
        let place = if everywhere { Place::Everywhere } else { Place::Only(address) };
        let opened = Udp::open(address.is_ipv4(), place, port)?;
        let bound = opened.port;
        self.all.push(opened);
        self.ports.insert(bound, Spread::Everywhere);
        self.generation += 1;
        Ok(bound)
    }

    /// Opens a socket on every interface for a connection of one family. Returns the port.
    pub(super) fn open_by_interface(
        &mut self,
        addresses: &Addresses,
        local: IpAddr,
    ) -> io::Result<u16> {
        let mut last = io::ErrorKind::AddrNotAvailable.into();
        for _ in 0..ATTEMPTS {
            let first = addresses.interface_of(local).ok_or(io::ErrorKind::AddrNotAvailable)?;
            let first = open_on(local.is_ipv4(), (first, local), 0)?;
            let port = first.port;
            let mut opened = vec![first];
            match complete(&mut opened, addresses, (port, local.is_ipv4())) {
                Ok(()) => {
                    self.all.extend(opened);
                    self.ports.insert(port, Spread::ByInterface);
                    self.generation += 1;
                    return Ok(port);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Opens what is missing on new interfaces, and closes what lost its interface.
    pub(super) fn follow(&mut self, addresses: &Addresses) {
        let before = self.all.len();
        let known = [true, false].map(|v4| addresses.interfaces(v4));
        let [v4s, v6s] = &known;
        self.all.retain(|udp| {
            let own = if udp.v4 { v4s } else { v6s };
            match udp.place {
                Place::Everywhere | Place::Only(_) => true,
                // Without an address now, it may get another one in a moment.
                Place::Interface(index) => addresses.has_interface(index),
                Place::Address(address) => own.iter().any(|(_, known)| *known == address),
            }
        });
        let mut changed = before != self.all.len();
        let spread = self.ports.iter().filter(|(_, spread)| **spread == Spread::ByInterface);
        let ports: Vec<u16> = spread.map(|(port, _)| *port).collect();
        for port in ports {
            let Some(v4) = self.all.iter().find(|udp| udp.port == port).map(|udp| udp.v4) else {
                continue;
            };
            let before = self.all.len();
            // An interface on which the port is taken by another program is not used.
            let _ = complete(&mut self.all, addresses, (port, v4));
            changed |= before != self.all.len();
        }
        if changed {
            self.generation += 1;
        }
    }

    /// The sockets of listeners, once more.
    pub(super) fn outlets(&self) -> Vec<Outlet> {
        let each = self.all.iter().filter_map(|udp| {
            let socket = udp.socket.try_clone().ok()?;
            let state = UdpSocketState::new((&socket).into()).ok()?;
            Some(Outlet { port: udp.port, v4: udp.v4, place: udp.place, socket, state })
        });
        each.collect()
    }

    /// How many ports are in use.
    pub(super) fn ports(&self) -> usize {
        self.ports.len()
    }

    /// Closes the sockets of ports that are not used any more.
    pub(super) fn keep(&mut self, used: impl Fn(u16) -> bool) {
        let before = self.all.len();
        self.all.retain(|udp| used(udp.port));
        self.ports.retain(|port, _| used(*port));
        if before != self.all.len() {
            self.generation += 1;
        }
    }

    /// Descriptors, each with whether it is waited for until it takes something again.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = (BorrowedFd<'_>, bool)> {
        self.all.iter().map(|udp| (udp.socket.as_fd(), udp.blocked.is_some()))
    }

    /// Reads what waits on socket number `index`, once; returns whether there may be more.
    pub(super) fn receive(
        &mut self,
        index: usize,
        mut take: impl FnMut(IncomingDatagrams, BytesMut),
    ) -> bool {
        let Some(udp) = self.all.get(index) else { return false };
        let mut metas = [RecvMeta::default(); BATCH_SIZE];
        let mut parts = self.room.chunks_mut(LONGEST);
        let mut slices: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
        // Errors of earlier datagrams, such as that nobody listens there, change nothing.
        let received = udp.state.recv((&udp.socket).into(), &mut slices, &mut metas);
        let Ok(count) = received else { return false };
        for (meta, slice) in metas.iter().zip(&slices).take(count) {
            let Some(bytes) = slice.get(..meta.len) else { continue };
            let ip = meta.dst_ip.unwrap_or(match udp.place {
                Place::Address(address) | Place::Only(address) => address,
                Place::Everywhere | Place::Interface(_) => Ipv4Addr::UNSPECIFIED.into(),
            });
            let arrival = IncomingDatagrams {
                local: SocketAddr::new(ip, udp.port),
                remote: meta.addr,
                ecn: meta.ecn.map_or(0, |ecn| ecn as u8),
                segment_bytes: meta.stride,
            };
            take(arrival, BytesMut::from(bytes));
        }
        count == BATCH_SIZE
    }

    /// Sends; what no socket can take is lost, as on a network.
    pub(super) fn send(
        &mut self,
        now: Instant,
        addresses: &Addresses,
        departure: &OutgoingDatagrams,
        payload: &[u8],
    ) -> Sent {
        let interface = addresses.interface_of(departure.local.ip());
        let found = self.all.iter_mut().find(|udp| {
            udp.port == departure.local.port()
                && udp.v4 == departure.remote.is_ipv4()
                && match udp.place {
                    Place::Everywhere => true,
                    Place::Interface(index) => Some(index) == interface,
                    Place::Address(address) | Place::Only(address) => {
                        address == departure.local.ip()
                    }
                }
        });
        let Some(udp) = found else { return Sent::Gone };
        match udp.send(departure, payload) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let since = *udp.blocked.get_or_insert(now);
                if now.saturating_since(since) < STUCK { Sent::Full } else { Sent::Gone }
            }
            Ok(()) | Err(_) => {
                udp.blocked = None;
                Sent::Gone
            }
        }
    }
}

/// Bound to the interface if that is allowed, else to its address.
fn open_on(v4: bool, (interface, address): (u32, IpAddr), port: u16) -> io::Result<Udp> {
    match Udp::open(v4, Place::Interface(interface), port) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Udp::open(v4, Place::Address(address), port)
        }
        other => other,
    }
}

/// Opens what is missing for a connection's port.
fn complete(all: &mut Vec<Udp>, addresses: &Addresses, (port, v4): (u16, bool)) -> io::Result<()> {
    for (interface, address) in addresses.interfaces(v4) {
        let has = |udp: &Udp| {
            udp.port == port
                && match udp.place {
                    Place::Everywhere | Place::Only(_) => true,
                    Place::Interface(index) => index == interface,
                    Place::Address(own) => own == address,
                }
        };
        if !all.iter().any(has) {
            all.push(open_on(v4, (interface, address), port)?);
        }
    }
    Ok(())
}

/// The address from which the kernel would speak to `remote`.
pub(super) fn source_for(remote: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match remote {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    // Nothing is sent: only the route is looked up.
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}
