//! One host of ours against a peer that is played by hand, packet by packet: what RFC 8684 demands, by
//! its sections.

#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "tests fail by panicking"
)]
#![expect(clippy::wildcard_enum_match_arm, reason = "tests look for one option among many")]

mod addresses;
mod close;
mod defects;
mod dss;
mod fallback;
mod handshake;
mod ipv6;
mod join;
mod linux;
mod octets;
mod options;
mod script;
mod tcp;
mod windows;
