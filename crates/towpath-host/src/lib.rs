//! This host: how it looks, what it can do, and how it is changed.
//!
//! - [`setup`]: what a host needs for Multipath TCP, applied and undone
//! - [`exec`]: any program over Multipath TCP
//! - [`monitor`]: connections, subflows and events; [`capture`]: packets
//! - [`snapshot`]: the network state that a diagnosis reads
//! - [`preflight`]: prerequisites of runs and commands

#![expect(clippy::disallowed_methods, reason = "this crate reads the real clock")]

pub mod capture;
pub mod exec;
mod interface_map;
pub mod monitor;
pub mod preflight;
pub mod setup;
pub mod snapshot;
