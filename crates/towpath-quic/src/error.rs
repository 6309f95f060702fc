//! What can go wrong, as values.

use std::net::{IpAddr, SocketAddr};

use noq_proto::crypto::rustls::NoInitialCipherSuite;
use noq_proto::rustls;
use thiserror::Error;

use crate::congestion::UnknownCongestionControl;
use crate::identity::{Fingerprint, UnpinnedCertificate};

/// Why a host cannot listen or connect.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A setting names something that does not exist.
    #[error(transparent)]
    CongestionControl(#[from] UnknownCongestionControl),
    /// The port is taken.
    #[error("port {0} is in use")]
    PortInUse(u16),
    /// All ports for connections are taken.
    #[error("no port is left")]
    NoPort,
    /// No address of the host that is up fits to the peer's.
    #[error("no address of this host reaches `{0}`")]
    NoAddress(SocketAddr),
    /// The given address is not one of the host's.
    #[error("`{0}` is not an address of this host")]
    ForeignAddress(IpAddr),
    /// The library refuses to connect.
    #[error("cannot connect: {0}")]
    Connect(#[from] noq_proto::ConnectError),
    /// TLS cannot be set up: our mistake.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// TLS has no cipher for the first packets: our mistake.
    #[error("cannot set up TLS: {0}")]
    Cipher(#[from] NoInitialCipherSuite),
}

/// Why a connection is gone.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// Nothing was heard for too long.
    #[error("connection timed out")]
    TimedOut,
    /// The peer closed it.
    #[error("closed by the peer: {0}")]
    ClosedByPeer(String),
    /// The peer broke the protocol, or what it sent cannot be handled.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The peer speaks QUIC, but no version that this host speaks.
    #[error("no version of QUIC in common")]
    Version,
    /// The peer is not the one that it should be; what it can be known by.
    #[error("its certificate has the fingerprint {0}, which is not the expected one")]
    Untrusted(Fingerprint),
    /// The peer has forgotten it.
    #[error("reset by the peer")]
    Reset,
    /// This host cannot go on.
    #[error("{0}")]
    Local(String),
}

impl From<noq_proto::ConnectionError> for ConnectionError {
    fn from(error: noq_proto::ConnectionError) -> Self {
        use noq_proto::ConnectionError as Library;
        match error {
            Library::TimedOut => Self::TimedOut,
            Library::Reset => Self::Reset,
            Library::ConnectionClosed(close) => Self::ClosedByPeer(close.to_string()),
            Library::ApplicationClosed(close) => Self::ClosedByPeer(close.to_string()),
            Library::TransportError(error) => {
                let shown = error.crypto.as_deref().and_then(UnpinnedCertificate::of);
                shown.map_or_else(|| Self::Protocol(error.to_string()), Self::Untrusted)
            }
            Library::VersionMismatch => Self::Version,
            Library::LocallyClosed => Self::Local("closed".to_owned()),
            Library::CidsExhausted => Self::Local("no connection identifier is left".to_owned()),
        }
    }
}

/// Why a stream takes or gives nothing any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StreamError {
    /// There is no such connection, or it is closed.
    #[error("the connection is closed")]
    NoConnection,
    /// There is no such stream, or this direction has ended.
    #[error("the stream is closed")]
    Closed,
    /// The peer gave it up.
    #[error("the stream was reset by the peer")]
    Reset,
    /// The peer wants no more data.
    #[error("the peer stopped reading")]
    Stopped,
}
