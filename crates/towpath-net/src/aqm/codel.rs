//! `CoDel` (RFC 8289), with an integer control law.

use std::time::Duration;

use crate::Instant;

/// Initial size of the largest packet. `CoDel` never drops from a queue of at most one such packet
/// (RFC 8289 §5.4).
const INITIAL_MAXPACKET_BYTES: u32 = 512;

/// State of `CoDel` (RFC 8289 §5.3), called for one packet after the other.
///
/// The RFC's `deque` is a loop over packets at one point in time. Here the next packet may become
/// due later, when the shaper allows it, so `last_decision` holds the loop's position.
#[derive(Debug, Clone)]
pub(crate) struct Codel {
    target_nanos: u64,
    interval_nanos: u64,
    max_packet_bytes: u32,
    /// Time at which the delay will have been above the target for an interval (RFC 8289's name).
    first_above: Option<Instant>,
    drop_next: Instant,
    count: u32,
    last_count: u32,
    dropping: bool,
    last_decision: LastDecision,
}

/// Decision about the previous packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LastDecision {
    Passed,
    /// First drop of a dropping state.
    Entered,
    /// Further drop within a dropping state.
    Dropped,
}

impl Codel {
    pub(crate) fn new(target: Duration, interval: Duration) -> Self {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        Self {
            target_nanos: nanos(target),
            interval_nanos: nanos(interval),
            max_packet_bytes: INITIAL_MAXPACKET_BYTES,
            first_above: None,
            drop_next: Instant::ZERO,
            count: 0,
            last_count: 0,
            dropping: false,
            last_decision: LastDecision::Passed,
        }
    }

    pub(crate) fn on_enqueue(&mut self, bytes: u32) {
        self.max_packet_bytes = self.max_packet_bytes.max(bytes);
    }

    /// Records that the server found the queue empty.
    pub(crate) fn on_empty(&mut self) {
        self.first_above = None;
        if self.last_decision != LastDecision::Entered {
            self.dropping = false;
        }
        self.last_decision = LastDecision::Passed;
    }

    /// Returns true if the packet that leaves the queue after `sojourn_nanos` must be dropped;
    /// `bytes_behind` wait behind it (RFC 8289 §5.5).
    pub(crate) fn drops(&mut self, now: Instant, sojourn_nanos: u64, bytes_behind: u64) -> bool {
        let ok_to_drop = self.is_above_target(now, sojourn_nanos, bytes_behind);
        let previous_decision = std::mem::replace(&mut self.last_decision, LastDecision::Passed);
        // The packet after the first drop always passes.
        if previous_decision == LastDecision::Entered {
            return false;
        }
        if !self.dropping {
            if ok_to_drop {
                self.enter_dropping(now);
            }
            return ok_to_drop;
        }
        if !ok_to_drop {
            self.dropping = false;
            return false;
        }
        if previous_decision == LastDecision::Dropped {
            self.drop_next = self.control_law(self.drop_next);
        }
        if now < self.drop_next {
            return false;
        }
        self.count = self.count.saturating_add(1);
        self.last_decision = LastDecision::Dropped;
        true
    }

    /// Returns true if the delay has been above the target for an interval (RFC 8289 §5.4).
    fn is_above_target(&mut self, now: Instant, sojourn_nanos: u64, bytes_behind: u64) -> bool {
        if sojourn_nanos < self.target_nanos || bytes_behind <= u64::from(self.max_packet_bytes) {
            self.first_above = None;
            return false;
        }
        let Some(first_above) = self.first_above else {
            self.first_above = Some(now.plus_nanos(self.interval_nanos));
            return false;
        };
        now >= first_above
    }

    fn enter_dropping(&mut self, now: Instant) {
        self.dropping = true;
        self.last_decision = LastDecision::Entered;
        // The rate of a recent dropping state is a good start for this one (RFC 8289 §5.5).
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.nanos_since(self.drop_next) < self.interval_nanos.saturating_mul(16);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.drop_next = self.control_law(now);
        self.last_count = self.count;
    }

    /// Returns `t` + interval / √count, rounded down.
    fn control_law(&self, t: Instant) -> Instant {
        let interval = u128::from(self.interval_nanos);
        let step = (interval * interval / u128::from(self.count.max(1))).isqrt();
        t.plus_nanos(u64::try_from(step).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn codel() -> Codel {
        Codel::new(Duration::from_millis(5), Duration::from_millis(100))
    }

    #[test]
    fn the_drop_times_of_a_standing_queue_follow_the_square_root() {
        let mut codel = codel();
        let drops: Vec<u64> = (0..400)
            .filter(|ms| codel.drops(Instant::from_nanos(ms * MS), 50 * MS, 100_000))
            .collect();
        // First after one interval, then after interval/√1, /√2, /√3 …
        assert_eq!(drops.get(..5), Some(&[100, 200, 271, 329, 379][..]));
    }

    #[test]
    fn a_short_delay_or_a_nearly_empty_queue_never_drops() {
        let mut codel = codel();
        for ms in 0..1_000 {
            assert!(!codel.drops(Instant::from_nanos(ms * MS), 4 * MS, 100_000));
            assert!(!codel.drops(Instant::from_nanos(ms * MS), 50 * MS, 512));
        }
    }

    #[test]
    fn the_control_law_is_exact_in_integers() {
        let mut codel = codel();
        codel.count = 4;
        assert_eq!(codel.control_law(Instant::ZERO), Instant::from_nanos(50 * MS));
        codel.count = 2;
        assert_eq!(codel.control_law(Instant::ZERO), Instant::from_nanos(70_710_678));
    }
}
