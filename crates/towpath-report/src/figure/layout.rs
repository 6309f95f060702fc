//! Layout of a figure: panels, legend and title.

use std::fmt::Write as _;

use towpath_result::format::text::{cut, wrap};

use super::axis::{AxisLayout, horizontal, vertical};
use super::marks::{self, PlotArea};
use super::style::{FONTS, INK, LINE, MUTED, MarkerStyle, marker, width};
use super::{CurveKind, Figure, Panel, ScaleKind};
use crate::text::esc;

/// Width of a panel, in SVG units: that of a column of a paper.
const PANEL_WIDTH: f64 = 430.0;
/// Height of a panel, in SVG units.
const PANEL_HEIGHT: f64 = 306.0;
/// Maximum number of panels in a row.
const MAX_COLUMNS: usize = 3;
/// Margin around the whole figure, in SVG units.
const MARGIN: f64 = 12.0;
/// Height of a line of the legend, in SVG units.
const LEGEND_ROW_HEIGHT: f64 = 19.0;
/// Font size of tick labels, in SVG units.
pub(super) const TICK_FONT_SIZE: f64 = 12.0;

/// Draws the figure as a standalone SVG file.
pub fn svg(figure: &Figure) -> String {
    let columns = match figure.panels.len() {
        4 => 2,
        count => count.clamp(1, MAX_COLUMNS),
    };
    let figure_width = columns as f64 * PANEL_WIDTH + 2.0 * MARGIN;
    let titles = wrap(&figure.title, (figure_width / 8.2) as usize);
    let top = MARGIN + 19.0 * titles.len() as f64 + 6.0;
    let legend_entries = entries(figure);
    let rows = wrap_entries(&legend_entries, figure_width - 2.0 * MARGIN);
    let panels_top = top + LEGEND_ROW_HEIGHT * rows.len() as f64 + 4.0;
    let panel_rows = figure.panels.len().div_ceil(columns);
    let size = [figure_width, panels_top + panel_rows as f64 * PANEL_HEIGHT + MARGIN];
    let mut out = open_svg(size, &aria_label(figure));
    let _ =
        write!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>{}", marks::patterns());
    for (number, title) in titles.iter().enumerate() {
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"15\" font-weight=\"600\" \
             text-anchor=\"middle\">{}</text>",
            figure_width / 2.0,
            MARGIN + 14.0 + 19.0 * number as f64,
            esc(title)
        );
    }
    for (number, row) in rows.iter().enumerate() {
        let row_width: f64 = row.iter().map(|entry| entry.width).sum();
        entry_row(
            &mut out,
            row,
            [(figure_width - row_width) / 2.0, top + LEGEND_ROW_HEIGHT * (number as f64 + 0.5)],
        );
    }
    for (number, panel) in figure.panels.iter().enumerate() {
        let x = MARGIN + PANEL_WIDTH * (number % columns) as f64;
        let y = panels_top + PANEL_HEIGHT * (number / columns) as f64;
        let _ = write!(out, "<g transform=\"translate({x:.1} {y:.1})\">");
        draw(&mut out, panel, letter(figure, number).as_deref());
        out.push_str("</g>");
    }
    out.push_str("</svg>\n");
    out
}

/// Draws each panel separately, for pages with their own layout.
pub fn panels(figure: &Figure) -> Vec<String> {
    let svgs = figure.panels.iter().enumerate().map(|(number, panel)| {
        let mut out = open_svg([PANEL_WIDTH, PANEL_HEIGHT], &panel.title);
        out.push_str(marks::patterns());
        draw(&mut out, panel, letter(figure, number).as_deref());
        out.push_str("</svg>");
        out
    });
    svgs.collect()
}

/// Draws the legend as one SVG, at most `max_width` wide.
pub fn legend(figure: &Figure, max_width: f64) -> String {
    let entries = entries(figure);
    let rows = wrap_entries(&entries, max_width);
    let row_width = |row: &[LegendEntry<'_>]| row.iter().map(|entry| entry.width).sum::<f64>();
    let widest = rows.iter().map(|row| row_width(row)).fold(1.0, f64::max);
    let mut out = open_svg([widest, LEGEND_ROW_HEIGHT * rows.len() as f64], "legend");
    out.push_str(marks::patterns());
    for (number, row) in rows.iter().enumerate() {
        entry_row(&mut out, row, [0.0, LEGEND_ROW_HEIGHT * (number as f64 + 0.5)]);
    }
    out.push_str("</svg>");
    out
}

fn open_svg([width, height]: [f64; 2], label: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{}\" \
         font-family=\"{FONTS}\" font-size=\"{TICK_FONT_SIZE}\" fill=\"{INK}\">",
        esc(label)
    )
}

/// Returns the text that a screen reader reads instead of the picture.
fn aria_label(figure: &Figure) -> String {
    let mut text = figure.title.clone();
    for panel in &figure.panels {
        let names: Vec<_> = panel.curves.iter().map(|curve| curve.name.as_str()).collect();
        let _ = write!(
            text,
            "; {}: {} over {} of {}",
            panel.title,
            panel.y.label,
            panel.x.label,
            names.join(", ")
        );
    }
    text
}

/// Returns the panel's letter, `(a)`, if there are several panels.
fn letter(figure: &Figure, number: usize) -> Option<String> {
    let letter = ('a'..='z').nth(number).filter(|_| figure.panels.len() > 1)?;
    Some(format!("({letter})"))
}

/// Entry of the legend.
#[derive(Debug, Clone)]
struct LegendEntry<'a> {
    /// Panel and number of the curve in it; `None` for the values that the source published.
    curve: Option<(&'a Panel, usize)>,
    name: String,
    width: f64,
}

/// Returns one entry for each curve name, and one for the source's published values, if the figure
/// has any ([`Panel::references`]).
fn entries(figure: &Figure) -> Vec<LegendEntry<'_>> {
    let entry_width = |name: &str| 34.0 + 7.0 + width(name, 12.5) + 18.0;
    let mut by_style: Vec<(usize, LegendEntry<'_>)> = Vec::new();
    for panel in &figure.panels {
        for (number, curve) in panel.curves.iter().enumerate() {
            if by_style.iter().all(|(_, entry)| entry.name != curve.name) {
                let (name, sample) = (curve.name.clone(), Some((panel, number)));
                let entry = LegendEntry { curve: sample, width: entry_width(&name), name };
                by_style.push((curve.style, entry));
            }
        }
    }
    by_style.sort_by_key(|(style, _)| *style);
    let mut entries: Vec<_> = by_style.into_iter().map(|(_, entry)| entry).collect();
    if figure.panels.iter().any(|panel| !panel.references.is_empty()) {
        let name = figure.source.clone().unwrap_or_else(|| "the source".to_owned());
        entries.push(LegendEntry { curve: None, width: entry_width(&name), name });
    }
    entries
}

/// Breaks entries into rows of at most `max_width`.
fn wrap_entries<'a>(entries: &[LegendEntry<'a>], max_width: f64) -> Vec<Vec<LegendEntry<'a>>> {
    let mut rows: Vec<Vec<LegendEntry<'a>>> = Vec::new();
    let mut used_width = f64::INFINITY;
    for entry in entries {
        if used_width + entry.width > max_width {
            rows.push(Vec::new());
            used_width = 0.0;
        }
        used_width += entry.width;
        if let Some(row) = rows.last_mut() {
            row.push(entry.clone());
        }
    }
    rows
}

fn entry_row(out: &mut String, row: &[LegendEntry<'_>], [mut x, y]: [f64; 2]) {
    for entry in row {
        match entry.curve {
            Some((panel, number)) => marks::draw_legend_sample(out, panel, number, [x, y]),
            None => marker(out, None, [x + 17.0, y], MarkerStyle::Hollow),
        }
        let _ = write!(
            out,
            "<text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12.5\">{}</text>",
            x + 41.0,
            y + 4.3,
            esc(&entry.name)
        );
        x += entry.width;
    }
}

/// Draws one panel, with its top left corner at the origin.
fn draw(out: &mut String, panel: &Panel, letter: Option<&str>) {
    let title = [letter.unwrap_or_default(), &panel.title].join(" ");
    let top = if title.trim().is_empty() { 10.0 } else { 30.0 };
    let size = [PANEL_WIDTH - 76.0, PANEL_HEIGHT - top - 50.0];
    let y = vertical(panel, size[1]);
    let max_label_width =
        marks::widest(y.ticks.iter().map(|(_, label)| label.as_str()), TICK_FONT_SIZE);
    let left = max_label_width + 32.0;
    let size = [PANEL_WIDTH - left - 18.0, size[1]];
    let x = horizontal(panel, size[0]);
    let _ = write!(
        out,
        "<text x=\"{:.1}\" y=\"18\" font-size=\"13\" font-weight=\"600\" text-anchor=\"middle\">{}\
         </text><g transform=\"translate({left:.1} {top:.1})\">",
        left + size[0] / 2.0,
        esc(&cut(title.trim(), 60))
    );
    draw_frame(out, panel, &x, &y, size, left);
    let _ = write!(
        out,
        "<svg x=\"-7\" y=\"-7\" width=\"{w:.1}\" height=\"{h:.1}\" viewBox=\"-7 -7 {w:.1} {h:.1}\">",
        w = size[0] + 14.0,
        h = size[1] + 14.0
    );
    marks::draw(out, panel, &PlotArea { x: &x, y: &y, size });
    out.push_str("</svg></g>");
}

/// Draws grid, ticks and labels.
fn draw_frame(
    out: &mut String,
    panel: &Panel,
    x: &AxisLayout,
    y: &AxisLayout,
    size: [f64; 2],
    left: f64,
) {
    let [width, height] = size;
    for (value, label) in &y.ticks {
        let Some(position) = y.relative_position(*value).map(|share| (1.0 - share) * height) else {
            continue;
        };
        let _ = write!(
            out,
            "<path d=\"M0 {position:.1}H{width:.1}\" stroke=\"{LINE}\"/>\
             <text x=\"-7\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            position + 4.2
        );
    }
    let has_names = matches!(panel.x.scale, ScaleKind::Names(_));
    let minor_positions =
        x.minor.iter().filter_map(|value| x.relative_position(*value)).map(|share| share * width);
    for position in minor_positions {
        let _ = write!(out, "<path d=\"M{position:.1} {height:.1}v3\" stroke=\"{MUTED}\"/>");
    }
    let slot_width = width / x.ticks.len().max(1) as f64;
    // A name of two lines pushes the axis' label down.
    let mut label_y = height + 40.0;
    for (value, label) in &x.ticks {
        let Some(position) = x.relative_position(*value).map(|share| share * width) else {
            continue;
        };
        if !has_names {
            let _ = write!(out, "<path d=\"M{position:.1} {height:.1}v5\" stroke=\"{INK}\"/>");
        }
        let lines =
            if has_names { wrap(label, (slot_width / 6.6) as usize) } else { vec![label.clone()] };
        label_y = label_y.max(height + if lines.len() > 1 { 46.0 } else { 40.0 });
        for (number, line) in lines.iter().take(2).enumerate() {
            let _ = write!(
                out,
                "<text x=\"{position:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                height + 18.0 + 13.0 * number as f64,
                esc(line)
            );
        }
    }
    if panel.kind == CurveKind::Scatter || panel.kind == CurveKind::Cdf {
        for share in x.ticks.iter().filter_map(|(value, _)| x.relative_position(*value)) {
            let position = share * width;
            let _ = write!(out, "<path d=\"M{position:.1} 0V{height:.1}\" stroke=\"{LINE}\"/>");
        }
    }
    let _ = write!(
        out,
        "<path d=\"M0 0V{height:.1}H{width:.1}\" fill=\"none\" stroke=\"{INK}\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\" font-size=\"12.5\" text-anchor=\"middle\">{}</text>\
         <text transform=\"translate({:.1} {:.1}) rotate(-90)\" font-size=\"12.5\" \
         text-anchor=\"middle\">{}</text>",
        width / 2.0,
        label_y,
        esc(&panel.x.label),
        13.0 - left,
        height / 2.0,
        esc(&panel.y.label)
    );
}
