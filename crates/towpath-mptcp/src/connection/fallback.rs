//! Fallback to plain TCP without an MP_FAIL from the peer (RFC 8684 §3.7), when a middlebox strips
//! the options.
//!
//! Both ends must then read the only subflow's stream as the connection's, and they cannot
//! negotiate. Each end follows two rules, so that they agree:
//!
//! - An end falls back only if there never was another subflow and it has sent nothing twice. Every
//!   byte received in order must also have been in order in the data
//!   ([`Connection::can_fall_back`]).
//! - An end retransmits data at connection level on a subflow only if the peer's last segment there
//!   had a DATA_ACK. That peer had not fallen back when it sent the segment. As it misses data, the
//!   first rule prevents a later fallback. Linux also forbids the fallback after a retransmission
//!   (`allow_infinite_fallback`), but only at the sender.
//!
//! An end that may do neither resets the subflow.

use towpath_wire::{Flags, Segment};

use super::failure::MIDDLEBOX;
use super::handshake::capable;
use super::{Connection, ConnectionMode, HostContext};
use crate::stack::FallbackReason;
use crate::subflow::SegmentOutcome;

/// Conditions for reading both directions as the only subflow's streams.
#[derive(Debug)]
pub(super) struct FallbackState {
    /// Set when we have retransmitted data at connection level: our stream is not the subflow's.
    pub(super) retransmitted: bool,
    /// Set when the peer's data was out of order: its stream is not the subflow's.
    pub(super) out_of_order: bool,
    /// End of the last data that arrived in order in its subflow but was dropped.
    pub(super) lost_until: u64,
    /// Set while incoming data is dropped until the peer's infinite mapping (RFC 8684 §3.7).
    pub(super) awaiting_infinite: bool,
}

impl FallbackState {
    /// Creates the state of a connection without any data.
    pub(super) fn new() -> Self {
        Self { retransmitted: false, out_of_order: false, lost_until: 1, awaiting_infinite: false }
    }
}

impl Connection {
    /// Returns true if both directions of the only subflow are the connection's own streams.
    fn can_fall_back(&self) -> bool {
        let single_subflow = self.next_number == 1 && self.flows.len() == 1;
        single_subflow
            && self.is_multipath()
            && !self.fallback_state.retransmitted
            && !self.fallback_state.out_of_order
            && !self.fallback_state.awaiting_infinite
    }

    /// Tracks if data in order on the only subflow is also in order in the data. Otherwise the peer
    /// retransmits what only one of the two levels has acknowledged.
    pub(super) fn track_in_order(&mut self, index: usize) {
        if self.next_number > 1 || !self.is_multipath() {
            return;
        }
        let Some(flow) = self.flows.get(index) else { return };
        let in_order = self.receive.next() - u64::from(self.receive.finished());
        self.fallback_state.out_of_order |=
            in_order + flow.mappings.unchecked_bytes() != flow.tcp.received_until();
    }

    /// Handles a segment without DSS (RFC 8684 §3.7).
    pub(super) fn on_missing_dss(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        segment: &Segment,
        outcome: &SegmentOutcome,
    ) {
        let is_handshake = segment.flags.contains(Flags::SYN) || capable(segment).is_some();
        let Some(flow) = self.flows.get_mut(index) else { return };
        if is_handshake && self.send.acked() == 1 {
            // No DATA_ACK yet: the window counts from the first byte. Later, a window without
            // DATA_ACK does not apply to the connection (§3.3.2).
            let window = flow.tcp.peer_window_bytes();
            self.on_data_ack(host, 1, window);
        }
        let Some(flow) = self.flows.get_mut(index) else { return };
        if outcome.acked_bytes > 0 && flow.join.is_some() && !flow.data_ack_seen {
            // A middlebox has stripped the options from data or acknowledgements (§3.7).
            self.reset_subflow(host, index, MIDDLEBOX);
            return;
        }
        let without_options =
            segment.options.mptcp.is_empty() && !segment.flags.contains(Flags::SYN);
        if !without_options || segment.flags.contains(Flags::RST) {
            return;
        }
        flow.without_data_ack = true;
        let first_ssn = outcome.data.first().map(|(ssn, _)| *ssn);
        let unmapped = first_ssn.is_some_and(|ssn| !flow.mappings.covers(ssn));
        // Data that was never acknowledged by a DATA_ACK, even if other segments carried one.
        let data_unconfirmed = flow.tcp.acked_until() > 1 && !flow.data_ack_confirmed;
        let reason = match (unmapped, self.is_confirmed()) {
            (true, _) => FallbackReason::NoDss,
            (false, false) => FallbackReason::NoCapableInAck,
            (false, true) if data_unconfirmed => FallbackReason::NoDss,
            (false, true) => return,
        };
        if self.can_fall_back() {
            self.fall_back_mid_connection(index, reason);
            self.on_single_stream_ack(host, index);
        }
    }

    /// Returns true if the `DATA_ACK`s have stopped on every subflow, by the peer or a middlebox.
    pub(super) fn options_vanished(&self) -> bool {
        let mut usable = self.flows.iter().filter(|flow| flow.usable()).peekable();
        usable.peek().is_some() && usable.all(|flow| flow.without_data_ack)
    }

    /// Handles data that was delivered by subflows whose segments have no DATA_ACK. If the peer has
    /// fallen back, retransmitting it would be wrong; otherwise it would be useless. So we also
    /// fall back, or the subflow is broken (RFC 8684 §3.7).
    pub(super) fn end_without_options(&mut self, host: &HostContext<'_>) {
        let has_delivered =
            |flow: &super::SubflowContext| flow.usable() && flow.payloads.is_empty();
        if self.can_fall_back() && self.flows.first().is_some_and(has_delivered) {
            self.fall_back_mid_connection(0, FallbackReason::NoDss);
            self.on_single_stream_ack(host, 0);
            self.on_data(host, 0, None);
            return;
        }
        for index in 0..self.flows.len() {
            if self.flows.get(index).is_some_and(has_delivered) {
                self.reset_subflow(host, index, MIDDLEBOX);
            }
        }
    }

    /// Falls back because options do not pass from the peer to us. They may pass in the other
    /// direction: our next data has an infinite mapping, so that the peer does not wait for
    /// mappings (§3.7).
    fn fall_back_mid_connection(&mut self, index: usize, reason: FallbackReason) {
        self.fall_back_to_tcp(Some(reason));
        self.mode = ConnectionMode::Infinite;
        let from_ssn = self.flows.get(index).map_or(1, |flow| flow.tcp.pushed_until());
        self.infinite_shift = Some((from_ssn, 0));
        self.reinjections.clear();
        self.retransmit_at = None;
        self.update_data_options();
    }

    /// Returns the error if the end of the only subflow's stream cannot be the end of the data.
    pub(super) fn end_of_data_error(&self, index: usize) -> Option<&'static str> {
        let unmapped = self.flows.get(index).is_some_and(|flow| flow.mappings.unmapped_bytes() > 0);
        if self.receive.finished() {
            None
        } else if unmapped {
            Some("data without a mapping at the end")
        } else {
            let missing = self.receive.is_missing_data(self.fallback_state.lost_until);
            missing.then_some("data that was lost with its mapping did not come again")
        }
    }
}
