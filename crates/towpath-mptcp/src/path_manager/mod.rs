//! Path managers decide which subflows to open and which addresses to announce.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use towpath_multipath::PathId;
use towpath_net::Instant;

mod endpoints;
mod fullmesh;
mod ndiffports;
mod rejoin;
mod single;
mod subflow_opener;
#[cfg(test)]
mod tests;

/// Handle of an interface of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u32);

/// Local address with its permitted uses (the kernel's endpoint flags). Address identifier 0 is the
/// one on which the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the kernel's independent endpoint flags")]
pub struct LocalAddress {
    /// Address identifier on the wire, 1 to 255, the same in all connections of the host.
    pub address_id: u8,
    /// Local address without a port.
    pub address: IpAddr,
    /// Port to announce, if not that of the connection.
    pub port: Option<u16>,
    /// Interface that has the address.
    pub interface: InterfaceId,
    /// True if the interface is up.
    pub up: bool,
    /// True to open subflows from the address.
    pub subflow: bool,
    /// True to announce the address to the peer (ADD_ADDR).
    pub signal: bool,
    /// True if subflows from the address are backups.
    pub backup: bool,
    /// True to open subflows from the address to every address of the peer.
    pub fullmesh: bool,
    /// True to use the address for subflows to an announced address (Linux 6.18, `laminar`).
    pub laminar: bool,
}

/// Address that the peer announced; identifier 0 is the one on which the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Address identifier chosen by the peer.
    pub address_id: u8,
    /// Address and port to connect to.
    pub address: SocketAddr,
}

/// Subflow, as a path manager sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowView {
    /// Path slot of the subflow.
    pub id: PathId,
    /// Local address and port.
    pub local: SocketAddr,
    /// Peer's address and port.
    pub remote: SocketAddr,
    /// Identifier of our address; 0 for the initial one.
    pub local_id: u8,
    /// Identifier of the peer's address.
    pub remote_id: u8,
    /// True if the handshake is complete.
    pub established: bool,
    /// True if either end marked the subflow as a backup.
    pub backup: bool,
}

/// Connection, as its path manager sees it.
#[derive(Debug, Clone, Copy)]
pub struct PathManagerView<'a> {
    /// Time of the event.
    pub now: Instant,
    /// True if we opened the connection.
    pub client: bool,
    /// The host's addresses, in the order in which they were configured.
    pub local: &'a [LocalAddress],
    /// Known addresses of the peer, the initial one first.
    pub remote: &'a [RemoteAddress],
    /// True if the peer forbids subflows to its initial address and port (C flag, RFC 8684 §3.1).
    pub no_join_to_initial: bool,
    /// Existing subflows, including half-open ones.
    pub subflows: &'a [SubflowView],
    /// Maximum number of subflows, excluding the first.
    pub subflow_limit: u8,
    /// Maximum number of announced addresses that get a subflow.
    pub accept_limit: u8,
}

/// Event of a connection, for its path manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathManagerEvent {
    /// Multipath TCP is confirmed: subflows may be opened from now on.
    Established,
    /// The peer announced an address.
    Announced(RemoteAddress),
    /// The peer withdrew the address with this identifier; its subflows are being closed.
    Withdrawn(u8),
    /// A local address has appeared or come up, or its use has changed.
    LocalChanged,
    /// A local address was removed or its interface is down; its subflows are being closed.
    LocalGone {
        /// Identifier of the local address that is gone.
        address_id: u8,
    },
    /// A subflow's handshake is complete.
    SubflowEstablished(PathId),
    /// A subflow was closed (or its handshake failed).
    SubflowClosed {
        /// State of the subflow before it was closed.
        subflow: SubflowView,
        /// True after an error, false after a regular close or a request of ours.
        failed: bool,
        /// True if another attempt may succeed (not after `MP_TCPRST` without T flag).
        may_retry: bool,
    },
    /// The time requested by [`PathManager::poll_timeout`] has come.
    Timeout,
}

/// Action that a path manager requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathManagerAction {
    /// Open a subflow (MP_JOIN).
    Open {
        /// Identifier of our address; 0 for the initial one.
        local_id: u8,
        /// Local address of the new subflow.
        local: IpAddr,
        /// Identifier of the peer's address.
        remote_id: u8,
        /// Peer's address and port.
        remote: SocketAddr,
        /// True if the subflow starts as a backup.
        backup: bool,
    },
    /// Announce an address (ADD_ADDR), until the peer echoes it.
    Announce {
        /// Address identifier to announce.
        address_id: u8,
        /// Address to announce to the peer.
        address: IpAddr,
        /// Port to announce, if not that of the connection.
        port: Option<u16>,
    },
    /// Withdraw an announced address (REMOVE_ADDR).
    Withdraw {
        /// Address identifier to withdraw.
        address_id: u8,
    },
    /// Close the subflow with this slot.
    Close(PathId),
    /// Change a subflow's priority (`MP_PRIO`).
    SetBackup {
        /// Path slot of the subflow.
        subflow: PathId,
        /// New priority: true for a backup.
        backup: bool,
    },
}

/// Decides which subflows a connection has; each connection has its own.
pub trait PathManager: fmt::Debug + Send {
    /// Handles `event` and adds its actions to `actions`.
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    );

    /// Returns the time when the path manager needs [`PathManagerEvent::Timeout`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// Registry entry of a path manager.
#[derive(Debug, Clone, Copy)]
pub struct PathManagerEntry {
    /// Name used in scenarios and settings.
    pub name: &'static str,
    /// Description in one line, for users.
    pub about: &'static str,
    /// Creates the path manager of one connection.
    pub make: fn() -> Box<dyn PathManager>,
}

/// Every path manager, the default first.
pub const ALL: &[PathManagerEntry] = &[
    PathManagerEntry {
        name: "default",
        about: "as Linux does with endpoints: subflow, signal, backup, fullmesh, laminar",
        make: || Box::new(endpoints::Endpoints::default()),
    },
    PathManagerEntry {
        name: "rejoin",
        about: "default, and failed subflows are opened again after 1 s to 60 s",
        make: || Box::new(rejoin::Rejoin::default()),
    },
    PathManagerEntry {
        name: "fullmesh",
        about: "every address of ours with every address of the peer (mptcp.org)",
        make: || Box::new(fullmesh::Fullmesh::default()),
    },
    PathManagerEntry {
        name: "ndiffports",
        about: "two subflows between the first addresses, from different ports (mptcp.org)",
        make: || Box::new(ndiffports::Ndiffports),
    },
    PathManagerEntry {
        name: "single",
        about: "only the first subflow, nothing announced",
        make: || Box::new(single::Single),
    },
];

/// No path manager has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown path manager `{name}`, expected one of: {}", names())]
pub struct UnknownPathManager {
    name: String,
}

fn names() -> String {
    ALL.iter().map(|entry| entry.name).collect::<Vec<_>>().join(", ")
}

/// Returns the path manager of this name.
pub fn by_name(name: &str) -> Result<Box<dyn PathManager>, UnknownPathManager> {
    let entry = ALL.iter().find(|entry| entry.name == name);
    entry.map(|entry| (entry.make)()).ok_or_else(|| UnknownPathManager { name: name.to_owned() })
}

// The examples of the documentation, which also show `towpath-multipath`, compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/guides/extend-the-stack.md")]
struct Extending;
