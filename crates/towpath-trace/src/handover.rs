//! Handovers: lasting changes of a connection's data from one subflow to another.

use std::collections::BTreeSet;

use towpath_result::SubflowHandover;

use super::connection::TracedSubflow;
use super::direction::ActivePeriod;

/// Silence at the end of the capture after which a subflow counts as abandoned.
const ABANDONED_AFTER_NS: u64 = 1_000_000_000;

/// Period of use, with the number of its subflow.
type NumberedPeriod = (u32, ActivePeriod);

/// Returns the handovers: changes from a subflow that then carries no data for at least a second.
/// The new subflow began to carry data while the old one was in use, or after it. Data that begins
/// after a pause of the application does not make a handover.
pub(super) fn handovers(subflows: &[&TracedSubflow], side: usize) -> Vec<SubflowHandover> {
    let mut periods: Vec<NumberedPeriod> = Vec::new();
    for subflow in subflows {
        let Some(direction) = subflow.directions.get(side) else { continue };
        let number = u32::from(subflow.number);
        periods.extend(direction.active_periods.iter().map(|period| (number, *period)));
    }
    let mut handovers: Vec<SubflowHandover> = { periods.iter().zip(next_periods(&periods)) }
        .filter_map(|((from, old), next)| {
            let (to, next) = periods.get(next?)?;
            let overlap_ns = old.end_ns.cast_signed().saturating_sub(next.start_ns.cast_signed());
            Some(SubflowHandover {
                from: *from,
                to: *to,
                first_new_ns: next.start_ns,
                last_old_ns: old.end_ns,
                overlap_ns,
            })
        })
        .collect();
    handovers.sort_by_key(|handover| handover.first_new_ns);
    handovers
}

/// Returns for each period the index of the period of another subflow that takes over; `None` if
/// there is none, or if the old subflow resumes before it.
///
/// Periods are visited from the latest end to the earliest, so `later` holds exactly those that
/// last long enough. The time is thus O(n log n).
fn next_periods(periods: &[NumberedPeriod]) -> Vec<Option<usize>> {
    let mut by_end: Vec<(u64, usize)> =
        periods.iter().enumerate().map(|(index, (_, period))| (period.end_ns, index)).collect();
    by_end.sort_unstable_by(|a, b| b.cmp(a));
    let starts: BTreeSet<(u32, u64)> =
        periods.iter().map(|(number, period)| (*number, period.start_ns)).collect();
    let mut later: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut unvisited = by_end.iter().peekable();
    let mut next_periods = vec![None; periods.len()];
    for (end_ns, index) in &by_end {
        let abandoned_ns = end_ns.saturating_add(ABANDONED_AFTER_NS);
        while let Some((_, candidate)) = unvisited.next_if(|(end_ns, _)| *end_ns > abandoned_ns) {
            if let Some((_, period)) = periods.get(*candidate)
                && !period.is_after_pause
            {
                later.insert((period.start_ns, *candidate));
            }
        }
        let Some((number, old)) = periods.get(*index) else { continue };
        let is_of_other =
            |candidate: &usize| periods.get(*candidate).is_some_and(|p| p.0 != *number);
        let after_start = later.range((old.start_ns.saturating_add(1), 0)..);
        let next = after_start.copied().find(|(_, candidate)| is_of_other(candidate));
        let Some((next_ns, next)) = next else { continue };
        let first_resumed = (*number, old.end_ns.saturating_add(1));
        let is_resumed = first_resumed.1 < next_ns
            && starts.range(first_resumed..(*number, next_ns)).next().is_some();
        if let Some(entry) = next_periods.get_mut(*index).filter(|_| !is_resumed) {
            *entry = Some(next);
        }
    }
    next_periods
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Compares every pair of periods, as the definition says.
    fn next_periods_by_definition(periods: &[NumberedPeriod]) -> Vec<Option<usize>> {
        let next_of = |(old_number, old): &NumberedPeriod| {
            let candidates = periods.iter().enumerate().filter(|(_, (number, period))| {
                number != old_number
                    && !period.is_after_pause
                    && period.start_ns > old.start_ns
                    && period.end_ns > old.end_ns.saturating_add(ABANDONED_AFTER_NS)
            });
            let (index, (_, next)) = candidates.min_by_key(|(_, (_, period))| period.start_ns)?;
            let is_resumed = periods.iter().any(|(number, period)| {
                number == old_number
                    && period.start_ns > old.end_ns
                    && period.start_ns < next.start_ns
            });
            (!is_resumed).then_some(index)
        };
        periods.iter().map(next_of).collect()
    }

    fn period() -> impl Strategy<Value = NumberedPeriod> {
        (0..4_u32, 0..12_u64, 0..6_u64, proptest::bool::weighted(0.2)).prop_map(
            |(number, start, length, is_after_pause)| {
                let start_ns = start * ABANDONED_AFTER_NS / 2;
                let end_ns = start_ns + length * ABANDONED_AFTER_NS / 2;
                (number, ActivePeriod { start_ns, end_ns, is_after_pause })
            },
        )
    }

    proptest! {
        #[test]
        fn the_next_period_is_the_first_that_outlasts_the_old_one(
            periods in proptest::collection::vec(period(), 0..20)
        ) {
            prop_assert_eq!(next_periods(&periods), next_periods_by_definition(&periods));
        }
    }
}
