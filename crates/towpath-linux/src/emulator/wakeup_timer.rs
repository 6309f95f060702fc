//! Wake-up times of the emulator's thread: early enough to be awake at the next deadline.
//!
//! A sleeping thread wakes up later than requested. The latency depends on the machine, on its load
//! and on how long a processor was idle. Wake-up latency is therefore measured, the thread requests
//! an earlier wake-up, and busy-waits for the rest. A [`BusyWaitBudget`] limits the processor time
//! for this. The emptier it is, the more often the thread accepts being late.
//!
//! No clock is read here: times are arguments.

use std::time::Duration;

use towpath_measure::metrics::Histogram;
use towpath_net::Instant;

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
    longest: Duration,
    latencies: [LatencyHistogram; IDLE_CLASSES.len() + 1],
    budget: BusyWaitBudget,
    wake_ups: Histogram,
    early: Histogram,
}

/// Statistics of sleeping and busy-waiting, for the result.
#[derive(Debug, Clone)]
pub(crate) struct WakeupStats {
    /// Lateness of wake-ups by timeout, in nanoseconds.
    pub(crate) wake_ups: Histogram,
    /// Time between the requested wake-up and the deadline, in nanoseconds.
    pub(crate) early: Histogram,
    /// Total time of busy-waiting.
    pub(crate) awake: Duration,
}

impl WakeupTimer {
    /// Creates a timer without measurements; `longest` bounds the busy wait beyond a quick
    /// wake-up.
    pub(crate) fn new(now: Instant, longest: Duration) -> Self {
        Self {
            longest,
            latencies: [LatencyHistogram::NONE; IDLE_CLASSES.len() + 1],
            budget: BusyWaitBudget::new(now),
            wake_ups: Histogram::default(),
            early: Histogram::default(),
        }
    }

    /// Returns the time to sleep before a deadline `left` after `now`; zero means no sleep. The
    /// thread busy-waits for the rest, if any.
    pub(crate) fn sleep_time(&mut self, now: Instant, left: Duration) -> Duration {
        let purse = self.budget.fill_level(now);
        let longest = self.longest;
        let latencies = self.latencies(left);
        let max_early = latencies.quantile(QUICK_QUANTILE) + longest;
        let early = latencies.quantile(MAX_ON_TIME_SHARE * purse).min(max_early);
        let sleep = left.saturating_sub(early);
        // With an empty budget, the thread sleeps whenever it can: sleeping costs no processor
        // time.
        let sleep = match sleep {
            short if short < MIN_SLEEP && purse > 0.0 => Duration::ZERO,
            short if short < MIN_SLEEP => left,
            long => long,
        };
        self.early.record(nanos(left.saturating_sub(sleep)));
        sleep
    }

    /// Records that a sleep, with `left` until the deadline, ended `late` by timeout.
    pub(crate) fn on_wakeup(&mut self, left: Duration, late: Duration) {
        self.latencies(left).record(late);
        self.wake_ups.record(nanos(late));
    }

    /// Records that the thread has busy-waited for `awake`.
    pub(crate) fn on_busy_wait(&mut self, now: Instant, awake: Duration) {
        self.budget.consume(now, awake);
    }

    /// Returns the statistics of the whole run.
    pub(crate) fn finish(self) -> WakeupStats {
        WakeupStats { wake_ups: self.wake_ups, early: self.early, awake: self.budget.spent }
    }

    fn latencies(&mut self, left: Duration) -> &mut LatencyHistogram {
        let [classes @ .., longest] = &mut self.latencies;
        let class = IDLE_CLASSES.iter().position(|max_early| left < *max_early);
        class.and_then(|class| classes.get_mut(class)).unwrap_or(longest)
    }
}

/// Histogram of wake-up latencies; older ones count less.
#[derive(Debug, Clone, Copy)]
struct LatencyHistogram {
    counts: [u32; BUCKETS],
    total: u32,
}

/// Number of buckets for each doubling of the latency.
const PER_OCTAVE: u32 = 8;
/// Upper bound of the first bucket, in nanoseconds.
const FIRST_NS: u64 = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 10;
/// Number of buckets, up to 2²² ns (4 ms).
const BUCKETS: usize = (1 + (22 - FIRST_BITS) * PER_OCTAVE) as usize;
/// Number of samples after which all counts are halved.
const MAX_SAMPLES: u32 = 2_048;

impl LatencyHistogram {
    const NONE: Self = Self { counts: [0; BUCKETS], total: 0 };

    fn record(&mut self, late: Duration) {
        if self.total >= MAX_SAMPLES {
            for count in &mut self.counts {
                *count /= 2;
            }
            self.total = self.counts.iter().sum();
        }
        if let Some(count) = self.counts.get_mut(bucket_of(nanos(late))) {
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
        let mut seen = 0;
        let bucket = self.counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        Duration::from_nanos(end_of(bucket.unwrap_or(BUCKETS - 1)))
    }
}

fn bucket_of(ns: u64) -> usize {
    if ns < FIRST_NS {
        return 0;
    }
    let octave = ns.ilog2() - FIRST_BITS;
    let within = (ns >> (ns.ilog2() - PER_OCTAVE.ilog2())) as u32 - PER_OCTAVE;
    ((1 + octave * PER_OCTAVE + within) as usize).min(BUCKETS - 1)
}

fn end_of(bucket: usize) -> u64 {
    let Some(index) = bucket.checked_sub(1) else { return FIRST_NS };
    let (octave, within) = (index as u32 / PER_OCTAVE, index as u32 % PER_OCTAVE);
    u64::from(PER_OCTAVE + within + 1) << (octave + FIRST_BITS - PER_OCTAVE.ilog2())
}

/// Token bucket of processor time for busy-waiting.
#[derive(Debug)]
struct BusyWaitBudget {
    /// Spent and not yet refilled; exceeds the capacity if the last wait took more than was left.
    owed: Duration,
    at: Instant,
    spent: Duration,
}

impl BusyWaitBudget {
    fn new(now: Instant) -> Self {
        Self { owed: Duration::ZERO, at: now, spent: Duration::ZERO }
    }

    /// Returns the fill level, 0 to 1.
    fn fill_level(&mut self, now: Instant) -> f64 {
        let earned = now.saturating_since(self.at) * BUSY_WAIT_PERCENT / 100;
        self.at = self.at.max(now);
        self.owed = self.owed.saturating_sub(earned);
        (1.0 - self.owed.as_secs_f64() / BUSY_WAIT_BURST.as_secs_f64()).max(0.0)
    }

    fn consume(&mut self, now: Instant, span: Duration) {
        let _ = self.fill_level(now); // accounts for the time up to now
        self.owed += span;
        self.spent += span;
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
    fn machine(
        period: Duration,
        span: Duration,
        mut latency: impl FnMut(u64) -> Duration,
    ) -> (Vec<Duration>, Duration) {
        let mut now = Instant::ZERO;
        let (mut alarm, mut late, mut awake, mut count) =
            (WakeupTimer::new(now, MAX_BUSY_WAIT), Vec::new(), Duration::ZERO, 0);
        let mut due = now + period;
        while due < Instant::ZERO + span {
            let remaining = due.saturating_since(now);
            let sleep = alarm.sleep_time(now, remaining);
            assert!(sleep <= remaining);
            if !sleep.is_zero() {
                let more = latency(count);
                count += 1;
                alarm.on_wakeup(remaining, more);
                now = now + sleep + more;
            }
            if now < due && sleep < remaining {
                awake += due.saturating_since(now);
                alarm.on_busy_wait(due, due.saturating_since(now));
                now = due;
            }
            late.push(now.saturating_since(due));
            due += period;
        }
        assert_eq!(alarm.finish().awake, awake);
        (late, awake)
    }

    fn percentile(late: &[Duration], percent: usize) -> Duration {
        let mut sorted = late.to_vec();
        sorted.sort_unstable();
        sorted[(sorted.len() * percent / 100).min(sorted.len() - 1)]
    }

    #[test]
    fn the_thread_gets_up_as_early_as_the_machine_needs() {
        for usual in [2, 15, 45, 100, 300] {
            // Every 20th wake-up takes 50% longer.
            let latency = |n| US * if n % 20 == 0 { usual + usual / 2 } else { usual };
            let (late, awake) = machine(10_000 * US, 2 * SECOND, latency);
            let settled = &late[20..];
            assert_eq!(percentile(settled, 98), Duration::ZERO, "of {usual} µs");
            assert!(awake < US * usual * late.len() as u32, "{awake:?} awake of {usual} µs");
        }
    }

    #[test]
    fn the_estimate_follows_changes_at_run_time() {
        let latency = |n| US * if n < 5_000 { 10 } else { 90 };
        let (late, _) = machine(1_000 * US, 20 * SECOND, latency);
        assert_eq!(percentile(&late[4_000..5_000], 99), Duration::ZERO);
        assert_eq!(percentile(&late[15_000..], 95), Duration::ZERO);
    }

    #[test]
    fn the_smallest_latency_is_made_up_for_without_a_budget() {
        let mut alarm = WakeupTimer::new(Instant::ZERO, MAX_BUSY_WAIT);
        alarm.on_wakeup(1_000 * US, 40 * US);
        alarm.on_busy_wait(Instant::ZERO, SECOND);
        let sleep = alarm.sleep_time(Instant::ZERO, 1_000 * US);
        assert!((950 * US..=960 * US).contains(&sleep), "{sleep:?}");
        // Without enough time for a sleep, the thread sleeps nevertheless.
        assert_eq!(alarm.sleep_time(Instant::ZERO, 30 * US), 30 * US);
    }

    #[test]
    fn latency_caused_by_other_work_is_ignored() {
        let mut alarm = WakeupTimer::new(Instant::ZERO, 60 * US);
        for n in 0..100 {
            alarm.on_wakeup(10_000 * US, US * if n % 2 == 0 { 20 } else { 3_000 });
        }
        let sleep = alarm.sleep_time(Instant::ZERO, 10_000 * US);
        assert!((9_915 * US..=9_920 * US).contains(&sleep), "{sleep:?}");
    }

    #[test]
    fn a_constantly_slow_machine_is_not_treated_as_a_busy_one() {
        let mut alarm = WakeupTimer::new(Instant::ZERO, 60 * US);
        (0..100).for_each(|_| alarm.on_wakeup(10_000 * US, 900 * US));
        assert!(alarm.sleep_time(Instant::ZERO, 10_000 * US) <= 9_100 * US);
    }

    #[test]
    fn a_long_idle_processor_is_judged_by_long_sleeps() {
        let mut alarm = WakeupTimer::new(Instant::ZERO, MAX_BUSY_WAIT);
        (0..100).for_each(|_| alarm.on_wakeup(100 * US, 10 * US));
        (0..100).for_each(|_| alarm.on_wakeup(10_000 * US, 60 * US));
        let early = |alarm: &mut WakeupTimer, remaining: Duration| {
            remaining.saturating_sub(alarm.sleep_time(Instant::ZERO, remaining))
        };
        assert!(early(&mut alarm, 150 * US) <= 12 * US);
        assert!(early(&mut alarm, 9_000 * US) >= 60 * US);
    }

    proptest! {
        #[test]
        fn no_second_costs_more_than_the_budget(
            period in 5_u32..2_000,
            usual in 1_u32..500,
            seeds in proptest::collection::vec(1_u32..40, 1..50),
        ) {
            let latency = |n: u64| US * usual * seeds[n as usize % seeds.len()] / 8;
            let (_, awake) = machine(US * period, SECOND, latency);
            // One wait may be in progress when the budget runs out.
            prop_assert!(awake <= SECOND * 30 / 100 + 2 * MAX_BUSY_WAIT, "{awake:?}");
        }

        #[test]
        fn a_quantile_overestimates_by_at_most_an_eighth(
            late in proptest::collection::vec(1_024_u64..4_000_000, 1..300),
            share in 0.0_f64..=1.0,
        ) {
            let mut latencies = LatencyHistogram::NONE;
            for ns in &late {
                latencies.record(Duration::from_nanos(*ns));
            }
            let mut sorted = late.clone();
            sorted.sort_unstable();
            let rank = ((share * late.len() as f64).ceil() as usize).max(1);
            let exact = sorted[rank - 1];
            let found = nanos(latencies.quantile(share));
            prop_assert!(found >= exact && found <= exact + exact / 8 + 1, "{found} of {exact}");
        }
    }
}
