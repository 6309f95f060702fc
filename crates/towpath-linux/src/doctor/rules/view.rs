//! View of an observation, with queries that several rules use.

use std::net::IpAddr;

use towpath_measure::live::HostSnapshot;
use towpath_measure::live::snapshot::{EndpointSnapshot, LinkSnapshot};

use crate::doctor::observation::{
    ConnectOutcome, Observation, ObservedSubflow, PeerSnapshots, PlainTcpCheck, RouteLookup,
    TestConnection,
};

/// View of an observation, with queries that several rules use.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservationView<'a> {
    pub(super) all: &'a Observation,
    pub(super) here: &'a HostSnapshot,
    pub(super) trial: Option<&'a TestConnection>,
    pub(super) peer: Option<&'a PeerSnapshots>,
}

impl<'a> ObservationView<'a> {
    pub(super) fn new(all: &'a Observation) -> Self {
        Self { all, here: &all.here, trial: all.trial.as_ref(), peer: all.peer.as_ref() }
    }

    /// Returns the kernel's route lookup, if one was made.
    pub(super) fn route_lookup(
        &self,
        to: IpAddr,
        from: Option<IpAddr>,
        bound_to: Option<u32>,
    ) -> Option<&'a RouteLookup> {
        let same = |lookup: &&RouteLookup| {
            (lookup.to, lookup.from, lookup.bound_to) == (to, from, bound_to)
        };
        self.all.route_lookups.iter().find(same)
    }

    /// Returns the name of an interface.
    pub(super) fn name(&self, index: u32) -> String {
        self.here.link(index).map_or_else(|| format!("interface {index}"), |one| one.name.clone())
    }

    /// Returns the plain TCP test of a path.
    pub(super) fn control(
        &self,
        local: Option<IpAddr>,
        remote: IpAddr,
    ) -> Option<&'a PlainTcpCheck> {
        let same = |one: &&PlainTcpCheck| {
            one.remote.ip() == remote && local.is_none_or(|local| one.local == local)
        };
        self.trial?.controls.iter().find(same)
    }

    /// Returns true if plain TCP connects over a path; `None` if not tested.
    pub(super) fn connects(&self, local: Option<IpAddr>, remote: IpAddr) -> Option<bool> {
        Some(self.control(local, remote)?.outcome == ConnectOutcome::Connected)
    }

    /// Returns true if an address is in the network of an interface.
    pub(super) fn on_link(&self, link: u32, address: IpAddr) -> bool {
        on_link(self.here, link, address)
    }

    /// Returns true if the server closed our connection before a further subflow was established.
    pub(super) fn closed_before_join(&self) -> bool {
        self.trial.is_some_and(|trial| trial.closed_by_peer) && self.joined().next().is_none()
    }

    /// Returns the established further subflows of our connection.
    pub(super) fn joined(&self) -> impl Iterator<Item = &'a ObservedSubflow> {
        let all = self.trial.map(|trial| trial.subflows.as_slice()).unwrap_or_default();
        all.iter().filter(|one| !one.first && works(one))
    }

    /// Returns the interfaces with a route to the target, or to the internet without a target. The
    /// route must leave by that interface, and its source address is included.
    pub(super) fn usable(&self) -> Vec<(&'a LinkSnapshot, IpAddr)> {
        let mut found: Vec<(&LinkSnapshot, IpAddr)> = Vec::new();
        for lookup in &self.all.route_lookups {
            let (Some(from), Some(bound)) = (lookup.from, lookup.bound_to) else { continue };
            let wanted = self.trial.is_none_or(|trial| trial.target.ip() == lookup.to);
            let Some(link) = self.here.link(bound) else { continue };
            let leads = lookup.link == Some(bound)
                && (lookup.gateway.is_some() || on_link(self.here, bound, lookup.to));
            let known = found.iter().any(|(other, _)| other.index == bound);
            if wanted && leads && link.up && link.running && !link.loopback && !known {
                found.push((link, from));
            }
        }
        found
    }

    /// Returns the configured endpoint of an address.
    pub(super) fn endpoint(&self, address: IpAddr) -> Option<&'a EndpointSnapshot> {
        self.here.endpoints.iter().find(|one| one.address == address && !one.is_implicit())
    }

    /// Returns the interface to which the endpoint of an address is bound.
    pub(super) fn binding(&self, address: IpAddr) -> Option<u32> {
        self.endpoint(address).and_then(|endpoint| endpoint.link)
    }
}

/// Returns true if data can be sent over the subflow.
pub(super) fn works(one: &ObservedSubflow) -> bool {
    one.established && !one.gone
}

/// Returns true if an address is in the network of an interface of that host.
pub(in crate::doctor) fn on_link(look: &HostSnapshot, link: u32, address: IpAddr) -> bool {
    let mut its = look.addresses.iter().filter(|one| one.link == link);
    its.any(|one| in_network(one.address, one.prefix_length, address))
}

/// Returns true if two addresses share a prefix of that length.
pub(super) fn in_network(one: IpAddr, length: u8, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length.into())).unwrap_or(0);
            one.to_bits() & mask == other.to_bits() & mask
        }
        (IpAddr::V6(one), IpAddr::V6(other)) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0);
            one.to_bits() & mask == other.to_bits() & mask
        }
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}

/// Returns the number of an address's private block (RFC 1918, RFC 3927, RFC 4193, RFC 6598).
pub(super) fn private_block(address: IpAddr) -> Option<u8> {
    match address {
        IpAddr::V4(v4) => match v4.octets() {
            [10, ..] => Some(1),
            [172, 16..=31, ..] => Some(2),
            [192, 168, ..] => Some(3),
            [100, 64..=127, ..] => Some(4),
            [169, 254, ..] => Some(5),
            _ => None,
        },
        IpAddr::V6(v6) => {
            (v6.segments().first().is_some_and(|first| first & 0xfe00 == 0xfc00)).then_some(6)
        }
    }
}
