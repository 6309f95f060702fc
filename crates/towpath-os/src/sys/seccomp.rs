//! A filter that notifies another process of some system calls (seccomp user notification).

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use super::check;
use super::signal::SignalMask;

/// A system call that waits for a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeccompNotification {
    /// Cookie of the notification; never used twice.
    pub id: u64,
    /// Thread ID of the caller in this process's PID namespace; 0 when it has none here.
    pub thread: u32,
    /// Arguments of the system call.
    pub arguments: [u64; 6],
}

/// Size of the buffers for `struct seccomp_notif` and `struct seccomp_notif_resp`, which may grow.
const NOTIFICATION_BYTES: usize = 512;

/// Makes `command` run with `filter`, and with `mask` as its signal mask.
///
/// The filter's listener is sent over `channel`. Sets `no_new_privs` only where the kernel requires
/// it.
pub fn filter_on_start(
    command: &mut Command,
    filter: Vec<libc::sock_filter>,
    channel: UnixStream,
    mask: SignalMask,
) {
    let hook = move || {
        mask.restore()?;
        let listener = install(&filter)?;
        // The listener is closed here: a process that holds its own listener would wait for itself
        // if the other end died.
        send_descriptor(channel.as_fd(), listener.as_fd())
    };
    // SAFETY: between fork and exec only system calls are made, and nothing is allocated.
    unsafe { command.pre_exec(hook) };
}

/// Makes `command` run with a `filter` that decides without a supervisor.
///
/// Only for an administrator, also of a user namespace.
pub fn limit_on_start(command: &mut Command, filter: Vec<libc::sock_filter>) {
    let hook = move || load_filter(&filter, 0).map(drop);
    // SAFETY: between fork and exec one system call is made, and nothing is allocated.
    unsafe { command.pre_exec(hook) };
}

/// Installs the filter for the calling thread.
fn install(filter: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER;
    // Since Linux 5.19, only a fatal signal cancels a notification that was read. Without this flag
    // any signal does, and the program repeats the call.
    let killable_flags = flags | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let attempt = || match set_filter(filter, killable_flags) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => set_filter(filter, flags),
        result => result,
    };
    match attempt() {
        // Only an administrator may filter programs that gain privileges by exec.
        Err(error) if error.raw_os_error() == Some(libc::EACCES) => {
            // SAFETY: takes numbers only.
            check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
            attempt()
        }
        result => result,
    }
}

fn set_filter(filter: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<OwnedFd> {
    let fd = load_filter(filter, flags)?;
    // SAFETY: the kernel has just made the descriptor for us: every caller requests a listener.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Loads the filter; returns a descriptor if `flags` request a listener, else 0.
fn load_filter(filter: &[libc::sock_filter], flags: libc::c_ulong) -> io::Result<libc::c_int> {
    let length = u16::try_from(filter.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    // SAFETY: the program and its instructions live through the call; the kernel only reads them.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::c_ulong::from(libc::SECCOMP_SET_MODE_FILTER),
            flags,
            &raw const program,
        )
    };
    check(result as libc::c_int)
}

/// Control message with room for one descriptor, with the kernel's alignment.
#[repr(align(8))]
struct FdCmsgBuffer([u8; 64]);

fn send_descriptor(channel: BorrowedFd<'_>, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut control = FdCmsgBuffer([0; 64]);
    let mut byte = [0u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    let size = size_of::<libc::c_int>() as libc::c_uint;
    // SAFETY: all-zero is a valid msghdr. Its pointers are valid through the calls. The control
    // buffer is aligned and larger than CMSG_SPACE of one descriptor, which CMSG_FIRSTHDR checks.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = libc::CMSG_SPACE(size) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size) as _;
        libc::CMSG_DATA(header).cast::<libc::c_int>().write_unaligned(fd.as_raw_fd());
        if libc::sendmsg(channel.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Receives the descriptor from `channel`; `None` when the other end closed it instead.
pub fn receive_descriptor(channel: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let mut control = FdCmsgBuffer([0; 64]);
    let mut byte = [0u8; 1];
    let mut iov = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // SAFETY: all-zero is a valid msghdr. Its pointers are valid through the calls. The kernel
    // writes at most the given lengths; it alone decides what CMSG_FIRSTHDR finds.
    unsafe {
        let mut message: libc::msghdr = MaybeUninit::zeroed().assume_init();
        message.msg_iov = &raw mut iov;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        if libc::recvmsg(channel.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        if header.is_null() || (*header).cmsg_type != libc::SCM_RIGHTS {
            return Ok(None);
        }
        let fd = libc::CMSG_DATA(header).cast::<libc::c_int>().read_unaligned();
        Ok(Some(OwnedFd::from_raw_fd(fd)))
    }
}

/// Reads one notification; `None` when it was cancelled meanwhile, or after a signal.
pub fn receive_notification(listener: BorrowedFd<'_>) -> io::Result<Option<SeccompNotification>> {
    let mut buffer = [0u64; NOTIFICATION_BYTES / 8];
    // SAFETY: the kernel writes one seccomp_notif, for which `buffer` is large enough and aligned
    // (`check_sizes`), and requires it to be zeroed.
    let result = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV as _, buffer.as_mut_ptr())
    };
    match check(result) {
        Ok(_) => {
            // SAFETY: the structure is plain numbers, at the start of a buffer that is larger.
            let notification = unsafe { buffer.as_ptr().cast::<libc::seccomp_notif>().read() };
            let (id, thread) = (notification.id, notification.pid);
            Ok(Some(SeccompNotification { id, thread, arguments: notification.data.args }))
        }
        Err(error) if is_cancelled(&error) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(None),
        Err(error) => Err(error),
    }
}

/// Returns true if the call still waits for its response, so its thread ID is still valid.
pub fn is_valid(listener: BorrowedFd<'_>, id: u64) -> bool {
    let request = libc::SECCOMP_IOCTL_NOTIF_ID_VALID as _;
    // SAFETY: the kernel reads one u64, which lives through the call.
    unsafe { libc::ioctl(listener.as_raw_fd(), request, &raw const id) == 0 }
}

/// Continues the call unchanged. `Ok(false)` when it was cancelled meanwhile. After an error, such
/// as EINTR, the call still waits.
pub fn continue_syscall(listener: BorrowedFd<'_>, id: u64) -> io::Result<bool> {
    let mut buffer = [0u64; NOTIFICATION_BYTES / 8];
    let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
    let response = libc::seccomp_notif_resp { id, val: 0, error: 0, flags };
    // SAFETY: the structure is plain numbers and fits the buffer, which the kernel only reads.
    let result = unsafe {
        buffer.as_mut_ptr().cast::<libc::seccomp_notif_resp>().write(response);
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND as _, buffer.as_mut_ptr())
    };
    is_delivered(check(result))
}

/// Gives the calling process a copy of `fd`, whose number is the call's result.
///
/// `Ok(false)` when the call was cancelled meanwhile. After an error, such as EINTR, the call still
/// waits.
pub fn respond_with_fd(
    listener: BorrowedFd<'_>,
    id: u64,
    fd: BorrowedFd<'_>,
    close_on_exec: bool,
) -> io::Result<bool> {
    let request = libc::seccomp_notif_addfd {
        id,
        flags: libc::SECCOMP_ADDFD_FLAG_SEND as u32,
        srcfd: fd.as_raw_fd() as u32,
        newfd: 0,
        newfd_flags: if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 },
    };
    let ioctl = libc::SECCOMP_IOCTL_NOTIF_ADDFD as _;
    // SAFETY: the kernel reads one seccomp_notif_addfd, which lives through the call.
    is_delivered(check(unsafe { libc::ioctl(listener.as_raw_fd(), ioctl, &raw const request) }))
}

fn is_delivered(result: io::Result<libc::c_int>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if is_cancelled(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn is_cancelled(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINPROGRESS))
}

/// Makes the kernel switch directly between the program and us, without the scheduler.
///
/// Since Linux 6.6; older kernels refuse, without harm.
pub fn switch_directly(listener: BorrowedFd<'_>) {
    const SYNC_WAKE_UP: libc::c_ulong = 1;
    // SAFETY: takes a number.
    let _ = unsafe {
        libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SET_FLAGS as _, SYNC_WAKE_UP)
    };
}

/// Checks that this kernel's structures fit into the buffers.
pub fn check_sizes() -> io::Result<()> {
    // SAFETY: all-zero is valid for these three numbers, and the kernel writes nothing else.
    let sizes = unsafe {
        let mut sizes: libc::seccomp_notif_sizes = MaybeUninit::zeroed().assume_init();
        let operation = libc::c_ulong::from(libc::SECCOMP_GET_NOTIF_SIZES);
        let none: libc::c_ulong = 0;
        check(libc::syscall(libc::SYS_seccomp, operation, none, &raw mut sizes) as libc::c_int)?;
        sizes
    };
    let largest = sizes.seccomp_notif.max(sizes.seccomp_notif_resp);
    if usize::from(largest) > NOTIFICATION_BYTES {
        Err(io::ErrorKind::Unsupported.into())
    } else {
        Ok(())
    }
}
