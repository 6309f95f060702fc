//! `towpath exec`: any program over Multipath TCP.
//!
//! Three processes:
//! 1. the command (`towpath exec`): starts the other two, waits, hands on signals ([`launch()`]);
//! 2. the program, with a filter that asks before it makes a TCP socket (`filter`). The program and
//!    all that it starts keep the filter for good;
//! 3. the supervisor ([`supervise()`]), which answers with a Multipath TCP socket. It lives as long as
//!    the last process that has the filter.
//!
//! When the supervisor is killed, the kernel answers in its place: opening a TCP socket fails with
//! `ENOSYS`, and nothing hangs. When the command is killed, the other two go on.

mod connections;
pub(crate) mod filter;
mod launch;
mod observe;
mod record;
mod supervise;
mod tally;

use std::io;

use thiserror::Error;

pub use launch::{Launch, ProgramExit, exec, launch};
pub use supervise::{RecordTarget, supervise};
pub use tally::{FallbackCounter, OutcomeCounts, SocketSummary, UpgradeRefusal};

/// Why a program could not be run over Multipath TCP.
#[derive(Debug, Error)]
pub enum ExecError {
    /// There is no command.
    #[error("no command to run")]
    Empty,
    /// The calling convention is not known.
    #[error("this machine's system calls are not known: `exec` knows x86_64, aarch64 and riscv64")]
    Machine,
    /// The filter was refused.
    #[error("the kernel refuses the filter that `exec` needs (seccomp user notification): {0}")]
    Kernel(#[source] io::Error),
    /// There is one already.
    #[error("another program is asked about the system calls of this one already")]
    Nested,
    /// The program could not be started.
    #[error("cannot run `{program}`: {source}")]
    Program {
        /// Its name.
        program: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Anything else that the system refused.
    #[error("cannot supervise the program: {0}")]
    System(#[source] io::Error),
}

impl ExecError {
    /// The way out, if there is one to tell.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Kernel(_) => Some(
                "it came with Linux 5.14, and containers can forbid it; for a Go program, \
                 `--method godebug` does without"
                    .to_owned(),
            ),
            Self::Nested => Some(
                "inside of `towpath exec`, programs have Multipath TCP already: run it directly"
                    .to_owned(),
            ),
            Self::Empty | Self::Machine | Self::Program { .. } | Self::System(_) => None,
        }
    }
}
