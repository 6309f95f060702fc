//! Ledger of the capacity account: carried and unused bytes, which sum to the capacity.

use std::collections::BTreeMap;
use std::time::Duration;

use super::capacity::{AccountedLink, OfferedCapacity, accounted_links};
use super::round_trip::max_round_trip;
use super::sentence::{BufferSizes, SentenceContext, sentence, sufficient_window_bytes};
use super::users::LinkUsers;
use crate::result::{Account, AccountSummary, Basis, CapacityEstimate, LinkAccount, Part, Parts};
use crate::scenario::{DataDirection, Scenario, Transport};

/// Bytes that a link carried, as the link counts them, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CarriedBytes {
    /// Payload that arrived for the first time, and that the receiving application could read.
    pub delivered: u64,
    /// Overhead around payload, and packets without any.
    pub headers: u64,
    /// Payload that arrived for the first time, but still waited for earlier data at the end.
    pub out_of_order: u64,
    /// Whole packets that were in flight at the end.
    pub in_flight: u64,
    /// Whole packets that never arrived.
    pub lost: u64,
    /// Payload that had already arrived on the same subflow.
    pub spurious: u64,
    /// Payload that had already arrived on another subflow.
    pub reinjected: u64,
    /// Redundant copies that the scheduler made.
    pub redundant: u64,
}

impl CarriedBytes {
    /// Returns the sum of all kinds.
    pub fn sum(&self) -> u64 {
        byte_counts(*self).iter().sum()
    }
}

/// Cause of an idle link. For [`Part::HeadOfLineBlocking`] it includes the path (by index) whose
/// data was missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdleCause {
    /// Limit that kept the link idle.
    pub part: Part,
    /// Path whose missing data blocked the window.
    pub waits_for: Option<usize>,
}

impl From<Part> for IdleCause {
    fn from(part: Part) -> Self {
        Self { part, waits_for: None }
    }
}

/// Observations of one link in one period.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Period {
    /// End of the period.
    pub t_ns: u64,
    /// Length of the period.
    pub span_ns: u64,
    /// Bytes of packets that the link finished in the period.
    pub carried: CarriedBytes,
    /// Bytes already carried of a packet that was unfinished at the end of the period. They are
    /// included in [`Period::carried`] of the next period, and are moved to this one.
    pub partial_packet_bytes: u64,
    /// Weight of each limit, as time or as an amount: only the proportions count.
    pub limits: BTreeMap<IdleCause, u64>,
}

/// Capacity account of a run in progress.
#[derive(Debug)]
pub struct Ledger {
    links: Vec<AccountedLink>,
    unlimited: Vec<String>,
    periods: Vec<Vec<Period>>,
    path_names: Vec<String>,
    transport: Transport,
    /// Senders and longest possible round trip of each link.
    users: Vec<LinkUsers>,
    round_trips: Vec<Duration>,
    /// Source of estimated capacities, and the time that each limit applied on each link.
    estimate: Option<(CapacityEstimate, Vec<BTreeMap<Part, u64>>)>,
}

impl Ledger {
    /// Creates an empty ledger for a run of `scenario` over `transport`.
    pub fn new(scenario: &Scenario, transport: Transport) -> Self {
        let (links, unlimited) = accounted_links(scenario, transport);
        Self {
            round_trips: links.iter().map(|link| max_round_trip(scenario, link)).collect(),
            users: links.iter().map(|link| LinkUsers::of(scenario, link)).collect(),
            periods: vec![Vec::new(); links.len()],
            links,
            unlimited,
            path_names: scenario.paths.iter().map(|path| path.name.clone()).collect(),
            transport,
            estimate: None,
        }
    }

    /// Creates an empty ledger for links with an estimated capacity. `estimate` includes the time
    /// that each limit applied on each link.
    pub fn of_links(
        links: Vec<AccountedLink>,
        path_names: &[String],
        transport: Transport,
        estimate: (CapacityEstimate, Vec<BTreeMap<Part, u64>>),
    ) -> Self {
        Self {
            periods: vec![Vec::new(); links.len()],
            links,
            unlimited: Vec::new(),
            path_names: path_names.to_vec(),
            transport,
            users: Vec::new(),
            round_trips: Vec::new(),
            estimate: Some(estimate),
        }
    }

    /// Returns the links of the account; [`Ledger::add`] takes their indices.
    pub fn links(&self) -> &[AccountedLink] {
        &self.links
    }

    /// Returns the size of a window or send buffer that keeps all links of a direction busy. The
    /// longest observed round trip is `seen`; a larger window may lengthen it.
    pub fn sufficient_window_bytes(&self, seen: Duration) -> u64 {
        let of = |wanted: DataDirection| {
            let all = self.links.iter().zip(&self.round_trips);
            let own = all.filter(|(link, _)| link.direction == wanted);
            let longest = own.clone().map(|(_, span)| *span).fold(seen, Duration::max);
            sufficient_window_bytes(own.map(|(link, _)| link.max_rate_bps()), longest)
        };
        of(DataDirection::Up).max(of(DataDirection::Down))
    }

    /// Adds the next period of a link.
    pub fn add(&mut self, link: usize, period: Period) {
        if let Some(periods) = self.periods.get_mut(link) {
            periods.push(period);
        }
    }

    /// Returns a period for correction, because the outcome of a packet is known only later.
    pub fn period_mut(&mut self, link: usize, period: usize) -> Option<&mut Period> {
        self.periods.get_mut(link)?.get_mut(period)
    }

    /// Returns the records in order of time, and the summary. Empty where no flow sends data.
    pub fn finish(
        self,
        basis: Basis,
        sizes: &BufferSizes,
    ) -> (Vec<Account>, Option<AccountSummary>) {
        let (mut accounts, mut links) = (Vec::new(), Vec::new());
        let (mut total, mut span_ns) = (Parts::default(), 0);
        let (estimate, held) = self.estimate.unzip();
        let mut limits = held.into_iter().flatten();
        for (link, periods) in self.links.iter().zip(self.periods) {
            let own = period_accounts(link, periods, &self.path_names);
            let mut parts = Parts::default();
            for account in &own {
                parts.add_all(&account.parts);
            }
            span_ns = span_ns.max(own.last().map_or(0, |account| account.t_ns));
            total.add_all(&parts);
            let paths = link.paths.iter().filter_map(|path| self.path_names.get(*path).cloned());
            links.push(LinkAccount {
                path: link.name.clone(),
                direction: link.direction,
                paths: paths.collect(),
                parts,
                limit_ns: limits.next().unwrap_or_default(),
            });
            accounts.extend(own);
        }
        accounts.sort_by_key(|account| account.t_ns);
        if links.is_empty() && self.unlimited.is_empty() {
            return (accounts, None);
        }
        let mut summary = AccountSummary {
            basis,
            span_ns,
            sentence: String::new(),
            total,
            links,
            sufficient_bytes: sizes.sufficient_bytes,
            advice: None,
            unlimited: self.unlimited,
            estimate,
        };
        let context = SentenceContext { transport: self.transport, sizes, users: &self.users };
        (summary.sentence, summary.advice) = sentence(&summary, &context);
        (accounts, Some(summary))
    }
}

/// Bytes of each kind, in the order of [`CARRIED_PARTS`].
type ByteCounts = [u64; 8];

const CARRIED_PARTS: [Part; 8] = [
    Part::Delivered,
    Part::Headers,
    Part::OutOfOrder,
    Part::InFlight,
    Part::Lost,
    Part::Spurious,
    Part::Reinjected,
    Part::Redundant,
];

fn byte_counts(carried: CarriedBytes) -> ByteCounts {
    let CarriedBytes {
        delivered,
        headers,
        out_of_order: waiting,
        in_flight: under_way,
        lost,
        spurious: repeated,
        reinjected,
        redundant: duplicated,
    } = carried;
    [delivered, headers, waiting, under_way, lost, repeated, reinjected, duplicated]
}

/// Computes the accounts of one link.
fn period_accounts(link: &AccountedLink, periods: Vec<Period>, names: &[String]) -> Vec<Account> {
    let mut carried: Vec<ByteCounts> =
        periods.iter().map(|period| byte_counts(period.carried)).collect();
    for (index, period) in periods.iter().enumerate() {
        move_back(&mut carried, index, period.partial_packet_bytes);
    }
    let first = periods.first().map_or(0, |period| period.t_ns.saturating_sub(period.span_ns));
    let (mut before, mut owed) = (link.offered_until(first), ByteCounts::default());
    let (mut accounts, last) = (Vec::new(), periods.len().saturating_sub(1));
    for (index, (period, own)) in periods.into_iter().zip(carried).enumerate() {
        let until = link.offered_until(period.t_ns);
        let mut offered = OfferedCapacity {
            capacity_bytes: until.capacity_bytes.saturating_sub(before.capacity_bytes),
            down_bytes: until.down_bytes.saturating_sub(before.down_bytes),
        };
        before = until;
        let mut all = ByteCounts::default();
        for (sum, (own, owed)) in all.iter_mut().zip(own.into_iter().zip(owed)) {
            *sum = own + owed;
        }
        let room = offered.capacity_bytes.saturating_sub(offered.down_bytes);
        let sum: u64 = all.iter().sum();
        owed = ByteCounts::default();
        if sum > room && index == last {
            // The burst of a token bucket at the end was carried, so it was within capacity.
            offered.capacity_bytes += sum - room;
        } else if sum > room {
            owed = share_out(sum - room, &all);
            for (kept, owed) in all.iter_mut().zip(owed) {
                *kept -= owed;
            }
        }
        let parts = PeriodBreakdown { offered, carried: all, limits: &period.limits }.parts(names);
        accounts.push(Account {
            t_ns: period.t_ns,
            span_ns: period.span_ns,
            path: link.name.clone(),
            direction: link.direction,
            parts,
        });
    }
    accounts
}

/// Moves the bytes of a partly carried packet from the next period to this one.
fn move_back(carried: &mut [ByteCounts], index: usize, begun_bytes: u64) {
    let Some((own, rest)) = carried.split_at_mut_checked(index + 1) else { return };
    let (Some(own), Some(next)) = (own.last_mut(), rest.first_mut()) else {
        // The run ends within a packet.
        if let Some([_, _, _, under_way, ..]) = carried.last_mut() {
            *under_way += begun_bytes;
        }
        return;
    };
    let bytes = begun_bytes.min(next.iter().sum());
    let part = share_out(bytes, next);
    for ((own, next), part) in own.iter_mut().zip(next).zip(part) {
        *own += part;
        *next -= part;
    }
}

struct PeriodBreakdown<'a> {
    offered: OfferedCapacity,
    carried: ByteCounts,
    limits: &'a BTreeMap<IdleCause, u64>,
}

impl PeriodBreakdown<'_> {
    fn parts(&self, names: &[String]) -> Parts {
        let mut parts = Parts::default();
        for (part, bytes) in CARRIED_PARTS.into_iter().zip(self.carried) {
            parts.add(part, bytes);
        }
        let left = self.offered.capacity_bytes.saturating_sub(parts.capacity_bytes);
        let down = self.offered.down_bytes.min(left);
        parts.add(Part::Down, down);
        let idle = left - down;
        let weights: Vec<u64> = self.limits.values().copied().collect();
        if weights.iter().all(|weight| *weight == 0) {
            parts.add(Part::Unknown, idle);
            return parts;
        }
        for (why, bytes) in self.limits.keys().zip(split(idle, &weights)) {
            parts.add(why.part, bytes);
            let name = why.waits_for.and_then(|path| names.get(path));
            if let Some(name) = name.filter(|_| why.part == Part::HeadOfLineBlocking && bytes > 0) {
                *parts.blocked_by.entry(name.clone()).or_default() += bytes;
            }
        }
        parts
    }
}

/// Splits `total` in proportion to `weights`. No share exceeds its weight unless the total exceeds
/// their sum.
fn share_out(total: u64, weights: &ByteCounts) -> ByteCounts {
    let mut shares = ByteCounts::default();
    for (share, part) in shares.iter_mut().zip(split(total, weights)) {
        *share = part;
    }
    shares
}

/// Splits `total` in proportion to `weights`, so that the shares sum to it exactly (unless all
/// weights are zero). The rounding remainder goes to the largest fractions, first ones first.
pub fn split(total: u64, weights: &[u64]) -> Vec<u64> {
    let sum: u128 = weights.iter().map(|weight| u128::from(*weight)).sum();
    if sum == 0 {
        return vec![0; weights.len()];
    }
    let exact = |weight: &u64| u128::from(total) * u128::from(*weight);
    let mut shares: Vec<u64> = weights
        .iter()
        .map(|weight| u64::try_from(exact(weight) / sum).unwrap_or(u64::MAX))
        .collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|index| {
        std::cmp::Reverse(weights.get(*index).map_or(0, |weight| exact(weight) % sum))
    });
    let left = total.saturating_sub(shares.iter().sum());
    for index in order.into_iter().take(usize::try_from(left).unwrap_or(usize::MAX)) {
        if let Some(share) = shares.get_mut(index) {
            *share += 1;
        }
    }
    shares
}
