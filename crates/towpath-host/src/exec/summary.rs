//! Counts of the program's sockets, by outcome.

use std::collections::BTreeMap;
use std::fmt;
use std::io;

use towpath_netlink::MibCounters;
use towpath_run::evidence::FALLBACKS;

use super::socket_tracker::{ConnectionRole, SocketOutcome, TrackedSocket};

/// Summary of the program's sockets, by outcome.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SocketSummary {
    /// TCP sockets that were upgraded to Multipath TCP.
    pub upgraded: u64,
    /// TCP sockets that stayed TCP, by cause.
    pub refused: BTreeMap<UpgradeRefusal, u64>,
    /// Upgraded sockets that listen or have listened.
    pub listening: u64,
    /// Upgraded sockets in no listing of the kernel: never used, or closed too fast.
    pub unseen: u64,
    /// Connections without a reply while they were polled.
    pub unanswered: u64,
    /// Connections that the program opened.
    pub opened: OutcomeCounts,
    /// Connections that the program accepted.
    pub accepted: OutcomeCounts,
    /// Multipath TCP handshakes begun in this network namespace, by the kernel's counters.
    ///
    /// Other programs' handshakes are included.
    pub handshakes: u64,
    /// Handshakes among `handshakes` to which the peer replied with Multipath TCP.
    pub answered: u64,
    /// Growth of the kernel's fallback counters in this network namespace, other programs included.
    pub fallbacks: Vec<FallbackCounter>,
    /// Reason why the record could not be written; `None` without an error.
    pub record_error: Option<String>,
}

/// Number of connections by outcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutcomeCounts {
    /// Multipath TCP until the end.
    pub multipath: u64,
    /// Connections among `multipath` that had several subflows at one time.
    pub several_subflows: u64,
    /// Plain TCP: the peer or the path has no Multipath TCP, or the connection fell back later.
    pub single: u64,
}

/// A counter of fallbacks that has grown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FallbackCounter {
    /// Name of the counter, without its group.
    pub counter: &'static str,
    /// Meaning of the counter, for the reader of the summary.
    pub meaning: &'static str,
    /// Growth of the counter.
    pub count: u64,
}

/// Reason why a socket stayed TCP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UpgradeRefusal {
    /// `net.mptcp.enabled` is 0 in the program's network namespace.
    Disabled,
    /// The kernel lacks Multipath TCP.
    Missing,
    /// A process has moved to another network namespace.
    OtherNamespace,
    /// A process hides its network namespace.
    Unreadable,
    /// Another error of `socket()`, by its number.
    Other(i32),
}

impl SocketSummary {
    pub(super) fn refuse(&mut self, refusal: UpgradeRefusal) {
        *self.refused.entry(refusal).or_default() += 1;
    }

    /// Adds the outcomes of sockets.
    pub(super) fn add_up<'a>(&mut self, sockets: impl Iterator<Item = &'a TrackedSocket>) {
        for socket in sockets {
            let outcomes = match socket.role {
                ConnectionRole::Opened => &mut self.opened,
                ConnectionRole::Accepted => &mut self.accepted,
            };
            match socket.outcome {
                SocketOutcome::Unseen => self.unseen += 1,
                SocketOutcome::Listening => self.listening += 1,
                SocketOutcome::Trying => self.unanswered += 1,
                SocketOutcome::Single => outcomes.single += 1,
                SocketOutcome::Multipath => {
                    outcomes.multipath += 1;
                    outcomes.several_subflows += u64::from(socket.max_subflows > 1);
                }
            }
        }
    }

    /// Adds the kernel's counters, as growth since the start.
    pub(super) fn add_counters(&mut self, growth: &MibCounters) {
        let count = |name: &str| growth.get(&format!("MPTcpExt.{name}")).unwrap_or(0);
        self.handshakes = count("MPCapableSYNTX");
        self.answered = count("MPCapableSYNACKRX");
        self.fallbacks.extend(FALLBACKS.iter().filter_map(|(counter, meaning)| {
            let count = growth.get(&format!("MPTcpExt.{counter}"))?;
            Some(FallbackCounter { counter, meaning, count })
        }));
    }

    /// Returns the number of sockets that stayed TCP.
    pub fn refusals(&self) -> u64 {
        self.refused.values().sum()
    }
}

impl UpgradeRefusal {
    pub(super) fn from_kernel(error: &io::Error) -> Self {
        match error.raw_os_error() {
            Some(libc::ENOPROTOOPT) => Self::Disabled,
            // Kernels before 5.6 return EINVAL.
            Some(libc::EPROTONOSUPPORT | libc::EINVAL) => Self::Missing,
            other => Self::Other(other.unwrap_or(0)),
        }
    }
}

impl fmt::Display for UpgradeRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("net.mptcp.enabled is 0"),
            Self::Missing => f.write_str("this kernel does not support Multipath TCP"),
            Self::OtherNamespace => f.write_str("opened in another network namespace"),
            Self::Unreadable => f.write_str("the process hides its network namespace"),
            Self::Other(number) => write!(f, "{}", io::Error::from_raw_os_error(*number)),
        }
    }
}
