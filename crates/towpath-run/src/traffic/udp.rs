//! Datagrams at a constant rate over one path, in one direction: one end sends, the other counts.
//!
//! Nothing shifts the schedule, and nothing is retransmitted. A datagram that could not be sent
//! within [`MAX_SEND_DELAY`] is skipped and gets no number, so every missing number was lost in the
//! network. The receiver keeps a bounded window of numbers, independent of the input.
//!
//! In a call, a datagram that could not be sent counts as lost, so it has a number. The datagrams
//! of a video frame are due at the same time.
//!
//! Implements the interarrival jitter of RFC 3550 §6.4.1 and the delay variation of RFC 5481 §4.2
//! (relative to the smallest delay).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Instant;
use towpath_result::{DatagramRow, DatagramStats, DelayStats};
use towpath_scenario::{DataDirection, Udp};

mod call;

use call::CallPlayout;
pub use call::PlayoutReport;
use towpath_scenario::flow_plan::{packets_per_frame, planned_datagrams};

/// Longest delay of a datagram at the sender; a datagram that is due for longer is skipped.
pub const MAX_SEND_DELAY: Duration = Duration::from_millis(100);
/// Size of the receiver's window of numbers that may still arrive.
const REORDER_WINDOW: u64 = 65_536;
/// Most rows of a direction; a longer flow has longer rows.
const MAX_ROWS: u128 = 10_000;
/// Maximum number of buckets of a delay distribution; above it, buckets are merged in pairs.
const MAX_BUCKETS: usize = 16_384;
/// Memory that a receiver takes in addition to its rows.
pub const RECEIVER_MEMORY_BYTES: u64 = 1 << 20;
/// Memory that one row of a receiver takes.
pub const ROW_MEMORY_BYTES: u64 = 128;

/// Periods of a flow; a datagram belongs to the period in which it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Periods {
    start: Instant,
    span: Duration,
    count: usize,
}

impl Periods {
    fn new(plan: &Udp, start: Instant, sample: Duration) -> Self {
        let sample = sample.max(Duration::from_millis(1));
        let duration = plan.duration.as_nanos().max(1);
        let rows = duration.div_ceil(sample.as_nanos());
        let samples_per_row = rows.div_ceil(MAX_ROWS).max(1);
        let span = sample.saturating_mul(u32::try_from(samples_per_row).unwrap_or(u32::MAX));
        let count = duration.div_ceil(span.as_nanos().max(1));
        Self { start, span, count: usize::try_from(count).unwrap_or(1).max(1) }
    }

    /// Returns the index of the period in which a datagram was sent.
    fn index_of(&self, sent: Instant) -> usize {
        let elapsed_ns = sent.saturating_since(self.start).as_nanos();
        let index = elapsed_ns / self.span.as_nanos().max(1);
        usize::try_from(index).unwrap_or(usize::MAX).min(self.count.saturating_sub(1))
    }
}

/// Returns the number of rows that a receiver keeps.
pub fn planned_rows(plan: &Udp, sample: Duration) -> u64 {
    Periods::new(plan, Instant::ZERO, sample).count as u64
}

/// Sending end of a datagram flow.
#[derive(Debug, Clone)]
pub struct UdpSender {
    plan: Udp,
    start: Instant,
    count: u64,
    /// Index of the first datagram in the schedule after the receiver became reachable, and of the
    /// next.
    first: u64,
    next: u64,
    sent: u64,
    unsent: u64,
    periods: Periods,
    rows: Vec<(u64, u64)>,
}

/// Report of the sender on its datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UdpSenderReport {
    /// Datagrams that the system accepted.
    pub sent: u64,
    /// Datagrams that were due and could not be sent in time.
    pub unsent: u64,
    /// Datagrams (sent, unsent) in each period.
    pub rows: Vec<(u64, u64)>,
}

impl UdpSender {
    /// Creates a sender that follows `plan` from `start` on.
    pub fn new(plan: Udp, start: Instant, sample: Duration) -> Self {
        let periods = Periods::new(&plan, start, sample);
        let rows = vec![(0, 0); periods.count];
        let count = planned_datagrams(&plan);
        Self { plan, start, count, first: 0, next: 0, sent: 0, unsent: 0, periods, rows }
    }

    fn due_time(&self, number: u64) -> Instant {
        let number = number - number % packets_per_frame(&self.plan);
        let bits = u128::from(number) * u128::from(self.plan.bytes) * 8;
        let nanos = bits * 1_000_000_000 / u128::from(self.plan.rate_bps.max(1));
        self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Skips datagrams due before `now`, when the receiver was not reachable yet.
    pub fn begin_at(&mut self, now: Instant) {
        while self.next < self.count && self.due_time(self.next) < now {
            self.next += 1;
        }
        self.first = self.next;
    }

    /// Stops sending; the rest of the schedule is dropped.
    pub fn stop(&mut self) {
        self.count = self.next;
    }

    /// Returns the number of a datagram to be sent now. The caller must then call either
    /// [`Self::on_sent`] or [`Self::on_refused`].
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        while self.next < self.count && self.due_time(self.next) + MAX_SEND_DELAY < now {
            self.on_refused();
        }
        let number = if self.plan.call.is_some() { self.next - self.first } else { self.sent };
        (self.next < self.count && self.due_time(self.next) <= now).then_some(number)
    }

    /// Records that the system accepted the datagram.
    pub fn on_sent(&mut self, now: Instant) {
        if let Some((sent, _)) = self.rows.get_mut(self.periods.index_of(now)) {
            *sent += 1;
        }
        self.sent += 1;
        self.next += 1;
    }

    /// Records that the system refused the datagram.
    pub fn on_refused(&mut self) {
        let row = self.periods.index_of(self.due_time(self.next));
        if let Some((_, unsent)) = self.rows.get_mut(row) {
            *unsent += 1;
        }
        self.unsent += 1;
        self.next += 1;
    }

    /// Returns the time at which the next datagram is due; `None` after the last.
    pub fn next_due(&self) -> Option<Instant> {
        (self.next < self.count).then(|| self.due_time(self.next))
    }

    /// Returns the number of datagrams sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns the report on all datagrams that were due.
    pub fn finish(self) -> UdpSenderReport {
        UdpSenderReport { sent: self.sent, unsent: self.unsent, rows: self.rows }
    }
}

/// Receiving end of a datagram flow.
#[derive(Debug, Clone)]
pub struct UdpReceiver {
    /// Upper bound of the plan's numbers, exclusive.
    max_number: u64,
    /// Lowest number of the window; slot *n* belongs to number `base` + *n*.
    base: u64,
    slots: VecDeque<Slot>,
    received: u64,
    bytes: u64,
    duplicated: u64,
    out_of_order: u64,
    /// Current run of missing numbers just below the window, and the longest so far.
    loss_run: u64,
    longest_loss: u64,
    jitter: Jitter,
    transit: TransitHistogram,
    periods: Periods,
    rows: Vec<PeriodCounts>,
    playout: Option<CallPlayout>,
}

/// State of a number in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Missing,
    Arrived,
    /// Arrived too late to be played in a call.
    Late,
}

/// Counts of one period at the receiver.
#[derive(Debug, Clone, Copy, Default)]
struct PeriodCounts {
    received: u64,
    duplicated: u64,
    out_of_order: u64,
    jitter_ns: f64,
    transit_sum_ns: f64,
    transit_max_ns: Option<i64>,
}

/// Report of the receiver on the datagrams.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UdpReceiverReport {
    /// Datagrams that arrived, without duplicates.
    pub received: u64,
    /// Payload bytes of these datagrams.
    pub bytes: u64,
    /// Duplicate datagrams that arrived.
    pub duplicated: u64,
    /// Datagrams that arrived after one with a higher number.
    pub out_of_order: u64,
    /// Highest number that arrived; `None` when nothing did.
    pub highest: Option<u64>,
    /// Longest run of missing numbers below the highest.
    pub longest_loss: u64,
    /// Interarrival jitter (RFC 3550 §6.4.1) in nanoseconds: last value, mean, largest.
    pub jitter_ns: [u64; 3],
    /// One-way delay, where both ends share one clock.
    pub delay: Option<DelayStats>,
    /// One-way delay minus the smallest.
    pub variation: Option<DelayStats>,
    /// Playout of a call, where the datagrams belong to one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub playout: Option<PlayoutReport>,
    /// Counts of each period in which datagrams were sent.
    pub rows: Vec<UdpReceiverRow>,
}

/// Counts at the receiver for one sending period.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UdpReceiverRow {
    /// Datagrams that arrived, without duplicates.
    pub received: u64,
    /// Duplicate datagrams that arrived.
    pub duplicated: u64,
    /// Datagrams that arrived after one with a higher number.
    pub out_of_order: u64,
    /// Jitter at the last arrival in the period.
    pub jitter_ns: u64,
    /// Mean delay minus the smallest of the flow.
    pub variation_mean_ns: u64,
    /// Largest delay minus the smallest of the flow.
    pub variation_max_ns: u64,
}

impl UdpReceiver {
    /// Creates a receiver for the datagrams of `plan`.
    pub fn new(plan: &Udp, start: Instant, sample: Duration) -> Self {
        let periods = Periods::new(plan, start, sample);
        Self {
            max_number: planned_datagrams(plan),
            base: 0,
            slots: VecDeque::new(),
            received: 0,
            bytes: 0,
            duplicated: 0,
            out_of_order: 0,
            loss_run: 0,
            longest_loss: 0,
            jitter: Jitter::default(),
            transit: TransitHistogram::default(),
            periods,
            rows: vec![PeriodCounts::default(); periods.count],
            playout: plan.call.map(CallPlayout::new),
        }
    }

    /// Processes a datagram and returns true if it counts. A number outside the plan, below the
    /// window or already present does not count.
    pub fn on_datagram(
        &mut self,
        now: Instant,
        (number, sent): (u64, Instant),
        bytes: usize,
    ) -> bool {
        if number >= self.max_number || number < self.base {
            return false;
        }
        let row = self.periods.index_of(sent);
        let highest = self.highest();
        let transit = i128::from(now.as_nanos()) - i128::from(sent.as_nanos());
        let transit =
            i64::try_from(transit).unwrap_or(if transit < 0 { i64::MIN } else { i64::MAX });
        let min_transit = self.transit.min;
        let slot = self
            .playout
            .as_ref()
            .map_or(Slot::Arrived, |playout| playout.classify(transit, min_transit));
        let is_new = self.mark(number, slot);
        let is_reordered = highest.is_some_and(|highest| number < highest);
        let Some(row_counts) = self.rows.get_mut(row) else { return false };
        if !is_new {
            self.duplicated += 1;
            row_counts.duplicated += 1;
            return false;
        }
        self.received += 1;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        row_counts.received += 1;
        self.out_of_order += u64::from(is_reordered);
        row_counts.out_of_order += u64::from(is_reordered);
        row_counts.jitter_ns = self.jitter.record(transit);
        row_counts.transit_sum_ns += transit as f64;
        row_counts.transit_max_ns = row_counts.transit_max_ns.max(Some(transit));
        self.transit.record(transit);
        true
    }

    /// Returns the number of datagrams that arrived so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    fn highest(&self) -> Option<u64> {
        // The highest number is always the last slot.
        (self.base + self.slots.len() as u64).checked_sub(1)
    }

    /// Marks a number in or above the window; returns true if it was missing.
    fn mark(&mut self, number: u64, slot: Slot) -> bool {
        let end = self.base + self.slots.len() as u64;
        if number >= end {
            let skipped = number - end;
            if skipped >= REORDER_WINDOW {
                // The whole window and most of the skipped numbers are final now.
                while !self.slots.is_empty() {
                    self.finalize_lowest();
                }
                self.loss_run += skipped;
                self.longest_loss = self.longest_loss.max(self.loss_run);
                if let Some(playout) = &mut self.playout {
                    playout.finalize_skipped(end);
                }
                self.base = number;
            } else {
                self.slots.extend(std::iter::repeat_n(Slot::Missing, skipped as usize));
            }
            self.slots.push_back(slot);
            while self.slots.len() as u64 > REORDER_WINDOW {
                self.finalize_lowest();
            }
            return true;
        }
        let index = usize::try_from(number - self.base).unwrap_or(usize::MAX);
        let missing = self.slots.get_mut(index).filter(|missing| **missing == Slot::Missing);
        missing.map(|missing| *missing = slot).is_some()
    }

    /// Removes the lowest number from the window.
    fn finalize_lowest(&mut self) {
        let Some(slot) = self.slots.pop_front() else { return };
        match slot {
            Slot::Arrived | Slot::Late => self.loss_run = 0,
            Slot::Missing => {
                self.loss_run += 1;
                self.longest_loss = self.longest_loss.max(self.loss_run);
            }
        }
        if let Some(playout) = &mut self.playout {
            playout.finalize(self.base, slot);
        }
        self.base += 1;
    }

    /// Returns the report. One-way delays are included only if both ends share one clock.
    pub fn finish(mut self, one_clock: bool) -> UdpReceiverReport {
        let highest = self.highest().filter(|_| self.received > 0);
        while !self.slots.is_empty() {
            self.finalize_lowest();
        }
        let min_transit = self.transit.min.unwrap_or(0);
        let rows = self.rows.iter().map(|row| {
            let above_min = |transit: f64| (transit - min_transit as f64).max(0.0).round() as u64;
            let mean = row.transit_sum_ns / row.received.max(1) as f64;
            UdpReceiverRow {
                received: row.received,
                duplicated: row.duplicated,
                out_of_order: row.out_of_order,
                jitter_ns: row.jitter_ns.round() as u64,
                variation_mean_ns: if row.received == 0 { 0 } else { above_min(mean) },
                variation_max_ns: row.transit_max_ns.map_or(0, |max| above_min(max as f64)),
            }
        });
        UdpReceiverReport {
            received: self.received,
            bytes: self.bytes,
            duplicated: self.duplicated,
            out_of_order: self.out_of_order,
            highest,
            longest_loss: self.longest_loss,
            jitter_ns: self.jitter.stats_ns(),
            delay: self.transit.delays(0).filter(|_| one_clock),
            variation: self.transit.delays(min_transit),
            playout: self.playout.map(|playout| playout.finish(self.transit.min, one_clock)),
            rows: rows.collect(),
        }
    }
}

/// Interarrival jitter of RFC 3550 §6.4.1: J += (|D| − J) / 16. D is the difference in transit time
/// between this datagram and the previous arrival.
#[derive(Debug, Clone, Copy, Default)]
struct Jitter {
    last_transit: Option<i64>,
    value: f64,
    sum: f64,
    count: u64,
    max: f64,
}

impl Jitter {
    fn record(&mut self, transit: i64) -> f64 {
        if let Some(previous) = self.last_transit.replace(transit) {
            self.value += (transit.abs_diff(previous) as f64 - self.value) / 16.0;
            self.sum += self.value;
            self.count += 1;
            self.max = self.max.max(self.value);
        }
        self.value
    }

    fn stats_ns(&self) -> [u64; 3] {
        let mean = self.sum / self.count.max(1) as f64;
        [self.value, mean, self.max].map(|nanos| nanos.round() as u64)
    }
}

/// Distribution of transit times, in buckets that are small compared with the range of values.
#[derive(Debug, Clone)]
struct TransitHistogram {
    bucket_width: i64,
    counts: BTreeMap<i64, u64>,
    count: u64,
    /// First value; the mean is relative to it.
    first: i64,
    mean: f64,
    squared_deviations: f64,
    min: Option<i64>,
    max: i64,
}

impl Default for TransitHistogram {
    fn default() -> Self {
        let counts = BTreeMap::new();
        let (step, min, max) = (1_000, None, i64::MIN);
        Self {
            bucket_width: step,
            counts,
            count: 0,
            first: 0,
            mean: 0.0,
            squared_deviations: 0.0,
            min,
            max,
        }
    }
}

impl TransitHistogram {
    fn record(&mut self, value: i64) {
        if self.count == 0 {
            self.first = value;
        }
        self.count += 1;
        let relative = value.saturating_sub(self.first) as f64;
        let difference = relative - self.mean;
        self.mean += difference / self.count as f64;
        self.squared_deviations += difference * (relative - self.mean);
        self.min = Some(self.min.map_or(value, |min| min.min(value)));
        self.max = self.max.max(value);
        *self.counts.entry(value.div_euclid(self.bucket_width)).or_default() += 1;
        while self.counts.len() > MAX_BUCKETS {
            self.bucket_width = self.bucket_width.saturating_mul(2);
            let old_counts = std::mem::take(&mut self.counts);
            for (bucket, count) in old_counts {
                *self.counts.entry(bucket.div_euclid(2)).or_default() += count;
            }
        }
    }

    /// Returns the value that `percent` of the values do not exceed.
    fn percentile(&self, percent: f64) -> i64 {
        let rank = ((percent / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut cumulative = 0_u64;
        for (bucket, count) in &self.counts {
            cumulative += count;
            if cumulative >= rank {
                let middle =
                    bucket.saturating_mul(self.bucket_width).saturating_add(self.bucket_width / 2);
                return middle.clamp(self.min.unwrap_or(middle), self.max);
            }
        }
        self.max
    }

    /// Returns statistics of all values minus `base`; `None` without any.
    fn delays(&self, base: i64) -> Option<DelayStats> {
        let min = self.min?;
        let above_base = |value: i64| u64::try_from(value.saturating_sub(base)).unwrap_or(0);
        let mean = self.first.saturating_sub(base) as f64 + self.mean;
        let variance =
            if self.count > 1 { self.squared_deviations / (self.count - 1) as f64 } else { 0.0 };
        Some(DelayStats {
            mean_ns: mean.max(0.0).round() as u64,
            stddev_ns: variance.max(0.0).sqrt().round() as u64,
            min_ns: above_base(min),
            p50_ns: above_base(self.percentile(50.0)),
            p90_ns: above_base(self.percentile(90.0)),
            p95_ns: above_base(self.percentile(95.0)),
            p99_ns: above_base(self.percentile(99.0)),
            p999_ns: above_base(self.percentile(99.9)),
            max_ns: above_base(self.max),
        })
    }
}

/// Merges the reports of both ends on one direction of a flow into totals and rows.
///
/// Without the sender's report, the sent count is derived from the highest number that arrived.
/// Returns `None` without the receiver's report.
pub fn merge_reports(
    plan: &Udp,
    (flow, start, sample): (u32, Instant, Duration),
    (direction, path): (DataDirection, &str),
    (sent, received): (Option<&UdpSenderReport>, Option<&UdpReceiverReport>),
) -> Option<(DatagramStats, Vec<DatagramRow>)> {
    let received = received?;
    let accounted = received.highest.map_or(0, |highest| highest.saturating_add(1));
    let count = sent.map_or(accounted, |sent| sent.sent).max(received.received);
    let unsent = sent.map_or(0, |sent| sent.unsent);
    let numbered = if plan.call.is_some() { count.saturating_add(unsent) } else { count };
    let numbered = numbered.max(accounted);
    let trailing_losses = numbered - accounted;
    let call = plan.call.zip(received.playout);
    let [jitter_ns, jitter_mean_ns, jitter_max_ns] = received.jitter_ns;
    let stats = DatagramStats {
        path: path.to_owned(),
        payload_bytes: plan.bytes,
        rate_bps: plan.rate_bps,
        sent: count,
        unsent,
        received: received.received,
        lost: count.saturating_sub(received.received),
        longest_loss_run: received.longest_loss.max(trailing_losses).min(count),
        duplicated: received.duplicated,
        out_of_order: received.out_of_order,
        jitter_ns,
        jitter_mean_ns,
        jitter_max_ns,
        delay: received.delay,
        variation: received.variation,
        call: call.map(|(call, report)| {
            call::assess(call, &report, (numbered, received.received, accounted))
        }),
    };
    let periods = Periods::new(plan, start, sample);
    let rows = (0..periods.count).map(|index| {
        let end = (periods.span.saturating_mul(index as u32 + 1)).min(plan.duration);
        let begin = periods.span.saturating_mul(index as u32).min(end);
        let row = received.rows.get(index).copied().unwrap_or_default();
        let (sent_count, unsent) =
            sent.and_then(|sent| sent.rows.get(index)).copied().unwrap_or_default();
        let sent_count = sent.map(|_| sent_count.max(row.received));
        DatagramRow {
            t_ns: (start + end).as_nanos(),
            span_ns: end.saturating_sub(begin).as_nanos() as u64,
            flow,
            direction,
            path: path.to_owned(),
            sent: sent_count,
            unsent,
            received: row.received,
            lost: sent_count.map(|sent_count| sent_count.saturating_sub(row.received)),
            duplicated: row.duplicated,
            out_of_order: row.out_of_order,
            jitter_ns: (row.received > 0).then_some(row.jitter_ns),
            variation_mean_ns: (row.received > 0).then_some(row.variation_mean_ns),
            variation_max_ns: (row.received > 0).then_some(row.variation_max_ns),
        }
    });
    Some((stats, rows.collect()))
}

#[cfg(test)]
mod tests;
