//! Latency under load: results of the phases of `latency`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::Load;

use super::DelayStats;

/// One phase of `latency`; see `docs/reference/metrics.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadPhase {
    /// Background load during the phase.
    pub load: Load,
    /// Start of the time in which requests count.
    pub from_ns: u64,
    /// End of the time in which requests count.
    pub until_ns: u64,
    /// Requests that were due.
    pub count: u64,
    /// Requests that got a reply.
    pub answered: u64,
    /// Time from due to reply. A request without a reply counts with the time spent waiting for
    /// one. Absent without any request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayStats>,
    /// Median delay minus the median of the idle phase.
    #[serde(alias = "rise_ns", default, skip_serializing_if = "Option::is_none")]
    pub delay_increase_ns: Option<i64>,
    /// 60 s divided by the mean of the fastest 95 % of replies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trips_per_minute: Option<f64>,
    /// Datagrams over each path, without the transport.
    pub paths: Vec<LoadPath>,
}

/// Datagrams over one path in a phase of `latency`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LoadPath {
    /// Name of the path.
    pub path: String,
    /// Datagrams that were due.
    pub count: u64,
    /// Datagrams that came back in time.
    pub answered: u64,
    /// Round-trip time of the datagrams that came back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub round_trip: Option<DelayStats>,
    /// Median round-trip time minus the median of the idle phase.
    #[serde(alias = "rise_ns", default, skip_serializing_if = "Option::is_none")]
    pub delay_increase_ns: Option<i64>,
}
