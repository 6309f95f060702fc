//! Classification of the bytes that links carried, per period, at the end of the run.
//!
//! Lost and duplicate bytes are known only when none of the bytes are in flight any more.

use towpath_net::topology::RouteId;
use towpath_result::accounting::{AccountedLink, CarriedBytes};

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
    pub(super) fn for_link(
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
    pub(super) fn served(&self, snapshot: &TrafficSnapshot) -> u64 {
        snapshot.directions.get(self.direction).map_or(0, |(_, served)| *served)
    }

    /// Returns the totals from link counters; values of subflows and applications are added
    /// elsewhere.
    pub(super) fn totals(&self, snapshot: &TrafficSnapshot) -> LinkTotals {
        let routes = self.routes.iter().filter_map(|route| snapshot.routes.get(*route));
        let (mut arrived, mut payload) = (0, 0);
        for RouteCounters { packets, bytes, payload_bytes } in routes {
            arrived += bytes + packets * self.overhead_bytes;
            payload += payload_bytes.get(self.protocol).copied().unwrap_or(0);
        }
        LinkTotals { served: self.served(snapshot), arrived, payload, ..LinkTotals::default() }
    }
}

/// Returns the part of each gap that never closes: the minimum over this total and all later ones.
///
/// A gap that closes later was in flight; the rest was lost or redundant.
pub(super) fn suffix_min(gaps: impl DoubleEndedIterator<Item = u64>) -> Vec<u64> {
    let mut minimum = u64::MAX;
    let mut minima: Vec<u64> = { gaps.rev() }
        .map(|gap| {
            minimum = minimum.min(gap);
            minimum
        })
        .collect();
    minima.reverse();
    minima
}

/// Classifies the bytes that the link carried between each total and the one before.
///
/// Bytes that arrived after the first `kept_periods` totals were in flight at their end. Without
/// later totals, up to `wire_bytes` (the link's bandwidth-delay product) count as in flight.
pub(super) fn classify_carried(
    totals: &[LinkTotals],
    (kept_periods, wire_bytes): (usize, u64),
    is_quic: bool,
) -> Vec<CarriedBytes> {
    let end = totals.len().saturating_sub(1);
    let lost = suffix_min(totals.iter().enumerate().map(|(index, total)| {
        let in_flight = if index == end && kept_periods >= totals.len() { wire_bytes } else { 0 };
        total.served.saturating_sub(total.arrived).saturating_sub(in_flight)
    }));
    let missing_payload = |without_out_of_order: bool| {
        suffix_min(totals.iter().enumerate().map(move |(index, total)| {
            let out_of_order =
                if without_out_of_order && index == end { total.out_of_order } else { 0 };
            total.payload.saturating_sub(total.received).saturating_sub(out_of_order)
        }))
    };
    let repeated = missing_payload(true);
    let behind_gaps: Vec<u64> = missing_payload(false)
        .iter()
        .zip(&repeated)
        .map(|(missing, repeated)| missing - repeated)
        .collect();
    let redundant: Vec<u64> = totals.iter().map(|total| total.redundant).collect();
    let waiting: Vec<u64> =
        totals.iter().zip(behind_gaps).map(|(total, bytes)| total.waiting + bytes).collect();
    let (mut previous, mut periods) = (LinkTotals::default(), Vec::new());
    let mut growth = GrowthTracker::default();
    for (index, total) in totals.iter().enumerate() {
        for (kind, series) in [&lost, &repeated, &redundant, &waiting].into_iter().enumerate() {
            growth.update(kind, series.get(index).copied().unwrap_or(0));
        }
        let served = total.served.saturating_sub(previous.served);
        let lost = growth.take(0, served);
        let arrived_bytes = served - lost;
        let arrived = total.arrived.saturating_sub(previous.arrived);
        let share = if arrived > 0 { (*total, previous) } else { (*total, LinkTotals::default()) };
        let payload = payload_share(arrived_bytes, share);
        let repeated = growth.take(1, payload);
        let redundant = growth.take(2, payload - repeated);
        let waiting = growth.take(3, payload - repeated - redundant);
        let delivered = payload - repeated - redundant - waiting;
        let mut carried = CarriedBytes {
            delivered,
            headers: arrived_bytes - payload,
            out_of_order: waiting,
            lost,
            spurious: repeated,
            ..CarriedBytes::default()
        };
        if is_quic {
            // In QUIC datagrams, repeats cannot be distinguished from other bytes around the
            // application's data.
            carried.headers += repeated + redundant + waiting;
            (carried.spurious, carried.out_of_order) = (0, 0);
        } else {
            carried.reinjected = redundant;
        }
        periods.push(carried);
        previous = *total;
    }
    if let Some((total, lost)) = totals.iter().zip(&lost).nth(kept_periods.saturating_sub(1)) {
        let in_flight = total.served.saturating_sub(total.arrived).saturating_sub(*lost);
        mark_in_flight(periods.get_mut(..kept_periods).unwrap_or_default(), in_flight);
    }
    periods
}

/// Marks the latest carried bytes as in flight at the end.
fn mark_in_flight(periods: &mut [CarriedBytes], mut in_flight_bytes: u64) {
    for carried in periods.iter_mut().rev() {
        for counted in [&mut carried.delivered, &mut carried.headers] {
            let part = in_flight_bytes.min(*counted);
            *counted -= part;
            carried.in_flight += part;
            in_flight_bytes -= part;
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
    fn update(&mut self, kind: usize, now: u64) {
        if let (Some(previous), Some(unattributed)) =
            (self.previous.get_mut(kind), self.unattributed.get_mut(kind))
        {
            *unattributed += now.saturating_sub(*previous);
            *previous = now;
        }
    }

    /// Attributes at most `max_bytes` of the growth; the rest carries over to the next period.
    fn take(&mut self, kind: usize, max_bytes: u64) -> u64 {
        let Some(unattributed) = self.unattributed.get_mut(kind) else { return 0 };
        let attributed = max_bytes.min(*unattributed);
        *unattributed -= attributed;
        attributed
    }
}

/// Returns the payload in `bytes` of a link, in proportion to the arrivals between two totals.
fn payload_share(bytes: u64, (now, previous): (LinkTotals, LinkTotals)) -> u64 {
    let arrived = u128::from(now.arrived.saturating_sub(previous.arrived));
    let payload = u128::from(now.payload.saturating_sub(previous.payload));
    if arrived == 0 {
        return 0;
    }
    u64::try_from(u128::from(bytes) * payload / arrived).unwrap_or(bytes).min(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn total(served: u64, arrived: u64, received: u64, redundant: u64) -> LinkTotals {
        let payload = arrived * 9 / 10;
        LinkTotals { served, arrived, payload, received, redundant, ..LinkTotals::default() }
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
        let same_path = [total(1_000, 1_000, 900, 0), total(2_000, 2_000, 1_700, 0)];
        let other_path = [total(1_000, 1_000, 900, 0), total(2_000, 2_000, 1_800, 100)];
        let [_, carried] = classify_carried(&same_path, (2, 0), false)[..] else { panic!() };
        assert_eq!((carried.delivered, carried.spurious, carried.reinjected), (800, 100, 0));
        let [_, carried] = classify_carried(&other_path, (2, 0), false)[..] else { panic!() };
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
        let in_flight_and_lost: Vec<_> = carried.iter().map(|c| (c.in_flight, c.lost)).collect();
        assert_eq!(in_flight_and_lost, [(0, 0), (200, 100), (0, 0)]);
        assert_eq!(carried.iter().map(sum).collect::<Vec<_>>(), [1_000, 1_000, 0]);
    }

    #[test]
    fn without_samples_after_the_end_outstanding_data_is_in_flight() {
        // 300 are always in flight; 100 were lost.
        let totals = [total(1_000, 700, 630, 0), total(2_000, 1_600, 1_440, 0)];
        let carried = classify_carried(&totals, (2, 300), false);
        let in_flight_and_lost: Vec<_> = carried.iter().map(|c| (c.in_flight, c.lost)).collect();
        assert_eq!(in_flight_and_lost, [(0, 100), (300, 0)]);
    }

    #[test]
    fn data_buffered_at_the_end_is_neither_delivered_nor_wasted() {
        let last_total =
            LinkTotals { out_of_order: 400, waiting: 100, ..total(2_000, 2_000, 1_400, 0) };
        let totals = [total(1_000, 1_000, 900, 0), last_total];
        let [first, last] = classify_carried(&totals, (2, 0), false)[..] else { panic!() };
        assert_eq!((first.out_of_order, last.out_of_order), (0, 500));
        assert_eq!((last.delivered, last.spurious + last.reinjected), (400, 0));
    }

    #[test]
    fn the_parts_sum_to_the_served_bytes_for_any_counters() {
        let mut seed = 1_u64;
        let mut draw = |limit: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % limit
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
            for kept_periods in [0, 1, 250, 501] {
                let sum_of_parts: u64 =
                    classify_carried(&totals, (kept_periods, 700), is_quic).iter().map(sum).sum();
                assert_eq!(sum_of_parts, totals.last().unwrap().served);
            }
        }
    }
}
