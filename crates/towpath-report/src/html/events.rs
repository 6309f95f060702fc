//! The event list, with frequent decisions of a stack folded.

use std::fmt::Write as _;

use towpath_result::format;
use towpath_result::format::number;
use towpath_result::store::StoredRun;
use towpath_result::{Event, EventKind, Record};

use super::panel::PageStyle;
use super::run::{FOLD_AFTER, MAX_LISTED, and_more, fold, path_dot, table_end, table_head};
use crate::series::detail_number;
use crate::text::esc;

/// Maximum number of equal decisions between two timeline events that are listed one by one.
const MAX_UNFOLDED: usize = 3;

fn kind(kind: EventKind) -> &'static str {
    match kind {
        EventKind::Timeline => "timeline",
        EventKind::Flow => "flow",
        EventKind::Subflow => "subflow",
        EventKind::PathManager => "path manager",
        EventKind::Link => "link",
        EventKind::Address => "address",
        EventKind::Stall => "stall",
        EventKind::Scheduler => "scheduler",
        EventKind::Reinjection => "reinjection",
        EventKind::Penalisation => "penalisation",
        EventKind::Window => "window",
        EventKind::Fallback => "fallback",
    }
}

/// One line of the list: an event, or many decisions of the same kind.
#[derive(Debug)]
struct EventRow<'a> {
    first: &'a Event,
    /// All events of the row, the first included.
    events: Vec<&'a Event>,
}

pub(super) fn write(out: &mut String, run: &StoredRun, style: &PageStyle) {
    let mut events: Vec<&Event> = Vec::new();
    for record in &run.records {
        if let Record::Event(event) = record {
            events.push(event);
        }
    }
    if events.is_empty() {
        return;
    }
    events.sort_by_key(|event| event.t_ns);
    let mut lines = fold_decisions(&events);
    let omitted = if is_capture(run) { lines.len().saturating_sub(MAX_LISTED) } else { 0 };
    if omitted > 0 {
        // A fallback concerns the whole connection, so it is listed first.
        lines.sort_by_key(|line| (line.first.kind != EventKind::Fallback, line.first.t_ns));
        lines.truncate(MAX_LISTED);
        lines.sort_by_key(|line| line.first.t_ns);
    }
    fold(
        out,
        &format!("Events ({})", format::count(events.len() as u64, "event")),
        lines.len() <= FOLD_AFTER,
    );
    table_head(out, "list log", &["time", "kind", "host", "path", "event"]);
    for line in lines {
        line.write(out, style);
    }
    table_end(out);
    and_more(out, omitted, "events");
    out.push_str("</details>");
}

/// Returns true if packets of any number of connections make the events.
fn is_capture(run: &StoredRun) -> bool {
    run.records.iter().any(|record| matches!(record, Record::Capture(_)))
}

/// Folds decisions of the same kind where there are many between two events of the timeline. The
/// effect of each event thus stays visible.
fn fold_decisions<'a>(events: &[&'a Event]) -> Vec<EventRow<'a>> {
    let mut rows: Vec<EventRow<'a>> = Vec::new();
    for section in events.chunk_by(|_, next| next.kind != EventKind::Timeline) {
        let mut section_rows: Vec<EventRow<'a>> = Vec::new();
        for event in section {
            let is_same_row = |line: &&mut EventRow<'_>| {
                event.kind.is_decision() && is_same_decision(line.first, event)
            };
            match section_rows.iter_mut().find(is_same_row) {
                Some(row) => row.events.push(event),
                None => section_rows.push(EventRow { first: event, events: vec![event] }),
            }
        }
        for row in section_rows {
            if row.events.len() > MAX_UNFOLDED {
                rows.push(row);
            } else {
                rows.extend(
                    row.events
                        .into_iter()
                        .map(|event| EventRow { first: event, events: vec![event] }),
                );
            }
        }
    }
    rows.sort_by_key(|row| row.first.t_ns);
    rows
}

fn is_same_decision(a: &Event, b: &Event) -> bool {
    let detail = |event: &Event, name: &str| event.detail.get(name).cloned();
    let is_equal = |name: &str| detail(a, name) == detail(b, name);
    (a.kind, &a.host, &a.path) == (b.kind, &b.host, &b.path)
        && is_equal("cause")
        && is_equal("stream")
}

impl EventRow<'_> {
    fn write(&self, out: &mut String, style: &PageStyle) {
        let event = self.first;
        let time = match self.events.last() {
            Some(last) if last.t_ns > event.t_ns => {
                number::spread(&number::moment(event.t_ns), &number::moment(last.t_ns))
            }
            _ => number::moment(event.t_ns),
        };
        let host = event.host.as_deref().unwrap_or("");
        let path = event.path.as_deref().map_or(String::new(), |path| path_dot(style, path));
        let _ = write!(
            out,
            "<tr class=\"k-{}\"><td class=\"n\">{time}</td><td>{}</td><td>{}</td><td>{path}</td>\
             <td>{}",
            kind(event.kind).replace(' ', "-"),
            kind(event.kind),
            esc(host),
            esc(&self.text())
        );
        let detail: Vec<_> = event.detail.iter().map(|(k, v)| format!("{k} {v}")).collect();
        // A decision's text already contains its details.
        if !detail.is_empty() && !event.kind.is_decision() {
            let _ = write!(out, " <small>{}</small>", esc(&detail.join(", ")));
        }
        out.push_str("</td></tr>");
    }

    fn sum(&self, name: &str) -> Option<u64> {
        self.events.iter().map(|event| detail_number(event, name)).sum()
    }

    fn text(&self) -> String {
        let count = self.events.len();
        if count == 1 {
            return self.first.text.clone();
        }
        let cause = self.first.detail.get("cause").map(|cause| format!(": {cause}"));
        let cause = cause.unwrap_or_default();
        match self.first.kind {
            EventKind::Scheduler => self.sum("switches").map(|switches| {
                let run = self.sum("run_bytes").and_then(|bytes| bytes.checked_div(switches));
                let run =
                    run.map(|bytes| format!(", after {} on average", number::bytes(bytes as f64)));
                let switches = number::count(switches as f64);
                format!("{switches} switches between subflows{}", run.unwrap_or_default())
            }),
            EventKind::Reinjection => self
                .sum("bytes")
                .map(|bytes| format!("{} reinjected{cause}", number::bytes(bytes as f64))),
            EventKind::Penalisation => self.sum("times").map(|times| {
                let times = number::count(times as f64);
                format!("penalised {times} ×: it blocked the receive window (M2)")
            }),
            EventKind::Window => self.sum("blocked_ns").map(|ns| {
                let longest =
                    self.events.iter().filter_map(|e| detail_number(e, "blocked_ns")).max();
                let longest = number::time(longest.unwrap_or(0) as f64);
                format!(
                    "receive window full {count} ×, {} in total, at most {longest}",
                    number::time(ns as f64)
                )
            }),
            EventKind::Timeline
            | EventKind::Flow
            | EventKind::Subflow
            | EventKind::PathManager
            | EventKind::Link
            | EventKind::Address
            | EventKind::Stall
            | EventKind::Fallback => None,
        }
        .unwrap_or_else(|| format!("{} (and {} more)", self.first.text, count - 1))
    }
}
