//! What a reader sees of a result: the terminal summary, live interval lines and a self-contained
//! HTML report.
//!
//! Everything here is a pure function from records to text. `compare` makes the table that the
//! terminal and the page share, `comparison` holds repetitions against each other, `series` brings records onto one time axis, `chart` draws them,
//! `html` and `terminal` lay out. [`figure`] draws those that are made to be printed. Text from files is escaped in `text` and nowhere else;
//! every page begins in `page`, which says what it may load and run: nothing but itself.

mod account;
mod chart;
mod compare;
mod comparison;
mod csv;
pub mod figure;
#[doc(hidden)]
pub mod fuzzing;
pub mod gallery;
mod group;
mod html;
mod live;
mod number;
mod page;
mod series;
mod sweep;
mod terminal;
mod text;
pub mod trace;

use towpath_measure::result::{Meta, Record, Summary};
use towpath_measure::store::RunResult;

pub use account::account_table;
pub use comparison::Comparison;
pub use csv::{CsvTable, csv};
pub use html::html;
pub use live::{LiveInterval, LiveSubflow, live_header, live_lines};
pub use sweep::{SweepMetric, SweepPage, SweepPoint, sweep_page};
pub use terminal::{table, warnings};
pub use text::deceives;

/// One result and where it came from.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    /// Name of the result file, shown so that a reader finds it again.
    pub file: Option<String>,
    /// Conditions.
    pub meta: Meta,
    /// Every record but `meta` and `summary`.
    pub records: Vec<Record>,
    /// The figures; missing when the run was interrupted.
    pub summary: Option<Summary>,
    /// Whether the end of the file is missing.
    pub truncated: bool,
    /// Lines of a kind that this version does not know.
    pub skipped: usize,
}

impl StoredRun {
    /// A result as it was read, with the name of its file.
    pub fn new(result: RunResult, file: Option<String>) -> Self {
        let RunResult { meta, records, summary, truncated, skipped } = result;
        Self { file, meta, records, summary, truncated, skipped }
    }

    /// The result as it is stored, line by line without their ends.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let meta = Record::Meta(Box::new(self.meta.clone()));
        let summary = self.summary.iter().map(|s| Record::Summary(Box::new(s.clone())));
        let inner = self.records.iter().cloned();
        // Records have no maps with keys that JSON could not write.
        [meta]
            .into_iter()
            .chain(inner)
            .chain(summary)
            .filter_map(|r| serde_json::to_string(&r).ok())
    }
}

impl From<RunResult> for StoredRun {
    fn from(result: RunResult) -> Self {
        Self::new(result, None)
    }
}
