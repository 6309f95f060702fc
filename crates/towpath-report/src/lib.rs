//! What a reader sees of a result: the terminal summary, live interval lines and a self-contained
//! HTML report.
//!
//! Everything here is a pure function from records to text. `compare` makes the table that the
//! terminal and the page share, `series` brings records onto one time axis, `chart` draws them,
//! `html` and `terminal` lay out. Text from files is escaped in `text` and nowhere else.

mod chart;
mod compare;
mod group;
mod html;
mod live;
mod number;
mod series;
mod terminal;
mod text;

use towpath_measure::result::{Meta, Record, Summary};

pub use html::html;
pub use live::{LiveInterval, LiveSubflow, live_header, live_lines};
pub use terminal::{table, warnings};

/// One result, as read from its file.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Name of the result file, shown so that a reader finds it again.
    pub file: Option<String>,
    /// Conditions.
    pub meta: Meta,
    /// Every record but `meta` and `summary`.
    pub records: Vec<Record>,
    /// The figures; missing when the file was cut off.
    pub summary: Option<Summary>,
}
