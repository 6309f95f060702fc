//! Application interface to a byte stream of either protocol. Applications use only these few
//! calls.

use bytes::Bytes;
use towpath_mptcp::stack;
use towpath_net::Instant;
use towpath_quic as quic;
use towpath_wire::ConnectionId;

use crate::host::SimHost;
use crate::quic::as_subflows;

/// Handle of a host's byte stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamSocket {
    /// Connection of TCP or Multipath TCP.
    Tcp(ConnectionId),
    /// Stream of a QUIC connection.
    Quic(quic::ConnectionId, quic::StreamId),
}

impl StreamSocket {
    /// Returns the TCP connection; `None` for QUIC.
    pub(crate) fn tcp(self) -> Option<ConnectionId> {
        match self {
            Self::Tcp(connection) => Some(connection),
            Self::Quic(..) => None,
        }
    }
}

impl SimHost {
    /// Writes as much of `data` as fits; returns the number of bytes written.
    pub(crate) fn write(&mut self, now: Instant, socket: StreamSocket, data: &mut Bytes) -> usize {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.write(now, connection, data),
            // A closed stream accepts nothing; an event reports its end.
            StreamSocket::Quic(connection, stream) => {
                self.quic.host.write(now, connection, stream, data).unwrap_or(0)
            }
        }
    }

    /// Returns the next bytes: empty at the end, `None` if nothing is available yet.
    pub(crate) fn read(&mut self, now: Instant, socket: StreamSocket) -> Option<Bytes> {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.read(now, connection),
            StreamSocket::Quic(connection, stream) => {
                self.quic.host.read(now, connection, stream).unwrap_or(None)
            }
        }
    }

    /// Ends the sending direction.
    pub(crate) fn shutdown(&mut self, now: Instant, socket: StreamSocket) {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.shutdown(now, connection),
            StreamSocket::Quic(connection, stream) => {
                // An error means that the stream is already closed.
                let _ = self.quic.host.finish(now, connection, stream);
            }
        }
    }

    /// Returns the connection's status in TCP terms. The paths of a QUIC connection belong to its
    /// first stream, so that they count once.
    pub(crate) fn status(&self, socket: StreamSocket) -> Option<stack::ConnectionStatus> {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.status(connection),
            StreamSocket::Quic(connection, quic::StreamId(0)) => {
                self.quic.last_status.get(&connection).map(as_subflows)
            }
            StreamSocket::Quic(..) => None,
        }
    }
}
