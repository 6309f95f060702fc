//! Memory ring into which the kernel writes time and first bytes of each sent packet.
//!
//! Uses `PACKET_RX_RING` with `TPACKET_V2`. Reading takes no system call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{check, packet, set_option};

/// Captured bytes of each packet: headers, and the beginning of the payload.
pub const HEAD_BYTES: usize = 64;
/// Number of slots in the ring.
pub const RING_SLOTS: usize = 1_024;
/// Bytes of a slot: the kernel's header, an address, and the packet's beginning.
const SLOT_BYTES: usize = 256;
const BLOCK_BYTES: usize = 64 * 1024;
const RING_BYTES: usize = RING_SLOTS * SLOT_BYTES;

// Constants of linux/if_packet.h and asm-generic/socket.h that the libc crate lacks.
const PACKET_RX_RING: libc::c_int = 5;
const PACKET_VERSION: libc::c_int = 10;
const TPACKET_V2: u32 = 1;
const TP_STATUS_KERNEL: u32 = 0;
const TP_STATUS_USER: u32 = 1;
const SO_ATTACH_FILTER: libc::c_int = 26;

/// A packet that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TxStamp {
    /// Time of sending, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Length of the packet in bytes, from its IP header on.
    pub length: usize,
    /// First bytes of the packet.
    pub head: [u8; HEAD_BYTES],
}

/// The ring, with the socket that fills it.
#[derive(Debug)]
pub struct PacketRing {
    memory: NonNull<u8>,
    socket: OwnedFd,
}

// SAFETY: the memory belongs to this value alone, as far as this process is concerned.
unsafe impl Send for PacketRing {}

impl PacketRing {
    /// Starts to record packets that interface `index` of the calling thread's network namespace
    /// sends.
    ///
    /// The interface must have no link-layer header. Needs `CAP_NET_RAW` there.
    pub fn open(index: u32) -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointer. Protocol 0: nothing is received before bind.
        let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: `fd` was just opened and has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        attach_tx_filter(&socket)?;
        set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_VERSION, &TPACKET_V2.to_ne_bytes())?;
        // struct tpacket_req: size and number of blocks, size and number of slots.
        let request = [BLOCK_BYTES, RING_BYTES / BLOCK_BYTES, SLOT_BYTES, RING_SLOTS];
        let request = request.map(|number| (number as u32).to_ne_bytes()).concat();
        set_option(socket.as_fd(), libc::SOL_PACKET, PACKET_RX_RING, &request)?;
        let memory = map_ring(&socket)?;
        let ring = Self { memory, socket };
        packet::bind(ring.socket.as_fd(), index)?;
        Ok(ring)
    }

    /// Returns the packet in a slot; `None` if the kernel has not filled the slot yet.
    ///
    /// Slot numbers are not reset at the end of the ring; they apply modulo `RING_SLOTS`.
    pub fn get(&self, slot: usize) -> Option<TxStamp> {
        let offset = slot % RING_SLOTS * SLOT_BYTES;
        if self.status(offset).load(Ordering::Acquire) & TP_STATUS_USER == 0 {
            return None;
        }
        let mut bytes = [0; SLOT_BYTES];
        // SAFETY: the slot lies inside the mapping. By its status it is ours, so the kernel does
        // not write to it.
        unsafe {
            let start = self.memory.as_ptr().add(offset);
            std::ptr::copy_nonoverlapping(start, bytes.as_mut_ptr(), SLOT_BYTES);
        }
        parse_stamp(&bytes)
    }

    /// Returns a slot to the kernel.
    pub fn release(&self, slot: usize) {
        let offset = slot % RING_SLOTS * SLOT_BYTES;
        self.status(offset).store(TP_STATUS_KERNEL, Ordering::Release);
    }

    fn status(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is the start of a slot inside the mapping, which is aligned to pages.
        // The first word of a slot is its status, which both sides change by whole words.
        unsafe { AtomicU32::from_ptr(self.memory.as_ptr().add(offset).cast()) }
    }
}

impl Drop for PacketRing {
    fn drop(&mut self) {
        // SAFETY: the mapping has this address and length, and nothing refers to it any more.
        unsafe { libc::munmap(self.memory.as_ptr().cast(), RING_BYTES) };
    }
}

fn map_ring(socket: &OwnedFd) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let memory = unsafe {
        let fd = socket.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), RING_BYTES, access, libc::MAP_SHARED, fd, 0)
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast()).ok_or_else(|| io::ErrorKind::OutOfMemory.into())
}

/// Attaches a filter that keeps the first bytes of sent packets, and drops received ones.
fn attach_tx_filter(socket: &OwnedFd) -> io::Result<()> {
    let code = |bits: u32| bits as u16;
    let instruction = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let kind = (libc::SKF_AD_OFF + libc::SKF_AD_PKTTYPE).cast_unsigned();
    let return_code = code(libc::BPF_RET | libc::BPF_K);
    let mut instructions = [
        instruction(code(libc::BPF_LD | libc::BPF_B | libc::BPF_ABS), 0, 0, kind),
        instruction(
            code(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K),
            0,
            1,
            u32::from(libc::PACKET_OUTGOING),
        ),
        instruction(return_code, 0, 0, HEAD_BYTES as u32),
        instruction(return_code, 0, 0, 0),
    ];
    let program =
        libc::sock_fprog { len: instructions.len() as u16, filter: instructions.as_mut_ptr() };
    // SAFETY: the program and its instructions live through the call, which copies them.
    check(unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_ATTACH_FILTER,
            (&raw const program).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Parses `struct tpacket2_hdr`.
///
/// Its fields are status, length and captured bytes (32 bits each), offsets of the link-layer and
/// the network header (16 bits each), seconds and nanoseconds (32 bits each).
fn parse_stamp(bytes: &[u8; SLOT_BYTES]) -> Option<TxStamp> {
    let [_, _, _, _, l0, l1, l2, l3, c0, c1, c2, c3, _, _, n0, n1, s0, s1, s2, s3, ns @ ..] = bytes;
    let captured = u32::from_ne_bytes([*c0, *c1, *c2, *c3]) as usize;
    let network = usize::from(u16::from_ne_bytes([*n0, *n1]));
    let packet = bytes.get(network..)?;
    let mut head = [0; HEAD_BYTES];
    for (slot, byte) in head.iter_mut().zip(packet.get(..captured.min(HEAD_BYTES))?) {
        *slot = *byte;
    }
    let seconds = u64::from(u32::from_ne_bytes([*s0, *s1, *s2, *s3]));
    let nanos = u64::from(u32::from_ne_bytes(*ns.first_chunk()?));
    Some(TxStamp {
        unix_ns: seconds * 1_000_000_000 + nanos,
        length: u32::from_ne_bytes([*l0, *l1, *l2, *l3]) as usize,
        head,
    })
}
