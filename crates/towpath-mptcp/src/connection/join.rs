//! MP_JOIN handshake (RFC 8684 §3.2), in both roles.

use std::time::Duration;

use towpath_net::Instant;
use towpath_wire::keys;

/// Timeout of the third packet before its first retransmission; doubled each time.
const INITIAL_RTO: Duration = Duration::from_secs(1);
/// Retransmissions of the third packet before the subflow is given up.
const MAX_ACK_RETRIES: u32 = 6;

/// State of one end of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct JoinHandshake {
    pub(super) state: JoinState,
    pub(super) local_nonce: u32,
    pub(super) remote_nonce: u32,
    /// Set when the peer opened the subflow.
    pub(super) is_responder: bool,
}

/// `SynSent` ─SYN/ACK▶ `PreEstablished` ─ACK▶ `Established` for the initiator; `SynReceived` ─ACK
/// with HMAC▶ `Established` for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum JoinState {
    SynSent,
    /// Our HMAC is sent but not confirmed: data must not flow yet.
    PreEstablished {
        retransmit_at: Instant,
        tries: u32,
    },
    SynReceived,
    Established,
}

impl JoinHandshake {
    pub(super) fn initiator(local_nonce: u32) -> Self {
        Self { state: JoinState::SynSent, local_nonce, remote_nonce: 0, is_responder: false }
    }

    pub(super) fn responder(local_nonce: u32, remote_nonce: u32) -> Self {
        Self { state: JoinState::SynReceived, local_nonce, remote_nonce, is_responder: true }
    }

    pub(super) fn is_established(&self) -> bool {
        self.state == JoinState::Established
    }

    /// Returns the HMAC that proves our identity to the peer.
    pub(super) fn local_hmac(&self, local_key: u64, remote_key: u64) -> [u8; 32] {
        keys::join_hmac(local_key, remote_key, self.local_nonce, self.remote_nonce)
    }

    /// Returns true if `hmac` is the peer's HMAC or its first bytes.
    pub(super) fn verify_hmac(&self, local_key: u64, remote_key: u64, hmac: &[u8]) -> bool {
        let (remote_nonce, local_nonce) = (self.remote_nonce, self.local_nonce);
        keys::verify_join_hmac(remote_key, local_key, remote_nonce, local_nonce, hmac)
    }

    /// Records a valid SYN/ACK, as the initiator.
    pub(super) fn on_syn_ack(&mut self, nonce: u32, now: Instant) {
        self.remote_nonce = nonce;
        self.state = JoinState::PreEstablished { retransmit_at: now + INITIAL_RTO, tries: 0 };
    }

    /// Handles the initiator's timeout. Returns `Some(true)` if the third packet is due again,
    /// `Some(false)` after too many retransmissions, and `None` before the timeout.
    pub(super) fn on_timeout(&mut self, now: Instant) -> Option<bool> {
        let JoinState::PreEstablished { retransmit_at, tries } = self.state else { return None };
        if now < retransmit_at {
            return None;
        }
        let tries = tries + 1;
        let retransmit_at = now + INITIAL_RTO * 2_u32.saturating_pow(tries.min(16));
        self.state = JoinState::PreEstablished { retransmit_at, tries };
        Some(tries <= MAX_ACK_RETRIES)
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        match self.state {
            JoinState::PreEstablished { retransmit_at, tries: _ } => Some(retransmit_at),
            JoinState::SynSent | JoinState::SynReceived | JoinState::Established => None,
        }
    }
}

/// Returns the leftmost 64 bits of an HMAC.
pub(super) fn leftmost_64(hmac: &[u8; 32]) -> u64 {
    hmac.iter().take(8).fold(0, |bits, byte| bits << 8 | u64::from(*byte))
}

/// Returns the leftmost 160 bits of an HMAC.
pub(super) fn leftmost_160(hmac: &[u8; 32]) -> [u8; 20] {
    let mut out = [0; 20];
    for (to, from) in out.iter_mut().zip(hmac) {
        *to = *from;
    }
    out
}
