//! Conversion of records to series on one regular grid of a run, so that all its charts share an
//! axis.

mod account;
mod charted_paths;
mod stack;

use std::collections::BTreeMap;

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{EventKind, Link, Record, Subflow, SubflowEnd};
use towpath_scenario::DataDirection;

pub(crate) use account::account;
pub(crate) use charted_paths::omitted_paths;
pub(crate) use stack::{StackSeries, detail_number};

/// Maximum number of points that can be distinguished on a screen.
const MAX_POINTS: u64 = 600;

/// Regular points in time; point `i` covers the period that ends at `(i + 1) * step_ns`.
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
        let sample_ns = runs.iter().map(|run| run.meta.sample_ns).max().unwrap_or(0).max(1_000_000);
        let end_ns = runs.iter().map(|run| last_sample_ns(run)).max().unwrap_or(0);
        // The planned end counts only without samples, because even an empty axis needs a length.
        let planned_end_ns = runs.iter().map(|run| run.meta.duration_ns).max().unwrap_or(0);
        let end_ns = if end_ns == 0 { planned_end_ns.max(sample_ns) } else { end_ns };
        // A slightly late last sample does not make another point.
        let samples = end_ns.saturating_sub(sample_ns / 4).div_ceil(sample_ns).max(1);
        let samples_per_point = samples.div_ceil(MAX_POINTS);
        let points = usize::try_from(samples.div_ceil(samples_per_point)).unwrap_or(1);
        Self {
            step_ns: sample_ns.saturating_mul(samples_per_point),
            points,
            thinned: samples_per_point > 1,
        }
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
        let point = t_ns.saturating_sub(self.step_ns / 4) / self.step_ns;
        usize::try_from(point).unwrap_or(usize::MAX).min(self.points.saturating_sub(1))
    }

    /// Spreads `amount` evenly over the period in which it was counted.
    fn spread(&self, values: &mut Values, t_ns: u64, span_ns: u64, amount: f64) {
        let (step, span) = (self.step_ns as f64, span_ns.max(1) as f64);
        let (start_ns, end_ns) = (t_ns.saturating_sub(span_ns) as f64, t_ns as f64);
        let first_point = (start_ns / step) as usize;
        let last_point = self.points.saturating_sub(1);
        for point in first_point.min(last_point)..=((end_ns / step) as usize).min(last_point) {
            // The last point also includes data that a late sample counted after the end of the
            // grid.
            let point_end =
                if point == last_point { f64::INFINITY } else { (point + 1) as f64 * step };
            let share = (end_ns.min(point_end) - start_ns.max(point as f64 * step)).max(0.0) / span;
            if share > 1e-9
                && let Some(value) = values.get_mut(point)
            {
                *value = Some(value.unwrap_or(0.0) + amount * share);
            }
        }
    }

    /// Stores a state. Of several states at one point, the largest is kept: peaks stay visible.
    fn store_max(&self, values: &mut Values, t_ns: u64, state: f64) {
        if let Some(value) = values.get_mut(self.index(t_ns)) {
            *value = Some(value.map_or(state, |old_max| old_max.max(state)));
        }
    }
}

/// One value for each grid point; `None` where there was nothing to measure.
pub(crate) type Values = Vec<Option<f64>>;

/// Fills each single missing point, which a late sample causes, with the value before it.
fn fill_single_gaps(mut values: Values) -> Values {
    let original = values.clone();
    for (value, window) in values.iter_mut().skip(1).zip(original.windows(3)) {
        if let [Some(previous), None, Some(_)] = window {
            *value = Some(*previous);
        }
    }
    values
}

fn last_sample_ns(run: &StoredRun) -> u64 {
    let time_ns = |record: &Record| match record {
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
    run.records.iter().filter_map(time_ns).max().unwrap_or(0)
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
    let mut directions = Vec::new();
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
        if !directions.contains(&direction) {
            directions.push(direction);
        }
    }
    let bytes = |packet_direction: DataDirection| {
        let flows = run.summary.iter().flat_map(|summary| &summary.flows);
        flows.filter(|flow| flow.direction == packet_direction).map(|flow| flow.bytes).sum::<u64>()
    };
    // Requests are small compared with their replies. Among directions of similar size the usual
    // order applies.
    let is_small = |direction: DataDirection| {
        let max_bytes = directions.iter().map(|other| bytes(*other)).max().unwrap_or_default();
        bytes(direction) < max_bytes / DOMINANT_RATIO
    };
    let smallness: Vec<bool> = directions.iter().map(|direction| is_small(*direction)).collect();
    let of_size = |wanted: bool| {
        directions.iter().zip(&smallness).filter(move |(_, is_small)| **is_small == wanted)
    };
    of_size(false).chain(of_size(true)).map(|(direction, _)| *direction).collect()
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

/// Returns series of every subflow on the paths with most data; merges each path's subflows when
/// there are more than `limit`. [`omitted_paths`] is the number of the other paths.
pub(crate) fn subflows(
    run: &StoredRun,
    grid: &Grid,
    direction: DataDirection,
    limit: usize,
) -> Vec<SubflowSeries> {
    let charted_paths = charted_paths::of(run, direction);
    let is_charted =
        |path: &str| charted_paths.as_ref().is_none_or(|charted| charted.contains(path));
    let mut records: BTreeMap<SubflowKey, Vec<&Subflow>> = BTreeMap::new();
    for record in &run.records {
        if let Record::Subflow(subflow) = record
            && subflow.direction == direction
            && is_charted(&subflow.path)
        {
            let key = (subflow.flow, subflow.stream, subflow.subflow);
            records.entry(key).or_default().push(subflow);
        }
    }
    let is_merged = records.len() > limit;
    // If only the sender was measured, its records contain acknowledged instead of arrived data.
    let has_receiver = records.values().flatten().any(|r| r.side == SubflowEnd::Receiver);
    let arrived_at = if has_receiver { SubflowEnd::Receiver } else { SubflowEnd::Sender };
    let mut series: Vec<(SubflowSeries, usize)> = Vec::new();
    for new in records.values().flat_map(|records| subflow(records, grid, arrived_at)) {
        let index = series.iter().filter(|(other, _)| other.path == new.path).count();
        match series.iter_mut().find(|(other, _)| is_merged && other.path == new.path) {
            Some((sum, count)) => {
                add_subflow(sum, &new);
                *count += 1;
            }
            None => series.push((SubflowSeries { occurrence: index, ..new }, 1)),
        }
    }
    series.into_iter().map(|(series, count)| with_name(series, count)).collect()
}

fn with_name(series: SubflowSeries, count: usize) -> SubflowSeries {
    let path = cut(&clean(&series.path), 40);
    let name = match (count, series.occurrence) {
        (1, 0) => path,
        (1, index) => format!("{path}, subflow {}", index + 1),
        (count, _) => format!("{path} × {count}"),
    };
    SubflowSeries { name, ..series }
}

/// Returns the series of one subflow: one for each path, as its address may move to another
/// interface.
fn subflow(records: &[&Subflow], grid: &Grid, arrived_at: SubflowEnd) -> Vec<SubflowSeries> {
    let mut series: Vec<SubflowSeries> = Vec::new();
    // Totals count from the start of the subflow, whatever its path.
    let (mut retransmissions_before, mut sent_before) = (0, 0);
    for record in records {
        let index = series.iter().position(|on_path| on_path.path == record.path);
        let index = index.unwrap_or_else(|| {
            series.push(SubflowSeries::empty(record.path.clone(), grid));
            series.len() - 1
        });
        let Some(on_path) = series.get_mut(index) else { continue };
        if record.side == arrived_at {
            let bits = record.bytes as f64 * 8.0;
            grid.spread(&mut on_path.goodput_bps, record.t_ns, record.span_ns, bits);
        }
        if record.side == SubflowEnd::Sender {
            on_path.add_state(record, grid, arrived_at == SubflowEnd::Sender);
            let added = f64::from(record.retransmissions.saturating_sub(retransmissions_before));
            retransmissions_before = record.retransmissions;
            if let Some(value) = on_path.retransmissions.get_mut(grid.index(record.t_ns)) {
                *value = Some(value.unwrap_or(0.0) + added);
            }
            if let Some(value) = on_path.sent_bytes.get_mut(grid.index(record.t_ns)) {
                let added = record.bytes_sent.saturating_sub(sent_before);
                *value = Some(value.unwrap_or(0.0) + added as f64);
            }
            sent_before = record.bytes_sent;
        }
    }
    let complete = |series: SubflowSeries| SubflowSeries {
        goodput_bps: per_second(series.goodput_bps, grid),
        srtt_ms: fill_single_gaps(series.srtt_ms),
        cwnd_packets: fill_single_gaps(series.cwnd_packets),
        retransmissions: fill_single_gaps(series.retransmissions),
        sent_bytes: fill_single_gaps(series.sent_bytes),
        ..series
    };
    series.into_iter().map(complete).collect()
}

impl SubflowSeries {
    fn empty(path: String, grid: &Grid) -> Self {
        Self {
            path,
            name: String::new(),
            occurrence: 0,
            goodput_bps: grid.empty(),
            srtt_ms: grid.empty(),
            cwnd_packets: grid.empty(),
            retransmissions: grid.empty(),
            sent_bytes: grid.empty(),
        }
    }

    /// Adds round-trip time and window of a sender.
    fn add_state(&mut self, record: &Subflow, grid: &Grid, is_sender_only: bool) {
        // One-ended measurements may poll rarely, so a value holds since the previous poll.
        let since_ns = record.t_ns.saturating_sub(record.span_ns);
        let first_point = grid.index(if is_sender_only { since_ns } else { record.t_ns });
        for (values, value) in [
            (&mut self.srtt_ms, f64::from(record.srtt_us) / 1e3),
            (&mut self.cwnd_packets, f64::from(record.cwnd_packets)),
        ] {
            // A round-trip time of 0 was not measured, nor was a window of 0.
            if value <= 0.0 {
                continue;
            }
            grid.store_max(values, record.t_ns, value);
            let held_points = values.iter_mut().take(grid.index(record.t_ns)).skip(first_point + 1);
            held_points.for_each(|v| *v = v.or(Some(value)));
        }
    }
}

fn add_subflow(sum: &mut SubflowSeries, other: &SubflowSeries) {
    let plus = |a: f64, b: f64| a + b;
    merge(&mut sum.goodput_bps, &other.goodput_bps, plus);
    merge(&mut sum.cwnd_packets, &other.cwnd_packets, plus);
    merge(&mut sum.retransmissions, &other.retransmissions, plus);
    merge(&mut sum.sent_bytes, &other.sent_bytes, plus);
    merge(&mut sum.srtt_ms, &other.srtt_ms, f64::max);
}

fn merge(sum: &mut Values, other: &Values, combine: impl Fn(f64, f64) -> f64) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum = match (*sum, *other) {
            (Some(a), Some(b)) => Some(combine(a, b)),
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
    let mut index_of_path: BTreeMap<&str, usize> = BTreeMap::new();
    let mut all_series: Vec<(LinkSeries, u64)> = Vec::new();
    for record in &run.records {
        let Record::Link(link) = record else { continue };
        if link.direction != direction {
            continue;
        }
        let index = *index_of_path.entry(&link.path).or_insert(all_series.len());
        if index == all_series.len() {
            let (backlog_bytes, drops) = (grid.empty(), grid.empty());
            all_series.push((LinkSeries { path: link.path.clone(), backlog_bytes, drops }, 0));
        }
        if let Some((series, drops_before)) = all_series.get_mut(index) {
            add_link_record(grid, series, drops_before, link);
        }
    }
    let with_gaps_filled = |(series, _): (LinkSeries, u64)| {
        let (backlog_bytes, drops) =
            (fill_single_gaps(series.backlog_bytes), fill_single_gaps(series.drops));
        LinkSeries { backlog_bytes, drops, ..series }
    };
    all_series.into_iter().map(with_gaps_filled).collect()
}

/// Adds a link's record; `drops_before` is the drop count of its previous record.
fn add_link_record(grid: &Grid, series: &mut LinkSeries, drops_before: &mut u64, link: &Link) {
    grid.store_max(&mut series.backlog_bytes, link.t_ns, link.backlog_bytes as f64);
    let total = link
        .dropped_queue_packets
        .saturating_add(link.dropped_loss_packets)
        .saturating_add(link.dropped_down_packets);
    if let Some(value) = series.drops.get_mut(grid.index(link.t_ns)) {
        *value = Some(value.unwrap_or(0.0) + total.saturating_sub(*drops_before) as f64);
    }
    *drops_before = total;
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

/// Returns a mark for each recorded event of the timeline, or, without any, for each planned one.
///
/// The steps of a fade are one mark, because forty labels would hide the chart.
pub(crate) fn marks(run: &StoredRun) -> Vec<Mark> {
    let mut events: Vec<MarkEvent> = Vec::new();
    for record in &run.records {
        if let Record::Event(event) = record
            && event.kind == EventKind::Timeline
        {
            let target = event.path.clone().unwrap_or_default();
            events.push(MarkEvent { t_ns: event.t_ns, target, text: clean(&event.text) });
        }
    }
    if events.is_empty() {
        events.extend(run.meta.timeline.iter().map(|event| {
            let text = clean(&format!("{} {}", event.target, event.text));
            MarkEvent { t_ns: event.at_ns, target: event.target.clone(), text }
        }));
    }
    // At the same time, a path comes up before its first step, and goes down after its last.
    let order_at_same_time = |event: &MarkEvent| match event.is_switch() {
        false => 1,
        true if event.text.ends_with("up") => 0,
        true => 2,
    };
    events.sort_by(|a, b| {
        let key = |event: &MarkEvent| (event.t_ns, event.target.clone(), order_at_same_time(event));
        (key(a), &a.text).cmp(&(key(b), &b.text))
    });
    let max_step_ns = run.meta.duration_ns / 40;
    let is_same_fade = |a: &MarkEvent, b: &MarkEvent| {
        // A path that goes down or comes up is not a step of a fade.
        a.target == b.target && b.t_ns - a.t_ns <= max_step_ns && !a.is_switch() && !b.is_switch()
    };
    let mut marks: Vec<Mark> = Vec::new();
    for steps in events.chunk_by(is_same_fade) {
        match steps {
            [first, .., last] if steps.len() > 3 => {
                let until_s = last.t_ns as f64 / 1e9;
                let text =
                    fade_text(steps).unwrap_or_else(|| format!("{}: {}", first.text, last.text));
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
        let mut parts = rate.split(' ');
        let (number, unit) = (parts.next()?.parse::<f64>().ok()?, parts.next()?);
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
fn fade_text(steps: &[MarkEvent]) -> Option<String> {
    let rates = || steps.iter().filter_map(MarkEvent::rate);
    let ((_, first_bps), (last_text, last_bps)) = (rates().next()?, rates().next_back()?);
    let target = &steps.first()?.target;
    let verb = if last_bps < first_bps { "fades" } else { "rises" };
    Some(format!("{target} {verb} to {last_text}"))
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

fn letter(index: usize) -> String {
    match u8::try_from(index).ok().filter(|index| *index < 26) {
        Some(index) => char::from(b'A' + index).to_string(),
        None => (index + 1).to_string(),
    }
}

/// Returns the periods of at least 100 ms, after the first byte, in which no flow delivered data.
///
/// Their precision is the sampling period. In a direction with only one flow, the longest is exact.
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
    let max_stall_ns = flows.iter().map(|flow| flow.stall.longest_ns).max();
    let max_stall_ns =
        max_stall_ns.map_or(u64::MAX, |ns| ns.saturating_add(run.meta.sample_ns.saturating_mul(2)));
    stalls.retain(|(from, to)| to.saturating_sub(*from) <= max_stall_ns);
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
            let from_ns = interval.t_ns.saturating_sub(interval.span_ns);
            let period = periods.entry(interval.t_ns).or_insert((from_ns, 0));
            *period = (period.0.min(from_ns), period.1.saturating_add(interval.bytes));
        }
    }
    let mut stalls: Vec<(u64, u64)> = Vec::new();
    let mut quiet_since: Option<u64> = None;
    let mut end_ns = 0;
    for (to_ns, (from_ns, bytes)) in periods.into_iter().skip_while(|(_, (_, bytes))| *bytes == 0) {
        end_ns = to_ns;
        if bytes == 0 {
            quiet_since.get_or_insert(from_ns);
        } else if let Some(start) = quiet_since.take() {
            stalls.push((start, from_ns));
        }
    }
    stalls.extend(quiet_since.map(|start| (start, end_ns)));
    stalls
}

/// Returns the median, smallest and largest value at each point over several runs.
pub(crate) fn envelope(values_of_runs: &[Values]) -> (Values, Values, Values) {
    let points = values_of_runs.iter().map(Vec::len).max().unwrap_or(0);
    let spread_at = |point: usize| {
        crate::group::MedianRange::of(
            values_of_runs.iter().filter_map(|v| v.get(point).copied().flatten()),
        )
    };
    let spreads: Vec<_> = (0..points).map(spread_at).collect();
    (
        spreads.iter().map(|spread| spread.map(|s| s.median)).collect(),
        spreads.iter().map(|spread| spread.map(|s| s.min)).collect(),
        spreads.iter().map(|spread| spread.map(|s| s.max)).collect(),
    )
}
