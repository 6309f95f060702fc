//! Errors of opening and of ended connections.

use std::net::SocketAddr;

/// Reason why a connection ended abnormally.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum ConnectionError {
    /// The peer sent RST or MP_FASTCLOSE.
    #[error("the peer reset the connection")]
    Reset,
    /// The peer replied to our SYN with RST.
    #[error("the peer refused the connection")]
    Refused,
    /// The peer did not reply in time.
    #[error("the peer does not answer")]
    TimedOut,
    /// All subflows are closed, and none was opened again in time.
    #[error("no path is left")]
    NoPath,
    /// Our application or stack aborted the connection.
    #[error("aborted by this host")]
    Aborted,
    /// The peer violated the protocol, and the connection cannot continue.
    #[error("the peer violated the protocol: {0}")]
    Protocol(&'static str),
}

/// Reason why a connection cannot be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// No interface that is up has an address of this family (or the requested one).
    #[error("no local address can reach {0}")]
    NoAddress(SocketAddr),
    /// The address is broadcast or multicast (RFC 9293 §3.9.1.1).
    #[error("{0} is not the address of one host")]
    NotUnicast(SocketAddr),
    /// All local ports are in use.
    #[error("no free port to {0}")]
    NoPort(SocketAddr),
    /// A name in the configuration is unknown.
    #[error(transparent)]
    Config(#[from] ConfigError),
}

/// A name in the configuration is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The scheduler's name is unknown.
    #[error(transparent)]
    Scheduler(#[from] towpath_multipath::scheduler::UnknownScheduler),
    /// The name of the congestion control is unknown.
    #[error(transparent)]
    CongestionControl(#[from] towpath_multipath::congestion::UnknownCongestionControl),
    /// The path manager's name is unknown.
    #[error(transparent)]
    PathManager(#[from] crate::path_manager::UnknownPathManager),
}
