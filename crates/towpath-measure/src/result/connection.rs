//! What happens above the subflows: one connection's state, and what is summed up from it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of one direction of a connection at the end of a period; totals count from its start. What
/// only one end knows is absent when that end's stack does not tell it, as the kernel's does not.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionState {
    /// Bytes at the receiver that wait for earlier data, at both levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_bytes: Option<u64>,
    /// Receive buffer as it is now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<u64>,
    /// Most bytes that ever waited for earlier data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_peak_bytes: Option<u64>,
    /// Bytes that the sender sent again on another subflow, in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reinjected_bytes: Option<u64>,
    /// The same by cause; causes without any are left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reinjected_by_cause: BTreeMap<ReinjectionCause, u64>,
    /// Payload bytes that arrived and were not needed any more, in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<u64>,
    /// Time of this period in which the sender had data and room, but the connection-level window
    /// was full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_blocked_ns: Option<u64>,
    /// Times that the sender slowed a path down because it blocked the window (M2), in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalisations: Option<u64>,
    /// Times that the scheduler gave new data to another subflow than before, in total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
}

/// Why data was sent again on another subflow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReinjectionCause {
    /// Its subflow's retransmission timer fired.
    Timeout,
    /// Its subflow is gone.
    Closed,
    /// The connection's own timer fired.
    Connection,
    /// It blocked the window (M1).
    Opportunistic,
    /// The scheduler sends it on several subflows.
    Scheduler,
}

/// What the connection level did for one flow in one direction; see `docs/metrics.md`. What
/// only one end knows is absent when its stack does not tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StackStats {
    /// Bytes sent again on another subflow, all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reinjected_bytes: Option<u64>,
    /// Payload bytes that arrived and were not needed any more, all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<u64>,
    /// Most bytes that waited for earlier data, of the connection where it was most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_peak_bytes: Option<u64>,
    /// Time with data and room, but a full connection-level window, of the connection where it was
    /// longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_blocked_ns: Option<u64>,
    /// Times that a path was slowed down because it blocked the window (M2), all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalisations: Option<u64>,
    /// Times that new data went to another subflow than before, all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
}
