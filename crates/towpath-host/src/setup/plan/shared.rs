//! Interfaces that share a network, which is fixed (ARP flux), or an address, which is refused.

use std::net::IpAddr;

use super::{ConfigChange, EndpointCandidate, PlanError, Planner, sharing_interface};

/// Finds interfaces with the same address, as identical modems give it. The kernel accepts one
/// endpoint and one rule for an address, so a plan for all of them fails halfway.
pub(super) fn find_duplicate_address(candidates: &[EndpointCandidate<'_>]) -> Option<PlanError> {
    let links_of = |address: IpAddr| -> Vec<String> {
        let owners = candidates.iter().filter(|candidate| candidate.ip() == address);
        owners.map(|candidate| candidate.link.name.clone()).collect()
    };
    candidates.iter().find_map(|candidate| {
        let (address, links) = (candidate.ip(), links_of(candidate.ip()));
        (links.len() > 1).then_some(PlanError::DuplicateAddress { address, links })
    })
}

impl Planner<'_> {
    /// Fixes interfaces in one network, which reply to ARP for each other, so that one link carries
    /// everything.
    pub(super) fn fix_shared_networks(&mut self, candidates: &[EndpointCandidate<'_>]) {
        let mut changed_links = Vec::new();
        for link in self.host.links.iter().filter(|link| link.is_up() && !link.is_loopback()) {
            let Some((other, network)) = sharing_interface(self.host, link, true) else { continue };
            let is_affected = |candidate: &EndpointCandidate<'_>| {
                candidate.link.index == link.index || candidate.link.index == other.index
            };
            if !link.has_arp() || !candidates.iter().any(is_affected) {
                continue;
            }
            let mut names = [link.name.as_str(), other.name.as_str()];
            names.sort_unstable();
            let reason = format!(
                "{} are both in {network}: each must send and answer ARP for its own address only",
                names.join(" and ")
            );
            let previous_count = self.plan.steps.len();
            self.raise(&link.name, "arp_ignore", 1, reason.clone());
            self.raise(&link.name, "arp_announce", 2, reason);
            changed_links
                .extend((self.plan.steps.len() > previous_count).then(|| link.name.clone()));
        }
        for link in changed_links {
            let reason = "old neighbour entries may point to the wrong interface";
            self.add_step(ConfigChange::ForgetNeighbours { link }, reason.to_owned());
        }
    }
}
