//! Messages of request-reply flows, and statistics of their delays.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::DataDirection;

use super::LoadPhase;

/// Request of a request-reply flow, with its times of delivery and reply. Its delay is
/// `answered_ns` − `due_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Number of the flow, from 0.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// `up` or `down`: the direction of the request.
    pub direction: DataDirection,
    /// Number on its stream, from 0.
    pub number: u32,
    /// True if the request belongs to the warm-up and does not count in the summary.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm_up: bool,
    /// Size of the request.
    pub request_bytes: u32,
    /// Size of the reply; 0 if none is requested.
    pub reply_bytes: u32,
    /// Time at which the request was due by its schedule.
    pub due_ns: u64,
    /// Time at which the transport had accepted the whole request.
    pub sent_ns: Option<u64>,
    /// Time at which the other end had read the whole request.
    pub delivered_ns: Option<u64>,
    /// Time at which the acknowledgement was read; without one, when the whole reply was read.
    pub answered_ns: Option<u64>,
    /// Time at which the whole reply was read, if an acknowledgement preceded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replied_ns: Option<u64>,
}

/// Delays of a flow's requests in one direction; see `docs/reference/metrics.md`. All zero for the direction
/// that carries only replies.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MessageStats {
    /// Requests that were due, excluding the warm-up.
    pub count: u64,
    /// Requests that got a reply (or acknowledgement).
    pub answered: u64,
    /// Time from due to reply. A request without a reply counts with the time spent waiting for
    /// one.
    pub delay: DelayStats,
    /// Time from due until the other end had read the request; only requests that arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DelayStats>,
    /// Time from due to the complete reply, if an acknowledgement preceded it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<DelayStats>,
    /// Start-up and rebuffering of a video flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoStats>,
    /// Load time of a web page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageStats>,
    /// Phases of a `latency` flow, the idle one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<LoadPhase>,
}

/// Distribution of times. Percentiles are by nearest rank with an error below 1 %; the other values
/// are exact.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DelayStats {
    /// Arithmetic mean of the times.
    pub mean_ns: u64,
    /// Standard deviation (of the sample: n − 1).
    #[serde(alias = "deviation_ns")]
    pub stddev_ns: u64,
    /// Smallest of the times.
    pub min_ns: u64,
    /// Median (50th percentile) of the times.
    pub p50_ns: u64,
    /// 90th percentile of the times.
    pub p90_ns: u64,
    /// 95th percentile of the times.
    pub p95_ns: u64,
    /// 99th percentile of the times.
    pub p99_ns: u64,
    /// 99.9th percentile of the times.
    pub p999_ns: u64,
    /// Largest of the times.
    pub max_ns: u64,
}

/// Playback of a video as its viewer sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct VideoStats {
    /// Segments that arrived completely.
    pub segments: u32,
    /// Time from the first request until playback starts; absent when it never did.
    pub startup_ns: Option<u64>,
    /// Number of times that playback stopped on an empty buffer.
    pub stalls: u32,
    /// Total duration of those stops.
    pub rebuffer_ns: u64,
}

/// Loading of a web page as its user sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PageStats {
    /// Time from the first request until the page and all its objects arrived; absent when
    /// incomplete.
    pub load_ns: Option<u64>,
}
