//! Drawing of curves, bars and reference points.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::axis::AxisLayout;
use super::style::{INK, MUTED, MarkerStyle, colour, dash, marker, width};
use super::{Curve, CurveKind, CurvePoint, Panel};
use crate::text::esc;

/// Maximum number of points with error bars; a curve with more points gets a band.
const MAX_BARS: usize = 30;
/// Maximum number of markers on a curve.
const MAX_MARKERS: usize = 40;

/// Mapping of values into a panel's data area, whose top left corner is the origin.
#[derive(Debug)]
pub(super) struct PlotArea<'a> {
    pub(super) x: &'a AxisLayout,
    pub(super) y: &'a AxisLayout,
    pub(super) size: [f64; 2],
}

impl PlotArea<'_> {
    fn x(&self, value: f64) -> Option<f64> {
        self.x.relative_position(value).map(|share| share * self.size[0])
    }

    fn y(&self, value: f64) -> Option<f64> {
        self.y.relative_position(value).map(|share| (1.0 - share) * self.size[1])
    }

    fn at(&self, x: f64, y: f64) -> Option<[f64; 2]> {
        Some([self.x(x)?, self.y(y)?])
    }

    /// Returns the width of a name's slot.
    fn slot(&self) -> f64 {
        let [first, second] = [0.0, 1.0].map(|x| self.x(x).unwrap_or(0.0));
        second - first
    }
}

/// Returns the heights of a panel's stacks, and of their whiskers.
pub(super) fn tops(panel: &Panel) -> Vec<f64> {
    let mut tops: BTreeMap<(usize, i64), f64> = BTreeMap::new();
    for curve in run_curves(panel) {
        for point in curve.points.iter().filter(|point| point.middle.is_finite()) {
            *tops.entry((curve.group, point.x as i64)).or_default() += point.middle.max(0.0);
        }
    }
    tops.into_values().collect()
}

/// Draws all of a panel's curves.
pub(super) fn draw(out: &mut String, panel: &Panel, area: &PlotArea<'_>) {
    if let Some(factor) = panel.diagonal {
        diagonal(out, factor, area);
    }
    match panel.kind {
        CurveKind::Lines => {
            panel.curves.iter().for_each(|curve| spread(out, curve, area));
            panel.curves.iter().for_each(|curve| line(out, curve, area));
        }
        CurveKind::Scatter => run_curves(panel).for_each(|curve| markers(out, curve, area)),
        CurveKind::Cdf => run_curves(panel).for_each(|curve| steps(out, curve, area)),
        CurveKind::Bars | CurveKind::StackedBars => bars(out, panel, area),
    }
    if panel.kind != CurveKind::Lines {
        panel.curves.iter().filter(|curve| curve.given).for_each(|c| markers(out, c, area));
    }
    for line in &panel.lines {
        let Some(y) = area.y(line.at) else { continue };
        let _ = write!(
            out,
            "<path d=\"M0 {y:.1}H{:.1}\" stroke=\"{INK}\" stroke-dasharray=\"4 3\" fill=\"none\"/>\
             <text x=\"4\" y=\"{:.1}\" font-size=\"11\" fill=\"{MUTED}\" stroke=\"#fff\" \
             stroke-width=\"3\" paint-order=\"stroke\">{}</text>",
            area.size[0],
            y - 4.0,
            esc(&line.text)
        );
    }
    for reference in &panel.references {
        let is_same_name =
            |curve: &Curve| panel.kind == CurveKind::Bars && curve.name == reference.name;
        let shift = run_curves(panel)
            .position(is_same_name)
            .map_or(0.0, |bar| column_offset(panel, area, bar));
        if let Some([x, y]) = area.at(reference.x, reference.y) {
            marker(out, reference.style, [x + shift, y], MarkerStyle::Hollow);
        }
    }
}

/// Draws the diagonal of equal axes, and a band of `factor` around it.
fn diagonal(out: &mut String, factor: f64, area: &PlotArea<'_>) {
    let [low, high] = [area.x.low(), area.x.high()];
    let corners = [(low, factor), (high, factor), (high, 1.0 / factor), (low, 1.0 / factor)];
    let corners = corners.map(|(x, factor)| area.at(x, x * factor));
    if let [Some([a, b]), Some([c, d]), Some([e, f]), Some([g, h])] = corners {
        let _ = write!(
            out,
            "<path d=\"M{a:.1} {b:.1}L{c:.1} {d:.1}L{e:.1} {f:.1}L{g:.1} {h:.1}Z\" fill=\"{MUTED}\" \
             fill-opacity=\"0.16\"/>\
             <path d=\"M{:.1} {:.1}L{:.1} {:.1}\" stroke=\"{MUTED}\"/>",
            f64::midpoint(a, g),
            f64::midpoint(b, h),
            f64::midpoint(c, e),
            f64::midpoint(d, f)
        );
    }
}

/// Returns the curves with results of our own runs.
fn run_curves(panel: &Panel) -> impl Iterator<Item = &Curve> {
    panel.curves.iter().filter(|curve| !curve.given)
}

fn markers(out: &mut String, curve: &Curve, area: &PlotArea<'_>) {
    let positions = curve.points.iter().filter_map(|point| area.at(point.x, point.middle));
    positions.for_each(|position| marker(out, Some(curve.style), position, MarkerStyle::of(curve)));
}

/// Returns `[x, low, high]` of a point's spread if it is large enough to see.
fn visible_spread(point: &CurvePoint, area: &PlotArea<'_>) -> Option<[f64; 3]> {
    let x = area.x(point.x)?;
    let low = point.spread[0].max(area.y.low());
    let [low, high] = [area.y(low)?, area.y(point.spread[1])?];
    (low - high > 0.8).then_some([x, low, high])
}

fn whisker(out: &mut String, [x, low, high]: [f64; 3], colour: &str) {
    let _ = write!(
        out,
        "<path d=\"M{x:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h6M{:.1} {high:.1}h6\" \
         stroke=\"{colour}\" stroke-width=\"1.1\" fill=\"none\"/>",
        x - 3.0,
        x - 3.0
    );
}

/// Draws error bars where they can be distinguished, else a band.
fn spread(out: &mut String, curve: &Curve, area: &PlotArea<'_>) {
    let spreads = curve.points.iter().filter_map(|point| visible_spread(point, area));
    if curve.points.len() <= MAX_BARS {
        spreads.for_each(|ends| whisker(out, ends, colour(curve.style)));
        return;
    }
    let spreads: Vec<_> = spreads.collect();
    let lower = spreads.iter().map(|[x, low, _]| [x, low]);
    let upper = spreads.iter().rev().map(|[x, _, high]| [x, high]);
    out.push_str("<path d=\"M");
    for [x, y] in lower.chain(upper) {
        let _ = write!(out, "{x:.1} {y:.1} ");
    }
    if spreads.is_empty() {
        out.push_str("0 0");
    }
    let _ = write!(out, "Z\" fill=\"{}\" fill-opacity=\"0.16\"/>", colour(curve.style));
}

fn line(out: &mut String, curve: &Curve, area: &PlotArea<'_>) {
    let positions: Vec<_> =
        curve.points.iter().filter_map(|point| area.at(point.x, point.middle)).collect();
    path(out, curve, &positions);
    let marker_step = positions.len().div_ceil(MAX_MARKERS).max(1);
    for position in positions.iter().step_by(marker_step) {
        marker(out, Some(curve.style), *position, MarkerStyle::of(curve));
    }
}

fn path(out: &mut String, curve: &Curve, positions: &[[f64; 2]]) {
    if positions.len() < 2 {
        return;
    }
    out.push_str("<path d=\"");
    for (number, [x, y]) in positions.iter().enumerate() {
        let _ = write!(out, "{}{x:.1} {y:.1}", if number == 0 { "M" } else { "L" });
    }
    let _ = write!(
        out,
        "\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>",
        colour(curve.style),
        if curve.emulated { "1.1" } else { "1.8" },
        dash(curve.style)
    );
}

/// Draws a distribution function with a few markers, which only distinguish it from others.
fn steps(out: &mut String, curve: &Curve, area: &PlotArea<'_>) {
    const MARKERS: usize = 5;
    let mut positions = Vec::new();
    let mut height = area.y(0.0).unwrap_or(area.size[1]);
    for point in &curve.points {
        let Some([x, y]) = area.at(point.x, point.middle) else { continue };
        if positions.is_empty() {
            positions.push([x.min(0.0), height]);
        }
        positions.extend([[x, height], [x, y]]);
        height = y;
    }
    if let Some(end) = positions.last().copied() {
        positions.push([area.size[0].max(end[0]), end[1]]);
    }
    path(out, curve, &positions);
    let marker_step = (curve.points.len() / MARKERS).max(1);
    // Markers of different curves are at different heights.
    let first_marker = (curve.style % MARKERS) * marker_step / MARKERS;
    for point in curve.points.iter().skip(first_marker).step_by(marker_step) {
        if let Some(position) = area.at(point.x, point.middle) {
            marker(out, Some(curve.style), position, MarkerStyle::of(curve));
        }
    }
}

/// Returns the number of adjacent bars at each name.
fn columns(panel: &Panel) -> usize {
    if panel.kind == CurveKind::StackedBars {
        return run_curves(panel).map(|curve| curve.group + 1).max().unwrap_or(1);
    }
    run_curves(panel).count().max(1)
}

/// Returns the width of one bar's slot.
fn slot_width(panel: &Panel, area: &PlotArea<'_>) -> f64 {
    area.slot() * 0.78 / columns(panel) as f64
}

/// Returns the distance of a bar from the middle of its name's slot.
fn column_offset(panel: &Panel, area: &PlotArea<'_>, number: usize) -> f64 {
    let middle = (columns(panel) as f64 - 1.0) / 2.0;
    (number as f64 - middle) * slot_width(panel, area).min(50.0)
}

/// Draws the bars of each name next to each other, or those of one group on top of each other.
fn bars(out: &mut String, panel: &Panel, area: &PlotArea<'_>) {
    let stacked = panel.kind == CurveKind::StackedBars;
    let bar_width = (slot_width(panel, area) * 0.92).min(46.0);
    let mut heights: BTreeMap<(usize, i64), f64> = BTreeMap::new();
    let zero = area.y(area.y.low().max(0.0)).unwrap_or(area.size[1]);
    for (number, curve) in run_curves(panel).enumerate() {
        let column_index = if stacked { curve.group } else { number };
        for point in &curve.points {
            let below = heights.entry((column_index, point.x as i64)).or_default();
            let floor = if stacked { *below } else { 0.0 };
            let Some(slot_middle) = area.x(point.x) else { continue };
            let center = slot_middle + column_offset(panel, area, column_index);
            let Some(top) = area.y(floor + point.middle) else { continue };
            let bottom = if floor > 0.0 { area.y(floor).unwrap_or(zero) } else { zero };
            let outline = rectangle(
                center - bar_width / 2.0,
                top.min(bottom),
                bar_width,
                (bottom - top).abs(),
            );
            draw_bar(out, curve, &outline, fill_pattern(stacked, curve));
            let spread_ends = visible_spread(point, area).filter(|_| !stacked);
            if let Some([_, low, high]) = spread_ends {
                whisker(out, [center, low, high], INK);
            }
            *below += point.middle.max(0.0);
        }
    }
}

fn rectangle(x: f64, y: f64, width: f64, height: f64) -> String {
    format!("x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"")
}

/// Returns the fill pattern of a bar, which distinguishes bars of the same colour, and all bars in
/// print.
fn fill_pattern(stacked: bool, curve: &Curve) -> usize {
    if stacked { curve.group + 2 * (curve.style % 2) } else { curve.style }
}

/// Fills a bar with its colour, and lines across it.
pub(super) fn draw_bar(out: &mut String, curve: &Curve, outline: &str, pattern: usize) {
    let colour = colour(curve.style);
    let opacity = if curve.emulated { "0.4" } else { "0.85" };
    let _ = write!(
        out,
        "<rect {outline} fill=\"{colour}\" fill-opacity=\"{opacity}\"/>\
         <rect {outline} fill=\"url(#t{})\" stroke=\"{colour}\"/>",
        pattern % 4
    );
}

/// Returns the definitions of the patterns that [`draw_bar`] uses; every SVG file needs them once.
pub(super) fn patterns() -> &'static str {
    "<defs><pattern id=\"t0\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"/>\
     <pattern id=\"t1\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
     <path d=\"M-1 7L7 -1M-1 1L1 -1M5 7L7 5\" stroke=\"#fff\" stroke-width=\"1.3\"/></pattern>\
     <pattern id=\"t2\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\">\
     <path d=\"M-1 -1L7 7M5 -1L7 1M-1 5L1 7\" stroke=\"#fff\" stroke-width=\"1.3\"/></pattern>\
     <pattern id=\"t3\" width=\"5\" height=\"5\" patternUnits=\"userSpaceOnUse\">\
     <circle cx=\"2.5\" cy=\"2.5\" r=\"1\" fill=\"#fff\"/></pattern></defs>"
}

/// Draws a legend sample of a curve, 34 units wide, from `x` and centred on `y`.
pub(super) fn draw_legend_sample(out: &mut String, panel: &Panel, number: usize, [x, y]: [f64; 2]) {
    let Some(curve) = panel.curves.get(number) else { return };
    match panel.kind {
        CurveKind::Lines => {
            path(out, curve, &[[x, y], [x + 34.0, y]]);
            marker(out, Some(curve.style), [x + 17.0, y], MarkerStyle::of(curve));
        }
        _ if curve.given => marker(out, Some(curve.style), [x + 17.0, y], MarkerStyle::Hollow),
        CurveKind::Cdf => {
            path(out, curve, &[[x, y], [x + 34.0, y]]);
            marker(out, Some(curve.style), [x + 17.0, y], MarkerStyle::of(curve));
        }
        CurveKind::Scatter => marker(out, Some(curve.style), [x + 17.0, y], MarkerStyle::of(curve)),
        CurveKind::Bars | CurveKind::StackedBars => {
            let stacked = panel.kind == CurveKind::StackedBars;
            let outline = rectangle(x + 8.0, y - 5.5, 22.0, 11.0);
            draw_bar(out, curve, &outline, fill_pattern(stacked, curve));
        }
    }
}

/// Returns the width of the widest label.
pub(super) fn widest<'a>(labels: impl Iterator<Item = &'a str>, size: f64) -> f64 {
    labels.map(|label| width(label, size)).fold(0.0, f64::max)
}
