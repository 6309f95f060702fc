//! Capacity account as one sentence.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::Duration;

use towpath_scenario::{DataDirection, Transport};

use super::request_reply::request_reply_text;
use super::unit::RateScale;
use super::users::LinkUsers;
use crate::format;
use crate::{AccountSummary, Advice, Basis, LinkAccount, Part, PartGroup, Parts};

/// Most causes that are named.
const MAX_CAUSES: usize = 3;
/// Smallest share of the missing capacity from which a cause is named, in per cent.
pub(super) const MIN_CAUSE_PERCENT: u64 = 8;
/// Smallest share of missing capacity for which causes are named, in per cent.
const MIN_MISSING_PERCENT: u64 = 3;

/// Sizes that the sentence names, where known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BufferSizes {
    /// Receive window that the peer advertised: while it was full if that is known, otherwise the
    /// largest.
    pub receive_window_bytes: Option<u64>,
    /// Size of the send buffer: while it was full if that is known, otherwise the largest.
    pub send_buffer_bytes: Option<u64>,
    /// Final sizes of window and buffer, full or not. A size that grows to the sufficient one needs
    /// no advice.
    pub grown_bytes: [u64; 2],
    /// Sufficient size for either, see [`bdp_bytes`].
    pub sufficient_bytes: Option<u64>,
}

/// Returns the window that keeps all links busy until the slowest acknowledgement arrives. This is
/// the sum of their rates times the longest round trip.
pub fn bdp_bytes(rates_bps: impl IntoIterator<Item = u64>, longest_rtt: Duration) -> u64 {
    let sum: u128 = rates_bps.into_iter().map(u128::from).sum();
    u64::try_from(sum.saturating_mul(longest_rtt.as_nanos()) / 8_000_000_000).unwrap_or(u64::MAX)
}

/// Minimum retransmission timeout of TCP in Linux.
const MIN_RTO: Duration = Duration::from_millis(200);

/// Returns the window that keeps all links busy while the slowest packet is lost and retransmitted
/// after a timeout. This is the sum of their rates times (twice the longest round trip plus 200
/// ms).
pub fn sufficient_window_bytes(
    rates_bps: impl IntoIterator<Item = u64>,
    longest_rtt: Duration,
) -> u64 {
    bdp_bytes(rates_bps, longest_rtt * 2 + MIN_RTO)
}

/// Returns the receive or send buffer for a window of `window_bytes`, in steps of 100 kB. About 60
/// % of a buffer is advertised as window, and the memory of each packet counts.
pub fn buffer_bytes(window_bytes: u64) -> u64 {
    const PER_WINDOW: u64 = 2;
    const STEP_BYTES: u64 = 100_000;
    let steps = window_bytes.saturating_mul(PER_WINDOW).div_ceil(STEP_BYTES);
    steps.max(1).saturating_mul(STEP_BYTES)
}

/// Inputs of a sentence besides the account.
#[derive(Debug, Clone, Copy)]
pub(super) struct SentenceContext<'a> {
    pub(super) transport: Transport,
    pub(super) sizes: &'a BufferSizes,
    /// Users of each link.
    pub(super) users: &'a [LinkUsers],
}

/// Returns `of 60 Mbit/s, 21 were not used: 14 because …, 5 because …`, and the advised change.
pub(super) fn sentence(
    account: &AccountSummary,
    context: &SentenceContext<'_>,
) -> (String, Option<Advice>) {
    if account.links.is_empty() {
        let names = format::list(&account.unlimited);
        let text =
            format!("nothing limits the rate of {names}, so there is no capacity to account for");
        return (text, None);
    }
    let is_request_reply = |link: &LinkAccount| {
        context.users.iter().any(|users| users.is_of(link) && users.is_request_reply)
    };
    let transfers = filter_links(account, |link| !is_request_reply(link));
    let (text, advice) = if transfers.links.is_empty() {
        let directions = [DataDirection::Up, DataDirection::Down];
        let accounts = directions.map(|direction| {
            (direction, filter_links(account, |link| link.direction == direction))
        });
        let accounts = accounts.iter().filter(|(_, account)| !account.links.is_empty());
        let parts: Vec<String> = accounts
            .map(|(direction, account)| request_reply_text(account, *direction, context))
            .collect();
        (parts.join("; "), None)
    } else {
        transfer_text(&transfers, transfers.links.len() < account.links.len(), context)
    };
    (text + &not_accounted(account), advice)
}

/// Returns the account of selected links.
fn filter_links(
    account: &AccountSummary,
    is_selected: impl Fn(&LinkAccount) -> bool,
) -> AccountSummary {
    let links = account.links.iter().filter(|link| is_selected(link));
    let links: Vec<LinkAccount> = links.cloned().collect();
    let mut total = Parts::default();
    for link in &links {
        total.add_all(&link.parts);
    }
    AccountSummary { total, links, ..account.clone() }
}

/// Describes the account of transfers, which send as much as they can. `is_partial` is true if there are
/// other links.
fn transfer_text(
    account: &AccountSummary,
    is_partial: bool,
    context: &SentenceContext<'_>,
) -> (String, Option<Advice>) {
    let total = &account.total;
    let [payload, headers] = [Part::Delivered, Part::Headers].map(|part| total.of(part));
    let missing = total.capacity_bytes.saturating_sub(payload).saturating_sub(headers);
    // The counters may come from another host, so they may be arbitrary numbers.
    let is_small =
        missing.saturating_mul(100) < total.capacity_bytes.saturating_mul(MIN_MISSING_PERCENT);
    let missing_parts = total.missing_parts();
    let is_notable = |(_, bytes): &&(Part, u64)| {
        !is_small && bytes.saturating_mul(100) >= missing.saturating_mul(MIN_CAUSE_PERCENT)
    };
    let named_causes: Vec<_> =
        missing_parts.iter().filter(is_notable).take(MAX_CAUSES).copied().collect();
    let rounds_to_zero = missing.saturating_mul(1_000) < total.capacity_bytes;
    let smallest = if is_small && rounds_to_zero {
        payload.min(headers)
    } else if is_small {
        payload.min(headers).min(missing)
    } else {
        named_causes.iter().map(|(_, bytes)| *bytes).min().unwrap_or(missing)
    };
    let scale = RateScale::new(total.capacity_bytes, smallest, account.span_ns);
    let mut text = format!("of {}", capacity_text(account, is_partial, &scale));
    if is_small {
        let (payload, headers) = (scale.text_with_unit(payload), scale.of(headers));
        let _ = write!(text, ", {payload} were payload and {headers} headers");
        if !rounds_to_zero {
            let _ = write!(text, "; {} were not used", scale.of(missing));
        }
        return (text + &may_carry_more(account, context), None);
    }
    let _ = write!(text, ", {} were not used: ", scale.text_with_unit(missing));
    let mut causes: Vec<_> = { named_causes.iter() }
        .map(|(part, bytes)| {
            format!("{} because {}", scale.of(*bytes), reason(account, *part, context))
        })
        .collect();
    let unnamed_bytes = missing - named_causes.iter().map(|(_, bytes)| bytes).sum::<u64>();
    if !scale.rounds_to_zero(unnamed_bytes) {
        causes.push(format!("{} for other reasons", scale.of(unnamed_bytes)));
    }
    text += &causes.join(", ");
    let at_least = account.estimate.as_ref().is_some_and(|estimate| estimate.at_least);
    let advice = advice(account, &named_causes, context).filter(|_| !at_least);
    // Without a scenario, no key can be set.
    if account.basis == Basis::Estimate {
        let sufficient_bytes = advice.and(context.sizes.sufficient_bytes);
        text += &sufficient_bytes.map_or_else(String::new, |bytes| {
            format!("; a window of {} would suffice", format::bytes(bytes))
        });
        return (text + &may_carry_more(account, context), None);
    }
    if let Some(Advice { key, value, .. }) = &advice {
        let _ = write!(text, "; {key} = \"{value}\" would suffice");
    }
    (text, advice)
}

/// Returns `60 Mbit/s`, and the source if it is an estimate.
fn capacity_text(account: &AccountSummary, is_partial: bool, scale: &RateScale) -> String {
    let direction_text = match account.links.first().filter(|_| is_partial) {
        Some(link) if link.direction == DataDirection::Down => " down",
        Some(_) => " up",
        None => "",
    };
    let total_text = scale.total_text() + direction_text;
    let Some(estimate) = &account.estimate else { return total_text };
    let qualifier = if estimate.at_least { "at least" } else { "about" };
    format!("{qualifier} {total_text} (estimated: {})", estimate.source)
}

/// Names the longest limit of the senders, if nothing shows that the paths were full.
fn may_carry_more(account: &AccountSummary, context: &SentenceContext<'_>) -> String {
    if account.estimate.as_ref().is_none_or(|estimate| !estimate.at_least) {
        return String::new();
    }
    let mut limit_times: BTreeMap<Part, u64> = BTreeMap::new();
    for (part, span_ns) in account.links.iter().flat_map(|link| &link.limits_ns) {
        *limit_times.entry(*part).or_default() += span_ns;
    }
    let total_ns: u64 = limit_times.values().sum();
    let longest_limit = limit_times.into_iter().max_by_key(|(_, span_ns)| *span_ns);
    let Some((part, span_ns)) = longest_limit else { return String::new() };
    let percent = (span_ns as f64 * 100.0 / total_ns.max(1) as f64).round();
    let reason_text = if part == Part::Unknown {
        "the cause of the sender's wait is unknown".to_owned()
    } else {
        reason(account, part, context)
    };
    let paths_may = if account.links.len() == 1 { "the path may" } else { "the paths may" };
    format!("; for {percent} % of the time {reason_text}, so {paths_may} carry more")
}

fn not_accounted(account: &AccountSummary) -> String {
    match account.unlimited.as_slice() {
        [] => String::new(),
        names => format!(" (nothing limits {})", format::list(names)),
    }
}

/// Returns the setting that lifts a named window or buffer limit, with the hosts it belongs to.
fn advice(
    account: &AccountSummary,
    named: &[(Part, u64)],
    context: &SentenceContext<'_>,
) -> Option<Advice> {
    let BufferSizes { receive_window_bytes, send_buffer_bytes, grown_bytes, sufficient_bytes } =
        *context.sizes;
    let sufficient = sufficient_bytes?;
    named.iter().find_map(|(part, total)| {
        let [window, buffer] = grown_bytes;
        let (name, size, grown_size) = match part.group() {
            PartGroup::Window => ("receive-buffer", receive_window_bytes, window),
            PartGroup::SendBuffer => ("send-buffer", send_buffer_bytes, buffer),
            PartGroup::Delivered
            | PartGroup::Headers
            | PartGroup::Undelivered
            | PartGroup::Wasted
            | PartGroup::Application
            | PartGroup::Congestion
            | PartGroup::Pacing
            | PartGroup::Scheduler
            | PartGroup::Unusable
            | PartGroup::Cpu
            | PartGroup::Unknown => return None,
        };
        size.filter(|size| grown_size.max(*size) < sufficient)?;
        let (mut hosts, mut configured_bytes) = (BTreeSet::new(), 0);
        for link in account.links.iter().filter(|link| link.parts.of(*part) * 10 >= *total) {
            let Some(users) = context.users.iter().find(|users| users.is_of(link)) else {
                continue;
            };
            let is_window = part.group() == PartGroup::Window;
            let (advised_hosts, bytes) = if is_window {
                (&users.receivers, users.receive_buffer_bytes)
            } else {
                (&users.senders, users.send_buffer_bytes)
            };
            hosts.extend(advised_hosts);
            configured_bytes = bytes.max(configured_bytes);
        }
        let host = if let [only] = hosts.iter().collect::<Vec<_>>()[..] { only } else { "*" };
        let bytes = buffer_bytes(sufficient);
        (bytes > configured_bytes).then(|| Advice {
            part: *part,
            key: format!("hosts.{host}.{name}"),
            value: format::bytes(bytes),
        })
    })
}

pub(super) fn reason(
    account: &AccountSummary,
    part: Part,
    context: &SentenceContext<'_>,
) -> String {
    let SentenceContext { transport, sizes, .. } = *context;
    let links_text = || links_with(account, part);
    let size = |bytes: Option<u64>| {
        bytes.map_or_else(String::new, |bytes| format!(" of {}", format::bytes(bytes)))
    };
    match part {
        Part::Delivered | Part::Headers => part.label().to_owned(),
        Part::OutOfOrder => "data had arrived and waited for earlier data at the end".to_owned(),
        Part::InFlight => "data was in flight at the end".to_owned(),
        Part::Lost => format!("packets that {} had carried did not arrive", links_text()),
        Part::Spurious => "data was retransmitted spuriously".to_owned(),
        Part::Reinjected => "data was reinjected although it had arrived".to_owned(),
        Part::Redundant => "the scheduler sent copies".to_owned(),
        Part::Application => "there was nothing to send".to_owned(),
        Part::PeerWindow => {
            format!("the receive window{} was full", size(sizes.receive_window_bytes))
        }
        Part::HeadOfLineBlocking => {
            let blocking_path = main_blocking_path(&account.total);
            let size = size(sizes.receive_window_bytes);
            format!("the receive window{size} was full of data waiting for {blocking_path}")
        }
        Part::SlowStart => "the congestion window was still growing (slow start)".to_owned(),
        Part::AfterLoss => format!("packets were lost on {}", links_text()),
        Part::AfterOverflow => format!("the queue of {} overflowed", links_text()),
        Part::PacketSize => format!("packets were too large for {}", links_text()),
        Part::CongestionAvoidance => format!("the congestion window did not fill {}", links_text()),
        Part::SendBuffer => {
            format!("the send buffer{} was full", size(sizes.send_buffer_bytes))
        }
        Part::Pacing => "pacing limited the sender".to_owned(),
        Part::Scheduler => format!("the scheduler did not use {}", links_text()),
        Part::Down => {
            let names = links_text();
            let verb = if names.contains(" and ") { "were" } else { "was" };
            format!("{names} {verb} down")
        }
        Part::SinglePath => format!("{transport} uses one path only"),
        Part::NoSubflow => format!("there was no subflow on {}", links_text()),
        Part::Handshake => format!("the handshake on {} was not complete", links_text()),
        Part::Backup => {
            let names = links_text();
            let verb_phrase = if names.contains(" and ") { "are backups" } else { "is a backup" };
            format!("{names} {verb_phrase}")
        }
        Part::Stale => {
            let names = links_text();
            let verb = if names.contains(" and ") { "were" } else { "was" };
            format!("{names} {verb} considered failed")
        }
        Part::ReceiverCpu => "the receiver's processor was overloaded".to_owned(),
        Part::SenderCpu => "the sender's processor was busy".to_owned(),
        Part::Unknown => "of an unknown cause".to_owned(),
    }
}

/// Returns the path whose missing data blocked the window most.
fn main_blocking_path(total: &Parts) -> &str {
    let largest = total.blocked_by.iter().max_by_key(|(_, bytes)| **bytes);
    largest.map_or("another path", |(path, _)| path)
}

/// Returns the links with a tenth or more of this part's bytes.
fn links_with(account: &AccountSummary, part: Part) -> String {
    let total = account.total.of(part);
    let mut names: Vec<&str> = Vec::new();
    for link in &account.links {
        if link.parts.of(part) * 10 >= total && !names.contains(&link.path.as_str()) {
            names.push(&link.path);
        }
    }
    format::list(&names)
}
