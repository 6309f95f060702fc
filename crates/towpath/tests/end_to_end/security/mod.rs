//! Attacks on the installed program, against the promises of SECURITY.md.
//!
//! Each is bounded in count and time, stays on loopback or in a network namespace of its own, and
//! terminates.
//!
//! `server` covers unauthenticated clients, `identity` and `clients` dishonest servers, `readers`
//! and `files` untrusted files. `root` covers the effects of privileged commands.

mod adversity;
mod clients;
mod files;
mod fixture;
mod identity;
mod network;
mod readers;
mod root;
mod server;
mod unauthenticated;
