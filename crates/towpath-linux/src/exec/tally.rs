//! What became of the program's sockets.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use super::connections::{ConnectionRole, SocketOutcome, TrackedSocket};
use crate::netlink::MibCounters;
use crate::run::FALLBACKS;

/// What became of the program's sockets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketSummary {
    /// TCP sockets that were made Multipath TCP sockets.
    pub upgraded: u64,
    /// TCP sockets that stayed TCP, by cause.
    pub refused: BTreeMap<UpgradeRefusal, u64>,
    /// Those that listen or have listened.
    pub listening: u64,
    /// Those that were in no listing of the kernel's: never used, or closed too fast.
    pub unseen: u64,
    /// Connections that got no answer while they were looked at.
    pub unanswered: u64,
    /// Connections that the program opened.
    pub opened: OutcomeCounts,
    /// Connections that the program accepted.
    pub accepted: OutcomeCounts,
    /// Handshakes with Multipath TCP that were begun in this network namespace meanwhile, those of
    /// other programs among them, by the kernel's counters.
    pub handshakes: u64,
    /// Those of them that were answered with Multipath TCP.
    pub answered: u64,
    /// What the kernel's counters say of fallbacks in this network namespace meanwhile, those of
    /// other programs among them.
    pub fallbacks: Vec<FallbackCounter>,
    /// Why the record could not be written.
    pub record_error: Option<String>,
}

/// How many connections became what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutcomeCounts {
    /// Multipath TCP to the end.
    pub multipath: u64,
    /// Those of them that had several subflows at one time.
    pub several_subflows: u64,
    /// Plain TCP: the peer or the way to it had no more, or the connection fell back later.
    pub single: u64,
}

/// A counter of fallbacks that has grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackCounter {
    /// Name of the counter, without its group.
    pub counter: &'static str,
    /// What it means.
    pub meaning: &'static str,
    /// How much it has grown.
    pub count: u64,
}

/// Why a socket stayed TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpgradeRefusal {
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

impl SocketSummary {
    pub(super) fn refuse(&mut self, refusal: UpgradeRefusal) {
        *self.refused.entry(refusal).or_default() += 1;
    }

    /// Adds what became of the sockets that were made.
    pub(super) fn add_up<'a>(&mut self, all: impl Iterator<Item = &'a TrackedSocket>) {
        for own in all {
            let outcomes = match own.role {
                ConnectionRole::Opened => &mut self.opened,
                ConnectionRole::Accepted => &mut self.accepted,
            };
            match own.fate {
                SocketOutcome::Unseen => self.unseen += 1,
                SocketOutcome::Listening => self.listening += 1,
                SocketOutcome::Trying => self.unanswered += 1,
                SocketOutcome::Single => outcomes.single += 1,
                SocketOutcome::Multipath => {
                    outcomes.multipath += 1;
                    outcomes.several_subflows += u64::from(own.most_subflows > 1);
                }
            }
        }
    }

    /// Adds what the counters say, `grown` since the start.
    pub(super) fn add_counters(&mut self, grown: &MibCounters) {
        let count = |name: &str| grown.get(&format!("MPTcpExt.{name}")).unwrap_or(0);
        self.handshakes = count("MPCapableSYNTX");
        self.answered = count("MPCapableSYNACKRX");
        self.fallbacks.extend(FALLBACKS.iter().filter_map(|(counter, meaning)| {
            let count = grown.get(&format!("MPTcpExt.{counter}"))?;
            Some(FallbackCounter { counter, meaning, count })
        }));
    }

    /// Sockets that stayed TCP.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl UpgradeRefusal {
    pub(super) fn from_kernel(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => Self::Disabled,
            // EINVAL is how kernels before 5.6 say it.
            Some(libc::EPROTONOSUPPORT | libc::EINVAL) => Self::Missing,
            other => Self::Other(other.unwrap_or(0)),
        }
    }
}

impl fmt::Display for UpgradeRefusal {
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
