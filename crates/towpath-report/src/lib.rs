//! Renders a result: the terminal summary, live interval lines and a self-contained HTML report.
//!
//! Everything here is a pure function from records to text. `compare` makes the table that the
//! terminal and the page share, and `comparison` compares repetitions. `series` brings records
//! onto one time axis, `chart` draws them, and `html` and `terminal` lay out. [`figure`] draws
//! plots for print. Only `text` escapes text from files. Every page begins in `page`, whose
//! content security policy allows nothing but the page itself.

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

/// One result and its source file.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredRun {
    /// Name of the result file, shown so that readers can find it.
    pub file: Option<String>,
    /// Conditions of the run: hosts, transport, scenario.
    pub meta: Meta,
    /// Every record except `meta` and `summary`.
    pub records: Vec<Record>,
    /// Summary metrics; `None` when the run was interrupted.
    pub summary: Option<Summary>,
    /// True if the result file ends early.
    pub truncated: bool,
    /// Number of lines of a kind that this version does not know.
    pub skipped: usize,
}

impl StoredRun {
    /// Creates a stored run from a result and the name of its file.
    pub fn new(result: RunResult, file: Option<String>) -> Self {
        let RunResult { meta, records, summary, truncated, skipped } = result;
        Self { file, meta, records, summary, truncated, skipped }
    }

    /// Returns the stored form of the result, line by line without line ends.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let meta = Record::Meta(Box::new(self.meta.clone()));
        let summary = self.summary.iter().map(|s| Record::Summary(Box::new(s.clone())));
        let records = self.records.iter().cloned();
        // Records have no maps with keys that JSON could not write.
        [meta]
            .into_iter()
            .chain(records)
            .chain(summary)
            .filter_map(|r| serde_json::to_string(&r).ok())
    }
}

impl From<RunResult> for StoredRun {
    fn from(result: RunResult) -> Self {
        Self::new(result, None)
    }
}
