//! A subflow from every local address to every address of the peer, regardless of endpoint flags
//! (mptcp.org's `fullmesh`). The server announces its addresses, the client opens.

use std::collections::BTreeSet;

use super::subflow_opener::{InitialAddress, SubflowEndpoints, SubflowOpener};
use super::{PathManager, PathManagerAction, PathManagerEvent, PathManagerView, RemoteAddress};

/// Path manager `fullmesh`, see the module.
#[derive(Debug, Default)]
pub(super) struct Fullmesh {
    initial_address: InitialAddress,
    /// Local addresses that were announced to the peer, by the host's identifier.
    announced: BTreeSet<u8>,
    /// Local and peer's identifier of pairs that were opened: each pair is opened once.
    opened_pairs: BTreeSet<(u8, u8)>,
}

impl Fullmesh {
    fn announce(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        // The peer already knows the first address.
        let additional =
            view.local.iter().filter(|local| self.initial_address.wire_id_of(local) != 0);
        for local in additional.filter(|local| local.up) {
            if self.announced.insert(local.address_id) {
                let (address_id, address, port) = (local.address_id, local.address, local.port);
                actions.push(PathManagerAction::Announce { address_id, address, port });
            }
        }
    }

    fn open(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        let mut opener = SubflowOpener::new(view, actions);
        for remote in view.remote.iter().filter(|remote| is_accepted(remote, view)) {
            for local in view.local.iter().filter(|local| local.up) {
                let key = (local.address_id, remote.address_id);
                let local_id = self.initial_address.wire_id_of(local);
                let (local, backup) = (local.address, local.backup);
                let pair = SubflowEndpoints { local_id, local, remote: *remote, backup };
                if !self.opened_pairs.contains(&key) && opener.open(pair) {
                    self.opened_pairs.insert(key);
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
        self.initial_address.record(view);
        match event {
            PathManagerEvent::Withdrawn(id) => {
                self.opened_pairs.retain(|(_, remote)| *remote != id);
            }
            PathManagerEvent::LocalGone { address_id } => {
                self.opened_pairs.retain(|(local, _)| *local != address_id);
                if self.announced.remove(&address_id) {
                    actions.push(PathManagerAction::Withdraw {
                        address_id: self.initial_address.wire_id(address_id),
                    });
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

/// Returns true for the addresses of the peer that get subflows: the initial one unless it is
/// forbidden (C flag), and announced ones up to the limit.
fn is_accepted(remote: &RemoteAddress, view: &PathManagerView<'_>) -> bool {
    let announced = view.remote.iter().filter(|other| other.address_id != 0);
    let mut accepted = announced.take(usize::from(view.accept_limit));
    match remote.address_id {
        0 => !view.no_join_to_initial,
        id => accepted.any(|other| other.address_id == id),
    }
}
