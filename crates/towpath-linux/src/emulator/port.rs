//! One end of an emulated link: the kernel's packets in and out of one host's interface.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::frame::{Frame, Segment, VirtioHeader};
use crate::sys;

/// Largest packet: 64 KiB and a link-layer header.
const READ_BYTES: usize = 65_536 + 64;
/// Packets up to this size are copied into a buffer of their own size, so that a long queue of
/// them does not hold 64 KiB each.
const COPY_BELOW_BYTES: usize = 16 * 1024;
/// Bytes of an Ethernet header.
const ETHERNET: usize = 14;

/// MAC address of every host's interface: with NOARP the kernel addresses a frame to itself, so
/// equal addresses make every frame reach its receiver without ARP.
pub(crate) const MAC: [u8; 6] = [0x02, 0x74, 0x6f, 0x77, 0x00, 0x01];

/// How packets are exchanged with the kernel.
#[derive(Debug)]
pub(crate) enum Port {
    /// A TUN device: IP packets.
    Tun(OwnedFd),
    /// A packet socket on the emulator's end of a veth pair: Ethernet frames.
    Packet(OwnedFd),
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tun(fd) | Self::Packet(fd) => fd.as_fd(),
        }
    }
}

impl Port {
    /// Reads one packet or super-segment; `None` when nothing waits or it is not IP.
    pub(crate) fn read(&self, pool: &mut Pool) -> io::Result<Option<Frame>> {
        let mut virtio = [0; VirtioHeader::BYTES];
        let mut ethernet = [0; ETHERNET];
        let buffer = pool.room();
        let shift = match self {
            Self::Tun(_) => 0,
            Self::Packet(_) => ETHERNET,
        };
        let mut parts = [
            IoSliceMut::new(&mut virtio),
            IoSliceMut::new(ethernet.get_mut(..shift).unwrap_or(&mut [])),
            IoSliceMut::new(buffer),
        ];
        let read = match sys::read_vectored(self.as_fd(), &mut parts) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let Some(length) = read.checked_sub(VirtioHeader::BYTES + shift) else { return Ok(None) };
        let header = VirtioHeader::parse(virtio, shift as u16);
        Ok(Some(Frame::new(header, pool.take(length))))
    }

    /// Packets that were lost before they could be read; a TUN device counts them in its
    /// interface's statistics instead.
    pub(crate) fn lost(&self) -> u64 {
        match self {
            Self::Tun(_) => 0,
            Self::Packet(fd) => sys::packet_socket_drops(fd.as_fd()),
        }
    }

    /// Hands a segment to the kernel.
    pub(crate) fn write(&self, segment: &Segment) -> io::Result<()> {
        segment.emit(|virtio, head, tail| {
            let first = head.first().or(tail.first()).copied().unwrap_or(0);
            let ethernet = ethernet_header(first);
            let (shift, ethernet) = match self {
                Self::Tun(_) => (0, &[][..]),
                Self::Packet(_) => (ETHERNET as u16, &ethernet[..]),
            };
            let virtio = virtio.emit(shift);
            let parts = [
                IoSlice::new(&virtio),
                IoSlice::new(ethernet),
                IoSlice::new(head),
                IoSlice::new(tail),
            ];
            sys::write_vectored(self.as_fd(), &parts).map(drop)
        })
    }
}

fn ethernet_header(first_byte_of_ip: u8) -> [u8; ETHERNET] {
    let kind: u16 = if first_byte_of_ip >> 4 == 6 { 0x86dd } else { 0x0800 };
    let mut header = [0; ETHERNET];
    let parts = [&MAC[..], &MAC[..], &kind.to_be_bytes()[..]];
    for (slot, byte) in header.iter_mut().zip(parts.into_iter().flatten()) {
        *slot = *byte;
    }
    header
}

/// Buffers for reading, reused.
#[derive(Debug)]
pub(crate) struct Pool {
    current: Vec<u8>,
    free: Vec<Vec<u8>>,
}

impl Pool {
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
    pub(crate) fn give_back(&mut self, mut buffer: Vec<u8>) {
        const KEPT: usize = 64;
        if buffer.capacity() >= READ_BYTES && self.free.len() < KEPT {
            buffer.resize(READ_BYTES, 0);
            self.free.push(buffer);
        }
    }
}
