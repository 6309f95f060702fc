//! A sweep: the runs of a plan as files of a folder or an object store, by any number of processes.
//!
//! `sweep.json` contains the plan with all its files. The ordered runs are cut into chunks. A chunk
//! is done when its file `part-INDEX-ID.parquet` exists and is complete. A process creates that file
//! in one step, and only if it does not exist; otherwise it discards its copy. So no coordinator is
//! needed, a crashed process loses or duplicates nothing, and processes that share the storage share
//! the work. A damaged file counts as missing, and is replaced.

mod compact;
mod error;
mod files;
#[cfg(feature = "objects")]
mod objects;
mod rows;
mod spec;
mod store;

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use towpath_os::batch;
use towpath_result::Record;
use towpath_result::input::{DEFAULT_RESULT_LIMIT, ReadBudget};
use towpath_scenario::World;

pub use self::compact::{CompactReport, DEFAULT_ROWS_PER_FILE};
pub use self::error::SweepError;
use self::rows::ChunkState;
pub use self::rows::StoredRows;
pub use self::spec::SweepSpec;
use self::spec::chunk_id;
use self::store::{ChunkStore, ListedFile};
pub use self::store::{StorageError, SweepLocation};
use crate::plan::{MAX_SEEDS, Plan};
use crate::row::{ENGINE_VERSION, RunRow};
use crate::runs::{RunGrid, RunSelection, StudyRun};
use crate::table::{self, TableError};

/// Name of the file that specifies a folder's sweep.
const SPEC_FILE: &str = "sweep.json";
/// Number of runs of a chunk after which a process checks if another one has finished it.
const RUNS_PER_CHECK: usize = 10;
/// Maximum number of runs of a chunk.
pub const MAX_CHUNK_RUNS: u32 = 1_000;

/// A sweep stored in a folder or an object store.
#[derive(Debug)]
pub struct Sweep {
    store: Box<dyn ChunkStore>,
    /// Folder or address, for messages.
    place: PathBuf,
    spec: SweepSpec,
    plan: Plan,
    /// Name of every chunk's file, computed on first use because it depends on its runs' keys.
    names: OnceLock<Vec<String>>,
}

/// Progress of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct SweepProgress {
    /// Number of runs whose rows are stored.
    pub done: usize,
    /// Number of all runs.
    pub runs: usize,
    /// Number of chunk files that are stored.
    pub chunks_done: usize,
    /// Number of all chunk files.
    pub chunks: usize,
    /// Mean time from one stored chunk to the next, from the times of their files. Pauses count.
    /// `None` with fewer than two chunks.
    pub time_per_chunk: Option<Duration>,
}

impl SweepProgress {
    /// Returns the time until the end if the sweep continues as before; `None` if unknown.
    pub fn time_left(&self) -> Option<Duration> {
        let chunks_left = u32::try_from(self.chunks.saturating_sub(self.chunks_done)).ok()?;
        self.time_per_chunk?.checked_mul(chunks_left)
    }
}

/// One of several processes that share a sweep. It works on its own chunks first, then on those of
/// others from the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shard {
    /// Number of the process, from 1 to `of`.
    pub number: u32,
    /// Number of processes that share the sweep.
    pub of: u32,
}

/// Executes one run and returns its records, or the reason for its failure.
pub type RunFn<'a> = &'a (dyn Fn(&StudyRun) -> Result<Vec<Record>, String> + Sync);

/// Result of [`Sweep::work_chunk`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChunkOutcome {
    /// Runs executed, and their rows stored, by this process.
    Stored,
    /// The rows were stored before, or another process was faster.
    AlreadyStored,
    /// `progress` stopped the work, and nothing is stored.
    Stopped,
}

/// Result of [`Sweep::work`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WorkReport {
    /// Damaged files that were replaced.
    pub replaced: Vec<PathBuf>,
}

impl Sweep {
    /// Opens the sweep of this specification: a new one, or the existing one to continue.
    ///
    /// An object store is refused if it does not support conditional writes.
    pub fn begin(location: impl Into<SweepLocation>, spec: SweepSpec) -> Result<Self, SweepError> {
        let (store, place) = location.into().open()?;
        Self::begin_in(store, place, spec)
    }

    fn begin_in(
        store: Box<dyn ChunkStore>,
        place: PathBuf,
        spec: SweepSpec,
    ) -> Result<Self, SweepError> {
        let file_error = |source| SweepError::File(place.clone(), source);
        store.prepare().map_err(file_error)?;
        let text = serde_json::to_vec_pretty(&spec).map_err(io::Error::from).map_err(file_error)?;
        let path = place.join(SPEC_FILE);
        store.create(SPEC_FILE, &text).map_err(|error| SweepError::File(path, error))?;
        Self::open_in(store, place)?.with_spec(spec)
    }

    /// Opens the existing sweep of this specification, and creates nothing.
    pub fn resume(location: impl Into<SweepLocation>, spec: SweepSpec) -> Result<Self, SweepError> {
        Self::open(location)?.with_spec(spec)
    }

    /// Takes the computed keys of a specification. Fails if it is that of another sweep.
    fn with_spec(mut self, spec: SweepSpec) -> Result<Self, SweepError> {
        if self.spec.take_keys(spec) { Ok(self) } else { Err(SweepError::Another(self.place)) }
    }

    /// Opens an existing sweep.
    pub fn open(location: impl Into<SweepLocation>) -> Result<Self, SweepError> {
        let (store, place) = location.into().open()?;
        Self::open_in(store, place)
    }

    fn open_in(store: Box<dyn ChunkStore>, place: PathBuf) -> Result<Self, SweepError> {
        let path = place.join(SPEC_FILE);
        let budget = ReadBudget::new(DEFAULT_RESULT_LIMIT);
        let text = match budget.and_then(|budget| store.read(SPEC_FILE, &budget)) {
            Ok(Some(content)) => content.bytes,
            Ok(None) => return Err(SweepError::None(place)),
            Err(error) => return Err(SweepError::File(path, error)),
        };
        let spec: SweepSpec = serde_json::from_slice(&text)
            .map_err(|error| SweepError::File(path.clone(), io::Error::from(error)))?;
        if spec.seeds.is_some_and(|seeds| u64::from(seeds) > MAX_SEEDS) {
            let reason = format!("`seeds` is not at most {MAX_SEEDS}");
            return Err(SweepError::File(path, io::Error::other(reason)));
        }
        if spec.engine != ENGINE_VERSION {
            return Err(SweepError::Version { folder: place, created_by: spec.engine });
        }
        let plan = Plan::parse("plan.toml", &spec.plan, &|name| spec.load(name))?;
        Ok(Self { store, place, spec, plan, names: OnceLock::new() })
    }

    /// Returns the plan of the sweep.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Returns the world in which it is run.
    pub fn world(&self) -> World {
        self.spec.world
    }

    /// Returns names and texts of the files that the scenario uses, named relative to it.
    pub fn traces(&self) -> Vec<(String, String)> {
        let scenario = &self.plan.scenario_name;
        let folder =
            scenario.rsplit_once('/').map_or(String::new(), |(folder, _)| format!("{folder}/"));
        let other_files = self.spec.files.iter().filter(|(name, _)| *name != scenario);
        let relative = |(name, text): (&String, &String)| {
            (name.strip_prefix(&folder).unwrap_or(name).to_owned(), text.clone())
        };
        other_files.map(relative).collect()
    }

    fn with_runs<T>(&self, action: impl FnOnce(&RunGrid<'_>) -> T) -> T {
        let SweepSpec { world, quick, seeds, .. } = self.spec;
        let load = |name: &str| self.spec.load(name);
        action(&self.plan.runs(RunSelection { world, quick, seeds }, &load))
    }

    /// Returns the number of all runs.
    #[expect(
        clippy::redundant_closure_for_method_calls,
        reason = "the method itself is not general over the lifetime of the grid"
    )]
    pub fn run_count(&self) -> usize {
        self.with_runs(|runs| runs.len())
    }

    /// Returns the number of chunks, which are numbered from 0.
    pub fn chunk_count(&self) -> usize {
        self.chunk_names().len()
    }

    /// Returns the name of every chunk's file, in order.
    pub fn chunk_names(&self) -> Vec<String> {
        self.with_runs(|runs| self.chunks(runs).into_iter().map(|chunk| chunk.name).collect())
    }

    fn chunks(&self, runs: &RunGrid<'_>) -> Vec<RunChunk> {
        let size = self.spec.chunk.max(1) as usize;
        let starts = (0..runs.len()).step_by(size);
        let spans = starts.map(|start| start..(start + size).min(runs.len()));
        let names = self.names.get_or_init(|| {
            spans.clone().enumerate().map(|(index, span)| self.name(runs, index, span)).collect()
        });
        let with_name = |((index, runs), name): ((usize, Range<usize>), &String)| RunChunk {
            index,
            runs,
            name: name.clone(),
            is_damaged: false,
        };
        spans.clone().enumerate().zip(names).map(with_name).collect()
    }

    /// Returns the name of a chunk's file.
    fn name(&self, runs: &RunGrid<'_>, index: usize, span: Range<usize>) -> String {
        let id = self.spec.chunk_id(index, span.clone()).unwrap_or_else(|| {
            let runs = span.filter_map(|index| runs.get(index));
            chunk_id(&runs.map(|run| run.row.key).collect::<Vec<_>>())
        });
        file_name(index, &id)
    }

    /// Returns the progress, or none at all if the files cannot be listed.
    pub fn status(&self) -> SweepProgress {
        self.progress().unwrap_or_else(|_| self.with_listing(&BTreeMap::new()))
    }

    /// Returns the progress, from one listing of the files. A file that is truncated does not count.
    pub fn progress(&self) -> Result<SweepProgress, SweepError> {
        Ok(self.with_listing(&self.list()?))
    }

    /// Returns the numbers of the chunks that are not stored completely, from one listing.
    pub fn pending(&self) -> Result<Vec<usize>, SweepError> {
        let listing = self.list()?;
        Ok(self.with_runs(|runs| {
            let mut chunks = self.chunks(runs);
            chunks.retain(|chunk| self.complete_file(chunk, &listing).is_none());
            chunks.into_iter().map(|chunk| chunk.index).collect()
        }))
    }

    fn list(&self) -> Result<BTreeMap<String, ListedFile>, SweepError> {
        self.store.list().map_err(|error| SweepError::File(self.place.clone(), error))
    }

    /// Returns a chunk's file if it seems complete.
    fn complete_file(
        &self,
        chunk: &RunChunk,
        listing: &BTreeMap<String, ListedFile>,
    ) -> Option<ListedFile> {
        let file = *listing.get(&chunk.name)?;
        self.store.seems_complete(&chunk.name, file, chunk.runs.len()).then_some(file)
    }

    fn with_listing(&self, listing: &BTreeMap<String, ListedFile>) -> SweepProgress {
        self.with_runs(|runs| {
            let chunks = self.chunks(runs);
            let complete = |chunk: &RunChunk| {
                let file = self.complete_file(chunk, listing)?;
                Some((chunk.runs.len(), file.modified))
            };
            let done: Vec<_> = chunks.iter().filter_map(complete).collect();
            let times = || done.iter().filter_map(|(_, modified)| *modified);
            let span = times().min().zip(times().max());
            let span = span.and_then(|(first, last)| last.duration_since(first).ok());
            let intervals = u32::try_from(times().count().saturating_sub(1)).unwrap_or(u32::MAX);
            SweepProgress {
                done: done.iter().map(|(runs, _)| runs).sum(),
                runs: runs.len(),
                chunks_done: done.len(),
                chunks: chunks.len(),
                time_per_chunk: span.and_then(|span| span.checked_div(intervals)),
            }
        })
    }

    /// Executes all remaining runs on `threads` threads. `progress` receives the number of
    /// finished runs and of all runs after each run. Its return value `false` stops the work.
    pub fn work(
        &self,
        shard: Shard,
        threads: usize,
        perform: RunFn<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<WorkReport, SweepError> {
        self.with_runs(|runs| {
            let count = |chunks: &[RunChunk]| chunks.iter().map(|chunk| chunk.runs.len()).sum();
            let pending = self.pending_chunks(&self.chunks(runs))?;
            let mut finished = runs.len() - count(&pending);
            let (own, mut others) = shard.split(pending);
            let mut replaced = Vec::new();
            let mut on_event = |event: ChunkEvent<'_>, finished: &mut usize| match event {
                ChunkEvent::Run => {
                    *finished += 1;
                    progress(*finished, runs.len())
                }
                ChunkEvent::End { chunk, .. } => {
                    if chunk.is_damaged {
                        replaced.push(self.place.join(&chunk.name));
                    }
                    true
                }
            };
            self.run_chunks((runs, &own), threads, perform, &mut |event| {
                on_event(event, &mut finished)
            })?;
            let before: usize = count(&others);
            let is_own_done = finished == runs.len() - before;
            if is_own_done && !others.is_empty() {
                // One listing costs less than a look at every chunk of a thousand workers.
                let listing = self.list()?;
                others.retain(|chunk| chunk.is_damaged || !listing.contains_key(&chunk.name));
                finished += before - count(&others);
                self.run_chunks((runs, &others), threads, perform, &mut |event| {
                    on_event(event, &mut finished)
                })?;
            }
            Ok(WorkReport { replaced })
        })
    }

    /// Executes the runs of one chunk, from 0, and stores their rows unless they are stored.
    /// `progress` receives the number of finished runs and of the chunk's runs after each run. Its
    /// return value `false` stops the work.
    pub fn work_chunk(
        &self,
        index: usize,
        threads: usize,
        perform: RunFn<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<ChunkOutcome, SweepError> {
        self.with_runs(|runs| {
            let chunks = self.chunks(runs);
            let count = chunks.len();
            let chunk = chunks.into_iter().nth(index).ok_or(SweepError::Chunk { index, count })?;
            let total = chunk.runs.len();
            let pending = self.pending_chunks(&[chunk])?;
            if pending.is_empty() {
                return Ok(ChunkOutcome::AlreadyStored);
            }
            let (mut finished, mut outcome) = (0, ChunkOutcome::Stopped);
            self.run_chunks((runs, &pending), threads, perform, &mut |event| match event {
                ChunkEvent::Run => {
                    finished += 1;
                    progress(finished, total)
                }
                ChunkEvent::End { is_ours: true, .. } => {
                    outcome = ChunkOutcome::Stored;
                    true
                }
                ChunkEvent::End { is_ours: false, .. } => {
                    outcome = ChunkOutcome::AlreadyStored;
                    true
                }
            })?;
            Ok(outcome)
        })
    }

    /// Returns the chunks that are absent or damaged.
    fn pending_chunks(&self, chunks: &[RunChunk]) -> Result<Vec<RunChunk>, SweepError> {
        let states = self.inspect_all(chunks, None, |chunk, state| match state {
            ChunkState::Absent => Some(chunk.clone()),
            ChunkState::Damaged { .. } => Some(RunChunk { is_damaged: true, ..chunk.clone() }),
            ChunkState::Complete(_) => None,
        })?;
        Ok(states.into_iter().flatten().collect())
    }

    /// Executes the runs of `pending` chunks and stores each chunk when it is complete.
    fn run_chunks(
        &self,
        (runs, pending): (&RunGrid<'_>, &[RunChunk]),
        threads: usize,
        perform: RunFn<'_>,
        on_event: &mut dyn FnMut(ChunkEvent<'_>) -> bool,
    ) -> Result<(), SweepError> {
        let numbered = pending.iter().map(|chunk| (chunk, AtomicBool::new(false)));
        let chunks: Vec<(&RunChunk, AtomicBool)> = numbered.collect();
        let positions =
            chunks.iter().flat_map(|chunk| chunk.0.runs.clone().map(move |index| (chunk, index)));
        let positions: Vec<_> = positions.collect();
        let work = |position: usize| {
            let ((chunk, is_elsewhere), index) = positions.get(position)?;
            // Another process may have finished the whole chunk in the meantime. If the storage
            // cannot tell, the runs are executed.
            let is_check_due = (index - chunk.runs.start).is_multiple_of(RUNS_PER_CHECK);
            if is_check_due
                && !chunk.is_damaged
                && self.store.contains(&chunk.name).is_ok_and(|is| is)
            {
                is_elsewhere.store(true, Ordering::Relaxed);
            }
            if is_elsewhere.load(Ordering::Relaxed) {
                return None;
            }
            runs.get(*index).map(|run| run.execute(perform))
        };
        let (mut rows, mut failed) = (Vec::new(), None);
        batch::in_order(positions.len(), threads, work, |position, row| {
            if !on_event(ChunkEvent::Run) {
                return false;
            }
            rows.extend(row);
            let Some(((chunk, _), index)) = positions.get(position) else { return false };
            if index + 1 < chunk.runs.end {
                return true;
            }
            let rows = std::mem::take(&mut rows);
            let stored = if rows.len() == chunk.runs.len() {
                self.store_chunk(chunk, &rows)
            } else {
                Ok(false)
            };
            match stored {
                Ok(is_ours) => on_event(ChunkEvent::End { chunk, is_ours }),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Stores a chunk. Returns false if another process has done so.
    fn store_chunk(&self, chunk: &RunChunk, rows: &[RunRow]) -> Result<bool, SweepError> {
        let path = || self.place.join(&chunk.name);
        let bytes = self.table(rows).map_err(|error| SweepError::Table(path(), error))?;
        let file_error = |error| SweepError::File(path(), error);
        if self.store.create(&chunk.name, &bytes).map_err(file_error)? {
            return Ok(true);
        }
        // The existing file is complete, and equal runs have equal rows. This also covers a write
        // that succeeded although its answer was lost: the file is our own.
        if !chunk.is_damaged {
            return Ok(false);
        }
        match self.inspect(chunk, &self.row_budget()?)? {
            ChunkState::Complete(_) => Ok(false),
            ChunkState::Absent => self.store.create(&chunk.name, &bytes).map_err(file_error),
            ChunkState::Damaged { version, .. } => {
                let replace = self.store.replace(&chunk.name, version.as_deref(), &bytes);
                replace.map_err(file_error)
            }
        }
    }

    /// Returns rows as the bytes of a file.
    fn table(&self, rows: &[RunRow]) -> Result<Vec<u8>, TableError> {
        table::write(rows, &[("towpath.plan", self.plan.name.clone())])
    }

    /// Writes a file that is not part of the sweep next to its rows, such as a page. An existing
    /// one is replaced.
    pub fn write_file(&self, name: &str, bytes: &[u8]) -> Result<(), SweepError> {
        let file_error = |error| SweepError::File(self.place.join(name), error);
        if self.store.create(name, bytes).map_err(file_error)? {
            return Ok(());
        }
        let budget = ReadBudget::new(DEFAULT_RESULT_LIMIT).map_err(file_error)?;
        let current = self.store.read(name, &budget).map_err(file_error)?;
        if current.as_ref().is_none_or(|current| current.bytes != bytes) {
            let version = current.and_then(|current| current.version);
            // If another process replaced it at the same time, its content is as recent.
            self.store.replace(name, version.as_deref(), bytes).map_err(file_error)?;
        }
        Ok(())
    }

    /// Removes temporary files of crashed processes, once everything is done.
    pub fn remove_leftovers(&self) {
        let status = self.status();
        if status.chunks == status.chunks_done {
            self.store.remove_leftovers();
        }
    }
}

/// Parses a sweep's specification and returns its plan, for fuzzing.
pub(crate) fn fuzzed(text: &[u8]) -> Option<Plan> {
    let spec: SweepSpec = serde_json::from_slice(text).ok()?;
    Plan::parse("plan.toml", &spec.plan, &|name| spec.load(name)).ok()
}

/// Runs whose rows are in one file.
#[derive(Debug, Clone)]
struct RunChunk {
    index: usize,
    runs: Range<usize>,
    /// Name of the file.
    name: String,
    /// True if the file exists and is damaged.
    is_damaged: bool,
}

/// Returns the name of the file of a chunk with these keys.
fn chunk_name(index: usize, keys: &[String]) -> String {
    file_name(index, &chunk_id(keys))
}

fn file_name(index: usize, id: &str) -> String {
    format!("part-{index:06}-{id}.parquet")
}

/// Step of the work on chunks.
#[derive(Debug)]
enum ChunkEvent<'a> {
    /// A run has ended, or another process has done it.
    Run,
    /// The rows of a chunk are stored, by this process if `is_ours`.
    End { chunk: &'a RunChunk, is_ours: bool },
}

impl Shard {
    /// The only process of a sweep.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Returns its own chunks from the beginning, and those of others from the end.
    fn split(self, chunks: Vec<RunChunk>) -> (Vec<RunChunk>, Vec<RunChunk>) {
        let is_own =
            |chunk: &RunChunk| chunk.index % self.of.max(1) as usize + 1 == self.number as usize;
        let (own, mut others): (Vec<_>, Vec<_>) = chunks.into_iter().partition(is_own);
        others.reverse();
        (own, others)
    }
}

#[cfg(test)]
mod tests;
