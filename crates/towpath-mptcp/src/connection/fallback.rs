//! Back to plain TCP without a number from the peer (RFC 8684 §3.7): something takes the options out.
//!
//! Then both ends must read the only subflow's stream as the connection's, and neither can ask the
//! other. So each end goes by what the other can know:
//!
//! - An end falls back only if there never was another subflow, it has sent nothing twice, and every
//!   byte that came in order had its place in the data at once ([`Connection::can_fall_back`]).
//! - An end sends data again on a subflow only if the peer's last segment there had a DATA_ACK: the
//!   peer, which misses the data, was no plain TCP when it said so, and by the first rule it will
//!   not become one. Linux forbids the fallback after a repetition too (`allow_infinite_fallback`),
//!   but only at the end that repeats.
//!
//! An end that may do neither resets the subflow.

use crate::stack::FallbackReason;
use crate::subflow::SegmentOutcome;
use crate::wire::{Flags, Segment};

use super::failure::MIDDLEBOX;
use super::handshake::capable;
use super::{Connection, ConnectionMode, HostContext};

/// Whether both directions of the connection are still their only subflow's streams.
#[derive(Debug)]
pub(super) struct FallbackState {
    /// Data was sent a second time for the connection: ours is not.
    pub(super) sent_twice: bool,
    /// Data of the peer was not in its place at once: neither is the peer's.
    pub(super) out_of_order: bool,
    /// Behind the last data that came in order in its subflow, and was dropped all the same.
    pub(super) lost_until: u64,
    /// Incoming data is dropped until the peer's infinite mapping (RFC 8684 §3.7).
    pub(super) awaiting_infinite: bool,
}

impl FallbackState {
    /// Nothing was sent yet.
    pub(super) fn new() -> Self {
        Self { sent_twice: false, out_of_order: false, lost_until: 1, awaiting_infinite: false }
    }
}

impl Connection {
    /// Whether both directions of the only subflow are the connection's own streams.
    fn can_fall_back(&self) -> bool {
        let only = self.next_number == 1 && self.flows.len() == 1;
        only && self.is_multipath()
            && !self.fallback_state.sent_twice
            && !self.fallback_state.out_of_order
            && !self.fallback_state.awaiting_infinite
    }

    /// Notes whether what came in order on the only subflow is what is in order in the data: the
    /// packets that acknowledge one and not the other make the peer repeat it.
    pub(super) fn track_in_order(&mut self, index: usize) {
        if self.next_number > 1 || !self.is_multipath() {
            return;
        }
        let Some(flow) = self.flows.get(index) else { return };
        let in_order = self.receive.next() - u64::from(self.receive.finished());
        self.fallback_state.out_of_order |=
            in_order + flow.mappings.unchecked_bytes() != flow.tcp.received_until();
    }

    /// A segment without DSS (RFC 8684 §3.7).
    pub(super) fn on_missing_dss(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        segment: &Segment,
        received: &SegmentOutcome,
    ) {
        let handshake = segment.flags.contains(Flags::SYN) || capable(segment).is_some();
        let Some(flow) = self.flows.get_mut(index) else { return };
        if handshake && self.send.acked() == 1 {
            // No DATA_ACK yet: the window counts from the first byte. Otherwise, a window without
            // DATA_ACK says nothing of the connection's (§3.3.2).
            let window = flow.tcp.peer_window_bytes();
            self.on_data_ack(host, 1, window);
        }
        let Some(flow) = self.flows.get_mut(index) else { return };
        if received.acked_bytes > 0 && flow.join.is_some() && !flow.data_ack_seen {
            // Someone has taken the options from data or acknowledgements (§3.7).
            self.reset_subflow(host, index, MIDDLEBOX);
            return;
        }
        let bare = segment.options.mptcp.is_empty() && !segment.flags.contains(Flags::SYN);
        if !bare || segment.flags.contains(Flags::RST) {
            return;
        }
        flow.without_data_ack = true;
        let first = received.data.first().map(|(ssn, _)| *ssn);
        let unmapped = first.is_some_and(|ssn| !flow.mappings.covers(ssn));
        // Data that was never acknowledged by a DATA_ACK, whatever else had one.
        let unanswered = flow.tcp.acked_until() > 1 && !flow.data_answered;
        let why = match (unmapped, self.is_confirmed()) {
            (true, _) => FallbackReason::NoDss,
            (false, false) => FallbackReason::NoCapableInAck,
            (false, true) if unanswered => FallbackReason::NoDss,
            (false, true) => return,
        };
        if self.can_fall_back() {
            self.fall_back_mid_connection(index, why);
            self.on_single_ack(host, index);
        }
    }

    /// Whether every subflow's peer, or what is on its path, has stopped sending `DATA_ACK`s.
    pub(super) fn options_vanished(&self) -> bool {
        let mut usable = self.flows.iter().filter(|flow| flow.usable()).peekable();
        usable.peek().is_some() && usable.all(|flow| flow.without_data_ack)
    }

    /// Data was delivered by subflows whose segments have no DATA_ACK: to repeat it would be wrong if
    /// the peer has fallen back, and in vain otherwise. So we fall back too, or the subflow is broken
    /// (RFC 8684 §3.7).
    pub(super) fn end_without_options(&mut self, host: &HostContext<'_>) {
        let delivered = |flow: &super::SubflowContext| flow.usable() && flow.payloads.is_empty();
        if self.can_fall_back() && self.flows.first().is_some_and(delivered) {
            self.fall_back_mid_connection(0, FallbackReason::NoDss);
            self.on_single_ack(host, 0);
            self.on_data(host, 0, None);
            return;
        }
        for index in 0..self.flows.len() {
            if self.flows.get(index).is_some_and(delivered) {
                self.reset_subflow(host, index, MIDDLEBOX);
            }
        }
    }

    /// Options do not pass from the peer to us. The other way they may: so that the peer does not wait
    /// for mappings, our next data has an infinite one (§3.7).
    fn fall_back_mid_connection(&mut self, index: usize, why: FallbackReason) {
        self.fall_back_to_tcp(Some(why));
        self.mode = ConnectionMode::Infinite;
        let from = self.flows.get(index).map_or(1, |flow| flow.tcp.pushed_until());
        self.sent_shift = Some((from, 0));
        self.reinjections.clear();
        self.retransmit_at = None;
        self.update_data_options();
    }

    /// What is wrong with an end of the only subflow's stream that is to be the end of the data.
    pub(super) fn end_of_data_error(&self, index: usize) -> Option<&'static str> {
        let unmapped = self.flows.get(index).is_some_and(|flow| flow.mappings.unmapped_bytes() > 0);
        if self.receive.finished() {
            None
        } else if unmapped {
            Some("data without a mapping at the end")
        } else {
            let missing = self.receive.misses(self.fallback_state.lost_until);
            missing.then_some("data that was lost with its mapping did not come again")
        }
    }
}
