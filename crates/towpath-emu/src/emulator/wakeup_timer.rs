//! Wake-up times of the emulator's thread: early enough to be awake at the next deadline.
//!
//! A sleeping thread wakes up later than requested. The latency depends on the machine, on its load
//! and on how long a processor was idle. Wake-up latency is therefore measured, the thread requests
//! an earlier wake-up, and busy-waits for the rest. A [`BusyWaitBudget`] limits the processor time
//! for this. The emptier it is, the more often the thread accepts being late.
//!
//! No clock is read here: times are arguments.

use std::time::Duration;

use towpath_net::Instant;
use towpath_result::metrics::Histogram;

/// Share of a processor for busy-waiting in the long run, in percent.
const BUSY_WAIT_PERCENT: u32 = 25;
/// Capacity of the budget: in any second, busy-waiting takes at most `BUSY_WAIT_PERCENT` + 5 %.
const BUSY_WAIT_BURST: Duration = Duration::from_millis(50);
/// Share of wake-ups that are on time while the budget is full.
const MAX_ON_TIME_SHARE: f64 = 0.99;
/// Share of wake-ups that count as quick; they bound the busy wait.
const QUICK_QUANTILE: f64 = 0.1;
/// Minimum sleep; shorter ones are replaced by busy-waiting.
const MIN_SLEEP: Duration = Duration::from_micros(3);
/// Assumed wake-up latency before any was measured.
const ASSUMED_LATENCY: Duration = Duration::from_micros(50);
/// Upper bounds of the idle time of each class but the last. A processor that was idle for longer
/// takes longer to wake up.
const IDLE_CLASSES: [Duration; 4] = [
    Duration::from_micros(100),
    Duration::from_micros(400),
    Duration::from_micros(1_600),
    Duration::from_micros(6_400),
];

/// Timer that chooses wake-up times and learns from each wake-up.
#[derive(Debug)]
pub(crate) struct WakeupTimer {
    /// Maximum busy wait beyond a quick wake-up; a longer latency is caused by other work.
    max_busy_wait: Duration,
    latencies: [LatencyHistogram; IDLE_CLASSES.len() + 1],
    budget: BusyWaitBudget,
    lateness: Histogram,
    lead_time: Histogram,
}

/// Statistics of sleeping and busy-waiting, for the result.
#[derive(Debug, Clone)]
pub(crate) struct WakeupStats {
    /// Lateness of wake-ups by timeout, in nanoseconds.
    pub(crate) lateness: Histogram,
    /// Time between the requested wake-up and the deadline, in nanoseconds.
    pub(crate) lead_time: Histogram,
    /// Total time of busy-waiting.
    pub(crate) busy_wait: Duration,
}

impl WakeupTimer {
    /// Creates a timer without measurements; `max_busy_wait` bounds the busy wait beyond a quick
    /// wake-up.
    pub(crate) fn new(now: Instant, max_busy_wait: Duration) -> Self {
        Self {
            max_busy_wait,
            latencies: [LatencyHistogram::NONE; IDLE_CLASSES.len() + 1],
            budget: BusyWaitBudget::new(now),
            lateness: Histogram::default(),
            lead_time: Histogram::default(),
        }
    }

    /// Returns the time to sleep before a deadline `remaining` after `now`; zero means no sleep.
    /// The thread busy-waits for the rest, if any.
    pub(crate) fn sleep_time(&mut self, now: Instant, remaining: Duration) -> Duration {
        let fill_level = self.budget.fill_level(now);
        let max_busy_wait = self.max_busy_wait;
        let latencies = self.latencies(remaining);
        let max_early = latencies.quantile(QUICK_QUANTILE) + max_busy_wait;
        let lead_time = latencies.quantile(MAX_ON_TIME_SHARE * fill_level).min(max_early);
        let sleep = remaining.saturating_sub(lead_time);
        // With an empty budget, the thread sleeps whenever it can: sleeping costs no processor
        // time.
        let sleep = match sleep {
            short if short < MIN_SLEEP && fill_level > 0.0 => Duration::ZERO,
            short if short < MIN_SLEEP => remaining,
            long => long,
        };
        self.lead_time.record(nanos(remaining.saturating_sub(sleep)));
        sleep
    }

    /// Records a sleep, begun `remaining` before the deadline, whose timeout fired `latency` too
    /// late.
    pub(crate) fn on_wakeup(&mut self, remaining: Duration, latency: Duration) {
        self.latencies(remaining).record(latency);
        self.lateness.record(nanos(latency));
    }

    /// Records that the thread has busy-waited for `duration`.
    pub(crate) fn on_busy_wait(&mut self, now: Instant, duration: Duration) {
        self.budget.consume(now, duration);
    }

    /// Returns the statistics of the whole run.
    pub(crate) fn finish(self) -> WakeupStats {
        WakeupStats {
            lateness: self.lateness,
            lead_time: self.lead_time,
            busy_wait: self.budget.total_spent,
        }
    }

    fn latencies(&mut self, remaining: Duration) -> &mut LatencyHistogram {
        let [bounded_classes @ .., last_class] = &mut self.latencies;
        let class = IDLE_CLASSES.iter().position(|bound| remaining < *bound);
        class.and_then(|class| bounded_classes.get_mut(class)).unwrap_or(last_class)
    }
}

/// Histogram of wake-up latencies; older ones count less.
#[derive(Debug, Clone, Copy)]
struct LatencyHistogram {
    counts: [u32; BUCKETS],
    total: u32,
}

/// Number of buckets for each doubling of the latency.
const BUCKETS_PER_OCTAVE: u32 = 8;
/// Upper bound of the first bucket, in nanoseconds.
const FIRST_BUCKET_NS: u64 = 1 << FIRST_BUCKET_BITS;
/// Binary logarithm of [`FIRST_BUCKET_NS`].
const FIRST_BUCKET_BITS: u32 = 10;
/// Number of buckets, up to 2²² ns (4 ms).
const BUCKETS: usize = (1 + (22 - FIRST_BUCKET_BITS) * BUCKETS_PER_OCTAVE) as usize;
/// Number of samples after which all counts are halved.
const MAX_SAMPLES: u32 = 2_048;

impl LatencyHistogram {
    const NONE: Self = Self { counts: [0; BUCKETS], total: 0 };

    fn record(&mut self, latency: Duration) {
        if self.total >= MAX_SAMPLES {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
        if let Some(count) = self.counts.get_mut(bucket_index(nanos(latency))) {
            *count += 1;
            self.total += 1;
        }
    }

    /// Returns the latency that `share` of the wake-ups do not exceed, as the upper end of its
    /// bucket.
    fn quantile(&self, share: f64) -> Duration {
        if self.total == 0 {
            return ASSUMED_LATENCY;
        }
        let rank = ((share * f64::from(self.total)).ceil() as u32).max(1);
        let mut cumulative = 0;
        let bucket = self.counts.iter().position(|count| {
            cumulative += count;
            cumulative >= rank
        });
        Duration::from_nanos(bucket_end_ns(bucket.unwrap_or(BUCKETS - 1)))
    }
}

fn bucket_index(ns: u64) -> usize {
    if ns < FIRST_BUCKET_NS {
        return 0;
    }
    let octave = ns.ilog2() - FIRST_BUCKET_BITS;
    let sub_bucket = (ns >> (ns.ilog2() - BUCKETS_PER_OCTAVE.ilog2())) as u32 - BUCKETS_PER_OCTAVE;
    ((1 + octave * BUCKETS_PER_OCTAVE + sub_bucket) as usize).min(BUCKETS - 1)
}

fn bucket_end_ns(bucket: usize) -> u64 {
    let Some(index) = bucket.checked_sub(1) else { return FIRST_BUCKET_NS };
    let (octave, sub_bucket) =
        (index as u32 / BUCKETS_PER_OCTAVE, index as u32 % BUCKETS_PER_OCTAVE);
    u64::from(BUCKETS_PER_OCTAVE + sub_bucket + 1)
        << (octave + FIRST_BUCKET_BITS - BUCKETS_PER_OCTAVE.ilog2())
}

/// Token bucket of processor time for busy-waiting.
#[derive(Debug)]
struct BusyWaitBudget {
    /// Spent and not yet refilled; exceeds the capacity if the last wait took more than was left.
    owed: Duration,
    /// Time of the last refill.
    refilled_at: Instant,
    /// Total since the start.
    total_spent: Duration,
}

impl BusyWaitBudget {
    fn new(now: Instant) -> Self {
        Self { owed: Duration::ZERO, refilled_at: now, total_spent: Duration::ZERO }
    }

    /// Returns the fill level, 0 to 1.
    fn fill_level(&mut self, now: Instant) -> f64 {
        let refill = now.saturating_since(self.refilled_at) * BUSY_WAIT_PERCENT / 100;
        self.refilled_at = self.refilled_at.max(now);
        self.owed = self.owed.saturating_sub(refill);
        (1.0 - self.owed.as_secs_f64() / BUSY_WAIT_BURST.as_secs_f64()).max(0.0)
    }

    fn consume(&mut self, now: Instant, span: Duration) {
        let _ = self.fill_level(now); // accounts for the time up to now
        self.owed += span;
        self.total_spent += span;
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const US: Duration = Duration::from_micros(1);
    const SECOND: Duration = Duration::from_secs(1);
    const MAX_BUSY_WAIT: Duration = Duration::from_micros(500);

    /// Simulates a machine with the given wake-up latencies and a packet every `period`. Returns
    /// the lateness of each packet and the total time of busy-waiting.
    fn simulate_machine(
        period: Duration,
        span: Duration,
        mut latency: impl FnMut(u64) -> Duration,
    ) -> (Vec<Duration>, Duration) {
        let mut now = Instant::ZERO;
        let (mut timer, mut lateness, mut busy_wait, mut count) =
            (WakeupTimer::new(now, MAX_BUSY_WAIT), Vec::new(), Duration::ZERO, 0);
        let mut due = now + period;
        while due < Instant::ZERO + span {
            let remaining = due.saturating_since(now);
            let sleep = timer.sleep_time(now, remaining);
            assert!(sleep <= remaining);
            if !sleep.is_zero() {
                let overrun = latency(count);
                count += 1;
                timer.on_wakeup(remaining, overrun);
                now = now + sleep + overrun;
            }
            if now < due && sleep < remaining {
                busy_wait += due.saturating_since(now);
                timer.on_busy_wait(due, due.saturating_since(now));
                now = due;
            }
            lateness.push(now.saturating_since(due));
            due += period;
        }
        assert_eq!(timer.finish().busy_wait, busy_wait);
        (lateness, busy_wait)
    }

    fn percentile(lateness: &[Duration], percent: usize) -> Duration {
        let mut sorted = lateness.to_vec();
        sorted.sort_unstable();
        sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
    }

    #[test]
    fn the_thread_wakes_early_by_the_usual_latency() {
        for usual_us in [2, 15, 45, 100, 300] {
            // Every 20th wake-up takes 50% longer.
            let latency = |n| US * if n % 20 == 0 { usual_us + usual_us / 2 } else { usual_us };
            let (lateness, busy_wait) = simulate_machine(10_000 * US, 2 * SECOND, latency);
            let settled = &lateness[20..];
            assert_eq!(percentile(settled, 98), Duration::ZERO, "of {usual_us} µs");
            assert!(
                busy_wait < US * usual_us * lateness.len() as u32,
                "{busy_wait:?} awake of {usual_us} µs"
            );
        }
    }

    #[test]
    fn the_estimate_follows_changes_at_run_time() {
        let latency = |n| US * if n < 5_000 { 10 } else { 90 };
        let (lateness, _) = simulate_machine(1_000 * US, 20 * SECOND, latency);
        assert_eq!(percentile(&lateness[4_000..5_000], 99), Duration::ZERO);
        assert_eq!(percentile(&lateness[15_000..], 95), Duration::ZERO);
    }

    #[test]
    fn an_empty_budget_still_allows_for_the_minimum_latency() {
        let mut timer = WakeupTimer::new(Instant::ZERO, MAX_BUSY_WAIT);
        timer.on_wakeup(1_000 * US, 40 * US);
        timer.on_busy_wait(Instant::ZERO, SECOND);
        let sleep = timer.sleep_time(Instant::ZERO, 1_000 * US);
        assert!((950 * US..=960 * US).contains(&sleep), "{sleep:?}");
        // Without enough time for a sleep, the thread sleeps nevertheless.
        assert_eq!(timer.sleep_time(Instant::ZERO, 30 * US), 30 * US);
    }

    #[test]
    fn latency_caused_by_other_work_is_ignored() {
        let mut timer = WakeupTimer::new(Instant::ZERO, 60 * US);
        for n in 0..100 {
            timer.on_wakeup(10_000 * US, US * if n % 2 == 0 { 20 } else { 3_000 });
        }
        let sleep = timer.sleep_time(Instant::ZERO, 10_000 * US);
        assert!((9_915 * US..=9_920 * US).contains(&sleep), "{sleep:?}");
    }

    #[test]
    fn a_constantly_slow_machine_is_not_treated_as_a_busy_one() {
        let mut timer = WakeupTimer::new(Instant::ZERO, 60 * US);
        (0..100).for_each(|_| timer.on_wakeup(10_000 * US, 900 * US));
        assert!(timer.sleep_time(Instant::ZERO, 10_000 * US) <= 9_100 * US);
    }

    #[test]
    fn a_long_idle_processor_is_judged_by_long_sleeps() {
        let mut timer = WakeupTimer::new(Instant::ZERO, MAX_BUSY_WAIT);
        (0..100).for_each(|_| timer.on_wakeup(100 * US, 10 * US));
        (0..100).for_each(|_| timer.on_wakeup(10_000 * US, 60 * US));
        let lead_time = |timer: &mut WakeupTimer, remaining: Duration| {
            remaining.saturating_sub(timer.sleep_time(Instant::ZERO, remaining))
        };
        assert!(lead_time(&mut timer, 150 * US) <= 12 * US);
        assert!(lead_time(&mut timer, 9_000 * US) >= 60 * US);
    }

    proptest! {
        #[test]
        fn no_second_costs_more_than_the_budget(
            period in 5_u32..2_000,
            usual_latency in 1_u32..500,
            seeds in proptest::collection::vec(1_u32..40, 1..50),
        ) {
            let latency = |n: u64| US * usual_latency * seeds[n as usize % seeds.len()] / 8;
            let (_, busy_wait) = simulate_machine(US * period, SECOND, latency);
            // One wait may be in progress when the budget runs out.
            prop_assert!(busy_wait <= SECOND * 30 / 100 + 2 * MAX_BUSY_WAIT, "{busy_wait:?}");
        }

        #[test]
        fn a_quantile_overestimates_by_at_most_an_eighth(
            latencies_ns in proptest::collection::vec(1_024_u64..4_000_000, 1..300),
            share in 0.0_f64..=1.0,
        ) {
            let mut latencies = LatencyHistogram::NONE;
            for ns in &latencies_ns {
                latencies.record(Duration::from_nanos(*ns));
            }
            let mut sorted = latencies_ns.clone();
            sorted.sort_unstable();
            let rank = ((share * latencies_ns.len() as f64).ceil() as usize).max(1);
            let exact = sorted[rank - 1];
            let estimate = nanos(latencies.quantile(share));
            prop_assert!(estimate >= exact && estimate <= exact + exact / 8 + 1, "{estimate} of {exact}");
        }
    }
}
