//! A server whose host lacks a resource, and clients whose server lies.
//!
//! Limits, namespaces and pipes take the resource away from the tested process only. The machine
//! itself does not change.

mod host;
mod liar;
mod peers;
