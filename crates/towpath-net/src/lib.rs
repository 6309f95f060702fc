//! The abstract network: time, rates, links and topologies.
//!
//! Knows no protocol and no clock: time and randomness are arguments. The same code is run by the
//! simulator (virtual time) and by the emulator (real time).
//!
//! Reading order: [`time`] and [`rate`], then [`config`] (what a link can be told to do).

pub mod config;
pub mod rate;
pub mod time;

pub use rate::Rate;
pub use time::Instant;
