//! The state of a connection, for series and proofs, and what happens to it.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_net::Instant;

use crate::error::ConnectionError;
use crate::identity::Fingerprint;

/// The draft of Multipath QUIC that is spoken. Its code points are not registered yet, and differ
/// from those of earlier drafts: with a peer that speaks another one, a connection has one path.
pub const MULTIPATH_DRAFT: &str = "draft-ietf-quic-multipath-21";

/// A connection of a host; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u32);

/// A listener of a host; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) u32);

/// A bidirectional stream of a connection that the opener of the connection began, by its number
/// from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// What happened on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuicEvent {
    /// A peer began a connection.
    Accepted {
        /// Where.
        listener: ListenerId,
        /// Which.
        connection: ConnectionId,
    },
    /// A connection that this host began is open.
    Connected(ConnectionId),
    /// The peer began a stream; it may have data already.
    StreamOpened(ConnectionId, StreamId),
    /// A stream has data or its end.
    Readable(ConnectionId, StreamId),
    /// A stream takes data again.
    Writable(ConnectionId, StreamId),
    /// All that was written to a stream has arrived, its end too.
    Finished(ConnectionId, StreamId),
    /// A connection is gone.
    Closed {
        /// Which.
        connection: ConnectionId,
        /// Why; `None` when this host closed it.
        error: Option<ConnectionError>,
    },
    /// Something that no application needs, for records.
    Notice {
        /// Of which.
        connection: ConnectionId,
        /// What.
        notice: PathNotice,
    },
}

/// What happened to the paths of a connection; `path` is the path's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathNotice {
    /// The peer does not speak this draft of Multipath QUIC: there is one path.
    SinglePath,
    /// The peer has answered on it.
    Established {
        /// Which.
        path: u32,
    },
    /// It is not used any more.
    Abandoned {
        /// Which.
        path: u32,
        /// Why.
        why: AbandonReason,
    },
    /// This host's path policy uses it from now on, or only if nothing else works.
    Switched {
        /// Which.
        path: u32,
        /// Whether it is a backup now.
        backup: bool,
        /// Why.
        why: SwitchReason,
    },
    /// A single path goes on from another address (RFC 9000 §9).
    Migrated {
        /// The new address.
        local: SocketAddr,
    },
}

/// Why a path is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbandonReason {
    /// Nothing was heard on it for so long, while another path worked.
    Silent(Duration),
    /// Its address is gone, or its interface is down.
    AddressGone,
    /// The peer gave it up.
    Peer,
    /// The library gave it up.
    Library,
}

impl fmt::Display for AbandonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(span) => write!(f, "nothing was heard for {} ms", span.as_millis()),
            Self::AddressGone => f.write_str("its address is gone"),
            Self::Peer => f.write_str("the peer gave it up"),
            Self::Library => f.write_str("it did not work"),
        }
    }
}

/// Why a path policy uses a path, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchReason {
    /// A probe timeout of the primary runs out.
    Timeout,
    /// Data is unacknowledged on the primary for so long.
    DataInFlight(Duration),
    /// Its smoothed round-trip time.
    SlowRoundTrip(Duration),
    /// Its timeout without back-off.
    LongTimeout(Duration),
    /// Nothing was heard on it for so long, while another path works.
    Silent(Duration),
    /// No better path works.
    NothingElse,
    /// The better path works again.
    Recovered,
    /// The peer asks for it.
    Peer,
}

impl SwitchReason {
    /// A short name, as in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Timeout => "rto",
            Self::DataInFlight(_) => "in-flight",
            Self::SlowRoundTrip(_) => "rtt-threshold",
            Self::LongTimeout(_) => "rto-threshold",
            Self::Silent(_) => "silent",
            Self::NothingElse => "gone",
            Self::Recovered => "recovered",
            Self::Peer => "peer",
        }
    }
}

impl fmt::Display for SwitchReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("a timeout of the primary has run out"),
            Self::DataInFlight(span) => {
                write!(f, "data is unacknowledged for {} ms", span.as_millis())
            }
            Self::SlowRoundTrip(rtt) => write!(f, "its round trips take {} ms", rtt.as_millis()),
            Self::LongTimeout(rto) => write!(f, "its timeout is {} ms", rto.as_millis()),
            Self::Silent(span) => write!(f, "nothing was heard for {} ms", span.as_millis()),
            Self::NothingElse => f.write_str("no better path works"),
            Self::Recovered => f.write_str("the better path works again"),
            Self::Peer => f.write_str("the peer asks for it"),
        }
    }
}

/// State of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionStatus {
    /// Our address when it began.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// Whether this host began it.
    pub opener: bool,
    /// Whether the handshake is complete.
    pub established: bool,
    /// Whether both ends speak [`MULTIPATH_DRAFT`].
    pub multipath: bool,
    /// Why it is gone, if it is.
    pub error: Option<ConnectionError>,
    /// What the peer can be known by, if this host began the connection.
    pub peer: Option<Fingerprint>,
    /// Name of the congestion control.
    pub congestion_control: String,
    /// All paths, the abandoned ones too, by number.
    pub paths: Vec<PathStatus>,
}

/// How far a path is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// The peer's answer is awaited.
    Validating,
    /// In use, or ready to be.
    Established,
    /// Given up.
    Abandoned {
        /// When.
        at: Instant,
        /// Why.
        why: AbandonReason,
    },
}

/// A path's part of [`ConnectionStatus`]. Bytes are those of UDP payload, with everything that QUIC adds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathStatus {
    /// Number in the protocol (path ID), never reused; 0 is the first.
    pub number: u32,
    /// Our address.
    pub local: SocketAddr,
    /// The peer's.
    pub remote: SocketAddr,
    /// How far it is.
    pub state: PathState,
    /// Whether this host uses it only if nothing else works.
    pub backup: bool,
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Its variation.
    pub rttvar: Duration,
    /// Smallest.
    pub min_rtt: Duration,
    /// Probe timeout without back-off (RFC 9002 §6.2.1).
    pub pto: Duration,
    /// Congestion window.
    pub cwnd_bytes: u64,
    /// Slow start threshold, where the control has one.
    pub ssthresh_bytes: Option<u64>,
    /// In flight.
    pub in_flight_bytes: u64,
    /// Bytes sent.
    pub sent_bytes: u64,
    /// Datagrams sent.
    pub sent_datagrams: u64,
    /// Bytes of packets that were acknowledged.
    pub acked_bytes: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// STREAM frames sent: whoever has none only keeps the path.
    pub sent_stream_frames: u64,
    /// STREAM frames received.
    pub received_stream_frames: u64,
    /// Packets taken for lost.
    pub lost_packets: u64,
    /// UDP payload of a full packet.
    pub mtu_bytes: u16,
}
