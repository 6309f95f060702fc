//! QUIC (RFC 9000 to 9002) and Multipath QUIC (draft-ietf-quic-multipath-21): both roles, no
//! sockets, no clock.
//!
//! The protocol implementation is `noq-proto`. This crate adds a [`QuicStack`] with addresses that
//! come and go, and path policies with their own path monitor. It couples the congestion controls
//! of `towpath-multipath` over all paths of a connection and exposes per-path metrics. Equal seeds
//! and equal calls give datagrams of equal lengths at equal times. Their bytes differ, because TLS
//! draws its keys from the system.
//!
//! `docs/explanation/quic.md` lists the limits of the library. It has no selectable scheduler, reinjects data
//! on another path only when the old one is abandoned, and acknowledges on the first path.
//!
//! Reading order: [`host`] (sockets, datagrams in and out), `connection` (one connection), `paths`
//! (opened, monitored, abandoned) and `policy` (decisions), `streams`, [`congestion`], [`status`],
//! [`config`], `certificate`, [`identity`], [`tls`].

mod certificate;
pub mod config;
pub mod congestion;
mod connection;
pub mod error;
pub mod evidence;
#[cfg(test)]
mod hardening;
pub mod host;
pub mod identity;
#[cfg(test)]
mod interop;
mod paths;
mod policy;
mod qlog;
#[cfg(test)]
mod reflection;
mod remotes;
pub mod status;
mod streams;
#[cfg(test)]
mod tests;
mod time;
pub mod tls;

/// Name and version of the protocol library, for results.
pub const QUIC_LIBRARY: &str = "noq-proto 1.4";

pub use config::{AddressValidation, PathPolicy, QuicConfig};
pub use error::{ConnectionError, OpenError, StreamError};
pub use host::{Datagram, IncomingDatagrams, LocalAddress, OutgoingDatagrams, QuicStack};
pub use identity::{Fingerprint, Identity, Trust};
pub use qlog::Qlog;
pub use status::{
    AbandonReason, ConnectionId, ConnectionStatus, ListenerId, MULTIPATH_DRAFT, PathNotice,
    PathState, PathStatus, QuicEvent, StreamId, SwitchReason,
};
