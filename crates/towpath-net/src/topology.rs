//! Directions and the routes through them: an access link, then a bottleneck that others share.

use std::collections::VecDeque;

use crate::config::{Delay, DirectionConfig, Loss, Shaper};
use crate::packet::DropReason;
use crate::{Direction, DirectionCounters, EnqueueOutcome, Instant, Packet};

/// Handle of a direction of a [`Topology`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectionId(usize);

impl DirectionId {
    /// Returns the index: directions are counted from 0 in order of addition.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Handle of a route of a [`Topology`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouteId(usize);

impl RouteId {
    /// Returns the index: routes are counted from 0 in order of addition.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Error of [`Topology::add_route`]: no direction, or an unknown one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A route needs a direction.
    #[error("a route needs at least one direction")]
    Empty,
    /// The direction belongs to another topology.
    #[error("direction {0:?} is not part of this topology")]
    UnknownDirection(DirectionId),
}

/// Directions, and routes that lead through one or several of them.
///
/// Packets move from hop to hop at their logical times. Two directions that are due at the same
/// time are served in the order in which their next packets entered the topology.
#[derive(Debug, Clone)]
pub struct Topology<P> {
    directions: Vec<Direction<RoutedPacket<P>>>,
    /// Time at which each direction is due and entry number of the packet concerned, or [`NEVER`].
    due: Vec<(Instant, u64)>,
    /// The smallest of `due`, with its direction; cached because it is read more often than it
    /// changes.
    first_due: Option<((Instant, u64), usize)>,
    routes: Vec<Vec<usize>>,
    /// Packets that have left the last hop of their route and wait for [`Self::pop`].
    arrived: VecDeque<(Instant, RouteId, P)>,
    /// Number of packets that have entered; numbers the next one.
    entered_packets: u64,
}

/// Sorts after every event that may be due.
const NEVER: (Instant, u64) = (Instant::MAX, u64::MAX);

/// A packet on its route.
#[derive(Debug, Clone)]
struct RoutedPacket<P> {
    route: usize,
    hop: usize,
    sequence: u64,
    packet: P,
}

impl<P: Packet> Packet for RoutedPacket<P> {
    fn len_bytes(&self) -> u32 {
        self.packet.len_bytes()
    }

    fn packets(&self) -> u32 {
        self.packet.packets()
    }

    fn on_served(&mut self, _hop: usize, at: Instant) {
        self.packet.on_served(self.hop, at);
    }

    fn corrupt(&mut self, random: u32) {
        self.packet.corrupt(random);
    }
}

impl<P> Default for Topology<P> {
    fn default() -> Self {
        Self {
            directions: Vec::new(),
            due: Vec::new(),
            first_due: None,
            routes: Vec::new(),
            arrived: VecDeque::new(),
            entered_packets: 0,
        }
    }
}

impl<P: Packet> Topology<P> {
    /// Creates a topology without directions and routes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a direction; give each its own seed ([`crate::stream_seed`]).
    pub fn add_direction(&mut self, config: DirectionConfig, seed: u64) -> DirectionId {
        self.directions.push(Direction::new(config, seed));
        self.due.push(NEVER);
        DirectionId(self.directions.len() - 1)
    }

    /// Adds a route through `hops`, in this order.
    pub fn add_route(&mut self, hops: &[DirectionId]) -> Result<RouteId, RouteError> {
        if hops.is_empty() {
            return Err(RouteError::Empty);
        }
        if let Some(unknown) = hops.iter().find(|hop| hop.0 >= self.directions.len()) {
            return Err(RouteError::UnknownDirection(*unknown));
        }
        self.routes.push(hops.iter().map(|hop| hop.0).collect());
        Ok(RouteId(self.routes.len() - 1))
    }

    /// Offers a packet to the first hop of `route` and returns that hop's outcome; drops at later
    /// hops only count. A route of another topology is treated as down.
    pub fn push(&mut self, now: Instant, route: RouteId, packet: P) -> EnqueueOutcome {
        while let Some(arrival) = self.forward(now) {
            self.arrived.push_back(arrival);
        }
        let routed =
            RoutedPacket { route: route.0, hop: 0, sequence: self.entered_packets, packet };
        self.entered_packets = self.entered_packets.wrapping_add(1);
        self.push_to_hop(now, routed)
    }

    /// Returns the time at which [`Self::pop`] must be called next.
    pub fn next_due(&self) -> Option<Instant> {
        let arrived = self.arrived.front().map(|(time, _, _)| *time);
        let in_transit = self.first_due.map(|((time, _), _)| time);
        [arrived, in_transit].into_iter().flatten().min()
    }

    /// Returns the next packet that has left the last hop of its route by `now`, with its departure
    /// time.
    pub fn pop(&mut self, now: Instant) -> Option<(Instant, RouteId, P)> {
        match self.arrived.front() {
            Some((time, _, _)) if *time <= now => self.arrived.pop_front(),
            Some(_) => None,
            None => self.forward(now),
        }
    }

    /// Returns true if an IP packet of `bytes` would find room in the first hop of `route`.
    pub fn has_room(&self, route: RouteId, bytes: u32) -> bool {
        let first_hop = self.routes.get(route.0).and_then(|hops| hops.first());
        first_hop
            .and_then(|index| self.directions.get(*index))
            .is_some_and(|direction| direction.has_room(bytes))
    }

    /// [`Direction::set_up`] of one direction.
    pub fn set_up(&mut self, now: Instant, id: DirectionId, up: bool) {
        self.change(now, id, |direction| direction.set_up(now, up));
    }

    /// [`Direction::is_up`] of one direction.
    pub fn is_up(&self, id: DirectionId) -> bool {
        self.directions.get(id.0).is_some_and(Direction::is_up)
    }

    /// [`Direction::set_shaper`] of one direction.
    pub fn set_shaper(&mut self, now: Instant, id: DirectionId, shaper: Shaper) {
        self.change(now, id, |direction| direction.set_shaper(now, shaper));
    }

    /// [`Direction::set_delay`] of one direction.
    pub fn set_delay(&mut self, now: Instant, id: DirectionId, delay: Delay) {
        self.change(now, id, |direction| direction.set_delay(now, delay));
    }

    /// [`Direction::set_loss`] of one direction.
    pub fn set_loss(&mut self, now: Instant, id: DirectionId, loss: Loss) {
        self.change(now, id, |direction| direction.set_loss(loss));
    }

    /// [`Direction::counters`] of one direction.
    pub fn counters(&self, id: DirectionId) -> Option<&DirectionCounters> {
        self.directions.get(id.0).map(Direction::counters)
    }

    /// Returns the counters of all directions at `now`, in order of addition. Each comes with the
    /// bytes its server has sent: [`Direction::served_bytes`], including the packet in service.
    pub fn all_counters(&mut self, now: Instant) -> Vec<(DirectionCounters, u64)> {
        while let Some(arrival) = self.forward(now) {
            self.arrived.push_back(arrival);
        }
        let mut counters = Vec::new();
        for index in 0..self.directions.len() {
            if let Some(direction) = self.directions.get_mut(index) {
                let (served, partial) = direction.served_bytes(now);
                counters.push((*direction.counters(), served + partial));
            }
            self.update_due(index);
        }
        counters
    }

    /// [`Direction::served_bytes`] of one direction.
    pub fn served_bytes(&mut self, now: Instant, id: DirectionId) -> Option<(u64, u64)> {
        let served = self.directions.get_mut(id.0)?.served_bytes(now);
        self.update_due(id.0);
        Some(served)
    }

    /// [`Direction::is_busy_until`] of one direction.
    #[inline]
    pub fn is_busy_until(&self, until: Instant, id: DirectionId) -> bool {
        self.directions.get(id.0).is_some_and(|direction| direction.is_busy_until(until))
    }

    /// [`Direction::queue_packets`] and [`Direction::queue_bytes`] of one direction.
    pub fn queue_length(&self, id: DirectionId) -> Option<(u64, u64)> {
        let direction = self.directions.get(id.0)?;
        Some((direction.queue_packets(), direction.queue_bytes()))
    }

    /// Moves everything that is due before the change, then changes one direction.
    fn change(
        &mut self,
        now: Instant,
        id: DirectionId,
        change: impl FnOnce(&mut Direction<RoutedPacket<P>>),
    ) {
        while let Some(arrival) = self.forward(now) {
            self.arrived.push_back(arrival);
        }
        if let Some(direction) = self.directions.get_mut(id.0) {
            change(direction);
        }
        self.update_due(id.0);
    }

    /// Moves packets in order of time until one has left its last hop.
    fn forward(&mut self, now: Instant) -> Option<(Instant, RouteId, P)> {
        loop {
            let ((time, _), index) = self.first_due.filter(|((time, _), _)| *time <= now)?;
            let departed = self.directions.get_mut(index)?.pop(time);
            self.update_due(index);
            let Some((time, mut routed)) = departed else {
                continue; // the packet only moved within this direction
            };
            routed.hop += 1;
            let hops = self.routes.get(routed.route)?;
            if routed.hop >= hops.len() {
                return Some((time, RouteId(routed.route), routed.packet));
            }
            // A drop here only shows in the hop's counters: the sender's call has long returned.
            let _ = self.push_to_hop(time, routed);
        }
    }

    fn push_to_hop(&mut self, now: Instant, routed: RoutedPacket<P>) -> EnqueueOutcome {
        let hops = self.routes.get(routed.route);
        let index = hops.and_then(|hops| hops.get(routed.hop)).copied();
        let Some(index) = index else {
            return EnqueueOutcome::Dropped(DropReason::Down);
        };
        let Some(direction) = self.directions.get_mut(index) else {
            return EnqueueOutcome::Dropped(DropReason::Down);
        };
        let outcome = direction.push(now, routed);
        self.update_due(index);
        outcome
    }

    /// Updates `due` and `first_due` after a change of one direction.
    fn update_due(&mut self, index: usize) {
        let (Some(direction), Some(due)) = (self.directions.get(index), self.due.get_mut(index))
        else {
            return;
        };
        let upcoming = direction.upcoming().map(|(time, routed)| (time, routed.sequence));
        *due = upcoming.unwrap_or(NEVER);
        match (upcoming, self.first_due) {
            (Some(new_due), first) if first.is_none_or(|first| (new_due, index) <= first) => {
                self.first_due = Some((new_due, index));
            }
            // The changed direction was the first to be due, and is now due later or never.
            (_, Some((_, first))) if first == index => {
                let mut first = (NEVER, 0);
                for (index, due) in self.due.iter().enumerate() {
                    if *due < first.0 {
                        first = (*due, index);
                    }
                }
                self.first_due = (first.0 != NEVER).then_some(first);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Rate;

    #[derive(Debug, Clone, PartialEq, Eq)]
    struct NamedPacket(char);

    impl Packet for NamedPacket {
        fn len_bytes(&self) -> u32 {
            1_000
        }
        fn corrupt(&mut self, _random: u32) {}
    }

    /// A super-segment of three packets.
    #[derive(Debug, Clone)]
    struct SuperSegment;

    impl Packet for SuperSegment {
        fn len_bytes(&self) -> u32 {
            3_000
        }
        fn packets(&self) -> u32 {
            3
        }
        fn corrupt(&mut self, _random: u32) {}
    }

    #[test]
    fn a_super_segment_takes_the_time_of_its_packets_headers_included() {
        let mut topology = Topology::new();
        let config = DirectionConfig { overhead_bytes: 1_000, ..line_config(0) };
        let link = topology.add_direction(config, 1);
        let route = topology.add_route(&[link]).unwrap();
        assert_eq!(topology.push(at_millis(0), route, SuperSegment), EnqueueOutcome::Queued);
        assert_eq!(topology.pop(Instant::MAX).unwrap().0, at_millis(6));
    }

    #[test]
    fn a_server_reports_its_passed_bytes_at_any_time() {
        let mut topology = Topology::new();
        let link =
            topology.add_direction(DirectionConfig { overhead_bytes: 14, ..line_config(20) }, 1);
        let route = topology.add_route(&[link]).unwrap();
        let _ = topology.push(at_millis(0), route, NamedPacket('a'));
        let _ = topology.push(at_millis(0), route, NamedPacket('b'));
        // 1,014 bytes take 1.014 ms, and arrive 20 ms later.
        assert_eq!(topology.served_bytes(at_millis(1), link), Some((0, 1_000)));
        assert_eq!(topology.served_bytes(at_millis(2), link), Some((1_014, 986)));
        topology.set_up(at_millis(2), link, false);
        assert_eq!(
            topology.served_bytes(at_millis(9), link),
            Some((1_014, 0)),
            "the second is lost"
        );
    }

    /// 1,000 bytes take 1 ms.
    fn line_config(delay_ms: u64) -> DirectionConfig {
        DirectionConfig {
            shaper: Rate::from_bps(8_000_000).map_or(Shaper::Unlimited, Shaper::Line),
            delay: Delay { base: Duration::from_millis(delay_ms), ..Delay::default() },
            overhead_bytes: 0,
            ..DirectionConfig::default()
        }
    }

    fn at_millis(millis: u64) -> Instant {
        Instant::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn two_hosts_share_the_queue_of_their_bottleneck() {
        let mut topology = Topology::new();
        let [near, far, shared] = [line_config(1), line_config(3), line_config(10)]
            .map(|config| topology.add_direction(config, 1));
        let from_near = topology.add_route(&[near, shared]).unwrap();
        let from_far = topology.add_route(&[far, shared]).unwrap();
        for (route, name) in [(from_far, 'a'), (from_near, 'b'), (from_near, 'c')] {
            assert_eq!(
                topology.push(at_millis(0), route, NamedPacket(name)),
                EnqueueOutcome::Queued
            );
        }
        // b and c reach the bottleneck at 2 and 3 ms, a at 4 ms, when c has just left it.
        let arrivals: Vec<_> = std::iter::from_fn(|| topology.pop(Instant::MAX)).collect();
        let expected = [
            (at_millis(13), from_near, NamedPacket('b')),
            (at_millis(14), from_near, NamedPacket('c')),
            (at_millis(15), from_far, NamedPacket('a')),
        ];
        assert_eq!(arrivals, expected);
        assert_eq!(topology.next_due(), None);
        assert_eq!(topology.counters(shared).unwrap().delivered.packets, 3);
    }

    #[test]
    fn served_bytes_include_overhead_and_count_before_arrival() {
        let mut topology = Topology::new();
        let config = DirectionConfig { overhead_bytes: 1_000, ..line_config(100) };
        let link = topology.add_direction(config, 1);
        let route = topology.add_route(&[link]).unwrap();
        for name in ['a', 'b'] {
            let _ = topology.push(at_millis(0), route, NamedPacket(name));
        }
        let served = |topology: &mut Topology<NamedPacket>, time| {
            let (counters, served) = topology.all_counters(time)[link.index()];
            (served, counters.delivered.packets)
        };
        assert_eq!(served(&mut topology, at_millis(1)), (1_000, 0));
        assert_eq!(served(&mut topology, at_millis(3)), (3_000, 0));
        assert_eq!(served(&mut topology, at_millis(4)), (4_000, 0));
        assert_eq!(topology.pop(at_millis(101)), None, "being asked changes nothing");
        assert_eq!(topology.pop(at_millis(102)).unwrap().0, at_millis(102));
        assert_eq!(served(&mut topology, at_millis(103)), (4_000, 1));
    }

    #[test]
    fn at_equal_times_the_packet_that_entered_first_goes_first() {
        let mut topology = Topology::new();
        let [first, second, shared] = [line_config(1), line_config(1), line_config(1)]
            .map(|config| topology.add_direction(config, 1));
        let routes = [first, second].map(|access| topology.add_route(&[access, shared]).unwrap());
        let _ = topology.push(at_millis(0), routes[1], NamedPacket('a'));
        let _ = topology.push(at_millis(0), routes[0], NamedPacket('b'));
        let names = std::iter::from_fn(|| topology.pop(Instant::MAX)).map(|(_, _, name)| name.0);
        assert_eq!(names.collect::<String>(), "ab");
    }

    #[test]
    fn an_impossible_route_is_refused() {
        let mut topology = Topology::<NamedPacket>::new();
        assert_eq!(topology.add_route(&[]), Err(RouteError::Empty));
        let foreign = DirectionId(3);
        assert_eq!(topology.add_route(&[foreign]), Err(RouteError::UnknownDirection(foreign)));
        let outcome = topology.push(at_millis(0), RouteId(9), NamedPacket('a'));
        assert_eq!(outcome, EnqueueOutcome::Dropped(DropReason::Down));
        assert!(!topology.has_room(RouteId(9), 100));
    }
}
