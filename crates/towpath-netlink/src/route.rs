//! Links, addresses, neighbours, routes, rules and queueing disciplines (`NETLINK_ROUTE`).

mod address;
mod link;
mod neighbour;
mod qdisc;
mod rule;
mod table;

use std::fmt;

pub use address::InterfaceAddress;
pub use link::{Link, LinkStats, OperationalState, VethEnd};
use netlink_sys::protocols::NETLINK_ROUTE;
pub use qdisc::{QdiscStats, Tbf};
pub use rule::{RuleAction, RuleEntry, RuleSpec};
pub use table::{NextHop, RouteEntry, RouteKind, RouteQuery, RouteSpec};

use super::error::NetlinkError;
use super::socket::RequestSocket;

/// Requests about the network configuration of one namespace.
///
/// Links are identified by name. Changes need `CAP_NET_ADMIN` in the namespace; reading needs no
/// privilege.
#[derive(Debug)]
pub struct RouteSocket {
    requests: RequestSocket,
}

impl RouteSocket {
    /// Opens a socket in the calling thread's network namespace, which it keeps.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { requests: RequestSocket::open(NETLINK_ROUTE, "open a route socket")? })
    }

    /// Returns the index of `link`; an error names `action` as the failed request.
    fn index(&mut self, link: &str, action: fmt::Arguments<'_>) -> Result<u32, NetlinkError> {
        self.get_link(link, action).map(|link| link.index)
    }
}
