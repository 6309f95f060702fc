//! Fixes for interfaces that share a network (ARP flux).

use super::{ConfigChange, EndpointCandidate, Planner, sharing_interface};

impl Planner<'_> {
    /// Fixes interfaces in one network, which reply to ARP for each other, so that one link carries
    /// everything.
    pub(super) fn shared_networks(&mut self, places: &[EndpointCandidate<'_>]) {
        let mut mended = Vec::new();
        for link in self.host.links.iter().filter(|link| link.is_up() && !link.is_loopback()) {
            let Some((other, network)) = sharing_interface(self.host, link, true) else { continue };
            let concerned = |place: &EndpointCandidate<'_>| {
                place.link.index == link.index || place.link.index == other.index
            };
            if !link.has_arp() || !places.iter().any(concerned) {
                continue;
            }
            let mut both = [link.name.as_str(), other.name.as_str()];
            both.sort_unstable();
            let reason = format!(
                "{} are both in {network}: each must answer and ask ARP for its own address only",
                both.join(" and ")
            );
            let before = self.plan.steps.len();
            self.raise(&link.name, "arp_ignore", 1, reason.clone());
            self.raise(&link.name, "arp_announce", 2, reason);
            mended.extend((self.plan.steps.len() > before).then(|| link.name.clone()));
        }
        for link in mended {
            let reason = "what was learnt of neighbours before may lead to the wrong interface";
            self.step(ConfigChange::ForgetNeighbours { link }, reason.to_owned());
        }
    }
}
