//! Combination of the causes that several senders give for an unused link.

use super::ledger::IdleCause;
use crate::Part;

/// Causes of an unused path, with weights.
pub type WeightedCauses = Vec<(IdleCause, f64)>;

/// Combines the causes that several senders give for one link.
///
/// Having nothing to send counts only if no sender has anything. For a link that several paths
/// share (`shared`), an unused path counts only if no other cause exists.
pub fn combine_causes(sender_causes: &[&WeightedCauses], shared: bool) -> WeightedCauses {
    let all_causes = || sender_causes.iter().flat_map(|causes| causes.iter().copied());
    let limits: WeightedCauses = all_causes()
        .filter(|(cause, weight)| cause.part != Part::Application && *weight > 1e-6)
        .collect();
    let is_path_unused = |part: Part| {
        matches!(part, Part::SinglePath | Part::NoSubflow | Part::Backup | Part::Handshake)
    };
    let path_limits: WeightedCauses =
        limits.iter().copied().filter(|(cause, _)| !is_path_unused(cause.part)).collect();
    if shared && !path_limits.is_empty() {
        return path_limits;
    }
    // The weights of a single sender that sum to at most 1 already include its idle time.
    let is_complete = sender_causes.len() == 1
        && sender_causes.iter().all(|causes| total_weight(causes) <= 1.000_1);
    if limits.is_empty() || is_complete {
        let weighted: WeightedCauses = all_causes().collect();
        let nothing_to_send = vec![(Part::Application.into(), 1.0)];
        return if total_weight(&weighted) > 0.0 { weighted } else { nothing_to_send };
    }
    limits
}

/// Returns the sum of all weights.
pub fn total_weight(causes: &[(IdleCause, f64)]) -> f64 {
    causes.iter().map(|(_, weight)| weight).sum()
}
