//! A result in memory, with the name of its file.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use super::{RunResult, StoreError, read_run_within};
use crate::frames::FrameReader;
use crate::input::{self, ReadBudget};
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

    /// Reads a result file, compressed or not. `input_budget` limits the bytes of the file and
    /// `memory_budget` those of its records.
    pub fn read(
        path: &Path,
        input_budget: &ReadBudget,
        memory_budget: &ReadBudget,
    ) -> Result<Self, StoreError> {
        let file = input::open(path).map_err(StoreError::Open)?;
        let file = BufReader::new(input_budget.reader(file));
        let run = if path.extension().is_some_and(|ending| ending == "zst") {
            let frames = FrameReader::new(file).map_err(StoreError::Open)?;
            read_run_within(BufReader::new(frames), memory_budget)?
        } else {
            read_run_within(file, memory_budget)?
        };
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        Ok(Self::new(run, name))
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

/// Returns the result files of a folder, `*.jsonl` and `*.jsonl.zst`, sorted by name.
pub fn result_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if is_result(&path) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

fn is_result(path: &Path) -> bool {
    let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
    let stem = name.strip_suffix(".jsonl.zst").or_else(|| name.strip_suffix(".jsonl"));
    stem.is_some_and(|stem| !stem.is_empty())
}
