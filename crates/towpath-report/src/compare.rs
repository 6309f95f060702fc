//! The summary table: transports side by side. The terminal and the page show the same cells.

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::{FlowSummary, Recovery, StackStats};
use towpath_scenario::{DataDirection, units};

use crate::group::{FlowKey, MedianRange, RunGroup, flow_keys};

mod datagrams;
mod headline;
mod latency;
mod messages;
mod paths;
mod paths_used;
pub(crate) mod shares;

pub(crate) use headline::headlines;

/// Table cell of one group.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Cell {
    /// Formatted value; for repetitions the median.
    pub(crate) text: String,
    /// Text next to or below the value: time, count or range.
    pub(crate) note: String,
    pub(crate) tone: Tone,
    /// Length of a bar behind the value, 0 to 1, where lengths may be compared along the row.
    pub(crate) bar: Option<f64>,
}

/// Colour of a cell that gives a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Tone {
    #[default]
    Plain,
    Good,
    Bad,
}

/// A row: one metric of every group.
#[derive(Debug)]
pub(crate) struct TableRow {
    pub(crate) label: String,
    /// Explanation of the metric, for the page's tooltip.
    pub(crate) meaning: &'static str,
    pub(crate) cells: Vec<Cell>,
}

/// The rows of one flow in one direction.
#[derive(Debug)]
pub(crate) struct TableBlock {
    /// Title of the flow; empty when there is only one.
    pub(crate) title: String,
    pub(crate) rows: Vec<TableRow>,
}

/// Returns the table of all groups.
pub(crate) fn table(groups: &[RunGroup<'_>]) -> Vec<TableBlock> {
    let keys = flow_keys(groups);
    let paths = paths::blocks(groups);
    let several = keys.len() + paths.len() > 1;
    let flows = keys.iter().map(|&key| TableBlock {
        title: if several { flow_title(groups, key) } else { String::new() },
        rows: flow_rows(groups, key),
    });
    let mut blocks: Vec<_> = shares::blocks(groups).into_iter().chain(flows).chain(paths).collect();
    let multipath_row =
        row("Multipath", "whether every connection used the multipath protocol to its end", {
            groups.iter().map(multipath)
        });
    match blocks.as_mut_slice() {
        [only] => only.rows.push(multipath_row),
        _ => blocks.push(TableBlock { title: "whole run".to_owned(), rows: vec![multipath_row] }),
    }
    blocks
}

/// Returns a flow's title: `flow 0: bulk from phone to server`.
pub(crate) fn flow_title(groups: &[RunGroup<'_>], key: FlowKey) -> String {
    let mut flows = groups.iter().flat_map(|group| &group.runs).flat_map(|run| &run.meta.flows);
    let Some(flow) = flows.find(|flow| flow.flow == key.flow) else {
        return format!("flow {} {}", key.flow, direction(key.direction));
    };
    let (from, to) = match key.direction {
        DataDirection::Down => (&flow.to, &flow.from),
        DataDirection::Up | DataDirection::Both => (&flow.from, &flow.to),
    };
    clean(&format!("flow {}: {} from {from} to {to}", key.flow, flow.pattern))
}

/// Returns the direction's name: `up`, `down` or `both`.
pub(crate) fn direction(direction: DataDirection) -> &'static str {
    match direction {
        DataDirection::Up => "up",
        DataDirection::Down => "down",
        DataDirection::Both => "both",
    }
}

/// Beginnings of the labels of main rows; the others are detail.
const MAIN_LABELS: [&str; 30] = [
    "Share of ",
    "Score",
    "Rating R",
    "Mouth to ear",
    "Lost or not sent",
    "Late",
    "Frames in time",
    "Jain",
    "Requests answered",
    "Delay, median",
    "Delay, 99 %",
    "Delay, max",
    "Startup delay",
    "Rebuffer events",
    "Page load time",
    "Goodput",
    "Completed",
    "Longest stall",
    "Stall-free again after",
    "Recovery to 90 %",
    "Paths used",
    "Replies received",
    "Arrived",
    "Idle, median",
    "Loaded ",
    "Round trips per minute",
    "Lost in a row",
    "Jitter",
    "One-way delay, median",
    "Multipath",
];
/// Tables of at most this many rows are not split.
const MAX_UNSPLIT_ROWS: usize = 10;
/// Maximum number of main rows before the charts; further flows become detail.
const MAX_MAIN_ROWS: usize = 24;

/// Splits the table in two: the main rows, and the detail.
pub(crate) fn split_main_rows(blocks: Vec<TableBlock>) -> (Vec<TableBlock>, Vec<TableBlock>) {
    let row_count =
        |blocks: &[TableBlock]| blocks.iter().map(|block| block.rows.len()).sum::<usize>();
    if row_count(&blocks) <= MAX_UNSPLIT_ROWS {
        return (blocks, Vec::new());
    }
    let is_main = |row: &TableRow| MAIN_LABELS.iter().any(|label| row.label.starts_with(label));
    let mut main_blocks: Vec<TableBlock> = Vec::new();
    let mut detail_blocks: Vec<TableBlock> = Vec::new();
    for TableBlock { title, rows: block_rows } in blocks {
        let (main_rows, detail_rows): (Vec<TableRow>, Vec<TableRow>) = block_rows
            .into_iter()
            .partition(|row| row_count(&main_blocks) < MAX_MAIN_ROWS && is_main(row));
        if !main_rows.is_empty() {
            main_blocks.push(TableBlock { title: title.clone(), rows: main_rows });
        }
        if !detail_rows.is_empty() {
            detail_blocks.push(TableBlock { title, rows: detail_rows });
        }
    }
    (main_blocks, detail_blocks)
}

fn row(label: &str, meaning: &'static str, cells: impl Iterator<Item = Cell>) -> TableRow {
    TableRow { label: label.to_owned(), meaning, cells: cells.collect() }
}

fn flow_rows(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    let flow_row = |label: &str, meaning: &'static str, cell: fn(&[&FlowSummary]) -> Cell| {
        row(label, meaning, groups.iter().map(|group| cell(&group.flows(key))))
    };
    let mut goodput =
        flow_row("Goodput", "application bytes that the receiver read, over the time", |f| {
            median_cell(f.iter().map(|flow| flow.goodput_bps), number::rate)
        });
    add_bars(&mut goodput, groups, key);
    let has_messages = messages::is_exchange(groups, key);
    let is_datagrams = datagrams::is_constant_rate(groups, key);
    let mut rows = latency::rows(groups, key);
    rows.extend(messages::rows(groups, key));
    rows.extend(datagrams::rows(groups, key));
    rows.extend([
        goodput,
        flow_row("Received", "application bytes that the receiver read", |f| {
            median_cell(f.iter().map(|flow| flow.bytes as f64), number::bytes)
        }),
        flow_row(
            "Completed",
            if has_messages {
                "every request was answered"
            } else if is_datagrams {
                "datagrams arrived, and no host reported an error"
            } else {
                "ended as planned: complete, or still delivering in the last second"
            },
            completed,
        ),
    ]);
    if !is_datagrams {
        rows.push(flow_row(
            "Connect time",
            "from the start of the flow until the connection was open",
            |f| {
                let connect_times = f.iter().filter_map(|flow| flow.connect_ns);
                median_cell(connect_times.map(|ns| ns as f64), number::time)
            },
        ));
    }
    if !has_messages {
        rows.extend([
            flow_row("Longest stall", "longest time without a byte at the receiver", longest_stall),
            flow_row("Total stall time", "sum of all gaps of 100 ms and more", stalls),
        ]);
    }
    for event in events(groups, key) {
        rows.extend(recovery_rows(groups, key, &event));
    }
    // Datagrams have no connection, so they have no connection metrics.
    if !is_datagrams {
        rows.extend(connection_rows(groups, key));
    }
    rows
}

/// Returns the metrics that only a connection has.
fn connection_rows(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    let flow_row = |label: &str, meaning: &'static str, cell: fn(&[&FlowSummary]) -> Cell| {
        row(label, meaning, groups.iter().map(|group| cell(&group.flows(key))))
    };
    let mut rows = Vec::new();
    rows.push(flow_row("Retransmitted", "retransmitted packets of all subflows", |f| {
        median_cell(f.iter().map(|flow| flow.retransmissions as f64), number::count)
    }));
    rows.extend(stack_rows(groups, key));
    rows.push(row("Paths used", "share of the payload that arrived on each path", {
        groups.iter().map(|group| paths_used::cell(group, key))
    }));
    rows.push(flow_row("Congestion control", "read back from the sender's subflows", |f| {
        let mut names: Vec<_> = f.iter().flat_map(|flow| &flow.congestion_control).collect();
        names.sort();
        names.dedup();
        let names: Vec<_> = names.into_iter().map(|name| clean(name)).collect();
        plain(if names.is_empty() { "–".to_owned() } else { names.join(", ") })
    }));
    rows
}

/// Returns our own stack's connection-level metrics, each only if it occurred in some run.
fn stack_rows(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<TableRow> {
    type Pick = fn(&StackStats) -> Option<u64>;
    type Write = fn(f64) -> String;
    let candidates: [(&str, &'static str, Pick, Write); 5] = [
        (
            "Reinjected",
            "bytes sent a second time on another subflow",
            |stack| stack.reinjected_bytes,
            number::bytes,
        ),
        (
            "Duplicates discarded",
            "payload bytes that arrived more than once",
            |stack| stack.discarded_bytes,
            number::bytes,
        ),
        (
            "Reorder buffer, peak",
            "largest number of bytes that waited for earlier data at the receiver",
            |stack| stack.reorder_peak_bytes,
            number::bytes,
        ),
        (
            "Receive window full",
            "time for which the receive window stopped a sender that had data to send",
            |stack| stack.window_blocked_ns,
            number::time,
        ),
        (
            "Penalisations (M2)",
            "times that a path was slowed down because it blocked the receive window (M2)",
            |stack| stack.penalisations,
            number::count,
        ),
    ];
    let values_of = |group: &RunGroup<'_>, pick: Pick| -> Vec<u64> {
        let flows = group.flows(key);
        flows.iter().filter_map(|flow| pick(flow.stack.as_ref()?)).collect()
    };
    let is_nonzero = |pick: Pick| groups.iter().any(|g| values_of(g, pick).iter().any(|n| *n > 0));
    let occurred = candidates.into_iter().filter(|(_, _, pick, _)| is_nonzero(*pick));
    occurred
        .map(|(label, meaning, pick, format)| {
            let cell =
                |group| median_cell(values_of(group, pick).into_iter().map(|n| n as f64), format);
            row(label, meaning, groups.iter().map(cell))
        })
        .collect()
}

fn plain(text: String) -> Cell {
    Cell { text, ..Cell::default() }
}

fn missing() -> Cell {
    plain("–".to_owned())
}

/// Formats a median, with its range when there are several values.
fn median_cell(values: impl IntoIterator<Item = f64>, format: fn(f64) -> String) -> Cell {
    let Some(spread) = MedianRange::of(values) else { return missing() };
    let (text, low, high) = (format(spread.median), format(spread.min), format(spread.max));
    // Repetitions that agree in every digit shown need no range.
    let note = if low == high { String::new() } else { number::spread(&low, &high) };
    Cell { text, note, ..Cell::default() }
}

fn add_bars(row: &mut TableRow, groups: &[RunGroup<'_>], key: FlowKey) {
    let median = |group: &RunGroup<'_>| {
        MedianRange::of(group.flows(key).iter().map(|flow| flow.goodput_bps))
            .map_or(0.0, |s| s.median)
    };
    let medians: Vec<f64> = groups.iter().map(median).collect();
    let best = medians.iter().copied().fold(0.0, f64::max);
    if best > 0.0 && groups.len() > 1 {
        for (cell, median) in row.cells.iter_mut().zip(medians) {
            cell.bar = Some((median / best).clamp(0.0, 1.0));
        }
    }
}

fn completed(flows: &[&FlowSummary]) -> Cell {
    let done = flows.iter().filter(|flow| flow.completed).count();
    let mut reasons: Vec<_> =
        flows.iter().filter_map(|flow| flow.failure.as_deref()).map(clean).collect();
    reasons.dedup();
    let (text, tone) = match (done, flows.len()) {
        (_, 0) => return missing(),
        (1, 1) => ("yes".to_owned(), Tone::Good),
        (0, 1) => ("no".to_owned(), Tone::Bad),
        (done, total) => {
            (format!("{done} of {total}"), if done == total { Tone::Good } else { Tone::Bad })
        }
    };
    Cell { text, note: reasons.join("; "), tone, bar: None }
}

fn longest_stall(flows: &[&FlowSummary]) -> Cell {
    match flows {
        [flow] if flow.stall.longest_ns > 0 => Cell {
            text: number::time(flow.stall.longest_ns as f64),
            note: format!("at {}", number::short_moment(flow.stall.longest_at_ns as f64 / 1e9)),
            ..Cell::default()
        },
        _ => median_cell(flows.iter().map(|flow| flow.stall.longest_ns as f64), stall_time),
    }
}

fn stalls(flows: &[&FlowSummary]) -> Cell {
    match flows {
        [flow] if flow.stall.count > 0 => Cell {
            text: number::time(flow.stall.total_ns as f64),
            note: if flow.stall.count == 1 {
                "1 gap".to_owned()
            } else {
                format!("{} gaps", flow.stall.count)
            },
            ..Cell::default()
        },
        _ => median_cell(flows.iter().map(|flow| flow.stall.total_ns as f64), stall_time),
    }
}

fn stall_time(ns: f64) -> String {
    if ns <= 0.0 { "none".to_owned() } else { number::time(ns) }
}

/// Maximum time difference between events of two repetitions that count as the same event.
const MAX_EVENT_SKEW_NS: u64 = 100_000_000;

/// Returns the events (time in ns and text) that recoveries refer to, in order of time.
fn events(groups: &[RunGroup<'_>], key: FlowKey) -> Vec<(u64, String)> {
    let mut events: Vec<(u64, String)> = Vec::new();
    for recovery in groups.iter().flat_map(|g| g.flows(key)).flat_map(|flow| &flow.recoveries) {
        let is_listed = |event: &(u64, String)| is_event(recovery, event);
        if !events.iter().any(is_listed) {
            events.push((recovery.event_ns, recovery.event.clone()));
        }
    }
    events.sort();
    events
}

fn is_event(recovery: &Recovery, event: &(u64, String)) -> bool {
    recovery.event == event.1 && recovery.event_ns.abs_diff(event.0) < MAX_EVENT_SKEW_NS
}

fn recovery_rows(groups: &[RunGroup<'_>], key: FlowKey, event: &(u64, String)) -> [TableRow; 3] {
    let recoveries = |group: &RunGroup<'_>| -> Vec<Recovery> {
        let of_event = |r: &&Recovery| is_event(r, event);
        let flows = group.flows(key);
        flows.iter().filter_map(|flow| flow.recoveries.iter().find(of_event)).cloned().collect()
    };
    let time_text = number::short_moment(event.0 as f64 / 1e9);
    // A label that wraps could begin a table line with text from the scenario's author.
    let event_text = truncate_words(&clean(&event.1), 16);
    [
        row(
            &format!("Stall-free again after {event_text} ({time_text})"),
            "time from the event to the end of the last gap of 100 ms or more that it caused",
            groups
                .iter()
                .map(|group| recovery_time_cell(&recoveries(group), |r| r.last_stall_end_ns)),
        ),
        row(
            "Recovery to 90 %",
            "time until goodput is back to 90 % of its former rate, or of what the remaining paths carry",
            groups.iter().map(|group| recovery_cell(&recoveries(group))),
        ),
        row(
            "Shortfall by then",
            "bytes that the reference rate would have delivered in addition, until recovery or the end",
            groups.iter().map(|group| {
                median_cell(recoveries(group).iter().map(|r| r.deficit_bytes as f64), number::bytes)
            }),
        ),
    ]
}

/// Cuts a text after a whole word, so that numbers stay complete.
fn truncate_words(text: &str, max_chars: usize) -> String {
    let shortened = cut(text, max_chars);
    let fits = text.chars().count() <= max_chars;
    match shortened.rsplit_once(' ').filter(|_| !fits) {
        Some((words, _)) => format!("{words}…"),
        None => shortened,
    }
}

/// Formats times that some runs reached and others never did.
fn recovery_time_cell(recoveries: &[Recovery], time: impl Fn(&Recovery) -> Option<u64>) -> Cell {
    let times: Vec<f64> = recoveries.iter().filter_map(time).map(|ns| ns as f64).collect();
    match (times.len(), recoveries.len()) {
        (_, 0) => missing(),
        (0, _) => Cell { text: "never".to_owned(), tone: Tone::Bad, ..Cell::default() },
        (recovered, total) if recovered < total => {
            let cell = median_cell(times, number::time);
            let note = format!("{recovered} of {total} recovered");
            Cell { note, tone: Tone::Bad, ..cell }
        }
        _ => median_cell(times, number::time),
    }
}

/// Formats the recovery to 90 %; adds the reference rate where a single run leaves the note empty.
fn recovery_cell(recoveries: &[Recovery]) -> Cell {
    let mut cell = recovery_time_cell(recoveries, |recovery| recovery.t90_ns);
    if let [only] = recoveries
        && cell.note.is_empty()
    {
        cell.note = format!("of {}", number::rate(only.reference_bps));
    }
    cell
}

fn multipath(group: &RunGroup<'_>) -> Cell {
    let states: Vec<_> = group.summaries().map(|summary| &summary.multipath).collect();
    let Some(first) = states.first() else { return missing() };
    if !first.requested {
        return plain("not requested".to_owned());
    }
    let used_count = states.iter().filter(|multipath| multipath.used).count();
    let on_several_paths = states.iter().filter(|multipath| multipath.paths_used.len() > 1).count();
    let fallback = states.iter().find_map(|multipath| multipath.fallback.as_deref());
    let partly_used = states.iter().any(|multipath| multipath.is_partly_used());
    let answer = if partly_used { "partly" } else { "no" };
    let failed_cell =
        |note: String| Cell { text: answer.to_owned(), note, tone: Tone::Bad, bar: None };
    match fallback {
        Some(reason) if used_count == 0 => failed_cell(clean(reason)),
        None if used_count == 0 => failed_cell(String::new()),
        _ if used_count < states.len() => Cell {
            text: format!("{used_count} of {}", states.len()),
            note: fallback.map(clean).unwrap_or_default(),
            tone: Tone::Bad,
            bar: None,
        },
        _ if on_several_paths == 0 => plain("negotiated, but one path carried all data".to_owned()),
        _ => {
            // A flow that never connected leaves the proof of the others.
            let unused =
                states.iter().find_map(|multipath| multipath.unused_flows().into_iter().next());
            let note =
                unused.map(|group| format!("not {}: {}", group.names(), clean(group.reason)));
            let (text, note) = ("yes".to_owned(), note.unwrap_or_default());
            Cell { text, note, tone: Tone::Good, ..Cell::default() }
        }
    }
}

/// One expectation of a group.
#[derive(Debug)]
pub(crate) struct ExpectationRow {
    pub(crate) label: String,
    pub(crate) text: String,
    /// Measured values of the repetitions, equal texts once.
    pub(crate) measured: String,
    /// Summary of the outcomes: `yes`, `no`, `3 of 5`.
    pub(crate) outcome: String,
    pub(crate) runs: usize,
    pub(crate) tone: Tone,
}

/// Returns every expectation of every group, repetitions taken together.
pub(crate) fn expectation_rows(groups: &[RunGroup<'_>]) -> Vec<ExpectationRow> {
    let mut rows = Vec::new();
    for group in groups {
        let mut texts: Vec<&str> = Vec::new();
        for expectation in group.summaries().flat_map(|summary| &summary.expectations) {
            if !texts.contains(&expectation.text.as_str()) {
                texts.push(&expectation.text);
            }
        }
        rows.extend(texts.into_iter().map(|text| expectation_row(group, text)));
    }
    rows
}

fn expectation_row(group: &RunGroup<'_>, text: &str) -> ExpectationRow {
    let expectations: Vec<_> = group
        .summaries()
        .flat_map(|summary| &summary.expectations)
        .filter(|e| e.text == text)
        .collect();
    let measured = measured_range(expectations.iter().map(|e| clean(&e.measured)).collect());
    let passed = expectations.iter().filter(|e| e.passed == Some(true)).count();
    let is_unmeasured = expectations.iter().all(|e| e.passed.is_none());
    let (outcome, tone) = match (passed, expectations.len()) {
        _ if is_unmeasured => ("not measured".to_owned(), Tone::Plain),
        (1, 1) => ("yes".to_owned(), Tone::Good),
        (0, 1) => ("no".to_owned(), Tone::Bad),
        (passed, total) if passed == total => (format!("{passed} of {total}"), Tone::Good),
        (passed, total) => (format!("{passed} of {total}"), Tone::Bad),
    };
    ExpectationRow {
        label: group.label.clone(),
        text: clean(text),
        measured,
        outcome,
        runs: expectations.len(),
        tone,
    }
}

/// Formats the measured values of the repetitions as a range: `28.3–28.6 Mbit/s`.
fn measured_range(mut texts: Vec<String>) -> String {
    texts.retain(|text| !text.is_empty());
    let value = |text: &str| match text {
        "never" => f64::INFINITY,
        text => units::quantity(text).map_or(f64::MAX, units::Quantity::as_f64),
    };
    texts.sort_by(|a, b| value(a).total_cmp(&value(b)).then(a.cmp(b)));
    texts.dedup();
    match texts.as_slice() {
        [] => "nothing".to_owned(),
        [only] => only.clone(),
        [first, .., last] => number::spread(first, last),
    }
}

#[cfg(test)]
mod tests {
    use super::{measured_range, truncate_words};

    #[test]
    fn the_name_of_an_event_is_cut_between_words() {
        assert_eq!(truncate_words("wifi down", 16), "wifi down");
        assert_eq!(truncate_words("wifi fades to 10 Mbit/s", 16), "wifi fades to…");
        assert_eq!(truncate_words("averylongnameofapath down", 16), "averylongnameof…");
    }

    #[test]
    fn measured_values_are_ordered_by_size_for_any_unit() {
        let range_of =
            |texts: &[&str]| measured_range(texts.iter().map(|&text| text.to_owned()).collect());
        assert_eq!(range_of(&["1.02 s", "910 ms", "95 ms"]), "95 ms – 1.02 s");
        assert_eq!(
            range_of(&["9.50 Mbit/s", "10.1 Mbit/s", "999 kbit/s"]),
            "999 kbit/s – 10.1 Mbit/s"
        );
        assert_eq!(range_of(&["never", "2.00 s"]), "2.00 s – never");
        assert_eq!(range_of(&["10", "9"]), "9–10");
        assert_eq!(range_of(&["12.3 %", "8 %"]), "8–12.3 %");
        assert_eq!(range_of(&["1.00 kB", "999 B"]), "999 B – 1.00 kB");
    }
}
