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

/// Path manager for endpoints, see the module. Sets hold the host's identifiers, not those on the
/// wire.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    home: InitialAddress,
    /// Addresses that have opened their subflows; each does so once until it is removed.
    used: BTreeSet<u8>,
    announced: BTreeSet<u8>,
    /// Identifiers of the peer's addresses that were used for subflows.
    accepted: BTreeSet<u8>,
    /// Last known backup flag of each address, by identifier.
    backup: BTreeMap<u8, bool>,
}

impl Endpoints {
    fn pair(&self, local: &LocalAddress, remote: RemoteAddress) -> SubflowEndpoints {
        let local_id = self.home.id_of(local);
        SubflowEndpoints { local_id, local: local.address, remote, backup: local.backup }
    }

    /// Announces new addresses, and opens subflows that were never opened.
    fn advance(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        for local in view.local.iter().filter(|local| local.up && local.signal) {
            if self.announced.insert(local.address_id) {
                let (address_id, address) = (self.home.id_of(local), local.address);
                actions.push(PathManagerAction::Announce { address_id, address, port: local.port });
            }
        }
        for local in view.local.iter().filter(|local| local.up && local.subflow) {
            let remotes: Vec<_> = reachable(view)
                .filter(|remote| local.fullmesh || remote.address_id == 0)
                .filter(|remote| remote.address_id == 0 || self.may_accept(remote, view))
                .collect();
            let mut opening = SubflowOpener::new(view, actions);
            // An address without room or peer address is not marked as used: room may become free.
            if self.used.contains(&local.address_id) || remotes.is_empty() || !opening.has_room() {
                continue;
            }
            self.used.insert(local.address_id);
            for remote in remotes {
                if opening.open(self.pair(local, remote)) && remote.address_id != 0 {
                    self.accepted.insert(remote.address_id);
                }
            }
        }
    }

    /// Opens subflows to an address that the peer announced.
    fn answer(
        &mut self,
        remote: RemoteAddress,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        let known = view.subflows.iter().any(|subflow| subflow.remote == remote.address);
        if known || !self.may_accept(&remote, view) {
            return;
        }
        let mut opened = false;
        let mut opening = SubflowOpener::new(view, actions);
        for local in self.answering(remote, view) {
            if opening.open(self.pair(local, remote)) {
                self.used.insert(local.address_id);
                opened = true;
            }
        }
        if opened && remote.address_id != 0 {
            self.accepted.insert(remote.address_id);
        }
    }

    /// Returns the local addresses that open subflows to an announced address. These are all
    /// `fullmesh` addresses, or else one free `laminar` address. If the peer forbids its first
    /// address (C flag), these are the `subflow` addresses left unused for that reason. Otherwise
    /// routing chooses.
    fn answering<'a>(
        &self,
        remote: RemoteAddress,
        view: &PathManagerView<'a>,
    ) -> Vec<&'a LocalAddress> {
        let family = |local: &&LocalAddress| local.address.is_ipv4() == remote.address.is_ipv4();
        let usable = || view.local.iter().filter(|local| local.up).filter(family);
        let free = |local: &&LocalAddress| {
            !self.used.contains(&local.address_id) && self.home.id_of(local) != 0
        };
        let mesh: Vec<_> = usable().filter(|local| local.fullmesh).collect();
        if !mesh.is_empty() {
            return mesh;
        }
        if let Some(local) = usable().filter(|local| local.laminar).find(free) {
            return vec![local];
        }
        let waiting: Vec<_> = usable().filter(|local| local.subflow).filter(free).collect();
        if view.no_join_to_initial && !waiting.is_empty() {
            return waiting;
        }
        likely_source(view, self.home, remote.address).into_iter().collect()
    }

    fn may_accept(&self, remote: &RemoteAddress, view: &PathManagerView<'_>) -> bool {
        let others = self.accepted.iter().filter(|id| **id != remote.address_id).count();
        remote.address_id == 0 || others < usize::from(view.accept_limit)
    }

    /// Sends `MP_PRIO` when an address became a backup or ceased to be one, and withdraws addresses
    /// that lost their `signal` flag.
    fn sync_backup_flags(
        &mut self,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        for local in view.local {
            let id = self.home.id_of(local);
            let before = self.backup.insert(local.address_id, local.backup);
            if before.unwrap_or(false) != local.backup {
                let subflows = view.subflows.iter().filter(|subflow| subflow.local_id == id);
                let backup = local.backup;
                let change = |of: &super::SubflowView| PathManagerAction::SetBackup {
                    subflow: of.id,
                    backup,
                };
                actions.extend(subflows.map(change));
            }
            // Withdrawing the first subflow's address would end that subflow.
            if !local.signal && self.announced.remove(&local.address_id) && id != 0 {
                actions.push(PathManagerAction::Withdraw { address_id: id });
            }
        }
    }

    /// Withdraws an announced address. The connection does so for addresses that only carried
    /// subflows (RFC 8684 §3.4.2).
    fn withdraw(&mut self, address_id: u8, actions: &mut Vec<PathManagerAction>) {
        if self.announced.remove(&address_id) {
            actions.push(PathManagerAction::Withdraw { address_id: self.home.id(address_id) });
        }
        self.used.remove(&address_id);
        self.backup.remove(&address_id);
    }
}

/// Returns the addresses of the peer that accept subflows (C flag, RFC 8684 §3.1).
fn reachable<'a>(view: &PathManagerView<'a>) -> impl Iterator<Item = RemoteAddress> + use<'a> {
    let closed = view.no_join_to_initial;
    view.remote.iter().copied().filter(move |remote| remote.address_id != 0 || !closed)
}

impl PathManager for Endpoints {
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        self.home.record(view);
        match event {
            PathManagerEvent::Established | PathManagerEvent::LocalChanged => {
                self.sync_backup_flags(view, actions);
                self.advance(view, actions);
            }
            PathManagerEvent::Announced(remote) => self.answer(remote, view, actions),
            PathManagerEvent::Withdrawn(id) => {
                self.accepted.remove(&id);
            }
            PathManagerEvent::LocalGone { address_id } => self.withdraw(address_id, actions),
            PathManagerEvent::SubflowEstablished(_) | PathManagerEvent::SubflowClosed { .. } => {
                self.advance(view, actions);
            }
            PathManagerEvent::Timeout => {}
        }
    }
}
