//! Campaigns: measurements that a collector plans, and that devices of volunteers make.
//!
//! A campaign is a TOML file of the operator ([`Campaign`]). The collector signs it
//! ([`SigningKey`]) and hands it out as a [`CampaignOffer`]. A device accepts it only with the key
//! that it learned when it joined ([`PublicKey`]). Device and collector compute the same schedule
//! ([`Campaign::planned_rounds`]) and the same runs ([`Campaign::runs`]), so that every planned run
//! is either stored or listed as missing ([`Outcome`]). A test server registers with the collector
//! ([`Heartbeat`]) and admits devices by [`AccessGrant`]s. The time is an argument everywhere.

mod access;
mod digits;
mod document;
mod message;
mod pattern;
mod schedule;
mod signature;

pub use access::{Access, AccessGrant, AccessKey};
pub use document::{Campaign, CampaignMode, EXAMPLE_MOBILE, EXAMPLE_STABLE, reference_markdown};
pub use message::{
    CAMPAIGNS_PATH, CampaignList, CampaignOffer, CampaignState, HEARTBEAT_PATH, Heartbeat,
    HeartbeatReply, MAX_CAMPAIGN_BYTES, MAX_OUTCOMES, MAX_REASON_BYTES, MissingReason,
    OUTCOMES_PATH, Outcome, OutcomeReply, OutcomeReport, OutcomeState, SERVERS_PATH, ServerList,
    ServerOffer,
};
pub use pattern::{
    AddressFamily, CampaignPattern, MESSAGE_HEADER_BYTES, PlannedRun, RUN_OVERHEAD_BYTES,
    UDPING_PERIOD_BYTES, UDPING_ROUND_TRIP_BYTES, with_overhead,
};
pub use schedule::PlannedRound;
pub use signature::{KeyError, OfferError, PublicKey, SigningKey};
