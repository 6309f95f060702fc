//! Why a connection cannot be opened, or ended.

use std::net::SocketAddr;

/// Why a connection ended out of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ConnectionError {
    /// RST, or MP_FASTCLOSE.
    #[error("the peer reset the connection")]
    Reset,
    /// RST to our SYN.
    #[error("the peer refused the connection")]
    Refused,
    /// No answer.
    #[error("the peer does not answer")]
    TimedOut,
    /// All subflows are gone and none came back in time.
    #[error("no path is left")]
    NoPath,
    /// We aborted it.
    #[error("aborted by this host")]
    Aborted,
    /// The peer broke a rule of the protocol that leaves no way on.
    #[error("the peer violated the protocol: {0}")]
    Protocol(&'static str),
}

/// Why a connection cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No interface that is up has an address of this family (or the asked one).
    #[error("no local address can reach {0}")]
    NoAddress(SocketAddr),
    /// A broadcast or multicast address (RFC 9293 §3.9.1.1).
    #[error("{0} is not the address of one host")]
    NotUnicast(SocketAddr),
    /// All ports are taken.
    #[error("no free port to {0}")]
    NoPort(SocketAddr),
    /// A name in the configuration is unknown.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A name in the configuration is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Scheduler.
    #[error(transparent)]
    Scheduler(#[from] towpath_multipath::scheduler::UnknownScheduler),
    /// Congestion control.
    #[error(transparent)]
    CongestionControl(#[from] towpath_multipath::congestion::UnknownCongestionControl),
    /// Path manager.
    #[error(transparent)]
    PathManager(#[from] crate::path_manager::UnknownPathManager),
}
