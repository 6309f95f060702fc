//! Statistics of passing packets: distributions, series, round-trip times, gaps.
//!
//! Memory is bounded: a longer capture makes coarser series.

use std::collections::VecDeque;

use towpath_result::{DelayStats, Stall};

use super::ranges::SeqRange;

/// Shortest gap that counts as a stall, as in every result.
const STALL_NS: u64 = 100_000_000;

/// Number of buckets for each power of two; the middle of a bucket is less than 1 % off.
const BUCKETS_PER_OCTAVE: u64 = 64;
/// Values below 2 to the power of this have a bucket of their own.
const EXACT_BITS: u32 = 7;

/// Distribution of times in nanoseconds, in buckets of microseconds. Takes memory only for the
/// buckets between its smallest and its largest value.
#[derive(Debug, Clone, Default)]
pub(super) struct DelayHistogram {
    count: u64,
    sum: f64,
    squares: f64,
    min: u64,
    max: u64,
    /// Number of the first stored bucket.
    first: usize,
    buckets: VecDeque<u32>,
}

impl DelayHistogram {
    pub(super) fn record(&mut self, ns: u64) {
        self.record_many(ns, 1);
    }

    pub(super) fn record_many(&mut self, ns: u64, count: u32) {
        if count == 0 {
            return;
        }
        self.min = if self.count == 0 { ns } else { self.min.min(ns) };
        self.max = self.max.max(ns);
        self.count += u64::from(count);
        let (value, weight) = (ns as f64, f64::from(count));
        self.sum += value * weight;
        self.squares += value * value * weight;
        let bucket = bucket_index(ns / 1_000);
        if self.buckets.is_empty() {
            self.first = bucket;
        }
        while bucket < self.first {
            self.buckets.push_front(0);
            self.first -= 1;
        }
        let index = bucket - self.first;
        if self.buckets.len() <= index {
            self.buckets.resize(index + 1, 0);
        }
        if let Some(bucket_count) = self.buckets.get_mut(index) {
            *bucket_count = bucket_count.saturating_add(count);
        }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Returns the smallest value; `None` without any value.
    pub(super) fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// Returns the delay statistics; `None` without any value.
    pub(super) fn delays(&self) -> Option<DelayStats> {
        if self.count == 0 {
            return None;
        }
        let count = self.count as f64;
        let mean = self.sum / count;
        let variance = (self.squares - self.sum * mean) / (count - 1.0).max(1.0);
        Some(DelayStats {
            mean_ns: mean as u64,
            stddev_ns: variance.max(0.0).sqrt() as u64,
            min_ns: self.min,
            p50_ns: self.percentile(50.0),
            p90_ns: self.percentile(90.0),
            p95_ns: self.percentile(95.0),
            p99_ns: self.percentile(99.0),
            p999_ns: self.percentile(99.9),
            max_ns: self.max,
        })
    }

    fn percentile(&self, percent: f64) -> u64 {
        let rank = ((percent / 100.0 * self.count as f64).ceil() as u64).max(1);
        let mut cumulative = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            cumulative += u64::from(*count);
            if cumulative >= rank {
                let ns = bucket_middle_us(self.first + index).saturating_mul(1_000);
                return ns.clamp(self.min, self.max);
            }
        }
        self.max
    }
}

fn bucket_index(us: u64) -> usize {
    if us < 1 << EXACT_BITS {
        return us as usize;
    }
    let shift = us.ilog2() + 1 - EXACT_BITS;
    ((1 << EXACT_BITS) + u64::from(shift - 1) * BUCKETS_PER_OCTAVE + (us >> shift)
        - BUCKETS_PER_OCTAVE) as usize
}

fn bucket_middle_us(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < 1 << EXACT_BITS {
        return bucket;
    }
    let bucket_above_exact = bucket - (1 << EXACT_BITS);
    let shift = bucket_above_exact / BUCKETS_PER_OCTAVE + 1;
    ((BUCKETS_PER_OCTAVE + bucket_above_exact % BUCKETS_PER_OCTAVE) << shift) + (1 << (shift - 1))
}

/// Initial width of a bin: 8 of them are the 100 ms of other results.
pub(super) const INITIAL_BIN_NS: u64 = 12_500_000;
/// Maximum number of bins of one series; beyond that, each becomes twice as wide.
const MAX_BINS: usize = 4_096;

/// One period of a series.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Bin {
    /// Payload bytes that were new.
    pub(super) bytes: u64,
    /// All payload bytes, retransmissions included.
    pub(super) sent_bytes: u64,
    /// Bytes acknowledged for the first time.
    pub(super) acked_bytes: u64,
    /// Packets whose payload was seen before, or filled a gap.
    pub(super) retrans_packets: u32,
    /// Smoothed round-trip time at the end of the period; 0 if unknown.
    pub(super) srtt_us: u32,
    /// Maximum of bytes that waited for earlier ones.
    pub(super) waiting_bytes: u64,
}

/// Element of a series, which can absorb its successor.
pub(super) trait Merge: Clone + Copy + Default {
    /// Absorbs the following bin.
    fn merge(&mut self, next: &Self);
}

impl Merge for Bin {
    fn merge(&mut self, next: &Self) {
        self.bytes += next.bytes;
        self.sent_bytes += next.sent_bytes;
        self.acked_bytes += next.acked_bytes;
        self.retrans_packets = self.retrans_packets.saturating_add(next.retrans_packets);
        self.srtt_us = if next.srtt_us > 0 { next.srtt_us } else { self.srtt_us };
        self.waiting_bytes = self.waiting_bytes.max(next.waiting_bytes);
    }
}

/// Series over time that gets coarser as it gets longer.
#[derive(Debug, Clone)]
pub(super) struct BinnedSeries<T = Bin> {
    width_ns: u64,
    /// Number of the first stored bin.
    first: u64,
    bins: Vec<T>,
}

impl<T> Default for BinnedSeries<T> {
    fn default() -> Self {
        Self { width_ns: INITIAL_BIN_NS, first: 0, bins: Vec::new() }
    }
}

impl<T: Merge> BinnedSeries<T> {
    /// Returns the bin of a time; times before the first bin count in the first bin.
    pub(super) fn bin_mut(&mut self, now_ns: u64) -> Option<&mut T> {
        if self.bins.is_empty() {
            self.first = now_ns / self.width_ns;
        }
        loop {
            let index = (now_ns / self.width_ns).saturating_sub(self.first) as usize;
            if index < MAX_BINS {
                if self.bins.len() <= index {
                    self.bins.resize(index + 1, T::default());
                }
                return self.bins.get_mut(index);
            }
            self.widen();
        }
    }

    fn widen(&mut self) {
        self.width_ns = self.width_ns.saturating_mul(2);
        let first_is_odd = self.first % 2;
        self.first /= 2;
        let mut wider: Vec<T> = Vec::with_capacity(self.bins.len() / 2 + 1);
        for (index, bin) in self.bins.iter().enumerate() {
            match wider.last_mut() {
                Some(last) if (index as u64 + first_is_odd) % 2 == 1 => last.merge(bin),
                _ => wider.push(*bin),
            }
        }
        self.bins = wider;
    }

    pub(super) fn width_ns(&self) -> u64 {
        self.width_ns
    }

    /// Returns the time at which the first bin begins; 0 without any bin.
    pub(super) fn begin_ns(&self) -> u64 {
        if self.bins.is_empty() { 0 } else { self.first.saturating_mul(self.width_ns) }
    }

    /// Returns the times at which the first and the last bin begin; `None` without any bin.
    pub(super) fn span_ns(&self) -> Option<(u64, u64)> {
        let last = self.first + (self.bins.len() as u64).checked_sub(1)?;
        let begin_ns = |number: u64| number.saturating_mul(self.width_ns);
        Some((begin_ns(self.first), begin_ns(last)))
    }

    /// Returns the bins for correction.
    pub(super) fn bins_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.bins.iter_mut()
    }

    /// Returns bins of `width_ns`, a multiple of the series' width, with the number of each.
    pub(super) fn bins(&self, width_ns: u64) -> Vec<(u64, T)> {
        let factor = (width_ns / self.width_ns.max(1)).max(1);
        let mut merged: Vec<(u64, T)> = Vec::new();
        for (index, bin) in self.bins.iter().enumerate() {
            let number = (self.first + index as u64) / factor;
            match merged.last_mut() {
                Some((last, sum)) if *last == number => sum.merge(bin),
                _ => merged.push((number, *bin)),
            }
        }
        merged
    }
}

/// Unacknowledged data with its send times.
#[derive(Debug, Clone, Default)]
pub(super) struct InFlight {
    /// End and send time of each segment, ordered by end.
    sent: VecDeque<(i64, u64)>,
    pub(super) samples: DelayHistogram,
    srtt_ns: f64,
}

/// Maximum number of tracked segments in flight.
const MAX_FLIGHT: usize = 1 << 14;
/// Marks retransmitted data: an acknowledgement may refer to either transmission (Karn).
const AMBIGUOUS: u64 = u64::MAX;

impl InFlight {
    /// Records that data up to `end` was sent.
    #[inline]
    pub(super) fn sent(&mut self, end: i64, now_ns: u64) {
        if self.sent.len() >= MAX_FLIGHT {
            return;
        }
        if self.sent.back().is_none_or(|(last, _)| *last <= end) {
            self.sent.push_back((end, now_ns));
        } else {
            let index = self.sent.partition_point(|(e, _)| *e <= end);
            self.sent.insert(index, (end, now_ns));
        }
    }

    /// Marks retransmitted segments as ambiguous.
    pub(super) fn on_retransmitted(&mut self, range: SeqRange) {
        let first = self.sent.partition_point(|(end, _)| *end <= range.start);
        for (end, sent_ns) in self.sent.range_mut(first..) {
            *sent_ns = AMBIGUOUS;
            if *end >= range.end {
                break;
            }
        }
    }

    /// Processes an acknowledgement: the newest segment that it covers is a sample.
    pub(super) fn acked(&mut self, ack: i64, now_ns: u64) {
        let mut newest = None;
        while let Some(sent_ns) = self.pop(ack) {
            newest = Some(sent_ns);
        }
        if let Some(sent_ns) = newest.filter(|sent_ns| *sent_ns != AMBIGUOUS) {
            self.sample(now_ns.saturating_sub(sent_ns));
        }
    }

    /// Processes an acknowledgement like [`InFlight::acked`], but samples every segment.
    pub(super) fn all_acked(&mut self, ack: i64, now_ns: u64) {
        while let Some(sent_ns) = self.pop(ack) {
            self.sample(now_ns.saturating_sub(sent_ns));
        }
    }

    /// Drops everything in flight.
    pub(super) fn clear(&mut self) {
        self.sent.clear();
    }

    fn pop(&mut self, ack: i64) -> Option<u64> {
        let (_, sent_ns) = *self.sent.front().filter(|(end, _)| *end <= ack)?;
        self.sent.pop_front();
        Some(sent_ns)
    }

    /// Adds a round-trip sample to the smoothed one (RFC 6298 §2).
    fn sample(&mut self, rtt_ns: u64) {
        let rtt = rtt_ns as f64;
        if self.samples.count() == 0 {
            self.srtt_ns = rtt;
        } else {
            self.srtt_ns += (rtt - self.srtt_ns) / 8.0;
        }
        self.samples.record(rtt_ns);
    }

    /// Returns the smoothed round-trip time; 0 without a sample.
    pub(super) fn srtt_us(&self) -> u32 {
        (self.srtt_ns / 1e3) as u32
    }
}

/// Bytes that advanced, and the gaps between them.
#[derive(Debug, Clone, Default)]
pub(super) struct ByteProgress {
    pub(super) bytes: u64,
    pub(super) first_ns: Option<u64>,
    pub(super) last_ns: u64,
    pub(super) stall: Stall,
}

impl ByteProgress {
    pub(super) fn add(&mut self, now_ns: u64, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.bytes += bytes;
        if self.first_ns.is_some() {
            let gap = now_ns.saturating_sub(self.last_ns);
            if gap > self.stall.longest_ns {
                (self.stall.longest_ns, self.stall.longest_at_ns) = (gap, self.last_ns);
            }
            if gap >= STALL_NS {
                self.stall.total_ns = self.stall.total_ns.saturating_add(gap);
                self.stall.count = self.stall.count.saturating_add(1);
            }
        } else {
            self.first_ns = Some(now_ns);
        }
        self.last_ns = self.last_ns.max(now_ns);
    }
}
