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
use towpath_net::Instant;
use towpath_os::sys;
use towpath_result::metrics::DeliveryLog;
use towpath_run::stamp::{DatagramHeader, DatagramKind};
use towpath_run::token::TestToken;
use towpath_run::traffic::{UdpReceiver, UdpSender};

use crate::run_clock::RunClock;
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
pub struct UdpSendTask {
    /// Schedule and counts of the sender.
    pub sender: UdpSender,
    /// Token of the test and index of the flow, for the header of each datagram.
    pub token: TestToken,
    /// Number of the flow.
    pub flow: u32,
    /// Size of each datagram in bytes.
    pub datagram_bytes: usize,
}

impl UdpSendTask {
    /// Sends datagrams until the schedule ends. After a full send buffer, a datagram is retried
    /// while it is due.
    pub fn run(
        mut self,
        run_clock: &RunClock,
        deadline: Instant,
        send: &mut dyn FnMut(&[u8]) -> io::Result<()>,
    ) -> UdpSender {
        sys::set_minimal_timer_slack();
        let mut datagram = vec![0; self.datagram_bytes.max(DatagramHeader::BYTES)];
        while !run_clock.is_over(deadline) {
            let now = run_clock.now();
            if run_clock.end().is_some_and(|end| now >= end) {
                break;
            }
            let Some(number) = self.sender.poll(now) else {
                let Some(due) = self.sender.next_due() else { break };
                run_clock.sleep_until(due.min(now + POLL_INTERVAL));
                continue;
            };
            if !run_clock.can_consume(TrafficDirection::Outbound) {
                self.sender.on_refused();
                continue;
            }
            // Taken before sending: a thread preempted in between would understate the one-way
            // delay.
            let now = run_clock.now();
            let (token, flow, sent_ns) = (self.token, self.flow, now.as_nanos());
            let header = DatagramHeader { kind: DatagramKind::Data, token, flow, number, sent_ns };
            for (target, byte) in datagram.iter_mut().zip(header.to_bytes()) {
                *target = byte;
            }
            match send(&datagram) {
                Ok(()) => {
                    self.sender.on_sent(now);
                    run_clock.consume(TrafficDirection::Outbound, datagram.len());
                }
                Err(error) if is_send_buffer_full(&error) => {
                    run_clock.sleep_until(now + RETRY_INTERVAL);
                }
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
pub struct UdpReceiveTask<'a> {
    /// Counts and delays of received datagrams.
    pub receiver: UdpReceiver,
    /// Delivery log of the flow.
    pub log: DeliveryLog,
    /// Received bytes so far, for the sampling thread.
    pub bytes: &'a AtomicU64,
    /// Public ID of the test.
    pub token: TestToken,
    /// Number of the flow.
    pub flow: u32,
}

/// Handler of control datagrams on the same socket.
pub trait ControlHandler {
    /// Sends control datagrams that are due; returns the time of the next call.
    fn send_due(&mut self, _now: Instant) -> Option<Instant> {
        None
    }
    /// Handles a control datagram.
    fn on_control(&mut self, _header: &DatagramHeader) {}
    /// Returns true if no more data can arrive after `received` datagrams.
    fn is_over(&self, received: u64) -> bool;
}

impl UdpReceiveTask<'_> {
    /// Counts datagrams until the deadline.
    pub fn run(
        mut self,
        run_clock: &RunClock,
        socket: &Socket,
        deadline: Instant,
        control: &mut dyn ControlHandler,
    ) -> (UdpReceiver, DeliveryLog) {
        let mut buffer = vec![0; MAX_DATAGRAM_BYTES];
        while !run_clock.is_over(deadline) && !control.is_over(self.receiver.received()) {
            let now = run_clock.now();
            let wait = control.send_due(now).map_or(POLL_INTERVAL, |due| due.saturating_since(now));
            let mut fds = [sys::input_pollfd(socket)];
            if sys::poll(&mut fds, Some(wait.min(POLL_INTERVAL))).is_err() {
                break;
            }
            self.drain(run_clock, socket, &mut buffer, control);
        }
        self.log.watch_until(run_clock.now().min(deadline));
        (self.receiver, self.log)
    }

    /// Reads all pending datagrams.
    fn drain(
        &mut self,
        run_clock: &RunClock,
        socket: &Socket,
        buffer: &mut [u8],
        control: &mut dyn ControlHandler,
    ) {
        loop {
            let mut slices = [IoSliceMut::new(&mut *buffer)];
            let (length, received_ns) = match sys::packet::read_stamped(socket.as_fd(), &mut slices)
            {
                Ok(result) => result,
                // Reports an error of an earlier datagram.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
                Err(_) => return,
            };
            let clock = run_clock.clock();
            let arrival =
                received_ns.map_or_else(|| clock.now(), |unix_ns| clock.at_unix_time(unix_ns));
            let arrival = Instant::ZERO + arrival.saturating_since(run_clock.start_time());
            let header = buffer.get(..length).and_then(DatagramHeader::parse);
            let Some(header) =
                header.filter(|header| (header.token, header.flow) == (self.token, self.flow))
            else {
                continue;
            };
            if header.kind != DatagramKind::Data {
                control.on_control(&header);
                continue;
            }
            if self.receiver.on_datagram(arrival, (header.number, header.sent_at()), length) {
                // The log requires non-decreasing times.
                let arrival = self.log.last().map_or(arrival, |previous| previous.max(arrival));
                self.log.record(arrival, length as u64);
                self.bytes.fetch_add(length as u64, Ordering::Relaxed);
            }
        }
    }
}

/// Configures a socket: non-blocking, large buffers, and kernel receive timestamps.
pub fn configure_socket(socket: &Socket) -> io::Result<()> {
    socket.set_nonblocking(true)?;
    let fd = socket.as_fd();
    let size = SOCKET_BUFFER_BYTES.to_ne_bytes();
    // Exceeding the system's limit requires privilege; otherwise the buffers stay smaller.
    for (forced_option, plain_option) in
        [(libc::SO_RCVBUFFORCE, libc::SO_RCVBUF), (libc::SO_SNDBUFFORCE, libc::SO_SNDBUF)]
    {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, forced_option, &size)
            .or_else(|_| sys::set_option(fd, libc::SOL_SOCKET, plain_option, &size));
    }
    sys::set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1_u32.to_ne_bytes())
}

/// Returns the number of datagrams that a socket dropped because its receive buffer was full.
pub fn socket_drops(socket: &Socket) -> u64 {
    let mut info = [0; 4 * (SK_MEMINFO_DROPS + 1)];
    let read_length =
        sys::get_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info);
    let drop_counter = info.as_chunks::<4>().0.get(SK_MEMINFO_DROPS);
    let drops = drop_counter.map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    if read_length.is_ok_and(|length| length == info.len()) { drops.into() } else { 0 }
}

/// Returns a warning about dropped datagrams, if any.
pub fn drop_warning(host: &str, dropped: u64) -> Option<String> {
    let text = || {
        format!(
            "{dropped} datagrams of `udp` reached `{host}` but overflowed its socket buffer: they count as lost"
        )
    };
    (dropped > 0).then(text)
}
