//! Protection against unauthenticated clients, in addition to the protocol (RFC 4987).
//!
//! A sender can forge any source address, so an incomplete handshake must cost almost
//! nothing. A listener with a full backlog, or one source at its limit, gets a cookie
//! ([`super::cookies`]), and no state is kept. A subflow that a peer begins to open takes one entry
//! in a table of fixed size until the peer is authenticated ([`super::pending_joins`]). The
//! connection does not know of it before. At most [`super::StackConfig::time_wait_limit`]
//! connections are in TIME-WAIT. Sequence numbers and ports follow from a secret of 128 bits.
//!
//! A stack must not be a reflector either: an address that has not answered gets at most three times
//! the bytes of the packets that caused it (`amplification` in [`crate::connection`]). SYNs to
//! addresses that peers announced also have a rate limit ([`super::join_syns`]).
//!
//! Not limited here: completed connections, which are the application's task, and the packet rate,
//! which is the driver's.

use std::collections::VecDeque;
use std::fmt;

use super::join_syns::JoinSynLimit;
use super::pending_joins::PendingJoinTable;
pub use super::secrets::SECRET_BYTES;
use towpath_wire::ConnectionId;

/// Parameters of the SYN flood protection, see [`super::Stack::with_syn_flood_protection`].
#[derive(Clone, PartialEq, Eq)]
pub struct SynFloodProtection {
    /// Secret from the system's random numbers, drawn for this stack alone. It determines every
    /// number that the stack draws.
    pub secret: [u8; SECRET_BYTES],
    /// Half-open connections that one source (an IPv4 address, 64 bits of IPv6) may have, over all
    /// listeners. Beyond this limit, it gets cookies.
    pub half_open_per_source: usize,
    /// SYN/ACK retransmissions before a half-open connection is given up: with the usual timeout, 3
    /// take 15 seconds. One or two of them are sent; the others only if the client repeats its SYN.
    pub syn_ack_retries: u32,
}

impl fmt::Debug for SynFloodProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { secret: _, half_open_per_source, syn_ack_retries } = self;
        f.debug_struct("SynFloodProtection")
            .field("half_open_per_source", half_open_per_source)
            .field("syn_ack_retries", syn_ack_retries)
            .finish_non_exhaustive()
    }
}

impl SynFloodProtection {
    /// Creates the protection with the usual limits.
    pub fn new(secret: [u8; SECRET_BYTES]) -> Self {
        Self { secret, half_open_per_source: 16, syn_ack_retries: 3 }
    }
}

/// State of the SYN flood protection.
#[derive(Debug)]
pub(super) struct SynFloodState {
    pub(super) half_open_per_source: usize,
    pub(super) syn_ack_retries: u32,
    pub(super) joins: PendingJoinTable,
    pub(super) join_syns: JoinSynLimit,
    /// Length of the packet being processed.
    pub(super) packet_bytes: usize,
    /// Connections that are over and in TIME-WAIT, the oldest first; some may be removed.
    pub(super) waiting: VecDeque<ConnectionId>,
}

impl SynFloodState {
    pub(super) fn new(protection: &SynFloodProtection) -> Self {
        let SynFloodProtection { secret: _, half_open_per_source, syn_ack_retries } = *protection;
        Self {
            half_open_per_source,
            syn_ack_retries,
            joins: PendingJoinTable::default(),
            join_syns: JoinSynLimit::default(),
            packet_bytes: 0,
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
        assert_eq!(
            printed,
            "SynFloodProtection { half_open_per_source: 16, syn_ack_retries: 3, .. }"
        );
    }
}
