//! One end of an emulated link: packets in and out of one host's interface.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use arrayvec::ArrayVec;
use bytes::BytesMut;

use super::frame::{GsoFrame, GsoSegment, VirtioHeader};
use super::tap::TxTimestamps;
use crate::queue::{QueueReceiver, QueueSender};
use crate::sys;

/// Largest packet: 64 KiB and a link-layer header.
const READ_BYTES: usize = 65_536 + 64;
/// Packets up to this size are copied into a buffer of their own size, so that a long queue of
/// them does not hold 64 KiB each.
const COPY_BELOW_BYTES: usize = 16 * 1024;
/// Bytes of an Ethernet header.
const ETHERNET_HEADER_BYTES: usize = 14;
/// Most bytes in front of an IP packet.
const MAX_PREFIX_BYTES: usize = VirtioHeader::BYTES + ETHERNET_HEADER_BYTES;
/// Most parts in which a packet can be written.
pub(crate) const MAX_IOVECS: usize = 30;

/// MAC address of every host's interface: with NOARP the kernel addresses a frame to itself, so
/// equal addresses make every frame reach its receiver without ARP.
pub(crate) const MAC: [u8; 6] = [0x02, 0x74, 0x6f, 0x77, 0x00, 0x01];

/// A descriptor through which the kernel gives and takes IP packets with virtio headers.
#[derive(Debug)]
pub(crate) enum VirtioFd {
    /// A TUN device: IP packets.
    Tun(OwnedFd),
    /// A packet socket on our end of a veth pair: Ethernet frames.
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
    /// Bytes in front of each IP packet, without the virtio header.
    fn link_header_bytes(&self) -> usize {
        match self {
            Self::Tun(_) => 0,
            Self::Packet(_) => ETHERNET_HEADER_BYTES,
        }
    }

    /// Reads one packet or super-segment into `buffer`; returns its length and when the kernel had
    /// it (nanoseconds since 1970; a TUN device does not say). `None` when nothing waits.
    fn read(&self, buffer: &mut [u8]) -> io::Result<Option<(VirtioHeader, usize, Option<u64>)>> {
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let bytes = VirtioHeader::BYTES + self.link_header_bytes();
        let mut parts =
            [IoSliceMut::new(prefix.get_mut(..bytes).unwrap_or(&mut [])), IoSliceMut::new(buffer)];
        let (read, unix_ns) = match self {
            Self::Tun(fd) => (sys::read_vectored(fd.as_fd(), &mut parts), None),
            Self::Packet(fd) => match sys::packet::read_stamped(fd.as_fd(), &mut parts) {
                Ok((read, unix_ns)) => (Ok(read), unix_ns),
                Err(error) => (Err(error), None),
            },
        };
        let understood = self.understand(prefix, read)?;
        Ok(understood.map(|(virtio, length)| (virtio, length, unix_ns)))
    }

    /// The same, behind what `buffer` holds and as far as its capacity goes.
    pub(crate) fn append(
        &self,
        buffer: &mut BytesMut,
    ) -> io::Result<Option<(VirtioHeader, usize)>> {
        let mut prefix = [0; MAX_PREFIX_BYTES];
        let bytes = VirtioHeader::BYTES + self.link_header_bytes();
        let part = prefix.get_mut(..bytes).unwrap_or(&mut []);
        let read = sys::read_appending(self.as_fd(), part, buffer);
        self.understand(prefix, read)
    }

    fn understand(
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

    /// Hands the kernel one packet or super-segment in `parts` (at most [`MAX_IOVECS`]), of which the
    /// first that is not empty begins with the IP header.
    pub(crate) fn write(&self, virtio: VirtioHeader, parts: &[&[u8]]) -> io::Result<()> {
        let shift = self.link_header_bytes();
        let virtio = virtio.emit(shift as u16);
        let first = parts.iter().find_map(|part| part.first()).copied().unwrap_or(0);
        let ethernet = ethernet_header(first);
        let link = ethernet.get(..shift).unwrap_or(&[]);
        let mut slices: ArrayVec<IoSlice<'_>, { MAX_IOVECS + 2 }> = ArrayVec::new();
        for part in [&virtio[..], link].into_iter().chain(parts.iter().copied()) {
            // The caller keeps the promise above; a packet that is cut short does no harm.
            let _ = slices.try_push(IoSlice::new(part));
        }
        sys::write_vectored(self.as_fd(), &slices).map(drop)
    }
}

/// What a host sent.
#[derive(Debug)]
pub(crate) struct ReceivedFrame {
    pub(crate) frame: GsoFrame,
    /// When the kernel had it, in nanoseconds since 1970, if it says so.
    pub(crate) unix_ns: Option<u64>,
}

/// How the emulator exchanges packets with a host.
#[derive(Debug)]
pub(crate) enum EmulatorPort {
    /// With its kernel.
    Kernel {
        wire: VirtioFd,
        /// What says when packets were sent, where the wire does not.
        tap: Option<TxTimestamps>,
    },
    /// With our own stack in another thread: no kernel is in between.
    Stack {
        /// From the stack.
        inbox: QueueReceiver<GsoFrame>,
        /// To it.
        outbox: QueueSender<GsoFrame>,
    },
}

impl AsFd for EmulatorPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Kernel { wire, tap: _ } => wire.as_fd(),
            Self::Stack { inbox, outbox: _ } => inbox.as_fd(),
        }
    }
}

impl EmulatorPort {
    /// Reads one packet or super-segment; `None` when nothing waits.
    pub(crate) fn read(&mut self, pool: &mut BufferPool) -> io::Result<Option<ReceivedFrame>> {
        match self {
            Self::Kernel { wire, tap } => {
                let Some((virtio, length, unix_ns)) = wire.read(pool.room())? else {
                    return Ok(None);
                };
                let packet = pool.room().get(..length).unwrap_or(&[]);
                let unix_ns = unix_ns.or_else(|| tap.as_mut()?.sent(packet));
                Ok(Some(ReceivedFrame { frame: GsoFrame::new(virtio, pool.take(length)), unix_ns }))
            }
            Self::Stack { inbox, outbox: _ } => {
                Ok(inbox.receive().map(|frame| ReceivedFrame { frame, unix_ns: None }))
            }
        }
    }

    /// Packets that were lost before they could be read; a TUN device counts them in its
    /// interface's statistics instead.
    pub(crate) fn lost(&self) -> u64 {
        match self {
            Self::Kernel { wire: VirtioFd::Packet(fd), tap: _ } => {
                sys::packet_socket_drops(fd.as_fd())
            }
            Self::Kernel { wire: VirtioFd::Tun(_), tap: _ } | Self::Stack { .. } => 0,
        }
    }

    /// Hands a segment to the host.
    pub(crate) fn write(&self, segment: &GsoSegment) -> io::Result<()> {
        segment.emit(|virtio, head, tail| match self {
            Self::Kernel { wire, tap: _ } => wire.write(virtio, &[head, tail]),
            Self::Stack { inbox: _, outbox } => {
                // The stack may be gone.
                let _ = outbox.send(GsoFrame::new(virtio, [head, tail].concat()));
                Ok(())
            }
        })
    }
}

fn ethernet_header(first_byte_of_ip: u8) -> [u8; ETHERNET_HEADER_BYTES] {
    let kind: u16 = if first_byte_of_ip >> 4 == 6 { 0x86dd } else { 0x0800 };
    let mut header = [0; ETHERNET_HEADER_BYTES];
    let parts = [&MAC[..], &MAC[..], &kind.to_be_bytes()[..]];
    for (slot, byte) in header.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    header
}

/// Buffers for reading, reused.
#[derive(Debug)]
pub(crate) struct BufferPool {
    current: Vec<u8>,
    free: Vec<Vec<u8>>,
}

impl BufferPool {
    pub(crate) fn new() -> Self {
        Self { current: vec![0; READ_BYTES], free: Vec::new() }
    }

    fn room(&mut self) -> &mut [u8] {
        &mut self.current
    }

    /// The first `length` bytes of what was read last.
    fn take(&mut self, length: usize) -> Vec<u8> {
        let length = length.min(self.current.len());
        if length <= COPY_BELOW_BYTES {
            return self.current.get(..length).unwrap_or(&[]).to_vec();
        }
        let next = self.free.pop().unwrap_or_else(|| vec![0; READ_BYTES]);
        let mut taken = std::mem::replace(&mut self.current, next);
        taken.truncate(length);
        taken
    }

    /// Takes a buffer back.
    pub(crate) fn recycle(&mut self, mut buffer: Vec<u8>) {
        const MAX_POOLED: usize = 64;
        if buffer.capacity() >= READ_BYTES && self.free.len() < MAX_POOLED {
            buffer.resize(READ_BYTES, 0);
            self.free.push(buffer);
        }
    }
}
