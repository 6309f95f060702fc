//! Processing of a received segment: handshake options, TCP, mapping, the connection's order,
//! acknowledgements.

use towpath_multipath::congestion::Sibling;
use towpath_multipath::scheduler::SchedulerEvent;
use towpath_wire::keys;
use towpath_wire::{DataAck, Dss, DssMapping, Flags, MptcpOption, Payload, Segment};

use super::failure::MIDDLEBOX;
use super::handshake::{MPTCP_ERROR, capable, is_supported};
use super::mapping::{AbsoluteMapping, MappingOutcome};
use super::{Connection, ConnectionMode, HostContext};
use crate::stack::{ConnectionError, FallbackReason, StackEvent, StackNotice};
use crate::subflow::{CloseReason, IcmpError, SegmentOutcome, TcpState};

impl Connection {
    /// Handles a segment of one of the connection's subflows.
    pub(crate) fn on_segment(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        segment: &mut Segment,
    ) {
        if !self.check_handshake(host, index, segment) {
            return;
        }
        self.note_fast_close(index, segment);
        let siblings = self.siblings(index);
        let Some(flow) = self.flows.get_mut(index) else { return };
        let was_syn_sent = flow.tcp.state() == TcpState::SynSent;
        let mut outcome = std::mem::take(&mut self.received);
        let is_empty = segment.payload.is_empty();
        flow.tcp.on_segment_into(host.now, segment, flow.path, &siblings, &mut outcome);
        if was_syn_sent && flow.join.is_none() && outcome.established {
            self.on_syn_ack(segment);
        }
        if was_syn_sent
            && subflow_has_state(self, index, TcpState::SynReceived)
            && self.mode == ConnectionMode::Offered
        {
            self.fall_back_to_tcp(Some(FallbackReason::SimultaneousOpen));
        }
        if outcome.established {
            self.on_answered(index);
        }
        if outcome.established && self.flows.get(index).is_some_and(|flow| flow.join.is_none()) {
            self.on_first_established();
        }
        self.on_tcp_progress(host, index, &outcome);
        if outcome.acceptable {
            self.resume_option_acks(index);
            if is_empty {
                drop_empty_mapping(segment);
            }
            self.on_options(host, index, segment, &outcome);
        }
        self.announce_subflow(index, host);
        let unreadable = !outcome.data.is_empty() && self.is_closed_for_reading(index);
        self.on_data(host, index, outcome.data.drain(..));
        if unreadable {
            // The peer must not believe that its data is read (RFC 9293 §3.6.1, RFC 2525 §2.17).
            self.fail(host, ConnectionError::Aborted);
        }
        if outcome.fin {
            self.on_subflow_fin(host, index);
        }
        if let Some(reason) = outcome.closed {
            self.on_subflow_closed(host, index, reason, segment);
        }
        self.received = outcome;
        self.progress_close(host);
    }

    /// Returns true for plain TCP whose application has closed both directions, with the FIN sent.
    fn is_closed_for_reading(&self, index: usize) -> bool {
        let closing = self.flows.get(index).is_some_and(|flow| flow.closed_locally);
        self.read_closed && self.is_single_stream() && closing && self.closed.is_none()
    }

    /// Records MP_FASTCLOSE in a RST (§3.5). A RST that overtook data lacks the exact sequence
    /// number, so TCP sends a challenge ACK (RFC 5961 §3.2). The RST in reply no longer has the
    /// option, but our key was correct.
    fn note_fast_close(&mut self, index: usize, segment: &Segment) {
        let with_own_key = MptcpOption::FastClose { key: self.local_key };
        if segment.flags.contains(Flags::RST)
            && segment.options.mptcp.contains(&with_own_key)
            && let Some(flow) = self.flows.get_mut(index)
        {
            flow.fast_closed |= flow.tcp.would_accept(segment);
        }
    }

    /// Checks handshakes whose options decide if TCP may process the segment.
    fn check_handshake(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        segment: &mut Segment,
    ) -> bool {
        if self.awaits_third_packet(index) && !self.on_third_packet(segment) {
            return false;
        }
        if self.check_join(index, segment, host.now) {
            return true;
        }
        if let Some(flow) = self.flows.get_mut(index)
            && flow.tcp.state() == TcpState::SynSent
        {
            // Only a sender that knows the peer's numbers can reset a subflow after the SYN/ACK
            // (§3.2).
            let _ = flow.tcp.on_segment(host.now, segment, flow.path, &[]);
        }
        self.reset_subflow(host, index, MPTCP_ERROR);
        false
    }

    fn siblings(&self, index: usize) -> Vec<Sibling> {
        if !self.flows.get(index).is_some_and(|flow| flow.tcp.is_coupled()) {
            return Vec::new();
        }
        let usable = self.flows.iter().filter(|flow| flow.usable());
        usable.map(|flow| flow.tcp.sibling(flow.path)).collect()
    }

    /// Reports TCP's acknowledgements and losses to the scheduler. In plain TCP the
    /// acknowledgements are the connection's.
    fn on_tcp_progress(&mut self, host: &HostContext<'_>, index: usize, outcome: &SegmentOutcome) {
        let Some(flow) = self.flows.get_mut(index) else { return };
        let path = flow.path;
        if outcome.acked_bytes > 0 {
            flow.drop_acked();
            if flow.stale {
                (flow.stale, flow.silent_rounds) = (false, 0);
                let number = flow.number;
                self.push_notice(StackNotice::Stale { number, stale: false });
            }
            if self.flows.len() > 1 {
                let bytes = outcome.acked_bytes;
                self.scheduler.on_event(SchedulerEvent::Acked { path, bytes });
            }
        }
        if outcome.lost {
            self.scheduler.on_event(SchedulerEvent::Lost { path });
        }
        if outcome.acceptable && self.is_multipath() && self.grows_by_memory() {
            // The subflow's buffer, and so the connection's, may have grown (Linux
            // `subflow_write_space`, `mptcp_propagate_sndbuf`).
            self.wake_writer();
        }
        if self.is_single_stream() && outcome.acceptable {
            self.on_single_stream_ack(host, index);
        }
    }

    /// Applies a subflow's acknowledgement to the connection's data, which is the subflow's stream.
    pub(super) fn on_single_stream_ack(&mut self, host: &HostContext<'_>, index: usize) {
        let Some(flow) = self.flows.get(index) else { return };
        if flow.tcp.state() == TcpState::SynSent || flow.tcp.state() == TcpState::SynReceived {
            return;
        }
        let (from_ssn, shift) = self.infinite_shift.unwrap_or((1, 0));
        let acked_until = flow.tcp.acked_until();
        if acked_until < from_ssn && shift != 0 {
            return;
        }
        let acked_until = acked_until.wrapping_add(shift).min(self.send.next());
        self.on_data_ack(host, acked_until, flow.tcp.peer_window_bytes());
    }

    /// Processes the Multipath TCP options of an acceptable segment.
    fn on_options(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        segment: &Segment,
        outcome: &SegmentOutcome,
    ) {
        if self.is_single_stream() {
            self.on_options_after_fallback(host, index, segment);
            return;
        }
        if self.mode == ConnectionMode::Offered {
            return;
        }
        if let Some(option) = capable(segment).filter(|option| is_supported(option))
            && let Some((len, checksum)) = option.data
            && !self.client
        {
            if self.reset_on_checksum_mismatch(host, index, checksum) {
                return;
            }
            self.note_mapping_octets(true);
            self.record_mapping(index, 1, 1, len, 0, checksum);
        }
        match segment.options.dss {
            Some(dss) => {
                if !segment.flags.contains(Flags::SYN) {
                    self.confirm(host);
                }
                self.on_dss(host, index, &dss, segment.window);
            }
            None => self.on_missing_dss(host, index, segment, outcome),
        }
        for option in &segment.options.mptcp {
            self.on_option(host, index, option);
        }
    }

    fn on_dss(&mut self, host: &HostContext<'_>, index: usize, dss: &Dss, window: u16) {
        if let Some(mapping) = dss.mapping {
            self.on_mapping(host, index, dss.data_fin, &mapping);
        }
        if let Some(flow) = self.flows.get_mut(index) {
            flow.without_data_ack = dss.data_ack.is_none();
        }
        if let Some(ack) = dss.data_ack {
            if let Some(flow) = self.flows.get_mut(index) {
                flow.data_ack_seen = true;
                flow.data_ack_confirmed |= flow.tcp.acked_until() > 1;
            }
            let acked_until = data_offset(ack, self.local_idsn, self.send.acked());
            let exceeds_window = self.config.exceeds_peer_window;
            let bytes = self.flows.get(index).map_or(0, |flow| {
                if exceeds_window {
                    flow.tcp.peer_window_bytes()
                } else {
                    flow.tcp.unscale_window(window)
                }
            });
            self.on_data_ack(host, acked_until, bytes);
            if window == 0 && acked_until <= self.send.acked() {
                // A peer that keeps its window closed is alive (RFC 9293 §3.8.6.1).
                self.unacked_since = None;
            }
        }
    }

    fn on_mapping(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        fin: bool,
        mapping: &DssMapping,
    ) {
        let start = data_offset(mapping.dsn, self.remote_idsn, self.receive.next());
        let Some(flow) = self.flows.get_mut(index) else { return };
        // Relative subflow sequence numbers are offsets without the upper 32 bits.
        let peer_isn = flow.tcp.peer_isn().unwrap_or(0);
        let ssn = flow.tcp.offset_of(peer_isn.wrapping_add(mapping.ssn));
        if mapping.len == 0 {
            self.on_infinite_mapping(host, index, ssn, start);
            return;
        }
        if self.reset_on_checksum_mismatch(host, index, mapping.checksum) {
            return;
        }
        let data_bytes = u64::from(mapping.len) - u64::from(fin);
        if data_bytes > 0 {
            self.note_mapping_octets(matches!(mapping.dsn, DataAck::Long(_)));
        }
        if fin && (data_bytes > 0 || self.verify_fin_checksum(start, mapping)) {
            let progress = self.receive.on_fin(start.wrapping_add(data_bytes));
            self.on_receive_progress(progress);
            // Out of order, an acknowledgement adds no information. It repeats our own DATA_FIN, so
            // two hosts that miss data could acknowledge each other endlessly.
            if (self.receive.finished() || !self.fin_due())
                && let Some(flow) = self.flows.get_mut(index)
            {
                flow.tcp.set_ack_due();
            }
        }
        // DATA_FIN without data has no subflow sequence number (§3.3.3).
        if data_bytes > 0 && mapping.ssn != 0 {
            self.record_mapping(index, ssn, start, mapping.len, u16::from(fin), mapping.checksum);
        }
    }

    /// Resets the subflow and returns true if a checksum is present without agreement, or missing
    /// despite it: the subflow is broken (§3.3).
    fn reset_on_checksum_mismatch(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        checksum: Option<u16>,
    ) -> bool {
        let mismatch = self.checksum != checksum.is_some();
        if mismatch {
            self.reset_subflow(host, index, MPTCP_ERROR);
        }
        mismatch
    }

    /// Verifies the checksum of a DATA_FIN without data, which covers the pseudo header (§3.3.3). A
    /// DATA_FIN with a wrong one is ignored: the peer retransmits it.
    fn verify_fin_checksum(&self, start: u64, mapping: &DssMapping) -> bool {
        let dsn = self.remote_idsn.wrapping_add(start);
        mapping.checksum.is_none_or(|sum| {
            keys::verify_dss_checksum(dsn, mapping.ssn, mapping.len, &Payload::EMPTY, sum)
        })
    }

    pub(super) fn record_mapping(
        &mut self,
        index: usize,
        ssn: u64,
        start: u64,
        len: u16,
        fin: u16,
        checksum: Option<u16>,
    ) {
        let dsn = self.remote_idsn.wrapping_add(start);
        let checksum_fields = self.checksum.then(|| (checksum.unwrap_or(0), len, dsn, ssn as u32));
        let Some(flow) = self.flows.get_mut(index) else { return };
        let data_bytes = u64::from(len.saturating_sub(fin));
        let mapping = AbsoluteMapping { ssn, len: data_bytes, start, checksum: checksum_fields };
        flow.mappings.record(&mapping);
    }

    pub(super) fn on_data_ack(&mut self, host: &HostContext<'_>, until: u64, window: u64) {
        let Some(acked) = self.send.on_data_ack(until, window) else { return };
        if acked.bytes > 0 || acked.fin {
            self.backoff = 0;
            self.unacked_since = None;
            self.arm_retransmission(host.now);
        }
        if acked.window_opened || acked.bytes > 0 {
            self.note_window_blocked(host, false);
        }
        if acked.bytes > 0 {
            self.wake_writer();
        }
    }

    /// Notifies a blocked writer if there is enough room.
    fn wake_writer(&mut self) {
        if self.writer.blocked && self.may_wake_writer() {
            self.writer.blocked = false;
            self.push_event(StackEvent::Writable(self.id));
        }
    }

    /// Processes data that is in order in a subflow.
    pub(super) fn on_data(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        data: impl IntoIterator<Item = (u64, Payload)>,
    ) {
        let mut mapped = std::mem::take(&mut self.mapped);
        let mut bytes = 0;
        if let Some(flow) = self.flows.get_mut(index) {
            let mut has_data = false;
            for (ssn, payload) in data {
                has_data = true;
                bytes += payload.len() as u64;
                flow.mappings.take(ssn, payload, &mut mapped);
            }
            if has_data {
                flow.last_data_at = host.now;
            } else if flow.mappings.unmapped_bytes() > 0 {
                let received_until = flow.tcp.received_until();
                flow.mappings.take(received_until, Payload::EMPTY, &mut mapped);
            }
        }
        self.raise_window_limit(index, bytes);
        for piece in mapped.drain(..) {
            match piece {
                MappingOutcome::Data(start, payload) => self.on_mapped(start, payload),
                MappingOutcome::BadChecksum(start) => self.on_bad_checksum(host, index, start),
                // No mapping within a window of data: the subflow is broken (§3.3.1, §3.7).
                MappingOutcome::Unmapped => self.reset_subflow(host, index, MIDDLEBOX),
            }
        }
        self.mapped = mapped;
        self.track_in_order(index);
        // Received data may wait in the subflow for a gap there.
        self.note_reordering();
    }

    fn on_mapped(&mut self, start: u64, payload: Payload) {
        let end = start.saturating_add(payload.len() as u64);
        // Plain TCP has acknowledged this data, so it cannot be refused any more. Linux checks the
        // window only for out-of-order data (`mptcp_data_queue_ofo`).
        let is_next_in_order =
            self.config.receive_buffer.is_counted_in_packets() && start <= self.receive.next();
        let admitted = self.is_single_stream() || is_next_in_order || self.receive.admits(end);
        if self.fallback_state.awaiting_infinite || start == 0 || !admitted {
            // Not acknowledged at connection level, so the peer keeps and retransmits it.
            self.counters.discarded_bytes += payload.len() as u64;
            self.fallback_state.lost_until = self.fallback_state.lost_until.max(end);
            if self.fallback_state.awaiting_infinite {
                self.schedule_mp_fail();
            }
            return;
        }
        let progress = self.receive.insert(start, payload);
        self.on_receive_progress(progress);
        self.advertisement.changed = true;
        self.note_reordering();
    }

    fn note_reordering(&mut self) {
        let reorder = self.reorder_bytes();
        self.counters.reorder_peak_bytes = self.counters.reorder_peak_bytes.max(reorder);
    }

    pub(super) fn on_receive_progress(&mut self, progress: super::receive::ReceiveProgress) {
        if (progress.in_order > 0 && !self.readable_notified) || progress.finished {
            self.readable_notified = true;
            self.push_event(StackEvent::Readable(self.id));
        }
    }

    /// Handles a FIN of the peer: the end of the data in plain TCP, and of this path in Multipath
    /// TCP.
    fn on_subflow_fin(&mut self, host: &HostContext<'_>, index: usize) {
        if self.mode == ConnectionMode::Plain || self.mode == ConnectionMode::Infinite {
            if let Some(error) = self.end_of_data_error(index) {
                self.fail(host, ConnectionError::Protocol(error));
                return;
            }
            let progress = self.receive.on_fin(self.receive.next());
            self.on_receive_progress(progress);
            return;
        }
        // The peer has ended its data and closes its direction of the subflows; ours still carry
        // our remaining data (§3.3.3). Without DATA_FIN the peer gives up this subflow alone.
        if self.receive.finished() && !self.finishing {
            return;
        }
        let without_data_ack = self.flows.get(index).is_some_and(|flow| flow.without_data_ack);
        if (self.flows.len() == 1 || without_data_ack) && !self.send.fin_acked() {
            // The peer may have fallen back without our knowledge: it would take a FIN as the end
            // of the data.
            self.reset_subflow(host, index, MPTCP_ERROR);
            return;
        }
        let Some(flow) = self.flows.get_mut(index) else { return };
        flow.close(host.now);
        let path = flow.path;
        self.reinject_all(path, crate::stack::ReinjectionCause::Closed);
    }

    fn on_subflow_closed(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        reason: CloseReason,
        segment: &Segment,
    ) {
        let mut fast_closed = false;
        if let Some(flow) = self.flows.get_mut(index) {
            for option in &segment.options.mptcp {
                if let MptcpOption::Reset(reset) = option {
                    flow.peer_reset = Some(*reset);
                }
                if let MptcpOption::FastClose { key } = option {
                    flow.fast_closed |= *key == self.local_key;
                }
            }
            flow.closed = Some(reason);
            fast_closed = flow.fast_closed;
        }
        if fast_closed {
            self.fail_fast_closed(host);
        }
        self.remove_closed(host);
    }

    /// Ends the connection if a SYN for a subflow in TIME-WAIT may begin a new connection. Returns
    /// the sequence number after the last one that the subflow used.
    pub(crate) fn reopen(
        &mut self,
        host: &HostContext<'_>,
        index: usize,
        syn: &Segment,
    ) -> Option<u32> {
        let flow = self.flows.get_mut(index).filter(|flow| flow.tcp.allows_reuse_by(syn))?;
        let used_until = flow.tcp.used_until();
        flow.closed = Some(CloseReason::Finished);
        self.remove_closed(host);
        Some(used_until)
    }

    /// Processes an ICMP message about one of the connection's subflows.
    pub(crate) fn on_icmp(&mut self, host: &HostContext<'_>, index: usize, error: IcmpError) {
        if let Some(flow) = self.flows.get_mut(index) {
            flow.tcp.on_icmp(host.now, error);
            self.update_data_options();
        }
    }
}

/// Drops a mapping without data. An infinite mapping (length 0) begins with the data of its segment
/// (RFC 8684 §3.7); without data it is ignored, as in Linux.
fn drop_empty_mapping(segment: &mut Segment) {
    if let Some(dss) = &mut segment.options.dss {
        dss.mapping = dss.mapping.filter(|mapping| mapping.len > 0);
    }
}

fn subflow_has_state(connection: &Connection, index: usize, state: TcpState) -> bool {
    connection.flows.get(index).is_some_and(|flow| flow.tcp.state() == state)
}

/// Returns the offset of a data sequence number from the wire. A 32-bit number is expanded to the
/// nearest offset to `near` (RFC 8684 §3.3.1).
pub(super) fn data_offset(number: DataAck, idsn: u64, near: u64) -> u64 {
    match number {
        DataAck::Long(dsn) => dsn.wrapping_sub(idsn),
        DataAck::Short(low) => {
            let absolute = idsn.wrapping_add(near);
            let distance = low.wrapping_sub(absolute as u32).cast_signed();
            near.wrapping_add_signed(i64::from(distance))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_numbers_are_expanded_to_the_nearest() {
        let idsn = u64::MAX - 5;
        for (near, offset) in [(1, 1), (1, 40), (100, 90), (0x1_0000_0000, 0xffff_fff0), (7, 9)] {
            let absolute = idsn.wrapping_add(offset);
            assert_eq!(data_offset(DataAck::Short(absolute as u32), idsn, near), offset);
            assert_eq!(data_offset(DataAck::Long(absolute), idsn, near), offset);
        }
    }
}
