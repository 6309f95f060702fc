//! Transport of a stream's data: a kernel socket or a stream of a QUIC connection.

use std::io;
use std::sync::Arc;

use towpath_kernel::sample;
use towpath_quic::{ConnectionId, StreamId};
use towpath_sockets::quic::QuicHandle;
use towpath_sockets::stream::app::StreamApp;
use towpath_sockets::stream::quic::{QuicConnection, QuicStreamHandle};
use towpath_sockets::stream::socket_stream::SocketStream;

/// Reference-counted guard of a QUIC connection; dropping the last one closes the connection.
#[derive(Debug)]
pub(super) struct ConnectionGuard {
    host: Arc<QuicHandle>,
    id: ConnectionId,
}

impl ConnectionGuard {
    pub(super) fn new(host: &Arc<QuicHandle>, id: ConnectionId) -> Arc<Self> {
        Arc::new(Self { host: Arc::clone(host), id })
    }
}

impl ConnectionGuard {
    /// Returns the channel binding, a secret of both endpoints of the connection.
    pub(super) fn binding(&self) -> Option<[u8; 32]> {
        let id = self.id;
        self.host.call(move |driver| driver.host.binding(id)).ok().flatten()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let id = self.id;
        self.host.post(move |driver| driver.close(id));
    }
}

/// Endpoint of a data stream.
#[derive(Debug, Clone)]
pub(super) enum DataStream {
    /// TCP or Multipath TCP connection of the kernel.
    Socket(SocketStream),
    /// Stream of a QUIC connection.
    Quic(QuicDataStream),
}

/// Endpoint of a QUIC stream.
#[derive(Debug, Clone)]
pub(super) struct QuicDataStream {
    handle: QuicStreamHandle,
    stream: StreamId,
    _guard: Arc<ConnectionGuard>,
}

impl QuicDataStream {
    /// Creates the endpoint. The `first` stream of a flow represents the connection in statistics.
    pub(super) fn new(
        connection: QuicConnection,
        (stream, first): (StreamId, bool),
        guard: Arc<ConnectionGuard>,
    ) -> Self {
        Self { handle: QuicStreamHandle::new(connection, first), stream, _guard: guard }
    }

    /// Attaches the handler that transfers the stream's data.
    pub(super) fn attach(&self, app: StreamApp) {
        self.handle.connection.attach(self.stream, app);
    }

    /// Returns the connection if this stream represents it.
    pub(super) fn connection(&self) -> Option<&QuicConnection> {
        self.handle.is_first().then_some(&self.handle.connection)
    }
}

impl DataStream {
    /// Returns a sample of the connection's statistics.
    pub(super) fn sample(&self, multipath: bool) -> io::Result<sample::ConnectionSample> {
        match self {
            Self::Socket(socket) => sample::connection(socket.socket(), multipath),
            Self::Quic(stream) => stream.handle.sample(),
        }
    }

    /// Returns the QUIC connection if this stream represents it.
    pub(super) fn connection(&self) -> Option<&QuicConnection> {
        match self {
            Self::Socket(_) => None,
            Self::Quic(stream) => stream.connection(),
        }
    }
}
