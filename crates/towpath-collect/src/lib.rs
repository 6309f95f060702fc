//! The collector: receives results over HTTP, stores them, and shows them in a browser.
//!
//! A run is one row of the catalogue ([`catalogue`], SQLite or PostgreSQL) and one object with its
//! records ([`objects`], a folder or a [`bucket`]). The catalogue never contains samples.
//! [`upload`] checks what a client sends, and [`entry`] makes the row of it. [`filter`] is the query of a page: one type for
//! addresses, forms and SQL. [`access`] decides who may do what, [`pages`] writes HTML, and
//! [`server`] connects all of them. [`membership`] is for devices of volunteers, [`maintenance`] for
//! the operator. The time is an argument everywhere below the server.

mod access;
mod bucket;
mod catalogue;
mod change;
mod device;
mod entry;
mod error;
mod export;
mod filter;
mod live;
mod maintenance;
mod membership;
mod objects;
mod pages;
mod records;
mod runtime;
mod secret;
mod server;
mod store;
mod time;
mod upload;

pub use access::{Role, Token};
pub use bucket::{BucketConfig, BucketError, BucketFailure};
pub use device::{Device, Invitation};
pub use error::CollectError;
pub use maintenance::MaintenanceReport;
pub use runtime::{interrupt, log_to_stderr, run_to_end};
pub use server::{ServerConfig, serve};
pub use store::{Store, StoreConfig};
