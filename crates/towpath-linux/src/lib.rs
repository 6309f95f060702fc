//! Runs on the real clock: namespaces, the emulator, netlink, sockets.
//!
//! A run happens in a process of its own ([`sandbox`]): inside one user namespace, with one network
//! namespace for each host. That process dies with its parent, and with it everything it made.
//!
//! Reading order: [`sandbox`] (how the process gets its privileges) and `namespace` (one host);
//! `emulator` (packets through the link model in real time), `network` (a scenario's hosts set up),
//! `traffic` and `sample` (sockets and the kernel's reports about them), [`run`] (all of it in
//! order), [`lab`] (any program in the same network), [`live`] (two real hosts).
//!
//! Apart from runs, there are [`exec`] (any program over Multipath TCP on this machine),
//! [`monitor`] (the connections of this machine), [`capture`] (its packets) and [`preflight`] (its
//! prerequisites). [`files`] writes everything that is kept.
//!
//! `sys` holds the only `unsafe` of the project.

#![expect(clippy::disallowed_methods, reason = "this crate owns the real clock")]

mod byte_stream;
pub mod capture;
mod clock;
mod cpu_time;
pub mod doctor;
mod emulator;
pub mod exec;
pub mod failures;
pub mod files;
pub mod interrupt;
pub mod lab;
mod lab_network;
pub mod live;
pub mod monitor;
mod namespace;
pub mod netlink;
mod network;
mod path_ping;
pub mod preflight;
mod program;
mod program_connections;
mod queue;
pub mod quic;
mod router;
pub mod run;
mod run_clock;
mod sample;
pub mod sandbox;
mod send_limit;
pub mod setup;
pub mod stack;
mod stream;
mod subflow;
#[expect(unsafe_code, reason = "system calls that no safe crate covers")]
mod sys;
pub mod sysctl;
mod traffic;
mod traffic_budget;
mod udp_flow;

pub use byte_stream::ByteStream;
pub use clock::Clock;
pub use lab_network::LabNetwork;
pub use namespace::Namespace;
pub use network::{Backend, NetworkError};
