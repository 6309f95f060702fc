//! Byte stream over a socket of the kernel, with or without TLS.

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use socket2::Socket;
use towpath_net::Instant;
use towpath_os::clock::Clock;
use towpath_os::interrupt;
use towpath_quic::Fingerprint;
use towpath_quic::tls::{TlsError, TlsSession};

use super::IO_POLL_INTERVAL;
use super::kernel::is_timeout;

/// Maximum encrypted bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Maximum plaintext bytes encrypted per write.
const WRITE_BYTES: usize = 128 * 1024;
/// Maximum time to flush the last encrypted bytes.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(2);

/// One end of a stream over a socket of the kernel.
#[derive(Debug, Clone)]
pub enum SocketStream {
    /// Socket without TLS.
    Plain(Arc<Socket>),
    /// Socket with TLS.
    Tls(Arc<TlsSocket>),
}

/// Socket with a TLS session.
pub struct TlsSocket {
    socket: Arc<Socket>,
    session: Mutex<TlsSession>,
    /// Encrypted bytes that the socket has not accepted yet. A sender keeps the lock, so that
    /// records leave in order.
    outgoing: Mutex<Vec<u8>>,
    /// Buffer for encrypted bytes that were read.
    incoming: Mutex<Vec<u8>>,
}

impl fmt::Debug for TlsSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSocket").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl SocketStream {
    /// Performs the TLS handshake; returns the fingerprint of the peer's certificate, if it sent
    /// one.
    pub fn handshake(
        socket: Socket,
        mut session: TlsSession,
        (clock, deadline): (Clock, Instant),
    ) -> io::Result<(Self, Option<Fingerprint>)> {
        socket.set_nonblocking(false)?;
        socket.set_read_timeout(Some(IO_POLL_INTERVAL))?;
        socket.set_write_timeout(Some(IO_POLL_INTERVAL))?;
        let (mut outgoing, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
        loop {
            session.take_outgoing(&mut outgoing);
            while !flush(&socket, &mut outgoing)? {
                check_deadline(clock, deadline)?;
            }
            if !session.is_handshaking() {
                break;
            }
            check_deadline(clock, deadline)?;
            match io::Read::read(&mut &socket, &mut buffer) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => {
                    let result = session.feed(buffer.get(..length).unwrap_or_default());
                    // Send the TLS alert, so that the peer learns the reason.
                    session.take_outgoing(&mut outgoing);
                    let _ = result.is_err() && flush(&socket, &mut outgoing)?; // flushes the alert
                    result.map_err(invalid_data)?;
                }
                Err(error) if is_timeout(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let fingerprint = session.peer();
        let tls = TlsSocket {
            socket: Arc::new(socket),
            session: Mutex::new(session),
            outgoing: Mutex::new(outgoing),
            incoming: Mutex::new(buffer),
        };
        Ok((Self::Tls(Arc::new(tls)), fingerprint))
    }

    /// Returns the channel binding, a secret that only both ends know; `None` without TLS.
    pub fn binding(&self) -> Option<[u8; 32]> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => lock(&tls.session).binding(),
        }
    }

    /// Returns the TCP socket below.
    pub fn socket(&self) -> &Arc<Socket> {
        match self {
            Self::Plain(socket) => socket,
            Self::Tls(tls) => &tls.socket,
        }
    }

    /// Sends a part of `data`; returns the number of bytes accepted.
    pub fn send(&self, data: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.send(data),
            Self::Tls(tls) => tls.send(data),
        }
    }

    /// Reads the available data; returns 0 at the end of the stream.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => io::Read::read(&mut &**socket, buffer),
            Self::Tls(tls) => tls.receive(Some(buffer)),
        }
    }

    /// Discards received data and returns its length; 0 at the end of the stream. `flags` are
    /// those of recv(2).
    pub(crate) fn discard(
        &self,
        buffer: &mut [MaybeUninit<u8>],
        flags: libc::c_int,
    ) -> io::Result<usize> {
        match self {
            Self::Plain(socket) => socket.recv_with_flags(buffer, flags),
            Self::Tls(tls) => tls.receive(None),
        }
    }

    /// Tries to flush the encrypted bytes; returns true if the socket has accepted all.
    pub fn is_flushed(&self) -> io::Result<bool> {
        match self {
            Self::Plain(_) => Ok(true),
            Self::Tls(tls) => flush(&tls.socket, &mut lock(&tls.outgoing)),
        }
    }

    /// Closes the sending direction.
    pub fn close(&self, clock: Clock) {
        if let Self::Tls(tls) = self {
            let _ = tls.close(clock); // the peer may be gone
        }
        let _ = self.socket().shutdown(std::net::Shutdown::Write); // may be closed already
    }
}

impl TlsSocket {
    fn send(&self, data: &[u8]) -> io::Result<usize> {
        let mut outgoing = lock(&self.outgoing);
        if !flush(&self.socket, &mut outgoing)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let chunk = data.get(..data.len().min(WRITE_BYTES)).unwrap_or(data);
        let accepted = {
            let mut session = lock(&self.session);
            let accepted = session.write(chunk);
            session.take_outgoing(&mut outgoing);
            accepted
        };
        // Bytes that the socket does not accept now go first next time.
        flush(&self.socket, &mut outgoing)?;
        Ok(accepted)
    }

    /// Reads from the socket at most once: a peer that sends tiny pieces must not delay the clock
    /// check.
    fn receive(&self, mut buffer: Option<&mut [u8]>) -> io::Result<usize> {
        let mut encrypted = lock(&self.incoming);
        let read = lock(&self.session).read(buffer.as_deref_mut()).map_err(invalid_data)?;
        if let Some(length) = read {
            return Ok(length);
        }
        // The session is not locked while the read blocks.
        let length = io::Read::read(&mut &*self.socket, &mut encrypted)?;
        if length == 0 {
            return Ok(0);
        }
        let bytes = encrypted.get(..length).unwrap_or_default();
        let mut session = lock(&self.session);
        session.feed(bytes).map_err(invalid_data)?;
        session.read(buffer).map_err(invalid_data)?.ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn close(&self, clock: Clock) -> io::Result<()> {
        let deadline = clock.now() + FLUSH_TIMEOUT;
        let mut outgoing = lock(&self.outgoing);
        {
            let mut session = lock(&self.session);
            session.close();
            session.take_outgoing(&mut outgoing);
        }
        let was_nonblocking = self.socket.nonblocking()?;
        self.socket.set_nonblocking(false)?;
        self.socket.set_write_timeout(Some(IO_POLL_INTERVAL))?;
        let result = loop {
            let result = flush(&self.socket, &mut outgoing);
            if !matches!(result, Ok(false)) || check_deadline(clock, deadline).is_err() {
                break result;
            }
        };
        self.socket.set_nonblocking(was_nonblocking)?;
        result.map(drop)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn check_deadline(clock: Clock, deadline: Instant) -> io::Result<()> {
    if interrupt::is_interrupted() {
        return Err(interrupt::error());
    }
    if clock.now() < deadline { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}

fn invalid_data(error: TlsError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Sends what the socket accepts; returns true if that was all.
fn flush(socket: &Socket, outgoing: &mut Vec<u8>) -> io::Result<bool> {
    let mut sent = 0;
    let result = loop {
        let Some(rest) = outgoing.get(sent..).filter(|rest| !rest.is_empty()) else {
            break Ok(true);
        };
        match socket.send(rest) {
            Ok(length) => sent += length,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if is_timeout(&error) => break Ok(false),
            Err(error) => break Err(error),
        }
    };
    outgoing.drain(..sent);
    result
}
