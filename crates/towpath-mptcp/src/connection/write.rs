//! Application writes: the room in the send buffer, and notifying blocked writers.

use bytes::Bytes;
use towpath_net::Instant;

use super::Connection;
use super::subflow_context::SubflowContext;
use crate::stack::StackEvent;
use crate::subflow::FRAGMENT_BYTES;

impl Connection {
    /// Returns the room for writes in bytes; see [`crate::stack::Stack::writable_bytes`].
    pub(crate) fn writable_bytes(&self) -> u64 {
        if self.send.fin().is_some() || self.closed.is_some() {
            return 0;
        }
        let free = self.send_buffer_bytes().saturating_sub(self.held_memory_bytes());
        if self.fills_packets() {
            return self.packet_room_bytes(free);
        }
        if free == 0 || !(self.grows_by_memory() && self.is_multipath()) {
            return free;
        }
        // Linux checks for room before each fragment, and fills the fragment (`mptcp_sendmsg`).
        let end = self.send.end();
        (end + free).next_multiple_of(FRAGMENT_BYTES) - end
    }

    fn send_buffer_bytes(&self) -> u64 {
        if !self.config.send_buffer_grows {
            return self.config.send_buffer_bytes;
        }
        let usable = self.flows.iter().filter(|flow| flow.usable());
        let subflow_bytes: u64 = usable.map(|flow| flow.tcp.send_buffer_bytes()).sum();
        if self.grows_by_memory() {
            // Linux adds the smallest buffer for the connection itself (`__mptcp_sync_sndbuf`).
            let connection_bytes =
                if self.is_multipath() { self.config.send_buffer_min_bytes } else { 0 };
            subflow_bytes + connection_bytes
        } else {
            self.config.send_buffer_bytes.min(subflow_bytes)
        }
    }

    pub(super) fn grows_by_memory(&self) -> bool {
        self.config.send_buffer_grows && self.config.subflow.counts_memory
    }

    /// Returns the used memory of the send buffer. In Linux, TCP alone counts the memory of its
    /// packets.
    fn held_memory_bytes(&self) -> u64 {
        let data_bytes = self.send.held_bytes();
        if !(self.is_single_stream() && self.grows_by_memory()) {
            return data_bytes;
        }
        let overhead = |flow: &SubflowContext| {
            let queued_data = flow.tcp.outstanding_bytes() + flow.tcp.queued_bytes();
            flow.tcp.send_memory_bytes().saturating_sub(queued_data)
        };
        data_bytes + self.flows.iter().map(overhead).sum::<u64>()
    }

    /// Returns true if a blocked writer may be notified of room.
    pub(super) fn may_wake_writer(&self) -> bool {
        let held_bytes = self.held_memory_bytes();
        !self.grows_by_memory()
            || self.send_buffer_bytes().saturating_sub(held_bytes) >= held_bytes / 2
    }

    /// Returns true if data is written packet by packet, as in Linux's TCP.
    fn fills_packets(&self) -> bool {
        !self.config.multipath && self.grows_by_memory()
    }

    /// Returns the room in the last unsent packet, or in a new one. As in Linux, only a new packet
    /// needs room in the send buffer (`tcp_sendmsg_locked`). While packets leave, or Nagle holds
    /// the last one back, the data in flight may be many times the buffer.
    fn packet_room_bytes(&self, free: u64) -> u64 {
        let Some(flow) = self.flows.first() else { return 0 };
        let packet_bytes = u64::from(flow.tcp.queued_packet_bytes());
        let last_packet_bytes = self.unsent_packet_bytes(flow);
        let may_fill = last_packet_bytes > 0 || self.writer.packet_leaves;
        if may_fill && last_packet_bytes < packet_bytes {
            packet_bytes - last_packet_bytes
        } else if free > 0 {
            packet_bytes
        } else {
            0
        }
    }

    /// Returns the unsent bytes of the last packet.
    fn unsent_packet_bytes(&self, flow: &SubflowContext) -> u64 {
        let unsent = self.send.unsent_bytes() + flow.tcp.queued_bytes();
        unsent.min(self.writer.packet_bytes.into())
    }

    /// Writes until no data or no room is left. Returns the bytes taken, and true if there may be
    /// room as soon as these bytes are sent. Linux sends the beginning of a full packet before it
    /// requests room for the next, which leaves room in this one. After half of the largest window,
    /// it sends everything (`forced_push`).
    fn write_packets(&mut self, data: &mut Bytes) -> (usize, bool) {
        let Some(flow) = self.flows.first() else { return (0, false) };
        let packet_bytes = u64::from(flow.tcp.queued_packet_bytes());
        let half_window = flow.tcp.max_peer_window_bytes() / 2;
        let sent_in_parts = u64::from(flow.tcp.quantum_bytes()) < packet_bytes;
        let unsent = self.send.unsent_bytes() + flow.tcp.queued_bytes();
        let mut is_only_packet = unsent == self.unsent_packet_bytes(flow);
        let mut packet_leaves = false;
        let mut taken = 0;
        while !data.is_empty() {
            let room = self.writable_bytes();
            if room == 0 {
                break;
            }
            let written = self.send.write(data, room);
            taken += written;
            let last_packet_bytes = packet_bytes.saturating_sub(room) + written as u64;
            self.writer.packet_bytes = u16::try_from(last_packet_bytes).unwrap_or(u16::MAX);
            let unpushed = u64::from(self.writer.unpushed_bytes) + written as u64;
            let forced = unpushed > half_window;
            self.writer.unpushed_bytes = if forced { 0 } else { unpushed as u32 };
            self.writer.packet_leaves = false;
            (packet_leaves, is_only_packet) = (is_only_packet && !forced, is_only_packet || forced);
        }
        self.writer.packet_leaves = packet_leaves && sent_in_parts && taken > 0 && !data.is_empty();
        if !self.writer.packet_leaves {
            self.writer.unpushed_bytes = 0;
        }
        (taken, self.writer.packet_leaves)
    }

    /// Takes data for sending and returns the bytes taken; see [`crate::stack::Stack::write`].
    pub(crate) fn write(&mut self, now: Instant, data: &mut Bytes) -> usize {
        if !self.grows_by_memory() {
            self.flows.iter_mut().for_each(|flow| flow.tcp.store_send_buffer());
        }
        let (taken, retry_now) = if self.fills_packets() {
            self.write_packets(data)
        } else {
            (self.send.write(data, self.writable_bytes()), false)
        };
        self.counters.written_bytes += taken as u64;
        self.writer.blocked = !data.is_empty();
        if retry_now {
            self.writer.retry_at = Some(now);
            return taken;
        }
        let retry_interval = self.config.write_retry.filter(|_| self.writer.blocked);
        let pending_retry = self.writer.retry_at.filter(|at| *at > now);
        self.writer.retry_at =
            retry_interval.map(|interval| pending_retry.unwrap_or(now + interval));
        taken
    }

    /// Lets a blocked writer try again, even without a notification of room.
    pub(super) fn retry_write(&mut self, now: Instant) {
        if self.writer.retry_at.is_none_or(|at| at > now) {
            return;
        }
        self.writer.retry_at = None;
        if !self.writer.blocked || self.send.fin().is_some() || self.closed.is_some() {
            return;
        }
        if self.writable_bytes() > 0 {
            self.writer.blocked = false;
            self.push_event(StackEvent::Writable(self.id));
        } else {
            self.writer.packet_leaves = false;
            self.writer.retry_at = self.config.write_retry.map(|interval| now + interval);
        }
    }
}
