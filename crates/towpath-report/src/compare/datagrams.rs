//! Table rows of flows that send datagrams at a constant rate.

use towpath_result::format::number;
use towpath_result::{CallStats, DatagramStats, DelayBasis, DelayStats};

use super::{Cell, TableRow, median_cell, missing, row};
use crate::group::{FlowKey, RunGroup};

/// Label, meaning, and function for the metric.
type DatagramMetric = (&'static str, &'static str, fn(&[DatagramStats]) -> Cell);

const ROWS: [DatagramMetric; 18] = [
    ("Score", "mean opinion score of the call, 1 to 4.5 (ITU-T G.107)", |all| {
        call_cell(all, |d| d.score, |score| format!("{score:.2}"))
    }),
    ("Rating R", "of the call, 0 to 100 (ITU-T G.107)", |all| {
        call_cell(all, |d| d.rating, |rating| format!("{rating:.1}"))
    }),
    (
        "Mouth to ear",
        "packetisation, network and jitter buffer; the note names the source of the network's part",
        mouth_to_ear,
    ),
    ("Lost or not sent", "datagrams of the call that never arrived", |all| {
        call_share_cell(all, |d| d.lost, |d| d.sent.saturating_add(d.unsent))
    }),
    ("Late", "datagrams that arrived too late for the jitter buffer", |all| {
        call_share_cell(all, |d| d.late, |d| d.sent.saturating_add(d.unsent))
    }),
    ("Frames in time", "video frames whose datagrams all arrived in time", frames),
    ("Arrived", "distinct datagrams that arrived, of those sent", arrived),
    ("Lost in a row", "longest run of lost datagrams", |all| counts(all, |d| d.longest_loss_run)),
    ("Duplicated", "datagrams that arrived more than once", |all| counts(all, |d| d.duplicated)),
    ("Out of order", "datagrams that arrived after one that was sent later", |all| {
        counts(all, |d| d.out_of_order)
    }),
    ("Jitter", "interarrival jitter (RFC 3550 §6.4.1) at the last arrival", |all| {
        times(all, |d| Some(d.jitter_ns))
    }),
    ("Jitter, mean", "its mean over all arrivals", |all| times(all, |d| Some(d.jitter_mean_ns))),
    ("One-way delay, median", "from sent to received", |all| delay(all, |d| d.p50_ns)),
    ("One-way delay, 99 %", "from sent to received", |all| delay(all, |d| d.p99_ns)),
    ("One-way delay, max", "from sent to received", |all| delay(all, |d| d.max_ns)),
    ("Variation, median", "one-way delay, less the smallest", |all| variation(all, |d| d.p50_ns)),
    ("Variation, 99 %", "one-way delay, less the smallest", |all| variation(all, |d| d.p99_ns)),
    ("Not sent in time", "datagrams that were due and that the sender could not send", |all| {
        counts(all, |d| d.unsent)
    }),
];

fn datagram_metrics(group: &RunGroup<'_>, key: FlowKey) -> Vec<DatagramStats> {
    group.flows(key).iter().filter_map(|flow| flow.datagrams.clone()).collect()
}

/// Returns true if a flow sends datagrams at a constant rate.
pub(super) fn is_constant_rate(groups: &[RunGroup<'_>], key: FlowKey) -> bool {
    groups.iter().any(|group| !datagram_metrics(group, key).is_empty())
}

/// Returns the rows that have a value in some group.
pub(super) fn rows(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    let stats_by_group: Vec<_> = groups.iter().map(|group| datagram_metrics(group, key)).collect();
    ROWS.iter()
        .map(|(label, meaning, cell)| {
            row(label, meaning, stats_by_group.iter().map(|stats| cell(stats)))
        })
        .filter(|row| row.cells.iter().any(|cell| *cell != missing()))
        .collect()
}

fn arrived(all: &[DatagramStats]) -> Cell {
    let sum = |pick: fn(&DatagramStats) -> u64| all.iter().map(pick).fold(0, u64::saturating_add);
    let (received, sent, lost) = (sum(|d| d.received), sum(|d| d.sent), sum(|d| d.lost));
    if sent == 0 {
        return missing();
    }
    let share = number::percent(lost as f64 / sent as f64);
    let note = if lost > 0 { format!("{lost} lost: {share}") } else { String::new() };
    Cell { text: format!("{received} of {sent}"), note, ..Cell::default() }
}

/// Formats a metric of calls.
fn call_cell(
    all: &[DatagramStats],
    pick: fn(&CallStats) -> Option<f64>,
    text: fn(f64) -> String,
) -> Cell {
    median_cell(all.iter().filter_map(|d| pick(d.call.as_ref()?)), text)
}

fn call_share_cell(
    all: &[DatagramStats],
    part: fn(&CallStats) -> u64,
    total: fn(&DatagramStats) -> u64,
) -> Cell {
    let share = |d: &DatagramStats| Some(part(d.call.as_ref()?) as f64 / total(d).max(1) as f64);
    median_cell(all.iter().filter_map(share), number::percent)
}

fn frames(all: &[DatagramStats]) -> Cell {
    let share = |d: &DatagramStats| {
        let call = d.call.as_ref().filter(|call| call.score.is_none())?;
        Some(1.0 - call.unplayed_share())
    };
    median_cell(all.iter().filter_map(share), number::percent)
}

fn mouth_to_ear(all: &[DatagramStats]) -> Cell {
    let calls = || all.iter().filter_map(|d| d.call.as_ref());
    let cell = median_cell(calls().filter_map(|d| Some(d.mouth_to_ear_ns? as f64)), number::time);
    let note = match calls().next().map(|d| d.basis) {
        Some(DelayBasis::ClockOffset) => "by the clocks' offset",
        Some(DelayBasis::HalfRoundTrip) => "half the round trip",
        Some(DelayBasis::OneClock) | None => return cell,
    };
    match cell.note.as_str() {
        _ if cell == missing() => cell,
        "" => Cell { note: note.to_owned(), ..cell },
        range => Cell { note: format!("{range}, {note}"), ..cell },
    }
}

fn counts(all: &[DatagramStats], pick: fn(&DatagramStats) -> u64) -> Cell {
    // An event that never happened needs no row.
    if all.iter().all(|d| pick(d) == 0) {
        return missing();
    }
    median_cell(all.iter().map(|d| pick(d) as f64), number::count)
}

fn times(all: &[DatagramStats], pick: fn(&DatagramStats) -> Option<u64>) -> Cell {
    median_cell(all.iter().filter_map(pick).map(|ns| ns as f64), number::time)
}

fn delay(all: &[DatagramStats], pick: fn(&DelayStats) -> u64) -> Cell {
    median_cell(all.iter().filter_map(|d| Some(pick(&d.delay?) as f64)), number::time)
}

fn variation(all: &[DatagramStats], pick: fn(&DelayStats) -> u64) -> Cell {
    // The one-way delay says more than its variation, which is shown only without it.
    let without_delay = all.iter().filter(|d| d.delay.is_none());
    median_cell(without_delay.filter_map(|d| Some(pick(&d.variation?) as f64)), number::time)
}
