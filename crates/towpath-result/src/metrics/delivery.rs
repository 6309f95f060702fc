//! Delivery log of a receiver: bytes that arrived, over time.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Instant;
use towpath_scenario::DataDirection;

use crate::Interval;

/// Bin width for goodput windows.
pub const BIN_SPAN: Duration = Duration::from_millis(10);

const SLOT_NS: u64 = 1_000_000;
/// Longest time span accepted in a log from another host: twice the longest run.
const MAX_LOG_NS: u64 = 2 * 24 * 3_600 * 1_000_000_000;

/// Arrivals at a receiver in slots of 1 ms, each with its first and last arrival.
///
/// Arrivals 1 ms or more apart are never in the same slot. Every gap of 1 ms or more is therefore
/// exact to the nanosecond, even after merging. Shorter gaps may go unseen. Byte counts between two
/// points in time are exact to the slot: a slot counts where it began. A log takes at most 24 KB
/// per second.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawDeliveryLog")]
pub struct DeliveryLog {
    start_ns: u64,
    /// Slots in order of time, one for each millisecond in which something arrived.
    slots: Vec<DeliverySlot>,
    /// Time at which the sender's end of data was read.
    eof_ns: Option<u64>,
    /// Time until which the receiver listened.
    watched_ns: u64,
}

/// Arrivals within one millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct DeliverySlot {
    first_ns: u64,
    last_ns: u64,
    bytes: u64,
}

/// Log received from another host, not yet validated.
#[derive(Deserialize)]
struct RawDeliveryLog {
    start_ns: u64,
    slots: Vec<DeliverySlot>,
    eof_ns: Option<u64>,
    watched_ns: u64,
}

impl TryFrom<RawDeliveryLog> for DeliveryLog {
    type Error = &'static str;

    /// Accepts only a log that [`DeliveryLog::record`] could have made, of at most two days. The
    /// limit matters because derived metrics have an entry for each [`BIN_SPAN`].
    fn try_from(raw: RawDeliveryLog) -> Result<Self, Self::Error> {
        let RawDeliveryLog { start_ns, slots, eof_ns, watched_ns } = raw;
        if watched_ns > MAX_LOG_NS {
            return Err("a delivery log ends after more than two days");
        }
        let mut previous_number = None;
        for slot in &slots {
            let number = slot.first_ns / SLOT_NS;
            let is_one_slot = slot.last_ns >= slot.first_ns && slot.last_ns / SLOT_NS == number;
            let is_in_range = slot.first_ns >= start_ns && slot.last_ns <= watched_ns;
            if !is_one_slot
                || !is_in_range
                || previous_number.is_some_and(|previous_number| previous_number >= number)
            {
                return Err("the slots of a delivery log are not in order of time");
            }
            previous_number = Some(number);
        }
        if start_ns > watched_ns || eof_ns.is_some_and(|eof| eof > watched_ns) {
            return Err("a delivery log ends before its data");
        }
        Ok(Self { start_ns, slots, eof_ns, watched_ns })
    }
}

impl DeliverySlot {
    fn number(&self) -> u64 {
        self.first_ns / SLOT_NS
    }
}

/// Time between two arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gap {
    /// Arrival before the gap.
    pub start: Instant,
    /// Arrival after the gap, or the end of the flow.
    pub end: Instant,
}

impl Gap {
    /// Returns the length of the gap.
    pub fn length(self) -> Duration {
        self.end.saturating_since(self.start)
    }
}

impl DeliveryLog {
    /// Creates an empty log of a flow that starts at `start`.
    pub fn new(start: Instant) -> Self {
        let start_ns = start.as_nanos();
        Self { start_ns, slots: Vec::new(), eof_ns: None, watched_ns: start_ns }
    }

    /// Records the arrival of `bytes`. Time never runs backwards: an earlier `now` counts as the
    /// latest time seen.
    pub fn record(&mut self, now: Instant, bytes: u64) {
        let now_ns = now.as_nanos().max(self.watched_ns);
        self.watched_ns = now_ns;
        if bytes == 0 {
            return;
        }
        match self.slots.last_mut() {
            Some(slot) if slot.number() == now_ns / SLOT_NS => {
                slot.last_ns = now_ns;
                slot.bytes = slot.bytes.saturating_add(bytes);
            }
            _ => self.slots.push(DeliverySlot { first_ns: now_ns, last_ns: now_ns, bytes }),
        }
    }

    /// Records `bytes` that arrived during the `span` before `end`, spread evenly in steps of
    /// [`BIN_SPAN`].
    pub fn record_evenly(&mut self, bytes: u64, (end, span): (Instant, Duration)) {
        let steps = (span.as_nanos() / BIN_SPAN.as_nanos()).clamp(1, 1_000) as u64;
        let mut remaining = bytes;
        for step in (0..steps).rev() {
            let step_bytes = remaining / (step + 1);
            remaining -= step_bytes;
            let time_before = span.mul_f64(step as f64 / steps as f64);
            if step_bytes > 0 {
                self.record(end - time_before, step_bytes);
            }
        }
    }

    /// Returns the number of milliseconds in which something arrived. The log's memory grows with
    /// it.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Records that the end of the data was read; nothing arrives after it.
    pub fn record_eof(&mut self, now: Instant) {
        self.watch_until(now);
        self.eof_ns.get_or_insert(self.watched_ns);
    }

    /// Records that the receiver listened until `now`.
    pub fn watch_until(&mut self, now: Instant) {
        self.watched_ns = self.watched_ns.max(now.as_nanos());
    }

    /// Merges the logs of all streams of a flow. An arrival on any stream ends a gap, and the end
    /// of data is reached when all streams have reached it. Returns `None` without a log.
    pub fn merge<'a>(logs: impl IntoIterator<Item = &'a Self>) -> Option<Self> {
        let mut logs = logs.into_iter();
        let mut merged = logs.next()?.clone();
        for log in logs {
            merged.start_ns = merged.start_ns.min(log.start_ns);
            merged.watched_ns = merged.watched_ns.max(log.watched_ns);
            merged.eof_ns = merged.eof_ns.zip(log.eof_ns).map(|(a, b)| a.max(b));
            merged.slots.extend(&log.slots);
        }
        merged.slots.sort_by_key(DeliverySlot::number);
        merged.slots.dedup_by(|later, earlier| {
            let same_slot = later.number() == earlier.number();
            if same_slot {
                earlier.first_ns = earlier.first_ns.min(later.first_ns);
                earlier.last_ns = earlier.last_ns.max(later.last_ns);
                earlier.bytes = earlier.bytes.saturating_add(later.bytes);
            }
            same_slot
        });
        Some(merged)
    }

    /// Returns the start of the flow.
    pub fn start(&self) -> Instant {
        Instant::from_nanos(self.start_ns)
    }

    /// Returns the time of the first arrival; `None` when nothing arrived.
    pub fn first(&self) -> Option<Instant> {
        self.slots.first().map(|slot| Instant::from_nanos(slot.first_ns))
    }

    /// Returns the time of the last arrival; `None` when nothing arrived.
    pub fn last(&self) -> Option<Instant> {
        self.slots.last().map(|slot| Instant::from_nanos(slot.last_ns))
    }

    /// Returns the time at which the end of the data was read; `None` before that.
    pub fn eof(&self) -> Option<Instant> {
        self.eof_ns.map(Instant::from_nanos)
    }

    /// Returns the time until which the receiver listened.
    pub fn watched_until(&self) -> Instant {
        Instant::from_nanos(self.watched_ns)
    }

    /// Returns the total number of bytes that arrived.
    pub fn total_bytes(&self) -> u64 {
        sum(&self.slots)
    }

    /// Returns the bytes that arrived in `from..to`.
    pub fn bytes_between(&self, from: Instant, to: Instant) -> u64 {
        sum(self.slots_between(from, to))
    }

    /// Returns the bytes per [`BIN_SPAN`] from the flow's start until its last arrival.
    pub fn bins(&self) -> Vec<u64> {
        match self.last() {
            Some(last) => self.bins_between(self.start(), last + BIN_SPAN),
            None => Vec::new(),
        }
    }

    /// Returns the bytes per [`BIN_SPAN`] from `from` on; only bins that are complete at `to`.
    pub fn bins_between(&self, from: Instant, to: Instant) -> Vec<u64> {
        let width = BIN_SPAN.as_nanos() as u64;
        let count = to.as_nanos().saturating_sub(from.as_nanos()) / width;
        let mut bins = vec![0_u64; usize::try_from(count).unwrap_or(0)];
        for slot in self.slots_between(from, to) {
            let number = (slot.first_ns - from.as_nanos()) / width;
            if let Some(bin) = usize::try_from(number).ok().and_then(|i| bins.get_mut(i)) {
                *bin = bin.saturating_add(slot.bytes);
            }
        }
        bins
    }

    /// Returns the gaps between the first byte and `end`, in order. A gap that is open at `end` is
    /// the last.
    pub fn gaps(&self, end: Instant) -> impl Iterator<Item = Gap> + '_ {
        let next = self.slots.iter().skip(1).map(|slot| slot.first_ns).chain([u64::MAX]);
        self.slots.iter().zip(next).filter_map(move |(slot, next_ns)| {
            let start = Instant::from_nanos(slot.last_ns);
            let gap = Gap { start, end: Instant::from_nanos(next_ns).min(end) };
            (gap.end > gap.start).then_some(gap)
        })
    }

    /// Returns the interval records of one stream. Periods follow the run's clock, from the flow's
    /// start until `end`, including empty ones.
    pub fn intervals(
        &self,
        (flow, stream): (u32, u32),
        direction: DataDirection,
        period: Duration,
        end: Instant,
    ) -> Vec<Interval> {
        let span_ns = u64::try_from(period.as_nanos()).unwrap_or(u64::MAX).max(SLOT_NS);
        let first_number = self.start_ns / span_ns;
        let end_number = end.as_nanos().div_ceil(span_ns);
        (first_number..end_number)
            .map(|number| {
                let t_ns = (number + 1).saturating_mul(span_ns);
                let from = Instant::from_nanos(number * span_ns);
                let bytes = self.bytes_between(from, Instant::from_nanos(t_ns));
                Interval { t_ns, span_ns, flow, stream, direction, bytes, connection: None }
            })
            .collect()
    }

    fn slots_between(&self, from: Instant, to: Instant) -> &[DeliverySlot] {
        let slot_count_before =
            |time: Instant| self.slots.partition_point(|s| s.first_ns < time.as_nanos());
        self.slots.get(slot_count_before(from)..slot_count_before(to)).unwrap_or(&[])
    }
}

fn sum(slots: &[DeliverySlot]) -> u64 {
    slots.iter().fold(0, |sum, slot| sum.saturating_add(slot.bytes))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn us(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    #[test]
    fn an_untrusted_log_contains_only_possible_arrivals() {
        let mut log = log_of(&[(0, 1), (9_000, 1)]);
        log.record_eof(us(9_500));
        let text = serde_json::to_string(&log).unwrap();
        assert_eq!(serde_json::from_str::<DeliveryLog>(&text).unwrap(), log);
        for (json, reason) in [
            (
                r#"{"start_ns":0,"slots":[],"eof_ns":null,"watched_ns":18446744073709551615}"#,
                "days",
            ),
            (r#"{"start_ns":5,"slots":[],"eof_ns":null,"watched_ns":4}"#, "before its data"),
            (
                r#"{"start_ns":0,"slots":[{"first_ns":9000000,"last_ns":9000000,"bytes":1},
                   {"first_ns":1,"last_ns":1,"bytes":1}],"eof_ns":null,"watched_ns":9000000}"#,
                "order of time",
            ),
            (
                r#"{"start_ns":0,"slots":[{"first_ns":9223372036854775807,
                   "last_ns":9223372036854775807,"bytes":1}],"eof_ns":null,"watched_ns":9}"#,
                "order of time",
            ),
        ] {
            let error = serde_json::from_str::<DeliveryLog>(json).unwrap_err().to_string();
            assert!(error.contains(reason), "{error}");
        }
    }

    fn log_of(arrivals: &[(u64, u64)]) -> DeliveryLog {
        let mut log = DeliveryLog::new(Instant::ZERO);
        for &(micros, bytes) in arrivals {
            log.record(us(micros), bytes);
        }
        log
    }

    #[test]
    fn a_gap_is_exact_although_arrivals_are_binned() {
        let log = log_of(&[(100, 1), (900, 1), (2_350, 1)]);
        let gaps: Vec<_> = log.gaps(us(2_350)).collect();
        assert_eq!(gaps, [Gap { start: us(900), end: us(2_350) }]);
    }

    #[test]
    fn a_gap_still_open_at_the_end_counts() {
        let log = log_of(&[(1_000, 1), (2_000, 1)]);
        let last = log.gaps(us(7_000_000)).last().unwrap();
        assert_eq!((last.start, last.end), (us(2_000), us(7_000_000)));
    }

    #[test]
    fn an_arrival_of_any_stream_ends_the_gap_of_the_flow() {
        let merged = DeliveryLog::merge([&log_of(&[(0, 1), (9_000, 1)]), &log_of(&[(4_500, 1)])]);
        let longest = merged.unwrap().gaps(us(9_000)).map(Gap::length).max();
        assert_eq!(longest, Some(Duration::from_micros(4_500)));
    }

    #[test]
    fn evenly_recorded_data_fills_every_bin() {
        let mut log = DeliveryLog::new(Instant::ZERO);
        log.record_evenly(10, (us(40_000), Duration::from_millis(40)));
        assert_eq!((log.total_bytes(), log.slots()), (10, 4));
        assert_eq!((log.first(), log.last()), (Some(us(10_000)), Some(us(40_000))));
    }

    #[test]
    fn a_merged_log_has_an_eof_only_if_all_streams_have_one() {
        let (mut ended, open) = (log_of(&[(0, 1)]), log_of(&[(0, 1)]));
        ended.record_eof(us(5));
        assert_eq!(DeliveryLog::merge([&ended, &open]).unwrap().eof(), None);
        assert_eq!(DeliveryLog::merge([&ended, &ended]).unwrap().eof(), Some(us(5)));
    }

    #[test]
    fn intervals_follow_the_clock_of_the_run_and_show_empty_periods() {
        let mut log = DeliveryLog::new(us(150_000));
        log.record(us(180_000), 5);
        log.record(us(310_000), 7);
        let rows =
            log.intervals((1, 2), DataDirection::Up, Duration::from_millis(100), us(400_000));
        let ends_and_bytes: Vec<_> =
            rows.iter().map(|row| (row.t_ns / 1_000_000, row.bytes)).collect();
        assert_eq!(ends_and_bytes, [(200, 5), (300, 0), (400, 7)]);
    }

    proptest! {
        #[test]
        fn merged_logs_conserve_bytes(
            streams in proptest::collection::vec(
                proptest::collection::vec((0_u64..50_000, 0_u64..1_000), 0..50), 1..5),
        ) {
            let logs: Vec<_> = streams.iter().map(|s| log_of(s)).collect();
            let merged = DeliveryLog::merge(&logs).unwrap();
            let sum: u64 = logs.iter().map(DeliveryLog::total_bytes).sum();
            prop_assert_eq!(merged.total_bytes(), sum);
            prop_assert_eq!(merged.bins().iter().sum::<u64>(), sum);
            let rows = merged.intervals((0, 0), DataDirection::Up, BIN_SPAN * 3, us(60_000));
            prop_assert_eq!(rows.iter().map(|row| row.bytes).sum::<u64>(), sum);
        }

        #[test]
        fn merged_streams_have_the_long_gaps_of_a_single_receiver(
            mut arrivals in proptest::collection::vec((0_u64..30_000, 0_usize..3), 1..60),
        ) {
            arrivals.sort_unstable();
            let mut logs = vec![DeliveryLog::new(Instant::ZERO); 3];
            let mut single = DeliveryLog::new(Instant::ZERO);
            for (micros, stream) in arrivals {
                logs[stream].record(us(micros), 1);
                single.record(us(micros), 1);
            }
            let merged = DeliveryLog::merge(&logs).unwrap();
            prop_assert_eq!(merged, single);
        }

        #[test]
        fn gaps_never_exceed_the_flow(
            arrivals in proptest::collection::vec((0_u64..1_000_000, 1_u64..9), 0..50),
            end in 0_u64..1_000_000,
        ) {
            let log = log_of(&arrivals);
            let sum: Duration = log.gaps(us(end)).map(Gap::length).sum();
            prop_assert!(sum <= us(end).saturating_since(log.first().unwrap_or_default()));
        }
    }
}
