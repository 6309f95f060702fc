//! What the application writes: the room in the send buffer, and who waits for it.

use bytes::Bytes;
use towpath_net::Instant;

use super::Connection;
use super::flow::Flow;
use crate::stack::Event;
use crate::subflow::FRAGMENT_BYTES;

impl Connection {
    /// Room in the send buffer.
    pub(crate) fn writable_bytes(&self) -> u64 {
        if self.send.fin().is_some() || self.closed.is_some() {
            return 0;
        }
        let free = self.send_buffer_bytes().saturating_sub(self.held_memory_bytes());
        if free == 0 || !(self.grows_by_memory() && self.is_multipath()) {
            return free;
        }
        // Linux asks for room before each fragment, and fills that (`mptcp_sendmsg`).
        let end = self.send.end();
        (end + free).next_multiple_of(FRAGMENT_BYTES) - end
    }

    fn send_buffer_bytes(&self) -> u64 {
        if !self.config.send_buffer_grows {
            return self.config.send_buffer_bytes;
        }
        let usable = self.flows.iter().filter(|flow| flow.usable());
        let sum: u64 = usable.map(|flow| flow.tcp.send_buffer_bytes()).sum();
        if self.grows_by_memory() {
            // Linux adds the smallest buffer for the connection itself (`__mptcp_sync_sndbuf`).
            let own = if self.is_multipath() { self.config.send_buffer_least_bytes } else { 0 };
            sum + own
        } else {
            self.config.send_buffer_bytes.min(sum)
        }
    }

    pub(super) fn grows_by_memory(&self) -> bool {
        self.config.send_buffer_grows && self.config.subflow.counts_memory
    }

    /// What of the send buffer is taken. In Linux, TCP alone counts the memory of its packets.
    fn held_memory_bytes(&self) -> u64 {
        let held = self.send.held_bytes();
        if !(self.is_single() && self.grows_by_memory()) {
            return held;
        }
        let notes = |flow: &Flow| {
            let data = flow.tcp.outstanding_bytes() + flow.tcp.queued_bytes();
            flow.tcp.send_memory_bytes().saturating_sub(data)
        };
        held + self.flows.iter().map(notes).sum::<u64>()
    }

    /// Whether who waits to write is told that there is room.
    pub(super) fn may_wake_writer(&self) -> bool {
        let held = self.held_memory_bytes();
        !self.grows_by_memory() || self.send_buffer_bytes().saturating_sub(held) >= held / 2
    }

    /// See [`crate::stack::Stack::write`].
    pub(crate) fn write(&mut self, now: Instant, data: &mut Bytes) -> usize {
        if !self.grows_by_memory() {
            self.flows.iter_mut().for_each(|flow| flow.tcp.keep_send_buffer());
        }
        let taken = self.send.write(data, self.writable_bytes());
        self.counts.written_bytes += taken as u64;
        self.writer.blocked = !data.is_empty();
        let waits = self.config.write_retry.filter(|_| self.writer.blocked);
        let pending = self.writer.again_at.filter(|at| *at > now);
        self.writer.again_at = waits.map(|time| pending.unwrap_or(now + time));
        taken
    }

    /// Who could not write tries again, though nobody said that there is room.
    pub(super) fn try_to_write_again(&mut self, now: Instant) {
        if self.writer.again_at.is_none_or(|at| at > now) {
            return;
        }
        self.writer.again_at = None;
        if !self.writer.blocked || self.send.fin().is_some() || self.closed.is_some() {
            return;
        }
        if self.writable_bytes() > 0 {
            self.writer.blocked = false;
            self.event(Event::Writable(self.id));
        } else {
            self.writer.again_at = self.config.write_retry.map(|time| now + time);
        }
    }
}
