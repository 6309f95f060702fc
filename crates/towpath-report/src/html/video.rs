//! Fill level of a video's play-out buffer, and its rebuffer times.

use std::time::Duration;

use towpath_net::Instant;
use towpath_result::metrics::playout::Playout;
use towpath_result::store::StoredRun;
use towpath_result::{MetaFlow, Record};
use towpath_scenario::VideoPlan;

use super::panel::{axis_end, per_point, series as line};
use crate::chart::{Chart, ChartSize, SeriesStyle};
use crate::series::{Grid, Values};

/// Title of the chart.
const TITLE: &str = "Playout buffer";

/// A chart, and the rebuffer periods in seconds.
pub(super) type BufferChart = (Chart, Vec<(f64, f64)>);

/// Returns the meaning of the shading in a chart.
pub(super) fn shading_meaning(chart: &Chart) -> &'static str {
    if chart.title.starts_with(TITLE) { "rebuffering" } else { "nothing delivered" }
}

/// Returns one chart for each video of a run.
pub(super) fn charts(run: &StoredRun, grid: &Grid) -> Vec<BufferChart> {
    let videos = run.meta.flows.iter().filter_map(|flow| Some((flow, flow.video?)));
    videos.filter_map(|(flow, plan)| chart(run, grid, flow, plan)).collect()
}

fn seconds(span: Duration) -> f64 {
    span.as_secs_f64()
}

fn chart(run: &StoredRun, grid: &Grid, flow: &MetaFlow, plan: VideoPlan) -> Option<BufferChart> {
    let (mut begin_ns, mut arrivals) = (None, Vec::new());
    for record in &run.records {
        let Record::Message(message) = record else { continue };
        if message.flow == flow.flow && !message.warm_up {
            begin_ns =
                Some(begin_ns.map_or(message.due_ns, |old_ns: u64| old_ns.min(message.due_ns)));
            arrivals.extend(message.answered_ns);
        }
    }
    arrivals.sort_unstable();
    let begin = Instant::from_nanos(begin_ns?);
    let end = Instant::from_nanos(grid.step_ns.saturating_mul(grid.points as u64));
    let mut playout = Playout::new(plan, begin);
    let mut upcoming = arrivals.iter().map(|time| Instant::from_nanos(*time)).peekable();
    let mut values: Values = Vec::with_capacity(grid.points);
    for point in 1..=grid.points as u64 {
        let now = Instant::from_nanos(grid.step_ns.saturating_mul(point));
        while let Some(arrival) = upcoming.next_if(|arrival| *arrival <= now) {
            playout.segment(arrival);
        }
        values.push((now >= begin).then(|| seconds(playout.buffered(now))));
    }
    upcoming.for_each(|arrival| playout.segment(arrival));
    let (_, waits) = playout.finish_with_waits(end);
    let start_relative_s = |time: Instant| seconds(time.saturating_since(Instant::ZERO));
    let stalls: Vec<(f64, f64)> = waits
        .iter()
        .map(|wait| (start_relative_s(wait.from), start_relative_s(wait.until)))
        .collect();
    let top = values.iter().flatten().copied().fold(0.0, f64::max);
    let chart = Chart {
        title: TITLE.to_owned(),
        about: format!("video that is there and not yet shown, at the end of each {}", {
            per_point(grid)
        }),
        unit: "s".to_owned(),
        max: axis_end(top, 5),
        series: vec![line("buffered", "ink line".to_owned(), SeriesStyle::Line, values)],
        size: ChartSize::Large,
    };
    Some((chart, stalls))
}
