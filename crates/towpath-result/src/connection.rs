//! Connection-level state of a multipath transport, and its totals.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of one direction of a connection at the end of a period; totals count from the
/// connection's start. Fields of an end whose stack does not report them, such as the kernel's, are
/// absent.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct ConnectionState {
    /// Bytes at the receiver that wait for earlier data, at subflow and connection level.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_bytes: Option<u64>,
    /// Current size of the receive buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub receive_buffer_bytes: Option<u64>,
    /// Most bytes that ever waited for earlier data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_peak_bytes: Option<u64>,
    /// Total bytes that the sender reinjected on another subflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reinjected_bytes: Option<u64>,
    /// Reinjected bytes by cause; causes without any are omitted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub reinjected_by_cause: BTreeMap<ReinjectionCause, u64>,
    /// Total payload bytes that arrived as duplicates and were discarded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<u64>,
    /// Time in this period in which the sender had data and congestion window, but the
    /// connection-level window was full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_blocked_ns: Option<u64>,
    /// Total number of times that the sender cut the window of a path because it blocked the
    /// connection's window (M2).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalisations: Option<u64>,
    /// Total number of times that the scheduler moved new data to another subflow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
}

/// Cause of a reinjection on another subflow.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum ReinjectionCause {
    /// Retransmission timeout on the original subflow.
    Timeout,
    /// End of the original subflow.
    Closed,
    /// Timeout of the connection-level timer.
    Connection,
    /// Opportunistic reinjection of data that blocked the window (M1).
    Opportunistic,
    /// Redundant copies sent by the scheduler.
    Scheduler,
}

impl ReinjectionCause {
    /// Every cause, in the order of their declaration.
    pub const ALL: [Self; 5] =
        [Self::Timeout, Self::Closed, Self::Connection, Self::Opportunistic, Self::Scheduler];

    /// Returns the cause as text for display.
    pub fn text(self) -> &'static str {
        match self {
            Self::Timeout => "its timer fired",
            Self::Closed => "its subflow is gone",
            Self::Connection => "the connection's timer fired",
            Self::Opportunistic => "it blocked the window (M1)",
            Self::Scheduler => "the scheduler wanted it",
        }
    }
}

/// Connection-level totals for one flow in one direction; see `docs/reference/metrics.md`. Values of an end
/// whose stack does not report them are absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct StackStats {
    /// Bytes reinjected on another subflow, all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reinjected_bytes: Option<u64>,
    /// Payload bytes that arrived as duplicates and were discarded, all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded_bytes: Option<u64>,
    /// Most bytes that waited for earlier data, of the connection with the largest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reorder_peak_bytes: Option<u64>,
    /// Time with data and congestion window, but a full connection-level window. Of the connection
    /// with the largest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window_blocked_ns: Option<u64>,
    /// Number of times that the window of a path was cut because it blocked the connection's window
    /// (M2), all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalisations: Option<u64>,
    /// Number of times that new data moved to another subflow, all connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switches: Option<u64>,
}
