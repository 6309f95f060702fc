//! Timers of a connection: its own retransmission timer, timeouts, and the subflows' timers.

use std::time::Duration;

use towpath_multipath::DataRange;
use towpath_multipath::scheduler::SchedulerEvent;
use towpath_net::Instant;

use crate::path_manager;
use crate::stack::{ConnectionError, ReinjectionCause, StackNotice, TimeoutReason};

use super::handshake::MPTCP_ERROR;
use super::{Connection, HostContext, PendingReinjection};

/// Bounds of the connection's retransmission timer.
pub(super) const MIN_RTO: Duration = Duration::from_millis(200);
/// Smallest remainder of a subflow's timer that counts. Linux counts in whole jiffies.
const MIN_TIMER_REMAINDER: Duration = Duration::from_millis(1);
const MAX_RTO: Duration = Duration::from_secs(120);
/// Time after which a connection without acknowledgements at its level fails. At least as long as
/// TCP takes for 15 retransmissions.
pub(super) const MAX_UNACKED_TIME: Duration = Duration::from_secs(960);
/// Bytes that the timer reinjects immediately: one piece of Linux's send buffer, 32 KiB less its
/// header.
const REINJECT_HEAD_BYTES: u64 = 32_728;

impl Connection {
    /// Returns the earliest deadline, with its reason.
    pub(crate) fn poll_timeout(&self) -> Option<(Instant, TimeoutReason)> {
        let (scheduler, option_acks) = (self.scheduling.query_at, self.option_acks_resume_at);
        let write = self.writer.retry_at;
        let announce = self.announcement_timeout();
        let connection_timers =
            [self.retransmit_at, self.close_deadline, announce, scheduler, option_acks, write];
        let joins = self.flows.iter().filter_map(|flow| flow.join.as_ref()?.poll_timeout());
        let connection_timers = connection_timers.into_iter().flatten().chain(joins);
        let connection_timers = connection_timers.map(|at| (at, TimeoutReason::Connection));
        let path_manager = self.path_manager_deadline();
        let path_manager = path_manager.map(|at| (at, TimeoutReason::PathManager));
        let subflows = self.flows.iter().filter_map(|flow| flow.tcp.poll_timeout());
        let subflows = subflows.map(|(at, timer)| (at, TimeoutReason::Subflow(timer)));
        connection_timers.chain(path_manager).chain(subflows).min()
    }

    /// Returns the earliest deadline without its reason, which is needed after every packet.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let mut earliest = Instant::MAX;
        for flow in &self.flows {
            earliest = earliest.min(flow.tcp.next_deadline());
            if let Some(join) = &flow.join {
                earliest = earliest.min(join.poll_timeout().unwrap_or(Instant::MAX));
            }
        }
        let timers = [
            self.retransmit_at,
            self.close_deadline,
            self.scheduling.query_at,
            self.option_acks_resume_at,
            self.writer.retry_at,
            self.path_manager_deadline(),
        ];
        earliest = timers.into_iter().flatten().fold(earliest, Instant::min);
        if !self.announcements.is_empty() {
            earliest = earliest.min(self.announcement_timeout().unwrap_or(Instant::MAX));
        }
        (earliest != Instant::MAX).then_some(earliest)
    }

    /// Returns the path manager's deadline, unless it cannot act then: such a timer would fire
    /// repeatedly.
    fn path_manager_deadline(&self) -> Option<Instant> {
        self.path_manager.poll_timeout().filter(|_| self.path_manager_active())
    }

    /// Runs all timers that are due.
    pub(crate) fn on_timeout(&mut self, host: &HostContext<'_>) {
        for index in 0..self.flows.len() {
            self.on_subflow_timeout(host, index);
        }
        self.remove_closed(host);
        self.retransmit_add_addr(host.now);
        if self.option_acks_resume_at.is_some_and(|at| at <= host.now) {
            self.option_acks_resume_at = None;
            for index in 0..self.flows.len() {
                self.resume_option_acks(index);
            }
        }
        if self.path_manager.poll_timeout().is_some_and(|at| at <= host.now) {
            self.notify_path_manager(host, path_manager::PathManagerEvent::Timeout);
        }
        self.retry_write(host.now);
        if self.retransmit_at.is_some_and(|at| at <= host.now) {
            self.on_retransmission(host);
        }
        if self.close_deadline.is_some_and(|at| at <= host.now) {
            self.close_deadline = None;
            if self.closed.is_some() {
                self.reset_lingering_subflows(host);
            } else {
                self.fail(host, ConnectionError::NoPath);
            }
        }
        self.scheduling.query_at = self.scheduling.query_at.filter(|at| *at > host.now);
        self.progress_close(host);
    }

    fn on_subflow_timeout(&mut self, host: &HostContext<'_>, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if let Some(retransmit) = flow.join.as_mut().and_then(|join| join.on_timeout(host.now)) {
            if retransmit {
                flow.tcp.set_ack_due();
            } else {
                self.reset_subflow(host, index, MPTCP_ERROR);
                return;
            }
        }
        let Some(flow) = self.flows.get_mut(index) else { return };
        if flow.tcp.poll_timeout().is_none_or(|(at, _)| at > host.now) {
            return;
        }
        let outcome = flow.tcp.on_timeout(host.now);
        let path = flow.path;
        if let Some(reason) = outcome.closed {
            flow.closed = flow.closed.or(Some(reason));
        }
        if outcome.retransmission && flow.usable() {
            self.scheduler.on_event(SchedulerEvent::Timeout { path });
            self.on_subflow_retransmission(index);
        }
    }

    /// Handles the timeout of a subflow's own timer: its data may be needed on another path.
    fn on_subflow_retransmission(&mut self, index: usize) {
        let has_other_path = self.flows.iter().filter(|flow| flow.usable()).count() > 1;
        let Some(flow) = self.flows.get(index) else { return };
        let path = flow.path;
        if has_other_path && self.config.reinject_on_timeout {
            self.reinject_all(path, ReinjectionCause::Timeout);
        }
    }

    /// Restarts the connection's timer after an acknowledgement, or when sending begins after
    /// silence.
    pub(super) fn arm_retransmission(&mut self, now: Instant) {
        let fin_due = self.fin_due();
        if !self.is_multipath() || (self.send.unacked_bytes() == 0 && !fin_due) {
            self.retransmit_at = None;
            return;
        }
        self.start_retransmission(now);
    }

    pub(super) fn start_retransmission(&mut self, now: Instant) {
        let doubled = 2_u32.saturating_pow(self.backoff.min(16));
        let wait = self.retransmit_after.saturating_mul(doubled);
        self.retransmit_at = Some(now + wait.min(MAX_RTO));
    }

    /// Starts the timer for new data that finds no room although the peer's window allows it. As in
    /// Linux, this applies when nothing else is outstanding. Otherwise a silent subflow with a full
    /// queue would never become stale, and other subflows would starve.
    pub(super) fn arm_timer_for_room(&mut self, now: Instant) {
        if self.retransmit_at.is_some() || self.closed.is_some() || !self.is_multipath() {
            return;
        }
        if self.flows.iter().filter(|flow| flow.usable()).count() > 1 {
            self.start_retransmission(now);
        }
    }

    /// Sets the timeout, as in Linux, to when the last non-silent subflow would check its losses
    /// (`mptcp_timeout_from_subflow`). Linux computes it on each scheduler call, so a connection
    /// without new data keeps an old value.
    pub(super) fn update_rto_from_subflows(&mut self, now: Instant) {
        let responsive = self.flows.iter().filter(|flow| flow.usable() && flow.silent_rounds == 0);
        let remaining = responsive.filter_map(|flow| flow.tcp.next_retransmission_at());
        let remaining = remaining.map(|at| at.saturating_since(now)).max();
        let remaining = remaining.filter(|remaining| !remaining.is_zero()).unwrap_or(MIN_RTO);
        // A check that is due soon must not shorten the interval between checks.
        let min_remaining = self.config.subflow.timer_granularity.max(MIN_TIMER_REMAINDER);
        self.retransmit_after = remaining.max(min_remaining);
    }

    /// Handles the connection's timer: reinjects the oldest data, or DATA_FIN, on any available
    /// path.
    fn on_retransmission(&mut self, host: &HostContext<'_>) {
        if self.send.unacked_bytes() == 0 && !self.fin_due() {
            self.retransmit_at = None; // `arm_timer_for_room` restarts it
            if self.send.unsent_bytes() > 0 && self.options_vanished() {
                self.backoff += 1;
                self.end_without_options(host);
                return;
            }
            if !self.mark_stale_subflows() {
                self.backoff += 1;
            }
            return;
        }
        let unacked_since = *self.unacked_since.get_or_insert(host.now);
        let silent = host.now.saturating_since(unacked_since) >= MAX_UNACKED_TIME;
        if silent {
            // Subflows may be alive, and acknowledge, without any progress of the connection.
            self.fail(host, ConnectionError::TimedOut);
            return;
        }
        self.mark_stale_subflows();
        if self.options_vanished() {
            self.backoff += 1;
            self.end_without_options(host);
            self.arm_retransmission(host.now);
            return;
        }
        // Before the peer has confirmed, data stays the subflow's own stream, for a fallback.
        if let Some(head) = self.send.head().filter(|_| self.is_confirmed()) {
            let bytes = self.send.unacked_bytes().min(REINJECT_HEAD_BYTES);
            let range = DataRange { start: head.start, bytes };
            let is_queued =
                self.reinjections.iter().any(|queued| queued.range.start <= range.start);
            if is_queued {
                // No subflow could take it so far: a later reinjection is soon enough.
                self.backoff += 1;
            } else {
                self.reinjections.push_front(PendingReinjection {
                    range,
                    cause: ReinjectionCause::Connection,
                    path: None,
                });
            }
        } else {
            self.backoff += 1;
            let fin = self.fin_due();
            for flow in self.flows.iter_mut().filter(|flow| fin && flow.usable()) {
                flow.tcp.set_ack_due();
            }
        }
        self.arm_retransmission(host.now);
    }

    /// Marks silent subflows as stale (Linux `stale_loss_cnt`); returns true if any subflow is
    /// alive. A subflow is stale if it has data in flight and is silent for several rounds of the
    /// timer, while another one is alive. The data goes elsewhere.
    fn mark_stale_subflows(&mut self) -> bool {
        for flow in self.flows.iter_mut().filter(|flow| flow.usable()) {
            let last_received_at = flow.tcp.last_received_at();
            if flow.payloads.is_empty() {
                // The subflow has delivered its data, so earlier rounds do not count. Linux keeps
                // the count, and may then find no living subflow.
                flow.silent_rounds = 0;
                continue;
            }
            let silent =
                std::mem::replace(&mut flow.last_received_at, last_received_at) == last_received_at;
            flow.silent_rounds =
                if silent || flow.silent_rounds == 0 { flow.silent_rounds + 1 } else { 0 };
        }
        let limit = self.config.stale_after_rounds;
        let is_active = |flow: &super::SubflowContext| {
            flow.usable() && !flow.stale && flow.silent_rounds < limit.saturating_sub(1).max(1)
        };
        if !self.flows.iter().any(is_active) {
            return false;
        }
        let mut stale = Vec::new();
        for flow in self.flows.iter_mut().filter(|flow| !flow.stale && flow.silent_rounds > limit) {
            flow.stale = true;
            stale.push((flow.path, flow.number));
        }
        for (path, number) in stale {
            self.push_notice(StackNotice::Stale { number, stale: true });
            self.reinject_all(path, ReinjectionCause::Timeout);
        }
        true
    }
}
