//! What traffic may cost whom a server works for: bytes, a rate, and memory for what is noted of it.
//!
//! A [`Rates`] is what one client may move in each direction, whatever it does; a [`Purse`] is what
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
const LEAST_BYTES: u64 = 1_500;
const MOST_BYTES: u64 = 128 * 1024;
/// What was not moved in time may be moved later, but no more than of so long.
const MEMORY: Duration = Duration::from_millis(20);

/// One direction of a rate.
#[derive(Debug)]
struct Bucket {
    rate: Rate,
    /// Until when what was granted lasts.
    paid_until: Instant,
}

impl Bucket {
    fn new(rate: Rate) -> Self {
        Self { rate, paid_until: Instant::ZERO }
    }

    /// How many of `most` bytes may move now; or when to ask again.
    fn take(&mut self, now: Instant, most: u64) -> Result<u64, Instant> {
        if self.paid_until > now {
            return Err(self.paid_until);
        }
        let quantum = self.rate.bytes_in(QUANTUM).clamp(LEAST_BYTES, MOST_BYTES);
        let granted = most.min(quantum);
        self.spend(now, granted);
        Ok(granted)
    }

    fn spend(&mut self, now: Instant, bytes: u64) {
        let earliest = Instant::ZERO + now.saturating_since(Instant::ZERO + MEMORY);
        self.paid_until = self.paid_until.max(earliest) + self.rate.time_for(bytes);
    }

    fn give_back(&mut self, bytes: u64) {
        let span = self.rate.time_for(bytes);
        self.paid_until = Instant::ZERO + self.paid_until.saturating_since(Instant::ZERO + span);
    }
}

/// Which way bytes go, as seen from here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// From the peer.
    In,
    /// To the peer.
    Out,
}

/// What one client may move in each direction.
#[derive(Debug)]
pub(crate) struct Rates {
    inward: Mutex<Bucket>,
    outward: Mutex<Bucket>,
}

impl Rates {
    pub(crate) fn new(rate: Rate) -> Self {
        Self { inward: Mutex::new(Bucket::new(rate)), outward: Mutex::new(Bucket::new(rate)) }
    }

    fn bucket(&self, way: Way) -> MutexGuard<'_, Bucket> {
        let bucket = match way {
            Way::In => &self.inward,
            Way::Out => &self.outward,
        };
        bucket.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many of `most` bytes may move now; or when to ask again. What is granted and not moved is
    /// [given back](Self::give_back).
    pub(crate) fn take(&self, now: Instant, way: Way, most: u64) -> Result<u64, Instant> {
        self.bucket(way).take(now, most)
    }

    /// Notes what was moved without having been asked for; when something may move again.
    pub(crate) fn spend(&self, now: Instant, way: Way, bytes: u64) -> Instant {
        let mut bucket = self.bucket(way);
        bucket.spend(now, bytes);
        bucket.paid_until
    }

    pub(crate) fn give_back(&self, way: Way, bytes: u64) {
        self.bucket(way).give_back(bytes);
    }

    /// Whether so many bytes may move both ways now; they are spent if so.
    pub(crate) fn both(&self, now: Instant, bytes: u64) -> bool {
        let (mut inward, mut outward) = (self.bucket(Way::In), self.bucket(Way::Out));
        let may = inward.paid_until <= now && outward.paid_until <= now;
        if may {
            inward.spend(now, bytes);
            outward.spend(now, bytes);
        }
        may
    }
}

/// Says how much memory something takes now.
type Meter = Box<dyn Fn() -> u64 + Send + Sync>;

/// What one test may spend.
#[derive(Default)]
pub(crate) struct Purse {
    /// Bytes that may still be moved, both ways together; no limit when `None`.
    bytes: Option<AtomicU64>,
    rates: Option<Arc<Rates>>,
    /// All that was moved.
    moved: AtomicU64,
    /// Bytes of memory for what is noted of the traffic.
    noted: AtomicU64,
    /// What else takes memory.
    meters: Mutex<Vec<Meter>>,
    /// Why it has ended early.
    over: OnceLock<String>,
}

impl fmt::Debug for Purse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (moved, noted) = (self.moved_bytes(), self.noted.load(Ordering::Relaxed));
        let mut f = f.debug_struct("Purse");
        f.field("moved", &moved).field("noted", &noted).finish_non_exhaustive()
    }
}

impl Purse {
    pub(crate) fn new(bytes: Option<u64>, rates: Option<Arc<Rates>>) -> Self {
        Self { bytes: bytes.map(AtomicU64::new), rates, ..Self::default() }
    }

    /// How many of `most` bytes may move now; or when to ask again, which is never once nothing is
    /// left. What is granted is [settled](Self::settle), whatever became of it.
    pub(crate) fn take(&self, now: Instant, way: Way, most: u64) -> Result<u64, Instant> {
        let granted = match &self.rates {
            Some(rates) => rates.take(now, way, most)?,
            None => most,
        };
        let Some(bytes) = &self.bytes else { return Ok(granted) };
        let draw = |left: u64| (left > 0).then(|| left - granted.min(left));
        let left = bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, draw).unwrap_or(0);
        let drawn = granted.min(left);
        self.return_rate(way, granted - drawn);
        if drawn > 0 { Ok(drawn) } else { Err(now + MEMORY) }
    }

    /// Notes how many of the granted bytes were moved.
    pub(crate) fn settle(&self, way: Way, granted: u64, moved: u64) {
        self.moved.fetch_add(moved, Ordering::Relaxed);
        let back = granted.saturating_sub(moved);
        if back > 0 {
            self.return_rate(way, back);
            if let Some(bytes) = &self.bytes {
                bytes.fetch_add(back, Ordering::AcqRel);
            }
        }
    }

    /// When something may move, if not now; for whoever cannot say beforehand how much it will be.
    pub(crate) fn due(&self, now: Instant, way: Way) -> Option<Instant> {
        if self.is_empty() {
            return Some(now + MEMORY);
        }
        let due = self.rates.as_ref()?.bucket(way).paid_until;
        (due > now).then_some(due)
    }

    /// Notes what was moved without having been granted.
    pub(crate) fn spend(&self, now: Instant, way: Way, moved: u64) {
        self.moved.fetch_add(moved, Ordering::Relaxed);
        if let Some(rates) = &self.rates {
            rates.spend(now, way, moved);
        }
        if let Some(bytes) = &self.bytes {
            let less = |left: u64| Some(left.saturating_sub(moved));
            // The closure always returns Some.
            let _ = bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        }
    }

    /// Draws bytes that were moved beside the traffic, for which nobody asked the rates; false if
    /// nothing was left.
    pub(crate) fn draw(&self, moved: u64) -> bool {
        let Some(bytes) = &self.bytes else { return true };
        let less = |left: u64| Some(left.saturating_sub(moved));
        bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).is_ok_and(|left| left > 0)
    }

    fn return_rate(&self, way: Way, bytes: u64) {
        if let Some(rates) = self.rates.as_ref().filter(|_| bytes > 0) {
            rates.give_back(way, bytes);
        }
    }

    /// Whether all bytes are spent.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.as_ref().is_some_and(|left| left.load(Ordering::Acquire) == 0)
    }

    /// Notes that memory is kept for as long as the traffic takes.
    pub(crate) fn note(&self, bytes: u64) {
        self.noted.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Asks `meter` from now on, too, how much memory is kept.
    pub(crate) fn watch(&self, meter: impl Fn() -> u64 + Send + Sync + 'static) {
        self.lock_meters().push(Box::new(meter));
    }

    fn lock_meters(&self) -> MutexGuard<'_, Vec<Meter>> {
        self.meters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory of all that is noted of the traffic.
    pub(crate) fn noted_bytes(&self) -> u64 {
        let more: u64 = self.lock_meters().iter().map(|meter| meter()).sum();
        self.noted.load(Ordering::Relaxed).saturating_add(more)
    }

    /// Forgets what is asked: it is not kept any more.
    pub(crate) fn forget(&self) {
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
    pub(crate) fn end_if_spent(&self) {
        if self.is_empty() {
            self.end("all bytes that a test may move are spent: see the server's --max-bytes");
        }
    }

    /// Why it has ended early, if it has.
    pub(crate) fn over(&self) -> Option<&str> {
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
            let rates = Rates::new(rate);
            let (mut now, mut moved) = (ms(1_000), 0_u64);
            for (wait_us, want, less) in asks {
                now += Duration::from_micros(wait_us);
                if let Ok(granted) = rates.take(now, Way::Out, want) {
                    prop_assert!(granted <= want);
                    let used = granted - less.min(granted);
                    rates.give_back(Way::Out, granted - used);
                    moved += used;
                }
            }
            let span = now.saturating_since(ms(1_000)) + MEMORY + QUANTUM;
            prop_assert!(moved <= rate.bytes_in(span) + LEAST_BYTES, "{} in {:?}", moved, span);
        }

        #[test]
        fn no_more_bytes_move_than_there_are(
            most in 0_u64..100_000, asks in proptest::collection::vec((1_u64..20_000, 0_u64..3), 1..100),
        ) {
            let purse = Purse::new(Some(most), None);
            for (want, share) in asks {
                if let Ok(granted) = purse.take(ms(0), Way::In, want) {
                    purse.settle(Way::In, granted, granted * share / 2);
                }
                prop_assert!(purse.moved_bytes() <= most);
                prop_assert_eq!(purse.is_empty(), purse.moved_bytes() == most);
            }
        }
    }

    #[test]
    fn a_waiting_sender_gets_the_rate() {
        let rate = Rate::from_bps(8_000_000).unwrap();
        let rates = Rates::new(rate);
        let (mut now, mut moved) = (ms(1_000), 0);
        while now < ms(3_000) {
            match rates.take(now, Way::In, 1 << 20) {
                Ok(granted) => moved += granted,
                Err(due) => now = due,
            }
        }
        assert!((2_000_000..2_100_000).contains(&moved), "{moved}");
        assert!(rates.take(now + MEMORY, Way::Out, 1).is_ok(), "the other way is free");
    }

    #[test]
    fn the_first_reason_counts() {
        let purse = Purse::default();
        assert_eq!(purse.over(), None);
        purse.end("first");
        purse.end("second");
        assert_eq!(purse.over(), Some("first"));
    }
}
