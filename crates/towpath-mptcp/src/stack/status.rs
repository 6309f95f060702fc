//! The state of a connection, for series and proofs.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_multipath::PathId;

use crate::subflow;

use super::InterfaceId;
use super::event::FallbackReason;

/// State of a connection, for series and proofs.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionStatus {
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Whether the handshake is complete.
    pub established: bool,
    /// Whether it speaks Multipath TCP (and has not fallen back).
    pub multipath: bool,
    /// Why not, if it was asked for.
    pub fallback: Option<FallbackReason>,
    /// Whether DSS checksums are in use.
    pub checksum: bool,
    /// All subflows, the closed ones too, by number.
    pub subflows: Vec<SubflowStatus>,
    /// Application bytes that were written.
    pub written_bytes: u64,
    /// Bytes that the peer acknowledged at connection level.
    pub acked_bytes: u64,
    /// Application bytes that can be or were read.
    pub received_bytes: u64,
    /// Bytes that wait for earlier data, at both levels.
    pub reorder_bytes: u64,
    /// Most of them so far.
    pub reorder_peak_bytes: u64,
    /// The receive buffer as it is now.
    pub receive_buffer_bytes: u64,
    /// Bytes sent again on another subflow, by cause.
    pub reinjected_bytes: [u64; 5],
    /// Payload bytes that arrived and were not needed any more: copies that a subflow or the connection
    /// had already, and what was refused.
    pub discarded_bytes: u64,
    /// Times M2 acted.
    pub penalisations: u64,
    /// Time during which data and room were there, but the connection-level window was full.
    pub window_blocked: Duration,
}

/// A subflow's part of [`ConnectionStatus`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowStatus {
    /// Number, never reused; 0 is the first.
    pub number: u32,
    /// Slot.
    pub path: PathId,
    /// Interface.
    pub interface: InterfaceId,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Identifiers of the two addresses.
    pub address_ids: (u8, u8),
    /// State.
    pub state: subflow::TcpState,
    /// Whether either end wants it as a backup.
    pub backup: bool,
    /// Whether it is stale.
    pub stale: bool,
    /// Name of the congestion control that it really uses.
    pub congestion_control: &'static str,
    /// TCP's figures.
    pub tcp: subflow::SubflowStats,
}
