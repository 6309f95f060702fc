//! Conformance tests for RFC 8684, by its sections: one of our hosts against a scripted peer,
//! packet by packet.

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
