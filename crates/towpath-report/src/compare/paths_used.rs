//! Table cell with the paths that carried a flow's data.

use std::collections::{BTreeMap, BTreeSet};

use towpath_result::format::number;
use towpath_result::format::text::{clean, cut};

use super::{Cell, missing, plain};
use crate::group::{FlowKey, MedianRange, RunGroup};

/// Maximum number of paths that are named in a cell, those with most data.
const MAX_NAMED_PATHS: usize = 24;

/// Returns the share of each path in the data of a flow.
pub(super) fn cell(group: &RunGroup<'_>, key: FlowKey) -> Cell {
    let mut known = BTreeSet::new();
    let names = group.summaries().flat_map(|summary| &summary.subflows);
    let names: Vec<&str> =
        names.map(|s| s.path.as_str()).filter(|name| known.insert(*name)).collect();
    // Shares of the paths in each repetition that carried data.
    let shares: Vec<BTreeMap<&str, f64>> = { group.summaries() }
        .filter_map(|summary| {
            let is_in_flow = |s: &&towpath_result::SubflowSummary| {
                s.flow == key.flow && s.direction == key.direction
            };
            let mut bytes: BTreeMap<&str, f64> = BTreeMap::new();
            for subflow in summary.subflows.iter().filter(is_in_flow) {
                *bytes.entry(&subflow.path).or_default() += subflow.bytes as f64;
            }
            let total_bytes: f64 = bytes.values().sum();
            for path_bytes in bytes.values_mut() {
                *path_bytes /= total_bytes;
            }
            (total_bytes > 0.0).then_some(bytes)
        })
        .collect();
    let medians = names.into_iter().filter_map(|name| {
        let shares = shares.iter().map(|shares| shares.get(name).copied().unwrap_or(0.0));
        let spread = MedianRange::of(shares).filter(|spread| spread.max > 0.0)?;
        Some((name, spread.median))
    });
    let mut medians: Vec<(&str, f64)> = medians.collect();
    let omitted = medians.len().saturating_sub(MAX_NAMED_PATHS);
    if omitted > 0 {
        medians.sort_by(|a, b| b.1.total_cmp(&a.1));
        medians.truncate(MAX_NAMED_PATHS);
    }
    let mut parts: Vec<String> = { medians.into_iter() }
        .map(|(name, share)| {
            let share = number::percent(share).replace(' ', "\u{a0}");
            format!("{} {share}", cut(&clean(name), 40))
        })
        .collect();
    parts.extend((omitted > 0).then(|| format!("{} others", number::count(omitted as f64))));
    if parts.is_empty() { missing() } else { plain(parts.join(", ")) }
}
