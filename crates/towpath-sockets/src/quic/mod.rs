//! QUIC over the system's UDP sockets.
//!
//! Reading order:
//!
//! - `sockets`: datagrams in and out
//! - `addresses`: interfaces and addresses of the kernel
//! - `non_quic`: datagrams other than QUIC
//! - `driver`: the thread that owns a [`towpath_quic::QuicStack`], its sockets and the clock
//! - `blocking`: connections and streams for threads that block

mod addresses;
mod blocking;
mod driver;
mod non_quic;
mod sockets;
#[cfg(test)]
mod tests;

pub use addresses::{InterfacePolicy, InterfaceUse};
pub use blocking::wait_interruptibly;
pub use blocking::{BlockingConnection, BlockingListener, BlockingStream};
pub use driver::{ConnectionEvent, DriverContext, HostConfig, QuicHandle, StreamHandler};
pub use sockets::ListenerSocket;

/// Returns the names of the available QUIC congestion controls.
pub fn known_quic_names() -> Vec<&'static str> {
    towpath_quic::congestion::names().map(|(name, _)| name).collect()
}
