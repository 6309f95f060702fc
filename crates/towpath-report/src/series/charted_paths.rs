//! Selection of the paths that charts show, as each needs several series.

use std::collections::{BTreeMap, BTreeSet};

use towpath_result::Record;
use towpath_result::store::StoredRun;
use towpath_scenario::DataDirection;

/// Maximum number of paths with series in one direction, those with most data.
const MAX_PATHS: usize = 24;

/// Returns the paths of a direction whose subflows have series; `None` if all have.
pub(super) fn of(run: &StoredRun, direction: DataDirection) -> Option<BTreeSet<&str>> {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for record in &run.records {
        if let Record::Subflow(subflow) = record
            && subflow.direction == direction
        {
            let sum = bytes.entry(&subflow.path).or_default();
            *sum = sum.saturating_add(subflow.bytes);
        }
    }
    if bytes.len() <= MAX_PATHS {
        return None;
    }
    let mut paths: Vec<(&str, u64)> = bytes.into_iter().collect();
    paths.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    Some(paths.into_iter().take(MAX_PATHS).map(|(path, _)| path).collect())
}

/// Returns the number of paths of a direction whose subflows have no series.
pub(crate) fn omitted_paths(run: &StoredRun, direction: DataDirection) -> usize {
    let subflows = run.records.iter().filter_map(|record| {
        let Record::Subflow(subflow) = record else { return None };
        (subflow.direction == direction).then_some(subflow.path.as_str())
    });
    subflows.collect::<BTreeSet<_>>().len().saturating_sub(MAX_PATHS)
}
