//! Parts of a run that all worlds share, without sockets or a clock.
//!
//! - [`traffic`]: applications that send and receive
//! - [`datagram`] and [`stamp`]: formats of probes and measured datagrams
//! - [`decisions`]: decisions of towpath's own stack, as records
//! - [`evidence`]: proof that Multipath TCP was used

pub mod datagram;
pub mod decisions;
pub mod evidence;
pub mod stamp;
pub mod token;
pub mod traffic;
