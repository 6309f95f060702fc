//! Nagle's algorithm (RFC 9293 §3.7.4) as in Linux: a small packet waits only for other small ones.

use super::Subflow;
use super::send_queue::SendRecord;

impl Subflow {
    /// Returns the part of the next `len` bytes that Nagle allows: all, whole packets, or `None`.
    pub(super) fn nagle_allowed_bytes(&self, len: u32) -> Option<u32> {
        let rest = len % self.mss();
        // A partial packet with more data behind it is sent unchanged: a mapping ends there.
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
