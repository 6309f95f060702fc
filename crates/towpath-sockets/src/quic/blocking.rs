//! Blocking connections and streams, for control messages rather than bulk data.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use towpath_net::Instant;
use towpath_os::interrupt;
use towpath_quic::{
    ConnectionError, ConnectionId, ConnectionStatus, ListenerId, PathNotice, QuicConfig,
    StreamError, StreamId,
};

use super::driver::{ConnectionEvent, DriverContext, QuicHandle, StreamHandler};
use crate::byte_stream::ByteStream;

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

    /// Waits until `check` returns a result; fails after `timeout`.
    fn wait<R>(
        &self,
        timeout: Duration,
        mut check: impl FnMut(&mut T) -> Option<io::Result<R>>,
    ) -> io::Result<R> {
        let mut result = None;
        let guard = self.changed.wait_timeout_while(self.lock(), timeout, |state| {
            result = check(state);
            result.is_none()
        });
        drop(guard);
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
    close_state: CloseState,
    /// Streams that the peer opened and that were not accepted yet.
    opened: VecDeque<StreamId>,
    notices: Vec<(Instant, PathNotice)>,
    /// Status at the time of the close.
    status: Option<ConnectionStatus>,
}

impl QuicHandle {
    /// Accepts connections on a port; 0 chooses a free one.
    pub fn listen(self: &Arc<Self>, port: u16, config: QuicConfig) -> io::Result<BlockingListener> {
        let (connection_sender, accepted) = mpsc::channel();
        // A weak reference, since the thread must not keep itself alive.
        let host = Arc::downgrade(self);
        let result = self.call(move |context| {
            context.listen(port, config, move |context, id| {
                let Some(host) = host.upgrade() else { return };
                let connection = BlockingConnection::begin(host, context, id, true);
                if let Err(unsent) = connection_sender.send(connection) {
                    context.close(unsent.0.id);
                }
            })
        })?;
        let (id, port) = result?;
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
        let connection = self.call(move |context| {
            let id = context.connect(local, remote, config)?;
            Ok::<_, io::Error>(BlockingConnection::begin(host, context, id, false))
        })??;
        let established = wait_interruptibly(timeout, |step| {
            connection.shared.wait(step, |progress| {
                progress
                    .connected
                    .then_some(Ok(()))
                    .or_else(|| progress.close_state.failure().map(Err))
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
pub fn wait_interruptibly<T>(
    timeout: Duration,
    mut wait: impl FnMut(Duration) -> io::Result<T>,
) -> io::Result<T> {
    const POLL_INTERVAL: Duration = Duration::from_millis(100);
    let mut remaining = timeout;
    loop {
        let step = remaining.min(POLL_INTERVAL);
        remaining = remaining.saturating_sub(step);
        match wait(step) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !remaining.is_zero() => {}
            result => return result,
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

    /// Waits for the next connection; fails after `timeout`.
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
        self.host.post(move |context| context.stop_listening(id));
    }
}

impl BlockingConnection {
    fn begin(
        host: Arc<QuicHandle>,
        context: &mut DriverContext<'_>,
        id: ConnectionId,
        connected: bool,
    ) -> Self {
        let shared = Arc::new(WaitCell {
            state: Mutex::new(ConnectionProgress { connected, ..ConnectionProgress::default() }),
            changed: Condvar::new(),
        });
        let progress = Arc::clone(&shared);
        context.on_event(id, move |context, _, event| {
            let now = context.now;
            if matches!(event, ConnectionEvent::Closed(_)) {
                progress.lock().status = context.host.status(id);
            }
            progress.change(|progress| match event {
                ConnectionEvent::Connected => progress.connected = true,
                ConnectionEvent::StreamOpened(stream) => progress.opened.push_back(*stream),
                ConnectionEvent::Readable(_) => {}
                ConnectionEvent::Closed(error) => {
                    progress.close_state = CloseState::new(error.clone());
                }
                ConnectionEvent::Notice(notice) => progress.notices.push((now, notice.clone())),
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
        let opened = self.host.call(move |context| {
            let stream = context.host.open_stream(id)?;
            Some(connection.attach(context, stream))
        })?;
        let failure = || {
            self.shared
                .lock()
                .close_state
                .failure()
                .unwrap_or_else(|| io::ErrorKind::QuotaExceeded.into())
        };
        opened.ok_or_else(failure)
    }

    /// Waits for the next stream of the peer. Intended for the server.
    pub fn accept_stream(&self, timeout: Duration) -> io::Result<BlockingStream> {
        let stream = self.shared.wait(timeout, |progress| {
            let next = progress.opened.pop_front().map(Ok);
            next.or_else(|| progress.close_state.failure().map(Err))
        })?;
        let connection = self.clone();
        self.host.call(move |context| connection.attach(context, stream))
    }

    /// Waits for the next stream of the peer and returns its ID, for attaching another handler.
    pub fn accept_stream_id(&self, timeout: Duration) -> io::Result<StreamId> {
        self.shared.wait(timeout, |progress| {
            let next = progress.opened.pop_front().map(Ok);
            next.or_else(|| progress.close_state.failure().map(Err))
        })
    }

    fn attach(&self, context: &mut DriverContext<'_>, stream: StreamId) -> BlockingStream {
        BlockingStream::attach(&self.host, context, self.id, stream)
    }

    /// Returns the state of the connection and its paths, or the last state after a close by the
    /// peer or an error. `None` if this endpoint closed it.
    pub fn status(&self) -> Option<ConnectionStatus> {
        let id = self.id;
        let current = self.host.call(move |context| context.host.status(id)).ok().flatten();
        current.or_else(|| self.shared.lock().status.clone())
    }

    /// Returns the path notices since the last call.
    pub fn notices(&self) -> Vec<(Instant, PathNotice)> {
        std::mem::take(&mut self.shared.lock().notices)
    }

    /// Returns the reason of the close, if closed.
    pub fn failure(&self) -> Option<io::Error> {
        self.shared.lock().close_state.failure()
    }

    /// Closes the connection immediately, discarding unacknowledged data.
    pub fn close(&self) {
        let id = self.id;
        self.shared.change(|progress| {
            if progress.close_state == CloseState::Alive {
                progress.close_state = CloseState::Closed;
            }
        });
        self.host.post(move |context| context.close(id));
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
    fin_read: bool,
    outgoing: VecDeque<Bytes>,
    outgoing_bytes: usize,
    write_state: WriteState,
    close_state: CloseState,
}

/// Handler of the stream inside the driver thread.
struct BufferedStreamHandler {
    shared: Arc<WaitCell<StreamBuffers>>,
}

impl StreamHandler for BufferedStreamHandler {
    fn progress(&mut self, now: Instant, stream: &mut dyn ByteStream) {
        self.shared.change(|buffers| {
            while !buffers.fin_read && buffers.incoming_bytes < MAX_BUFFERED_BYTES {
                match stream.read(now) {
                    Some(data) if data.is_empty() => buffers.fin_read = true,
                    Some(data) => {
                        buffers.incoming_bytes += data.len();
                        buffers.incoming.push_back(data);
                    }
                    None => break,
                }
            }
            while let Some(data) = buffers.outgoing.front_mut() {
                buffers.outgoing_bytes =
                    buffers.outgoing_bytes.saturating_sub(stream.write(now, data));
                if !data.is_empty() {
                    break;
                }
                buffers.outgoing.pop_front();
            }
            if buffers.write_state == WriteState::Draining && buffers.outgoing.is_empty() {
                buffers.write_state = WriteState::FinQueued;
                stream.shutdown(now);
            }
        });
    }

    fn finished(&mut self, _now: Instant) {
        self.shared.change(|buffers| buffers.write_state = WriteState::Acked);
    }

    fn closed(&mut self, _now: Instant, error: Option<&ConnectionError>) {
        self.shared.change(|buffers| buffers.close_state = CloseState::new(error.cloned()));
    }
}

impl BlockingStream {
    /// Attaches a handler that lets other threads read and write the stream.
    pub fn attach(
        host: &Arc<QuicHandle>,
        context: &mut DriverContext<'_>,
        connection: ConnectionId,
        id: StreamId,
    ) -> Self {
        let shared = Arc::new(WaitCell::default());
        let handler = BufferedStreamHandler { shared: Arc::clone(&shared) };
        context.attach(connection, id, Box::new(handler));
        Self { host: Arc::clone(host), connection, id, shared }
    }

    /// Returns the stream's ID within its connection.
    pub fn id(&self) -> StreamId {
        self.id
    }

    /// Reads available data, or waits for some; returns 0 at the end of the stream.
    pub fn read(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let mut was_full = false;
        let read = self.shared.wait(timeout, |buffers| {
            let Some(front) = buffers.incoming.front_mut() else {
                return if buffers.fin_read {
                    Some(Ok(0))
                } else {
                    buffers.close_state.failure().map(Err)
                };
            };
            let chunk = front.split_to(front.len().min(buffer.len()));
            if let Some(target) = buffer.get_mut(..chunk.len()) {
                target.copy_from_slice(&chunk);
            }
            if front.is_empty() {
                buffers.incoming.pop_front();
            }
            was_full = buffers.incoming_bytes >= MAX_BUFFERED_BYTES;
            buffers.incoming_bytes = buffers.incoming_bytes.saturating_sub(chunk.len());
            Some(Ok(chunk.len()))
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
            self.shared.wait(timeout, |buffers| {
                if buffers.write_state > WriteState::Open {
                    return Some(Err(io::Error::other(StreamError::Closed)));
                }
                if let Some(failure) = buffers.close_state.failure() {
                    return Some(Err(failure));
                }
                (buffers.outgoing_bytes < MAX_BUFFERED_BYTES).then(|| {
                    buffers.outgoing_bytes += chunk.len();
                    buffers.outgoing.push_back(chunk.clone());
                    Ok(())
                })
            })?;
            self.wake_driver();
        }
        Ok(())
    }

    /// Ends the sending direction after the buffered data.
    pub fn shutdown(&self) {
        self.shared
            .change(|buffers| buffers.write_state = buffers.write_state.max(WriteState::Draining));
        self.wake_driver();
    }

    /// Ends the sending direction and waits until the peer has acknowledged everything.
    pub fn finish(&self, timeout: Duration) -> io::Result<()> {
        self.shutdown();
        self.shared.wait(timeout, |buffers| {
            (buffers.write_state == WriteState::Acked)
                .then_some(Ok(()))
                .or_else(|| buffers.close_state.failure().map(Err))
        })
    }

    fn wake_driver(&self) {
        let (connection, stream) = (self.connection, self.id);
        self.host.post(move |context| context.progress(connection, stream));
    }
}
