//! A control connection: messages one way and the other, each with a limit of time.

use std::io;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use socket2::Socket;
use towpath_measure::live::{FrameError, Frames, frame};

use crate::clock::Clock;
use crate::traffic::kernel::is_impatient;

/// Bytes read at once.
const ROOM: usize = 16 * 1024;
/// How long a last word may take.
const FAREWELL: Duration = Duration::from_millis(500);
/// Whoever does not take a message for so long gets no more.
const SLOWEST: Duration = Duration::from_secs(5);

/// One end of a control connection.
#[derive(Debug)]
pub(super) struct Speaker {
    socket: Socket,
    frames: Frames,
    clock: Clock,
}

impl Speaker {
    pub(super) fn new(socket: Socket, clock: Clock) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_write_timeout(Some(SLOWEST))?;
        Ok(Self { socket, frames: Frames::default(), clock })
    }

    /// Sends bytes that are no message: the preamble.
    pub(super) fn send_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        let deadline = self.clock.now() + SLOWEST;
        while !rest.is_empty() {
            let sent = self.socket.send(rest)?;
            rest = rest.get(sent..).unwrap_or_default();
            if self.clock.now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        Ok(())
    }

    pub(super) fn say<T: Serialize>(&mut self, message: &T) -> io::Result<()> {
        let bytes = frame::to_bytes(message).map_err(wrong)?;
        self.send_raw(&bytes)
    }

    /// Ends what is said here and reads on for a moment: a connection that is closed with something
    /// unread is reset, and the last word may be lost with it.
    pub(super) fn close(self) {
        let _gone = self.socket.shutdown(std::net::Shutdown::Write);
        let deadline = self.clock.now() + FAREWELL;
        let mut room = [0; ROOM];
        let _gone = self.socket.set_read_timeout(Some(FAREWELL));
        let mut plain = &self.socket;
        while self.clock.now() < deadline
            && io::Read::read(&mut plain, &mut room).is_ok_and(|length| length > 0)
        {}
    }

    /// The next message; `None` when `patience` is over.
    pub(super) fn hear<T: DeserializeOwned>(
        &mut self,
        patience: Duration,
    ) -> io::Result<Option<T>> {
        let deadline = self.clock.now() + patience;
        let mut room = [0; ROOM];
        loop {
            if let Some(message) = self.frames.take().map_err(wrong)? {
                return Ok(Some(message));
            }
            let left = deadline.saturating_since(self.clock.now());
            if left.is_zero() {
                return Ok(None);
            }
            // A timeout of zero would be none at all.
            self.socket.set_read_timeout(Some(left.max(Duration::from_millis(1))))?;
            let mut plain = &self.socket;
            match io::Read::read(&mut plain, &mut room) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.frames.push(room.get(..length).unwrap_or_default()),
                Err(error) if is_impatient(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

fn wrong(error: FrameError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
