//! What the bytes of a stream go over: a socket of the kernel, or a stream of a QUIC connection.

use std::io;
use std::sync::Arc;

use towpath_quic::{ConnectionId, StreamId};

use crate::quic::Host;
use crate::sample;
use crate::traffic::end::FlowEnd;
use crate::traffic::quic::{Connection, Ended};
use crate::traffic::wire::Wire;

/// Keeps a QUIC connection; whoever drops the last of its copies closes it.
#[derive(Debug)]
pub(super) struct Hold {
    host: Arc<Host>,
    id: ConnectionId,
}

impl Hold {
    pub(super) fn new(host: &Arc<Host>, id: ConnectionId) -> Arc<Self> {
        Arc::new(Self { host: Arc::clone(host), id })
    }
}

impl Hold {
    /// What both ends of the connection know and nobody else.
    pub(super) fn binding(&self) -> Option<[u8; 32]> {
        let id = self.id;
        self.host.call(move |turn| turn.host.binding(id)).ok().flatten()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let id = self.id;
        self.host.tell(move |turn| turn.close(id));
    }
}

/// One end of a stream.
#[derive(Debug, Clone)]
pub(super) enum Line {
    /// A connection of the kernel.
    Socket(Wire),
    /// A stream of QUIC.
    Quic(Strand),
}

/// One end of a stream of QUIC.
#[derive(Debug, Clone)]
pub(super) struct Strand {
    ended: Ended,
    stream: StreamId,
    _hold: Arc<Hold>,
}

impl Strand {
    /// A stream of a connection; the `first` one of a flow speaks for the connection.
    pub(super) fn new(
        connection: Connection,
        (stream, first): (StreamId, bool),
        hold: Arc<Hold>,
    ) -> Self {
        Self { ended: Ended::new(connection, first), stream, _hold: hold }
    }

    /// Lets `end` move its bytes.
    pub(super) fn attach(&self, end: FlowEnd) {
        self.ended.connection.attach(self.stream, end);
    }

    /// Its connection, if it is this stream that speaks for it.
    pub(super) fn connection(&self) -> Option<&Connection> {
        self.ended.is_first().then_some(&self.ended.connection)
    }
}

impl Line {
    /// What this end says of its connection.
    pub(super) fn sample(&self, multipath: bool) -> io::Result<sample::Connection> {
        match self {
            Self::Socket(wire) => sample::connection(wire.socket(), multipath),
            Self::Quic(strand) => strand.ended.sample(),
        }
    }

    /// Its QUIC connection, if it is this stream that speaks for it.
    pub(super) fn connection(&self) -> Option<&Connection> {
        match self {
            Self::Socket(_) => None,
            Self::Quic(strand) => strand.connection(),
        }
    }
}
