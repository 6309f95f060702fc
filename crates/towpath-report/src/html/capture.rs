//! Facts from a packet capture that other results do not have.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::store::StoredRun;
use towpath_result::{
    CapturePoint, CapturedConnection, CapturedDirection, CapturedSubflow, CutEvidence, DelayStats,
    Record, SubflowDirection, max_listed_subflows,
};

use super::panel::PageStyle;
use super::run::{FOLD_AFTER, MAX_LISTED, and_more, fold, path_dot, table_end, table_head};
use crate::compare::direction;
use crate::text::esc;

pub(super) fn write(out: &mut String, run: &StoredRun, style: &PageStyle) {
    let connections: Vec<&CapturedConnection> =
        run.records.iter().filter_map(captured_connection).collect();
    if connections.is_empty() {
        return;
    }
    fold(
        out,
        &format!("Captured connections ({})", connections.len()),
        connections.len() <= FOLD_AFTER,
    );
    let listed = connections.get(..MAX_LISTED).unwrap_or(&connections);
    direction_rows(out, listed);
    and_more(out, connections.len() - listed.len(), "connections");
    subflows(out, listed, style);
    out.push_str("</details>");
}

fn captured_connection(record: &Record) -> Option<&CapturedConnection> {
    let Record::Capture(connection) = record else { return None };
    Some(connection)
}

fn direction_rows(out: &mut String, connections: &[&CapturedConnection]) {
    let columns = [
        "flow",
        "captured at",
        "data",
        "goodput",
        "throughput",
        "data to ACK",
        "HoL delay",
        "reorder buffer",
        "reinjected",
        "retransmitted",
        "spurious",
        "discarded",
        "not captured",
    ];
    table_head(out, "list", &columns);
    for connection in connections {
        for captured in connection.directions.iter().filter(|d| d.bytes > 0) {
            let _ = write!(
                out,
                "<tr><td class=\"keep\">{} {}</td><td>{}</td>",
                connection.flow,
                direction(captured.direction),
                capture_point_text(captured)
            );
            let mut cells = cells(captured);
            if connection.cut_options.is_some()
                && let Some(reinjected) = cells.get_mut(REINJECTED_CELL)
            {
                "–".clone_into(reinjected);
            }
            for cell in cells {
                let _ = write!(out, "<td class=\"n\">{}</td>", esc(&cell));
            }
            out.push_str("</tr>");
        }
    }
    table_end(out);
    notes(out, connections);
}

/// Maximum number of handovers that are listed for one direction of a connection.
const MAX_HANDOVERS: usize = 50;

/// Writes a paragraph for each cut-off, fallback and handover.
fn notes(out: &mut String, connections: &[&CapturedConnection]) {
    for connection in connections {
        if let Some(evidence) = connection.cut_options {
            let kind = match evidence {
                CutEvidence::Unknown => "a TCP connection or a subflow of Multipath TCP",
                CutEvidence::Multipath => "a subflow of Multipath TCP",
                CutEvidence::Tcp => "a TCP connection",
            };
            let _ = write!(
                out,
                "<p>Flow {} is {kind}: some of its TCP options were not captured.</p>",
                connection.flow
            );
        }
        if let Some(reason) = &connection.fallback {
            let _ = write!(out, "<p>Flow {} fell back: {}.</p>", connection.flow, esc(reason));
        }
        for captured in &connection.directions {
            let listed = captured.handovers.iter().take(MAX_HANDOVERS);
            for handover in listed {
                let overlap_text =
                    if handover.overlap_ns < 0 { "neither carried" } else { "both carried" };
                let _ = write!(
                    out,
                    "<p>Flow {} {}: from subflow {} to {} at {}; {overlap_text} data for {}.</p>",
                    connection.flow,
                    direction(captured.direction),
                    handover.from,
                    handover.to,
                    number::moment(handover.first_new_ns),
                    number::time(handover.overlap_ns.unsigned_abs() as f64)
                );
            }
            let omitted = captured.handovers.len().saturating_sub(MAX_HANDOVERS);
            and_more(out, omitted, &format!("handovers of flow {}", connection.flow));
        }
    }
}

fn capture_point_text(direction: &CapturedDirection) -> &'static str {
    match direction.capture_point {
        CapturePoint::Sender => "sender",
        CapturePoint::Receiver => "receiver",
        CapturePoint::Between => "between",
        CapturePoint::Unknown => "unknown",
    }
}

/// Index of the reinjected bytes in [`cells`].
const REINJECTED_CELL: usize = 6;

fn cells(direction: &CapturedDirection) -> [String; 11] {
    let bytes = |bytes: u64| number::bytes(bytes as f64);
    let bytes_or_dash = |value: Option<u64>| value.map_or("–".to_owned(), bytes);
    [
        bytes(direction.bytes),
        number::rate(direction.goodput_bps),
        number::rate(direction.throughput_bps),
        delays(direction.rtt),
        delays(direction.head_of_line),
        bytes_or_dash(direction.reorder_peak_bytes),
        bytes(direction.reinjected_bytes),
        bytes(direction.retransmitted_bytes),
        bytes(direction.spurious_bytes),
        bytes_or_dash(direction.discarded_bytes),
        bytes(direction.unseen_bytes),
    ]
}

/// Formats the median and the 99th percentile.
fn delays(delays: Option<DelayStats>) -> String {
    let time = |ns: u64| number::time(ns as f64);
    delays.map_or("–".to_owned(), |d| format!("{} / {}", time(d.p50_ns), time(d.p99_ns)))
}

/// Returns the way in which a subflow began.
fn opened_by(subflow: &CapturedSubflow) -> &'static str {
    match (subflow.join, subflow.subflow) {
        (true, _) => "MP_JOIN",
        (false, 0) => "first",
        (false, _) => "not captured",
    }
}

fn subflows(out: &mut String, connections: &[&CapturedConnection], style: &PageStyle) {
    let columns = [
        "path",
        "flow",
        "subflow",
        "state",
        "opened",
        "handshake",
        "SYNs without an answer",
        "packets",
        "payload",
        "acknowledged",
        "rtt",
        "one-way delay",
        "retransmitted",
        "out of order",
        "reinjected",
    ];
    table_head(out, "list", &columns);
    let max_subflows = max_listed_subflows(connections.len());
    let mut omitted = 0;
    for connection in connections {
        let subflows = connection.busiest_subflows(max_subflows);
        omitted += connection.subflows.len() - subflows.len();
        for subflow in subflows {
            for captured in subflow.directions.iter().filter(|d| d.packets > 0) {
                subflow_row(out, (connection, subflow, captured), style);
            }
        }
    }
    table_end(out);
    and_more(out, omitted, "subflows");
    out.push_str(
        "<p class=\"about\">Times are median / 99 %. docs/guides/analyse-captures.md defines each value.</p>",
    );
}

fn subflow_row(
    out: &mut String,
    (connection, subflow, captured): (&CapturedConnection, &CapturedSubflow, &SubflowDirection),
    style: &PageStyle,
) {
    let opened_by = opened_by(subflow);
    let state = match &subflow.reset {
        Some(reason) => format!("{}: {reason}", subflow.state),
        None => subflow.state.clone(),
    };
    let handshake = subflow.handshake_ns;
    let _ = write!(
        out,
        "<tr><td>{}</td><td class=\"keep\">{} {}</td><td class=\"n\">{}</td><td>{}</td>\
         <td>{opened_by}</td>",
        path_dot(style, &subflow.path),
        connection.flow,
        direction(captured.direction),
        subflow.subflow,
        esc(&state)
    );
    for cell in [
        handshake.map_or("–".to_owned(), |ns| number::time(ns as f64)),
        number::count(f64::from(subflow.unanswered_syns())),
        number::count(captured.packets as f64),
        number::bytes(captured.payload_bytes as f64),
        number::bytes(captured.acked_bytes as f64),
        delays(captured.rtt),
        delays(captured.one_way),
        number::bytes(captured.retransmitted_bytes as f64),
        number::bytes(captured.out_of_order_bytes as f64),
        number::bytes(captured.reinjected_bytes as f64),
    ] {
        let _ = write!(out, "<td class=\"n\">{}</td>", esc(&cell));
    }
    out.push_str("</tr>");
}
