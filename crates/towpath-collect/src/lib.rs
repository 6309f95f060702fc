//! The collector: receives results over HTTP, stores them, and shows them in a browser.
//!
//! A run is one row of the catalogue ([`catalogue`], SQLite or PostgreSQL) and one object with its
//! records ([`objects`], a folder or a [`bucket`]). The catalogue never contains samples.
//! [`upload`] checks what a client sends, and [`entry`] makes the row of it. [`filter`] is the query of a page: one type for
//! addresses, forms and SQL. [`access`] decides who may do what, [`pages`] writes HTML, and
//! [`server`] connects all of them. [`membership`] is for devices of volunteers, [`planning`] for
//! their planned runs, [`maintenance`] for the operator. The time is an argument everywhere below
//! the server.

mod access;
mod analysis_query;
mod anonymous;
mod audit;
mod bucket;
mod campaign;
mod catalogue;
mod change;
mod device;
mod entry;
mod error;
mod export;
mod filter;
mod join_limit;
mod live;
mod maintenance;
mod membership;
mod objects;
mod pages;
mod planning;
mod records;
mod registration;
mod result_folder;
mod runtime;
mod secret;
mod server;
mod store;
mod test_server;
mod time;
mod upload;

pub use access::{Role, Token};
pub use anonymous::AnonymousReport;
pub use audit::{Actor, ActorKind, AuditAction, AuditEntry};
pub use bucket::{BucketConfig, BucketError, BucketFailure};
pub use campaign::{CampaignEntry, CampaignError};
pub use device::{Device, Invitation, OpenInvitation};
pub use error::CollectError;
pub use maintenance::MaintenanceReport;
pub use planning::{
    AbsenceReason, AbsentRun, CampaignProgress, CampaignRuns, DeviceProgress, RunCounts,
};
pub use runtime::{interrupt, log_to_stderr, run_to_end};
pub use server::{ServerConfig, serve};
pub use store::{Store, StoreConfig};
pub use test_server::TestServer;
