//! Records of a stored run, read back for pages, tables and facts.

use std::io::{BufReader, Read as _};

use towpath_analysis::RunFacts;
use towpath_result::frames::FrameReader;
use towpath_result::input::ReadBudget;
use towpath_result::store::{StoredRun, read_run_within};
use towpath_result::upload::MAX_EXPANDED_BYTES;

use crate::catalogue::FactsRow;
use crate::error::CollectError;

/// Reads the compressed records of the run `id`.
pub(crate) fn read_records(id: &str, bytes: &[u8]) -> Result<StoredRun, CollectError> {
    let damaged = |reason: String| CollectError::Damaged { id: id.to_owned(), reason };
    let frames = FrameReader::new(bytes).map_err(|error| damaged(error.to_string()))?;
    let frames = BufReader::new(frames.take(MAX_EXPANDED_BYTES));
    let run = read_run_within(frames, &ReadBudget::of(MAX_EXPANDED_BYTES))
        .map_err(|error| damaged(error.to_string()))?;
    Ok(StoredRun::new(run, Some(format!("{id}.jsonl.zst"))))
}

/// Computes the facts of the run `id`, without the name of its device; `None` if JSON cannot express
/// them.
pub(crate) fn facts_row(run: &StoredRun, id: &str) -> Option<FactsRow> {
    let facts = RunFacts::of(run, id, "");
    let text = serde_json::to_string(&facts).ok()?;
    Some(FactsRow { run: id.to_owned(), campaign: facts.campaign, facts: text })
}
