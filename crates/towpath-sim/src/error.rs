//! Why there is no result.

use std::io;

use thiserror::Error;
use towpath_mptcp::settings::SettingError;
use towpath_mptcp::stack::ConfigError;
use towpath_net::topology::RouteError;
use towpath_quic as quic;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum SimError {
    /// The links make no network.
    #[error("the network cannot be built: {0}")]
    Network(#[from] RouteError),
    /// A host's settings make no sense.
    #[error("host `{host}`: {source}")]
    Setting {
        /// Host.
        host: String,
        /// Why.
        source: SettingError,
    },
    /// A host's settings name something that does not exist.
    #[error("host `{host}`: {source}")]
    Name {
        /// Host.
        host: String,
        /// What, and what there is.
        source: ConfigError,
    },
    /// A host's QUIC settings make no sense.
    #[error("host `{host}`: {source}")]
    QuicSetting {
        /// Host.
        host: String,
        /// Why.
        source: SettingError,
    },
    /// A host cannot speak QUIC.
    #[error("host `{host}`: {source}")]
    Quic {
        /// Host.
        host: String,
        /// Why.
        source: quic::OpenError,
    },
    /// The reader of the records is gone.
    #[error("cannot write the result: {0}")]
    Write(io::Error),
    /// A capture cannot be written.
    #[error("cannot write the capture of host `{host}`: {source}")]
    Capture {
        /// Whose.
        host: String,
        /// Why.
        source: io::Error,
    },
}
