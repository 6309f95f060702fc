//! Linux's scheduler since 5.15 (`mptcp_subflow_get_send` in `net/mptcp/protocol.c`): the subflow
//! whose data waits for the shortest time ("linger time"), in bursts.
//!
//! `linger = (queued + in flight) / pacing rate`, where the rate is an average weighted by bytes
//! over the bursts that the subflow was given. A burst is 64 KiB, and what is left of the 32 KiB in
//! which it ends, or what the peer's window admits.
//! Linux does not look at the congestion window, because a subflow has a queue of its own: data that
//! the window admits is shared out at once, also to a slow subflow that will carry it much later.

use std::collections::BTreeMap;

use super::eligible::eligible;
use super::{Decision, Scheduler, SchedulerEvent};
use crate::path::{ConnectionView, DataRange, PathId, PathSet, PathView};

/// 64 KiB less the longest headers.
const BURST_BYTES: u64 = 65_428;
/// What an application writes is kept in pages of 32 KiB, each with 40 bytes of Linux's own notes
/// (`mptcp_data_frag`). That a burst is used up is only looked at where one ends.
const FRAGMENT_BYTES: u64 = 32_728;
/// Rounds of the connection's timer without a word after which a backup repeats data.
const ROUNDS_BEFORE_BACKUP: u32 = 2;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Linux {
    /// The path whose turn it is, and what is left of its burst.
    turn: Option<(PathId, u64)>,
    /// What there was to send when it was asked last.
    unsent_bytes: u64,
    /// Average pacing rates in bytes a second.
    rates: BTreeMap<PathId, u64>,
}

impl Linux {
    fn rate(&self, path: &PathView) -> u64 {
        self.rates.get(&path.id).copied().unwrap_or(path.pacing_rate)
    }

    /// How long what the path has would take, in nanoseconds; without a rate, longest of all.
    fn linger(&self, path: &PathView) -> u128 {
        let nanos = u128::from(waiting(path)) * 1_000_000_000;
        nanos.checked_div(u128::from(self.rate(path))).unwrap_or(u128::MAX)
    }

    fn begin_burst(&mut self, path: &PathView, view: &ConnectionView<'_>) -> u64 {
        let burst = BURST_BYTES.min(view.window_bytes).max(1);
        let (old, new) = (u128::from(self.rate(path)), u128::from(path.pacing_rate));
        let (waiting, weight) = (u128::from(waiting(path)), u128::from(burst));
        let average = (old * waiting + new * weight) / (waiting + weight);
        self.rates.insert(path.id, u64::try_from(average).unwrap_or(u64::MAX));
        let end = view.unsent_from.saturating_add(burst);
        let end = end.checked_next_multiple_of(FRAGMENT_BYTES).unwrap_or(end);
        let turn = end.saturating_sub(view.unsent_from).min(view.window_bytes.max(1));
        self.turn = Some((path.id, turn));
        turn
    }
}

/// Linux counts memory, and what was sent and is not acknowledged as queued too (`sk_wmem_queued`).
fn waiting(path: &PathView) -> u64 {
    path.memory_bytes.max(path.queued_bytes.saturating_add(path.in_flight_bytes))
}

/// What is left of a burst, but no sliver: Linux too sends whole packets until the burst is used up,
/// and a connection would hold a sliver back until everything before it is acknowledged.
fn piece(left: u64, path: &PathView, view: &ConnectionView<'_>) -> u64 {
    let whole = left.max(u64::from(path.mss_bytes).min(view.window_bytes));
    whole.min(path.room_bytes)
}

impl Scheduler for Linux {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        self.unsent_bytes = view.unsent_bytes;
        let turn = self.turn.filter(|(_, left)| *left > 0);
        let with_room = |path: &&PathView| path.room_bytes > 0;
        let own = |id| active(view).filter(with_room).find(|path| path.id == id);
        if let Some((path, left)) = turn.and_then(|(id, left)| Some((own(id)?, left))) {
            return Decision::Send { path: path.id, max_bytes: piece(left, path, view) };
        }
        // A burst ends with the run in which it is sent: who has room again is looked at anew.
        self.turn = None;
        // Timeout recovery is no reason for Linux to avoid a subflow, until it is stale. And when the
        // best one's queue is full, no other one is taken.
        let best = active(view).min_by_key(|path| (self.linger(path), path.id));
        let Some(path) = best.filter(with_room) else { return Decision::Idle };
        let burst = self.begin_burst(path, view);
        Decision::Send { path: path.id, max_bytes: burst.min(path.room_bytes) }
    }

    fn fills_subflow_queues(&self) -> bool {
        true
    }

    fn needs_room(&self) -> bool {
        true
    }

    /// `mptcp_subflow_get_retrans`: the first idle subflow, whether it had the data or not; a backup
    /// only if nothing was heard of all others for two rounds, long before they are stale.
    fn reinject(&mut self, view: &ConnectionView<'_>, _: DataRange, _: PathSet) -> Option<PathId> {
        let idle = |path: &&PathView| waiting(path) == 0 && path.room_bytes > 0;
        let regular = view.paths.iter().filter(|path| !path.backup && !path.stale).find(idle);
        let mut busy = view.paths.iter().filter(|path| waiting(path) > 0);
        let backup = view.paths.iter().filter(|path| path.backup && !path.stale).find(idle);
        let stuck = busy.all(|path| path.silent_rounds >= ROUNDS_BEFORE_BACKUP);
        regular.or(backup.filter(|_| stuck)).map(|path| path.id)
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::Sent { path, bytes } => {
                if let Some((_, left)) = self.turn.as_mut().filter(|(turn, _)| *turn == path) {
                    *left = left.saturating_sub(bytes);
                    // A burst ends with the data: what is written later is looked at anew.
                    self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes);
                    if self.unsent_bytes == 0 {
                        self.turn = None;
                    }
                }
            }
            SchedulerEvent::Opened { path } | SchedulerEvent::Closed { path } => {
                self.rates.remove(&path);
                self.turn = self.turn.filter(|(turn, _)| *turn != path);
            }
            SchedulerEvent::Acked { .. }
            | SchedulerEvent::Lost { .. }
            | SchedulerEvent::Timeout { .. }
            | SchedulerEvent::WindowBlocked => {}
        }
    }
}

/// Regular paths that are not stale; backups if there are none; anything if all are stale.
fn active<'a>(view: &ConnectionView<'a>) -> impl Iterator<Item = &'a PathView> + use<'a> {
    let fresh = view.paths.iter().any(|path| !path.stale);
    let regular = view.paths.iter().any(|path| !path.stale && !path.backup);
    let admits = move |path: &&PathView| !path.stale && path.backup != regular;
    let all_stale = eligible(view).filter(move |_| !fresh);
    view.paths.iter().filter(admits).chain(all_stale)
}
