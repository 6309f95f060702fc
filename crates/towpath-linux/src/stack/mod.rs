//! Towpath's own Multipath TCP stack over the real network.
//!
//! Reading order:
//!
//! - `device`: packets in and out
//! - `driver`: the thread that owns a [`Stack`], its devices and the clock
//! - `plan`: a scenario's settings of a host, for the stack
//! - `status`: connection statistics of the stack in the kernel's format
//!
//! [`Stack`]: towpath_mptcp::stack::Stack

mod device;
mod driver;
pub(crate) mod plan;
pub(crate) mod status;

pub use device::StackDevice;
pub use driver::{ConnectionHandler, StackDriverContext, StackHandle};
