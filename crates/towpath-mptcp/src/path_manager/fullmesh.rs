//! A subflow from every address of ours to every address of the peer, whatever endpoint flags say
//! (mptcp.org's `fullmesh`). The server announces its addresses, the client opens.

use std::collections::BTreeSet;

use super::opening::{Home, Opening, Pair};
use super::{Action, Event, PathManager, RemoteAddress, View};

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Fullmesh {
    home: Home,
    announced: BTreeSet<u8>,
    /// Pairs that were opened, by the host's identifier and the peer's: once each.
    tried: BTreeSet<(u8, u8)>,
}

impl Fullmesh {
    fn announce(&mut self, view: &View<'_>, actions: &mut Vec<Action>) {
        // The peer knows the first address already.
        let others = view.local.iter().filter(|local| self.home.id_of(local) != 0);
        for local in others.filter(|local| local.up) {
            if self.announced.insert(local.address_id) {
                let (address_id, address, port) = (local.address_id, local.address, local.port);
                actions.push(Action::Announce { address_id, address, port });
            }
        }
    }

    fn open(&mut self, view: &View<'_>, actions: &mut Vec<Action>) {
        let mut opening = Opening::new(view, actions);
        for remote in view.remote.iter().filter(|remote| admits(remote, view)) {
            for local in view.local.iter().filter(|local| local.up) {
                let key = (local.address_id, remote.address_id);
                let local_id = self.home.id_of(local);
                let (local, backup) = (local.address, local.backup);
                let pair = Pair { local_id, local, remote: *remote, backup };
                if !self.tried.contains(&key) && opening.open(pair) {
                    self.tried.insert(key);
                }
            }
        }
    }
}

impl PathManager for Fullmesh {
    fn on_event(&mut self, event: Event, view: &View<'_>, actions: &mut Vec<Action>) {
        self.home.learn(view);
        match event {
            Event::Withdrawn(id) => self.tried.retain(|(_, remote)| *remote != id),
            Event::LocalGone { address_id } => {
                self.tried.retain(|(local, _)| *local != address_id);
                if self.announced.remove(&address_id) {
                    actions.push(Action::Withdraw { address_id: self.home.id(address_id) });
                }
                return;
            }
            Event::Established
            | Event::Announced(_)
            | Event::LocalChanged
            | Event::SubflowEstablished(_)
            | Event::SubflowClosed { .. }
            | Event::Timeout => {}
        }
        if view.client {
            self.open(view, actions);
        } else {
            self.announce(view, actions);
        }
    }
}

/// The first addresses of the peer up to the limit, except one that is closed to us (C flag).
fn admits(remote: &RemoteAddress, view: &View<'_>) -> bool {
    let announced = view.remote.iter().filter(|other| other.address_id != 0);
    let mut accepted = announced.take(usize::from(view.accept_limit));
    match remote.address_id {
        0 => !view.no_join_to_initial,
        id => accepted.any(|other| other.address_id == id),
    }
}
