//! Snapshot of this host; needs no privilege.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use towpath_kernel::sample::{MptcpInfo, TcpInfo};
use towpath_netlink::{
    DiagSocket, MibCounters, MptcpPm, RouteSocket, SocketDiag, StateFilter, SubflowFlags, TcpState,
};

use crate::snapshot::{
    AddressSnapshot, ConnectionSnapshot, EndpointSnapshot, HostSnapshot, LinkSnapshot,
    ListenerSnapshot, MptcpLimits, SubflowSnapshot,
};

/// Settings that control the use of Multipath TCP, by their names below `net.`.
const SYSCTLS: [&str; 15] = [
    "mptcp.enabled",
    "mptcp.mptcp_enabled",
    "mptcp.pm_type",
    "mptcp.path_manager",
    "mptcp.scheduler",
    "mptcp.blackhole_timeout",
    "mptcp.checksum_enabled",
    "mptcp.allow_join_initial_addr_port",
    "mptcp.stale_loss_cnt",
    "mptcp.syn_retrans_before_tcp_fallback",
    "ipv4.ip_default_ttl",
    "ipv4.tcp_rmem",
    "ipv4.tcp_wmem",
    "ipv4.tcp_syn_retries",
    "ipv4.tcp_mtu_probing",
];
/// Counters outside of Multipath TCP's own that describe a path.
const TCP_COUNTERS: [&str; 12] = [
    "Icmp.InDestUnreachs",
    "Icmp6.InDestUnreachs",
    "TcpExt.IPReversePathFilter",
    "TcpExt.TCPTimeouts",
    "TcpExt.TCPSynRetrans",
    "TcpExt.ListenDrops",
    "TcpExt.ListenOverflows",
    "Ip.OutNoRoutes",
    "IpExt.InNoRoutes",
    "Tcp.AttemptFails",
    "Tcp.OutRsts",
    "Tcp.RetransSegs",
];

/// Request for a snapshot of a port.
#[derive(Debug, Clone, Copy)]
pub struct SnapshotQuery {
    /// Local port of the listener and its connections.
    pub port: u16,
    /// Includes only connections with this address; `None` lists none.
    pub peer: Option<IpAddr>,
}

/// Takes a snapshot of this host; omits unreadable parts.
pub fn snapshot(query: Option<SnapshotQuery>) -> HostSnapshot {
    let mut snapshot = HostSnapshot {
        kernel: read("sys/kernel/osrelease").unwrap_or_default(),
        socket_errno: socket_errno(),
        settings: read_settings(),
        counters: read_counters(),
        ..HostSnapshot::default()
    };
    if let Ok(mut route) = RouteSocket::open() {
        snapshot.links = route.links().unwrap_or_default().iter().map(link_snapshot).collect();
        snapshot.addresses =
            route.addresses().unwrap_or_default().iter().map(address_snapshot).collect();
    }
    if let Ok(mut manager) = MptcpPm::open() {
        let endpoints = manager.endpoints().unwrap_or_default();
        snapshot.endpoints = endpoints.iter().map(endpoint_snapshot).collect();
        snapshot.limits = manager.limits().ok().map(|limits| MptcpLimits {
            subflows: limits.subflows,
            add_addr_accepted: limits.add_addr_accepted,
        });
    }
    if let Some(query) = query {
        add_sockets(&mut snapshot, query);
    }
    snapshot.truncated()
}

/// Takes a snapshot of the listener on a port, and of the client's connections to it.
pub fn snapshot_port(query: SnapshotQuery) -> HostSnapshot {
    let mut snapshot = HostSnapshot::default();
    add_sockets(&mut snapshot, query);
    snapshot.redacted().truncated()
}

/// Reads a file below `/proc`, without the end of the line.
pub(super) fn read(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{name}")).ok()?.trim().to_owned())
}

fn read_settings() -> BTreeMap<String, String> {
    let read_setting = |name: &str| {
        let path = format!("sys/net/{}", name.replace('.', "/"));
        let value = read(&path)?.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((name.to_owned(), value))
    };
    SYSCTLS.iter().filter_map(|name| read_setting(name)).collect()
}

/// Returns the error of opening a Multipath TCP socket, or 0. Each reason for missing support has
/// its own error.
fn socket_errno() -> i32 {
    match Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)) {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    }
}

/// Returns the counters that are not zero.
pub(super) fn read_counters() -> BTreeMap<String, u64> {
    let mut nonzero = BTreeMap::new();
    let mut add = |counters: &MibCounters| {
        let is_relevant =
            |name: &str| name.starts_with("MPTcpExt.") || TCP_COUNTERS.contains(&name);
        let rows = counters.iter().filter(|(name, value)| *value > 0 && is_relevant(name));
        nonzero.extend(rows.map(|(name, value)| (name.to_owned(), value)));
    };
    add(&MibCounters::read().unwrap_or_default());
    // The older counters are in a second file of the same form.
    add(&MibCounters::parse(&read("thread-self/net/snmp").unwrap_or_default()));
    // IPv6 has one counter a line.
    let lines = read("thread-self/net/snmp6").unwrap_or_default();
    for line in lines.lines() {
        let mut words = line.split_whitespace();
        let (name, value) = (words.next().unwrap_or_default(), words.next());
        let value = value.and_then(|value| value.parse::<u64>().ok()).unwrap_or(0);
        if name == "Icmp6InDestUnreachs" && value > 0 {
            nonzero.insert("Icmp6.InDestUnreachs".to_owned(), value);
        }
    }
    nonzero
}

fn link_snapshot(link: &towpath_netlink::Link) -> LinkSnapshot {
    // The kernel uses the larger value of `all` and of the interface.
    let effective = |setting: &str| {
        let read_conf = |scope: &str| {
            let value = read(&format!("sys/net/ipv4/conf/{scope}/{setting}"))?;
            value.parse::<u8>().ok()
        };
        read_conf("all").max(read_conf(&link.name)).unwrap_or(0)
    };
    LinkSnapshot {
        index: link.index,
        name: link.name.clone(),
        up: link.is_up(),
        running: link.is_running(),
        loopback: link.flags & libc::IFF_LOOPBACK as u32 != 0,
        mtu_bytes: link.mtu,
        rx_bytes: link.stats.rx_bytes,
        tx_bytes: link.stats.tx_bytes,
        rp_filter: effective("rp_filter"),
        arp_ignore: effective("arp_ignore"),
        arp_announce: effective("arp_announce"),
        flags: link.flags,
    }
}

fn address_snapshot(address: &towpath_netlink::InterfaceAddress) -> AddressSnapshot {
    let (local, link) = (address.local, address.link_index);
    AddressSnapshot { link, address: local.address(), prefix_length: local.length() }
}

fn endpoint_snapshot(endpoint: &towpath_netlink::Endpoint) -> EndpointSnapshot {
    EndpointSnapshot {
        id: endpoint.id.unwrap_or(0),
        address: endpoint.address,
        port: endpoint.port,
        link: endpoint.link_index,
        flags: endpoint.flags.bits(),
    }
}

fn add_sockets(snapshot: &mut HostSnapshot, query: SnapshotQuery) {
    let lists = SocketDiag::open().and_then(|mut diag| {
        Ok((diag.tcp(StateFilter::ALL)?, diag.mptcp(StateFilter::ALL).unwrap_or_default()))
    });
    let Ok((tcp, mptcp)) = lists else { return };
    let is_on_port = |socket: &&DiagSocket| socket.local.port() == query.port;
    let is_listener = |socket: &DiagSocket| socket.state == TcpState::Listen;
    let multipath = mptcp.iter().filter(is_on_port).any(is_listener);
    // A Multipath TCP listener shows in both lists.
    let is_mptcp_listener =
        |socket: &DiagSocket| mptcp.iter().any(|other| other.inode == socket.inode);
    let plain = tcp
        .iter()
        .filter(is_on_port)
        .any(|socket| is_listener(socket) && !is_mptcp_listener(socket));
    snapshot.listener = Some(ListenerSnapshot { plain, multipath });
    let Some(peer) = query.peer else { return };
    let is_from_peer =
        |socket: &&DiagSocket| socket.remote.ip().to_canonical() == peer && !is_listener(socket);
    for connection in mptcp.iter().filter(is_on_port).filter(is_from_peer) {
        let info = MptcpInfo::parse(&connection.info);
        let is_own_subflow = |socket: &&DiagSocket| {
            socket.subflow.and_then(|flow| flow.token_local) == Some(info.token) && info.token != 0
        };
        snapshot.connections.push(ConnectionSnapshot {
            local: canonical_address(connection.local),
            remote: canonical_address(connection.remote),
            multipath: !info.fallback && info.remote_key,
            subflows: tcp.iter().filter(is_own_subflow).map(subflow_snapshot).collect(),
        });
    }
    let is_plain_connection =
        |socket: &&DiagSocket| socket.subflow.is_none() && socket.state == TcpState::Established;
    for socket in tcp.iter().filter(is_on_port).filter(is_from_peer).filter(is_plain_connection) {
        snapshot.connections.push(ConnectionSnapshot {
            local: canonical_address(socket.local),
            remote: canonical_address(socket.remote),
            multipath: false,
            subflows: Vec::new(),
        });
    }
}

fn subflow_snapshot(socket: &DiagSocket) -> SubflowSnapshot {
    let info = TcpInfo::parse(&socket.info);
    let flags = socket.subflow.unwrap_or_default().flags;
    SubflowSnapshot {
        local: canonical_address(socket.local),
        remote: canonical_address(socket.remote),
        established: socket.state == TcpState::Established,
        backup: flags.contains(SubflowFlags::BACKUP_LOCAL)
            || flags.contains(SubflowFlags::BACKUP_REMOTE),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
    }
}

/// Converts an IPv4-mapped address to IPv4.
pub fn canonical_address(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}
