//! Which endpoints stay, go or come.

use std::collections::BTreeSet;

use super::{Place, Planner, Reach, Role, Step};
use crate::netlink::EndpointFlags;
use crate::setup::change::{Change, NamedEndpoint};

impl Planner<'_> {
    /// Endpoints that are there and right stay; wrong ones are replaced under their number.
    pub(super) fn endpoints(&mut self, places: &[Place<'_>], wanted: Vec<NamedEndpoint>) {
        let mut kept = BTreeSet::new();
        for endpoint in self.host.endpoints.clone() {
            if endpoint.flags.contains(EndpointFlags::IMPLICIT) {
                continue; // the kernel's own; it makes way for ours
            }
            let link = endpoint.link_index.and_then(|index| self.host.link(index));
            let old = NamedEndpoint {
                address: endpoint.address,
                id: endpoint.id,
                port: endpoint.port,
                flags: endpoint.flags.bits(),
                link: link.map(|link| link.name.clone()),
            };
            let here = self.host.addresses.iter().any(|it| it.local.address() == old.address);
            if !here {
                let reason = format!("{} is no address of this host", old.address);
                self.step(Change::DeleteEndpoint(old), reason);
                continue;
            }
            let Some(new) = wanted.iter().find(|new| new.address == old.address) else { continue };
            // With a port it announces and can do nothing else, beside another one or alone.
            if old.port.is_some() && self.request.role != Role::Client {
                if self.request.role == Role::Server {
                    kept.insert(old.address);
                }
                let reason = purpose(&old);
                self.plan.keeps.push(Step { change: Change::AddEndpoint(old), reason });
                continue;
            }
            let place = places.iter().find(|place| place.ip() == old.address);
            match self.complaint(&old, new, place) {
                None => {
                    kept.insert(new.address);
                    let reason = purpose(&old);
                    self.plan.keeps.push(Step { change: Change::AddEndpoint(old), reason });
                }
                Some(reason) => {
                    self.step(Change::DeleteEndpoint(old.clone()), reason);
                    let kept_flags = old.flags & EndpointFlags::BACKUP.bits();
                    let flags = new.flags | kept_flags;
                    if !kept.insert(new.address) {
                        continue; // one for each address is enough
                    }
                    let change = NamedEndpoint { id: old.id, flags, ..new.clone() };
                    let reason = purpose(&change);
                    self.step(Change::AddEndpoint(change), reason);
                }
            }
        }
        for new in wanted.into_iter().filter(|new| !kept.contains(&new.address)) {
            let reason = purpose(&new);
            self.step(Change::AddEndpoint(new), reason);
        }
    }

    /// What is wrong with an endpoint, if something is.
    fn complaint(
        &mut self,
        old: &NamedEndpoint,
        new: &NamedEndpoint,
        place: Option<&Place<'_>>,
    ) -> Option<String> {
        let (is, must) = (old.flags(), new.flags());
        let text = |why: &str| Some(format!("endpoint {} {why}", old.address));
        let announces = is.contains(EndpointFlags::SIGNAL);
        let opens = is.contains(EndpointFlags::SUBFLOW) || is.contains(EndpointFlags::LAMINAR);
        match self.request.role {
            Role::Client if announces => {
                return text("announces its address, which is for servers");
            }
            Role::Client if !opens => return text("opens no subflow"),
            Role::Server if !announces => return text("is not announced, which servers do"),
            Role::Server if opens => return text("opens subflows, which is for clients"),
            Role::Both if !announces || !opens => {
                return text("does not both announce its address and open subflows");
            }
            Role::Client | Role::Server | Role::Both => {}
        }
        // A mesh covers what `laminar` would.
        let covers = is.contains(must) || is.contains(EndpointFlags::FULLMESH);
        if self.request.role == Role::Client && !covers {
            return if must.contains(EndpointFlags::LAMINAR) {
                text("would open a subflow to an address that it cannot reach, or crosswise")
            } else {
                let alone = "waits for announced addresses only, but reaches the peer by itself";
                if self.request.peers.is_empty() { None } else { text(alone) }
            };
        }
        if old.link == new.link || self.request.role != Role::Client {
            return None;
        }
        if old.link.is_some() {
            return text("is bound to another interface than its address");
        }
        let place = place?;
        let targets = self.targets(place);
        let goes_wrong = targets.iter().any(|to| {
            self.reach(place, *to, true) == Reach::Right
                && self.reach(place, *to, false) != Reach::Right
        });
        goes_wrong.then(|| format!("endpoint {} is not bound to its interface", old.address))
    }
}

/// What an endpoint does.
fn purpose(endpoint: &NamedEndpoint) -> String {
    let flags = endpoint.flags();
    let NamedEndpoint { address, link, .. } = endpoint;
    let link = link.as_deref().unwrap_or("?");
    if flags.contains(EndpointFlags::LAMINAR) {
        format!("answer an address that the peer announces from {address} ({link})")
    } else if flags.contains(EndpointFlags::SIGNAL | EndpointFlags::SUBFLOW) {
        format!("announce {address} ({link}) to peers, and open a subflow from it")
    } else if flags.contains(EndpointFlags::SIGNAL) {
        format!("announce {address} ({link}) to clients")
    } else {
        format!("open a subflow from {address} ({link})")
    }
}
