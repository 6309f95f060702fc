//! Netlink sockets: requests with one acknowledgement each, and streams of events.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use netlink_sys::{Socket, SocketAddr};

use super::error::{NetlinkError, NetlinkErrorKind};
use super::wire::{Malformed, Message, MessageBuilder, Messages, NetlinkAck};

/// Maximum datagram of the kernel, in bytes (`NLMSG_GOODSIZE`; up to 32 KiB for dumps).
const MAX_DATAGRAM_BYTES: usize = 64 * 1024;
/// Receive buffer that event streams request, in bytes; the kernel may grant less.
const EVENT_BUFFER_BYTES: i32 = 1024 * 1024;
/// Maximum attempts to list a table that changes while it is listed.
const MAX_DUMP_ATTEMPTS: u32 = 8;
/// Maximum datagrams per call of [`EventSocket::drain`], so that it returns even during an event
/// storm.
const MAX_DRAIN_DATAGRAMS: usize = 256;

/// Socket for requests; each waits for the kernel's acknowledgement.
#[derive(Debug)]
pub(crate) struct RequestSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

impl RequestSocket {
    /// Opens a socket of `protocol` in the calling thread's network namespace.
    pub(crate) fn open(protocol: isize, action: &str) -> Result<Self, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.set_ext_ack(true)?;
            socket.set_cap_ack(true)?;
            Ok(socket)
        };
        let socket = open().map_err(|error| NetlinkError::new(action, error))?;
        Ok(Self { socket, sequence: 0, buffer: Vec::with_capacity(MAX_DATAGRAM_BYTES) })
    }

    /// Sends a request that returns only an acknowledgement.
    pub(crate) fn change(
        &mut self,
        kind: u16,
        flags: i32,
        payload: &MessageBuilder,
        action: fmt::Arguments<'_>,
    ) -> Result<(), NetlinkError> {
        let flags = flags | libc::NLM_F_ACK;
        self.exchange(kind, flags, payload, |_| Ok(())).map_err(|e| NetlinkError::new(action, e))
    }

    /// Sends a request that returns one message.
    pub(crate) fn get<T>(
        &mut self,
        kind: u16,
        payload: &MessageBuilder,
        action: fmt::Arguments<'_>,
        parse: impl Fn(&Message<'_>) -> Result<T, Malformed>,
    ) -> Result<T, NetlinkError> {
        let mut answer = None;
        let on_message = |message: &Message<'_>| {
            answer = Some(parse(message)?);
            Ok(())
        };
        self.exchange(kind, libc::NLM_F_ACK, payload, on_message)
            .and_then(|()| answer.ok_or(Malformed::Missing("message").into()))
            .map_err(|cause| NetlinkError::new(action, cause))
    }

    /// Lists a table; `parse` returns `None` for rows to skip.
    pub(crate) fn dump<T>(
        &mut self,
        kind: u16,
        payload: &MessageBuilder,
        action: fmt::Arguments<'_>,
        parse: impl Fn(&Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..MAX_DUMP_ATTEMPTS {
            let mut rows = Vec::new();
            let on_message = |message: &Message<'_>| {
                rows.extend(parse(message)?);
                Ok(())
            };
            match self.exchange(kind, libc::NLM_F_DUMP, payload, on_message) {
                Ok(()) => return Ok(rows),
                Err(NetlinkErrorKind::Unstable) => {}
                Err(cause) => return Err(NetlinkError::new(action, cause)),
            }
        }
        Err(NetlinkError::new(action, NetlinkErrorKind::Unstable))
    }

    /// Sends one request and reads up to its acknowledgement.
    ///
    /// An error of `on_message` does not stop reading: the next request must not receive the rest
    /// of a dump.
    fn exchange(
        &mut self,
        kind: u16,
        flags: i32,
        payload: &MessageBuilder,
        mut on_message: impl FnMut(&Message<'_>) -> Result<(), Malformed>,
    ) -> Result<(), NetlinkErrorKind> {
        self.sequence = self.sequence.wrapping_add(1);
        let flags = (flags | libc::NLM_F_REQUEST) as u16;
        let request = payload.message(kind, flags, self.sequence);
        self.socket.send_to(&request, &SocketAddr::new(0, 0), 0)?;
        let (mut outcome, mut stable) = (Ok(()), true);
        loop {
            receive(&self.socket, &mut self.buffer)?;
            for message in Messages::new(&self.buffer) {
                let message = message?;
                if message.sequence != self.sequence {
                    continue; // left over from a request that failed midway
                }
                stable &= i32::from(message.flags) & libc::NLM_F_DUMP_INTR == 0;
                match i32::from(message.kind) {
                    libc::NLMSG_ERROR | libc::NLMSG_DONE => {
                        return match NetlinkAck::parse(&message)? {
                            NetlinkAck { errno: 0, .. } if stable => outcome,
                            NetlinkAck { errno: 0, .. } => Err(NetlinkErrorKind::Unstable),
                            refusal => Err(refusal.into()),
                        };
                    }
                    libc::NLMSG_NOOP => {}
                    _ => {
                        outcome = outcome.and(on_message(&message).map_err(NetlinkErrorKind::from));
                    }
                }
            }
        }
    }
}

/// Socket that is subscribed to multicast groups; reading never blocks.
#[derive(Debug)]
pub(crate) struct EventSocket {
    socket: Socket,
    buffer: Vec<u8>,
}

impl EventSocket {
    pub(crate) fn open(
        protocol: isize,
        groups: &[u32],
        action: &str,
    ) -> Result<Self, NetlinkError> {
        let open = || -> io::Result<Socket> {
            let mut socket = Socket::new(protocol)?;
            socket.bind_auto()?;
            socket.set_rx_buf_sz(EVENT_BUFFER_BYTES)?;
            socket.set_non_blocking(true)?;
            for &group in groups {
                socket.add_membership(group)?;
            }
            Ok(socket)
        };
        let socket = open().map_err(|error| NetlinkError::new(action, error))?;
        Ok(Self { socket, buffer: Vec::with_capacity(MAX_DATAGRAM_BYTES) })
    }

    /// Reads the pending messages; `parse` returns `None` for messages to skip.
    pub(crate) fn drain<T>(
        &mut self,
        action: &str,
        parse: impl Fn(&Message<'_>) -> Result<Option<T>, Malformed>,
    ) -> Result<EventBatch<T>, NetlinkError> {
        let mut batch = EventBatch { events: Vec::new(), lost: false };
        for _ in 0..MAX_DRAIN_DATAGRAMS {
            match receive(&self.socket, &mut self.buffer) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {
                    batch.lost = true;
                    continue;
                }
                Err(error) => return Err(NetlinkError::new(action, error)),
            }
            for message in Messages::new(&self.buffer) {
                let event = message
                    .and_then(|message| parse(&message))
                    .map_err(|malformed| NetlinkError::new(action, malformed))?;
                batch.events.extend(event);
            }
        }
        Ok(batch)
    }
}

/// Events read in one call, and a mark for lost ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBatch<T> {
    /// Events in the kernel's order.
    pub events: Vec<T>,
    /// True if the kernel dropped events because they were not read fast enough. State derived
    /// from earlier events may be stale.
    pub lost: bool,
}

impl AsFd for EventSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for EventSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

/// Replaces `buffer` with the next datagram of the kernel.
fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        buffer.clear();
        match socket.recv_from(buffer, libc::MSG_TRUNC) {
            // Only port 0 is the kernel; other processes may also send to our port.
            Ok((_, sender)) if sender.port_number() != 0 => {}
            Ok((length, _)) if length > buffer.len() => {
                let text =
                    format!("a datagram of {length} bytes was truncated to {}", buffer.len());
                return Err(io::Error::new(io::ErrorKind::InvalidData, text));
            }
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
