//! Who sends what: reinjections first, then new data as the scheduler decides, then M1 and M2.

use towpath_multipath::opportunistic::BlockReason;
use towpath_multipath::scheduler::{Decision, SchedulerEvent, min_rtt};
use towpath_multipath::{ConnectionView, DataRange, PathId, PathSet, PathView};
use towpath_net::Instant;

use crate::stack::{InterfaceId, ReinjectionCause, StackDecision};

use super::push::MAX_MAPPING_BYTES;
use super::send::SendStore;
use super::{Connection, ConnectionMode, HostContext, PendingReinjection, TxReadiness};

/// Most doublings of the time for which a scheduler waits.
const MAX_WAIT_DOUBLINGS: u32 = 8;

/// What schedulers see.
pub(super) fn view<'a>(
    send: &'a SendStore,
    paths: &'a [PathView],
    full: bool,
    now: Instant,
) -> ConnectionView<'a> {
    ConnectionView {
        now,
        paths,
        unsent_bytes: send.unsent_bytes(),
        unsent_from: send.next(),
        window_bytes: send.window_bytes(),
        unacked_bytes: send.unacked_bytes(),
        send_buffer_full: full,
        head: send
            .head()
            .map(|sent| (DataRange { start: sent.start, bytes: sent.bytes }, sent.sent_on)),
        store: send,
    }
}

impl Connection {
    /// Gives a subflow one more piece to send; `false` when there is none to give.
    pub(super) fn pull(
        &mut self,
        host: &HostContext<'_>,
        room: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        let given = self.pull_one(host, room);
        if !given && self.send.unsent_bytes() > 0 && self.send.window_bytes() > 0 {
            self.arm_timer_for_room(host.now);
        }
        given
    }

    fn pull_one(
        &mut self,
        host: &HostContext<'_>,
        room: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        if self.mode == ConnectionMode::Offered || self.closed.is_some() {
            return false;
        }
        let unsent = self.send.unsent_bytes();
        self.arm_window_probe(host.now);
        if unsent > 0 && self.send.window_bytes() == 0 && self.send.unacked_bytes() == 0 {
            self.probe_closed_window(host.now);
        }
        let again = self.scheduler.duplicates_data() || !self.reinjections.is_empty();
        if unsent == 0 && !again && !self.may_be_blocked() {
            return false;
        }
        if unsent > 0 && !again && self.nothing_schedulable(host, room) {
            return false;
        }
        self.fill_views(host.now, room);
        if self.views.is_empty() {
            return false;
        }
        if self.reinject_next(host, room) {
            return true;
        }
        if self.reinjections.front().is_some_and(|queued| self.reinjects_as_new(queued.cause)) {
            return false; // what is new comes behind it
        }
        let window = self.send.window_bytes();
        let admitted = unsent > 0 && window > 0;
        let asked = admitted || self.scheduler.duplicates_data();
        if asked && self.schedule_new(host) {
            return true;
        }
        // A window that ends within a packet blocks like a closed one.
        let packet = self.views.iter().map(|view| u64::from(view.mss_bytes)).min().unwrap_or(1);
        let blocked = if unsent > 0 { window < unsent.min(packet) } else { self.may_be_blocked() };
        if blocked && asked {
            self.fill_views(host.now, room); // the scheduler has seen queues in place of windows
        }
        blocked && self.act_on_blocked(host, unsent)
    }

    /// Whether neither the scheduler nor M1 and M2 can do anything for new data, and views need not be
    /// made to see that; `false` if it is not sure.
    fn nothing_schedulable(
        &mut self,
        host: &HostContext<'_>,
        room: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        match self.send.window_bytes() {
            0 => self.window_blocked_since.is_some() && self.opportunistic.is_off(),
            window if window > MAX_MAPPING_BYTES => {
                self.scheduler.needs_room() && self.is_full(host, room)
            }
            _ => false,
        }
    }

    /// Whether no path takes anything now; `false` if that is not sure. Found sooner than views are
    /// made.
    fn is_full(
        &mut self,
        host: &HostContext<'_>,
        room: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        let ahead = self.is_multipath() && self.scheduler.fills_subflow_queues();
        let by_memory = self.fills_queues();
        for flow in self.flows.iter_mut().filter(|flow| flow.usable()) {
            let open = match room(flow.interface) {
                TxReadiness::Ready => !by_memory && flow.tcp.room_bytes(host.now) > 0,
                TxReadiness::Blocked => false,
                TxReadiness::Down => return false,
            };
            if open || self.config.cautious_joins || (ahead && flow.tcp.queue_room_bytes() > 0) {
                return false;
            }
        }
        true
    }

    /// TCP probes a closed window as long as there is something to send, and uses what is left of one if
    /// that is enough for all of it.
    fn arm_window_probe(&mut self, now: Instant) {
        let again = self.reinjections.front().map_or(0, |queued| queued.range.bytes);
        let waiting = self.send.unsent_bytes().max(again);
        if std::mem::replace(&mut self.waiting_bytes, waiting) != waiting {
            for flow in &mut self.flows {
                flow.tcp.set_waiting_bytes(now, waiting);
            }
        }
    }

    /// The connection's window is closed, and nothing is under way that would open it. A subflow that was
    /// last told of an open window would not probe, and the one that does may die. Without `DATA_ACK`s the
    /// answers would say nothing of the connection: then its timer decides.
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

    /// M1 and M2 also act when the send buffer is full of sent data.
    fn may_be_blocked(&self) -> bool {
        let full = self.writer.blocked && self.flows.len() > 1 && self.send.unacked_bytes() > 0;
        full && !self.opportunistic.is_off()
    }

    /// Asks the scheduler, who may look at the subflows' own queues in place of their windows.
    fn schedule_new(&mut self, host: &HostContext<'_>) -> bool {
        if !self.is_multipath() || !self.scheduler.fills_subflow_queues() {
            return self.schedule(host);
        }
        self.use_queue_room();
        self.schedule(host)
    }

    /// Room in views becomes what the subflows' own queues still take.
    fn use_queue_room(&mut self) {
        let cautious = self.config.cautious_joins;
        let by_memory = self.fills_queues();
        for view in &mut self.views {
            let flow = self.flows.iter_mut().find(|flow| flow.path == view.id);
            // A subflow that must begin with one packet has no queue behind it either.
            if let Some(flow) = flow.filter(|flow| !(cautious && flow.unconfirmed())) {
                let queue = flow.tcp.queue_room_bytes();
                // A full buffer ends it, whatever its window would let go.
                view.room_bytes = if by_memory { queue } else { view.room_bytes.max(queue) };
            }
        }
    }

    fn schedule(&mut self, host: &HostContext<'_>) -> bool {
        let view = view(&self.send, &self.views, self.writer.blocked, host.now);
        // One path: every scheduler would say the same.
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

    /// Whatever arrives wakes the scheduler, too; so the more often the time passes in vain, the longer
    /// the next wait may be.
    fn wait_for_scheduler(&mut self, now: Instant, until: Option<Instant>) {
        if self.scheduling.ask_at.is_some() {
            return;
        }
        let wait = until.map(|until| until.saturating_since(now)).filter(|wait| !wait.is_zero());
        let longer = 2_u32.saturating_pow(self.scheduling.waits.min(MAX_WAIT_DOUBLINGS));
        self.scheduling.ask_at = wait.map(|wait| now + wait.saturating_mul(longer));
        self.scheduling.waits = self.scheduling.waits.saturating_add(1);
    }

    /// New data tells more than old data, in a tail loss probe (RFC 8985 §7.3) and after a timeout that may
    /// have been spurious (RFC 5682), and what is new is not in the subflow while its window is full.
    /// Which of several subflows gets it is the scheduler's affair.
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
        // What goes into a subflow's own queue is cut when it is sent.
        let ahead = self.fills_queues();
        for path in paths.iter() {
            let Some(flow) = self.flows.iter().find(|flow| flow.path == path) else { return false };
            let room = self.views.iter().find(|view| view.id == path);
            bytes = bytes.min(room.map_or(0, |view| view.room_bytes));
            if !ahead {
                bytes = bytes.min(u64::from(flow.tcp.quantum_bytes()));
            }
        }
        bytes = self.without_nagles_rest(bytes, paths);
        if bytes == 0 || self.nagle_holds(bytes, paths) {
            return false;
        }
        self.update_rto_from_subflows(host.now);
        self.push_new(host, paths, bytes);
        // A subflow gets all that is meant for it before it sends, as in Linux.
        self.scheduling.filling = paths.iter().next().filter(|_| ahead);
        (self.scheduling.ask_at, self.scheduling.waits) = (None, 0);
        if self.retransmit_at.is_none() {
            self.arm_retransmission(host.now);
        }
        if let Some(path) = paths.iter().next() {
            self.note_scheduled(host, path, bytes);
        }
        true
    }

    /// What Nagle lets go of so many bytes while data is outstanding: full packets.
    fn without_nagles_rest(&self, bytes: u64, paths: PathSet) -> u64 {
        let path = paths.iter().next();
        let view = self.views.iter().find(|view| Some(view.id) == path);
        let packet = view.map_or(1, |view| u64::from(view.mss_bytes.max(1)));
        let waits = self.config.nagle && self.send.unacked_bytes() > 0 && self.send.fin().is_none();
        if waits && bytes > packet { bytes / packet * packet } else { bytes }
    }

    /// Nagle (RFC 9293 §3.7.4): a packet that is not full waits for outstanding data. And without
    /// Nagle, too, no sliver is sent because the window happens to end there (§3.8.6.2.1).
    fn nagle_holds(&self, bytes: u64, paths: PathSet) -> bool {
        let path = paths.iter().next();
        let view = self.views.iter().find(|view| Some(view.id) == path);
        let Some(view) = view.filter(|view| bytes < u64::from(view.mss_bytes)) else {
            return false;
        };
        let unacked = self.send.unacked_bytes() > 0;
        let is_busy = |view: &PathView| view.in_flight_bytes + view.queued_bytes > 0;
        if bytes < self.send.unsent_bytes() {
            // The connection's window or the path's room ends within a packet. The window moves with
            // what is under way on any path. Linux puts the sliver into a queue, where more may follow;
            // at least it gives it to an idle one.
            if self.fills_queues() {
                return false;
            }
            let at_window =
                bytes == self.send.window_bytes() && !self.scheduler.fills_subflow_queues();
            let busy = if at_window { self.views.iter().any(is_busy) } else { is_busy(view) };
            return unacked && busy;
        }
        self.config.nagle && unacked && self.send.fin().is_none()
    }

    /// The next of the queued reinjections.
    fn reinject_next(
        &mut self,
        host: &HostContext<'_>,
        room: &dyn Fn(InterfaceId) -> TxReadiness,
    ) -> bool {
        while let Some(queued) = self.reinjections.front().copied() {
            let PendingReinjection { range, cause, on } = queued;
            let next = self.send.unacked_in(range).next();
            let Some((piece, sent_on)) = next else {
                self.reinjections.pop_front(); // acknowledged in the meantime
                continue;
            };
            if self.reinjects_as_new(cause) {
                let rest = DataRange { start: piece.start, bytes: range.end() - piece.start };
                return self.reinject_as_new(host, room, rest, cause);
            }
            let again = on.filter(|path| self.views.iter().any(|view| view.id == *path));
            let path = again.or_else(|| self.path_for_reinjection(host, cause, piece, sent_on));
            let Some(path) = path else { return self.drop_redundant_reinjection(&queued) };
            // What the connection's timer repeats goes out in one run, whoever had it (Linux).
            let whole = cause == ReinjectionCause::Connection;
            let piece = if whole { DataRange { start: piece.start, ..range } } else { piece };
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
                    on: whole.then_some(path),
                };
                if bytes == 0 {
                    self.reinjections.pop_front();
                }
            }
            return true;
        }
        false
    }

    /// In Linux what a dead path leaves behind becomes new data again.
    pub(super) fn reinjects_as_new(&self, cause: ReinjectionCause) -> bool {
        matches!(cause, ReinjectionCause::Timeout | ReinjectionCause::Closed)
            && self.scheduler.fills_subflow_queues()
    }

    /// Gives the scheduler the front of the reinjections (`rest`) as if it were new.
    fn reinject_as_new(
        &mut self,
        host: &HostContext<'_>,
        room: &dyn Fn(InterfaceId) -> TxReadiness,
        rest: DataRange,
        cause: ReinjectionCause,
    ) -> bool {
        self.update_rto_from_subflows(host.now);
        self.use_queue_room();
        let mut view = view(&self.send, &self.views, self.writer.blocked, host.now);
        // It lies within the peer's window, whatever that says of new data.
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
        self.fill_views(host.now, room);
        false
    }

    /// What the scheduler does for the connection's timer is its own affair; what a dead path leaves
    /// behind takes the fastest way.
    fn path_for_reinjection(
        &mut self,
        host: &HostContext<'_>,
        cause: ReinjectionCause,
        piece: DataRange,
        sent_on: PathSet,
    ) -> Option<PathId> {
        let under_way = self.live_paths(sent_on);
        let view = view(&self.send, &self.views, self.writer.blocked, host.now);
        if cause == ReinjectionCause::Connection {
            return self.scheduler.reinject(&view, piece, under_way);
        }
        min_rtt::lowest_srtt(&view, |path| !sent_on.contains(path.id))
    }

    /// Most bytes of a repetition that a path takes now.
    fn max_reinjection_bytes(&self, path: PathId) -> u64 {
        let room = self.views.iter().find(|view| view.id == path).map_or(0, |view| view.room_bytes);
        let flow = self.flows.iter().find(|flow| flow.path == path);
        let quantum = flow.map_or(0, |flow| u64::from(flow.tcp.quantum_bytes()));
        room.min(quantum).min(MAX_MAPPING_BYTES)
    }

    /// The paths of `sent_on` on which the data is still under way: one that has delivered everything
    /// at its own level has delivered it in vain, and may be tried again.
    fn live_paths(&self, sent_on: PathSet) -> PathSet {
        let waiting = self.flows.iter().filter(|flow| !flow.payloads.is_empty());
        waiting.map(|flow| flow.path).filter(|path| sent_on.contains(*path)).collect()
    }

    /// Nobody can carry the front now; data that is still under way on a living path need not wait. In
    /// Linux the connection's timer repeats something when it fires, or not at all.
    fn drop_redundant_reinjection(&mut self, front: &PendingReinjection) -> bool {
        if front.cause == ReinjectionCause::Connection && self.scheduler.fills_subflow_queues() {
            self.reinjections.pop_front();
            return false;
        }
        let range = front.range;
        let usable: PathSet =
            self.views.iter().filter(|view| !view.stale).map(|view| view.id).collect();
        let alone = self.views.len() <= 1;
        let mut pieces = self.send.unacked_in(range);
        let under_way = pieces.all(|(_, on)| on.iter().any(|path| usable.contains(path)));
        if alone && under_way {
            self.reinjections.pop_front();
            if front.cause == ReinjectionCause::Connection {
                // The only subflow repeats it by itself; the timer, which found nothing to do, waits
                // longer each time as that one does (RFC 6298 §5.5).
                self.backoff = self.backoff.saturating_add(1);
            }
        }
        false
    }

    /// There is room on a path, but nothing new may be sent: M1 and M2.
    fn act_on_blocked(&mut self, host: &HostContext<'_>, unsent: u64) -> bool {
        let Some(fast) = min_rtt::lowest_srtt(
            &view(&self.send, &self.views, self.writer.blocked, host.now),
            |_| true,
        ) else {
            return false;
        };
        let why = if unsent > 0 { BlockReason::Window } else { BlockReason::SendBuffer };
        if why == BlockReason::Window {
            self.note_window_blocked(host, true);
        }
        if self.views.len() < 2 {
            return false;
        }
        let view = view(&self.send, &self.views, self.writer.blocked, host.now);
        let actions = self.opportunistic.on_blocked(&view, why, fast);
        if let Some(path) = actions.penalise
            && let Some(flow) = self.flows.iter_mut().find(|flow| flow.path == path)
        {
            flow.tcp.penalise(host.now, self.opportunistic.ends_slow_start());
            let number = flow.number;
            self.counts.penalisations += 1;
            self.trace(host, StackDecision::Penalised { number });
        }
        let Some((path, range)) = actions.retransmit else { return false };
        self.reinject(host, path, range, ReinjectionCause::Opportunistic)
    }

    /// Keeps the time during which only the peer's window held data back.
    pub(super) fn note_window_blocked(&mut self, host: &HostContext<'_>, blocked: bool) {
        match (self.window_blocked_since, blocked) {
            (None, true) => {
                self.window_blocked_since = Some(host.now);
                self.trace(host, StackDecision::WindowBlocked(true));
                self.scheduler.on_event(SchedulerEvent::WindowBlocked);
            }
            (Some(since), false) => {
                self.window_blocked_since = None;
                self.counts.window_blocked += host.now.saturating_since(since);
                self.trace(host, StackDecision::WindowBlocked(false));
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    fn note_scheduled(&mut self, host: &HostContext<'_>, path: PathId, bytes: u64) {
        if !host.trace || self.flows.len() < 2 {
            return;
        }
        let why = self.scheduler.switch_reason();
        match &mut self.last_scheduled {
            Some((last, run)) if *last == path => *run += bytes,
            last => {
                let run_bytes = last.map_or(0, |(_, run)| run);
                *last = Some((path, bytes));
                let number = self.flows.iter().find(|flow| flow.path == path);
                let number = number.map_or(0, |flow| flow.number);
                self.trace(host, StackDecision::Scheduled { number, run_bytes, why });
            }
        }
    }
}
