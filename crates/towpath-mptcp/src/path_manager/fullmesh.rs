//! A subflow from every local address to every address of the peer, regardless of endpoint flags
//! (mptcp.org's `fullmesh`). The server announces its addresses, the client opens.

use std::collections::BTreeSet;

use super::subflow_opener::{InitialAddress, SubflowEndpoints, SubflowOpener};
use super::{PathManager, PathManagerAction, PathManagerEvent, PathManagerView, RemoteAddress};

/// Path manager `fullmesh`, see the module.
#[derive(Debug, Default)]
pub(super) struct Fullmesh {
    home: InitialAddress,
    announced: BTreeSet<u8>,
    /// Pairs opened so far, by the host's identifier and the peer's: once each.
    tried: BTreeSet<(u8, u8)>,
}

impl Fullmesh {
    fn announce(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        // The peer already knows the first address.
        let others = view.local.iter().filter(|local| self.home.id_of(local) != 0);
        for local in others.filter(|local| local.up) {
            if self.announced.insert(local.address_id) {
                let (address_id, address, port) = (local.address_id, local.address, local.port);
                actions.push(PathManagerAction::Announce { address_id, address, port });
            }
        }
    }

    fn open(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        let mut opening = SubflowOpener::new(view, actions);
        for remote in view.remote.iter().filter(|remote| admits(remote, view)) {
            for local in view.local.iter().filter(|local| local.up) {
                let key = (local.address_id, remote.address_id);
                let local_id = self.home.id_of(local);
                let (local, backup) = (local.address, local.backup);
                let pair = SubflowEndpoints { local_id, local, remote: *remote, backup };
                if !self.tried.contains(&key) && opening.open(pair) {
                    self.tried.insert(key);
                }
            }
        }
    }
}

impl PathManager for Fullmesh {
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        self.home.record(view);
        match event {
            PathManagerEvent::Withdrawn(id) => self.tried.retain(|(_, remote)| *remote != id),
            PathManagerEvent::LocalGone { address_id } => {
                self.tried.retain(|(local, _)| *local != address_id);
                if self.announced.remove(&address_id) {
                    actions
                        .push(PathManagerAction::Withdraw { address_id: self.home.id(address_id) });
                }
                return;
            }
            PathManagerEvent::Established
            | PathManagerEvent::Announced(_)
            | PathManagerEvent::LocalChanged
            | PathManagerEvent::SubflowEstablished(_)
            | PathManagerEvent::SubflowClosed { .. }
            | PathManagerEvent::Timeout => {}
        }
        if view.client {
            self.open(view, actions);
        } else {
            self.announce(view, actions);
        }
    }
}

/// Returns true for the first addresses of the peer up to the limit, except one that is forbidden
/// (C flag).
fn admits(remote: &RemoteAddress, view: &PathManagerView<'_>) -> bool {
    let announced = view.remote.iter().filter(|other| other.address_id != 0);
    let mut accepted = announced.take(usize::from(view.accept_limit));
    match remote.address_id {
        0 => !view.no_join_to_initial,
        id => accepted.any(|other| other.address_id == id),
    }
}
