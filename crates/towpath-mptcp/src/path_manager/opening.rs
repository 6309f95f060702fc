//! What path managers share: identifiers of our addresses, and subflows that may still be opened.

use std::net::{IpAddr, SocketAddr};

use super::{LocalAddress, PathManagerAction, PathManagerView, RemoteAddress};

/// The address on which the connection began: on the wire its identifier is 0, whatever the host
/// calls it (RFC 8684 §3.2).
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct InitialAddress {
    address: Option<IpAddr>,
    /// What the host calls it; remembered because it may be gone when we are told so.
    address_id: Option<u8>,
}

impl InitialAddress {
    /// Remembers it; to be called while the first subflow exists.
    pub(super) fn record(&mut self, view: &PathManagerView<'_>) {
        let first = view.subflows.iter().find(|subflow| subflow.local_id == 0);
        self.address = self.address.or(first.map(|subflow| subflow.local.ip()));
        let local = view.local.iter().find(|local| Some(local.address) == self.address);
        self.address_id = local.map(|local| local.address_id).or(self.address_id);
    }

    /// It.
    pub(super) fn address(self) -> Option<IpAddr> {
        self.address
    }

    /// The identifier of an address on the wire.
    pub(super) fn id_of(self, local: &LocalAddress) -> u8 {
        if Some(local.address) == self.address { 0 } else { local.address_id }
    }

    /// The same for an identifier of the host.
    pub(super) fn id(self, address_id: u8) -> u8 {
        if Some(address_id) == self.address_id { 0 } else { address_id }
    }
}

/// The two ends of a subflow to open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SubflowEndpoints {
    pub(super) local_id: u8,
    pub(super) local: IpAddr,
    pub(super) remote: RemoteAddress,
    pub(super) backup: bool,
}

impl SubflowEndpoints {
    /// Whether both are of the same family: nothing else can be connected.
    fn same_family(&self) -> bool {
        self.local.is_ipv4() == self.remote.address.is_ipv4()
    }
}

/// Adds subflows to the actions: none above the limit, none twice.
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

    /// Whether one more is within the limit, which does not count the first.
    pub(super) fn has_room(&self) -> bool {
        let opened =
            self.actions.iter().filter(|action| matches!(action, PathManagerAction::Open { .. }));
        self.view.subflows.len() + opened.count() <= usize::from(self.view.subflow_limit)
    }

    /// Whether there is a subflow between the two, or will be.
    pub(super) fn connects(&self, from: IpAddr, to: SocketAddr) -> bool {
        let existing = self.view.subflows.iter();
        let exists = existing.filter(|one| one.local.ip() == from).any(|one| one.remote == to);
        let asked = |action: &PathManagerAction| matches!(action, PathManagerAction::Open { local, remote, .. } if *local == from && *remote == to);
        exists || self.actions.iter().any(asked)
    }

    /// Opens it if that makes sense, and says whether it did.
    pub(super) fn open(&mut self, pair: SubflowEndpoints) -> bool {
        let new = !self.connects(pair.local, pair.remote.address);
        new && self.reopen(pair)
    }

    /// Opens it even if there is already one between the two addresses.
    pub(super) fn reopen(&mut self, pair: SubflowEndpoints) -> bool {
        let may = pair.same_family() && self.has_room();
        if may {
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
        may
    }
}

/// The address of ours from which a host would most likely reach `remote`: one of the same network,
/// as far as addresses tell; else the first address of the connection; else any.
pub(super) fn likely_source<'a>(
    view: &PathManagerView<'a>,
    home: InitialAddress,
    remote: SocketAddr,
) -> Option<&'a LocalAddress> {
    let family = |local: &&LocalAddress| local.address.is_ipv4() == remote.is_ipv4();
    let usable = || view.local.iter().filter(|local| local.up).filter(family);
    let near = |local: &&LocalAddress| same_network(local.address, remote.ip());
    let first = |local: &&LocalAddress| Some(local.address) == home.address();
    usable().find(near).or_else(|| usable().find(first)).or_else(|| usable().next())
}

/// Prefix lengths are not known here; these are those of ordinary networks.
fn same_network(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()) >> 8 == 0,
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()) >> 64 == 0,
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
    }
}
