//! Snapshot of this host; needs no privilege.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use socket2::{Domain, Protocol, Socket, Type};
use towpath_measure::live::snapshot::{
    AddressSnapshot, ConnectionSnapshot, EndpointSnapshot, HostSnapshot, LinkSnapshot,
    ListenerSnapshot, MptcpLimits, SubflowSnapshot,
};

use crate::netlink::{
    DiagSocket, MibCounters, MptcpPm, RouteSocket, SocketDiag, StateFilter, SubflowFlags, TcpState,
};
use crate::sample::{MptcpInfo, TcpInfo};

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
pub(crate) struct SnapshotQuery {
    /// Local port of the listener and its connections.
    pub(crate) port: u16,
    /// Includes only connections with this address; `None` lists none.
    pub(crate) peer: Option<IpAddr>,
}

/// Takes a snapshot of this host; omits unreadable parts.
pub(crate) fn snapshot(question: Option<SnapshotQuery>) -> HostSnapshot {
    let mut look = HostSnapshot {
        kernel: read("sys/kernel/osrelease").unwrap_or_default(),
        socket_errno: socket_errno(),
        settings: settings(),
        counters: counters(),
        ..HostSnapshot::default()
    };
    if let Ok(mut route) = RouteSocket::open() {
        look.links = route.links().unwrap_or_default().iter().map(link).collect();
        look.addresses = route.addresses().unwrap_or_default().iter().map(address).collect();
    }
    if let Ok(mut manager) = MptcpPm::open() {
        let endpoints = manager.endpoints().unwrap_or_default();
        look.endpoints = endpoints.iter().map(endpoint).collect();
        look.limits = manager.limits().ok().map(|limits| MptcpLimits {
            subflows: limits.subflows,
            add_addr_accepted: limits.add_addr_accepted,
        });
    }
    if let Some(question) = question {
        sockets(&mut look, question);
    }
    look.truncated()
}

/// Takes a snapshot of the listener on a port, and of the client's connections to it.
pub(crate) fn snapshot_port(question: SnapshotQuery) -> HostSnapshot {
    let mut snapshot = HostSnapshot::default();
    sockets(&mut snapshot, question);
    snapshot.redacted().truncated()
}

/// Reads a file below `/proc`, without the end of the line.
pub(super) fn read(name: &str) -> Option<String> {
    Some(fs::read_to_string(format!("/proc/{name}")).ok()?.trim().to_owned())
}

fn settings() -> BTreeMap<String, String> {
    let value = |name: &str| {
        let path = format!("sys/net/{}", name.replace('.', "/"));
        let words = read(&path)?.split_whitespace().collect::<Vec<_>>().join(" ");
        Some((name.to_owned(), words))
    };
    SYSCTLS.iter().filter_map(|name| value(name)).collect()
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
pub(super) fn counters() -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    let mut add = |counters: &MibCounters| {
        let wanted = |name: &str| name.starts_with("MPTcpExt.") || TCP_COUNTERS.contains(&name);
        let rows = counters.iter().filter(|(name, value)| *value > 0 && wanted(name));
        found.extend(rows.map(|(name, value)| (name.to_owned(), value)));
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
            found.insert("Icmp6.InDestUnreachs".to_owned(), value);
        }
    }
    found
}

fn link(link: &crate::netlink::Link) -> LinkSnapshot {
    // The kernel uses the larger of the two.
    let effective = |setting: &str| {
        let of = |whose: &str| {
            let value = read(&format!("sys/net/ipv4/conf/{whose}/{setting}"))?;
            value.parse::<u8>().ok()
        };
        of("all").max(of(&link.name)).unwrap_or(0)
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
    }
}

fn address(address: &crate::netlink::InterfaceAddress) -> AddressSnapshot {
    let (local, link) = (address.local, address.link_index);
    AddressSnapshot { link, address: local.address(), prefix_length: local.length() }
}

fn endpoint(endpoint: &crate::netlink::Endpoint) -> EndpointSnapshot {
    EndpointSnapshot {
        id: endpoint.id.unwrap_or(0),
        address: endpoint.address,
        port: endpoint.port,
        link: endpoint.link_index,
        flags: endpoint.flags.bits(),
    }
}

fn sockets(snapshot: &mut HostSnapshot, question: SnapshotQuery) {
    let listed = SocketDiag::open().and_then(|mut diag| {
        Ok((diag.tcp(StateFilter::ALL)?, diag.mptcp(StateFilter::ALL).unwrap_or_default()))
    });
    let Ok((tcp, mptcp)) = listed else { return };
    let here = |socket: &&DiagSocket| socket.local.port() == question.port;
    let listens = |socket: &DiagSocket| socket.state == TcpState::Listen;
    let multipath = mptcp.iter().filter(here).any(listens);
    // A Multipath TCP listener shows in both lists.
    let twin = |one: &DiagSocket| mptcp.iter().any(|other| other.inode == one.inode);
    let plain = tcp.iter().filter(here).any(|one| listens(one) && !twin(one));
    snapshot.listener = Some(ListenerSnapshot { plain, multipath });
    let Some(asker) = question.peer else { return };
    let of_asker =
        |socket: &&DiagSocket| socket.remote.ip().to_canonical() == asker && !listens(socket);
    for whole in mptcp.iter().filter(here).filter(of_asker) {
        let info = MptcpInfo::parse(&whole.info);
        let part = |one: &&DiagSocket| {
            one.subflow.and_then(|flow| flow.token_local) == Some(info.token) && info.token != 0
        };
        snapshot.connections.push(ConnectionSnapshot {
            local: plain_end(whole.local),
            remote: plain_end(whole.remote),
            multipath: !info.fallback && info.remote_key,
            subflows: tcp.iter().filter(part).map(subflow).collect(),
        });
    }
    let alone = |one: &&DiagSocket| one.subflow.is_none() && one.state == TcpState::Established;
    for one in tcp.iter().filter(here).filter(of_asker).filter(alone) {
        snapshot.connections.push(ConnectionSnapshot {
            local: plain_end(one.local),
            remote: plain_end(one.remote),
            multipath: false,
            subflows: Vec::new(),
        });
    }
}

fn subflow(socket: &DiagSocket) -> SubflowSnapshot {
    let info = TcpInfo::parse(&socket.info);
    let flags = socket.subflow.unwrap_or_default().flags;
    SubflowSnapshot {
        local: plain_end(socket.local),
        remote: plain_end(socket.remote),
        established: socket.state == TcpState::Established,
        backup: flags.contains(SubflowFlags::BACKUP_LOCAL)
            || flags.contains(SubflowFlags::BACKUP_REMOTE),
        bytes_acked: info.bytes_acked,
        bytes_received: info.bytes_received,
    }
}

/// Converts an IPv4-mapped address to IPv4.
pub(super) fn plain_end(end: SocketAddr) -> SocketAddr {
    SocketAddr::new(end.ip().to_canonical(), end.port())
}
