//! Selection and reduction of a capture's time–sequence pictures: a bounded number of marks for
//! the whole time, and for the most interesting period.

use std::collections::BTreeMap;

use towpath_measure::result::{
    CapturePoint, CapturedConnection, Sequence, SequenceKind, SequenceMark, SequenceMarks,
    SequenceView, SubflowSummary,
};
use towpath_measure::scenario::DataDirection;

use super::CaptureAnalysis;
use super::connection::{TracedConnection, TracedSubflow};
use super::records::span;
use super::sequence::{PacketMark, SequenceLog};
use super::stats::InFlight;
use super::summary::{DIRECTIONS, path};

/// Maximum number of connections with pictures, those with most data first.
const MAX_CONNECTIONS: usize = 5;
/// Maximum number of pictures of a capture.
const MAX_PLOTS: usize = 12;
/// Maximum number of subflows with pictures in each direction, those with most payload first.
const MAX_SUBFLOWS: usize = 6;
/// Minimum share of the connection's payload for a picture.
const MIN_PAYLOAD_SHARE: f64 = 0.01;
/// Number of columns of a picture in which marks of a kind are joined,
const PLOT_COLUMNS: u64 = 300;
/// unless they are so few that each is drawn; and the maximum number of marks of a picture.
const MAX_PLOT_MARKS: usize = 1_200;
const NS_PER_US: u64 = 1_000;
/// Shortest pause of acknowledgements worth a closer view.
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
        let whole = |subject: PlotSubject<'_>| {
            let mut sequence = self.sequence(subject, 0);
            let log = subject.log.in_order();
            let column_ns = log.column_ns();
            sequence.views =
                vec![view(log.marks(), column_ns, "all", subject.subflow.is_none(), 0)];
            sequence
        };
        self.subjects(top).into_iter().map(whole).collect()
    }

    /// Returns the pictures of a run, from the capture of one of its hosts. They show the data
    /// that this host sent. Time 0 of the run is at `zero_ns` since 1970. Subflows unknown to the
    /// run are left out.
    pub fn sequences_of_run(&self, zero_ns: u64, subflows: &[SubflowSummary]) -> Vec<Sequence> {
        let sent = |subject: &PlotSubject<'_>| {
            let direction = subject.captured.directions.get(subject.side);
            direction.is_some_and(|way| way.capture_point == CapturePoint::Sender)
        };
        let subjects = self.subjects(MAX_CONNECTIONS).into_iter().filter(sent);
        let shift_ns = self.begin_ns.cast_signed().saturating_sub(zero_ns.cast_signed());
        let known = subjects.filter_map(|subject| {
            let mut sequence = self.sequence(subject, shift_ns);
            rename(&mut sequence, subject, subflows).then_some(sequence)
        });
        known.take(MAX_PLOTS).collect()
    }

    fn subjects(&self, top: usize) -> Vec<PlotSubject<'_>> {
        let mut all = Vec::new();
        for captured in self.connections.iter().take(top) {
            let Some(connection) = self.connection(captured) else { continue };
            let bytes = |side: usize| -> u64 {
                let ways = captured.subflows.iter().filter_map(|s| s.directions.get(side));
                ways.map(|direction| direction.payload_bytes).sum()
            };
            let whole = bytes(0).saturating_add(bytes(1));
            for side in [0, 1] {
                let enough =
                    |bytes: u64| bytes > 0 && bytes as f64 >= whole as f64 * MIN_PAYLOAD_SHARE;
                if enough(bytes(side)) {
                    self.add_subjects(captured, connection, side, &enough, &mut all);
                }
            }
        }
        all
    }

    fn add_subjects<'a>(
        &'a self,
        captured: &'a CapturedConnection,
        connection: &'a TracedConnection,
        side: usize,
        enough: &dyn Fn(u64) -> bool,
        all: &mut Vec<PlotSubject<'a>>,
    ) {
        let carried = |subflow: &TracedSubflow| {
            subflow.directions.get(side).map_or(0, |direction| direction.payload_bytes)
        };
        let mut subflows: Vec<&TracedSubflow> =
            self.tracker.of(connection).filter(|subflow| enough(carried(subflow))).collect();
        subflows.sort_by_key(|subflow| std::cmp::Reverse(carried(subflow)));
        subflows.truncate(MAX_SUBFLOWS);
        subflows.sort_by_key(|subflow| subflow.number);
        if let Some(data) = connection.data.get(side)
            && data.is_plotted
            && subflows.len() > 1
        {
            let (log, flight) = (&data.sequence, &data.flight);
            all.push(PlotSubject { captured, side, log, flight, subflow: None });
        }
        for subflow in subflows {
            let Some(way) = subflow.directions.get(side) else { continue };
            let (log, flight) = (&way.sequence, &way.flight);
            all.push(PlotSubject { captured, side, log, flight, subflow: Some(subflow) });
        }
    }

    fn sequence(&self, subject: PlotSubject<'_>, shift_ns: i64) -> Sequence {
        let PlotSubject { captured, side, log, flight, subflow } = subject;
        let log = &log.in_order();
        let ways = captured.subflows.iter().filter_map(|s| s.directions.get(side));
        let again_packets = match subflow {
            Some(one) => one.directions.get(side).map_or(0, |way| way.retrans_packets),
            None => ways.map(|way| way.retransmitted_packets).sum(),
        };
        let paths = match subflow {
            Some(one) => vec![path(self, one)],
            None => captured.subflows.iter().map(|subflow| subflow.path.clone()).collect(),
        };
        let shared = subflow.is_none();
        let whole = bounds(log.marks());
        let mut views = vec![reduced(log, whole, "the whole time", shared, shift_ns)];
        if let Some((part, about)) = zoom_window(log, flight, whole) {
            let about = format!("{about} {}", moment(part.0, shift_ns));
            views.push(reduced(log, part, &about, shared, shift_ns));
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
            retransmitted_packets: again_packets,
            views,
        }
    }
}

/// Replaces numbers and names by those of the run. Returns `false` if the run has no such subflow.
fn rename(sequence: &mut Sequence, subject: PlotSubject<'_>, subflows: &[SubflowSummary]) -> bool {
    let same = |local: &str, remote: &str| {
        subflows.iter().find(|known| {
            let ends = (known.local.as_str(), known.remote.as_str());
            ends == (local, remote) || ends == (remote, local)
        })
    };
    let captured = &subject.captured.subflows;
    let one = match sequence.subflow {
        Some(number) => captured.get(number as usize),
        None => captured.first(),
    };
    let Some(known) = one.and_then(|one| same(&one.local, &one.remote)) else { return false };
    (sequence.flow, sequence.stream) = (known.flow, known.stream);
    if sequence.subflow.is_some() {
        sequence.subflow = Some(known.subflow);
        sequence.paths = vec![known.path.clone()];
    } else {
        for (path, one) in sequence.paths.iter_mut().zip(captured) {
            if let Some(known) = same(&one.local, &one.remote) {
                path.clone_from(&known.path);
            }
        }
    }
    true
}

/// Returns the first and the last moment.
fn bounds(marks: &[PacketMark]) -> (u64, u64) {
    let times = marks.iter().map(|mark| mark.at_ns);
    (times.clone().min().unwrap_or(0), times.max().unwrap_or(0))
}

fn moment(at_ns: u64, shift_ns: i64) -> String {
    format!("{:.2} s", at_ns.saturating_add_signed(shift_ns) as f64 / 1e9)
}

/// Returns the marks of a period, as few as a picture needs.
fn reduced(
    log: &SequenceLog,
    (from_ns, to_ns): (u64, u64),
    about: &str,
    shared: bool,
    shift_ns: i64,
) -> SequenceView {
    let inside = |mark: &&PacketMark| (from_ns..=to_ns).contains(&mark.at_ns);
    let all: Vec<PacketMark> = log.marks().iter().filter(inside).copied().collect();
    let column_ns = if all.len() <= MAX_PLOT_MARKS {
        log.column_ns()
    } else {
        (to_ns.saturating_sub(from_ns) / PLOT_COLUMNS).max(log.column_ns()).max(1)
    };
    let mut kept = SequenceLog::with_column(column_ns);
    for mark in all {
        kept.add(mark);
    }
    kept.coarsen(MAX_PLOT_MARKS);
    let column_ns = kept.column_ns();
    let mut marks = kept.marks().to_vec();
    // A line begins at its previous value.
    let before = |mark: &&PacketMark| mark.kind == SequenceKind::Ack && mark.at_ns < from_ns;
    if let Some(stood) = log.marks().iter().rev().find(before) {
        marks.insert(0, PacketMark { at_ns: from_ns, packets: 0, ..*stood });
    }
    let view = view(&marks, column_ns, about, shared, shift_ns);
    let shifted = |ns: u64| ns.saturating_add_signed(shift_ns);
    SequenceView { from_ns: shifted(from_ns), to_ns: shifted(to_ns), ..view }
}

/// Groups marks by kind, and by subflow if several are involved.
fn view(
    marks: &[PacketMark],
    column_ns: u64,
    about: &str,
    shared: bool,
    shift_ns: i64,
) -> SequenceView {
    let mut kinds: BTreeMap<(SequenceKind, Option<u32>), SequenceMarks> = BTreeMap::new();
    let (from_ns, to_ns) = bounds(marks);
    let shifted = |ns: u64| ns.saturating_add_signed(shift_ns);
    // Joined marks do not need nanosecond precision.
    let unit_ns = if column_ns >= 100 * NS_PER_US { NS_PER_US } else { 1 };
    for mark in marks {
        let of_subflow = shared
            && !matches!(
                mark.kind,
                SequenceKind::Ack | SequenceKind::ZeroWindow | SequenceKind::Fin
            );
        let subflow = of_subflow.then_some(u32::from(mark.subflow));
        let group = kinds.entry((mark.kind, subflow)).or_insert_with(|| SequenceMarks {
            kind: mark.kind,
            subflow,
            t_ns: Vec::new(),
            start_bytes: Vec::new(),
            end_bytes: Vec::new(),
            packets: Vec::new(),
        });
        group.push(SequenceMark {
            t_ns: shifted(mark.at_ns) / unit_ns * unit_ns,
            start_bytes: mark.range.start,
            end_bytes: mark.range.end,
            packets: mark.packets,
        });
    }
    SequenceView {
        label: about.to_owned(),
        from_ns: shifted(from_ns),
        to_ns: shifted(to_ns),
        column_ns,
        marks: kinds.into_values().collect(),
    }
}

/// Returns the period that deserves a closer view, with the reason. First choice is the longest
/// pause of acknowledgements although data was outstanding. Otherwise the period with most
/// retransmissions, else the beginning.
fn zoom_window(
    log: &SequenceLog,
    flight: &InFlight,
    (from, to): (u64, u64),
) -> Option<((u64, u64), String)> {
    let whole = to.saturating_sub(from);
    if whole < 4 * MIN_ACK_GAP_NS {
        return None;
    }
    let marks = log.marks();
    let rtt_ns = flight.samples.delays().map_or(0, |delays| delays.p50_ns);
    let twentieth = whole / 20;
    let cut = |(start, end): (u64, u64)| (start.max(from), end.min(to));
    let pause = longest_ack_gap(marks, to);
    if let Some((began, ended)) = pause.filter(|(began, ended)| {
        ended.saturating_sub(*began) >= MIN_ACK_GAP_NS.max(rtt_ns.saturating_mul(3) / 2)
    }) {
        let length = ended - began;
        let about = format!(
            "{} in which nothing new was acknowledged, and its surroundings, from",
            span(length)
        );
        let part = if length > whole / 2 {
            // The whole pause would repeat the same picture.
            (began.saturating_sub(twentieth), began.saturating_add(3 * twentieth))
        } else {
            (began.saturating_sub(length / 2), ended.saturating_add(length / 2))
        };
        return Some((cut(part), about));
    }
    let again = densest_retransmissions(marks, twentieth);
    if let Some((at, packets)) = again {
        let about =
            format!("the twentieth of the time with most sent again ({packets} packets), from");
        let margin = twentieth / 4;
        return Some((
            cut((at.saturating_sub(margin), at.saturating_add(twentieth).saturating_add(margin))),
            about,
        ));
    }
    Some(((from, from.saturating_add(twentieth)), "the beginning, from".to_owned()))
}

/// Returns the longest time without a new acknowledgement while data was outstanding.
fn longest_ack_gap(marks: &[PacketMark], end_ns: u64) -> Option<(u64, u64)> {
    let (mut acked, mut highest) = (0, 0);
    // Start of the current time without new acknowledgement.
    let mut since: Option<u64> = None;
    let mut longest: Option<(u64, u64)> = None;
    let mut over = |began: u64, ended: u64| {
        if longest.is_none_or(|(from, to)| ended.saturating_sub(began) > to - from) {
            longest = Some((began, ended.max(began)));
        }
    };
    for mark in marks {
        match mark.kind {
            SequenceKind::Sent | SequenceKind::OutOfOrder | SequenceKind::Reinjected => {
                highest = highest.max(mark.range.end);
                since = since.or((highest > acked).then_some(mark.at_ns));
            }
            SequenceKind::Ack if mark.range.start > acked => {
                if let Some(began) = since {
                    over(began, mark.at_ns);
                }
                acked = mark.range.start;
                since = (highest > acked).then_some(mark.at_ns);
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
    if let Some(began) = since {
        over(began, end_ns);
    }
    longest
}

/// Returns the start of the window of this length with most retransmitted packets, and their
/// number.
fn densest_retransmissions(marks: &[PacketMark], length_ns: u64) -> Option<(u64, u64)> {
    let is_again = |mark: &&PacketMark| {
        matches!(
            mark.kind,
            SequenceKind::Retransmitted
                | SequenceKind::Spurious
                | SequenceKind::OutOfOrder
                | SequenceKind::Reinjected
        )
    };
    let all: Vec<(u64, u64)> =
        marks.iter().filter(is_again).map(|mark| (mark.at_ns, u64::from(mark.packets))).collect();
    let mut best: Option<(u64, u64)> = None;
    let (mut first, mut sum) = (0, 0_u64);
    for (at, packets) in &all {
        sum += packets;
        while let Some((_, left)) =
            all.get(first).filter(|(began, _)| began.saturating_add(length_ns) < *at)
        {
            sum = sum.saturating_sub(*left);
            first += 1;
        }
        let began = all.get(first).map_or(*at, |(began, _)| *began);
        if sum > 0 && best.is_none_or(|(_, most)| sum > most) {
            best = Some((began, sum));
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
        let ms = |(from, to): (u64, u64)| (from / 1_000_000, to / 1_000_000);
        assert_eq!(longest_ack_gap(&marks, 5_000_000_000).map(ms), Some((1_050, 1_300)));
        // Data that is never acknowledged counts until the end.
        assert_eq!(longest_ack_gap(&marks[..4], 5_000_000_000).map(ms), Some((1_300, 5_000)));
    }

    #[test]
    fn a_picture_is_bounded_and_forgets_no_packet() {
        let mut log = SequenceLog::default();
        for number in 0..200_000_i64 {
            let at = number.unsigned_abs() / 10;
            let kind =
                if number % 7 == 0 { SequenceKind::Retransmitted } else { SequenceKind::Sent };
            log.add(mark(at, kind, number * 1_000, number * 1_000 + 900));
        }
        assert!(log.marks().len() <= 1 << 15, "{}", log.marks().len());
        let view = reduced(&log, bounds(log.marks()), "", false, 0);
        let shown: usize = view.marks.iter().map(|kind| kind.t_ns.len()).sum();
        assert!((200..=MAX_PLOT_MARKS).contains(&shown), "{shown}");
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
    fn the_densest_stretch_of_resending_is_found() {
        let mut marks: Vec<PacketMark> = [10, 2_000, 2_010, 2_020, 9_000]
            .map(|at| mark(at, SequenceKind::Retransmitted, 0, 1))
            .into();
        marks.push(mark(9_100, SequenceKind::Sent, 0, 1));
        assert_eq!(densest_retransmissions(&marks, 500_000_000), Some((2_000_000_000, 3)));
    }
}
