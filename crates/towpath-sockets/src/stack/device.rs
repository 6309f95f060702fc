//! Packet input and output of towpath's own TCP and Multipath TCP stack.
//!
//! Payload is not copied in this process. The kernel writes a super-segment of up to 64 KiB into a
//! buffer that stack and application share. Writes are gathered from the application's buffers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use bytes::{Bytes, BytesMut};
use towpath_os::queue::{QueueReceiver, QueueSender};
use towpath_os::sys;
use towpath_wire::{Flags, Packet};

use crate::frame::{GsoFrame, VirtioHeader};
use crate::headers::{Headers, TCP_CHECKSUM_OFFSET};
use crate::port::{MAX_IOVECS, VirtioFd};

/// Space that a read requires: the longest IP packet.
const MAX_PACKET_BYTES: usize = 65_536;
/// Size of a buffer that several packets share, in bytes.
const BUFFER_BYTES: usize = 4 * MAX_PACKET_BYTES;
/// Maximum number of spare buffers, which are reused after their packets are dropped.
const MAX_SPARE_BUFFERS: usize = 32;
/// Size up to which packets are copied, so that a small one does not pin a whole buffer.
const COPY_BELOW_BYTES: usize = 4 * 1024;

/// Interface of a host with the own stack.
#[derive(Debug)]
pub struct StackDevice(DeviceKind);

#[derive(Debug)]
enum DeviceKind {
    /// Link to a kernel.
    Kernel { device: VirtioFd, buffers: BufferRing },
    /// Link to the emulator in another thread.
    Emulator { inbox: QueueReceiver<GsoFrame>, outbox: QueueSender<GsoFrame> },
}

impl AsFd for StackDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            DeviceKind::Kernel { device, buffers: _ } => device.as_fd(),
            DeviceKind::Emulator { inbox, outbox: _ } => inbox.as_fd(),
        }
    }
}

impl StackDevice {
    /// Opens the TUN device `name` in the calling thread's network namespace, as a link to its
    /// kernel.
    pub fn tun(name: &str) -> io::Result<Self> {
        Ok(Self::kernel(VirtioFd::Tun(sys::open_tun(name)?)))
    }

    /// Opens a TUN device for plain single IP packets, for other stacks.
    pub fn plain_tun(name: &str) -> io::Result<OwnedFd> {
        sys::open_tun_with(name, 0)
    }

    /// Opens a packet socket on interface `index`, this end of a veth pair, in the calling thread's
    /// network namespace. Serves users without access to `/dev/net/tun`.
    pub fn packet_socket(index: u32) -> io::Result<Self> {
        Ok(Self::kernel(VirtioFd::Packet(sys::open_packet_socket(index)?)))
    }

    fn kernel(device: VirtioFd) -> Self {
        Self(DeviceKind::Kernel { device, buffers: BufferRing::new() })
    }

    /// Creates a device that exchanges packets with the emulator in this process.
    pub fn emulator(inbox: QueueReceiver<GsoFrame>, outbox: QueueSender<GsoFrame>) -> Self {
        Self(DeviceKind::Emulator { inbox, outbox })
    }

    /// Returns the next packet or super-segment; `None` if none is pending. Skips packets other
    /// than TCP and ICMP.
    pub fn receive(&mut self) -> io::Result<Option<Packet>> {
        loop {
            let parsed = match &mut self.0 {
                DeviceKind::Kernel { device, buffers } => {
                    let buffer = buffers.read_buffer();
                    let Some((virtio, _)) = device.append(buffer)? else { return Ok(None) };
                    take_packet(virtio, buffer)
                }
                DeviceKind::Emulator { inbox, outbox: _ } => {
                    let Some(frame) = inbox.receive() else { return Ok(None) };
                    let (virtio, bytes) = frame.into_parts();
                    parse_packet(virtio, &Bytes::from(bytes))
                }
            };
            if parsed.is_some() {
                return Ok(parsed);
            }
        }
    }

    /// Sends a packet or super-segment.
    pub fn send(&self, packet: &Packet) -> io::Result<()> {
        let virtio = virtio_header(packet);
        match &self.0 {
            DeviceKind::Kernel { device, buffers: _ } => {
                let mut parts: ArrayVec<&[u8], MAX_IOVECS> = ArrayVec::new();
                parts.push(&packet.header);
                for chunk in packet.payload.chunks() {
                    if parts.try_push(chunk).is_err() {
                        let payload = packet.payload.to_bytes();
                        return device.write(virtio, &[&packet.header, &payload]);
                    }
                }
                device.write(virtio, &parts)
            }
            DeviceKind::Emulator { inbox: _, outbox } => {
                let mut bytes = Vec::with_capacity(packet.len());
                bytes.extend_from_slice(&packet.header);
                for chunk in packet.payload.chunks() {
                    bytes.extend_from_slice(chunk);
                }
                let _ = outbox.send(GsoFrame::new(virtio, bytes)); // the emulator may be gone
                Ok(())
            }
        }
    }
}

/// Parses the packet in `buffer` and empties the buffer.
fn take_packet(virtio: VirtioHeader, buffer: &mut BytesMut) -> Option<Packet> {
    let bytes = if buffer.len() <= COPY_BELOW_BYTES {
        let copy = Bytes::copy_from_slice(buffer);
        buffer.clear();
        copy
    } else {
        buffer.split().freeze()
    };
    parse_packet(virtio, &bytes)
}

fn parse_packet(virtio: VirtioHeader, bytes: &Bytes) -> Option<Packet> {
    let checksum_valid_flags = VirtioHeader::NEEDS_CSUM | VirtioHeader::DATA_VALID;
    let segment_bytes = if virtio.is_super_segment() { virtio.gso_bytes } else { 0 };
    Packet::from_bytes(bytes, virtio.flags & checksum_valid_flags != 0, segment_bytes).ok()
}

/// Returns the offload metadata of `packet` for the kernel: checksum and segmentation.
fn virtio_header(packet: &Packet) -> VirtioHeader {
    let mut virtio = VirtioHeader::default();
    let Some(headers) = Headers::parse(&packet.header) else { return virtio };
    if packet.checksum_offloaded {
        virtio.flags = VirtioHeader::NEEDS_CSUM;
        virtio.checksum_start = headers.ip_bytes();
        virtio.checksum_offset = TCP_CHECKSUM_OFFSET;
    }
    if packet.segment_bytes > 0 && packet.payload.len() > usize::from(packet.segment_bytes) {
        let flags = packet.header.get(usize::from(headers.ip_bytes()) + 13).copied();
        let has_cwr = Flags(flags.unwrap_or(0)).contains(Flags::CWR);
        virtio.gso_type = VirtioHeader::tcp_gso_type(headers.is_v4(), has_cwr);
        virtio.gso_bytes = packet.segment_bytes;
        virtio.header_bytes = headers.bytes() as u16;
    }
    virtio
}

/// Read buffers, reused after their last packet is dropped.
#[derive(Debug)]
struct BufferRing {
    current: BytesMut,
    /// Buffers whose packets may still be in use, oldest first.
    used: VecDeque<BytesMut>,
}

impl BufferRing {
    fn new() -> Self {
        Self { current: BytesMut::with_capacity(BUFFER_BYTES), used: VecDeque::new() }
    }

    /// Returns an empty buffer with space for the longest packet.
    fn read_buffer(&mut self) -> &mut BytesMut {
        self.current.clear();
        if self.current.capacity() >= MAX_PACKET_BYTES || self.current.try_reclaim(MAX_PACKET_BYTES)
        {
            return &mut self.current;
        }
        // The oldest buffer is the most likely to be free.
        let is_reclaimed =
            self.used.front_mut().is_some_and(|oldest| oldest.try_reclaim(BUFFER_BYTES));
        let next = if is_reclaimed || self.used.len() >= MAX_SPARE_BUFFERS {
            self.used.pop_front()
        } else {
            None
        };
        let next =
            next.filter(|_| is_reclaimed).unwrap_or_else(|| BytesMut::with_capacity(BUFFER_BYTES));
        self.used.push_back(std::mem::replace(&mut self.current, next));
        &mut self.current
    }
}

#[cfg(test)]
mod tests {
    use towpath_os::queue;

    use super::*;
    use crate::headers::tests::{tcp_v4, tcp_v6};

    fn super_segment(bytes: &[u8], segment_bytes: u16) -> Packet {
        Packet::from_bytes(&Bytes::copy_from_slice(bytes), true, segment_bytes).unwrap()
    }

    #[test]
    fn a_super_segment_reaches_the_emulator_and_comes_back_as_it_was() {
        for bytes in [tcp_v4(7, &vec![3; 40_000]), tcp_v6(7, &vec![3; 40_000])] {
            let (outbox, from_stack) = queue::queue().unwrap();
            let (to_stack, inbox) = queue::queue().unwrap();
            let mut device = StackDevice::emulator(inbox, outbox);
            let sent = super_segment(&bytes, 1_448);
            device.send(&sent).unwrap();
            assert!(device.receive().unwrap().is_none());
            assert!(to_stack.send(from_stack.receive().unwrap()));
            assert_eq!(device.receive().unwrap(), Some(sent));
        }
    }

    #[test]
    fn the_virtio_header_gives_segment_size_and_checksum_offset() {
        let virtio = virtio_header(&super_segment(&tcp_v6(1, &[0; 3_000]), 1_448));
        let offload = (virtio.gso_type, virtio.gso_bytes, virtio.header_bytes);
        assert_eq!(offload, (VirtioHeader::tcp_gso_type(false, false), 1_448, 72));
        assert_eq!((virtio.checksum_start, virtio.checksum_offset), (40, 16));
        assert!(virtio.is_super_segment());
        let single_packet = virtio_header(&super_segment(&tcp_v4(1, &[0; 1_448]), 1_448));
        assert_eq!(
            (single_packet.gso_type, single_packet.gso_bytes, single_packet.checksum_start),
            (0, 0, 20)
        );
        let mut complete = super_segment(&tcp_v4(1, &[0; 100]), 0);
        complete.complete_checksum();
        assert_eq!(virtio_header(&complete), VirtioHeader::default());
    }

    #[test]
    fn a_buffer_is_reused_after_its_packets_are_dropped() {
        let mut buffers = BufferRing::new();
        let mut addresses = Vec::new();
        for _ in 0..1_000 {
            let buffer = buffers.read_buffer();
            buffer.extend_from_slice(&vec![1; 60_000]);
            let packet = buffer.split().freeze();
            assert!(packet.iter().all(|byte| *byte == 1));
            let address = packet.as_ptr() as usize;
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        assert!(addresses.len() <= BUFFER_BYTES / 60_000, "{} places", addresses.len());
    }

    #[test]
    fn a_retained_packet_is_not_overwritten() {
        let mut buffers = BufferRing::new();
        let mut retained = Vec::new();
        for fill_byte in 0..=255_u8 {
            let buffer = buffers.read_buffer();
            buffer.extend_from_slice(&vec![fill_byte; 60_000]);
            retained.push(buffer.split().freeze());
        }
        for (fill_byte, packet) in (0..=255_u8).zip(&retained) {
            assert!(packet.iter().all(|byte| *byte == fill_byte), "packet {fill_byte} has changed");
        }
        assert!(buffers.used.len() <= MAX_SPARE_BUFFERS);
    }
}
