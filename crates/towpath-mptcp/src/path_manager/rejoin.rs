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
    /// Ends of the subflow.
    pair: SubflowEndpoints,
    /// Delay before the next attempt to reopen.
    backoff: Duration,
    /// Time to reopen the subflow; `None` while it exists or its address is missing.
    reopen_at: Option<Instant>,
    /// Set when the peer rejected the subflow permanently.
    given_up: bool,
    /// Set when the subflow closed because its address was removed.
    address_lost: bool,
}

impl OwnSubflow {
    fn new(pair: SubflowEndpoints) -> Self {
        Self {
            pair,
            backoff: INITIAL_BACKOFF,
            reopen_at: None,
            given_up: false,
            address_lost: false,
        }
    }

    /// Returns true if `subflow` has these ends.
    fn connects(&self, subflow: &SubflowView) -> bool {
        self.pair.local == subflow.local.ip() && self.pair.remote.address == subflow.remote
    }
}

/// Path manager `rejoin`, see the module.
#[derive(Debug, Default)]
pub(super) struct Rejoin {
    default_manager: Endpoints,
    initial_address: InitialAddress,
    own_subflows: Vec<OwnSubflow>,
}

impl Rejoin {
    /// Adopts the first subflow on the client, which opened it. A server cannot reopen it, as the
    /// client does not listen.
    fn adopt_first(&mut self, view: &PathManagerView<'_>) {
        let initial =
            view.subflows.iter().find(|subflow| subflow.local_id == 0 && subflow.remote_id == 0);
        if let (true, true, Some(initial)) = (view.client, self.own_subflows.is_empty(), initial) {
            let remote = RemoteAddress { address_id: 0, address: initial.remote };
            let (local, backup) = (initial.local.ip(), initial.backup);
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
            let same_ends = |existing: &&mut OwnSubflow| {
                (existing.pair.local, existing.pair.remote) == (local, pair.remote)
            };
            match self.own_subflows.iter_mut().find(same_ends) {
                Some(existing) => {
                    *existing =
                        OwnSubflow { pair, reopen_at: None, address_lost: false, ..*existing }
                }
                None => self.own_subflows.push(OwnSubflow::new(pair)),
            }
        }
    }

    fn on_closed(&mut self, now: Instant, subflow: &SubflowView, failed: bool, may_retry: bool) {
        let Some(closed) = self.own_subflows.iter_mut().find(|own| own.connects(subflow)) else {
            return;
        };
        closed.given_up |= failed && !may_retry;
        if failed && !closed.given_up {
            closed.reopen_at = Some(now + closed.backoff);
            closed.backoff = (closed.backoff * 2).min(MAX_BACKOFF);
        }
    }

    /// Opens the subflows that are due. Subflows without an address wait for it; subflows without
    /// room are tried later.
    fn open_due(&mut self, view: &PathManagerView<'_>, actions: &mut Vec<PathManagerAction>) {
        let forbidden = |remote: RemoteAddress| remote.address_id == 0 && view.no_join_to_initial;
        let mut opener = SubflowOpener::new(view, actions);
        for own in &mut self.own_subflows {
            if own.reopen_at.is_none_or(|time| time > view.now) {
                continue;
            }
            own.reopen_at = None;
            let (local, remote) = (own.pair.local, own.pair.remote);
            let up = view.local.iter().any(|address| address.address == local && address.up);
            if !up {
                own.address_lost = true;
            } else if !opener.has_room() {
                own.reopen_at = Some(view.now + own.backoff);
            } else if view.remote.contains(&remote) && !forbidden(remote) {
                opener.open(own.pair);
            }
        }
    }

    /// Makes all subflows due whose address has returned.
    fn on_local_changed(&mut self, view: &PathManagerView<'_>) {
        for own in self.own_subflows.iter_mut().filter(|subflow| subflow.address_lost) {
            if view.local.iter().any(|local| local.address == own.pair.local && local.up) {
                *own = OwnSubflow { reopen_at: Some(view.now), ..OwnSubflow::new(own.pair) };
            }
        }
    }

    fn on_local_gone(&mut self, id: u8) {
        for own in self.own_subflows.iter_mut().filter(|subflow| subflow.pair.local_id == id) {
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
        self.initial_address.record(view);
        self.adopt_first(view);
        let first_new_action = actions.len();
        self.default_manager.on_event(event, view, actions);
        match event {
            PathManagerEvent::SubflowEstablished(id) => {
                let subflow = view.subflows.iter().find(|subflow| subflow.id == id);
                let is_established =
                    |own: &&mut OwnSubflow| subflow.is_some_and(|subflow| own.connects(subflow));
                if let Some(own) = self.own_subflows.iter_mut().find(is_established) {
                    *own = OwnSubflow::new(own.pair);
                }
            }
            PathManagerEvent::SubflowClosed { subflow, failed, may_retry } => {
                self.on_closed(view.now, &subflow, failed, may_retry);
            }
            PathManagerEvent::LocalGone { address_id } => {
                self.on_local_gone(self.initial_address.wire_id(address_id));
            }
            PathManagerEvent::LocalChanged => self.on_local_changed(view),
            PathManagerEvent::Withdrawn(id) => {
                self.own_subflows.retain(|own| own.pair.remote.address_id != id);
            }
            PathManagerEvent::Established
            | PathManagerEvent::Announced(_)
            | PathManagerEvent::Timeout => {}
        }
        self.open_due(view, actions);
        for action in actions.get(first_new_action..).unwrap_or_default() {
            self.adopt(action);
        }
    }

    fn poll_timeout(&self) -> Option<Instant> {
        self.own_subflows.iter().filter_map(|own| own.reopen_at).min()
    }
}
