//! Datagrams that were sent over a path and came back, or did not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DelayStats;

/// A datagram of `udping`, with what became of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Probe {
    /// Flow number.
    pub flow: u32,
    /// Path over which it was sent.
    pub path: String,
    /// Number on its path, from 0.
    pub number: u32,
    /// When it was due.
    pub due_ns: u64,
    /// When the system had taken it; absent where it could not be sent: no interface, no address.
    pub sent_ns: Option<u64>,
    /// When it was back; absent when it was not, or too late.
    pub answered_ns: Option<u64>,
}

/// What datagrams say of a path, without any transport; see `docs/metrics.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PathStats {
    /// Flow number.
    pub flow: u32,
    /// Path.
    pub path: String,
    /// Datagrams that were due.
    pub count: u64,
    /// Those of them that could be sent.
    pub sent: u64,
    /// Those of them that came back in time.
    pub answered: u64,
    /// From due to back. A datagram that did not come back counts with the time for which it was
    /// waited for.
    pub delay: DelayStats,
    /// From sent to back, of those that came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<DelayStats>,
    /// Longest time in which nothing came back.
    pub silence_ns: u64,
    /// When it began.
    pub silence_at_ns: u64,
}

impl PathStats {
    /// Datagrams that did not come back in time.
    pub fn lost(&self) -> u64 {
        self.count.saturating_sub(self.answered)
    }
}
