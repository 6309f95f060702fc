//! Scenarios, results, traffic patterns and metrics: what goes into a run and what comes out.
//!
//! Reading order: [`scenario`] (the input), [`result`] (the output), [`traffic`] (what is sent),
//! [`network`] (addresses, links and endpoints of a scenario), [`decisions`] (what a stack of our
//! own decides, summed up), [`metrics`] (how goodput, stalls and recovery are defined), [`expect`]
//! (checked after a run), [`input`] (which files are read), [`order`] (of repetitions), [`batch`] (many runs at once), [`mod@format`] (values for people), [`store`]
//! (results as JSON Lines), [`pcapng`] (captures), [`live`] (what two real hosts say to each other).

pub mod account;
pub mod batch;
pub mod decisions;
mod draw;
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
pub mod scenario;
pub mod store;
pub mod traffic;
