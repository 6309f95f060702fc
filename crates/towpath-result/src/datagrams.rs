//! Results of constant-rate datagram flows (`udp`, `call`).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use towpath_scenario::DataDirection;

use super::DelayStats;

/// Datagrams sent in one period, and their outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DatagramRow {
    /// End of the period.
    pub t_ns: u64,
    /// Length of the period.
    pub span_ns: u64,
    /// Number of the flow, from 0.
    pub flow: u32,
    /// `up` or `down`, never `both`.
    pub direction: DataDirection,
    /// Path over which the datagrams were sent.
    pub path: String,
    /// Datagrams that the system accepted; absent without the sender's report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<u64>,
    /// Datagrams that were due and could not be sent in time.
    pub unsent: u64,
    /// Datagrams that arrived, without duplicates.
    pub received: u64,
    /// Datagrams that were sent and did not arrive; absent when `sent` is unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<u64>,
    /// Duplicate datagrams that arrived.
    pub duplicated: u64,
    /// Datagrams that arrived after a later one.
    pub out_of_order: u64,
    /// Interarrival jitter (RFC 3550 §6.4.1) at the last arrival.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter_ns: Option<u64>,
    /// Mean one-way delay minus the smallest of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation_mean_ns: Option<u64>,
    /// Largest one-way delay minus the smallest of the flow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation_max_ns: Option<u64>,
}

/// Outcome of a flow's datagrams in one direction; see `docs/reference/metrics.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DatagramStats {
    /// Path over which the datagrams were sent.
    pub path: String,
    /// Payload of each datagram.
    pub payload_bytes: u32,
    /// Planned rate of the payload.
    pub rate_bps: u64,
    /// Datagrams that the system accepted.
    pub sent: u64,
    /// Datagrams that were due and could not be sent in time.
    pub unsent: u64,
    /// Datagrams that arrived, without duplicates.
    pub received: u64,
    /// Datagrams that were sent and did not arrive.
    pub lost: u64,
    /// Longest run of consecutive losses, in order of sending.
    #[serde(alias = "longest_loss")]
    pub longest_loss_run: u64,
    /// Duplicate datagrams that arrived.
    pub duplicated: u64,
    /// Datagrams that arrived after a later one.
    pub out_of_order: u64,
    /// Interarrival jitter (RFC 3550 §6.4.1) at the last arrival.
    pub jitter_ns: u64,
    /// Mean jitter over all arrivals.
    pub jitter_mean_ns: u64,
    /// Largest jitter over all arrivals.
    pub jitter_max_ns: u64,
    /// One-way delay; only where both ends share one clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<DelayStats>,
    /// One-way delay minus the smallest of the flow (RFC 5481 §4.2); needs no common clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub variation: Option<DelayStats>,
    /// Voice or video quality, if the datagrams belong to a call.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallStats>,
}

/// Quality of one direction of a call; see `docs/reference/metrics.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, JsonSchema)]
pub struct CallStats {
    /// Codec of the sound, `g711` or `g729a`; or `video`.
    pub medium: String,
    /// Size of the jitter buffer: a datagram may take this much longer than the fastest one.
    pub jitter_buffer_ns: u64,
    /// Datagrams, or video frames, that were due.
    pub planned: u64,
    /// Datagrams that arrived in time; for video, frames with all their datagrams.
    pub played: u64,
    /// Datagrams that never arrived or could not be sent.
    #[serde(alias = "missing")]
    pub lost: u64,
    /// Datagrams that arrived too late to be played.
    pub late: u64,
    /// One-way delay of the fastest datagram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_ns: Option<u64>,
    /// Method by which the one-way delay was obtained.
    pub basis: DelayBasis,
    /// Mean length of a loss run relative to random loss of the same share (BurstR); 1 or more.
    /// Absent where everything was played.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub burst_ratio: Option<f64>,
    /// Mouth-to-ear delay: packetisation, network and jitter buffer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mouth_to_ear_ns: Option<u64>,
    /// Transmission rating R of the E-model (ITU-T G.107), 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rating: Option<f64>,
    /// Mean opinion score derived from R, 1 to 4.5 (G.107 annex B).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<f64>,
}

/// Method by which a one-way delay was obtained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DelayBasis {
    /// Both ends share one clock.
    #[default]
    OneClock,
    /// Corrected by the estimated clock offset, as if both directions took the same time.
    ClockOffset,
    /// Half the sum of the shortest delays of both directions.
    HalfRoundTrip,
}

impl CallStats {
    /// Returns the share of due datagrams or frames that could not be played, 0 to 1.
    pub fn unplayed_share(&self) -> f64 {
        self.planned.saturating_sub(self.played) as f64 / self.planned.max(1) as f64
    }
}

impl DatagramStats {
    /// Returns the share of sent datagrams that did not arrive, 0 to 1.
    pub fn lost_share(&self) -> f64 {
        self.lost as f64 / self.sent.max(1) as f64
    }
}
