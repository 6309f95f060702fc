//! Linux's statistics of TCP and Multipath TCP sockets, and their meaning in a result.
//!
//! - [`sample`]: `TCP_INFO`, `MPTCP_FULL_INFO` and socket listings
//! - [`subflow`]: a subflow's addresses and records
//! - [`send_limit`]: what limits a sender

pub mod sample;
pub mod send_limit;
pub mod subflow;
