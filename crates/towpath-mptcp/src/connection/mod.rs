//! Several subflows as one connection (RFC 8684), or one subflow as plain TCP.

use std::time::Duration;

use towpath_multipath::opportunistic::Switches;

use crate::subflow;

/// How a connection behaves.
#[derive(Debug, Clone)]
pub struct Config {
    /// Offer or accept Multipath TCP; else plain TCP.
    pub multipath: bool,
    /// Each subflow.
    pub subflow: subflow::Config,
    /// Name in [`towpath_multipath::scheduler::ALL`].
    pub scheduler: String,
    /// Name in [`crate::path_manager::ALL`].
    pub path_manager: String,
    /// M1 and M2.
    pub opportunistic: Switches,
    /// Require DSS checksums.
    pub checksum: bool,
    /// C flag: ask the peer not to open subflows to our initial address and port.
    pub no_join_to_initial: bool,
    /// Accept MP_JOIN at all.
    pub accept_joins: bool,
    /// Most subflows besides the first.
    pub subflow_limit: u8,
    /// Most announced addresses that are answered.
    pub accept_limit: u8,
    /// Send buffer: bytes that are not acknowledged at connection level.
    pub send_buffer_bytes: u64,
    /// Receive buffer.
    pub receive_buffer: ReceiveBuffer,
    /// Packet size: each subflow's own, or the smallest of all (seed 003).
    pub smallest_mss: bool,
    /// Wait for full packets while data is unacknowledged (RFC 9293 §3.7.4).
    pub nagle: bool,
    /// Unanswered ADD_ADDR is repeated after this time.
    pub add_address_timeout: Duration,
    /// A connection without subflows is kept for so long (break before make; Linux `close_timeout`).
    pub close_timeout: Duration,
    /// Timeouts in a row after which a subflow is stale (Linux `stale_loss_cnt`).
    pub stale_after_timeouts: u32,
    /// Lost MP_CAPABLE SYNs after which the SYN is sent without (Linux: 2).
    pub syn_retries_with_multipath: u32,
}

/// How much may wait at the receiver: in order and unread, out of order, at both levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveBuffer {
    /// How it grows.
    pub mode: ReceiveBufferMode,
    /// At first (`fixed`: always). Bytes of memory; the window is a share of it.
    pub initial_bytes: u64,
    /// At most.
    pub max_bytes: u64,
    /// Share of the memory that the window offers, in percent (Linux: about half; ideal: 100).
    pub window_percent: u32,
}

/// How the receive buffer grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceiveBufferMode {
    /// Not at all.
    Fixed,
    /// Linux: dynamic right-sizing, twice what the application read in the longest subflow's
    /// round-trip time.
    Linux,
    /// Seed 003 §4.1: 2 · Σ bandwidth · longest round-trip time.
    Seed003,
}
