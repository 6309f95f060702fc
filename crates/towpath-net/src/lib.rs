//! The abstract network: time, rates, links and topologies.
//!
//! The crate knows no protocol and no clock: time and randomness are arguments. The simulator
//! (virtual time) and the emulator (real time) run the same code.
//!
//! Reading order: [`time`] and [`rate`], then [`config`] (the settings of a link) and [`presets`],
//! then [`direction`] (one direction of a link), [`link`] and [`topology`]. A direction is made of
//! `loss`, `queue`, `shaper`, `aqm`, `delay`, `jitter` and `random`.

mod aqm;
pub mod config;
mod delay;
pub mod direction;
mod jitter;
pub mod link;
pub mod link_trace;
mod loss;
pub mod packet;
pub mod presets;
mod queue;
pub mod random;
pub mod rate;
mod shaper;
pub mod source;
pub mod time;
pub mod topology;

pub use direction::Direction;
pub use link::Link;
pub use packet::{DirectionCounters, DropReason, EnqueueOutcome, Packet, TrafficCount};
pub use random::stream_seed;
pub use rate::Rate;
pub use source::SourcePrefix;
pub use time::Instant;
pub use topology::Topology;
