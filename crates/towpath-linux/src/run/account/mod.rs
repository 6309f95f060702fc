//! The account of capacity of a run over real kernels: capacity and what was carried from the link
//! model, and why the rest was not used from what kernels say of their connections.
//!
//! The emulator tells every few milliseconds what its links have carried; whenever it does, all
//! senders are asked what they wait for. So what a link did not carry between two looks is
//! put down to what held its senders back at that time.

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

use crate::emulator::engine::Watched;
use crate::traffic::{Stage, is_quic};

use carried::{Place, Total, told_apart};
use receivers::Receivers;
use senders::Senders;

/// Between two looks.
pub(super) const LOOK: Duration = Duration::from_millis(10);
/// With more connections than this, there are fewer looks.
const MANY: usize = 16;
/// Parts of a byte in which idle capacity is weighed.
const FINE: f64 = 1_000.0;

/// What a run's account came to.
pub(super) type Closed = (Vec<Account>, Option<AccountSummary>);

/// One link of the ledger while the run goes on.
#[derive(Debug)]
struct Book {
    place: Place,
    paths: Vec<usize>,
    direction: DataDirection,
    /// What it could carry, and had carried, at the look before.
    offered: OfferedCapacity,
    served: u64,
    limits: BTreeMap<IdleCause, u64>,
    /// What is on its way behind the link when it is full.
    wire_bytes: u64,
    /// At the end of each period: time, limits in it, totals.
    periods: Vec<(Duration, BTreeMap<IdleCause, u64>, Total)>,
}

/// Keeps the account until the emulator tells nothing more.
pub(super) fn keep(stage: &Stage, inbox: &Receiver<Watched>) -> Closed {
    let mut keeper = Keeper::new(stage);
    let mut last = None;
    while let Ok(watched) = inbox.recv() {
        // Who was asleep for too long looks once.
        let watched = inbox.try_iter().last().unwrap_or(watched);
        keeper.look(stage, &watched);
        last = Some(watched);
    }
    if let Some(last) = last {
        keeper.close_period(stage, &last);
    }
    keeper.finish()
}

#[derive(Debug)]
struct Keeper {
    ledger: Ledger,
    books: Vec<Book>,
    senders: Senders,
    is_quic: bool,
    receivers: Receivers,
    counters: Vec<DirectionCounters>,
    drops: BTreeMap<(usize, DataDirection), Part>,
    period: Duration,
    next: Duration,
    /// End of the last period.
    closed: Option<Duration>,
    /// When the last flow is planned to end, and how many periods there were until then. What comes
    /// later only shows what had still been on its way.
    end: Option<Duration>,
    kept: Option<usize>,
    looks: usize,
}

impl Keeper {
    fn new(stage: &Stage) -> Self {
        let network = &stage.network;
        let ledger = Ledger::new(&network.scenario, stage.transport);
        let is_quic = is_quic(stage.transport);
        let books = ledger.links().iter().filter_map(|link| {
            Some(Book {
                place: Place::of(network, link, is_quic)?,
                paths: link.paths.clone(),
                direction: link.direction,
                offered: OfferedCapacity::default(),
                served: 0,
                limits: BTreeMap::new(),
                wire_bytes: wire_bytes(&network.scenario, link),
                periods: Vec::new(),
            })
        });
        let period = network.scenario.run.sample;
        Self {
            books: books.collect(),
            ledger,
            senders: Senders::default(),
            is_quic,
            receivers: Receivers::default(),
            counters: Vec::new(),
            drops: BTreeMap::new(),
            period,
            next: period,
            closed: None,
            end: { network.scenario.flows.iter() }
                .map(|flow| flow.start + flow.pattern.limit())
                .max(),
            kept: None,
            looks: 0,
        }
    }

    fn look(&mut self, stage: &Stage, watched: &Watched) {
        self.looks += 1;
        let many = stage.streams().len() / MANY + 1;
        let over = self.kept.is_none() && self.end.is_some_and(|end| watched.at >= end);
        let closing = over || watched.at >= self.next;
        if !self.looks.is_multiple_of(many) && !closing {
            return;
        }
        self.note_drops(stage, watched);
        let waiting = self.senders.look(stage, watched.at, &self.drops);
        let at_ns = watched.at.as_nanos() as u64;
        for (book, link) in self.books.iter_mut().zip(self.ledger.links()) {
            let offered = link.offered_until(at_ns);
            let served = book.place.served(watched);
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
            weigh(&mut book.limits, &combine_causes(&reasons, book.paths.len() > 1), idle);
        }
        if closing {
            self.close_period(stage, watched);
        }
        if over {
            self.kept = self.books.first().map(|book| book.periods.len());
        }
    }

    /// What each path dropped last: a loss is put down to it.
    fn note_drops(&mut self, stage: &Stage, watched: &Watched) {
        let counters = watched.directions.iter().map(|(counters, _)| *counters).collect();
        let before = std::mem::replace(&mut self.counters, counters);
        for number in 0..stage.network.scenario.paths.len() {
            for way in [DataDirection::Up, DataDirection::Down] {
                let mut new = [0; 3];
                for id in stage.network.directions_of(number, way) {
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
                    self.drops.insert((number, way), part);
                }
            }
        }
    }

    fn close_period(&mut self, stage: &Stage, watched: &Watched) {
        while self.next <= watched.at {
            self.next += self.period;
        }
        if self.closed.replace(watched.at) == Some(watched.at) {
            return;
        }
        self.receivers.note(stage);
        for book in &mut self.books {
            let total = book.place.total(watched);
            book.periods.push((watched.at, std::mem::take(&mut book.limits), total));
        }
    }

    fn finish(mut self) -> Closed {
        let longest = self.senders.longest_rtt;
        let enough = self.ledger.sufficient_window_bytes(longest);
        let known = |bytes: u64| Some(bytes).filter(|bytes| *bytes > 0);
        let sizes = BufferSizes {
            receive_window_bytes: self.senders.window.bytes(),
            send_buffer_bytes: self.senders.buffer.bytes(),
            grown_bytes: [self.senders.window.largest, self.senders.buffer.largest],
            sufficient_bytes: known(enough),
        };
        let brought = self.receivers.finish();
        for (number, book) in self.books.into_iter().enumerate() {
            let totals = book.periods.iter().zip(&brought).map(|((.., total), brought)| {
                let own =
                    book.paths.iter().filter_map(|path| brought.get(&(*path, book.direction)));
                own.fold(*total, |total, own| Total {
                    received: total.received + own.received,
                    needless: total.needless + own.needless,
                    waiting: total.waiting + own.waiting,
                    behind: total.behind + own.behind,
                    ..total
                })
            });
            let totals: Vec<Total> = totals.collect();
            let kept = self.kept.unwrap_or(totals.len());
            let end = book.periods.last().map_or(0, |(at, ..)| at.as_nanos() as u64);
            let down = |at: u64| {
                self.ledger.links().get(number).map(|link| link.offered_until(at).down_bytes)
            };
            let is_down = down(end) > down(end.saturating_sub(LOOK.as_nanos() as u64));
            let wire_bytes = if is_down { 0 } else { book.wire_bytes };
            let carried = told_apart(&totals, (kept, wire_bytes), self.is_quic);
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

/// A quarter more than the link's rate times the longest delay behind it: jitter, and a thread that is late.
fn wire_bytes(scenario: &Scenario, link: &AccountedLink) -> u64 {
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

fn weigh(limits: &mut BTreeMap<IdleCause, u64>, reasons: &WeightedCauses, idle: u64) {
    let all = total_weight(reasons);
    if all <= 0.0 {
        return;
    }
    for (why, weight) in reasons {
        *limits.entry(*why).or_default() += (idle as f64 * weight / all * FINE) as u64;
    }
}
