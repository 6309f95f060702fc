//! A TCP peer that only acknowledges and sends: the upper bound for any stack on super-segments.

use std::collections::BTreeMap;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bytes::Bytes;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Protocol;
use towpath_sockets::stack::StackDevice;
use towpath_wire::{Ecn, Flags, Options, Packet, Payload, Segment};

use crate::network::{MTU, Network, address, target};
use crate::{Case, Failure, Shared, TrialMetrics, kernel, observe};

const LOCAL_PORT: u16 = 40_000;
/// Payload of a packet in bytes, without TCP options.
const MSS: u16 = MTU - 40;
/// Bytes of the most whole packets that fit into 64 KiB with their header.
const SUPER_SEGMENT_BYTES: usize = (65_535 - 40) / MSS as usize * MSS as usize;
/// Window scale that this peer announces.
const WINDOW_SCALE: u8 = 9;
/// Maximum bytes in flight, to fit into a processor's cache.
const MAX_IN_FLIGHT_BYTES: u32 = 2 << 20;
/// Maximum number of consecutive reads.
const BATCH: usize = 32;

pub(crate) fn trial(case: Case, length: Duration) -> Result<TrialMetrics, Failure> {
    let mut network = Network::new(1)?;
    let shared = Arc::new(Shared::default());
    let server = kernel::serve(&network.namespace, Protocol::TCP, case.sends, &shared)?;
    let device = network.devices.pop().ok_or("no device")?;
    let mut peer = Peer::new(device, case.sends, Arc::clone(&shared));
    let peer_thread = thread::spawn(move || peer.run().map_err(|error| error.to_string()));
    let metrics = observe(case, length, &shared);
    shared.over.store(true, Ordering::Relaxed);
    peer_thread.join().map_err(|_| "the peer panicked")??;
    let _ = server.join(); // a panic has already been printed
    metrics
}

/// TCP endpoint that connects to the kernel, and never retransmits.
struct Peer {
    device: StackDevice,
    /// True if this peer sends data, false if it receives data.
    sends: bool,
    shared: Arc<Shared>,
    data: Bytes,
    /// Next sequence number to send.
    next: u32,
    /// First unacknowledged sequence number.
    unacked: u32,
    /// Next sequence number that the kernel must send.
    expected: u32,
    /// The kernel's receive window in bytes, after scaling.
    window: u32,
    /// Window scale that the kernel announced.
    kernel_window_scale: u8,
    established: bool,
    /// Set when an acknowledgement must be sent.
    ack_pending: bool,
    /// Data received out of order: start and end of each block.
    out_of_order: BTreeMap<u32, u32>,
}

impl Peer {
    fn new(device: StackDevice, sends: bool, shared: Arc<Shared>) -> Self {
        Self {
            device,
            sends,
            shared,
            data: Bytes::from(vec![0x74; SUPER_SEGMENT_BYTES]),
            next: 1,
            unacked: 0,
            expected: 0,
            window: 0,
            kernel_window_scale: 0,
            established: false,
            ack_pending: false,
            out_of_order: BTreeMap::new(),
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        let options =
            Options { mss: Some(MSS), window_scale: Some(WINDOW_SCALE), ..Options::default() };
        self.send(0, Flags::SYN, options, Payload::EMPTY, 0)?;
        while !self.shared.is_over() {
            let mut is_active = false;
            for _ in 0..BATCH {
                let Some(packet) = self.device.receive()? else { break };
                is_active = true;
                // The kernel also sends router solicitations.
                if let Ok(segment) = packet.parse() {
                    self.handle(&segment);
                }
            }
            if self.established && self.sends {
                is_active |= self.send_data()?;
            }
            if std::mem::take(&mut self.ack_pending) {
                self.send(self.next, Flags::ACK, Options::default(), Payload::EMPTY, 0)?;
            }
            if !is_active {
                self.shared.store_cpu_time();
                let mut fds = [PollFd::new(self.device.as_fd(), PollFlags::POLLIN)];
                poll(&mut fds, PollTimeout::from(50_u8))?;
            }
            self.shared.store_cpu_time();
        }
        Ok(())
    }

    fn handle(&mut self, segment: &Segment) {
        if segment.flags.contains(Flags::SYN) {
            self.expected = segment.seq.wrapping_add(1);
            self.kernel_window_scale = segment.options.window_scale.unwrap_or(0);
            self.established = true;
            self.ack_pending = true;
            self.unacked = segment.ack;
            self.window = u32::from(segment.window);
            self.shared.subflows.store(1, Ordering::Relaxed);
            return;
        }
        if segment.ack.wrapping_sub(self.unacked) <= MAX_IN_FLIGHT_BYTES {
            self.unacked = segment.ack;
        }
        self.window = u32::from(segment.window) << self.kernel_window_scale;
        if !segment.payload.is_empty() {
            let length = segment.payload.len() as u32;
            self.ack_pending = true;
            self.on_payload(segment.seq, length);
        }
    }

    /// Stores received payload, and counts the bytes that are now in order.
    fn on_payload(&mut self, seq: u32, length: u32) {
        let previous = self.expected;
        self.out_of_order.insert(seq, seq.wrapping_add(length));
        while let Some(end) = self.out_of_order.remove(&self.expected) {
            self.expected = end;
        }
        let bytes = u64::from(self.expected.wrapping_sub(previous));
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn send_data(&mut self) -> Result<bool, Failure> {
        let mut sent = false;
        while self.next.wrapping_sub(self.unacked) + SUPER_SEGMENT_BYTES as u32
            <= self.window.min(MAX_IN_FLIGHT_BYTES)
        {
            let flags = Flags::ACK.with(Flags::PSH);
            let data = Payload::from(self.data.clone());
            self.send(self.next, flags, Options::default(), data, MSS)?;
            self.next = self.next.wrapping_add(SUPER_SEGMENT_BYTES as u32);
            sent = true;
        }
        Ok(sent)
    }

    fn send(
        &self,
        seq: u32,
        flags: Flags,
        options: Options,
        payload: Payload,
        segment_bytes: u16,
    ) -> Result<(), Failure> {
        let segment = Segment {
            source: (address(0, 2), LOCAL_PORT).into(),
            destination: target(),
            seq,
            ack: self.expected,
            flags,
            window: u16::MAX,
            ecn: Ecn::NotCapable,
            options,
            payload,
            segment_bytes,
        };
        Ok(self.device.send(&Packet::emit(&segment, 1))?)
    }
}
