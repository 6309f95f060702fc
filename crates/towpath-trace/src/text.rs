//! Text output of a capture: a block for each connection.

use std::fmt::Write as _;

use towpath_result::format::number;
use towpath_result::format::text::{capital, clean, cut, pad, wrap};
use towpath_result::{
    CapturePoint, CapturedConnection, CapturedDirection, CapturedSubflow, CutEvidence, DelayStats,
    SubflowDirection, Warning, max_listed_subflows,
};
use towpath_scenario::DataDirection;

use super::CaptureAnalysis;
use super::link::SkipReason;
use super::records::span;

impl CaptureAnalysis {
    /// Returns the number of skipped frames, by reason in words.
    pub(super) fn skipped_frames(&self) -> Vec<(String, u64)> {
        let texts = self.skipped.iter().map(|(reason, count)| {
            let text = match reason {
                SkipReason::LinkType(kind) => format!("unknown link type {kind}"),
                SkipReason::NotIp => "not IP".to_owned(),
                SkipReason::NotTcp => "neither TCP nor UDP".to_owned(),
                SkipReason::Udp => "UDP".to_owned(),
                SkipReason::Quic => "QUIC".to_owned(),
                SkipReason::Encrypted => "encrypted Wi-Fi frames".to_owned(),
                SkipReason::Fragment => "fragments".to_owned(),
                SkipReason::Cut => "truncated in a header".to_owned(),
                SkipReason::Malformed => "malformed headers".to_owned(),
            };
            (text, *count)
        });
        texts.collect()
    }

    /// Returns the analysis as text, at most `width` columns wide, with its `top` connections.
    pub fn table(&self, notes: &[Warning], width: usize, top: usize) -> String {
        let mut out = String::new();
        let mut facts = vec![
            format!("{} packets", number::count(self.frames as f64)),
            span(self.duration_ns),
            format!("{} on the wire", number::bytes(self.wire_bytes as f64)),
        ];
        let skipped = self.skipped_frames();
        facts.extend(
            skipped.iter().map(|(reason, n)| format!("{} {reason}", number::count(*n as f64))),
        );
        paragraph(&mut out, &facts.join(" · "), width);
        paragraph(&mut out, &self.verdict(), width);
        let selected: Vec<&CapturedConnection> = self.connections.iter().take(top).collect();
        if let (_, Some(account)) = self.account(self.sample_ns(&selected)) {
            paragraph(&mut out, &capital(&clean(&account.sentence)), width);
        }
        for note in notes {
            paragraph(&mut out, &clean(&note.text), width);
        }
        for connection in &selected {
            out.push('\n');
            self.block(&mut out, connection, (width, max_listed_subflows(selected.len())));
        }
        let omitted = self.connections.len().saturating_sub(top);
        if omitted > 0 {
            let _ = writeln!(out, "\nand {omitted} more (`--top N` shows them)");
        }
        out
    }

    fn block(
        &self,
        out: &mut String,
        connection: &CapturedConnection,
        (width, max_subflows): (usize, usize),
    ) {
        paragraph(out, &title(connection), width);
        if let Some(reason) = &connection.fallback {
            paragraph(out, &format!("  fell back to TCP: {reason}"), width);
        }
        let subflows = connection.busiest_subflows(max_subflows);
        subflow_table(out, connection, &subflows, width);
        let omitted = connection.subflows.len() - subflows.len();
        if omitted > 0 {
            let omitted = number::count(omitted as f64);
            let _ = writeln!(out, "  and {omitted} more subflows (`--json` lists them)");
        }
        one_way_lines(out, &subflows, width);
        for direction in
            connection.directions.iter().filter(|d| d.bytes > 0 || has_payload(connection, d))
        {
            direction_lines(out, connection, direction, width);
        }
        if let Some(traced) = self.connection(connection) {
            let notes = traced.notes.iter().take(MAX_NOTES);
            for (note, text) in notes {
                let sender = if note.side == 0 { "opener" } else { "other end" };
                let line = format!(
                    "  {} subflow {}, {sender}: {text}",
                    number::moment(note.now_ns),
                    note.subflow
                );
                let _ = writeln!(out, "{}", cut(&clean(&line), width));
            }
            let omitted = traced.notes.len().saturating_sub(MAX_NOTES) as u64 + traced.notes_lost;
            if omitted > 0 {
                let _ = writeln!(out, "  and {omitted} more of these");
            }
        }
    }
}

/// Maximum number of notes of one connection on a terminal.
const MAX_NOTES: usize = 12;

fn paragraph(out: &mut String, text: &str, width: usize) {
    let indent: String = text.chars().take_while(|c| *c == ' ').collect();
    for line in wrap(text, width.saturating_sub(indent.len()).max(20)) {
        let _ = writeln!(out, "{indent}{line}");
    }
}

fn has_payload(connection: &CapturedConnection, captured_direction: &CapturedDirection) -> bool {
    let directions = connection.subflows.iter().flat_map(|subflow| &subflow.directions);
    directions.filter(|d| d.direction == captured_direction.direction).any(|d| d.payload_bytes > 0)
}

/// Returns a connection's title: `0: MPTCP v1, 10.0.0.1:40000 → 10.0.0.2:80, 12.1 s`.
fn title(connection: &CapturedConnection) -> String {
    let kind = match (connection.multipath, connection.version, &connection.fallback) {
        _ if connection.cut_options == Some(CutEvidence::Multipath) => {
            "subflow of MPTCP".to_owned()
        }
        _ if connection.cut_options == Some(CutEvidence::Unknown) => "TCP or MPTCP".to_owned(),
        (false, ..) => "TCP".to_owned(),
        (true, Some(version), None) => format!("MPTCP v{version}"),
        (true, _, None) => "MPTCP".to_owned(),
        (true, _, Some(_)) => "TCP after MPTCP".to_owned(),
    };
    let ends = match connection.subflows.first() {
        Some(first) => format!("{} → {}", first.local, first.remote),
        None => String::new(),
    };
    let mut facts = vec![kind, ends];
    facts.push(span(connection.last_ns.saturating_sub(connection.first_ns)));
    if connection.checksum {
        facts.push("with checksums".to_owned());
    }
    if connection.cut_options.is_some() {
        facts.push("options cut off".to_owned());
    }
    if connection.truncated_start {
        facts.push("start not captured".to_owned());
    }
    format!("connection {}: {}", connection.flow, facts.join(", "))
}

const COLUMNS: [(&str, usize); 8] = [
    ("state", 12),
    ("up", 9),
    ("down", 9),
    ("share", 8),
    ("rtt", 9),
    ("retrans", 9),
    ("out of order", 13),
    ("reinjected", 10),
];

fn subflow_table(
    out: &mut String,
    connection: &CapturedConnection,
    subflows: &[&CapturedSubflow],
    width: usize,
) {
    let label_width =
        width.saturating_sub(COLUMNS.iter().map(|(_, w)| w).sum::<usize>() + 2).max(12);
    let mut head = pad("  subflow", label_width + 2);
    for (name, width) in COLUMNS {
        head.push_str(&pad(name, width));
    }
    let _ = writeln!(out, "{}", head.trim_end());
    for subflow in subflows {
        let arrow = if subflow.opened == DataDirection::Down { " ←" } else { "" };
        let backup = if subflow.backup { " backup" } else { "" };
        let name = format!("{} {}{arrow}{backup}", subflow.subflow, subflow.path);
        let mut line = pad(&format!("  {}", cut(&clean(&name), label_width - 1)), label_width + 2);
        let mut cells = cells(subflow);
        if connection.cut_options.is_some()
            && let Some(reinjected) = cells.last_mut()
        {
            "–".clone_into(reinjected);
        }
        for (name, column) in [("retransmitted_bytes", 5), ("out_of_order_bytes", 6)] {
            if connection.leaves_undecided(name)
                && let Some(cell) = cells.get_mut(column)
            {
                "–".clone_into(cell);
            }
        }
        for (cell, (_, width)) in cells.into_iter().zip(COLUMNS) {
            line.push_str(&pad(&cut(&cell, width - 1), width));
        }
        let _ = writeln!(out, "{}", line.trim_end());
        paragraph(out, &format!("      {}", subflow_facts(subflow)), width);
    }
}

/// Returns a subflow's sockets and handshake, and how it failed.
fn subflow_facts(subflow: &CapturedSubflow) -> String {
    let mut facts = vec![format!("{} → {}", subflow.local, subflow.remote)];
    facts.extend(subflow.handshake_ns.map(|ns| format!("handshake {}", span(ns))));
    let unanswered = subflow.unanswered_syns();
    if unanswered > 0 {
        let plural = if unanswered == 1 { "" } else { "s" };
        facts.push(format!("{unanswered} SYN{plural} without an answer"));
    }
    facts.extend(subflow.reset.as_ref().map(|reason| format!("reset: {}", clean(reason))));
    facts.join(", ")
}

fn cells(subflow: &CapturedSubflow) -> [String; 8] {
    let busiest = subflow.directions.iter().max_by_key(|d| d.payload_bytes);
    let bytes = |direction| {
        let d = subflow.directions.iter().find(|d| d.direction == direction);
        d.map_or_else(String::new, |d| number::bytes(d.new_bytes as f64))
    };
    let of_busiest =
        |text: &dyn Fn(&SubflowDirection) -> String| busiest.map_or_else(String::new, text);
    [
        subflow.state.clone(),
        bytes(DataDirection::Up),
        bytes(DataDirection::Down),
        of_busiest(&|d| number::percent(d.share)),
        of_busiest(&|d| d.rtt.map_or("–".to_owned(), |rtt| span(rtt.p50_ns))),
        of_busiest(&|d| number::bytes(d.retransmitted_bytes as f64)),
        of_busiest(&|d| number::bytes(d.out_of_order_bytes as f64)),
        of_busiest(&|d| number::bytes(d.reinjected_bytes as f64)),
    ]
}

fn one_way_lines(out: &mut String, subflows: &[&CapturedSubflow], width: usize) {
    for subflow in subflows {
        for captured in &subflow.directions {
            let Some(delays) = captured.one_way else { continue };
            let name = if captured.direction == DataDirection::Down { "down" } else { "up" };
            let text = format!(
                "  one-way delay {name} on subflow {}: min {}, median {}, 99 % {}, max {}",
                subflow.subflow,
                span(delays.min_ns),
                span(delays.p50_ns),
                span(delays.p99_ns),
                span(delays.max_ns)
            );
            paragraph(out, &text, width);
        }
    }
}

/// Returns the numbers of repeated, late and missing bytes, except undecided ones.
fn byte_facts(connection: &CapturedConnection, captured: &CapturedDirection) -> Vec<String> {
    let byte_counts = [
        ("reinjected", captured.reinjected_bytes),
        ("remapped", captured.remapped_bytes),
        ("retransmitted", captured.retransmitted_bytes),
        ("of which spurious", captured.spurious_bytes),
        ("out of order", captured.out_of_order_bytes),
        ("discarded", captured.discarded_bytes.unwrap_or(0)),
        ("not in the capture", captured.unseen_bytes),
        ("without a mapping", captured.unmapped_bytes),
    ];
    let is_undecided = |name: &str| {
        let field = match name {
            "of which spurious" => "spurious_bytes".to_owned(),
            _ => format!("{}_bytes", name.replace(' ', "_")),
        };
        connection.leaves_undecided(&field)
    };
    let nonzero = byte_counts.into_iter().filter(|(name, bytes)| *bytes > 0 && !is_undecided(name));
    nonzero.map(|(name, bytes)| format!("{name} {}", number::bytes(bytes as f64))).collect()
}

fn direction_lines(
    out: &mut String,
    connection: &CapturedConnection,
    captured: &CapturedDirection,
    width: usize,
) {
    let name = if captured.direction == DataDirection::Down { "down" } else { "up" };
    let capture_text = match captured.capture_point {
        CapturePoint::Sender => "captured at the sender",
        CapturePoint::Receiver => "captured at the receiver",
        CapturePoint::Between => "captured in transit",
        CapturePoint::Unknown => "capture point unknown",
    };
    let mut facts = vec![
        format!("{} in {}", number::bytes(captured.bytes as f64), span(captured.duration_ns)),
        format!("goodput {}", number::rate(captured.goodput_bps)),
        format!("throughput {}", number::rate(captured.throughput_bps)),
    ];
    let mut delays = |name: &str, delays: Option<DelayStats>| {
        if let Some(d) = delays {
            facts.push(format!(
                "{name} median {}, 99 % {}, max {}",
                span(d.p50_ns),
                span(d.p99_ns),
                span(d.max_ns)
            ));
        }
    };
    let has_data_numbers = connection.multipath && connection.cut_options.is_none();
    let rtt = if has_data_numbers { "data to DATA_ACK" } else { "data to ACK" };
    delays(rtt, captured.rtt);
    delays("acknowledged after", captured.acknowledged_after);
    delays("head-of-line delay:", captured.head_of_line);
    if let Some(bytes) = captured.reorder_peak_bytes.filter(|bytes| *bytes > 0) {
        facts.push(format!("reorder buffer at most {}", number::bytes(bytes as f64)));
    }
    facts.extend(byte_facts(connection, captured));
    facts.push(format!(
        "longest stall {} at {}",
        span(captured.stall.longest_ns),
        number::moment(captured.stall.longest_at_ns)
    ));
    for handover in captured.handovers.iter().take(4) {
        let gap = handover.overlap_ns.unsigned_abs();
        let overlap_text = if handover.overlap_ns < 0 { "without data for" } else { "both for" };
        facts.push(format!(
            "from subflow {} to {} at {}, {overlap_text} {}",
            handover.from,
            handover.to,
            number::moment(handover.first_new_ns),
            span(gap)
        ));
    }
    paragraph(out, &format!("  {name}, {capture_text}: {}", facts.join("; ")), width);
}
