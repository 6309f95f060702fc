//! Choice of the endpoints to keep, delete and add.

use std::collections::BTreeSet;

use super::{EndpointCandidate, PlanStep, Planner, RouteState, SetupRole};
use crate::netlink::{Endpoint, EndpointFlags};
use crate::setup::change::{ConfigChange, NamedEndpoint};

impl Planner<'_> {
    /// Keeps correct endpoints; replaces wrong ones under the same number.
    pub(super) fn endpoints(
        &mut self,
        places: &[EndpointCandidate<'_>],
        wanted: Vec<NamedEndpoint>,
    ) {
        let (mut kept, mut replaced) = (BTreeSet::new(), Vec::new());
        for old in self.own_endpoints() {
            let address = old.address;
            if !self.host.addresses.iter().any(|it| it.local.address() == address) {
                let reason = format!("{address} is no address of this host");
                self.step(ConfigChange::DeleteEndpoint(old), reason);
                continue;
            }
            let Some(new) = wanted.iter().find(|new| new.address == address) else { continue };
            // An endpoint with a port only announces, whether or not it is the only one of its
            // address.
            let only_announces = old.port.is_some() && self.request.role != SetupRole::Client;
            let place = places.iter().find(|place| place.ip() == address);
            let complaint =
                if only_announces { None } else { self.endpoint_problem(&old, new, place) };
            if let Some(reason) = complaint {
                self.step(ConfigChange::DeleteEndpoint(old.clone()), reason);
                replaced.push(old);
                continue;
            }
            if !only_announces || self.request.role == SetupRole::Server {
                kept.insert(address);
            }
            let reason = purpose(&old);
            self.plan.kept_steps.push(PlanStep { change: ConfigChange::AddEndpoint(old), reason });
        }
        let missing = wanted.into_iter().filter(|new| !kept.contains(&new.address));
        let mut missing: Vec<_> = missing
            .map(|new| {
                let old = replaced.iter().find(|old| old.address == new.address);
                let backup = old.map_or(0, |old| old.flags & EndpointFlags::BACKUP.bits());
                let (id, flags) = (old.and_then(|old| old.id), new.flags | backup);
                NamedEndpoint { id, flags, ..new }
            })
            .collect();
        // Endpoints with an identifier first, before the kernel assigns it to another one.
        missing.sort_by_key(|new| new.id.is_none());
        for new in missing {
            let reason = purpose(&new);
            self.step(ConfigChange::AddEndpoint(new), reason);
        }
    }

    /// Returns the endpoints that were configured; the kernel replaces its implicit ones by ours.
    fn own_endpoints(&self) -> Vec<NamedEndpoint> {
        let made = |it: &&Endpoint| !it.flags.contains(EndpointFlags::IMPLICIT);
        let named = |endpoint: &Endpoint| {
            let link = endpoint.link_index.and_then(|index| self.host.link(index));
            NamedEndpoint {
                address: endpoint.address,
                id: endpoint.id,
                port: endpoint.port,
                flags: endpoint.flags.bits(),
                link: link.map(|link| link.name.clone()),
            }
        };
        self.host.endpoints.iter().filter(made).map(named).collect()
    }

    /// Returns the error in an endpoint, if there is one.
    fn endpoint_problem(
        &mut self,
        old: &NamedEndpoint,
        new: &NamedEndpoint,
        place: Option<&EndpointCandidate<'_>>,
    ) -> Option<String> {
        let (is, must) = (old.flags(), new.flags());
        let text = |why: &str| Some(format!("endpoint {} {why}", old.address));
        let announces = is.contains(EndpointFlags::SIGNAL);
        let opens = is.contains(EndpointFlags::SUBFLOW) || is.contains(EndpointFlags::LAMINAR);
        match self.request.role {
            SetupRole::Client if announces => {
                return text("announces its address, which is for servers");
            }
            SetupRole::Client if !opens => return text("opens no subflow"),
            SetupRole::Server if !announces => return text("is not announced, which servers do"),
            SetupRole::Server if opens => return text("opens subflows, which is for clients"),
            SetupRole::Both if !announces || !opens => {
                return text("does not both announce its address and open subflows");
            }
            SetupRole::Client | SetupRole::Server | SetupRole::Both => {}
        }
        // A `fullmesh` endpoint includes the effect of `laminar`.
        let covers = is.contains(must) || is.contains(EndpointFlags::FULLMESH);
        if self.request.role == SetupRole::Client && !covers {
            return if must.contains(EndpointFlags::LAMINAR) {
                text("would open a subflow to an address that it cannot reach, or crosswise")
            } else {
                let alone = "waits for announced addresses only, but reaches the peer by itself";
                if self.request.peers.is_empty() { None } else { text(alone) }
            };
        }
        if old.link == new.link || self.request.role != SetupRole::Client {
            return None;
        }
        if old.link.is_some() {
            return text("is bound to another interface than its address");
        }
        let place = place?;
        let targets = self.targets(place);
        let goes_wrong = targets.iter().any(|to| {
            self.route_state(place, *to, true) == RouteState::Right
                && self.route_state(place, *to, false) != RouteState::Right
        });
        goes_wrong.then(|| format!("endpoint {} is not bound to its interface", old.address))
    }
}

/// Returns the purpose of an endpoint, for people.
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
