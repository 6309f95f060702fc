//! Blocking connections and streams, for control messages rather than bulk data.

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
use crate::byte_stream::ByteStream;
use crate::interrupt;

/// Maximum buffered bytes of each direction; further data stays within QUIC's flow control.
const MAX_BUFFERED_BYTES: usize = 256 * 1024;

/// Listener whose connections are accepted by blocking calls.
#[derive(Debug)]
pub struct BlockingListener {
    host: Arc<QuicHandle>,
    id: ListenerId,
    port: u16,
    accepted: Mutex<mpsc::Receiver<BlockingConnection>>,
}

/// QUIC connection for blocking callers; clones share it.
#[derive(Debug, Clone)]
pub struct BlockingConnection {
    host: Arc<QuicHandle>,
    id: ConnectionId,
    shared: Arc<WaitCell<ConnectionProgress>>,
}

/// Stream of a connection. Clones share it, so one thread may read while another writes.
#[derive(Debug, Clone)]
pub struct BlockingStream {
    host: Arc<QuicHandle>,
    connection: ConnectionId,
    id: StreamId,
    shared: Arc<WaitCell<StreamBuffers>>,
}

/// State with a condition variable for waiting threads.
#[derive(Debug, Default)]
struct WaitCell<T> {
    state: Mutex<T>,
    changed: Condvar,
}

impl<T> WaitCell<T> {
    fn lock(&self) -> MutexGuard<'_, T> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all waiting threads.
    fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let result = change(&mut self.lock());
        self.changed.notify_all();
        result
    }

    /// Waits until `found` returns a result; fails after `patience`.
    fn wait<R>(
        &self,
        timeout: Duration,
        mut found: impl FnMut(&mut T) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut result = None;
        let waited = self.changed.wait_timeout_while(self.lock(), timeout, |state| {
            result = found(state);
            result.is_none()
        });
        drop(waited);
        result.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// Close state of a connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
enum CloseState {
    #[default]
    Alive,
    /// Closed by this host, without an error.
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

/// Progress of a connection.
#[derive(Debug, Default)]
struct ConnectionProgress {
    connected: bool,
    end: CloseState,
    opened: VecDeque<StreamId>,
    notices: Vec<(Instant, PathNotice)>,
    /// Status at the time of the close.
    status: Option<ConnectionStatus>,
}

impl QuicHandle {
    /// Accepts connections on a port; 0 chooses a free one.
    pub fn listen(self: &Arc<Self>, port: u16, config: QuicConfig) -> io::Result<BlockingListener> {
        let (tell, accepted) = mpsc::channel();
        // A weak reference, since the thread must not keep itself alive.
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

    /// Opens a connection, from `local` if given, and waits for the handshake.
    pub fn connect(
        self: &Arc<Self>,
        local: Option<IpAddr>,
        remote: SocketAddr,
        config: QuicConfig,
        timeout: Duration,
    ) -> io::Result<BlockingConnection> {
        let host = Arc::clone(self);
        let connection = self.call(move |turn| {
            let id = turn.connect(local, remote, config)?;
            Ok::<_, io::Error>(BlockingConnection::begin(host, turn, id, false))
        })??;
        let established = wait_interruptibly(timeout, |step| {
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

/// Waits in short steps and fails with an interrupt between them.
pub(crate) fn wait_interruptibly<T>(
    timeout: Duration,
    mut wait: impl FnMut(Duration) -> io::Result<T>,
) -> io::Result<T> {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    let mut left = timeout;
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
    /// Returns the listening UDP port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits for the next connection; fails after `patience`.
    pub fn accept(&self, timeout: Duration) -> io::Result<BlockingConnection> {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.recv_timeout(timeout).map_err(|error| match error {
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
                ConnectionEvent::StreamOpened(stream) => life.opened.push_back(*stream),
                ConnectionEvent::Readable(_) => {}
                ConnectionEvent::Closed(error) => life.end = CloseState::new(error.clone()),
                ConnectionEvent::Notice(notice) => life.notices.push((now, notice.clone())),
            });
        });
        Self { host, id, shared }
    }

    /// Returns the connection's ID within its host, for calls of
    /// [`DriverContext`](super::driver::DriverContext).
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// Returns the host of the connection.
    pub fn host(&self) -> &Arc<QuicHandle> {
        &self.host
    }

    /// Opens a stream, which the peer notices at the first write. Intended for the client.
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

    /// Waits for the next stream of the peer. Intended for the server.
    pub fn accept_stream(&self, timeout: Duration) -> io::Result<BlockingStream> {
        let stream = self.shared.wait(timeout, |life| {
            let next = life.opened.pop_front().map(Ok);
            next.or_else(|| life.end.failure().map(Err))
        })?;
        let connection = self.clone();
        self.host.call(move |turn| connection.attach(turn, stream))
    }

    /// Waits for the next stream of the peer and returns its ID, for attaching another handler.
    pub fn accept_stream_id(&self, timeout: Duration) -> io::Result<StreamId> {
        self.shared.wait(timeout, |life| {
            let next = life.opened.pop_front().map(Ok);
            next.or_else(|| life.end.failure().map(Err))
        })
    }

    fn attach(&self, turn: &mut DriverContext<'_>, stream: StreamId) -> BlockingStream {
        BlockingStream::attach(&self.host, turn, self.id, stream)
    }

    /// Returns the state of the connection and its paths, or the last state after a close by the
    /// peer or an error. `None` if this endpoint closed it.
    pub fn status(&self) -> Option<ConnectionStatus> {
        let id = self.id;
        let now = self.host.call(move |turn| turn.host.status(id)).ok().flatten();
        now.or_else(|| self.shared.lock().status.clone())
    }

    /// Returns the path notices since the last call.
    pub fn notices(&self) -> Vec<(Instant, PathNotice)> {
        std::mem::take(&mut self.shared.lock().notices)
    }

    /// Returns the reason of the close, if closed.
    pub fn failure(&self) -> Option<io::Error> {
        self.shared.lock().end.failure()
    }

    /// Closes the connection immediately, discarding unacknowledged data.
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

/// Progress of the sending direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum WriteState {
    #[default]
    Open,
    /// No more data follows what is buffered.
    Draining,
    /// All data and the FIN are queued in the connection.
    FinQueued,
    /// The peer has acknowledged all data and the FIN.
    Acked,
}

/// Buffers of a stream.
#[derive(Debug, Default)]
struct StreamBuffers {
    incoming: VecDeque<Bytes>,
    incoming_bytes: usize,
    /// Set after the peer's FIN was read.
    ended: bool,
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    writing: WriteState,
    end: CloseState,
}

/// Handler of the stream inside the driver thread.
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
    /// Attaches a handler that lets other threads read and write the stream.
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

    /// Returns the stream's ID within its connection.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Reads available data, or waits for some; returns 0 at the end of the stream.
    pub fn read(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let mut was_full = false;
        let read = self.shared.wait(timeout, |pipes| {
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

    /// Buffers all data, waiting for space. Does not wait for delivery: see [`Self::finish`].
    pub fn write(&self, data: &[u8], timeout: Duration) -> io::Result<()> {
        for chunk in data.chunks(MAX_BUFFERED_BYTES) {
            let chunk = Bytes::copy_from_slice(chunk);
            self.shared.wait(timeout, |pipes| {
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

    /// Ends the sending direction after the buffered data.
    pub fn shutdown(&self) {
        self.shared.change(|pipes| pipes.writing = pipes.writing.max(WriteState::Draining));
        self.wake_driver();
    }

    /// Ends the sending direction and waits until the peer has acknowledged everything.
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.shutdown();
        self.shared.wait(timeout, |pipes| {
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
