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
/// Bounds of the growth of the round-trip time that ends slow start (`HYSTART_DELAY_MIN`,
/// `HYSTART_DELAY_MAX`).
const HYSTART_DELAY_BOUNDS: (Duration, Duration) =
    (Duration::from_millis(4), Duration::from_millis(16));
/// Longest allowance for acknowledgements held back by the sender (`hystart_ack_delay`).
const HYSTART_ACK_DELAY: Duration = Duration::from_millis(1);
/// Bytes whose sending time is the allowance: four super-segments.
const HYSTART_ACK_DELAY_BYTES: u64 = 4 * 65_536;

/// State of a path's slow start.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::congestion) struct LinuxHyStart {
    /// Smallest round-trip time so far.
    min_rtt: Option<Duration>,
    /// Start of the round, and time of the last acknowledgement of its train.
    round: Option<(Instant, Instant)>,
    /// Bytes delivered so far.
    delivered_bytes: u64,
    /// Value of `delivered_bytes` above which the round ends.
    round_end_bytes: u64,
    /// Smallest of the round's round-trip times.
    round_min_rtt: Option<Duration>,
    /// Number of the round's samples, up to [`HYSTART_MIN_SAMPLES`].
    samples: u32,
}

impl LinuxHyStart {
    /// Processes an acknowledgement in slow start; returns true if slow start ends.
    pub(in crate::congestion) fn ends(&mut self, ack: &AckSample, cwnd: u64, mss: u64) -> bool {
        // A round begins with the first acknowledgement beyond the data sent at the start of the
        // previous one; a pause may lie between them.
        let previous_delivered = self.delivered_bytes;
        self.delivered_bytes = previous_delivered.saturating_add(ack.acked_bytes);
        if self.delivered_bytes > self.round_end_bytes {
            self.round = None;
            self.round_end_bytes = previous_delivered.saturating_add(ack.in_flight_bytes);
        }
        let Some(rtt) = ack.rtt else { return false };
        let min_rtt = self.min_rtt.map_or(rtt, |min_rtt| min_rtt.min(rtt));
        self.min_rtt = Some(min_rtt);
        if self.round.is_none() {
            (self.round, self.round_min_rtt, self.samples) = (Some((ack.now, ack.now)), None, 0);
        }
        cwnd >= HYSTART_LOW_WINDOW * mss.max(1)
            && (self.is_long_train(ack, cwnd, min_rtt) || self.is_delayed(rtt, min_rtt))
    }

    fn is_long_train(&mut self, ack: &AckSample, cwnd: u64, min_rtt: Duration) -> bool {
        let Some((train_start, last_ack)) = &mut self.round else { return false };
        if ack.now.saturating_since(*last_ack) > HYSTART_ACK_DELTA {
            return false;
        }
        *last_ack = ack.now;
        // In slow start Linux paces at two windows per round trip, and derives its rate from that.
        let pacing_rate = u128::from(cwnd) * 2_000_000_000 / ack.srtt.as_nanos().max(1);
        let held_back = u128::from(HYSTART_ACK_DELAY_BYTES) * 1_000_000_000 / pacing_rate.max(1);
        let held_back = u64::try_from(held_back).map_or(HYSTART_ACK_DELAY, Duration::from_nanos);
        ack.now.saturating_since(*train_start) > (min_rtt + held_back.min(HYSTART_ACK_DELAY)) / 2
    }

    fn is_delayed(&mut self, rtt: Duration, min_rtt: Duration) -> bool {
        let round_min_rtt = self.round_min_rtt.map_or(rtt, |round_min_rtt| round_min_rtt.min(rtt));
        self.round_min_rtt = Some(round_min_rtt);
        if self.samples < HYSTART_MIN_SAMPLES {
            self.samples += 1;
            return false;
        }
        round_min_rtt
            > min_rtt + (min_rtt / 8).clamp(HYSTART_DELAY_BOUNDS.0, HYSTART_DELAY_BOUNDS.1)
    }
}
