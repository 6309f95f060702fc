//! `default`, with reopening of failed subflows: after 1 s, then with a doubled delay each time, up
//! to 60 s. A subflow is also reopened when its address returns. The peer can prevent reopening
//! (`MP_TCPRST` without the T flag, RFC 8684 §3.6).

use std::time::Duration;

use towpath_net::Instant;

use super::endpoints::Endpoints;
use super::subflow_opener::{InitialAddress, SubflowEndpoints, SubflowOpener};
use super::{
    PathManager, PathManagerAction, PathManagerEvent, PathManagerView, RemoteAddress, SubflowView,
};

/// Delay before the first attempt to reopen.
const INITIAL_BACKOFF: Duration = Duration::from_secs(1);
/// Maximum delay between two attempts.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Subflow that we opened, and so may open again.
#[derive(Debug, Clone, Copy)]
struct OwnSubflow {
    pair: SubflowEndpoints,
    /// Delay after the next failure.
    pause: Duration,
    /// Time to open it; `None` while it exists or its address is missing.
    due: Option<Instant>,
    given_up: bool,
    /// Set when the subflow closed because its address was removed.
    address_lost: bool,
}

impl OwnSubflow {
    fn new(pair: SubflowEndpoints) -> Self {
        Self { pair, pause: INITIAL_BACKOFF, due: None, given_up: false, address_lost: false }
    }

    fn is(&self, subflow: &SubflowView) -> bool {
        self.pair.local == subflow.local.ip() && self.pair.remote.address == subflow.remote
    }
}

/// Path manager `rejoin`, see the module.
#[derive(Debug, Default)]
pub(super) struct Rejoin {
    endpoints: Endpoints,
    home: InitialAddress,
    own_subflows: Vec<OwnSubflow>,
}

impl Rejoin {
    /// Adopts the first subflow on the client, which opened it. A server cannot reopen it, as the
    /// client does not listen.
    fn adopt_first(&mut self, view: &PathManagerView<'_>) {
        let first = view.subflows.iter().find(|one| one.local_id == 0 && one.remote_id == 0);
        if let (true, true, Some(first)) = (view.client, self.own_subflows.is_empty(), first) {
            let remote = RemoteAddress { address_id: 0, address: first.remote };
            let (local, backup) = (first.local.ip(), first.backup);
            self.own_subflows.push(OwnSubflow::new(SubflowEndpoints {
                local_id: 0,
                local,
                remote,
                backup,
            }));
        }
    }

    fn adopt(&mut self, action: &PathManagerAction) {
        if let PathManagerAction::Open { local_id, local, remote_id, remote, backup } = *action {
            let remote = RemoteAddress { address_id: remote_id, address: remote };
            let pair = SubflowEndpoints { local_id, local, remote, backup };
            let same =
                |own: &&mut OwnSubflow| (own.pair.local, own.pair.remote) == (local, pair.remote);
            match self.own_subflows.iter_mut().find(same) {
                Some(mine) => *mine = OwnSubflow { pair, due: None, address_lost: false, ..*mine },
                None => self.own_subflows.push(OwnSubflow::new(pair)),
            }
        }
    }

    fn on_closed(&mut self, now: Instant, subflow: &SubflowView, failed: bool, retry: bool) {
        let Some(own) = self.own_subflows.iter_mut().find(|mine| mine.is(subflow)) else { return };
        own.given_up |= failed && !retry;
        if failed && !own.given_up {
            own.due = Some(now + own.pause);
            own.pause = (own.pause * 2).min(MAX_BACKOFF);
        }
    }

    /// Opens the subflows that are due. Those without an address wait for it; those without room
    /// are tried later.
    fn open_due(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        let closed = |remote: RemoteAddress| remote.address_id == 0 && view.no_join_to_initial;
        let mut opening = SubflowOpener::new(view, actions);
        for own in &mut self.own_subflows {
            if own.due.is_none_or(|due| due > view.now) {
                continue;
            }
            own.due = None;
            let (local, remote) = (own.pair.local, own.pair.remote);
            let up = view.local.iter().any(|one| one.address == local && one.up);
            if !up {
                own.address_lost = true;
            } else if !opening.has_room() {
                own.due = Some(view.now + own.pause);
            } else if view.remote.contains(&remote) && !closed(remote) {
                opening.open(own.pair);
            }
        }
    }

    /// Makes all subflows due whose address has returned.
    fn on_local_changed(&mut self, view: &PathManagerView<'_>) {
        for own in self.own_subflows.iter_mut().filter(|mine| mine.address_lost) {
            if view.local.iter().any(|local| local.address == own.pair.local && local.up) {
                *own = OwnSubflow { due: Some(view.now), ..OwnSubflow::new(own.pair) };
            }
        }
    }

    fn on_local_gone(&mut self, id: u8) {
        for own in self.own_subflows.iter_mut().filter(|mine| mine.pair.local_id == id) {
            *own = OwnSubflow { address_lost: true, ..OwnSubflow::new(own.pair) };
        }
    }
}

impl PathManager for Rejoin {
    fn on_event(
        &mut self,
        event: PathManagerEvent,
        view: &PathManagerView<'_>,
        actions: &mut Vec<PathManagerAction>,
    ) {
        self.home.record(view);
        self.adopt_first(view);
        let before = actions.len();
        self.endpoints.on_event(event, view, actions);
        match event {
            PathManagerEvent::SubflowEstablished(id) => {
                let subflow = view.subflows.iter().find(|subflow| subflow.id == id);
                let mine = |mine: &&mut OwnSubflow| subflow.is_some_and(|subflow| mine.is(subflow));
                if let Some(mine) = self.own_subflows.iter_mut().find(mine) {
                    *mine = OwnSubflow::new(mine.pair);
                }
            }
            PathManagerEvent::SubflowClosed { subflow, failed, retry } => {
                self.on_closed(view.now, &subflow, failed, retry);
            }
            PathManagerEvent::LocalGone { address_id } => {
                self.on_local_gone(self.home.id(address_id));
            }
            PathManagerEvent::LocalChanged => self.on_local_changed(view),
            PathManagerEvent::Withdrawn(id) => {
                self.own_subflows.retain(|mine| mine.pair.remote.address_id != id);
            }
            PathManagerEvent::Established
            | PathManagerEvent::Announced(_)
            | PathManagerEvent::Timeout => {}
        }
        self.open_due(view, actions);
        for action in actions.get(before..).unwrap_or_default() {
            self.adopt(action);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.own_subflows.iter().filter_map(|own| own.due).min()
    }
}
