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
            (self.offer.changed, self.offer.was_read) = (true, true);
            return Some(bytes);
        }
        self.end_was_read |= self.receive.finished();
        (self.receive.finished() || self.closed.is_some()).then(Bytes::new)
    }

    fn tune_receive_buffer(&mut self, now: Instant) {
        let as_receiver = self.config.receive_buffer.is_counted_in_packets();
        if self.config.receive_buffer.mode == ReceiveBufferMode::Fixed && !as_receiver {
            return;
        }
        let rtt = |flow: &SubflowContext| {
            if as_receiver { flow.tcp.receiver_rtt() } else { flow.tcp.srtt() }
        };
        let rtt = self.flows.iter().map(rtt).max().unwrap_or_default();
        let due = self.tuning.is_due(now, rtt);
        // `mptcp_rcv_space_adjust` checks all subflows when a round trip has ended, or if none is
        // known.
        if as_receiver && !self.is_single() && (due || rtt.is_zero()) {
            // Linux counts a subflow of the peer once its handshake has ended, and its own from the
            // SYN on.
            let counts = |flow: &&SubflowContext| {
                flow.closed.is_none() && flow.tcp.state() != TcpState::SynReceived
            };
            let open = self.flows.iter().filter(counts);
            let payload =
                |flow: &SubflowContext| flow.tcp.received_packet_bytes().unwrap_or(0).into();
            self.tuning.note_subflows(open.map(payload));
        }
        if !due {
            return;
        }
        let mss = self.flows.iter().map(|flow| flow.tcp.mss_bytes()).max().unwrap_or_default();
        let arrived = self.receive.received_bytes() + self.receive.out_of_order_bytes();
        self.tuning.update(now, self.receive.read_bytes(), arrived, mss);
    }

    /// Offers the shared window on every subflow.
    pub(super) fn update_windows(&mut self) {
        self.offer.changed = false;
        let unit = 1 << self.window_scale().unwrap_or(0);
        self.account_subflow_queue();
        let packets = self.flows.iter().filter_map(|flow| flow.tcp.received_packet_bytes());
        if let Some(largest) = packets.max() {
            self.tuning.note_packets(largest.into(), self.is_single());
        }
        let offered = self.offered_bytes();
        let free = self.free_bytes();
        let shared = !self.is_single();
        let limit = self.flows.iter().map(|flow| flow.window_limit).max();
        let room = self.tuning.window_bytes(free, limit.unwrap_or(free), unit);
        // Linux keeps the connection's edge to the byte, and advertises the whole units of it
        // (`mptcp_set_rwin`).
        let exact = shared && self.config.receive_buffer.is_counted_in_packets();
        let window = if exact {
            self.receive.window(room, 1) / unit * unit
        } else {
            self.receive.window(room, unit)
        };
        // The windows promised on all subflows together may exceed the buffer.
        let room = self.tuning.buffer_bytes().saturating_sub(self.reorder_bytes());
        for flow in &mut self.flows {
            flow.tcp.set_receive_window(window, shared);
            flow.tcp.set_max_out_of_order_bytes(room.saturating_add(flow.tcp.reorder_bytes()));
        }
        if self.config.acks_on_read {
            return self.ack_after_read(window, offered);
        }
        // An update on one subflow, the last one used, is enough. In plain TCP, a direction that we
        // have closed still receives.
        let latest = self.flows.iter_mut().filter(|flow| flow.usable() || !shared);
        if let Some(flow) = latest.max_by_key(|flow| (flow.last_data_at, flow.path))
            && flow.tcp.window_update_due()
        {
            flow.tcp.want_ack();
        }
    }

    /// Accounts for out-of-order data in the subflow of plain TCP. It takes memory of the same
    /// buffer and lets it grow ([`WindowShare::LinuxPackets`]).
    fn account_subflow_queue(&mut self) {
        if let Some(span) = self.sole_receiver().map(|flow| flow.tcp.reorder_span_bytes()) {
            self.tuning.on_ofo_span(span);
        }
    }

    fn sole_receiver(&self) -> Option<&SubflowContext> {
        let counted = self.config.receive_buffer.is_counted_in_packets();
        self.flows.first().filter(|_| counted && self.is_single())
    }

    /// Returns the bytes that may be offered when no data is unread. In Linux, out-of-order data
    /// takes buffer memory in addition to its place in the window. The window therefore shrinks by
    /// it once more (`tcp_space`).
    pub(super) fn offered_bytes(&self) -> u64 {
        let accounts = self.config.receive_buffer.window_share != WindowShare::Percent(100);
        let waiting = || {
            let below = self.sole_receiver().map_or(0, |flow| flow.tcp.reorder_bytes());
            self.receive.out_of_order_bytes() + below
        };
        self.tuning.offered_bytes().saturating_sub(if accounts { waiting() } else { 0 })
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

    /// The application has read: what waits for that is acknowledged
    /// ([`super::ConnectionConfig::acks_on_read`]).
    fn ack_after_read(&mut self, window: u64, offered: u64) {
        if !std::mem::take(&mut self.offer.was_read) {
            return;
        }
        let (single, drained) = (self.is_single(), !self.receive.has_unread());
        let mss = self.flows.iter().map(|flow| u64::from(flow.tcp.mss_bytes())).max();
        // RFC 9293 §3.8.6.2.2: no small increments.
        let tells = window >= mss.unwrap_or(1).min(offered.max(1));
        let window = if tells { window } else { 0 };
        let doubled = window > 0 && window >= 2 * self.offer.advertised_bytes;
        for flow in self.flows.iter_mut().filter(|flow| flow.usable() || single) {
            if single || doubled || flow.tcp.acknowledges_when_read(drained) {
                flow.tcp.on_read(drained, window, offered);
            }
        }
    }
}
