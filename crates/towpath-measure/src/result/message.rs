//! Messages, and what their delays come to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::LoadPhase;
use crate::scenario::DataDirection;

/// A request of a flow that exchanges messages, with what became of it. Its delay is `answered_ns` −
/// `due_ns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Flow number.
    pub flow: u32,
    /// Stream number within the flow.
    pub stream: u32,
    /// `up` or `down`: the direction of the request.
    pub direction: DataDirection,
    /// Number on its stream, from 0.
    pub number: u32,
    /// Whether it does not count in the summary.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub warm_up: bool,
    /// Bytes of the request.
    pub request_bytes: u32,
    /// Bytes of the reply; 0 for none.
    pub reply_bytes: u32,
    /// When it was due.
    pub due_ns: u64,
    /// When the transport had taken all of it.
    pub sent_ns: Option<u64>,
    /// When the other end had read all of it.
    pub delivered_ns: Option<u64>,
    /// When its acknowledgement was read; where it has none, when all of the reply was.
    pub answered_ns: Option<u64>,
    /// When all of the reply was read, where an acknowledgement came before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replied_ns: Option<u64>,
}

/// How late the answers to a flow's requests in one direction were; see `docs/metrics.md`. All zero
/// for the direction in which there are answers only.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct MessageStats {
    /// Requests that were due, without those of the warm-up.
    pub count: u64,
    /// Those of them that were answered.
    pub answered: u64,
    /// From due to answered. A request that was not answered counts with the time for which it was
    /// waited for.
    pub delay: DelayStats,
    /// From due until the other end had read the request, of those that arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<DelayStats>,
    /// From due until the reply was there, where an acknowledgement came before it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<DelayStats>,
    /// What somebody saw who watched the video.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoStats>,
    /// What became of the page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub page: Option<PageStats>,
    /// The phases of `latency`, the idle one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<LoadPhase>,
}

/// A distribution of times. Percentiles by nearest rank, less than 1 % off; the others are exact.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DelayStats {
    /// Mean.
    pub mean_ns: u64,
    /// Standard deviation (of the sample: n − 1).
    #[serde(rename = "deviation_ns")]
    pub stddev_ns: u64,
    /// Smallest.
    pub min_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 90th percentile.
    pub p90_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
}

/// What somebody saw who watched a video.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct VideoStats {
    /// Segments that arrived whole.
    pub segments: u32,
    /// From the wish to watch to the first picture; absent when there never was one.
    pub startup_ns: Option<u64>,
    /// Times that the picture stood still because the buffer was empty.
    pub stalls: u32,
    /// For how long, all of them together.
    pub rebuffer_ns: u64,
}

/// What somebody saw who opened a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PageStats {
    /// From the request for the page until everything on it was there; absent when it never was.
    pub load_ns: Option<u64>,
}

/// What a reader must know of a video to see how its buffer filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct VideoPlan {
    /// Time that a segment plays for.
    pub segment_ns: u64,
    /// Segments of the whole video.
    pub segments: u32,
    /// What must be in the buffer before it plays (again).
    pub startup_ns: u64,
}
