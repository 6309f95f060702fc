//! Metrics of a run: goodput, stalls, recovery, latency, lateness. `docs/reference/metrics.md` defines them.
//!
//! Start with [`DeliveryLog`], the arrivals at the receiver, then read [`goodput`] and [`stall`].
//! The modules [`disruption`] and [`recovery`] cover the effect of events. Reply delays are in
//! [`messages`], [`latency`] and [`playout`]; datagrams over single paths in [`paths`].
//! Distributions are in [`histogram`], and the emulator's lateness is described by `timing`.
//! The change from one path to another is in [`handover`]. Finally, [`summary`] combines the
//! metrics of a run, [`statistics`] those of repetitions, and [`clusters`] those of devices.

pub mod clusters;
pub mod delivery;
pub mod disruption;
pub mod emodel;
pub mod goodput;
pub mod handover;
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
