//! What the figures mean: goodput, stalls, recovery, lateness. `docs/metrics.md` has the words.
//!
//! Reading order: [`DeliveryLog`] (what the receiver saw), [`goodput`], [`stall`], [`disruption`]

pub mod delivery;
pub mod disruption;
pub mod goodput;
pub mod histogram;
pub mod recovery;
pub mod stall;

pub use delivery::{DeliveryLog, Gap};
pub use disruption::{Disruption, disruptions};
pub use histogram::Histogram;
