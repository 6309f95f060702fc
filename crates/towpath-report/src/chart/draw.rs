//! Drawing of one chart as SVG.

use std::fmt::Write as _;
use std::rc::Rc;

use plotters::coord::types::RangedCoordf64;
use plotters::prelude::Cartesian2d;
use plotters::prelude::{BLACK, ChartBuilder, ChartContext, IntoDrawingArea, LineSeries, Polygon};
use towpath_result::format::number::three_digits;
use towpath_result::format::text::cut;

use super::canvas::{Canvas, HEIGHT, WIDTH};
use super::{
    AxisScale, Chart, ChartSeries, ChartSize, SeriesStyle, SharedAxis, bands, delay_ticks,
    tick_label, ticks, time_ticks,
};
use crate::series::{Mark, Values};
use crate::text::esc;

type ChartArea<'a> = ChartContext<'a, Canvas, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// A corner of an outline, in the units of the axes.
type DataPoint = (f64, f64);

/// Draws a chart. Large charts show each event's text, the others its letter.
pub(crate) fn svg(chart: &Chart, axis: &SharedAxis) -> String {
    let label_rows = label_rows_of(&axis.marks, axis.end_s);
    let texts = chart.size == ChartSize::Large && !axis.marks.is_empty();
    let used_rows = label_rows.iter().map(|row| (row + 1).min(MAX_LABEL_ROWS)).max().unwrap_or(1);
    let rows = if texts { used_rows } else { 1 };
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg class=\"plot {} lanes{rows}\" role=\"img\" aria-label=\"{}\">",
        chart.size.class(),
        esc(&aria_label(chart, axis))
    );
    y_axis(&mut out, chart);
    let _ = write!(
        out,
        "<svg class=\"data\" width=\"100%\" height=\"100%\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         preserveAspectRatio=\"none\">{}</svg>",
        data(chart, axis)
    );
    if chart.size == ChartSize::Account {
        out.push_str(&bands::band_labels(chart));
    }
    x_axis(&mut out, axis);
    marks(&mut out, axis, &label_rows, texts, &chart.peaks());
    out.push_str("</svg>");
    out
}

/// Returns the text that a screen reader reads instead of the picture.
fn aria_label(chart: &Chart, axis: &SharedAxis) -> String {
    let mut text = match axis.scale {
        AxisScale::Time => {
            format!("{} in {} over {} seconds", chart.title, chart.unit, three_digits(axis.end_s))
        }
        // A mean of shares is meaningless; the table has the percentiles.
        AxisScale::Delay(_) => return format!("{} in {}", chart.title, chart.unit),
    };
    for series in chart.series.iter().filter(|series| series.shape != SeriesStyle::Range).take(12) {
        let values: Vec<f64> = series.values.iter().flatten().copied().collect();
        let max = values.iter().copied().fold(0.0, f64::max);
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let _ = write!(
            text,
            "; {}: mean {}, largest {}",
            series.name,
            three_digits(mean),
            three_digits(max)
        );
    }
    for mark in axis.marks.iter().take(12) {
        let _ = write!(text, "; at {} s {}", three_digits(mark.at_s), mark.text);
    }
    text
}

fn y_axis(out: &mut String, chart: &Chart) {
    let max_ticks = if chart.size == ChartSize::Large { 7 } else { 5 };
    let ticks = ticks(chart.max, max_ticks);
    let step = ticks.get(1).copied().unwrap_or(1.0);
    let _ = write!(out, "<text class=\"unit\" x=\"-46\" y=\"-12\">{}</text>", esc(&chart.unit));
    for tick in ticks.into_iter().filter(|tick| *tick <= chart.max * 1.000_001) {
        let y = 100.0 - 100.0 * tick / chart.max;
        let class = if tick == 0.0 { "zero" } else { "grid" };
        let _ = write!(
            out,
            "<line class=\"{class}\" x2=\"100%\" y1=\"{y:.2}%\" y2=\"{y:.2}%\"/>\
             <text x=\"-6\" y=\"{y:.2}%\" dy=\".33em\" text-anchor=\"end\">{}</text>",
            tick_label(tick, step)
        );
    }
}

fn x_axis(out: &mut String, axis: &SharedAxis) {
    let (ticks, unit) = match axis.scale {
        AxisScale::Time => {
            let ticks = time_ticks(axis.end_s);
            let step = ticks.get(1).copied().unwrap_or(1.0);
            (ticks.into_iter().map(|tick| (tick, tick_label(tick, step))).collect(), "time, s")
        }
        AxisScale::Delay(from) => (delay_ticks(from, axis.end_s), "delay, ms"),
    };
    out.push_str("<g class=\"times\">");
    for (tick, label) in ticks {
        let x = 100.0 * tick / axis.end_s;
        let _ = write!(
            out,
            "<line class=\"tick\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"100%\" y2=\"100%\"/>\
             <text x=\"{x:.2}%\" y=\"100%\" dy=\"16\" text-anchor=\"middle\">{label}</text>",
        );
    }
    let _ = write!(
        out,
        "</g><text class=\"unit\" x=\"50%\" y=\"100%\" dy=\"31\" text-anchor=\"middle\">{unit}</text>",
    );
}

/// Draws lines and letters of events, and their texts where there is room for them.
fn marks(
    out: &mut String,
    axis: &SharedAxis,
    label_rows: &[usize],
    texts: bool,
    clipped: &[(usize, f64)],
) {
    out.push_str("<g class=\"marks\">");
    let (mut min_letter_x, mut end_marks) = (f64::NEG_INFINITY, String::new());
    for (mark, row) in axis.marks.iter().zip(label_rows) {
        let x = 100.0 * mark.at_s / axis.end_s;
        if !(0.0..=100.0).contains(&x) {
            continue;
        }
        let _ = write!(
            out,
            "<g data-at=\"{:.3}\"><line class=\"event\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y2=\"100%\"/>",
            mark.at_s
        );
        if let Some(until_s) = mark.until_s {
            let x = 100.0 * until_s / axis.end_s;
            let _ = write!(
                end_marks,
                "<g data-at=\"{until_s:.3}\"><line class=\"event\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" \
                 y2=\"100%\"/></g>"
            );
        }
        if texts && *row < MAX_LABEL_ROWS {
            let (anchor, dx) = if is_left_of_line(x) { ("end", -4) } else { ("start", 4) };
            let y = -7 - 15 * i32::try_from(*row).unwrap_or(0);
            let _ = write!(
                out,
                "<line class=\"event stem\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{}\" y2=\"0\"/>\
                 <text class=\"say\" x=\"{x:.2}%\" dx=\"{dx}\" y=\"{y}\" text-anchor=\"{anchor}\">\
                 <tspan>{}</tspan> {}</text>",
                y - 8,
                mark.letter,
                esc(&cut(mark.label(), MAX_LABEL_CHARS))
            );
        }
        if x >= min_letter_x {
            let class = if texts { "letter short" } else { "letter" };
            let _ = write!(
                out,
                "<text class=\"{class}\" x=\"{x:.2}%\" y=\"-7\" text-anchor=\"middle\">{}</text>",
                mark.letter
            );
            min_letter_x = x + 6.0;
        }
        out.push_str("</g>");
    }
    out.push_str(&end_marks);
    peaks(out, axis, clipped);
    out.push_str("</g>");
}

/// Draws a mark at each value that the axis cuts off, with a number at the largest of them.
fn peaks(out: &mut String, axis: &SharedAxis, peaks: &[(usize, f64)]) {
    let largest = peaks.iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let x_percent = |index: usize| 100.0 * (index as f64 + 0.5) * axis.step_s / axis.end_s;
    // Signs that would overlap the text of the largest value on a phone are left out.
    let largest_span = largest.map(|(index, value)| {
        let width = (three_digits(*value).chars().count() as f64 * LETTER_WIDTH_PX
            + PEAK_SIGN_WIDTH_PX)
            / PHONE_WIDTH_PX
            * 100.0;
        LabelSpan { at: x_percent(*index), width }
    });
    let largest = largest.map(|(index, _)| *index);
    let mut min_sign_x = f64::NEG_INFINITY;
    for (index, value) in peaks {
        let at_s = (*index as f64 + 0.5) * axis.step_s;
        let x = x_percent(*index);
        if Some(*index) != largest {
            let sign_span = LabelSpan { at: x, width: 0.0 };
            if x < min_sign_x
                || largest_span.is_some_and(|largest_span| largest_span.overlaps(sign_span))
            {
                continue;
            }
            min_sign_x = x + PEAK_SIGN_WIDTH_PX / PHONE_WIDTH_PX * 100.0;
        }
        let (anchor, text) = match Some(*index) == largest {
            false => ("middle", "▲".to_owned()),
            true if is_left_of_line(x) => ("end", format!("{} ▲", three_digits(*value))),
            true => ("start", format!("▲ {}", three_digits(*value))),
        };
        // The sign, not the number next to it, is centred on the position.
        let dx = match anchor {
            "start" => -4,
            "end" => 4,
            _ => 0,
        };
        let _ = write!(
            out,
            "<g data-at=\"{at_s:.3}\"><text class=\"peak\" x=\"{x:.2}%\" dx=\"{dx}\" y=\"9\" \
             text-anchor=\"{anchor}\">{text}</text></g>"
        );
    }
}

/// Width in pixels of the data area on a phone, of a letter, and of a cut-off value's sign.
const PHONE_WIDTH_PX: f64 = 300.0;
const LETTER_WIDTH_PX: f64 = 7.5;
const PEAK_SIGN_WIDTH_PX: f64 = 14.0;

/// Maximum number of label rows above the data area; other labels are only in the list of events.
const MAX_LABEL_ROWS: usize = 4;
/// Maximum length of an event text in a chart, in characters.
const MAX_LABEL_CHARS: usize = 44;
/// Position, in per cent of the width, beyond which labels are left of their event's line.
const FLIP_LABEL_PERCENT: f64 = 56.0;

/// Returns the row of each label above the data area, 0 for the lowest.
///
/// No label overlaps another and no event's line crosses a label, even on the narrowest screen
/// that shows texts.
fn label_rows_of(marks: &[Mark], end_s: f64) -> Vec<usize> {
    const MIN_WIDTH_PX: f64 = 720.0;
    let spans: Vec<LabelSpan> = marks
        .iter()
        .map(|mark| {
            let chars = mark.label().chars().count().min(MAX_LABEL_CHARS) + 4;
            let width = (chars as f64 * 6.6 + 8.0) / MIN_WIDTH_PX * 100.0;
            LabelSpan { at: 100.0 * mark.at_s / end_s, width }
        })
        .collect();
    // A label that overlaps its neighbour's line goes above it, so the neighbours are placed
    // first: labels left of their line from left to right, then the others from right to left.
    let left_labels = spans.iter().enumerate().filter(|(_, span)| is_left_of_line(span.at));
    let right_labels = spans.iter().enumerate().rev().filter(|(_, span)| !is_left_of_line(span.at));
    let mut placed: Vec<(usize, LabelSpan, usize)> = Vec::new();
    for (number, span) in left_labels.chain(right_labels) {
        let overlapped = placed.iter().filter(|(_, other, _)| span.overlaps(*other));
        let row = overlapped.map(|(_, _, row)| row + 1).max().unwrap_or(0);
        placed.push((number, *span, row));
    }
    placed.sort_by_key(|(number, ..)| *number);
    placed.into_iter().map(|(_, _, row)| row).collect()
}

/// Returns true if a label at `x` per cent is left of its line.
fn is_left_of_line(x: f64) -> bool {
    x > FLIP_LABEL_PERCENT
}

/// Horizontal extent of a label, in per cent of the width.
#[derive(Debug, Clone, Copy)]
struct LabelSpan {
    /// Position of the event's line.
    at: f64,
    width: f64,
}

impl LabelSpan {
    fn ends(self) -> (f64, f64) {
        if is_left_of_line(self.at) {
            (self.at - self.width, self.at)
        } else {
            (self.at, self.at + self.width)
        }
    }

    fn overlaps(self, other: Self) -> bool {
        let ((from, to), (start, end)) = (self.ends(), other.ends());
        from <= end && start <= to
    }
}

/// Draws the stretched data area: stalls, then series.
fn data(chart: &Chart, axis: &SharedAxis) -> String {
    if chart.size == ChartSize::Account {
        return bands::svg(chart, axis);
    }
    let canvas = Canvas::default();
    let out = Rc::clone(&canvas.0);
    let area = canvas.clone().into_drawing_area();
    let end = axis.end_s.max(f64::MIN_POSITIVE);
    let plane = ChartBuilder::on(&area).build_cartesian_2d(0.0..end, 0.0..chart.max);
    // The canvas cannot fail, so a plane exists; without one the chart would stay empty.
    if let Ok(mut plane) = plane {
        canvas.write("<g class=\"stalls\">");
        for (from, to) in &axis.stalls {
            let (from, to, top) = (*from, to.min(end), chart.max);
            fill(&mut plane, vec![(from, 0.0), (from, top), (to, top), (to, 0.0)]);
        }
        canvas.write("</g>");
        let mut floor: Vec<f64> = Vec::new();
        for (number, series) in chart.series.iter().enumerate() {
            canvas.write(&format!("<g class=\"{}\" data-s=\"{number}\">", series.class));
            draw(&mut plane, series, axis.step_s, &mut floor);
            canvas.write("</g>");
        }
    }
    drop(area);
    out.take()
}

fn draw(plane: &mut ChartArea<'_>, series: &ChartSeries, step: f64, floor: &mut Vec<f64>) {
    match series.shape {
        SeriesStyle::Stack => {
            floor.resize(floor.len().max(series.values.len()), 0.0);
            let base: Values = floor.iter().copied().map(Some).collect();
            for (floor, value) in floor.iter_mut().zip(&series.values) {
                *floor += value.unwrap_or(0.0);
            }
            let upper: Values = floor.iter().copied().map(Some).collect();
            band(plane, &base, &upper, &series.values, step);
        }
        SeriesStyle::Range => band(plane, &series.base, &series.values, &series.values, step),
        SeriesStyle::Steps => {
            for run in runs(&series.values) {
                line(plane, steps(&run, step));
            }
        }
        SeriesStyle::Dots => {
            for (index, (value, height)) in series.values.iter().zip(&series.base).enumerate() {
                if let (Some(_), Some(height)) = (value.filter(|value| *value > 0.0), height) {
                    line(plane, vec![((index as f64 + 0.5) * step, *height)]);
                }
            }
        }
        SeriesStyle::Line => {
            for run in runs(&series.values) {
                line(
                    plane,
                    run.iter().map(|(index, v)| ((*index + 1) as f64 * step, *v)).collect(),
                );
            }
        }
    }
}

/// Fills the area between two edges wherever `shown` has a value.
fn band(plane: &mut ChartArea<'_>, base: &Values, upper: &Values, shown: &Values, step: f64) {
    let present: Values = upper.iter().zip(shown).map(|(u, s)| s.and(*u)).collect();
    for run in runs(&present) {
        let floor = run
            .iter()
            .map(|(index, _)| (*index, base.get(*index).copied().flatten().unwrap_or(0.0)));
        let mut outline = steps(&run, step);
        outline.extend(steps(&floor.collect::<Vec<_>>(), step).into_iter().rev());
        fill(plane, outline);
    }
}

/// Returns the stretches without a missing value; each value has its index.
fn runs(values: &Values) -> Vec<Vec<(usize, f64)>> {
    let mut runs: Vec<Vec<(usize, f64)>> = Vec::new();
    let mut previous_present = false;
    for (index, value) in values.iter().enumerate() {
        match (value, runs.last_mut()) {
            (Some(value), Some(run)) if previous_present => run.push((index, *value)),
            (Some(value), _) => runs.push(vec![(index, *value)]),
            (None, _) => {}
        }
        previous_present = value.is_some();
    }
    runs
}

fn steps(run: &[(usize, f64)], step: f64) -> Vec<DataPoint> {
    let edges = |(index, value): &(usize, f64)| {
        [(*index as f64 * step, *value), ((*index + 1) as f64 * step, *value)]
    };
    run.iter().flat_map(edges).collect()
}

fn line(plane: &mut ChartArea<'_>, points: Vec<DataPoint>) {
    let _ = plane.draw_series(LineSeries::new(points, &BLACK));
}

fn fill(plane: &mut ChartArea<'_>, outline: Vec<DataPoint>) {
    let _ = plane.draw_series([Polygon::new(outline, BLACK)]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_marks_do_not_overlap() {
        let (marks, stalls) = (Vec::new(), Vec::new());
        let axis = SharedAxis { scale: AxisScale::Time, step_s: 0.1, end_s: 10.0, marks, stalls };
        let mut out = String::new();
        // The text of the largest value hides two signs; the last sign would overlap its neighbour.
        let clipped = [(10, 90.0), (12, 70.0), (13, 60.0), (60, 50.0), (61, 50.0)];
        peaks(&mut out, &axis, &clipped);
        assert_eq!(out.matches('▲').count(), 2, "{out}");
    }

    #[test]
    fn no_label_overlaps_another_and_no_line_crosses_a_label() {
        let mark = |at_s: f64| {
            let (letter, text) = ("A".to_owned(), "cellular goes down".to_owned());
            Mark { at_s, until_s: None, letter, text }
        };
        let marks: Vec<Mark> = [1.0, 1.2, 2.9, 3.0, 7.0, 7.1, 9.9].map(mark).into();
        let rows = label_rows_of(&marks, 10.0);
        let width = (22.0 * 6.6 + 8.0) / 7.2;
        let span = |n: usize| LabelSpan { at: marks[n].at_s * 10.0, width };
        for this in 0..marks.len() {
            for other in (0..marks.len()).filter(|other| *other != this) {
                let overlap = rows[this] == rows[other] && span(this).overlaps(span(other));
                assert!(!overlap, "{this} and {other}: {rows:?}");
                let (from, to) = span(other).ends();
                let crosses =
                    from < span(this).at && span(this).at < to && rows[this] > rows[other];
                assert!(!crosses, "line {this} through label {other}: {rows:?}");
            }
        }
    }
}
