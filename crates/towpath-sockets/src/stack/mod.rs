//! Towpath's own Multipath TCP stack over the real network.
//!
//! Reading order:
//!
//! - `device`: packets in and out
//! - `driver`: the thread that owns a [`Stack`], its devices and the clock
//! - `status`: connection statistics of the stack in the kernel's format
//!
//! [`Stack`]: towpath_mptcp::stack::Stack

mod device;
mod driver;
pub mod status;

pub use device::StackDevice;
pub use driver::{ConnectionHandler, StackDriverContext, StackHandle};
