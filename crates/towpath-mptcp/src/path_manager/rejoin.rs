//! `default`, and subflows that failed are opened again: after 1 s, then twice as late each time up
//! to 60 s, unless the peer said that it is of no use (`MP_TCPRST` without the T flag, RFC 8684
//! §3.6); and when their address comes back.

use std::time::Duration;

use towpath_net::Instant;

use super::endpoints::Endpoints;
use super::opening::{Home, Opening, Pair};
use super::{Action, Event, PathManager, RemoteAddress, SubflowView, View};

/// The first pause.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(60);

/// A subflow of ours: one that we opened, and so may open again.
#[derive(Debug, Clone, Copy)]
struct Mine {
    pair: Pair,
    /// The pause after the next failure.
    pause: Duration,
    /// When it is to be opened; `None` while it exists or its address is gone.
    due: Option<Instant>,
    given_up: bool,
    /// Whether it closed because its address went away.
    homeless: bool,
}

impl Mine {
    fn new(pair: Pair) -> Self {
        Self { pair, pause: FIRST, due: None, given_up: false, homeless: false }
    }

    fn is(&self, subflow: &SubflowView) -> bool {
        self.pair.local == subflow.local.ip() && self.pair.remote.address == subflow.remote
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Rejoin {
    endpoints: Endpoints,
    home: Home,
    mine: Vec<Mine>,
}

impl Rejoin {
    /// The client opened the first subflow; a server could not open it again, nobody listens there.
    fn adopt_first(&mut self, view: &View<'_>) {
        let first = view.subflows.iter().find(|one| one.local_id == 0 && one.remote_id == 0);
        if let (true, true, Some(first)) = (view.client, self.mine.is_empty(), first) {
            let remote = RemoteAddress { address_id: 0, address: first.remote };
            let (local, backup) = (first.local.ip(), first.backup);
            self.mine.push(Mine::new(Pair { local_id: 0, local, remote, backup }));
        }
    }

    fn adopt(&mut self, action: &Action) {
        if let Action::Open { local_id, local, remote_id, remote, backup } = *action {
            let remote = RemoteAddress { address_id: remote_id, address: remote };
            let pair = Pair { local_id, local, remote, backup };
            let same =
                |mine: &&mut Mine| (mine.pair.local, mine.pair.remote) == (local, pair.remote);
            match self.mine.iter_mut().find(same) {
                Some(mine) => *mine = Mine { pair, due: None, homeless: false, ..*mine },
                None => self.mine.push(Mine::new(pair)),
            }
        }
    }

    fn on_closed(&mut self, now: Instant, subflow: &SubflowView, failed: bool, retry: bool) {
        let Some(mine) = self.mine.iter_mut().find(|mine| mine.is(subflow)) else { return };
        mine.given_up |= failed && !retry;
        if failed && !mine.given_up {
            mine.due = Some(now + mine.pause);
            mine.pause = (mine.pause * 2).min(LONGEST);
        }
    }

    /// Opens what is due. What lacks its address waits for it; what lacks room tries later.
    fn open_due(&mut self, view: &View<'_>, actions: &mut Vec<Action>) {
        let closed = |remote: RemoteAddress| remote.address_id == 0 && view.no_join_to_initial;
        let mut opening = Opening::new(view, actions);
        for mine in &mut self.mine {
            if mine.due.is_none_or(|due| due > view.now) {
                continue;
            }
            mine.due = None;
            let (local, remote) = (mine.pair.local, mine.pair.remote);
            let up = view.local.iter().any(|one| one.address == local && one.up);
            if !up {
                mine.homeless = true;
            } else if !opening.has_room() {
                mine.due = Some(view.now + mine.pause);
            } else if view.remote.contains(&remote) && !closed(remote) {
                opening.open(mine.pair);
            }
        }
    }

    /// Makes everything due whose address is back.
    fn on_local_changed(&mut self, view: &View<'_>) {
        for mine in self.mine.iter_mut().filter(|mine| mine.homeless) {
            if view.local.iter().any(|local| local.address == mine.pair.local && local.up) {
                *mine = Mine { due: Some(view.now), ..Mine::new(mine.pair) };
            }
        }
    }

    fn on_local_gone(&mut self, id: u8) {
        for mine in self.mine.iter_mut().filter(|mine| mine.pair.local_id == id) {
            *mine = Mine { homeless: true, ..Mine::new(mine.pair) };
        }
    }
}

impl PathManager for Rejoin {
    fn on_event(&mut self, event: Event, view: &View<'_>, actions: &mut Vec<Action>) {
        self.home.learn(view);
        self.adopt_first(view);
        let before = actions.len();
        self.endpoints.on_event(event, view, actions);
        match event {
            Event::SubflowEstablished(id) => {
                let subflow = view.subflows.iter().find(|subflow| subflow.id == id);
                let mine = |mine: &&mut Mine| subflow.is_some_and(|subflow| mine.is(subflow));
                if let Some(mine) = self.mine.iter_mut().find(mine) {
                    *mine = Mine::new(mine.pair);
                }
            }
            Event::SubflowClosed { subflow, failed, retry } => {
                self.on_closed(view.now, &subflow, failed, retry);
            }
            Event::LocalGone { address_id } => self.on_local_gone(self.home.id(address_id)),
            Event::LocalChanged => self.on_local_changed(view),
            Event::Withdrawn(id) => self.mine.retain(|mine| mine.pair.remote.address_id != id),
            Event::Established | Event::Announced(_) | Event::Timeout => {}
        }
        self.open_due(view, actions);
        for action in actions.get(before..).unwrap_or_default() {
            self.adopt(action);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.mine.iter().filter_map(|mine| mine.due).min()
    }
}
