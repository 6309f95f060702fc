//! Figures as a paper has them: standalone SVG and PNG, legible in print and without colours.
//!
//! A [`Figure`] is data in the units in which it is drawn; `place` maps values to points of a panel,
//! `marks` draws curves, `style` says how the n-th of them looks (in every panel the same), `layout`
//! puts panels, legend and title together, and `png` makes dots of it, with `letters` of our own.
//! Unlike the charts of a report (`chart`), which follow the reader's screen and colours, a figure has
//! a fixed size and a white ground: it is made to be copied.

mod layout;
mod letters;
mod marks;
mod place;
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
    /// Side by side, at most three in a row.
    pub panels: Vec<Panel>,
    /// Who says the reference points, for the legend.
    pub source: Option<String>,
}

/// One pair of axes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Panel {
    /// Title above it; may be empty.
    pub title: String,
    /// How its curves are drawn.
    pub kind: CurveKind,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// What was found.
    pub curves: Vec<Curve>,
    /// What somebody else found.
    pub references: Vec<ReferencePoint>,
    /// What somebody claims: horizontal lines.
    pub lines: Vec<HorizontalLine>,
    /// Where both axes are equal, with a band of this factor to both sides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagonal: Option<f64>,
}

/// How curves are drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum CurveKind {
    /// Points with error bars, joined by lines.
    Lines,
    /// Bars beside each other at each name.
    Bars,
    /// As bars, and those of one group on top of each other.
    StackedBars,
    /// Steps: shares of the runs whose value is at most so large.
    Cdf,
    /// Points alone.
    Scatter,
}

/// An axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// What is on it, with its unit: `receive buffer (KB)`.
    pub label: String,
    /// How values are placed.
    pub scale: ScaleKind,
    /// From where to where; from the values when not given.
    pub range: Option<[f64; 2]>,
}

/// How values are placed on an axis.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ScaleKind {
    /// Evenly.
    Linear,
    /// By their logarithms.
    Log,
    /// The value is the number of a name, from 0.
    Names(Vec<String>),
}

/// One curve, or the bars of one colour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Name in the legend.
    pub name: String,
    /// Colour, marker and dash, by number: the same variant has the same in all panels.
    pub style: usize,
    /// Bars of one group stand on top of each other, if the panel stacks.
    pub group: usize,
    /// Measured over real kernels, where the figure has simulated curves, too: it looks like the one
    /// of its style, with a ring as marker, or a paler bar.
    #[serde(default)]
    pub emulated: bool,
    /// Whether somebody else gives its points: they are hollow, and have neither runs nor spread.
    #[serde(default)]
    pub given: bool,
    /// In order of `x`.
    pub points: Vec<CurvePoint>,
}

/// What some runs say together.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Median or mean.
    pub middle: f64,
    /// Ends of the spread; equal to the middle when there is none.
    pub spread: [f64; 2],
    /// How many runs.
    pub runs: usize,
}

/// A point that somebody else gives.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReferencePoint {
    /// The curve whose colour and marker it has; ink if there is none of that style.
    pub style: Option<usize>,
    /// Name of what was measured, for the table.
    pub name: String,
    /// Place on the horizontal axis.
    pub x: f64,
    /// Value.
    pub y: f64,
}

/// A horizontal line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HorizontalLine {
    /// Value.
    pub at: f64,
    /// What it means, in a few words.
    pub text: String,
}

#[cfg(test)]
mod tests;
