//! PIE (RFC 8033), with integer probabilities and the delay measured by timestamps.

use std::time::Duration;

use crate::Instant;
use crate::random::RngStream;

/// A probability of 1.
const PROBABILITY_ONE: i64 = 1 << 48;
/// Burst allowance (RFC 8033 §4.4).
const MAX_BURST_NANOS: u64 = 150_000_000;
/// Mean packet size of the safeguards (RFC 8033 §4.1).
const MEAN_PACKET_BYTES: u64 = 1_500;
/// Shortest time between updates, so that an absurdly small setting does not consume all CPU time.
const MIN_UPDATE_NANOS: u64 = 100_000;
/// Limit of updates after a long idle time (five minutes at 15 ms); the probability has long
/// converged by then.
const MAX_UPDATES: u64 = 20_000;
const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// State of PIE (RFC 8033).
#[derive(Debug, Clone)]
pub(crate) struct Pie {
    target_nanos: u64,
    update_interval_nanos: u64,
    stream: RngStream,
    next_update: Instant,
    /// Sojourn time of the last packet that left; zero when it left an empty queue.
    delay_nanos: u64,
    /// `delay_nanos` at the previous update.
    old_delay_nanos: u64,
    /// Drop probability, in units of [`PROBABILITY_ONE`].
    drop_prob: i64,
    /// Sum of probabilities since the last drop, which spaces drops out (RFC 8033 §5.4).
    accumulated_prob: i64,
    /// Remaining burst allowance.
    burst_nanos: u64,
}

impl Pie {
    pub(crate) fn new(target: Duration, update: Duration, seed: u64) -> Self {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        let update_interval_nanos = nanos(update).max(MIN_UPDATE_NANOS);
        Self {
            target_nanos: nanos(target),
            update_interval_nanos,
            stream: RngStream::new(seed, "aqm"),
            next_update: Instant::from_nanos(update_interval_nanos),
            delay_nanos: 0,
            old_delay_nanos: 0,
            drop_prob: 0,
            accumulated_prob: 0,
            burst_nanos: MAX_BURST_NANOS,
        }
    }

    /// Returns true if a packet that arrives while `queue_bytes` wait must be dropped.
    pub(crate) fn drops(&mut self, now: Instant, queue_bytes: u64) -> bool {
        self.update_until(now);
        if self.burst_nanos > 0 || !self.drops_early(queue_bytes) {
            return false;
        }
        self.accumulated_prob = 0;
        true
    }

    /// Records that a packet left the queue after `sojourn_nanos`, with `bytes_behind` behind it.
    pub(crate) fn on_dequeue(&mut self, now: Instant, sojourn_nanos: u64, bytes_behind: u64) {
        self.update_until(now);
        self.delay_nanos = if bytes_behind == 0 { 0 } else { sojourn_nanos };
    }

    /// Decides a drop by RFC 8033 §4.1 with the safeguards and the de-randomisation of §5.4.
    fn drops_early(&mut self, queue_bytes: u64) -> bool {
        let low_delay =
            self.old_delay_nanos < self.target_nanos / 2 && self.drop_prob < PROBABILITY_ONE / 5;
        if low_delay || queue_bytes <= 2 * MEAN_PACKET_BYTES {
            return false;
        }
        if self.drop_prob == 0 {
            self.accumulated_prob = 0;
        }
        self.accumulated_prob = self.accumulated_prob.saturating_add(self.drop_prob);
        if self.accumulated_prob < PROBABILITY_ONE / 100 * 85 {
            return false;
        }
        if self.accumulated_prob >= PROBABILITY_ONE / 10 * 85 {
            return true;
        }
        (self.stream.draw_wide() >> 16) < self.drop_prob.unsigned_abs()
    }

    /// Makes every update that is due. The delay does not change between two events of the queue,
    /// so a late update gives the same result.
    fn update_until(&mut self, now: Instant) {
        let missed_updates = now.nanos_since(self.next_update) / self.update_interval_nanos;
        let skipped_nanos =
            missed_updates.saturating_sub(MAX_UPDATES).saturating_mul(self.update_interval_nanos);
        self.next_update = self.next_update.plus_nanos(skipped_nanos);
        while self.next_update <= now && self.next_update < Instant::MAX {
            self.update();
            self.next_update = self.next_update.plus_nanos(self.update_interval_nanos);
        }
    }

    /// Updates the drop probability (RFC 8033 §4.2): α = 1/8 and β = 5/4 per second, scaled down
    /// while the probability is small.
    fn update(&mut self) {
        let (delay, old_delay) = (i128::from(self.delay_nanos), i128::from(self.old_delay_nanos));
        let weighted = (delay - i128::from(self.target_nanos)) + 10 * (delay - old_delay);
        let change =
            weighted * i128::from(PROBABILITY_ONE) / (8 * NANOS_PER_SECOND * self.damping());
        let mut step =
            i64::try_from(change.clamp(i128::from(-PROBABILITY_ONE), i128::from(PROBABILITY_ONE)))
                .unwrap_or(0);
        if self.drop_prob >= PROBABILITY_ONE / 10 {
            step = step.min(PROBABILITY_ONE / 50); // RFC 8033 §5.5
        }
        self.drop_prob += step;
        if self.delay_nanos == 0 && self.old_delay_nanos == 0 {
            self.drop_prob -= self.drop_prob / 50;
        }
        self.drop_prob = self.drop_prob.clamp(0, PROBABILITY_ONE);
        self.burst_nanos = self.burst_nanos.saturating_sub(self.update_interval_nanos);
        let half_target = self.target_nanos / 2;
        if self.drop_prob == 0
            && self.delay_nanos < half_target
            && self.old_delay_nanos < half_target
        {
            self.burst_nanos = MAX_BURST_NANOS;
        }
        self.old_delay_nanos = self.delay_nanos;
    }

    /// Returns the divisor of small probabilities' changes (RFC 8033 §4.2).
    fn damping(&self) -> i128 {
        match PROBABILITY_ONE / self.drop_prob.max(1) {
            1_000_001.. => 2_048,
            100_001.. => 512,
            10_001.. => 128,
            1_001.. => 32,
            101.. => 8,
            11.. => 2,
            _ => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pie() -> Pie {
        Pie::new(Duration::from_millis(15), Duration::from_millis(15), 1)
    }

    #[test]
    fn the_probability_rises_under_delay_and_decays_when_it_is_gone() {
        let mut pie = pie();
        pie.delay_nanos = 100_000_000;
        pie.update_until(Instant::from_nanos(30_000_000_000));
        assert_eq!(pie.drop_prob, PROBABILITY_ONE);
        pie.delay_nanos = 0;
        pie.update_until(Instant::from_nanos(60_000_000_000));
        assert_eq!((pie.drop_prob, pie.burst_nanos), (0, MAX_BURST_NANOS));
    }

    #[test]
    fn a_burst_at_the_start_is_allowed() {
        let mut pie = pie();
        pie.on_dequeue(Instant::from_nanos(1_000_000), 100_000_000, 100_000);
        assert!(!pie.drops(Instant::from_nanos(140_000_000), 100_000));
    }

    #[test]
    fn years_without_a_packet_are_skipped_at_once() {
        let mut pie = Pie::new(Duration::from_millis(15), Duration::ZERO, 1);
        pie.on_dequeue(Instant::from_nanos(1), 500_000_000, 100_000);
        assert!(!pie.drops(Instant::MAX, 0));
    }
}
