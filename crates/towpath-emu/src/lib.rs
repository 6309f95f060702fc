//! A scenario on this machine's kernel: emulated network, runs, labs and failures.
//!
//! A run happens in a process of its own ([`towpath_os::sandbox`]): inside one user namespace, with
//! one network namespace for each host. That process dies with its parent, and with it everything
//! it made.
//!
//! - `network`: a scenario's hosts; `emulator`: packets through the link model in real time
//! - [`run`]: one run, from empty namespaces to the last record; `traffic`: its flows
//! - [`lab`]: any program in the same network; `program` and `program_connections`: its processes
//! - [`failures`]: networks in which Multipath TCP fails, with `router` as the box on the path

#![expect(clippy::disallowed_methods, reason = "this crate reads the real clock")]

mod cpu_time;
mod emulator;
pub mod failures;
pub mod lab;
mod lab_network;
mod network;
mod program;
mod program_connections;
mod router;
pub mod run;
mod traffic;

pub use lab_network::LabNetwork;
pub use network::{Backend, NetworkError};
