//! All rows of a finished sweep in few files, for programs that read many rows.

use std::io;
use std::path::PathBuf;

use super::rows::ChunkState;
use super::{Sweep, SweepError, SweepProgress};
use crate::row::RunRow;

/// Default maximum number of rows of a compact file.
pub const DEFAULT_ROWS_PER_FILE: u32 = 10_000;
/// Start of the names of compact files.
const COMPACT_PREFIX: &str = "rows-";

/// Result of [`Sweep::compact`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactReport {
    /// Compact files, in the order of their rows.
    pub files: Vec<PathBuf>,
    /// Number of rows in all of them.
    pub rows: usize,
}

impl Sweep {
    /// Writes all rows of a finished sweep into files `rows-000000.parquet` and so on, of at most
    /// `rows_per_file` rows. Equal rows give equal bytes. The files of the chunks stay.
    ///
    /// Compact files of an earlier call are replaced.
    pub fn compact(&self, rows_per_file: usize) -> Result<CompactReport, SweepError> {
        let SweepProgress { done, runs, .. } = self.progress()?;
        if done < runs {
            return Err(SweepError::Unfinished { done, runs });
        }
        let rows_per_file = rows_per_file.max(1);
        let (mut report, mut rows) = (CompactReport::default(), Vec::new());
        let mut row_budget = self.row_budget()?;
        for chunk in self.with_runs(|runs| self.chunks(runs)) {
            let path = || self.place.join(&chunk.name);
            match self.inspect(&chunk, &row_budget)? {
                ChunkState::Complete(chunk_rows) => rows.extend(chunk_rows),
                ChunkState::Damaged { reason, .. } => {
                    return Err(SweepError::Damaged(path(), reason));
                }
                // Removed since the listing.
                ChunkState::Absent => return Err(SweepError::File(path(), not_found())),
            }
            while rows.len() >= rows_per_file {
                let rest = rows.split_off(rows_per_file);
                self.write_compact(&rows, &mut report)?;
                rows = rest;
                row_budget = self.row_budget()?;
            }
        }
        if !rows.is_empty() {
            self.write_compact(&rows, &mut report)?;
        }
        self.remove_former(report.files.len())?;
        Ok(report)
    }

    fn write_compact(&self, rows: &[RunRow], report: &mut CompactReport) -> Result<(), SweepError> {
        let name = compact_name(report.files.len());
        let path = self.place.join(&name);
        let bytes = self.table(rows).map_err(|error| SweepError::Table(path.clone(), error))?;
        self.write_file(&name, &bytes)?;
        report.files.push(path);
        report.rows += rows.len();
        Ok(())
    }

    /// Removes compact files of an earlier call with fewer rows per file.
    fn remove_former(&self, count: usize) -> Result<(), SweepError> {
        let first_former = compact_name(count);
        for name in self.list()?.into_keys() {
            let is_compact = name.starts_with(COMPACT_PREFIX)
                && name.ends_with(".parquet")
                && name.len() == first_former.len();
            if is_compact && name >= first_former {
                let removed = self.store.remove(&name);
                removed.map_err(|error| SweepError::File(self.place.join(&name), error))?;
            }
        }
        Ok(())
    }
}

fn compact_name(index: usize) -> String {
    format!("{COMPACT_PREFIX}{index:06}.parquet")
}

fn not_found() -> io::Error {
    io::ErrorKind::NotFound.into()
}
