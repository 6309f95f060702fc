//! Time–sequence pictures: for each subflow and direction, and for the data of a connection.

use std::fmt::Write as _;

use serde_json::{Value, json};
use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{
    CapturePoint, Record, Sequence, SequenceKind, SequenceMark, SequenceMarks, SequenceView,
};
use towpath_scenario::{Transport, World};

use super::panel::PageStyle;
use crate::chart::sequence::{MarkGroup, SequencePlot, mark_letter};
use crate::compare::direction;
use crate::series::{self, Mark};
use crate::text::esc;

/// Maximum number of pictures of one run; our own results have no more.
const MAX_PICTURES: usize = 24;
/// Number of points of the read-out.
const READOUT_POINTS: usize = 100;

/// Writes the pictures of a run with the numbers behind them; if it has none, a hint how to get
/// them.
pub(super) fn write(
    out: &mut String,
    run: &StoredRun,
    style: &PageStyle,
    number: usize,
) -> Option<Value> {
    let sequences: Vec<&Sequence> =
        run.records.iter().filter_map(sequence_of).take(MAX_PICTURES).collect();
    if sequences.is_empty() {
        write_hint(out, run);
        return None;
    }
    out.push_str("<details class=\"fold sequences\" open=\"open\"><summary>Sequence numbers over time</summary>");
    out.push_str(
        "<p class=\"about\">Bars are packets sent, from the first byte to the last. <b>R</b>: retransmitted. <b>D</b>: \
         retransmitted although it had arrived. <b>J</b>: reinjected after another subflow had carried it. <b>O</b>: \
         first seen out of order. The line below them shows the acknowledged data, the broken line above the end of \
         the receive window, if it is in range. Dots: duplicate acknowledgements. Hatched: SACK. <b>Z</b>: zero \
         window. Packets that are close in time are joined; none is left out.</p>",
    );
    let marks = series::marks(run);
    let last_ns = sequences.iter().filter_map(|s| s.views.first()).map(|view| view.to_ns).max();
    let end_s = (last_ns.unwrap_or(0) as f64 / 1e9).max(1e-3);
    let _ = write!(out, "<div class=\"panel\" data-panel=\"{number}\">");
    let mut charts = Vec::new();
    for sequence in sequences {
        let mut views = sequence.views.iter().take(2);
        let Some(whole_view) = views.next() else { continue };
        out.push_str("<div class=\"views\">");
        let picture = picture(sequence, whole_view, style, (0.0, end_s), &marks);
        figure(out, sequence, (whole_view, &picture), Some(charts.len()));
        charts.push(numbers(&picture, end_s));
        for view in views {
            let span = (view.from_ns as f64 / 1e9, view.to_ns as f64 / 1e9);
            let close_up = self::picture(sequence, view, style, span, &marks);
            figure(out, sequence, (view, &close_up), None);
        }
        out.push_str("</div>");
    }
    out.push_str("</div></details>");
    Some(json!({ "step": end_s / READOUT_POINTS as f64, "end": end_s, "charts": charts }))
}

fn sequence_of(record: &Record) -> Option<&Sequence> {
    let Record::Sequence(sequence) = record else { return None };
    Some(sequence)
}

/// Writes how to get pictures, if the run could have some.
fn write_hint(out: &mut String, run: &StoredRun) {
    let has_sequences = matches!(run.meta.transport, Transport::Tcp | Transport::Mptcp);
    let text = match run.meta.world {
        World::Emu if has_sequences => {
            "Sequence numbers over time need the packets: run it with <code>--pcap DIR</code> \
             (and <code>--snap 100</code>, which keeps the headers only)."
        }
        World::Live if has_sequences && run.meta.scenario_toml.is_empty() => return,
        World::Live if has_sequences => {
            "Sequence numbers over time need the packets: <code>towpath trace --interface any</code> \
             on either host while it is measured."
        }
        World::Sim if has_sequences && run.meta.repeat > 1 => {
            "Sequence numbers over time are kept of the first repetition."
        }
        World::Sim | World::Emu | World::Live => return,
    };
    let _ = write!(out, "<p class=\"about\">{text}</p>");
}

/// Returns the groups of a view in drawing order.
fn picture<'a>(
    sequence: &Sequence,
    view: &SequenceView,
    style: &PageStyle,
    (from_s, to_s): (f64, f64),
    events: &'a [Mark],
) -> SequencePlot<'a> {
    let group = |marks: &SequenceMarks| {
        let path = marks.subflow.and_then(|subflow| sequence.paths.get(subflow as usize));
        let path = path.or(sequence.paths.first()).map_or("", String::as_str);
        let (name, class, label) = describe(marks, path, style);
        MarkGroup { kind: marks.kind, name, class, label, marks: marks.each().collect() }
    };
    let mut groups: Vec<MarkGroup> = Vec::new();
    for marks in view.marks.iter().take(200) {
        let new_group = group(marks);
        match groups.iter_mut().find(|existing| existing.name == new_group.name) {
            Some(existing) => existing.marks.extend(new_group.marks),
            None => groups.push(new_group),
        }
    }
    for group in &mut groups {
        group.marks.sort_by_key(|mark| mark.t_ns);
    }
    groups.sort_by_key(|group| order(group.kind));
    SequencePlot { title: title(sequence), groups, from_s, to_s, events, class: "" }
}

/// Returns the drawing order; higher values are drawn on top.
fn order(kind: SequenceKind) -> usize {
    use SequenceKind as Kind;
    match kind {
        Kind::Sack => 0,
        Kind::Sent => 1,
        Kind::OutOfOrder => 2,
        Kind::Reinjected => 3,
        Kind::Ack => 4,
        Kind::DuplicateAck => 5,
        Kind::Retransmitted => 6,
        Kind::Spurious => 7,
        Kind::ZeroWindow => 8,
        Kind::Syn | Kind::Fin | Kind::Rst => 9,
    }
}

/// Returns name, classes and bar label of a group of marks.
fn describe(
    marks: &SequenceMarks,
    path: &str,
    style: &PageStyle,
) -> (String, String, Option<String>) {
    use SequenceKind as Kind;
    let (name, class) = match marks.kind {
        Kind::Sent => {
            let path_name = cut(&clean(path), 24);
            let (name, label) = match marks.subflow {
                Some(subflow) => (format!("sent on {path_name} ({subflow})"), Some(path_name)),
                None => ("sent".to_owned(), None),
            };
            return (name, format!("bars {}", style.class(path)), label);
        }
        Kind::OutOfOrder => ("first seen out of order", "bars thick late"),
        Kind::Retransmitted => ("retransmitted", "bars thick again"),
        Kind::Spurious => ("spuriously retransmitted", "bars thick needless"),
        Kind::Reinjected => ("reinjected", "bars thick reinjected"),
        Kind::Ack => ("acknowledged", "acked"),
        Kind::DuplicateAck => ("duplicate ACK", "twice"),
        Kind::Sack => ("SACK", "bars thin sacked"),
        Kind::ZeroWindow => ("zero window", "twice"),
        Kind::Syn => ("SYN", "ink"),
        Kind::Fin => ("FIN", "ink"),
        Kind::Rst => ("RST", "ink"),
    };
    (name.to_owned(), class.to_owned(), None)
}

fn title(sequence: &Sequence) -> String {
    let path = sequence.paths.first().map(|path| cut(&clean(path), 60)).unwrap_or_default();
    let stream =
        if sequence.stream > 0 { format!(" stream {}", sequence.stream) } else { String::new() };
    let flow_text = format!("flow {}{stream}, {}", sequence.flow, direction(sequence.direction));
    match sequence.subflow {
        Some(subflow) => format!("{path} (subflow {subflow}), {flow_text}"),
        None => format!("Data of all subflows, {flow_text}"),
    }
}

fn figure(
    out: &mut String,
    sequence: &Sequence,
    (view, picture): (&SequenceView, &SequencePlot<'_>),
    chart: Option<usize>,
) {
    let chart_attribute =
        chart.map(|number| format!(" data-chart=\"{number}\"")).unwrap_or_default();
    let description = if chart.is_some() { describe_view(sequence, view) } else { close_up(view) };
    let heading = if chart.is_some() { picture.title.as_str() } else { "Detail" };
    let _ = write!(
        out,
        "<figure{chart_attribute}><figcaption><strong>{}</strong> <span class=\"about\">{}</span>\
         </figcaption><ul class=\"legend\">",
        esc(heading),
        esc(&description)
    );
    let mut legend: Vec<(usize, &MarkGroup)> = picture.groups.iter().enumerate().collect();
    // SACK is drawn below everything, but readers do not need it first.
    legend.sort_by_key(|(_, group)| group.kind == SequenceKind::Sack);
    for (number, group) in legend {
        if matches!(group.kind, SequenceKind::Syn | SequenceKind::Fin | SequenceKind::Rst) {
            continue; // their letters in the picture need no legend
        }
        let keys = if chart.is_some() {
            format!(" data-s=\"{number}\" data-name=\"{}\"", esc(&group.name))
        } else {
            String::new()
        };
        let output = if chart.is_some() { "<output></output>" } else { "" };
        let _ = write!(
            out,
            "<li class=\"{}\"{keys}>{}<span>{}</span>{output}</li>",
            group.class,
            swatch(group.kind),
            esc(&group.name)
        );
    }
    if picture.has_window() {
        let name = if picture.shows_window() { "window" } else { "window (above the picture)" };
        let _ = write!(
            out,
            "<li class=\"acked\"><svg class=\"swatch\" width=\"22\" height=\"12\" aria-hidden=\"true\">\
             <path class=\"edge\" d=\"M0 6h22\"/></svg><span>{name}</span></li>"
        );
    }
    let _ = write!(out, "</ul>{}</figure>", picture.svg());
}

fn swatch(kind: SequenceKind) -> String {
    use SequenceKind as Kind;
    let shape = match kind {
        Kind::Ack => "<path d=\"M0 10h8v-7h14\"/>".to_owned(),
        Kind::DuplicateAck => "<path d=\"M11 6h0\"/>".to_owned(),
        Kind::Sent | Kind::Sack => "<path d=\"M6 11v-10M11 11v-10M16 11v-10\"/>".to_owned(),
        Kind::ZeroWindow => {
            format!("<path d=\"M5 6h0\"/><text x=\"11\" y=\"10\">{}</text>", mark_letter(kind))
        }
        Kind::OutOfOrder | Kind::Retransmitted | Kind::Spurious | Kind::Reinjected => {
            format!("<path d=\"M5 11v-10\"/><text x=\"10\" y=\"10\">{}</text>", mark_letter(kind))
        }
        Kind::Syn | Kind::Fin | Kind::Rst => String::new(),
    };
    format!("<svg class=\"swatch\" width=\"22\" height=\"12\" aria-hidden=\"true\">{shape}</svg>")
}

/// Describes the whole picture: capture point, retransmissions and precision.
fn describe_view(sequence: &Sequence, view: &SequenceView) -> String {
    let capture_text = match sequence.capture_point {
        CapturePoint::Sender => "seen at the sender",
        CapturePoint::Receiver => "seen at the receiver",
        CapturePoint::Between => "seen on the way",
        CapturePoint::Unknown => "as captured",
    };
    let retransmission_text = match sequence.retransmitted_packets {
        0 => "nothing retransmitted".to_owned(),
        1 => "1 packet retransmitted".to_owned(),
        count => format!("{} packets retransmitted", number::count(count as f64)),
    };
    let retransmission_text = if sequence.subflow.is_some() {
        retransmission_text
    } else {
        format!("{retransmission_text} by its subflows")
    };
    format!("{capture_text}; {retransmission_text}; {}", exactness(view))
}

fn close_up(view: &SequenceView) -> String {
    format!("{}; {}", cut(&clean(&view.label), 160), exactness(view))
}

fn exactness(view: &SequenceView) -> String {
    match view.column_ns {
        0 => "each packet by itself".to_owned(),
        width => format!("packets within {} are joined", number::time(width as f64)),
    }
}

/// Returns the cursor's read-out: the position of each line and of the sent data, and the number
/// of retransmitted packets in each part of the time.
fn numbers(picture: &SequencePlot<'_>, end_s: f64) -> Value {
    let step_s = end_s / READOUT_POINTS as f64;
    let series: Vec<Value> = picture
        .groups
        .iter()
        .map(|group| {
            let grows = matches!(group.kind, SequenceKind::Sent | SequenceKind::Ack);
            let mut values = vec![0.0_f64; READOUT_POINTS];
            for mark in &group.marks {
                let index = ((mark.t_ns as f64 / 1e9 / step_s) as usize).min(READOUT_POINTS - 1);
                let Some(value) = values.get_mut(index) else { continue };
                match group.kind {
                    SequenceKind::Sent => *value = value.max(mark.end_bytes as f64 / 1e6),
                    SequenceKind::Ack => *value = value.max(mark.start_bytes as f64 / 1e6),
                    SequenceKind::OutOfOrder
                    | SequenceKind::Retransmitted
                    | SequenceKind::Spurious
                    | SequenceKind::Reinjected
                    | SequenceKind::DuplicateAck
                    | SequenceKind::Sack
                    | SequenceKind::ZeroWindow
                    | SequenceKind::Syn
                    | SequenceKind::Fin
                    | SequenceKind::Rst => *value += f64::from(mark.packets),
                }
            }
            let mut max = 0.0_f64;
            for value in values.iter_mut().filter(|_| grows) {
                max = max.max(*value);
                *value = max;
            }
            let values: Vec<Value> = values.into_iter().map(rounded_json).collect();
            json!({ "k": "q", "v": values })
        })
        .collect();
    let (low, high, bottoms, tops) = picture.readout(READOUT_POINTS, end_s);
    let json_values = |values: Vec<f64>| values.into_iter().map(rounded_json).collect::<Vec<_>>();
    json!({
        "max": 1,
        "series": series,
        "fit": { "low": low, "high": high, "bottoms": json_values(bottoms), "tops": json_values(tops) },
    })
}

fn rounded_json(value: f64) -> Value {
    let rounded = (value * 1_000.0).round() / 1_000.0;
    if rounded.fract() == 0.0 && rounded.abs() < 1e15 {
        json!(rounded as i64)
    } else {
        json!(rounded)
    }
}

/// Returns the rows of the CSV table, one for each mark.
pub(crate) fn mark_values(run: &StoredRun) -> Vec<Value> {
    let mut values = Vec::new();
    for sequence in run.records.iter().filter_map(sequence_of) {
        for (number, view) in sequence.views.iter().enumerate() {
            for marks in &view.marks {
                let subflow = marks.subflow.or(sequence.subflow);
                let path = match sequence.subflow {
                    Some(_) => sequence.paths.first(),
                    None => {
                        marks.subflow.and_then(|subflow_id| sequence.paths.get(subflow_id as usize))
                    }
                };
                let value_of = |mark: SequenceMark| {
                    json!({
                        "t_ns": mark.t_ns, "flow": sequence.flow, "stream": sequence.stream,
                        "direction": sequence.direction, "subflow": subflow, "path": path,
                        "numbers": if sequence.subflow.is_some() { "subflow" } else { "data" },
                        "view": if number == 0 { "whole" } else { "part" },
                        "column_ns": view.column_ns, "kind": marks.kind,
                        "start_bytes": mark.start_bytes, "end_bytes": mark.end_bytes,
                        "packets": mark.packets,
                    })
                };
                values.extend(marks.each().map(value_of));
            }
        }
    }
    values
}
