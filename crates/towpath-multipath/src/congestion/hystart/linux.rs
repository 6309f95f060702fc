//! `HyStart` as in Linux's CUBIC (`hystart_update` in `net/ipv4/tcp_cubic.c`; Ha and Rhee, 2008:
//! "Hybrid Slow Start for High-Bandwidth and Long-Distance Networks").
//!
//! Slow start ends at once on either of two signs. One is an *ACK train*: closely spaced
//! acknowledgements for half a round trip, so that the window fills the pipe. The other is delay:
//! the smallest of a round's first round-trip times exceeds the overall minimum by an eighth.

use std::time::Duration;

use towpath_net::Instant;

use crate::congestion::AckSample;

/// Smaller windows, in packets, never end slow start (`hystart_low_window`).
const HYSTART_LOW_WINDOW: u64 = 16;
/// Largest gap between the acknowledgements of one train (`hystart_ack_delta_us`).
const HYSTART_ACK_DELTA: Duration = Duration::from_millis(2);
/// Samples of a round before its delay counts (`HYSTART_MIN_SAMPLES`).
const HYSTART_MIN_SAMPLES: u32 = 8;
/// Bounds of the delay that counts as growth (`HYSTART_DELAY_MIN`, `HYSTART_DELAY_MAX`).
const HYSTART_DELAY_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(4), Duration::from_millis(16));
/// Allowance for acknowledgements held back by the sender (`hystart_ack_delay`): the time of four
/// super-segments, at most 1 ms.
const HYSTART_ACK_DELAY: Duration = Duration::from_millis(1);
const HYSTART_ACK_DELAY_BYTES: u64 = 4 * 65_536;

/// State of a path's slow start.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::congestion) struct LinuxHyStart {
    /// Smallest round-trip time so far.
    min_rtt: Option<Duration>,
    /// Start of the round, and time of the last acknowledgement of its train.
    round: Option<(Instant, Instant)>,
    /// Bytes delivered so far, and the value that ends the round.
    delivered_bytes: u64,
    round_end_bytes: u64,
    /// Smallest of the first round-trip times of the round, and their number.
    round_min_rtt: Option<Duration>,
    samples: u32,
}

impl LinuxHyStart {
    /// Processes an acknowledgement in slow start; returns true if slow start ends.
    pub(in crate::congestion) fn ends(&mut self, ack: &AckSample, cwnd: u64, mss: u64) -> bool {
        // A round begins with the first acknowledgement beyond the data sent at the start of the
        // previous one; a pause may lie between.
        let before = self.delivered_bytes;
        self.delivered_bytes = before.saturating_add(ack.acked_bytes);
        if self.delivered_bytes > self.round_end_bytes {
            self.round = None;
            self.round_end_bytes = before.saturating_add(ack.in_flight_bytes);
        }
        let Some(rtt) = ack.rtt else { return false };
        let least = self.min_rtt.map_or(rtt, |least| least.min(rtt));
        self.min_rtt = Some(least);
        if self.round.is_none() {
            (self.round, self.round_min_rtt, self.samples) = (Some((ack.now, ack.now)), None, 0);
        }
        cwnd >= HYSTART_LOW_WINDOW * mss.max(1)
            && (self.is_long_train(ack, cwnd, least) || self.is_delayed(rtt, least))
    }

    fn is_long_train(&mut self, ack: &AckSample, cwnd: u64, least: Duration) -> bool {
        let Some((begin, previous)) = &mut self.round else { return false };
        if ack.now.saturating_since(*previous) > HYSTART_ACK_DELTA {
            return false;
        }
        *previous = ack.now;
        // In slow start Linux paces at two windows per round trip, and derives its rate from that.
        let per_second = u128::from(cwnd) * 2_000_000_000 / ack.srtt.as_nanos().max(1);
        let held_back = u128::from(HYSTART_ACK_DELAY_BYTES) * 1_000_000_000 / per_second.max(1);
        let held_back = u64::try_from(held_back).map_or(HYSTART_ACK_DELAY, Duration::from_nanos);
        ack.now.saturating_since(*begin) > (least + held_back.min(HYSTART_ACK_DELAY)) / 2
    }

    fn is_delayed(&mut self, rtt: Duration, least: Duration) -> bool {
        let current = self.round_min_rtt.map_or(rtt, |current| current.min(rtt));
        self.round_min_rtt = Some(current);
        if self.samples < HYSTART_MIN_SAMPLES {
            self.samples += 1;
            return false;
        }
        current > least + (least / 8).clamp(HYSTART_DELAY_BOUNDS.0, HYSTART_DELAY_BOUNDS.1)
    }
}
