//! Latency under load: what each phase of `latency` came to.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DelayStats;

/// What runs beside the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Nothing.
    Idle,
    /// Transfers from the second host.
    Down,
    /// Transfers from the first host.
    Up,
    /// Both.
    Both,
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Idle => "idle",
            Self::Down => "down",
            Self::Up => "up",
            Self::Both => "both",
        })
    }
}

/// A phase of `latency`; see `docs/metrics.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadPhase {
    /// What ran beside it.
    pub load: Load,
    /// From when on requests count.
    pub from_ns: u64,
    /// Until when.
    pub until_ns: u64,
    /// Requests that were due.
    pub count: u64,
    /// Those of them that were answered.
    pub answered: u64,
    /// From due to answered; one that was not answered counts with the time for which it was waited
    /// for. Absent without a request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayStats>,
    /// Its median, less that of the idle phase.
    #[serde(rename = "rise_ns", default, skip_serializing_if = "Option::is_none")]
    pub delay_increase_ns: Option<i64>,
    /// 60 s over the mean of the 95 % that were answered soonest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trips_per_minute: Option<f64>,
    /// Datagrams over each path, without the transport.
    pub paths: Vec<LoadPath>,
}

/// A path in a phase of `latency`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadPath {
    /// Path.
    pub path: String,
    /// Datagrams that were due.
    pub count: u64,
    /// Those of them that came back in time.
    pub answered: u64,
    /// From sent to back, of those that came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<DelayStats>,
    /// Its median, less that of the idle phase.
    #[serde(rename = "rise_ns", default, skip_serializing_if = "Option::is_none")]
    pub delay_increase_ns: Option<i64>,
}
