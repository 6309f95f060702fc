//! Classification of the bytes that links carried, per period, at the end of the run.
//!
//! Lost and duplicate bytes are known only when none of the bytes are in flight any more.

use towpath_measure::account::{AccountedLink, CarriedBytes};
use towpath_net::topology::RouteId;

use crate::emulator::engine::{RouteCounters, TrafficSnapshot};
use crate::network::EmulatedNetwork;

/// Totals at the end of a period, in bytes since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct LinkTotals {
    /// Bytes that the link has served, by the link's own count.
    pub(super) served: u64,
    /// Bytes that arrived at the link's end, by the same count.
    pub(super) arrived: u64,
    /// Payload bytes within `arrived`.
    pub(super) payload: u64,
    /// Payload that subflows received in order.
    pub(super) received: u64,
    /// Part of `received` that another path had delivered before.
    pub(super) redundant: u64,
    /// Part of `received` that waits for data of other paths at the end.
    pub(super) waiting: u64,
    /// Payload that waits for a gap on its own subflow at the end; not part of `received`.
    pub(super) out_of_order: u64,
}

/// Indices of the counters that belong to a link.
#[derive(Debug)]
pub(super) struct LinkCounterIds {
    direction: usize,
    routes: Vec<usize>,
    overhead_bytes: u64,
    /// Index into the payloads of [`RouteCounters`]: 1 for QUIC, else 0.
    protocol: usize,
}

impl LinkCounterIds {
    pub(super) fn of(
        network: &EmulatedNetwork,
        link: &AccountedLink,
        is_quic: bool,
    ) -> Option<Self> {
        let (direction, routes) = network.accounted_routes(link)?;
        Some(Self {
            direction: direction.index(),
            routes: routes.into_iter().map(RouteId::index).collect(),
            overhead_bytes: network.overhead_bytes(link).into(),
            protocol: usize::from(is_quic),
        })
    }

    /// Returns the bytes that the link has served.
    pub(super) fn served(&self, watched: &TrafficSnapshot) -> u64 {
        watched.directions.get(self.direction).map_or(0, |(_, served)| *served)
    }

    /// Returns the totals from link counters; values of subflows and applications are added
    /// elsewhere.
    pub(super) fn totals(&self, watched: &TrafficSnapshot) -> LinkTotals {
        let routes = self.routes.iter().filter_map(|route| watched.routes.get(*route));
        let (mut arrived, mut payload) = (0, 0);
        for RouteCounters { packets, bytes, payload_bytes } in routes {
            arrived += bytes + packets * self.overhead_bytes;
            payload += payload_bytes.get(self.protocol).copied().unwrap_or(0);
        }
        LinkTotals { served: self.served(watched), arrived, payload, ..LinkTotals::default() }
    }
}

/// Returns the part of each gap that never closes: the minimum over this total and all later ones.
///
/// A gap that closes later was in flight; the rest was lost or redundant.
pub(super) fn suffix_min(behind: impl DoubleEndedIterator<Item = u64>) -> Vec<u64> {
    let mut least = u64::MAX;
    let mut all: Vec<u64> = { behind.rev() }
        .map(|gap| {
            least = least.min(gap);
            least
        })
        .collect();
    all.reverse();
    all
}

/// Classifies the bytes that the link carried between each total and the one before.
///
/// Bytes that arrived after the first `kept` totals were in flight at their end. Without later
/// totals, up to `wire_bytes` (the link's bandwidth-delay product) count as in flight.
pub(super) fn classify_carried(
    totals: &[LinkTotals],
    (kept, wire_bytes): (usize, u64),
    is_quic: bool,
) -> Vec<CarriedBytes> {
    let end = totals.len().saturating_sub(1);
    let lost = suffix_min(totals.iter().enumerate().map(|(index, total)| {
        let in_flight = if index == end && kept >= totals.len() { wire_bytes } else { 0 };
        total.served.saturating_sub(total.arrived).saturating_sub(in_flight)
    }));
    let missing = |waiting: bool| {
        suffix_min(totals.iter().enumerate().map(move |(index, total)| {
            let waits = if waiting && index == end { total.out_of_order } else { 0 };
            total.payload.saturating_sub(total.received).saturating_sub(waits)
        }))
    };
    let repeated = missing(true);
    let behind: Vec<u64> =
        missing(false).iter().zip(&repeated).map(|(all, repeated)| all - repeated).collect();
    let needless: Vec<u64> = totals.iter().map(|total| total.redundant).collect();
    let waiting: Vec<u64> =
        totals.iter().zip(behind).map(|(total, behind)| total.waiting + behind).collect();
    let (mut before, mut all) = (LinkTotals::default(), Vec::new());
    let mut grown = GrowthTracker::default();
    for (at, total) in totals.iter().enumerate() {
        for (slot, series) in [&lost, &repeated, &needless, &waiting].into_iter().enumerate() {
            grown.update(slot, series.get(at).copied().unwrap_or(0));
        }
        let served = total.served.saturating_sub(before.served);
        let lost = grown.take(0, served);
        let left = served - lost;
        let arrived = total.arrived.saturating_sub(before.arrived);
        let share = if arrived > 0 { (*total, before) } else { (*total, LinkTotals::default()) };
        let payload = payload_share(left, share);
        let repeated = grown.take(1, payload);
        let needless = grown.take(2, payload - repeated);
        let waiting = grown.take(3, payload - repeated - needless);
        let delivered = payload - repeated - needless - waiting;
        let mut carried = CarriedBytes {
            delivered,
            headers: left - payload,
            out_of_order: waiting,
            lost,
            spurious: repeated,
            ..CarriedBytes::default()
        };
        if is_quic {
            // In QUIC datagrams, repeats cannot be distinguished from other bytes around the
            // application's data.
            carried.headers += repeated + needless + waiting;
            (carried.spurious, carried.out_of_order) = (0, 0);
        } else {
            carried.reinjected = needless;
        }
        all.push(carried);
        before = *total;
    }
    if let Some((total, lost)) = totals.iter().zip(&lost).nth(kept.saturating_sub(1)) {
        let missing = total.served.saturating_sub(total.arrived);
        mark_in_flight(all.get_mut(..kept).unwrap_or_default(), missing.saturating_sub(*lost));
    }
    all
}

/// Marks the latest carried bytes as in flight at the end.
fn mark_in_flight(all: &mut [CarriedBytes], mut on_its_way: u64) {
    for carried in all.iter_mut().rev() {
        for own in [&mut carried.delivered, &mut carried.headers] {
            let part = on_its_way.min(*own);
            *own -= part;
            carried.in_flight += part;
            on_its_way -= part;
        }
    }
}

/// Growth of several totals, and the part of it that is not attributed yet.
#[derive(Debug, Default)]
struct GrowthTracker {
    previous: [u64; 4],
    unattributed: [u64; 4],
}

impl GrowthTracker {
    fn update(&mut self, slot: usize, now: u64) {
        if let (Some(old), Some(owed)) =
            (self.previous.get_mut(slot), self.unattributed.get_mut(slot))
        {
            *owed += now.saturating_sub(*old);
            *old = now;
        }
    }

    /// Takes at most `there` bytes of the growth; the rest carries over to the next period.
    fn take(&mut self, slot: usize, there: u64) -> u64 {
        let Some(owed) = self.unattributed.get_mut(slot) else { return 0 };
        let taken = there.min(*owed);
        *owed -= taken;
        taken
    }
}

/// Returns the payload in `bytes` of a link, in proportion to the arrivals between two totals.
fn payload_share(bytes: u64, (now, before): (LinkTotals, LinkTotals)) -> u64 {
    let arrived = u128::from(now.arrived.saturating_sub(before.arrived));
    let payload = u128::from(now.payload.saturating_sub(before.payload));
    if arrived == 0 {
        return 0;
    }
    u64::try_from(u128::from(bytes) * payload / arrived).unwrap_or(bytes).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(served: u64, arrived: u64, received: u64, needless: u64) -> LinkTotals {
        let payload = arrived * 9 / 10;
        LinkTotals {
            served,
            arrived,
            payload,
            received,
            redundant: needless,
            ..LinkTotals::default()
        }
    }

    fn sum(carried: &CarriedBytes) -> u64 {
        carried.sum()
    }

    #[test]
    fn data_waiting_for_a_gap_is_not_wasted() {
        // 900 bytes wait for a gap in the first sample; in the second it is filled.
        let totals = [total(1_000, 1_000, 0, 0), total(2_000, 2_000, 1_800, 0)];
        let carried = classify_carried(&totals, (totals.len(), 0), false);
        assert_eq!(carried.iter().map(|c| c.delivered).collect::<Vec<_>>(), [900, 900]);
        assert_eq!(carried.iter().map(|c| c.spurious + c.reinjected).sum::<u64>(), 0);
    }

    #[test]
    fn duplicates_are_classified_by_the_path_of_the_first_copy() {
        let same = [total(1_000, 1_000, 900, 0), total(2_000, 2_000, 1_700, 0)];
        let other = [total(1_000, 1_000, 900, 0), total(2_000, 2_000, 1_800, 100)];
        let [_, carried] = classify_carried(&same, (2, 0), false)[..] else { panic!() };
        assert_eq!((carried.delivered, carried.spurious, carried.reinjected), (800, 100, 0));
        let [_, carried] = classify_carried(&other, (2, 0), false)[..] else { panic!() };
        assert_eq!((carried.delivered, carried.spurious, carried.reinjected), (800, 0, 100));
    }

    #[test]
    fn in_flight_data_is_lost_only_if_it_never_arrives() {
        let totals = [
            total(1_000, 500, 450, 0),
            total(2_000, 1_700, 1_530, 0), // 300 were cut off in flight
            total(3_000, 2_700, 2_430, 0),
        ];
        let carried = classify_carried(&totals, (totals.len(), 0), false);
        assert_eq!(carried.iter().map(|c| c.lost).collect::<Vec<_>>(), [300, 0, 0]);
        assert_eq!(carried.iter().map(sum).collect::<Vec<_>>(), [1_000, 1_000, 1_000]);
    }

    #[test]
    fn data_that_arrives_after_the_end_was_in_flight() {
        let totals = [
            total(1_000, 1_000, 900, 0),
            total(2_000, 1_700, 1_530, 0), // the end; 100 of the 300 are lost
            total(2_000, 1_900, 1_710, 0),
        ];
        let carried = classify_carried(&totals, (2, 0), false);
        let both: Vec<_> = carried.iter().map(|c| (c.in_flight, c.lost)).collect();
        assert_eq!(both, [(0, 0), (200, 100), (0, 0)]);
        assert_eq!(carried.iter().map(sum).collect::<Vec<_>>(), [1_000, 1_000, 0]);
    }

    #[test]
    fn without_samples_after_the_end_outstanding_data_is_in_flight() {
        // 300 are always in flight; 100 were lost.
        let totals = [total(1_000, 700, 630, 0), total(2_000, 1_600, 1_440, 0)];
        let carried = classify_carried(&totals, (2, 300), false);
        let both: Vec<_> = carried.iter().map(|c| (c.in_flight, c.lost)).collect();
        assert_eq!(both, [(0, 100), (300, 0)]);
    }

    #[test]
    fn data_buffered_at_the_end_is_neither_delivered_nor_wasted() {
        let waits = LinkTotals { out_of_order: 400, waiting: 100, ..total(2_000, 2_000, 1_400, 0) };
        let totals = [total(1_000, 1_000, 900, 0), waits];
        let [first, last] = classify_carried(&totals, (2, 0), false)[..] else { panic!() };
        assert_eq!((first.out_of_order, last.out_of_order), (0, 500));
        assert_eq!((last.delivered, last.spurious + last.reinjected), (400, 0));
    }

    #[test]
    fn the_parts_sum_to_the_served_bytes_for_any_counters() {
        let mut seed = 1_u64;
        let mut draw = |most: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % most
        };
        let mut totals = vec![LinkTotals::default()];
        for _ in 0..500 {
            let mut next = totals.last().copied().unwrap();
            next.served += draw(2_000);
            next.arrived += draw(2_000);
            next.payload += draw(1_900);
            next.received += draw(1_900);
            next.redundant += draw(900);
            next.waiting = draw(3_000);
            next.out_of_order = draw(3_000);
            totals.push(next);
        }
        for is_quic in [false, true] {
            for kept in [0, 1, 250, 501] {
                let all: u64 =
                    classify_carried(&totals, (kept, 700), is_quic).iter().map(sum).sum();
                assert_eq!(all, totals.last().unwrap().served);
            }
        }
    }
}
