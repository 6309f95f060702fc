//! What Linux's path manager does with endpoints (`ip mptcp endpoint`), and both ends do alike:
//! `subflow` addresses open a subflow to the peer's first address, `fullmesh` ones to every
//! address of the peer, `signal` ones are announced. Announced addresses are answered.
//!
//! Unlike Linux, several addresses may be announced at once, and a subflow is opened again when its
//! address comes back.

use std::collections::{BTreeMap, BTreeSet};

use super::opening::{InitialAddress, SubflowEndpoints, SubflowOpener, likely_source};
use super::{
    LocalAddress, PathManager, PathManagerAction, PathManagerEvent, PathManagerView, RemoteAddress,
};

/// See the module. Sets hold the host's identifiers, not those on the wire.
#[derive(Debug, Default)]
pub(super) struct Endpoints {
    home: InitialAddress,
    /// Addresses that have opened their subflows; each does so once until it goes away.
    used: BTreeSet<u8>,
    announced: BTreeSet<u8>,
    /// Identifiers of the peer's addresses that were answered.
    accepted: BTreeSet<u8>,
    /// Whether an address was for backups when we last looked.
    backup: BTreeMap<u8, bool>,
}

impl Endpoints {
    fn pair(&self, local: &LocalAddress, remote: RemoteAddress) -> SubflowEndpoints {
        let local_id = self.home.id_of(local);
        SubflowEndpoints { local_id, local: local.address, remote, backup: local.backup }
    }

    /// Announces what is new, opens what was never opened.
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
            // Without room or address it is not used up: something may become free.
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

    /// From where an announced address is answered: all `fullmesh` addresses; else one `laminar`
    /// that is free; else, when the peer's first address is closed to us (C flag), the `subflow`
    /// addresses that had no use for that reason; else what routing would choose.
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

    /// Tells the peer when an address has become one for backups, or no longer is (`MP_PRIO`), and
    /// withdraws what is no longer to be announced.
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

    /// What was announced is withdrawn; the connection does so for addresses that only carried
    /// subflows (RFC 8684 §3.4.2).
    fn withdraw(&mut self, address_id: u8, actions: &mut Vec<PathManagerAction>) {
        if self.announced.remove(&address_id) {
            actions.push(PathManagerAction::Withdraw { address_id: self.home.id(address_id) });
        }
        self.used.remove(&address_id);
        self.backup.remove(&address_id);
    }
}

/// Addresses of the peer that accept subflows (C flag, RFC 8684 §3.1).
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
