//! Datagrams sent over a single path and echoed by the other host (`udping`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DelayStats;

/// Datagram of `udping`, with its times.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Path over which the datagram was sent.
    pub path: String,
    /// Number on its path, from 0.
    pub number: u32,
    /// Time at which the datagram was due.
    pub due_ns: u64,
    /// Time at which the system accepted the datagram. Absent when it could not be sent: no
    /// interface, no address.
    pub sent_ns: Option<u64>,
    /// Time at which the datagram came back; absent when lost or too late.
    pub answered_ns: Option<u64>,
}

/// Delay and loss of a path, measured with datagrams; see `docs/reference/metrics.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PathStats {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Name of the path.
    pub path: String,
    /// Datagrams that were due.
    pub count: u64,
    /// Datagrams that could be sent.
    pub sent: u64,
    /// Datagrams that came back in time.
    pub answered: u64,
    /// Time from due until the datagram came back. A lost datagram counts with the time spent
    /// waiting for it.
    pub delay: DelayStats,
    /// Round-trip time of the datagrams that came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<DelayStats>,
    /// Longest time without any datagram coming back.
    pub silence_ns: u64,
    /// Time at which that silence began.
    pub silence_at_ns: u64,
}

impl PathStats {
    /// Returns the number of datagrams that did not come back in time.
    pub fn lost(&self) -> u64 {
        self.count.saturating_sub(self.answered)
    }
}
