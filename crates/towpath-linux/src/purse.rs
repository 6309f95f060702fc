//! What traffic may cost whom a server works for: bytes, a rate, and memory for what is noted of it.
//!
//! A [`RateLimiter`] is what one client may move in each direction, whatever it does; a [`TrafficBudget`] is what
//! one test may spend. Whoever moves bytes asks first and says afterwards how many they were, so
//! that many threads that draw from one purse never take more than there is.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use towpath_net::{Instant, Rate};

/// What is granted at once lasts so long at most, so that all who wait have their turn soon.
const QUANTUM: Duration = Duration::from_millis(5);
/// Least and most bytes that are granted at once.
const MIN_GRANT_BYTES: u64 = 1_500;
const MAX_GRANT_BYTES: u64 = 128 * 1024;
/// What was not moved in time may be moved later, but no more than of so long.
const MAX_CATCH_UP: Duration = Duration::from_millis(20);

/// One direction of a rate.
#[derive(Debug)]
struct RateBucket {
    rate: Rate,
    /// Until when what was granted lasts.
    busy_until: Instant,
}

impl RateBucket {
    fn new(rate: Rate) -> Self {
        Self { rate, busy_until: Instant::ZERO }
    }

    /// How many of `most` bytes may move now; or when to ask again.
    fn take(&mut self, now: Instant, most: u64) -> Result<u64, Instant> {
        if self.busy_until > now {
            return Err(self.busy_until);
        }
        let quantum = self.rate.bytes_in(QUANTUM).clamp(MIN_GRANT_BYTES, MAX_GRANT_BYTES);
        let granted = most.min(quantum);
        self.consume(now, granted);
        Ok(granted)
    }

    fn consume(&mut self, now: Instant, bytes: u64) {
        let earliest = Instant::ZERO + now.saturating_since(Instant::ZERO + MAX_CATCH_UP);
        self.busy_until = self.busy_until.max(earliest) + self.rate.time_for(bytes);
    }

    fn refund(&mut self, bytes: u64) {
        let span = self.rate.time_for(bytes);
        self.busy_until = Instant::ZERO + self.busy_until.saturating_since(Instant::ZERO + span);
    }
}

/// Which way bytes go, as seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TrafficDirection {
    /// From the peer.
    Inbound,
    /// To the peer.
    Outbound,
}

/// What one client may move in each direction.
#[derive(Debug)]
pub(crate) struct RateLimiter {
    inward: Mutex<RateBucket>,
    outward: Mutex<RateBucket>,
}

impl RateLimiter {
    pub(crate) fn new(rate: Rate) -> Self {
        Self {
            inward: Mutex::new(RateBucket::new(rate)),
            outward: Mutex::new(RateBucket::new(rate)),
        }
    }

    fn bucket(&self, way: TrafficDirection) -> MutexGuard<'_, RateBucket> {
        let bucket = match way {
            TrafficDirection::Inbound => &self.inward,
            TrafficDirection::Outbound => &self.outward,
        };
        bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of `most` bytes may move now; or when to ask again. What is granted and not moved is
    /// [given back](Self::give_back).
    pub(crate) fn reserve(
        &self,
        now: Instant,
        way: TrafficDirection,
        most: u64,
    ) -> Result<u64, Instant> {
        self.bucket(way).take(now, most)
    }

    /// Notes what was moved without having been asked for; when something may move again.
    pub(crate) fn consume(&self, now: Instant, way: TrafficDirection, bytes: u64) -> Instant {
        let mut bucket = self.bucket(way);
        bucket.consume(now, bytes);
        bucket.busy_until
    }

    pub(crate) fn refund(&self, way: TrafficDirection, bytes: u64) {
        self.bucket(way).refund(bytes);
    }

    /// Whether so many bytes may move both ways now; they are spent if so.
    pub(crate) fn try_consume_both(&self, now: Instant, bytes: u64) -> bool {
        let (mut inward, mut outward) =
            (self.bucket(TrafficDirection::Inbound), self.bucket(TrafficDirection::Outbound));
        let may = inward.busy_until <= now && outward.busy_until <= now;
        if may {
            inward.consume(now, bytes);
            outward.consume(now, bytes);
        }
        may
    }
}

/// Says how much memory something takes now.
type MemoryGauge = Box<dyn Fn() -> u64 + Send + Sync>;

/// What one test may spend.
#[derive(Default)]
pub(crate) struct TrafficBudget {
    /// Bytes that may still be moved, both ways together; no limit when `None`.
    bytes: Option<AtomicU64>,
    rates: Option<Arc<RateLimiter>>,
    /// All that was moved.
    moved: AtomicU64,
    /// Bytes of memory for what is noted of the traffic.
    noted: AtomicU64,
    /// What else takes memory.
    meters: Mutex<Vec<MemoryGauge>>,
    /// Why it has ended early.
    over: OnceLock<String>,
}

impl fmt::Debug for TrafficBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (moved, noted) = (self.moved_bytes(), self.noted.load(Ordering::Relaxed));
        let mut f = f.debug_struct("Purse");
        f.field("moved", &moved).field("noted", &noted).finish_non_exhaustive()
    }
}

impl TrafficBudget {
    pub(crate) fn new(bytes: Option<u64>, rates: Option<Arc<RateLimiter>>) -> Self {
        Self { bytes: bytes.map(AtomicU64::new), rates, ..Self::default() }
    }

    /// How many of `most` bytes may move now; or when to ask again, which is never once nothing is
    /// left. What is granted is [settled](Self::settle), whatever became of it.
    pub(crate) fn reserve(
        &self,
        now: Instant,
        way: TrafficDirection,
        most: u64,
    ) -> Result<u64, Instant> {
        let granted = match &self.rates {
            Some(rates) => rates.reserve(now, way, most)?,
            None => most,
        };
        let Some(bytes) = &self.bytes else { return Ok(granted) };
        let draw = |left: u64| (left > 0).then(|| left - granted.min(left));
        let left = bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, draw).unwrap_or(0);
        let drawn = granted.min(left);
        self.refund_rate(way, granted - drawn);
        if drawn > 0 { Ok(drawn) } else { Err(now + MAX_CATCH_UP) }
    }

    /// Notes how many of the granted bytes were moved.
    pub(crate) fn settle(&self, way: TrafficDirection, granted: u64, moved: u64) {
        self.moved.fetch_add(moved, Ordering::Relaxed);
        let back = granted.saturating_sub(moved);
        if back > 0 {
            self.refund_rate(way, back);
            if let Some(bytes) = &self.bytes {
                bytes.fetch_add(back, Ordering::AcqRel);
            }
        }
    }

    /// When something may move, if not now; for whoever cannot say beforehand how much it will be.
    pub(crate) fn next_allowed(&self, now: Instant, way: TrafficDirection) -> Option<Instant> {
        if self.is_exhausted() {
            return Some(now + MAX_CATCH_UP);
        }
        let due = self.rates.as_ref()?.bucket(way).busy_until;
        (due > now).then_some(due)
    }

    /// Notes what was moved without having been granted.
    pub(crate) fn consume(&self, now: Instant, way: TrafficDirection, moved: u64) {
        self.moved.fetch_add(moved, Ordering::Relaxed);
        if let Some(rates) = &self.rates {
            rates.consume(now, way, moved);
        }
        if let Some(bytes) = &self.bytes {
            let less = |left: u64| Some(left.saturating_sub(moved));
            // The closure always returns Some.
            let _ = bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }

    /// Draws bytes that were moved beside the traffic, for which nobody asked the rates; false if
    /// nothing was left.
    pub(crate) fn consume_bytes(&self, moved: u64) -> bool {
        let Some(bytes) = &self.bytes else { return true };
        let less = |left: u64| Some(left.saturating_sub(moved));
        bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok_and(|left| left > 0)
    }

    fn refund_rate(&self, way: TrafficDirection, bytes: u64) {
        if let Some(rates) = self.rates.as_ref().filter(|_| bytes > 0) {
            rates.refund(way, bytes);
        }
    }

    /// Whether all bytes are spent.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.bytes.as_ref().is_some_and(|left| left.load(Ordering::Acquire) == 0)
    }

    /// Notes that memory is kept for as long as the traffic takes.
    pub(crate) fn add_memory(&self, bytes: u64) {
        self.noted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Asks `meter` from now on, too, how much memory is kept.
    pub(crate) fn add_gauge(&self, meter: impl Fn() -> u64 + Send + Sync + 'static) {
        self.lock_meters().push(Box::new(meter));
    }

    fn lock_meters(&self) -> MutexGuard<'_, Vec<MemoryGauge>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of all that is noted of the traffic.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let more: u64 = self.lock_meters().iter().map(|meter| meter()).sum();
        self.noted.load(Ordering::Relaxed).saturating_add(more)
    }

    /// Forgets what is asked: it is not kept any more.
    pub(crate) fn clear_gauges(&self) {
        self.lock_meters().clear();
        self.noted.store(0, Ordering::Relaxed);
    }

    /// Everything that was moved so far, both ways.
    pub(crate) fn moved_bytes(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// Says why the traffic ends early; the first word counts.
    pub(crate) fn end(&self, why: impl Into<String>) {
        let _ = self.over.set(why.into()); // the first one is kept
    }

    /// For whoever could not move anything: whether that is for ever, which is then why it ends.
    pub(crate) fn end_if_exhausted(&self) {
        if self.is_exhausted() {
            self.end("all bytes that a test may move are spent: see the server's --max-bytes");
        }
    }

    /// Why it has ended early, if it has.
    pub(crate) fn end_reason(&self) -> Option<&str> {
        self.over.get().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(millis)
    }

    proptest! {
        /// However many draw at once, and whatever they give back.
        #[test]
        fn concurrent_users_of_a_quota_do_not_exceed_the_rate(
            asks in proptest::collection::vec((0_u64..3_000, 1_u64..200_000, 0_u64..200_000), 1..300),
        ) {
            let rate = Rate::from_bps(8_000_000).unwrap();
            let rates = RateLimiter::new(rate);
            let (mut now, mut moved) = (ms(1_000), 0_u64);
            for (wait_us, want, less) in asks {
                now += Duration::from_micros(wait_us);
                if let Ok(granted) = rates.reserve(now, TrafficDirection::Outbound, want) {
                    prop_assert!(granted <= want);
                    let used = granted - less.min(granted);
                    rates.refund(TrafficDirection::Outbound, granted - used);
                    moved += used;
                }
            }
            let span = now.saturating_since(ms(1_000)) + MAX_CATCH_UP + QUANTUM;
            prop_assert!(moved <= rate.bytes_in(span) + MIN_GRANT_BYTES, "{} in {:?}", moved, span);
        }

        #[test]
        fn no_more_bytes_move_than_there_are(
            most in 0_u64..100_000, asks in proptest::collection::vec((1_u64..20_000, 0_u64..3), 1..100),
        ) {
            let purse = TrafficBudget::new(Some(most), None);
            for (want, share) in asks {
                if let Ok(granted) = purse.reserve(ms(0), TrafficDirection::Inbound, want) {
                    purse.settle(TrafficDirection::Inbound, granted, granted * share / 2);
                }
                prop_assert!(purse.moved_bytes() <= most);
                prop_assert_eq!(purse.is_exhausted(), purse.moved_bytes() == most);
            }
        }
    }

    #[test]
    fn a_waiting_sender_gets_the_rate() {
        let rate = Rate::from_bps(8_000_000).unwrap();
        let rates = RateLimiter::new(rate);
        let (mut now, mut moved) = (ms(1_000), 0);
        while now < ms(3_000) {
            match rates.reserve(now, TrafficDirection::Inbound, 1 << 20) {
                Ok(granted) => moved += granted,
                Err(due) => now = due,
            }
        }
        assert!((2_000_000..2_100_000).contains(&moved), "{moved}");
        assert!(
            rates.reserve(now + MAX_CATCH_UP, TrafficDirection::Outbound, 1).is_ok(),
            "the other way is free"
        );
    }

    #[test]
    fn the_first_reason_counts() {
        let purse = TrafficBudget::default();
        assert_eq!(purse.end_reason(), None);
        purse.end("first");
        purse.end("second");
        assert_eq!(purse.end_reason(), Some("first"));
    }
}
