//! Memory that a subflow's data takes in Linux, and the limit of its send buffer
//! (`net/ipv4/tcp_input.c`, `include/net/sock.h`). Used by schedulers that fill the subflows' own
//! queues.

use super::{Subflow, SubflowConfig};

/// Header and metadata of one packet in memory (`SKB_TRUESIZE(MAX_TCP_HEADER)`).
const PACKET_OVERHEAD_BYTES: u64 = 832;
/// Headers and metadata by which each packet's memory is rounded up.
const HEADER_BYTES: u64 = 576;
/// Memory for a packet of the usual size, and bounds of a buffer (`tcp_wmem`).
const DEFAULT_PACKET_BYTES: u64 = 4_608;
const MIN_BUFFER_BYTES: u64 = 4_096;
const MAX_BUFFER_BYTES: u64 = 4 * 1024 * 1024;
/// Metadata outside of the packet's memory (`struct sk_buff`).
const SKB_OVERHEAD_BYTES: u64 = 256;
/// Ratio of the buffer to the congestion window.
const WINDOW_MULTIPLIER: u64 = 2;
/// Packets of the smallest window that counts (`TCP_INIT_CWND`).
const MIN_PACKETS: u64 = 10;
/// A window up to this one is used as a whole (`TCP_MSS_DEFAULT`).
const DEFAULT_MSS_BYTES: u64 = 536;
/// Maximum payload of a packet before it is sent (`MPTCP_MAX_GSO_SIZE`).
const QUEUED_PACKET_BYTES: u32 = 65_215;
/// Payload of one packet in memory before it is sent.
const UNSENT_PACKET_BYTES: u64 = 65_160;
/// Size of the pieces in which written data is kept: 32 KiB minus their header. The send buffer
/// limit is only checked where a piece ends.
pub(crate) const FRAGMENT_BYTES: u64 = 32_728;

/// A subflow's send buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct SendBuffer {
    /// Buffer limit in bytes; grows and never shrinks.
    buffer_bytes: u32,
}

impl SendBuffer {
    pub(super) fn new(config: &SubflowConfig) -> Self {
        let initial = if config.counts_memory { config.send_buffer_initial_bytes } else { 0 };
        Self { buffer_bytes: initial }
    }
}

/// Returns the buffer memory per packet of the window, by the segment size that the peer announced
/// (`tcp_sndbuf_expand`).
fn buffer_bytes_per_packet(segment_bytes: u64) -> u64 {
    WINDOW_MULTIPLIER * ((segment_bytes + HEADER_BYTES).next_power_of_two() + SKB_OVERHEAD_BYTES)
}

impl Subflow {
    /// Returns the send buffer: memory for data that is sent but unacknowledged, or waits to be
    /// sent.
    pub fn send_buffer_bytes(&self) -> u64 {
        let stored = u64::from(self.send_buffer.buffer_bytes);
        if self.config.counts_memory { stored } else { stored.max(self.target_buffer_bytes()) }
    }

    /// Returns the buffer size for the congestion window.
    fn target_buffer_bytes(&self) -> u64 {
        let packets = self.cwnd() / u64::from(self.mss());
        packets.saturating_mul(DEFAULT_PACKET_BYTES).clamp(MIN_BUFFER_BYTES, MAX_BUFFER_BYTES)
    }

    /// Stores the current result of [`Subflow::send_buffer_bytes`].
    pub fn store_send_buffer(&mut self) {
        let bytes = u32::try_from(self.send_buffer_bytes()).unwrap_or(u32::MAX);
        self.send_buffer.buffer_bytes = bytes;
    }

    /// Returns the used memory of the buffer. A packet of Linux is a super-segment: of maximum
    /// length before it is sent, then of its actual length.
    pub fn send_memory_bytes(&self) -> u64 {
        let (sent, unsent) = (self.send.outstanding(), self.send.queued());
        if !self.config.counts_memory {
            return sent + unsent;
        }
        let packets = sent.div_ceil(u64::from(self.quantum_bytes().max(1)))
            + unsent.div_ceil(UNSENT_PACKET_BYTES);
        sent + unsent + packets * PACKET_OVERHEAD_BYTES
    }

    /// Returns the maximum size of a queued packet before it is cut: whole segments
    /// (`tcp_xmit_size_goal`), initially half of the largest window that the peer offered.
    pub fn queued_packet_bytes(&self) -> u32 {
        let (mss, largest) = (self.mss(), self.peer_window.largest);
        let bound = if largest > DEFAULT_MSS_BYTES { largest / 2 } else { largest };
        let bytes = u64::from(QUEUED_PACKET_BYTES).min(bound) as u32;
        (bytes / mss).max(1) * mss
    }

    /// Returns the bytes that may be pushed into the queue, even if they cannot be sent soon. As
    /// long as the send buffer is not full, this is a whole piece of written data. If memory is not
    /// counted, it is the rest of the buffer and of the peer's window.
    pub fn queue_room_bytes(&mut self) -> u64 {
        if !self.may_send_data() || self.send.fin_ssn().is_some() {
            return 0;
        }
        if self.config.counts_memory {
            let has_room = self.send_memory_bytes() < self.send_buffer_bytes();
            return if has_room { FRAGMENT_BYTES } else { 0 };
        }
        self.store_send_buffer();
        // Sent data takes about a tenth more memory than its size.
        let usable_buffer = self.send_buffer_bytes() / 11 * 10;
        let mss = u64::from(self.mss());
        let window = self.peer_window.usable(self.send.pushed_until());
        usable_buffer.saturating_sub(self.send_memory_bytes()).min(window) / mss * mss
    }

    /// Grows the buffer to the window's size, but not while waiting data fills the window
    /// (`tcp_should_expand_sndbuf`): more data would not be sent sooner. In congestion avoidance,
    /// each growth of the window leaves one packet free, as Linux waits for a second one
    /// (`tcp_tso_should_defer`).
    pub(super) fn grow_send_buffer(&mut self) {
        if !self.config.counts_memory {
            return;
        }
        let mss = u64::from(self.mss());
        let window_filled = self.in_flight() + self.send.queued() + mss > self.cwnd();
        let slow_start = self.cwnd() < self.congestion.ssthresh_bytes();
        if !(window_filled && slow_start) {
            self.size_send_buffer();
        }
    }

    /// Sizes the buffer for the current window; it never shrinks.
    pub(super) fn size_send_buffer(&mut self) {
        if !self.config.counts_memory {
            return;
        }
        let packets = (self.cwnd() / u64::from(self.mss())).max(MIN_PACKETS);
        let target =
            packets.saturating_mul(buffer_bytes_per_packet(self.path_mtu.segment_bytes().into()));
        let target = u32::try_from(target).unwrap_or(u32::MAX);
        let target = target.min(self.config.send_buffer_max_bytes);
        self.send_buffer.buffer_bytes = self.send_buffer.buffer_bytes.max(target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_for_a_packet_is_a_power_of_two_plus_metadata() {
        assert_eq!(buffer_bytes_per_packet(1_460), 4_608);
        assert_eq!(buffer_bytes_per_packet(1_473), 8_704);
        assert_eq!(buffer_bytes_per_packet(8_960), 33_280);
    }
}
