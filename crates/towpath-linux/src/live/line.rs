//! What the bytes of a stream go over: a socket of the kernel, or a stream of a QUIC connection.

use std::io;
use std::sync::Arc;

use towpath_quic::{ConnectionId, StreamId};

use crate::quic::QuicHandle;
use crate::sample;
use crate::traffic::end::StreamApp;
use crate::traffic::quic::{QuicConnection, QuicStreamHandle};
use crate::traffic::wire::SocketStream;

/// Keeps a QUIC connection; whoever drops the last of its copies closes it.
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
    /// What both ends of the connection know and nobody else.
    pub(super) fn binding(&self) -> Option<[u8; 32]> {
        let id = self.id;
        self.host.call(move |turn| turn.host.binding(id)).ok().flatten()
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let id = self.id;
        self.host.post(move |turn| turn.close(id));
    }
}

/// One end of a stream.
#[derive(Debug, Clone)]
pub(super) enum DataStream {
    /// A connection of the kernel.
    Socket(SocketStream),
    /// A stream of QUIC.
    Quic(QuicDataStream),
}

/// One end of a stream of QUIC.
#[derive(Debug, Clone)]
pub(super) struct QuicDataStream {
    ended: QuicStreamHandle,
    stream: StreamId,
    _hold: Arc<ConnectionGuard>,
}

impl QuicDataStream {
    /// A stream of a connection; the `first` one of a flow speaks for the connection.
    pub(super) fn new(
        connection: QuicConnection,
        (stream, first): (StreamId, bool),
        hold: Arc<ConnectionGuard>,
    ) -> Self {
        Self { ended: QuicStreamHandle::new(connection, first), stream, _hold: hold }
    }

    /// Lets `end` move its bytes.
    pub(super) fn attach(&self, end: StreamApp) {
        self.ended.connection.attach(self.stream, end);
    }

    /// Its connection, if it is this stream that speaks for it.
    pub(super) fn connection(&self) -> Option<&QuicConnection> {
        self.ended.is_first().then_some(&self.ended.connection)
    }
}

impl DataStream {
    /// What this end says of its connection.
    pub(super) fn sample(&self, multipath: bool) -> io::Result<sample::ConnectionSample> {
        match self {
            Self::Socket(wire) => sample::connection(wire.socket(), multipath),
            Self::Quic(strand) => strand.ended.sample(),
        }
    }

    /// Its QUIC connection, if it is this stream that speaks for it.
    pub(super) fn connection(&self) -> Option<&QuicConnection> {
        match self {
            Self::Socket(_) => None,
            Self::Quic(strand) => strand.connection(),
        }
    }
}
