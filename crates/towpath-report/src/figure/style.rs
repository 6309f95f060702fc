//! Style of the n-th curve: a colour, a marker and a dash, each enough to distinguish it.

use std::fmt::Write as _;

use super::Curve;

/// Colour of text and axes.
pub(super) const INK: &str = "#1a1d21";
/// Colour of secondary text.
pub(super) const MUTED: &str = "#59626c";
/// Colour of the grid.
pub(super) const LINE: &str = "#dfe3e8";
/// Fonts that look alike and match the widths of `width`.
pub(super) const FONTS: &str = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif";

/// Colours that remain distinct with every kind of colour vision, and are dark enough on white.
const COLOURS: [&str; 8] =
    ["#0072b2", "#d55e00", "#009e73", "#7b52c9", "#8d7400", "#2f9fc4", "#96502d", "#66727d"];
const DASHES: [&str; 5] = ["", "7 3", "2 2.5", "9 3 2 3", "12 3 3 3 3 3"];

/// Returns the colour of a style.
pub(super) fn colour(style: usize) -> &'static str {
    COLOURS.get(style % COLOURS.len()).copied().unwrap_or(INK)
}

/// Returns the dash of a style as an attribute; empty for a solid line.
pub(super) fn dash(style: usize) -> String {
    match DASHES.get(style % DASHES.len()) {
        Some(&"") | None => String::new(),
        Some(dash) => format!(" stroke-dasharray=\"{dash}\""),
    }
}

/// Fill of a marker, by source of the point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkerStyle {
    /// Measured by our own runs.
    Filled,
    /// Measured in the other world: hollow, with a dot in the middle.
    Ringed,
    /// Published by another source.
    Hollow,
}

impl MarkerStyle {
    pub(super) fn of(curve: &Curve) -> Self {
        match (curve.given, curve.emulated) {
            (true, _) => Self::Hollow,
            (false, true) => Self::Ringed,
            (false, false) => Self::Filled,
        }
    }
}

/// Writes a marker around a point.
pub(super) fn marker(out: &mut String, style: Option<usize>, [x, y]: [f64; 2], kind: MarkerStyle) {
    let colour = style.map_or(INK, colour);
    let (fill, stroke, r, width) = match kind {
        MarkerStyle::Filled => (colour, "#fff", 3.9, 0.8),
        MarkerStyle::Ringed => ("#fff", colour, 4.4, 1.3),
        MarkerStyle::Hollow => ("#fff", colour, 5.2, 1.6),
    };
    shape(
        out,
        style.unwrap_or(0),
        [x, y],
        r,
        &format!("fill=\"{fill}\" stroke=\"{stroke}\" stroke-width=\"{width}\""),
    );
    if kind == MarkerStyle::Ringed {
        let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"1.5\" fill=\"{colour}\"/>");
    }
}

fn shape(out: &mut String, style: usize, [x, y]: [f64; 2], r: f64, attributes: &str) {
    let corners: &[(f64, f64)] = match style % 7 {
        0 => {
            let _ = write!(out, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{r}\" {attributes}/>");
            return;
        }
        1 => &[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
        2 => &[(0.0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
        3 => &[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)],
        4 => &[(0.0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
        5 => &[
            (-0.4, -1.2),
            (0.4, -1.2),
            (0.4, -0.4),
            (1.2, -0.4),
            (1.2, 0.4),
            (0.4, 0.4),
            (0.4, 1.2),
            (-0.4, 1.2),
            (-0.4, 0.4),
            (-1.2, 0.4),
            (-1.2, -0.4),
            (-0.4, -0.4),
        ],
        _ => &[(0.0, -1.2), (1.14, -0.37), (0.7, 0.97), (-0.7, 0.97), (-1.14, -0.37)],
    };
    out.push_str("<path d=\"M");
    for (dx, dy) in corners {
        let _ = write!(out, "{:.1} {:.1} ", x + dx * r, y + dy * r);
    }
    let _ = write!(out, "Z\" {attributes}/>");
}

/// Returns the approximate width of a text in units of its size; the fonts of [`FONTS`] differ by
/// a few per cent.
pub(super) fn width(text: &str, size: f64) -> f64 {
    let letter = |c: char| match c {
        'i' | 'j' | 'l' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.26,
        'f' | 't' | 'r' | ' ' | '(' | ')' | '/' | '-' | '\u{a0}' => 0.33,
        'm' | 'w' | 'M' | 'W' | '%' => 0.87,
        c if c.is_ascii_uppercase() => 0.69,
        _ => 0.56,
    };
    size * text.chars().map(letter).sum::<f64>()
}
