//! When something breaks: a checksum, a mapping, a subflow (RFC 8684 §3.7, §3.6), and what is sent
//! again elsewhere because of it.

use towpath_multipath::scheduler::SchedulerEvent;
use towpath_multipath::{DataRange, PathId, PathSet};

use crate::path_manager;
use crate::stack::{ConnectionError, FallbackReason, ReinjectionCause, StackNotice};
use crate::subflow::CloseReason;
use crate::wire::{DssMapping, MpTcpRst, MptcpOption, Segment};

use super::timers::MAX_UNACKED_TIME;
use super::{Connection, ConnectionMode, ConnectionOutput, HostContext, PendingReinjection};

/// MP_TCPRST when something on the path changes data or takes options away.
pub(super) const MIDDLEBOX: MpTcpRst = MpTcpRst { transient: false, reason: 6, reserved: 0 };

/// Subflows that are gone and still reported; a peer may open and close as many as it likes.
const MAX_CLOSED_SUBFLOWS: usize = 256;

impl Connection {
    /// A DSS checksum was wrong; `start` is the data offset of its mapping.
    pub(super) fn on_bad_checksum(&mut self, host: &HostContext<'_>, index: usize, start: u64) {
        self.fallback_state.lost_until =
            self.fallback_state.lost_until.max(start.saturating_add(1));
        if self.mode == ConnectionMode::Infinite {
            return; // it comes again under the infinite mapping, or is missed at the end
        }
        let several = self.flows.len() > 1 || self.send_data_is_scattered();
        self.receive.forget_fin(start);
        if several {
            if let Some(flow) = self.flows.get_mut(index) {
                flow.fail_due = Some(start);
            }
            // A subflow that crossed with an MP_FAIL has made that one void.
            self.fallback_state.awaiting_infinite = false;
            if self.flows.len() == 1 {
                // Nobody else will bring what is missing: all of it comes again (§3.7).
                self.counts.discarded_bytes += self.receive.discard_from(start);
            }
            // Others can go on: this subflow is reset with MP_FAIL (§3.7).
            self.reset_subflow(host, index, MIDDLEBOX);
            return;
        }
        self.fallback_state.awaiting_infinite = true;
        self.schedule_mp_fail();
    }

    /// MP_FAIL in the next acknowledgement: all from the first byte that is missing must come again.
    /// Repeated as long as what comes has to be dropped, as the acknowledgement may be lost.
    pub(super) fn schedule_mp_fail(&mut self) {
        let missing = self.receive.next();
        let multipath = self.is_multipath();
        for flow in self.flows.iter_mut().filter(|_| multipath) {
            flow.fail_due = Some(missing);
            flow.tcp.want_ack();
        }
    }

    /// Whether unacknowledged data is not one run on the only subflow, so that an infinite mapping
    /// cannot follow it.
    fn send_data_is_scattered(&self) -> bool {
        self.next_number > 1
    }

    /// The peer lost data from this offset on to a wrong checksum (§3.7).
    pub(super) fn on_fail(&mut self, host: &HostContext<'_>, index: usize, offset: u64) {
        if self.flows.len() > 1 || self.mode == ConnectionMode::Infinite {
            return; // on several subflows MP_FAIL comes with a RST
        }
        let offset = offset.max(self.send.acked()).min(self.send.next());
        self.send.rewind(offset);
        let Some(flow) = self.flows.get_mut(index) else { return };
        let from = flow.tcp.pushed_until();
        self.sent_shift = Some((from, offset.wrapping_sub(from)));
        let already = self.fallback_state.awaiting_infinite;
        self.enter_infinite_mapping(if already {
            FallbackReason::Checksum
        } else {
            FallbackReason::Peer
        });
        if !already {
            // The other direction falls back, too: the peer is told where to go on. Nothing of it
            // failed, so what is under way is still welcome.
            let next = self.receive.next();
            if let Some(flow) = self.flows.get_mut(index) {
                flow.fail_due = Some(next);
                flow.tcp.want_ack();
            }
        }
        let _ = host;
    }

    fn enter_infinite_mapping(&mut self, why: FallbackReason) {
        if self.mode == ConnectionMode::Infinite {
            return;
        }
        self.mode = ConnectionMode::Infinite;
        self.fallback = Some(why);
        self.reinjections.clear();
        self.retransmit_at = None;
        self.update_data_options();
        self.offer.changed = true;
        self.notice(StackNotice::Fallback(why));
    }

    /// The peer maps the rest of its data one to one (§3.7).
    pub(super) fn on_infinite_mapping(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        ssn: u64,
        start: u64,
    ) {
        if self.flows.len() > 1 {
            self.reset_subflow(host, index, super::handshake::MPTCP_ERROR);
            return;
        }
        let failed = std::mem::take(&mut self.fallback_state.awaiting_infinite);
        if let Some(flow) = self.flows.get_mut(index) {
            flow.mappings.set_infinite(ssn, start.wrapping_sub(ssn));
        }
        if self.sent_shift.is_none() {
            // Our own data goes on where it is: nothing of it was lost.
            let flow = self.flows.get(index);
            let from = flow.map_or(1, |flow| flow.tcp.pushed_until());
            self.sent_shift = Some((from, self.send.next().wrapping_sub(from)));
        }
        self.enter_infinite_mapping(if failed {
            FallbackReason::Checksum
        } else {
            FallbackReason::Peer
        });
        // Who maps so sends no DATA_ACKs any more: what came with this segment counts, and there may
        // never be another one.
        self.on_single_ack(host, index);
    }

    /// Options after a fallback: an infinite mapping may still come, and mappings of data that was
    /// sent before it.
    pub(super) fn on_late_options(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        segment: &Segment,
    ) {
        if self.mode != ConnectionMode::Infinite {
            return;
        }
        if let Some(dss) = segment.options.dss
            && let Some(mapping) = dss.mapping
        {
            self.on_late_mapping(index, &mapping, dss.data_fin);
        }
        for option in &segment.options.mptcp {
            if let MptcpOption::FastClose { key } = option {
                self.on_fast_close(host, *key);
            }
        }
    }

    fn on_late_mapping(&mut self, index: usize, mapping: &DssMapping, fin: bool) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let peer_isn = flow.tcp.peer_isn().unwrap_or(0);
        let ssn = flow.tcp.offset_of(peer_isn.wrapping_add(mapping.ssn));
        let start = super::input::relative(mapping.dsn, self.remote_idsn, self.receive.next());
        if mapping.len == 0 {
            flow.mappings.set_infinite(ssn, start.wrapping_sub(ssn));
            self.fallback_state.awaiting_infinite = false;
        } else if mapping.ssn != 0
            && !flow.mappings.covers(ssn)
            && self.checksum == mapping.checksum.is_some()
        {
            let DssMapping { len, checksum, .. } = *mapping;
            self.announce_mapping(index, ssn, start, len, u16::from(fin), checksum);
        }
    }

    /// Resets a subflow because of what came on it.
    pub(super) fn reset_subflow(&mut self, host: &HostContext<'_>, index: usize, reason: MpTcpRst) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        if flow.closed.is_some() {
            return;
        }
        flow.reset_reason = Some(reason);
        flow.tcp.abort(host.now);
        flow.closed = Some(CloseReason::Aborted);
        let path = flow.path;
        self.reinject_all(path, ReinjectionCause::Closed);
    }

    /// Sends again elsewhere what only `path` has carried; in Linux, everything if there is such.
    pub(super) fn reinject_all(&mut self, path: PathId, cause: ReinjectionCause) {
        if !self.is_multipath() {
            return;
        }
        let alive: PathSet = self
            .flows
            .iter()
            .filter(|flow| flow.path != path && flow.usable() && !flow.stale)
            .map(|flow| flow.path)
            .collect();
        let whole = DataRange { start: self.send.acked(), bytes: self.send.unacked_bytes() };
        let mut ranges: Vec<DataRange> = Vec::new();
        for (range, sent_on) in self.send.unacked_in(whole) {
            let elsewhere = sent_on.iter().any(|other| alive.contains(other));
            if !sent_on.contains(path) || elsewhere {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end() == range.start => last.bytes += range.bytes,
                Some(_) | None => ranges.push(range),
            }
        }
        if self.reinjects_as_new(cause) && !ranges.is_empty() {
            self.reinjections.clear();
            ranges = vec![whole];
        }
        for range in ranges {
            let known = self
                .reinjections
                .iter()
                .any(|known| known.range.start <= range.start && range.end() <= known.range.end());
            if !known {
                self.reinjections.push_back(PendingReinjection { range, cause, on: None });
            }
        }
    }

    /// Whether there were subflows whose last packet has left; they are taken out.
    pub(super) fn take_drained_subflows(&mut self, host: &HostContext<'_>) -> bool {
        let any = self.flows.iter().any(|flow| flow.closed.is_some() && !flow.tcp.reset_due());
        if any {
            self.remove_closed(host);
        }
        any
    }

    /// Takes closed subflows out, once their last packet (a RST) has left.
    pub(super) fn remove_closed(&mut self, host: &HostContext<'_>) {
        let mut index = 0;
        while let Some(flow) = self.flows.get(index) {
            let Some(reason) = flow.closed.filter(|_| !flow.tcp.reset_due()) else {
                index += 1;
                continue;
            };
            self.remove_subflow(host, index, reason);
        }
        self.after_removal(host);
    }

    fn remove_subflow(&mut self, host: &HostContext<'_>, index: usize, reason: CloseReason) {
        let path = self.flows.get(index).map(|flow| flow.path);
        if let Some(path) = path {
            self.reinject_all(path, ReinjectionCause::Closed);
        }
        let flow = self.flows.remove(index);
        self.send.forget_path(flow.path);
        if self.closed_subflows.len() >= MAX_CLOSED_SUBFLOWS {
            self.closed_subflows.remove(0);
        }
        self.closed_subflows.push(flow.status());
        self.out.push(ConnectionOutput::Gone(flow.local, flow.remote));
        let (path, number) = (flow.path, flow.number);
        self.notice(StackNotice::SubflowClosed { path, number, reason });
        self.scheduler.on_event(SchedulerEvent::Closed { path });
        let failed = !flow.closing && reason != CloseReason::Finished;
        let retry = flow.peer_reset.is_none_or(|reset| reset.transient);
        let subflow = flow.path_manager_view();
        self.path_event(
            host,
            path_manager::PathManagerEvent::SubflowClosed { subflow, failed, retry },
        );
        // A server knows both keys before it is confirmed: the client may come back by MP_JOIN.
        if self.is_single() || !(self.is_confirmed() || self.is_multipath() && !self.client) {
            self.end_with_subflow(host, reason);
        }
        let silent = |flow: &super::SubflowContext| {
            host.now.saturating_since(flow.tcp.last_received_at()) > MAX_UNACKED_TIME
        };
        if self.read_closed && reason == CloseReason::TimedOut && self.flows.iter().all(silent) {
            // Nobody waits, and the peer is as silent everywhere: others would only take as long.
            self.fail(host, ConnectionError::TimedOut);
        }
    }

    /// Without Multipath TCP, the end of the only subflow is the end of the connection.
    fn end_with_subflow(&mut self, host: &HostContext<'_>, reason: CloseReason) {
        if !self.flows.is_empty() {
            return;
        }
        match reason {
            CloseReason::Finished if self.receive.finished() => self.finish(),
            CloseReason::Finished => self.fail(host, ConnectionError::NoPath),
            CloseReason::Reset => self.fail(host, ConnectionError::Reset),
            CloseReason::Refused => self.fail(host, ConnectionError::Refused),
            CloseReason::TimedOut => self.fail(host, ConnectionError::TimedOut),
            CloseReason::Aborted => self.fail(host, ConnectionError::Aborted),
            CloseReason::Unreachable => self.fail(host, ConnectionError::NoPath),
        }
    }

    /// Break before make: a connection outlives its last subflow for a while (§3.2, Linux).
    fn after_removal(&mut self, host: &HostContext<'_>) {
        if self.closed.is_some() || !self.flows.is_empty() {
            return;
        }
        if self.finishing || (self.send.fin_acked() && self.receive.finished()) {
            self.finish();
            return;
        }
        // What was dropped was never acknowledged: it comes again on another subflow, with mappings.
        self.fallback_state.awaiting_infinite = false;
        if self.give_up_at.is_none() {
            self.give_up_at = Some(host.now + self.config.close_timeout);
        }
    }
}
