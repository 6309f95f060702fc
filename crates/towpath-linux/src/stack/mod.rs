//! Our own stack over the real network.
//!
//! Reading order: `device` (packets in and out), `driver` (the thread that owns a [`Stack`], its
//! devices and the clock), `plan` (what a scenario says of a host, for the stack) and `status`
//! (what the stack says of a connection, as the kernel would).
//!
//! [`Stack`]: towpath_mptcp::stack::Stack

mod device;
mod driver;
pub(crate) mod plan;
pub(crate) mod status;

pub use device::StackDevice;
pub use driver::{ConnectionHandler, DriverContext, StackHandle};
