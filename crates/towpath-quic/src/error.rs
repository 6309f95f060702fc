//! Errors of hosts, connections and streams.

use std::net::{IpAddr, SocketAddr};

use noq_proto::crypto::rustls::NoInitialCipherSuite;
use noq_proto::rustls;
use thiserror::Error;

use crate::congestion::UnknownCongestionControl;
use crate::identity::{Fingerprint, UnpinnedCertificate};

/// Reason why a host cannot listen or connect.
#[derive(Debug, Error)]
pub enum OpenError {
    /// A setting names an unknown congestion control.
    #[error(transparent)]
    CongestionControl(#[from] UnknownCongestionControl),
    /// The port is already in use.
    #[error("port {0} is in use")]
    PortInUse(u16),
    /// All ports for connections are in use.
    #[error("no port is left")]
    NoPort,
    /// No address of the host that is up matches the family and scope of the peer's.
    #[error("no address of this host reaches `{0}`")]
    NoAddress(SocketAddr),
    /// The given address is not one of the host's.
    #[error("`{0}` is not an address of this host")]
    ForeignAddress(IpAddr),
    /// The library refuses to connect.
    #[error("cannot connect: {0}")]
    Connect(#[from] noq_proto::ConnectError),
    /// TLS cannot be set up: an error in this program or its certificate.
    #[error("cannot set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// TLS has no cipher for Initial packets: an error in this program.
    #[error("cannot set up TLS: {0}")]
    Cipher(#[from] NoInitialCipherSuite),
}

/// Reason for the end of a connection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConnectionError {
    /// Nothing was received for the idle timeout.
    #[error("connection timed out")]
    TimedOut,
    /// The peer closed the connection; the text is its reason.
    #[error("closed by the peer: {0}")]
    ClosedByPeer(String),
    /// The peer violated the protocol, or sent something that cannot be handled.
    #[error("protocol error: {0}")]
    Protocol(String),
    /// The peer supports none of this host's QUIC versions.
    #[error("no version of QUIC in common")]
    Version,
    /// The peer's certificate is not the expected one; its fingerprint.
    #[error("its certificate has the fingerprint {0}, which is not the expected one")]
    Untrusted(Fingerprint),
    /// The peer has lost the connection's state and sent a stateless reset.
    #[error("reset by the peer")]
    Reset,
    /// Local failure after which the connection cannot continue.
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
                let fingerprint = error.crypto.as_deref().and_then(UnpinnedCertificate::of);
                fingerprint.map_or_else(|| Self::Protocol(error.to_string()), Self::Untrusted)
            }
            Library::VersionMismatch => Self::Version,
            Library::LocallyClosed => Self::Local("closed".to_owned()),
            Library::CidsExhausted => Self::Local("no connection identifier is left".to_owned()),
        }
    }
}

/// Reason why a stream accepts or delivers no more data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum StreamError {
    /// The connection does not exist or is closed.
    #[error("the connection is closed")]
    NoConnection,
    /// The stream does not exist or this direction has ended.
    #[error("the stream is closed")]
    Closed,
    /// The peer reset the stream.
    #[error("the stream was reset by the peer")]
    Reset,
    /// The peer stopped reading the stream.
    #[error("the peer stopped reading")]
    Stopped,
}
