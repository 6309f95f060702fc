//! QUIC over the system's UDP sockets.
//!
//! Reading order: `sockets` (datagrams in and out), `addresses` (what the kernel says of interfaces
//! and their addresses), `others` (datagrams that are not QUIC), `driver` (the thread that owns a [`towpath_quic::Host`], its sockets and the
//! clock), `stream` (connections and streams for other threads, which wait).

mod addresses;
mod driver;
mod others;
mod sockets;
mod stream;
#[cfg(test)]
mod tests;

pub use addresses::{Interfaces, Usage};
pub use driver::{End, Happened, Host, HostConfig, Turn};
pub(crate) use sockets::Outlet;
pub(crate) use stream::in_steps;
pub use stream::{Connection, Listener, Stream};

/// Names of the congestion controls that QUIC has here.
pub fn known_quic_names() -> Vec<&'static str> {
    towpath_quic::congestion::names().map(|(name, _)| name).collect()
}
