//! Stored rows: read, checked, and compared with repeated runs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use towpath_os::batch;
use towpath_result::input::{DEFAULT_RESULT_LIMIT, ReadBudget};

use super::{RunChunk, RunFn, Sweep, SweepError, chunk_name};
use crate::row::RunRow;
use crate::runs::short_hash;
use crate::table::{self, TableError};

/// Number of files that are read at the same time: an object store answers slowly.
const PARALLEL_READS: usize = 8;

/// Rows of a sweep, as far as they can be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StoredRows {
    /// Rows in the order of the runs.
    pub rows: Vec<RunRow>,
    /// Damaged files, whose rows are missing.
    pub damaged: Vec<PathBuf>,
}

/// Rows of a chunk's file, which are none if it is absent, or its path and what is damaged.
type ChunkRows = Result<Vec<RunRow>, (PathBuf, String)>;

/// Chunk's file.
pub(super) enum ChunkState {
    Absent,
    Complete(Vec<RunRow>),
    Damaged {
        reason: String,
        /// Version of the file in an object store.
        version: Option<String>,
    },
}

impl Sweep {
    /// Returns all stored rows, in order. A damaged file is an error.
    pub fn rows(&self) -> Result<Vec<RunRow>, SweepError> {
        let mut all = Vec::new();
        for rows in self.read_chunks()? {
            all.extend(rows.map_err(|(path, reason)| SweepError::Damaged(path, reason))?);
        }
        Ok(all)
    }

    /// Returns all stored rows, in order, and the damaged files.
    pub fn read(&self) -> Result<StoredRows, SweepError> {
        let mut stored = StoredRows::default();
        for rows in self.read_chunks()? {
            match rows {
                Ok(rows) => stored.rows.extend(rows),
                Err((path, _)) => stored.damaged.push(path),
            }
        }
        Ok(stored)
    }

    /// Repeats `count` runs, drawn with `seed` from those with stored rows. Returns the differing
    /// rows together with the new ones. Reads only the chunks of these runs.
    pub fn verify(
        &self,
        (count, seed): (usize, u64),
        threads: usize,
        perform: RunFn<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Vec<(RunRow, RunRow)>, SweepError> {
        let listing = self.list()?;
        self.with_runs(|runs| {
            let mut chunks = self.chunks(runs);
            chunks.retain(|chunk| self.complete_file(chunk, &listing).is_some());
            let indices = chunks.iter().flat_map(|chunk| chunk.runs.clone());
            let numbered =
                indices.map(|index| (short_hash(format!("{seed} {index}").as_bytes()), index));
            let mut candidates: Vec<_> = numbered.collect();
            candidates.sort();
            candidates.truncate(count);
            chunks.retain(|chunk| candidates.iter().any(|(_, index)| chunk.runs.contains(index)));
            let mut stored = BTreeMap::new();
            for rows in self.read_all(&chunks, &self.row_budget()?)? {
                let rows = rows.map_err(|(path, reason)| SweepError::Damaged(path, reason))?;
                stored.extend(rows.into_iter().map(|row| (row.key.clone(), row)));
            }
            let mut differing = Vec::new();
            let work = |position: usize| {
                let (_, index) = candidates.get(position)?;
                Some(runs.get(*index)?.execute(perform))
            };
            batch::in_order(candidates.len(), threads, work, |position, row| {
                let stored_row = row.as_ref().and_then(|row| stored.get(&row.key));
                if let Some((stored_row, new_row)) = stored_row.zip(row.as_ref())
                    && stored_row != new_row
                {
                    differing.push((stored_row.clone(), new_row.clone()));
                }
                progress(position + 1, candidates.len())
            });
            Ok(differing)
        })
    }

    /// Reads a chunk's file. The memory of its rows is charged to `row_budget`.
    pub(super) fn inspect(
        &self,
        chunk: &RunChunk,
        row_budget: &ReadBudget,
    ) -> Result<ChunkState, SweepError> {
        let path = || self.place.join(&chunk.name);
        // A file's bytes leave the budget when its rows have been read.
        let content = ReadBudget::new(DEFAULT_RESULT_LIMIT)
            .and_then(|budget| self.store.read(&chunk.name, &budget))
            .map_err(|error| SweepError::File(path(), error))?;
        let Some(content) = content else { return Ok(ChunkState::Absent) };
        let version = content.version;
        let damaged = |reason| Ok(ChunkState::Damaged { reason, version });
        match table::read(content.bytes, chunk.runs.len(), row_budget) {
            Ok(rows) => {
                let keys: Vec<_> = rows.iter().map(|row| row.key.clone()).collect();
                if chunk_name(chunk.index, &keys) == chunk.name {
                    Ok(ChunkState::Complete(rows))
                } else {
                    damaged("it has rows of other runs".to_owned())
                }
            }
            Err(error @ (TableError::TooMuch(_) | TableError::Limit(_))) => {
                Err(SweepError::Table(path(), error))
            }
            Err(
                error @ (TableError::Parquet(_)
                | TableError::Column(_)
                | TableError::TooManyRows(..)
                | TableError::Metadata),
            ) => damaged(error.to_string()),
        }
    }

    /// Reads the files of `chunks`, several at the same time, and returns what `result` makes of
    /// them, in order. The memory of all rows is charged to `row_budget`; without it, that of each
    /// file has a limit of its own.
    pub(super) fn inspect_all<T: Send>(
        &self,
        chunks: &[RunChunk],
        row_budget: Option<&ReadBudget>,
        result: impl Fn(&RunChunk, ChunkState) -> T + Sync,
    ) -> Result<Vec<T>, SweepError> {
        let listing = match chunks {
            // A listing may be much longer than one file.
            [_] => None,
            _ => Some(self.list()?),
        };
        let inspect = |index: usize| {
            let chunk = chunks.get(index)?;
            if listing.as_ref().is_some_and(|listing| !listing.contains_key(&chunk.name)) {
                return Some(Ok(result(chunk, ChunkState::Absent)));
            }
            let state = match row_budget {
                Some(shared) => self.inspect(chunk, shared),
                None => self.row_budget().and_then(|own| self.inspect(chunk, &own)),
            };
            Some(state.map(|state| result(chunk, state)))
        };
        let (mut results, mut failed) = (Vec::new(), None);
        batch::in_order(chunks.len(), PARALLEL_READS, inspect, |_, outcome| {
            match outcome {
                Some(Ok(state)) => results.push(state),
                Some(Err(error)) => failed = Some(error),
                None => {}
            }
            failed.is_none()
        });
        failed.map_or(Ok(results), Err)
    }

    /// Returns the rows of every chunk, or the path of its file and what is damaged.
    fn read_chunks(&self) -> Result<Vec<ChunkRows>, SweepError> {
        let row_budget = self.row_budget()?;
        let chunks = self.with_runs(|runs| self.chunks(runs));
        self.read_all(&chunks, &row_budget)
    }

    /// Returns the rows of some chunks, whose memory is charged to `row_budget`.
    fn read_all(
        &self,
        chunks: &[RunChunk],
        row_budget: &ReadBudget,
    ) -> Result<Vec<ChunkRows>, SweepError> {
        let read = self.inspect_all(chunks, Some(row_budget), |chunk, state| match state {
            ChunkState::Absent => Ok(Vec::new()),
            ChunkState::Complete(rows) => Ok(rows),
            ChunkState::Damaged { reason, .. } => Err((self.place.join(&chunk.name), reason)),
        });
        if let Err(SweepError::Table(_, TableError::TooMuch(error))) = read {
            return Err(SweepError::TooMuch(self.place.clone(), error));
        }
        read
    }

    pub(super) fn row_budget(&self) -> Result<ReadBudget, SweepError> {
        let budget = ReadBudget::new(DEFAULT_RESULT_LIMIT);
        budget.map_err(|error| SweepError::File(self.place.clone(), error))
    }
}
