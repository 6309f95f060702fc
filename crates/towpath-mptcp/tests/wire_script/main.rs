//! One host of ours against a peer that is played by hand, packet by packet: what RFC 8684 demands, by
//! its sections.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests fail by panicking"
)]

mod addresses;
mod dss;
mod handshake;
mod join;
mod options;
mod script;
