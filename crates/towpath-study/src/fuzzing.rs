//! Body of the fuzz target `sweep`, which reads an untrusted sweep folder.

use std::io;

use towpath_result::input::{DEFAULT_RESULT_LIMIT, ReadBudget};

use crate::plan::Plan;
use crate::runs::RunSelection;
use crate::{summary, sweep, table};

/// Maximum number of runs that are generated from one plan here.
const MAX_CHECKED_RUNS: usize = 3;

/// Reads the same bytes as a table of rows, as a sweep's specification, and as a plan.
pub fn sweep(data: &[u8]) {
    let rows = table::read(data.to_vec(), usize::MAX, &ReadBudget::of(DEFAULT_RESULT_LIMIT))
        .unwrap_or_default();
    if !rows.is_empty() {
        // Rows that can be read must be printable.
        assert!(table::csv(&rows).lines().count() > rows.len());
    }
    let plan = sweep::fuzzed(data).or_else(|| {
        let no_files = |_: &str| Err(io::ErrorKind::NotFound.into());
        Plan::parse("plan.toml", std::str::from_utf8(data).ok()?, &no_files).ok()
    });
    let Some(plan) = plan else { return };
    let no_files = |_: &str| Err(io::ErrorKind::NotFound.into());
    for world in plan.worlds.clone() {
        let runs = plan.runs(RunSelection { world, quick: false, seeds: None }, &no_files);
        let checked_runs: Vec<_> =
            (0..runs.len().min(MAX_CHECKED_RUNS)).filter_map(|index| runs.get(index)).collect();
        assert_eq!(checked_runs.len(), runs.len().min(MAX_CHECKED_RUNS));
    }
    let _ = summary::table(&rows, &plan, &[]); // must not panic
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn untrusted_stored_sweeps_do_no_harm() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus/sweep");
        let mut inputs = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            super::sweep(&std::fs::read(entry.unwrap().path()).unwrap());
            inputs += 1;
        }
        assert!(inputs > 0, "{} is empty", folder.display());
    }
}
