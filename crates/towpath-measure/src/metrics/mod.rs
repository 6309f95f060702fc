//! What the figures mean: goodput, stalls, recovery, lateness. `docs/metrics.md` has the words.
//!
//! Reading order: [`DeliveryLog`] (what the receiver saw), [`goodput`], [`stall`], [`disruption`]
//! and [`recovery`] (what an event did), [`messages`], [`latency`] and [`playout`] (how late answers were), [`paths`]
//! (what datagrams say of paths), [`histogram`] (what is said of lateness is in `noise`), then
//! [`summary`], which puts the figures of a run together, and [`statistics`] (what repetitions say).

pub mod delivery;
pub mod disruption;
pub mod emodel;
pub mod goodput;
pub mod histogram;
pub mod latency;
pub mod messages;
mod noise;
pub mod paths;
pub mod playout;
pub mod recovery;
pub mod stall;
pub mod statistics;
pub mod summary;
mod verdict;
mod warnings;

pub use delivery::{DeliveryLog, Gap};
pub use disruption::{Disruption, disruptions};
pub use histogram::Histogram;
pub use summary::{FlowInput, Summarizer};
