//! Conversion of records to series on one regular grid of a run, so that all its charts share an
//! axis.

mod account;
mod stack;

use std::collections::BTreeMap;

use towpath_measure::result::{EventKind, Link, Record, Subflow, SubflowEnd};
use towpath_measure::scenario::DataDirection;

use crate::StoredRun;
use crate::number;
use crate::text::{clean, cut};

pub(crate) use account::account;
pub(crate) use stack::{StackSeries, amount};

/// Maximum number of points that can be distinguished on a screen.
const MAX_POINTS: u64 = 600;

/// Regular points in time; point `i` covers the period that ends at `(i + 1) * step`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Grid {
    pub(crate) step_ns: u64,
    pub(crate) points: usize,
    /// Set when several samples are drawn as one point.
    pub(crate) thinned: bool,
}

impl Grid {
    /// Returns a grid that holds every record of every given run.
    pub(crate) fn of(runs: &[&StoredRun]) -> Self {
        let sample = runs.iter().map(|run| run.meta.sample_ns).max().unwrap_or(0).max(1_000_000);
        let end = runs.iter().map(|run| last_sample(run)).max().unwrap_or(0);
        // The planned end counts only without samples, because even an empty axis needs a length.
        let planned = runs.iter().map(|run| run.meta.duration_ns).max().unwrap_or(0);
        let end = if end == 0 { planned.max(sample) } else { end };
        // A slightly late last sample does not make another point.
        let samples = end.saturating_sub(sample / 4).div_ceil(sample).max(1);
        let merged = samples.div_ceil(MAX_POINTS);
        let points = usize::try_from(samples.div_ceil(merged)).unwrap_or(1);
        Self { step_ns: sample.saturating_mul(merged), points, thinned: merged > 1 }
    }

    pub(crate) fn step_s(&self) -> f64 {
        self.step_ns as f64 / 1e9
    }

    pub(crate) fn end_s(&self) -> f64 {
        self.step_s() * self.points as f64
    }

    pub(crate) fn empty(&self) -> Values {
        vec![None; self.points]
    }

    fn index(&self, t_ns: u64) -> usize {
        let at = t_ns.saturating_sub(self.step_ns / 4) / self.step_ns;
        usize::try_from(at).unwrap_or(usize::MAX).min(self.points.saturating_sub(1))
    }

    /// Spreads `amount` evenly over the period in which it was counted.
    fn spread(&self, values: &mut Values, t_ns: u64, span_ns: u64, amount: f64) {
        let (step, span) = (self.step_ns as f64, span_ns.max(1) as f64);
        let (from, to) = (t_ns.saturating_sub(span_ns) as f64, t_ns as f64);
        let first = (from / step) as usize;
        let last = self.points.saturating_sub(1);
        for at in first.min(last)..=((to / step) as usize).min(last) {
            // The last point also includes data that a late sample counted after the end of the
            // grid.
            let end = if at == last { f64::INFINITY } else { (at + 1) as f64 * step };
            let part = (to.min(end) - from.max(at as f64 * step)).max(0.0) / span;
            if part > 1e-9
                && let Some(value) = values.get_mut(at)
            {
                *value = Some(value.unwrap_or(0.0) + amount * part);
            }
        }
    }

    /// Records a state; of several in one point the largest stays, so that peaks are kept.
    fn store_max(&self, values: &mut Values, t_ns: u64, state: f64) {
        if let Some(value) = values.get_mut(self.index(t_ns)) {
            *value = Some(value.map_or(state, |old| old.max(state)));
        }
    }
}

/// One value for each grid point; `None` where there was nothing to measure.
pub(crate) type Values = Vec<Option<f64>>;

/// Bridges a single missing point, which a late sample leaves behind.
fn bridge(mut values: Values) -> Values {
    let old = values.clone();
    for (value, around) in values.iter_mut().skip(1).zip(old.windows(3)) {
        if let [Some(before), None, Some(_)] = around {
            *value = Some(*before);
        }
    }
    values
}

fn last_sample(run: &StoredRun) -> u64 {
    let time = |record: &Record| match record {
        Record::Interval(interval) => Some(interval.t_ns),
        Record::Subflow(subflow) => Some(subflow.t_ns),
        Record::Link(link) => Some(link.t_ns),
        Record::Account(account) => Some(account.t_ns),
        Record::Probe(probe) => Some(probe.due_ns),
        Record::Datagrams(row) => Some(row.t_ns),
        Record::Meta(_)
        | Record::Event(_)
        | Record::Message(_)
        | Record::Capture(_)
        | Record::Sequence(_)
        | Record::Counter(_)
        | Record::Interface(_)
        | Record::Timing(_)
        | Record::Summary(_) => None,
    };
    run.records.iter().filter_map(time).max().unwrap_or(0)
}

/// Series of one subflow.
#[derive(Debug)]
pub(crate) struct SubflowSeries {
    pub(crate) path: String,
    /// `wifi`, `wifi, subflow 2` for a second one on the path, `wifi × 20` for many merged ones.
    pub(crate) name: String,
    /// 0 for the first subflow on its path.
    pub(crate) occurrence: usize,
    /// Bits per second that arrived.
    pub(crate) goodput_bps: Values,
    pub(crate) srtt_ms: Values,
    pub(crate) cwnd_packets: Values,
    pub(crate) retransmissions: Values,
    /// Bytes sent in each period, retransmissions included.
    pub(crate) sent_bytes: Values,
}

/// A subflow's identity within a direction.
type SubflowKey = (u32, u32, u32);

/// Returns the directions in which anything was measured, main direction first.
pub(crate) fn directions(run: &StoredRun) -> Vec<DataDirection> {
    let mut found = Vec::new();
    for record in &run.records {
        let direction = match record {
            Record::Interval(interval) => interval.direction,
            Record::Subflow(subflow) => subflow.direction,
            Record::Datagrams(row) => row.direction,
            Record::Meta(_)
            | Record::Link(_)
            | Record::Account(_)
            | Record::Event(_)
            | Record::Message(_)
            | Record::Probe(_)
            | Record::Capture(_)
            | Record::Sequence(_)
            | Record::Counter(_)
            | Record::Interface(_)
            | Record::Timing(_)
            | Record::Summary(_) => continue,
        };
        if !found.contains(&direction) {
            found.push(direction);
        }
    }
    let bytes = |packet_direction: DataDirection| {
        let flows = run.summary.iter().flat_map(|summary| &summary.flows);
        flows.filter(|flow| flow.direction == packet_direction).map(|flow| flow.bytes).sum::<u64>()
    };
    // Requests are small compared with their replies. Among directions of similar size the usual
    // order applies.
    let small = |side: DataDirection| {
        let all = found.iter().map(|other| bytes(*other)).max().unwrap_or_default();
        bytes(side) < all / DOMINANT_RATIO
    };
    let order: Vec<bool> = found.iter().map(|way| small(*way)).collect();
    let of = |order_of: bool| found.iter().zip(&order).filter(move |(_, own)| **own == order_of);
    of(false).chain(of(true)).map(|(way, _)| *way).collect()
}

/// Factor by which a direction must exceed another in bytes to be shown first.
const DOMINANT_RATIO: u64 = 8;

/// Returns the goodput of all streams together, in bits per second.
pub(crate) fn goodput(run: &StoredRun, grid: &Grid, direction: DataDirection) -> Values {
    goodput_of(run, grid, direction, None)
}

/// Returns the goodput of one flow, or of all if `None`.
pub(crate) fn goodput_of(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    flow: Option<u32>,
) -> Values {
    let mut bits = grid.empty();
    for record in &run.records {
        if let Record::Interval(interval) = record
            && interval.direction == direction
            && flow.is_none_or(|flow| flow == interval.flow)
        {
            grid.spread(&mut bits, interval.t_ns, interval.span_ns, interval.bytes as f64 * 8.0);
        }
    }
    per_second(bits, grid)
}

fn per_second(bits: Values, grid: &Grid) -> Values {
    bits.into_iter().map(|bits| bits.map(|bits| bits / grid.step_s())).collect()
}

/// Returns series of every subflow; merges each path's subflows when there are more than `limit`.
pub(crate) fn subflows(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    limit: usize,
) -> Vec<SubflowSeries> {
    let mut records: BTreeMap<SubflowKey, Vec<&Subflow>> = BTreeMap::new();
    for record in &run.records {
        if let Record::Subflow(subflow) = record
            && subflow.direction == direction
        {
            let key = (subflow.flow, subflow.stream, subflow.subflow);
            records.entry(key).or_default().push(subflow);
        }
    }
    let many = records.len() > limit;
    // A record of one end contains the acknowledged data instead of the arrived data.
    let is_of_both = records.values().flatten().any(|it| it.side == SubflowEnd::Receiver);
    let arrived_at = if is_of_both { SubflowEnd::Receiver } else { SubflowEnd::Sender };
    let mut series: Vec<(SubflowSeries, usize)> = Vec::new();
    for records in records.values() {
        let one = subflow(records, grid, arrived_at);
        let before = series.iter().filter(|(other, _)| other.path == one.path).count();
        match series.iter_mut().find(|(other, _)| many && other.path == one.path) {
            Some((sum, count)) => {
                add(sum, &one);
                *count += 1;
            }
            None => series.push((SubflowSeries { occurrence: before, ..one }, 1)),
        }
    }
    series.into_iter().map(|(series, count)| named(series, count)).collect()
}

fn named(series: SubflowSeries, count: usize) -> SubflowSeries {
    let path = cut(&clean(&series.path), 40);
    let name = match (count, series.occurrence) {
        (1, 0) => path,
        (1, before) => format!("{path}, subflow {}", before + 1),
        (count, _) => format!("{path} × {count}"),
    };
    SubflowSeries { name, ..series }
}

fn subflow(records: &[&Subflow], grid: &Grid, arrived_at: SubflowEnd) -> SubflowSeries {
    let mut bits = grid.empty();
    let [mut srtt, mut cwnd, mut retransmissions] = [grid.empty(), grid.empty(), grid.empty()];
    let mut sent = grid.empty();
    let (mut before, mut sent_before) = (0, 0);
    for record in records {
        if record.side == arrived_at {
            grid.spread(&mut bits, record.t_ns, record.span_ns, record.bytes as f64 * 8.0);
        }
        if record.side == SubflowEnd::Sender {
            // One-ended measurements may poll rarely, so a value holds since the previous poll.
            let since = record.t_ns.saturating_sub(record.span_ns);
            let is_one = arrived_at == SubflowEnd::Sender;
            let first = grid.index(if is_one { since } else { record.t_ns });
            for (values, value) in [
                (&mut srtt, f64::from(record.srtt_us) / 1e3),
                (&mut cwnd, f64::from(record.cwnd_packets)),
            ] {
                // A round-trip time of 0 was not measured, nor was a window of 0.
                if value <= 0.0 {
                    continue;
                }
                grid.store_max(values, record.t_ns, value);
                let held = values.iter_mut().take(grid.index(record.t_ns)).skip(first + 1);
                held.for_each(|held| *held = held.or(Some(value)));
            }
            let new = f64::from(record.retransmissions.saturating_sub(before));
            before = record.retransmissions;
            if let Some(value) = retransmissions.get_mut(grid.index(record.t_ns)) {
                *value = Some(value.unwrap_or(0.0) + new);
            }
            if let Some(value) = sent.get_mut(grid.index(record.t_ns)) {
                let new = record.bytes_sent.saturating_sub(sent_before);
                *value = Some(value.unwrap_or(0.0) + new as f64);
            }
            sent_before = record.bytes_sent;
        }
    }
    SubflowSeries {
        path: records.first().map(|record| record.path.clone()).unwrap_or_default(),
        name: String::new(),
        occurrence: 0,
        goodput_bps: per_second(bits, grid),
        srtt_ms: bridge(srtt),
        cwnd_packets: bridge(cwnd),
        retransmissions: bridge(retransmissions),
        sent_bytes: bridge(sent),
    }
}

fn add(sum: &mut SubflowSeries, one: &SubflowSeries) {
    let plus = |a: f64, b: f64| a + b;
    merge(&mut sum.goodput_bps, &one.goodput_bps, plus);
    merge(&mut sum.cwnd_packets, &one.cwnd_packets, plus);
    merge(&mut sum.retransmissions, &one.retransmissions, plus);
    merge(&mut sum.sent_bytes, &one.sent_bytes, plus);
    merge(&mut sum.srtt_ms, &one.srtt_ms, f64::max);
}

fn merge(sum: &mut Values, one: &Values, with: impl Fn(f64, f64) -> f64) {
    for (sum, one) in sum.iter_mut().zip(one) {
        *sum = match (*sum, *one) {
            (Some(a), Some(b)) => Some(with(a, b)),
            (a, b) => a.or(b),
        };
    }
}

/// One direction of a link.
#[derive(Debug)]
pub(crate) struct LinkSeries {
    pub(crate) path: String,
    pub(crate) backlog_bytes: Values,
    pub(crate) drops: Values,
}

/// Returns series of every link in one direction, in order of appearance.
pub(crate) fn links(run: &StoredRun, grid: &Grid, direction: DataDirection) -> Vec<LinkSeries> {
    let mut places: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all: Vec<(LinkSeries, u64)> = Vec::new();
    for record in &run.records {
        let Record::Link(link) = record else { continue };
        if link.direction != direction {
            continue;
        }
        let place = *places.entry(&link.path).or_insert(all.len());
        if place == all.len() {
            let (backlog_bytes, drops) = (grid.empty(), grid.empty());
            all.push((LinkSeries { path: link.path.clone(), backlog_bytes, drops }, 0));
        }
        if let Some((series, before)) = all.get_mut(place) {
            note_link(grid, series, before, link);
        }
    }
    let bridged = |(series, _): (LinkSeries, u64)| {
        let (backlog_bytes, drops) = (bridge(series.backlog_bytes), bridge(series.drops));
        LinkSeries { backlog_bytes, drops, ..series }
    };
    all.into_iter().map(bridged).collect()
}

/// Adds a link's record; `before` is the drop count of its previous record.
fn note_link(grid: &Grid, series: &mut LinkSeries, before: &mut u64, link: &Link) {
    grid.store_max(&mut series.backlog_bytes, link.t_ns, link.backlog_bytes as f64);
    let total = link
        .dropped_queue_packets
        .saturating_add(link.dropped_loss_packets)
        .saturating_add(link.dropped_down_packets);
    if let Some(value) = series.drops.get_mut(grid.index(link.t_ns)) {
        *value = Some(value.unwrap_or(0.0) + total.saturating_sub(*before) as f64);
    }
    *before = total;
}

/// A labelled moment of the timeline.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mark {
    pub(crate) at_s: f64,
    /// End of a fade with many steps.
    pub(crate) until_s: Option<f64>,
    /// Letter of the mark: `A`, `B`, …
    pub(crate) letter: String,
    pub(crate) text: String,
}

impl Mark {
    /// Returns the text for a chart; the number of a fade's steps is listed below the chart only.
    pub(crate) fn label(&self) -> &str {
        self.text.split_once(FADE_STEPS_SEPARATOR).map_or(&self.text, |(text, _)| text)
    }
}

/// Separator before the number of a fade's steps.
const FADE_STEPS_SEPARATOR: &str = ", in ";

/// An event of the timeline, as recorded or planned.
#[derive(Debug, Clone, PartialEq, Eq)]
struct MarkEvent {
    t_ns: u64,
    target: String,
    text: String,
}

/// Returns the timeline events; if none were recorded, the planned ones. Steps of a fade are one
/// mark, because forty labels would hide the chart.
pub(crate) fn marks(run: &StoredRun) -> Vec<Mark> {
    let mut found: Vec<MarkEvent> = Vec::new();
    for record in &run.records {
        if let Record::Event(event) = record
            && event.kind == EventKind::Timeline
        {
            let target = event.path.clone().unwrap_or_default();
            found.push(MarkEvent { t_ns: event.t_ns, target, text: clean(&event.text) });
        }
    }
    if found.is_empty() {
        found.extend(run.meta.timeline.iter().map(|event| {
            let text = clean(&format!("{} {}", event.target, event.text));
            MarkEvent { t_ns: event.at_ns, target: event.target.clone(), text }
        }));
    }
    // At the same time, a path comes up before its first step, and goes down after its last.
    let turn = |one: &MarkEvent| match one.is_switch() {
        false => 1,
        true if one.text.ends_with("up") => 0,
        true => 2,
    };
    found.sort_by(|a, b| {
        let key = |one: &MarkEvent| (one.t_ns, one.target.clone(), turn(one));
        (key(a), &a.text).cmp(&(key(b), &b.text))
    });
    let close_ns = run.meta.duration_ns / 40;
    let near = |a: &MarkEvent, b: &MarkEvent| {
        // A path that goes down or comes up is not a step of a fade.
        a.target == b.target && b.t_ns - a.t_ns <= close_ns && !a.is_switch() && !b.is_switch()
    };
    let mut marks: Vec<Mark> = Vec::new();
    for steps in found.chunk_by(near) {
        match steps {
            [first, .., last] if steps.len() > 3 => {
                let until_s = last.t_ns as f64 / 1e9;
                let text = fade(steps).unwrap_or_else(|| format!("{}: {}", first.text, last.text));
                let until = number::short_moment(until_s);
                let text =
                    format!("{text}{FADE_STEPS_SEPARATOR}{} steps until {until}", steps.len());
                add_mark(&mut marks, first.t_ns, text, Some(until_s));
            }
            steps => {
                for step in steps {
                    add_mark(&mut marks, step.t_ns, step.text.clone(), None);
                }
            }
        }
    }
    marks
}

impl MarkEvent {
    fn is_switch(&self) -> bool {
        let change = self.text.strip_prefix(&self.target).unwrap_or(&self.text).trim_start();
        change == "up" || change.split(' ').next() == Some("down")
    }

    /// Returns the rate that the event sets, in words and in bit/s.
    fn rate(&self) -> Option<(&str, f64)> {
        let (_, rate) = self.text.split_once(" rate ")?;
        let mut words = rate.split(' ');
        let (number, unit) = (words.next()?.parse::<f64>().ok()?, words.next()?);
        let size = match unit {
            "bit/s" => 1.0,
            "kbit/s" => 1e3,
            "Mbit/s" => 1e6,
            "Gbit/s" => 1e9,
            _ => return None,
        };
        Some((rate, number * size))
    }
}

/// Describes many steps of a rate like a run's summary: `wifi fades to 1 Mbit/s`.
fn fade(steps: &[MarkEvent]) -> Option<String> {
    let rates = || steps.iter().filter_map(MarkEvent::rate);
    let ((_, first), (last, to)) = (rates().next()?, rates().next_back()?);
    let target = &steps.first()?.target;
    let verb = if to < first { "fades" } else { "rises" };
    Some(format!("{target} {verb} to {last}"))
}

/// Adds a mark; events at the same time share one.
fn add_mark(marks: &mut Vec<Mark>, t_ns: u64, text: String, until_s: Option<f64>) {
    let at_s = t_ns as f64 / 1e9;
    match marks.last_mut().filter(|last| (at_s - last.at_s).abs() < 0.005) {
        Some(last) => {
            last.text = format!("{}, {text}", last.text);
            last.until_s = last.until_s.or(until_s);
        }
        None => marks.push(Mark { at_s, until_s, letter: letter(marks.len()), text }),
    }
}

fn letter(at: usize) -> String {
    match u8::try_from(at).ok().filter(|at| *at < 26) {
        Some(at) => char::from(b'A' + at).to_string(),
        None => (at + 1).to_string(),
    }
}

/// Returns periods of at least 100 ms between the first byte and the end without delivery of any
/// flow. Their precision is the sampling period. In a direction with only one flow, the longest
/// one is exact.
pub(crate) fn stalls(run: &StoredRun, direction: DataDirection) -> Vec<(f64, f64)> {
    let mut stalls = sampled_stalls(run, direction);
    let flows = run.summary.iter().flat_map(|summary| &summary.flows);
    let flows: Vec<_> = flows.filter(|flow| flow.direction == direction).collect();
    // Between messages, silence means nothing.
    if !flows.is_empty() && flows.iter().all(|flow| flow.messages.is_some()) {
        return Vec::new();
    }
    // Silence longer than the longest measured stall is not a stall. All flows had ended but the
    // run went on, for example while servers shut down.
    let longest = flows.iter().map(|flow| flow.stall.longest_ns).max();
    let longest =
        longest.map_or(u64::MAX, |ns| ns.saturating_add(run.meta.sample_ns.saturating_mul(2)));
    stalls.retain(|(from, to)| to.saturating_sub(*from) <= longest);
    if let [only] = flows.as_slice() {
        let stall = only.stall;
        stalls.push((stall.longest_at_ns, stall.longest_at_ns.saturating_add(stall.longest_ns)));
    }
    stalls.retain(|(from, to)| to.saturating_sub(*from) >= 100_000_000);
    stalls.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in stalls {
        match merged.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => merged.push((from, to)),
        }
    }
    merged.into_iter().map(|(from, to)| (from as f64 / 1e9, to as f64 / 1e9)).collect()
}

fn sampled_stalls(run: &StoredRun, direction: DataDirection) -> Vec<(u64, u64)> {
    let mut periods: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    for record in &run.records {
        if let Record::Interval(interval) = record
            && interval.direction == direction
        {
            let from = interval.t_ns.saturating_sub(interval.span_ns);
            let period = periods.entry(interval.t_ns).or_insert((from, 0));
            *period = (period.0.min(from), period.1.saturating_add(interval.bytes));
        }
    }
    let mut stalls: Vec<(u64, u64)> = Vec::new();
    let mut quiet: Option<u64> = None;
    let mut end = 0;
    for (to, (from, bytes)) in periods.into_iter().skip_while(|(_, (_, bytes))| *bytes == 0) {
        end = to;
        if bytes == 0 {
            quiet.get_or_insert(from);
        } else if let Some(start) = quiet.take() {
            stalls.push((start, from));
        }
    }
    stalls.extend(quiet.map(|start| (start, end)));
    stalls
}

/// Returns the median, smallest and largest value at each point over several runs.
pub(crate) fn envelope(all: &[Values]) -> (Values, Values, Values) {
    let points = all.iter().map(Vec::len).max().unwrap_or(0);
    let at = |point: usize| {
        crate::group::MedianRange::of(all.iter().filter_map(|v| v.get(point).copied().flatten()))
    };
    let spreads: Vec<_> = (0..points).map(at).collect();
    (
        spreads.iter().map(|spread| spread.map(|s| s.median)).collect(),
        spreads.iter().map(|spread| spread.map(|s| s.min)).collect(),
        spreads.iter().map(|spread| spread.map(|s| s.max)).collect(),
    )
}
