//! Ledger of the capacity account: carried and unused bytes, which sum to the capacity.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_scenario::{DataDirection, Scenario, Transport};

use super::capacity::{AccountedLink, OfferedCapacity, accounted_links};
use super::round_trip::max_round_trip;
use super::sentence::{BufferSizes, SentenceContext, sentence, sufficient_window_bytes};
use super::users::LinkUsers;
use crate::{Account, AccountSummary, Basis, CapacityEstimate, LinkAccount, Part, Parts};

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
    /// longest observed round trip is `observed_rtt`; a larger window may lengthen it.
    pub fn sufficient_window_bytes(&self, observed_rtt: Duration) -> u64 {
        let window_for = |direction: DataDirection| {
            let links = self.links.iter().zip(&self.round_trips);
            let direction_links = links.filter(|(link, _)| link.direction == direction);
            let longest_rtt =
                direction_links.clone().map(|(_, rtt)| *rtt).fold(observed_rtt, Duration::max);
            sufficient_window_bytes(
                direction_links.map(|(link, _)| link.max_rate_bps()),
                longest_rtt,
            )
        };
        window_for(DataDirection::Up).max(window_for(DataDirection::Down))
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
        let (estimate, limit_times) = self.estimate.unzip();
        let mut limits = limit_times.into_iter().flatten();
        for (link, periods) in self.links.iter().zip(self.periods) {
            let link_accounts = period_accounts(link, periods, &self.path_names);
            let mut parts = Parts::default();
            for account in &link_accounts {
                parts.add_all(&account.parts);
            }
            span_ns = span_ns.max(link_accounts.last().map_or(0, |account| account.t_ns));
            total.add_all(&parts);
            let paths = link.paths.iter().filter_map(|path| self.path_names.get(*path).cloned());
            links.push(LinkAccount {
                path: link.name.clone(),
                direction: link.direction,
                paths: paths.collect(),
                parts,
                limits_ns: limits.next().unwrap_or_default(),
            });
            accounts.extend(link_accounts);
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
        out_of_order,
        in_flight,
        lost,
        spurious,
        reinjected,
        redundant,
    } = carried;
    [delivered, headers, out_of_order, in_flight, lost, spurious, reinjected, redundant]
}

/// Computes the accounts of one link.
fn period_accounts(
    link: &AccountedLink,
    periods: Vec<Period>,
    path_names: &[String],
) -> Vec<Account> {
    let mut carried: Vec<ByteCounts> =
        periods.iter().map(|period| byte_counts(period.carried)).collect();
    for (index, period) in periods.iter().enumerate() {
        move_partial_packet(&mut carried, index, period.partial_packet_bytes);
    }
    let start_ns = periods.first().map_or(0, |period| period.t_ns.saturating_sub(period.span_ns));
    let (mut previous, mut excess) = (link.offered_until(start_ns), ByteCounts::default());
    let (mut accounts, last_index) = (Vec::new(), periods.len().saturating_sub(1));
    for (index, (period, own_counts)) in periods.into_iter().zip(carried).enumerate() {
        let offered_total = link.offered_until(period.t_ns);
        let mut offered = OfferedCapacity {
            capacity_bytes: offered_total.capacity_bytes.saturating_sub(previous.capacity_bytes),
            down_bytes: offered_total.down_bytes.saturating_sub(previous.down_bytes),
        };
        previous = offered_total;
        let mut counts = ByteCounts::default();
        for (sum, (own_counts, excess)) in counts.iter_mut().zip(own_counts.into_iter().zip(excess))
        {
            *sum = own_counts + excess;
        }
        let available = offered.capacity_bytes.saturating_sub(offered.down_bytes);
        let sum: u64 = counts.iter().sum();
        excess = ByteCounts::default();
        if sum > available && index == last_index {
            // The burst of a token bucket at the end was carried, so it was within capacity.
            offered.capacity_bytes += sum - available;
        } else if sum > available {
            excess = share_out(sum - available, &counts);
            for (count, excess) in counts.iter_mut().zip(excess) {
                *count -= excess;
            }
        }
        let parts =
            PeriodBreakdown { offered, carried: counts, limits: &period.limits }.parts(path_names);
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
fn move_partial_packet(carried: &mut [ByteCounts], index: usize, partial_packet_bytes: u64) {
    let Some((current, later)) = carried.split_at_mut_checked(index + 1) else { return };
    let (Some(current), Some(next)) = (current.last_mut(), later.first_mut()) else {
        // The run ends within a packet.
        if let Some([_, _, _, in_flight, ..]) = carried.last_mut() {
            *in_flight += partial_packet_bytes;
        }
        return;
    };
    let moved_bytes = partial_packet_bytes.min(next.iter().sum());
    let moved = share_out(moved_bytes, next);
    for ((current, next), moved) in current.iter_mut().zip(next).zip(moved) {
        *current += moved;
        *next -= moved;
    }
}

struct PeriodBreakdown<'a> {
    offered: OfferedCapacity,
    carried: ByteCounts,
    limits: &'a BTreeMap<IdleCause, u64>,
}

impl PeriodBreakdown<'_> {
    fn parts(&self, path_names: &[String]) -> Parts {
        let mut parts = Parts::default();
        for (part, bytes) in CARRIED_PARTS.into_iter().zip(self.carried) {
            parts.add(part, bytes);
        }
        let unused = self.offered.capacity_bytes.saturating_sub(parts.capacity_bytes);
        let down = self.offered.down_bytes.min(unused);
        parts.add(Part::Down, down);
        let idle = unused - down;
        let weights: Vec<u64> = self.limits.values().copied().collect();
        if weights.iter().all(|weight| *weight == 0) {
            parts.add(Part::Unknown, idle);
            return parts;
        }
        for (cause, bytes) in self.limits.keys().zip(split(idle, &weights)) {
            parts.add(cause.part, bytes);
            let name = cause.waits_for.and_then(|path| path_names.get(path));
            if let Some(name) = name.filter(|_| cause.part == Part::HeadOfLineBlocking && bytes > 0)
            {
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
    let product = |weight: &u64| u128::from(total) * u128::from(*weight);
    let mut shares: Vec<u64> = weights
        .iter()
        .map(|weight| u64::try_from(product(weight) / sum).unwrap_or(u64::MAX))
        .collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by_key(|index| {
        std::cmp::Reverse(weights.get(*index).map_or(0, |weight| product(weight) % sum))
    });
    let remainder = total.saturating_sub(shares.iter().sum());
    for index in order.into_iter().take(usize::try_from(remainder).unwrap_or(usize::MAX)) {
        if let Some(share) = shares.get_mut(index) {
            *share += 1;
        }
    }
    shares
}
