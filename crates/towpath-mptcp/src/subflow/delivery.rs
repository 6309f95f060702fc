//! Data delivered by one acknowledgement: the input of loss detection and congestion control.

use std::time::Duration;

use towpath_net::Instant;

use super::send_queue::SendRecord;

/// Data collected while an acknowledgement is processed.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, not a state")]
pub(super) struct Delivery {
    now: Instant,
    min_rtt: Duration,
    /// Send time of the segment that caused the acknowledgement, in milliseconds (timestamps).
    echo_ms: Option<u64>,
    /// Bytes newly acknowledged, selectively or not.
    pub(super) bytes: u64,
    /// Data bytes cumulatively acknowledged.
    pub(super) data_bytes: u64,
    /// Earliest and latest send time of the acknowledged packets that were sent once.
    pub(super) sent_once: Option<(Instant, Instant)>,
    /// Set when data sent more than once was cumulatively acknowledged: `sent_once` may be too old.
    pub(super) ambiguous: bool,
    /// Delivered transmission with the latest send time: that time, and the end offset.
    pub(super) newest: Option<(Instant, u64)>,
    /// Highest offset delivered so far.
    pub(super) highest: u64,
    /// Set when data sent once arrived after data that was sent later.
    pub(super) reordered: bool,
    /// End of the data that was sent once.
    pub(super) original_end: Option<u64>,
    /// Set when retransmitted data arrived as a whole packet. A part that arrived does not prove
    /// the rest, as a packet may have been split on its path.
    pub(super) retransmission_arrived_whole: bool,
    /// Set when the echoed timestamp is that of an earlier transmission.
    pub(super) echoes_earlier_copy: bool,
}

impl Delivery {
    pub(super) fn new(now: Instant, min_rtt: Duration, echo_ms: Option<u64>, highest: u64) -> Self {
        Self {
            now,
            min_rtt,
            echo_ms,
            bytes: 0,
            data_bytes: 0,
            sent_once: None,
            ambiguous: false,
            newest: None,
            highest,
            reordered: false,
            original_end: None,
            retransmission_arrived_whole: false,
            echoes_earlier_copy: false,
        }
    }

    /// Returns true if the segment that caused the acknowledgement was sent before `at`.
    pub(super) fn echoes_before(&self, at: Instant) -> bool {
        self.echo_ms.is_some_and(|echo| echo < milliseconds(at))
    }

    /// Records that the first `bytes` of `record` are cumulatively acknowledged.
    pub(super) fn on_acked(&mut self, record: &SendRecord, bytes: u64) {
        if !record.fin {
            self.data_bytes += bytes;
        }
        self.ambiguous |= record.transmissions > 1;
        if !record.is_sacked() {
            self.deliver(record, record.ssn + bytes, bytes);
        }
    }

    pub(super) fn on_sacked(&mut self, record: &SendRecord) {
        self.deliver(record, record.end(), u64::from(record.len));
    }

    fn deliver(&mut self, record: &SendRecord, end: u64, bytes: u64) {
        self.bytes += bytes;
        let sent_at = record.sent_at;
        if record.transmissions == 1 {
            let (earliest, latest) = self.sent_once.unwrap_or((sent_at, sent_at));
            self.sent_once = Some((earliest.min(sent_at), latest.max(sent_at)));
            self.reordered |= end < self.highest;
            self.original_end = self.original_end.max(Some(end));
        } else {
            let echoes_earlier = self.echo_ms.is_some_and(|echo| echo < milliseconds(sent_at));
            self.retransmission_arrived_whole |= end == record.end();
            self.echoes_earlier_copy |= echoes_earlier;
            // The acknowledged transmission is ambiguous (RFC 8985 §6.2 step 2).
            if echoes_earlier || self.now.saturating_since(sent_at) < self.min_rtt {
                self.highest = self.highest.max(end);
                return;
            }
        }
        self.newest = self.newest.max(Some((sent_at, end)));
        self.highest = self.highest.max(end);
    }
}

/// Converts a time to milliseconds since the start: the clock of our timestamps.
pub(super) fn milliseconds(at: Instant) -> u64 {
    at.as_nanos() / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::super::send_queue::{DataMapping, SendQueue};
    use super::*;

    fn at_ms(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_partial_dsack_does_not_prove_a_spurious_retransmission() {
        let mut queue = SendQueue::new();
        queue.push(DataMapping { dsn: 1, len: 1_420, checksum: None }, false);
        assert!(queue.send(at_ms(0), 1_420, 1_420).is_some());
        queue.mark_lost_sent_until(at_ms(100));
        assert!(queue.retransmit_lost(at_ms(100), 1_420, 1_420).is_some());
        // Both acknowledgements echo the data that was sent first.
        let mut acknowledge_until = |until| {
            let mut delivery = Delivery::new(at_ms(110), Duration::from_millis(5), Some(0), 0);
            queue.acknowledge(until, &mut delivery);
            delivery.retransmission_arrived_whole && delivery.echoes_before(at_ms(100))
        };
        assert!(!acknowledge_until(711));
        assert!(acknowledge_until(1_421));
    }
}
