//! Messages between devices, collector and test servers, as JSON.

use serde::{Deserialize, Serialize};
use towpath_scenario::Transport;

use crate::access::Access;

/// Path of the campaigns for the device that a token belongs to (`GET`).
pub const CAMPAIGNS_PATH: &str = "/api/v1/device/campaigns";
/// Path for the outcomes of planned runs (`POST`).
pub const OUTCOMES_PATH: &str = "/api/v1/device/outcomes";
/// Path of the test servers for a device (`GET`, with `?campaign=NAME`).
pub const SERVERS_PATH: &str = "/api/v1/device/servers";
/// Path for heartbeats of the test server that a token belongs to (`PUT`).
pub const HEARTBEAT_PATH: &str = "/api/v1/server";
/// Maximum length of a campaign's file in bytes.
pub const MAX_CAMPAIGN_BYTES: usize = 64_000;
/// Maximum number of outcomes in a report.
pub const MAX_OUTCOMES: usize = 1_000;
/// Maximum length of an outcome's detail in bytes.
pub const MAX_REASON_BYTES: usize = 200;

/// Campaigns of a collector: active and paused ones, and those that ended within the last day.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignList {
    /// Campaigns in order of creation.
    pub campaigns: Vec<CampaignOffer>,
    /// Time until the device should ask again, in seconds.
    pub poll_s: u32,
}

/// Signed campaign.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CampaignOffer {
    /// File of the operator, as TOML.
    pub text: String,
    /// Time of creation in microseconds since 1970. The schedule starts here unless the file has a
    /// later start.
    pub created_us: u64,
    /// Ed25519 signature of the time and the text, in hexadecimal digits (RFC 8032).
    pub signature: String,
    /// State, which is not signed: it can only stop a campaign.
    pub state: CampaignState,
}

/// State of a campaign on the collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CampaignState {
    /// Devices make the planned runs.
    Active,
    /// Devices make no runs until the operator resumes the campaign.
    Paused,
    /// No device makes further runs.
    Ended,
}

/// Outcome of one planned run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Name of the campaign.
    pub campaign: String,
    /// Round of the schedule, from 0.
    pub round: u32,
    /// Index of the run in the round ([`crate::PlannedRun::index`]).
    pub run: u32,
    /// Result of the planned run.
    #[serde(flatten)]
    pub state: OutcomeState,
    /// Time of the outcome on the device, in microseconds since 1970.
    pub at_us: u64,
}

/// Result of a planned run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum OutcomeState {
    /// A valid result exists.
    Stored {
        /// Identifier of the result on the collector: the first 20 digits of its content hash.
        result: String,
    },
    /// A result exists, but must not be compared with others.
    Invalid {
        /// Identifier of the result on the collector.
        result: String,
        /// Reason for people, such as a change of the network.
        detail: String,
    },
    /// No result exists.
    Missing {
        /// Kind of the reason.
        reason: MissingReason,
        /// Detail for people; may be empty.
        detail: String,
    },
}

/// Reason why a planned run has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MissingReason {
    /// A limit of the device's owner: bytes, hours, interfaces or metered links.
    OwnerLimit,
    /// The byte budget of the campaign for one device and day.
    CampaignLimit,
    /// The device or the server has no address of the family.
    NoAddress,
    /// No server answered.
    NoServer,
    /// The server did not answer on the port with the transport.
    Unreachable,
    /// The server refused the test, for instance because it was full.
    Refused,
    /// The agent was stopped or killed during the run.
    Interrupted,
    /// The agent did not run at the planned time.
    Missed,
    /// The campaign was paused or ended at the planned time.
    Stopped,
    /// Another error, or a reason of a later version.
    #[serde(other)]
    Failed,
}

impl MissingReason {
    /// Returns the name in messages and lists, such as `owner-limit`.
    pub fn name(self) -> &'static str {
        match self {
            Self::OwnerLimit => "owner-limit",
            Self::CampaignLimit => "campaign-limit",
            Self::NoAddress => "no-address",
            Self::NoServer => "no-server",
            Self::Unreachable => "unreachable",
            Self::Refused => "refused",
            Self::Interrupted => "interrupted",
            Self::Missed => "missed",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }
}

/// Outcomes that a device reports. A repetition has no effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeReport {
    /// At most [`MAX_OUTCOMES`] outcomes.
    pub outcomes: Vec<Outcome>,
}

/// Reply to reported outcomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeReply {
    /// Outcomes that belong to a known campaign, and are stored now or were before.
    pub accepted: u32,
}

/// State of a test server, sent regularly.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// Place for people, such as `Brussels`; may be empty.
    pub place: String,
    /// Names or addresses by which devices reach the server, without ports.
    pub hosts: Vec<String>,
    /// Ports, the preferred one first.
    pub ports: Vec<u16>,
    /// Available transports.
    pub transports: Vec<Transport>,
    /// SHA-256 fingerprint of the certificate in hexadecimal digits, if QUIC is available.
    pub certificate: Option<String>,
    /// Version of towpath.
    pub version: String,
    /// Running tests.
    pub tests: u32,
    /// Maximum number of tests at the same time.
    pub max_tests: u32,
}

/// Reply to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeartbeatReply {
    /// Name of the server.
    pub name: String,
    /// Key that verifies access grants, in 64 hexadecimal digits.
    pub access_key: String,
    /// Time until the next heartbeat in seconds.
    pub interval_s: u32,
}

/// Test servers that sent a heartbeat recently.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerList {
    /// Servers in order of their names.
    pub servers: Vec<ServerOffer>,
}

/// Test server for a device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerOffer {
    /// Name of the server.
    pub name: String,
    /// State of the server at its last heartbeat.
    #[serde(flatten)]
    pub heartbeat: Heartbeat,
    /// Access for this device.
    pub access: Access,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_written_with_their_names_and_later_ones_are_read() {
        for reason in [
            MissingReason::OwnerLimit,
            MissingReason::CampaignLimit,
            MissingReason::NoAddress,
            MissingReason::NoServer,
            MissingReason::Unreachable,
            MissingReason::Refused,
            MissingReason::Interrupted,
            MissingReason::Missed,
            MissingReason::Stopped,
            MissingReason::Failed,
        ] {
            let written = serde_json::to_string(&reason).unwrap();
            assert_eq!(written, format!("\"{}\"", reason.name()));
            assert_eq!(serde_json::from_str::<MissingReason>(&written).unwrap(), reason);
        }
        let later = serde_json::from_str::<MissingReason>("\"battery-low\"").unwrap();
        assert_eq!(later, MissingReason::Failed);
    }
}
