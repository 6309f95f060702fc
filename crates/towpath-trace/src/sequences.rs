//! Selection and reduction of a capture's time–sequence pictures: a bounded number of marks for
//! the whole time, and for the most interesting period.

use std::collections::BTreeMap;

use towpath_result::{
    CapturePoint, CapturedConnection, Sequence, SequenceKind, SequenceMark, SequenceMarks,
    SequenceView, SubflowSummary,
};
use towpath_scenario::DataDirection;

use super::CaptureAnalysis;
use super::connection::{TracedConnection, TracedSubflow};
use super::records::span;
use super::sequence::{PacketMark, SequenceLog};
use super::stats::InFlight;
use super::summary::{DIRECTIONS, path_name};

/// Maximum number of connections with pictures, those with most data first.
const MAX_CONNECTIONS: usize = 5;
/// Maximum number of pictures of a capture.
const MAX_PLOTS: usize = 12;
/// Maximum number of subflows with pictures in each direction, those with most payload first.
const MAX_SUBFLOWS: usize = 6;
/// Minimum share of the connection's payload for a picture.
const MIN_PAYLOAD_SHARE: f64 = 0.01;
/// Number of columns of a picture; the marks of a kind in one column are joined.
const PLOT_COLUMNS: u64 = 300;
/// Maximum number of marks of a picture; up to this number, marks are not joined.
const MAX_PLOT_MARKS: usize = 1_200;
const NS_PER_US: u64 = 1_000;
/// Minimum pause of acknowledgements that gets a closer view.
const MIN_ACK_GAP_NS: u64 = 200_000_000;

/// Subject of a picture.
#[derive(Clone, Copy)]
struct PlotSubject<'a> {
    captured: &'a CapturedConnection,
    side: usize,
    log: &'a SequenceLog,
    flight: &'a InFlight,
    /// Subflow of the picture; `None` for the connection's data.
    subflow: Option<&'a TracedSubflow>,
}

impl CaptureAnalysis {
    /// Returns pictures of the `top` connections with most data, with times from the beginning of
    /// the capture.
    pub(super) fn sequences(&self, top: usize) -> Vec<Sequence> {
        let subjects = self.subjects(top.min(MAX_CONNECTIONS));
        subjects.into_iter().take(MAX_PLOTS).map(|subject| self.sequence(subject, 0)).collect()
    }

    /// Returns the same pictures with every stored mark: one for each packet, unless there were
    /// too many.
    pub fn unreduced_sequences(&self, top: usize) -> Vec<Sequence> {
        let unreduced = |subject: PlotSubject<'_>| {
            let mut sequence = self.sequence(subject, 0);
            let log = subject.log.in_order();
            let column_ns = log.column_ns();
            sequence.views =
                vec![view(log.marks(), column_ns, "all", subject.subflow.is_none(), 0)];
            sequence
        };
        self.subjects(top).into_iter().map(unreduced).collect()
    }

    /// Returns the pictures of a run, from the capture of one of its hosts. They show the data
    /// that this host sent. Time 0 of the run is at `zero_ns` since 1970. Subflows unknown to the
    /// run are left out.
    pub fn sequences_of_run(&self, zero_ns: u64, subflows: &[SubflowSummary]) -> Vec<Sequence> {
        let is_at_sender = |subject: &PlotSubject<'_>| {
            let direction = subject.captured.directions.get(subject.side);
            direction.is_some_and(|d| d.capture_point == CapturePoint::Sender)
        };
        let subjects = self.subjects(MAX_CONNECTIONS).into_iter().filter(is_at_sender);
        let subflows = &subflows_by_ends(subflows);
        let shift_ns = self.begin_ns.cast_signed().saturating_sub(zero_ns.cast_signed());
        let renamed = subjects.filter_map(|subject| {
            let mut sequence = self.sequence(subject, shift_ns);
            rename(&mut sequence, subject, subflows).then_some(sequence)
        });
        renamed.take(MAX_PLOTS).collect()
    }

    fn subjects(&self, top: usize) -> Vec<PlotSubject<'_>> {
        let mut subjects = Vec::new();
        for captured in self.connections.iter().take(top) {
            let Some(connection) = self.connection(captured) else { continue };
            let bytes = |side: usize| -> u64 {
                let directions = captured.subflows.iter().filter_map(|s| s.directions.get(side));
                directions.map(|direction| direction.payload_bytes).sum()
            };
            let total_bytes = bytes(0).saturating_add(bytes(1));
            for side in [0, 1] {
                let is_enough = |bytes: u64| {
                    bytes > 0 && bytes as f64 >= total_bytes as f64 * MIN_PAYLOAD_SHARE
                };
                if is_enough(bytes(side)) {
                    self.add_subjects(captured, connection, side, &is_enough, &mut subjects);
                }
            }
        }
        subjects
    }

    fn add_subjects<'a>(
        &'a self,
        captured: &'a CapturedConnection,
        connection: &'a TracedConnection,
        side: usize,
        is_enough: &dyn Fn(u64) -> bool,
        subjects: &mut Vec<PlotSubject<'a>>,
    ) {
        let payload_bytes = |subflow: &TracedSubflow| {
            subflow.directions.get(side).map_or(0, |direction| direction.payload_bytes)
        };
        let mut subflows: Vec<&TracedSubflow> = self
            .tracker
            .subflows_of(connection)
            .filter(|subflow| is_enough(payload_bytes(subflow)))
            .collect();
        subflows.sort_by_key(|subflow| std::cmp::Reverse(payload_bytes(subflow)));
        subflows.truncate(MAX_SUBFLOWS);
        subflows.sort_by_key(|subflow| subflow.number);
        if let Some(data) = connection.data.get(side)
            && data.is_plotted
            && subflows.len() > 1
        {
            let (log, flight) = (&data.sequence, &data.flight);
            subjects.push(PlotSubject { captured, side, log, flight, subflow: None });
        }
        for subflow in subflows {
            let Some(direction) = subflow.directions.get(side) else { continue };
            let (log, flight) = (&direction.sequence, &direction.flight);
            subjects.push(PlotSubject { captured, side, log, flight, subflow: Some(subflow) });
        }
    }

    fn sequence(&self, subject: PlotSubject<'_>, shift_ns: i64) -> Sequence {
        let PlotSubject { captured, side, log, flight, subflow } = subject;
        let log = &log.in_order();
        let directions = captured.subflows.iter().filter_map(|s| s.directions.get(side));
        let retransmitted_packets = match subflow {
            Some(subflow) => subflow.directions.get(side).map_or(0, |d| d.retrans_packets),
            None => directions.map(|way| way.retransmitted_packets).sum(),
        };
        let paths = match subflow {
            Some(subflow) => vec![path_name(self, subflow)],
            None => captured.subflows.iter().map(|subflow| subflow.path.clone()).collect(),
        };
        let has_several_subflows = subflow.is_none();
        let whole_period = bounds(log.marks());
        let mut views =
            vec![reduced_view(log, whole_period, "the whole time", has_several_subflows, shift_ns)];
        if let Some((zoom_period, label)) = zoom_window(log, flight, whole_period) {
            let label = format!("{label} {}", moment(zoom_period.0, shift_ns));
            views.push(reduced_view(log, zoom_period, &label, has_several_subflows, shift_ns));
        }
        Sequence {
            flow: captured.flow,
            stream: 0,
            direction: DIRECTIONS.get(side).copied().unwrap_or(DataDirection::Up),
            subflow: subflow.map(|subflow| u32::from(subflow.number)),
            paths,
            capture_point: captured
                .directions
                .get(side)
                .map_or(CapturePoint::Unknown, |way| way.capture_point),
            retransmitted_packets,
            views,
        }
    }
}

/// Subflows of a run by their two ends, in both orders.
type SubflowsByEnds<'a> = BTreeMap<(&'a str, &'a str), &'a SubflowSummary>;

fn subflows_by_ends(subflows: &[SubflowSummary]) -> SubflowsByEnds<'_> {
    let mut by_ends = BTreeMap::new();
    for summary in subflows {
        let (local, remote) = (summary.local.as_str(), summary.remote.as_str());
        by_ends.entry((local, remote)).or_insert(summary);
        by_ends.entry((remote, local)).or_insert(summary);
    }
    by_ends
}

/// Replaces numbers and names by those of the run. Returns `false` if the run has no such subflow.
fn rename(
    sequence: &mut Sequence,
    subject: PlotSubject<'_>,
    subflows: &SubflowsByEnds<'_>,
) -> bool {
    let run_subflow = |local: &str, remote: &str| subflows.get(&(local, remote)).copied();
    let captured = &subject.captured.subflows;
    let captured_subflow = match sequence.subflow {
        Some(number) => captured.get(number as usize),
        None => captured.first(),
    };
    let Some(summary) = captured_subflow.and_then(|s| run_subflow(&s.local, &s.remote)) else {
        return false;
    };
    (sequence.flow, sequence.stream) = (summary.flow, summary.stream);
    if sequence.subflow.is_some() {
        sequence.subflow = Some(summary.subflow);
        sequence.paths = vec![summary.path.clone()];
    } else {
        for (path, subflow) in sequence.paths.iter_mut().zip(captured) {
            if let Some(summary) = run_subflow(&subflow.local, &subflow.remote) {
                path.clone_from(&summary.path);
            }
        }
    }
    true
}

/// Returns the times of the first and the last mark.
fn bounds(marks: &[PacketMark]) -> (u64, u64) {
    let times = marks.iter().map(|mark| mark.at_ns);
    (times.clone().min().unwrap_or(0), times.max().unwrap_or(0))
}

fn moment(at_ns: u64, shift_ns: i64) -> String {
    format!("{:.2} s", at_ns.saturating_add_signed(shift_ns) as f64 / 1e9)
}

/// Returns the marks of a period, as few as a picture needs.
fn reduced_view(
    log: &SequenceLog,
    (from_ns, to_ns): (u64, u64),
    label: &str,
    has_several_subflows: bool,
    shift_ns: i64,
) -> SequenceView {
    let is_in_period = |mark: &&PacketMark| (from_ns..=to_ns).contains(&mark.at_ns);
    let marks_in_period: Vec<PacketMark> =
        log.marks().iter().filter(is_in_period).copied().collect();
    let column_ns = if marks_in_period.len() <= MAX_PLOT_MARKS {
        log.column_ns()
    } else {
        (to_ns.saturating_sub(from_ns) / PLOT_COLUMNS).max(log.column_ns()).max(1)
    };
    let mut reduced = SequenceLog::with_column(column_ns);
    for mark in marks_in_period {
        reduced.add(mark);
    }
    reduced.coarsen(MAX_PLOT_MARKS);
    let column_ns = reduced.column_ns();
    let mut marks = reduced.marks().to_vec();
    // A line begins at its previous value.
    let is_earlier_ack =
        |mark: &&PacketMark| mark.kind == SequenceKind::Ack && mark.at_ns < from_ns;
    if let Some(last_ack) = log.marks().iter().rev().find(is_earlier_ack) {
        marks.insert(0, PacketMark { at_ns: from_ns, packets: 0, ..*last_ack });
    }
    let view = view(&marks, column_ns, label, has_several_subflows, shift_ns);
    let shift = |ns: u64| ns.saturating_add_signed(shift_ns);
    SequenceView { from_ns: shift(from_ns), to_ns: shift(to_ns), ..view }
}

/// Groups marks by kind, and by subflow if several are involved.
fn view(
    marks: &[PacketMark],
    column_ns: u64,
    label: &str,
    has_several_subflows: bool,
    shift_ns: i64,
) -> SequenceView {
    let mut kinds: BTreeMap<(SequenceKind, Option<u32>), SequenceMarks> = BTreeMap::new();
    let (from_ns, to_ns) = bounds(marks);
    let shift = |ns: u64| ns.saturating_add_signed(shift_ns);
    // Joined marks do not need nanosecond precision.
    let unit_ns = if column_ns >= 100 * NS_PER_US { NS_PER_US } else { 1 };
    for mark in marks {
        let is_of_subflow = has_several_subflows
            && !matches!(
                mark.kind,
                SequenceKind::Ack | SequenceKind::ZeroWindow | SequenceKind::Fin
            );
        let subflow = is_of_subflow.then_some(u32::from(mark.subflow));
        let group = kinds.entry((mark.kind, subflow)).or_insert_with(|| SequenceMarks {
            kind: mark.kind,
            subflow,
            t_ns: Vec::new(),
            start_bytes: Vec::new(),
            end_bytes: Vec::new(),
            packets: Vec::new(),
        });
        group.push(SequenceMark {
            t_ns: shift(mark.at_ns) / unit_ns * unit_ns,
            start_bytes: mark.range.start,
            end_bytes: mark.range.end,
            packets: mark.packets,
        });
    }
    SequenceView {
        label: label.to_owned(),
        from_ns: shift(from_ns),
        to_ns: shift(to_ns),
        column_ns,
        marks: kinds.into_values().collect(),
    }
}

/// Returns the period of the closer view, with its label.
///
/// The first choice is the longest pause of acknowledgements while data was outstanding. The second
/// is the period with most retransmissions, the last the beginning.
fn zoom_window(
    log: &SequenceLog,
    flight: &InFlight,
    (from_ns, to_ns): (u64, u64),
) -> Option<((u64, u64), String)> {
    let duration_ns = to_ns.saturating_sub(from_ns);
    if duration_ns < 4 * MIN_ACK_GAP_NS {
        return None;
    }
    let marks = log.marks();
    let rtt_ns = flight.samples.delays().map_or(0, |delays| delays.p50_ns);
    let twentieth_ns = duration_ns / 20;
    let clamp_to_period = |(start, end): (u64, u64)| (start.max(from_ns), end.min(to_ns));
    let ack_gap = longest_ack_gap(marks, to_ns);
    if let Some((began_ns, ended_ns)) = ack_gap.filter(|(began_ns, ended_ns)| {
        ended_ns.saturating_sub(*began_ns) >= MIN_ACK_GAP_NS.max(rtt_ns.saturating_mul(3) / 2)
    }) {
        let length_ns = ended_ns - began_ns;
        let label = format!(
            "{} without new acknowledgements, and the time around it, from",
            span(length_ns)
        );
        let period = if length_ns > duration_ns / 2 {
            // The whole pause would repeat the same picture.
            (began_ns.saturating_sub(twentieth_ns), began_ns.saturating_add(3 * twentieth_ns))
        } else {
            (began_ns.saturating_sub(length_ns / 2), ended_ns.saturating_add(length_ns / 2))
        };
        return Some((clamp_to_period(period), label));
    }
    let densest = densest_retransmissions(marks, twentieth_ns);
    if let Some((start_ns, packets)) = densest {
        let label =
            format!("the twentieth of the run with most retransmissions ({packets} packets), from");
        let margin_ns = twentieth_ns / 4;
        return Some((
            clamp_to_period((
                start_ns.saturating_sub(margin_ns),
                start_ns.saturating_add(twentieth_ns).saturating_add(margin_ns),
            )),
            label,
        ));
    }
    Some(((from_ns, from_ns.saturating_add(twentieth_ns)), "the beginning, from".to_owned()))
}

/// Returns the longest time without a new acknowledgement while data was outstanding.
fn longest_ack_gap(marks: &[PacketMark], end_ns: u64) -> Option<(u64, u64)> {
    let (mut acked, mut highest) = (0, 0);
    // Start of the current period without a new acknowledgement.
    let mut waiting_since: Option<u64> = None;
    let mut longest: Option<(u64, u64)> = None;
    let mut end_gap = |began_ns: u64, ended_ns: u64| {
        if longest.is_none_or(|(from, to)| ended_ns.saturating_sub(began_ns) > to - from) {
            longest = Some((began_ns, ended_ns.max(began_ns)));
        }
    };
    for mark in marks {
        match mark.kind {
            SequenceKind::Sent | SequenceKind::OutOfOrder | SequenceKind::Reinjected => {
                highest = highest.max(mark.range.end);
                waiting_since = waiting_since.or((highest > acked).then_some(mark.at_ns));
            }
            SequenceKind::Ack if mark.range.start > acked => {
                if let Some(began_ns) = waiting_since {
                    end_gap(began_ns, mark.at_ns);
                }
                acked = mark.range.start;
                waiting_since = (highest > acked).then_some(mark.at_ns);
            }
            SequenceKind::Retransmitted
            | SequenceKind::Spurious
            | SequenceKind::Ack
            | SequenceKind::DuplicateAck
            | SequenceKind::Sack
            | SequenceKind::ZeroWindow
            | SequenceKind::Syn
            | SequenceKind::Fin
            | SequenceKind::Rst => {}
        }
    }
    if let Some(began_ns) = waiting_since {
        end_gap(began_ns, end_ns);
    }
    longest
}

/// Returns the start of the window of this length with most retransmitted packets, and their
/// number.
fn densest_retransmissions(marks: &[PacketMark], length_ns: u64) -> Option<(u64, u64)> {
    let is_retransmission = |mark: &&PacketMark| {
        matches!(
            mark.kind,
            SequenceKind::Retransmitted
                | SequenceKind::Spurious
                | SequenceKind::OutOfOrder
                | SequenceKind::Reinjected
        )
    };
    let retransmissions: Vec<(u64, u64)> = marks
        .iter()
        .filter(is_retransmission)
        .map(|mark| (mark.at_ns, u64::from(mark.packets)))
        .collect();
    let mut best: Option<(u64, u64)> = None;
    let (mut window_start, mut packets_in_window) = (0, 0_u64);
    for (at_ns, packets) in &retransmissions {
        packets_in_window += packets;
        while let Some((_, oldest_packets)) = retransmissions
            .get(window_start)
            .filter(|(start_ns, _)| start_ns.saturating_add(length_ns) < *at_ns)
        {
            packets_in_window = packets_in_window.saturating_sub(*oldest_packets);
            window_start += 1;
        }
        let start_ns = retransmissions.get(window_start).map_or(*at_ns, |(start_ns, _)| *start_ns);
        if packets_in_window > 0
            && best.is_none_or(|(_, max_packets)| packets_in_window > max_packets)
        {
            best = Some((start_ns, packets_in_window));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::super::ranges::SeqRange;
    use super::*;

    fn mark(millis: u64, kind: SequenceKind, start: i64, end: i64) -> PacketMark {
        let at_ns = millis * 1_000_000;
        PacketMark { at_ns, kind, subflow: 0, packets: 1, range: SeqRange::new(start, end) }
    }

    #[test]
    fn a_pause_counts_only_while_data_is_outstanding() {
        let marks = [
            mark(0, SequenceKind::Sent, 0, 100),
            mark(50, SequenceKind::Ack, 100, 100),
            // Nothing was outstanding for a second.
            mark(1_050, SequenceKind::Sent, 100, 200),
            mark(1_300, SequenceKind::Ack, 150, 150),
            mark(1_310, SequenceKind::Ack, 200, 200),
        ];
        let ms = |(from_ns, to_ns): (u64, u64)| (from_ns / 1_000_000, to_ns / 1_000_000);
        assert_eq!(longest_ack_gap(&marks, 5_000_000_000).map(ms), Some((1_050, 1_300)));
        // Data that is never acknowledged counts until the end.
        assert_eq!(longest_ack_gap(&marks[..4], 5_000_000_000).map(ms), Some((1_300, 5_000)));
    }

    #[test]
    fn a_picture_is_bounded_and_forgets_no_packet() {
        let mut log = SequenceLog::default();
        for number in 0..200_000_i64 {
            let ms = number.unsigned_abs() / 10;
            let kind =
                if number % 7 == 0 { SequenceKind::Retransmitted } else { SequenceKind::Sent };
            log.add(mark(ms, kind, number * 1_000, number * 1_000 + 900));
        }
        assert!(log.marks().len() <= 1 << 15, "{}", log.marks().len());
        let view = reduced_view(&log, bounds(log.marks()), "", false, 0);
        let shown_marks: usize = view.marks.iter().map(|kind| kind.t_ns.len()).sum();
        assert!((200..=MAX_PLOT_MARKS).contains(&shown_marks), "{shown_marks}");
        for (kind, expected) in
            [(SequenceKind::Retransmitted, 28_572), (SequenceKind::Sent, 171_428)]
        {
            let of_kind = view.marks.iter().filter(|marks| marks.kind == kind);
            let packets = of_kind.flat_map(|marks| &marks.packets).map(|n| u64::from(*n));
            assert_eq!(packets.sum::<u64>(), expected, "{kind:?}");
        }
        let ends = view.marks.iter().flat_map(SequenceMarks::each).map(|mark| mark.end_bytes);
        assert_eq!(ends.max(), Some(199_999_900));
    }

    #[test]
    fn the_period_with_most_retransmissions_is_found() {
        let mut marks: Vec<PacketMark> = [10, 2_000, 2_010, 2_020, 9_000]
            .map(|ms| mark(ms, SequenceKind::Retransmitted, 0, 1))
            .into();
        marks.push(mark(9_100, SequenceKind::Sent, 0, 1));
        assert_eq!(densest_retransmissions(&marks, 500_000_000), Some((2_000_000_000, 3)));
    }
}
