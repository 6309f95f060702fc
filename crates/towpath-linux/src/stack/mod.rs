//! Our own stack over the real network.
//!
//! Reading order: [`device`] (packets in and out), [`driver`] (the thread that owns a [`Stack`], its
//! devices and the clock).
//!
//! [`Stack`]: towpath_mptcp::stack::Stack

mod device;
mod driver;

pub use device::Device;
pub use driver::{End, Host, Turn};
