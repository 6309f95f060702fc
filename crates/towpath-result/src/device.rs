//! Devices of volunteers: messages between `towpath agent` and a collector.
//!
//! A device joins once, with a code of the operator and the consent of its owner, and gets a token.
//! The token allows uploads and access to the device's own runs. Nothing is sent before the owner
//! has read the consent text and accepted its version.

use serde::{Deserialize, Serialize};

/// Path of the consent text (`GET`, without a token).
pub const CONSENT_PATH: &str = "/api/v1/consent";
/// Path for joining (`POST`, without a token).
pub const JOIN_PATH: &str = "/api/v1/devices";
/// Path of the device that a token belongs to: `GET` its state, `DELETE` everything that it sent.
pub const DEVICE_PATH: &str = "/api/v1/device";
/// Path of the device's own runs (`GET`).
pub const DEVICE_RUNS_PATH: &str = "/api/v1/device/runs";
/// Path for the acceptance of a newer consent text (`PUT`).
pub const DEVICE_CONSENT_PATH: &str = "/api/v1/device/consent";
/// Maximum length of a device's name in bytes.
pub const MAX_DEVICE_NAME_BYTES: usize = 64;
/// Maximum length of a consent text in bytes.
pub const MAX_CONSENT_BYTES: usize = 16_000;

/// Text that the owner of a device accepts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentText {
    /// Version, from 1. A change of the text increases it.
    pub version: u32,
    /// Text for people, in paragraphs.
    pub text: String,
}

/// Request to join.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// One-time code of the operator, such as `7K3M-9QPX-VB2D`.
    pub code: String,
    /// Version of the consent text that the owner has accepted.
    pub consent: u32,
    /// Version of the program.
    pub version: String,
    /// Operating system and processor, such as `linux x86_64`.
    pub platform: String,
}

/// Reply to a device that has joined.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinReply {
    /// Name that the operator gave to the device.
    pub name: String,
    /// Token of the device, which the collector does not store.
    pub token: String,
    /// Ed25519 key that verifies campaigns, in 64 hexadecimal digits; `None` from a collector
    /// without campaigns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub campaign_key: Option<String>,
}

/// Acceptance of a newer consent text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConsentChange {
    /// Version of the consent text that the owner has accepted.
    pub consent: u32,
}

/// State of a device on the collector.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceState {
    /// Name of the device.
    pub name: String,
    /// Version of the consent text that the owner has accepted.
    pub consent: u32,
    /// Current version of the consent text.
    pub current_consent: u32,
    /// Time of joining, in microseconds since 1970.
    pub joined_us: i64,
    /// Stored runs of the device.
    pub runs: u64,
    /// Bytes of these runs, compressed.
    pub bytes: u64,
}

/// A stored run of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeviceRun {
    /// Identifier of the run.
    pub id: String,
    /// Address of the run's page.
    pub url: String,
    /// Start of the run, in microseconds since 1970.
    pub started_us: i64,
    /// Name of the scenario or measurement.
    pub scenario: String,
    /// Transport, such as `mptcp`.
    pub transport: String,
    /// Goodput in bit/s, if measured.
    pub goodput_bps: Option<f64>,
}

/// Reply to the deletion of a device's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgetReply {
    /// Runs that were deleted.
    pub runs: u64,
    /// Bytes of these runs, compressed.
    pub bytes: u64,
    /// Runs of the device that are still stored: 0, counted after the deletion.
    pub remaining_runs: u64,
    /// Objects of these runs that are still stored: 0, looked up after the deletion.
    pub remaining_objects: u64,
}
