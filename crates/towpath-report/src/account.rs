//! Capacity accounting as a table: each part of the capacity and its use.

use std::fmt::Write as _;

use towpath_result::format::text::{clean, cut, wrap};
use towpath_result::store::StoredRun;
use towpath_result::{AccountSummary, Part, Parts};
use towpath_scenario::DataDirection;

/// Width of the label column, in characters.
const LABEL_WIDTH: usize = 46;
/// Cell text for a rate that rounds to 0.00.
const NO_VALUE: &str = "–";
/// Width of a value column, in characters.
const COLUMN_WIDTH: usize = 12;

/// Returns the accounting table of each run: link capacity in Mbit/s and its use.
pub fn account_table(runs: &[StoredRun], width: usize) -> String {
    let mut out = String::new();
    for run in runs {
        let name = format!("{} ({}), run {}", run.meta.transport, run.meta.world, run.meta.repeat);
        let account = run.summary.as_ref().and_then(|summary| summary.account.as_deref());
        match account {
            Some(account) => write_account(&mut out, &name, account, width),
            None => {
                let _ = writeln!(out, "{name}: the result has no account of its capacity\n");
            }
        }
    }
    out
}

fn write_account(out: &mut String, name: &str, account: &AccountSummary, width: usize) {
    for line in wrap(&format!("{name}: {}", clean(&account.sentence)), width) {
        let _ = writeln!(out, "{line}");
    }
    if account.links.is_empty() {
        out.push('\n');
        return;
    }
    let links_per_table =
        (width.saturating_sub(LABEL_WIDTH) / COLUMN_WIDTH).saturating_sub(1).max(1);
    for links in account.links.chunks(links_per_table) {
        let columns: Vec<&Parts> =
            [&account.total].into_iter().chain(links.iter().map(|link| &link.parts)).collect();
        let link_titles = links.iter().map(|link| {
            let arrow = if link.direction == DataDirection::Down { "down" } else { "up" };
            cut(&format!("{} {arrow}", clean(&link.path)), COLUMN_WIDTH - 1)
        });
        let titles: Vec<String> = ["all".to_owned()].into_iter().chain(link_titles).collect();
        write_row(out, "Mbit/s", &titles);
        let rate = |bytes: u64| mbps(bytes, account.span_ns);
        let capacity = columns.iter().map(|parts| rate(parts.capacity_bytes));
        write_row(out, "capacity", &capacity.collect::<Vec<_>>());
        for part in Part::ALL {
            // A part that rounds to nothing gets no row.
            if mbps(account.total.of(part), account.span_ns) != NO_VALUE {
                let cells = columns.iter().map(|parts| rate(parts.of(part)));
                write_row(out, part.label(), &cells.collect::<Vec<_>>());
                write_blocked_by(out, part, &columns, account.span_ns);
            }
        }
    }
    write_limits(out, account, width);
    out.push('\n');
}

/// Writes the share of time for which each limit held, where the capacity is only an estimate.
fn write_limits(out: &mut String, account: &AccountSummary, width: usize) {
    if account.links.iter().all(|link| link.limits_ns.is_empty()) {
        return;
    }
    let _ = writeln!(out, "  what held senders back, whatever the paths could carry:");
    for link in &account.links {
        let total_ns: u64 = link.limits_ns.values().sum();
        let mut limits: Vec<_> = link.limits_ns.iter().collect();
        limits.sort_by_key(|(part, span)| (std::cmp::Reverse(**span), **part));
        let share = |span: u64| (span as f64 * 100.0 / total_ns.max(1) as f64).round();
        let significant = limits.iter().filter(|(_, span)| share(**span) >= 1.0);
        let lines: Vec<_> = significant
            .map(|(part, span)| format!("{} {} %", part.label(), share(**span)))
            .collect();
        let arrow = if link.direction == DataDirection::Down { "down" } else { "up" };
        let text = format!("{} {arrow}: {}", clean(&link.path), lines.join(", "));
        for line in wrap(&text, width.saturating_sub(4)) {
            let _ = writeln!(out, "    {line}");
        }
    }
}

fn write_row(out: &mut String, label: &str, cells: &[String]) {
    let mut line = format!("  {label:<LABEL_WIDTH$}");
    for cell in cells {
        let _ = write!(line, "{cell:>COLUMN_WIDTH$}");
    }
    let _ = writeln!(out, "{}", line.trim_end());
}

/// Writes the paths whose data caused the head-of-line blocking.
fn write_blocked_by(out: &mut String, part: Part, columns: &[&Parts], span_ns: u64) {
    let Some(total) = columns.first().filter(|_| part == Part::HeadOfLineBlocking) else { return };
    for path in total.blocked_by.keys().take(8) {
        let blocked_bytes = |parts: &&Parts| parts.blocked_by.get(path).copied().unwrap_or(0);
        let cells: Vec<_> =
            columns.iter().map(|parts| mbps(blocked_bytes(parts), span_ns)).collect();
        write_row(out, &cut(&format!("  that waits for {}", clean(path)), LABEL_WIDTH), &cells);
    }
}

fn mbps(bytes: u64, span_ns: u64) -> String {
    let text = format!("{:.2}", bytes as f64 * 8e3 / span_ns.max(1) as f64);
    if text == "0.00" { NO_VALUE.to_owned() } else { text }
}
