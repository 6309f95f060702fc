//! Capacity account of a run over real kernels.
//!
//! Capacity and carried bytes come from the link model; the causes of idle capacity come from the
//! kernels' connection state. The emulator reports every few milliseconds what its links have
//! carried; at each report, all senders are sampled. Capacity left idle between two samples is
//! attributed to what limited its senders then.

mod carried;
mod receivers;
mod senders;

use std::collections::BTreeMap;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use towpath_net::DirectionCounters;
use towpath_result::accounting::{
    AccountedLink, BufferSizes, IdleCause, Ledger, OfferedCapacity, Period, WeightedCauses,
    combine_causes, total_weight,
};
use towpath_result::{Account, AccountSummary, Basis, Part};
use towpath_scenario::{DataDirection, Scenario};

use crate::emulator::engine::TrafficSnapshot;
use crate::traffic::TrafficContext;

use carried::{LinkCounterIds, LinkTotals, classify_carried};
use receivers::Receivers;
use senders::Senders;

/// Interval between two samples of links and senders.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(10);
/// Number of connections above which samples are less frequent.
const MAX_FULL_RATE_STREAMS: usize = 16;
/// Resolution of idle capacity, in parts per byte.
const PARTS_PER_BYTE: f64 = 1_000.0;

/// Result of a run's account: the links' accounts and their summary.
pub(super) type AccountResult = (Vec<Account>, Option<AccountSummary>);

/// Recorder for one link of the ledger during the run.
#[derive(Debug)]
struct LinkRecorder {
    counter_ids: LinkCounterIds,
    paths: Vec<usize>,
    direction: DataDirection,
    /// Capacity offered by the link, and bytes served, at the previous sample.
    offered: OfferedCapacity,
    served: u64,
    limits: BTreeMap<IdleCause, u64>,
    /// Bytes in flight behind a fully used link: its bandwidth-delay product plus 25%.
    bdp_bytes: u64,
    /// End, idle causes and totals of each period.
    periods: Vec<(Duration, BTreeMap<IdleCause, u64>, LinkTotals)>,
}

/// Collects the account until the emulator sends no more snapshots.
pub(super) fn collect(
    context: &TrafficContext,
    inbox: &Receiver<TrafficSnapshot>,
) -> AccountResult {
    let mut builder = AccountBuilder::new(context);
    let mut last_snapshot = None;
    while let Ok(snapshot) = inbox.recv() {
        // After a long sleep, only the latest snapshot counts.
        let snapshot = inbox.try_iter().last().unwrap_or(snapshot);
        builder.sample(context, &snapshot);
        last_snapshot = Some(snapshot);
    }
    if let Some(last_snapshot) = last_snapshot {
        builder.close_period(context, &last_snapshot);
    }
    builder.finish()
}

#[derive(Debug)]
struct AccountBuilder {
    ledger: Ledger,
    link_recorders: Vec<LinkRecorder>,
    senders: Senders,
    is_quic: bool,
    receivers: Receivers,
    counters: Vec<DirectionCounters>,
    last_drops: BTreeMap<(usize, DataDirection), Part>,
    period: Duration,
    next_period_end: Duration,
    /// End of the last period, if one has ended.
    last_period_end: Option<Duration>,
    /// Planned end of the last flow, and the number of periods until then. Later periods only show
    /// which bytes were in flight at that end.
    planned_end: Option<Duration>,
    kept_periods: Option<usize>,
    samples: usize,
}

impl AccountBuilder {
    fn new(context: &TrafficContext) -> Self {
        let network = &context.network;
        let ledger = Ledger::new(&network.scenario, context.transport);
        let is_quic = context.transport.is_quic();
        let recorders = ledger.links().iter().filter_map(|link| {
            Some(LinkRecorder {
                counter_ids: LinkCounterIds::for_link(network, link, is_quic)?,
                paths: link.paths.clone(),
                direction: link.direction,
                offered: OfferedCapacity::default(),
                served: 0,
                limits: BTreeMap::new(),
                bdp_bytes: bdp_bytes(&network.scenario, link),
                periods: Vec::new(),
            })
        });
        let period = network.scenario.run.sample;
        Self {
            link_recorders: recorders.collect(),
            ledger,
            senders: Senders::default(),
            is_quic,
            receivers: Receivers::default(),
            counters: Vec::new(),
            last_drops: BTreeMap::new(),
            period,
            next_period_end: period,
            last_period_end: None,
            planned_end: { network.scenario.flows.iter() }
                .map(|flow| flow.start + flow.pattern.limit())
                .max(),
            kept_periods: None,
            samples: 0,
        }
    }

    fn sample(&mut self, context: &TrafficContext, snapshot: &TrafficSnapshot) {
        self.samples += 1;
        let sample_divisor = context.streams().len() / MAX_FULL_RATE_STREAMS + 1;
        let flows_ended =
            self.kept_periods.is_none() && self.planned_end.is_some_and(|end| snapshot.at >= end);
        let is_period_end = flows_ended || snapshot.at >= self.next_period_end;
        if !self.samples.is_multiple_of(sample_divisor) && !is_period_end {
            return;
        }
        self.update_drops(context, snapshot);
        let path_causes = self.senders.sample(context, snapshot.at, &self.last_drops);
        let at_ns = snapshot.at.as_nanos() as u64;
        for (recorder, link) in self.link_recorders.iter_mut().zip(self.ledger.links()) {
            let offered = link.offered_until(at_ns);
            let served = recorder.counter_ids.served(snapshot);
            let usable = |offered: OfferedCapacity| {
                offered.capacity_bytes.saturating_sub(offered.down_bytes)
            };
            let idle = usable(offered)
                .saturating_sub(usable(recorder.offered))
                .saturating_sub(served.saturating_sub(recorder.served));
            (recorder.offered, recorder.served) = (offered, served);
            let causes: Vec<&WeightedCauses> = { recorder.paths.iter() }
                .filter_map(|path| path_causes.get(&(*path, recorder.direction)))
                .collect();
            attribute_idle(
                &mut recorder.limits,
                &combine_causes(&causes, recorder.paths.len() > 1),
                idle,
            );
        }
        if is_period_end {
            self.close_period(context, snapshot);
        }
        if flows_ended {
            self.kept_periods = self.link_recorders.first().map(|recorder| recorder.periods.len());
        }
    }

    /// Updates the last kind of drop on each path; a loss is attributed to it.
    fn update_drops(&mut self, context: &TrafficContext, snapshot: &TrafficSnapshot) {
        let counters = snapshot.directions.iter().map(|(counters, _)| *counters).collect();
        let previous_counters = std::mem::replace(&mut self.counters, counters);
        for path in 0..context.network.scenario.paths.len() {
            for direction in [DataDirection::Up, DataDirection::Down] {
                let mut new_drops = [0; 3];
                for id in context.network.directions_of(path, direction) {
                    let Some(now) = self.counters.get(id.index()) else { continue };
                    let previous = previous_counters.get(id.index()).copied().unwrap_or_default();
                    let queue_drops = |counters: &DirectionCounters| {
                        counters.queue_full.packets + counters.aqm.packets
                    };
                    let counts: [fn(&DirectionCounters) -> u64; 3] =
                        [queue_drops, |c| c.loss.packets, |c| c.mtu.packets];
                    for (sum, count) in new_drops.iter_mut().zip(counts) {
                        *sum += count(now).saturating_sub(count(&previous));
                    }
                }
                let parts = [Part::AfterOverflow, Part::AfterLoss, Part::PacketSize];
                let most_frequent =
                    new_drops.into_iter().zip(parts).max_by_key(|(count, _)| *count);
                if let Some((_, part)) = most_frequent.filter(|(count, _)| *count > 0) {
                    self.last_drops.insert((path, direction), part);
                }
            }
        }
    }

    fn close_period(&mut self, context: &TrafficContext, snapshot: &TrafficSnapshot) {
        while self.next_period_end <= snapshot.at {
            self.next_period_end += self.period;
        }
        if self.last_period_end.replace(snapshot.at) == Some(snapshot.at) {
            return;
        }
        self.receivers.sample(context);
        for recorder in &mut self.link_recorders {
            let total = recorder.counter_ids.totals(snapshot);
            recorder.periods.push((snapshot.at, std::mem::take(&mut recorder.limits), total));
        }
    }

    fn finish(mut self) -> AccountResult {
        let max_rtt = self.senders.max_rtt;
        let sufficient_bytes = self.ledger.sufficient_window_bytes(max_rtt);
        let nonzero = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        let sizes = BufferSizes {
            receive_window_bytes: self.senders.window.mean_bytes(),
            send_buffer_bytes: self.senders.buffer.mean_bytes(),
            grown_bytes: [self.senders.window.max_bytes, self.senders.buffer.max_bytes],
            sufficient_bytes: nonzero(sufficient_bytes),
        };
        let received_by_period = self.receivers.finish();
        for (link_index, recorder) in self.link_recorders.into_iter().enumerate() {
            let totals =
                recorder.periods.iter().zip(&received_by_period).map(|((.., total), received)| {
                    let path_received = recorder
                        .paths
                        .iter()
                        .filter_map(|path| received.get(&(*path, recorder.direction)));
                    path_received.fold(*total, |total, path| LinkTotals {
                        received: total.received + path.received,
                        redundant: total.redundant + path.redundant,
                        waiting: total.waiting + path.waiting,
                        out_of_order: total.out_of_order + path.out_of_order,
                        ..total
                    })
                });
            let totals: Vec<LinkTotals> = totals.collect();
            let kept_periods = self.kept_periods.unwrap_or(totals.len());
            let end =
                recorder.periods.last().map_or(0, |(end_time, ..)| end_time.as_nanos() as u64);
            let down_bytes = |at_ns: u64| {
                self.ledger.links().get(link_index).map(|link| link.offered_until(at_ns).down_bytes)
            };
            let is_down =
                down_bytes(end) > down_bytes(end.saturating_sub(SAMPLE_INTERVAL.as_nanos() as u64));
            let wire_bytes = if is_down { 0 } else { recorder.bdp_bytes };
            let carried = classify_carried(&totals, (kept_periods, wire_bytes), self.is_quic);
            let mut previous_end = Duration::ZERO;
            for ((end_time, limits, _), carried) in
                recorder.periods.into_iter().zip(carried).take(kept_periods)
            {
                let span = end_time.saturating_sub(previous_end);
                previous_end = end_time;
                let (t_ns, span_ns) = (end_time.as_nanos() as u64, span.as_nanos() as u64);
                let period = Period { t_ns, span_ns, carried, partial_packet_bytes: 0, limits };
                self.ledger.add(link_index, period);
            }
        }
        self.ledger.finish(Basis::Sampled, &sizes)
    }
}

/// Returns the rate times the longest delay, plus a quarter for jitter and a late thread.
fn bdp_bytes(scenario: &Scenario, link: &AccountedLink) -> u64 {
    let in_direction =
        |[up, down]: [Duration; 2]| if link.direction == DataDirection::Down { down } else { up };
    let delays = link.paths.iter().filter_map(|path| scenario.paths.get(*path)).map(|path| {
        let shared = path.through.iter().filter_map(|index| scenario.bottlenecks.get(*index));
        let shared = shared
            .map(|bottleneck| in_direction([bottleneck.up.delay.base, bottleneck.down.delay.base]));
        in_direction([path.up.delay.base, path.down.delay.base]) + shared.sum::<Duration>()
    });
    let bits = u128::from(link.max_rate_bps()) * delays.max().unwrap_or_default().as_nanos();
    u64::try_from(bits / 8_000_000_000 * 5 / 4).unwrap_or(u64::MAX)
}

fn attribute_idle(limits: &mut BTreeMap<IdleCause, u64>, causes: &WeightedCauses, idle: u64) {
    let weight_sum = total_weight(causes);
    if weight_sum <= 0.0 {
        return;
    }
    for (cause, weight) in causes {
        *limits.entry(*cause).or_default() +=
            (idle as f64 * weight / weight_sum * PARTS_PER_BYTE) as u64;
    }
}
