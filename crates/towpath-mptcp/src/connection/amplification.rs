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
        let is_half_open = self.flows.get(index).is_some_and(|flow| !flow.answered);
        let limit = self.amplification.get_or_insert_default();
        limit.packet_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if is_half_open && !self.established {
            limit.credit_packet();
        }
    }

    /// Returns the packet composed last if its destination has not answered.
    pub(crate) fn charged_packet(&self) -> Option<ChargedPacket> {
        self.amplification.as_ref()?.charged
    }

    /// Returns true if so many bytes may go to an address that has not answered.
    pub(crate) fn may_charge(&self, bytes: usize) -> bool {
        let unused_bytes = self.amplification.as_ref().map_or(0, |limit| limit.unused_bytes);
        usize::try_from(unused_bytes).is_ok_and(|unused_bytes| bytes <= unused_bytes)
    }

    /// Counts bytes to an address that has not answered.
    pub(crate) fn charge(&mut self, bytes: usize) {
        if let Some(limit) = &mut self.amplification {
            let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
            limit.unused_bytes = limit.unused_bytes.saturating_sub(bytes);
        }
    }

    /// Returns true if a new subflow has no limit: its peer has answered or is authenticated, or our
    /// application opens the connection.
    pub(super) fn begins_answered(&self, remote: IpAddr, join: Option<&JoinHandshake>) -> bool {
        let Some(join) = join else { return self.client };
        let is_initial = self.initial_addresses.is_some_and(|(_, initial)| initial.ip() == remote);
        let limit = self.amplification.as_ref();
        let has_answered = limit.is_some_and(|limit| limit.answered.contains(&remote));
        join.is_responder || is_initial || has_answered
    }

    /// Handles the end of a subflow's handshake: its address has answered.
    pub(super) fn on_answered(&mut self, index: usize) {
        let Some(flow) = self.flows.get_mut(index).filter(|flow| !flow.answered) else { return };
        flow.answered = true;
        let Some(limit) = &mut self.amplification else { return };
        let remote = flow.remote.ip();
        if flow.join.is_none() {
            limit.unused_bytes = 0;
            return;
        }
        if limit.answered.len() < MAX_REMOTE_ADDRESSES && !limit.answered.contains(&remote) {
            limit.answered.push(remote);
        }
        self.out.push(ConnectionOutput::Answered(remote));
    }

    /// Records if the packet being composed counts. A RST of a subflow that we open does not: each
    /// one replies to a packet.
    pub(super) fn note_composed(&mut self, index: usize, flags: Flags) {
        let Some(limit) = &mut self.amplification else { return };
        let flow = self.flows.get(index).filter(|flow| !flow.answered);
        let flow = flow.filter(|flow| flow.join.is_none() || !flags.contains(Flags::RST));
        limit.charged = flow.map(|flow| ChargedPacket {
            destination: flow.remote.ip(),
            is_join: flow.join.is_some(),
        });
    }
}
