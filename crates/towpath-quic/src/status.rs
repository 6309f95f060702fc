//! The state of a connection, for time series and evidence, and its events.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use towpath_net::Instant;

use crate::error::ConnectionError;
use crate::identity::Fingerprint;

/// Supported draft of Multipath QUIC. Its code points are not registered yet, and differ from those
/// of earlier drafts. With a peer that supports another draft, a connection has one path.
pub const MULTIPATH_DRAFT: &str = "draft-ietf-quic-multipath-21";

/// A connection of a host; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub(crate) u32);

/// A listener of a host; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub(crate) u32);

/// A bidirectional stream, opened by the end that opened the connection, by its number from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

/// Event on a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QuicEvent {
    /// A peer opened a connection.
    Accepted {
        /// Listener that accepted the connection.
        listener: ListenerId,
        /// The connection that was accepted.
        connection: ConnectionId,
    },
    /// A connection that this host opened is established.
    Connected(ConnectionId),
    /// The peer opened a stream, which may have data already.
    StreamOpened(ConnectionId, StreamId),
    /// A stream has data or has reached its end.
    Readable(ConnectionId, StreamId),
    /// A stream accepts data again.
    Writable(ConnectionId, StreamId),
    /// All data written to a stream has arrived, including the end.
    Finished(ConnectionId, StreamId),
    /// A connection has ended.
    Closed {
        /// The connection that has ended.
        connection: ConnectionId,
        /// Reason for the end; `None` when this host closed it.
        error: Option<ConnectionError>,
    },
    /// An event for records only, without relevance for applications.
    Notice {
        /// Connection that the event belongs to.
        connection: ConnectionId,
        /// Event of the connection's paths.
        notice: PathNotice,
    },
}

/// Event of a connection's paths; `path` is the path's number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathNotice {
    /// The peer does not support this draft of Multipath QUIC: there is one path.
    SinglePath,
    /// The peer has validated the path.
    Established {
        /// Number of the path in the protocol.
        path: u32,
    },
    /// The path is no longer used.
    Abandoned {
        /// Number of the path in the protocol.
        path: u32,
        /// Reason for abandoning the path.
        reason: AbandonReason,
    },
    /// The local path policy uses the path from now on, or only if nothing else works.
    Switched {
        /// Number of the path in the protocol.
        path: u32,
        /// True if the path is a backup now.
        backup: bool,
        /// Reason for the switch.
        reason: SwitchReason,
    },
    /// The single path continues from another address (RFC 9000 §9).
    Migrated {
        /// New address of this host.
        local: SocketAddr,
    },
}

/// Reason for abandoning a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AbandonReason {
    /// Nothing was received for this time, while another path worked.
    Silent(Duration),
    /// The path's address is gone, or its interface is down.
    AddressGone,
    /// The peer abandoned the path.
    Peer,
    /// The library abandoned the path.
    Library,
}

impl fmt::Display for AbandonReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Silent(span) => write!(f, "no packet received for {} ms", span.as_millis()),
            Self::AddressGone => f.write_str("its address is gone"),
            Self::Peer => f.write_str("the peer abandoned it"),
            Self::Library => f.write_str("it did not work"),
        }
    }
}

/// Reason of a path policy to use a path, or not to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwitchReason {
    /// A probe timeout of the primary expires.
    Timeout,
    /// Data is unacknowledged on the primary for this time.
    DataInFlight(Duration),
    /// The primary's smoothed round-trip time is too long.
    SlowRoundTrip(Duration),
    /// The primary's timeout without back-off is too long.
    LongTimeout(Duration),
    /// Nothing was received on the path for this time, while another path works.
    Silent(Duration),
    /// No better path works.
    NothingElse,
    /// The better path works again.
    Recovered,
    /// The peer requested the change.
    Peer,
}

impl SwitchReason {
    /// Returns a short name, as used in results.
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
            Self::Timeout => f.write_str("a timeout of the primary path expired"),
            Self::DataInFlight(span) => {
                write!(f, "data is unacknowledged for {} ms", span.as_millis())
            }
            Self::SlowRoundTrip(rtt) => write!(f, "its round-trip time is {} ms", rtt.as_millis()),
            Self::LongTimeout(rto) => write!(f, "its timeout is {} ms", rto.as_millis()),
            Self::Silent(span) => write!(f, "no packet received for {} ms", span.as_millis()),
            Self::NothingElse => f.write_str("no better path works"),
            Self::Recovered => f.write_str("the better path works again"),
            Self::Peer => f.write_str("the peer asks for it"),
        }
    }
}

/// Snapshot of a connection.
#[derive(Debug, Clone, PartialEq)]
pub struct ConnectionStatus {
    /// Local address at the start.
    pub local: SocketAddr,
    /// Remote address and port of the peer.
    pub remote: SocketAddr,
    /// True if this host opened the connection.
    pub opener: bool,
    /// True if the handshake is complete.
    pub established: bool,
    /// True if both ends support [`MULTIPATH_DRAFT`].
    pub multipath: bool,
    /// Reason for the end of the connection; `None` while it lives.
    pub error: Option<ConnectionError>,
    /// Fingerprint of the peer's certificate, if this host opened the connection.
    pub peer: Option<Fingerprint>,
    /// Name of the congestion control.
    pub congestion_control: String,
    /// All paths by number, including abandoned ones.
    pub paths: Vec<PathStatus>,
}

/// Life-cycle state of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PathState {
    /// The peer has not answered the path challenge yet.
    Validating,
    /// The path is in use, or ready to be used.
    Established,
    /// The path is no longer used.
    Abandoned {
        /// Time at which it was abandoned.
        at: Instant,
        /// Reason for abandoning the path.
        reason: AbandonReason,
    },
}

/// Snapshot of one path. Byte counts are UDP payload, including all of QUIC's overhead.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PathStatus {
    /// Number in the protocol (path ID), never reused; 0 is the first.
    pub number: u32,
    /// Our address and UDP port.
    pub local: SocketAddr,
    /// The peer's address and UDP port.
    pub remote: SocketAddr,
    /// Life-cycle state of the path.
    pub state: PathState,
    /// True if this host uses the path only when nothing else works.
    pub backup: bool,
    /// Smoothed round-trip time of the path.
    pub srtt: Duration,
    /// Variation of the round-trip time.
    pub rttvar: Duration,
    /// Smallest round-trip time measured.
    pub min_rtt: Duration,
    /// Probe timeout without back-off (RFC 9002 §6.2.1).
    pub pto: Duration,
    /// Congestion window in bytes.
    pub cwnd_bytes: u64,
    /// Slow start threshold in bytes; `None` if the control has none.
    pub ssthresh_bytes: Option<u64>,
    /// Bytes in flight on the path.
    pub in_flight_bytes: u64,
    /// UDP payload bytes sent.
    pub sent_bytes: u64,
    /// Number of datagrams sent.
    pub sent_datagrams: u64,
    /// Bytes of packets that were acknowledged.
    pub acked_bytes: u64,
    /// UDP payload bytes received.
    pub received_bytes: u64,
    /// STREAM frames sent; a path without any only keeps itself alive.
    pub sent_stream_frames: u64,
    /// Number of STREAM frames received.
    pub received_stream_frames: u64,
    /// Packets declared lost by the library.
    pub lost_packets: u64,
    /// UDP payload of a full packet.
    pub mtu_bytes: u16,
}
