//! QUIC (RFC 9000 to 9002) and Multipath QUIC (draft-ietf-quic-multipath-21): both roles, no
//! sockets, no clock.
//!
//! The protocol is `noq-proto`'s. What this crate adds is what the rest of towpath needs around it: a
//! [`QuicStack`] with addresses that come and go, path policies with a path monitor of their own, the
//! congestion controls of `towpath-multipath` coupled over all paths of a connection, and figures
//! for each path. Equal seeds and equal calls give datagrams of equal lengths at equal times; their
//! bytes differ, because TLS draws its keys from the system.
//!
//! What the library cannot do is said in `docs/quic.md`: it has no scheduler to choose, repeats
//! data on another path only when the old one is given up, and acknowledges on the first path.
//!
//! Reading order: [`host`] (sockets, datagrams in and out), `connection` (what happens to one),
//! `paths` (opened, watched, given up) and `policy` (why), `streams`, [`congestion`], [`status`],
//! [`config`], `certificate`, [`identity`], [`tls`].

mod certificate;
pub mod config;
pub mod congestion;
mod connection;
pub mod error;
#[cfg(test)]
mod guarded;
pub mod host;
pub mod identity;
#[cfg(test)]
mod interop;
mod paths;
mod policy;
mod qlog;
pub mod status;
mod streams;
#[cfg(test)]
mod tests;
mod time;
pub mod tls;
pub mod words;

/// What speaks the protocol.
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
