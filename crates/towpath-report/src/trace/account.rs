//! Capacity accounting from a capture: the load of each path, and the limits of its senders.
//!
//! Link rates are unknown here, so the capacity is estimated.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use towpath_measure::account::{
    BufferSizes, CarriedBytes, EstimateInputs, IdleCause, ObservedPeriod, Period, WeightedCauses,
    combine_causes, estimated_account, total_weight,
};
use towpath_measure::result::{
    Account, AccountSummary, CapturePoint, CapturedConnection, CapturedDirection, Part,
};
use towpath_measure::scenario::{DataDirection, Transport};

use super::CaptureAnalysis;
use super::connection::{TracedConnection, TracedSubflow};
use super::send_limits::{STATES, SenderBin};
use super::summary::{DIRECTIONS, path};

/// A direction with less than this share of all payload carries only acknowledgements or replies.
const MIN_PAYLOAD_SHARE: f64 = 0.01;

/// Minimum excess over the shortest round trip for a queue; at least a quarter of the shortest.
const MIN_QUEUE_DELAY_NS: u64 = 5_000_000;

/// Maximum number of periods; beyond that, periods become longer.
const MAX_PERIODS: u64 = 8_192;

/// Index of a path, and a direction of it.
type PathDirection = (usize, DataDirection);

/// Data collected from all connections.
#[derive(Debug, Default)]
struct AccountBuilder {
    names: Vec<String>,
    /// Periods of each path and direction, by number.
    periods: BTreeMap<PathDirection, BTreeMap<u64, PathPeriod>>,
    /// Bytes carried in each of the shortest possible periods.
    bytes_per_bin: BTreeMap<PathDirection, BTreeMap<u64, u64>>,
    longest_rtt: Duration,
    /// Capture points: true for the receiver, false for the sender.
    capture_points: BTreeSet<bool>,
}

/// One path, direction and period.
#[derive(Debug, Default)]
struct PathPeriod {
    carried: CarriedBytes,
    reasons: WeightedCauses,
    /// True if round trips indicate a queue.
    has_queue: bool,
    /// Rate of the fastest packet train, in bit/s.
    train_bps: u64,
}

impl CaptureAnalysis {
    /// Returns the accounting of all connections in periods of `sample_ns`; `None` as summary
    /// without data.
    pub(super) fn account(&self, sample_ns: u64) -> (Vec<Account>, Option<AccountSummary>) {
        let mut builder = AccountBuilder::default();
        // Shortest period that all series have.
        let moment_ns = self.shortest_ns();
        let sample_ns = self.bounded_period_ns(sample_ns.max(moment_ns));
        for captured in &self.connections {
            let Some(connection) = self.connection(captured) else { continue };
            for (side, way) in captured.directions.iter().enumerate() {
                if way.bytes > 0 {
                    self.add_direction(
                        &mut builder,
                        (captured, connection, side, way),
                        (sample_ns, moment_ns),
                    );
                }
            }
        }
        builder.drop_ack_only();
        let multipath = self.connections.iter().any(|connection| connection.multipath);
        let transport = if multipath { Transport::Mptcp } else { Transport::Tcp };
        let from = match builder.capture_points.iter().collect::<Vec<_>>()[..] {
            [true] => "the fastest packets that arrived",
            [false] => "the fastest packets that were acknowledged",
            _ => "the fastest packets that arrived or were acknowledged",
        };
        let none = BTreeMap::new();
        let links = { builder.periods.iter() }
            .map(|(direction, periods)| {
                let moments = builder.bytes_per_bin.get(direction).unwrap_or(&none);
                (*direction, observed_periods((periods, moments), (sample_ns, moment_ns)))
            })
            .collect();
        let sizes = BufferSizes::default();
        let (paths, longest_rtt) = (&builder.names, builder.longest_rtt);
        estimated_account(
            &EstimateInputs { paths, transport, sizes, longest_rtt, source: from },
            &links,
        )
    }

    /// Lengthens the period until at most [`MAX_PERIODS`] cover the capture.
    fn bounded_period_ns(&self, mut sample_ns: u64) -> u64 {
        let first = self.connections.iter().map(|one| one.first_ns).min().unwrap_or(0);
        let last = self.connections.iter().map(|one| one.last_ns).max().unwrap_or(0);
        while last.saturating_sub(first) / sample_ns.max(1) > MAX_PERIODS {
            sample_ns = sample_ns.saturating_mul(2);
        }
        sample_ns
    }

    fn shortest_ns(&self) -> u64 {
        let ways = self.tracker.subflows.iter().flat_map(|subflow| &subflow.directions);
        ways.map(|direction| direction.sender.series.width_ns())
            .max()
            .unwrap_or(0)
            .max(super::stats::INITIAL_BIN_NS)
    }

    fn add_direction(
        &self,
        builder: &mut AccountBuilder,
        (captured, connection, side, way): (
            &CapturedConnection,
            &TracedConnection,
            usize,
            &CapturedDirection,
        ),
        (sample_ns, moment_ns): (u64, u64),
    ) {
        let at_receiver = way.capture_point == CapturePoint::Receiver;
        builder.capture_points.insert(at_receiver);
        let subflows: Vec<&TracedSubflow> = self.tracker.of(connection).collect();
        let sums = |of: fn(&SenderBin) -> u64| -> u64 {
            let slots = subflows.iter().filter_map(|subflow| subflow.directions.get(side));
            slots.flat_map(|way| bins(way, sample_ns)).map(|(_, slot)| of(&slot)).sum()
        };
        // Share of the reinjected data that was needless, because it arrived twice.
        let delivered_bytes =
            if at_receiver { sums(|slot| slot.new_bytes) } else { sums(|slot| slot.acked_bytes) };
        let needless = delivered_bytes.saturating_sub(way.bytes);
        let copied = sums(|slot| slot.reinjected_bytes);
        let needless_share = (needless as f64 / copied.max(1) as f64).min(1.0);
        let direction = DIRECTIONS.get(side).copied().unwrap_or(DataDirection::Up);
        let names: Vec<usize> =
            subflows.iter().map(|subflow| builder.path_index(path(self, subflow))).collect();
        let last = captured.last_ns / sample_ns;
        for (subflow, name) in subflows.iter().zip(&names) {
            let Some(own) = subflow.directions.get(side) else { continue };
            let srtt = Duration::from_micros(own.flight.srtt_us().into());
            let rtt = subflow.established_ns.zip(subflow.syn_ns);
            let rtt = rtt.map_or(0, |(end, syn)| end.saturating_sub(syn));
            builder.longest_rtt = builder.longest_rtt.max(Duration::from_nanos(rtt));
            if !at_receiver {
                builder.longest_rtt = builder.longest_rtt.max(srtt);
            }
            let periods = builder.periods.entry((*name, direction)).or_default();
            for (number, slot) in bins(own, sample_ns) {
                let entry = periods.entry(number).or_default();
                entry.add(&slot, (at_receiver, needless_share));
                entry.reasons.extend(reasons(&slot, at_receiver, &names, sample_ns));
            }
            if let Some(shortest) = own.flight.samples.min().filter(|_| !at_receiver) {
                for (number, bin) in own.series.bins(sample_ns) {
                    let longer = (u64::from(bin.srtt_us) * 1_000).saturating_sub(shortest);
                    let entry = periods.entry(number).or_default();
                    entry.has_queue |= longer >= MIN_QUEUE_DELAY_NS.max(shortest / 4);
                }
            }
            let moments = builder.bytes_per_bin.entry((*name, direction)).or_default();
            for (number, slot) in bins(own, moment_ns) {
                let mut one = PathPeriod::default();
                one.add(&slot, (at_receiver, needless_share));
                *moments.entry(number).or_default() += one.carried.sum();
            }
        }
        // A path without a subflow cannot carry data, although its connection exists.
        for (subflow, name) in subflows.iter().zip(&names).filter(|_| subflows.len() > 1) {
            let periods = builder.periods.entry((*name, direction)).or_default();
            let end_ns = [subflow.reset_ns, subflow.fin_ns].into_iter().flatten().min();
            let end = end_ns.map_or(last, |end| end / sample_ns);
            let begin = subflow.first_ns / sample_ns;
            for number in (captured.first_ns / sample_ns)..=last {
                let part = if number < begin || number > end { Part::NoSubflow } else { continue };
                let entry = periods.entry(number).or_default();
                if entry.reasons.is_empty() {
                    entry.reasons.push((part.into(), 1.0));
                }
            }
        }
    }
}

/// Returns the activity of a subflow's direction in each period, bounded to plausible values. An
/// acknowledgement in a capture may claim any number of bytes, and sums of periods must not
/// overflow.
fn bins(
    direction: &super::direction::DirectionTracker,
    width_ns: u64,
) -> impl Iterator<Item = (u64, SenderBin)> {
    const MAX_BIN_BYTES: u64 = 1 << 44;
    direction.sender.series.bins(width_ns).into_iter().map(|(number, slot)| {
        let mut bounded = slot;
        for bytes in [
            &mut bounded.acked_bytes,
            &mut bounded.new_bytes,
            &mut bounded.header_bytes,
            &mut bounded.reinjected_bytes,
            &mut bounded.retrans_bytes,
            &mut bounded.spurious_bytes,
        ] {
            *bytes = (*bytes).min(MAX_BIN_BYTES);
        }
        (number, bounded)
    })
}

impl AccountBuilder {
    fn path_index(&mut self, name: String) -> usize {
        let known = self.names.iter().position(|known| *known == name);
        known.unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        })
    }

    /// Drops directions that carry almost only acknowledgements.
    fn drop_ack_only(&mut self) {
        let payload = |periods: &BTreeMap<u64, PathPeriod>| -> u64 {
            periods.values().map(|entry| entry.carried.delivered).sum()
        };
        let all: u64 = self.periods.values().map(payload).sum();
        self.periods.retain(|_, periods| payload(periods) as f64 >= all as f64 * MIN_PAYLOAD_SHARE);
    }
}

impl PathPeriod {
    fn add(&mut self, slot: &SenderBin, (at_receiver, in_vain): (bool, f64)) {
        let delivered_bytes = if at_receiver { slot.new_bytes } else { slot.acked_bytes };
        let reinjected = ((slot.reinjected_bytes as f64 * in_vain) as u64).min(delivered_bytes);
        self.carried.delivered += delivered_bytes - reinjected;
        self.carried.reinjected += reinjected;
        self.carried.spurious += if at_receiver { slot.retrans_bytes } else { slot.spurious_bytes };
        self.carried.headers += slot.header_bytes;
        self.train_bps =
            self.train_bps.max(if at_receiver { slot.new_bps } else { slot.acked_bps });
    }
}

/// Returns the causes of a subflow's idle time, each as a share of the period.
fn reasons(slot: &SenderBin, at_receiver: bool, names: &[usize], sample_ns: u64) -> WeightedCauses {
    let states = if at_receiver { &slot.at_receiver_us } else { &slot.at_sender_us };
    let waits_for = slot.blocked_by.and_then(|number| names.get(usize::from(number))).copied();
    let share = |us: u32| f64::from(us) * 1e3 / sample_ns.max(1) as f64;
    let each = STATES.iter().zip(states).filter(|(_, us)| **us > 0);
    each.map(|(part, us)| {
        let waits_for = waits_for.filter(|_| *part == Part::HeadOfLineBlocking);
        (IdleCause { part: *part, waits_for }, share(*us))
    })
    .collect()
}

/// Returns all periods of a path, without gaps.
fn observed_periods(
    (periods, moments): (&BTreeMap<u64, PathPeriod>, &BTreeMap<u64, u64>),
    (sample_ns, moment_ns): (u64, u64),
) -> Vec<ObservedPeriod> {
    let Some((first, last)) = periods.first_key_value().zip(periods.last_key_value()) else {
        return Vec::new();
    };
    let nothing = PathPeriod::default();
    let mut all = Vec::new();
    for number in *first.0..=*last.0 {
        let entry = periods.get(&number).unwrap_or(&nothing);
        let begin = number.saturating_mul(sample_ns);
        let within = begin / moment_ns..begin.saturating_add(sample_ns) / moment_ns;
        // Two consecutive moments.
        let most = moments.range(within).map(|(at, bytes)| {
            let before = at.checked_sub(1).and_then(|before| moments.get(&before));
            bytes + before.copied().unwrap_or(0)
        });
        let bits = u128::from(most.max().unwrap_or(0)) * 8_000_000_000;
        let peak_bps = u64::try_from(bits / (u128::from(moment_ns) * 2).max(1)).unwrap_or(u64::MAX);
        // Train rates count payload only, so headers are added.
        let payload = entry.carried.sum().saturating_sub(entry.carried.headers).max(1);
        let train_bps = entry.train_bps as f64 * entry.carried.sum() as f64 / payload as f64;
        let peak_bps = peak_bps.max(train_bps as u64);
        let limits = limits(&combine_causes(&[&entry.reasons], false), sample_ns);
        let (t_ns, span_ns) = ((number + 1).saturating_mul(sample_ns), sample_ns);
        let period =
            Period { t_ns, span_ns, carried: entry.carried, partial_packet_bytes: 0, limits };
        all.push(ObservedPeriod { period, peak_bps, is_saturated: entry.has_queue });
    }
    all
}

fn limits(reasons: &WeightedCauses, span_ns: u64) -> BTreeMap<IdleCause, u64> {
    let all = total_weight(reasons);
    let mut limits: BTreeMap<IdleCause, u64> = BTreeMap::new();
    for (why, weight) in reasons.iter().filter(|_| all > 0.0) {
        *limits.entry(*why).or_default() += (weight / all * span_ns as f64) as u64;
    }
    limits
}
