//! Texts about paths for users, the same in the simulator and in the emulator.

use crate::config::QuicConfig;
use crate::status::{ConnectionStatus, MULTIPATH_DRAFT, PathNotice};

impl PathNotice {
    /// Returns the path concerned; `None` for events of the whole connection.
    pub fn path(&self) -> Option<u32> {
        match self {
            Self::Established { path }
            | Self::Abandoned { path, .. }
            | Self::Switched { path, .. } => Some(*path),
            Self::Migrated { .. } | Self::SinglePath => None,
        }
    }

    /// Returns the name of the event's counter.
    pub fn counter(&self) -> &'static str {
        match self {
            Self::Established { .. } => PATHS_ESTABLISHED,
            Self::Abandoned { .. } => PATHS_ABANDONED,
            Self::Switched { .. } => "PathSwitches",
            Self::Migrated { .. } => "Migrations",
            Self::SinglePath => "Fallbacks",
        }
    }

    /// Returns the new backup status of a switched path, and the name of the reason.
    pub fn switch(&self) -> Option<(bool, &'static str)> {
        match self {
            Self::Switched { backup, reason, .. } => Some((*backup, reason.name())),
            Self::Established { .. }
            | Self::Abandoned { .. }
            | Self::Migrated { .. }
            | Self::SinglePath => None,
        }
    }

    /// Returns the event as text; `name` is the name of the path's link.
    pub fn text(&self, name: Option<&str>) -> String {
        let event = match self {
            Self::Established { .. } => "established".to_owned(),
            Self::Abandoned { reason, .. } => format!("abandoned: {reason}"),
            Self::Switched { backup, reason, .. } => {
                format!("{}: {reason}", if *backup { "is a backup now" } else { "is used now" })
            }
            Self::Migrated { local } => format!("path 0 continues from {local}"),
            Self::SinglePath => {
                format!("the peer does not support {MULTIPATH_DRAFT}: one path only")
            }
        };
        match (self.path(), name) {
            (Some(number), Some(name)) => format!("path {number} on {name} {event}"),
            (Some(number), None) => format!("path {number} {event}"),
            (None, _) => event,
        }
    }
}

const PATHS_ESTABLISHED: &str = "PathsEstablished";
const PATHS_ABANDONED: &str = "PathsAbandoned";

/// Evidence that Multipath QUIC was used, or the reason for the fallback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MultipathEvidence {
    /// True if every connection negotiated Multipath QUIC.
    pub used: bool,
    /// Reason for the fallback; `None` if multipath was used.
    pub fallback: Option<String>,
    /// Observations that support the verdict.
    pub evidence: Vec<String>,
}

/// Evidence collected on one host.
#[derive(Clone)]
pub struct HostEvidence<'a> {
    /// Name of the host in the scenario.
    pub host: &'a str,
    /// State of the host's ends of connections that should use multipath.
    pub ends: Vec<ConnectionEvidence>,
    /// Returns the number of occurrences of a [`PathNotice`], by [`PathNotice::counter`].
    pub count: &'a dyn Fn(&'static str) -> Option<u64>,
}

/// Evidence from one end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionEvidence {
    /// True if Multipath QUIC was negotiated.
    pub multipath: bool,
    /// Packets declared lost by the library.
    pub lost_packets: u64,
}

impl From<&ConnectionStatus> for ConnectionEvidence {
    fn from(status: &ConnectionStatus) -> Self {
        let lost_packets = status.paths.iter().map(|path| path.lost_packets);
        Self {
            multipath: status.multipath,
            lost_packets: lost_packets.fold(0, u64::saturating_add),
        }
    }
}

impl std::fmt::Debug for HostEvidence<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostEvidence").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Combines the evidence from both ends of all connections.
pub fn multipath_evidence(hosts: &[HostEvidence<'_>]) -> MultipathEvidence {
    let (mut ends, mut multipath_ends, mut lost) = (0, 0, 0);
    let mut evidence = Vec::new();
    for host_evidence in hosts {
        ends += host_evidence.ends.len();
        multipath_ends += host_evidence.ends.iter().filter(|end| end.multipath).count();
        lost += host_evidence.ends.iter().map(|end| end.lost_packets).sum::<u64>();
        for (name, event) in [(PATHS_ESTABLISHED, "established"), (PATHS_ABANDONED, "abandoned")] {
            if let Some(count) = (host_evidence.count)(name) {
                let host = host_evidence.host;
                let plural = if count == 1 { "" } else { "s" };
                evidence.push(format!("{count} more path{plural} {event} on {host}"));
            }
        }
    }
    let negotiated =
        format!("{multipath_ends} of {ends} ends of connections negotiated {MULTIPATH_DRAFT}");
    evidence.insert(0, negotiated);
    let packets = if lost == 1 { "packet was" } else { "packets were" };
    evidence.push(format!("{lost} {packets} declared lost; the data was retransmitted"));
    let used = ends > 0 && multipath_ends == ends;
    let reason =
        if ends == 0 { "no connection was opened" } else { "a connection did not negotiate it" };
    MultipathEvidence { used, fallback: (!used).then(|| reason.to_owned()), evidence }
}

/// Caveat about a result, and a hint.
pub type WarningText = (String, &'static str);

/// Returns the caveat of every result over Multipath QUIC: no selectable scheduler.
pub fn no_scheduler() -> WarningText {
    let text = "Multipath QUIC has no selectable scheduler, and reinjects data on another path only after the old path is abandoned";
    let hint = "docs/explanation/quic.md says what the library does; compare failover times with that in mind";
    (text.to_owned(), hint)
}

/// Returns the caveat that a host's window is smaller than requested, if it is.
pub fn small_window(host: &str, config: &QuicConfig) -> Option<WarningText> {
    let (used_bytes, requested_bytes) = (config.window_bytes(), config.receive_window_bytes);
    let text =
        || format!("the QUIC window of `{host}` is {used_bytes} bytes, not {requested_bytes}");
    let hint = "with a larger one, the library closes connections; see docs/explanation/quic.md";
    (requested_bytes > used_bytes).then(|| (text(), hint))
}

/// Returns the caveat that a flow had a single path.
pub fn single_path(flow: usize) -> WarningText {
    let hint = "only the host that opens a connection can add paths, from addresses with the flag \
                `subflow`; addresses cannot be announced";
    (format!("flow {flow} had a single path"), hint)
}
