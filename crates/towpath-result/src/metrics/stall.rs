//! Stalls: times in which nothing arrived.

use std::time::Duration;

use towpath_net::Instant;

use super::DeliveryLog;
use crate::Stall;

/// Shortest gap that counts in [`Stall::total_ns`] and [`Stall::count`].
pub const MIN_STALL: Duration = Duration::from_millis(100);

/// Returns the gaps between the first byte and `end`, including one that is open at `end`.
///
/// All zero when nothing arrived: such a flow has not stalled, it has failed.
pub fn stall(log: &DeliveryLog, end: Instant) -> Stall {
    let mut stall = Stall::default();
    for gap in log.gaps(end) {
        let length_ns = gap.length().as_nanos() as u64;
        if length_ns > stall.longest_ns {
            stall.longest_ns = length_ns;
            stall.longest_at_ns = gap.start.as_nanos();
        }
        if gap.length() >= MIN_STALL {
            stall.total_ns = stall.total_ns.saturating_add(length_ns);
            stall.count += 1;
        }
    }
    stall
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    fn record_every_2_ms(log: &mut DeliveryLog, from_ms: u64, to_ms: u64) {
        (from_ms..to_ms).step_by(2).for_each(|at| log.record(ms(at), 1_400));
    }

    #[test]
    fn six_steps_of_200_ms_are_a_stall_of_1_2_s_although_no_gap_is_long() {
        let mut log = DeliveryLog::new(Instant::ZERO);
        record_every_2_ms(&mut log, 0, 3_001);
        (1..6).for_each(|step| log.record(ms(3_000 + 200 * step), 1_400));
        record_every_2_ms(&mut log, 4_200, 10_000);
        let result = stall(&log, ms(10_000));
        assert_eq!((result.longest_ns, result.count), (200_000_000, 6));
        assert_eq!(result.longest_at_ns, 3_000_000_000);
        assert_eq!(result.total_ns, 1_200_000_000);
    }

    #[test]
    fn a_path_that_never_came_back_is_a_stall_until_the_end() {
        let mut log = DeliveryLog::new(Instant::ZERO);
        record_every_2_ms(&mut log, 0, 3_001);
        let result = stall(&log, ms(10_000));
        assert_eq!((result.longest_ns, result.count), (7_000_000_000, 1));
    }

    #[test]
    fn time_before_the_first_byte_is_not_a_stall() {
        let mut log = DeliveryLog::new(Instant::ZERO);
        log.record(ms(800), 1);
        assert_eq!(stall(&log, ms(800)), Stall::default());
        assert_eq!(stall(&DeliveryLog::new(Instant::ZERO), ms(800)), Stall::default());
    }
}
