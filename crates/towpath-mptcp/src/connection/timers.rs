//! The connection's clockwork: its own retransmission timer, repetitions, giving up, and the
//! subflows' timers.

use std::time::Duration;

use towpath_multipath::DataRange;
use towpath_multipath::scheduler::SchedulerEvent;
use towpath_net::Instant;

use crate::path_manager;
use crate::stack::{ConnectionError, Notice, Reinjection, TimeoutReason};

use super::handshake::MPTCP_ERROR;
use super::{Connection, Host};

/// Bounds of the connection's retransmission timer.
const RETRANSMIT_MIN: Duration = Duration::from_millis(200);
const RETRANSMIT_MAX: Duration = Duration::from_secs(120);
/// What the timer sends again at once.
const HEAD_BYTES: u64 = 65_536;

impl Connection {
    /// The earliest deadline.
    pub(crate) fn poll_timeout(&self) -> Option<(Instant, TimeoutReason)> {
        let wait = self.ask_scheduler_at;
        let own = [self.retransmit_at, self.give_up_at, self.announcement_timeout(), wait];
        let joins = self.flows.iter().filter_map(|flow| flow.join.as_ref()?.poll_timeout());
        let own = own.into_iter().flatten().chain(joins);
        let own = own.map(|at| (at, TimeoutReason::Connection));
        let paths = self.path_manager.poll_timeout();
        let paths = paths.map(|at| (at, TimeoutReason::PathManager));
        let flows = self.flows.iter().filter_map(|flow| flow.tcp.poll_timeout());
        let flows = flows.map(|(at, timer)| (at, TimeoutReason::Subflow(timer)));
        own.chain(paths).chain(flows).min()
    }

    /// Runs everything that is due.
    pub(crate) fn on_timeout(&mut self, host: &Host<'_>) {
        for index in 0..self.flows.len() {
            self.on_flow_timeout(host, index);
        }
        self.remove_closed(host);
        self.repeat_announcements(host.now);
        if self.path_manager.poll_timeout().is_some_and(|at| at <= host.now) {
            self.path_event(host, path_manager::Event::Timeout);
        }
        if self.retransmit_at.is_some_and(|at| at <= host.now) {
            self.on_retransmission(host);
        }
        if self.give_up_at.is_some_and(|at| at <= host.now) {
            self.give_up_at = None;
            self.fail(host, ConnectionError::NoPath);
        }
        self.ask_scheduler_at = self.ask_scheduler_at.filter(|at| *at > host.now);
        self.progress_close(host);
    }

    fn on_flow_timeout(&mut self, host: &Host<'_>, index: usize) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if let Some(again) = flow.join.as_mut().and_then(|join| join.on_timeout(host.now)) {
            if again {
                flow.tcp.want_ack();
            } else {
                self.reset_flow(host, index, MPTCP_ERROR);
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
            self.tell_scheduler(host.now, SchedulerEvent::Timeout { path });
            self.on_subflow_retransmission(index);
        }
    }

    /// A subflow's own timer fired: perhaps its data is needed elsewhere.
    fn on_subflow_retransmission(&mut self, index: usize) {
        let stale_after = self.config.stale_after_timeouts;
        let several = self.flows.iter().filter(|flow| flow.usable()).count() > 1;
        let Some(flow) = self.flows.get_mut(index) else { return };
        let (path, number) = (flow.path, flow.number);
        let stale = several && !flow.stale && flow.tcp.statistics().timeouts >= stale_after;
        flow.stale |= stale;
        if stale {
            self.notice(Notice::Stale { number, stale: true });
        }
        if several && (stale || self.config.reinject_on_timeout) {
            self.reinject_all(path, Reinjection::Timeout);
        }
    }

    /// Starts the connection's timer anew: something was acknowledged, or sent after silence.
    pub(super) fn arm_retransmission(&mut self, now: Instant) {
        let fin_waits = self.fin_due();
        if !self.is_multipath() || (self.send.unacked_bytes() == 0 && !fin_waits) {
            self.retransmit_at = None;
            return;
        }
        let rto = self.flows.iter().filter(|flow| flow.usable()).map(|flow| {
            // A subflow that repeats things itself gets the time for it.
            let tcp = flow.tcp.statistics();
            tcp.rto.saturating_mul(2_u32.saturating_pow(tcp.timeouts.min(8)))
        });
        let rto = rto.max().unwrap_or(RETRANSMIT_MIN).max(RETRANSMIT_MIN);
        let rto = rto.saturating_mul(2_u32.saturating_pow(self.backoff.min(16)));
        self.retransmit_at = Some(now + rto.min(RETRANSMIT_MAX));
    }

    /// The connection's timer: the oldest data is sent again, wherever there is a way; DATA_FIN too.
    fn on_retransmission(&mut self, host: &Host<'_>) {
        self.backoff += 1;
        if let Some(head) = self.send.head() {
            let bytes = self.send.unacked_bytes().min(HEAD_BYTES);
            let range = DataRange { start: head.start, bytes };
            let queued = self.reinjections.iter().any(|(known, _)| known.start == range.start);
            if !queued {
                self.reinjections.push_front((range, Reinjection::Connection));
            }
        } else if self.fin_due() {
            for flow in self.flows.iter_mut().filter(|flow| flow.usable()) {
                flow.tcp.want_ack();
            }
        }
        self.arm_retransmission(host.now);
    }
}
