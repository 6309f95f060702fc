//! Sentences about all repetitions of a run: verdict and capacity account.

use std::collections::BTreeMap;
use std::time::Duration;

use towpath_result::format::text::clean;
use towpath_result::{AccountSummary, Part, Summary, format};

use crate::group::{MedianRange, RunGroup, verdict};

/// Maximum number of reasons for unused capacity in a sentence.
const MAX_CAUSES: usize = 3;
/// Share of the capacity below which a reason is left out.
const MIN_CAUSE_SHARE: f64 = 0.01;

/// Returns the verdict on a group: that of its only run, or one on all of its repetitions.
pub(crate) fn group_verdict(group: &RunGroup<'_>) -> Option<String> {
    let mut texts: Vec<_> = group.runs.iter().copied().filter_map(verdict).collect();
    let count = texts.len();
    texts.dedup();
    match texts.as_slice() {
        [] => None,
        [only] if group.runs.len() == 1 => Some(only.clone()),
        [only] if count == group.runs.len() => Some(format!("in every run: {only}")),
        _ => Some(repeated_verdict(group)),
    }
}

/// Returns the account's sentence of a group: that of its only run, or one on all repetitions.
pub(crate) fn group_account(group: &RunGroup<'_>) -> Option<String> {
    let accounts: Vec<_> = group.summaries().filter_map(|s| s.account.as_deref()).collect();
    let first = accounts.first()?;
    let all_equal = accounts.iter().all(|account| account.sentence == first.sentence);
    let is_whole = accounts.len() == group.runs.len();
    if group.runs.len() == 1 || (all_equal && is_whole) {
        return Some(clean(&first.sentence)).filter(|sentence| !sentence.is_empty());
    }
    repeated_account(&accounts)
}

/// Describes amounts, paths and stalls of all runs, then the first run that was not as planned.
fn repeated_verdict(group: &RunGroup<'_>) -> String {
    let summaries: Vec<_> = group.summaries().collect();
    let mut parts = vec![format!("{}{}", amount_text(&summaries), paths_text(&summaries))];
    parts.extend(stall_text(&summaries));
    parts.extend(fallback_text(&summaries));
    let failed = { group.runs.iter() }
        .find(|run| run.summary.as_ref().is_some_and(|summary| !summary.ok))
        .and_then(|run| Some((run.meta.repeat, verdict(run)?)));
    if let Some((number, text)) = failed {
        parts.push(format!("not as planned, run {number}: {text}"));
    }
    parts.join("; ")
}

/// Describes the main metric of all runs: delays of replies, goodput, or answers to datagrams.
fn amount_text(summaries: &[&Summary]) -> String {
    let time = |ns: f64| format::time(Duration::from_nanos(ns as u64));
    let half_delay = |summary: &&Summary| {
        let messages = summary.flows.iter().filter_map(|flow| flow.messages.as_ref());
        messages.filter(|m| m.answered > 0).map(|m| m.delay.p50_ns).max().map(|ns| ns as f64)
    };
    if let Some(delays) = MedianRange::of(summaries.iter().filter_map(half_delay)) {
        return format!("answered half of the requests within {}", range_text(delays, time));
    }
    let goodput = |summary: &&Summary| {
        let transfers = summary.flows.iter().filter(|flow| flow.datagrams.is_none());
        let rates: Vec<_> = transfers.map(|flow| flow.goodput_bps).collect();
        (!rates.is_empty()).then(|| rates.iter().sum::<f64>())
    };
    if let Some(rates) = MedianRange::of(summaries.iter().filter_map(goodput)) {
        return format!("delivered at {}", range_text(rates, format::rate));
    }
    let datagrams = |summary: &&Summary| {
        let flows = summary.flows.iter().filter_map(|flow| flow.datagrams.as_ref());
        let flows = flows.map(|stats| (stats.received, stats.sent));
        let paths = summary.paths.iter().map(|path| (path.answered, path.count));
        let sum = |(a, b): (u64, u64), (c, d)| (a.saturating_add(c), b.saturating_add(d));
        let (arrived, sent) = flows.chain(paths).fold((0, 0), sum);
        (sent > 0).then(|| arrived as f64 / sent as f64)
    };
    match MedianRange::of(summaries.iter().filter_map(datagrams)) {
        Some(shares) => format!("{} of the datagrams arrived", range_text(shares, format::share)),
        None => "delivered nothing".to_owned(),
    }
}

/// Formats a median with its range: `28.4 Mbit/s (28.3 Mbit/s to 28.6 Mbit/s)`.
fn range_text(range: MedianRange, text: impl Fn(f64) -> String) -> String {
    let [median, min, max] = [range.median, range.min, range.max].map(text);
    if min == max { median } else { format!("{median} ({min} to {max})") }
}

/// Describes the paths that the runs used, and in how many runs if they differ.
fn paths_text(summaries: &[&Summary]) -> String {
    let mut counts: BTreeMap<&[String], usize> = BTreeMap::new();
    for summary in summaries {
        *counts.entry(&summary.multipath.paths_used).or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let names = |paths: &[String]| match paths {
        [] => "no path".to_owned(),
        paths => clean(&format::list(paths)),
    };
    match counts.as_slice() {
        [] | [([], _)] => String::new(),
        [(paths, _)] => format!(" over {}", names(paths)),
        _ => {
            let texts = counts.iter().map(|(paths, count)| {
                format!("over {} in {}", names(paths), format::count(*count as u64, "run"))
            });
            format!(" {}", texts.collect::<Vec<_>>().join(", "))
        }
    }
}

/// Describes the longest stalls of all runs; `None` if no run had one.
fn stall_text(summaries: &[&Summary]) -> Option<String> {
    let longest = |summary: &&Summary| {
        let stalls = summary.flows.iter().map(|flow| flow.stall);
        stalls.filter(|stall| stall.count > 0).map(|stall| stall.longest_ns).max()
    };
    let stalls: Vec<_> = summaries.iter().filter_map(longest).collect();
    let range = MedianRange::of(stalls.iter().map(|ns| *ns as f64))?;
    let time = |ns: f64| format::seconds(Duration::from_nanos(ns as u64));
    let (count, total) = (stalls.len(), summaries.len());
    let runs =
        if count == total { "every run".to_owned() } else { format!("{count} of {total} runs") };
    Some(format!("the longest stall in {runs} lasted {}", range_text(range, time)))
}

/// Describes the runs that did not use the requested multipath transport; `None` if all used it.
fn fallback_text(summaries: &[&Summary]) -> Option<String> {
    let proofs = summaries.iter().map(|summary| &summary.multipath);
    let unused: Vec<_> = proofs.filter(|proof| proof.requested && !proof.used).collect();
    let reason = unused.iter().find_map(|proof| proof.fallback.as_deref())?;
    let (count, total) = (unused.len(), summaries.len());
    Some(format!("multipath was not used to the end in {count} of {total} runs: {}", clean(reason)))
}

/// Describes the capacity of all runs together: its mean rate, the share that carried payload, and
/// the main reasons why the rest was not used.
fn repeated_account(accounts: &[&AccountSummary]) -> Option<String> {
    let counted: Vec<_> =
        accounts.iter().filter(|a| a.total.capacity_bytes > 0 && a.span_ns > 0).collect();
    let share = |account: &AccountSummary, part: Part| {
        account.total.of(part) as f64 / account.total.capacity_bytes.max(1) as f64
    };
    let mean = |part: Part| {
        counted.iter().map(|account| share(account, part)).sum::<f64>() / counted.len() as f64
    };
    let capacity = |account: &&&AccountSummary| {
        account.total.capacity_bytes as f64 * 8e9 / account.span_ns as f64
    };
    let rates = MedianRange::of(counted.iter().map(capacity))?;
    let payload = MedianRange::of(counted.iter().map(|account| share(account, Part::Delivered)))?;
    let mut causes: Vec<_> = { Part::ALL.into_iter() }
        .filter(|part| !matches!(part, Part::Delivered | Part::Headers))
        .map(|part| (part, mean(part)))
        .filter(|(_, share)| *share >= MIN_CAUSE_SHARE)
        .collect();
    causes.sort_by(|(_, a), (_, b)| b.total_cmp(a));
    let causes = causes.iter().take(MAX_CAUSES);
    let texts: Vec<_> =
        causes.map(|(part, share)| format!("{} {}", part.label(), format::share(*share))).collect();
    let rest = match texts.as_slice() {
        [] => String::new(),
        texts => format!("; mean shares of the rest: {}", texts.join(", ")),
    };
    let (capacity, payload) = (range_text(rates, format::rate), range_text(payload, format::share));
    let is_estimate = counted.iter().any(|account| account.estimate.is_some());
    let estimated = if is_estimate { "an estimated " } else { "" };
    Some(format!("of {estimated}{capacity}, {payload} carried payload{rest}"))
}
