//! Table rows of flows that exchange messages: the delays of their replies.

use towpath_result::format::number;
use towpath_result::{DelayStats, FlowSummary, MessageStats, Summary};

use super::{Cell, TableRow, Tone, median_cell, missing, row};
use crate::group::{FlowKey, MedianRange, RunGroup};

/// Label, meaning, and function for the metric.
type MessageMetric = (&'static str, &'static str, fn(&[MessageStats]) -> Cell);

const ROWS: [MessageMetric; 12] = [
    ("Requests answered", "requests with a reply, of those due", answered),
    ("Delay, median", "from the due time of a request to its reply", |all| {
        delay(all, |d| d.p50_ns)
    }),
    ("Delay, mean", "with the standard deviation", mean),
    ("Delay, 90 %", "90 % of the requests had their reply within this time", |all| {
        delay(all, |d| d.p90_ns)
    }),
    ("Delay, 99 %", "99 % of the requests had their reply within this time", |all| {
        delay(all, |d| d.p99_ns)
    }),
    ("Delay, 99.9 %", "99.9 % of the requests had their reply within this time", |all| {
        delay(all, |d| d.p999_ns)
    }),
    ("Delay, max", "of the slowest reply", |all| delay(all, |d| d.max_ns)),
    ("One-way delay, median", "from the due time of a request to its arrival", |all| {
        times(all, |m| Some(m.delivery?.p50_ns))
    }),
    ("Startup delay", "from the request to play until playback began", |all| {
        times(all, |m| m.video?.startup_ns)
    }),
    ("Rebuffer events", "times that playback stopped for lack of data", stalls),
    ("Rebuffer time", "time for which playback was stopped", |all| {
        times(all, |m| Some(m.video?.rebuffer_ns))
    }),
    ("Page load time", "until all objects of the page had arrived", |all| {
        times(all, |m| m.page?.load_ns)
    }),
];

/// Returns true if a flow exchanges messages; byte stream metrics mean little then.
pub(super) fn is_exchange(groups: &[RunGroup<'_>], key: FlowKey) -> bool {
    groups.iter().flat_map(|group| group.flows(key)).any(|flow| flow.messages.is_some())
}

/// Returns a sentence such as `Max delay: mptcp 617 ms, tcp 4.28 s: 6.9 times as long.`
pub(super) fn headline(groups: &[RunGroup<'_>]) -> Option<String> {
    let slowest = |summary: &Summary| -> Option<f64> {
        let messages = summary.flows.iter().filter_map(|flow| flow.messages.as_ref());
        messages.filter(|m| m.count > 0).map(|m| m.delay.max_ns as f64).reduce(f64::max)
    };
    let mut medians: Vec<(f64, &str)> = Vec::new();
    for group in groups {
        let spread = MedianRange::of(group.summaries().filter_map(slowest))?;
        medians.push((spread.median, &group.label));
    }
    medians.sort_by(|a, b| a.0.total_cmp(&b.0));
    let [(best, winner), (second, name), ..] = medians.as_slice() else { return None };
    let ratio = second / best.max(1.0);
    let (best, second) = (number::time(*best), number::time(*second));
    Some(if ratio < 1.05 {
        format!("The slowest replies of {winner} and {name} took about the same time ({best}).")
    } else {
        format!("Max delay: {winner} {best}, {name} {second}: {ratio:.1} times as long.")
    })
}

/// Returns the rows that have a value in some group.
pub(super) fn rows(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    let stats_of = |group: &RunGroup<'_>| -> Vec<MessageStats> {
        let stats_of_flow = |flow: &&FlowSummary| flow.messages.clone().filter(|m| m.count > 0);
        group.flows(key).iter().filter_map(stats_of_flow).collect()
    };
    let stats_by_group: Vec<_> = groups.iter().map(stats_of).collect();
    ROWS.iter()
        .map(|(label, meaning, cell)| {
            row(label, meaning, stats_by_group.iter().map(|group| cell(group)))
        })
        .filter(|row| row.cells.iter().any(|cell| *cell != missing()))
        .collect()
}

fn times(all: &[MessageStats], pick: fn(&MessageStats) -> Option<u64>) -> Cell {
    median_cell(all.iter().filter_map(pick).map(|ns| ns as f64), number::time)
}

fn delay(all: &[MessageStats], pick: fn(&DelayStats) -> u64) -> Cell {
    median_cell(all.iter().map(|messages| pick(&messages.delay) as f64), number::time)
}

fn mean(all: &[MessageStats]) -> Cell {
    match all {
        [only] => Cell {
            text: number::time(only.delay.mean_ns as f64),
            note: format!("± {}", number::time(only.delay.stddev_ns as f64)),
            ..Cell::default()
        },
        _ => delay(all, |d| d.mean_ns),
    }
}

fn answered(all: &[MessageStats]) -> Cell {
    let sum = |pick: fn(&MessageStats) -> u64| all.iter().map(pick).sum::<u64>();
    let (answered, count) = (sum(|m| m.answered), sum(|m| m.count));
    if count == 0 {
        return missing();
    }
    let tone = if answered == count { Tone::Good } else { Tone::Bad };
    Cell { text: format!("{answered} of {count}"), tone, ..Cell::default() }
}

fn stalls(all: &[MessageStats]) -> Cell {
    let videos = all.iter().filter_map(|messages| messages.video);
    median_cell(videos.map(|video| f64::from(video.stalls)), |n| match n {
        0.0 => "never".to_owned(),
        1.0 => "once".to_owned(),
        n => format!("{} times", number::count(n)),
    })
}
