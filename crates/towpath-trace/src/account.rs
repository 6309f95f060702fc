//! Capacity accounting from a capture: the load of each path, and the limits of its senders.
//!
//! Link rates are unknown here, so the capacity is estimated.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use towpath_result::accounting::{
    BufferSizes, CarriedBytes, EstimateInputs, IdleCause, ObservedPeriod, Period, WeightedCauses,
    combine_causes, estimated_account, total_weight,
};
use towpath_result::{
    Account, AccountSummary, CapturePoint, CapturedConnection, CapturedDirection, Part,
};
use towpath_scenario::{DataDirection, Transport};

use super::CaptureAnalysis;
use super::connection::{TracedConnection, TracedSubflow};
use super::direction::DirectionTracker;
use super::send_limits::{STATES, SenderBin};
use super::summary::{DIRECTIONS, path_name};

/// A direction with less than this share of all payload carries only acknowledgements or replies.
const MIN_PAYLOAD_SHARE: f64 = 0.01;

/// Minimum excess over the shortest round trip that counts as a queue. If a quarter of the shortest
/// round trip is longer, that is the limit.
const MIN_QUEUE_DELAY_NS: u64 = 5_000_000;

/// Maximum number of periods; beyond that, periods become longer.
const MAX_PERIODS: u64 = 8_192;

/// Index of a path, and a direction of it.
type PathDirection = (usize, DataDirection);

/// Data collected from all connections.
#[derive(Debug, Default)]
struct AccountBuilder {
    names: Vec<String>,
    /// Index of each name. Only for lookups, never iterated.
    indices: HashMap<String, usize>,
    /// Payload that arrived on each path and direction.
    delivered_bytes: BTreeMap<PathDirection, u64>,
    /// Periods of each path and direction, by number.
    periods: BTreeMap<PathDirection, BTreeMap<u64, PathPeriod>>,
    /// Bytes carried in each bin of [`CaptureAnalysis::min_bin_ns`].
    bytes_per_bin: BTreeMap<PathDirection, BTreeMap<u64, u64>>,
    longest_rtt: Duration,
    /// Capture points: true for the receiver, false for the sender.
    capture_points: BTreeSet<bool>,
}

/// One direction of a connection with data, and its subflows.
#[derive(Debug)]
struct AccountedDirection<'a> {
    captured: &'a CapturedConnection,
    direction: DataDirection,
    /// Subflows with their trackers of this direction.
    subflows: Vec<(&'a TracedSubflow, &'a DirectionTracker)>,
    /// Index of the path of each subflow.
    path_indices: Vec<usize>,
    at_receiver: bool,
    /// Share of the reinjected data that was needless, because it arrived twice.
    needless_share: f64,
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
        // All series have bins of this width.
        let bin_ns = self.min_bin_ns();
        let sample_ns = self.bounded_period_ns(sample_ns.max(bin_ns));
        let mut directions = Vec::new();
        for captured in &self.connections {
            let Some(connection) = self.connection(captured) else { continue };
            if connection.cut.is_some() {
                continue; // windows and data numbers are unknown
            }
            if captured.leaves_undecided("rtt") {
                continue; // delays between two places explain nothing
            }
            for (side, captured_direction) in captured.directions.iter().enumerate() {
                if captured_direction.bytes > 0 {
                    let of_side = (captured, connection, side, captured_direction);
                    directions.push(self.accounted_direction(&mut builder, of_side, sample_ns));
                }
            }
        }
        builder.drop_ack_only();
        for direction in &directions {
            builder.add_periods(direction, (sample_ns, bin_ns));
            builder.add_missing_subflows(direction, sample_ns);
        }
        let multipath = self.connections.iter().any(|connection| connection.multipath);
        let transport = if multipath { Transport::Mptcp } else { Transport::Tcp };
        let source = match builder.capture_points.iter().collect::<Vec<_>>()[..] {
            [true] => "the fastest packets that arrived",
            [false] => "the fastest packets that were acknowledged",
            _ => "the fastest packets that arrived or were acknowledged",
        };
        let no_bins = BTreeMap::new();
        let links = { builder.periods.iter() }
            .map(|(direction, periods)| {
                let bins_of_direction = builder.bytes_per_bin.get(direction).unwrap_or(&no_bins);
                (*direction, observed_periods((periods, bins_of_direction), (sample_ns, bin_ns)))
            })
            .collect();
        let sizes = BufferSizes::default();
        let (paths, longest_rtt) = (&builder.names, builder.longest_rtt);
        estimated_account(&EstimateInputs { paths, transport, sizes, longest_rtt, source }, &links)
    }

    /// Lengthens the period until at most [`MAX_PERIODS`] cover the capture.
    fn bounded_period_ns(&self, mut sample_ns: u64) -> u64 {
        let first_ns = self.connections.iter().map(|c| c.first_ns).min().unwrap_or(0);
        let last_ns = self.connections.iter().map(|c| c.last_ns).max().unwrap_or(0);
        while last_ns.saturating_sub(first_ns) / sample_ns.max(1) > MAX_PERIODS {
            sample_ns = sample_ns.saturating_mul(2);
        }
        sample_ns
    }

    fn min_bin_ns(&self) -> u64 {
        let directions = self.tracker.subflows.iter().flat_map(|subflow| &subflow.directions);
        directions
            .map(|direction| direction.sender.series.width_ns())
            .max()
            .unwrap_or(0)
            .max(super::stats::INITIAL_BIN_NS)
    }

    /// Adds the totals of one direction of a connection.
    fn accounted_direction<'a>(
        &'a self,
        builder: &mut AccountBuilder,
        (captured, connection, side, captured_direction): (
            &'a CapturedConnection,
            &'a TracedConnection,
            usize,
            &CapturedDirection,
        ),
        sample_ns: u64,
    ) -> AccountedDirection<'a> {
        let at_receiver = captured_direction.capture_point == CapturePoint::Receiver;
        builder.capture_points.insert(at_receiver);
        let subflows: Vec<(&TracedSubflow, &DirectionTracker)> = { &self.tracker }
            .subflows_of(connection)
            .filter_map(|subflow| Some((subflow, subflow.directions.get(side)?)))
            .collect();
        let sum_of = |bytes_of: fn(&SenderBin) -> u64| -> u64 {
            let all_bins = subflows.iter().flat_map(|(_, tracked)| bins(tracked, sample_ns));
            all_bins.map(|(_, bin)| bytes_of(&bin)).sum()
        };
        let delivered_bytes =
            if at_receiver { sum_of(|bin| bin.new_bytes) } else { sum_of(|bin| bin.acked_bytes) };
        let needless_bytes = delivered_bytes.saturating_sub(captured_direction.bytes);
        let reinjected_bytes = sum_of(|bin| bin.reinjected_bytes);
        let needless_share = (needless_bytes as f64 / reinjected_bytes.max(1) as f64).min(1.0);
        let direction = DIRECTIONS.get(side).copied().unwrap_or(DataDirection::Up);
        let path_indices: Vec<usize> = { subflows.iter() }
            .map(|(subflow, _)| builder.path_index(path_name(self, subflow)))
            .collect();
        for ((subflow, tracked), path_index) in subflows.iter().zip(&path_indices) {
            let srtt = Duration::from_micros(tracked.flight.srtt_us().into());
            let rtt = subflow.established_ns.zip(subflow.syn_ns);
            let rtt = rtt.map_or(0, |(end, syn)| end.saturating_sub(syn));
            builder.longest_rtt = builder.longest_rtt.max(Duration::from_nanos(rtt));
            if !at_receiver {
                builder.longest_rtt = builder.longest_rtt.max(srtt);
            }
            let mut sum = PathPeriod::default();
            bins(tracked, sample_ns)
                .for_each(|(_, bin)| sum.add(&bin, (at_receiver, needless_share)));
            let total = builder.delivered_bytes.entry((*path_index, direction)).or_default();
            *total = total.saturating_add(sum.carried.delivered);
        }
        AccountedDirection {
            captured,
            direction,
            subflows,
            path_indices,
            at_receiver,
            needless_share,
        }
    }
}

/// Returns the activity of a subflow's direction in each period, bounded to plausible values.
///
/// An acknowledgement in a capture may cover any number of bytes, and sums must not overflow.
fn bins(direction: &DirectionTracker, width_ns: u64) -> impl Iterator<Item = (u64, SenderBin)> {
    const MAX_BIN_BYTES: u64 = 1 << 44;
    direction.sender.series.bins(width_ns).into_iter().map(|(number, bin)| {
        let mut bounded = bin;
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
        if let Some(index) = self.indices.get(&name) {
            return *index;
        }
        let index = self.names.len();
        self.names.push(name.clone());
        self.indices.insert(name, index);
        index
    }

    /// Drops directions that carry almost only acknowledgements. At most 100 paths of a direction
    /// remain, so their periods take little memory.
    fn drop_ack_only(&mut self) {
        let total = self.delivered_bytes.values().fold(0_u64, |sum, n| sum.saturating_add(*n));
        let min_bytes = total as f64 * MIN_PAYLOAD_SHARE;
        self.delivered_bytes.retain(|_, bytes| *bytes > 0 && *bytes as f64 >= min_bytes);
    }

    /// Adds the periods of the paths that were not dropped.
    fn add_periods(&mut self, of: &AccountedDirection<'_>, (sample_ns, bin_ns): (u64, u64)) {
        let (at_receiver, needless_share) = (of.at_receiver, of.needless_share);
        for ((_, tracked), path_index) in of.subflows.iter().zip(&of.path_indices) {
            let key = (*path_index, of.direction);
            if !self.delivered_bytes.contains_key(&key) {
                continue;
            }
            let periods = self.periods.entry(key).or_default();
            for (number, bin) in bins(tracked, sample_ns) {
                let entry = periods.entry(number).or_default();
                entry.add(&bin, (at_receiver, needless_share));
                entry.reasons.extend(reasons(&bin, at_receiver, &of.path_indices, sample_ns));
            }
            if let Some(shortest) = tracked.flight.samples.min().filter(|_| !at_receiver) {
                for (number, bin) in tracked.series.bins(sample_ns) {
                    let queue_ns = (u64::from(bin.srtt_us) * 1_000).saturating_sub(shortest);
                    let entry = periods.entry(number).or_default();
                    entry.has_queue |= queue_ns >= MIN_QUEUE_DELAY_NS.max(shortest / 4);
                }
            }
            let bytes_by_bin = self.bytes_per_bin.entry(key).or_default();
            for (number, bin) in bins(tracked, bin_ns) {
                let mut bin_bytes = PathPeriod::default();
                bin_bytes.add(&bin, (at_receiver, needless_share));
                *bytes_by_bin.entry(number).or_default() += bin_bytes.carried.sum();
            }
        }
    }

    /// Adds the periods in which a path lacks a subflow. It then cannot carry data, although its
    /// connection exists.
    fn add_missing_subflows(&mut self, of: &AccountedDirection<'_>, sample_ns: u64) {
        if of.subflows.len() < 2 {
            return;
        }
        let last_period = of.captured.last_ns / sample_ns;
        // Periods in which every subflow of the path was open.
        let mut open_periods: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for ((subflow, _), path_index) in of.subflows.iter().zip(&of.path_indices) {
            let end_ns = [subflow.reset_ns, subflow.fin_ns].into_iter().flatten().min();
            let first = subflow.first_ns / sample_ns;
            let last = end_ns.map_or(last_period, |ns| ns / sample_ns);
            let open = open_periods.entry(*path_index).or_insert((first, last));
            *open = (open.0.max(first), open.1.min(last));
        }
        for (path_index, (first, last)) in open_periods {
            let key = (path_index, of.direction);
            let Some(periods) = self.periods.get_mut(&key) else { continue };
            let all_periods = of.captured.first_ns / sample_ns..=last_period;
            for number in all_periods.filter(|number| !(first..=last).contains(number)) {
                let entry = periods.entry(number).or_default();
                if entry.reasons.is_empty() {
                    entry.reasons.push((Part::NoSubflow.into(), 1.0));
                }
            }
        }
    }
}

impl PathPeriod {
    fn add(&mut self, bin: &SenderBin, (at_receiver, needless_share): (bool, f64)) {
        let delivered_bytes = if at_receiver { bin.new_bytes } else { bin.acked_bytes };
        let reinjected =
            ((bin.reinjected_bytes as f64 * needless_share) as u64).min(delivered_bytes);
        self.carried.delivered += delivered_bytes - reinjected;
        self.carried.reinjected += reinjected;
        self.carried.spurious += if at_receiver { bin.retrans_bytes } else { bin.spurious_bytes };
        self.carried.headers += bin.header_bytes;
        self.train_bps = self.train_bps.max(if at_receiver { bin.new_bps } else { bin.acked_bps });
    }
}

/// Returns the causes of a subflow's idle time, each as a share of the period.
fn reasons(
    bin: &SenderBin,
    at_receiver: bool,
    path_indices: &[usize],
    sample_ns: u64,
) -> WeightedCauses {
    let states = if at_receiver { &bin.at_receiver_us } else { &bin.at_sender_us };
    let waits_for =
        bin.blocked_by.and_then(|number| path_indices.get(usize::from(number))).copied();
    let share = |us: u32| f64::from(us) * 1e3 / sample_ns.max(1) as f64;
    let spent = STATES.iter().zip(states).filter(|(_, us)| **us > 0);
    spent
        .map(|(part, us)| {
            let waits_for = waits_for.filter(|_| *part == Part::HeadOfLineBlocking);
            (IdleCause { part: *part, waits_for }, share(*us))
        })
        .collect()
}

/// Returns all periods of a path, without gaps.
fn observed_periods(
    (periods, bytes_by_bin): (&BTreeMap<u64, PathPeriod>, &BTreeMap<u64, u64>),
    (sample_ns, bin_ns): (u64, u64),
) -> Vec<ObservedPeriod> {
    let Some((first, last)) = periods.first_key_value().zip(periods.last_key_value()) else {
        return Vec::new();
    };
    let no_data = PathPeriod::default();
    let mut observed = Vec::new();
    for number in *first.0..=*last.0 {
        let entry = periods.get(&number).unwrap_or(&no_data);
        let begin = number.saturating_mul(sample_ns);
        let bin_range = begin / bin_ns..begin.saturating_add(sample_ns) / bin_ns;
        // Two consecutive bins, because a burst may cross a bin's border.
        let bytes_of_two_bins = bytes_by_bin.range(bin_range).map(|(bin_number, bytes)| {
            let previous =
                bin_number.checked_sub(1).and_then(|previous| bytes_by_bin.get(&previous));
            bytes + previous.copied().unwrap_or(0)
        });
        let bits = u128::from(bytes_of_two_bins.max().unwrap_or(0)) * 8_000_000_000;
        let peak_bps = u64::try_from(bits / (u128::from(bin_ns) * 2).max(1)).unwrap_or(u64::MAX);
        // Train rates count payload only, so headers are added.
        let payload = entry.carried.sum().saturating_sub(entry.carried.headers).max(1);
        let train_bps = entry.train_bps as f64 * entry.carried.sum() as f64 / payload as f64;
        let peak_bps = peak_bps.max(train_bps as u64);
        let limits = limits(&combine_causes(&[&entry.reasons], false), sample_ns);
        let (t_ns, span_ns) = ((number + 1).saturating_mul(sample_ns), sample_ns);
        let period =
            Period { t_ns, span_ns, carried: entry.carried, partial_packet_bytes: 0, limits };
        observed.push(ObservedPeriod { period, peak_bps, is_saturated: entry.has_queue });
    }
    observed
}

fn limits(reasons: &WeightedCauses, span_ns: u64) -> BTreeMap<IdleCause, u64> {
    let total = total_weight(reasons);
    let mut limits: BTreeMap<IdleCause, u64> = BTreeMap::new();
    for (cause, weight) in reasons.iter().filter(|_| total > 0.0) {
        *limits.entry(*cause).or_default() += (weight / total * span_ns as f64) as u64;
    }
    limits
}
