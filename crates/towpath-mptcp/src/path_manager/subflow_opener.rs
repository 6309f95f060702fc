//! Common parts of path managers: identifiers of local addresses, and limits for opening subflows.

use std::net::{IpAddr, SocketAddr};

use super::{LocalAddress, PathManagerAction, PathManagerView, RemoteAddress};

/// Address on which the connection began. Its identifier on the wire is 0, regardless of the host's
/// own identifier (RFC 8684 §3.2).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InitialAddress {
    address: Option<IpAddr>,
    /// The host's own identifier of the address, stored because the address may be gone before its
    /// removal is reported.
    address_id: Option<u8>,
}

impl InitialAddress {
    /// Records the address; to be called while the first subflow exists.
    pub(super) fn record(&mut self, view: &PathManagerView<'_>) {
        let initial = view.subflows.iter().find(|subflow| subflow.local_id == 0);
        self.address = self.address.or(initial.map(|subflow| subflow.local.ip()));
        let local = view.local.iter().find(|local| Some(local.address) == self.address);
        self.address_id = local.map(|local| local.address_id).or(self.address_id);
    }

    /// Returns the address, if it is known.
    pub(super) fn address(self) -> Option<IpAddr> {
        self.address
    }

    /// Returns the identifier of an address on the wire.
    pub(super) fn wire_id_of(self, local: &LocalAddress) -> u8 {
        if Some(local.address) == self.address { 0 } else { local.address_id }
    }

    /// Returns the wire identifier for an identifier of the host.
    pub(super) fn wire_id(self, address_id: u8) -> u8 {
        if Some(address_id) == self.address_id { 0 } else { address_id }
    }
}

/// Both ends of a subflow to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SubflowEndpoints {
    pub(super) local_id: u8,
    pub(super) local: IpAddr,
    pub(super) remote: RemoteAddress,
    pub(super) backup: bool,
}

impl SubflowEndpoints {
    /// Returns true if both addresses have the same family.
    fn same_family(&self) -> bool {
        self.local.is_ipv4() == self.remote.address.is_ipv4()
    }
}

/// Adds subflows to the actions, without exceeding the limit or opening one twice.
#[derive(Debug)]
pub(super) struct SubflowOpener<'a> {
    view: &'a PathManagerView<'a>,
    actions: &'a mut Vec<PathManagerAction>,
}

impl<'a> SubflowOpener<'a> {
    pub(super) fn new(
        view: &'a PathManagerView<'a>,
        actions: &'a mut Vec<PathManagerAction>,
    ) -> Self {
        Self { view, actions }
    }

    /// Returns true if one more subflow is within the limit, which excludes the first.
    pub(super) fn has_room(&self) -> bool {
        let requested =
            self.actions.iter().filter(|action| matches!(action, PathManagerAction::Open { .. }));
        self.view.subflows.len() + requested.count() <= usize::from(self.view.subflow_limit)
    }

    /// Returns true if a subflow between the two addresses exists or is requested.
    pub(super) fn connects(&self, source: IpAddr, destination: SocketAddr) -> bool {
        let existing = self.view.subflows.iter();
        let exists = existing
            .filter(|subflow| subflow.local.ip() == source)
            .any(|subflow| subflow.remote == destination);
        let requests_it = |action: &PathManagerAction| matches!(action, PathManagerAction::Open { local, remote, .. } if *local == source && *remote == destination);
        exists || self.actions.iter().any(requests_it)
    }

    /// Opens a subflow if possible, and returns true if it did.
    pub(super) fn open(&mut self, pair: SubflowEndpoints) -> bool {
        let is_new = !self.connects(pair.local, pair.remote.address);
        is_new && self.open_parallel(pair)
    }

    /// Opens a subflow even if one already exists between the two addresses.
    pub(super) fn open_parallel(&mut self, pair: SubflowEndpoints) -> bool {
        let permitted = pair.same_family() && self.has_room();
        if permitted {
            let SubflowEndpoints { local_id, local, remote, backup } = pair;
            let RemoteAddress { address_id: remote_id, address: remote } = remote;
            self.actions.push(PathManagerAction::Open {
                local_id,
                local,
                remote_id,
                remote,
                backup,
            });
        }
        permitted
    }
}

/// Returns the local address from which a host would most likely reach `remote`. Prefers an address
/// of the same network (guessed from the prefix), then the initial address, then any.
pub(super) fn likely_source<'a>(
    view: &PathManagerView<'a>,
    initial_address: InitialAddress,
    remote: SocketAddr,
) -> Option<&'a LocalAddress> {
    let same_family = |local: &&LocalAddress| local.address.is_ipv4() == remote.is_ipv4();
    let usable = || view.local.iter().filter(|local| local.up).filter(same_family);
    let in_same_network = |local: &&LocalAddress| same_network(local.address, remote.ip());
    let is_initial = |local: &&LocalAddress| Some(local.address) == initial_address.address();
    usable().find(in_same_network).or_else(|| usable().find(is_initial)).or_else(|| usable().next())
}

/// Compares the prefixes that ordinary networks have (IPv4 /24, IPv6 /64), as the real prefix
/// lengths are unknown here.
fn same_network(a: IpAddr, b: IpAddr) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (a.to_bits() ^ b.to_bits()) >> 8 == 0,
        (IpAddr::V6(a), IpAddr::V6(b)) => (a.to_bits() ^ b.to_bits()) >> 64 == 0,
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}
