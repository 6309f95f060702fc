//! Byte streams of flows, over the kernel's sockets, our own stack and QUIC.
//!
//! - [`kernel`]: transfers over the kernel's sockets, by threads that block
//! - [`messages`]: messages over the kernel's sockets, by one thread for each end
//! - [`socket_stream`]: a socket, with TLS or without
//! - [`app`]: an application in the thread of our own stack or of QUIC
//! - [`quic`]: connections of QUIC hosts, and their streams

use std::io;
use std::time::Duration;

use towpath_scenario::{DataDirection, Transport};

pub mod app;
pub mod kernel;
pub mod messages;
pub mod quic;
pub mod socket_stream;

/// Maximum time that a socket call blocks before it checks the clock.
pub const IO_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Returns true if this end sends data of `direction`, false if it receives it.
pub fn sends(direction: DataDirection, is_client: bool) -> bool {
    (direction != DataDirection::Down) == is_client
}

/// Explains why a flow cannot start.
pub fn explain(error: &io::Error, transport: Transport, host: &str) -> String {
    match error.raw_os_error() {
        Some(libc::ENOPROTOOPT) if transport == Transport::Mptcp => {
            format!("Multipath TCP is disabled on `{host}` (net.mptcp.enabled = 0)")
        }
        Some(libc::EPROTONOSUPPORT | libc::EINVAL) if transport == Transport::Mptcp => {
            "this kernel does not support Multipath TCP (it needs Linux 5.16 with CONFIG_MPTCP)"
                .to_owned()
        }
        _ => error.to_string(),
    }
}
