//! Connection metrics for time series, tests and reports.

use crate::stack::ConnectionStatus;

use super::{Connection, ConnectionMode};

impl Connection {
    pub(crate) fn status(&self) -> Option<ConnectionStatus> {
        let mut subflows = self.closed_subflows.clone();
        subflows.extend(self.flows.iter().map(super::SubflowContext::status));
        subflows.sort_unstable_by_key(|subflow| subflow.number);
        let first = subflows.first()?;
        let copies: u64 = subflows.iter().map(|flow| flow.tcp.duplicate_bytes).sum();
        Some(ConnectionStatus {
            local: first.local,
            remote: first.remote,
            established: self.established,
            multipath: self.is_multipath(),
            fallback: self.fallback,
            checksum: self.checksum && self.mode != ConnectionMode::Plain,
            written_bytes: self.counts.written_bytes,
            acked_bytes: self.send.acked() - 1,
            received_bytes: self.receive.received_bytes(),
            reorder_bytes: self.reorder_bytes(),
            reorder_peak_bytes: self.counts.reorder_peak_bytes,
            receive_buffer_bytes: self.tuning.buffer_bytes(),
            reinjected_bytes: self.counts.reinjected_bytes,
            discarded_bytes: self.counts.discarded_bytes + self.receive.duplicate_bytes() + copies,
            penalisations: self.counts.penalisations,
            window_blocked: self.counts.window_blocked,
            subflows,
        })
    }

    pub(super) fn reorder_bytes(&self) -> u64 {
        let below: u64 = self.flows.iter().map(|flow| flow.tcp.reorder_bytes()).sum();
        below + self.receive.out_of_order_bytes()
    }
}
