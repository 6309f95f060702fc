//! The tables below a run's charts: subflows, events, proof, conditions, and reproduction.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{
    Counter, EmulatorTiming, FlowMultipathUse, Interface, Link, Record, SubflowSummary,
};
use towpath_scenario::{DataDirection, Transport, World};

use super::panel::PageStyle;
use super::{capture, events};
use crate::compare::direction;
use crate::text::{esc, prose};

/// Maximum length of a list that is open at first.
pub(super) const FOLD_AFTER: usize = 30;

pub(super) fn write(out: &mut String, run: &StoredRun, style: &PageStyle) {
    subflows(out, run, style);
    capture::write(out, run, style);
    events::write(out, run, style);
    links(out, run, style);
    proof(out, run);
    conditions(out, run);
    reproduce(out, run);
}

/// Maximum number of rows that a list of a capture has.
pub(super) const MAX_LISTED: usize = 1_000;

/// Writes the number of items that a list leaves out; writes nothing without any.
pub(super) fn and_more(out: &mut String, omitted: usize, noun: &str) {
    if omitted > 0 {
        let omitted = number::count(omitted as f64);
        let _ = write!(
            out,
            "<p class=\"about\">and {omitted} more {noun}: see the result (<code>--json</code>)</p>"
        );
    }
}

/// Opens a folded block; the caller closes `</details>`.
pub(super) fn fold(out: &mut String, title: &str, open: bool) {
    let open = if open { " open=\"open\"" } else { "" };
    let _ = write!(out, "<details class=\"fold\"{open}><summary>{}</summary>", esc(title));
}

pub(super) fn table_head(out: &mut String, class: &str, columns: &[&str]) {
    let _ = write!(out, "<div class=\"scroll\"><table class=\"{class}\"><thead><tr>");
    for column in columns {
        let _ = write!(out, "<th scope=\"col\">{column}</th>");
    }
    out.push_str("</tr></thead><tbody>");
}

pub(super) fn table_end(out: &mut String) {
    out.push_str("</tbody></table></div>");
}

pub(super) fn path_dot(style: &PageStyle, path: &str) -> String {
    let name = cut(&clean(path), 40);
    format!("<span class=\"path\"><i class=\"dot {}\"></i>{}</span>", style.class(path), esc(&name))
}

fn subflows(out: &mut String, run: &StoredRun, style: &PageStyle) {
    let mut subflows: Vec<&SubflowSummary> = run.summary.iter().flat_map(|s| &s.subflows).collect();
    if subflows.is_empty() {
        return;
    }
    fold(out, &format!("Subflows ({})", subflows.len()), subflows.len() <= FOLD_AFTER);
    let omitted = subflows.len().saturating_sub(MAX_LISTED);
    if omitted > 0 {
        subflows.sort_by_key(|subflow| std::cmp::Reverse(subflow.bytes));
        subflows.truncate(MAX_LISTED);
    }
    table_head(
        out,
        "list",
        &[
            "path",
            "flow",
            "addresses",
            "received",
            "share",
            "retr.",
            "last srtt",
            "first seen",
            "closed",
        ],
    );
    for s in subflows {
        let stream = if s.stream > 0 { format!(" stream {}", s.stream) } else { String::new() };
        let backup = if s.backup { " <small>backup</small>" } else { "" };
        let closed = s.closed_ns.map_or("–".to_owned(), number::moment);
        let _ = write!(
            out,
            "<tr><td>{}{backup}</td><td class=\"keep\">{} {}{stream}</td><td class=\"code\">{} → {}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td><td class=\"n\">{closed}</td></tr>",
            path_dot(style, &s.path),
            s.flow,
            direction(s.direction),
            esc(&s.local),
            esc(&s.remote),
            number::bytes(s.bytes as f64),
            number::percent(s.share),
            number::count(s.retransmissions as f64),
            // Without a sample, the round-trip time is unknown.
            if s.srtt_us == 0 {
                "–".to_owned()
            } else {
                number::time(f64::from(s.srtt_us) * 1e3)
            },
            number::moment(s.first_seen_ns),
        );
    }
    table_end(out);
    and_more(out, omitted, "subflows");
    out.push_str("</details>");
}

/// Writes the last record of every link and direction, which contains totals.
fn links(out: &mut String, run: &StoredRun, style: &PageStyle) {
    let mut last_records: Vec<&Link> = Vec::new();
    for record in &run.records {
        if let Record::Link(link) = record {
            match last_records
                .iter_mut()
                .find(|l| l.path == link.path && l.direction == link.direction)
            {
                Some(record) => *record = link,
                None => last_records.push(link),
            }
        }
    }
    if last_records.is_empty() {
        return;
    }
    fold(out, "Links: totals", false);
    table_head(
        out,
        "list",
        &[
            "link",
            "direction",
            "offered",
            "delivered",
            "delivered",
            "queue full",
            "lost",
            "while down",
        ],
    );
    for link in last_records {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td>",
            path_dot(style, &link.path),
            direction(link.direction)
        );
        for text in [
            number::count(link.offered_packets as f64),
            number::count(link.delivered_packets as f64),
            number::bytes(link.delivered_bytes as f64),
            number::count(link.dropped_queue_packets as f64),
            number::count(link.dropped_loss_packets as f64),
            number::count(link.dropped_down_packets as f64),
        ] {
            let _ = write!(out, "<td class=\"n\">{text}</td>");
        }
        out.push_str("</tr>");
    }
    table_end(out);
    out.push_str("<p class=\"about\">Packets and bytes as IP sees them.</p></details>");
}

fn proof(out: &mut String, run: &StoredRun) {
    let mut counters: Vec<&Counter> = Vec::new();
    let mut interfaces: Vec<&Interface> = Vec::new();
    for record in &run.records {
        if let Record::Counter(counter) = record {
            counters.push(counter);
        }
        if let Record::Interface(interface) = record {
            interfaces.push(interface);
        }
    }
    if let Some(multipath) = run.summary.as_ref().map(|summary| &summary.multipath) {
        out.push_str("<h3>Was multipath used?</h3>");
        let answer = match (multipath.requested, multipath.used, &multipath.fallback) {
            (false, ..) => "Not requested.".to_owned(),
            (true, true, _) => {
                let paths: Vec<_> = multipath.paths_used.iter().map(|path| clean(path)).collect();
                match paths.as_slice() {
                    [] => "Negotiated, but no payload arrived.".to_owned(),
                    [path] => format!("Negotiated, but only {path} carried payload."),
                    _ => format!("Yes: payload arrived on {}.", first_of(&paths).join(" and ")),
                }
            }
            (true, false, _) if multipath.is_partly_used() => {
                "Partly: some flows used it, others did not.".to_owned()
            }
            (true, false, Some(reason)) => format!("No: {}.", clean(reason)),
            (true, false, None) => "No.".to_owned(),
        };
        let _ = write!(out, "<p>{}</p>", esc(&answer));
        flow_multipath_table(out, &multipath.flows);
        if !multipath.evidence.is_empty() {
            out.push_str("<ul class=\"evidence\">");
            for line in &multipath.evidence {
                let _ = write!(out, "<li>{}</li>", prose(line));
            }
            out.push_str("</ul>");
        }
    }
    counter_table(out, &counters);
    interface_table(out, &interfaces);
}

/// Returns the first names of a long list, and the number of the others.
pub(super) fn first_of(names: &[String]) -> Vec<String> {
    let listed = names.iter().take(MAX_NAMES).cloned();
    let omitted = names.len().saturating_sub(MAX_NAMES);
    let others = (omitted > 0).then(|| format!("{} others", number::count(omitted as f64)));
    listed.chain(others).collect()
}

/// Maximum number of names in a sentence.
const MAX_NAMES: usize = 24;

/// Writes the use by each flow, if the run had several.
fn flow_multipath_table(out: &mut String, flows: &[FlowMultipathUse]) {
    if flows.len() < 2 {
        return;
    }
    table_head(out, "list", &["flow", "used", "paths with payload", "reason"]);
    for flow in flows {
        let paths: Vec<_> = flow.paths_used.iter().map(|path| clean(path)).collect();
        let reason = flow.fallback.as_deref().map(clean).unwrap_or_default();
        let used = if flow.used { "yes" } else { "no" };
        let _ = write!(
            out,
            "<tr><td class=\"n\">{}</td><td>{used}</td><td>{}</td><td>{}</td></tr>",
            flow.flow,
            esc(&paths.join(", ")),
            esc(&reason)
        );
    }
    table_end(out);
}

fn counter_table(out: &mut String, counters: &[&Counter]) {
    if counters.is_empty() {
        return;
    }
    fold(out, &format!("Counters that changed ({})", counters.len()), false);
    table_head(out, "list", &["host", "counter", "before", "after", "change"]);
    for counter in counters {
        let (before, after) = (counter.before as f64, counter.after as f64);
        let sign = if after >= before { "+" } else { "" };
        let _ = write!(
            out,
            "<tr><td>{}</td><td class=\"code\">{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{sign}{}</td></tr>",
            esc(&counter.host),
            esc(&counter.name),
            number::count(before),
            number::count(after),
            number::count(after - before)
        );
    }
    table_end(out);
    out.push_str("</details>");
}

fn interface_table(out: &mut String, interfaces: &[&Interface]) {
    if interfaces.is_empty() {
        return;
    }
    fold(out, "Interfaces: totals", false);
    table_head(
        out,
        "list",
        &["host", "interface", "received", "sent", "dropped in", "dropped out"],
    );
    for i in interfaces {
        let _ = write!(
            out,
            "<tr><td>{}</td><td>{}</td><td class=\"n\">{}</td><td class=\"n\">{}</td>\
             <td class=\"n\">{}</td><td class=\"n\">{}</td></tr>",
            esc(&i.host),
            esc(&i.interface),
            number::bytes(i.rx_bytes as f64),
            number::bytes(i.tx_bytes as f64),
            number::count(i.rx_dropped as f64),
            number::count(i.tx_dropped as f64)
        );
    }
    table_end(out);
    out.push_str("</details>");
}

/// Maximum number of paths among the conditions.
const MAX_LISTED_PATHS: usize = 100;

fn conditions(out: &mut String, run: &StoredRun) {
    let meta = &run.meta;
    let mut facts: Vec<(String, String)> = vec![
        ("world".to_owned(), meta.world.to_string()),
        ("stack".to_owned(), stack(run)),
        ("kernel".to_owned(), meta.kernel.clone()),
        ("congestion control requested".to_owned(), meta.congestion_control.clone()),
        ("seed".to_owned(), meta.seed.to_string()),
        ("sampling interval".to_owned(), number::period(meta.sample_ns)),
    ];
    let paths = meta.paths.iter().take(MAX_LISTED_PATHS);
    facts.extend(paths.map(|path| (format!("path {}", path.name), path.text.clone())));
    let omitted = meta.paths.len().saturating_sub(MAX_LISTED_PATHS);
    if omitted > 0 {
        facts.push(("further paths".to_owned(), number::count(omitted as f64)));
    }
    facts.extend(meta.conditions.iter().map(|(name, value)| (name.clone(), value.clone())));
    for record in &run.records {
        // Virtual time has no timing errors.
        if let Record::Timing(timing) = record
            && meta.world != World::Sim
        {
            facts.extend(timing_facts(timing));
        }
    }
    out.push_str("<h3>Conditions</h3><dl class=\"conditions\">");
    for (name, value) in facts.iter().filter(|(_, value)| !value.is_empty()) {
        let _ = write!(out, "<div><dt>{}</dt><dd>{}</dd></div>", esc(name), esc(value));
    }
    out.push_str("</dl>");
}

/// Returns the stack as text. QUIC always comes from a library.
fn stack(run: &StoredRun) -> String {
    let meta = &run.meta;
    match (meta.transport, meta.world) {
        (Transport::Tcp | Transport::Mptcp, _) => meta.stack.clone(),
        (Transport::Quic | Transport::Mpquic, World::Sim) => "a QUIC library".to_owned(),
        (Transport::Quic | Transport::Mpquic, _) => {
            "a QUIC library over the kernel\u{2019}s UDP".to_owned()
        }
    }
}

fn timing_facts(timing: &EmulatorTiming) -> Vec<(String, String)> {
    let time = |ns: u64| number::time(ns as f64);
    let lateness = format!(
        "median {}, 90 % {}, 99 % {}, 99.9 % {}, largest {} of {} packets",
        time(timing.lateness_p50_ns),
        time(timing.lateness_p90_ns),
        time(timing.lateness_p99_ns),
        time(timing.lateness_p999_ns),
        time(timing.lateness_max_ns),
        number::count(timing.packets as f64)
    );
    let mut facts = vec![("emulator lateness".to_owned(), lateness)];
    // Virtual time is never late.
    if timing.lateness_max_ns > 0 {
        facts.insert(0, ("delay accuracy".to_owned(), timing.describe()));
    }
    facts.extend(timing.describe_wake_ups().map(|text| ("emulator wake-ups".to_owned(), text)));
    facts.extend([
        ("emulator packet loss".to_owned(), number::count(timing.lost_packets as f64)),
        ("load average".to_owned(), format!("{:.2}", timing.load)),
        ("emulator CPU time".to_owned(), format!("{:.2} s", timing.emulator_cpu_s)),
        ("CPU used by other processes".to_owned(), number::percent(timing.other_cpu_share)),
    ]);
    facts
}

fn reproduce(out: &mut String, run: &StoredRun) {
    let name = clean(&run.meta.scenario);
    let file_char = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let file_name: String = name.chars().take(60).map(file_char).collect();
    out.push_str("<h3>Reproduce this run</h3>");
    if let Some(result) = &run.file {
        let _ = write!(out, "<p>Result file: <code>{}</code></p>", esc(result));
    }
    if run.meta.scenario_toml.is_empty() {
        return; // a capture has no scenario
    }
    if run.meta.world == World::Live {
        reproduce_live(out, run);
        return;
    }
    let meta = &run.meta;
    let _ = write!(
        out,
        "<p>Run <code>{}</code>: save the scenario as <code>{file_name}.toml</code>, then</p>\
         <pre><code>towpath run {file_name}.toml --world {} --transport {} --seed {}</code></pre>",
        esc(&meta.run),
        meta.world,
        meta.transport,
        meta.seed
    );
    fold(out, "Scenario of this run", false);
    let _ = write!(out, "<pre><code>{}</code></pre></details>", esc(&meta.scenario_toml));
}

/// Writes the command that repeats a live measurement, or a sentence why none can: real hosts and
/// links cannot be recreated.
fn reproduce_live(out: &mut String, run: &StoredRun) {
    let meta = &run.meta;
    let Some(server) = meta.conditions.get("server") else {
        let command = meta.scenario_toml.trim().trim_start_matches("# no scenario: ");
        out.push_str(
            "<p>This was measured on real hosts and links; no command can recreate them. What \
             was run:</p>",
        );
        let _ = write!(out, "<pre><code>{}</code></pre>", esc(command));
        return;
    };
    out.push_str(
        "<p>This was measured between two real hosts; their links may differ next time. \
         With <code>towpath server</code> still running there (<code>--port</code> if it has another \
         than 5210):</p>",
    );
    let Some(flow) = meta.flows.iter().find(|flow| flow.pattern != "udping") else { return };
    let mut command = format!(
        "towpath measure {} {} --transport {} --time {}",
        clean(server),
        clean(&flow.pattern),
        meta.transport,
        number::short_moment(meta.duration_ns as f64 / 1e9).replace(' ', "")
    );
    if flow.streams > 1 {
        let _ = write!(command, " --parallel {}", flow.streams);
    }
    command.push_str(match flow.direction {
        DataDirection::Up => "",
        DataDirection::Down => " --reverse",
        DataDirection::Both => " --bidir",
    });
    let _ = write!(out, "<pre><code>{}</code></pre>", esc(&command));
    fold(out, "Traffic, with every setting", false);
    let _ = write!(out, "<pre><code>{}</code></pre></details>", esc(&meta.scenario_toml));
}
