//! What a host says of itself when somebody wants to know why there is no multipath.
//!
//! Both ends of a diagnosis have the same form: `towpath doctor` reads it on its own host, and asks a
//! server for its own. Every list has a limit, so that an answer fits into one frame.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

/// Links in an answer.
pub const MAX_LINKS: usize = 48;
/// Addresses in an answer.
pub const MAX_ADDRESSES: usize = 96;
/// Endpoints in an answer; few hosts have more than the eight that a connection can use.
pub const MAX_ENDPOINTS: usize = 32;
/// Connections in an answer.
pub const MAX_CONNECTIONS: usize = 8;
/// Subflows of each, as many as Linux has.
pub const MAX_SUBFLOWS: usize = 9;

/// A host's part in Multipath TCP.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSnapshot {
    /// It is only what a stranger may know: of his own connections, and of the server's own port.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub partial: bool,
    /// Release of the kernel.
    pub kernel: String,
    /// What opening a Multipath TCP socket gives: 0, or the number of the error.
    pub socket_errno: i32,
    /// Kernel settings by their names below `net.`, such as `mptcp.enabled`; absent ones are left out.
    pub settings: BTreeMap<String, String>,
    /// Counters that are not zero, such as `MPTcpExt.MPJoinSynTx`.
    pub counters: BTreeMap<String, u64>,
    /// Interfaces.
    pub links: Vec<LinkSnapshot>,
    /// Addresses of interfaces.
    pub addresses: Vec<AddressSnapshot>,
    /// Endpoints of the path manager.
    pub endpoints: Vec<EndpointSnapshot>,
    /// Its limits.
    pub limits: Option<MptcpLimits>,
    /// Who listens on the port that was asked for.
    pub listener: Option<ListenerSnapshot>,
    /// Connections of the asking address to that port.
    pub connections: Vec<ConnectionSnapshot>,
}

/// An interface.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkSnapshot {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// Set up by its administrator.
    pub up: bool,
    /// Able to carry packets.
    pub running: bool,
    /// For this host alone.
    pub loopback: bool,
    /// Largest IP packet.
    pub mtu_bytes: u32,
    /// Bytes that arrived, since it exists.
    pub rx_bytes: u64,
    /// Bytes that left.
    pub tx_bytes: u64,
    /// Effective reverse path filter: 0 off, 1 strict, 2 loose.
    pub rp_filter: u8,
    /// Effective `arp_ignore`: over 0, it answers for its own addresses only.
    pub arp_ignore: u8,
    /// Effective `arp_announce`.
    pub arp_announce: u8,
}

/// An address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AddressSnapshot {
    /// Number of the interface.
    pub link: u32,
    /// The address.
    pub address: IpAddr,
    /// Bits of its network part.
    pub prefix_length: u8,
}

/// An endpoint of the path manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndpointSnapshot {
    /// Its number.
    pub id: u8,
    /// Its address.
    pub address: IpAddr,
    /// Its port, if it listens itself.
    #[serde(default)]
    pub port: Option<u16>,
    /// The interface that it is bound to.
    #[serde(default)]
    pub link: Option<u32>,
    /// `MPTCP_PM_ADDR_FLAG_*`.
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

    /// It is announced to peers.
    pub const fn is_signal(self) -> bool {
        self.has(Self::SIGNAL)
    }

    /// Subflows are opened from it without being asked.
    pub const fn opens_subflows(self) -> bool {
        self.has(Self::SUBFLOW | Self::FULLMESH)
    }

    /// Subflows are opened from it towards announced addresses only.
    pub const fn is_laminar(self) -> bool {
        self.has(Self::LAMINAR)
    }

    /// Its subflows are to be used when there is no other.
    pub const fn is_backup(self) -> bool {
        self.has(Self::BACKUP)
    }

    /// The kernel has made it itself.
    pub const fn is_implicit(self) -> bool {
        self.has(Self::IMPLICIT)
    }

    /// The flags as people write them.
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

/// How far the path manager may go, for each connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MptcpLimits {
    /// Subflows beyond the first.
    pub subflows: u32,
    /// Announced addresses that are connected to.
    pub add_addr_accepted: u32,
}

/// Who listens on a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListenerSnapshot {
    /// Somebody does, with TCP that knows no Multipath TCP.
    pub plain: bool,
    /// Somebody does, with Multipath TCP.
    pub multipath: bool,
}

/// A connection as one end sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionSnapshot {
    /// Our address and port of the first subflow.
    pub local: SocketAddr,
    /// The other's.
    pub remote: SocketAddr,
    /// Multipath TCP that has not fallen back.
    pub multipath: bool,
    /// Its subflows.
    #[serde(default)]
    pub subflows: Vec<SubflowSnapshot>,
}

/// A subflow as one end sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubflowSnapshot {
    /// Our address and port.
    pub local: SocketAddr,
    /// The other's.
    pub remote: SocketAddr,
    /// It is established.
    pub established: bool,
    /// One end wants it as a backup.
    pub backup: bool,
    /// Bytes that the other end has acknowledged.
    pub bytes_acked: u64,
    /// Bytes that have arrived.
    pub bytes_received: u64,
}

impl HostSnapshot {
    /// The same, not longer than the limits.
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

    /// What a stranger may know of it: that somebody listens, which a port scan tells as well, and how
    /// his own connections are seen from here.
    #[must_use]
    pub fn redacted(self) -> Self {
        let Self { listener, connections, .. } = self;
        Self { partial: true, listener, connections, ..Self::default() }
    }

    /// A counter; one that the kernel does not have reads as zero.
    pub fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// A setting as a number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.settings.get(name)?.trim().parse().ok()
    }

    /// How much each counter has grown since.
    pub fn counters_since(&self, earlier: &Self) -> BTreeMap<String, u64> {
        let grown = |(name, now): (&String, &u64)| {
            let growth = now.saturating_sub(earlier.counter(name));
            (growth > 0).then(|| (name.clone(), growth))
        };
        self.counters.iter().filter_map(grown).collect()
    }

    /// The interface of that number.
    pub fn link(&self, index: u32) -> Option<&LinkSnapshot> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The interface that has an address.
    pub fn link_of(&self, address: IpAddr) -> Option<&LinkSnapshot> {
        let found = self.addresses.iter().find(|one| one.address == address)?;
        self.link(found.link)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::frame;

    #[test]
    fn the_largest_snapshot_reply_fits_into_a_frame() {
        let address: IpAddr = "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff".parse().unwrap();
        let end = SocketAddr::new(address, 65_535);
        let link = LinkSnapshot {
            index: u32::MAX,
            name: "n".repeat(15),
            mtu_bytes: u32::MAX,
            rx_bytes: u64::MAX,
            tx_bytes: u64::MAX,
            ..LinkSnapshot::default()
        };
        let subflow = SubflowSnapshot {
            local: end,
            remote: end,
            established: true,
            backup: true,
            bytes_acked: u64::MAX,
            bytes_received: u64::MAX,
        };
        let subflows = vec![subflow; 100];
        let connection = ConnectionSnapshot { local: end, remote: end, multipath: true, subflows };
        let endpoint =
            EndpointSnapshot { id: 255, address, port: Some(1), link: Some(1), flags: u32::MAX };
        let look = HostSnapshot {
            links: vec![link; 500],
            addresses: vec![AddressSnapshot { link: u32::MAX, address, prefix_length: 128 }; 500],
            endpoints: vec![endpoint; 500],
            connections: vec![connection; 500],
            ..HostSnapshot::default()
        };
        assert!(frame::to_bytes(&look).is_err(), "it is too long without limits");
        let bytes = frame::to_bytes(&look.truncated()).unwrap();
        assert!(bytes.len() < 60_000, "{} bytes leave no room for the counters", bytes.len());
    }

    #[test]
    fn flags_are_named_as_people_write_them() {
        let address = "10.0.0.1".parse().unwrap();
        let endpoint =
            EndpointSnapshot { id: 1, address, port: None, link: None, flags: 0b10_0110 };
        assert_eq!(endpoint.flag_names(), ["subflow", "backup", "laminar"]);
        assert!(endpoint.opens_subflows() && endpoint.is_backup() && !endpoint.is_signal());
    }

    #[test]
    fn an_answer_of_another_version_is_understood() {
        let look: HostSnapshot = serde_json::from_str(r#"{"kernel":"7.0","news":[1]}"#).unwrap();
        assert_eq!((look.kernel.as_str(), look.socket_errno), ("7.0", 0));
    }
}
