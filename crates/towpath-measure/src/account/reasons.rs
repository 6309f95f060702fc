//! What senders say of why a link was not used, taken together.

use super::ledger::IdleCause;
use crate::result::Part;

/// Why a path was not used, with weights.
pub type WeightedCauses = Vec<(IdleCause, f64)>;

/// What several senders say of one link. Nothing to send is a reason only if nobody has anything;
/// and where several paths lead through the link, one of them that is not used is none.
pub fn combine_causes(all: &[&WeightedCauses], shared: bool) -> WeightedCauses {
    let flat = || all.iter().flat_map(|reasons| reasons.iter().copied());
    let strong: WeightedCauses =
        flat().filter(|(why, weight)| why.part != Part::Application && *weight > 1e-6).collect();
    let unused = |part: Part| {
        matches!(part, Part::SinglePath | Part::NoSubflow | Part::Backup | Part::Handshake)
    };
    let active: WeightedCauses =
        strong.iter().copied().filter(|(why, _)| !unused(why.part)).collect();
    if shared && !active.is_empty() {
        return active;
    }
    // One connection that has something to send for half of the time has nothing in the other half.
    let one = all.len() == 1 && all.iter().all(|reasons| total_weight(reasons) <= 1.000_1);
    if strong.is_empty() || one {
        let whole: WeightedCauses = flat().collect();
        let nothing = vec![(Part::Application.into(), 1.0)];
        return if total_weight(&whole) > 0.0 { whole } else { nothing };
    }
    strong
}

/// The sum of all weights.
pub fn total_weight(reasons: &[(IdleCause, f64)]) -> f64 {
    reasons.iter().map(|(_, weight)| weight).sum()
}
