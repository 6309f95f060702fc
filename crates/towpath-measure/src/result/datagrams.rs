//! Datagrams at a constant rate: what a flow of `udp` came to.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DelayStats;
use crate::scenario::DataDirection;

/// Datagrams that were sent in one period, and what became of them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DatagramRow {
    /// End of the period.
    pub t_ns: u64,
    /// Length of the period.
    pub span_ns: u64,
    /// Flow number.
    pub flow: u32,
    /// `up` or `down`, never `both`.
    pub direction: DataDirection,
    /// Path that they were sent over.
    pub path: String,
    /// Those that the system had taken; absent where the sender's word is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Those that were due and could not be sent in time.
    pub unsent: u64,
    /// Those of them that arrived, each once.
    pub received: u64,
    /// Those of them that did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Those that came again.
    pub duplicated: u64,
    /// Those that came after one that was sent later.
    pub out_of_order: u64,
    /// Interarrival jitter (RFC 3550 §6.4.1) when the last one arrived.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
    /// Mean one-way delay, less the smallest of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation_mean_ns: Option<u64>,
    /// Largest one-way delay, less the smallest of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation_max_ns: Option<u64>,
}

/// What became of a flow's datagrams in one direction; see `docs/metrics.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DatagramFigures {
    /// Path that they were sent over.
    pub path: String,
    /// Payload of each.
    pub payload_bytes: u32,
    /// Payload that was to be sent.
    pub rate_bps: u64,
    /// Datagrams that the system had taken.
    pub sent: u64,
    /// Those that were due and could not be sent in time.
    pub unsent: u64,
    /// Those that arrived, each once.
    pub received: u64,
    /// Those that were sent and did not arrive.
    pub lost: u64,
    /// Most that were lost in a row.
    #[serde(rename = "longest_loss")]
    pub longest_loss_run: u64,
    /// Those that came again.
    pub duplicated: u64,
    /// Those that came after one that was sent later.
    pub out_of_order: u64,
    /// Interarrival jitter (RFC 3550 §6.4.1) when the last one arrived.
    pub jitter_ns: u64,
    /// Its mean over all arrivals.
    pub jitter_mean_ns: u64,
    /// Its largest value.
    pub jitter_max_ns: u64,
    /// From sent to received, where both ends have one clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayStats>,
    /// The same, less the smallest: needs no common clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation: Option<DelayStats>,
    /// What could be heard, or seen, where they were a call's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallFigures>,
}

/// What one direction of a call came to; see `docs/metrics.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CallFigures {
    /// How the sound was coded: `g711` or `g729a`; or `video`.
    pub medium: String,
    /// How much longer than the fastest one a datagram could take.
    pub jitter_buffer_ns: u64,
    /// Datagrams, or frames of a picture, that were due.
    pub planned: u64,
    /// Those that were there in time; of frames, all of their datagrams.
    pub played: u64,
    /// Datagrams that never arrived, or could not be sent.
    #[serde(rename = "missing")]
    pub lost: u64,
    /// Datagrams that arrived too late to be played.
    pub late: u64,
    /// The fastest datagram's way.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ns: Option<u64>,
    /// How that is known.
    pub basis: DelayBasis,
    /// Mean length of what was not played, over what it would be if it were at random; 1 or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ratio: Option<f64>,
    /// From the mouth to the ear: packet, network and buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mouth_to_ear_ns: Option<u64>,
    /// R of ITU-T G.107, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rating: Option<f64>,
    /// Mean opinion score of that, 1 to 4.5 (G.107 annex B).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}

/// How a delay in one direction is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DelayBasis {
    /// Both ends have one clock.
    #[default]
    OneClock,
    /// From how far apart the clocks were found to be: as if both ways took the same time.
    ClockOffset,
    /// Half of what both directions of the call took together.
    HalfRoundTrip,
}

impl CallFigures {
    /// Part of what was due that could not be played, 0 to 1.
    pub fn unplayed_share(&self) -> f64 {
        self.planned.saturating_sub(self.played) as f64 / self.planned.max(1) as f64
    }
}

impl DatagramFigures {
    /// Part of the sent ones that did not arrive, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}
