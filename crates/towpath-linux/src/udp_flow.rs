//! UDP flows at a constant rate (pattern `udp`) over kernel sockets: the loops of both endpoints.
//! They serve both the emulated world and real hosts.
//!
//! Arrival times come from the kernel, so they exclude thread wake-up delay. Datagrams that the
//! receiver's own socket dropped are reported.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::Socket;
use towpath_measure::live::TestToken;
use towpath_measure::live::stamp::{DatagramHeader, DatagramKind};
use towpath_measure::metrics::DeliveryLog;
use towpath_measure::traffic::{UdpReceiver, UdpSender};
use towpath_net::Instant;

use crate::run_clock::RunClock;
use crate::sys;
use crate::traffic_budget::TrafficDirection;

/// Longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Retry interval after a full send buffer.
const RETRY_INTERVAL: Duration = Duration::from_micros(300);
/// Requested size of socket buffers in bytes, within the system's limits.
const SOCKET_BUFFER_BYTES: u32 = 4 << 20;
/// Index of the drop counter in `SO_MEMINFO` (`SK_MEMINFO_DROPS`).
const SK_MEMINFO_DROPS: usize = 8;
/// Maximum bytes of one datagram.
const MAX_DATAGRAM_BYTES: usize = 65_536;

/// Sending side of a UDP flow.
#[derive(Debug)]
pub(crate) struct UdpSendTask {
    pub(crate) sender: UdpSender,
    /// Token of the test, which each datagram carries, as it does the flow's index.
    pub(crate) token: TestToken,
    pub(crate) flow: u32,
    /// Size of each datagram in bytes.
    pub(crate) datagram_bytes: usize,
}

impl UdpSendTask {
    /// Sends datagrams until the schedule ends. After a full send buffer, a datagram is retried
    /// while it is due.
    pub(crate) fn run(
        mut self,
        pace: &RunClock,
        deadline: Instant,
        out: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> UdpSender {
        sys::minimal_timer_slack();
        let mut room = vec![0; self.datagram_bytes.max(DatagramHeader::BYTES)];
        while !pace.is_over(deadline) {
            let now = pace.now();
            if pace.end().is_some_and(|end| now >= end) {
                break;
            }
            let Some(number) = self.sender.poll(now) else {
                let Some(due) = self.sender.next_due() else { break };
                pace.sleep_until(due.min(now + POLL_INTERVAL));
                continue;
            };
            if !pace.can_consume(TrafficDirection::Outbound) {
                self.sender.on_refused();
                continue;
            }
            // Taken before sending: a thread preempted in between would understate the one-way
            // delay.
            let now = pace.now();
            let (token, flow, sent_ns) = (self.token, self.flow, now.as_nanos());
            let stamp = DatagramHeader { kind: DatagramKind::Data, token, flow, number, sent_ns };
            for (slot, byte) in room.iter_mut().zip(stamp.to_bytes()) {
                *slot = byte;
            }
            match out(&room) {
                Ok(()) => {
                    self.sender.on_sent(now);
                    pace.consume(TrafficDirection::Outbound, room.len());
                }
                Err(error) if is_send_buffer_full(&error) => pace.sleep_until(now + RETRY_INTERVAL),
                Err(_) => self.sender.on_refused(),
            }
        }
        self.sender.stop();
        self.sender
    }
}

fn is_send_buffer_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        || error.raw_os_error() == Some(libc::ENOBUFS)
}

/// Receiving side of a UDP flow.
#[derive(Debug)]
pub(crate) struct UdpReceiveTask<'a> {
    pub(crate) receiver: UdpReceiver,
    pub(crate) log: DeliveryLog,
    /// Received bytes so far, for the sampling thread.
    pub(crate) bytes: &'a AtomicU64,
    pub(crate) token: TestToken,
    pub(crate) flow: u32,
}

/// Handler of control datagrams on the same socket.
pub(crate) trait ControlHandler {
    /// Sends what is due; returns when it must be called again.
    fn send_due(&mut self, _now: Instant) -> Option<Instant> {
        None
    }
    /// Handles a datagram other than data.
    fn on_control(&mut self, _stamp: &DatagramHeader) {}
    /// Returns true if no more data can arrive.
    fn is_over(&self, received: u64) -> bool;
}

impl UdpReceiveTask<'_> {
    /// Counts datagrams until the deadline.
    pub(crate) fn run(
        mut self,
        pace: &RunClock,
        socket: &Socket,
        deadline: Instant,
        beside: &mut dyn ControlHandler,
    ) -> (UdpReceiver, DeliveryLog) {
        let mut room = vec![0; MAX_DATAGRAM_BYTES];
        while !pace.is_over(deadline) && !beside.is_over(self.receiver.received()) {
            let now = pace.now();
            let next = beside.send_due(now).map_or(POLL_INTERVAL, |at| at.saturating_since(now));
            let mut fds = [sys::wait_for_input(socket)];
            if sys::poll(&mut fds, Some(next.min(POLL_INTERVAL))).is_err() {
                break;
            }
            self.drain(pace, socket, &mut room, beside);
        }
        self.log.watch_until(pace.now().min(deadline));
        (self.receiver, self.log)
    }

    /// Reads all pending datagrams.
    fn drain(
        &mut self,
        pace: &RunClock,
        socket: &Socket,
        room: &mut [u8],
        beside: &mut dyn ControlHandler,
    ) {
        loop {
            let mut parts = [IoSliceMut::new(&mut *room)];
            let (length, stamped) = match sys::packet::read_stamped(socket.as_fd(), &mut parts) {
                Ok(read) => read,
                // Reports an error of an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let clock = pace.clock();
            let at = stamped.map_or_else(|| clock.now(), |unix_ns| clock.at_unix_time(unix_ns));
            let at = Instant::ZERO + at.saturating_since(pace.zero());
            let stamp = room.get(..length).and_then(DatagramHeader::parse);
            let Some(stamp) = stamp.filter(|one| (one.token, one.flow) == (self.token, self.flow))
            else {
                continue;
            };
            if stamp.kind != DatagramKind::Data {
                beside.on_control(&stamp);
                continue;
            }
            if self.receiver.on_datagram(at, (stamp.number, stamp.sent_at()), length) {
                // The log requires non-decreasing times.
                let at = self.log.last().map_or(at, |last| last.max(at));
                self.log.record(at, length as u64);
                self.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Configures a socket: non-blocking, large buffers, and kernel receive timestamps.
pub(crate) fn configure_socket(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    let size = SOCKET_BUFFER_BYTES.to_ne_bytes();
    // Exceeding the system's limit requires privilege; otherwise the buffers stay smaller.
    for (forced, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, forced, &size)
            .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, plain, &size));
    }
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_u32.to_ne_bytes())
}

/// Returns the number of datagrams that a socket dropped because its receive buffer was full.
pub(crate) fn socket_drops(socket: &Socket) -> u64 {
    let mut info = [0; 4 * (SK_MEMINFO_DROPS + 1)];
    let read = sys::get_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info);
    let last = info.as_chunks::<4>().0.get(SK_MEMINFO_DROPS);
    let drops = last.map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    if read.is_ok_and(|length| length == info.len()) { drops.into() } else { 0 }
}

/// Returns a warning about dropped datagrams, if any.
pub(crate) fn drop_warning(host: &str, dropped: u64) -> Option<String> {
    let text = || {
        format!(
            "{dropped} datagrams of `udp` reached `{host}` and were dropped by its own socket, which \
             was not read in time: they count as lost"
        )
    };
    (dropped > 0).then(text)
}
