//! Fills the capacity account: the category of each packet on arrival and the cause of each link's
//! idle time (`docs/reference/metrics.md`, *Account of capacity*).
//!
//! Idle bytes are the link's capacity minus what it carried. When the state of a link's senders
//! changes, the idle bytes since the last change go to the previous state. A busy link has no idle
//! bytes, so its senders' state is not evaluated: with full links, that saves most of the work.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_net::topology::DirectionId;
use towpath_net::{Instant, Topology};
use towpath_result::Part;
use towpath_result::accounting::{IdleCause, Ledger, Period};
use towpath_scenario::network::LinkDirections;
use towpath_scenario::{DataDirection, Scenario, Transport};
use towpath_wire::ConnectionId;
use towpath_wire::udp;

use crate::idle_cause::{SimView, idle_cause};
use crate::packet::SimPacket;

/// Capacity accounts of all links of a run.
#[derive(Debug)]
pub(crate) struct CapacityAccounts {
    ledger: Ledger,
    link_ledgers: Vec<LinkLedger>,
    /// For each path and direction: index of the link's ledger, and the hop of the route that owns
    /// the capacity.
    link_hops: Vec<[Option<(usize, usize)>; 2]>,
    streams: StreamTable,
    /// By host: the stack's drain count (number of times that all data had been sent) at the last
    /// check.
    last_drain_counts: Vec<u64>,
    /// Set when packets cost processor time, so that causes may change at any time. `None` until
    /// checked.
    has_cpu_cost: Option<bool>,
    /// Set when an event may have changed the cause of an idle link.
    pub(crate) dirty: bool,
    /// End of the last period.
    closed_until: Instant,
    period_ns: u64,
}

/// Bytes that applications have read over the whole run.
#[derive(Debug, Default)]
pub(crate) struct ReadTotals {
    /// TCP and MPTCP connections, by sending host and its connection.
    pub(crate) stream_bytes: BTreeMap<(usize, ConnectionId), u64>,
    /// QUIC streams, in the first direction of their path and in the opposite one.
    pub(crate) quic_bytes: [u64; 2],
}

/// Account of one link direction.
#[derive(Debug)]
pub(crate) struct LinkLedger {
    owner: DirectionId,
    /// 0: from the paths' first host; 1: towards it.
    pub(crate) side: usize,
    pub(crate) paths: Vec<usize>,
    /// Every direction that the link's packets pass.
    route_directions: Vec<DirectionId>,
    overhead_bytes: u32,
    cause: IdleCause,
    /// Set when `cause` may be outdated: it is not updated while the link is busy.
    is_stale: bool,
    /// Idle bytes since the start of the run.
    idle_bytes: u64,
    /// Packets dropped so far: random loss, queue overflow, exceeded MTU.
    drops: [u64; 3],
    last_drop: Option<Part>,
    served_bytes: u64,
    /// Periods in order; the last one is open.
    periods: Vec<OpenPeriod>,
}

#[derive(Debug, Default)]
struct OpenPeriod {
    period: Period,
    /// Bytes that the link's server has passed.
    served_bytes: u64,
    /// UDP payload, which includes QUIC's own overhead.
    datagram_bytes: u64,
}

impl CapacityAccounts {
    pub(crate) fn new(scenario: &Scenario, transport: Transport, links: &LinkDirections) -> Self {
        let ledger = Ledger::new(scenario, transport);
        let mut link_hops = vec![[None; 2]; scenario.paths.len()];
        let mut link_ledgers = Vec::new();
        for (index, link) in ledger.links().iter().enumerate() {
            let side = usize::from(link.direction == DataDirection::Down);
            for path in &link.paths {
                let through = scenario.paths.get(*path).map_or(&[][..], |path| &path.through);
                let hop = hop(through, link.bottleneck, side);
                if let Some(link_hop) =
                    link_hops.get_mut(*path).and_then(|link_hop| link_hop.get_mut(side))
                {
                    *link_hop = Some((index, hop));
                }
            }
            link_ledgers.extend(LinkLedger::new(
                scenario,
                links,
                (side, &link.paths, link.bottleneck),
            ));
        }
        Self {
            ledger,
            link_ledgers,
            link_hops,
            streams: StreamTable::default(),
            has_cpu_cost: None,
            last_drain_counts: vec![0; scenario.hosts.len()],
            dirty: true,
            closed_until: Instant::ZERO,
            period_ns: u64::try_from(scenario.run.sample.as_nanos()).unwrap_or(u64::MAX).max(1),
        }
    }

    /// Returns a window size that keeps all links busy.
    pub(crate) fn sufficient_window_bytes(&self, longest_srtt: Duration) -> u64 {
        self.ledger.sufficient_window_bytes(longest_srtt)
    }

    /// Returns the hop at which a packet's capacity is accounted for.
    pub(crate) fn hop(&self, path: usize, side: usize) -> usize {
        let link_hop =
            self.link_hops.get(path).and_then(|link_hop| link_hop.get(side)).copied().flatten();
        link_hop.map_or(usize::MAX, |(_, hop)| hop)
    }

    /// Books a packet of `sender` that has left the network in this direction of a path.
    pub(crate) fn on_arrival(
        &mut self,
        (path, side, sender): (usize, usize, usize),
        packet: &SimPacket,
    ) {
        let link_hop =
            self.link_hops.get(path).and_then(|link_hop| link_hop.get(side)).copied().flatten();
        let (Some((ledger_index, _)), Some(served_at)) = (link_hop, packet.served_at) else {
            return;
        };
        let period_index = period_of(served_at, self.period_ns);
        let Some(link) = self.link_ledgers.get_mut(ledger_index) else { return };
        let charged = link.charged_bytes(packet);
        let period_index = period_index.min(link.periods.len().saturating_sub(1));
        let Some(period) = link.periods.get_mut(period_index) else { return };
        let payload = packet.inner.payload.len() as u64;
        let carried = &mut period.period.carried;
        let Some(tag) = packet.inner.data_tag.filter(|_| payload > 0) else {
            carried.headers += charged;
            if payload > 0 && udp::UdpDatagram::is_in(&packet.inner) {
                period.datagram_bytes += payload;
            }
            return;
        };
        let Some(arrivals) = self.streams.entry((sender, tag.connection)) else { return };
        // Data sequence offsets begin at 1.
        let start = tag.start.saturating_sub(1);
        let new_bytes = arrivals.insert((start, start + payload), (ledger_index, period_index));
        carried.delivered += new_bytes;
        carried.headers += charged.saturating_sub(payload);
        *match (tag.retransmitted, tag.redundant) {
            (true, _) => &mut carried.spurious,
            (false, true) => &mut carried.redundant,
            (false, false) => &mut carried.reinjected,
        } += payload - new_bytes;
    }

    /// Books a packet that is still in the network at the end, if its link's server has passed it.
    pub(crate) fn on_in_flight(&mut self, (path, side): (usize, usize), packet: &SimPacket) {
        let link_hop =
            self.link_hops.get(path).and_then(|link_hop| link_hop.get(side)).copied().flatten();
        let (Some((ledger_index, _)), Some(served_at)) = (link_hop, packet.served_at) else {
            return;
        };
        let period_index = period_of(served_at, self.period_ns);
        let Some(link) =
            self.link_ledgers.get_mut(ledger_index).filter(|_| served_at <= self.closed_until)
        else {
            return;
        };
        let charged = link.charged_bytes(packet);
        // The last period is open and lies behind the end of the run.
        let period_index = period_index.min(link.periods.len().saturating_sub(2));
        if let Some(period) = link.periods.get_mut(period_index) {
            period.period.carried.in_flight += charged;
        }
    }

    /// Moves data that no application has read from `delivered` to `out_of_order`.
    fn separate_unread(&mut self, read_totals: &ReadTotals) {
        for (key, index) in &self.streams.indices {
            let Some(arrivals) = self.streams.arrivals.get(*index) else { continue };
            let read_bytes = read_totals.stream_bytes.get(key).copied().unwrap_or(arrivals.bytes);
            for ((ledger_index, period_index), mut bytes) in arrivals.unread(read_bytes) {
                let periods = self.link_ledgers.get_mut(ledger_index).map(|link| &mut link.periods);
                let earlier_periods = periods.and_then(|periods| periods.get_mut(..=period_index));
                for open in earlier_periods.into_iter().flatten().rev() {
                    let carried = &mut open.period.carried;
                    let unread = bytes.min(carried.delivered);
                    carried.delivered -= unread;
                    carried.out_of_order += unread;
                    bytes -= unread;
                }
            }
        }
    }

    /// Updates the idle causes for the time from now to `until`, in which no event occurs. Skips
    /// links that stay busy until then and those whose cause cannot have changed.
    pub(crate) fn update_causes(
        &mut self,
        topology: &mut Topology<SimPacket>,
        view: &SimView<'_>,
        until: Instant,
    ) {
        let mut changed = std::mem::take(&mut self.dirty);
        for (host, last_count) in view.hosts.iter().zip(&mut self.last_drain_counts) {
            let count = host.stack.drain_count();
            changed |= std::mem::replace(last_count, count) != count;
        }
        changed |= *self.has_cpu_cost.get_or_insert_with(|| {
            view.hosts.iter().any(|host| !host.settings.cpu_per_packet.is_zero())
        });
        for index in 0..self.link_ledgers.len() {
            let Some(link) = self.link_ledgers.get_mut(index) else { continue };
            link.is_stale |= changed;
            if !link.is_stale || topology.is_busy_until(until, link.owner) {
                continue;
            }
            link.is_stale = false;
            let cause = idle_cause(link, view);
            if cause != link.cause {
                self.book_idle_bytes(index, view.now, topology);
                if let Some(link) = self.link_ledgers.get_mut(index) {
                    link.cause = cause;
                }
            }
        }
    }

    /// Books a link's idle bytes since the last call under the current cause.
    fn book_idle_bytes(&mut self, index: usize, now: Instant, topology: &mut Topology<SimPacket>) {
        let Some((link, reported_link)) =
            self.link_ledgers.get_mut(index).zip(self.ledger.links().get(index))
        else {
            return;
        };
        let Some((served, partial)) = topology.served_bytes(now, link.owner) else { return };
        link.update_drops(topology);
        let offered = reported_link.offered_until(now.as_nanos());
        let usable = offered.capacity_bytes.saturating_sub(offered.down_bytes);
        let idle = usable.saturating_sub(served + partial);
        let new_idle = idle.saturating_sub(link.idle_bytes);
        link.idle_bytes = link.idle_bytes.max(idle);
        let cause = match (link.cause.part, link.last_drop) {
            (Part::AfterLoss, Some(part)) => IdleCause::from(part),
            _ => link.cause,
        };
        if let Some(open) = link.periods.last_mut().filter(|_| new_idle > 0) {
            *open.period.limits.entry(cause).or_default() += new_idle;
        }
    }

    /// Closes the current period and opens the next one.
    pub(crate) fn close_period(&mut self, now: Instant, topology: &mut Topology<SimPacket>) {
        if now <= self.closed_until {
            return;
        }
        for index in 0..self.link_ledgers.len() {
            self.book_idle_bytes(index, now, topology);
            let Some(link) = self.link_ledgers.get_mut(index) else { continue };
            let (served, partial) = topology.served_bytes(now, link.owner).unwrap_or_default();
            let cause = link.cause;
            if let Some(open) = link.periods.last_mut() {
                if open.period.limits.is_empty() {
                    // Rounding can leave a remainder.
                    open.period.limits.insert(cause, 1);
                }
                open.period.t_ns = now.as_nanos();
                open.period.span_ns = now.saturating_since(self.closed_until).as_nanos() as u64;
                open.period.partial_packet_bytes = partial;
                open.served_bytes = served.saturating_sub(link.served_bytes);
            }
            link.served_bytes = served;
            link.periods.push(OpenPeriod::default());
        }
        self.closed_until = now;
    }

    /// Returns the completed ledger at the end of the run.
    pub(crate) fn finish(mut self, read: &ReadTotals) -> Ledger {
        self.separate_unread(read);
        let mut datagrams = [0_u64; 2];
        for link in &self.link_ledgers {
            if let Some(total) = datagrams.get_mut(link.side) {
                *total += link.periods.iter().map(|open| open.datagram_bytes).sum::<u64>();
            }
        }
        for (index, link) in self.link_ledgers.into_iter().enumerate() {
            let sent_bytes = datagrams.get(link.side).copied().unwrap_or(0);
            let read_bytes = read.quic_bytes.get(link.side).copied().unwrap_or(0).min(sent_bytes);
            let closed_periods = link.periods.len().saturating_sub(1);
            for open in link.periods.into_iter().take(closed_periods) {
                let mut period = open.period;
                // QUIC encrypts its data: each period gets its share of the bytes read over the
                // whole run.
                let share = u128::from(open.datagram_bytes) * u128::from(read_bytes);
                let data = u64::try_from(share / u128::from(sent_bytes.max(1))).unwrap_or(0);
                period.carried.headers = period.carried.headers.saturating_sub(data);
                period.carried.delivered += data;
                period.carried.lost = open.served_bytes.saturating_sub(period.carried.sum());
                self.ledger.add(index, period);
            }
        }
        self.ledger
    }
}

impl LinkLedger {
    fn new(
        scenario: &Scenario,
        links: &LinkDirections,
        (side, paths, bottleneck): (usize, &[usize], Option<usize>),
    ) -> Option<Self> {
        let first = paths.first().copied()?;
        let side_of = |pair: &[DirectionId; 2]| pair.get(side).copied();
        let (owner, config) = if let Some(index) = bottleneck {
            let item = scenario.bottlenecks.get(index)?;
            (links.bottlenecks.get(index), [&item.up, &item.down])
        } else {
            let path = scenario.paths.get(first)?;
            (links.paths.get(first), [&path.up, &path.down])
        };
        let mut route_directions: Vec<_> =
            paths.iter().filter_map(|path| links.paths.get(*path).and_then(side_of)).collect();
        for path in paths.iter().filter_map(|path| scenario.paths.get(*path)) {
            let through = path.through.iter().filter_map(|index| links.bottlenecks.get(*index));
            route_directions.extend(through.filter_map(side_of));
        }
        route_directions.sort_unstable();
        route_directions.dedup();
        Some(Self {
            owner: owner.and_then(side_of)?,
            side,
            paths: paths.to_vec(),
            route_directions,
            overhead_bytes: config.get(side)?.overhead_bytes,
            cause: Part::Application.into(),
            is_stale: true,
            idle_bytes: 0,
            drops: [0; 3],
            last_drop: None,
            served_bytes: 0,
            periods: vec![OpenPeriod::default()],
        })
    }

    /// Returns the bytes that the link counts for a packet, with its per-packet overhead.
    fn charged_bytes(&self, packet: &SimPacket) -> u64 {
        let overhead = self.overhead_bytes.saturating_mul(towpath_net::Packet::packets(packet));
        u64::from(towpath_net::Packet::len_bytes(packet).saturating_add(overhead))
    }

    /// Notes the most frequent kind of drop since the last call.
    fn update_drops(&mut self, topology: &Topology<SimPacket>) {
        let mut sums = [0; 3];
        for counters in self.route_directions.iter().filter_map(|id| topology.counters(*id)) {
            let packets =
                [counters.loss, counters.queue_full, counters.mtu].map(|count| count.packets);
            for (sum, packets) in sums.iter_mut().zip(packets) {
                *sum += packets;
            }
            let [_, queue, _] = &mut sums;
            *queue += counters.aqm.packets;
        }
        let parts = [Part::AfterLoss, Part::AfterOverflow, Part::PacketSize];
        let new_drops = sums.iter().zip(self.drops).map(|(current, before)| current - before);
        let most_frequent = new_drops.zip(parts).max_by_key(|(new_drops, _)| *new_drops);
        if let Some((_, part)) = most_frequent.filter(|(new_drops, _)| *new_drops > 0) {
            self.last_drop = Some(part);
        }
        self.drops = sums;
    }
}

/// Returns the hop of a path's route at which its capacity is accounted for.
fn hop(through: &[usize], bottleneck: Option<usize>, side: usize) -> usize {
    let position = bottleneck.and_then(|index| through.iter().position(|other| *other == index));
    match (side, position) {
        (0, None) => 0,
        (0, Some(position)) => 1 + position,
        (_, None) => through.len(),
        (_, Some(position)) => through.len() - 1 - position,
    }
}

/// Arrived data of every connection, by sending host.
#[derive(Debug, Default)]
struct StreamTable {
    arrivals: Vec<StreamArrivals>,
    /// Index in `arrivals` by sending host and connection.
    indices: BTreeMap<(usize, ConnectionId), usize>,
    /// Cache of the last lookup: consecutive packets mostly belong to the same connection.
    last: Option<((usize, ConnectionId), usize)>,
}

impl StreamTable {
    fn entry(&mut self, key: (usize, ConnectionId)) -> Option<&mut StreamArrivals> {
        let index = match self.last {
            Some((last_key, index)) if last_key == key => index,
            _ => *self.indices.entry(key).or_insert(self.arrivals.len()),
        };
        self.last = Some((key, index));
        if index >= self.arrivals.len() {
            self.arrivals.resize_with(index + 1, StreamArrivals::default);
        }
        self.arrivals.get_mut(index)
    }
}

/// Returns the index of the period that contains `time`, counted from the start of the run.
fn period_of(time: Instant, period_ns: u64) -> usize {
    usize::try_from(time.as_nanos().saturating_sub(1) / period_ns).unwrap_or(usize::MAX)
}

/// Indexes of a link's ledger and of one of its periods.
type PeriodRef = (usize, usize);

/// Arrived data of one connection.
#[derive(Debug, Default)]
struct StreamArrivals {
    ranges: ByteRanges,
    /// Distinct bytes received.
    bytes: u64,
    /// Period in which the latest bytes are booked.
    last: PeriodRef,
    /// Data that arrived after a gap: its end, its new bytes, and the period in which they are
    /// booked.
    out_of_order: Vec<(u64, u64, PeriodRef)>,
    /// Length of `out_of_order` above which entries with a filled gap are removed.
    prune_threshold: usize,
}

impl StreamArrivals {
    /// Adds a packet's data; returns how many bytes are new.
    fn insert(&mut self, (start, end): (u64, u64), period: PeriodRef) -> u64 {
        let new_bytes = self.ranges.insert(start, end);
        self.bytes += new_bytes;
        self.last = period;
        let readable = self.ranges.readable();
        if readable >= end {
            if self.ranges.0.len() == 1 {
                self.out_of_order.clear();
            }
            return new_bytes;
        }
        match self.out_of_order.last_mut().filter(|last| last.0 == start && last.2 == period) {
            Some(last) => (last.0, last.1) = (end, last.1 + new_bytes),
            None => self.out_of_order.push((end, new_bytes, period)),
        }
        if self.out_of_order.len() > self.prune_threshold {
            self.out_of_order.retain(|(end, ..)| *end > readable);
            self.prune_threshold = self.out_of_order.len() * 2 + 64;
        }
        new_bytes
    }

    /// Returns all bytes beyond `read`, by the period in which they are booked. They wait for
    /// earlier data of the connection or, a few at the end, of a subflow.
    fn unread(&self, read: u64) -> Vec<(PeriodRef, u64)> {
        let readable = self.ranges.readable().min(read);
        let waiting = self.out_of_order.iter().filter(|(end, ..)| *end > readable);
        let mut unread: Vec<_> = waiting
            .map(|(end, new_bytes, period)| (*period, (*new_bytes).min(end - readable)))
            .collect();
        let unread_bytes: u64 = unread.iter().map(|(_, bytes)| bytes).sum();
        unread.push((self.last, self.bytes.saturating_sub(read.saturating_add(unread_bytes))));
        unread.retain(|(_, bytes)| *bytes > 0);
        unread
    }
}

/// Received byte ranges of a stream, sorted and disjoint.
#[derive(Debug, Default)]
struct ByteRanges(Vec<(u64, u64)>);

impl ByteRanges {
    /// Returns the length of the contiguous data from offset 0 on.
    fn readable(&self) -> u64 {
        self.0.first().filter(|(start, _)| *start == 0).map_or(0, |(_, end)| *end)
    }

    /// Adds `start..end`; returns how many bytes of it are new.
    fn insert(&mut self, start: u64, end: u64) -> u64 {
        match self.0.last_mut() {
            // The common case: data in order.
            Some(last) if last.1 == start => {
                last.1 = end;
                return end - start;
            }
            Some(last) if last.1 < start => {
                self.0.push((start, end));
                return end - start;
            }
            None => {
                self.0.push((start, end));
                return end - start;
            }
            Some(_) => {}
        }
        let from = self.0.partition_point(|(_, to)| *to < start);
        let to = self.0.partition_point(|(from, _)| *from <= end);
        let overlapping = self.0.get(from..to).unwrap_or_default();
        let known_bytes: u64 = overlapping
            .iter()
            .map(|(from, to)| (*to).min(end).saturating_sub((*from).max(start)))
            .sum();
        let merged_start = overlapping.first().map_or(start, |(from, _)| (*from).min(start));
        let merged_end = overlapping.last().map_or(end, |(_, to)| (*to).max(end));
        self.0.splice(from..to, [(merged_start, merged_end)]);
        (end - start).saturating_sub(known_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn data_waiting_for_a_gap_is_counted_on_its_arrival_path() {
        let mut arrivals = StreamArrivals::default();
        assert_eq!(arrivals.insert((0, 100), (0, 0)), 100);
        assert_eq!(arrivals.insert((200, 300), (1, 0)), 100);
        assert_eq!(arrivals.insert((300, 400), (1, 0)), 100);
        assert_eq!(arrivals.insert((500, 600), (1, 1)), 100);
        assert_eq!(arrivals.unread(100), [((1, 0), 200), ((1, 1), 100)]);
        assert_eq!(arrivals.insert((100, 200), (0, 2)), 100);
        assert_eq!(arrivals.unread(400), [((1, 1), 100)]);
        // The application has not read the last 10 readable bytes.
        assert_eq!(arrivals.unread(390), [((1, 0), 10), ((1, 1), 100)]);
        assert_eq!(arrivals.insert((400, 500), (0, 2)), 100);
        assert_eq!(arrivals.unread(600), []);
        assert_eq!(arrivals.unread(570), [((0, 2), 30)]);
    }

    proptest! {
        #[test]
        fn each_byte_is_new_once(ranges_to_insert in prop::collection::vec((0_u64..200, 1_u64..40), 1..60)) {
            let (mut ranges, mut model) = (ByteRanges::default(), BTreeSet::new());
            for (start, len) in ranges_to_insert {
                let new_bytes = (start..start + len).filter(|byte| model.insert(*byte)).count();
                prop_assert_eq!(ranges.insert(start, start + len), new_bytes as u64);
                let disjoint = ranges.0.windows(2).all(|pair| pair[0].1 < pair[1].0);
                prop_assert!(disjoint, "{:?}", ranges.0);
            }
        }
    }
}
