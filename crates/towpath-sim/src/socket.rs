//! What an application holds: a byte stream of either protocol. All that applications do goes through
//! these few calls.

use bytes::Bytes;
use towpath_mptcp::stack::{self, ConnectionId};
use towpath_net::Instant;
use towpath_quic as quic;

use crate::host::SimHost;
use crate::quic::as_subflows;

/// A byte stream of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StreamSocket {
    /// A connection of TCP or Multipath TCP.
    Tcp(ConnectionId),
    /// A stream of a QUIC connection.
    Quic(quic::ConnectionId, quic::StreamId),
}

impl StreamSocket {
    /// The TCP connection, if it is one.
    pub(crate) fn tcp(self) -> Option<ConnectionId> {
        match self {
            Self::Tcp(connection) => Some(connection),
            Self::Quic(..) => None,
        }
    }
}

impl SimHost {
    /// Takes as much of `data` as fits; returns how much.
    pub(crate) fn write(&mut self, now: Instant, socket: StreamSocket, data: &mut Bytes) -> usize {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.write(now, connection, data),
            // What is closed takes nothing; its end is told as an event.
            StreamSocket::Quic(connection, stream) => {
                self.quic.host.write(now, connection, stream, data).unwrap_or(0)
            }
        }
    }

    /// The next bytes; empty at the end, `None` when there is nothing now.
    pub(crate) fn read(&mut self, now: Instant, socket: StreamSocket) -> Option<Bytes> {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.read(now, connection),
            StreamSocket::Quic(connection, stream) => {
                self.quic.host.read(now, connection, stream).unwrap_or(None)
            }
        }
    }

    /// Nothing more is written.
    pub(crate) fn shutdown(&mut self, now: Instant, socket: StreamSocket) {
        match socket {
            StreamSocket::Tcp(connection) => self.stack.shutdown(now, connection),
            StreamSocket::Quic(connection, stream) => {
                // What is closed already needs no end.
                let _ = self.quic.host.finish(now, connection, stream);
            }
        }
    }

    /// State of a connection, in the words of TCP. The paths of a QUIC connection belong to its
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
