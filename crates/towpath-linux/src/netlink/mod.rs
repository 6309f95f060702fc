//! Netlink spoken directly: links, addresses, routes, queues, MPTCP endpoints, sockets, events.
//!
//! No other program (`ip`, `tc`, `ss`) is run. Every socket belongs to the network namespace of
//! the thread that opened it and keeps it, so one thread can hold sockets of several namespaces.
//! Numbers in the host's byte order and no panic on anything received: what the kernel says is
//! parsed as strictly as what comes from a network.

mod counters;

pub use counters::{Counters, UnreadableCounters};
