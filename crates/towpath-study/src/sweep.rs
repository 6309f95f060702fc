//! A sweep: the runs of a plan as files in a folder, by any number of processes.
//!
//! `sweep.json` in the folder contains the plan with all its files. The ordered runs are cut into
//! chunks. A chunk is done when its file `part-INDEX-ID.parquet` exists. A process writes a chunk
//! under a temporary name, and then links it to the final one. If that exists already, the process
//! discards its copy. So no coordinator is needed, a crashed process loses or duplicates nothing,
//! and processes that share the folder share the work.

mod files;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};

use serde::{Deserialize, Serialize};
use towpath_os::batch;
use towpath_result::Record;
use towpath_result::input::{DEFAULT_RESULT_LIMIT, ReadBudget};
use towpath_scenario::{ScenarioErrors, World};

use crate::plan::{FileLoader, MAX_SEEDS, Plan};
use crate::row::{ENGINE_VERSION, RunRow};
use crate::runs::{RunGrid, RunSelection, StudyRun, short_hash};
use crate::table::{self, TableError};

/// Name of the file that specifies a folder's sweep.
const SPEC_FILE: &str = "sweep.json";
/// Number of runs of a chunk in the emulated world, where each takes real time.
const EMU_CHUNK_RUNS: u32 = 1;
/// Minimum number of runs of a chunk in the simulated world, where each takes milliseconds to
/// seconds.
const MIN_SIM_CHUNK_RUNS: u32 = 10;
/// Approximate number of chunks of a sweep: a process that dies loses one of them.
const TARGET_CHUNKS: usize = 40;
/// Maximum number of runs of a chunk.
pub const MAX_CHUNK_RUNS: u32 = 1_000;

/// Reason why a sweep cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The plan has mistakes.
    #[error("{0}")]
    Plan(#[from] ScenarioErrors),
    /// A point of the plan yields an invalid scenario.
    #[error("{at}: {reason}")]
    Point {
        /// Variant and parameters of the point.
        at: String,
        /// Mistake in the scenario.
        reason: String,
    },
    /// The selection contains no run.
    #[error("the plan `{0}` has no run in the world `{1}`")]
    Nothing(String, World),
    /// The folder belongs to another sweep.
    #[error("`{}` holds another sweep", .0.display())]
    Another(PathBuf),
    /// The folder was created by a version with possibly different results.
    #[error("`{}` was begun by {created_by}, this is {ENGINE_VERSION}", folder.display())]
    Version {
        /// Path of the folder.
        folder: PathBuf,
        /// Version that created the folder.
        created_by: String,
    },
    /// The folder contains no sweep.
    #[error("`{}` holds no sweep", .0.display())]
    None(PathBuf),
    /// A file cannot be read or written.
    #[error("`{path}`: {why}", path = .0.display(), why = .1)]
    File(PathBuf, #[source] io::Error),
    /// A file of the sweep has invalid content.
    #[error("`{path}` is not a part of a sweep: {why}", path = .0.display(), why = .1)]
    Table(PathBuf, #[source] TableError),
}

impl SweepError {
    /// Returns a hint to the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Plan(_) | Self::File(..) => return None,
            Self::Point { .. } => "every point of the grid must be a scenario".to_owned(),
            Self::Nothing(..) => "choose another one of the plan's `worlds`".to_owned(),
            Self::Another(_) => {
                "name another folder with `--out`; the same plan goes on where it stopped"
                    .to_owned()
            }
            Self::Version { .. } => "name another folder with `--out`".to_owned(),
            Self::None(_) => "`towpath sweep PLAN --out DIR` makes one".to_owned(),
            Self::Table(..) => "remove it, and do the sweep again".to_owned(),
        })
    }
}

/// Specification of a sweep: everything that determines its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepSpec {
    engine: String,
    /// Text of the plan.
    plan: String,
    /// Texts of the scenario and its traces, by name.
    files: BTreeMap<String, String>,
    world: World,
    #[serde(alias = "thin")]
    quick: bool,
    seeds: Option<u32>,
    /// Number of runs of a chunk.
    chunk: u32,
    /// Key of every run if this spec was just created: each costs parsing a scenario.
    #[serde(skip)]
    keys: Vec<String>,
}

/// A sweep stored in a folder.
#[derive(Debug)]
pub struct Sweep {
    folder: PathBuf,
    spec: SweepSpec,
    plan: Plan,
    /// Path of every chunk's file, computed on first use because it depends on its runs' keys.
    paths: OnceLock<Vec<PathBuf>>,
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

impl SweepSpec {
    /// Creates the specification of a plan's sweep. Its files are read, and every point of the
    /// grid is checked, before any run starts.
    pub fn new(
        (plan_name, plan): (&str, &str),
        selection: RunSelection,
        chunk: Option<u32>,
        load: FileLoader<'_>,
    ) -> Result<Self, SweepError> {
        let files = Mutex::new(BTreeMap::new());
        let recording_load = |name: &str| {
            let text = load(name)?;
            if let Ok(mut files) = files.lock() {
                files.insert(name.to_owned(), text.clone());
            }
            Ok(text)
        };
        let parsed = Plan::parse(plan_name, plan, &recording_load)?;
        let runs = parsed.runs(selection, &recording_load);
        if runs.is_empty() {
            return Err(SweepError::Nothing(parsed.name.clone(), selection.world));
        }
        let keys = check_points(&runs)?;
        let RunSelection { world, quick, seeds } = selection;
        let default_chunk = match world {
            World::Sim => MIN_SIM_CHUNK_RUNS.max((runs.len() / TARGET_CHUNKS) as u32),
            World::Emu | World::Live => EMU_CHUNK_RUNS,
        };
        Ok(Self {
            engine: ENGINE_VERSION.to_owned(),
            plan: plan.to_owned(),
            files: files.into_inner().unwrap_or_default(),
            world,
            quick,
            seeds,
            chunk: chunk.unwrap_or(default_chunk).clamp(1, MAX_CHUNK_RUNS),
            keys,
        })
    }

    fn load(&self, name: &str) -> io::Result<String> {
        self.files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Rejects a grid in which some point yields an invalid scenario. Of random samples one valid one
/// suffices: the others report the mistake in their rows. Returns the keys of all runs.
fn check_points(runs: &RunGrid<'_>) -> Result<Vec<String>, SweepError> {
    let draws = runs.plan().random.iter().flat_map(|random| &random.draws);
    let drawn_names: Vec<_> =
        draws.map(|draw| draw.name.as_str()).chain([crate::plan::SAMPLE_PARAMETER]).collect();
    let mut points: BTreeMap<String, (usize, Option<String>)> = BTreeMap::new();
    let mut keys = Vec::new();
    for run in (0..runs.len()).filter_map(|index| runs.get(index)) {
        let mut point_text = format!("variant `{}`", run.row.variant);
        for (name, value) in &run.row.parameters {
            if !drawn_names.contains(&name.as_str()) {
                // Writing to a `String` cannot fail.
                let _ = write!(point_text, ", {name} `{}`", value.text);
            }
        }
        keys.push(run.row.key);
        let error = run.scenario.err();
        let (_, point_error) =
            points.entry(point_text).or_insert_with(|| (run.index, error.clone()));
        if error.is_none() {
            *point_error = None;
        }
    }
    let error = points
        .into_iter()
        .filter_map(|(point_text, (index, error))| Some((index, point_text, error?)));
    let error =
        error.min_by_key(|(index, ..)| *index).map(|(_, point_text, why)| (point_text, why));
    error.map_or(Ok(keys), |(point_text, why)| {
        Err(SweepError::Point { at: point_text, reason: why })
    })
}

impl Sweep {
    /// Opens the sweep of this specification in `folder`: a new one, or the existing one to
    /// continue.
    pub fn begin(folder: &Path, mut spec: SweepSpec) -> Result<Self, SweepError> {
        let file_error = |source| SweepError::File(folder.to_owned(), source);
        std::fs::create_dir_all(folder).map_err(file_error)?;
        let path = folder.join(SPEC_FILE);
        let text = serde_json::to_vec_pretty(&spec).map_err(io::Error::from).map_err(file_error)?;
        files::publish(folder, SPEC_FILE, &text).map_err(|e| SweepError::File(path, e))?;
        let mut sweep = Self::open(folder)?;
        let keys = std::mem::take(&mut spec.keys);
        // The chunk size does not affect the rows.
        if (SweepSpec { chunk: sweep.spec.chunk, ..spec }) != sweep.spec {
            return Err(SweepError::Another(folder.to_owned()));
        }
        sweep.spec.keys = keys;
        Ok(sweep)
    }

    /// Opens the sweep in `folder`.
    pub fn open(folder: &Path) -> Result<Self, SweepError> {
        let path = folder.join(SPEC_FILE);
        let budget = ReadBudget::new(DEFAULT_RESULT_LIMIT);
        let text = match budget.and_then(|budget| budget.read(&path)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(SweepError::None(folder.to_owned()));
            }
            Err(error) => return Err(SweepError::File(path, error)),
        };
        let spec: SweepSpec = serde_json::from_slice(&text)
            .map_err(|error| SweepError::File(path.clone(), io::Error::from(error)))?;
        if spec.seeds.is_some_and(|seeds| u64::from(seeds) > MAX_SEEDS) {
            let reason = format!("`seeds` is not at most {MAX_SEEDS}");
            return Err(SweepError::File(path, io::Error::other(reason)));
        }
        if spec.engine != ENGINE_VERSION {
            let folder = folder.to_owned();
            return Err(SweepError::Version { folder, created_by: spec.engine });
        }
        let plan = Plan::parse("plan.toml", &spec.plan, &|name| spec.load(name))?;
        Ok(Self { folder: folder.to_owned(), spec, plan, paths: OnceLock::new() })
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

    fn chunks(&self, runs: &RunGrid<'_>) -> Vec<RunChunk> {
        let size = self.spec.chunk.max(1) as usize;
        let starts = (0..runs.len()).step_by(size);
        let spans = starts.map(|start| start..(start + size).min(runs.len()));
        let paths = self.paths.get_or_init(|| {
            spans.clone().enumerate().map(|(index, span)| self.path(runs, index, span)).collect()
        });
        let with_path = |((index, runs), path): ((usize, Range<usize>), &PathBuf)| {
            let path = path.clone();
            RunChunk { index, runs, path }
        };
        spans.clone().enumerate().zip(paths).map(with_path).collect()
    }

    /// Returns the path of a chunk's file.
    fn path(&self, runs: &RunGrid<'_>, index: usize, span: Range<usize>) -> PathBuf {
        let stored_keys = self.spec.keys.get(span.clone()).map(<[String]>::to_vec);
        let computed_keys =
            || span.filter_map(|index| runs.get(index)).map(|run| run.row.key).collect();
        let keys: Vec<_> = stored_keys.unwrap_or_else(computed_keys);
        let id = short_hash(keys.join("\n").as_bytes());
        self.folder.join(format!("part-{index:06}-{}.parquet", id.split_at(16).0))
    }

    /// Returns the progress, from the files in the folder.
    pub fn status(&self) -> SweepProgress {
        self.with_runs(|runs| {
            let chunks = self.chunks(runs);
            let done: Vec<_> = chunks.iter().filter(|chunk| chunk.path.exists()).collect();
            SweepProgress {
                done: done.iter().map(|chunk| chunk.runs.len()).sum(),
                runs: runs.len(),
                chunks_done: done.len(),
                chunks: chunks.len(),
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
    ) -> Result<(), SweepError> {
        self.with_runs(|runs| {
            let mut pending_chunks = shard.order(self.chunks(runs));
            pending_chunks.retain(|chunk| !chunk.path.exists());
            let pending_runs = pending_chunks
                .iter()
                .enumerate()
                .flat_map(|(number, chunk)| chunk.runs.clone().map(move |index| (number, index)));
            let pending_runs: Vec<_> = pending_runs.collect();
            let mut finished = runs.len() - pending_runs.len();
            let (mut rows, mut failed) = (Vec::new(), None);
            let work = |position: usize| {
                let &(number, index) = pending_runs.get(position)?;
                // Another process may have finished the whole chunk in the meantime.
                if pending_chunks.get(number)?.path.exists() {
                    return None;
                }
                runs.get(index).map(|run| run.execute(perform))
            };
            batch::in_order(pending_runs.len(), threads, work, |position, row| {
                finished += 1;
                if !progress(finished, runs.len()) {
                    return false;
                }
                rows.extend(row);
                let number =
                    |position: usize| pending_runs.get(position).map(|(number, _)| *number);
                if let Some(this) = number(position)
                    && number(position + 1) != Some(this)
                {
                    let rows = std::mem::take(&mut rows);
                    let chunk =
                        pending_chunks.get(this).filter(|chunk| chunk.runs.len() == rows.len());
                    if let Some(chunk) = chunk {
                        failed = self.write_chunk(&chunk.path, &rows).err();
                    }
                }
                failed.is_none()
            });
            failed.map_or(Ok(()), Err)
        })
    }

    /// Writes a chunk, unless another process has done so.
    fn write_chunk(&self, path: &Path, rows: &[RunRow]) -> Result<(), SweepError> {
        let about = [("towpath.plan", self.plan.name.clone())];
        let bytes = table::write(rows, &about);
        let bytes = bytes.map_err(|error| SweepError::Table(path.to_owned(), error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        files::publish(&self.folder, &name, &bytes)
            .map_err(|error| SweepError::File(path.to_owned(), error))
    }

    /// Returns all stored rows, in order.
    pub fn rows(&self) -> Result<Vec<RunRow>, SweepError> {
        self.with_runs(|runs| {
            let mut rows = Vec::new();
            let budget = || ReadBudget::new(DEFAULT_RESULT_LIMIT);
            let row_budget =
                budget().map_err(|error| SweepError::File(self.folder.clone(), error))?;
            for RunChunk { path, runs, .. } in self.chunks(runs) {
                // A file's bytes leave the budget when its rows have been read.
                match budget().and_then(|stored| stored.read(&path)) {
                    Ok(bytes) => rows.extend(
                        table::read(bytes, runs.len(), &row_budget)
                            .map_err(|error| SweepError::Table(path, error))?,
                    ),
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(SweepError::File(path, error)),
                }
            }
            Ok(rows)
        })
    }

    /// Repeats `count` runs, drawn with `seed` from those with stored rows. Returns the differing
    /// rows together with the new ones.
    pub fn verify(
        &self,
        (count, seed): (usize, u64),
        threads: usize,
        perform: RunFn<'_>,
        progress: &mut dyn FnMut(usize, usize) -> bool,
    ) -> Result<Vec<(RunRow, RunRow)>, SweepError> {
        let stored = self.rows()?;
        let stored: BTreeMap<_, _> = stored.into_iter().map(|row| (row.key.clone(), row)).collect();
        self.with_runs(|runs| {
            let mut candidates: Vec<_> = (0..runs.len())
                .filter_map(|index| runs.get(index))
                .filter(|run| stored.contains_key(&run.row.key))
                .map(|run| (short_hash(format!("{seed} {}", run.row.key).as_bytes()), run.index))
                .collect();
            candidates.sort();
            candidates.truncate(count);
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

    /// Removes temporary files of crashed processes, once everything is done.
    pub fn remove_leftovers(&self) {
        let status = self.status();
        if status.chunks == status.chunks_done {
            files::remove_leftovers(&self.folder);
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
    path: PathBuf,
}

impl Shard {
    /// The only process of a sweep.
    pub const WHOLE: Self = Self { number: 1, of: 1 };

    /// Returns its own chunks from the beginning, then those of others from the end.
    fn order(self, chunks: Vec<RunChunk>) -> Vec<RunChunk> {
        let is_own =
            |chunk: &RunChunk| chunk.index % self.of.max(1) as usize + 1 == self.number as usize;
        let (mut ordered, others): (Vec<_>, Vec<_>) = chunks.into_iter().partition(is_own);
        ordered.extend(others.into_iter().rev());
        ordered
    }
}

#[cfg(test)]
mod tests;
