//! What became of the program's sockets.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

/// What became of the program's sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tally {
    /// TCP sockets that were made Multipath TCP sockets.
    pub upgraded: u64,
    /// TCP sockets that stayed TCP, by cause.
    pub refused: BTreeMap<Refusal, u64>,
}

/// Why a socket stayed TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Refusal {
    /// `net.mptcp.enabled` is 0.
    Disabled,
    /// The kernel has no Multipath TCP.
    Missing,
    /// A process has moved to another network namespace.
    OtherNamespace,
    /// A process hides what network it is in.
    Unreadable,
    /// Another error of `socket()`, by its number.
    Other(i32),
}

impl Tally {
    pub(super) fn refuse(&mut self, refusal: Refusal) {
        *self.refused.entry(refusal).or_default() += 1;
    }

    /// Sockets that stayed TCP.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl Refusal {
    pub(super) fn from_kernel(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => Self::Disabled,
            // EINVAL is how kernels before 5.6 say it.
            Some(libc::EPROTONOSUPPORT | libc::EINVAL) => Self::Missing,
            other => Self::Other(other.unwrap_or(0)),
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("net.mptcp.enabled is 0"),
            Self::Missing => f.write_str("this kernel has no Multipath TCP"),
            Self::OtherNamespace => f.write_str("opened in another network namespace"),
            Self::Unreadable => f.write_str("the process hides its network namespace"),
            Self::Other(number) => write!(f, "{}", io::Error::from_raw_os_error(*number)),
        }
    }
}
