//! SYN flood protection of a server in virtual time: floods and forged packets, with five honest
//! clients.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::wildcard_enum_match_arm,
    reason = "tests fail by panicking, and look at few of the options and events"
)]

mod arbitrary_packets;
mod cookies;
mod flood;
mod injection;
mod joins;
mod losses;
mod network;
mod reflection;
mod reflector;
#[path = "../repetitions/mod.rs"]
mod repetitions;
mod time_wait;
