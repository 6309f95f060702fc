//! Disjoint ranges of subflow offsets.

use std::collections::BTreeMap;

/// Ranges of offsets that neither overlap nor touch.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start..end` and returns its new parts, in order.
    pub(super) fn insert(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        if start >= end {
            return Vec::new();
        }
        if let Some((_, covered)) = self.0.range(..=start).next_back()
            && *covered >= end
        {
            return Vec::new();
        }
        let mut new_parts = Vec::with_capacity(1);
        let (mut low, mut high, mut uncovered_from) = (start, end, start);
        // Ranges that begin before the new one and reach into it, then those that begin within it.
        let preceding = self.0.range(..start).next_back().map(|(s, e)| (*s, *e));
        if let Some((s, e)) = preceding.filter(|(_, e)| *e >= start) {
            self.0.remove(&s);
            (low, uncovered_from) = (s, e);
        }
        while let Some((s, e)) = self.0.range(start..=end).next().map(|(s, e)| (*s, *e)) {
            self.0.remove(&s);
            if uncovered_from < s {
                new_parts.push((uncovered_from, s));
            }
            uncovered_from = uncovered_from.max(e);
            high = high.max(e);
        }
        if uncovered_from < end {
            new_parts.push((uncovered_from, end));
        }
        self.0.insert(low, high.max(uncovered_from));
        new_parts
    }

    /// Returns the range that contains `offset`.
    pub(super) fn containing(&self, offset: u64) -> Option<(u64, u64)> {
        let (start, end) = self.0.range(..=offset).next_back()?;
        (offset < *end).then_some((*start, *end))
    }

    /// Removes everything below `offset`.
    pub(super) fn remove_below(&mut self, offset: u64) {
        while let Some(lowest) = self.0.first_entry() {
            if *lowest.key() >= offset {
                break;
            }
            let end = lowest.remove();
            if end > offset {
                self.0.insert(offset, end);
            }
        }
    }

    /// Returns the ranges from the highest to the lowest.
    pub(super) fn descending(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().rev().map(|(start, end)| (*start, *end))
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    /// Returns true if there is no range.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn ranges_agree_with_a_set_of_numbers(
            operations in prop::collection::vec((0u64..60, 0u64..12, any::<bool>()), 1..40),
        ) {
            let (mut ranges, mut model) = (Ranges::default(), BTreeSet::new());
            for (start, len, remove) in operations {
                if remove {
                    ranges.remove_below(start / 2);
                    model.retain(|n| *n >= start / 2);
                } else {
                    let new_parts = ranges.insert(start, start + len);
                    let expected: Vec<u64> = (start..start + len).filter(|n| model.insert(*n)).collect();
                    prop_assert_eq!(new_parts.iter().flat_map(|(s, e)| *s..*e).collect::<Vec<_>>(), expected);
                }
                let mut covered: Vec<u64> = ranges.descending().flat_map(|(s, e)| s..e).collect();
                covered.sort_unstable();
                prop_assert!(covered.iter().eq(model.iter()));
                for n in 0..72 {
                    prop_assert_eq!(ranges.containing(n).is_some(), model.contains(&n));
                }
                let mut next_start = u64::MAX;
                for (s, e) in ranges.descending() {
                    prop_assert!(s < e && e < next_start, "ranges touch");
                    next_start = s;
                }
            }
        }
    }
}
