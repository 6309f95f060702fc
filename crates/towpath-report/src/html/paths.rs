//! Probe datagrams of each path, sent outside the transport: their round-trip times and losses.

use towpath_result::format::text::{clean, cut};
use towpath_result::store::StoredRun;
use towpath_result::{Probe, Record};

use super::delay::{self, DelayCurve};
use super::panel::{PageStyle, axis_end, per_point, series as line};
use crate::chart::{Chart, ChartSeries, ChartSize, SeriesStyle};
use crate::series::{Grid, Values};

/// Nanoseconds in a millisecond.
const NS_PER_MS: f64 = 1e6;
/// Distance between the rows of dots for lost datagrams, as a share of the data area's height.
const LOSS_ROW_HEIGHT: f64 = 0.06;

/// Probe datagrams of a path, in order of their due time.
struct PathSeries<'a> {
    path: &'a str,
    probes: Vec<&'a Probe>,
}

fn path_series(run: &StoredRun) -> Vec<PathSeries<'_>> {
    let mut all_series: Vec<PathSeries<'_>> = Vec::new();
    for record in &run.records {
        let Record::Probe(probe) = record else { continue };
        match all_series.iter_mut().find(|series| series.path == probe.path) {
            Some(series) => series.probes.push(probe),
            None => all_series.push(PathSeries { path: &probe.path, probes: vec![probe] }),
        }
    }
    all_series
}

/// Returns the milliseconds from due time to reply; `None` if lost.
fn delay_ms(probe: &Probe) -> Option<f64> {
    Some(probe.answered_ns?.saturating_sub(probe.due_ns).max(1) as f64 / NS_PER_MS)
}

impl PathSeries<'_> {
    fn name(&self) -> String {
        cut(&clean(self.path), 40)
    }

    /// Returns for each grid point the probes that were due in it, or the last probe before it.
    fn probes_by_point<'w>(&'w self, grid: &'w Grid) -> impl Iterator<Item = &'w [&'w Probe]> {
        let end_index = |point: usize| {
            let end = grid.step_ns.saturating_mul(point as u64 + 1);
            self.probes.partition_point(|probe| probe.due_ns < end)
        };
        // Points after the period of the last probe have no value.
        let period = self.probes.windows(2).next().map_or(0, |pair| match pair {
            [first, second] => second.due_ns.saturating_sub(first.due_ns),
            _ => 0,
        });
        let probing_end = self.probes.last().map_or(0, |probe| probe.due_ns.saturating_add(period));
        (0..grid.points).map(move |point| {
            let end = end_index(point);
            let start = if point == 0 { 0 } else { end_index(point - 1) };
            let begin_ns = grid.step_ns.saturating_mul(point as u64);
            let start =
                if start == end && begin_ns < probing_end { end.saturating_sub(1) } else { start };
            self.probes.get(start..end).unwrap_or_default()
        })
    }

    fn delays(&self, grid: &Grid) -> Values {
        let slowest =
            |probes: &[&Probe]| probes.iter().filter_map(|p| delay_ms(p)).reduce(f64::max);
        self.probes_by_point(grid).map(slowest).collect()
    }

    /// Returns the number of lost datagrams at each point.
    fn lost(&self, grid: &Grid) -> Values {
        let count = |probes: &[&Probe]| probes.iter().filter(|p| p.answered_ns.is_none()).count();
        self.probes_by_point(grid)
            .map(|probes| Some(count(probes) as f64).filter(|lost| *lost > 0.0))
            .collect()
    }
}

/// Returns the round trips of every path; `None` if no datagrams were sent.
pub(super) fn over_time(run: &StoredRun, grid: &Grid, style: &PageStyle) -> Option<Chart> {
    let all_series = path_series(run);
    let lines: Vec<ChartSeries> = all_series
        .iter()
        .map(|path_series| {
            let class = format!("{} line o0", style.class(path_series.path));
            line(&path_series.name(), class, SeriesStyle::Line, path_series.delays(grid))
        })
        .collect();
    let top = lines.iter().flat_map(|line| &line.values).flatten().copied().fold(0.0, f64::max);
    let lost: Vec<Values> = all_series.iter().map(|path_series| path_series.lost(grid)).collect();
    let has_losses = lost.iter().flatten().any(Option::is_some);
    // The dots have room above the lines.
    let headroom_ratio =
        if has_losses { 1.0 + LOSS_ROW_HEIGHT * (all_series.len() + 1) as f64 } else { 1.0 };
    let max = axis_end(top * headroom_ratio, 7);
    let dots = all_series.iter().zip(lost).zip(1_u32..).filter_map(|((path_series, lost), row)| {
        lost.iter().any(Option::is_some).then(|| {
            let height = max * (1.0 - LOSS_ROW_HEIGHT * f64::from(row));
            let base = lost.iter().map(|lost| lost.map(|_| height)).collect();
            let class = format!("{} dots", style.class(path_series.path));
            let dots =
                line(&format!("{}: lost", path_series.name()), class, SeriesStyle::Dots, lost);
            ChartSeries { base, ..dots }
        })
    });
    let dots: Vec<ChartSeries> = dots.collect();
    (!all_series.is_empty()).then(|| Chart {
        title: "RTT of each path".to_owned(),
        about: format!(
            "plain datagrams, from due time to return: the slowest in each {}; dots are \
             datagrams that did not return",
            per_point(grid)
        ),
        unit: "ms".to_owned(),
        series: lines.into_iter().chain(dots).collect(),
        max,
        size: ChartSize::Large,
    })
}

/// Writes the share of datagrams that were back within each time, path by path.
pub(super) fn distribution(out: &mut String, run: &StoredRun, style: &PageStyle) {
    let curve = |series: &PathSeries<'_>| -> DelayCurve {
        let delays = series.probes.iter().map(|probe| delay_ms(probe)).collect();
        (series.name(), format!("{} line", style.class(series.path)), delays)
    };
    let curves: Vec<DelayCurve> = path_series(run).iter().map(curve).collect();
    delay::write(
        out,
        ("RTT distribution of each path", "datagrams", "from due time to return"),
        &curves,
    );
}
