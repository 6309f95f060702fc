//! Linux's scheduler since 5.15 (`mptcp_subflow_get_send` in `net/mptcp/protocol.c`): the subflow
//! with the shortest queueing time ("linger time"), in bursts.
//!
//! `linger = (queued + in flight) / pacing rate`, where the rate is a byte-weighted average over
//! the subflow's bursts. A burst is 64 KiB plus the rest of the 32 KiB fragment in which it ends,
//! or the peer's remaining window.
//!
//! Linux ignores the congestion window, because a subflow has its own queue. Data within the peer's
//! window is distributed at once, even to a slow subflow that will send it much later.

use std::collections::BTreeMap;

use super::eligible::eligible;
use super::{Decision, Scheduler, SchedulerEvent};
use crate::path::{ConnectionView, DataRange, PathId, PathSet, PathView};

/// 64 KiB less the longest headers.
const BURST_BYTES: u64 = 65_428;
/// Payload of a 32 KiB page of written data, which also has 40 bytes of metadata
/// (`mptcp_data_frag`). Linux checks for the end of a burst only at the end of a page.
const FRAGMENT_BYTES: u64 = 32_728;
/// Silent expiries of the connection's timer after which a backup reinjects data.
const ROUNDS_BEFORE_BACKUP: u32 = 2;

#[derive(Debug, Clone, Default)]
pub(super) struct Linux {
    /// The path that currently sends a burst, with the remaining bytes of the burst.
    burst: Option<(PathId, u64)>,
    /// Unsent bytes at the last call.
    unsent_bytes: u64,
    /// Average pacing rates by path, in bytes per second.
    rates: BTreeMap<PathId, u64>,
}

impl Linux {
    fn rate(&self, path: &PathView) -> u64 {
        self.rates.get(&path.id).copied().unwrap_or(path.pacing_rate)
    }

    /// Returns the time in nanoseconds to send the queued data; the maximum without a rate.
    fn linger(&self, path: &PathView) -> u128 {
        let nanos = u128::from(queued_memory_bytes(path)) * 1_000_000_000;
        nanos.checked_div(u128::from(self.rate(path))).unwrap_or(u128::MAX)
    }

    fn begin_burst(&mut self, path: &PathView, view: &ConnectionView<'_>) -> u64 {
        let min_bytes = BURST_BYTES.min(view.window_bytes).max(1);
        let (old_rate, new_rate) = (u128::from(self.rate(path)), u128::from(path.pacing_rate));
        let (old_weight, new_weight) =
            (u128::from(queued_memory_bytes(path)), u128::from(min_bytes));
        let average = (old_rate * old_weight + new_rate * new_weight) / (old_weight + new_weight);
        self.rates.insert(path.id, u64::try_from(average).unwrap_or(u64::MAX));
        let burst_end = view.unsent_from.saturating_add(min_bytes);
        let burst_end = burst_end.checked_next_multiple_of(FRAGMENT_BYTES).unwrap_or(burst_end);
        let burst_bytes = burst_end.saturating_sub(view.unsent_from).min(view.window_bytes.max(1));
        self.burst = Some((path.id, burst_bytes));
        burst_bytes
    }
}

/// Returns the queued memory of a path. Linux counts memory (`sk_wmem_queued`), including data sent
/// but not acknowledged.
fn queued_memory_bytes(path: &PathView) -> u64 {
    path.memory_bytes.max(path.queued_bytes.saturating_add(path.in_flight_bytes))
}

/// Returns the bytes to send of a burst, at least a whole packet. Linux also sends whole packets
/// until the burst is used up. A connection would hold back a fragment until everything before it
/// is acknowledged.
fn burst_chunk_bytes(remaining: u64, path: &PathView, view: &ConnectionView<'_>) -> u64 {
    let with_whole_packet = remaining.max(u64::from(path.mss_bytes).min(view.window_bytes));
    with_whole_packet.min(path.room_bytes)
}

impl Scheduler for Linux {
    fn next(&mut self, view: &ConnectionView<'_>) -> Decision {
        self.unsent_bytes = view.unsent_bytes;
        let current_burst = self.burst.filter(|(_, remaining)| *remaining > 0);
        let with_room = |path: &&PathView| path.room_bytes > 0;
        let with_room_by_id = |id| active_paths(view).filter(with_room).find(|path| path.id == id);
        if let Some((path, remaining)) =
            current_burst.and_then(|(id, remaining)| Some((with_room_by_id(id)?, remaining)))
        {
            return Decision::Send {
                path: path.id,
                max_bytes: burst_chunk_bytes(remaining, path, view),
            };
        }
        // A burst ends with the run in which it is sent; the next run chooses anew among paths with
        // room.
        self.burst = None;
        // Linux does not avoid a subflow in timeout recovery until it is stale. And when the best
        // subflow's queue is full, it does not take another.
        let best = active_paths(view).min_by_key(|path| (self.linger(path), path.id));
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

    /// Chooses the first idle subflow, whether it had the data or not
    /// (`mptcp_subflow_get_retrans`). A backup is used only after all busy subflows were silent for
    /// two rounds, long before they are stale.
    fn reinject(&mut self, view: &ConnectionView<'_>, _: DataRange, _: PathSet) -> Option<PathId> {
        let idle = |path: &&PathView| queued_memory_bytes(path) == 0 && path.room_bytes > 0;
        let regular = view.paths.iter().filter(|path| !path.backup && !path.stale).find(idle);
        let mut busy = view.paths.iter().filter(|path| queued_memory_bytes(path) > 0);
        let backup = view.paths.iter().filter(|path| path.backup && !path.stale).find(idle);
        let all_silent = busy.all(|path| path.silent_rounds >= ROUNDS_BEFORE_BACKUP);
        regular.or(backup.filter(|_| all_silent)).map(|path| path.id)
    }

    fn on_event(&mut self, event: SchedulerEvent) {
        match event {
            SchedulerEvent::Sent { path, bytes } => {
                if let Some((_, remaining)) =
                    self.burst.as_mut().filter(|(burst_path, _)| *burst_path == path)
                {
                    *remaining = remaining.saturating_sub(bytes);
                    // A burst ends with the data; data written later starts a new choice.
                    self.unsent_bytes = self.unsent_bytes.saturating_sub(bytes);
                    if self.unsent_bytes == 0 {
                        self.burst = None;
                    }
                }
            }
            SchedulerEvent::Opened { path } | SchedulerEvent::Closed { path } => {
                self.rates.remove(&path);
                self.burst = self.burst.filter(|(burst_path, _)| *burst_path != path);
            }
            SchedulerEvent::Acked { .. }
            | SchedulerEvent::Lost { .. }
            | SchedulerEvent::Timeout { .. }
            | SchedulerEvent::WindowBlocked => {}
        }
    }
}

/// Returns the regular paths that are not stale, otherwise the backups; the eligible paths if all
/// are stale.
fn active_paths<'a>(view: &ConnectionView<'a>) -> impl Iterator<Item = &'a PathView> + use<'a> {
    let any_fresh = view.paths.iter().any(|path| !path.stale);
    let any_regular = view.paths.iter().any(|path| !path.stale && !path.backup);
    let admits = move |path: &&PathView| !path.stale && path.backup != any_regular;
    let all_stale = eligible(view).filter(move |_| !any_fresh);
    view.paths.iter().filter(admits).chain(all_stale)
}
