//! The page of a series: one metric of the matching runs over time, with a marked change.

use maud::{Markup, PreEscaped, html};
use std::fmt::Write as _;
use towpath_result::format::number;

use super::list::{chips, filters};
use super::{Reader, page};
use crate::catalogue::{RunPage, SeriesPoint};
use crate::change::{self, Change, SIGNIFICANCE};
use crate::filter::{RunFilter, SERIES_RUNS, Sort};
use crate::time::{self, DAY_US};

/// Size of the drawing in its own units.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 300.0;
const LEFT: f64 = 90.0;
const BOTTOM: f64 = 40.0;
const TOP: f64 = 16.0;

/// Writes the page; `points` are in order of time.
pub(crate) fn series(
    filter: &RunFilter,
    runs: &RunPage,
    points: &[SeriesPoint],
    reader: Reader<'_>,
) -> String {
    let values: Vec<f64> = points.iter().map(|point| point.value).collect();
    let change = change::find(&values);
    let metric = metric(filter.sort);
    let main = html! {
        h1 { (metric.label) " over time" }
        (filters(filter, runs, "/series"))
        (chips(filter, "/series"))
        (metrics(filter))
        @if points.is_empty() {
            p.none { "No run that matches has this metric." }
        } @else {
            (verdict(&metric, points, change))
            div.scroll { figure { (drawing(&metric, points, change)) } }
            @if points.len() >= SERIES_RUNS as usize {
                p.about { "The newest " (number::count(SERIES_RUNS as f64)) " runs are shown." }
            }
            p.about {
                "Each dot is a run and leads to its page. A change of the median is marked if "
                "Pettitt's test finds one with p < " (SIGNIFICANCE) ". It compares ranks, and needs "
                "5 runs on each side. Choose one scenario, host and transport: a mixture has "
                "changes of its own."
            }
        }
    };
    page(&format!("{} over time", metric.label), reader, &main)
}

/// Metric of the page.
struct SeriesMetric {
    label: &'static str,
    /// Formats a value.
    text: fn(f64) -> String,
}

fn metric(sort: Sort) -> SeriesMetric {
    let time: fn(f64) -> String = |micros| number::time(micros * 1e3);
    match sort {
        // The order by time is that of every series.
        Sort::Time | Sort::Goodput => SeriesMetric { label: "Goodput", text: number::rate },
        Sort::Delay => SeriesMetric { label: "Delay, 99 %", text: time },
        Sort::Stall => SeriesMetric { label: "Longest stall", text: time },
    }
}

fn metrics(filter: &RunFilter) -> Markup {
    html! {
        p {
            "Metric: "
            @for (index, sort) in [Sort::Goodput, Sort::Delay, Sort::Stall].into_iter().enumerate() {
                @if index > 0 { " · " }
                @let is_shown =
                    filter.sort == sort || (filter.sort == Sort::Time && sort == Sort::Goodput);
                @let query = RunFilter { sort, ..filter.clone() }.query();
                a href={ "/series?" (query) } aria-current=[is_shown.then_some("true")] {
                    (metric(sort).label)
                }
            }
        }
    }
}

/// Writes the result of the test in one sentence.
fn verdict(metric: &SeriesMetric, points: &[SeriesPoint], change: Option<Change>) -> Markup {
    let Some(change) = change else {
        let values: Vec<f64> = points.iter().map(|point| point.value).collect();
        let median = change::median(&values).map(metric.text).unwrap_or_default();
        return html! {
            p.headline { "No change in " (points.len()) " runs; median " (median) "." }
        };
    };
    let day = points.get(change.index).map_or(0, |point| time::day(point.started_us));
    let amount = match change.relative() {
        Some(relative) => {
            let sign = if relative < 0.0 { "−" } else { "+" };
            format!("{sign}{}", number::percent(relative.abs()))
        }
        None => "changed".to_owned(),
    };
    html! {
        p.headline { (metric.label) " " (amount) " since " (time::day_text(day)) "." }
        p.about {
            "Median " ((metric.text)(change.median_before)) " before, "
            ((metric.text)(change.median_after)) " after; " (points.len())
            " runs; p = " (format!("{:.1e}", change.p_value)) "."
        }
    }
}

/// Draws the points, and the medians before and after a change.
fn drawing(metric: &SeriesMetric, points: &[SeriesPoint], change: Option<Change>) -> Markup {
    let scale = Scale::of(points);
    let mut out = format!(
        "<svg class=\"series\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"{} of {} runs over time\">",
        metric.label,
        points.len()
    );
    for share in [0.0, 0.5, 1.0] {
        let (value, y) = (scale.max * share, scale.y(scale.max * share));
        let _ = write!(
            out,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 8.0,
            y + 4.0,
            (metric.text)(value)
        );
    }
    for (half, anchor) in [(0, "start"), (1, "middle"), (2, "end")] {
        let at = scale.first_us + (scale.last_us - scale.first_us) / 2 * half;
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
            scale.x(at),
            HEIGHT - 12.0,
            time::day_text(time::day(at))
        );
    }
    if let Some(change) = change
        && let Some(at) = points.get(change.index)
    {
        let (x, left, right) = (scale.x(at.started_us), LEFT, WIDTH);
        for (from, to, median) in [(left, x, change.median_before), (x, right, change.median_after)]
        {
            let y = scale.y(median);
            let _ = write!(
                out,
                "<line class=\"median\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"
            );
        }
        let _ = write!(
            out,
            "<line class=\"change\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>",
            HEIGHT - BOTTOM
        );
    }
    dots(&mut out, metric, points, &scale);
    out.push_str("</svg>");
    PreEscaped(out)
}

/// Draws each run as a dot that leads to its page.
fn dots(out: &mut String, metric: &SeriesMetric, points: &[SeriesPoint], scale: &Scale) {
    for point in points {
        // Identifiers are hexadecimal digits, and the metric's text is made from a number.
        let _ = write!(
            out,
            "<a href=\"/runs/{}\"><circle class=\"{}\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"4\">\
             <title>{}, {}</title></circle></a>",
            point.id,
            if point.ok { "good" } else { "bad" },
            scale.x(point.started_us),
            scale.y(point.value),
            time::second_text(point.started_us),
            (metric.text)(point.value)
        );
    }
}

/// Scale of both axes.
struct Scale {
    first_us: i64,
    last_us: i64,
    max: f64,
}

impl Scale {
    fn of(points: &[SeriesPoint]) -> Self {
        let first_us = points.first().map_or(0, |point| point.started_us);
        let last_us = points.last().map_or(0, |point| point.started_us);
        let max = points.iter().map(|point| point.value).fold(0.0, f64::max);
        // All runs of one moment are drawn in the middle of a day.
        let (first_us, last_us) = if first_us == last_us {
            (first_us - DAY_US / 2, last_us + DAY_US / 2)
        } else {
            (first_us, last_us)
        };
        Self { first_us, last_us, max: if max > 0.0 { max } else { 1.0 } }
    }

    fn x(&self, time_us: i64) -> f64 {
        let share = (time_us - self.first_us) as f64 / (self.last_us - self.first_us) as f64;
        LEFT + 8.0 + share * (WIDTH - LEFT - 16.0)
    }

    fn y(&self, value: f64) -> f64 {
        let height = HEIGHT - BOTTOM - TOP;
        TOP + height * (1.0 - value / self.max)
    }
}
