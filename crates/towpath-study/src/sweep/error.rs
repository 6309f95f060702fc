//! Reasons why a sweep cannot go on.

use std::io;
use std::path::PathBuf;

use towpath_result::input::InputError;
use towpath_scenario::{ScenarioErrors, World};

use super::store::StorageError;
use crate::row::ENGINE_VERSION;
use crate::table::TableError;

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
    /// A file of the sweep exceeds the memory budget, or rows cannot be written as a table.
    #[error("`{path}` is not a part of a sweep: {why}", path = .0.display(), why = .1)]
    Table(PathBuf, #[source] TableError),
    /// All rows together exceed the memory budget.
    #[error("the rows of `{place}` are too many to read: {why}", place = .0.display(), why = .1)]
    TooMuch(PathBuf, #[source] InputError),
    /// A file of the sweep is truncated, or has other rows than those of its chunk.
    #[error("`{path}` is damaged: {why}", path = .0.display(), why = .1)]
    Damaged(PathBuf, String),
    /// The sweep has fewer chunks.
    #[error("there is no chunk {index}, the sweep has {count} from 0")]
    Chunk {
        /// Number that was requested, from 0.
        index: usize,
        /// Number of chunks.
        count: usize,
    },
    /// Runs are missing, so that the rows are not final.
    #[error("{done} of {runs} runs are done")]
    Unfinished {
        /// Number of runs whose rows are stored.
        done: usize,
        /// Number of all runs.
        runs: usize,
    },
    /// The address of an object store is invalid, or cannot be used.
    #[error("{0}")]
    Storage(#[from] StorageError),
}

impl SweepError {
    /// Returns a hint to the user, if there is any.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Plan(_) | Self::Chunk { .. } => return None,
            Self::File(_, error) => return StorageError::of(error)?.hint().map(str::to_owned),
            Self::Storage(error) => return error.hint().map(str::to_owned),
            Self::Point { .. } => "every point of the grid must be a scenario".to_owned(),
            Self::Nothing(..) => "choose another one of the plan's `worlds`".to_owned(),
            Self::Another(_) => {
                "name another folder with `--out`; the same plan goes on where it stopped"
                    .to_owned()
            }
            Self::Version { .. } => "name another folder with `--out`".to_owned(),
            Self::None(_) => "`towpath sweep PLAN --out DIR` makes one".to_owned(),
            Self::TooMuch(..) => {
                "`towpath sweep compact` writes them into few files, for other programs".to_owned()
            }
            Self::Table(..) => "remove it, and do the sweep again".to_owned(),
            Self::Damaged(..) | Self::Unfinished { .. } => {
                "repeat `towpath sweep PLAN` with the same `--out`".to_owned()
            }
        })
    }
}
