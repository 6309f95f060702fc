//! Combination of the causes that several senders give for an unused link.

use super::ledger::IdleCause;
use crate::result::Part;

/// Causes of an unused path, with weights.
pub type WeightedCauses = Vec<(IdleCause, f64)>;

/// Combines the causes that several senders give for one link.
///
/// Having nothing to send counts only if no sender has anything. For a link that several paths
/// share (`shared`), an unused path counts only if no other cause exists.
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
    // A single connection with data for half of the time has nothing to send in the other half.
    let one = all.len() == 1 && all.iter().all(|reasons| total_weight(reasons) <= 1.000_1);
    if strong.is_empty() || one {
        let whole: WeightedCauses = flat().collect();
        let nothing = vec![(Part::Application.into(), 1.0)];
        return if total_weight(&whole) > 0.0 { whole } else { nothing };
    }
    strong
}

/// Returns the sum of all weights.
pub fn total_weight(reasons: &[(IdleCause, f64)]) -> f64 {
    reasons.iter().map(|(_, weight)| weight).sum()
}
