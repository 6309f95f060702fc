//! Control connection: messages in both directions, each with a timeout.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::Socket;
use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::interrupt;
use towpath_sockets::quic;
use towpath_sockets::stream::kernel::is_timeout;
use towpath_sockets::stream::socket_stream;

use super::data_stream::ConnectionGuard;
use crate::protocol::secret::ChannelBinding;
use crate::protocol::{FrameDecoder, FrameError, frame};

/// Bytes of one read.
const READ_BYTES: usize = 16 * 1024;
/// Longest time to deliver the last message.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);
/// Longest time to deliver the last message after an interrupt.
const INTERRUPTED_LINGER: Duration = Duration::from_millis(50);
/// Time limit for sending one message to a slow peer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which interrupts are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Transport of the messages.
#[derive(Debug)]
enum ControlTransport {
    /// Kernel socket, with or without TLS.
    Kernel(socket_stream::SocketStream),
    /// QUIC stream and the guard of its connection.
    Quic(quic::BlockingStream, Arc<ConnectionGuard>),
}

/// Endpoint of a control connection.
#[derive(Debug)]
pub struct ControlChannel {
    transport: ControlTransport,
    frames: FrameDecoder,
    clock: Clock,
    /// Bytes read and written.
    transferred_bytes: (Cell<u64>, Cell<u64>),
}

impl ControlChannel {
    /// Creates a channel over a TCP socket without TLS.
    pub fn new(socket: Socket, clock: Clock) -> io::Result<Self> {
        Self::over_socket(socket_stream::SocketStream::Plain(Arc::new(socket)), clock)
    }

    /// Creates the channel over a socket, with or without TLS.
    pub fn over_socket(transport: socket_stream::SocketStream, clock: Clock) -> io::Result<Self> {
        let socket = transport.socket();
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_write_timeout(Some(POLL_INTERVAL))?;
        Ok(Self {
            transport: ControlTransport::Kernel(transport),
            frames: FrameDecoder::default(),
            clock,
            transferred_bytes: Default::default(),
        })
    }

    /// Creates the channel over a QUIC stream.
    pub(super) fn over_quic(
        stream: quic::BlockingStream,
        guard: Arc<ConnectionGuard>,
        clock: Clock,
    ) -> Self {
        Self {
            transport: ControlTransport::Quic(stream, guard),
            frames: FrameDecoder::default(),
            clock,
            transferred_bytes: Default::default(),
        }
    }

    /// Returns the bytes read and written so far.
    pub(super) fn transferred_bytes(&self) -> (u64, u64) {
        (self.transferred_bytes.0.get(), self.transferred_bytes.1.get())
    }

    /// Returns the channel binding of an encrypted connection; `None` otherwise.
    pub(crate) fn binding(&self) -> Option<ChannelBinding> {
        let binding = match &self.transport {
            ControlTransport::Kernel(transport) => transport.binding(),
            ControlTransport::Quic(_, guard) => guard.binding(),
        };
        binding.map(ChannelBinding)
    }

    /// Sends bytes outside a message: the preamble.
    pub fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.transferred_bytes
            .1
            .set(self.transferred_bytes.1.get().saturating_add(bytes.len() as u64));
        let deadline = self.clock.now() + WRITE_TIMEOUT;
        let transport = match &self.transport {
            ControlTransport::Kernel(transport) => transport,
            ControlTransport::Quic(stream, _) => return stream.write(bytes, WRITE_TIMEOUT),
        };
        let mut rest = bytes;
        loop {
            let sent = if rest.is_empty() {
                // Accepted bytes may still await encryption and sending.
                if transport.is_flushed()? {
                    return Ok(());
                }
                Err(io::ErrorKind::WouldBlock.into())
            } else {
                transport.send(rest)
            };
            match sent {
                Ok(length) => rest = rest.get(length..).unwrap_or_default(),
                Err(error) if is_timeout(&error) && interrupt::is_interrupted() => {
                    return Err(interrupt::error());
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
            if self.clock.now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
    }

    /// Sends one message as a frame.
    pub fn send<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let bytes = frame::to_bytes(message).map_err(invalid_data)?;
        self.send_raw(&bytes)
    }

    /// Sends the last message and waits until it is delivered. Over a kernel socket, the kernel
    /// delivers it after the close.
    pub(super) fn send_last<T: Serialize>(mut self, message: &T) {
        let result = self.send(message);
        if let (Ok(()), ControlTransport::Quic(stream, _)) = (result, &self.transport) {
            let _ = stream.finish(linger_timeout());
        }
    } // the peer may be gone

    /// Closes the sending direction and reads on briefly. Closing with unread data resets the
    /// connection, which may lose the last message.
    pub(crate) fn close(self) {
        let transport = match &self.transport {
            ControlTransport::Kernel(transport) => transport,
            ControlTransport::Quic(stream, _) => {
                let _ = stream.finish(linger_timeout()); // the peer may be gone
                return;
            }
        };
        transport.close(self.clock);
        let deadline = self.clock.now() + linger_timeout();
        let mut buffer = [0; READ_BYTES];
        let _ = transport.socket().set_read_timeout(Some(linger_timeout())); // best effort
        let mut reader = &**transport.socket();
        while self.clock.now() < deadline
            && io::Read::read(&mut reader, &mut buffer).is_ok_and(|length| length > 0)
        {}
    }

    /// Receives the first bytes, which are not a message.
    pub(super) fn recv_raw<const N: usize>(&mut self, timeout: Duration) -> io::Result<[u8; N]> {
        let deadline = self.clock.now() + timeout;
        let (mut bytes, mut received_len) = ([0; N], 0);
        while let Some(buffer) = bytes.get_mut(received_len..).filter(|buffer| !buffer.is_empty()) {
            match self.read(buffer, deadline) {
                Ok(None) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(Some(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Some(length)) => received_len += length,
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(bytes)
    }

    /// Receives the next message; `None` after `timeout`.
    pub fn recv<T: DeserializeOwned>(&mut self, timeout: Duration) -> io::Result<Option<T>> {
        let deadline = self.clock.now() + timeout;
        let mut buffer = [0; READ_BYTES];
        loop {
            if let Some(message) = self.frames.take().map_err(invalid_data)? {
                return Ok(Some(message));
            }
            match self.read(&mut buffer, deadline) {
                Ok(None) => return Ok(None),
                Ok(Some(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(Some(length)) => {
                    self.transferred_bytes
                        .0
                        .set(self.transferred_bytes.0.get().saturating_add(length as u64));
                    self.frames.push(buffer.get(..length).unwrap_or_default());
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads some bytes; `None` after the deadline.
    fn read(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<Option<usize>> {
        let remaining = deadline.saturating_since(self.clock.now());
        if remaining.is_zero() {
            return Ok(None);
        }
        match &self.transport {
            ControlTransport::Kernel(transport) => {
                // A timeout of zero would disable the timeout.
                transport
                    .socket()
                    .set_read_timeout(Some(remaining.max(Duration::from_millis(1))))?;
                transport.read(buffer).map(Some)
            }
            ControlTransport::Quic(stream, _) => stream.read(buffer, remaining).map(Some),
        }
    }
}

fn linger_timeout() -> Duration {
    if interrupt::is_interrupted() { INTERRUPTED_LINGER } else { LINGER_TIMEOUT }
}

fn invalid_data(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
