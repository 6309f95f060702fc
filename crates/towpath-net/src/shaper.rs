//! Shapers as pure arithmetic on times: when the head of a queue may leave.
//!
//! A shaper sees only packet sizes. The queue calls [`ShaperState::ready`] for the time at which
//! its head may start. At that time it calls [`ShaperState::begin`], which returns the time at
//! which the head has left. Line and trace are busy in between; the buckets send a packet at
//! once and charge for it.

use std::sync::Arc;

use crate::config::{LinkTrace, Shaper};
use crate::link_trace::OPPORTUNITY_BYTES;
use crate::{Instant, Rate};

const NANOS_PER_SECOND: u64 = 1_000_000_000;
const NANOS_PER_MS: u64 = 1_000_000;
/// Bits of a byte times nanoseconds of a second: a byte's work for a rate in bit/s.
pub(crate) const WORK_PER_BYTE: u64 = 8 * NANOS_PER_SECOND;
/// Longest history that HTB remembers (`mbuffer`).
const HTB_MBUFFER_NANOS: i64 = 60 * 1_000_000_000;

/// One of the shapers of [`Shaper`].
#[derive(Debug, Clone)]
pub(crate) enum ShaperState {
    Unlimited,
    Line(LineShaper),
    TokenBucket(TokenBucket),
    Htb(Htb),
    Trace(TraceShaper),
}

impl ShaperState {
    /// Creates a shaper that starts at `now`; buckets are full.
    pub(crate) fn new(shaper: Shaper, now: Instant) -> Self {
        match shaper {
            Shaper::Unlimited => Self::Unlimited,
            Shaper::Line(rate) => Self::Line(LineShaper::new(rate)),
            Shaper::TokenBucket { rate, burst_bytes } => {
                Self::TokenBucket(TokenBucket::new(rate, burst_bytes, now))
            }
            Shaper::Htb { rate, burst_bytes, cburst_bytes } => {
                Self::Htb(Htb::new(rate, burst_bytes, cburst_bytes, now))
            }
            Shaper::Trace(trace) => Self::Trace(TraceShaper::new(trace, now)),
        }
    }

    /// Takes over the tokens or debt of a bucket of the same kind, so that a change of rate does
    /// not cause a burst.
    pub(crate) fn inherit(&mut self, old: &Self, now: Instant) {
        match (self, old) {
            (Self::TokenBucket(new), Self::TokenBucket(old)) => new.inherit(old, now),
            (Self::Htb(new), Self::Htb(old)) => new.inherit(old, now),
            (
                Self::Unlimited
                | Self::Line(_)
                | Self::TokenBucket(_)
                | Self::Htb(_)
                | Self::Trace(_),
                _,
            ) => {}
        }
    }

    /// Returns true if an idle shaper always takes a packet without delay.
    #[inline]
    pub(crate) fn is_work_conserving(&self) -> bool {
        matches!(self, Self::Unlimited | Self::Line(_))
    }

    /// Returns true if a packet of this size can never pass.
    #[inline]
    pub(crate) fn never_passes(&self, charged_bytes: u32) -> bool {
        match self {
            // sch_tbf drops what is larger than its bucket.
            Self::TokenBucket(bucket) => u64::from(charged_bytes) > bucket.burst_bytes,
            Self::Unlimited | Self::Line(_) | Self::Htb(_) | Self::Trace(_) => false,
        }
    }

    /// Records that the queue was empty and now has packets.
    #[inline]
    pub(crate) fn on_backlogged(&mut self, now: Instant) {
        if let Self::Trace(trace) = self {
            trace.skip_to(now);
        }
    }

    /// Returns the time, not before `now`, at which a head of this size may start; `None` if it may
    /// never.
    #[inline]
    pub(crate) fn ready(&self, now: Instant, charged_bytes: u32) -> Option<Instant> {
        match self {
            Self::Unlimited | Self::Line(_) => Some(now),
            Self::TokenBucket(bucket) => Some(bucket.ready(now, charged_bytes)),
            Self::Htb(htb) => Some(htb.ready(now)),
            Self::Trace(trace) => trace.ready(now),
        }
    }

    /// Starts to send a packet and returns the time at which it is sent.
    #[inline]
    pub(crate) fn begin(&mut self, now: Instant, charged_bytes: u32) -> Instant {
        match self {
            Self::Unlimited => now,
            Self::Line(line) => line.begin(now, charged_bytes),
            Self::TokenBucket(bucket) => {
                bucket.charge(now, charged_bytes);
                now
            }
            Self::Htb(htb) => {
                htb.charge(now, charged_bytes);
                now
            }
            Self::Trace(trace) => trace.begin(now, charged_bytes),
        }
    }

    /// Returns the remaining work of the packet in service, in bits · 10⁹; `None` for shapers that
    /// restart an interrupted packet.
    pub(crate) fn unsent_work(&self, now: Instant) -> Option<u128> {
        match self {
            Self::Line(line) => Some(line.unsent_work(now)),
            Self::Unlimited | Self::TokenBucket(_) | Self::Htb(_) | Self::Trace(_) => None,
        }
    }

    /// Returns true if a line needs until `until` to send `bytes` from `now` on. False for other
    /// shapers, where that is unknown.
    #[inline]
    pub(crate) fn is_busy_until(&self, now: Instant, bytes: u64, until: Instant) -> bool {
        let Self::Line(line) = self else { return false };
        let work = u128::from(bytes) * u128::from(WORK_PER_BYTE);
        work >= u128::from(until.nanos_since(now)) * u128::from(line.bps)
    }

    /// Continues a packet with `unsent_work` left and returns the time at which it is sent;
    /// `None` if it must restart.
    pub(crate) fn resume(&mut self, now: Instant, unsent_work: u128) -> Option<Instant> {
        match self {
            Self::Unlimited => Some(now),
            Self::Line(line) => Some(line.resume(now, unsent_work)),
            Self::TokenBucket(_) | Self::Htb(_) | Self::Trace(_) => None,
        }
    }
}

/// A line rate. The fraction of a nanosecond that a packet takes is carried to the next, so that
/// a busy line does not drift.
#[derive(Debug, Clone)]
pub(crate) struct LineShaper {
    bps: u64,
    free_at: Instant,
    /// Time beyond `free_at`, in units of 1/bps nanoseconds.
    fraction: u64,
    /// Size of the last packet, its nanoseconds and their fraction: most packets are of one size,
    /// which saves the division.
    last_packet: (u32, u64, u64),
}

impl LineShaper {
    fn new(rate: Rate) -> Self {
        Self { bps: rate.as_bps(), free_at: Instant::ZERO, fraction: 0, last_packet: (0, 0, 0) }
    }

    #[inline]
    pub(crate) fn begin(&mut self, now: Instant, bytes: u32) -> Instant {
        if self.last_packet.0 != bytes {
            let (work, bps) = (u128::from(bytes) * u128::from(WORK_PER_BYTE), u128::from(self.bps));
            // At most 2³² · 8 · 10⁹ < 2⁶⁵ by a rate of 1 bit/s: saturate.
            let nanos = u64::try_from(work / bps).unwrap_or(u64::MAX);
            self.last_packet = (bytes, nanos, (work % bps) as u64);
        }
        let (_, mut nanos, fraction) = self.last_packet;
        let carried_fraction = if self.free_at == now { self.fraction } else { 0 };
        // Both are below bps; their sum holds at most one nanosecond more.
        let missing = self.bps - fraction;
        if carried_fraction >= missing {
            nanos = nanos.saturating_add(1);
            self.fraction = carried_fraction - missing;
        } else {
            self.fraction = fraction + carried_fraction;
        }
        self.free_at = now.plus_nanos(nanos);
        self.free_at
    }

    fn unsent_work(&self, now: Instant) -> u128 {
        u128::from(self.free_at.nanos_since(now)) * u128::from(self.bps) + u128::from(self.fraction)
    }

    fn resume(&mut self, now: Instant, unsent_work: u128) -> Instant {
        let bps = u128::from(self.bps);
        self.free_at = now.plus_nanos(u64::try_from(unsent_work / bps).unwrap_or(u64::MAX));
        self.fraction = (unsent_work % bps) as u64;
        self.free_at
    }
}

/// Time per byte, with the kernel's multiply and shift (`psched_l2t_ns`): at most one nanosecond
/// less than exact, and without a division.
#[derive(Debug, Clone, Copy)]
struct PschedRate {
    factor: u64,
    shift: u32,
}

impl PschedRate {
    fn new(rate: Rate) -> Self {
        let (bps, mut shift) = (u128::from(rate.as_bps()), 0);
        let factor = |shift| (u128::from(WORK_PER_BYTE) << shift) / bps;
        // The kernel shifts until its 32-bit factor is full, or 10⁹ shifted fills 63 bits.
        while factor(shift) < 1 << 31 && shift < 34 {
            shift += 1;
        }
        Self { factor: factor(shift) as u64, shift }
    }

    #[inline]
    fn nanos(self, bytes: u64) -> i64 {
        let nanos = (u128::from(bytes) * u128::from(self.factor)) >> self.shift;
        i64::try_from(nanos).unwrap_or(i64::MAX)
    }
}

/// `sch_tbf`: tokens are nanoseconds of the rate. A packet leaves when they cover it.
#[derive(Debug, Clone)]
pub(crate) struct TokenBucket {
    bps: u64,
    cost: PschedRate,
    burst_bytes: u64,
    /// Bucket size in nanoseconds of the rate.
    buffer_nanos: i64,
    tokens_nanos: i64,
    checked_at: Instant,
}

impl TokenBucket {
    fn new(rate: Rate, burst_bytes: u64, now: Instant) -> Self {
        let cost = PschedRate::new(rate);
        let buffer_nanos = cost.nanos(burst_bytes);
        Self {
            bps: rate.as_bps(),
            cost,
            burst_bytes,
            buffer_nanos,
            tokens_nanos: buffer_nanos,
            checked_at: now,
        }
    }

    fn inherit(&mut self, old: &Self, now: Instant) {
        self.tokens_nanos = rescale(old.tokens_at(now), old.bps, self.bps).min(self.buffer_nanos);
        self.checked_at = now;
    }

    #[inline]
    fn tokens_at(&self, now: Instant) -> i64 {
        elapsed(self.checked_at, now).saturating_add(self.tokens_nanos).min(self.buffer_nanos)
    }

    #[inline]
    fn ready(&self, now: Instant, bytes: u32) -> Instant {
        let missing = self.cost.nanos(u64::from(bytes)).saturating_sub(self.tokens_at(now));
        now.plus_nanos(u64::try_from(missing).unwrap_or(0))
    }

    #[inline]
    fn charge(&mut self, now: Instant, bytes: u32) {
        let remaining = self.tokens_at(now).saturating_sub(self.cost.nanos(u64::from(bytes)));
        // Below zero only if the bucket was made smaller than the waiting packet.
        self.tokens_nanos = remaining.max(0);
        self.checked_at = now;
    }
}

/// A leaf class of `sch_htb` without a parent to borrow from. A packet may leave while neither
/// bucket is in debt, and is charged afterwards.
#[derive(Debug, Clone)]
pub(crate) struct Htb {
    bps: u64,
    cost: PschedRate,
    /// Sizes of the buckets and tokens in them, in nanoseconds of the rate.
    buffer: i64,
    ceil_buffer: i64,
    tokens: i64,
    ceil_tokens: i64,
    checked_at: Instant,
}

impl Htb {
    fn new(rate: Rate, burst_bytes: u64, cburst_bytes: u64, now: Instant) -> Self {
        let (buffer, ceil_buffer) = (in_ticks(rate, burst_bytes), in_ticks(rate, cburst_bytes));
        Self {
            bps: rate.as_bps(),
            cost: PschedRate::new(rate),
            buffer,
            ceil_buffer,
            tokens: buffer,
            ceil_tokens: ceil_buffer,
            checked_at: now,
        }
    }

    fn inherit(&mut self, old: &Self, now: Instant) {
        let elapsed = elapsed(old.checked_at, now).min(HTB_MBUFFER_NANOS);
        let convert = |tokens: i64, old_buffer: i64, buffer: i64| {
            let tokens = tokens.saturating_add(elapsed).min(old_buffer);
            rescale(tokens, old.bps, self.bps).clamp(1 - HTB_MBUFFER_NANOS, buffer)
        };
        self.tokens = convert(old.tokens, old.buffer, self.buffer);
        self.ceil_tokens = convert(old.ceil_tokens, old.ceil_buffer, self.ceil_buffer);
        self.checked_at = now;
    }

    #[inline]
    fn ready(&self, now: Instant) -> Instant {
        let debt = self.tokens.min(self.ceil_tokens).min(0).unsigned_abs();
        self.checked_at.plus_nanos(debt).max(now)
    }

    #[inline]
    fn charge(&mut self, now: Instant, bytes: u32) {
        let elapsed = elapsed(self.checked_at, now).min(HTB_MBUFFER_NANOS);
        let cost = self.cost.nanos(u64::from(bytes));
        let after_charge = |tokens: i64, buffer: i64| {
            let tokens = tokens.saturating_add(elapsed).min(buffer);
            tokens.saturating_sub(cost).max(1 - HTB_MBUFFER_NANOS)
        };
        self.tokens = after_charge(self.tokens, self.buffer);
        self.ceil_tokens = after_charge(self.ceil_tokens, self.ceil_buffer);
        self.checked_at = now;
    }
}

/// Returns the nanoseconds from `start` to `end`.
#[inline]
fn elapsed(start: Instant, end: Instant) -> i64 {
    i64::try_from(end.nanos_since(start)).unwrap_or(i64::MAX)
}

/// Converts tokens to the same number of bytes at another rate.
fn rescale(tokens: i64, old_bps: u64, new_bps: u64) -> i64 {
    let scaled = i128::from(tokens) * i128::from(old_bps) / i128::from(new_bps.max(1));
    i64::try_from(scaled).unwrap_or(if tokens < 0 { i64::MIN } else { i64::MAX })
}

/// Returns a bucket as `tc` passes it to the kernel: rounded up to ticks of 64 ns.
fn in_ticks(rate: Rate, bytes: u64) -> i64 {
    let work = u128::from(bytes) * u128::from(WORK_PER_BYTE);
    let ticks = work.div_ceil(u128::from(rate.as_bps()) * 64);
    i64::try_from(ticks * 64).unwrap_or(i64::MAX)
}

/// Mahimahi's delivery opportunities, numbered through all repetitions of the trace.
#[derive(Debug, Clone)]
pub(crate) struct TraceShaper {
    trace: Arc<LinkTrace>,
    start: Instant,
    /// Number of the first opportunity neither used nor missed.
    next: u64,
    /// Unused bytes of the last opportunity used.
    unused_bytes: u32,
    /// Time of the last opportunity used.
    last_used_at: Instant,
}

impl TraceShaper {
    fn new(trace: Arc<LinkTrace>, start: Instant) -> Self {
        Self { trace, start, next: 0, unused_bytes: 0, last_used_at: start }
    }

    /// Returns the number of opportunities in one repetition.
    fn opportunities(&self) -> u64 {
        self.trace.opportunities_ms.len() as u64
    }

    /// Returns the period; zero for a trace that cannot be repeated.
    fn period_ms(&self) -> u64 {
        self.trace.opportunities_ms.last().copied().unwrap_or(0)
    }

    /// Returns the time of opportunity `number`.
    fn opportunity_time(&self, number: u64) -> Option<Instant> {
        let repetition =
            number.checked_div(self.opportunities()).filter(|_| self.period_ms() > 0)?;
        let index = usize::try_from(number % self.opportunities()).ok()?;
        let ms = self.trace.opportunities_ms.get(index)?;
        let ms = repetition.saturating_mul(self.period_ms()).saturating_add(*ms);
        Some(self.start.plus_nanos(ms.saturating_mul(NANOS_PER_MS)))
    }

    /// Discards the opportunities up to `now`: no packet was there to use them.
    fn skip_to(&mut self, now: Instant) {
        self.unused_bytes = 0;
        let ms = now.nanos_since(self.start) / NANOS_PER_MS;
        let Some(repetition) = ms.checked_div(self.period_ms()) else {
            return;
        };
        let offset_ms = ms % self.period_ms();
        let passed_in_repetition =
            self.trace.opportunities_ms.partition_point(|ms| *ms <= offset_ms);
        self.next = repetition
            .saturating_mul(self.opportunities())
            .saturating_add(passed_in_repetition as u64);
    }

    fn ready(&self, now: Instant) -> Option<Instant> {
        if self.unused_bytes > 0 && self.last_used_at == now {
            return Some(now);
        }
        self.opportunity_time(self.next).map(|time| time.max(now))
    }

    /// Starts a packet. It may take the unused bytes of the last opportunity, several whole ones,
    /// and a part of another.
    fn begin(&mut self, now: Instant, bytes: u32) -> Instant {
        let unused = if self.last_used_at == now { self.unused_bytes } else { 0 };
        if bytes <= unused {
            self.unused_bytes = unused - bytes;
            return now;
        }
        let missing = bytes - unused;
        let needed = missing.div_ceil(OPPORTUNITY_BYTES);
        let last = self.next.saturating_add(u64::from(needed) - 1);
        self.next = last.saturating_add(1);
        self.unused_bytes = (OPPORTUNITY_BYTES - missing % OPPORTUNITY_BYTES) % OPPORTUNITY_BYTES;
        self.last_used_at = self.opportunity_time(last).unwrap_or(Instant::MAX).max(now);
        self.last_used_at
    }
}
