//! Status of a connection, for time series and tests.

use std::net::SocketAddr;
use std::time::Duration;

use towpath_multipath::PathId;

use crate::subflow;

use super::InterfaceId;
use super::event::FallbackReason;

/// Status of a connection, for time series and tests.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionStatus {
    /// Local address of the first subflow.
    pub local: SocketAddr,
    /// Peer's address of the first subflow.
    pub remote: SocketAddr,
    /// True if the handshake is complete.
    pub established: bool,
    /// True if Multipath TCP is in use (and has not fallen back).
    pub multipath: bool,
    /// Reason for the fallback, if Multipath TCP was requested.
    pub fallback: Option<FallbackReason>,
    /// True if DSS checksums are in use.
    pub checksum: bool,
    /// All subflows by number, including closed ones.
    pub subflows: Vec<SubflowStatus>,
    /// Application bytes written so far.
    pub written_bytes: u64,
    /// Bytes that the peer acknowledged at connection level.
    pub acked_bytes: u64,
    /// Application bytes that were read or can be read.
    pub received_bytes: u64,
    /// Bytes that arrived out of order, at both levels.
    pub reorder_bytes: u64,
    /// Maximum of `reorder_bytes` so far.
    pub reorder_peak_bytes: u64,
    /// Current size of the receive buffer.
    pub receive_buffer_bytes: u64,
    /// Bytes reinjected on another subflow, by cause.
    pub reinjected_bytes: [u64; 5],
    /// Payload bytes that arrived and were discarded: refused data, and copies of data that the
    /// subflow or the connection had already received.
    pub discarded_bytes: u64,
    /// Penalisations: times that M2 halved a window.
    pub penalisations: u64,
    /// Time with data and room for it, but a full connection-level window.
    pub window_blocked: Duration,
}

/// A subflow's part of [`ConnectionStatus`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SubflowStatus {
    /// Number within the connection, never reused; the first subflow has 0.
    pub number: u32,
    /// Path slot of the subflow.
    pub path: PathId,
    /// Interface that the subflow uses.
    pub interface: InterfaceId,
    /// Local address and port.
    pub local: SocketAddr,
    /// Peer's address and port.
    pub remote: SocketAddr,
    /// Identifiers of our address and the peer's.
    pub address_ids: (u8, u8),
    /// TCP state of the subflow (RFC 9293).
    pub state: subflow::TcpState,
    /// True if either end marked the subflow as a backup.
    pub backup: bool,
    /// True if the subflow is stale.
    pub stale: bool,
    /// Name of the congestion control actually in use.
    pub congestion_control: &'static str,
    /// TCP statistics of the subflow.
    pub tcp: subflow::SubflowStats,
}
