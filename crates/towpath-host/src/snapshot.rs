//! Snapshot of a host's network state, for diagnosing missing multipath.
//!
//! Both ends of a diagnosis use the same form: `towpath doctor` reads it on its own host, and
//! requests the server's. Every list has a limit, so that a snapshot fits into one frame.

pub mod take;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Maximum number of interfaces in a snapshot.
pub const MAX_LINKS: usize = 48;
/// Maximum number of addresses in a snapshot.
pub const MAX_ADDRESSES: usize = 96;
/// Maximum number of endpoints; few hosts have more than the eight that a connection can use.
pub const MAX_ENDPOINTS: usize = 32;
/// Maximum number of connections in a snapshot.
pub const MAX_CONNECTIONS: usize = 8;
/// Maximum number of subflows per connection, as in Linux.
pub const MAX_SUBFLOWS: usize = 9;

/// Network state of a host that matters for Multipath TCP.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSnapshot {
    /// Set if it is redacted for an unauthenticated client: its own connections and the listener
    /// only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Kernel release, as in `uname -r`.
    pub kernel: String,
    /// Result of opening a Multipath TCP socket: 0, or the error number.
    pub socket_errno: i32,
    /// Kernel settings by name below `net.`, such as `mptcp.enabled`; missing ones are left out.
    pub settings: BTreeMap<String, String>,
    /// Non-zero counters, such as `MPTcpExt.MPJoinSynTx`.
    pub counters: BTreeMap<String, u64>,
    /// Network interfaces of the host.
    pub links: Vec<LinkSnapshot>,
    /// Addresses of all interfaces.
    pub addresses: Vec<AddressSnapshot>,
    /// Endpoints of the path manager.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Limits of the path manager.
    pub limits: Option<MptcpLimits>,
    /// Listener on the requested port.
    pub listener: Option<ListenerSnapshot>,
    /// Connections from the requesting address to that port.
    pub connections: Vec<ConnectionSnapshot>,
}

/// State of a network interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSnapshot {
    /// Index of the interface.
    pub index: u32,
    /// Name of the interface.
    pub name: String,
    /// True if the administrator has set it up (`IFF_UP`).
    pub up: bool,
    /// True if it can carry packets (`IFF_RUNNING`).
    pub running: bool,
    /// True for a loopback interface.
    pub loopback: bool,
    /// MTU of the interface in bytes.
    pub mtu_bytes: u32,
    /// Bytes received since the interface was created.
    pub rx_bytes: u64,
    /// Bytes sent since then.
    pub tx_bytes: u64,
    /// Effective reverse path filter: 0 off, 1 strict, 2 loose.
    pub rp_filter: u8,
    /// Effective `arp_ignore`; above 0, it replies for its own addresses only.
    pub arp_ignore: u8,
    /// Effective `arp_announce` setting of the interface.
    pub arp_announce: u8,
    /// Bit mask of `IFF_*` flags (`linux/if.h`); 0 from older versions.
    pub flags: u32,
}

impl LinkSnapshot {
    /// Returns true if all packets go to one neighbour, so that routes need no gateway: a tunnel,
    /// or a modem without addresses of its own.
    pub const fn is_point_to_point(&self) -> bool {
        self.flags & (libc::IFF_POINTOPOINT | libc::IFF_NOARP) as u32 != 0
    }
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSnapshot {
    /// Index of the interface.
    pub link: u32,
    /// Address of the interface.
    pub address: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix_length: u8,
}

/// An endpoint of the path manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSnapshot {
    /// Address ID of the endpoint.
    pub id: u8,
    /// Address of the endpoint.
    pub address: IpAddr,
    /// Port, if the endpoint has a listener of its own.
    #[serde(default)]
    pub port: Option<u16>,
    /// Index of the interface that the endpoint is bound to.
    #[serde(default)]
    pub link: Option<u32>,
    /// Flags of the endpoint, `MPTCP_PM_ADDR_FLAG_*`.
    pub flags: u32,
}

impl EndpointSnapshot {
    const SIGNAL: u32 = 1;
    const SUBFLOW: u32 = 1 << 1;
    const BACKUP: u32 = 1 << 2;
    const FULLMESH: u32 = 1 << 3;
    const IMPLICIT: u32 = 1 << 4;
    const LAMINAR: u32 = 1 << 5;

    const fn has(self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Returns true if it is announced to peers.
    pub const fn is_signal(self) -> bool {
        self.has(Self::SIGNAL)
    }

    /// Returns true if the host opens subflows from it proactively.
    pub const fn opens_subflows(self) -> bool {
        self.has(Self::SUBFLOW | Self::FULLMESH)
    }

    /// Returns true if subflows are opened from it to announced addresses only.
    pub const fn is_laminar(self) -> bool {
        self.has(Self::LAMINAR)
    }

    /// Returns true if its subflows are only a fallback for others.
    pub const fn is_backup(self) -> bool {
        self.has(Self::BACKUP)
    }

    /// Returns true if the kernel created it implicitly.
    pub const fn is_implicit(self) -> bool {
        self.has(Self::IMPLICIT)
    }

    /// Returns the names of the flags, as in `ip mptcp`.
    pub fn flag_names(self) -> Vec<&'static str> {
        [
            (Self::SIGNAL, "signal"),
            (Self::SUBFLOW, "subflow"),
            (Self::BACKUP, "backup"),
            (Self::FULLMESH, "fullmesh"),
            (Self::IMPLICIT, "implicit"),
            (Self::LAMINAR, "laminar"),
        ]
        .into_iter()
        .filter(|(flag, _)| self.has(*flag))
        .map(|(_, name)| name)
        .collect()
    }
}

/// Limits of the path manager for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MptcpLimits {
    /// Maximum number of additional subflows.
    pub subflows: u32,
    /// Maximum number of announced addresses to connect to.
    pub add_addr_accepted: u32,
}

/// Listeners on a TCP port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerSnapshot {
    /// True if a listener uses plain TCP.
    pub plain: bool,
    /// True if a listener uses Multipath TCP.
    pub multipath: bool,
}

/// A connection as one end sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionSnapshot {
    /// Local address and port of the first subflow.
    pub local: SocketAddr,
    /// Remote address and port of the first subflow.
    pub remote: SocketAddr,
    /// True for Multipath TCP that has not fallen back.
    pub multipath: bool,
    /// Subflows of the connection.
    #[serde(default)]
    pub subflows: Vec<SubflowSnapshot>,
}

/// A subflow as one end sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubflowSnapshot {
    /// Local address and port.
    pub local: SocketAddr,
    /// Remote address and port.
    pub remote: SocketAddr,
    /// True if the subflow is established.
    pub established: bool,
    /// True if one end marks it as a backup.
    pub backup: bool,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes received from the peer.
    pub bytes_received: u64,
}

impl HostSnapshot {
    /// Returns the snapshot with its lists cut to the limits.
    #[must_use]
    pub fn truncated(mut self) -> Self {
        self.links.truncate(MAX_LINKS);
        self.addresses.truncate(MAX_ADDRESSES);
        self.endpoints.truncate(MAX_ENDPOINTS);
        self.connections.truncate(MAX_CONNECTIONS);
        for connection in &mut self.connections {
            connection.subflows.truncate(MAX_SUBFLOWS);
        }
        self
    }

    /// Returns the part that an unauthenticated client may see. That is the listener, which a port
    /// scan also reveals, and the client's own connections.
    #[must_use]
    pub fn redacted(self) -> Self {
        let Self { listener, connections, .. } = self;
        Self { partial: true, listener, connections, ..Self::default() }
    }

    /// Returns a counter; zero if the kernel does not have it.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns a setting as a number; `None` if it is missing or not a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.settings.get(name)?.trim().parse().ok()
    }

    /// Returns the counters that have grown since `earlier`, with their growth.
    pub fn counters_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let growth_of = |(name, value): (&String, &u64)| {
            let growth = value.saturating_sub(earlier.counter(name));
            (growth > 0).then(|| (name.clone(), growth))
        };
        self.counters.iter().filter_map(growth_of).collect()
    }

    /// Returns the interface with this index.
    pub fn link(&self, index: u32) -> Option<&LinkSnapshot> {
        self.links.iter().find(|link| link.index == index)
    }

    /// Returns the interface that has this address.
    pub fn link_of(&self, address: IpAddr) -> Option<&LinkSnapshot> {
        let snapshot = self.addresses.iter().find(|candidate| candidate.address == address)?;
        self.link(snapshot.link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_named_as_in_ip_mptcp() {
        let address = "10.0.0.1".parse().unwrap();
        let endpoint =
            EndpointSnapshot { id: 1, address, port: None, link: None, flags: 0b10_0110 };
        assert_eq!(endpoint.flag_names(), ["subflow", "backup", "laminar"]);
        assert!(endpoint.opens_subflows() && endpoint.is_backup() && !endpoint.is_signal());
    }

    #[test]
    fn unknown_and_missing_fields_are_accepted() {
        let snapshot: HostSnapshot =
            serde_json::from_str(r#"{"kernel":"7.0","news":[1]}"#).unwrap();
        assert_eq!((snapshot.kernel.as_str(), snapshot.socket_errno), ("7.0", 0));
    }
}
