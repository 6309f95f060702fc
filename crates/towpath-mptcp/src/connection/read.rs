//! Application reads, and the window that the subflows offer for them.

use bytes::Bytes;
use towpath_net::Instant;

use super::subflow_context::SubflowContext;
use super::{Connection, ReceiveBufferMode, WindowShare};
use crate::subflow::TcpState;

impl Connection {
    /// Reads the next data in order; see [`crate::stack::Stack::read`].
    pub(crate) fn read(&mut self, now: Instant) -> Option<Bytes> {
        self.readable_notified = false;
        if let Some(bytes) = self.receive.read() {
            self.tune_receive_buffer(now);
            (self.advertisement.changed, self.advertisement.was_read) = (true, true);
            return Some(bytes);
        }
        self.end_was_read |= self.receive.finished();
        (self.receive.finished() || self.closed.is_some()).then(Bytes::new)
    }

    fn tune_receive_buffer(&mut self, now: Instant) {
        let counts_packets = self.config.receive_buffer.is_counted_in_packets();
        if self.config.receive_buffer.mode == ReceiveBufferMode::Fixed && !counts_packets {
            return;
        }
        let rtt = |flow: &SubflowContext| {
            if counts_packets { flow.tcp.receiver_rtt() } else { flow.tcp.srtt() }
        };
        let rtt = self.flows.iter().map(rtt).max().unwrap_or_default();
        let round_ended = self.buffer_tuner.is_due(now, rtt);
        // `mptcp_rcv_space_adjust` checks all subflows when a round trip has ended, or if none is
        // known.
        if counts_packets && !self.is_single_stream() && (round_ended || rtt.is_zero()) {
            // Linux counts a subflow of the peer once its handshake has ended, and its own from the
            // SYN on.
            let is_counted = |flow: &&SubflowContext| {
                flow.closed.is_none() && flow.tcp.state() != TcpState::SynReceived
            };
            let counted = self.flows.iter().filter(is_counted);
            let packet_payload =
                |flow: &SubflowContext| flow.tcp.received_packet_bytes().unwrap_or(0).into();
            self.buffer_tuner.note_subflows(counted.map(packet_payload));
        }
        if !round_ended {
            return;
        }
        let mss = self.flows.iter().map(|flow| flow.tcp.mss_bytes()).max().unwrap_or_default();
        let arrived_bytes = self.receive.received_bytes() + self.receive.out_of_order_bytes();
        self.buffer_tuner.update(now, self.receive.read_bytes(), arrived_bytes, mss);
    }

    /// Offers the shared window on every subflow.
    pub(super) fn update_windows(&mut self) {
        self.advertisement.changed = false;
        let unit = 1 << self.window_scale().unwrap_or(0);
        self.account_subflow_queue();
        let packets = self.flows.iter().filter_map(|flow| flow.tcp.received_packet_bytes());
        if let Some(largest) = packets.max() {
            self.buffer_tuner.note_packets(largest.into(), self.is_single_stream());
        }
        let offered = self.offered_bytes();
        let free = self.free_bytes();
        let shared = !self.is_single_stream();
        let limit = self.flows.iter().map(|flow| flow.window_limit).max();
        let free_window = self.buffer_tuner.window_bytes(free, limit.unwrap_or(free), unit);
        // Linux keeps the connection's edge to the byte, and advertises the whole units of it
        // (`mptcp_set_rwin`).
        let keeps_exact_edge = shared && self.config.receive_buffer.is_counted_in_packets();
        let window = if keeps_exact_edge {
            self.receive.window(free_window, 1) / unit * unit
        } else {
            self.receive.window(free_window, unit)
        };
        // The windows promised on all subflows together may exceed the buffer.
        let spare = self.buffer_tuner.buffer_bytes().saturating_sub(self.reorder_bytes());
        for flow in &mut self.flows {
            flow.tcp.set_receive_window(window, shared);
            flow.tcp.set_max_out_of_order_bytes(spare.saturating_add(flow.tcp.reorder_bytes()));
        }
        if self.config.acks_on_read {
            return self.ack_after_read(window, offered);
        }
        // An update on one subflow, the last one used, is enough. In plain TCP, a direction that we
        // have closed still receives.
        let candidates = self.flows.iter_mut().filter(|flow| flow.usable() || !shared);
        if let Some(flow) = candidates.max_by_key(|flow| (flow.last_data_at, flow.path))
            && flow.tcp.window_update_due()
        {
            flow.tcp.set_ack_due();
        }
    }

    /// Accounts for out-of-order data in the subflow of plain TCP. It takes memory of the same
    /// buffer and lets it grow ([`WindowShare::LinuxPackets`]).
    fn account_subflow_queue(&mut self) {
        if let Some(span) = self.packet_counted_subflow().map(|flow| flow.tcp.reorder_span_bytes())
        {
            self.buffer_tuner.on_ofo_span(span);
        }
    }

    /// Returns the subflow of plain TCP if the receive buffer is counted in packets.
    fn packet_counted_subflow(&self) -> Option<&SubflowContext> {
        let counted = self.config.receive_buffer.is_counted_in_packets();
        self.flows.first().filter(|_| counted && self.is_single_stream())
    }

    /// Returns the bytes that may be offered when all data is read. In Linux, out-of-order data
    /// takes buffer memory in addition to its place in the window. The window therefore shrinks by
    /// it once more (`tcp_space`).
    pub(super) fn offered_bytes(&self) -> u64 {
        let counts_packet_memory =
            self.config.receive_buffer.window_share != WindowShare::Percent(100);
        let out_of_order_bytes = || {
            let in_subflow =
                self.packet_counted_subflow().map_or(0, |flow| flow.tcp.reorder_bytes());
            self.receive.out_of_order_bytes() + in_subflow
        };
        self.buffer_tuner.offered_bytes().saturating_sub(if counts_packet_memory {
            out_of_order_bytes()
        } else {
            0
        })
    }

    fn free_bytes(&self) -> u64 {
        self.offered_bytes().saturating_sub(self.receive.ready_bytes())
    }

    /// Raises the window limit after `bytes` came in order on a subflow. Twice as many may be
    /// offered, if there is room (`tcp_grow_window`).
    pub(super) fn raise_window_limit(&mut self, index: usize, bytes: u64) {
        let free = self.free_bytes();
        if let Some(flow) = self.flows.get_mut(index).filter(|flow| flow.window_limit < free) {
            flow.window_limit = free.min(flow.window_limit + 2 * bytes);
        }
    }

    /// Sends the acknowledgements that are due after a read by the application
    /// ([`super::ConnectionConfig::acks_on_read`]).
    fn ack_after_read(&mut self, window: u64, offered: u64) {
        if !std::mem::take(&mut self.advertisement.was_read) {
            return;
        }
        let (single_stream, drained) = (self.is_single_stream(), !self.receive.has_unread());
        let mss = self.flows.iter().map(|flow| u64::from(flow.tcp.mss_bytes())).max();
        // RFC 9293 §3.8.6.2.2: no small increments.
        let is_large_enough = window >= mss.unwrap_or(1).min(offered.max(1));
        let window = if is_large_enough { window } else { 0 };
        let window_doubled = window > 0 && window >= 2 * self.advertisement.advertised_bytes;
        for flow in self.flows.iter_mut().filter(|flow| flow.usable() || single_stream) {
            if single_stream || window_doubled || flow.tcp.acknowledges_when_read(drained) {
                flow.tcp.on_read(drained, window, offered);
            }
        }
    }
}
