//! What the data of a subflow takes of Linux's memory, and how much of that its send buffer allows
//! (`net/ipv4/tcp_input.c`, `include/net/sock.h`): a scheduler that fills subflows' own queues goes by it.

use super::{Subflow, SubflowConfig};

/// The header and the notes of one packet in memory (`SKB_TRUESIZE(MAX_TCP_HEADER)`).
const PACKET_OVERHEAD_BYTES: u64 = 832;
/// Headers and notes that each packet's memory is rounded up with.
const HEADER_BYTES: u64 = 576;
/// Memory for a packet of the usual size, and bounds of a buffer (`tcp_wmem`).
const DEFAULT_PACKET_BYTES: u64 = 4_608;
const MIN_BUFFER_BYTES: u64 = 4_096;
const MAX_BUFFER_BYTES: u64 = 4 * 1024 * 1024;
/// The notes that lie outside of that (`struct sk_buff`).
const SKB_OVERHEAD_BYTES: u64 = 256;
/// A buffer is made for twice the window.
const WINDOW_MULTIPLIER: u64 = 2;
/// Packets of the smallest window that is counted (`TCP_INIT_CWND`).
const MIN_PACKETS: u64 = 10;
/// A window up to this one is used as a whole (`TCP_MSS_DEFAULT`).
const DEFAULT_MSS_BYTES: u64 = 536;
/// What a packet may hold before it is sent (`MPTCP_MAX_GSO_SIZE`).
const QUEUED_PACKET_BYTES: u32 = 65_215;
/// Payload of one packet in memory before it is sent.
const UNSENT_PACKET_BYTES: u64 = 65_160;
/// What an application writes is kept in pieces of 32 KiB less their header. Whether a subflow's buffer
/// is full is only asked where one ends.
pub(crate) const FRAGMENT_BYTES: u64 = 32_728;

/// A subflow's send buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendBuffer {
    /// What it may hold; grows and never shrinks.
    buffer_bytes: u32,
}

impl SendBuffer {
    pub(super) fn new(config: &SubflowConfig) -> Self {
        let initial = if config.counts_memory { config.send_buffer_initial_bytes } else { 0 };
        Self { buffer_bytes: initial }
    }
}

/// Memory that a buffer has for each packet of the window, by the segment size that the peer announced
/// (`tcp_sndbuf_expand`).
fn per_packet(announced_bytes: u64) -> u64 {
    WINDOW_MULTIPLIER * ((announced_bytes + HEADER_BYTES).next_power_of_two() + SKB_OVERHEAD_BYTES)
}

impl Subflow {
    /// Its send buffer: memory for what is sent here and not acknowledged, or waits to be sent.
    pub fn send_buffer_bytes(&self) -> u64 {
        let kept = u64::from(self.memory.buffer_bytes);
        if self.config.counts_memory { kept } else { kept.max(self.target_buffer_bytes()) }
    }

    /// Memory for each packet of the window.
    fn target_buffer_bytes(&self) -> u64 {
        let packets = self.cwnd() / u64::from(self.mss());
        packets.saturating_mul(DEFAULT_PACKET_BYTES).clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES)
    }

    /// Keeps what [`Subflow::send_buffer_bytes`] says now.
    pub fn store_send_buffer(&mut self) {
        let bytes = u32::try_from(self.send_buffer_bytes()).unwrap_or(u32::MAX);
        self.memory.buffer_bytes = bytes;
    }

    /// Memory that is taken of it. A packet of Linux is a super-segment: before it is sent as long as one
    /// can be, then as long as it was sent.
    pub fn send_memory_bytes(&self) -> u64 {
        let (sent, unsent) = (self.send.outstanding(), self.send.queued());
        if !self.config.counts_memory {
            return sent + unsent;
        }
        let packets = sent.div_ceil(u64::from(self.quantum_bytes().max(1)))
            + unsent.div_ceil(UNSENT_PACKET_BYTES);
        sent + unsent + packets * PACKET_OVERHEAD_BYTES
    }

    /// What one packet of the queue may hold before it is cut to be sent: whole segments
    /// (`tcp_xmit_size_goal`), in the beginning half of the largest window that the peer offered.
    pub fn queued_packet_bytes(&self) -> u32 {
        let (mss, largest) = (self.mss(), self.peer_window.largest);
        let bound = if largest > DEFAULT_MSS_BYTES { largest / 2 } else { largest };
        let bytes = u64::from(QUEUED_PACKET_BYTES).min(bound) as u32;
        (bytes / mss).max(1) * mss
    }

    /// Bytes of new data that may be pushed when the owner does not care whether they can be sent soon:
    /// as long as the send buffer is not full, all of a piece of what was written; or, where memory is not
    /// counted, what is left of the buffer and the peer's window.
    pub fn queue_room_bytes(&mut self) -> u64 {
        if !self.may_send_data() || self.send.fin_ssn().is_some() {
            return 0;
        }
        if self.config.counts_memory {
            let free = self.send_memory_bytes() < self.send_buffer_bytes();
            return if free { FRAGMENT_BYTES } else { 0 };
        }
        self.store_send_buffer();
        // Sent data takes about a tenth more than its size.
        let most = self.send_buffer_bytes() / 11 * 10;
        let mss = u64::from(self.mss());
        let window = self.peer_window.usable(self.send.pushed_until());
        most.saturating_sub(self.send_memory_bytes()).min(window) / mss * mss
    }

    /// The buffer grows to the window's size; not while what waits fills the window
    /// (`tcp_should_expand_sndbuf`), for then more data would not be sent sooner. In congestion avoidance
    /// a packet of the window is free each time that it grows, as Linux waits for a second one
    /// (`tcp_tso_should_defer`).
    pub(super) fn grow_send_buffer(&mut self) {
        if !self.config.counts_memory {
            return;
        }
        let packet = u64::from(self.mss());
        let filled = self.in_flight() + self.send.queued() + packet > self.cwnd();
        let slow_start = self.cwnd() < self.congestion.ssthresh_bytes();
        if !(filled && slow_start) {
            self.size_send_buffer();
        }
    }

    /// The buffer for the window of now; it never shrinks.
    pub(super) fn size_send_buffer(&mut self) {
        if !self.config.counts_memory {
            return;
        }
        let packets = (self.cwnd() / u64::from(self.mss())).max(MIN_PACKETS);
        let wanted = packets.saturating_mul(per_packet(self.path_mtu.segment_bytes().into()));
        let wanted = u32::try_from(wanted).unwrap_or(u32::MAX);
        let wanted = wanted.min(self.config.send_buffer_max_bytes);
        self.memory.buffer_bytes = self.memory.buffer_bytes.max(wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_a_packet_is_a_power_of_two_and_its_notes() {
        assert_eq!(per_packet(1_460), 4_608);
        assert_eq!(per_packet(1_473), 8_704);
        assert_eq!(per_packet(8_960), 33_280);
    }
}
