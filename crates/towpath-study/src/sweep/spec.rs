//! Specification of a sweep: its plan with all files, and the checks before any run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::sync::Mutex;

use serde::{Deserialize, Serialize};
use towpath_os::batch;
use towpath_scenario::World;

use super::{MAX_CHUNK_RUNS, SweepError};
use crate::plan::{FileLoader, Plan};
use crate::row::ENGINE_VERSION;
use crate::runs::{CheckedPoint, RunGrid, RunSelection, short_hash};

/// Number of runs of a chunk in the emulated world, where each takes real time.
const EMU_CHUNK_RUNS: u32 = 1;
/// Minimum number of runs of a chunk in the simulated world, where each takes milliseconds to
/// seconds.
const MIN_SIM_CHUNK_RUNS: u32 = 10;
/// Approximate number of chunks of a sweep: a process that dies loses one of them.
const TARGET_CHUNKS: usize = 40;
/// Hexadecimal digits of a chunk's identifier.
const CHUNK_ID_DIGITS: usize = 16;

/// Specification of a sweep: everything that determines its rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepSpec {
    pub(super) engine: String,
    /// Text of the plan.
    pub(super) plan: String,
    /// Texts of the scenario and its traces, by name.
    pub(super) files: BTreeMap<String, String>,
    pub(super) world: World,
    #[serde(alias = "thin")]
    pub(super) quick: bool,
    pub(super) seeds: Option<u32>,
    /// Number of runs of a chunk.
    pub(super) chunk: u32,
    /// Identifier of every chunk, so that opening a sweep need not compute all keys. Absent in
    /// sweeps of earlier versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    chunk_ids: Vec<String>,
    /// Key of every run if this spec was just created: each costs parsing a scenario.
    #[serde(skip)]
    pub(super) keys: Vec<String>,
}

impl SweepSpec {
    /// Takes the computed keys of `other`. Returns false if that is the specification of another
    /// sweep.
    pub(super) fn take_keys(&mut self, mut other: Self) -> bool {
        let keys = std::mem::take(&mut other.keys);
        // The chunk size does not affect the rows.
        other.chunk = self.chunk;
        other.chunk_ids.clone_from(&self.chunk_ids);
        let is_same = other == *self;
        if is_same {
            self.keys = keys;
        }
        is_same
    }

    /// Returns the identifier of a chunk with these runs, if it need not be computed from the plan.
    pub(super) fn chunk_id(&self, index: usize, runs: Range<usize>) -> Option<String> {
        if let Some(keys) = self.keys.get(runs).filter(|keys| !keys.is_empty()) {
            return Some(chunk_id(keys));
        }
        // The identifier is a part of a file name.
        let is_valid = |id: &&String| {
            id.len() == CHUNK_ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit())
        };
        self.chunk_ids.get(index).filter(is_valid).cloned()
    }

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
        let chunk = chunk.unwrap_or(default_chunk).clamp(1, MAX_CHUNK_RUNS);
        Ok(Self {
            engine: ENGINE_VERSION.to_owned(),
            plan: plan.to_owned(),
            files: files.into_inner().unwrap_or_default(),
            world,
            quick,
            seeds,
            chunk,
            chunk_ids: keys.chunks(chunk as usize).map(chunk_id).collect(),
            keys,
        })
    }

    /// Returns the number of all runs.
    pub fn runs(&self) -> usize {
        self.keys.len()
    }

    /// Returns the number of chunks in a new folder.
    pub fn chunks(&self) -> usize {
        self.runs().div_ceil(self.chunk.max(1) as usize)
    }

    /// Returns the texts of the scenario and its traces, by their names relative to the plan.
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.files
    }

    /// Returns the stored text of a file.
    pub(super) fn load(&self, name: &str) -> io::Result<String> {
        self.files.get(name).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Returns the identifier of a chunk from the keys of its runs.
pub(super) fn chunk_id(keys: &[String]) -> String {
    short_hash(keys.join("\n").as_bytes()).chars().take(CHUNK_ID_DIGITS).collect()
}

/// Rejects a grid in which some point yields an invalid scenario. Of random samples one valid one
/// suffices: the others report the mistake in their rows. Returns the keys of all runs.
fn check_points(runs: &RunGrid<'_>) -> Result<Vec<String>, SweepError> {
    let draws = runs.plan().random.iter().flat_map(|random| &random.draws);
    let drawn_names: Vec<_> =
        draws.map(|draw| draw.name.as_str()).chain([crate::plan::SAMPLE_PARAMETER]).collect();
    let mut points: BTreeMap<String, (usize, Option<String>)> = BTreeMap::new();
    let mut keys = Vec::new();
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let check = |point: usize| runs.check_point(point);
    batch::in_order(runs.point_count(), threads, check, |_, checked| {
        let Some(CheckedPoint { first: run, keys: keys_of_point }) = checked else { return true };
        let mut point_text = format!("variant `{}`", run.row.variant);
        for (name, value) in &run.row.parameters {
            if !drawn_names.contains(&name.as_str()) {
                // Writing to a `String` cannot fail.
                let _ = write!(point_text, ", {name} `{}`", value.text);
            }
        }
        keys.extend(keys_of_point);
        let error = run.scenario.err();
        let (_, point_error) =
            points.entry(point_text).or_insert_with(|| (run.index, error.clone()));
        if error.is_none() {
            *point_error = None;
        }
        true
    });
    let error = points
        .into_iter()
        .filter_map(|(point_text, (index, error))| Some((index, point_text, error?)));
    let error =
        error.min_by_key(|(index, ..)| *index).map(|(_, point_text, why)| (point_text, why));
    error.map_or(Ok(keys), |(point_text, why)| {
        Err(SweepError::Point { at: point_text, reason: why })
    })
}
