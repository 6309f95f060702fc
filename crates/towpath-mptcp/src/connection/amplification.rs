//! Limit of the bytes that go to addresses which have not answered: SYN/ACKs to a client that may
//! have a forged address, and SYNs to addresses that the peer announced (RFC 8684 §5).
//!
//! The stack applies the limit only with SYN flood protection. Packets beyond it are lost, as in a
//! network, and the timers continue. The peer's own retransmissions raise the limit.

use std::net::IpAddr;

use towpath_wire::Flags;

use super::addresses::MAX_REMOTE_ADDRESSES;
use super::join::JoinHandshake;
use super::{Connection, ConnectionOutput};

/// Bytes that may be sent for each byte received, as in QUIC (RFC 9000 §8.1).
const FACTOR: u32 = 3;
/// Maximum of the bytes that may be sent later.
const MAX_UNUSED_BYTES: u32 = 4_096;

/// State of the limit for one connection.
#[derive(Debug, Default)]
pub(super) struct AmplificationLimit {
    /// Bytes of the received packet that raise the limit; 0 once they are counted.
    packet_bytes: u32,
    /// Bytes that may be sent to addresses that have not answered.
    unused_bytes: u32,
    /// Addresses that have answered an MP_JOIN of ours with the right HMAC.
    answered: Vec<IpAddr>,
    /// Destination of the packet composed last, if it counts.
    charged: Option<ChargedPacket>,
}

/// Packet to an address that has not answered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargedPacket {
    pub(crate) destination: IpAddr,
    /// True if we open the subflow, because the peer announced the address.
    pub(crate) is_join: bool,
}

impl AmplificationLimit {
    /// Counts the received packet, once.
    pub(super) fn credit_packet(&mut self) {
        let bytes = std::mem::take(&mut self.packet_bytes).saturating_mul(FACTOR);
        self.unused_bytes = self.unused_bytes.saturating_add(bytes).min(MAX_UNUSED_BYTES);
    }
}

impl Connection {
    /// Records the length of a received packet, before its segment is processed. `index` is its
    /// subflow.
    pub(crate) fn note_packet_bytes(&mut self, index: usize, bytes: usize) {
        self.amplification.packet_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        let is_half_open = self.flows.get(index).is_some_and(|flow| !flow.answered);
        if is_half_open && !self.established {
            self.amplification.credit_packet();
        }
    }

    /// Returns the packet composed last if its destination has not answered.
    pub(crate) fn charged_packet(&self) -> Option<ChargedPacket> {
        self.amplification.charged
    }

    /// Returns true if so many bytes may go to an address that has not answered.
    pub(crate) fn may_charge(&self, bytes: usize) -> bool {
        usize::try_from(self.amplification.unused_bytes).is_ok_and(|unused| bytes <= unused)
    }

    /// Counts bytes to an address that has not answered.
    pub(crate) fn charge(&mut self, bytes: usize) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.amplification.unused_bytes = self.amplification.unused_bytes.saturating_sub(bytes);
    }

    /// Returns true if a new subflow has no limit: its peer has answered or is authenticated, or our
    /// application opens the connection.
    pub(super) fn begins_answered(&self, remote: IpAddr, join: Option<&JoinHandshake>) -> bool {
        let Some(join) = join else { return self.client };
        let initial = self.initial_addresses.map(|(_, initial)| initial.ip());
        let has_answered = initial == Some(remote) || self.amplification.answered.contains(&remote);
        join.is_responder || has_answered
    }

    /// Handles the end of a subflow's handshake: its address has answered.
    pub(super) fn on_answered(&mut self, index: usize) {
        let Some(flow) = self.flows.get_mut(index).filter(|flow| !flow.answered) else { return };
        flow.answered = true;
        let remote = flow.remote.ip();
        if flow.join.is_none() {
            self.amplification.unused_bytes = 0;
            return;
        }
        let answered = &mut self.amplification.answered;
        if answered.len() < MAX_REMOTE_ADDRESSES && !answered.contains(&remote) {
            answered.push(remote);
        }
        self.out.push(ConnectionOutput::Answered(remote));
    }

    /// Records if the packet being composed counts. A RST of a subflow that we open does not: each
    /// one replies to a packet.
    pub(super) fn note_composed(&mut self, index: usize, flags: Flags) {
        let flow = self.flows.get(index).filter(|flow| !flow.answered);
        let flow = flow.filter(|flow| flow.join.is_none() || !flags.contains(Flags::RST));
        self.amplification.charged = flow.map(|flow| ChargedPacket {
            destination: flow.remote.ip(),
            is_join: flow.join.is_some(),
        });
    }
}
