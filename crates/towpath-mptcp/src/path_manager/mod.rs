//! Path managers: which subflows there should be, and which addresses the peer should know.
//!
//! To add one: a file in this folder, a line in [`ALL`], a test.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use towpath_multipath::PathId;
use towpath_net::Instant;

mod endpoints;
mod fullmesh;
mod ndiffports;
mod opening;
mod rejoin;
mod single;
#[cfg(test)]
mod tests;

/// An interface of the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceId(pub u32);

/// One of the host's addresses, with what the user allows it to be used for (the kernel's endpoint
/// flags). Address identifier 0 is the one on which the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the kernel's independent endpoint flags")]
pub struct LocalAddress {
    /// Its identifier on the wire, 1 to 255, the same in all connections of the host.
    pub address_id: u8,
    /// Address.
    pub address: IpAddr,
    /// Port to announce, if not that of the connection.
    pub port: Option<u16>,
    /// Interface.
    pub interface: InterfaceId,
    /// Whether the interface is up.
    pub up: bool,
    /// Open subflows from it.
    pub subflow: bool,
    /// Announce it.
    pub signal: bool,
    /// Subflows from it are backups.
    pub backup: bool,
    /// Open subflows from it to every address of the peer.
    pub fullmesh: bool,
    /// Answer an announced address from it (Linux 6.18, `laminar`).
    pub laminar: bool,
}

/// An address that the peer announced; identifier 0 is the one on which the connection began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress {
    /// Identifier.
    pub address_id: u8,
    /// Address and port.
    pub address: SocketAddr,
}

/// A subflow, as a path manager sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubflowView {
    /// Which.
    pub id: PathId,
    /// Our address and port.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Identifier of our address.
    pub local_id: u8,
    /// Identifier of the peer's address.
    pub remote_id: u8,
    /// Whether the handshake is complete.
    pub established: bool,
    /// Whether either end wants it to be a backup.
    pub backup: bool,
}

/// A connection, as its path manager sees it.
#[derive(Debug, Clone, Copy)]
pub struct PathManagerView<'a> {
    /// Now.
    pub now: Instant,
    /// Whether we opened the connection.
    pub client: bool,
    /// The host's addresses, in the order in which they were configured.
    pub local: &'a [LocalAddress],
    /// The peer's addresses that we know, the initial one first.
    pub remote: &'a [RemoteAddress],
    /// Whether the peer forbids subflows to its initial address and port (C flag, RFC 8684 §3.1).
    pub no_join_to_initial: bool,
    /// Subflows that exist, the half-open too.
    pub subflows: &'a [SubflowView],
    /// Most subflows besides the first.
    pub subflow_limit: u8,
    /// Most announced addresses that are answered with a subflow.
    pub accept_limit: u8,
}

/// What happened to a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathManagerEvent {
    /// Multipath TCP is in full use: subflows may be opened from now on.
    Established,
    /// The peer announced an address.
    Announced(RemoteAddress),
    /// The peer withdrew the address with this identifier; its subflows are being closed.
    Withdrawn(u8),
    /// An address of ours, or what it is used for, has changed, appeared or come up.
    LocalChanged,
    /// An address of ours is gone or its interface is down; its subflows are being closed.
    LocalGone {
        /// Identifier.
        address_id: u8,
    },
    /// A subflow's handshake is complete.
    SubflowEstablished(PathId),
    /// A subflow is gone (or its handshake failed).
    SubflowClosed {
        /// It, as it was.
        subflow: SubflowView,
        /// Whether it was an error and not an orderly close or a request of ours.
        failed: bool,
        /// Whether trying again may help (not: `MP_TCPRST` without T flag).
        retry: bool,
    },
    /// The time asked for by [`PathManager::poll_timeout`].
    Timeout,
}

/// What a path manager wants done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathManagerAction {
    /// Open a subflow (MP_JOIN).
    Open {
        /// Identifier of our address; 0 for the initial one.
        local_id: u8,
        /// From.
        local: IpAddr,
        /// Identifier of the peer's address.
        remote_id: u8,
        /// To.
        remote: SocketAddr,
        /// Whether it begins as a backup.
        backup: bool,
    },
    /// Announce an address (ADD_ADDR), until the peer echoes it.
    Announce {
        /// Identifier.
        address_id: u8,
        /// Address.
        address: IpAddr,
        /// Port, if not that of the connection.
        port: Option<u16>,
    },
    /// Withdraw an announced address (REMOVE_ADDR).
    Withdraw {
        /// Identifier.
        address_id: u8,
    },
    /// Close a subflow.
    Close(PathId),
    /// Change a subflow's priority (`MP_PRIO`).
    SetBackup {
        /// Which.
        subflow: PathId,
        /// To.
        backup: bool,
    },
}

/// Decides which subflows a connection has. One for each connection.
pub trait PathManager: fmt::Debug + Send {
    /// Notes `event` and adds what is to be done to `actions`.
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    );

    /// When it wants [`PathManagerEvent::Timeout`].
    fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}

/// One path manager for users to choose.
#[derive(Debug, Clone, Copy)]
pub struct PathManagerEntry {
    /// Name in scenarios.
    pub name: &'static str,
    /// One line for people.
    pub about: &'static str,
    /// Makes one for a connection.
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

/// The path manager of this name.
pub fn by_name(name: &str) -> Result<Box<dyn PathManager>, UnknownPathManager> {
    let found = ALL.iter().find(|entry| entry.name == name);
    found.map(|entry| (entry.make)()).ok_or_else(|| UnknownPathManager { name: name.to_owned() })
}

// The examples of the documentation, which also show `towpath-multipath`, compile and run.
#[cfg(doctest)]
#[doc = include_str!("../../../../docs/extending.md")]
struct Extending;
