//! Datagrams at a constant rate (`udp`) over the kernel's sockets: the loops of both ends, the same in
//! the emulated world and between real hosts.
//!
//! An arrival's time is the kernel's, so how late a thread wakes up is not in it. What the receiver's
//! own socket had to drop is told.

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

use crate::pace::RunClock;
use crate::purse::TrafficDirection;
use crate::sys;

/// The longest sleep of a thread that must notice an interrupt.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// How soon a socket that is full is tried again.
const RETRY_INTERVAL: Duration = Duration::from_micros(300);
/// What a socket may hold, where the system's limits allow it.
const SOCKET_BUFFER_BYTES: u32 = 4 << 20;
/// Where `SO_MEMINFO` has the number of drops (`SK_MEMINFO_DROPS`).
const SK_MEMINFO_DROPS: usize = 8;
/// The longest datagram.
const MAX_DATAGRAM_BYTES: usize = 65_536;

/// What one end sends in one direction.
#[derive(Debug)]
pub(crate) struct UdpSendTask {
    pub(crate) sender: UdpSender,
    /// Of the test, and the flow's number: what stands in each.
    pub(crate) token: TestToken,
    pub(crate) flow: u32,
    /// Bytes of each.
    pub(crate) datagram_bytes: usize,
}

impl UdpSendTask {
    /// Sends to the end of the schedule. What `out` does not take is tried again while it is due.
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
            // Read before it is sent: a thread that is held up in between would shorten its way.
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

/// What one end hears in one direction.
#[derive(Debug)]
pub(crate) struct UdpReceiveTask<'a> {
    pub(crate) receiver: UdpReceiver,
    pub(crate) log: DeliveryLog,
    /// Bytes so far, for whoever samples.
    pub(crate) bytes: &'a AtomicU64,
    pub(crate) token: TestToken,
    pub(crate) flow: u32,
}

/// Who does something else on the same socket.
pub(crate) trait ControlHandler {
    /// Says what is due; when it wants to be called again.
    fn send_due(&mut self, _now: Instant) -> Option<Instant> {
        None
    }
    /// Hears what is none of the datagrams that count.
    fn on_control(&mut self, _stamp: &DatagramHeader) {}
    /// Whether nothing more can come.
    fn is_over(&self, received: u64) -> bool;
}

impl UdpReceiveTask<'_> {
    /// Counts what comes until the deadline.
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

    /// Takes all that is there.
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
                // The system tells here what happened to an earlier datagram.
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
                // The log wants them in order of time.
                let at = self.log.last().map_or(at, |last| last.max(at));
                self.log.record(at, length as u64);
                self.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Makes a socket ready: it does not block, holds much, and tells when something came.
pub(crate) fn configure_socket(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    let size = SOCKET_BUFFER_BYTES.to_ne_bytes();
    // Beyond the system's limit only the privileged may go; then there is less room.
    for (forced, plain) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, forced, &size)
            .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, plain, &size));
    }
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_u32.to_ne_bytes())
}

/// What a socket dropped because nobody read it in time.
pub(crate) fn socket_drops(socket: &Socket) -> u64 {
    let mut info = [0; 4 * (SK_MEMINFO_DROPS + 1)];
    let read = sys::get_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info);
    let last = info.as_chunks::<4>().0.get(SK_MEMINFO_DROPS);
    let drops = last.map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    if read.is_ok_and(|length| length == info.len()) { drops.into() } else { 0 }
}

/// What to say of it.
pub(crate) fn drop_warning(host: &str, dropped: u64) -> Option<String> {
    let text = || {
        format!(
            "{dropped} datagrams of `udp` reached `{host}` and were dropped by its own socket, which \
             was not read in time: they count as lost"
        )
    };
    (dropped > 0).then(text)
}
