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

pub use addresses::{InterfacePolicy, InterfaceUse};
pub use driver::{ConnectionEvent, DriverContext, HostConfig, QuicHandle, StreamHandler};
pub(crate) use sockets::ListenerSocket;
pub(crate) use stream::wait_interruptibly;
pub use stream::{BlockingConnection, BlockingListener, BlockingStream};

/// Names of the congestion controls that QUIC has here.
pub fn known_quic_names() -> Vec<&'static str> {
    towpath_quic::congestion::names().map(|(name, _)| name).collect()
}
