//! System calls that no safe crate covers: the only `unsafe` of the project.
//!
//! Every function is a thin, typed wrapper, without any logic.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use bytes::BytesMut;

pub(crate) mod at;
pub(crate) mod capability;
pub mod error_queue;
pub mod packet;
pub mod ring;
pub mod seccomp;
pub mod signal;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn c_string(text: &Path) -> io::Result<CString> {
    CString::new(text.as_os_str().as_encoded_bytes())
        .map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Moves the calling thread (process, for user and PID namespaces) into new namespaces.
pub fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: takes no pointer.
    check(unsafe { libc::unshare(flags) }).map(drop)
}

/// Moves the calling thread into the network namespace behind `namespace`.
pub(crate) fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointer; the descriptor is open for the length of the call.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes the kernel kill this process when the thread that started it ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: PR_SET_PDEATHSIG takes a number, no pointer.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) }).map(drop)
}

/// Sets the minimum timer slack for the calling thread.
pub fn set_minimal_timer_slack() {
    // SAFETY: PR_SET_TIMERSLACK takes a number, no pointer. It cannot fail for the own thread.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
}

/// Returns free memory of the allocator to the system. Without the GNU C library, does nothing.
pub fn release_free_memory() {
    // SAFETY: takes no pointer, and touches only memory that the allocator knows to be free.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Closes every descriptor from `first_fd` on. Only for the start of a program that owns none.
pub fn close_from(first_fd: libc::c_uint) {
    // SAFETY: takes numbers only; the caller owns no descriptor in the range.
    unsafe { libc::syscall(libc::SYS_close_range, first_fd, libc::c_uint::MAX, 0) };
}

/// Returns a descriptor's inode; a socket's is the one in the kernel's socket listings.
pub fn inode(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel fills the structure, which lives through the call.
    check(unsafe { libc::fstat(fd.as_raw_fd(), status.as_mut_ptr()) })?;
    // SAFETY: the call has succeeded; all-zero is valid too.
    Ok(unsafe { status.assume_init() }.st_ino as u32)
}

/// Returns the effective user ID and group ID of the process.
pub fn user_and_group() -> (u32, u32) {
    // SAFETY: these calls take nothing and cannot fail.
    unsafe { (libc::geteuid(), libc::getegid()) }
}

/// Returns the PID of the parent.
pub(crate) fn parent_pid() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getppid() }
}

/// Mounts a fresh `/proc` (of the calling process's PID namespace).
pub(crate) fn mount_proc() -> io::Result<()> {
    mount_kernel_files(c"proc", c"/proc")
}

/// Mounts a fresh `/sys` (of the calling thread's network namespace).
pub fn mount_sys() -> io::Result<()> {
    mount_kernel_files(c"sysfs", c"/sys")
}

fn mount_kernel_files(kind: &CStr, target: &CStr) -> io::Result<()> {
    // SAFETY: both strings live through the call; the data argument may be null.
    check(unsafe {
        libc::mount(
            kind.as_ptr(),
            target.as_ptr(),
            kind.as_ptr(),
            libc::MS_NOSUID | libc::MS_NODEV | libc::MS_NOEXEC,
            std::ptr::null(),
        )
    })
    .map(drop)
}

/// Makes mounts private, so that changes in this mount namespace do not reach the host.
pub(crate) fn make_mounts_private() -> io::Result<()> {
    let (none, root) = (c"none", c"/");
    // SAFETY: both strings live through the call; type and data may be null.
    check(unsafe {
        libc::mount(
            none.as_ptr(),
            root.as_ptr(),
            std::ptr::null(),
            libc::MS_REC | libc::MS_PRIVATE,
            std::ptr::null(),
        )
    })
    .map(drop)
}

/// Gives the calling thread real-time priority (`SCHED_FIFO`), which its children inherit.
pub fn set_real_time_priority(priority: i32) -> io::Result<()> {
    set_policy(libc::SCHED_FIFO, priority)
}

/// Gives the calling thread ordinary priority; always allowed.
pub(crate) fn set_ordinary_priority() -> io::Result<()> {
    set_policy(libc::SCHED_OTHER, 0)
}

fn set_policy(policy: libc::c_int, priority: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: `parameters` lives through the call and is only read; 0 is the calling thread.
    check(unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) }).map(drop)
}

/// Returns true if the calling thread has real-time priority.
pub fn has_real_time_priority() -> bool {
    // SAFETY: takes no pointer; 0 is the calling thread.
    unsafe { libc::sched_getscheduler(0) == libc::SCHED_FIFO }
}

/// Sets the nice value of the calling thread.
pub fn set_nice(value: i32) -> io::Result<()> {
    // SAFETY: takes no pointer; 0 is the calling thread.
    check(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, value) }).map(drop)
}

/// Requests time slices of `length` on a processor, if the calling thread has ordinary priority.
///
/// Since Linux 6.12, a thread with short slices need not wait for a longer slice of another thread
/// when it wakes up. Older kernels ignore the request. Needs no privilege.
pub fn set_slice(length: Duration) -> io::Result<()> {
    // SAFETY: takes no pointer; 0 is the calling thread. -1 may be an error or a nice value, but
    // the call cannot fail for the own thread.
    let nice = unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) };
    let attributes = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: libc::SCHED_OTHER as u32,
        sched_flags: 0,
        sched_nice: nice,
        sched_priority: 0,
        sched_runtime: u64::try_from(length.as_nanos()).unwrap_or(u64::MAX),
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the structure lives through the call, is only read, and contains its own size.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(&attributes), 0) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Raises the soft limit of open files to the hard limit.
pub fn raise_open_files() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the structure lives through both calls.
    unsafe {
        check(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit))?;
        limit.rlim_cur = limit.rlim_max;
        check(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit))?;
    }
    Ok(limit.rlim_cur)
}

/// Returns the processor time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the processor time of the whole process.
pub fn process_cpu_time() -> Duration {
    clock_time(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the monotonic time since an arbitrary start.
pub fn monotonic() -> Duration {
    clock_time(libc::CLOCK_MONOTONIC)
}

/// Returns the wall-clock time since 1970.
pub(crate) fn real_time() -> Duration {
    clock_time(libc::CLOCK_REALTIME)
}

fn clock_time(id: libc::clockid_t) -> Duration {
    let mut time = MaybeUninit::<libc::timespec>::zeroed();
    // SAFETY: the kernel fills the timespec, for which all-zero is a valid value too.
    let time = unsafe {
        libc::clock_gettime(id, time.as_mut_ptr());
        time.assume_init()
    };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Waits until a descriptor is readable or `timeout` has passed; fills `revents`.
pub fn poll(fds: &mut [libc::pollfd], timeout: Option<Duration>) -> io::Result<usize> {
    let time = timeout.map(|t| libc::timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX) as libc::time_t,
        tv_nsec: i64::from(t.subsec_nanos()) as libc::c_long,
    });
    let pointer = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the slice and the timespec live through the call; the length is the slice's own.
    let result = unsafe {
        libc::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, pointer, std::ptr::null())
    };
    match check(result) {
        Ok(ready) => Ok(ready as usize),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error),
    }
}

/// Returns a `pollfd` for [`poll`] that is ready when `fd` has input.
pub fn input_pollfd(fd: &impl AsFd) -> libc::pollfd {
    libc::pollfd { fd: fd.as_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 }
}

/// Opens the TUN device `name` in the calling thread's network namespace, with virtio headers and
/// segmentation offload.
pub fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let fd = open_tun_with(name, libc::IFF_VNET_HDR)?;
    let offloads = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
    // SAFETY: TUNSETOFFLOAD takes a number.
    check(unsafe {
        libc::ioctl(fd.as_raw_fd(), libc::TUNSETOFFLOAD, libc::c_ulong::from(offloads))
    })?;
    Ok(fd)
}

/// Opens the TUN device `name`, with `flags` in addition to the usual ones.
pub fn open_tun_with(name: &str, flags: libc::c_int) -> io::Result<OwnedFd> {
    let path = c_string(Path::new("/dev/net/tun"))?;
    // SAFETY: the path lives through the call.
    let fd = check(unsafe {
        libc::open(path.as_ptr(), libc::O_RDWR | libc::O_NONBLOCK | libc::O_CLOEXEC)
    })?;
    // SAFETY: `fd` was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: all-zero is a valid ifreq.
    let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
    if name.len() >= request.ifr_name.len() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = libc::c_char::from_ne_bytes([byte]);
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | flags) as libc::c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETIFF, &raw mut request) })?;
    Ok(fd)
}

/// Turns the carrier of a TUN device on or off.
pub fn set_tun_carrier(fd: BorrowedFd<'_>, on: bool) -> io::Result<()> {
    let value = libc::c_int::from(on);
    // SAFETY: TUNSETCARRIER reads one int, which lives through the call.
    check(unsafe { libc::ioctl(fd.as_raw_fd(), libc::TUNSETCARRIER, &raw const value) }).map(drop)
}

/// Opens a packet socket with virtio headers and arrival timestamps.
///
/// The socket is on interface `index` of the calling thread's network namespace.
pub fn open_packet_socket(index: u32) -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: takes no pointer. Protocol 0: nothing is received before bind.
    let fd = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
    // SAFETY: `fd` was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let on = 1u32.to_ne_bytes();
    for option in [libc::PACKET_VNET_HDR, libc::PACKET_IGNORE_OUTGOING, libc::PACKET_QDISC_BYPASS] {
        set_option(fd.as_fd(), libc::SOL_PACKET, option, &on)?;
    }
    set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on)?;
    // The default of 208 KiB holds three super-segments; refused in a user namespace before 6.x.
    let size = (64u32 << 20).to_ne_bytes();
    if set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &size).is_err() {
        set_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, &size)?;
    }
    packet::bind(fd.as_fd(), index)?;
    Ok(fd)
}

/// Returns the packets that a packet socket has dropped since the last call.
pub fn packet_socket_drops(fd: BorrowedFd<'_>) -> u64 {
    // struct tpacket_stats: packets, drops.
    let mut stats = [0; 8];
    match get_option(fd, libc::SOL_PACKET, libc::PACKET_STATISTICS, &mut stats) {
        Ok(8) => {
            let [_, _, _, _, drops @ ..] = stats;
            u64::from(u32::from_ne_bytes(drops))
        }
        Ok(_) | Err(_) => 0,
    }
}

/// Sets a socket option to raw bytes.
pub fn set_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &[u8],
) -> io::Result<()> {
    // SAFETY: the slice lives through the call and its length is given.
    check(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            value.as_ptr().cast(),
            value.len() as libc::socklen_t,
        )
    })
    .map(drop)
}

/// Reads a socket option into `value`, whose content the kernel may also read.
///
/// Returns the length that the kernel filled.
pub fn get_option(
    fd: BorrowedFd<'_>,
    level: libc::c_int,
    option: libc::c_int,
    value: &mut [u8],
) -> io::Result<usize> {
    let mut length = value.len() as libc::socklen_t;
    // SAFETY: the slice lives through the call and the kernel writes at most `length` bytes.
    check(unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, option, value.as_mut_ptr().cast(), &raw mut length)
    })?;
    Ok((length as usize).min(value.len()))
}

/// Reads `MPTCP_FULL_INFO` with the header in `request`.
///
/// The header refers the kernel to `tcp_infos` and `addresses` by the given offsets.
pub fn mptcp_full_info(
    fd: BorrowedFd<'_>,
    request: &mut [u8; FULL_INFO_BYTES],
    tcp_infos: &mut [u8],
    addresses: &mut [u8],
) -> io::Result<()> {
    let pointers = [
        (FULL_INFO_TCP_POINTER, tcp_infos.as_mut_ptr() as u64),
        (FULL_INFO_ADDRESS_POINTER, addresses.as_mut_ptr() as u64),
    ];
    for (offset, pointer) in pointers {
        if let Some(slot) = request.get_mut(offset..offset + 8) {
            slot.copy_from_slice(&pointer.to_ne_bytes());
        }
    }
    let mut length = FULL_INFO_BYTES as libc::socklen_t;
    // SAFETY: the kernel writes the header and, at most, count × size bytes behind the two
    // pointers. The caller's header has sizes and counts of the two slices, checked there. Both
    // slices are exclusively borrowed through the call.
    check(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            SOL_MPTCP,
            MPTCP_FULL_INFO,
            request.as_mut_ptr().cast(),
            &raw mut length,
        )
    })
    .map(drop)
}

/// Level of MPTCP socket options (`linux/mptcp.h`).
pub const SOL_MPTCP: libc::c_int = 284;
/// `struct mptcp_info` (`linux/mptcp.h`, since Linux 5.16).
pub const MPTCP_INFO: libc::c_int = 1;
/// `struct tcp_info` of every subflow (since Linux 5.16).
pub const MPTCP_TCPINFO: libc::c_int = 2;
/// Addresses of every subflow (since Linux 5.16).
pub const MPTCP_SUBFLOW_ADDRS: libc::c_int = 3;
const MPTCP_FULL_INFO: libc::c_int = 4;
/// Size of `struct mptcp_full_info` up to and with its `mptcp_info` of 96 bytes.
pub const FULL_INFO_BYTES: usize = 40 + 96;
const FULL_INFO_ADDRESS_POINTER: usize = 24;
const FULL_INFO_TCP_POINTER: usize = 32;

/// Makes an eventfd, which is readable while its counter is not zero.
pub(crate) fn create_eventfd() -> io::Result<OwnedFd> {
    // SAFETY: takes no pointer.
    let fd = check(unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) })?;
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Reads one packet: its first bytes into `prefix`, the rest after the content of `buffer`.
///
/// The rest is limited by the buffer's capacity. Returns the bytes read, including those in
/// `prefix`. Nothing is cleared beforehand.
pub fn read_appending(
    fd: BorrowedFd<'_>,
    prefix: &mut [u8],
    buffer: &mut BytesMut,
) -> io::Result<usize> {
    let spare = buffer.spare_capacity_mut();
    let parts = [
        libc::iovec { iov_base: prefix.as_mut_ptr().cast(), iov_len: prefix.len() },
        libc::iovec { iov_base: spare.as_mut_ptr().cast(), iov_len: spare.len() },
    ];
    let count = libc::c_int::try_from(parts.len()).unwrap_or(0);
    // SAFETY: both parts are exclusively borrowed through the call, with their own lengths; the
    // kernel only writes to them.
    let read = unsafe { libc::readv(fd.as_raw_fd(), parts.as_ptr(), count) };
    let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
    let length = buffer.len() + read.saturating_sub(prefix.len());
    // SAFETY: the kernel has filled the spare capacity up to there.
    unsafe { buffer.set_len(length.min(buffer.capacity())) };
    Ok(read)
}

/// Reads one packet into several buffers; returns the bytes read.
pub fn read_vectored(fd: BorrowedFd<'_>, parts: &mut [io::IoSliceMut<'_>]) -> io::Result<usize> {
    let count = libc::c_int::try_from(parts.len()).unwrap_or(0);
    // SAFETY: IoSliceMut is documented to have iovec's layout; the count is the slice's length.
    let read = unsafe { libc::readv(fd.as_raw_fd(), parts.as_mut_ptr().cast(), count) };
    usize::try_from(read).map_err(|_| io::Error::last_os_error())
}

/// Writes one packet from several buffers.
pub fn write_vectored(fd: BorrowedFd<'_>, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
    let count = libc::c_int::try_from(parts.len()).unwrap_or(0);
    // SAFETY: IoSlice has the layout of iovec by its documentation; the count is the slice's own.
    let written = unsafe { libc::writev(fd.as_raw_fd(), parts.as_ptr().cast(), count) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

/// Installs `handler` for SIGINT and SIGTERM. The handler may only touch atomics.
pub(crate) fn on_interrupt(handler: extern "C" fn(libc::c_int)) {
    // SAFETY: all-zero is a valid sigaction; the handler is async-signal-safe by its contract.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = handler as usize;
        for signal in [libc::SIGINT, libc::SIGTERM] {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
    }
}

/// Ends the process without any clean-up; may be called in a signal handler.
pub(crate) fn exit_now(code: libc::c_int) -> ! {
    // SAFETY: _exit is async-signal-safe and takes no pointer.
    unsafe { libc::_exit(code) }
}
