//! A result in memory, with the name of its file.

use super::RunResult;
use crate::{Meta, Record, Summary};

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
