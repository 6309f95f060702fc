//! Measurements between two real hosts.
//!
//! - [`protocol`]: messages of server and client, without sockets and clocks

pub mod protocol;
