//! Errors that end a run without a result.

use std::io;

use thiserror::Error;
use towpath_mptcp::settings::SettingError;
use towpath_mptcp::stack::ConfigError;
use towpath_net::topology::RouteError;
use towpath_quic as quic;

/// Reason why a run has no result.
#[derive(Debug, Error)]
pub enum SimError {
    /// The links do not form a valid network.
    #[error("the network cannot be built: {0}")]
    Network(#[from] RouteError),
    /// A host's settings are invalid.
    #[error("host `{host}`: {source}")]
    Setting {
        /// Name of the host with these settings.
        host: String,
        /// Setting and the reason why its value is invalid.
        source: SettingError,
    },
    /// A host's settings name a component that does not exist.
    #[error("host `{host}`: {source}")]
    Name {
        /// Name of the host with these settings.
        host: String,
        /// Unknown name, with the names that exist.
        source: ConfigError,
    },
    /// A host's QUIC settings are invalid.
    #[error("host `{host}`: {source}")]
    QuicSetting {
        /// Name of the host with these settings.
        host: String,
        /// Setting and the reason why its value is invalid.
        source: SettingError,
    },
    /// A host cannot listen for QUIC connections.
    #[error("host `{host}`: {source}")]
    Quic {
        /// Name of the listening host.
        host: String,
        /// Error from opening the QUIC listener.
        source: quic::OpenError,
    },
    /// Writing a record failed, for example because its reader is gone.
    #[error("cannot write the result: {0}")]
    Write(io::Error),
    /// Writing a host's capture failed.
    #[error("cannot write the capture of host `{host}`: {source}")]
    Capture {
        /// Name of the captured host.
        host: String,
        /// Error from the capture's writer.
        source: io::Error,
    },
}
