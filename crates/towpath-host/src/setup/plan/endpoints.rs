//! Choice of the endpoints to keep, delete and add.

use std::collections::BTreeSet;

use towpath_netlink::{Endpoint, EndpointFlags};

use super::{EndpointCandidate, PlanStep, Planner, RouteState, SetupRole};
use crate::setup::change::{ConfigChange, NamedEndpoint};

impl Planner<'_> {
    /// Keeps correct endpoints; replaces wrong ones under the same number.
    pub(super) fn plan_endpoints(
        &mut self,
        candidates: &[EndpointCandidate<'_>],
        required: Vec<NamedEndpoint>,
    ) {
        let (mut kept, mut replaced) = (BTreeSet::new(), Vec::new());
        for old in self.own_endpoints() {
            let address = old.address;
            if !self.host.addresses.iter().any(|a| a.local.address() == address) {
                let reason = format!("{address} is not an address of this host");
                self.add_step(ConfigChange::DeleteEndpoint(old), reason);
                continue;
            }
            let Some(new) = required.iter().find(|new| new.address == address) else { continue };
            // An endpoint with a port only announces, whether or not it is the only one of its
            // address.
            let only_announces = old.port.is_some() && self.request.role != SetupRole::Client;
            let candidate = candidates.iter().find(|candidate| candidate.ip() == address);
            let problem =
                if only_announces { None } else { self.endpoint_problem(&old, new, candidate) };
            if let Some(reason) = problem {
                self.add_step(ConfigChange::DeleteEndpoint(old.clone()), reason);
                replaced.push(old);
                continue;
            }
            if !only_announces || self.request.role == SetupRole::Server {
                kept.insert(address);
            }
            let reason = purpose(&old);
            self.plan.kept_steps.push(PlanStep { change: ConfigChange::AddEndpoint(old), reason });
        }
        let missing = required.into_iter().filter(|new| !kept.contains(&new.address));
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
            self.add_step(ConfigChange::AddEndpoint(new), reason);
        }
    }

    /// Returns the endpoints that were configured; the kernel replaces its implicit ones by ours.
    fn own_endpoints(&self) -> Vec<NamedEndpoint> {
        let is_configured =
            |endpoint: &&Endpoint| !endpoint.flags.contains(EndpointFlags::IMPLICIT);
        let to_named = |endpoint: &Endpoint| {
            let link = endpoint.link_index.and_then(|index| self.host.link(index));
            NamedEndpoint {
                address: endpoint.address,
                id: endpoint.id,
                port: endpoint.port,
                flags: endpoint.flags.bits(),
                link: link.map(|link| link.name.clone()),
            }
        };
        self.host.endpoints.iter().filter(is_configured).map(to_named).collect()
    }

    /// Returns the error in an endpoint, if there is one.
    fn endpoint_problem(
        &mut self,
        old: &NamedEndpoint,
        new: &NamedEndpoint,
        candidate: Option<&EndpointCandidate<'_>>,
    ) -> Option<String> {
        let (actual, required) = (old.flags(), new.flags());
        let problem = |reason: &str| Some(format!("endpoint {} {reason}", old.address));
        let announces = actual.contains(EndpointFlags::SIGNAL);
        let opens =
            actual.contains(EndpointFlags::SUBFLOW) || actual.contains(EndpointFlags::LAMINAR);
        match self.request.role {
            SetupRole::Client if announces => {
                return problem("announces its address, which only servers need");
            }
            SetupRole::Client if !opens => return problem("opens no subflow"),
            SetupRole::Server if !announces => {
                return problem("is not announced, which servers need");
            }
            SetupRole::Server if opens => {
                return problem("opens subflows, which only clients need");
            }
            SetupRole::Both if !announces || !opens => {
                return problem("does not both announce its address and open subflows");
            }
            SetupRole::Client | SetupRole::Server | SetupRole::Both => {}
        }
        // A `fullmesh` endpoint includes the effect of `laminar`.
        let covers = actual.contains(required) || actual.contains(EndpointFlags::FULLMESH);
        if self.request.role == SetupRole::Client && !covers {
            return if required.contains(EndpointFlags::LAMINAR) {
                problem(
                    "would open a subflow to an address that it cannot reach, or in another network",
                )
            } else {
                let alone =
                    "only waits for announced addresses, although it reaches the peer itself";
                if self.request.peers.is_empty() { None } else { problem(alone) }
            };
        }
        if old.link == new.link || self.request.role != SetupRole::Client {
            return None;
        }
        if old.link.is_some() {
            return problem("is bound to a different interface than its address");
        }
        let candidate = candidate?;
        let targets = self.targets(candidate);
        let needs_binding = targets.iter().any(|to| {
            self.route_state(candidate, *to, true) == RouteState::Right
                && self.route_state(candidate, *to, false) != RouteState::Right
        });
        needs_binding.then(|| format!("endpoint {} is not bound to its interface", old.address))
    }
}

/// Returns the purpose of an endpoint, for people.
fn purpose(endpoint: &NamedEndpoint) -> String {
    let flags = endpoint.flags();
    let NamedEndpoint { address, link, .. } = endpoint;
    let link = link.as_deref().unwrap_or("?");
    if flags.contains(EndpointFlags::LAMINAR) {
        format!("use {address} ({link}) for subflows to addresses that the peer announces")
    } else if flags.contains(EndpointFlags::SIGNAL | EndpointFlags::SUBFLOW) {
        format!("announce {address} ({link}) to peers, and open a subflow from it")
    } else if flags.contains(EndpointFlags::SIGNAL) {
        format!("announce {address} ({link}) to clients")
    } else {
        format!("open a subflow from {address} ({link})")
    }
}
