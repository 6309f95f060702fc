//! Series of a link's capacity accounting.

use towpath_result::store::StoredRun;
use towpath_result::{Account, LinkAccount, Part, PartGroup, Record};

use super::{Grid, Values, fill_single_gaps, per_second};

/// Returns the parts of a link's capacity in one direction, in bits per second; their sum is the
/// capacity.
pub(crate) fn account(
    run: &StoredRun,
    grid: &Grid,
    link: &LinkAccount,
) -> Vec<(PartGroup, Values)> {
    let is_of_link =
        |record: &&Account| record.path == link.path && record.direction == link.direction;
    let records: Vec<&Account> = { run.records.iter() }
        .filter_map(|record| if let Record::Account(a) = record { Some(&**a) } else { None })
        .filter(is_of_link)
        .collect();
    let mut groups: Vec<PartGroup> = Part::ALL.into_iter().map(Part::group).collect();
    groups.dedup();
    groups.retain(|group| link.parts.of_group(*group) > 0);
    groups
        .into_iter()
        .map(|group| {
            let mut bits = grid.empty();
            for record in &records {
                let amount = record.parts.of_group(group) as f64 * 8.0;
                grid.spread(&mut bits, record.t_ns, record.span_ns, amount);
            }
            (group, fill_single_gaps(per_second(bits, grid)))
        })
        .collect()
}
