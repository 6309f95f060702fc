//! Our own TCP and Multipath TCP stack: both roles, without sockets, clock or `unsafe`.
//!
//! The driver (a simulator, a TUN device) passes packets and the time to the stack. It receives
//! packets, deadlines and events: see [`stack::Stack`].
//!
//! Reading order: [`wire`] (packets and options), [`subflow`] (one TCP connection: RFC 9293 and
//! what a modern TCP needs), [`connection`] (several subflows as one: RFC 8684), [`path_manager`]
//! (opens and closes subflows), [`stack`] (many connections of one host, and its interfaces).

pub mod connection;
#[doc(hidden)]
pub mod fuzzing;
pub mod path_manager;
pub mod settings;
pub mod stack;
pub mod subflow;
