//! What a stack does beside the protocol when anybody may talk to it (RFC 4987).
//!
//! Whoever can send a packet can give it any source address, so that a handshake that nobody completes
//! must cost next to nothing. A listener whose backlog is full, or of which one source has its share,
//! answers by a cookie ([`super::cookies`]) and keeps nothing. Of a subflow that a peer begins to open,
//! one place in a table of fixed size is kept until the peer has proven itself
//! ([`super::half_joins`]); the connection does not know of it before. No more connections are in
//! TIME-WAIT than [`super::Config::time_wait_limit`] says. What else a stranger might guess, numbers and
//! ports, follows from a secret of 128 bits.
//!
//! What it does not do: limit connections that were completed, which is the application's, or the rate
//! of packets, which is the driver's.

use std::collections::VecDeque;
use std::fmt;

use super::ConnectionId;
use super::half_joins::PendingJoinTable;
pub use super::secrets::SECRET_BYTES;

/// How a stack treats strangers, see [`super::Stack::with_syn_flood_protection`].
#[derive(Clone, PartialEq, Eq)]
pub struct SynFloodProtection {
    /// From the system's random numbers, drawn for this stack alone: who knows it, knows every number
    /// that the stack draws.
    pub secret: [u8; SECRET_BYTES],
    /// Half-open connections that one source (an IPv4 address, 64 bits of IPv6) may have, over all
    /// listeners. Beyond, it gets cookies.
    pub half_open_per_source: usize,
    /// SYN/ACKs that are repeated before a half-open connection is given up: with the usual timeout, 3
    /// take 15 seconds.
    pub syn_ack_retries: u32,
}

impl fmt::Debug for SynFloodProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret: _, half_open_per_source, syn_ack_retries } = self;
        f.debug_struct("Strangers")
            .field("half_open_per_source", half_open_per_source)
            .field("syn_ack_retries", syn_ack_retries)
            .finish_non_exhaustive()
    }
}

impl SynFloodProtection {
    /// The usual limits.
    pub fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self { secret, half_open_per_source: 16, syn_ack_retries: 3 }
    }
}

/// What the stack keeps for it.
#[derive(Debug)]
pub(super) struct SynFloodState {
    pub(super) half_open_per_source: usize,
    pub(super) syn_ack_retries: u32,
    pub(super) joins: PendingJoinTable,
    /// Connections that are over and in TIME-WAIT, the oldest first; some may be gone.
    pub(super) waiting: VecDeque<ConnectionId>,
}

impl SynFloodState {
    pub(super) fn new(strangers: &SynFloodProtection) -> Self {
        let SynFloodProtection { secret: _, half_open_per_source, syn_ack_retries } = *strangers;
        Self {
            half_open_per_source,
            syn_ack_retries,
            joins: PendingJoinTable::default(),
            waiting: VecDeque::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_secret_is_not_printed() {
        let printed = format!("{:?}", SynFloodProtection::new([0xab; SECRET_BYTES]));
        assert_eq!(printed, "Strangers { half_open_per_source: 16, syn_ack_retries: 3, .. }");
    }
}
