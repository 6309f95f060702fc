//! One end of an emulated link: packets from and to one host's interface.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use bytes::BytesMut;
use towpath_os::queue::{QueueReceiver, QueueSender};
use towpath_os::sys;

use super::frame::{GsoFrame, GsoSegment, VirtioHeader};
use super::tx_timestamps::TxTimestamps;

/// Maximum read: a packet of 64 KiB and a link-layer header, in bytes.
const READ_BYTES: usize = 65_536 + 64;
/// Size up to which packets are copied into an exact buffer, so that queued ones do not hold 64
/// KiB each.
const COPY_BELOW_BYTES: usize = 16 * 1024;
/// Size of an Ethernet header, in bytes.
const ETHERNET_HEADER_BYTES: usize = 14;
/// Maximum number of bytes in front of an IP packet.
const MAX_PREFIX_BYTES: usize = VirtioHeader::BYTES + ETHERNET_HEADER_BYTES;
/// Maximum number of parts in which a packet can be written.
pub(crate) const MAX_IOVECS: usize = 30;

/// MAC address of every host's interface. With NOARP, the kernel addresses a frame to itself;
/// equal addresses make every frame reach its receiver without ARP.
pub const MAC: [u8; 6] = [0x02, 0x74, 0x6f, 0x77, 0x00, 0x01];

/// Descriptor that exchanges IP packets with virtio headers with the kernel.
#[derive(Debug)]
pub enum VirtioFd {
    /// TUN device, which carries IP packets.
    Tun(OwnedFd),
    /// Packet socket on our end of a veth pair, which carries Ethernet frames.
    Packet(OwnedFd),
}

impl AsFd for VirtioFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tun(fd) | Self::Packet(fd) => fd.as_fd(),
        }
    }
}

impl VirtioFd {
    /// Returns the bytes in front of each IP packet, without the virtio header.
    fn link_header_bytes(&self) -> usize {
        match self {
            Self::Tun(_) => 0,
            Self::Packet(_) => ETHERNET_HEADER_BYTES,
        }
    }

    /// Reads one packet or super-segment into `buffer`; `None` if none is pending.
    ///
    /// Returns its length and the time at which the kernel received it, in nanoseconds since 1970;
    /// a TUN device has no time.
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<(VirtioHeader, usize, Option<u64>)>> {
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let prefix_bytes = VirtioHeader::BYTES + self.link_header_bytes();
        let mut parts = [
            IoSliceMut::new(prefix.get_mut(..prefix_bytes).unwrap_or(&mut [])),
            IoSliceMut::new(buffer),
        ];
        let (read, unix_ns) = match self {
            Self::Tun(fd) => (sys::read_vectored(fd.as_fd(), &mut parts), None),
            Self::Packet(fd) => match sys::packet::read_stamped(fd.as_fd(), &mut parts) {
                Ok((read, unix_ns)) => (Ok(read), unix_ns),
                Err(error) => (Err(error), None),
            },
        };
        let parsed = self.parse_prefix(prefix, read)?;
        Ok(parsed.map(|(virtio, length)| (virtio, length, unix_ns)))
    }

    /// Reads like `read`, but appends to `buffer` within its capacity.
    pub(crate) fn append(
        &self,
        buffer: &mut BytesMut,
    ) -> io::Result<Option<(VirtioHeader, usize)>> {
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let prefix_bytes = VirtioHeader::BYTES + self.link_header_bytes();
        let prefix_part = prefix.get_mut(..prefix_bytes).unwrap_or(&mut []);
        let read = sys::read_appending(self.as_fd(), prefix_part, buffer);
        self.parse_prefix(prefix, read)
    }

    fn parse_prefix(
        &self,
        prefix: [u8; MAX_PREFIX_BYTES],
        read: io::Result<usize>,
    ) -> io::Result<Option<(VirtioHeader, usize)>> {
        let read = match read {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let shift = self.link_header_bytes();
        let virtio = prefix.first_chunk().copied().unwrap_or_default();
        let length = read.checked_sub(VirtioHeader::BYTES + shift);
        Ok(length.map(|length| (VirtioHeader::parse(virtio, shift as u16), length)))
    }

    /// Writes one packet or super-segment in `parts`, at most [`MAX_IOVECS`]. The first non-empty
    /// part begins with the IP header.
    pub(crate) fn write(&self, virtio: VirtioHeader, parts: &[&[u8]]) -> io::Result<()> {
        let shift = self.link_header_bytes();
        let virtio = virtio.emit(shift as u16);
        let ip_first_byte = parts.iter().find_map(|part| part.first()).copied().unwrap_or(0);
        let ethernet = ethernet_header(ip_first_byte);
        let link_header = ethernet.get(..shift).unwrap_or(&[]);
        let mut slices: ArrayVec<IoSlice<'_>, { MAX_IOVECS + 2 }> = ArrayVec::new();
        for part in [&virtio[..], link_header].into_iter().chain(parts.iter().copied()) {
            // Callers keep to [`MAX_IOVECS`]; a truncated packet would do no harm.
            let _ = slices.try_push(IoSlice::new(part));
        }
        sys::write_vectored(self.as_fd(), &slices).map(drop)
    }
}

/// Frame that a host sent.
#[derive(Debug)]
pub struct ReceivedFrame {
    /// Packet or super-segment.
    pub frame: GsoFrame,
    /// Time at which the kernel received the frame, in nanoseconds since 1970, if known.
    pub unix_ns: Option<u64>,
}

/// Packet exchange of the emulator with one host.
#[derive(Debug)]
pub enum EmulatorPort {
    /// Kernel of the host, through its interface.
    Kernel {
        /// Device of the interface.
        device: VirtioFd,
        /// Source of transmit times, if the device has none.
        tx_timestamps: Option<TxTimestamps>,
    },
    /// Our own stack in another thread, without a kernel in between.
    Stack {
        /// Frames sent by the stack.
        inbox: QueueReceiver<GsoFrame>,
        /// Frames for the stack.
        outbox: QueueSender<GsoFrame>,
    },
}

impl AsFd for EmulatorPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel { device, tx_timestamps: _ } => device.as_fd(),
            Self::Stack { inbox, outbox: _ } => inbox.as_fd(),
        }
    }
}

impl EmulatorPort {
    /// Reads one packet or super-segment; `None` if none is pending.
    pub fn read(&mut self, pool: &mut BufferPool) -> io::Result<Option<ReceivedFrame>> {
        match self {
            Self::Kernel { device, tx_timestamps } => {
                let Some((virtio, length, unix_ns)) = device.read(pool.read_buffer())? else {
                    return Ok(None);
                };
                let packet = pool.read_buffer().get(..length).unwrap_or(&[]);
                let unix_ns = unix_ns.or_else(|| tx_timestamps.as_mut()?.find(packet));
                Ok(Some(ReceivedFrame { frame: GsoFrame::new(virtio, pool.take(length)), unix_ns }))
            }
            Self::Stack { inbox, outbox: _ } => {
                Ok(inbox.receive().map(|frame| ReceivedFrame { frame, unix_ns: None }))
            }
        }
    }

    /// Returns the packets dropped before they could be read; a TUN device counts them in its
    /// interface's statistics instead.
    pub fn lost_packets(&self) -> u64 {
        match self {
            Self::Kernel { device: VirtioFd::Packet(fd), tx_timestamps: _ } => {
                sys::packet_socket_drops(fd.as_fd())
            }
            Self::Kernel { device: VirtioFd::Tun(_), tx_timestamps: _ } | Self::Stack { .. } => 0,
        }
    }

    /// Passes a segment to the host.
    pub fn write(&self, segment: &GsoSegment) -> io::Result<()> {
        segment.emit(|virtio, head, tail| match self {
            Self::Kernel { device, tx_timestamps: _ } => device.write(virtio, &[head, tail]),
            Self::Stack { inbox: _, outbox } => {
                // The stack may be gone.
                let _ = outbox.send(GsoFrame::new(virtio, [head, tail].concat()));
                Ok(())
            }
        })
    }
}

fn ethernet_header(first_byte_of_ip: u8) -> [u8; ETHERNET_HEADER_BYTES] {
    let ethertype: u16 = if first_byte_of_ip >> 4 == 6 { 0x86dd } else { 0x0800 };
    let mut header = [0; ETHERNET_HEADER_BYTES];
    let parts = [&MAC[..], &MAC[..], &ethertype.to_be_bytes()[..]];
    for (slot, byte) in header.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    header
}

/// Pool of reusable read buffers.
#[derive(Debug)]
pub struct BufferPool {
    current: Vec<u8>,
    free: Vec<Vec<u8>>,
}

impl Default for BufferPool {
    fn default() -> Self {
        Self::new()
    }
}

impl BufferPool {
    /// Creates a pool with one buffer of the maximum size.
    pub fn new() -> Self {
        Self { current: vec![0; READ_BYTES], free: Vec::new() }
    }

    fn read_buffer(&mut self) -> &mut [u8] {
        &mut self.current
    }

    /// Returns the first `length` bytes of the last read.
    fn take(&mut self, length: usize) -> Vec<u8> {
        let length = length.min(self.current.len());
        if length <= COPY_BELOW_BYTES {
            return self.current.get(..length).unwrap_or(&[]).to_vec();
        }
        let next = self.free.pop().unwrap_or_else(|| vec![0; READ_BYTES]);
        let mut filled = std::mem::replace(&mut self.current, next);
        filled.truncate(length);
        filled
    }

    /// Returns a buffer to the pool.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        const MAX_POOLED: usize = 64;
        if buffer.capacity() >= READ_BYTES && self.free.len() < MAX_POOLED {
            buffer.resize(READ_BYTES, 0);
            self.free.push(buffer);
        }
    }
}
