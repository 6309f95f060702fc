//! Recovery: effect and duration of a disruption.

use std::time::Duration;

use towpath_net::Instant;

use super::delivery::{BIN_SPAN, DeliveryLog, Gap};
use super::disruption::Disruption;
use super::goodput::bits_per_second;
use super::stall::MIN_STALL;
use crate::Recovery;

/// Share of the reference goodput that counts as recovered.
const RECOVERED_SHARE: f64 = 0.9;
/// Bins of the window that must reach this share (200 ms).
const WINDOW_BINS: usize = 20;
/// Bins after the window that must reach it on average (500 ms).
const HOLD_BINS: usize = 50;
/// Fewest bins after the window that are checked (100 ms).
const MIN_HOLD_BINS: usize = 10;
/// Bins after the event in which goodput must fall for the event to count at all (1 s).
const OBSERVE_BINS: usize = 100;
/// Largest distance between stalls that belong to the same disruption.
const STALL_CHAIN_GAP: Duration = Duration::from_millis(1_500);
/// Time before the event over which the reference goodput is averaged.
const REFERENCE_SPAN: Duration = Duration::from_secs(1);

/// Returns the time from an event until goodput is back at 90 % of `reference_bps`; `None` if it
/// never is.
///
/// `bins` are bytes per [`BIN_SPAN`] from the event on. The result is zero when no window of 200 ms
/// within the first second is below 90 %. Otherwise it is the start of the first window of 200 ms
/// that reaches 90 %. The 500 ms after that window must also reach 90 % on average (or the rest of
/// the bins, if at least 100 ms). Without this condition, data in flight when a link died, or data
/// released by a filled gap in the reorder buffer, would look like a recovery.
pub fn time_to_90(bins: &[u64], reference_bps: f64) -> Option<Duration> {
    let min_bin_bytes = RECOVERED_SHARE * reference_bps / 8.0 * BIN_SPAN.as_secs_f64();
    let is_recovered = |bins: &[u64]| {
        let sum = bins.iter().fold(0_u64, |sum, bin| sum.saturating_add(*bin));
        sum as f64 >= min_bin_bytes * bins.len() as f64
    };
    let mut windows = bins.windows(WINDOW_BINS).enumerate();
    if windows.len() == 0 {
        return None;
    }
    if bins.get(..OBSERVE_BINS).unwrap_or(bins).windows(WINDOW_BINS).all(is_recovered) {
        return Some(Duration::ZERO);
    }
    let recovered = windows.find(|(index, window)| {
        let hold_bins = bins.get(index + WINDOW_BINS..).unwrap_or(&[]);
        let hold_bins = hold_bins.get(..HOLD_BINS).unwrap_or(hold_bins);
        is_recovered(window) && (hold_bins.len() < MIN_HOLD_BINS || is_recovered(hold_bins))
    });
    recovered.map(|(index, _)| BIN_SPAN * index as u32)
}

/// Returns the effect of `disruption` on a flow until `until`: its end or the next disruption.
///
/// `None` when nothing arrived in the second before, or when the flow ended within 200 ms.
pub fn recovery(log: &DeliveryLog, disruption: &Disruption, until: Instant) -> Option<Recovery> {
    let event_time = disruption.at;
    let reference_start = (event_time - REFERENCE_SPAN).max(log.start());
    let bps_before = bits_per_second(
        log.bytes_between(reference_start, event_time),
        event_time.saturating_since(reference_start),
    );
    let bins = log.bins_between(event_time, until);
    if bps_before <= 0.0 || bins.len() < WINDOW_BINS {
        return None;
    }
    let reference_bps = disruption.capacity_bps.unwrap_or(f64::INFINITY).min(bps_before);
    let t90 = time_to_90(&bins, reference_bps);
    let recovery_end = t90.map_or(until, |t90| event_time + t90);
    let expected = reference_bps / 8.0 * recovery_end.saturating_since(event_time).as_secs_f64();
    let deficit = expected - log.bytes_between(event_time, recovery_end) as f64;
    let gaps = || log.gaps(until).filter(|gap| gap.end > event_time);
    Some(Recovery {
        event_ns: event_time.as_nanos(),
        event: disruption.text.clone(),
        reference_bps,
        capacity_bps: disruption.capacity_bps,
        t90_ns: t90.map(|t90| t90.as_nanos() as u64),
        deficit_bytes: deficit.max(0.0).round() as u64,
        longest_gap_ns: gaps().map(Gap::length).max().unwrap_or_default().as_nanos() as u64,
        last_stall_end_ns: last_stall_end(gaps(), event_time, until)
            .map(|event_time| event_time.as_nanos() as u64),
    })
}

/// Returns the time from `event_time` to the end of the last stall in an unbroken chain; `None` if
/// the stall lasts to `until`.
fn last_stall_end(
    gaps: impl Iterator<Item = Gap>,
    event_time: Instant,
    until: Instant,
) -> Option<Duration> {
    let mut stall_end = event_time;
    for gap in gaps.filter(|gap| gap.length() >= MIN_STALL) {
        if gap.start > stall_end + STALL_CHAIN_GAP {
            break;
        }
        if gap.end >= until {
            return None;
        }
        stall_end = stall_end.max(gap.end);
    }
    Some(stall_end.saturating_since(event_time))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MBIT: f64 = 1e6;

    fn ms(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    /// Builds a log from consecutive pieces of (milliseconds, Mbit/s).
    fn log_of(pieces: &[(u64, u64)]) -> DeliveryLog {
        let (mut log, mut now) = (DeliveryLog::new(Instant::ZERO), 0);
        for &(millis, mbit) in pieces {
            (now..now + millis).for_each(|at| log.record(ms(at), mbit * 125));
            now += millis;
        }
        log.watch_until(ms(now));
        log
    }

    fn recovery_after_3_s(log: &DeliveryLog, capacity_bps: Option<f64>) -> Recovery {
        let (text, happened) = ("wifi down".into(), "wifi went down".into());
        let event = Disruption { at: ms(3_000), text, happened, capacity_bps };
        recovery(log, &event, log.watched_until()).unwrap()
    }

    #[test]
    fn a_capacity_loss_without_a_stall_needs_no_recovery() {
        // 186 189 186 | 94 94 …: the remaining path continues.
        let recovery = recovery_after_3_s(&log_of(&[(3_000, 187), (7_000, 94)]), Some(94.0 * MBIT));
        assert_eq!((recovery.t90_ns, recovery.deficit_bytes), (Some(0), 0));
        assert!((recovery.reference_bps - 94.0 * MBIT).abs() < 1.0);
    }

    #[test]
    fn a_short_gap_shows_as_a_short_recovery_with_its_deficit() {
        // 186 189 186 | 83 93 94 …: typical of two kernels, one gap of 124 ms.
        let log = log_of(&[(3_000, 187), (124, 0), (6_876, 94)]);
        let recovery = recovery_after_3_s(&log, Some(94.0 * MBIT));
        // A window may begin at most a tenth of its length before data arrives again.
        assert_eq!(recovery.t90_ns, Some(110_000_000));
        assert!(
            recovery
                .last_stall_end_ns
                .is_some_and(|smooth| smooth.abs_diff(124_000_000) < 2_000_000)
        );
        assert_eq!(recovery.deficit_bytes, 94 * 125 * 110);
        assert!(recovery.longest_gap_ns >= 124_000_000 && recovery.longest_gap_ns <= 126_000_000);
    }

    #[test]
    fn a_stall_of_1_2_s_in_steps_of_200_ms_is_measured_in_full() {
        // 186 188 184 | 2 57 94: one retransmission for each 200 ms until the subflow is stale.
        let mut pieces = vec![(3_000, 187)];
        pieces.extend([(199, 0), (1, 94)].repeat(6));
        pieces.push((5_800, 94));
        let recovery = recovery_after_3_s(&log_of(&pieces), Some(94.0 * MBIT));
        assert_eq!(recovery.t90_ns, Some(1_180_000_000));
        assert!(
            recovery
                .last_stall_end_ns
                .is_some_and(|smooth| smooth.abs_diff(1_199_000_000) < 2_000_000)
        );
        assert!((13_000_000..14_500_000).contains(&recovery.deficit_bytes), "{recovery:?}");
    }

    #[test]
    fn data_in_flight_when_the_link_dies_are_not_a_recovery() {
        // A queue of 200 ms on the other path is still delivered, then nothing for 1 s.
        let log = log_of(&[(3_000, 187), (200, 94), (1_000, 0), (5_800, 94)]);
        let recovery = recovery_after_3_s(&log, Some(94.0 * MBIT));
        assert_eq!(recovery.t90_ns, Some(1_180_000_000));
        assert!(
            recovery
                .last_stall_end_ns
                .is_some_and(|smooth| smooth.abs_diff(1_199_000_000) < 2_000_000)
        );
    }

    #[test]
    fn a_burst_out_of_the_reorder_buffer_is_not_a_recovery() {
        let log = log_of(&[(3_000, 187), (300, 0), (10, 2_000), (800, 0), (5_890, 94)]);
        let recovery = recovery_after_3_s(&log, Some(94.0 * MBIT));
        assert_eq!(recovery.t90_ns, Some(1_090_000_000));
    }

    #[test]
    fn a_flow_whose_only_path_vanished_never_recovers() {
        let recovery = recovery_after_3_s(&log_of(&[(3_000, 96), (7_000, 0)]), None);
        assert_eq!((recovery.t90_ns, recovery.deficit_bytes), (None, 96 * 125 * 7_000));
        assert_eq!(recovery.longest_gap_ns, 7_001_000_000);
    }

    #[test]
    fn events_before_the_first_byte_or_at_the_end_give_no_recovery() {
        let log = log_of(&[(1_000, 0), (1_000, 94)]);
        let event = |millis| Disruption {
            at: ms(millis),
            text: String::new(),
            happened: String::new(),
            capacity_bps: None,
        };
        assert_eq!(recovery(&log, &event(500), ms(2_000)), None);
        assert_eq!(recovery(&log, &event(1_900), ms(2_000)), None);
        assert!(recovery(&log, &event(1_500), ms(2_000)).is_some());
    }

    /// Returns the largest duration for `None` (never).
    fn or_max(t90: Option<Duration>) -> Duration {
        t90.unwrap_or(Duration::MAX)
    }

    proptest! {
        #[test]
        fn a_higher_reference_is_never_reached_earlier(
            bins in proptest::collection::vec(0_u64..2_000, 0..300),
            reference in 1.0_f64..2e6,
            increase in 0.0_f64..1e6,
        ) {
            let (low, high) = (time_to_90(&bins, reference), time_to_90(&bins, reference + increase));
            prop_assert!(or_max(low) <= or_max(high));
        }

        #[test]
        fn more_bytes_never_make_recovery_later(
            bins in proptest::collection::vec((0_u64..2_000, 0_u64..500), 0..300),
            reference in 1.0_f64..2e6,
        ) {
            let (less, more): (Vec<_>, Vec<_>) = bins.iter().map(|(a, b)| (*a, a + b)).unzip();
            prop_assert!(
                or_max(time_to_90(&more, reference)) <= or_max(time_to_90(&less, reference)));
        }

        #[test]
        fn a_recovery_ends_within_the_observed_time(
            bins in proptest::collection::vec(0_u64..2_000, 0..300),
            reference in 1.0_f64..2e6,
        ) {
            if let Some(t90) = time_to_90(&bins, reference) {
                prop_assert!(t90 + BIN_SPAN * WINDOW_BINS as u32 <= BIN_SPAN * bins.len() as u32);
            }
        }
    }
}
