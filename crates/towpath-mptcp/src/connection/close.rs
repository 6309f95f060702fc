//! Closing of a connection: DATA_FIN, subflow FINs, MP_FASTCLOSE (RFC 8684 §3.3.3, §3.5).

use towpath_net::Instant;
use towpath_wire::MpTcpRst;

use super::handshake::MPTCP_ERROR;
use super::subflow_context::SubflowContext;
use super::{Connection, ConnectionMode, HostContext};
use crate::stack::{ConnectionError, StackEvent};
use crate::subflow::{CloseReason, TcpState};

/// MP_TCPRST for the remaining subflows of a connection that has ended, by both ends or by the
/// peer's abort (RFC 8684 §3.6).
const NO_REASON: MpTcpRst = MpTcpRst { transient: false, reason: 0, reserved: 0 };

impl Connection {
    /// Ends the data that we send; see [`crate::stack::Stack::shutdown`].
    pub(crate) fn shutdown(&mut self, host: &HostContext<'_>) {
        if self.read_closed && self.is_single_stream() {
            for flow in &mut self.flows {
                flow.tcp.set_orphaned(host.now);
            }
        }
        if self.send.fin().is_some() {
            self.progress_close(host); // it may now be over
            return;
        }
        self.send.finish();
        self.progress_close(host);
    }

    /// Closes both directions for the application. Data that has arrived and was not read is lost,
    /// and the peer receives a reset (RFC 9293 §3.6.1; Linux likewise, with MP_FASTCLOSE).
    pub(crate) fn close(&mut self, host: &HostContext<'_>) {
        let awaits_syn_ack = |flow: &SubflowContext| flow.tcp.state() == TcpState::SynSent;
        if self.closed.is_none()
            && self.flows.first().is_some_and(awaits_syn_ack)
            && !self.established
        {
            // Drop the connection and all written data; a later SYN/ACK gets a RST (§3.10.4).
            self.abort(host);
            self.remove_closed(host);
        } else if self.closed.is_none() && self.receive.has_unread() {
            self.abort(host);
        } else {
            self.shutdown(host);
        }
    }

    /// Returns true if DATA_FIN must be sent or retransmitted: all data before it was sent.
    pub(super) fn fin_due(&self) -> bool {
        let fin_pending = self.send.fin().is_some() && !self.send.fin_acked();
        self.is_multipath() && fin_pending && self.send.unsent_bytes() == 0
    }

    /// Sends DATA_FIN for the first time, once all data before it was sent. Every subflow gets it,
    /// since no later data will carry it. Returns false if it is not due or was sent before.
    pub(super) fn begin_fin(&mut self, now: Instant) -> bool {
        if self.data_fin_sent || !self.fin_due() || self.closed.is_some() {
            return false;
        }
        for flow in self.flows.iter_mut().filter(|flow| flow.usable()) {
            flow.tcp.set_ack_due();
            self.data_fin_sent = true;
        }
        if self.retransmit_at.is_none() {
            self.arm_retransmission(now);
        }
        self.data_fin_sent
    }

    /// Advances closing as far as possible; called after every change.
    pub(super) fn progress_close(&mut self, host: &HostContext<'_>) {
        if self.closed.is_some() {
            return;
        }
        match self.mode {
            ConnectionMode::Offered => {
                // No data can have been sent; an unfinished handshake may be given up.
            }
            ConnectionMode::Plain | ConnectionMode::Infinite => self.progress_plain_close(host.now),
            ConnectionMode::Multipath { .. } => self.progress_multipath_close(host.now),
        }
    }

    /// Sends the FIN of a plain connection once TCP has the last data, possibly long after the
    /// application closed it. Returns false if it is not due or was sent before.
    pub(super) fn begin_plain_fin(&mut self, now: Instant) -> bool {
        let is_open_stream = matches!(self.mode, ConnectionMode::Plain | ConnectionMode::Infinite)
            && self.closed.is_none();
        if !is_open_stream || self.flows.first().is_none_or(|flow| flow.closed_locally) {
            return false;
        }
        self.progress_plain_close(now);
        self.flows.first().is_some_and(|flow| flow.closed_locally)
    }

    fn progress_plain_close(&mut self, now: Instant) {
        let all_pushed = self.send.unsent_bytes() == 0;
        let finished = self.send.fin().is_some();
        let Some(flow) = self.flows.first_mut() else { return };
        // Closing in SYN-SENT would withdraw the connection (RFC 9293 §3.10.4).
        if finished && all_pushed && !flow.closed_locally && flow.tcp.state() != TcpState::SynSent {
            flow.closed_locally = true;
            if self.read_closed {
                flow.tcp.set_orphaned(now);
            }
            flow.tcp.close(now);
        }
        if matches!(flow.tcp.state(), TcpState::FinWait2 | TcpState::TimeWait) {
            self.send.set_fin_acked();
        }
        if self.send.fin_acked() && self.receive.finished() {
            self.finish();
        }
    }

    fn progress_multipath_close(&mut self, now: Instant) {
        if self.read_closed && self.send.fin_acked() && self.close_deadline.is_none() {
            self.close_deadline = Some(now + self.config.close_timeout);
        }
        if self.send.fin_acked() && self.receive.finished() && !self.finishing {
            self.finishing = true;
            for flow in &mut self.flows {
                flow.close(now);
            }
            // Nothing is open at connection level. The subflows close gracefully for the data in
            // flight (§3.3.3); a dead one delays nothing.
            self.finish();
            self.close_deadline = Some(now + self.config.close_timeout);
        }
    }

    /// Returns true once, when the connection is over and all its subflows are in TIME-WAIT.
    pub(crate) fn enters_time_wait(&mut self) -> bool {
        let is_in_time_wait = |flow: &SubflowContext| flow.tcp.state() == TcpState::TimeWait;
        let all_in_time_wait = self.closed.is_some() && self.flows.iter().all(is_in_time_wait);
        all_in_time_wait && !std::mem::replace(&mut self.time_wait_reported, true)
    }

    /// Ends TIME-WAIT early for all subflows.
    pub(crate) fn end_time_wait(&mut self, host: &HostContext<'_>) {
        for flow in &mut self.flows {
            if flow.tcp.state() == TcpState::TimeWait {
                flow.closed = Some(CloseReason::Finished);
            }
        }
        self.remove_closed(host);
    }

    /// Resets subflows that have not closed although everything is acknowledged.
    pub(super) fn reset_lingering_subflows(&mut self, host: &HostContext<'_>) {
        for index in 0..self.flows.len() {
            let flow = self.flows.get(index);
            if flow.is_some_and(|flow| flow.tcp.state() != TcpState::TimeWait) {
                self.reset_subflow(host, index, NO_REASON);
            }
        }
        self.remove_closed(host);
    }

    /// Finishes the connection after both sides have ended regularly.
    pub(super) fn finish(&mut self) {
        self.close_with(None);
    }

    fn close_with(&mut self, error: Option<ConnectionError>) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some(error.map_or(Ok(()), Err));
        self.retransmit_at = None;
        self.close_deadline = None;
        self.reinjections.clear();
        self.announcements.clear();
        self.push_event(StackEvent::Readable(self.id));
        self.push_event(StackEvent::Closed { connection: self.id, error });
    }

    /// Fails the connection and resets its subflows.
    pub(super) fn fail(&mut self, host: &HostContext<'_>, error: ConnectionError) {
        self.fail_with_reason(host, error, MPTCP_ERROR);
    }

    fn fail_with_reason(
        &mut self,
        host: &HostContext<'_>,
        error: ConnectionError,
        reason: MpTcpRst,
    ) {
        self.close_with(Some(error));
        for flow in &mut self.flows {
            if flow.closed.is_none() {
                flow.reset_reason = Some(reason);
                flow.tcp.abort(host.now);
                flow.closed = Some(CloseReason::Aborted);
            }
        }
    }

    /// Aborts the connection with MP_FASTCLOSE in a RST on every subflow (§3.5, option R); see
    /// [`crate::stack::Stack::abort`].
    pub(crate) fn abort(&mut self, host: &HostContext<'_>) {
        for flow in &mut self.flows {
            flow.fast_close = true;
        }
        self.fail(host, ConnectionError::Aborted);
    }

    /// Handles an abort by the peer, which knows our key (§3.5).
    pub(super) fn on_fast_close(&mut self, host: &HostContext<'_>, key: u64) {
        if key == self.local_key {
            self.fail_fast_closed(host);
        }
    }

    /// Fails a connection that the peer aborted with MP_FASTCLOSE. The resets carry no reason of
    /// our own (§3.6: unspecified).
    pub(super) fn fail_fast_closed(&mut self, host: &HostContext<'_>) {
        self.fail_with_reason(host, ConnectionError::Reset, NO_REASON);
    }
}
