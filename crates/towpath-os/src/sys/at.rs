//! Files by their names in an open folder, so that renaming folders meanwhile has no effect.

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use super::{c_string, check};

/// Maximum length of a link's target (`PATH_MAX`).
const MAX_LINK_BYTES: usize = 4_096;

fn c_name(name: &OsStr) -> io::Result<CString> {
    CString::new(name.as_bytes()).map_err(|_| io::ErrorKind::InvalidInput.into())
}

/// Opens `name` in the folder `dir_fd`; `mode` applies to new files.
pub(crate) fn open_at(
    dir_fd: BorrowedFd<'_>,
    name: &OsStr,
    flags: libc::c_int,
    mode: u32,
) -> io::Result<OwnedFd> {
    let name = c_name(name)?;
    let flags = flags | libc::O_CLOEXEC;
    // SAFETY: the name lives through the call; the mode is passed as variadic functions take it.
    let fd = check(unsafe {
        libc::openat(dir_fd.as_raw_fd(), name.as_ptr(), flags, libc::c_uint::from(mode))
    })?;
    // SAFETY: `fd` was just opened and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes the folder `name` in the folder `dir_fd`.
pub(crate) fn make_folder_at(dir_fd: BorrowedFd<'_>, name: &OsStr, mode: u32) -> io::Result<()> {
    let name = c_name(name)?;
    // SAFETY: the name lives through the call.
    check(unsafe { libc::mkdirat(dir_fd.as_raw_fd(), name.as_ptr(), mode) }).map(drop)
}

/// Renames the file `from` in the folder `dir_fd` to `to`, replacing any file of that name.
pub(crate) fn rename_at(dir_fd: BorrowedFd<'_>, from: &OsStr, to: &OsStr) -> io::Result<()> {
    let (from, to, dir_fd) = (c_name(from)?, c_name(to)?, dir_fd.as_raw_fd());
    // SAFETY: both names live through the call.
    check(unsafe { libc::renameat(dir_fd, from.as_ptr(), dir_fd, to.as_ptr()) }).map(drop)
}

/// Removes the file or link `name` from the folder `dir_fd`.
pub(crate) fn remove_at(dir_fd: BorrowedFd<'_>, name: &OsStr) -> io::Result<()> {
    let name = c_name(name)?;
    // SAFETY: the name lives through the call.
    check(unsafe { libc::unlinkat(dir_fd.as_raw_fd(), name.as_ptr(), 0) }).map(drop)
}

/// Returns the target of the link `name` in the folder `dir_fd`.
pub(crate) fn read_link_at(dir_fd: BorrowedFd<'_>, name: &OsStr) -> io::Result<PathBuf> {
    let name = c_name(name)?;
    let mut bytes = vec![0_u8; MAX_LINK_BYTES];
    // SAFETY: the name lives through the call, and the kernel writes at most the buffer's length.
    let length = unsafe {
        libc::readlinkat(dir_fd.as_raw_fd(), name.as_ptr(), bytes.as_mut_ptr().cast(), bytes.len())
    };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
    bytes.truncate(length);
    Ok(OsString::from_vec(bytes).into())
}

/// Returns true if this process may write to `path`, as its effective user.
pub(crate) fn is_writable(path: &Path) -> bool {
    let Ok(path) = c_string(path) else { return false };
    let flags = libc::AT_EACCESS;
    // SAFETY: the path lives through the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::W_OK, flags) == 0 }
}
