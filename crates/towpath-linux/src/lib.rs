//! To be written.

pub mod netlink;
