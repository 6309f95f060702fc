//! `towpath exec`: any program over Multipath TCP.
//!
//! Three processes:
//! 1. the command (`towpath exec`): starts the other two, waits, forwards signals ([`launch()`]);
//! 2. the program, with a filter that refers calls for a TCP socket to the supervisor (`filter`).
//!    The program and all processes that it starts keep the filter for good;
//! 3. the supervisor ([`supervise()`]), which replies with a Multipath TCP socket. It lives as long
//!    as the last process that has the filter.
//!
//! If the supervisor is killed, opening a TCP socket fails with `ENOSYS`, and nothing hangs. If the
//! command is killed, the other two continue.

mod interface_history;
mod launch;
mod observe;
mod record;
mod socket_tracker;

mod summary;
mod supervise;

use std::io;

use thiserror::Error;

pub use launch::{Launch, ProgramExit, exec, launch};
pub use summary::{FallbackCounter, OutcomeCounts, SocketSummary, UpgradeRefusal};
pub use supervise::{RecordTarget, supervise};

/// Errors that keep a program from running over Multipath TCP.
#[derive(Debug, Error)]
pub enum ExecError {
    /// The command line is empty.
    #[error("no command to run")]
    Empty,
    /// Calling convention of this machine is unknown.
    #[error("`exec` does not support this architecture, only x86_64, aarch64 and riscv64")]
    Machine,
    /// The kernel refused the filter.
    #[error("the kernel refuses seccomp user notification, which `exec` needs: {0}")]
    Kernel(#[source] io::Error),
    /// The program already runs under a supervisor.
    #[error("another program already handles the system calls of this one")]
    Nested,
    /// The program could not be started.
    #[error("cannot run `{program}`: {source}")]
    Program {
        /// Name of the program.
        program: String,
        /// Error of the system call.
        source: io::Error,
    },
    /// Any other error of the system.
    #[error("cannot supervise the program: {0}")]
    System(#[source] io::Error),
}

impl ExecError {
    /// Returns advice on how to resolve the error, if there is any.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kernel(_) => Some(
                "it needs Linux 5.14, and containers can forbid it; for a Go program, use `--method godebug`"
                    .to_owned(),
            ),
            Self::Nested => Some(
                "programs inside `towpath exec` already use Multipath TCP: run this one directly"
                    .to_owned(),
            ),
            Self::Empty | Self::Machine | Self::Program { .. } | Self::System(_) => None,
        }
    }
}
