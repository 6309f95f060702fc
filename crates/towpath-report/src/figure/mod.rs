//! Figures as in a paper: standalone SVG and PNG, legible in print and without colours.
//!
//! A [`Figure`] is data in the units in which it is drawn. `axis` maps values to points of a
//! panel, `marks` draws curves, and `style` defines the look of the n-th curve in every panel.
//! `layout` puts panels, legend and title together. `png` rasterises the result, with glyph
//! outlines from `glyphs`. The charts of a report (`chart`) follow the reader's screen and
//! colours. A figure has a fixed size and a white ground, because it is made to be copied.

mod axis;
mod glyphs;
mod layout;
mod marks;
mod png;
mod style;
mod table;

use serde::{Deserialize, Serialize};

pub use layout::{legend, panels, svg};
pub use png::{PngError, png};
pub use table::csv;

/// A figure of one or several panels.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Figure {
    /// Title above all panels.
    pub title: String,
    /// Panels side by side, at most three in a row.
    pub panels: Vec<Panel>,
    /// Paper that published the reference points, for the legend.
    pub source: Option<String>,
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// Title above it; may be empty.
    pub title: String,
    /// Drawing style of its curves.
    pub kind: CurveKind,
    /// Horizontal axis of the panel.
    pub x: Axis,
    /// Vertical axis of the panel.
    pub y: Axis,
    /// Curves of the runs, and given ones.
    pub curves: Vec<Curve>,
    /// Values that the source published, for comparison with the curves.
    pub references: Vec<ReferencePoint>,
    /// Horizontal lines for claims of the source.
    pub lines: Vec<HorizontalLine>,
    /// Diagonal of equal axes, with a band of this factor on both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagonal: Option<f64>,
}

/// Drawing style of the curves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CurveKind {
    /// Points with error bars, joined by lines.
    Lines,
    /// Bars next to each other at each name.
    Bars,
    /// Bars, with those of one group on top of each other.
    StackedBars,
    /// Steps: share of the runs with at most this value.
    Cdf,
    /// Points without lines between them.
    Scatter,
}

/// One axis of a panel.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Quantity with its unit: `receive buffer (KB)`.
    pub label: String,
    /// Scale that maps values to positions.
    pub scale: ScaleKind,
    /// Both ends of the axis; `None` derives them from the values.
    pub range: Option<[f64; 2]>,
}

/// Scale that maps values to positions on an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ScaleKind {
    /// Linear scale with evenly spaced ticks.
    Linear,
    /// Logarithmic scale; needs positive values.
    Log,
    /// Names; a value is the index of one, from 0.
    Names(Vec<String>),
}

/// One curve, or the bars of one colour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Number of the colour, marker and dash: the same variant has the same in all panels.
    pub style: usize,
    /// Bars of the same group are stacked if the panel stacks.
    pub group: usize,
    /// Measured over real kernels, in a figure that also has simulated curves. Looks like the
    /// curve of its style, with a ring as marker, or a paler bar.
    #[serde(default)]
    pub emulated: bool,
    /// True if another source gives its points: they are hollow, without runs or spread.
    #[serde(default)]
    pub given: bool,
    /// Points of the curve, in order of `x`.
    pub points: Vec<CurvePoint>,
}

/// Result of some runs at one position.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Median or mean of the runs.
    pub middle: f64,
    /// Ends of the spread; equal to the middle when all runs agree.
    pub spread: [f64; 2],
    /// Number of runs behind the point.
    pub runs: usize,
}

/// A point that the source publishes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferencePoint {
    /// Style number of the curve whose colour and marker it has; ink if no curve has that style.
    pub style: Option<usize>,
    /// Name of what was measured, for the table.
    pub name: String,
    /// Place on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
}

/// A horizontal line with a text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HorizontalLine {
    /// Value on the vertical axis.
    pub at: f64,
    /// Meaning of the line, in a few words.
    pub text: String,
}

#[cfg(test)]
mod tests;
