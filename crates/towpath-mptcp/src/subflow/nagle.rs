//! Nagle's algorithm (RFC 9293 §3.7.4) as in Linux: a small packet waits only for other small ones.

use super::Subflow;
use super::send_queue::SendRecord;

impl Subflow {
    /// Returns how many of the next `len` bytes Nagle allows to send: all, whole packets, or
    /// `None`.
    pub(super) fn nagle_allowed_bytes(&self, len: u32) -> Option<u32> {
        let partial_bytes = len % self.mss();
        // A partial packet with more data behind it is sent unchanged: a mapping ends there.
        let is_last = self.send.queued() <= u64::from(len) && self.send.fin_ssn().is_none();
        let small_unacked = self.small_packet_end.wrapping_sub(self.send.acked_until() as u32);
        let holds_partial = self.config.nagle && is_last && (1..1 << 31).contains(&small_unacked);
        let allowed = if holds_partial { len - partial_bytes } else { len };
        (allowed > 0).then_some(allowed)
    }

    /// Remembers the end of a sent packet that is smaller than the MSS.
    pub(super) fn track_small_packet(&mut self, record: &SendRecord) {
        if !record.fin && !record.len.is_multiple_of(self.mss()) {
            self.small_packet_end = self.send.sent_until() as u32;
        }
    }
}
