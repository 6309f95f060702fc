//! Order of transmission: reinjections first, then new data as the scheduler decides, then M1 and
//! M2.

use towpath_multipath::opportunistic::BlockReason;
use towpath_multipath::scheduler::{Decision, SchedulerEvent, min_rtt};
use towpath_multipath::{ConnectionView, DataRange, PathId, PathSet, PathView};
use towpath_net::Instant;

use crate::stack::{InterfaceId, ReinjectionCause, StackDecision};

use super::push::MAX_MAPPING_BYTES;
use super::send::SendStore;
use super::{Connection, ConnectionMode, HostContext, PendingReinjection, TxReadiness};

/// Maximum doublings of a scheduler's waiting time.
const MAX_WAIT_DOUBLINGS: u32 = 8;

/// Returns the connection as schedulers see it.
pub(super) fn connection_view<'a>(
    send: &'a SendStore,
    paths: &'a [PathView],
    send_buffer_full: bool,
    now: Instant,
) -> ConnectionView<'a> {
    ConnectionView {
        now,
        paths,
        unsent_bytes: send.unsent_bytes(),
        unsent_from: send.next(),
        window_bytes: send.window_bytes(),
        unacked_bytes: send.unacked_bytes(),
        send_buffer_full,
        head: send
            .head()
            .map(|oldest| (DataRange { start: oldest.start, bytes: oldest.bytes }, oldest.sent_on)),
        unsent: send,
    }
}

impl Connection {
    /// Gives a subflow one more piece to send; returns false if nothing can be sent.
    pub(super) fn pull(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        let pulled = self.pull_piece(host, tx_readiness);
        if !pulled && self.send.unsent_bytes() > 0 && self.send.window_bytes() > 0 {
            self.arm_timer_for_room(host.now);
        }
        pulled
    }

    fn pull_piece(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        if self.mode == ConnectionMode::Offered || self.closed.is_some() {
            return false;
        }
        let unsent = self.send.unsent_bytes();
        self.arm_window_probe(host.now);
        if unsent > 0 && self.send.window_bytes() == 0 && self.send.unacked_bytes() == 0 {
            self.probe_closed_window(host.now);
        }
        let may_repeat_data = self.scheduler.duplicates_data() || !self.reinjections.is_empty();
        if unsent == 0 && !may_repeat_data && !self.may_be_blocked() {
            return false;
        }
        if unsent > 0 && !may_repeat_data && self.nothing_schedulable(host, tx_readiness) {
            return false;
        }
        self.fill_views(host.now, tx_readiness);
        if self.views.is_empty() {
            return false;
        }
        if self.reinject_next(host, tx_readiness) {
            return true;
        }
        if self.reinjections.front().is_some_and(|queued| self.reinjects_as_new(queued.cause)) {
            return false; // new data follows it
        }
        let window = self.send.window_bytes();
        let admits_new_data = unsent > 0 && window > 0;
        let may_schedule = admits_new_data || self.scheduler.duplicates_data();
        if may_schedule && self.schedule_new(host) {
            return true;
        }
        // A window that ends within a packet blocks like a closed one.
        let min_mss = self.views.iter().map(|view| u64::from(view.mss_bytes)).min().unwrap_or(1);
        let blocked = if unsent > 0 { window < unsent.min(min_mss) } else { self.may_be_blocked() };
        if blocked && may_schedule {
            self.fill_views(host.now, tx_readiness); // the scheduler's views showed queue room instead of windows
        }
        blocked && self.on_blocked_path(host, unsent)
    }

    /// Returns true if the scheduler, M1 and M2 certainly can do nothing for new data. Avoids
    /// building the views; returns false if in doubt.
    fn nothing_schedulable(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        match self.send.window_bytes() {
            0 => self.window_blocked_since.is_some() && self.opportunistic.is_off(),
            window if window > MAX_MAPPING_BYTES => {
                self.scheduler.needs_room() && self.no_path_has_room(host, tx_readiness)
            }
            _ => false,
        }
    }

    /// Returns true if certainly no path takes data now. Avoids building the views; returns false
    /// if in doubt.
    fn no_path_has_room(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        let uses_queues = self.is_multipath() && self.scheduler.fills_subflow_queues();
        let fills_queues = self.fills_queues();
        for flow in self.flows.iter_mut().filter(|flow| flow.usable()) {
            let has_room = match tx_readiness(flow.interface) {
                TxReadiness::Ready => !fills_queues && flow.tcp.room_bytes(host.now) > 0,
                TxReadiness::Blocked => false,
                TxReadiness::Down => return false,
            };
            if has_room
                || self.config.cautious_joins
                || (uses_queues && flow.tcp.queue_room_bytes() > 0)
            {
                return false;
            }
        }
        true
    }

    /// Lets TCP probe a closed window as long as data waits. TCP uses the rest of a window if it
    /// suffices for all waiting data.
    fn arm_window_probe(&mut self, now: Instant) {
        let reinjection_bytes = self.reinjections.front().map_or(0, |queued| queued.range.bytes);
        let waiting = self.send.unsent_bytes().max(reinjection_bytes);
        if std::mem::replace(&mut self.waiting_bytes, waiting) != waiting {
            for flow in &mut self.flows {
                flow.tcp.set_waiting_bytes(now, waiting);
            }
        }
    }

    /// Probes the connection's closed window when nothing in flight would open it. A subflow that
    /// last received an open window would not probe, and the one that does may fail. Without
    /// `DATA_ACK`s the replies do not apply to the connection, so its timer decides.
    fn probe_closed_window(&mut self, now: Instant) {
        if !self.is_multipath() {
            return;
        }
        if self.options_vanished() {
            if self.retransmit_at.is_none() {
                self.start_retransmission(now);
            }
            return;
        }
        for flow in self.flows.iter_mut().filter(|flow| flow.usable()) {
            flow.tcp.close_peer_window(now);
        }
    }

    /// Returns true if M1 and M2 may act. They also act when the send buffer is full of sent data.
    fn may_be_blocked(&self) -> bool {
        let sent_buffer_full =
            self.writer.blocked && self.flows.len() > 1 && self.send.unacked_bytes() > 0;
        sent_buffer_full && !self.opportunistic.is_off()
    }

    /// Runs the scheduler. Some schedulers see the room in the subflows' queues instead of their
    /// windows.
    fn schedule_new(&mut self, host: &HostContext<'_>) -> bool {
        if !self.is_multipath() || !self.scheduler.fills_subflow_queues() {
            return self.schedule(host);
        }
        self.use_queue_room();
        self.schedule(host)
    }

    /// Sets the room in views to the room in the subflows' own queues.
    fn use_queue_room(&mut self) {
        let cautious = self.config.cautious_joins;
        let fills_queues = self.fills_queues();
        for view in &mut self.views {
            let flow = self.flows.iter_mut().find(|flow| flow.path == view.id);
            // A subflow that must begin with one packet does not queue more.
            if let Some(flow) = flow.filter(|flow| !(cautious && flow.is_unconfirmed())) {
                let queue_room = flow.tcp.queue_room_bytes();
                // A full buffer stops the path even if its window is open.
                view.room_bytes =
                    if fills_queues { queue_room } else { view.room_bytes.max(queue_room) };
            }
        }
    }

    fn schedule(&mut self, host: &HostContext<'_>) -> bool {
        let view = connection_view(&self.send, &self.views, self.writer.blocked, host.now);
        // With one path, every scheduler decides the same.
        let decision = match (self.views.as_slice(), self.scheduler.duplicates_data()) {
            ([only], false) if only.room_bytes > 0 => {
                Decision::Send { path: only.id, max_bytes: only.room_bytes }
            }
            ([_], false) => Decision::Idle,
            _ => self.scheduler.next(&view),
        };
        match decision {
            Decision::Send { path, max_bytes } => {
                self.send_new(host, PathSet::only(path), max_bytes)
            }
            Decision::Duplicate { paths, max_bytes } => self.send_new(host, paths, max_bytes),
            Decision::Reinject { path, range } => {
                self.reinject(host, path, range, ReinjectionCause::Scheduler)
            }
            Decision::Wait { until } => {
                self.wait_for_scheduler(host.now, until);
                false
            }
            Decision::Idle => false,
        }
    }

    /// Starts the scheduler's wait. Every arrival also wakes the scheduler, so the wait may double
    /// after each one that expires.
    fn wait_for_scheduler(&mut self, now: Instant, until: Option<Instant>) {
        if self.scheduling.query_at.is_some() {
            return;
        }
        let wait = until.map(|until| until.saturating_since(now)).filter(|wait| !wait.is_zero());
        let backoff = 2_u32.saturating_pow(self.scheduling.expired_waits.min(MAX_WAIT_DOUBLINGS));
        self.scheduling.query_at = wait.map(|wait| now + wait.saturating_mul(backoff));
        self.scheduling.expired_waits = self.scheduling.expired_waits.saturating_add(1);
    }

    /// Feeds new data to a probe. A probe with new data reveals more than one with old data. This
    /// holds for a tail loss probe (RFC 8985 §7.3) and after a timeout that may have been spurious
    /// (RFC 5682). New data is not in the subflow while its window is full. With several subflows,
    /// the scheduler decides.
    pub(super) fn feed_probe_data(&mut self, host: &HostContext<'_>) {
        let [flow] = self.flows.as_slice() else { return };
        if self.mode == ConnectionMode::Offered || self.closed.is_some() {
            return;
        }
        let (path, room) = (flow.path, flow.tcp.probe_bytes());
        let bytes = room.min(self.send.unsent_bytes());
        if bytes > 0 && bytes <= self.send.window_bytes() {
            self.push_new(host, PathSet::only(path), bytes);
        }
    }

    /// Sends new data on one path or, the same data, on several.
    fn send_new(&mut self, host: &HostContext<'_>, paths: PathSet, max_bytes: u64) -> bool {
        let admitted = self.send.unsent_bytes().min(self.send.window_bytes()).min(max_bytes);
        let mut bytes = admitted.min(MAX_MAPPING_BYTES);
        // Data in a subflow's own queue is cut when it is sent.
        let fills_queues = self.fills_queues();
        for path in paths.iter() {
            let Some(flow) = self.flows.iter().find(|flow| flow.path == path) else { return false };
            let room = self.views.iter().find(|view| view.id == path);
            bytes = bytes.min(room.map_or(0, |view| view.room_bytes));
            if !fills_queues {
                bytes = bytes.min(u64::from(flow.tcp.quantum_bytes()));
            }
        }
        bytes = self.nagle_allowed_bytes(bytes, paths);
        if bytes == 0 || self.nagle_holds(bytes, paths) {
            return false;
        }
        self.update_rto_from_subflows(host.now);
        self.push_new(host, paths, bytes);
        // As in Linux, a subflow gets all its data before it sends.
        self.scheduling.filling = paths.iter().next().filter(|_| fills_queues);
        (self.scheduling.query_at, self.scheduling.expired_waits) = (None, 0);
        if self.retransmit_at.is_none() {
            self.arm_retransmission(host.now);
        }
        if let Some(path) = paths.iter().next() {
            self.note_scheduled(host, path, bytes);
        }
        true
    }

    /// Returns the part of `bytes` that Nagle allows while data is outstanding: full packets.
    fn nagle_allowed_bytes(&self, bytes: u64, paths: PathSet) -> u64 {
        let path = paths.iter().next();
        let view = self.views.iter().find(|view| Some(view.id) == path);
        let packet = view.map_or(1, |view| u64::from(view.mss_bytes.max(1)));
        let holds_partial =
            self.config.nagle && self.send.unacked_bytes() > 0 && self.send.fin().is_none();
        if holds_partial && bytes > packet { bytes / packet * packet } else { bytes }
    }

    /// Returns true if Nagle holds the data back (RFC 9293 §3.7.4): a partial packet waits for
    /// outstanding data. Without Nagle, a small piece is still held if only the window ends there
    /// (§3.8.6.2.1).
    fn nagle_holds(&self, bytes: u64, paths: PathSet) -> bool {
        let path = paths.iter().next();
        let view = self.views.iter().find(|view| Some(view.id) == path);
        let Some(view) = view.filter(|view| bytes < u64::from(view.mss_bytes)) else {
            return false;
        };
        let unacked = self.send.unacked_bytes() > 0;
        let is_busy = |view: &PathView| view.in_flight_bytes + view.queued_bytes > 0;
        if bytes < self.send.unsent_bytes() {
            // The connection's window or the path's room ends within a packet. The window moves
            // with data in flight on any path. Linux queues the small piece, where more may follow;
            // at least it gives it to an idle path.
            if self.fills_queues() {
                return false;
            }
            let limited_by_window =
                bytes == self.send.window_bytes() && !self.scheduler.fills_subflow_queues();
            let busy =
                if limited_by_window { self.views.iter().any(is_busy) } else { is_busy(view) };
            return unacked && busy;
        }
        self.config.nagle && unacked && self.send.fin().is_none()
    }

    /// Sends the next queued reinjection.
    fn reinject_next(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        while let Some(queued) = self.reinjections.front().copied() {
            let PendingReinjection { range, cause, path: started_on } = queued;
            let next_unacked = self.send.unacked_in(range).next();
            let Some((piece, sent_on)) = next_unacked else {
                self.reinjections.pop_front(); // acknowledged in the meantime
                continue;
            };
            if self.reinjects_as_new(cause) {
                let rest = DataRange { start: piece.start, bytes: range.end() - piece.start };
                return self.reinject_as_new(host, tx_readiness, rest, cause);
            }
            let same_path =
                started_on.filter(|path| self.views.iter().any(|view| view.id == *path));
            let path = same_path.or_else(|| self.path_for_reinjection(host, cause, piece, sent_on));
            let Some(path) = path else { return self.drop_redundant_reinjection(&queued) };
            // Data that the connection's timer reinjects goes out in one run, regardless of its
            // subflows (Linux).
            let in_one_run = cause == ReinjectionCause::Connection;
            let piece = if in_one_run { DataRange { start: piece.start, ..range } } else { piece };
            let bytes =
                self.max_reinjection_bytes(path).min(range.end() - piece.start).min(piece.bytes);
            if !self.reinject(host, path, DataRange { bytes, ..piece }, cause) {
                return false;
            }
            let start = piece.start + bytes;
            if let Some(front) = self.reinjections.front_mut() {
                let bytes = range.end().saturating_sub(start);
                *front = PendingReinjection {
                    range: DataRange { start, bytes },
                    cause,
                    path: in_one_run.then_some(path),
                };
                if bytes == 0 {
                    self.reinjections.pop_front();
                }
            }
            return true;
        }
        false
    }

    /// Returns true if data of a dead path becomes new data, as in Linux.
    pub(super) fn reinjects_as_new(&self, cause: ReinjectionCause) -> bool {
        matches!(cause, ReinjectionCause::Timeout | ReinjectionCause::Closed)
            && self.scheduler.fills_subflow_queues()
    }

    /// Offers the front of the reinjections (`rest`) to the scheduler as new data.
    fn reinject_as_new(
        &mut self,
        host: &HostContext<'_>,
        tx_readiness: &dyn Fn(InterfaceId) -> TxReadiness,
        rest: DataRange,
        cause: ReinjectionCause,
    ) -> bool {
        self.update_rto_from_subflows(host.now);
        self.use_queue_room();
        let mut view = connection_view(&self.send, &self.views, self.writer.blocked, host.now);
        // The data lies within the peer's window, whose value limits only new data.
        (view.unsent_bytes, view.window_bytes) = (rest.bytes, rest.bytes);
        if let Decision::Send { path, max_bytes } = self.scheduler.next(&view) {
            let bytes = self.max_reinjection_bytes(path).min(max_bytes).min(rest.bytes);
            if self.reinject(host, path, DataRange { bytes, ..rest }, cause) {
                let range = DataRange { start: rest.start + bytes, bytes: rest.bytes - bytes };
                if range.bytes == 0 {
                    self.reinjections.pop_front();
                } else if let Some(front) = self.reinjections.front_mut() {
                    front.range = range;
                }
                return true;
            }
        }
        self.fill_views(host.now, tx_readiness);
        false
    }

    /// Chooses a path for a reinjection. For the connection's timer the scheduler decides; data of
    /// a dead path takes the path of lowest srtt.
    fn path_for_reinjection(
        &mut self,
        host: &HostContext<'_>,
        cause: ReinjectionCause,
        piece: DataRange,
        sent_on: PathSet,
    ) -> Option<PathId> {
        let in_flight_on = self.in_flight_paths(sent_on);
        let view = connection_view(&self.send, &self.views, self.writer.blocked, host.now);
        if cause == ReinjectionCause::Connection {
            return self.scheduler.reinject(&view, piece, in_flight_on);
        }
        min_rtt::lowest_srtt(&view, |path| !sent_on.contains(path.id))
    }

    /// Returns the maximum bytes of a reinjection that a path takes now.
    fn max_reinjection_bytes(&self, path: PathId) -> u64 {
        let room = self.views.iter().find(|view| view.id == path).map_or(0, |view| view.room_bytes);
        let flow = self.flows.iter().find(|flow| flow.path == path);
        let quantum = flow.map_or(0, |flow| u64::from(flow.tcp.quantum_bytes()));
        room.min(quantum).min(MAX_MAPPING_BYTES)
    }

    /// Returns the paths of `sent_on` on which the data is still in flight. A path that has
    /// delivered everything at its own level did not deliver it to the connection and may be tried
    /// again.
    fn in_flight_paths(&self, sent_on: PathSet) -> PathSet {
        let waiting = self.flows.iter().filter(|flow| !flow.payloads.is_empty());
        waiting.map(|flow| flow.path).filter(|path| sent_on.contains(*path)).collect()
    }

    /// Drops a reinjection that no path can carry now, if its data is still in flight on a living
    /// path. In Linux, the connection's timer reinjects when it fires, or not at all.
    fn drop_redundant_reinjection(&mut self, front: &PendingReinjection) -> bool {
        if front.cause == ReinjectionCause::Connection && self.scheduler.fills_subflow_queues() {
            self.reinjections.pop_front();
            return false;
        }
        let range = front.range;
        let live_paths: PathSet =
            self.views.iter().filter(|view| !view.stale).map(|view| view.id).collect();
        let single_path = self.views.len() <= 1;
        let mut pieces = self.send.unacked_in(range);
        let still_in_flight =
            pieces.all(|(_, sent_on)| sent_on.iter().any(|path| live_paths.contains(path)));
        if single_path && still_in_flight {
            self.reinjections.pop_front();
            if front.cause == ReinjectionCause::Connection {
                // The only subflow retransmits by its own timer. The connection's timer, which
                // found nothing to do, backs off as TCP's does (RFC 6298 §5.5).
                self.backoff = self.backoff.saturating_add(1);
            }
        }
        false
    }

    /// Applies M1 and M2: a path has room, but no new data may be sent.
    fn on_blocked_path(&mut self, host: &HostContext<'_>, unsent: u64) -> bool {
        let Some(fastest) = min_rtt::lowest_srtt(
            &connection_view(&self.send, &self.views, self.writer.blocked, host.now),
            |_| true,
        ) else {
            return false;
        };
        let reason = if unsent > 0 { BlockReason::Window } else { BlockReason::SendBuffer };
        if reason == BlockReason::Window {
            self.note_window_blocked(host, true);
        }
        if self.views.len() < 2 {
            return false;
        }
        let view = connection_view(&self.send, &self.views, self.writer.blocked, host.now);
        let actions = self.opportunistic.on_blocked(&view, reason, fastest);
        if let Some(path) = actions.penalise
            && let Some(flow) = self.flows.iter_mut().find(|flow| flow.path == path)
        {
            flow.tcp.penalise(host.now, self.opportunistic.ends_slow_start());
            let number = flow.number;
            self.counters.penalisations += 1;
            self.trace(host, StackDecision::Penalised { number });
        }
        let Some((path, range)) = actions.retransmit else { return false };
        self.reinject(host, path, range, ReinjectionCause::Opportunistic)
    }

    /// Adds up the time during which only the peer's window was the limit.
    pub(super) fn note_window_blocked(&mut self, host: &HostContext<'_>, blocked: bool) {
        match (self.window_blocked_since, blocked) {
            (None, true) => {
                self.window_blocked_since = Some(host.now);
                self.trace(host, StackDecision::WindowBlocked(true));
                self.scheduler.on_event(SchedulerEvent::WindowBlocked);
            }
            (Some(since), false) => {
                self.window_blocked_since = None;
                self.counters.window_blocked += host.now.saturating_since(since);
                self.trace(host, StackDecision::WindowBlocked(false));
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    fn note_scheduled(&mut self, host: &HostContext<'_>, path: PathId, bytes: u64) {
        if !host.trace || self.flows.len() < 2 {
            return;
        }
        let reason = self.scheduler.switch_reason();
        match &mut self.last_scheduled {
            Some((last_path, run_bytes)) if *last_path == path => *run_bytes += bytes,
            last_run => {
                let run_bytes = last_run.map_or(0, |(_, run_bytes)| run_bytes);
                *last_run = Some((path, bytes));
                let number = self.flows.iter().find(|flow| flow.path == path);
                let number = number.map_or(0, |flow| flow.number);
                self.trace(host, StackDecision::Scheduled { number, run_bytes, reason });
            }
        }
    }
}
