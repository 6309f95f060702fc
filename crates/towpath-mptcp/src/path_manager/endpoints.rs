//! Endpoints as in Linux's path manager (`ip mptcp endpoint`), for both ends. `subflow` addresses
//! open a subflow to the peer's first address, `fullmesh` ones to every address of the peer.
//! `signal` addresses are announced. Announced addresses are used for new subflows.
//!
//! Unlike Linux, several addresses may be announced at once. A subflow is opened again when its
//! address returns.

use std::collections::{BTreeMap, BTreeSet};

use super::subflow_opener::{InitialAddress, SubflowEndpoints, SubflowOpener, likely_source};
use super::{
    LocalAddress, PathManager, PathManagerAction, PathManagerEvent, PathManagerView, RemoteAddress,
};

/// Path manager for endpoints, see the module. Sets hold the host's address identifiers, not those
/// on the wire.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    initial_address: InitialAddress,
    /// Addresses that have opened their subflows; each does so once until it is removed.
    used: BTreeSet<u8>,
    /// Addresses that were announced to the peer.
    announced: BTreeSet<u8>,
    /// Identifiers of the peer's addresses that were used for subflows.
    accepted: BTreeSet<u8>,
    /// Last known backup flag of each address, by identifier.
    backup: BTreeMap<u8, bool>,
}

impl Endpoints {
    fn pair(&self, local: &LocalAddress, remote: RemoteAddress) -> SubflowEndpoints {
        let local_id = self.initial_address.wire_id_of(local);
        SubflowEndpoints { local_id, local: local.address, remote, backup: local.backup }
    }

    /// Announces new addresses, and opens subflows that were never opened.
    fn announce_and_open(
        &mut self,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        for local in view.local.iter().filter(|local| local.up && local.signal) {
            if self.announced.insert(local.address_id) {
                let (address_id, address) = (self.initial_address.wire_id_of(local), local.address);
                actions.push(PathManagerAction::Announce { address_id, address, port: local.port });
            }
        }
        for local in view.local.iter().filter(|local| local.up && local.subflow) {
            let remotes: Vec<_> = joinable_addresses(view)
                .filter(|remote| local.fullmesh || remote.address_id == 0)
                .filter(|remote| remote.address_id == 0 || self.may_accept(remote, view))
                .collect();
            let mut opener = SubflowOpener::new(view, actions);
            // An address without room or peer address is not marked as used: room may become free.
            if self.used.contains(&local.address_id) || remotes.is_empty() || !opener.has_room() {
                continue;
            }
            self.used.insert(local.address_id);
            for remote in remotes {
                if opener.open(self.pair(local, remote)) && remote.address_id != 0 {
                    self.accepted.insert(remote.address_id);
                }
            }
        }
    }

    /// Opens subflows to an address that the peer announced.
    fn on_announced(
        &mut self,
        remote: RemoteAddress,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        let is_connected = view.subflows.iter().any(|subflow| subflow.remote == remote.address);
        if is_connected || !self.may_accept(&remote, view) {
            return;
        }
        let mut has_opened = false;
        let mut opener = SubflowOpener::new(view, actions);
        for local in self.source_addresses(remote, view) {
            if opener.open(self.pair(local, remote)) {
                self.used.insert(local.address_id);
                has_opened = true;
            }
        }
        if has_opened && remote.address_id != 0 {
            self.accepted.insert(remote.address_id);
        }
    }

    /// Returns the local addresses that open subflows to an announced address. These are all
    /// `fullmesh` addresses, or else one free `laminar` address. If the peer forbids its first
    /// address (C flag), these are the `subflow` addresses left unused for that reason. Otherwise
    /// routing chooses.
    fn source_addresses<'a>(
        &self,
        remote: RemoteAddress,
        view: &PathManagerView<'a>,
    ) -> Vec<&'a LocalAddress> {
        let same_family =
            |local: &&LocalAddress| local.address.is_ipv4() == remote.address.is_ipv4();
        let usable = || view.local.iter().filter(|local| local.up).filter(same_family);
        let is_unused = |local: &&LocalAddress| {
            !self.used.contains(&local.address_id) && self.initial_address.wire_id_of(local) != 0
        };
        let fullmesh: Vec<_> = usable().filter(|local| local.fullmesh).collect();
        if !fullmesh.is_empty() {
            return fullmesh;
        }
        if let Some(local) = usable().filter(|local| local.laminar).find(is_unused) {
            return vec![local];
        }
        let unused: Vec<_> = usable().filter(|local| local.subflow).filter(is_unused).collect();
        if view.no_join_to_initial && !unused.is_empty() {
            return unused;
        }
        likely_source(view, self.initial_address, remote.address).into_iter().collect()
    }

    fn may_accept(&self, remote: &RemoteAddress, view: &PathManagerView<'_>) -> bool {
        let accepted_others = self.accepted.iter().filter(|id| **id != remote.address_id).count();
        remote.address_id == 0 || accepted_others < usize::from(view.accept_limit)
    }

    /// Sends `MP_PRIO` when an address became a backup or ceased to be one, and withdraws addresses
    /// that lost their `signal` flag.
    fn sync_backup_flags(
        &mut self,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        for local in view.local {
            let id = self.initial_address.wire_id_of(local);
            let previous = self.backup.insert(local.address_id, local.backup);
            if previous.unwrap_or(false) != local.backup {
                let subflows = view.subflows.iter().filter(|subflow| subflow.local_id == id);
                let backup = local.backup;
                let set_backup = |subflow: &super::SubflowView| PathManagerAction::SetBackup {
                    subflow: subflow.id,
                    backup,
                };
                actions.extend(subflows.map(set_backup));
            }
            // Withdrawing the first subflow's address would end that subflow.
            if !local.signal && self.announced.remove(&local.address_id) && id != 0 {
                actions.push(PathManagerAction::Withdraw { address_id: id });
            }
        }
    }

    /// Withdraws the announcement of an address that is gone. The connection itself withdraws
    /// addresses that only carried subflows (RFC 8684 §3.4.2).
    fn on_local_gone(&mut self, address_id: u8, actions: &mut Vec<PathManagerAction>) {
        if self.announced.remove(&address_id) {
            actions.push(PathManagerAction::Withdraw {
                address_id: self.initial_address.wire_id(address_id),
            });
        }
        self.used.remove(&address_id);
        self.backup.remove(&address_id);
    }
}

/// Returns the addresses of the peer that accept subflows (C flag, RFC 8684 §3.1).
fn joinable_addresses<'a>(
    view: &PathManagerView<'a>,
) -> impl Iterator<Item = RemoteAddress> + use<'a> {
    let initial_forbidden = view.no_join_to_initial;
    view.remote.iter().copied().filter(move |remote| remote.address_id != 0 || !initial_forbidden)
}

impl PathManager for Endpoints {
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        self.initial_address.record(view);
        match event {
            PathManagerEvent::Established | PathManagerEvent::LocalChanged => {
                self.sync_backup_flags(view, actions);
                self.announce_and_open(view, actions);
            }
            PathManagerEvent::Announced(remote) => self.on_announced(remote, view, actions),
            PathManagerEvent::Withdrawn(id) => {
                self.accepted.remove(&id);
            }
            PathManagerEvent::LocalGone { address_id } => self.on_local_gone(address_id, actions),
            PathManagerEvent::SubflowEstablished(_) | PathManagerEvent::SubflowClosed { .. } => {
                self.announce_and_open(view, actions);
            }
            PathManagerEvent::Timeout => {}
        }
    }
}
