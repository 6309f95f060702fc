//! Events of links, addresses and routes, as they happen.
//!
//! MPTCP's own events do not report that a link goes down; these do.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_sys::protocols::NETLINK_ROUTE;

use super::error::NetlinkError;
use super::route::{InterfaceAddress, Link, RouteEntry};
use super::socket::{EventBatch, EventSocket};
use super::wire::{Malformed, Message};

/// Change of the network configuration of one namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkEvent {
    /// A link is new or has changed: compare it with its last known state.
    Link(Link),
    /// A link is gone: deleted, or moved to another namespace.
    LinkRemoved(Link),
    /// An interface has a new address, or an address's flags have changed.
    AddressAdded(InterfaceAddress),
    /// An interface has lost an address.
    AddressRemoved(InterfaceAddress),
    /// A route is new or replaces another.
    RouteAdded(RouteEntry),
    /// A route is gone. Linux does not announce the IPv4 routes removed with a link that is set
    /// down.
    RouteRemoved(RouteEntry),
}

/// Stream of [`LinkEvent`]s; needs no privilege. The descriptor polls readable when events are
/// pending.
#[derive(Debug)]
pub struct LinkEvents {
    events: EventSocket,
}

impl LinkEvents {
    /// Subscribes to links and addresses of the calling thread's network namespace.
    pub fn open() -> Result<Self, NetlinkError> {
        let groups = [libc::RTNLGRP_LINK, libc::RTNLGRP_IPV4_IFADDR, libc::RTNLGRP_IPV6_IFADDR];
        Self::subscribe(&groups)
    }

    /// Subscribes to routes as well.
    pub fn open_with_routes() -> Result<Self, NetlinkError> {
        Self::subscribe(&[
            libc::RTNLGRP_LINK,
            libc::RTNLGRP_IPV4_IFADDR,
            libc::RTNLGRP_IPV6_IFADDR,
            libc::RTNLGRP_IPV4_ROUTE,
            libc::RTNLGRP_IPV6_ROUTE,
        ])
    }

    /// Reads the pending events; never blocks. After a loss, list links and addresses again.
    pub fn drain(&mut self) -> Result<EventBatch<LinkEvent>, NetlinkError> {
        self.events.drain("read link events", LinkEvent::parse)
    }

    fn subscribe(groups: &[u32]) -> Result<Self, NetlinkError> {
        let events = EventSocket::open(NETLINK_ROUTE, groups, "subscribe to link events")?;
        Ok(Self { events })
    }
}

impl AsFd for LinkEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }
}

impl AsRawFd for LinkEvents {
    fn as_raw_fd(&self) -> RawFd {
        self.events.as_raw_fd()
    }
}

impl LinkEvent {
    fn parse(message: &Message<'_>) -> Result<Option<Self>, Malformed> {
        Ok(match message.kind {
            libc::RTM_NEWLINK => Link::parse(message)?.map(Self::Link),
            libc::RTM_DELLINK => Link::parse(message)?.map(Self::LinkRemoved),
            libc::RTM_NEWADDR => Some(Self::AddressAdded(InterfaceAddress::parse(message)?)),
            libc::RTM_DELADDR => Some(Self::AddressRemoved(InterfaceAddress::parse(message)?)),
            libc::RTM_NEWROUTE => RouteEntry::parse(message)?.map(Self::RouteAdded),
            libc::RTM_DELROUTE => RouteEntry::parse(message)?.map(Self::RouteRemoved),
            _ => None,
        })
    }
}

#[cfg(test)]
#[cfg(target_endian = "little")]
mod tests {
    use super::*;
    use crate::wire::tests::{never_panics, parse_all};

    const RECORDED: [&str; 3] = [
        include_str!("recorded/link.hex"),
        include_str!("recorded/addresses.hex"),
        include_str!("recorded/routes.hex"),
    ];

    #[test]
    fn a_message_type_determines_the_event() {
        let [link, addresses, _] = RECORDED;
        let events = parse_all(link, |message| LinkEvent::parse(message).unwrap());
        assert!(matches!(&events[..], [Some(LinkEvent::Link(link))] if link.name == "wifi"));
        let removed = |message: &Message<'_>| {
            LinkEvent::parse(&Message { kind: message.kind + 1, ..*message }).unwrap()
        };
        let events = parse_all(link, removed);
        assert!(matches!(&events[..], [Some(LinkEvent::LinkRemoved(_))]), "{events:?}");
        let events = parse_all(addresses, removed);
        assert!(matches!(&events[0], Some(LinkEvent::AddressRemoved(_))), "{events:?}");
        let other = |message: &Message<'_>| LinkEvent::parse(&Message { kind: 99, ..*message });
        assert_eq!(parse_all(link, other), [Ok(None)]);
    }

    #[test]
    fn no_link_event_panics() {
        for recorded in RECORDED {
            never_panics(recorded, LinkEvent::parse);
        }
    }
}
