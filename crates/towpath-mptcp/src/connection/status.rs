//! Connection metrics for time series, tests and reports.

use crate::stack::ConnectionStatus;

use super::{Connection, ConnectionMode};

impl Connection {
    /// Returns the metrics of the connection; `None` before its first subflow.
    pub(crate) fn status(&self) -> Option<ConnectionStatus> {
        let mut subflows = self.closed_subflows.clone();
        subflows.extend(self.flows.iter().map(super::SubflowContext::status));
        subflows.sort_unstable_by_key(|subflow| subflow.number);
        let first_subflow = subflows.first()?;
        let duplicate_bytes: u64 = subflows.iter().map(|flow| flow.tcp.duplicate_bytes).sum();
        Some(ConnectionStatus {
            local: first_subflow.local,
            remote: first_subflow.remote,
            established: self.established,
            multipath: self.is_multipath(),
            fallback: self.fallback,
            checksum: self.checksum && self.mode != ConnectionMode::Plain,
            written_bytes: self.counters.written_bytes,
            acked_bytes: self.send.acked() - 1,
            received_bytes: self.receive.received_bytes(),
            reorder_bytes: self.reorder_bytes(),
            reorder_peak_bytes: self.counters.reorder_peak_bytes,
            receive_buffer_bytes: self.buffer_tuner.buffer_bytes(),
            reinjected_bytes: self.counters.reinjected_bytes,
            discarded_bytes: self.counters.discarded_bytes
                + self.receive.duplicate_bytes()
                + duplicate_bytes,
            penalisations: self.counters.penalisations,
            window_blocked: self.counters.window_blocked,
            subflows,
        })
    }

    /// Returns the out-of-order bytes at both levels.
    pub(super) fn reorder_bytes(&self) -> u64 {
        let in_subflows: u64 = self.flows.iter().map(|flow| flow.tcp.reorder_bytes()).sum();
        in_subflows + self.receive.out_of_order_bytes()
    }
}
