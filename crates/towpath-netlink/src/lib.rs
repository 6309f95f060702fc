//! Netlink client: links, addresses, routes, queues, MPTCP endpoints, sockets, events.
//!
//! No other program (`ip`, `tc`, `ss`) is run. Every socket belongs to the network namespace of
//! the thread that opened it and keeps it, so one thread can hold sockets of several namespaces.
//! Numbers are in the host's byte order. Parsers never panic: the kernel's replies are parsed as
//! strictly as bytes from a network.

mod counters;
mod diag;
mod error;
mod link_events;
mod mptcp;
mod prefix;
mod route;
mod socket;
mod wire;

pub use counters::{MibCounters, UnreadableCounters};
pub use diag::{
    DestroyedSockets, DiagSocket, SocketDiag, StateFilter, SubflowFlags, SubflowInfo, TcpState,
};
pub use error::{NetlinkError, NetlinkErrorKind};
pub use link_events::{LinkEvent, LinkEvents};
pub use mptcp::{
    Endpoint, EndpointFlags, MptcpEvent, MptcpEventKind, MptcpEvents, MptcpLimits, MptcpPm,
};
pub use prefix::{InvalidPrefix, Prefix};
pub use route::{
    InterfaceAddress, Link, LinkStats, NextHop, OperationalState, QdiscStats, RouteEntry,
    RouteKind, RouteQuery, RouteSocket, RouteSpec, RuleAction, RuleEntry, RuleSpec, Tbf, VethEnd,
};
pub use socket::EventBatch;
pub use wire::{Malformed, u32_at};
