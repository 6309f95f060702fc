//! View of an observation, with queries that several rules use.

use std::net::IpAddr;

use towpath_host::snapshot::HostSnapshot;
use towpath_host::snapshot::{EndpointSnapshot, LinkSnapshot};

use crate::observation::{
    ConnectOutcome, Observation, ObservedSubflow, PeerSnapshots, PlainTcpCheck, RouteLookup,
    TestConnection,
};

/// View of an observation, with queries that several rules use.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObservationView<'a> {
    pub(super) observation: &'a Observation,
    /// Snapshot of this host before any test.
    pub(super) here: &'a HostSnapshot,
    /// Test connection; `None` without a target.
    pub(super) trial: Option<&'a TestConnection>,
    /// Snapshots of the other host, if it sent any.
    pub(super) peer: Option<&'a PeerSnapshots>,
}

impl<'a> ObservationView<'a> {
    pub(super) fn new(observation: &'a Observation) -> Self {
        let Observation { here, trial, peer, .. } = observation;
        Self { observation, here, trial: trial.as_ref(), peer: peer.as_ref() }
    }

    /// Returns the kernel's route lookup, if one was made.
    pub(super) fn route_lookup(
        &self,
        to: IpAddr,
        from: Option<IpAddr>,
        bound_to: Option<u32>,
    ) -> Option<&'a RouteLookup> {
        let is_same_query = |lookup: &&RouteLookup| {
            (lookup.to, lookup.from, lookup.bound_to) == (to, from, bound_to)
        };
        self.observation.route_lookups.iter().find(is_same_query)
    }

    /// Returns the name of an interface.
    pub(super) fn interface_name(&self, index: u32) -> String {
        self.here.link(index).map_or_else(|| format!("interface {index}"), |link| link.name.clone())
    }

    /// Returns the plain TCP test of a path.
    pub(super) fn plain_tcp_check(
        &self,
        local: Option<IpAddr>,
        remote: IpAddr,
    ) -> Option<&'a PlainTcpCheck> {
        let is_same_path = |check: &&PlainTcpCheck| {
            check.remote.ip() == remote && local.is_none_or(|local| check.local == local)
        };
        self.trial?.controls.iter().find(is_same_path)
    }

    /// Returns true if plain TCP connects over a path; `None` if not tested.
    pub(super) fn plain_tcp_connects(&self, local: Option<IpAddr>, remote: IpAddr) -> Option<bool> {
        Some(self.plain_tcp_check(local, remote)?.outcome == ConnectOutcome::Connected)
    }

    /// Returns true if an address is in the network of an interface.
    pub(super) fn on_link(&self, link: u32, address: IpAddr) -> bool {
        on_link(self.here, link, address)
    }

    /// Returns true if the server closed our connection before a further subflow was established.
    pub(super) fn closed_before_join(&self) -> bool {
        self.trial.is_some_and(|trial| trial.closed_by_peer)
            && self.joined_subflows().next().is_none()
    }

    /// Returns the established further subflows of our connection.
    pub(super) fn joined_subflows(&self) -> impl Iterator<Item = &'a ObservedSubflow> {
        let subflows = self.trial.map(|trial| trial.subflows.as_slice()).unwrap_or_default();
        subflows.iter().filter(|subflow| !subflow.first && is_working(subflow))
    }

    /// Returns the interfaces with a route to the target, or to the internet without a target. The
    /// route must leave by that interface, and its source address is included.
    pub(super) fn usable_interfaces(&self) -> Vec<(&'a LinkSnapshot, IpAddr)> {
        let mut interfaces: Vec<(&LinkSnapshot, IpAddr)> = Vec::new();
        for lookup in &self.observation.route_lookups {
            let (Some(from), Some(link_index)) = (lookup.from, lookup.bound_to) else { continue };
            let is_for_target = self.trial.is_none_or(|trial| trial.target.ip() == lookup.to);
            let Some(link) = self.here.link(link_index) else { continue };
            let has_route = lookup.link == Some(link_index)
                && (lookup.gateway.is_some()
                    || link.is_point_to_point()
                    || on_link(self.here, link_index, lookup.to));
            // Of several interfaces with the same address, only one can be a path.
            let is_listed = interfaces
                .iter()
                .any(|(other, address)| other.index == link_index || *address == from);
            if is_for_target && has_route && link.up && link.running && !link.loopback && !is_listed
            {
                interfaces.push((link, from));
            }
        }
        interfaces
    }

    /// Returns the interface over which packets from an address leave. An address of the loopback
    /// interface is routed over another one.
    pub(super) fn path_link(&self, local: IpAddr, remote: IpAddr) -> Option<&'a LinkSnapshot> {
        let owner = self.here.link_of(local)?;
        if !owner.loopback {
            return Some(owner);
        }
        let bound_to = self.bound_interface(local);
        let lookup = self
            .route_lookup(remote, Some(local), bound_to)
            .or_else(|| self.route_lookup(remote, Some(local), None));
        lookup.and_then(|lookup| lookup.link).and_then(|link| self.here.link(link)).or(Some(owner))
    }

    /// Returns the configured endpoint of an address.
    pub(super) fn endpoint(&self, address: IpAddr) -> Option<&'a EndpointSnapshot> {
        self.here
            .endpoints
            .iter()
            .find(|endpoint| endpoint.address == address && !endpoint.is_implicit())
    }

    /// Returns the interface to which the endpoint of an address is bound.
    pub(super) fn bound_interface(&self, address: IpAddr) -> Option<u32> {
        self.endpoint(address).and_then(|endpoint| endpoint.link)
    }
}

/// Returns true if data can be sent over the subflow.
pub(super) fn is_working(subflow: &ObservedSubflow) -> bool {
    subflow.established && !subflow.gone
}

/// Returns true if this host closes the subflow, as after the removal of its address. It carries no
/// more data, so a missing reply is not a fault of its path.
pub(super) fn is_closing(subflow: &ObservedSubflow) -> bool {
    const CLOSING_STATES: [&str; 5] =
        ["fin-wait-1", "fin-wait-2", "closing", "last-ack", "time-wait"];
    CLOSING_STATES.contains(&subflow.state.as_str())
}

/// Returns true if an address is in the network of an interface of that host.
pub(crate) fn on_link(snapshot: &HostSnapshot, link: u32, address: IpAddr) -> bool {
    let mut link_addresses = snapshot.addresses.iter().filter(|entry| entry.link == link);
    link_addresses.any(|entry| in_network(entry.address, entry.prefix_length, address))
}

/// Returns true if two addresses share a prefix of that length.
pub(super) fn in_network(first: IpAddr, length: u8, second: IpAddr) -> bool {
    match (first, second) {
        (IpAddr::V4(first), IpAddr::V4(second)) => {
            let mask = u32::MAX.checked_shl(32_u32.saturating_sub(length.into())).unwrap_or(0);
            first.to_bits() & mask == second.to_bits() & mask
        }
        (IpAddr::V6(first), IpAddr::V6(second)) => {
            let mask = u128::MAX.checked_shl(128_u32.saturating_sub(length.into())).unwrap_or(0);
            first.to_bits() & mask == second.to_bits() & mask
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
