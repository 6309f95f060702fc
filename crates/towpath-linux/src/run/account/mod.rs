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

use towpath_measure::account::{
    AccountedLink, BufferSizes, IdleCause, Ledger, OfferedCapacity, Period, WeightedCauses,
    combine_causes, total_weight,
};
use towpath_measure::result::{Account, AccountSummary, Basis, Part};
use towpath_measure::scenario::{DataDirection, Scenario};
use towpath_net::DirectionCounters;

use crate::emulator::engine::TrafficSnapshot;
use crate::traffic::{TrafficContext, is_quic};

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
pub(super) fn collect(stage: &TrafficContext, inbox: &Receiver<TrafficSnapshot>) -> AccountResult {
    let mut keeper = AccountBuilder::new(stage);
    let mut last = None;
    while let Ok(watched) = inbox.recv() {
        // After a long sleep, only the latest snapshot counts.
        let watched = inbox.try_iter().last().unwrap_or(watched);
        keeper.sample(stage, &watched);
        last = Some(watched);
    }
    if let Some(last) = last {
        keeper.close_period(stage, &last);
    }
    keeper.finish()
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
    fn new(stage: &TrafficContext) -> Self {
        let network = &stage.network;
        let ledger = Ledger::new(&network.scenario, stage.transport);
        let is_quic = is_quic(stage.transport);
        let books = ledger.links().iter().filter_map(|link| {
            Some(LinkRecorder {
                counter_ids: LinkCounterIds::of(network, link, is_quic)?,
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
            link_recorders: books.collect(),
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

    fn sample(&mut self, stage: &TrafficContext, watched: &TrafficSnapshot) {
        self.samples += 1;
        let many = stage.streams().len() / MAX_FULL_RATE_STREAMS + 1;
        let over =
            self.kept_periods.is_none() && self.planned_end.is_some_and(|end| watched.at >= end);
        let closing = over || watched.at >= self.next_period_end;
        if !self.samples.is_multiple_of(many) && !closing {
            return;
        }
        self.update_drops(stage, watched);
        let waiting = self.senders.sample(stage, watched.at, &self.last_drops);
        let at_ns = watched.at.as_nanos() as u64;
        for (book, link) in self.link_recorders.iter_mut().zip(self.ledger.links()) {
            let offered = link.offered_until(at_ns);
            let served = book.counter_ids.served(watched);
            let usable = |offered: OfferedCapacity| {
                offered.capacity_bytes.saturating_sub(offered.down_bytes)
            };
            let idle = usable(offered)
                .saturating_sub(usable(book.offered))
                .saturating_sub(served.saturating_sub(book.served));
            (book.offered, book.served) = (offered, served);
            let reasons: Vec<&WeightedCauses> = { book.paths.iter() }
                .filter_map(|path| waiting.get(&(*path, book.direction)))
                .collect();
            attribute_idle(&mut book.limits, &combine_causes(&reasons, book.paths.len() > 1), idle);
        }
        if closing {
            self.close_period(stage, watched);
        }
        if over {
            self.kept_periods = self.link_recorders.first().map(|book| book.periods.len());
        }
    }

    /// Updates the last kind of drop on each path; a loss is attributed to it.
    fn update_drops(&mut self, stage: &TrafficContext, watched: &TrafficSnapshot) {
        let counters = watched.directions.iter().map(|(counters, _)| *counters).collect();
        let before = std::mem::replace(&mut self.counters, counters);
        for number in 0..stage.network.scenario.paths.len() {
            for direction in [DataDirection::Up, DataDirection::Down] {
                let mut new = [0; 3];
                for id in stage.network.directions_of(number, direction) {
                    let Some(now) = self.counters.get(id.index()) else { continue };
                    let old = before.get(id.index()).copied().unwrap_or_default();
                    let full = |counters: &DirectionCounters| {
                        counters.queue_full.packets + counters.aqm.packets
                    };
                    let counts: [fn(&DirectionCounters) -> u64; 3] =
                        [full, |own| own.loss.packets, |own| own.mtu.packets];
                    for (new, count) in new.iter_mut().zip(counts) {
                        *new += count(now).saturating_sub(count(&old));
                    }
                }
                let parts = [Part::AfterOverflow, Part::AfterLoss, Part::PacketSize];
                let most = new.into_iter().zip(parts).max_by_key(|(count, _)| *count);
                if let Some((_, part)) = most.filter(|(count, _)| *count > 0) {
                    self.last_drops.insert((number, direction), part);
                }
            }
        }
    }

    fn close_period(&mut self, stage: &TrafficContext, watched: &TrafficSnapshot) {
        while self.next_period_end <= watched.at {
            self.next_period_end += self.period;
        }
        if self.last_period_end.replace(watched.at) == Some(watched.at) {
            return;
        }
        self.receivers.sample(stage);
        for book in &mut self.link_recorders {
            let total = book.counter_ids.totals(watched);
            book.periods.push((watched.at, std::mem::take(&mut book.limits), total));
        }
    }

    fn finish(mut self) -> AccountResult {
        let longest = self.senders.max_rtt;
        let enough = self.ledger.sufficient_window_bytes(longest);
        let known = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        let sizes = BufferSizes {
            receive_window_bytes: self.senders.window.mean_bytes(),
            send_buffer_bytes: self.senders.buffer.mean_bytes(),
            grown_bytes: [self.senders.window.max_bytes, self.senders.buffer.max_bytes],
            sufficient_bytes: known(enough),
        };
        let brought = self.receivers.finish();
        for (number, book) in self.link_recorders.into_iter().enumerate() {
            let totals = book.periods.iter().zip(&brought).map(|((.., total), brought)| {
                let own =
                    book.paths.iter().filter_map(|path| brought.get(&(*path, book.direction)));
                own.fold(*total, |total, own| LinkTotals {
                    received: total.received + own.received,
                    redundant: total.redundant + own.redundant,
                    waiting: total.waiting + own.waiting,
                    out_of_order: total.out_of_order + own.out_of_order,
                    ..total
                })
            });
            let totals: Vec<LinkTotals> = totals.collect();
            let kept = self.kept_periods.unwrap_or(totals.len());
            let end = book.periods.last().map_or(0, |(at, ..)| at.as_nanos() as u64);
            let down = |at: u64| {
                self.ledger.links().get(number).map(|link| link.offered_until(at).down_bytes)
            };
            let is_down = down(end) > down(end.saturating_sub(SAMPLE_INTERVAL.as_nanos() as u64));
            let wire_bytes = if is_down { 0 } else { book.bdp_bytes };
            let carried = classify_carried(&totals, (kept, wire_bytes), self.is_quic);
            let mut before = Duration::ZERO;
            for ((at, limits, _), carried) in book.periods.into_iter().zip(carried).take(kept) {
                let span = at.saturating_sub(before);
                before = at;
                let (t_ns, span_ns) = (at.as_nanos() as u64, span.as_nanos() as u64);
                let period = Period { t_ns, span_ns, carried, partial_packet_bytes: 0, limits };
                self.ledger.add(number, period);
            }
        }
        self.ledger.finish(Basis::Sampled, &sizes)
    }
}

/// Returns the rate times the longest delay, plus a quarter for jitter and a late thread.
fn bdp_bytes(scenario: &Scenario, link: &AccountedLink) -> u64 {
    let way =
        |[up, down]: [Duration; 2]| if link.direction == DataDirection::Down { down } else { up };
    let delays = link.paths.iter().filter_map(|path| scenario.paths.get(*path)).map(|path| {
        let shared = path.through.iter().filter_map(|index| scenario.bottlenecks.get(*index));
        let shared = shared.map(|item| way([item.up.delay.base, item.down.delay.base]));
        way([path.up.delay.base, path.down.delay.base]) + shared.sum::<Duration>()
    });
    let bits = u128::from(link.max_rate_bps()) * delays.max().unwrap_or_default().as_nanos();
    u64::try_from(bits / 8_000_000_000 * 5 / 4).unwrap_or(u64::MAX)
}

fn attribute_idle(limits: &mut BTreeMap<IdleCause, u64>, reasons: &WeightedCauses, idle: u64) {
    let all = total_weight(reasons);
    if all <= 0.0 {
        return;
    }
    for (why, weight) in reasons {
        *limits.entry(*why).or_default() += (idle as f64 * weight / all * PARTS_PER_BYTE) as u64;
    }
}
