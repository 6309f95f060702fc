//! Scenarios, traffic patterns, results and metrics: input and output of a run.
//!
//! Reading order:
//!
//! - [`scenario`]: the input
//! - [`result`]: the output
//! - [`traffic`]: traffic generators
//! - [`network`]: addresses, links and endpoints of a scenario
//! - [`decisions`]: decisions of towpath's own stack
//! - [`metrics`]: definitions of goodput, stalls and recovery
//! - [`expect`]: checks after a run
//! - [`input`]: untrusted files
//! - [`order`]: order of repetitions
//! - [`batch`]: parallel runs
//! - [`mod@format`]: human-readable values
//! - [`store`]: results as JSON Lines
//! - [`pcapng`]: packet captures
//! - [`live`]: protocol between two real hosts

pub mod account;
pub mod batch;
pub mod decisions;
pub mod expect;
pub mod format;
pub mod input;
pub mod live;
mod meta;
pub mod metrics;
pub mod network;
pub mod order;
pub mod pcapng;
pub mod result;
mod rng;
pub mod scenario;
pub mod store;
pub mod traffic;
