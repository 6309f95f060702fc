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
    latest_departure: Instant,
    next_sequence: u64,
    in_order: VecDeque<DelayedPacket<P>>,
    /// Packets that depart before one that entered earlier.
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
            latest_departure: Instant::ZERO,
            next_sequence: 0,
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

    /// Returns the shortest delay, in nanoseconds, of a packet that enters from now on.
    pub(crate) fn min_nanos(&self) -> u64 {
        if self.jitter.is_some() { 0 } else { self.base_nanos.unsigned_abs() }
    }

    pub(crate) fn len(&self) -> usize {
        self.in_order.len() + self.overtaking.len()
    }

    /// Adds a packet that is charged with `charged_bytes` against netem's rate.
    pub(crate) fn push(&mut self, now: Instant, packet: P, charged_bytes: u32) {
        let departure = self.departure(now, charged_bytes);
        self.latest_departure = self.latest_departure.max(departure);
        let sequence = self.next_sequence;
        self.next_sequence = sequence.wrapping_add(1);
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
        let mut departure = if delay >= 0 {
            now.plus_nanos(delay.unsigned_abs())
        } else {
            Instant::from_nanos(now.as_nanos().saturating_sub(delay.unsigned_abs()))
        };
        if let Some(rate) = self.rate {
            // While packets are in flight, the last of them is the reference point.
            if self.latest_departure > now {
                departure = departure.max(self.latest_departure);
            }
            departure += rate.time_for(u64::from(charged_bytes));
        }
        if self.may_overtake {
            departure.max(now)
        } else {
            departure.max(now).max(self.latest_departure)
        }
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
            (Some(in_order), Some(Reverse(overtaking))) => Some(in_order.min(overtaking)),
            (in_order, overtaking) => in_order.or(overtaking.map(|Reverse(entry)| entry)),
        }
    }

    /// Removes and returns the next packet that departs at `now` or before.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<(Instant, P)> {
        let first_in_order = self.in_order.front();
        let overtaking_is_first = match self.overtaking.peek() {
            None => false,
            Some(Reverse(first_overtaking)) => {
                first_in_order.is_none_or(|first_in_order| first_overtaking < first_in_order)
            }
        };
        let entry = if overtaking_is_first {
            self.overtaking.peek().filter(|Reverse(entry)| entry.departure <= now)?;
            self.overtaking.pop()?.0
        } else {
            first_in_order.filter(|entry| entry.departure <= now)?;
            self.in_order.pop_front()?
        };
        Some((entry.departure, entry.packet))
    }

    /// Removes every packet that departs after `now` and passes it to `on_drop`.
    pub(crate) fn drop_after(&mut self, now: Instant, mut on_drop: impl FnMut(&P)) {
        let mut keep = |entry: &DelayedPacket<P>| {
            let arrived = entry.departure <= now;
            if !arrived {
                on_drop(&entry.packet);
            }
            arrived
        };
        self.in_order.retain(&mut keep);
        self.overtaking.retain(|Reverse(entry)| keep(entry));
        self.latest_departure = self.latest_departure.min(now);
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

    fn at_millis(millis: u64) -> Instant {
        Instant::from_nanos(millis * MS)
    }

    fn constant_delay(delay_ms: u64) -> Delay {
        Delay { base: Duration::from_millis(delay_ms), jitter: None, rate: None }
    }

    #[test]
    fn a_shorter_delay_does_not_reorder_unless_allowed() {
        let mut line = DelayLine::new(constant_delay(100), 1);
        line.push(at_millis(0), 'a', 100);
        line.set(constant_delay(10));
        line.push(at_millis(1), 'b', 100);
        assert_eq!(line.pop(Instant::MAX), Some((at_millis(100), 'a')));
        assert_eq!(line.pop(Instant::MAX), Some((at_millis(100), 'b')));
    }

    #[test]
    fn a_shorter_delay_reorders_if_allowed_and_ties_keep_their_order() {
        let jitter =
            Jitter { distribution: JitterDistribution::Uniform, sd: Duration::ZERO, reorder: true };
        let reordering_delay = |delay| Delay { jitter: Some(jitter), ..constant_delay(delay) };
        let mut line = DelayLine::new(reordering_delay(100), 1);
        line.push(at_millis(0), 'a', 100);
        line.set(reordering_delay(10));
        line.push(at_millis(0), 'b', 100);
        line.push(at_millis(0), 'c', 100);
        line.set(reordering_delay(100));
        line.push(at_millis(0), 'd', 100);
        let order: Vec<char> =
            std::iter::from_fn(|| line.pop(Instant::MAX)).map(|(_, packet)| packet).collect();
        assert_eq!(order, ['b', 'c', 'a', 'd']);
    }

    #[test]
    fn the_rate_of_netem_counts_from_the_last_packet_in_flight() {
        let rate = Rate::from_bps(8_000_000);
        let mut line = DelayLine::new(Delay { rate, ..constant_delay(10) }, 1);
        // 1,000 bytes take 1 ms.
        line.push(at_millis(0), 'a', 1_000);
        line.push(at_millis(0), 'b', 1_000);
        line.push(at_millis(30), 'c', 1_000);
        let times: Vec<Instant> =
            std::iter::from_fn(|| line.pop(Instant::MAX)).map(|(time, _)| time).collect();
        assert_eq!(times, [at_millis(11), at_millis(12), at_millis(41)]);
    }

    #[test]
    fn packets_that_have_arrived_survive_drop_after() {
        let mut line = DelayLine::new(constant_delay(10), 1);
        line.push(at_millis(0), 'a', 100);
        line.push(at_millis(5), 'b', 100);
        let mut lost = Vec::new();
        line.drop_after(at_millis(10), |packet| lost.push(*packet));
        assert_eq!((lost, line.len()), (vec!['b'], 1));
    }
}
