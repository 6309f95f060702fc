//! Small packets wait (RFC 9293 §3.7.4), in the form that Linux has: only for other small ones.

use super::Subflow;
use super::send_queue::SendRecord;

impl Subflow {
    /// What Nagle lets go of the next `len` bytes: all, whole packets, or nothing.
    pub(super) fn without_nagles_rest(&self, len: u32) -> Option<u32> {
        let rest = len % self.mss();
        // What ends within a packet because more follows behind it is sent as it is: a mapping ends there.
        let last = self.send.queued() <= u64::from(len) && self.send.fin_ssn().is_none();
        let unacked = self.small_until.wrapping_sub(self.send.acked_until() as u32);
        let waits = self.config.nagle && last && (1..1 << 31).contains(&unacked);
        let allowed = if waits { len - rest } else { len };
        (allowed > 0).then_some(allowed)
    }

    pub(super) fn track_small_packet(&mut self, record: &SendRecord) {
        if !record.fin && !record.len.is_multiple_of(self.mss()) {
            self.small_until = self.send.sent_until() as u32;
        }
    }
}
