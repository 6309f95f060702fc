//! One plot of a mobile round: curves, rows of ticks and bands above a shared time axis.
//!
//! Positions across are ten thousandths of the data area's width, as the paths are stretched to
//! the screen. Text, marks and lines keep their size.

use std::fmt::Write as _;

use super::events::EventMark;
use super::round::MobileRound;
use super::scale::DelayScale;
use crate::chart;
use crate::text::esc;

/// Units of the data area across.
pub(super) const WIDTH: u32 = 10_000;
/// Units of a part from top to bottom.
pub(super) const HEIGHT: u32 = 1_000;
/// Units across that are one pixel column; of the points in it, the smallest and largest remain.
const COLUMN_UNITS: u32 = 10;
/// Height of the space above the data area in pixels, for the numbers of events.
const TOP_PX: u32 = 22;
/// Height of the time axis in pixels.
const BOTTOM_PX: u32 = 38;
/// Height of a part with curves, in pixels.
const CURVES_PX: u32 = 190;
/// Height of the space above curves, for the upper half of the label of their top, in pixels.
const CURVES_TOP_PX: u32 = 9;
/// Height of a row of ticks, in pixels.
const TICKS_PX: u32 = 15;
/// Height of a band without its label, in pixels.
const BAND_PX: u32 = 34;
/// Height of a band's label, in pixels.
const LABEL_PX: u32 = 19;
/// Maximum number of ticks of the time axis.
const MAX_TIME_TICKS: usize = 9;
/// Minimum distance in per cent between two numbers of events on a narrow screen.
const MIN_NARROW_DISTANCE: f64 = 7.0;

/// A plot with its heading.
#[derive(Debug)]
pub(super) struct RoundPlot {
    pub(super) title: String,
    /// One short sentence: the quantity drawn and the place of the measurement.
    pub(super) about: String,
    pub(super) legend: Vec<PlotLegendEntry>,
    /// Parts from top to bottom.
    pub(super) parts: Vec<PlotPart>,
}

/// A line of a legend.
#[derive(Debug)]
pub(super) struct PlotLegendEntry {
    /// Classes of the curve; empty without a swatch.
    pub(super) class: String,
    pub(super) text: String,
}

/// A part of a plot.
#[derive(Debug)]
pub(super) enum PlotPart {
    /// Short lines at moments, in a row with a label.
    Ticks { class: String, label: String, moments: Vec<u32> },
    /// Curves over a scale of delays.
    Curves { scale: DelayScale, curves: Vec<RoundCurve> },
    /// Areas above and below a line.
    Band(PlotBand),
}

/// A curve, with gaps between its segments.
#[derive(Debug)]
pub(super) struct RoundCurve {
    pub(super) class: String,
    /// Points of each segment, in order of time.
    pub(super) segments: Vec<Vec<(u32, u32)>>,
}

/// Areas of equal steps above and, if there are two, below a line.
#[derive(Debug)]
pub(super) struct PlotBand {
    pub(super) class: String,
    pub(super) label: String,
    /// Height of each step above the line, 0 to 1.
    pub(super) above: Vec<f64>,
    /// Depth of each step below the line; `None` if the line is the lower edge.
    pub(super) below: Option<Vec<f64>>,
    /// Length of a step, in units across.
    pub(super) step: f64,
}

impl PlotPart {
    fn height_px(&self) -> u32 {
        match self {
            Self::Ticks { .. } => TICKS_PX,
            Self::Curves { .. } => CURVES_TOP_PX + CURVES_PX,
            Self::Band(_) => LABEL_PX + BAND_PX,
        }
    }

    fn write(&self, out: &mut String, top_px: u32) {
        match self {
            Self::Ticks { class, label, moments } => {
                let _ = write!(
                    out,
                    "<text class=\"lane\" x=\"-6\" y=\"{}\" text-anchor=\"end\">{}</text>",
                    top_px + 11,
                    esc(label)
                );
                let mut path = String::new();
                let mut columns: Vec<u32> = moments.iter().map(|x| x / COLUMN_UNITS).collect();
                columns.dedup();
                for column in columns {
                    let _ = write!(path, "M{} 150V850", column * COLUMN_UNITS);
                }
                write_area(out, (top_px, TICKS_PX), &format!("{class} lost"), &[&path]);
            }
            Self::Curves { scale, curves } => {
                let top_px = top_px + CURVES_TOP_PX;
                write_grid(out, *scale, top_px);
                for curve in curves {
                    let (lines, dots) = curve.paths();
                    write_area(out, (top_px, CURVES_PX), &curve.class, &[&lines]);
                    if !dots.is_empty() {
                        let class = format!("{} single", curve.class);
                        write_area(out, (top_px, CURVES_PX), &class, &[&dots]);
                    }
                }
            }
            Self::Band(band) => band.write(out, top_px),
        }
    }
}

impl RoundCurve {
    /// Returns the outlines of the segments, and a dot for each segment of a single point.
    fn paths(&self) -> (String, String) {
        let (mut lines, mut dots) = (String::new(), String::new());
        for segment in &self.segments {
            let mut previous: Option<(u32, u32)> = None;
            let points = thinned(segment);
            if let [(x, y)] = points.as_slice() {
                let _ = write!(dots, "M{x} {y}h0");
                continue;
            }
            for (x, y) in points {
                let _ = match previous {
                    None => write!(lines, "M{x} {y}"),
                    Some((last_x, last_y)) => {
                        let (dx, dy) = (x - last_x.min(x), i64::from(y) - i64::from(last_y));
                        match dy {
                            0 => write!(lines, "h{dx}"),
                            1.. => write!(lines, "l{dx} {dy}"),
                            _ => write!(lines, "l{dx}{dy}"),
                        }
                    }
                };
                previous = Some((x, y));
            }
        }
        (lines, dots)
    }
}

/// Returns at most two points of each pixel column: the smallest and the largest, in their order.
fn thinned(segment: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut points = Vec::new();
    for column in segment.chunk_by(|a, b| a.0 / COLUMN_UNITS == b.0 / COLUMN_UNITS) {
        let indexed = || column.iter().copied().enumerate();
        let min = indexed().min_by_key(|(_, (_, y))| *y);
        let max = indexed().max_by_key(|(_, (_, y))| *y);
        let (Some(min), Some(max)) = (min, max) else { continue };
        let (first, second) = if min.0 <= max.0 { (min, max) } else { (max, min) };
        points.push(first.1);
        if second.0 != first.0 {
            points.push(second.1);
        }
    }
    points
}

impl PlotBand {
    fn write(&self, out: &mut String, top_px: u32) {
        let _ = write!(
            out,
            "<text class=\"band-name\" x=\"3\" y=\"{}\">{}</text>",
            top_px + LABEL_PX - 5,
            esc(&self.label)
        );
        let area_px = top_px + LABEL_PX;
        let middle_px = if self.below.is_some() { BAND_PX / 2 } else { BAND_PX };
        let _ = write!(
            out,
            "<line class=\"zero\" x2=\"100%\" y1=\"{0}\" y2=\"{0}\"/>",
            area_px + middle_px
        );
        let half = if self.below.is_some() { HEIGHT / 2 } else { HEIGHT };
        let outline = |values: &[f64], sign: f64| {
            let height = f64::from(half);
            let y = |value: f64| (height * (1.0 - sign * value.clamp(0.0, 1.0))).round() as u32;
            step_outline(values.iter().map(|value| y(*value)), half, self.step)
        };
        let above = outline(&self.above, 1.0);
        let below = self.below.as_ref().map_or_else(String::new, |below| outline(below, -1.0));
        let class = format!("{} band", self.class);
        write_area(out, (area_px, BAND_PX), &class, &[&above, &below]);
    }
}

/// Returns the outlines of all steps that differ from the base.
fn step_outline(heights: impl Iterator<Item = u32>, base: u32, step: f64) -> String {
    let mut path = String::new();
    let mut previous = base;
    let mut count = 0_u32;
    for height in heights {
        let x = (f64::from(count) * step).round() as u32;
        let _ = if previous == base && height != base {
            write!(path, "M{x} {base}V{height}")
        } else if height == base && previous != base {
            write!(path, "H{x}V{base}z")
        } else if height == previous {
            Ok(())
        } else {
            write!(path, "H{x}V{height}")
        };
        previous = height;
        count += 1;
    }
    if previous != base {
        let _ = write!(path, "H{}V{base}z", (f64::from(count) * step).round() as u32);
    }
    path
}

/// Writes paths into an area that is as wide as the data area.
fn write_area(out: &mut String, (top_px, height_px): (u32, u32), class: &str, paths: &[&str]) {
    let _ = write!(
        out,
        "<svg class=\"data\" y=\"{top_px}\" width=\"100%\" height=\"{height_px}\" \
         viewBox=\"0 0 {WIDTH} {HEIGHT}\" preserveAspectRatio=\"none\"><g class=\"{class}\">"
    );
    for path in paths.iter().filter(|path| !path.is_empty()) {
        let _ = write!(out, "<path d=\"{path}\"/>");
    }
    out.push_str("</g></svg>");
}

fn write_grid(out: &mut String, scale: DelayScale, top_px: u32) {
    let y_px = |y: u32| f64::from(top_px) + f64::from(CURVES_PX * y) / f64::from(HEIGHT);
    for (delay_ms, label) in scale.ticks() {
        let y = y_px(scale.y(delay_ms));
        let _ = write!(
            out,
            "<line class=\"grid\" x2=\"100%\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"-6\" y=\"{y:.1}\" dy=\".33em\" text-anchor=\"end\">{label}</text>"
        );
    }
}

impl RoundPlot {
    /// Writes the plot with its heading, legend and time axis, and a line for each event.
    pub(super) fn write(&self, out: &mut String, round: &MobileRound<'_>, marks: &[EventMark]) {
        let _ = write!(
            out,
            "<figure class=\"track\"><figcaption><h2>{}</h2><p class=\"about\">{}</p>",
            esc(&self.title),
            esc(&self.about)
        );
        if !self.legend.is_empty() {
            out.push_str("<ul class=\"legend\">");
            for entry in &self.legend {
                entry.write(out);
            }
            out.push_str("</ul>");
        }
        let content_px: u32 = self.parts.iter().map(PlotPart::height_px).sum();
        let _ = write!(
            out,
            "</figcaption><svg class=\"timeline\" height=\"{}\" role=\"img\" aria-label=\"{}\">",
            content_px + TOP_PX + BOTTOM_PX,
            esc(&self.description(round))
        );
        let mut top_px = 0;
        write_event_lines(out, content_px, marks);
        for part in &self.parts {
            part.write(out, top_px);
            top_px += part.height_px();
        }
        write_event_numbers(out, marks);
        write_time_axis(out, content_px, round.end_ns);
        out.push_str("</svg></figure>");
    }

    /// Returns the text that a screen reader reads instead of the picture.
    fn description(&self, round: &MobileRound<'_>) -> String {
        let seconds = round.end_ns as f64 / 1e9;
        let mut text = format!("{} over {seconds:.1} seconds", self.title);
        for entry in &self.legend {
            let _ = write!(text, "; {}", entry.text);
        }
        for part in &self.parts {
            if let PlotPart::Band(band) = part {
                let _ = write!(text, "; {}", band.label);
            }
        }
        text
    }
}

impl PlotLegendEntry {
    fn write(&self, out: &mut String) {
        if self.class.is_empty() {
            let _ = write!(out, "<li>{}</li>", esc(&self.text));
            return;
        }
        let _ = write!(
            out,
            "<li class=\"{}\"><svg class=\"swatch\" width=\"30\" height=\"10\" aria-hidden=\"true\">\
             <path d=\"M1 5h28\"/></svg>{}</li>",
            self.class,
            esc(&self.text)
        );
    }
}

fn write_event_lines(out: &mut String, content_px: u32, marks: &[EventMark]) {
    for (class, of_network) in [("event-lines", false), ("event-lines network", true)] {
        let mut path = String::new();
        let lines = marks.iter().flat_map(|mark| mark.lines(of_network));
        let mut columns: Vec<u32> = lines.map(|x| x / COLUMN_UNITS).collect();
        columns.dedup();
        for column in columns {
            let _ = write!(path, "M{} 0V{HEIGHT}", column * COLUMN_UNITS);
        }
        if !path.is_empty() {
            write_area(out, (0, content_px), class, &[&path]);
        }
    }
}

fn write_event_numbers(out: &mut String, marks: &[EventMark]) {
    let mut min_narrow_x = 0.0;
    for mark in marks {
        let x = 100.0 * f64::from(mark.x) / f64::from(WIDTH);
        let class = if x >= min_narrow_x { "number" } else { "number wide" };
        if x >= min_narrow_x {
            min_narrow_x = x + MIN_NARROW_DISTANCE;
        }
        let _ = write!(
            out,
            "<text class=\"{class}\" x=\"{x:.2}%\" y=\"-6\" text-anchor=\"middle\">{}</text>",
            mark.number
        );
    }
}

fn write_time_axis(out: &mut String, content_px: u32, end_ns: u64) {
    let seconds = end_ns as f64 / 1e9;
    let mut ticks = chart::ticks(seconds, MAX_TIME_TICKS);
    ticks.retain(|tick| *tick <= seconds * 1.000_001);
    let step = ticks.get(1).copied().unwrap_or(1.0);
    let _ =
        write!(out, "<line class=\"zero\" x2=\"100%\" y1=\"{content_px}\" y2=\"{content_px}\"/>");
    for tick in ticks {
        let x = 100.0 * tick / seconds;
        let _ = write!(
            out,
            "<line class=\"zero\" x1=\"{x:.2}%\" x2=\"{x:.2}%\" y1=\"{content_px}\" y2=\"{}\"/>\
             <text x=\"{x:.2}%\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            content_px + 5,
            content_px + 18,
            chart::tick_label(tick, step)
        );
    }
    let _ = write!(
        out,
        "<text x=\"50%\" y=\"{}\" text-anchor=\"middle\">seconds since the start</text>",
        content_px + 34
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_keeps_its_smallest_and_largest_point_in_order() {
        let segment = [(0, 5), (2, 9), (4, 1), (6, 7), (11, 3), (25, 4), (26, 4)];
        assert_eq!(thinned(&segment), [(2, 9), (4, 1), (11, 3), (25, 4), (26, 4)]);
    }

    #[test]
    fn a_lone_point_is_a_dot_and_a_segment_a_line() {
        let curve = RoundCurve {
            class: String::new(),
            segments: vec![vec![(0, 500), (100, 400), (200, 600)], vec![(900, 1)], vec![]],
        };
        assert_eq!(curve.paths(), ("M0 500l100-100l100 200".to_owned(), "M900 1h0".to_owned()));
    }

    #[test]
    fn an_area_begins_and_ends_at_the_base() {
        let outline = step_outline([500, 100, 100, 500, 300].into_iter(), 500, 10.0);
        assert_eq!(outline, "M10 500V100H30V500zM40 500V300H50V500z");
        assert_eq!(step_outline(std::iter::empty(), 500, 10.0), "");
    }
}
