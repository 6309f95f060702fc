//! Datagrams at a constant rate over one path, in one direction: one end sends, the other counts.
//!
//! Nothing shifts the schedule, and nothing is sent twice. A datagram that the sender could not send
//! within [`MAX_SEND_DELAY`] is left out, and has no number: what the receiver misses was lost on the way.
//! The receiver keeps a window of numbers, whatever arrives in which order; what it keeps does not
//! depend on what anybody sends.
//!
//! In a call, what could not be sent is as lost as the rest: there it has a number, and a frame's
//! datagrams are due at the same time.
//!
//! Covered: interarrival jitter as in RFC 3550 §6.4.1, delay variation as in RFC 5481 §4.2 (against
//! the smallest delay).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use towpath_net::Instant;

use crate::result::{DatagramFigures, DatagramRow, DelayStats};
use crate::scenario::{DataDirection, Udp};

mod call;

use call::CallPlayout;
pub use call::PlayoutReport;

/// What is due for longer than this is not sent any more.
pub const MAX_SEND_DELAY: Duration = Duration::from_millis(100);
/// Numbers below the highest that may still arrive.
const REORDER_WINDOW: u64 = 65_536;
/// Rows of a direction: a longer flow has longer ones.
const MAX_ROWS: u128 = 10_000;
/// Different values of a spread, before they are rounded.
const MAX_BUCKETS: usize = 16_384;
/// Memory that a receiver takes beside its rows, and that of a row.
pub const RECEIVER_MEMORY_BYTES: u64 = 1 << 20;
/// Memory of a row.
pub const ROW_MEMORY_BYTES: u64 = 128;

/// Which period of time each datagram belongs to: the one in which it was sent.
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
        let together = rows.div_ceil(MAX_ROWS).max(1);
        let span = sample.saturating_mul(u32::try_from(together).unwrap_or(u32::MAX));
        let count = duration.div_ceil(span.as_nanos().max(1));
        Self { start, span, count: usize::try_from(count).unwrap_or(1).max(1) }
    }

    fn of(&self, sent: Instant) -> usize {
        let since = sent.saturating_since(self.start).as_nanos();
        let row = since / self.span.as_nanos().max(1);
        usize::try_from(row).unwrap_or(usize::MAX).min(self.count.saturating_sub(1))
    }
}

/// Datagrams that are due in the time of a flow.
pub fn planned_datagrams(plan: &Udp) -> u64 {
    let bits = u128::from(plan.bytes.max(1)) * 8 * 1_000_000_000;
    let due = (plan.duration.as_nanos() * u128::from(plan.rate_bps)).div_ceil(bits);
    let due = due.max(1).next_multiple_of(u128::from(packets_per_frame(plan)));
    u64::try_from(due).unwrap_or(u64::MAX)
}

/// Datagrams that are due at the same time.
fn packets_per_frame(plan: &Udp) -> u64 {
    plan.call.map_or(1, |call| u64::from(call.packets_per_frame.max(1)))
}

/// Rows that a receiver keeps.
pub fn planned_rows(plan: &Udp, sample: Duration) -> u64 {
    Periods::new(plan, Instant::ZERO, sample).count as u64
}

/// The end that sends.
#[derive(Debug, Clone)]
pub struct UdpSender {
    plan: Udp,
    start: Instant,
    count: u64,
    /// The first one of the schedule that anybody could be sent, and the next.
    first: u64,
    next: u64,
    sent: u64,
    unsent: u64,
    periods: Periods,
    rows: Vec<(u64, u64)>,
}

/// What the sender knows of its datagrams.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UdpSenderReport {
    /// Those that the system has taken.
    pub sent: u64,
    /// Those that were due and could not be sent in time.
    pub unsent: u64,
    /// Both, for each period.
    pub rows: Vec<(u64, u64)>,
}

impl UdpSender {
    /// Sends as planned, from `start` on.
    pub fn new(plan: Udp, start: Instant, sample: Duration) -> Self {
        let periods = Periods::new(&plan, start, sample);
        let rows = vec![(0, 0); periods.count];
        let count = planned_datagrams(&plan);
        Self { plan, start, count, first: 0, next: 0, sent: 0, unsent: 0, periods, rows }
    }

    fn due(&self, number: u64) -> Instant {
        let number = number - number % packets_per_frame(&self.plan);
        let bits = u128::from(number) * u128::from(self.plan.bytes) * 8;
        let nanos = bits * 1_000_000_000 / u128::from(self.plan.rate_bps.max(1));
        self.start + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }

    /// Nothing before `now` was due: whoever waits for it could not be reached.
    pub fn begin_at(&mut self, now: Instant) {
        while self.next < self.count && self.due(self.next) < now {
            self.next += 1;
        }
        self.first = self.next;
    }

    /// Sends nothing more.
    pub fn stop(&mut self) {
        self.count = self.next;
    }

    /// The number of a datagram that is to be sent now. Then either [`Self::on_sent`] or
    /// [`Self::on_refused`] is called.
    pub fn poll(&mut self, now: Instant) -> Option<u64> {
        while self.next < self.count && self.due(self.next) + MAX_SEND_DELAY < now {
            self.on_refused();
        }
        let number = if self.plan.call.is_some() { self.next - self.first } else { self.sent };
        (self.next < self.count && self.due(self.next) <= now).then_some(number)
    }

    /// The system has taken it.
    pub fn on_sent(&mut self, now: Instant) {
        if let Some((sent, _)) = self.rows.get_mut(self.periods.of(now)) {
            *sent += 1;
        }
        self.sent += 1;
        self.next += 1;
    }

    /// The system has not taken it.
    pub fn on_refused(&mut self) {
        let row = self.periods.of(self.due(self.next));
        if let Some((_, unsent)) = self.rows.get_mut(row) {
            *unsent += 1;
        }
        self.unsent += 1;
        self.next += 1;
    }

    /// When the next one is due.
    pub fn next_due(&self) -> Option<Instant> {
        (self.next < self.count).then(|| self.due(self.next))
    }

    /// Datagrams that were sent so far.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// What became of all that was due.
    pub fn finish(self) -> UdpSenderReport {
        UdpSenderReport { sent: self.sent, unsent: self.unsent, rows: self.rows }
    }
}

/// The end that counts.
#[derive(Debug, Clone)]
pub struct UdpReceiver {
    /// No number of the plan is larger.
    max_number: u64,
    /// Lowest number of the window; place *n* of it is number `base` + *n*.
    base: u64,
    slots: VecDeque<Slot>,
    received: u64,
    bytes: u64,
    duplicated: u64,
    out_of_order: u64,
    /// Numbers in a row that are missing below the window, and the most of them.
    loss_run: u64,
    longest_loss: u64,
    jitter: Jitter,
    transit: TransitHistogram,
    periods: Periods,
    rows: Vec<PeriodCounts>,
    playout: Option<CallPlayout>,
}

/// What became of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Slot {
    Missing,
    Arrived,
    /// It came when a call could not play it any more.
    Late,
}

/// One period at the receiver.
#[derive(Debug, Clone, Copy, Default)]
struct PeriodCounts {
    received: u64,
    duplicated: u64,
    out_of_order: u64,
    jitter_ns: f64,
    transit_sum_ns: f64,
    transit_max_ns: Option<i64>,
}

/// What the receiver knows of the datagrams.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct UdpReceiverReport {
    /// Those that arrived, each once.
    pub received: u64,
    /// Their payload.
    pub bytes: u64,
    /// Those that came again.
    pub duplicated: u64,
    /// Those that came after one with a higher number.
    pub out_of_order: u64,
    /// The highest number.
    pub highest: Option<u64>,
    /// Most that are missing in a row, below the highest.
    #[serde(rename = "burst")]
    pub longest_loss: u64,
    /// Interarrival jitter (RFC 3550 §6.4.1): its last value, its mean, its largest.
    pub jitter_ns: [u64; 3],
    /// From sent to received, where both ends have one clock.
    pub delay: Option<DelayStats>,
    /// The same, less the smallest.
    pub variation: Option<DelayStats>,
    /// What of a call could be heard.
    #[serde(rename = "heard", default, skip_serializing_if = "Option::is_none")]
    pub playout: Option<PlayoutReport>,
    /// For each period in which they were sent.
    pub rows: Vec<UdpReceiverRow>,
}

/// A period in which datagrams were sent, at the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct UdpReceiverRow {
    /// Those that arrived, each once.
    pub received: u64,
    /// Those that came again.
    pub duplicated: u64,
    /// Those that came after one with a higher number.
    pub out_of_order: u64,
    /// Jitter when the last one arrived.
    pub jitter_ns: u64,
    /// Mean delay, less the smallest of all.
    pub variation_mean_ns: u64,
    /// Largest delay, less the smallest of all.
    pub variation_max_ns: u64,
}

impl UdpReceiver {
    /// Expects what the plan says.
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

    /// Takes a datagram; whether it counts. What is not of the plan, too old, or there already does
    /// not.
    pub fn on_datagram(
        &mut self,
        now: Instant,
        (number, sent): (u64, Instant),
        bytes: usize,
    ) -> bool {
        if number >= self.max_number || number < self.base {
            return false;
        }
        let row = self.periods.of(sent);
        let highest = self.highest();
        let transit = i128::from(now.as_nanos()) - i128::from(sent.as_nanos());
        let transit =
            i64::try_from(transit).unwrap_or(if transit < 0 { i64::MIN } else { i64::MAX });
        let least = self.transit.min;
        let slot = self.playout.as_ref().map_or(Slot::Arrived, |own| own.classify(transit, least));
        let is_new = self.mark(number, slot);
        let late = highest.is_some_and(|highest| number < highest);
        let Some(counting) = self.rows.get_mut(row) else { return false };
        if !is_new {
            self.duplicated += 1;
            counting.duplicated += 1;
            return false;
        }
        self.received += 1;
        self.bytes = self.bytes.saturating_add(bytes as u64);
        counting.received += 1;
        self.out_of_order += u64::from(late);
        counting.out_of_order += u64::from(late);
        counting.jitter_ns = self.jitter.record(transit);
        counting.transit_sum_ns += transit as f64;
        counting.transit_max_ns = counting.transit_max_ns.max(Some(transit));
        self.transit.record(transit);
        true
    }

    /// Datagrams that arrived so far.
    pub fn received(&self) -> u64 {
        self.received
    }

    fn highest(&self) -> Option<u64> {
        // The window ends with it.
        (self.base + self.slots.len() as u64).checked_sub(1)
    }

    /// Marks a number of the window or above it; whether it was not there.
    fn mark(&mut self, number: u64, slot: Slot) -> bool {
        let end = self.base + self.slots.len() as u64;
        if number >= end {
            let skipped = number - end;
            if skipped >= REORDER_WINDOW {
                // All of the window is behind, and the most of what was skipped.
                while !self.slots.is_empty() {
                    self.shift();
                }
                self.loss_run += skipped;
                self.longest_loss = self.longest_loss.max(self.loss_run);
                if let Some(playout) = &mut self.playout {
                    playout.skip(end);
                }
                self.base = number;
            } else {
                self.slots.extend(std::iter::repeat_n(Slot::Missing, skipped as usize));
            }
            self.slots.push_back(slot);
            while self.slots.len() as u64 > REORDER_WINDOW {
                self.shift();
            }
            return true;
        }
        let place = usize::try_from(number - self.base).unwrap_or(usize::MAX);
        let seen = self.slots.get_mut(place).filter(|seen| **seen == Slot::Missing);
        seen.map(|seen| *seen = slot).is_some()
    }

    /// The lowest number leaves the window.
    fn shift(&mut self) {
        let Some(slot) = self.slots.pop_front() else { return };
        match slot {
            Slot::Arrived | Slot::Late => self.loss_run = 0,
            Slot::Missing => {
                self.loss_run += 1;
                self.longest_loss = self.longest_loss.max(self.loss_run);
            }
        }
        if let Some(playout) = &mut self.playout {
            playout.settle(self.base, slot);
        }
        self.base += 1;
    }

    /// What arrived. One-way delays are said where both ends have one clock.
    pub fn finish(mut self, one_clock: bool) -> UdpReceiverReport {
        let highest = self.highest().filter(|_| self.received > 0);
        while !self.slots.is_empty() {
            self.shift();
        }
        let least = self.transit.min.unwrap_or(0);
        let rows = self.rows.iter().map(|row| {
            let over = |transit: f64| (transit - least as f64).max(0.0).round() as u64;
            let mean = row.transit_sum_ns / row.received.max(1) as f64;
            UdpReceiverRow {
                received: row.received,
                duplicated: row.duplicated,
                out_of_order: row.out_of_order,
                jitter_ns: row.jitter_ns.round() as u64,
                variation_mean_ns: if row.received == 0 { 0 } else { over(mean) },
                variation_max_ns: row.transit_max_ns.map_or(0, |max| over(max as f64)),
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
            variation: self.transit.delays(least),
            playout: self.playout.map(|own| own.finish(self.transit.min, one_clock)),
            rows: rows.collect(),
        }
    }
}

/// Interarrival jitter: J += (|D| − J) / 16, where D is how much longer this datagram was on its way
/// than the one that arrived before it (RFC 3550 §6.4.1).
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
        if let Some(before) = self.last_transit.replace(transit) {
            self.value += (transit.abs_diff(before) as f64 - self.value) / 16.0;
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

/// How often which time, in steps that are small against how far apart they are.
#[derive(Debug, Clone)]
struct TransitHistogram {
    bucket_width: i64,
    counts: BTreeMap<i64, u64>,
    count: u64,
    /// Of the first value, which all sums are relative to.
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
        let off = relative - self.mean;
        self.mean += off / self.count as f64;
        self.squared_deviations += off * (relative - self.mean);
        self.min = Some(self.min.map_or(value, |min| min.min(value)));
        self.max = self.max.max(value);
        *self.counts.entry(value.div_euclid(self.bucket_width)).or_default() += 1;
        while self.counts.len() > MAX_BUCKETS {
            self.bucket_width = self.bucket_width.saturating_mul(2);
            let fine = std::mem::take(&mut self.counts);
            for (place, count) in fine {
                *self.counts.entry(place.div_euclid(2)).or_default() += count;
            }
        }
    }

    /// The value that so many percent do not exceed.
    fn percentile(&self, percent: f64) -> i64 {
        let rank = ((percent / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut seen = 0_u64;
        for (place, count) in &self.counts {
            seen += count;
            if seen >= rank {
                let middle =
                    place.saturating_mul(self.bucket_width).saturating_add(self.bucket_width / 2);
                return middle.clamp(self.min.unwrap_or(middle), self.max);
            }
        }
        self.max
    }

    /// All of it, less `base`.
    fn delays(&self, base: i64) -> Option<DelayStats> {
        let min = self.min?;
        let less = |value: i64| u64::try_from(value.saturating_sub(base)).unwrap_or(0);
        let mean = self.first.saturating_sub(base) as f64 + self.mean;
        let deviation =
            if self.count > 1 { self.squared_deviations / (self.count - 1) as f64 } else { 0.0 };
        Some(DelayStats {
            mean_ns: mean.max(0.0).round() as u64,
            stddev_ns: deviation.max(0.0).sqrt().round() as u64,
            min_ns: less(min),
            p50_ns: less(self.percentile(50.0)),
            p90_ns: less(self.percentile(90.0)),
            p95_ns: less(self.percentile(95.0)),
            p99_ns: less(self.percentile(99.0)),
            p999_ns: less(self.percentile(99.9)),
            max_ns: less(self.max),
        })
    }
}

/// What both ends know of one direction of a flow, as figures and rows. Without the sender's word,
/// what it sent is the highest number that arrived; without the receiver's there is nothing to say.
pub fn merge_reports(
    plan: &Udp,
    (flow, start, sample): (u32, Instant, Duration),
    (direction, path): (DataDirection, &str),
    (sent, received): (Option<&UdpSenderReport>, Option<&UdpReceiverReport>),
) -> Option<(DatagramFigures, Vec<DatagramRow>)> {
    let received = received?;
    let known = received.highest.map_or(0, |highest| highest.saturating_add(1));
    let count = sent.map_or(known, |sent| sent.sent).max(received.received);
    let unsent = sent.map_or(0, |sent| sent.unsent);
    let numbered = if plan.call.is_some() { count.saturating_add(unsent) } else { count };
    let numbered = numbered.max(known);
    let behind = numbered - known;
    let call = plan.call.zip(received.playout);
    let [jitter_ns, jitter_mean_ns, jitter_max_ns] = received.jitter_ns;
    let figures = DatagramFigures {
        path: path.to_owned(),
        payload_bytes: plan.bytes,
        rate_bps: plan.rate_bps,
        sent: count,
        unsent,
        received: received.received,
        lost: count.saturating_sub(received.received),
        longest_loss_run: received.longest_loss.max(behind).min(count),
        duplicated: received.duplicated,
        out_of_order: received.out_of_order,
        jitter_ns,
        jitter_mean_ns,
        jitter_max_ns,
        delay: received.delay,
        variation: received.variation,
        call: call
            .map(|(call, heard)| call::assess(call, &heard, (numbered, received.received, known))),
    };
    let periods = Periods::new(plan, start, sample);
    let rows = (0..periods.count).map(|at| {
        let end = (periods.span.saturating_mul(at as u32 + 1)).min(plan.duration);
        let begin = periods.span.saturating_mul(at as u32).min(end);
        let here = received.rows.get(at).copied().unwrap_or_default();
        let (out, unsent) = sent.and_then(|sent| sent.rows.get(at)).copied().unwrap_or_default();
        let out = sent.map(|_| out.max(here.received));
        DatagramRow {
            t_ns: (start + end).as_nanos(),
            span_ns: end.saturating_sub(begin).as_nanos() as u64,
            flow,
            direction,
            path: path.to_owned(),
            sent: out,
            unsent,
            received: here.received,
            lost: out.map(|out| out.saturating_sub(here.received)),
            duplicated: here.duplicated,
            out_of_order: here.out_of_order,
            jitter_ns: (here.received > 0).then_some(here.jitter_ns),
            variation_mean_ns: (here.received > 0).then_some(here.variation_mean_ns),
            variation_max_ns: (here.received > 0).then_some(here.variation_max_ns),
        }
    });
    Some((figures, rows.collect()))
}

#[cfg(test)]
mod tests;
