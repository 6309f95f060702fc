//! Connections and streams for threads that wait: for control messages, not for bulk data.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_quic::{
    ConnectionError, ConnectionId, ConnectionStatus, ListenerId, PathNotice, QuicConfig,
    StreamError, StreamId,
};

use super::driver::{ConnectionEvent, DriverContext, QuicHandle, StreamHandler};
use crate::interrupt;
use crate::pipe::ByteStream;

/// Bytes that wait to be read or written, at most; more stay in the connection's own window.
const MAX_BUFFERED_BYTES: usize = 256 * 1024;

/// A listening port.
#[derive(Debug)]
pub struct BlockingListener {
    host: Arc<QuicHandle>,
    id: ListenerId,
    port: u16,
    accepted: Mutex<mpsc::Receiver<BlockingConnection>>,
}

/// A connection.
#[derive(Debug, Clone)]
pub struct BlockingConnection {
    host: Arc<QuicHandle>,
    id: ConnectionId,
    shared: Arc<WaitCell<ConnectionProgress>>,
}

/// One stream of a connection. Clones are the same stream: one may read while the other writes.
#[derive(Debug, Clone)]
pub struct BlockingStream {
    host: Arc<QuicHandle>,
    connection: ConnectionId,
    id: StreamId,
    shared: Arc<WaitCell<StreamBuffers>>,
}

/// Something that threads wait for.
#[derive(Debug, Default)]
struct WaitCell<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> WaitCell<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes it, and wakes who waits.
    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `found` finds something.
    fn wait<R>(
        &self,
        patience: Duration,
        mut found: impl FnMut(&mut T) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut result = None;
        let waited = self.changed.wait_timeout_while(self.lock(), patience, |state| {
            result = found(state);
            result.is_none()
        });
        drop(waited);
        result.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Whether a connection is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum CloseState {
    #[default]
    Alive,
    /// This host closed it.
    Closed,
    Broken(ConnectionError),
}

impl CloseState {
    fn new(error: Option<ConnectionError>) -> Self {
        error.map_or(Self::Closed, Self::Broken)
    }

    fn failure(&self) -> Option<io::Error> {
        match self {
            Self::Alive => None,
            Self::Closed => Some(io::ErrorKind::NotConnected.into()),
            Self::Broken(error) => {
                Some(io::Error::new(io::ErrorKind::ConnectionAborted, error.clone()))
            }
        }
    }
}

/// How far a connection is.
#[derive(Debug, Default)]
struct ConnectionProgress {
    connected: bool,
    end: CloseState,
    opened: VecDeque<StreamId>,
    notices: Vec<(Instant, PathNotice)>,
    /// How it was last.
    status: Option<ConnectionStatus>,
}

impl QuicHandle {
    /// Accepts connections on a port; 0 is any.
    pub fn listen(self: &Arc<Self>, port: u16, config: QuicConfig) -> io::Result<BlockingListener> {
        let (tell, accepted) = mpsc::channel();
        // The thread must not keep itself alive.
        let host = Arc::downgrade(self);
        let listening = self.call(move |turn| {
            turn.listen(port, config, move |turn, id| {
                let Some(host) = host.upgrade() else { return };
                let connection = BlockingConnection::begin(host, turn, id, true);
                if let Err(refused) = tell.send(connection) {
                    turn.close(refused.0.id);
                }
            })
        })?;
        let (id, port) = listening?;
        Ok(BlockingListener { host: Arc::clone(self), id, port, accepted: Mutex::new(accepted) })
    }

    /// Opens a connection, from `local` if given, and waits until it is established.
    pub fn connect(
        self: &Arc<Self>,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: QuicConfig,
        patience: Duration,
    ) -> io::Result<BlockingConnection> {
        let host = Arc::clone(self);
        let connection = self.call(move |turn| {
            let id = turn.connect(local, remote, config)?;
            Ok::<_, io::Error>(BlockingConnection::begin(host, turn, id, false))
        })??;
        let established = wait_interruptibly(patience, |step| {
            connection.shared.wait(step, |life| {
                life.connected.then_some(Ok(())).or_else(|| life.end.failure().map(Err))
            })
        });
        match established {
            Ok(()) => Ok(connection),
            Err(error) => {
                connection.close();
                Err(error)
            }
        }
    }
}

/// Waits in steps, after each of which the wait ends if nobody wants it any more.
pub(crate) fn wait_interruptibly<T>(
    patience: Duration,
    mut wait: impl FnMut(Duration) -> io::Result<T>,
) -> io::Result<T> {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    let mut left = patience;
    loop {
        let step = left.min(POLL_INTERVAL);
        left = left.saturating_sub(step);
        match wait(step) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !left.is_zero() => {}
            done => return done,
        }
        if interrupt::is_interrupted() {
            return Err(interrupt::error());
        }
    }
}

impl BlockingListener {
    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next connection.
    pub fn accept(&self, patience: Duration) -> io::Result<BlockingConnection> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.recv_timeout(patience).map_err(|error| match error {
            RecvTimeoutError::Timeout => io::ErrorKind::TimedOut.into(),
            RecvTimeoutError::Disconnected => io::ErrorKind::NotConnected.into(),
        })
    }
}

impl Drop for BlockingListener {
    fn drop(&mut self) {
        let id = self.id;
        self.host.post(move |turn| turn.stop_listening(id));
    }
}

impl BlockingConnection {
    fn begin(
        host: Arc<QuicHandle>,
        turn: &mut DriverContext<'_>,
        id: ConnectionId,
        connected: bool,
    ) -> Self {
        let shared = Arc::new(WaitCell {
            state: Mutex::new(ConnectionProgress { connected, ..ConnectionProgress::default() }),
            changed: Condvar::new(),
        });
        let life = Arc::clone(&shared);
        turn.on_event(id, move |turn, _, happened| {
            let now = turn.now;
            if matches!(happened, ConnectionEvent::Closed(_)) {
                life.lock().status = turn.host.status(id);
            }
            life.change(|life| match happened {
                ConnectionEvent::Connected => life.connected = true,
                ConnectionEvent::Opened(stream) => life.opened.push_back(*stream),
                ConnectionEvent::Readable(_) => {}
                ConnectionEvent::Closed(error) => life.end = CloseState::new(error.clone()),
                ConnectionEvent::Notice(notice) => life.notices.push((now, notice.clone())),
            });
        });
        Self { host, id, shared }
    }

    /// Its number in its host, for [`Turn`]'s calls.
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Its host.
    pub fn host(&self) -> &Arc<QuicHandle> {
        &self.host
    }

    /// Begins a stream, which the peer sees when something is written. For the end that connected.
    pub fn open_stream(&self) -> io::Result<BlockingStream> {
        let (id, connection) = (self.id, self.clone());
        let opened = self.host.call(move |turn| {
            let stream = turn.host.open_stream(id)?;
            Some(connection.attach(turn, stream))
        })?;
        let none = || {
            self.shared.lock().end.failure().unwrap_or_else(|| io::ErrorKind::QuotaExceeded.into())
        };
        opened.ok_or_else(none)
    }

    /// Waits for the next stream that the peer begins. For the end that accepted.
    pub fn accept_stream(&self, patience: Duration) -> io::Result<BlockingStream> {
        let stream = self.shared.wait(patience, |life| {
            let next = life.opened.pop_front().map(Ok);
            next.or_else(|| life.end.failure().map(Err))
        })?;
        let connection = self.clone();
        self.host.call(move |turn| connection.attach(turn, stream))
    }

    /// The number of the next stream that the peer began, to be given an end of another kind.
    pub fn accept_stream_id(&self, patience: Duration) -> io::Result<StreamId> {
        self.shared.wait(patience, |life| {
            let next = life.opened.pop_front().map(Ok);
            next.or_else(|| life.end.failure().map(Err))
        })
    }

    fn attach(&self, turn: &mut DriverContext<'_>, stream: StreamId) -> BlockingStream {
        BlockingStream::attach(&self.host, turn, self.id, stream)
    }

    /// State of the connection and of each of its paths, or how it was when it ended; `None` when
    /// this end closed it.
    pub fn status(&self) -> Option<ConnectionStatus> {
        let id = self.id;
        let now = self.host.call(move |turn| turn.host.status(id)).ok().flatten();
        now.or_else(|| self.shared.lock().status.clone())
    }

    /// What happened to its paths since this was last asked.
    pub fn notices(&self) -> Vec<(Instant, PathNotice)> {
        std::mem::take(&mut self.shared.lock().notices)
    }

    /// Why it is gone, if it is.
    pub fn failure(&self) -> Option<io::Error> {
        self.shared.lock().end.failure()
    }

    /// Ends it, and all that was not acknowledged with it.
    pub fn close(&self) {
        let id = self.id;
        self.shared.change(|life| {
            if life.end == CloseState::Alive {
                life.end = CloseState::Closed;
            }
        });
        self.host.post(move |turn| turn.close(id));
    }
}

/// How much we have still to say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum WriteState {
    #[default]
    Open,
    /// What waits is the rest.
    Draining,
    /// The connection knows all of it.
    FinQueued,
    /// So does the peer.
    Acked,
}

/// What waits on a stream.
#[derive(Debug, Default)]
struct StreamBuffers {
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    /// The peer has said everything.
    ended: bool,
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    writing: WriteState,
    end: CloseState,
}

/// The stream's application in the thread.
struct BufferedStreamHandler {
    shared: Arc<WaitCell<StreamBuffers>>,
}

impl StreamHandler for BufferedStreamHandler {
    fn progress(&mut self, now: Instant, pipe: &mut dyn ByteStream) {
        self.shared.change(|pipes| {
            while !pipes.ended && pipes.incoming_bytes < MAX_BUFFERED_BYTES {
                match pipe.read(now) {
                    Some(data) if data.is_empty() => pipes.ended = true,
                    Some(data) => {
                        pipes.incoming_bytes += data.len();
                        pipes.incoming.push_back(data);
                    }
                    None => break,
                }
            }
            while let Some(data) = pipes.outgoing.front_mut() {
                pipes.outgoing_bytes = pipes.outgoing_bytes.saturating_sub(pipe.write(now, data));
                if !data.is_empty() {
                    break;
                }
                pipes.outgoing.pop_front();
            }
            if pipes.writing == WriteState::Draining && pipes.outgoing.is_empty() {
                pipes.writing = WriteState::FinQueued;
                pipe.shutdown(now);
            }
        });
    }

    fn finished(&mut self, _now: Instant) {
        self.shared.change(|pipes| pipes.writing = WriteState::Acked);
    }

    fn closed(&mut self, _now: Instant, error: Option<&ConnectionError>) {
        self.shared.change(|pipes| pipes.end = CloseState::new(error.cloned()));
    }
}

impl BlockingStream {
    /// Lets other threads read and write a stream.
    pub fn attach(
        host: &Arc<QuicHandle>,
        turn: &mut DriverContext<'_>,
        connection: ConnectionId,
        id: StreamId,
    ) -> Self {
        let shared = Arc::new(WaitCell::default());
        let end = BufferedStreamHandler { shared: Arc::clone(&shared) };
        turn.attach(connection, id, Box::new(end));
        Self { host: Arc::clone(host), connection, id, shared }
    }

    /// Its number in its connection.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Reads what is there, or waits for it; 0 at the end.
    pub fn read(&self, buffer: &mut [u8], patience: Duration) -> io::Result<usize> {
        let mut was_full = false;
        let read = self.shared.wait(patience, |pipes| {
            let Some(first) = pipes.incoming.front_mut() else {
                return if pipes.ended { Some(Ok(0)) } else { pipes.end.failure().map(Err) };
            };
            let taken = first.split_to(first.len().min(buffer.len()));
            if let Some(room) = buffer.get_mut(..taken.len()) {
                room.copy_from_slice(&taken);
            }
            if first.is_empty() {
                pipes.incoming.pop_front();
            }
            was_full = pipes.incoming_bytes >= MAX_BUFFERED_BYTES;
            pipes.incoming_bytes = pipes.incoming_bytes.saturating_sub(taken.len());
            Some(Ok(taken.len()))
        })?;
        if was_full {
            self.wake_driver();
        }
        Ok(read)
    }

    /// Hands everything over, waiting for room. It has not arrived then: see [`Self::finish`].
    pub fn write(&self, data: &[u8], patience: Duration) -> io::Result<()> {
        for chunk in data.chunks(MAX_BUFFERED_BYTES) {
            let chunk = Bytes::copy_from_slice(chunk);
            self.shared.wait(patience, |pipes| {
                if pipes.writing > WriteState::Open {
                    return Some(Err(io::Error::other(StreamError::Closed)));
                }
                if let Some(failure) = pipes.end.failure() {
                    return Some(Err(failure));
                }
                (pipes.outgoing_bytes < MAX_BUFFERED_BYTES).then(|| {
                    pipes.outgoing_bytes += chunk.len();
                    pipes.outgoing.push_back(chunk.clone());
                    Ok(())
                })
            })?;
            self.wake_driver();
        }
        Ok(())
    }

    /// Nothing more is written.
    pub fn shutdown(&self) {
        self.shared.change(|pipes| pipes.writing = pipes.writing.max(WriteState::Draining));
        self.wake_driver();
    }

    /// Nothing more is written; waits until the peer has all of it.
    pub fn finish(&self, patience: Duration) -> io::Result<()> {
        self.shutdown();
        self.shared.wait(patience, |pipes| {
            (pipes.writing == WriteState::Acked)
                .then_some(Ok(()))
                .or_else(|| pipes.end.failure().map(Err))
        })
    }

    fn wake_driver(&self) {
        let (connection, stream) = (self.connection, self.id);
        self.host.post(move |turn| turn.progress(connection, stream));
    }
}
