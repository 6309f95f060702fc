//! Threads that drive sockets: of the kernel, of our own stack, and of QUIC.
//!
//! - [`stream`]: byte streams of flows
//! - [`stack`]: our own stack over a TUN device, a packet socket or the emulator's queue
//! - [`quic`]: QUIC over UDP sockets
//! - [`port`], [`frame`], [`headers`], [`tx_timestamps`]: IP packets with virtio headers
//! - [`path_ping`], [`udp_flow`]: datagrams over single paths
//! - [`run_clock`], [`traffic_budget`]: time of a run, and limits on its traffic

mod byte_stream;
pub mod frame;
pub mod headers;
pub mod memory_account;
pub mod path_ping;
pub mod port;
pub mod quic;
pub mod run_clock;
pub mod stack;
pub mod stream;
pub mod test_memory;
pub mod traffic_budget;
pub mod tx_timestamps;
pub mod udp_flow;

pub use byte_stream::ByteStream;
