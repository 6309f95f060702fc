//! Attacks: what SECURITY.md promises, against the program as it is installed.
//!
//! Each is bounded in count and time, stays on loopback or in a network namespace of its own, and
//! ends by itself. `server` are strangers at a default server, `identity` and `clients` servers that
//! are not what they say, `readers` and `files` files of others, `root` what a privileged command may
//! change.

mod adversity;
mod clients;
mod files;
mod identity;
mod network;
mod readers;
mod root;
mod server;
mod site;
mod stranger;
