//! The delay line: packets in flight, each with its arrival time.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, VecDeque};

use crate::config::Delay;
use crate::jitter::{JitterSource, clamped_nanos};
use crate::random::RngStream;
use crate::{Instant, Rate};

/// Packets in flight, sorted by departure; equal departures leave in order of entry.
///
/// Most packets depart later than all before them and go through a plain queue; only those that
/// overtake others need the heap.
#[derive(Debug, Clone)]
pub(crate) struct DelayLine<P> {
    base_nanos: i64,
    jitter: Option<JitterSource>,
    rate: Option<Rate>,
    may_overtake: bool,
    stream: RngStream,
    /// Latest departure so far.
    latest: Instant,
    entered: u64,
    in_order: VecDeque<DelayedPacket<P>>,
    overtaking: BinaryHeap<Reverse<DelayedPacket<P>>>,
}

#[derive(Debug, Clone)]
struct DelayedPacket<P> {
    departure: Instant,
    sequence: u64,
    packet: P,
}

impl<P> DelayLine<P> {
    pub(crate) fn new(delay: Delay, seed: u64) -> Self {
        let mut line = Self {
            base_nanos: 0,
            jitter: None,
            rate: None,
            may_overtake: false,
            stream: RngStream::new(seed, "jitter"),
            latest: Instant::ZERO,
            entered: 0,
            in_order: VecDeque::new(),
            overtaking: BinaryHeap::new(),
        };
        line.set(delay);
        line
    }

    /// Changes the delay of packets that enter from now on.
    pub(crate) fn set(&mut self, delay: Delay) {
        self.base_nanos = clamped_nanos(delay.base);
        self.jitter = delay.jitter.map(JitterSource::new);
        self.rate = delay.rate;
        self.may_overtake = delay.jitter.is_some_and(|jitter| jitter.reorder);
    }

    /// Returns the shortest time, in nanoseconds, that a packet which enters from now on spends
    /// here.
    pub(crate) fn min_nanos(&self) -> u64 {
        if self.jitter.is_some() { 0 } else { self.base_nanos.unsigned_abs() }
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len() + self.overtaking.len()
    }

    /// Adds a packet that is charged with `charged_bytes` against netem's rate.
    pub(crate) fn push(&mut self, now: Instant, packet: P, charged_bytes: u32) {
        let departure = self.departure(now, charged_bytes);
        self.latest = self.latest.max(departure);
        let sequence = self.entered;
        self.entered = sequence.wrapping_add(1);
        let entry = DelayedPacket { departure, sequence, packet };
        if self.in_order.back().is_some_and(|last| last.departure > departure) {
            self.overtaking.push(Reverse(entry));
        } else {
            self.in_order.push_back(entry);
        }
    }

    /// Computes the departure time as netem's `time_to_send`.
    fn departure(&mut self, now: Instant, charged_bytes: u32) -> Instant {
        let delay = match &self.jitter {
            None => self.base_nanos,
            Some(jitter) => jitter.draw(self.base_nanos, &mut self.stream),
        };
        let mut at = if delay >= 0 {
            now.plus_nanos(delay.unsigned_abs())
        } else {
            Instant::from_nanos(now.as_nanos().saturating_sub(delay.unsigned_abs()))
        };
        if let Some(rate) = self.rate {
            // While packets are in flight, the last of them is the reference point.
            if self.latest > now {
                at = at.max(self.latest);
            }
            at += rate.time_for(u64::from(charged_bytes));
        }
        if self.may_overtake { at.max(now) } else { at.max(now).max(self.latest) }
    }

    /// Returns the time of the next departure.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.front().map(|entry| entry.departure)
    }

    /// Returns the next departure, and the packet that departs.
    pub(crate) fn upcoming(&self) -> Option<(Instant, &P)> {
        self.front().map(|entry| (entry.departure, &entry.packet))
    }

    fn front(&self) -> Option<&DelayedPacket<P>> {
        match (self.in_order.front(), self.overtaking.peek()) {
            (Some(first), Some(Reverse(other))) => Some(first.min(other)),
            (first, other) => first.or(other.map(|Reverse(entry)| entry)),
        }
    }

    /// Removes and returns the next packet that departs at `now` or before.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, P)> {
        let first = self.in_order.front();
        let overtaken = match self.overtaking.peek() {
            None => false,
            Some(Reverse(other)) => first.is_none_or(|first| other < first),
        };
        let entry = if overtaken {
            self.overtaking.peek().filter(|Reverse(entry)| entry.departure <= now)?;
            self.overtaking.pop()?.0
        } else {
            first.filter(|entry| entry.departure <= now)?;
            self.in_order.pop_front()?
        };
        Some((entry.departure, entry.packet))
    }

    /// Removes every packet that departs after `now` and passes it to `lost`.
    pub(crate) fn drop_after(&mut self, now: Instant, mut lost: impl FnMut(&P)) {
        let mut keep = |entry: &DelayedPacket<P>| {
            let arrived = entry.departure <= now;
            if !arrived {
                lost(&entry.packet);
            }
            arrived
        };
        self.in_order.retain(&mut keep);
        self.overtaking.retain(|Reverse(entry)| keep(entry));
        self.latest = self.latest.min(now);
    }
}

impl<P> Ord for DelayedPacket<P> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.departure, self.sequence).cmp(&(other.departure, other.sequence))
    }
}

impl<P> PartialOrd for DelayedPacket<P> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> PartialEq for DelayedPacket<P> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<P> Eq for DelayedPacket<P> {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::{Jitter, JitterDistribution};

    const MS: u64 = 1_000_000;

    fn at(millis: u64) -> Instant {
        Instant::from_nanos(millis * MS)
    }

    fn millis(delay: u64) -> Delay {
        Delay { base: Duration::from_millis(delay), jitter: None, rate: None }
    }

    #[test]
    fn a_shorter_delay_reorders_nothing_without_permission() {
        let mut line = DelayLine::new(millis(100), 1);
        line.push(at(0), 'a', 100);
        line.set(millis(10));
        line.push(at(1), 'b', 100);
        assert_eq!(line.pop(Instant::MAX), Some((at(100), 'a')));
        assert_eq!(line.pop(Instant::MAX), Some((at(100), 'b')));
    }

    #[test]
    fn with_permission_it_reorders_and_ties_keep_their_order() {
        let jitter =
            Jitter { distribution: JitterDistribution::Uniform, sd: Duration::ZERO, reorder: true };
        let free = |delay| Delay { jitter: Some(jitter), ..millis(delay) };
        let mut line = DelayLine::new(free(100), 1);
        line.push(at(0), 'a', 100);
        line.set(free(10));
        line.push(at(0), 'b', 100);
        line.push(at(0), 'c', 100);
        line.set(free(100));
        line.push(at(0), 'd', 100);
        let order: Vec<char> =
            std::iter::from_fn(|| line.pop(Instant::MAX)).map(|(_, packet)| packet).collect();
        assert_eq!(order, ['b', 'c', 'a', 'd']);
    }

    #[test]
    fn the_rate_of_netem_counts_from_the_last_packet_in_flight() {
        let rate = Rate::from_bps(8_000_000);
        let mut line = DelayLine::new(Delay { rate, ..millis(10) }, 1);
        // 1,000 bytes take 1 ms.
        line.push(at(0), 'a', 1_000);
        line.push(at(0), 'b', 1_000);
        line.push(at(30), 'c', 1_000);
        let times: Vec<Instant> =
            std::iter::from_fn(|| line.pop(Instant::MAX)).map(|(time, _)| time).collect();
        assert_eq!(times, [at(11), at(12), at(41)]);
    }

    #[test]
    fn packets_that_have_arrived_survive_a_cut() {
        let mut line = DelayLine::new(millis(10), 1);
        line.push(at(0), 'a', 100);
        line.push(at(5), 'b', 100);
        let mut lost = Vec::new();
        line.drop_after(at(10), |packet| lost.push(*packet));
        assert_eq!((lost, line.len()), (vec!['b'], 1));
    }
}
