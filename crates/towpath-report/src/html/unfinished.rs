//! Charts of a run in progress, for a page that replaces them while records arrive.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::store::StoredRun;
use towpath_result::{EventKind, Record};

use super::panel;
use super::panel::PageStyle;
use super::write_event_legend;
use crate::compare::direction;
use crate::series;
use crate::series::Grid;
use crate::text::esc;

/// Number of the latest events on the page.
const SHOWN_EVENTS: usize = 8;

/// Returns the charts of a run so far: goodput by subflow, its latest values, and the latest events.
/// The result is markup without scripts, in which all texts of the run are escaped.
pub fn unfinished_run(run: &StoredRun) -> String {
    let style = PageStyle::of(std::slice::from_ref(run));
    let mut out = String::new();
    let _ = write!(out, "<p class=\"facts\" role=\"status\">{}</p>", esc(&progress(run)));
    let charts = panel::goodput_panel(run, &style);
    if charts.charts.is_empty() {
        out.push_str("<p class=\"none\">No data has arrived yet.</p>");
    } else {
        write_event_legend(&mut out, &charts);
        charts.write(&mut out, 0);
    }
    write_events(&mut out, run);
    out
}

/// Returns the time so far and the goodput of the last period: `4.2 s of 10 s · 38 Mbit/s`.
fn progress(run: &StoredRun) -> String {
    let moment = |ns: u64| number::short_moment(ns as f64 / 1e9);
    let time = |record: &Record| {
        if let Record::Interval(interval) = record {
            return Some(interval.t_ns);
        }
        if let Record::Subflow(subflow) = record { Some(subflow.t_ns) } else { None }
    };
    let times = run.records.iter().filter_map(time);
    let now_ns = times.max().unwrap_or(0);
    let mut parts = vec![format!("{} of {}", moment(now_ns), moment(run.meta.duration_ns))];
    let grid = Grid::of(&[run]);
    let directions = series::directions(run);
    for &data_direction in &directions {
        let latest = series::goodput(run, &grid, data_direction).into_iter().flatten().last();
        let suffix = match directions.len() {
            0 | 1 => String::new(),
            _ => format!(" {}", direction(data_direction)),
        };
        parts.extend(latest.map(|rate| format!("{}{suffix}", number::rate(rate))));
    }
    parts.join(" · ")
}

fn write_events(out: &mut String, run: &StoredRun) {
    let mut events = Vec::new();
    for record in &run.records {
        if let Record::Event(event) = record
            && !event.kind.is_decision()
            && event.kind != EventKind::Timeline
        {
            events.push(event);
        }
    }
    if events.is_empty() {
        return;
    }
    out.push_str("<h2>Latest events</h2><ol class=\"latest\">");
    for event in events.iter().rev().take(SHOWN_EVENTS) {
        let moment = number::short_moment(event.t_ns as f64 / 1e9);
        let _ = write!(out, "<li><span>{moment}</span> {}</li>", esc(&event.text));
    }
    out.push_str("</ol>");
}
