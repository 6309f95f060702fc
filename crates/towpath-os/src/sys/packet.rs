//! Packets of the host's interfaces as they pass, without their link-layer headers.

use std::io::{self, IoSliceMut};
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{check, set_option};

/// A captured packet, without its link-layer header.
#[derive(Debug, Clone, Copy)]
pub struct CapturedPacket {
    /// Bytes that fitted into the buffer.
    pub captured_bytes: usize,
    /// Original length in bytes.
    pub original_bytes: usize,
    /// Kernel's timestamp in nanoseconds since 1970; 0 without one.
    pub unix_ns: u64,
    /// Protocol of the link layer's payload, `ETH_P_*`.
    pub protocol: u16,
    /// Index of the interface.
    pub index: u32,
    /// Type of the interface, `ARPHRD_*`.
    pub hardware: u16,
    /// `PACKET_*`: to this host, to others, sent by it.
    pub kind: u8,
}

impl CapturedPacket {
    /// Returns true if this host sent the packet.
    pub fn is_sent(&self) -> bool {
        self.kind == libc::PACKET_OUTGOING
    }
}

/// Buffer for the timestamp's control message, with the kernel's alignment.
#[repr(C, align(8))]
struct CmsgBuffer([u8; 64]);

/// Opens a socket that receives copies of the packets of interface `index`, in both directions.
///
/// Index 0 captures on all interfaces. Needs `CAP_NET_RAW`.
pub fn open_listening_socket(index: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer. Protocol 0: nothing is received before bind.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: `fd` was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1u32.to_ne_bytes())?;
    // Refused without CAP_NET_ADMIN; then the system's maximum applies.
    let size = (64u32 << 20).to_ne_bytes();
    if set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &size).is_err() {
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &size)?;
    }
    bind(fd.as_fd(), index)?;
    Ok(fd)
}

/// Binds a packet socket to interface `index`.
pub(super) fn bind(fd: BorrowedFd<'_>, index: u32) -> io::Result<()> {
    // SAFETY: all-zero is a valid sockaddr_ll.
    let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: the address lives through the call and its length is given.
    check(unsafe {
        libc::bind(
            fd.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Reads the next packet; truncates it to the size of `buffer`.
pub fn next_packet(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<CapturedPacket> {
    // SAFETY: all-zero is a valid sockaddr_ll and a valid msghdr.
    let mut address: libc::sockaddr_ll = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: as above.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = CmsgBuffer([0; 64]);
    message.msg_name = (&raw mut address).cast();
    message.msg_namelen = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    message.msg_iov = &raw mut iov;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = control.0.len();
    // SAFETY: all that `message` points to lives through the call, with the lengths given.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, libc::MSG_TRUNC) };
    let original_bytes = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok(CapturedPacket {
        captured_bytes: original_bytes.min(buffer.len()),
        original_bytes,
        unix_ns: timestamp_ns(&message),
        protocol: u16::from_be(address.sll_protocol),
        index: address.sll_ifindex.cast_unsigned(),
        hardware: address.sll_hatype,
        kind: address.sll_pkttype,
    })
}

/// Reads one packet into `parts`; returns its bytes and the kernel's time of receipt.
///
/// The time is in nanoseconds since 1970; `None` unless the socket has timestamps enabled.
pub fn read_stamped(
    fd: BorrowedFd<'_>,
    parts: &mut [IoSliceMut<'_>],
) -> io::Result<(usize, Option<u64>)> {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    let mut control = CmsgBuffer([0; 64]);
    // IoSliceMut is documented to have iovec's layout; the count is the slice's length.
    message.msg_iov = parts.as_mut_ptr().cast();
    message.msg_iovlen = parts.len();
    message.msg_control = (&raw mut control.0).cast();
    message.msg_controllen = control.0.len();
    // SAFETY: all that `message` points to lives through the call, with the lengths given.
    let length = unsafe { libc::recvmsg(fd.as_raw_fd(), &raw mut message, 0) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    Ok((length, Some(timestamp_ns(&message)).filter(|ns| *ns > 0)))
}

fn timestamp_ns(message: &libc::msghdr) -> u64 {
    // SAFETY: the kernel filled the header, and what it points to still lives.
    let header_pointer = unsafe { libc::CMSG_FIRSTHDR(message) };
    if header_pointer.is_null() {
        return 0;
    }
    // SAFETY: not null, so it points to a whole header inside of the control buffer.
    let header = unsafe { header_pointer.read_unaligned() };
    if header.cmsg_level != libc::SOL_SOCKET || header.cmsg_type != libc::SCM_TIMESTAMPNS {
        return 0;
    }
    // SAFETY: this kind of message holds a timespec, and only this one was requested.
    let time = unsafe { libc::CMSG_DATA(header_pointer).cast::<libc::timespec>().read_unaligned() };
    let (seconds, nanos) = (time.tv_sec.cast_unsigned(), time.tv_nsec.cast_unsigned());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
