//! Failures of a checksum, a mapping or a subflow (RFC 8684 §3.7, §3.6), and the reinjections that
//! follow.

use towpath_multipath::scheduler::SchedulerEvent;
use towpath_multipath::{DataRange, PathId, PathSet};
use towpath_wire::{DssMapping, MpTcpRst, MptcpOption, Segment};

use super::timers::MAX_UNACKED_TIME;
use super::{Connection, ConnectionMode, ConnectionOutput, HostContext, PendingReinjection};
use crate::path_manager;
use crate::stack::{ConnectionError, FallbackReason, ReinjectionCause, StackNotice};
use crate::subflow::CloseReason;

/// MP_TCPRST when a middlebox changes data or removes options.
pub(super) const MIDDLEBOX: MpTcpRst = MpTcpRst { transient: false, reason: 6, reserved: 0 };

/// Maximum number of closed subflows kept for the status; a peer may open and close any number.
const MAX_CLOSED_SUBFLOWS: usize = 256;

impl Connection {
    /// Handles a wrong DSS checksum; `start` is the data offset of its mapping.
    pub(super) fn on_bad_checksum(&mut self, host: &HostContext<'_>, index: usize, start: u64) {
        self.fallback_state.lost_until =
            self.fallback_state.lost_until.max(start.saturating_add(1));
        if self.mode == ConnectionMode::Infinite {
            return; // retransmitted under the infinite mapping, or missing at the end
        }
        let may_reset = self.flows.len() > 1 || self.send_data_is_scattered();
        self.receive.forget_fin(start);
        if may_reset {
            if let Some(flow) = self.flows.get_mut(index) {
                flow.fail_due = Some(start);
            }
            // A subflow that was opened while MP_FAIL was in flight makes it void.
            self.fallback_state.awaiting_infinite = false;
            if self.flows.len() == 1 {
                // No other subflow will deliver the missing data: all of it is retransmitted
                // (§3.7).
                self.counters.discarded_bytes += self.receive.discard_from(start);
            }
            // Other subflows can continue: this one is reset with MP_FAIL (§3.7).
            self.reset_subflow(host, index, MIDDLEBOX);
            return;
        }
        self.fallback_state.awaiting_infinite = true;
        self.schedule_mp_fail();
    }

    /// Schedules MP_FAIL in the next acknowledgement: all data from the first missing byte must be
    /// retransmitted. Repeated as long as data has to be dropped, as the acknowledgement may be
    /// lost.
    pub(super) fn schedule_mp_fail(&mut self) {
        let missing = self.receive.next();
        let multipath = self.is_multipath();
        for flow in self.flows.iter_mut().filter(|_| multipath) {
            flow.fail_due = Some(missing);
            flow.tcp.set_ack_due();
        }
    }

    /// Returns true if the connection has ever had another subflow. Unacknowledged data may then
    /// not be one contiguous run, and an infinite mapping cannot follow it.
    fn send_data_is_scattered(&self) -> bool {
        self.next_number > 1
    }

    /// Handles MP_FAIL: the peer dropped data from this offset on because of a wrong checksum
    /// (§3.7).
    pub(super) fn on_fail(&mut self, host: &HostContext<'_>, index: usize, offset: u64) {
        if self.flows.len() > 1 || self.mode == ConnectionMode::Infinite {
            return; // with several subflows, MP_FAIL comes in a RST
        }
        let offset = offset.max(self.send.acked()).min(self.send.next());
        self.send.rewind(offset);
        let Some(flow) = self.flows.get_mut(index) else { return };
        let from_ssn = flow.tcp.pushed_until();
        self.infinite_shift = Some((from_ssn, offset.wrapping_sub(from_ssn)));
        let awaited_infinite = self.fallback_state.awaiting_infinite;
        self.enter_infinite_mapping(if awaited_infinite {
            FallbackReason::Checksum
        } else {
            FallbackReason::Peer
        });
        if !awaited_infinite {
            // The other direction also falls back: the peer learns where to continue. None of its
            // data failed, so data in flight is still accepted.
            let next = self.receive.next();
            if let Some(flow) = self.flows.get_mut(index) {
                flow.fail_due = Some(next);
                flow.tcp.set_ack_due();
            }
        }
        let _ = host;
    }

    fn enter_infinite_mapping(&mut self, reason: FallbackReason) {
        if self.mode == ConnectionMode::Infinite {
            return;
        }
        self.mode = ConnectionMode::Infinite;
        self.fallback = Some(reason);
        self.reinjections.clear();
        self.retransmit_at = None;
        self.update_data_options();
        self.advertisement.changed = true;
        self.push_notice(StackNotice::Fallback(reason));
    }

    /// Handles an infinite mapping: the peer maps the rest of its data one to one (§3.7).
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
        let awaited_infinite = std::mem::take(&mut self.fallback_state.awaiting_infinite);
        if let Some(flow) = self.flows.get_mut(index) {
            flow.mappings.set_infinite(ssn, start.wrapping_sub(ssn));
        }
        if self.infinite_shift.is_none() {
            // Our own data continues without change: none of it was lost.
            let flow = self.flows.get(index);
            let from_ssn = flow.map_or(1, |flow| flow.tcp.pushed_until());
            self.infinite_shift = Some((from_ssn, self.send.next().wrapping_sub(from_ssn)));
        }
        self.enter_infinite_mapping(if awaited_infinite {
            FallbackReason::Checksum
        } else {
            FallbackReason::Peer
        });
        // A peer that maps this way sends no more DATA_ACKs. The acknowledgement of this segment
        // counts, as there may never be another one.
        self.on_single_stream_ack(host, index);
    }

    /// Processes options after a fallback: an infinite mapping may still arrive, and mappings of
    /// data sent before it.
    pub(super) fn on_options_after_fallback(
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
            self.on_mapping_after_fallback(index, &mapping, dss.data_fin);
        }
        for option in &segment.options.mptcp {
            if let MptcpOption::FastClose { key } = option {
                self.on_fast_close(host, *key);
            }
        }
    }

    fn on_mapping_after_fallback(&mut self, index: usize, mapping: &DssMapping, fin: bool) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let peer_isn = flow.tcp.peer_isn().unwrap_or(0);
        let ssn = flow.tcp.offset_of(peer_isn.wrapping_add(mapping.ssn));
        let start = super::input::data_offset(mapping.dsn, self.remote_idsn, self.receive.next());
        if mapping.len == 0 {
            flow.mappings.set_infinite(ssn, start.wrapping_sub(ssn));
            self.fallback_state.awaiting_infinite = false;
        } else if mapping.ssn != 0
            && !flow.mappings.covers(ssn)
            && self.checksum == mapping.checksum.is_some()
        {
            let DssMapping { len, checksum, .. } = *mapping;
            self.record_mapping(index, ssn, start, len, u16::from(fin), checksum);
        }
    }

    /// Resets a subflow because of an invalid segment on it.
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

    /// Reinjects the data that only `path` has carried. As in Linux, reinjects everything if there
    /// is any such data.
    pub(super) fn reinject_all(&mut self, path: PathId, cause: ReinjectionCause) {
        if !self.is_multipath() {
            return;
        }
        let live_paths: PathSet = self
            .flows
            .iter()
            .filter(|flow| flow.path != path && flow.usable() && !flow.stale)
            .map(|flow| flow.path)
            .collect();
        let unacked = DataRange { start: self.send.acked(), bytes: self.send.unacked_bytes() };
        let mut ranges: Vec<DataRange> = Vec::new();
        for (range, sent_on) in self.send.unacked_in(unacked) {
            let sent_elsewhere = sent_on.iter().any(|other| live_paths.contains(other));
            if !sent_on.contains(path) || sent_elsewhere {
                continue;
            }
            match ranges.last_mut() {
                Some(last) if last.end() == range.start => last.bytes += range.bytes,
                Some(_) | None => ranges.push(range),
            }
        }
        if self.reinjects_as_new(cause) && !ranges.is_empty() {
            self.reinjections.clear();
            ranges = vec![unacked];
        }
        for range in ranges {
            let is_queued = self.reinjections.iter().any(|queued| {
                queued.range.start <= range.start && range.end() <= queued.range.end()
            });
            if !is_queued {
                self.reinjections.push_back(PendingReinjection { range, cause, path: None });
            }
        }
    }

    /// Removes subflows whose last packet has left; returns true if there were any.
    pub(super) fn take_drained_subflows(&mut self, host: &HostContext<'_>) -> bool {
        let any_drained =
            self.flows.iter().any(|flow| flow.closed.is_some() && !flow.tcp.reset_due());
        if any_drained {
            self.remove_closed(host);
        }
        any_drained
    }

    /// Removes closed subflows once their last packet (a RST) has left.
    pub(super) fn remove_closed(&mut self, host: &HostContext<'_>) {
        let mut index = 0;
        while let Some(flow) = self.flows.get(index) {
            let Some(reason) = flow.closed.filter(|_| !flow.tcp.reset_due()) else {
                index += 1;
                continue;
            };
            self.remove_subflow(host, index, reason);
        }
        self.on_subflows_removed(host);
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
        self.out.push(ConnectionOutput::SubflowRemoved(flow.local, flow.remote));
        let (path, number) = (flow.path, flow.number);
        self.push_notice(StackNotice::SubflowClosed { path, number, reason });
        self.scheduler.on_event(SchedulerEvent::Closed { path });
        let failed = !flow.closed_locally && reason != CloseReason::Finished;
        let may_retry = flow.peer_reset.is_none_or(|reset| reset.transient);
        let subflow = flow.path_manager_view();
        self.notify_path_manager(
            host,
            path_manager::PathManagerEvent::SubflowClosed { subflow, failed, may_retry },
        );
        // A server knows both keys before it is confirmed: the client may return with MP_JOIN.
        if self.is_single_stream() || !(self.is_confirmed() || self.is_multipath() && !self.client)
        {
            self.end_with_subflow(host, reason);
        }
        let is_silent = |flow: &super::SubflowContext| {
            host.now.saturating_since(flow.tcp.last_received_at()) > MAX_UNACKED_TIME
        };
        if self.read_closed && reason == CloseReason::TimedOut && self.flows.iter().all(is_silent) {
            // No reader waits, and the peer is silent on every path: other subflows would only time
            // out as late.
            self.fail(host, ConnectionError::TimedOut);
        }
    }

    /// Ends the connection with its only subflow, without Multipath TCP.
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

    /// Keeps a connection without subflows for a while: break before make (§3.2, Linux).
    fn on_subflows_removed(&mut self, host: &HostContext<'_>) {
        if self.closed.is_some() || !self.flows.is_empty() {
            return;
        }
        if self.finishing || (self.send.fin_acked() && self.receive.finished()) {
            self.finish();
            return;
        }
        // The dropped data was never acknowledged: it is reinjected on another subflow, with
        // mappings.
        self.fallback_state.awaiting_infinite = false;
        if self.close_deadline.is_none() {
            self.close_deadline = Some(host.now + self.config.close_timeout);
        }
    }
}
